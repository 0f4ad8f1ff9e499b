//! Elementwise primitives.

use crate::element::{Element, bool_tensor, elems, tensor, with_element};
use crate::scalar::{Calc, compare};
use orch_ir::{BinaryFn, CompareFn, DType, ScalarFn, Tensor, UnaryFn};

/// Applies a scalar function to operands of equal shape; inference has accepted their types.
pub fn map(function: ScalarFn, inputs: &[&Tensor]) -> Tensor {
    match function {
        ScalarFn::Unary(f) => with_element!(inputs[0].dtype(), T => unary::<T>(f, inputs[0])),
        ScalarFn::Binary(f) => with_element!(inputs[0].dtype(), T => binary::<T>(f, inputs[0], inputs[1])),
        ScalarFn::Compare(f) => {
            with_element!(inputs[0].dtype(), T => comparison::<T>(f, inputs[0], inputs[1]))
        }
        ScalarFn::Select => {
            with_element!(inputs[1].dtype(), T => select::<T>(inputs[0], inputs[1], inputs[2]))
        }
        ScalarFn::Cast(to) => with_element!(to, T => cast::<T>(inputs[0])),
        ScalarFn::IsNan => with_element!(inputs[0].dtype(), T => classify::<T>(inputs[0], Calc::is_nan)),
        ScalarFn::IsInf => with_element!(inputs[0].dtype(), T => classify::<T>(inputs[0], Calc::is_infinite)),
    }
}

fn unary<T: Element>(function: UnaryFn, x: &Tensor) -> Tensor {
    if T::DTYPE == DType::Bool && function == UnaryFn::Not {
        return bool_tensor(x.shape().clone(), x.bytes().iter().map(|&v| v == 0));
    }
    let f = T::Calc::unary(function).expect("inference refuses functions that the type lacks");
    tensor(x.shape().clone(), elems::<T>(x).iter().map(|v| T::narrow(f(v.widen()))).collect())
}

fn binary<T: Element>(function: BinaryFn, x: &Tensor, y: &Tensor) -> Tensor {
    let f = T::Calc::binary(function).expect("inference refuses functions that the type lacks");
    let bits = 8 * size_of::<T>() as u32;
    let (x_elems, y_elems) = (elems::<T>(x), elems::<T>(y));
    let pairs = x_elems.iter().zip(y_elems.iter());
    tensor(x.shape().clone(), pairs.map(|(a, b)| T::narrow(f(a.widen(), b.widen(), bits))).collect())
}

fn comparison<T: Element>(function: CompareFn, x: &Tensor, y: &Tensor) -> Tensor {
    let f = compare::<T::Calc>(function);
    let (x_elems, y_elems) = (elems::<T>(x), elems::<T>(y));
    let pairs = x_elems.iter().zip(y_elems.iter());
    bool_tensor(x.shape().clone(), pairs.map(|(a, b)| f(&a.widen(), &b.widen())))
}

fn select<T: Element>(condition: &Tensor, if_true: &Tensor, if_false: &Tensor) -> Tensor {
    let (true_elems, false_elems) = (elems::<T>(if_true), elems::<T>(if_false));
    let chosen = condition.bytes().iter().enumerate();
    let values = chosen.map(|(at, &c)| if c != 0 { true_elems[at] } else { false_elems[at] });
    tensor(condition.shape().clone(), values.collect())
}

fn cast<To: Element>(x: &Tensor) -> Tensor {
    let values = match x.dtype() {
        DType::F16 => cast_float::<half::f16, To>(x),
        DType::BF16 => cast_float::<half::bf16, To>(x),
        DType::F32 => cast_float::<f32, To>(x),
        DType::F64 => cast_float::<f64, To>(x),
        int => {
            with_element!(int, T => elems::<T>(x).iter().map(|v| To::from_int(v.widen().to_int())).collect())
        }
    };
    tensor(x.shape().clone(), values)
}

fn cast_float<From: Element, To: Element>(x: &Tensor) -> Vec<To> {
    elems::<From>(x).iter().map(|v| To::from_f64(v.widen().to_f64())).collect()
}

fn classify<T: Element>(x: &Tensor, test: fn(T::Calc) -> bool) -> Tensor {
    bool_tensor(x.shape().clone(), elems::<T>(x).iter().map(|v| test(v.widen())))
}
