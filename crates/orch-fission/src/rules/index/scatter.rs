//! ScatterElements (earlier named Scatter) and ScatterND: a copy of `data` with addressed elements replaced by, or
//! combined with, updates.
//!
//! Where the indices are known when compiling, as those of an assignment to a slice, each element reads the update that it becomes;
//! see [`placement`](super::placement).

use super::from_front;
use super::placement::Placement;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::{PrimOp, ReduceOp, TensorId};

pub(super) fn scatter_elements(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let data = call.tensor(0)?;
    let shape = ctx.shape(data);
    let axis = normalize_axis(call.int_or("axis", 0)?, shape.rank())?;
    let combine = reduction(call)?;
    let indices = from_front(ctx, call.tensor(1)?, &[shape[axis]])?;
    one(scatter_along(ctx, [data, indices, call.tensor(2)?], axis, combine)?)
}

/// A copy of `data` with `updates` at `indices` of an axis, both counted from the front.
pub(super) fn scatter_along(
    ctx: &mut Context<'_>,
    [data, indices, updates]: [TensorId; 3],
    axis: usize,
    combine: Option<ReduceOp>,
) -> Result<TensorId, RuleError> {
    let (shape, written) = (ctx.shape(data), ctx.shape(indices));
    let is_whole = |dim: usize| dim == axis || written.get(dim) == Some(&shape[dim]);
    if written == ctx.shape(updates)
        && written.rank() == shape.rank()
        && (0..shape.rank()).all(is_whole)
        && let Some(positions) = positions_along(ctx, indices, axis)
        && let Some(placement) = Placement::new(&[shape[axis]], &positions, combine)
    {
        let mut front: Vec<usize> = (0..shape.rank()).filter(|&dim| dim != axis).collect();
        front.insert(0, axis);
        let mut back: Vec<usize> = (1..shape.rank()).collect();
        back.insert(axis, 0);
        let (data, updates) = (ctx.transpose(data, &front)?, ctx.transpose(updates, &front)?);
        let placed = placement.place(ctx, data, updates)?;
        return ctx.transpose(placed, &back);
    }
    ctx.emit(PrimOp::ScatterAlong { axis, combine }, &[data, indices, updates])
}

/// The position of each update along an axis, if they are known and the same for all coordinates of the other dimensions.
fn positions_along(ctx: &mut Context<'_>, indices: TensorId, axis: usize) -> Option<Vec<Vec<usize>>> {
    let shape = ctx.shape(indices);
    let values = ctx.constant(indices)?.to_i64()?;
    let inner: usize = shape[axis + 1..].iter().product();
    let line = shape[axis] * inner;
    let along: Vec<i64> =
        (0..shape[axis]).map(|at| values.get(at * inner).copied()).collect::<Option<_>>()?;
    let is_same = values.iter().enumerate().all(|(at, &value)| value == along[at % line / inner]);
    let position = |value: i64| Some(vec![usize::try_from(value).ok()?]);
    is_same.then(|| along.into_iter().map(position).collect::<Option<_>>()).flatten()
}

pub(super) fn scatter_nd(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (data, indices) = (call.tensor(0)?, call.tensor(1)?);
    let combine = reduction(call)?;
    let (shape, index_shape) = (ctx.shape(data), ctx.shape(indices));
    let addressed = shape.get(..index_shape.last().copied().unwrap_or(0));
    let addressed =
        addressed.ok_or_else(|| RuleError::invalid(format!("indices {index_shape} into {shape}")))?;
    let (indices, updates) = (from_front(ctx, indices, addressed)?, call.tensor(2)?);
    let tuples = &index_shape[..index_shape.rank().saturating_sub(1)];
    if !addressed.is_empty()
        && ctx.shape(updates)[..] == [tuples, &shape[addressed.len()..]].concat()[..]
        && let Some(positions) = positions(ctx, indices, addressed.len())
        && let Some(placement) = Placement::new(addressed, &positions, combine)
    {
        let updates = ctx.reshape(updates, [&[positions.len()], &shape[addressed.len()..]].concat())?;
        return one(placement.place(ctx, data, updates)?);
    }
    one(ctx.emit(PrimOp::ScatterNd { combine }, &[data, indices, updates])?)
}

