//! CumSum and CumProd: running sums and products along an axis, `exclusive` (of what is before) or not, from the end
//! if `reverse`.
//!
//! Products double the reach in each of `log2 n` steps: `y[i] <- y[i] y[i - reach]`.

use super::super::operand_lists::single_int;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::{OpaqueKind, OpaqueOp, PadMode, TensorId};

/// What runs where.
struct Running {
    axis: usize,
    exclusive: bool,
    reverse: bool,
}

impl Running {
    fn read(ctx: &mut Context<'_>, call: &Call<'_>) -> Result<Self, RuleError> {
        let rank = ctx.rank(call.tensor(0)?);
        Ok(Self {
            axis: normalize_axis(single_int(ctx, call, 1, "axis")?, rank)?,
            exclusive: call.flag_or("exclusive", false)?,
            reverse: call.flag_or("reverse", false)?,
        })
    }

    /// `x` moved by `distance` in the running direction, with ones before it.
    fn shifted(&self, ctx: &mut Context<'_>, x: TensorId, distance: usize) -> Result<TensorId, RuleError> {
        let shape = ctx.shape(x);
        let kept = shape[self.axis] - distance;
        let (mut low, mut high) = (vec![0; shape.rank()], vec![0; shape.rank()]);
        let first = if self.reverse { distance } else { 0 };
        let side = if self.reverse { &mut high } else { &mut low };
        side[self.axis] = distance;
        let kept = ctx.slice_axis(x, self.axis, first, kept)?;
        let one = ctx.scalar_like(x, 1.0);
        ctx.pad(kept, PadMode::Constant, (&low, &high), Some(one))
    }
}

pub(super) fn sum(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let Running { axis, exclusive, reverse } = Running::read(ctx, call)?;
    let results = vec![(ctx.dtype(x), ctx.shape(x))];
    let kind = OpaqueKind::CumSum { axis, exclusive, reverse };
    one(ctx.emit_opaque(OpaqueOp { kind, results }, &[x])?[0])
}

pub(super) fn product(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let running = Running::read(ctx, call)?;
    let dtype = ctx.dtype(x);
    let extent = ctx.shape(x)[running.axis];
    let mut y = ctx.widen(x)?;
    if running.exclusive && extent > 0 {
        y = running.shifted(ctx, y, 1)?;
    }
    let mut reach = 1;
    while reach < extent {
        let before = running.shifted(ctx, y, reach)?;
        y = ctx.mul(y, before)?;
        reach *= 2;
    }
    one(ctx.cast(y, dtype)?)
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::{Attribute, Tensor};

    fn running(op_type: &str, exclusive: bool, reverse: bool, values: &[f32]) -> Vec<f64> {
        let call = apply(op_type, 26).floats(&[values.len()], values).on(Tensor::scalar(0i64));
        let call = call.with("exclusive", Attribute::Int(exclusive.into()));
        call.with("reverse", Attribute::Int(reverse.into())).first().1
    }

    #[test]
    fn products_of_any_length() {
        for extent in [0usize, 1, 2, 3, 5, 8, 9] {
            let values: Vec<f32> = (0..extent).map(|at| at as f32 - 2.5).collect();
            for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
                let part = |at: usize| match (exclusive, reverse) {
                    (false, false) => &values[..=at],
                    (true, false) => &values[..at],
                    (false, true) => &values[at..],
                    (true, true) => &values[at + 1..],
                };
                let expected: Vec<f64> =
                    (0..extent).map(|at| part(at).iter().map(|&value| f64::from(value)).product()).collect();
                assert_eq!(running("CumProd", exclusive, reverse, &values), expected);
            }
        }
    }

    #[test]
    fn sums_run_from_either_end() {
        let values = [1.0, 2.0, 3.0];
        assert_eq!(running("CumSum", false, false, &values), [1.0, 3.0, 6.0]);
        assert_eq!(running("CumSum", true, true, &values), [5.0, 3.0, 0.0]);
    }
}
