//! Reductions over axes.
//!
//! f16 and bf16 reduce in f32 and round once; integers stay integers but for logarithms, exponentials and roots,
//! which compute in f64.

use crate::registry::{Applied, Rule, one};
use crate::{Call, Context, RuleError, normalize_axes};
use orch_ir::{DType, ReduceOp, TensorId};

mod arg;
mod log;
mod mean;
pub(super) mod norm;

/// The rules of this family.
pub const RULES: &[Rule] = &[
    Rule::onnx("ReduceSum", |ctx, call| plain(ctx, call, ReduceOp::Sum)),
    Rule::onnx("ReduceProd", |ctx, call| plain(ctx, call, ReduceOp::Prod)),
    Rule::onnx("ReduceMax", |ctx, call| plain(ctx, call, ReduceOp::Max)),
    Rule::onnx("ReduceMin", |ctx, call| plain(ctx, call, ReduceOp::Min)),
    Rule::onnx("ReduceMean", mean::mean),
    Rule::onnx("ReduceL1", |ctx, call| norm::norm(ctx, call, 1)),
    Rule::onnx("ReduceL2", |ctx, call| norm::norm(ctx, call, 2)),
    Rule::onnx("ReduceSumSquare", norm::sum_square),
    Rule::onnx("ReduceLogSum", log::log_sum),
    Rule::onnx("ReduceLogSumExp", log::log_sum_exp),
    Rule::onnx("ArgMax", |ctx, call| arg::arg(ctx, call, |last| ReduceOp::ArgMax { last })),
    Rule::onnx("ArgMin", |ctx, call| arg::arg(ctx, call, |last| ReduceOp::ArgMin { last })),
];

/// Which axes a reduction operator reduces, and whether they stay.
struct Reduction {
    axes: Vec<usize>,
    keep: bool,
}

impl Reduction {
    /// Reads `axes` (attribute or operand, by version), `keepdims` and `noop_with_empty_axes`.
    fn read(ctx: &mut Context<'_>, call: &Call<'_>) -> Result<Self, RuleError> {
        let rank = ctx.rank(call.tensor(0)?);
        let given = match call.ints("axes")? {
            Some(axes) => Some(axes.to_vec()),
            None => ctx.optional_int_operand(call, 1, "axes")?,
        };
        let given = given.filter(|axes| !axes.is_empty());
        let axes = match given {
            Some(axes) => normalize_axes(&axes, rank)?,
            None if call.flag_or("noop_with_empty_axes", false)? => Vec::new(),
            None => (0..rank).collect(),
        };
        Ok(Self { axes, keep: call.flag_or("keepdims", true)? })
    }

    /// Reduces with one primitive.
    fn apply(&self, ctx: &mut Context<'_>, op: ReduceOp, x: TensorId) -> Result<TensorId, RuleError> {
        if self.keep { ctx.reduce_keep(op, x, &self.axes) } else { ctx.reduce(op, x, &self.axes) }
    }
}

/// One primitive. A product of f16 accumulates in f32 as a sum does.
fn plain(ctx: &mut Context<'_>, call: &Call<'_>, op: ReduceOp) -> Applied {
    let reduction = Reduction::read(ctx, call)?;
    let x = call.tensor(0)?;
    let dtype = ctx.dtype(x);
    let x = if op == ReduceOp::Prod { ctx.widen(x)? } else { x };
    let y = reduction.apply(ctx, op, x)?;
    one(ctx.cast(y, dtype)?)
}

/// The operand in a type that has roots and logarithms.
fn as_float(ctx: &mut Context<'_>, x: TensorId) -> Result<TensorId, RuleError> {
    if ctx.dtype(x).is_float() { ctx.widen(x) } else { ctx.cast(x, DType::F64) }
}
