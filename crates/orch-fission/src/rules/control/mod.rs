//! Control flow: If, Loop, Scan. What is known when compiling is decided then: a branch is taken, a short loop unrolled.
//! The rest stays whole, with the bodies as primitive graphs.

use crate::registry::Rule;
use crate::{Body, Context, RuleError};
use orch_ir::{DType, OperatorGraph, Shape, TensorId};

mod branch;
mod repeat;
mod scan;

/// The rules of this family.
pub const RULES: &[Rule] =
    &[Rule::onnx("If", branch::branch), Rule::onnx("Loop", repeat::repeat), Rule::onnx("Scan", scan::scan)];

/// Loops of at most this many operators in all are unrolled although they need not be.
const UNROLLED_OPERATORS: usize = 256;

/// Loops that cannot be kept whole are unrolled up to this many operators.
const MAX_UNROLLED_OPERATORS: usize = 1 << 16;

/// The number of operators of a graph, those of its own subgraphs included.
fn operators(graph: &OperatorGraph) -> usize {
    let nested =
        graph.nodes.iter().flat_map(|node| node.attributes.values()).map(|attribute| match attribute {
            orch_ir::Attribute::Graph(nested) => operators(nested),
            _ => 0,
        });
    graph.nodes.len() + nested.sum::<usize>()
}

/// Element type and shape of the results of a body from position `first` on.
fn result_types(body: &Body, first: usize) -> Vec<(DType, Shape)> {
    let results = body.graph.outputs.iter().skip(first);
    results.map(|(_, id)| (body.graph.dtype(*id), body.graph.shape(*id).clone())).collect()
}

/// A truth value as a scalar.
fn scalar_condition(ctx: &mut Context<'_>, condition: TensorId) -> Result<TensorId, RuleError> {
    if ctx.dtype(condition) != DType::Bool {
        return Err(RuleError::invalid(format!(
            "the condition is {}, bool is expected",
            ctx.dtype(condition)
        )));
    }
    ctx.reshape(condition, [])
}

/// The value of a condition that is known when compiling.
fn known_condition(ctx: &mut Context<'_>, condition: TensorId) -> Option<bool> {
    let value = ctx.constant(condition)?;
    Some(value.shape().elems() == 1 && value.bytes().first().is_some_and(|&byte| byte != 0))
}
