//! Substitution through primitives that move elements: where each result element comes from.

use super::builder::{Builder, compute_type};
use super::error::CannotFuse;
use crate::expr::ExprId;
use orch_ir::{NodeId, PadMode, PrimOp, Shape, TensorId};

impl Builder<'_> {
    /// The index of the only operand that a layout primitive's result at `at` is.
    pub fn source_index(&mut self, node: NodeId, at: &[ExprId]) -> Result<Vec<ExprId>, CannotFuse> {
        let graph = self.graph;
        let prim = graph.node(node);
        let from = graph.shape(prim.inputs[0]);
        let mut source = match &prim.op {
            PrimOp::Broadcast { dims, .. } => dims.iter().map(|&dim| at[dim]).collect(),
            PrimOp::Transpose { perm } => {
                let mut source = at.to_vec();
                for (to, &dim) in perm.iter().enumerate() {
                    source[dim] = at[to];
                }
                source
            }
            PrimOp::Reshape { shape } => self.reshaped(at, shape, from),
            PrimOp::Slice { starts, steps, .. } => (at.iter().zip(steps).zip(starts))
                .map(|((&component, &step), &start)| self.affine(component, step, start))
                .collect(),
            PrimOp::Select { positions } => {
                let mut source = at.to_vec();
                for (dim, list) in positions.iter().enumerate() {
                    if let Some(list) = list {
                        source[dim] = self.selected(node, list, at[dim])?;
                    }
                }
                source
            }
            _ => return Err(CannotFuse::Unsupported { node, op: "a primitive with several operands" }),
        };
        self.drop_unit_dims(&mut source, from);
        Ok(source)
    }

    /// Dimensions of extent 1 have index 0.
    fn drop_unit_dims(&mut self, at: &mut [ExprId], shape: &Shape) {
        for (component, &extent) in at.iter_mut().zip(shape.iter()) {
            if extent == 1 {
                *component = self.exprs.index(0);
            }
        }
    }

    /// The index in shape `to` of the element at `at` in shape `from`.
    pub fn reshaped(&mut self, at: &[ExprId], from: &Shape, to: &Shape) -> Vec<ExprId> {
        if from.elems() == 0 {
            return vec![self.exprs.index(0); to.rank()];
        }
        let offset = self.linearized(at, from);
        self.delinearized(offset, to)
    }

    /// An element of a padded tensor.
    pub fn padded(
        &mut self,
        mode: PadMode,
        low: &[usize],
        high: &[usize],
        inputs: &[TensorId],
        at: &[ExprId],
        guard: Option<ExprId>,
    ) -> Result<ExprId, CannotFuse> {
        let graph = self.graph;
        let from = graph.shape(inputs[0]);
        let mut source = Vec::with_capacity(at.len());
        let mut inside = None;
        for (dim, &component) in at.iter().enumerate() {
            let shifted = self.affine(component, 1, -(low[dim] as i64));
            let (low, high) = (low[dim] as i64, high[dim] as i64);
            source.push(match mode {
                PadMode::Constant => {
                    let in_range = self.in_range(shifted, from[dim]);
                    inside = self.both(inside, in_range);
                    shifted
                }
                PadMode::Edge => self.clamped(shifted, from[dim]),
                PadMode::Reflect => self.mirrored(shifted, from[dim] as i64, low.max(high)),
                PadMode::Wrap if low == 0 && high == 0 => shifted,
                PadMode::Wrap => self.remainder(shifted, from[dim].max(1)),
            });
        }
        self.drop_unit_dims(&mut source, from);
        if inside.is_none() {
            return self.expr_at(inputs[0], &source, guard);
        }
        let otherwise = self.expr_at(inputs[1], &[], guard)?;
        if from.elems() == 0 || inside.is_some_and(|inside| self.exprs.as_int(inside) == Some(0)) {
            return Ok(otherwise);
        }
        let readable = self.both(guard, inside);
        let value = self.expr_at(inputs[0], &source, readable)?;
        Ok(self.guarded(inside, readable, value, otherwise))
    }

    /// `component` reflected into `0..extent` at both ends, which it exceeds by at most `reach`.
    fn mirrored(&mut self, component: ExprId, extent: i64, reach: i64) -> ExprId {
        if reach == 0 || extent == 1 {
            return if extent == 1 { self.exprs.index(0) } else { component };
        }
        let period = 2 * (extent - 1);
        let folded = if reach < extent {
            let negated = self.affine(component, -1, 0);
            self.exprs.max(component, negated)
        } else {
            self.remainder(component, period as usize)
        };
        let reflected = self.affine(folded, -1, period);
        let mirrored = self.exprs.min(folded, reflected);
        self.normal(mirrored)
    }

    /// An element of a concatenation.
    pub fn joined(
        &mut self,
        axis: usize,
        inputs: &[TensorId],
        at: &[ExprId],
        guard: Option<ExprId>,
    ) -> Result<ExprId, CannotFuse> {
        let mut pieces = Vec::with_capacity(inputs.len());
        let mut start = 0;
        for &input in inputs {
            let extent = self.graph.shape(input)[axis];
            if extent == 0 {
                continue;
            }
            let mut source = at.to_vec();
            source[axis] = self.affine(at[axis], 1, -(start as i64));
            let inside = self.in_range(source[axis], extent);
            start += extent;
            if inside.is_some_and(|inside| self.exprs.as_int(inside) == Some(0)) {
                continue;
            }
            self.drop_unit_dims(&mut source, self.graph.shape(input));
            let readable = self.both(guard, inside);
            let value = self.expr_at(input, &source, readable)?;
            let below = self.below(at[axis], start);
            pieces.push((below, value));
        }
        let Some((_, mut joined)) = pieces.pop() else {
            // Nothing is stored: every operand is empty.
            return Ok(self.exprs.zero(compute_type(self.graph.dtype(inputs[0]))));
        };
        for (below, value) in pieces.into_iter().rev() {
            joined = self.exprs.select(below, value, joined);
        }
        Ok(joined)
    }

    /// `list[component]` by the formula of the list.
    fn selected(&mut self, node: NodeId, list: &[usize], component: ExprId) -> Result<ExprId, CannotFuse> {
        let formula = match Positions::of(list).ok_or(CannotFuse::IrregularSelection(node))? {
            Positions::Single(at) => return Ok(self.exprs.index(at)),
            Positions::Even { first, step } => return Ok(self.affine(component, step, first)),
            Positions::Repeated { first, times } => {
                let quotient = self.quotient(component, times);
                return Ok(self.affine(quotient, 1, first));
            }
            Positions::Resampled(formula) => formula,
        };
        let numerator = self.affine(component, formula.step, formula.offset);
        let divisor = self.exprs.index(formula.divisor);
        let position = self.exprs.floor_div(numerator, divisor);
        let (low, high) = (self.exprs.index(formula.low), self.exprs.index(formula.high));
        let position = self.exprs.max(position, low);
        Ok(self.exprs.min(position, high))
    }
}

