//! The value of a scalar expression at a point: a point of the iteration space, or a vector of points.

use super::flat::Nest;
use orch_compute::expr::substitute::Substitution;
use orch_compute::expr::{ExprId, VarId};
use orch_thread::vectorize::{Vectorizer, Widening};

/// Where code computes: the values of axes, and of placeholders that differ between points.
#[derive(Clone, Default, Debug)]
pub(crate) struct IterationPoint {
    /// Scalar values of variables: axes with another value than their own variable, scalar placeholders.
    pub bindings: Vec<(VarId, ExprId)>,
    /// The axis that differs between lanes, if there are lanes.
    pub lanes: Option<Lanes>,
    /// Placeholders whose values differ between lanes.
    pub vectors: Vec<(VarId, ExprId)>,
}

/// The lanes of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lanes {
    /// The axis.
    pub axis: VarId,
    /// Its value in lane 0.
    pub base: ExprId,
    /// Number of lanes, at least 2.
    pub count: usize,
    /// Which lanes count, if not all.
    pub mask: Option<ExprId>,
}

impl IterationPoint {
    /// The number of lanes.
    pub fn width(&self) -> usize {
        self.lanes.map_or(1, |lanes| lanes.count)
    }

    /// The mask of lanes that count.
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

    /// Defines a placeholder here.
    pub fn define(&mut self, placeholder: VarId, value: ExprId) {
        match self.lanes {
            None => self.bindings.push((placeholder, value)),
            Some(_) => self.vectors.push((placeholder, value)),
        }
    }
}

impl Nest {
    /// The lanes `base..base + count` along an axis, those below `end`.
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

    /// As [`Nest::value`], repeated in every lane if it is uniform.
    pub fn full_value(&mut self, point: &IterationPoint, root: ExprId) -> ExprId {
        let value = self.value(point, root);
        self.program.exprs.splat(value, point.width())
    }
}
