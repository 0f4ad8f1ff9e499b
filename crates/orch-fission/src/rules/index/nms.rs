//! NonMaxSuppression: per batch and class the boxes of highest score that do not overlap a better one by more than a
//! threshold, of operands that are known when compiling. Result: rows `batch class box`.

use super::super::operand_lists::{extent, single_float, single_int};
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::Tensor;

pub(super) fn non_max_suppression(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let boxes = ctx.constant_operand(call, 0, "boxes")?;
    let scores = ctx.constant_operand(call, 1, "scores")?;
    let limit = match call.optional_tensor(2)? {
        Some(_) => single_int(ctx, call, 2, "max_output_boxes_per_class")?,
        None => 0,
    };
    let limit = extent(limit, "max_output_boxes_per_class")?;
    let overlap_limit = match call.optional_tensor(3)? {
        Some(_) => single_float(ctx, call, 3, "iou_threshold")?,
        None => 0.0,
    };
    let lowest_score = match call.optional_tensor(4)? {
        Some(_) => Some(single_float(ctx, call, 4, "score_threshold")?),
        None => None,
    };
    let (&[batches, spatial, 4], &[score_batches, classes, score_spatial]) =
        (boxes.shape().dims(), scores.shape().dims())
    else {
        return Err(shapes_differ(&boxes, &scores));
    };
    if (batches, spatial) != (score_batches, score_spatial) {
        return Err(shapes_differ(&boxes, &scores));
    }
    let centred = call.flag_or("center_point_box", false)?;
    let boxes: Vec<Corners> = boxes.to_f64().chunks(4).map(|sides| Corners::new(sides, centred)).collect();
    let scores = scores.to_f64();
    let mut rows: Vec<i64> = Vec::new();
    for (batch, class) in (0..batches).flat_map(|batch| (0..classes).map(move |class| (batch, class))) {
        let boxes = &boxes[batch * spatial..][..spatial];
        let scores = &scores[(batch * classes + class) * spatial..][..spatial];
        for chosen in choose(boxes, scores, limit, (overlap_limit, lowest_score)) {
            rows.extend([batch as i64, class as i64, chosen as i64]);
        }
    }
    one(ctx.tensor(Tensor::from_vec([rows.len() / 3, 3], rows)))
}

fn shapes_differ(boxes: &Tensor, scores: &Tensor) -> RuleError {
    RuleError::invalid(format!(
        "boxes {} and scores {}, expected [batches, boxes, 4] and [batches, classes, boxes]",
        boxes.shape(),
        scores.shape()
    ))
}

/// The boxes chosen of one class, best first.
fn choose(
    boxes: &[Corners],
    scores: &[f64],
    limit: usize,
    (overlap_limit, lowest_score): (f64, Option<f64>),
) -> Vec<usize> {
    let mut order: Vec<usize> =
        (0..scores.len()).filter(|&at| lowest_score.is_none_or(|lowest| scores[at] > lowest)).collect();
    order.sort_by(|&lhs, &rhs| scores[rhs].total_cmp(&scores[lhs]));
    let mut chosen: Vec<usize> = Vec::new();
    for candidate in order {
        if chosen.len() == limit {
            break;
        }
        if chosen.iter().all(|&better| boxes[better].overlap(&boxes[candidate]) <= overlap_limit) {
            chosen.push(candidate);
        }
    }
    chosen
}

/// A box by its lowest and highest corner.
struct Corners {
    low: [f64; 2],
    high: [f64; 2],
}

impl Corners {
    /// From two opposite corners, or from centre and extents.
    fn new(sides: &[f64], centred: bool) -> Self {
        let (first, second) = ([sides[0], sides[1]], [sides[2], sides[3]]);
        let (first, second) = match centred {
            true => (
                [first[0] - second[0] / 2.0, first[1] - second[1] / 2.0],
                [first[0] + second[0] / 2.0, first[1] + second[1] / 2.0],
            ),
            false => (first, second),
        };
        Self {
            low: [first[0].min(second[0]), first[1].min(second[1])],
            high: [first[0].max(second[0]), first[1].max(second[1])],
        }
    }

    fn area(&self) -> f64 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// Intersection over union.
    fn overlap(&self, other: &Corners) -> f64 {
        let side = |dim: usize| self.high[dim].min(other.high[dim]) - self.low[dim].max(other.low[dim]);
        let shared = side(0).max(0.0) * side(1).max(0.0);
        let union = self.area() + other.area() - shared;
        if union > 0.0 { shared / union } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::Tensor;

    #[test]
    fn overlapping_boxes_are_suppressed() {
        let boxes = [0.0, 0.0, 1.0, 1.0, 1.1, 1.0, 0.1, 0.0, 5.0, 5.0, 6.0, 6.0];
        let call = |limit: i64| {
            let call = apply("NonMaxSuppression", 11).floats(&[1, 3, 4], &boxes);
            let call = call.floats(&[1, 1, 3], &[0.8, 0.9, 0.3]).on(Tensor::scalar(limit));
            call.floats(&[], &[0.5]).floats(&[], &[0.1]).first()
        };
        assert_eq!(call(9), (vec![2, 3], vec![0.0, 0.0, 1.0, 0.0, 0.0, 2.0]));
        assert_eq!(call(1), (vec![1, 3], vec![0.0, 0.0, 1.0]));
        assert_eq!(call(0).0, [0, 3]);
    }
}
