//! Optional, OptionalGetElement, OptionalHasElement: an optional is what it holds, or nothing.

use crate::registry::{Applied, one};
use crate::{Call, Context, Operand, RuleError};
use orch_ir::Tensor;

pub(super) fn optional(_: &mut Context<'_>, call: &Call<'_>) -> Applied {
    Ok(vec![call.operand(0).cloned().unwrap_or(Operand::Absent)])
}

pub(super) fn optional_get_element(_: &mut Context<'_>, call: &Call<'_>) -> Applied {
    match call.operand(0) {
        Some(Operand::Absent) => Err(RuleError::invalid("the element of an empty optional")),
        Some(held) => Ok(vec![held.clone()]),
        None => Err(RuleError::MissingOperand(0)),
    }
}

pub(super) fn optional_has_element(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let held = !matches!(call.operand(0), None | Some(Operand::Absent));
    one(ctx.tensor(Tensor::from_bools([], &[held])))
}
