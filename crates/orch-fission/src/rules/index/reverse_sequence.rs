//! ReverseSequence: the leading part of each sequence backwards: position `t` of a sequence of length `l` comes from
//! `l - 1 - t` where `t < l`.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::{BinaryFn, CompareFn, DType, PrimOp};

pub(super) fn reverse_sequence(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, lengths) = (call.tensor(0)?, call.tensor(1)?);
    let shape = ctx.shape(x);
    let rank = shape.rank();
    let batch_axis = normalize_axis(call.int_or("batch_axis", 1)?, rank)?;
    let time_axis = normalize_axis(call.int_or("time_axis", 0)?, rank)?;
    if batch_axis == time_axis || ctx.shape(lengths)[..] != [shape[batch_axis]] {
        return Err(RuleError::invalid(format!(
            "sequences along axis {time_axis}, lengths {} for axis {batch_axis} of {shape}",
            ctx.shape(lengths)
        )));
    }
    let lengths = ctx.cast(lengths, DType::I64)?;
    let along = |axis: usize| {
        let mut dims = vec![1; rank];
        dims[axis] = shape[axis];
        dims
    };
    let lengths = ctx.reshape(lengths, along(batch_axis))?;
    let time = ctx.iota(DType::I64, along(time_axis), time_axis)?;
    let last = ctx.binary_scalar(BinaryFn::Sub, lengths, 1.0)?;
    let mirrored = ctx.sub(last, time)?;
    let reversed = ctx.compare(CompareFn::Lt, time, lengths)?;
    let source = ctx.select(reversed, mirrored, time)?;
    let source = ctx.broadcast_to(source, &shape)?;
    one(ctx.emit(PrimOp::TakeAlong { axis: time_axis }, &[x, source])?)
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::Attribute;

    #[test]
    fn only_the_leading_part_is_reversed() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let call = apply("ReverseSequence", 10).floats(&[2, 3], &x).ints(&[2, 0]);
        let call = call.with("batch_axis", Attribute::Int(0)).with("time_axis", Attribute::Int(1));
        assert_eq!(call.first().1, [2.0, 1.0, 3.0, 4.0, 5.0, 6.0]);
    }
}
