//! SequenceMap: a subgraph on each position of its sequences; tensors among the operands are the same for all.

use crate::registry::Applied;
use crate::{Call, Context, Operand, RuleError};

pub(super) fn sequence_map(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let body = call.graph("body")?.ok_or_else(|| RuleError::invalid("attribute body is missing"))?;
    let length = call.sequence(0)?.len();
    let mut results: Vec<Vec<_>> = vec![Vec::new(); body.outputs.len()];
    for position in 0..length {
        let mut operands = Vec::with_capacity(call.arity());
        for index in 0..call.arity() {
            operands.push(match call.operand(index) {
                Some(Operand::Sequence(elements)) => {
                    let element = elements.get(position).ok_or_else(|| {
                        RuleError::invalid(format!("operand {index} is shorter than {length}"))
                    })?;
                    Operand::Tensor(*element)
                }
                _ => Operand::Tensor(call.tensor(index)?),
            });
        }
        for (elements, result) in results.iter_mut().zip(ctx.inline(body, &operands)?) {
            let Operand::Tensor(result) = result else {
                return Err(RuleError::invalid("the subgraph returns something else than tensors"));
            };
            elements.push(result);
        }
    }
    Ok(results.into_iter().map(Operand::Sequence).collect())
}
