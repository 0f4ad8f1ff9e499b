//! Reshape: the same elements under another shape. In the shape asked for, 0 copies the operand's extent (unless
//! `allowzero`), and -1 is what remains.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::Shape;

pub(super) fn reshape(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let wanted = ctx.int_operand(call, 1, "shape")?;
    let allow_zero = call.flag_or("allowzero", false)?;
    let dims = resolve(&ctx.shape(x), &wanted, allow_zero)?;
    one(ctx.reshape(x, dims)?)
}

/// The extents that `wanted` stands for.
fn resolve(from: &Shape, wanted: &[i64], allow_zero: bool) -> Result<Vec<usize>, RuleError> {
    let refused = || RuleError::invalid(format!("a tensor of shape {from} cannot be reshaped to {wanted:?}"));
    let mut dims = Vec::with_capacity(wanted.len());
    let mut remaining = None;
    for (position, &extent) in wanted.iter().enumerate() {
        dims.push(match extent {
            0 if !allow_zero => *from.get(position).ok_or_else(refused)?,
            -1 if remaining.is_none() => {
                remaining = Some(position);
                1
            }
            _ => usize::try_from(extent).map_err(|_| refused())?,
        });
    }
    if let Some(position) = remaining {
        let others = crate::build::checked_shape(dims.clone())?.elems();
        if others == 0 || !from.elems().is_multiple_of(others) {
            return Err(refused());
        }
        dims[position] = from.elems() / others;
    }
    Ok(dims)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_copy_and_minus_one_is_what_remains() {
        let from = Shape::from([2, 3, 4]);
        assert_eq!(resolve(&from, &[0, -1], false), Ok(vec![2, 12]));
        assert_eq!(resolve(&from, &[-1, 1, 0], false), Ok(vec![6, 1, 4]));
        assert_eq!(resolve(&[0, 5].into(), &[5, 0], true), Ok(vec![5, 0]));
        assert_eq!(resolve(&[].into(), &[-1], false), Ok(vec![1]));
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let from = Shape::from([2, 3]);
        for wanted in [&[-1, -1][..], &[4, -1], &[2, 3, 0], &[-2, 3], &[0, i64::MAX, -1]] {
            assert!(resolve(&from, wanted, false).is_err(), "{wanted:?}");
        }
        assert!(resolve(&from, &[0, -1], true).is_err());
    }
}
