//! MaxPool: the largest element of each window; padding does not take part.
//!
//! The optional second result is the position of that element in the whole flattened operand, spatial dimensions
//! in row-major order or, with `storage_order = 1`, in column-major order.

use super::pool_window;
use crate::registry::Applied;
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, DType, PrimOp, ReduceOp, Shape, TensorId};

pub(super) fn max_pool(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let (window, _) = pool_window(ctx, call, x)?;
    let y = ctx.emit(PrimOp::Window { op: ReduceOp::Max, window: window.clone() }, &[x])?;
    if !call.wants_output(1) {
        return Ok(vec![y.into()]);
    }
    let op = ReduceOp::ArgMax { last: false };
    let mut position = ctx.emit(PrimOp::Window { op, window }, &[x])?;
    let shape = ctx.shape(x);
    if call.flag_or("storage_order", false)? {
        position = column_major(ctx, position, &shape[2..])?;
    }
    let index = add_plane_offset(ctx, position, &shape)?;
    Ok(vec![y.into(), index.into()])
}

/// Row-major positions in a space of these extents as column-major positions.
fn column_major(ctx: &mut Context<'_>, position: TensorId, extents: &[usize]) -> Result<TensorId, RuleError> {
    let mut rest = position;
    let mut stride: usize = extents.iter().product();
    let mut result = None;
    // The innermost dimension comes first out of the row-major position and has the largest new stride.
    for &extent in extents.iter().rev() {
        stride /= extent.max(1);
        let at = ctx.binary_scalar(BinaryFn::FloorMod, rest, extent as f64)?;
        rest = ctx.binary_scalar(BinaryFn::Div, rest, extent as f64)?;
        let term = ctx.binary_scalar(BinaryFn::Mul, at, stride as f64)?;
        result = Some(match result {
            None => term,
            Some(sum) => ctx.add(sum, term)?,
        });
    }
    Ok(result.unwrap_or(position))
}

/// Adds to positions within one plane of `shape` = `[n, c, d_0, ..]` the position where that plane begins.
fn add_plane_offset(ctx: &mut Context<'_>, position: TensorId, shape: &Shape) -> Result<TensorId, RuleError> {
    let plane: usize = shape[2..].iter().product();
    let planes = shape[0] * shape[1];
    let begin = ctx.iota(DType::I64, [planes], 0)?;
    let begin = ctx.binary_scalar(BinaryFn::Mul, begin, plane as f64)?;
    let begin = ctx.reshape(begin, [shape[0], shape[1]])?;
    let begin = ctx.broadcast(begin, &ctx.shape(position), &[0, 1])?;
    ctx.add(position, begin)
}
