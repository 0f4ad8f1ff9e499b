//! SequenceInsert, SequenceErase, SequenceAt, SequenceLength. Positions are known when compiling and count from the end
//! when negative.

use super::super::operand_lists::single_int;
use crate::registry::{Applied, one};
use crate::{Call, Context, Operand, RuleError};
use orch_ir::DType;

/// Inserts before a position, by default at the end.
pub(super) fn sequence_insert(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let mut sequence = call.sequence(0)?.to_vec();
    let tensor = call.tensor(1)?;
    let end = sequence.len();
    let at = position(ctx, call, 2, end + 1, end)?;
    sequence.insert(at, tensor);
    Ok(vec![Operand::Sequence(sequence)])
}

/// Removes one position, by default the last.
pub(super) fn sequence_erase(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let mut sequence = call.sequence(0)?.to_vec();
    let at = position(ctx, call, 1, sequence.len(), sequence.len().saturating_sub(1))?;
    sequence.remove(at);
    Ok(vec![Operand::Sequence(sequence)])
}

pub(super) fn sequence_at(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let sequence = call.sequence(0)?;
    call.tensor(1)?;
    one(sequence[position(ctx, call, 1, sequence.len(), 0)?])
}

pub(super) fn sequence_length(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let length = call.sequence(0)?.len();
    one(ctx.scalar_int(DType::I64, length as i64))
}

/// The position that operand `index` names among `count`, counted from the front.
fn position(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    index: usize,
    count: usize,
    default: usize,
) -> Result<usize, RuleError> {
    let given = match call.optional_tensor(index)? {
        Some(_) => single_int(ctx, call, index, "position")?,
        None => default as i64,
    };
    // Insertion has one position more than there are elements; negative ones count from the last element.
    let elements = call.sequence(0)?.len() as i64;
    let from_front = if given < 0 { given.saturating_add(elements) } else { given };
    usize::try_from(from_front)
        .ok()
        .filter(|&position| position < count)
        .ok_or_else(|| RuleError::invalid(format!("position {given} in a sequence of {elements}")))
}
