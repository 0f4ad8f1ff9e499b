//! Tensor values.

use crate::{DType, Shape};
use bytes::Bytes;
use half::{bf16, f16};
use std::fmt;

/// A dense tensor: row-major little-endian elements. Cloning is cheap; the bytes may be those of a
/// memory-mapped file, so nothing is promised about their alignment.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    data: Bytes,
}

/// Why bytes are not a tensor.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{dtype}{shape} takes {expected} bytes, {given} were given")]
pub struct TensorSizeError {
    /// The type claimed.
    pub dtype: DType,
    /// The shape claimed.
    pub shape: Shape,
    /// Bytes that type and shape take.
    pub expected: usize,
    /// Bytes given.
    pub given: usize,
}

/// A Rust type that is the in-memory form of one [`DType`].
pub trait Element: bytemuck::Pod {
    /// The element type this is.
    const DTYPE: DType;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}

element!(i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64);

impl Tensor {
    /// A tensor over bytes that are already laid out.
    ///
    /// # Errors
    /// If `data` is not exactly as long as `dtype` and `shape` ask.
    pub fn from_bytes(dtype: DType, shape: Shape, data: Bytes) -> Result<Self, TensorSizeError> {
        let expected = shape.elems() * dtype.size_bytes();
        if data.len() == expected {
            Ok(Self { dtype, shape, data })
        } else {
            Err(TensorSizeError { dtype, shape, expected, given: data.len() })
        }
    }

    /// A tensor of these elements.
    ///
    /// # Panics
    /// If there are not `shape.elems()` values.
    pub fn from_vec<T: Element>(shape: impl Into<Shape>, values: Vec<T>) -> Self {
        let shape = shape.into();
        assert_eq!(shape.elems(), values.len(), "one value per element of {shape}");
        let data = Bytes::copy_from_slice(bytemuck::cast_slice(&values));
        Self { dtype: T::DTYPE, shape, data }
    }

    /// A boolean tensor.
    ///
    /// # Panics
    /// If there are not `shape.elems()` values.
    pub fn from_bools(shape: impl Into<Shape>, values: &[bool]) -> Self {
        let shape = shape.into();
        assert_eq!(shape.elems(), values.len(), "one value per element of {shape}");
        let data = values.iter().map(|&b| u8::from(b)).collect::<Vec<_>>().into();
        Self { dtype: DType::Bool, shape, data }
    }

    /// A scalar.
    pub fn scalar<T: Element>(value: T) -> Self {
        Self::from_vec(Shape::scalar(), vec![value])
    }

    /// A tensor of zeros (`false` for booleans).
    pub fn zeros(dtype: DType, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        let data = vec![0u8; shape.elems() * dtype.size_bytes()].into();
        Self { dtype, shape, data }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The elements' bytes, row-major, little-endian.
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// The same elements under another shape.
    ///
    /// # Panics
    /// If the element counts differ.
    pub fn reshaped(&self, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        assert_eq!(shape.elems(), self.shape.elems(), "reshape keeps the element count");
        Self { dtype: self.dtype, shape, data: self.data.clone() }
    }

    /// The elements as a vector, or `None` if `T` is not the element type.
    pub fn to_vec<T: Element>(&self) -> Option<Vec<T>> {
        (T::DTYPE == self.dtype).then(|| bytemuck::allocation::pod_collect_to_vec(&self.data))
    }

    /// The elements converted to `f64`: exact but for integers beyond 2^53.
    pub fn to_f64(&self) -> Vec<f64> {
        fn convert<T: Element>(data: &[u8], to_f64: impl Fn(T) -> f64) -> Vec<f64> {
            data.chunks_exact(size_of::<T>())
                .map(|chunk| to_f64(bytemuck::pod_read_unaligned(chunk)))
                .collect()
        }
        let data = &self.data;
        match self.dtype {
            DType::Bool | DType::U8 => convert::<u8>(data, f64::from),
            DType::I8 => convert::<i8>(data, f64::from),
            DType::I16 => convert::<i16>(data, f64::from),
            DType::I32 => convert::<i32>(data, f64::from),
            DType::I64 => convert::<i64>(data, |v| v as f64),
            DType::U16 => convert::<u16>(data, f64::from),
            DType::U32 => convert::<u32>(data, f64::from),
            DType::U64 => convert::<u64>(data, |v| v as f64),
            DType::F16 => convert::<f16>(data, f16::to_f64),
            DType::BF16 => convert::<bf16>(data, bf16::to_f64),
            DType::F32 => convert::<f32>(data, f64::from),
            DType::F64 => convert::<f64>(data, |v| v),
        }
    }

    /// The elements converted to `i64`, for integer and boolean tensors; `u64` wraps.
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        fn convert<T: Element>(data: &[u8], to_i64: impl Fn(T) -> i64) -> Vec<i64> {
            data.chunks_exact(size_of::<T>())
                .map(|chunk| to_i64(bytemuck::pod_read_unaligned(chunk)))
                .collect()
        }
        let data = &self.data;
        Some(match self.dtype {
            DType::Bool | DType::U8 => convert::<u8>(data, i64::from),
            DType::I8 => convert::<i8>(data, i64::from),
            DType::I16 => convert::<i16>(data, i64::from),
            DType::I32 => convert::<i32>(data, i64::from),
            DType::I64 => convert::<i64>(data, |v| v),
            DType::U16 => convert::<u16>(data, i64::from),
            DType::U32 => convert::<u32>(data, i64::from),
            DType::U64 => convert::<u64>(data, |v| v as i64),
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => return None,
        })
    }

