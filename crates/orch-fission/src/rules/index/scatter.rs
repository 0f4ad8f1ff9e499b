//! ScatterElements (earlier named Scatter) and ScatterND: a copy of `data` with addressed elements replaced by, or
//! combined with, updates.

use super::from_front;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::{PrimOp, ReduceOp};

pub(super) fn scatter_elements(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let data = call.tensor(0)?;
    let shape = ctx.shape(data);
    let axis = normalize_axis(call.int_or("axis", 0)?, shape.rank())?;
    let combine = reduction(call)?;
    let indices = from_front(ctx, call.tensor(1)?, &[shape[axis]])?;
    one(ctx.emit(PrimOp::ScatterAlong { axis, combine }, &[data, indices, call.tensor(2)?])?)
}

pub(super) fn scatter_nd(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (data, indices) = (call.tensor(0)?, call.tensor(1)?);
    let combine = reduction(call)?;
    let (shape, index_shape) = (ctx.shape(data), ctx.shape(indices));
    let addressed = shape.get(..index_shape.last().copied().unwrap_or(0));
    let addressed =
        addressed.ok_or_else(|| RuleError::invalid(format!("indices {index_shape} into {shape}")))?;
    let indices = from_front(ctx, indices, addressed)?;
    one(ctx.emit(PrimOp::ScatterNd { combine }, &[data, indices, call.tensor(2)?])?)
}

/// How updates combine with what is there; `None` replaces it.
fn reduction(call: &Call<'_>) -> Result<Option<ReduceOp>, RuleError> {
    match call.text_or("reduction", "none")? {
        "none" => Ok(None),
        "add" => Ok(Some(ReduceOp::Sum)),
        "mul" => Ok(Some(ReduceOp::Prod)),
        "max" => Ok(Some(ReduceOp::Max)),
        "min" => Ok(Some(ReduceOp::Min)),
        other => {
            Err(RuleError::invalid(format!("reduction is {other}, expected none, add, mul, max or min")))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::{Attribute, Tensor};

    #[test]
    fn updates_replace_or_combine() {
        let call = || apply("ScatterElements", 18).floats(&[3], &[1.0, 2.0, 3.0]).ints(&[-1, 2, 0]);
        let call = || call().floats(&[3], &[10.0, 20.0, 30.0]);
        assert_eq!(call().first().1, [30.0, 2.0, 20.0]);
        let add = Attribute::String("add".to_owned());
        assert_eq!(call().with("reduction", add).first().1, [31.0, 2.0, 33.0]);
        assert!(call().with("reduction", Attribute::String("sub".to_owned())).run().is_err());
    }

    #[test]
    fn each_coordinate_counts_from_its_own_end() {
        let indices = Tensor::from_vec([2, 2], vec![-1i64, -1, 0, 1]);
        let call = apply("ScatterND", 18).floats(&[2, 3], &[0.0; 6]).on(indices).floats(&[2], &[7.0, 8.0]);
        assert_eq!(call.first().1, [0.0, 8.0, 0.0, 0.0, 0.0, 7.0]);
    }
}
