//! How values are represented in C.
//!
//! A scalar is a C arithmetic type; `f16` and `bf16` are their bits in a `uint16_t` and are computed on as `f32`.
//! A vector is a GCC vector of the same elements, named `f32x16`, if it fits a register, and otherwise a struct of
//! two halves of the same name. Vectors of booleans depend on the target: a mask of one bit per lane where the
//! target has mask registers, elsewhere a vector of signed integers, 0 or -1, as wide as what was compared.

use orch_ir::DType;

/// The instruction set that the C text is written for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// 64-bit Arm with NEON.
    Neon,
}

/// ExprFacts about vectors of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isa {
    /// Instruction set.
    pub family: Family,
    /// Bytes of the widest register that is used.
    pub register_bytes: usize,
    /// Whether there are dot products of pairs of bf16. (The conversion that comes with them flushes subnormals, so
    /// it is not used.)
    pub has_bf16: bool,
}

/// The C type of a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CType {
    /// Elements of a dtype other than `Bool`; 1 lane is a scalar.
    Num(DType, usize),
    /// A scalar boolean.
    Bool,
    /// One bit per lane, bits beyond the lanes are 0.
    Mask(usize),
    /// Signed integers of `width` bytes, 0 or -1.
    Flags {
        /// Bytes of an element.
        width: usize,
        /// Number of elements.
        lanes: usize,
    },
}

impl Isa {
    /// Whether a vector takes more than one register and so is a struct of halves.
    pub fn is_pair(&self, dtype: DType, lanes: usize) -> bool {
        lanes > 1 && dtype.size_bytes() * lanes > self.register_bytes
    }

    /// True if a vector is exactly one register of the target.
    pub fn is_register(&self, dtype: DType, lanes: usize) -> bool {
        let bytes = dtype.size_bytes() * lanes;
        bytes >= 16 && bytes <= self.register_bytes
    }

    /// The type of a comparison's result on elements of `dtype`.
    pub fn flags(&self, dtype: DType, lanes: usize) -> CType {
        match (self.family, lanes) {
            (_, 1) => CType::Bool,
            (Family::Avx512, _) => CType::Mask(lanes),
            (Family::Avx2 | Family::Neon, _) => CType::Flags { width: dtype.size_bytes(), lanes },
        }
    }

    /// True for x86-64.
    pub fn is_x86(&self) -> bool {
        matches!(self.family, Family::Avx512 | Family::Avx2)
    }
}

impl CType {
    /// Number of lanes.
    pub fn lanes(self) -> usize {
        match self {
            CType::Bool => 1,
            CType::Num(_, lanes) | CType::Mask(lanes) | CType::Flags { lanes, .. } => lanes,
        }
    }

    /// The vector of numbers that holds it, if it is one.
    pub fn as_vector(self) -> Option<(DType, usize)> {
        match self {
            CType::Num(dtype, lanes) if lanes > 1 => Some((dtype, lanes)),
            CType::Flags { width, lanes } => Some((signed_of(width), lanes)),
            CType::Num(..) | CType::Bool | CType::Mask(_) => None,
        }
    }

    /// The name in C.
    pub fn name(self) -> String {
        match self {
            CType::Bool => "bool".to_owned(),
            CType::Mask(lanes) => format!("__mmask{}", lanes.max(8)),
            CType::Num(dtype, 1) => scalar_name(dtype).to_owned(),
            CType::Num(dtype, lanes) => vector_name(dtype, lanes),
            CType::Flags { width, lanes } => vector_name(signed_of(width), lanes),
        }
    }
}

/// The C type of one element; booleans are bytes in memory.
pub fn scalar_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool | DType::U8 => "uint8_t",
        DType::I8 => "int8_t",
        DType::I16 => "int16_t",
        DType::I32 => "int32_t",
        DType::I64 => "int64_t",
        DType::U16 | DType::F16 | DType::BF16 => "uint16_t",
        DType::U32 => "uint32_t",
        DType::U64 => "uint64_t",
        DType::F32 => "float",
        DType::F64 => "double",
    }
}

/// The type whose elements a buffer of `dtype` holds in memory.
pub fn in_memory(dtype: DType) -> DType {
    if dtype == DType::Bool { DType::U8 } else { dtype }
}

/// The name of a vector type: `f32x16`.
pub fn vector_name(dtype: DType, lanes: usize) -> String {
    let element = if dtype == DType::Bool { DType::U8 } else { dtype };
    format!("{element}x{lanes}")
}

/// The signed integer of this many bytes.
pub fn signed_of(bytes: usize) -> DType {
    match bytes {
        1 => DType::I8,
        2 => DType::I16,
        4 => DType::I32,
        _ => DType::I64,
    }
}

/// The unsigned integer of this many bytes.
pub fn unsigned_of(bytes: usize) -> DType {
    match bytes {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        _ => DType::U64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn representations() {
        let avx512 = Isa { family: Family::Avx512, register_bytes: 64, has_bf16: false };
        let avx2 = Isa { family: Family::Avx2, register_bytes: 32, has_bf16: false };
        assert!(!avx512.is_pair(DType::F32, 16) && avx512.is_pair(DType::F64, 16));
        assert!(avx2.is_pair(DType::F32, 16) && avx2.is_register(DType::F32, 8));
        assert_eq!(avx512.flags(DType::F32, 4).name(), "__mmask8");
        assert_eq!(avx2.flags(DType::F32, 8).name(), "i32x8");
        assert_eq!(CType::Num(DType::BF16, 1).name(), "uint16_t");
        assert_eq!(CType::Num(DType::BF16, 16).name(), "bf16x16");
    }
}
