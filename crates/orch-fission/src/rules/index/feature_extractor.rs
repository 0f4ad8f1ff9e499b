//! ArrayFeatureExtractor (ai.onnx.ml): columns of the last dimension.

use super::from_front;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::PrimOp;

pub(super) fn array_feature_extractor(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, columns) = (call.tensor(0)?, call.tensor(1)?);
    let shape = ctx.shape(x);
    let Some(axis) = shape.rank().checked_sub(1) else {
        return Err(RuleError::invalid("the operand is a scalar"));
    };
    let count = ctx.shape(columns).elems();
    let columns = ctx.reshape(columns, [count])?;
    let columns = from_front(ctx, columns, &[shape[axis]])?;
    let taken = ctx.emit(PrimOp::Take { axis }, &[x, columns])?;
    // The features of a vector are one row.
    one(if axis == 0 { ctx.reshape(taken, [1, count])? } else { taken })
}
