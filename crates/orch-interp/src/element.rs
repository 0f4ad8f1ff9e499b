//! Element types as Rust types: how each is widened for computing, accumulated and rounded back.

use crate::scalar::Calc;
use bytemuck::{Pod, Zeroable};
use bytes::Bytes;
use half::{bf16, f16};
use orch_ir::{DType, Shape, Tensor};
use std::borrow::Cow;

/// A boolean element: one byte, 0 or 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bool(pub u8);

/// The in-memory form of one [`DType`].
pub trait Element: Pod + Send + Sync {
    /// The element type this is.
    const DTYPE: DType;
    /// The type that scalar functions compute in: `f64` for floats, `i128` for integers and booleans, so that
    /// every operand is exact.
    type Calc: Calc;
    /// The type that sums and products of many elements accumulate in.
    type Acc: Accumulator;

    /// The element, exactly.
    fn widen(self) -> Self::Calc;
    /// Rounds to nearest even (floats) or wraps (integers); booleans are `!= 0`.
    fn narrow(value: Self::Calc) -> Self;
    /// The element as an accumulator, exactly (`u64` modulo 2^64).
    fn to_acc(self) -> Self::Acc;
    /// Rounds or wraps an accumulated value.
    fn from_acc(value: Self::Acc) -> Self;
    /// Conversion from a float: truncates toward zero and saturates to integers.
    fn from_f64(value: f64) -> Self;
    /// Conversion from an integer: wraps to integers, rounds to floats.
    fn from_int(value: i128) -> Self;
    /// What the maximum of nothing is: negative infinity, or the lowest integer.
    fn lowest() -> Self;
    /// What the minimum of nothing is: positive infinity, or the highest integer.
    fn highest() -> Self;
}

/// A type in which many products are summed.
pub trait Accumulator: Copy + Send + Sync + Pod {
    /// The sum of nothing.
    const ZERO: Self;
    /// The product of nothing.
    const ONE: Self;
    /// Sum; integers wrap.
    fn add(self, other: Self) -> Self;
    /// Product; integers wrap.
    fn mul(self, other: Self) -> Self;
}

macro_rules! float_accumulators {
    ($($float:ty),*) => { $(
        impl Accumulator for $float {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            fn add(self, other: Self) -> Self { self + other }
            fn mul(self, other: Self) -> Self { self * other }
        }
    )* };
}

float_accumulators!(f32, f64);

impl Accumulator for i64 {
    const ZERO: Self = 0;
    const ONE: Self = 1;
    fn add(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    fn mul(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }
}

macro_rules! float_elements {
    ($($rust:ty => $dtype:ident, $acc:ty, $to_f64:expr, $from_f64:expr, $to_acc:expr, $from_acc:expr, $from_int:expr;)*) => { $(
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
            type Calc = f64;
            type Acc = $acc;
            fn widen(self) -> f64 { $to_f64(self) }
            fn narrow(value: f64) -> Self { $from_f64(value) }
            fn to_acc(self) -> $acc { $to_acc(self) }
            fn from_acc(value: $acc) -> Self { $from_acc(value) }
            fn from_f64(value: f64) -> Self { $from_f64(value) }
            fn from_int(value: i128) -> Self { $from_int(value) }
            fn lowest() -> Self { $from_f64(f64::NEG_INFINITY) }
            fn highest() -> Self { $from_f64(f64::INFINITY) }
        }
    )* };
}

float_elements! {
    f16 => F16, f32, f16::to_f64, f16::from_f64, f16::to_f32, f16::from_f32, |v| f16::from_f64(v as f64);
    bf16 => BF16, f32, bf16::to_f64, bf16::from_f64, bf16::to_f32, bf16::from_f32, |v| bf16::from_f64(v as f64);
    f32 => F32, f64, f64::from, |v| v as f32, f64::from, |v| v as f32, |v| v as f32;
    f64 => F64, f64, f64::from, f64::from, f64::from, f64::from, |v| v as f64;
}

