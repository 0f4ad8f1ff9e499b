//! Slice: from `starts` to `ends` by `steps` along `axes`. Positions count from the end when negative, and are
//! clamped to the operand. With a negative step the start is clamped to the first and last element, so that a start
//! far before the first element reads that element, where numpy reads nothing.

use super::super::operand_lists::attribute_or_operand;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axes, normalize_axis};

pub(super) fn slice(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let rank = shape.rank();
    let starts = attribute_or_operand(ctx, call, "starts", 1)?.ok_or(RuleError::MissingOperand(1))?;
    let ends = attribute_or_operand(ctx, call, "ends", 2)?.ok_or(RuleError::MissingOperand(2))?;
    let axes =
        attribute_or_operand(ctx, call, "axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = ctx.optional_int_operand(call, 4, "steps")?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()].iter().any(|&len| len != starts.len()) || steps.contains(&0) {
        return Err(RuleError::invalid(format!(
            "starts {starts:?}, ends {ends:?}, axes {axes:?} and steps {steps:?} do not fit together"
        )));
    }
    normalize_axes(&axes, rank)?;
    let mut ranges: Vec<Positions> =
        shape.iter().map(|&size| Positions { start: 0, step: 1, size }).collect();
    for (position, &axis) in axes.iter().enumerate() {
        let axis = normalize_axis(axis, rank)?;
        ranges[axis] = Positions::clamped(shape[axis], starts[position], ends[position], steps[position]);
    }
    let starts: Vec<i64> = ranges.iter().map(|range| range.start).collect();
    let steps: Vec<i64> = ranges.iter().map(|range| range.step).collect();
    let sizes: Vec<usize> = ranges.iter().map(|range| range.size).collect();
    one(ctx.slice(x, &starts, &steps, &sizes)?)
}

/// `size` positions along one dimension, from `start` on by `step`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Positions {
    start: i64,
    step: i64,
    size: usize,
}

impl Positions {
    /// What `start..end` by `step` means in a dimension of this extent.
    fn clamped(extent: usize, start: i64, end: i64, step: i64) -> Self {
        let extent = extent as i64;
        let from_front = |at: i64| if at < 0 { at.saturating_add(extent) } else { at };
        let (start, end) = (from_front(start), from_front(end));
        let (start, span) = if step > 0 {
            let start = start.clamp(0, extent);
            (start, end.clamp(0, extent) - start)
        } else {
            let start = start.min(extent - 1).max(0);
            (start, start - end.clamp(-1, extent))
        };
        match usize::try_from(span) {
            Ok(span) if span > 0 && extent > 0 => {
                let stride = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
                let size = span.div_ceil(stride);
                Self { start, step: if size == 1 { 1 } else { step }, size }
            }
            _ => Self { start: 0, step: 1, size: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same by enumeration, as the operator's specification defines it.
    fn enumerated(extent: i64, start: i64, end: i64, step: i64) -> Vec<i64> {
        let from_front = |at: i64| if at < 0 { at + extent } else { at };
        if extent == 0 {
            return Vec::new();
        }
        let (start, end) = (from_front(start), from_front(end));
        let (mut at, end) = match step > 0 {
            true => (start.clamp(0, extent), end.clamp(0, extent)),
            false => (start.clamp(0, extent - 1), end.clamp(-1, extent - 1)),
        };
        let mut positions = Vec::new();
        while (step > 0 && at < end) || (step < 0 && at > end) {
            positions.push(at);
            at += step;
        }
        positions
    }

    #[test]
    fn positions_are_those_of_the_specification() {
        for extent in 0..5i64 {
            for (start, end) in (-7..7).flat_map(|start| (-7..7).map(move |end| (start, end))) {
                for step in [-3, -2, -1, 1, 2, 3] {
                    let Positions { start: first, step: by, size } =
                        Positions::clamped(extent as usize, start, end, step);
                    let positions: Vec<i64> = (0..size as i64).map(|index| first + index * by).collect();
                    assert_eq!(
                        positions,
                        enumerated(extent, start, end, step),
                        "{start}..{end} by {step} of {extent}"
                    );
                }
            }
        }
    }

    #[test]
    fn extreme_positions_do_not_overflow() {
        let all = Positions { start: 0, step: 1, size: 3 };
        assert_eq!(Positions::clamped(3, i64::MIN, i64::MAX, 1), all);
        assert_eq!(Positions::clamped(3, i64::MAX, i64::MIN, -1), Positions { start: 2, step: -1, size: 3 });
        assert_eq!(Positions::clamped(3, 0, i64::MAX, i64::MAX).size, 1);
        assert_eq!(Positions::clamped(3, -1, i64::MIN, i64::MIN).size, 1);
    }
}
