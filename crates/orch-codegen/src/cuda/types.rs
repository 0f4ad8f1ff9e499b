//! C++ types of values. Index arithmetic is of `int` where its range is known to fit.

use orch_ir::DType;

/// The type of a value: a scalar or a vector of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CppType {
    /// The element's C++ type.
    pub element: &'static str,
    /// Number of elements.
    pub lanes: usize,
}

/// The element type of index arithmetic in 32 bits.
pub const INT: &str = "int";

impl CppType {
    /// The type of `lanes` elements of a type of memory.
    pub fn of(dtype: DType, lanes: usize) -> Self {
        Self { element: element_name(dtype), lanes }
    }

    /// As C++ text.
    pub fn text(self) -> String {
        if self.lanes == 1 {
            self.element.to_owned()
        } else {
            format!("vec<{}, {}>", self.element, self.lanes)
        }
    }
}

/// The C++ type of an element in memory.
pub fn element_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::I8 => "signed char",
        DType::I16 => "short",
        DType::I32 => INT,
        DType::I64 => "long long",
        DType::U8 => "unsigned char",
        DType::U16 => "unsigned short",
        DType::U32 => "unsigned",
        DType::U64 => "unsigned long long",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 => "float",
        DType::F64 => "double",
    }
}
