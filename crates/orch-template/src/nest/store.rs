//! Storing stages: loops over axes that are not outer, and the stores themselves.

use super::emit::{LoopBounds, NestEmitter, for_loop};
use super::flat::{NestStage, StageWork};
use super::point::{IterationPoint, Lanes};
use orch_compute::block::Axis;
use orch_compute::expr::{BufferId, Expr, ExprId, VarId};
use orch_thread::program::{LoopKind, Scope, Stmt};

impl NestEmitter<'_> {
    /// The stores of stages that have the same domain, in one loop nest over its inner axes.
    pub fn store_stages(&mut self, stages: &[NestStage], points: &[IterationPoint]) -> Vec<Stmt> {
        let Some(first) = stages.first() else { return Vec::new() };
        let inner = self.inner_axes(&first.domain);
        let stores: Vec<(BufferId, ExprId, ExprId)> = (stages.iter())
            .filter_map(|stage| match stage.work {
                StageWork::Store { buffer, offset, body } => Some((buffer, offset, body)),
                StageWork::Reduce(_) => None,
            })
            .collect();
        self.inner_loops(&inner, points, &mut |emitter, points| {
            let mut out = Vec::new();
            for point in points {
                let bodies: Vec<ExprId> = stores.iter().map(|&(_, _, body)| body).collect();
                let point = emitter.save_shared(&bodies, point, &mut out);
                for &(buffer, offset, body) in &stores {
                    out.push(emitter.store(&point, buffer, offset, body));
                }
            }
            out
        })
    }

    /// Loops over inner axes (the vector axis last, if it is one of them) around `body`, which is called with the
    /// points.
    pub fn inner_loops(
        &mut self,
        axes: &[Axis],
        points: &[IterationPoint],
        body: &mut dyn FnMut(&mut Self, &[IterationPoint]) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let Some((axis, inner)) = axes.split_first() else { return body(self, points) };
        if inner.is_empty() && self.plan.vector.as_ref() == Some(axis) {
            return self.inner_vector_loop(axis, points, body);
        }
        let (var, points) = self.loop_over(axis, points);
        let statements = self.inner_loops(inner, &points, body);
        let LoopBounds { start, end } = self.bounds(axis);
        vec![for_loop(var, start, end, 1, LoopKind::Serial, statements)]
    }

    /// A fresh loop variable for an axis, and the points at its value.
    pub fn loop_over(&mut self, axis: &Axis, points: &[IterationPoint]) -> (VarId, Vec<IterationPoint>) {
        let var = self.loop_var(axis, 0, axis.extent.max(1) - 1, 1);
        let value = self.nest.program.exprs.var(var);
        (var, points.iter().map(|point| point.with(axis.var, value)).collect())
    }

    /// The bounds `0..extent` of an axis.
    pub fn bounds(&mut self, axis: &Axis) -> LoopBounds {
        let exprs = &mut self.nest.program.exprs;
        LoopBounds { start: exprs.index(0), end: exprs.index(axis.extent as i64) }
    }

    /// The loop over full vectors of an inner axis, and one masked vector for the rest.
    fn inner_vector_loop(
        &mut self,
        axis: &Axis,
        points: &[IterationPoint],
        body: &mut dyn FnMut(&mut Self, &[IterationPoint]) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let lanes = self.plan.lanes;
        let full = axis.extent / lanes * lanes;
        let mut out = Vec::new();
        if full > 0 {
            let base = self.loop_var(axis, 0, full - lanes, lanes);
            let first = self.nest.program.exprs.var(base);
            let along = Lanes { axis: axis.var, base: first, count: lanes, mask: None };
            let wide: Vec<IterationPoint> = points.iter().map(|point| point.along(along)).collect();
            let statements = body(self, &wide);
            let exprs = &mut self.nest.program.exprs;
            let (start, end) = (exprs.index(0), exprs.index(full as i64));
            out.push(for_loop(base, start, end, lanes, LoopKind::UnrollBy(2), statements));
        }
        if full < axis.extent {
            let base = self.nest.program.exprs.index(full as i64);
            let partial = self.nest.lanes_below(axis.var, base, lanes, axis.extent);
            let tail: Vec<IterationPoint> = points.iter().map(|point| point.along(partial)).collect();
            out.extend(body(self, &tail));
        }
        out
    }

    /// One store of a value, or of a vector to consecutive elements or at a vector of offsets, under the point's mask. What would stay as
    /// it is in an updated argument is not stored.
    pub fn store(&mut self, point: &IterationPoint, buffer: BufferId, offset: ExprId, body: ExprId) -> Stmt {
        if let Some((condition, changed)) = self.changed(buffer, offset, body) {
            return self.store_if(point, condition, (buffer, offset, changed));
        }
        let value = self.nest.full_value(point, body);
        let offset = self.nest.value(point, offset);
        let offset = match *self.nest.program.exprs.get(offset) {
            Expr::Ramp { base, stride: 1, .. } => base,
            _ => offset,
        };
        Stmt::Store { buffer, offset, value, mask: point.mask() }
    }

    /// When a store changes an element of an updated argument, and to what; `None` if it always may.
    fn changed(&self, buffer: BufferId, offset: ExprId, body: ExprId) -> Option<(ExprId, ExprId)> {
        if self.nest.program.buffer(buffer).scope != Scope::Updated {
            return None;
        }
        let exprs = &self.nest.program.exprs;
        let Expr::Select(condition, changed, kept) = *exprs.get(body) else { return None };
        let is_itself = *exprs.get(kept) == Expr::Load { buffer, offset, lanes: 1, mask: None };
        is_itself.then_some((condition, changed))
    }

    /// A store where a condition holds.
    fn store_if(
        &mut self,
        point: &IterationPoint,
        condition: ExprId,
        (buffer, offset, body): (BufferId, ExprId, ExprId),
    ) -> Stmt {
        let condition = self.nest.value(point, condition);
        let exprs = &self.nest.program.exprs;
        let uniform = if exprs.lanes(condition) == 1 { Some(condition) } else { exprs.uniform(condition) };
        if let Some(condition) = uniform {
            let then = vec![self.store(point, buffer, offset, body)];
            return Stmt::If { condition, then, otherwise: Vec::new() };
        }
        let mask = self.nest.program.exprs.and_guard(point.mask(), Some(condition));
        match self.store(point, buffer, offset, body) {
            Stmt::Store { buffer, offset, value, .. } => Stmt::Store { buffer, offset, value, mask },
            stmt => stmt,
        }
    }
}