/// True if a kernel computes the positions that [`PrimOp::Select`] takes along a dimension: they are evenly spaced, repeat evenly, or
/// are those of a resize by a small rational factor.
pub fn has_formula(positions: &[usize]) -> bool {
    Positions::of(positions).is_some()
}

/// A formula for a list of positions.
enum Positions {
    /// One position, or none.
    Single(i64),
    /// `first + step * i`
    Even { first: i64, step: i64 },
    /// `first + i / times`, rounded down
    Repeated { first: i64, times: usize },
    /// As a resize reads.
    Resampled(Resampling),
}

impl Positions {
    fn of(list: &[usize]) -> Option<Self> {
        let at = |i: usize| list[i] as i64;
        match list.len() {
            0 => return Some(Self::Single(0)),
            1 => return Some(Self::Single(at(0))),
            _ => {}
        }
        let (first, step) = (at(0), at(1) - at(0));
        if list.windows(2).all(|pair| pair[1] as i64 - pair[0] as i64 == step) {
            return Some(Self::Even { first, step });
        }
        let times = list.iter().take_while(|&&at| at == list[0]).count();
        if list.iter().enumerate().all(|(i, &at)| at == list[0] + i / times) {
            return Some(Self::Repeated { first, times });
        }
        Resampling::of(list).map(Self::Resampled)
    }
}

