//! The units of an SM that multiply a contraction's operands.

use crate::contraction::ContractionForm;
use orch_compute::block::BlockProgram;
use orch_ir::DType;
use orch_thread::OperandPrecision;
use orch_thread::cta::MmaType;

/// The units of an SM that multiply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MathUnit {
    /// Scalar fused multiply-adds in the type of the accumulator.
    Fma(DType),
    /// Tensor cores, which accumulate in f32.
    TensorCore(MmaType),
}

impl MathUnit {
    /// The unit that multiplies a contraction under a precision of operands; `None` if there is none for its type.
    pub fn of(block: &BlockProgram, form: &ContractionForm, precision: OperandPrecision) -> Option<Self> {
        let acc = block.exprs.dtype(form.a);
        match (acc, precision.within(block)) {
            (DType::F32, OperandPrecision::F32) => Some(MathUnit::Fma(DType::F32)),
            (DType::F32, OperandPrecision::Tf32) => Some(MathUnit::TensorCore(MmaType::Tf32)),
            (DType::F32, OperandPrecision::F16) | (DType::F16, _) => Some(MathUnit::TensorCore(MmaType::F16)),
            (DType::F32, OperandPrecision::Bf16) | (DType::BF16, _) => {
                Some(MathUnit::TensorCore(MmaType::Bf16))
            }
            (DType::F64 | DType::I32 | DType::I64 | DType::U32 | DType::U64, _) => Some(MathUnit::Fma(acc)),
            _ => None,
        }
    }

    /// Type of the operands in shared memory.
    pub fn operand_type(self) -> DType {
        match self {
            MathUnit::Fma(dtype) => dtype,
            MathUnit::TensorCore(ty) => ty.dtype(),
        }
    }

    /// Type of the accumulators in registers and shared memory.
    pub fn acc_type(self) -> DType {
        match self {
            MathUnit::Fma(dtype) => dtype,
            MathUnit::TensorCore(_) => DType::F32,
        }
    }
}
