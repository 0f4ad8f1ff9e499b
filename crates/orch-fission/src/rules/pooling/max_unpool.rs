//! MaxUnpool: puts each element where `indices` (positions in the flattened result) say, zeros elsewhere.
//!
//! The result has the extents that the pool's operand had at least, `(d - 1) stride + kernel - padding`; with
//! `output_shape` zeros follow after them.

use super::super::window::WindowAttributes;
use super::kernel;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{PadMode, PrimOp};

pub(super) fn max_unpool(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, indices) = (call.tensor(0)?, call.tensor(1)?);
    let shape = ctx.shape(x);
    let window = WindowAttributes::read(call, kernel(call)?)?.resolve(&shape)?;
    let mut inferred = shape[..2].to_vec();
    for dim in 0..window.rank() {
        let full = shape[dim + 2].saturating_sub(1) * window.strides[dim] + window.kernel[dim];
        let extent = full.checked_sub(window.low[dim] + window.high[dim]);
        inferred.push(extent.ok_or_else(|| RuleError::invalid("pads crop more than there is"))?);
    }
    let inferred = crate::build::checked_shape(inferred)?;
    let flat = ctx.reshape(x, [shape.elems()])?;
    let indices = ctx.reshape(indices, [shape.elems()])?;
    let zeros = ctx.full(ctx.dtype(x), 0.0, &[inferred.elems()].into())?;
    let y = ctx.emit(PrimOp::ScatterAlong { axis: 0, combine: None }, &[zeros, indices, flat])?;
    let y = ctx.reshape(y, inferred.to_vec())?;
    let Some(wanted) = ctx.optional_int_operand(call, 2, "output_shape")? else {
        return one(y);
    };
    let high: Option<Vec<usize>> = (wanted.len() == inferred.rank())
        .then(|| wanted.iter().zip(inferred.iter()))
        .and_then(|pairs| pairs.map(|(&to, &from)| usize::try_from(to).ok()?.checked_sub(from)).collect());
    let high = high.ok_or_else(|| {
        RuleError::unsupported(format!("output_shape {wanted:?} smaller than the inferred {inferred}"))
    })?;
    one(ctx.pad(y, PadMode::Constant, (&vec![0; high.len()], &high), None)?)
}
