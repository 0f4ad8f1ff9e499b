//! Hardmax: 1 at the first maximum of each row, 0 elsewhere. Rows are those of Softmax.

use super::softmax::row_axes;
use crate::registry::{Applied, one};
use crate::{Call, Context};
use orch_ir::{CompareFn, DType, ReduceOp};

pub(super) fn hardmax(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let (shape, dtype) = (ctx.shape(x), ctx.dtype(x));
    let axes = row_axes(ctx, call)?;
    if shape.elems() == 0 {
        return one(x);
    }
    // A row is one axis: the operand seen as [before, row, after].
    let (first, last) = match axes.as_slice() {
        [first, .., last] => (*first, *last + 1),
        [only] => (*only, *only + 1),
        [] => (shape.rank(), shape.rank()),
    };
    let extent = |dims: &[usize]| dims.iter().product::<usize>();
    let folded = [extent(&shape[..first]), extent(&shape[first..last]), extent(&shape[last..])];
    let rows = ctx.reshape(x, folded)?;
    let best = ctx.reduce(ReduceOp::ArgMax { last: false }, rows, &[1])?;
    let best = ctx.broadcast(best, &folded.into(), &[0, 2])?;
    let position = ctx.iota(DType::I64, folded, 1)?;
    let hit = ctx.compare(CompareFn::Eq, position, best)?;
    let y = ctx.cast(hit, dtype)?;
    one(ctx.reshape(y, shape.to_vec())?)
}
