//! ConcatFromSequence: all tensors of a sequence along an axis, an existing or a new one. SplitToSequence: consecutive
//! pieces of a tensor.

use super::super::operand_lists::{extent, extents};
use crate::registry::{Applied, one};
use crate::{Call, Context, Operand, RuleError, normalize_axis};

pub(super) fn concat_from_sequence(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let mut parts = call.sequence(0)?.to_vec();
    let Some(&first) = parts.first() else {
        return Err(RuleError::invalid("an empty sequence"));
    };
    let new_axis = call.flag_or("new_axis", false)?;
    let axis = call.int("axis")?.ok_or_else(|| RuleError::invalid("attribute axis is missing"))?;
    let axis = normalize_axis(axis, ctx.rank(first) + usize::from(new_axis))?;
    if new_axis {
        for part in &mut parts {
            if ctx.rank(*part) < axis {
                return Err(RuleError::invalid(format!("a new axis {axis} of shape {}", ctx.shape(*part))));
            }
            *part = ctx.unsqueeze(*part, axis)?;
        }
    }
    one(ctx.concat(&parts, axis)?)
}

/// The longest sequence that a tensor is split into: each piece is a tensor of its own.
const MAX_PIECES: usize = 1 << 16;

/// Without sizes every piece has extent 1, and loses the axis unless `keepdims`; a scalar size repeats, and the last
/// piece may be smaller.
pub(super) fn split_to_sequence(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let axis = normalize_axis(call.int_or("axis", 0)?, shape.rank())?;
    let too_many = |count: usize| RuleError::unsupported(format!("a sequence of {count} tensors"));
    let (sizes, keeps) = match call.optional_tensor(1)? {
        None if shape[axis] > MAX_PIECES => return Err(too_many(shape[axis])),
        None => (vec![1; shape[axis]], call.flag_or("keepdims", true)?),
        Some(split) => {
            let given = ctx.int_operand(call, 1, "split")?;
            let sizes = match (ctx.rank(split), given.as_slice()) {
                (0, &[size]) if size > 0 && shape[axis] as i64 / size > MAX_PIECES as i64 => {
                    return Err(too_many(shape[axis]));
                }
                (0, &[size]) => repeated(shape[axis], extent(size, "split")?)?,
                _ => extents(&given, "split")?,
            };
            (sizes, true)
        }
    };
    let total = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
    if total != Some(shape[axis]) {
        return Err(RuleError::invalid(format!("pieces of sizes {sizes:?} of dimension {axis} of {shape}")));
    }
    let mut start = 0;
    let mut pieces = Vec::with_capacity(sizes.len());
    for size in sizes {
        let piece = ctx.slice_axis(x, axis, start, size)?;
        let mut dims = ctx.shape(piece).to_vec();
        if !keeps {
            dims.remove(axis);
        }
        pieces.push(ctx.reshape(piece, dims)?);
        start += size;
    }
    Ok(vec![Operand::Sequence(pieces)])
}

/// Pieces of one size that make up an axis, the last one smaller.
fn repeated(total: usize, size: usize) -> Result<Vec<usize>, RuleError> {
    if size == 0 {
        return Err(RuleError::invalid("pieces of size 0"));
    }
    Ok((0..total.div_ceil(size)).map(|piece| size.min(total - piece * size)).collect())
}
