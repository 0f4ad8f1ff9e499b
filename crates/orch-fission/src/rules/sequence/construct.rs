//! SequenceEmpty and SequenceConstruct: sequences of no tensors, and of the operands.

use crate::registry::Applied;
use crate::{Call, Context, Operand};

pub(super) fn sequence_empty(_: &mut Context<'_>, _: &Call<'_>) -> Applied {
    Ok(vec![Operand::Sequence(Vec::new())])
}

pub(super) fn sequence_construct(_: &mut Context<'_>, call: &Call<'_>) -> Applied {
    Ok(vec![Operand::Sequence(call.tensors()?)])
}