    /// A tensor of `dtype` from `f64` values: floats are rounded to nearest even, integers truncated
    /// toward zero and saturated, booleans are `value != 0`.
    ///
    /// # Panics
    /// If there are not `shape.elems()` values.
    pub fn from_f64(dtype: DType, shape: impl Into<Shape>, values: &[f64]) -> Self {
        let shape = shape.into();
        assert_eq!(shape.elems(), values.len(), "one value per element of {shape}");
        fn pack<T: Element>(values: &[f64], from_f64: impl Fn(f64) -> T) -> Bytes {
            let typed: Vec<T> = values.iter().map(|&v| from_f64(v)).collect();
            Bytes::copy_from_slice(bytemuck::cast_slice(&typed))
        }
        let data = match dtype {
            DType::Bool => pack(values, |v| u8::from(v != 0.0)),
            DType::I8 => pack(values, |v| v as i8),
            DType::I16 => pack(values, |v| v as i16),
            DType::I32 => pack(values, |v| v as i32),
            DType::I64 => pack(values, |v| v as i64),
            DType::U8 => pack(values, |v| v as u8),
            DType::U16 => pack(values, |v| v as u16),
            DType::U32 => pack(values, |v| v as u32),
            DType::U64 => pack(values, |v| v as u64),
            DType::F16 => pack(values, f16::from_f64),
            DType::BF16 => pack(values, bf16::from_f64),
            DType::F32 => pack(values, |v| v as f32),
            DType::F64 => pack(values, |v| v),
        };
        Self { dtype, shape, data }
    }

    /// A tensor of `dtype` from `i64` values: integers wrap, floats round, booleans are `value != 0`.
    ///
    /// # Panics
    /// If there are not `shape.elems()` values.
    pub fn from_i64(dtype: DType, shape: impl Into<Shape>, values: &[i64]) -> Self {
        let shape = shape.into();
        assert_eq!(shape.elems(), values.len(), "one value per element of {shape}");
        fn pack<T: Element>(values: &[i64], from_i64: impl Fn(i64) -> T) -> Bytes {
            let typed: Vec<T> = values.iter().map(|&v| from_i64(v)).collect();
            Bytes::copy_from_slice(bytemuck::cast_slice(&typed))
        }
        let data = match dtype {
            DType::Bool => pack(values, |v| u8::from(v != 0)),
            DType::I8 => pack(values, |v| v as i8),
            DType::I16 => pack(values, |v| v as i16),
            DType::I32 => pack(values, |v| v as i32),
            DType::I64 => pack(values, |v| v),
            DType::U8 => pack(values, |v| v as u8),
            DType::U16 => pack(values, |v| v as u16),
            DType::U32 => pack(values, |v| v as u32),
            DType::U64 => pack(values, |v| v as u64),
            DType::F16 => pack(values, |v| f16::from_f64(v as f64)),
            DType::BF16 => pack(values, |v| bf16::from_f64(v as f64)),
            DType::F32 => pack(values, |v| v as f32),
            DType::F64 => pack(values, |v| v as f64),
        };
        Self { dtype, shape, data }
    }
}

impl fmt::Debug for Tensor {
    /// Type, shape and the first elements: constants can be gigabytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        let size = self.dtype.size_bytes();
        let head = self.shape.elems().min(SHOWN);
        let shown = Tensor { dtype: self.dtype, shape: [head].into(), data: self.data.slice(..head * size) };
        write!(f, "{}{} {:?}", self.dtype, self.shape, shown.to_f64())?;
        if head < self.shape.elems() { f.write_str("...") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_must_fit() {
        let error = Tensor::from_bytes(DType::F32, [2, 3].into(), Bytes::from_static(&[0; 20])).unwrap_err();
        assert_eq!(error.to_string(), "f32[2, 3] takes 24 bytes, 20 were given");
    }

    #[test]
    fn elements_convert() {
        let t = Tensor::from_vec([3], vec![1.5f32, -2.0, 7.0]);
        assert_eq!(t.to_f64(), [1.5, -2.0, 7.0]);
        assert_eq!(Tensor::from_f64(DType::I32, [3], &t.to_f64()).to_i64().unwrap(), [1, -2, 7]);
        assert_eq!(t.to_vec::<i32>(), None);
        assert_eq!(Tensor::from_f64(DType::U8, [2], &[300.0, -4.0]).to_i64().unwrap(), [255, 0]);
    }
}
