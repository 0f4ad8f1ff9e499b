//! OneHot: `on` where the position along the new `axis` is the index, else `off`; indices outside the depth are off
//! everywhere.

use super::super::operand_lists::{extent, single_float};
use super::from_front;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::{CompareFn, DType};

pub(super) fn one_hot(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (indices, values) = (call.tensor(0)?, call.tensor(2)?);
    let depth = extent(single_float(ctx, call, 1, "depth")? as i64, "depth")?;
    let rank = ctx.rank(indices);
    let axis = normalize_axis(call.int_or("axis", -1)?, rank + 1)?;
    if ctx.shape(values)[..] != [2] {
        return Err(RuleError::invalid(format!("values have shape {}, expected [2]", ctx.shape(values))));
    }
    let indices = if ctx.dtype(indices).is_int() { indices } else { ctx.cast(indices, DType::I64)? };
    let indices = from_front(ctx, indices, &[depth])?;
    let indices = ctx.cast(indices, DType::I64)?;
    let indices = ctx.unsqueeze(indices, axis)?;
    let mut dims = vec![1; rank + 1];
    dims[axis] = depth;
    let positions = ctx.iota(DType::I64, crate::build::checked_shape(dims)?, axis)?;
    let hot = ctx.compare(CompareFn::Eq, indices, positions)?;
    let mut value = |at| {
        let value = ctx.slice_axis(values, 0, at, 1)?;
        ctx.reshape(value, [])
    };
    let (off, on) = (value(0)?, value(1)?);
    one(ctx.select(hot, on, off)?)
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::{Attribute, Tensor};

    #[test]
    fn indices_outside_are_off() {
        let call =
            apply("OneHot", 11).ints(&[0, -1, 3, -4]).on(Tensor::scalar(3i64)).floats(&[2], &[5.0, 9.0]);
        let expected = [9.0, 5.0, 5.0, 5.0, 5.0, 9.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0];
        assert_eq!(call.first(), (vec![4, 3], expected.to_vec()));
        let first = apply("OneHot", 11).floats(&[2], &[1.0, 0.0]).floats(&[], &[2.0]).ints(&[0, 1]);
        assert_eq!(first.with("axis", Attribute::Int(0)).first().1, [0.0, 1.0, 1.0, 0.0]);
    }
}
