//! Gather: slices of `axis` by index. GatherElements: one element per index. Known indices become a selection, so that
//! nothing depends on data.

use super::{from_front, select_along};
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::{PrimOp, TensorId};

pub(super) fn gather(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (data, indices) = (call.tensor(0)?, call.tensor(1)?);
    let shape = ctx.shape(data);
    let axis = normalize_axis(call.int_or("axis", 0)?, shape.rank())?;
    if let Some(positions) = known_positions(ctx, indices, shape[axis])? {
        let selected = select_along(ctx, data, axis, positions)?;
        let dims = [&shape[..axis], &ctx.shape(indices), &shape[axis + 1..]].concat();
        return one(ctx.reshape(selected, dims)?);
    }
    let indices = from_front(ctx, indices, &[shape[axis]])?;
    one(ctx.emit(PrimOp::Take { axis }, &[data, indices])?)
}

/// The positions that known indices address.
fn known_positions(
    ctx: &mut Context<'_>,
    indices: TensorId,
    extent: usize,
) -> Result<Option<Vec<usize>>, RuleError> {
    let Some(values) = ctx.constant(indices).and_then(|value| value.to_i64()) else {
        return Ok(None);
    };
    let position = |&index: &i64| {
        let from_front = if index < 0 { index.checked_add(extent as i64)? } else { index };
        usize::try_from(from_front).ok().filter(|&position| position < extent)
    };
    match values.iter().map(position).collect() {
        Some(positions) => Ok(Some(positions)),
        None => Err(RuleError::invalid(format!("an index is outside the axis of extent {extent}"))),
    }
}

pub(super) fn gather_elements(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let data = call.tensor(0)?;
    let shape = ctx.shape(data);
    let axis = normalize_axis(call.int_or("axis", 0)?, shape.rank())?;
    let indices = from_front(ctx, call.tensor(1)?, &[shape[axis]])?;
    one(ctx.emit(PrimOp::TakeAlong { axis }, &[data, indices])?)
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use crate::{Call, Context, FissionOptions, Operand, registry};
    use orch_ir::{Attribute, DType, OperatorNode, PrimOp, Tensor};

    #[test]
    fn negative_indices_count_from_the_end() {
        let data = [1.0, 2.0, 3.0, 4.0];
        let gathered = apply("Gather", 13).floats(&[2, 2], &data).ints(&[-1, 1, 0]);
        assert_eq!(gathered.first(), (vec![3, 2], vec![3.0, 4.0, 3.0, 4.0, 1.0, 2.0]));
        let scalar = apply("Gather", 13).floats(&[2, 2], &data).on(Tensor::scalar(-2i64));
        assert_eq!(scalar.with("axis", Attribute::Int(1)).first(), (vec![2], vec![1.0, 3.0]));
        for outside in [2, -3, i64::MIN] {
            assert!(apply("Gather", 13).floats(&[2, 2], &data).ints(&[outside]).run().is_err());
        }
    }

    #[test]
    fn unknown_indices_of_a_narrow_type_reach_the_whole_axis() {
        let options = FissionOptions::default();
        let mut ctx = Context::new("", &options);
        let data = ctx.graph.add_input("data", DType::F32, [300, 2]);
        let indices = ctx.graph.add_input("indices", DType::I32, [4]);
        let node = OperatorNode {
            name: String::new(),
            domain: String::new(),
            op_type: "Gather".to_owned(),
            opset: 13,
            inputs: Vec::new(),
            outputs: Vec::new(),
            attributes: [].into(),
        };
        let rule = registry::find("", "Gather").expect("a rule");
        let call = Call::new(&node, vec![Some(data.into()), Some(indices.into())]);
        let results = (rule.apply)(&mut ctx, &call).expect("valid");
        let [Operand::Tensor(result)] = results[..] else { panic!("one tensor") };
        let node = ctx.graph().node(ctx.graph().producer(result).expect("a node"));
        assert_eq!(node.op, PrimOp::Take { axis: 0 });
        assert_eq!(ctx.dtype(node.inputs[1]), DType::I64);
    }
}
