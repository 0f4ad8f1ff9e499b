//! Shape: the extents from `start` to `end` of the operand's shape. Size: their product. Both are constants.

use crate::registry::{Applied, one};
use crate::{Call, Context};
use orch_ir::{DType, Tensor};

pub(super) fn shape(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let shape = ctx.shape(call.tensor(0)?);
    let rank = shape.rank() as i64;
    let position = |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
    let start = position(call.int_or("start", 0)?);
    let end = position(call.int_or("end", rank)?).max(start);
    let extents: Vec<i64> = shape[start..end].iter().map(|&extent| extent as i64).collect();
    one(ctx.tensor(Tensor::from_vec([extents.len()], extents)))
}

pub(super) fn size(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let elems = ctx.shape(call.tensor(0)?).elems();
    one(ctx.scalar_int(DType::I64, elems as i64))
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::{Attribute, DType, Tensor};

    #[test]
    fn parts_of_the_shape_are_clamped() {
        let part = |start: i64, end: i64| {
            let x = Tensor::zeros(DType::F32, [2, 3, 0]);
            let call = apply("Shape", 15).on(x);
            call.with("start", Attribute::Int(start)).with("end", Attribute::Int(end)).first().1
        };
        assert_eq!(part(0, 3), [2.0, 3.0, 0.0]);
        assert_eq!(part(-2, -1), [3.0]);
        assert_eq!(part(-9, 9), [2.0, 3.0, 0.0]);
        assert_eq!(part(2, 1), [] as [f64; 0]);
    }
}