/// `clamp(floor((step * i + offset) / divisor), low, high)`: the positions that resizing by a rational factor reads,
/// whatever its coordinate and rounding mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Resampling {
    step: i64,
    offset: i64,
    divisor: i64,
    low: i64,
    high: i64,
}

impl Resampling {
    /// Largest divisor tried: factors of resizing are ratios of small numbers.
    const MAX_DIVISOR: i64 = 64;

    /// The formula of a list that never falls, with the smallest divisor.
    fn of(list: &[usize]) -> Option<Self> {
        let (&low, &high) = (list.first()?, list.last()?);
        if !list.is_sorted() || low == high {
            return None;
        }
        let last_low = list.iter().rposition(|&at| at == low)?;
        let first_high = list.iter().position(|&at| at == high)?;
        let slope = (high - low) as f64 / (first_high - last_low).max(1) as f64;
        (1..=Self::MAX_DIVISOR).find_map(|divisor| {
            let around = (slope * divisor as f64).round() as i64;
            (around - 2..=around + 2).filter(|&step| step > 0).find_map(|step| {
                let offset = Self::offset(list, step, divisor, (low as i64, high as i64))?;
                Some(Self { step, offset, divisor, low: low as i64, high: high as i64 })
            })
        })
    }

    /// An offset that every element of the list allows.
    fn offset(list: &[usize], step: i64, divisor: i64, (low, high): (i64, i64)) -> Option<i64> {
        let (mut least, mut most) = (i64::MIN, i64::MAX);
        for (i, &at) in list.iter().enumerate() {
            let (at, travelled) = (at as i64, step * i as i64);
            if at > low {
                least = least.max(divisor * at - travelled);
            }
            if at < high {
                most = most.min(divisor * (at + 1) - travelled - 1);
            }
        }
        (least <= most).then_some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resizing_positions_have_formulas() {
        for (from, to) in [(4, 8), (8, 4), (7, 13), (3, 10), (16, 64), (10, 7), (16, 33)] {
            let scale = from as f64 / to as f64;
            let positions = [
                (0..to).map(|i| (i as f64 * scale).floor() as usize).collect::<Vec<_>>(),
                (0..to).map(|i| ((i as f64 + 0.5) * scale - 0.5).floor().max(0.0) as usize).collect(),
                (0..to)
                    .map(|i| (((i as f64 + 0.5) * scale - 0.5).floor() as i64 + 1).min(from - 1) as usize)
                    .collect(),
                (0..to)
                    .map(|i| (i as f64 * (from - 1) as f64 / (to - 1) as f64 + 1e-9).floor() as usize)
                    .collect(),
            ];
            for list in positions {
                let f = Resampling::of(&list).unwrap_or_else(|| panic!("{from} -> {to}: {list:?}"));
                for (i, &at) in list.iter().enumerate() {
                    let position = (f.step * i as i64 + f.offset).div_euclid(f.divisor).clamp(f.low, f.high);
                    assert_eq!(position, at as i64, "{from} -> {to}: {f:?} at {i}");
                }
            }
        }
    }

    #[test]
    fn irregular_positions_have_none() {
        assert!(
            !has_formula(&[0, 3, 1, 2])
                && has_formula(&[4, 2, 0])
                && has_formula(&[3, 3, 4, 4])
                && has_formula(&[5])
        );
        assert_eq!(Resampling::of(&[0, 3, 1, 2]), None);
        assert_eq!(Resampling::of(&[0, 1, 2, 9, 10, 30]), None);
    }
}
