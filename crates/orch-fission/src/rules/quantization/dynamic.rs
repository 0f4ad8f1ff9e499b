//! DynamicQuantizeLinear: QuantizeLinear to u8 with a scale and zero point that map the range of `x`, extended to
//! hold 0, onto `0..=255`. The scale of no elements is 1.

use super::saturate;
use crate::registry::Applied;
use crate::{Call, Context};
use orch_ir::{BinaryFn, CompareFn, DType, ReduceOp, UnaryFn};

pub(super) fn dynamic_quantize_linear(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    const LEVELS: f64 = 255.0;
    let x = call.tensor(0)?;
    if ctx.shape(x).elems() == 0 {
        let (scale, zero_point) = (ctx.scalar_like(x, 1.0), ctx.scalar_int(DType::U8, 0));
        let y = ctx.full(DType::U8, 0.0, &ctx.shape(x))?;
        return Ok([y, scale, zero_point].map(Into::into).to_vec());
    }
    let axes: Vec<usize> = (0..ctx.rank(x)).collect();
    let high = ctx.reduce(ReduceOp::Max, x, &axes)?;
    let high = ctx.binary_scalar(BinaryFn::Max, high, 0.0)?;
    let low = ctx.reduce(ReduceOp::Min, x, &axes)?;
    let low = ctx.binary_scalar(BinaryFn::Min, low, 0.0)?;
    let extent = ctx.sub(high, low)?;
    // A tensor of zeros has a range of zero; any scale represents it.
    let empty = ctx.compare_scalar(CompareFn::Eq, extent, 0.0)?;
    let one = ctx.scalar_like(extent, 1.0);
    let extent = ctx.select(empty, one, extent)?;
    let scale = ctx.binary_scalar(BinaryFn::Div, extent, LEVELS)?;
    let lowest = ctx.unary(UnaryFn::Neg, low)?;
    let zero_point = ctx.div(lowest, scale)?;
    let zero_point = saturate(ctx, zero_point, None, DType::U8)?;
    let quotient = ctx.div(x, scale)?;
    let y = saturate(ctx, quotient, Some(zero_point), DType::U8)?;
    Ok([y, scale, zero_point].map(Into::into).to_vec())
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;

    #[test]
    fn no_elements_have_a_scale_of_one() {
        let results = apply("DynamicQuantizeLinear", 11).floats(&[2, 0], &[]).results(3).run().unwrap();
        let values: Vec<_> = results.iter().map(|value| (value.shape().to_vec(), value.to_f64())).collect();
        assert_eq!(values, [(vec![2, 0], vec![]), (vec![], vec![1.0]), (vec![], vec![0.0])]);
    }
}
