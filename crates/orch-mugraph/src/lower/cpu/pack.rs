//! Panels: copies of some columns of a right operand, as `[vector][k][lane]`.

use super::CpuBlockEmitter;
use super::matmul::MatmulStep;
use super::rows::Lane;
use orch_compute::{BufferId, ExprId, LaneGroup, VarId};
use orch_thread::{LoopKind, Stmt, Vectorizer, Widening, vectorize};

/// Fewest elements along the K dimension that are transposed at a time.
const LEAST_GROUP: usize = 4;

/// A panel whose columns are known.
struct Panel {
    /// Its columns.
    lane: Lane,
    /// The last one that there is, counted from the first.
    last: usize,
    /// Where it is copied to.
    buffer: BufferId,
}

impl CpuBlockEmitter<'_> {
    /// Copies a panel of the right operand.
    pub fn pack(&mut self, product: &MatmulStep, lane: Lane, buffer: BufferId) -> Vec<Stmt> {
        let (start, end, _) = product.terms;
        let last = self.last_column(product, lane).filter(|_| self.is_contiguous_along_k(product));
        let Some(last) = last else {
            return vec![self.pack_terms(product, lane, buffer, (start, end))];
        };
        let panel = Panel { lane, last, buffer };
        let (mut body, mut from, mut group) = (Vec::new(), start, self.lanes);
        while group >= LEAST_GROUP && self.may_be_less(from, end) {
            let past = self.last_group(from, end, group);
            if self.may_be_less(from, past) {
                body.push(self.transpose(product, &panel, (from, past), group));
            }
            (from, group) = (past, group / 2);
        }
        if self.may_be_less(from, end) {
            body.push(self.pack_terms(product, lane, buffer, (from, end)));
        }
        body
    }

    /// The end of the last whole group of a range.
    fn last_group(&mut self, start: ExprId, end: ExprId, group: usize) -> ExprId {
        let exprs = &mut self.program.exprs;
        let len = exprs.sub(end, start);
        let size = exprs.index(group as i64);
        let groups = exprs.floor_div(len, size);
        let covered = exprs.mul_const(groups, group as i64);
        let past = exprs.add2(start, covered);
        self.simplify(past)
    }

    /// Whether a range may have elements.
    fn may_be_less(&mut self, start: ExprId, end: ExprId) -> bool {
        let is_less = self.program.exprs.lt(start, end);
        let is_less = self.simplify(is_less);
        self.program.exprs.as_bool(is_less) != Some(false)
    }

    /// True if what the right operand is computed from lies side by side along the K dimension, and not along columns.
    fn is_contiguous_along_k(&mut self, product: &MatmulStep) -> bool {
        let (k_var, k) = self.program.exprs.fresh_index("term", self.terms_bound(product));
        let (column_var, column) = self.program.exprs.fresh_index("column", self.columns_bound(product));
        let value = self.right_element(product, k, column);
        let zero = self.program.exprs.index(0);
        let mut gathers = |var: VarId, lanes: usize| {
            let widening = Widening::new(var, zero, lanes);
            vectorize(&mut self.program.exprs, value, &widening).loads.gathers
        };
        gathers(column_var, self.lanes) > 0 && gathers(k_var, self.lanes) == 0
    }

    /// More than any index of a column, with those of a last vector.
    fn columns_bound(&self, product: &MatmulStep) -> usize {
        let rhs = self.plan.nodes[product.node].args[1];
        self.plan.nodes[rhs].shape.last().map_or(1, |extent| extent.full).next_multiple_of(self.lanes)
    }

    /// An element of the right operand.
    fn right_element(&mut self, product: &MatmulStep, k: ExprId, column: ExprId) -> ExprId {
        let rhs = self.plan.nodes[product.node].args[1];
        self.element(rhs, &[&product.rhs_batch[..], &[k, column]].concat())
    }

    /// The last column of a panel, counted from its first one; `None` if that is not constant.
    fn last_column(&mut self, product: &MatmulStep, lane: Lane) -> Option<usize> {
        if lane.mask.is_none() {
            return Some(lane.count * self.lanes - 1);
        }
        let columns = self.plan.nodes[product.node].shape.last()?.len.clone();
        let columns = self.len(&columns);
        let exprs = &self.program.exprs;
        usize::try_from(exprs.as_int(columns)? - exprs.as_int(lane.base)? - 1).ok()
    }

    /// The place of a vector in a panel.
    pub fn panel_place(
        &mut self,
        product: &MatmulStep,
        (start, term): (ExprId, ExprId),
        vector: usize,
    ) -> ExprId {
        let exprs = &mut self.program.exprs;
        let line = exprs.sub(term, start);
        let line = exprs.mul_const(line, self.lanes as i64);
        exprs.add_const(line, (vector * product.terms.2 * self.lanes) as i64)
    }

    /// Copies a range of the K dimension of a panel, vector by vector.
    fn pack_terms(
        &mut self,
        product: &MatmulStep,
        lane: Lane,
        buffer: BufferId,
        (start, end): (ExprId, ExprId),
    ) -> Stmt {
        let (var, term) = self.program.exprs.fresh_index("term", self.terms_bound(product));
        let (column_var, column) = self.program.exprs.fresh_index("column", self.columns_bound(product));
        let value = self.right_element(product, term, column);
        let mut body = Vec::new();
        for vector in 0..lane.count {
            let Lane { base, mask, .. } = lane.step(&mut self.program.exprs, vector, self.lanes);
            let widening = Widening { mask, ..Widening::new(column_var, base, self.lanes) };
            let mut vectorizer = Vectorizer::new(&mut self.program.exprs, &widening);
            let value = vectorizer.widen(&mut self.program.exprs, &mut self.simplifier, value);
            let value = self.program.exprs.splat(value, self.lanes);
            let offset = self.panel_place(product, (product.terms.0, term), vector);
            body.push(Stmt::Store { buffer, offset, value, mask: None });
        }
        Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body }
    }

    /// Copies a range of a panel of an operand that is contiguous along the K dimension: `group` elements of each column are computed at
    /// once, those of the last column also for the columns after it, of which nothing is read, and transposed.
    fn transpose(
        &mut self,
        product: &MatmulStep,
        panel: &Panel,
        (start, end): (ExprId, ExprId),
        group: usize,
    ) -> Stmt {
        let (var, first) = self.program.exprs.fresh_index("term", self.terms_bound(product));
        let (k_var, k) = self.program.exprs.fresh_index("k", self.terms_bound(product));
        let mut body = Vec::new();
        for vector in 0..panel.lane.count {
            let columns: Vec<ExprId> = (vector * self.lanes..(vector + 1) * self.lanes)
                .map(|column| {
                    let column = self.program.exprs.add_const(panel.lane.base, column.min(panel.last) as i64);
                    let value = self.right_element(product, k, column);
                    let widening = Widening::new(k_var, first, group);
                    let value = vectorize(&mut self.program.exprs, value, &widening).value;
                    self.program.exprs.splat(value, group)
                })
                .collect();
            let place = self.panel_place(product, (product.terms.0, first), vector);
            for (line, value) in self.program.exprs.transpose(LaneGroup::One, columns).into_iter().enumerate()
            {
                let offset = self.program.exprs.add_const(place, (line * self.lanes) as i64);
                body.push(Stmt::Store { buffer: panel.buffer, offset, value, mask: None });
            }
        }
        Stmt::For { var, start, end, step: group as i64, kind: LoopKind::Serial, body }
    }
}
