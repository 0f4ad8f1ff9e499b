//! Filling scratch with the operands of a contraction that cannot be read where they are.

use super::bf16_dot::{self, PresentTerms};
use super::emitter::{ContractionEmitter, PanelElement, PanelFill, RowScratch, WindowScratch};
use super::operand::RowsFrom;
use super::pack_cost::{AlongK, RowOrder};
use crate::design::halving_groups;
use orch_compute::expr::substitute::Substitution;
use orch_compute::expr::{BufferId, Expr, ExprId, LaneGroup, VarId};
use orch_compute::simplify::simplify;
use orch_thread::program::{LoopKind, Stmt};
use std::ops::Range;

/// Vectors that a copying loop moves per iteration.
const COPY_UNROLL: u32 = 4;

/// How many vectors ahead elements along K are prefetched.
const VECTORS_AHEAD: usize = 4;

impl ContractionEmitter<'_> {
    /// Computes the work item's rows of the first operand into scratch.
    pub fn fill_rows(&mut self, scratch: RowScratch, first: ExprId, end: ExprId) -> Vec<Stmt> {
        match scratch.order {
            RowOrder::KInner => self.fill_rows_along_k(scratch, first, end),
            RowOrder::RowsInner => self.fill_rows_along_rows(scratch, first, end),
        }
    }

    /// `[row][k]`: for each row a loop over each outer summed axis, vectors along the innermost, where the operand is
    /// contiguous if it is anywhere.
    fn fill_rows_along_k(&mut self, scratch: RowScratch, first: ExprId, end: ExprId) -> Vec<Stmt> {
        let RowScratch { buffer, distance, .. } = scratch;
        let (row_var, row) = self.program.exprs.fresh_index("row", self.extents.m);
        let exprs = &mut self.program.exprs;
        let local = exprs.sub(row, first);
        let row_line = exprs.mul_const(local, distance as i64);
        let mut bindings = vec![(self.flat.m, row)];
        let terms = self.form.k.clone();
        let Some((&along, outer)) = terms.split_last() else { return Vec::new() };
        let (loops, term) = self.loops_over(outer, self.block.extent(along), &mut bindings);
        let line = self.program.exprs.add2(row_line, term);
        let a = self.row_operand();
        let along = (along, self.block.extent(along));
        let body = self.fill_segment(buffer, a, &bindings, along, line);
        let mut body = self.inside(loops, body);
        body.extend(bf16_dot::clear_row_end(self, buffer, row_line));
        vec![Stmt::For { var: row_var, start: first, end, step: 1, kind: LoopKind::Serial, body }]
    }

    /// One row's elements along the innermost K axis. Where the padding around an image decides for all of them at
    /// once, it is tested once.
    fn fill_segment(
        &mut self,
        buffer: BufferId,
        a: ExprId,
        bindings: &[(VarId, ExprId)],
        along: (VarId, usize),
        line: ExprId,
    ) -> Vec<Stmt> {
        let guarded = match self.source.get(a).clone() {
            Expr::Read { arg, index, guard: Some(guard) }
                if !self.source.free_vars(guard).contains(&along.0) =>
            {
                Some((self.source.read(arg, index, None), guard))
            }
            _ => None,
        };
        let Some((inside, guard)) = guarded else {
            return self.fill_along(buffer, a, bindings, along, line, None);
        };
        let element = self.source.dtype(a);
        let zero = self.source.zero(element);
        let condition = self.import_scalar(guard, bindings);
        let then = self.fill_along(buffer, inside, bindings, along, line, None);
        let otherwise = self.fill_along(buffer, zero, bindings, along, line, None);
        vec![Stmt::If { condition, then, otherwise }]
    }

    /// `[k][row]`: for each `k` a loop over the lines of rows that share all but their innermost axis, vectors along
    /// that. The first row is at `lanes`, so that a line's first vector may begin before it. Vectors are stored whole;
    /// what they write past a line's end the next line writes again.
    fn fill_rows_along_rows(&mut self, scratch: RowScratch, first: ExprId, end: ExprId) -> Vec<Stmt> {
        let RowScratch { buffer, distance, .. } = scratch;
        let lanes = self.lanes as i64;
        let Some((&along, outer_rows)) = self.form.m.split_last() else { return Vec::new() };
        let extent = self.block.extent(along);
        let line_count = self.extents.m / extent;
        let (line_var, line) = self.program.exprs.fresh_index("line", line_count);
        let outer_extents: Vec<usize> = outer_rows.iter().map(|&axis| self.block.extent(axis)).collect();
        let places = self.program.exprs.unflatten(line, &outer_extents);
        let mut bindings: Vec<(VarId, ExprId)> = outer_rows.iter().copied().zip(places).collect();

        let (loops, term) = self.loops_over(&self.form.k.clone(), 1, &mut bindings);

        let exprs = &mut self.program.exprs;
        let line_start = exprs.mul_const(line, extent as i64);
        let zero = exprs.index(0);
        let before = exprs.sub(first, line_start);
        let before = exprs.max(before, zero);
        let lane_count = exprs.index(lanes);
        let start = exprs.floor_div(before, lane_count);
        let start = exprs.mul_const(start, lanes);
        let start = simplify(exprs, start);
        let past = exprs.sub(end, line_start);
        let at = exprs.mul_const(term, distance as i64);
        let at = exprs.add2(at, line_start);
        let at = exprs.sub(at, first);
        let at = exprs.add_const(at, lanes);
        let a = simplify(&mut self.source, self.form.a);
        let body = self.fill_along(buffer, a, &bindings, (along, extent), at, Some((start, past)));

        let exprs = &mut self.program.exprs;
        let line_rows = exprs.index(extent as i64);
        let from = exprs.floor_div(first, line_rows);
        let to = exprs.add_const(end, extent as i64 - 1);
        let to = exprs.floor_div(to, line_rows);
        let (from, to) = (simplify(exprs, from), simplify(exprs, to));
        let kind = LoopKind::Serial;
        let body = vec![Stmt::For { var: line_var, start: from, end: to, step: 1, kind, body }];
        self.inside(loops, body)
    }

    /// Computes the part of the window that the rows of a block take, in the order of its addresses: loops over the outer coordinates,
    /// vectors along the innermost.
    pub fn fill_window(&mut self, scratch: &WindowScratch, first: ExprId, past: ExprId) -> Vec<Stmt> {
        let RowsFrom::Window(window) = self.rows.clone() else { return Vec::new() };
        let Some((innermost, outer)) = window.coordinates.split_last() else { return Vec::new() };
        let exprs = &mut self.program.exprs;
        let lines = exprs.index(window.line_rows as i64);
        let first_line = exprs.floor_div(first, lines);
        let last = exprs.add_const(past, -1);
        let last_line = exprs.floor_div(last, lines);
        let step = window.line_step() as i64;
        let halo = window.size(self.block).first as i64;
        let start = exprs.mul_const(first_line, step);
        let start = simplify(exprs, start);
        let end = exprs.mul_const(last_line, step);
        let end = exprs.add_const(end, halo);
        let end = simplify(exprs, end);
        let mut bindings = Vec::new();
        let mut loops = Vec::new();
        let mut line = self.program.exprs.index(0);
        for (at, (coordinate, &stride)) in outer.iter().zip(&scratch.strides).enumerate() {
            let (var, value) = self.program.exprs.fresh_index("place", coordinate.extent);
            let exprs = &mut self.program.exprs;
            let (from, to, local) = match at == window.line {
                true => (start, end, exprs.sub(value, start)),
                false => (exprs.index(0), exprs.index(coordinate.extent as i64), value),
            };
            let part = exprs.mul_const(local, stride as i64);
            line = exprs.add2(line, part);
            bindings.push((coordinate.var, value));
            loops.push((var, from, to));
        }
        let along = (innermost.var, innermost.extent);
        let mut body = self.fill_segment(scratch.buffer, window.operand, &bindings, along, line);
        for (var, start, end) in loops.into_iter().rev() {
            body = vec![Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body }];
        }
        body
    }

    /// The first operand over batch axes, the flat row, and the summed axes themselves.
    fn row_operand(&mut self) -> ExprId {
        let rows: Vec<(VarId, ExprId)> =
            self.flat.bindings.iter().copied().filter(|(axis, _)| !self.form.k.contains(axis)).collect();
        let mut flatten = Substitution::new(&rows);
        let a = self.math_unit.factor(&mut self.source, self.form.a);
        let a = flatten.apply(&mut self.source, a);
        simplify(&mut self.source, a)
    }

    /// Computes one panel of the second operand into scratch, `[k][column]`, or `[pair][column][2]` with zeros past `k`; columns past the last
    /// one have arbitrary values.
    ///
    /// Where elements are neighbours along K and not along columns, some of each column, or some pairs, are loaded together and transposed in
    /// registers, a vector's number of them as long as there are so many, so that each cache line is read once: of 16 columns that are a multiple
    /// of 4 KiB apart the L1 holds no more than 8 or 12 lines.
    pub fn fill_panel(&mut self, buffer: BufferId, panel: ExprId, columns: usize) -> Vec<Stmt> {
        let along_k = AlongK::of_panels(self.block, &self.form, self.math_unit);
        let largest = if along_k.is_some() { self.lanes } else { 1 };
        let panel = PanelFill {
            buffer,
            first_column: self.program.exprs.mul_const(panel, self.width() as i64),
            columns,
            element: self.panel_element(along_k),
        };
        let unit = self.math_unit.group();
        let mut filled = Vec::new();
        for (lines, group) in halving_groups(self.extents.k / unit.lanes(), largest) {
            filled.push(match (group, unit) {
                (1, LaneGroup::One) => self.fill_lines(&panel, lines),
                (1, LaneGroup::Pair) => bf16_dot::fill_pairs(self, &panel, lines, PresentTerms::Whole),
                _ => self.fill_transposed(&panel, lines, group),
            });
        }
        if unit == LaneGroup::Pair {
            filled.extend(bf16_dot::fill_last_pairs(self, &panel));
        }
        filled
    }

    /// The second operand over the flat column and K as panels are filled: in the order of memory where elements are neighbours along it.
    pub fn panel_element(&mut self, along_k: Option<AlongK>) -> PanelElement {
        let Some(AlongK { axes }) = along_k.filter(|along| along.axes != self.form.k) else {
            return PanelElement { value: self.b, k: self.flat.k, axes: self.form.k.clone() };
        };
        let extents: Vec<usize> = axes.iter().map(|&axis| self.block.extent(axis)).collect();
        let (k, in_memory) = self.source.fresh_index("k", self.extents.k);
        let places = self.source.unflatten(in_memory, &extents);
        let others = self.flat.bindings.iter().filter(|(axis, _)| !axes.contains(axis));
        let bindings: Vec<(VarId, ExprId)> =
            others.copied().chain(axes.iter().copied().zip(places)).collect();
        let value = Substitution::new(&bindings).apply(&mut self.source, self.form.b);
        PanelElement { value: simplify(&mut self.source, value), k, axes }
    }

    /// The offset of a line of a panel, where `k` counts along the axes of `element`.
    fn panel_line(&mut self, element: &PanelElement, k: ExprId) -> ExprId {
        let width = self.width() as i64;
        let extents: Vec<usize> = element.axes.iter().map(|&axis| self.block.extent(axis)).collect();
        let exprs = &mut self.program.exprs;
        let places = exprs.unflatten(k, &extents);
        let mut line = exprs.index(0);
        for &axis in &self.form.k {
            let place = element.axes.iter().zip(&places).find(|(other, _)| **other == axis);
            line = exprs.mul_const(line, self.block.extent(axis) as i64);
            line = exprs.add2(line, *place.expect("an order of the same axes").1);
        }
        let line = exprs.mul_const(line, width);
        simplify(exprs, line)
    }

    /// Lines of a panel in vectors along columns; lanes past the last column are zero.
    fn fill_lines(&mut self, panel: &PanelFill, lines: Range<usize>) -> Stmt {
        let (var, k) = self.program.exprs.fresh_index("k", lines.end);
        let line = self.panel_line(&panel.element, k);
        let mut body = Vec::new();
        for start in (0..panel.columns).step_by(self.lanes) {
            let first = self.program.exprs.add_const(panel.first_column, start as i64);
            let column = self.vector_index(&mut body, "column", first, self.extents.n);
            let mask = self.tail_mask((panel.columns - start).min(self.lanes));
            let along = (self.flat.n, column);
            let value = self.import_vector(panel.element.value, &[(panel.element.k, k)], along, mask);
            let value = self.zero_where_not(mask, value);
            let offset = self.program.exprs.add_const(line, start as i64);
            body.push(Stmt::Store { buffer: panel.buffer, offset, value, mask: None });
        }
        let exprs = &mut self.program.exprs;
        let (start, end) = (exprs.index(lines.start as i64), exprs.index(lines.end as i64));
        Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body }
    }

    /// Lines of a panel, each of an element or a pair of each column, `group` at a time: for each vector of columns so many of each column, those
    /// of the last column also in place of columns past it, and these transposed.
    fn fill_transposed(&mut self, panel: &PanelFill, lines: Range<usize>, group: usize) -> Stmt {
        let unit = self.math_unit.group();
        let (first_k, past_k) = (lines.start * unit.lanes(), lines.end * unit.lanes());
        let run = group * unit.lanes();
        let (var, first) = self.program.exprs.fresh_index("k", past_k);
        self.program.exprs.set_multiple_of(var, run as i64);
        let line_offsets: Vec<ExprId> = (0..group)
            .map(|at| {
                let k = self.program.exprs.add_const(first, (at * unit.lanes()) as i64);
                self.panel_line(&panel.element, k)
            })
            .collect();
        let mut body = Vec::new();
        for start in (0..panel.columns).step_by(self.lanes) {
            let along_k: Vec<ExprId> = (start..start + self.lanes)
                .map(|column| {
                    let column = column.min(panel.columns - 1) as i64;
                    let column = self.program.exprs.add_const(panel.first_column, column);
                    let along = (panel.element.k, var);
                    self.import_run(panel.element.value, &[(self.flat.n, column)], along, run)
                })
                .collect();
            if group == self.lanes {
                body.extend(self.prefetches_ahead(&along_k, run));
            }
            let along_columns = self.program.exprs.transpose(unit, along_k);
            for (&line, value) in line_offsets.iter().zip(along_columns) {
                let offset = self.program.exprs.add_const(line, (start * unit.lanes()) as i64);
                body.push(Stmt::Store { buffer: panel.buffer, offset, value, mask: None });
            }
        }
        let exprs = &mut self.program.exprs;
        let (start, end) = (exprs.index(first_k as i64), exprs.index(past_k as i64));
        Stmt::For { var, start, end, step: run as i64, kind: LoopKind::Serial, body }
    }

    /// Prefetches what loads like those of these vectors, of so many lanes, read some iterations later: they follow more streams than the
    /// hardware tells apart.
    fn prefetches_ahead(&mut self, vectors: &[ExprId], lanes: usize) -> Vec<Stmt> {
        let program = &mut self.program;
        let loads = program.exprs.reachable(vectors);
        let loads: Vec<(BufferId, ExprId)> = (loads.into_iter())
            .filter_map(|id| match *program.exprs.get(id) {
                Expr::Load { buffer, offset, lanes, .. } if lanes > 1 => Some((buffer, offset)),
                _ => None,
            })
            .collect();
        let ahead = |(buffer, offset): (BufferId, ExprId)| {
            let last = program.exprs.index(program.buffer(buffer).elems as i64 - 1);
            let offset = program.exprs.add_const(offset, (VECTORS_AHEAD * lanes) as i64);
            Stmt::Prefetch { buffer, offset: program.exprs.min(offset, last) }
        };
        loads.into_iter().map(ahead).collect()
    }

    /// `scratch[line + i] = expr at i` for `i` along a whole axis, in vectors; of a `span`, those vectors that begin at or
    /// after its first and before its second bound. The last vector is stored whole: what it writes past the axis is
    /// written again with the next line, for lines are filled in the order of their addresses, and the buffer has room
    /// for one more vector. Masked stores are slow on some CPUs.
    fn fill_along(
        &mut self,
        buffer: BufferId,
        expr: ExprId,
        bindings: &[(VarId, ExprId)],
        (along, extent): (VarId, usize),
        line: ExprId,
        span: Option<(ExprId, ExprId)>,
    ) -> Vec<Stmt> {
        let lanes = self.lanes;
        let full = extent - extent % lanes;
        let mut body = Vec::new();
        if full > 0 {
            let var = self.program.exprs.declare_index("i", full);
            self.program.exprs.set_multiple_of(var, lanes as i64);
            let value = self.import_vector(expr, bindings, (along, var), None);
            let exprs = &mut self.program.exprs;
            let at = exprs.var(var);
            let offset = exprs.add2(line, at);
            let offset = simplify(exprs, offset);
            let limit = exprs.index(full as i64);
            let (start, end, kind) = match span {
                Some((start, past)) => (start, exprs.min(past, limit), LoopKind::Serial),
                None => (exprs.index(0), limit, LoopKind::UnrollBy(COPY_UNROLL)),
            };
            let store = Stmt::Store { buffer, offset, value, mask: None };
            body.push(Stmt::For { var, start, end, step: lanes as i64, kind, body: vec![store] });
        }
        if extent > full {
            let mut last = Vec::new();
            let first = self.program.exprs.index(full as i64);
            let var = self.vector_index(&mut last, "i", first, extent);
            let mask = self.tail_mask(extent - full);
            let value = self.import_vector(expr, bindings, (along, var), mask);
            let exprs = &mut self.program.exprs;
            let offset = exprs.add_const(line, full as i64);
            let offset = simplify(exprs, offset);
            last.push(Stmt::Store { buffer, offset, value, mask: None });
            match span {
                None => body.extend(last),
                Some((_, past)) => {
                    let past_full = exprs.add_const(first, 1);
                    let condition = exprs.ge(past, past_full);
                    body.push(Stmt::If { condition, then: last, otherwise: Vec::new() });
                }
            }
        }
        body
    }

    /// Loops over axes, the innermost first, and the flat index that they make up, in steps of `inner`; each axis is
    /// bound to its loop's variable.
    fn loops_over(
        &mut self,
        axes: &[VarId],
        inner: usize,
        bindings: &mut Vec<(VarId, ExprId)>,
    ) -> (Vec<(VarId, usize)>, ExprId) {
        let mut loops = Vec::with_capacity(axes.len());
        let mut index = self.program.exprs.index(0);
        let mut stride = inner;
        for &axis in axes.iter().rev() {
            let extent = self.block.extent(axis);
            let (var, value) = self.program.exprs.fresh_index("k", extent);
            let exprs = &mut self.program.exprs;
            let step = exprs.mul_const(value, stride as i64);
            index = exprs.add2(index, step);
            bindings.push((axis, value));
            loops.push((var, extent));
            stride *= extent;
        }
        (loops, index)
    }

    /// Statements inside loops, of which the innermost comes first.
    fn inside(&mut self, loops: Vec<(VarId, usize)>, mut body: Vec<Stmt>) -> Vec<Stmt> {
        for (var, extent) in loops {
            let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(extent as i64));
            body = vec![Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body }];
        }
        body
    }

    /// A value whose masked-off lanes are zero, even if it is not a plain load.
    fn zero_where_not(&mut self, mask: Option<ExprId>, value: ExprId) -> ExprId {
        let Some(mask) = mask else { return value };
        if matches!(self.program.exprs.get(value), orch_compute::expr::Expr::Load { .. }) {
            return value;
        }
        let zero = self.program.exprs.zero(self.operand_type);
        let zeros = self.program.exprs.splat(zero, self.lanes);
        self.program.exprs.select(mask, value, zeros)
    }
}
