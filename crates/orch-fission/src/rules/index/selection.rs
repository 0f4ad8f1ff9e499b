//! Positions of one axis that are known when compiling: a slice where they are evenly spaced, else a selection.

use crate::{Context, RuleError};
use orch_ir::{PrimOp, TensorId};

/// `x` with only these positions of `axis`, in this order.
///
/// # Errors
/// If a position is outside the axis.
pub(crate) fn select_along(
    ctx: &mut Context<'_>,
    x: TensorId,
    axis: usize,
    positions: Vec<usize>,
) -> Result<TensorId, RuleError> {
    let mut sizes = ctx.shape(x).to_vec();
    let Some((start, step)) = progression(&positions) else {
        let mut selected = vec![None; sizes.len()];
        selected[axis] = Some(positions);
        return ctx.emit(PrimOp::Select { positions: selected }, &[x]);
    };
    let (mut starts, mut steps) = (vec![0; sizes.len()], vec![1; sizes.len()]);
    (starts[axis], steps[axis], sizes[axis]) = (start, step, positions.len());
    ctx.slice(x, &starts, &steps, &sizes)
}

/// Start and step of positions that are evenly spaced, and all different.
fn progression(positions: &[usize]) -> Option<(i64, i64)> {
    let start = positions.first().map_or(0, |&first| first as i64);
    let step = match positions {
        [] | [_] => 1,
        [first, second, ..] => *second as i64 - *first as i64,
    };
    let even = positions.windows(2).all(|pair| pair[1] as i64 - pair[0] as i64 == step);
    (even && step != 0).then_some((start, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evenly_spaced_positions_are_a_slice() {
        assert_eq!(progression(&[2, 4, 6]), Some((2, 2)));
        assert_eq!(progression(&[2, 1, 0]), Some((2, -1)));
        assert_eq!(progression(&[]), Some((0, 1)));
        assert_eq!(progression(&[1, 1]), None);
        assert_eq!(progression(&[0, 1, 3]), None);
    }
}
