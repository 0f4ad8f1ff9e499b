//! Operands of MMA instructions: which elements a thread holds, and how many bits of them count.

use crate::cta::{MmaType, WARP, WARP_GROUP};
use orch_compute::expr::scalar::Number;

/// Threads of a warp group.
pub(crate) const GROUP: usize = WARP * WARP_GROUP;

/// `[row, k]` of element `at` that a lane holds of a fragment of `a`.
pub(crate) fn a_element(ty: MmaType, lane: usize, at: usize) -> [usize; 2] {
    let (g, c) = (lane / 4, lane % 4);
    match ty {
        MmaType::Tf32 => [g + 8 * (at % 2), c + 4 * (at / 2)],
        MmaType::F16 | MmaType::Bf16 => [g + 8 * (at / 2 % 2), 2 * c + at % 2 + 8 * (at / 4)],
    }
}

/// An element of an operand as the tensor core reads it.
pub(crate) fn operand(ty: MmaType, value: Number) -> Number {
    match (ty, value) {
        // 13 of the 23 bits of the fraction are ignored.
        (MmaType::Tf32, Number::Float(value)) => {
            Number::Float(f64::from(f32::from_bits((value as f32).to_bits() & !0x1fff)))
        }
        _ => value,
    }
}
