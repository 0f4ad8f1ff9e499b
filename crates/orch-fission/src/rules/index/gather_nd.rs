//! GatherND: slices addressed by the last dimension of the indices, after `batch_dims` shared dimensions.

use super::super::operand_lists::extent;
use super::from_front;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::PrimOp;

pub(super) fn gather_nd(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (data, indices) = (call.tensor(0)?, call.tensor(1)?);
    let batch_dims = extent(call.int_or("batch_dims", 0)?, "batch_dims")?;
    let (shape, index_shape) = (ctx.shape(data), ctx.shape(indices));
    let depth = index_shape.last().copied().unwrap_or(0);
    let addressed = batch_dims.checked_add(depth).and_then(|end| shape.get(batch_dims..end));
    let addressed = addressed.ok_or_else(|| {
        RuleError::invalid(format!("indices {index_shape} into {shape} with {batch_dims} batch dimensions"))
    })?;
    let indices = from_front(ctx, indices, addressed)?;
    one(ctx.emit(PrimOp::GatherNd { batch_dims }, &[data, indices])?)
}
