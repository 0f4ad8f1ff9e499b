//! The value of a scalar expression at a point of the iteration space, or at a vector of neighbouring points.

use super::flat::Nest;
use orch_compute::expr::substitute::Substitution;
use orch_compute::expr::{ExprId, VarId};
use orch_thread::vectorize::{Vectorizer, Widening};

/// A point of the iteration space, or a vector of points along one axis: values of axes and of placeholders.
#[derive(Clone, Default, Debug)]
pub(crate) struct IterationPoint {
    /// Variables with scalar values: axes whose value is not their own variable, and placeholders that are equal in all
    /// lanes.
    pub bindings: Vec<(VarId, ExprId)>,
    /// The lanes, if this is a vector of points.
    pub lanes: Option<Lanes>,
    /// Placeholders with vector values.
    pub vectors: Vec<(VarId, ExprId)>,
}

/// The lanes of a vector of points: lane `i` is at `base + i` along `axis`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lanes {
    /// The axis along the lanes.
    pub axis: VarId,
    /// Its value in lane 0.
    pub base: ExprId,
    /// Number of lanes, at least 2.
    pub count: usize,
    /// The lanes within the axis, if some are beyond its end.
    pub mask: Option<ExprId>,
}

impl IterationPoint {
    /// The number of lanes; 1 for a single point.
    pub fn width(&self) -> usize {
        self.lanes.map_or(1, |lanes| lanes.count)
    }

    /// The mask of lanes within the axis, if not all are.
    pub fn mask(&self) -> Option<ExprId> {
        self.lanes.and_then(|lanes| lanes.mask)
    }

    /// This point with a variable bound.
    pub fn with(&self, var: VarId, value: ExprId) -> IterationPoint {
        let mut point = self.clone();
        point.bindings.push((var, value));
        point
    }

    /// This point with lanes along an axis.
    pub fn along(&self, lanes: Lanes) -> IterationPoint {
        IterationPoint { lanes: Some(lanes), ..self.clone() }
    }

    /// Defines a placeholder at this point: `value` is a vector if the point has lanes.
    pub fn define(&mut self, placeholder: VarId, value: ExprId) {
        match self.lanes {
            None => self.bindings.push((placeholder, value)),
            Some(_) => self.vectors.push((placeholder, value)),
        }
    }
}

impl Nest {
    /// The lanes `base..base + count` along an axis, masked to those below `end`.
    pub fn lanes_below(&mut self, axis: VarId, base: ExprId, count: usize, end: usize) -> Lanes {
        let exprs = &mut self.program.exprs;
        let end = exprs.index(end as i64);
        let mask = Widening::below(exprs, axis, base, count, end).mask;
        Lanes { axis, base, count, mask }
    }

    /// The value of a scalar expression: a vector if the point has lanes and the value differs between them.
    pub fn value(&mut self, point: &IterationPoint, root: ExprId) -> ExprId {
        let exprs = &mut self.program.exprs;
        let bound = Substitution::new(&point.bindings).apply(exprs, root);
        let bound = self.simplifier.simplify(exprs, bound);
        let Some(Lanes { axis, base, count, mask }) = point.lanes else { return bound };
        let over = Widening { var: axis, base, lanes: count, mask, registers: point.vectors.clone() };
        Vectorizer::new(exprs, &over).widen(exprs, &mut self.simplifier, bound)
    }

    /// [`Nest::value`], broadcast to all lanes if it is a scalar.
    pub fn full_value(&mut self, point: &IterationPoint, root: ExprId) -> ExprId {
        let value = self.value(point, root);
        self.program.exprs.splat(value, point.width())
    }
}
