//! In which precision contractions take their operands.

use orch_compute::BlockProgram;
use orch_compute::operands::OperandRounding;

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
    /// What the contractions of a block program multiply where others multiply this.
    pub fn within(self, block: &BlockProgram) -> Self {
        match (self, block.rounding) {
            (OperandPrecision::F16, OperandRounding::Tf32) => OperandPrecision::Tf32,
            (OperandPrecision::F16 | OperandPrecision::Bf16, OperandRounding::None) => OperandPrecision::F32,
            (operands, _) => operands,
        }
    }
}
