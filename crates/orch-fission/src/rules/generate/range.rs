//! Range: `start + i delta` for `i` below `ceil((limit - start) / delta)`, of operands that are known when compiling.
//! f16 and bf16 are computed in f32.

use super::super::operand_lists::{single_float, single_int};
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{DType, MAX_ELEMS, TensorId};

pub(super) fn range(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let dtype = ctx.dtype(call.tensor(0)?);
    let count = if dtype.is_int() { int_count(ctx, call)? } else { float_count(ctx, call)? };
    let mut scalar = |index: usize| -> Result<TensorId, RuleError> {
        let value = ctx.reshape(call.tensor(index)?, [])?;
        ctx.widen(value)
    };
    let (start, delta) = (scalar(0)?, scalar(2)?);
    let positions = ctx.iota(ctx.dtype(start), [count], 0)?;
    let scaled = ctx.mul(positions, delta)?;
    let shifted = ctx.add(scaled, start)?;
    one(ctx.cast(shifted, dtype)?)
}

fn int_count(ctx: &mut Context<'_>, call: &Call<'_>) -> Result<usize, RuleError> {
    let [start, limit, delta] = [
        single_int(ctx, call, 0, "start")?,
        single_int(ctx, call, 1, "limit")?,
        single_int(ctx, call, 2, "delta")?,
    ]
    .map(i128::from);
    if delta == 0 {
        return Err(RuleError::invalid("delta is 0"));
    }
    let span = if delta > 0 { limit - start } else { start - limit };
    let step = delta.abs();
    checked_count(((span + step - 1) / step).max(0) as f64)
}

fn float_count(ctx: &mut Context<'_>, call: &Call<'_>) -> Result<usize, RuleError> {
    let start = single_float(ctx, call, 0, "start")?;
    let limit = single_float(ctx, call, 1, "limit")?;
    let delta = single_float(ctx, call, 2, "delta")?;
    let narrow = ctx.dtype(call.tensor(0)?) != DType::F64;
    // The quotient is rounded as the operands' own arithmetic rounds it.
    let quotient = match narrow {
        true => f64::from((limit as f32 - start as f32) / delta as f32),
        false => (limit - start) / delta,
    };
    if quotient.is_nan() {
        return Err(RuleError::invalid(format!("from {start} to {limit} by {delta}")));
    }
    checked_count(quotient.ceil().max(0.0))
}

fn checked_count(count: f64) -> Result<usize, RuleError> {
    if count <= MAX_ELEMS as f64 {
        Ok(count as usize)
    } else {
        Err(RuleError::invalid(format!("a range of {count} elements is too large")))
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::Tensor;

    #[test]
    fn the_limit_is_excluded() {
        let ints = |start: i64, limit: i64, delta: i64| {
            let call = apply("Range", 11).on(Tensor::scalar(start)).on(Tensor::scalar(limit));
            call.on(Tensor::scalar(delta)).run().map(|results| results[0].to_f64())
        };
        assert_eq!(ints(3, 9, 3), Ok(vec![3.0, 6.0]));
        assert_eq!(ints(10, 4, -2), Ok(vec![10.0, 8.0, 6.0]));
        assert_eq!(ints(4, 4, 1), Ok(vec![]));
        assert_eq!(ints(5, 4, 1), Ok(vec![]));
        assert!(ints(0, 1, 0).is_err());
        assert!(ints(i64::MIN, i64::MAX, 1).is_err());
    }

    #[test]
    fn float_ranges_and_broken_ones() {
        let floats = |start: f32, limit: f32, delta: f32| {
            let call = apply("Range", 11).floats(&[], &[start]).floats(&[], &[limit]);
            call.floats(&[], &[delta]).run().map(|results| results[0].to_f64())
        };
        assert_eq!(floats(1.0, 2.0, 0.25), Ok(vec![1.0, 1.25, 1.5, 1.75]));
        assert!(floats(0.0, 0.0, 0.0).is_err());
        assert!(floats(0.0, f32::INFINITY, 1.0).is_err());
    }
}
