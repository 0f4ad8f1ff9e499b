//! Pad: elements around a tensor (constant, nearest, mirrored, periodic). Negative amounts crop, before anything is
//! added.

use super::super::operand_lists::attribute_or_operand;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axes, normalize_axis};
use orch_ir::{PadMode, Shape, TensorId};

pub(super) fn pad(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let mode = match call.text_or("mode", "constant")? {
        "constant" => PadMode::Constant,
        "edge" => PadMode::Edge,
        "reflect" => PadMode::Reflect,
        "wrap" => PadMode::Wrap,
        other => {
            return Err(RuleError::invalid(format!(
                "mode is {other}, expected constant, reflect, edge or wrap"
            )));
        }
    };
    let x = call.tensor(0)?;
    let rank = ctx.rank(x);
    let pads = attribute_or_operand(ctx, call, "pads", 1)?.ok_or(RuleError::MissingOperand(1))?;
    let axes = ctx.optional_int_operand(call, 3, "axes")?;
    let amounts = Amounts::new(&pads, axes.as_deref(), rank)?;
    let value = match call.optional_tensor(2)? {
        Some(value) => Some(ctx.reshape(value, [])?),
        None => call.float("value")?.map(|value| ctx.scalar_like(x, value)),
    };
    let x = amounts.crop(ctx, x)?;
    let [low, high] = amounts.added()?;
    one(ctx.pad(x, mode, (&low, &high), value)?)
}

/// What is added before and after each dimension; negative amounts crop.
struct Amounts {
    low: Vec<i64>,
    high: Vec<i64>,
}

impl Amounts {
    /// `pads` lists the amounts before each of `axes` (all without it), then those after.
    fn new(pads: &[i64], axes: Option<&[i64]>, rank: usize) -> Result<Self, RuleError> {
        let axes: Vec<usize> = match axes {
            Some(axes) => {
                normalize_axes(axes, rank)?;
                axes.iter().map(|&axis| normalize_axis(axis, rank)).collect::<Result<_, _>>()?
            }
            None => (0..rank).collect(),
        };
        if pads.len() != 2 * axes.len() {
            return Err(RuleError::invalid(format!("{} pads for {} axes", pads.len(), axes.len())));
        }
        let mut amounts = Self { low: vec![0; rank], high: vec![0; rank] };
        for (position, &axis) in axes.iter().enumerate() {
            amounts.low[axis] = pads[position];
            amounts.high[axis] = pads[axes.len() + position];
        }
        Ok(amounts)
    }

    /// `x` without what negative amounts take away.
    fn crop(&self, ctx: &mut Context<'_>, x: TensorId) -> Result<TensorId, RuleError> {
        let shape = ctx.shape(x);
        let taken = |amount: i64| if amount < 0 { amount.unsigned_abs() as usize } else { 0 };
        let starts: Vec<i64> = self.low.iter().map(|&amount| taken(amount) as i64).collect();
        let sizes: Option<Vec<usize>> = (0..shape.rank())
            .map(|dim| shape[dim].checked_sub(taken(self.low[dim]))?.checked_sub(taken(self.high[dim])))
            .collect();
        let sizes = sizes.ok_or_else(|| self.refused(&shape))?;
        ctx.slice(x, &starts, &vec![1; sizes.len()], &sizes)
    }

    /// The amounts that are added.
    fn added(&self) -> Result<[Vec<usize>; 2], RuleError> {
        // The bound keeps all sums of extents far from overflow.
        let added = |amount: &i64| match usize::try_from(*amount) {
            Ok(amount) if amount >= 1 << 40 => None,
            Ok(amount) => Some(amount),
            Err(_) => Some(0),
        };
        let side = |amounts: &[i64]| amounts.iter().map(added).collect::<Option<Vec<usize>>>();
        match (side(&self.low), side(&self.high)) {
            (Some(low), Some(high)) => Ok([low, high]),
            _ => Err(RuleError::invalid(format!("pads {:?} and {:?} are too large", self.low, self.high))),
        }
    }

    fn refused(&self, shape: &Shape) -> RuleError {
        RuleError::invalid(format!("pads {:?} and {:?} crop more than {shape} holds", self.low, self.high))
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::Attribute;

    fn padded(mode: &str, pads: &[i64]) -> Vec<f64> {
        let call = apply("Pad", 19).floats(&[3], &[1.0, 2.0, 3.0]).ints(pads);
        call.with("mode", Attribute::String(mode.to_owned())).first().1
    }

    #[test]
    fn modes_repeat_mirror_and_wrap() {
        assert_eq!(padded("constant", &[1, 1]), [0.0, 1.0, 2.0, 3.0, 0.0]);
        assert_eq!(padded("edge", &[1, 1]), [1.0, 1.0, 2.0, 3.0, 3.0]);
        assert_eq!(padded("reflect", &[2, 1]), [3.0, 2.0, 1.0, 2.0, 3.0, 2.0]);
        assert_eq!(padded("wrap", &[1, 2]), [3.0, 1.0, 2.0, 3.0, 1.0, 2.0]);
    }

    #[test]
    fn negative_amounts_crop() {
        assert_eq!(padded("constant", &[-1, 1]), [2.0, 3.0, 0.0]);
        assert_eq!(padded("edge", &[-1, -2]), [] as [f64; 0]);
        for pads in [[-2, -2], [i64::MIN, 0], [0, i64::MAX]] {
            let call = apply("Pad", 13).floats(&[3], &[1.0, 2.0, 3.0]).ints(&pads);
            assert!(call.run().is_err(), "{pads:?}");
        }
    }

    #[test]
    fn axes_may_be_chosen() {
        let call = apply("Pad", 18).floats(&[1, 2], &[1.0, 2.0]).ints(&[1, 0]).without().ints(&[-1]);
        assert_eq!(call.first(), (vec![1, 3], vec![0.0, 1.0, 2.0]));
    }
}
