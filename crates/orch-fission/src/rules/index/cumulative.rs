//! CumSum and CumProd: running sums and products along an axis, `exclusive` (of what is before) or not, from the end
//! if `reverse`.
//!
//! A running sum of few elements adds those up to each position. One of many is of blocks of [`BLOCK`]: the sums within each,
//! and what the blocks before come to, which is a shorter running sum.
//!
//! ```text
//! x        [n]       =  [n / 32, 32]
//! within   [n / 32, 32]     sum of x[b, j] for j <= i
//! before   [n / 32]         exclusive running sum of the blocks' sums
//! y        [n]       =  within[b, i] + before[b]
//! ```
//!
//! Products double the reach in each of `log2 n` steps: `y[i] <- y[i] y[i - reach]`.

use super::super::operand_lists::single_int;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::{CompareFn, DType, ReduceOp, TensorId};

/// Elements of a block of a long running sum.
const BLOCK: usize = 32;

/// The longest running sum that adds up all elements for each position.
const SHORT: usize = 64;

/// What runs where.
#[derive(Clone, Copy)]
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

    /// The running sums of `x`, in its type.
    fn sums(self, ctx: &mut Context<'_>, x: TensorId) -> Result<TensorId, RuleError> {
        let shape = ctx.shape(x).to_vec();
        let (axis, extent) = (self.axis, shape[self.axis]);
        if extent <= SHORT {
            return self.short_sums(ctx, x);
        }
        let blocks = extent.div_ceil(BLOCK);
        let padded = ctx.pad_axis(x, axis, [0, blocks * BLOCK - extent], 0.0)?;
        let mut split = shape.clone();
        split.splice(axis..=axis, [blocks, BLOCK]);
        let split = ctx.reshape(padded, split)?;
        let within = Self { axis: axis + 1, ..self }.short_sums(ctx, split)?;
        let totals = ctx.reduce(ReduceOp::Sum, split, &[axis + 1])?;
        let before = Self { exclusive: true, ..self }.sums(ctx, totals)?;
        let before = ctx.unsqueeze(before, axis + 1)?;
        let sums = ctx.add(within, before)?;
        let mut joined = shape;
        joined[axis] = blocks * BLOCK;
        let sums = ctx.reshape(sums, joined)?;
        ctx.slice_axis(sums, axis, 0, extent)
    }

    /// The same for few elements: each sum reads all of them.
    fn short_sums(self, ctx: &mut Context<'_>, x: TensorId) -> Result<TensorId, RuleError> {
        let mut shape = ctx.shape(x).to_vec();
        let (axis, extent) = (self.axis, shape[self.axis]);
        // [.., position, element, ..]
        shape.insert(axis, extent);
        let mut square = vec![1; shape.len()];
        (square[axis], square[axis + 1]) = (extent, extent);
        let position = ctx.iota(DType::I32, square.clone(), axis)?;
        let element = ctx.iota(DType::I32, square, axis + 1)?;
        let side = match (self.reverse, self.exclusive) {
            (false, false) => CompareFn::Le,
            (false, true) => CompareFn::Lt,
            (true, false) => CompareFn::Ge,
            (true, true) => CompareFn::Gt,
        };
        let is_added = ctx.compare(side, element, position)?;
        let elements = ctx.unsqueeze(x, axis)?;
        let zero = ctx.scalar_like(x, 0.0);
        let added = ctx.select(is_added, elements, zero)?;
        ctx.reduce(ReduceOp::Sum, added, &[axis + 1])
    }

    /// `x` moved by `distance` in the running direction, with ones before it.
    fn shifted(&self, ctx: &mut Context<'_>, x: TensorId, distance: usize) -> Result<TensorId, RuleError> {
        let kept = ctx.shape(x)[self.axis] - distance;
        let (first, around) = if self.reverse { (distance, [0, distance]) } else { (0, [distance, 0]) };
        let kept = ctx.slice_axis(x, self.axis, first, kept)?;
        ctx.pad_axis(kept, self.axis, around, 1.0)
    }
}

pub(super) fn sum(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let running = Running::read(ctx, call)?;
    let dtype = ctx.dtype(x);
    let wide = ctx.widen(x)?;
    let sums = running.sums(ctx, wide)?;
    one(ctx.cast(sums, dtype)?)
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

    #[test]
    fn sums_of_any_length() {
        for extent in [0usize, 1, 64, 65, 96, 200, 2100] {
            let values: Vec<f32> = (0..extent).map(|at| (at % 7) as f32 - 2.5).collect();
            for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut total = 0.0;
                let mut expected: Vec<f64> = (0..extent)
                    .map(|step| {
                        let value = f64::from(values[if reverse { extent - 1 - step } else { step }]);
                        total += value;
                        if exclusive { total - value } else { total }
                    })
                    .collect();
                if reverse {
                    expected.reverse();
                }
                assert_eq!(running("CumSum", exclusive, reverse, &values), expected, "{extent}");
            }
        }
    }
}
