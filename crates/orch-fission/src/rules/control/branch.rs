//! If: one of two subgraphs. With a condition that is known when compiling it becomes part of the graph.

use super::{known_condition, result_types, scalar_condition};
use crate::registry::Applied;
use crate::{Call, Context, Operand, RuleError};
use orch_ir::{OpaqueKind, OpaqueOp};

pub(super) fn branch(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let missing = |name: &str| RuleError::invalid(format!("attribute {name} is missing"));
    let then_branch = call.graph("then_branch")?.ok_or_else(|| missing("then_branch"))?;
    let else_branch = call.graph("else_branch")?.ok_or_else(|| missing("else_branch"))?;
    let condition = scalar_condition(ctx, call.tensor(0)?)?;
    if let Some(chosen) = known_condition(ctx, condition) {
        return ctx.inline(if chosen { then_branch } else { else_branch }, &[]);
    }
    let captures = ctx.captures(&[then_branch, else_branch]);
    let then_body = ctx.body(then_branch, &[], &captures)?;
    let else_body = ctx.body(else_branch, &[], &captures)?;
    let results = result_types(&then_body, 0);
    let others = result_types(&else_body, 0);
    if results != others {
        return Err(RuleError::NotConstant(format!(
            "0 (condition) of branches with results of different types or shapes, {results:?} and {others:?},"
        )));
    }
    let kind =
        OpaqueKind::If { then_graph: Box::new(then_body.graph), else_graph: Box::new(else_body.graph) };
    let operands = [&[condition], &captures[..]].concat();
    let outputs = ctx.emit_opaque(OpaqueOp { kind, results }, &operands)?;
    Ok(outputs.into_iter().map(Operand::Tensor).collect())
}
