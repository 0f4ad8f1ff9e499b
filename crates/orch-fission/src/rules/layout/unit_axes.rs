//! Squeeze removes dimensions of extent 1 (all of them without `axes`), Unsqueeze inserts them.

use super::super::operand_lists::attribute_or_operand;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axes};

pub(super) fn squeeze(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let removed = match attribute_or_operand(ctx, call, "axes", 1)? {
        Some(axes) => normalize_axes(&axes, shape.rank())?,
        None => (0..shape.rank()).filter(|&dim| shape[dim] == 1).collect(),
    };
    if let Some(&axis) = removed.iter().find(|&&axis| shape[axis] != 1) {
        return Err(RuleError::invalid(format!("axis {axis} of {shape} is not of extent 1")));
    }
    let kept = (0..shape.rank()).filter(|dim| !removed.contains(dim)).map(|dim| shape[dim]);
    one(ctx.reshape(x, kept.collect::<Vec<_>>())?)
}

pub(super) fn unsqueeze(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let axes = attribute_or_operand(ctx, call, "axes", 1)?.ok_or(RuleError::MissingOperand(1))?;
    let mut dims = shape.to_vec();
    for axis in normalize_axes(&axes, shape.rank() + axes.len())? {
        dims.insert(axis, 1);
    }
    one(ctx.reshape(x, dims)?)
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;

    #[test]
    fn unit_axes_come_and_go() {
        let x = [1.0, 2.0];
        assert_eq!(apply("Squeeze", 13).floats(&[1, 2, 1], &x).first().0, [2]);
        assert_eq!(apply("Squeeze", 13).floats(&[1, 2, 1], &x).ints(&[-1]).first().0, [1, 2]);
        assert!(apply("Squeeze", 13).floats(&[1, 2, 1], &x).ints(&[1]).run().is_err());
        assert_eq!(apply("Unsqueeze", 13).floats(&[2], &x).ints(&[-1, 0]).first().0, [1, 2, 1]);
        assert!(apply("Unsqueeze", 13).floats(&[2], &x).ints(&[3]).run().is_err());
    }
}
