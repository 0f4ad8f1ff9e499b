//! Sums, means, variances, products and their running forms.
//!
//! Operands are converted to the type of the result first, as eager does; f16 and bf16 are summed in f32.

use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Val, invalid, reduced, wide};
use crate::promote::Number;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.sum.default", "self dtype", |emitter, call| plain(emitter, call, "ReduceSum")),
    rule("aten.sum.dim_IntList", "self dim keepdim dtype", |emitter, call| plain(emitter, call, "ReduceSum")),
    rule("aten.prod.default", "self dtype", |emitter, call| plain(emitter, call, "ReduceProd")),
    rule("aten.prod.dim_int", "self dim keepdim dtype", |emitter, call| plain(emitter, call, "ReduceProd")),
    rule("aten.mean.default", "self dtype", mean),
    rule("aten.mean.dim", "self dim keepdim dtype", mean),
    rule("aten.var.correction", "self dim correction keepdim", variance),
    rule("aten.var.dim", "self dim unbiased keepdim", variance),
    rule("aten.var_mean.correction", "self dim correction keepdim", variance_and_mean),
    rule("aten.any.default", "self", |emitter, call| truth(emitter, call, "ReduceMax")),
    rule("aten.any.dim", "self dim keepdim", |emitter, call| truth(emitter, call, "ReduceMax")),
    rule("aten.any.dims", "self dim keepdim", |emitter, call| truth(emitter, call, "ReduceMax")),
    rule("aten.all.default", "self", |emitter, call| truth(emitter, call, "ReduceMin")),
    rule("aten.all.dim", "self dim keepdim", |emitter, call| truth(emitter, call, "ReduceMin")),
    rule("aten.all.dims", "self dim keepdim", |emitter, call| truth(emitter, call, "ReduceMin")),
    rule("aten.cumsum.default", "self dim dtype", |emitter, call| running(emitter, call, "CumSum")),
    rule("aten.cumprod.default", "self dim dtype", |emitter, call| running(emitter, call, "CumProd")),
];

/// No axes mean all of them.
fn plain(emitter: &mut Emitter, call: &Call, op_type: &str) -> Applied {
    let dtype = call.dtype()?;
    let x = emitter.cast(call.tensor("self")?, wide(dtype));
    let y = emitter.reduce(op_type, &x, &call.axes("dim", x.rank())?, call.flag_or("keepdim", false)?);
    one(emitter.cast(&y, dtype))
}

fn mean(emitter: &mut Emitter, call: &Call) -> Applied {
    let dtype = call.dtype()?;
    if !dtype.is_float() {
        return invalid(format!("a mean of type {dtype}"));
    }
    let x = emitter.cast(call.tensor("self")?, wide(dtype));
    let axes = call.axes("dim", x.rank())?;
    let mean = mean_of(emitter, &x, &axes, call.flag_or("keepdim", false)?)?;
    one(emitter.cast(&mean, dtype))
}

/// The sum divided by the number of elements: NaN of nothing.
pub(super) fn mean_of(emitter: &mut Emitter, x: &Val, axes: &[usize], keep: bool) -> Emitted {
    let sum = emitter.reduce("ReduceSum", x, axes, keep);
    let count: usize = axes.iter().map(|&axis| x.shape[axis]).product();
    emitter.binary_scalar("Div", &sum, count as f64)
}

fn variance(emitter: &mut Emitter, call: &Call) -> Applied {
    Ok(variance_and_mean(emitter, call)?.into_iter().take(1).collect())
}

/// `sum (x - mean)^2 / max(0, n - correction)`, and the mean.
fn variance_and_mean(emitter: &mut Emitter, call: &Call) -> Applied {
    let dtype = call.dtype()?;
    let x = call.float_tensor("self")?;
    let axes = call.axes("dim", x.rank())?;
    let keep = call.flag_or("keepdim", false)?;
    let correction = match call.flag_or("unbiased", true)? {
        true => call.number_or("correction", Number::Int(1))?.as_f64(),
        false => 0.0,
    };
    let x = emitter.widen(x);
    let mean = mean_of(emitter, &x, &axes, true)?;
    let centred = emitter.binary("Sub", &x, &mean)?;
    let squares = emitter.binary("Mul", &centred, &centred)?;
    let sum = emitter.reduce("ReduceSum", &squares, &axes, keep);
    let count: usize = axes.iter().map(|&axis| x.shape[axis]).product();
    let variance = emitter.binary_scalar("Div", &sum, (count as f64 - correction).max(0.0))?;
    let mean = emitter.reshape(&mean, reduced(&x.shape, &axes, keep).to_vec())?;
    Ok(vec![Some(emitter.cast(&variance, dtype)), Some(emitter.cast(&mean, dtype))])
}

/// Whether any, or every, element is not zero. The result is `u8` for `u8`.
fn truth(emitter: &mut Emitter, call: &Call, op_type: &str) -> Applied {
    let truth = emitter.truth(call.tensor("self")?);
    let axes = call.axes("dim", truth.rank())?;
    let y = emitter.reduce(op_type, &truth, &axes, call.flag_or("keepdim", false)?);
    one(emitter.cast(&y, call.dtype()?))
}

fn running(emitter: &mut Emitter, call: &Call, op_type: &str) -> Applied {
    let dtype = call.dtype()?;
    let x = emitter.cast(call.tensor("self")?, wide(dtype));
    let axis = call.axis("dim", 0, x.rank())?;
    if x.rank() == 0 {
        return one(emitter.cast(&x, dtype));
    }
    let axis = emitter.scalar_int(orch_ir::DType::I64, axis as i64);
    let y = emitter.one(op_type, &[&x, &axis], &[], (x.dtype, x.shape.clone()));
    one(emitter.cast(&y, dtype))
}