macro_rules! int_elements {
    ($($rust:ty => $dtype:ident),*) => { $(
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
            type Calc = i128;
            type Acc = i64;
            fn widen(self) -> i128 { i128::from(self) }
            fn narrow(value: i128) -> Self { value as Self }
            fn to_acc(self) -> i64 { self as i64 }
            fn from_acc(value: i64) -> Self { value as Self }
            fn from_f64(value: f64) -> Self { value as Self }
            fn from_int(value: i128) -> Self { value as Self }
            fn lowest() -> Self { Self::MIN }
            fn highest() -> Self { Self::MAX }
        }
    )* };
}

int_elements!(i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64);

impl Element for Bool {
    const DTYPE: DType = DType::Bool;
    type Calc = i128;
    type Acc = i64;
    fn widen(self) -> i128 {
        i128::from(self.0)
    }
    fn narrow(value: i128) -> Self {
        Self(u8::from(value != 0))
    }
    fn to_acc(self) -> i64 {
        i64::from(self.0)
    }
    fn from_acc(value: i64) -> Self {
        Self(u8::from(value != 0))
    }
    fn from_f64(value: f64) -> Self {
        Self(u8::from(value != 0.0))
    }
    fn from_int(value: i128) -> Self {
        Self(u8::from(value != 0))
    }
    fn lowest() -> Self {
        Self(0)
    }
    fn highest() -> Self {
        Self(1)
    }
}

/// Evaluates an expression with `$T` bound to the Rust type of a run-time [`DType`].
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            orch_ir::DType::Bool => {
                type $T = $crate::element::Bool;
                $body
            }
            orch_ir::DType::I8 => {
                type $T = i8;
                $body
            }
            orch_ir::DType::I16 => {
                type $T = i16;
                $body
            }
            orch_ir::DType::I32 => {
                type $T = i32;
                $body
            }
            orch_ir::DType::I64 => {
                type $T = i64;
                $body
            }
            orch_ir::DType::U8 => {
                type $T = u8;
                $body
            }
            orch_ir::DType::U16 => {
                type $T = u16;
                $body
            }
            orch_ir::DType::U32 => {
                type $T = u32;
                $body
            }
            orch_ir::DType::U64 => {
                type $T = u64;
                $body
            }
            orch_ir::DType::F16 => {
                type $T = half::f16;
                $body
            }
            orch_ir::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            orch_ir::DType::F32 => {
                type $T = f32;
                $body
            }
            orch_ir::DType::F64 => {
                type $T = f64;
                $body
            }
        }
    };
}

pub(crate) use with_element;

/// The elements of a tensor of `T`; copied only where they are not aligned.
///
/// # Panics
/// If `T` has another size than the tensor's elements.
pub fn elems<T: Element>(tensor: &Tensor) -> Cow<'_, [T]> {
    assert_eq!(size_of::<T>(), tensor.dtype().size_bytes(), "the caller matches on the element type");
    match bytemuck::try_cast_slice(tensor.bytes()) {
        Ok(slice) => Cow::Borrowed(slice),
        Err(_) => Cow::Owned(bytemuck::allocation::pod_collect_to_vec(tensor.bytes())),
    }
}

/// A tensor of these elements, without a copy.
///
/// # Panics
/// If there are not `shape.elems()` values.
pub fn tensor<T: Element>(shape: impl Into<Shape>, values: Vec<T>) -> Tensor {
    /// Lets [`Bytes`] own a vector of elements.
    struct Owner<T>(Vec<T>);
    impl<T: Pod> AsRef<[u8]> for Owner<T> {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }
    Tensor::from_bytes(T::DTYPE, shape.into(), Bytes::from_owner(Owner(values)))
        .expect("one value per element")
}

/// Booleans as a tensor.
pub fn bool_tensor(shape: impl Into<Shape>, values: impl Iterator<Item = bool>) -> Tensor {
    tensor(shape, values.map(|v| Bool(u8::from(v))).collect())
}

/// The elements of an integer tensor, each limited to `0..extent`: how primitives read indices.
///
/// # Panics
/// If `extent` is 0 and there are indices, or the tensor holds floats: shape inference refuses both.
pub fn indices(tensor: &Tensor, extent: usize) -> Vec<usize> {
    with_element!(tensor.dtype(), T => {
        elems::<T>(tensor).iter().map(|&v| clamp_index(v.widen().to_int(), extent)).collect()
    })
}

/// An index limited to `0..extent`.
fn clamp_index(index: i128, extent: usize) -> usize {
    index.clamp(0, extent as i128 - 1) as usize
}
