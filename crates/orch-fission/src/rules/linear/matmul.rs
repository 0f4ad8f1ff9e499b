//! MatMul: `[.., m, k] x [.., k, n] -> [.., m, n]` as in numpy: leading dimensions broadcast, a vector on the left
//! is a row, on the right a column.
//!
//! A leading dimension that one operand repeats gets a label of the other operand alone, so that nothing is
//! copied.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::TensorId;

pub(super) fn matmul(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    one(matmul_of(ctx, call.tensor(0)?, call.tensor(1)?)?)
}

/// The labels of an operand's leading dimensions, counted from the innermost, and the operand without those of
/// extent 1 that the other operand repeats.
fn batch_labels(
    ctx: &mut Context<'_>,
    operand: TensorId,
    batch: &[usize],
    other: &[usize],
) -> Result<(TensorId, Vec<u8>), RuleError> {
    let mut labels = Vec::new();
    let mut dims = Vec::new();
    for (position, &extent) in batch.iter().enumerate() {
        let from_end = batch.len() - position;
        let opposite = other.len().checked_sub(from_end).map(|at| other[at]);
        if extent == 1 && opposite.is_some() && opposite != Some(1) {
            continue;
        }
        labels.push(label(from_end - 1)?);
        dims.push(extent);
    }
    dims.extend(&ctx.shape(operand)[batch.len()..]);
    Ok((ctx.reshape(operand, dims)?, labels))
}

/// Labels of the matrix dimensions; batch labels count up from [`FIRST_BATCH`].
const ROW: u8 = 0;
const COLUMN: u8 = 1;
const SUMMED: u8 = 2;
const FIRST_BATCH: usize = 3;

fn label(batch: usize) -> Result<u8, RuleError> {
    u8::try_from(FIRST_BATCH + batch).map_err(|_| RuleError::unsupported("more than 250 dimensions"))
}

/// `lhs x rhs` by the rules of numpy's `matmul`.
pub(crate) fn matmul_of(ctx: &mut Context<'_>, lhs: TensorId, rhs: TensorId) -> Result<TensorId, RuleError> {
    let (lhs_shape, rhs_shape) = (ctx.shape(lhs), ctx.shape(rhs));
    if lhs_shape.rank() == 0 || rhs_shape.rank() == 0 {
        return Err(RuleError::invalid(format!("a product of {lhs_shape} and {rhs_shape}: scalars")));
    }
    let matrix: &[u8] = &[ROW, SUMMED];
    let lhs_matrix = if lhs_shape.rank() == 1 { &matrix[1..] } else { matrix };
    let matrix: &[u8] = &[SUMMED, COLUMN];
    let rhs_matrix = if rhs_shape.rank() == 1 { &matrix[..1] } else { matrix };
    let lhs_batch = &lhs_shape[..lhs_shape.rank() - lhs_matrix.len()];
    let rhs_batch = &rhs_shape[..rhs_shape.rank() - rhs_matrix.len()];
    let (lhs, lhs_labels) = batch_labels(ctx, lhs, lhs_batch, rhs_batch)?;
    let (rhs, rhs_labels) = batch_labels(ctx, rhs, rhs_batch, lhs_batch)?;
    let mut out =
        (0..lhs_batch.len().max(rhs_batch.len())).rev().map(label).collect::<Result<Vec<_>, _>>()?;
    out.extend(lhs_matrix.iter().chain(rhs_matrix).filter(|&&label| label != SUMMED));
    ctx.contract(
        lhs,
        rhs,
        [&[&lhs_labels[..], lhs_matrix].concat(), &[&rhs_labels[..], rhs_matrix].concat(), &out],
    )
}