/// The position of each update in the first `depth` dimensions, if they are known.
fn positions(ctx: &mut Context<'_>, indices: TensorId, depth: usize) -> Option<Vec<Vec<usize>>> {
    let values = ctx.constant(indices)?.to_i64()?;
    let position = |tuple: &[i64]| tuple.iter().map(|&value| usize::try_from(value).ok()).collect();
    values.chunks_exact(depth).map(position).collect()
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
    fn updates_at_known_positions_are_read() {
        let sums = |op: &str, indices: Tensor, updates: Tensor, reduction: &str| {
            let call =
                apply(op, 18).floats(&[3, 4], &(0..12).map(|at| at as f32).collect::<Vec<_>>()).on(indices);
            let call = call.on(updates).with("reduction", Attribute::String(reduction.to_owned()));
            call.with("axis", Attribute::Int(1)).first().1
        };
        let updates = || Tensor::from_vec([2, 4], (0..8).map(|at| 100.0 + at as f32).collect());
        let rows = |list: [i64; 2]| Tensor::from_vec([2, 1], list.to_vec());
        let old = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0];
        let with = |rows: [Option<f64>; 3], keep: f64| -> Vec<f64> {
            let new = |row: usize, at: usize| rows[row].map(|first| first + at as f64);
            (0..12).map(|at| new(at / 4, at % 4).map_or(old[at], |new| new + keep * old[at])).collect()
        };
        // A range of rows, the other order, twice the same row.
        assert_eq!(
            sums("ScatterND", rows([1, 2]), updates(), "none"),
            with([None, Some(100.0), Some(104.0)], 0.0)
        );
        assert_eq!(
            sums("ScatterND", rows([2, 0]), updates(), "none"),
            with([Some(104.0), None, Some(100.0)], 0.0)
        );
        assert_eq!(sums("ScatterND", rows([1, 1]), updates(), "none"), with([None, Some(104.0), None], 0.0));
        assert_eq!(
            sums("ScatterND", rows([-1, 0]), updates(), "add"),
            with([Some(104.0), None, Some(100.0)], 1.0)
        );
        let twice = sums("ScatterND", rows([1, 1]), updates(), "add");
        assert_eq!(twice[4..8], [208.0, 211.0, 214.0, 217.0]);
        // A column in the middle.
        let column = Tensor::from_vec([3, 1], vec![2i64; 3]);
        let values = Tensor::from_vec([3, 1], vec![-1f32, -2.0, -3.0]);
        let placed = sums("ScatterElements", column, values, "none");
        assert_eq!(placed, [0.0, 1.0, -1.0, 3.0, 4.0, 5.0, -2.0, 7.0, 8.0, 9.0, -3.0, 11.0]);
    }

    #[test]
    fn boxes_are_replaced() {
        let indices = Tensor::from_vec([2, 2, 2], vec![1i64, 1, 1, 2, 2, 1, 2, 2]);
        let call = apply("ScatterND", 18)
            .floats(&[4, 4], &[0.0; 16])
            .on(indices)
            .floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        let mut expected = [0.0; 16];
        (expected[5], expected[6], expected[9], expected[10]) = (1.0, 2.0, 3.0, 4.0);
        assert_eq!(call.first().1, expected);
    }

    #[test]
    fn each_coordinate_counts_from_its_own_end() {
        let indices = Tensor::from_vec([2, 2], vec![-1i64, -1, 0, 1]);
        let call = apply("ScatterND", 18).floats(&[2, 3], &[0.0; 6]).on(indices).floats(&[2], &[7.0, 8.0]);
        assert_eq!(call.first().1, [0.0, 8.0, 0.0, 0.0, 0.0, 7.0]);
    }
}
