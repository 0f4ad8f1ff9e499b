//! In which precision contractions take their operands.

use orch_compute::BlockProgram;

/// What contractions of f32 multiply. Accumulators are f32 in any case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OperandPrecision {
    /// f32, on scalar units.
    F32,
    /// f32 of which the tensor cores take 10 bits of the fraction.
    Tf32,
    /// Operands rounded to f16.
    F16,
    /// Operands rounded to bf16.
    Bf16,
}

impl OperandPrecision {
    /// What the contractions of a block program multiply where others multiply this: factors that are beyond the range of
    /// f16 keep that of f32.
    pub fn within(self, block: &BlockProgram) -> Self {
        match self {
            OperandPrecision::F16 if block.has_wide_operands => OperandPrecision::Tf32,
            factors => factors,
        }
    }
}
