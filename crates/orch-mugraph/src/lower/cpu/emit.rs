//! The statements of a work item: one pass per tile in scratch, in the order of the block graph.

use super::element::TileView;
use super::extent::Extent;
use super::home::Home;
use super::matmul::{Finish, MatmulOperand};
use super::memory::time;
use super::plan::Work;
use super::rows::{Cut, Fold, Walk, Write};
use super::{CpuBlockEmitter, inner_dim};
use crate::graph::TensorId;
use crate::lower::CannotLower;
use crate::op::{ReduceFn, UnaryFn};
use crate::tiling::Stage;
use orch_compute::{ExprId, Type};
use orch_ir as ir;
use orch_thread::{LoopKind, Stmt};

impl CpuBlockEmitter<'_> {
    /// What a work item does.
    pub fn task(&mut self, grid: &[usize], stores: &[&[Option<usize>]]) -> Result<Vec<Stmt>, CannotLower> {
        let mut body = Vec::new();
        let task = self.program.exprs.var(self.program.task);
        let index = self.program.exprs.unflatten(task, grid);
        for (&at, &blocks) in index.iter().zip(grid) {
            let at = self.bind("block", at, blocks, &mut body);
            self.grid.push(at);
        }
        self.bind_spans(false, &mut body);
        self.start_accumulators(&mut body);
        body.extend(self.tiles_of(|stage, _| stage == Stage::Invariant));
        body.extend(self.iterations());
        body.extend(self.tiles_of(|stage, is_sum| stage == Stage::After && !is_sum));
        for (number, store) in stores.iter().enumerate() {
            body.extend(self.store(number, store)?);
        }
        Ok(body)
    }

    /// The loop.
    fn iterations(&mut self) -> Vec<Stmt> {
        let var = self.program.exprs.declare_index("iteration", self.loop_range);
        if self.loop_range > 1 {
            self.iteration = self.program.exprs.var(var);
        }
        let mut body = Vec::new();
        self.bind_spans(true, &mut body);
        body.extend(self.tiles_of(|stage, is_sum| stage == Stage::Loop || is_sum));
        if self.loop_range == 1 || body.is_empty() {
            return body;
        }
        let exprs = &mut self.program.exprs;
        let (start, end) = (exprs.index(0), exprs.index(self.loop_range as i64));
        vec![Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body }]
    }

    /// The tiles of a stage; the second argument says which are accumulators.
    fn tiles_of(&mut self, belongs: impl Fn(Stage, bool) -> bool) -> Vec<Stmt> {
        let mut body = Vec::new();
        for tile in 0..self.plan.nodes.len() {
            let node = &self.plan.nodes[tile];
            let is_sum = matches!(node.work, Work::Accumulate(_) | Work::Rescaled { .. });
            if !belongs(node.stage, is_sum) {
                continue;
            }
            if self.homes[tile] == Home::Scratch && !self.reduced.contains(&tile) {
                body.extend(self.tile(tile));
            }
            self.give_back(time(&self.plan, tile));
        }
        body
    }

    /// A tile in scratch.
    fn tile(&mut self, tile: usize) -> Vec<Stmt> {
        let node = self.plan.nodes[tile].clone();
        match node.work {
            Work::Matmul => {
                let view = self.scratch_for(tile, "product");
                let body = self.matmul(tile, &view, Finish::Set);
                self.tiles[tile] = Some(view);
                body
            }
            Work::Reduce { f, dim, keep } => self.reduce(tile, (f, dim, keep)),
            Work::Concat { dim } => self.concat(tile, dim),
            Work::RunningMax => self.running_max(tile),
            Work::Accumulate(f) => self.accumulate(tile, node.args[0], f),
            Work::Rescaled { degree } => self.rescaled(tile, (node.args[0], node.args[1]), degree),
            Work::Load { .. } | Work::Map(_) | Work::Rotate { .. } => self.kept(tile),
            Work::Transpose(_) | Work::Slice { .. } | Work::Repeat { .. } => self.kept(tile),
        }
    }

    /// A tile whose elements are known one by one, and the reductions of its rows.
    fn kept(&mut self, tile: usize) -> Vec<Stmt> {
        let shape = self.plan.nodes[tile].shape.clone();
        let walk = self.walk(&shape);
        let value = self.element(tile, &walk.index);
        let view = self.scratch_in_place(tile);
        let write = self.write(&walk, &view, value);
        let folds = self.row_folds(tile, &walk, value);
        let body = self.pass(&walk, vec![write], folds);
        self.tiles[tile] = Some(view);
        body
    }

    /// Reductions of the rows of a tile, which one pass computes together with the tile.
    fn row_folds(&mut self, tile: usize, walk: &Walk, value: ExprId) -> Vec<Fold> {
        let Some(inner) = walk.inner else { return Vec::new() };
        let stage = self.plan.nodes[tile].stage;
        let mut folds = Vec::new();
        for reader in tile + 1..self.plan.nodes.len() {
            let node = self.plan.nodes[reader].clone();
            let Work::Reduce { f, dim, keep: 1 } = node.work else { continue };
            let is_read = self.homes[reader] == Home::Scratch;
            if !is_read || dim != inner.dim || node.args != [tile] || node.stage != stage {
                continue;
            }
            let view = self.scratch_for(reader, "reduced");
            let index = self.repeated(reader, &walk.index);
            let into = (view.buffer, self.place(&view, &index));
            folds.push(Fold { f, value, times: None, before: None, into });
            self.tiles[reader] = Some(view);
            self.reduced.push(reader);
        }
        folds
    }

    fn reduce(&mut self, tile: usize, (f, dim, keep): (ReduceFn, usize, usize)) -> Vec<Stmt> {
        let node = self.plan.nodes[tile].clone();
        let source = self.plan.nodes[node.args[0]].shape.clone();
        let view = self.scratch_for(tile, "reduced");
        self.tiles[tile] = Some(view.clone());
        if keep == 1 && inner_dim(&source) == Some(dim) {
            let walk = self.walk(&source);
            let value = self.element(node.args[0], &walk.index);
            let index = self.repeated(tile, &walk.index);
            let into = (view.buffer, self.place(&view, &index));
            return self.pass(&walk, Vec::new(), vec![Fold { f, value, times: None, before: None, into }]);
        }
        self.reduce_across(node.args[0], (f, dim, keep), &node.shape, &view)
    }

    /// A reduction with vectors along another dimension than the reduced one.
    fn reduce_across(
        &mut self,
        source: usize,
        (f, dim, keep): (ReduceFn, usize, usize),
        shape: &[Extent],
        view: &TileView,
    ) -> Vec<Stmt> {
        let extent = self.plan.nodes[source].shape[dim].clone();
        let walk = self.walk(shape);
        let (term_var, term) = self.program.exprs.fresh_index("term", (extent.full / keep).max(1));
        let mut index = walk.index.clone();
        let skipped = self.program.exprs.mul_const(term, keep as i64);
        index[dim] = self.program.exprs.add2(index[dim], skipped);
        let value = self.element(source, &index);
        let len = self.len(&extent.len);
        let size = self.program.exprs.index(keep as i64);
        let end = self.program.exprs.floor_div(len, size);
        let end = self.simplify(end);
        let place = self.place(view, &walk.index);
        let write = Write { buffer: view.buffer, place, stride: 1, value };
        let body = match walk.inner {
            None => self.sum_of_terms(f, (term_var, end), write, None),
            Some(inner) => {
                let cut = Cut {
                    name: "at",
                    full: inner.full,
                    len: inner.len,
                    unit: self.lanes,
                    counts: &[1],
                    joins_rest: false,
                };
                self.cut(&cut, &mut |ctx, lane| {
                    let write = Write { ..write };
                    ctx.sum_of_terms(f, (term_var, end), write, Some((inner.var, lane)))
                })
            }
        };
        self.around(&walk, body)
    }

    /// One vector, or one element, of a reduction.
    fn sum_of_terms(
        &mut self,
        f: ReduceFn,
        (var, end): (orch_compute::VarId, ExprId),
        write: Write,
        along: Option<(orch_compute::VarId, super::rows::Lane)>,
    ) -> Vec<Stmt> {
        let lanes = along.map_or(1, |_| self.lanes);
        let (value, offset, mask) = match along {
            None => (write.value, write.place, None),
            Some((inner, lane)) => self.widened(&write, inner, lane),
        };
        let neutral = self.neutral(f);
        let exprs = &mut self.program.exprs;
        let start = exprs.splat(neutral, lanes);
        let register = exprs.declare_register("acc", Type::vector(ir::DType::F32, lanes));
        let sum = exprs.var(register);
        let next = match f {
            ReduceFn::Sum => exprs.add2(sum, value),
            ReduceFn::Max => exprs.max(sum, value),
        };
        let zero = exprs.index(0);
        let body = vec![Stmt::Assign(register, next)];
        vec![
            Stmt::Register(register, start),
            Stmt::For { var, start: zero, end, step: 1, kind: LoopKind::Serial, body },
            Stmt::Store { buffer: write.buffer, offset, value: sum, mask },
        ]
    }

    fn concat(&mut self, tile: usize, dim: usize) -> Vec<Stmt> {
        let node = self.plan.nodes[tile].clone();
        let view = self.scratch_for(tile, "joined");
        let mut body = Vec::new();
        let mut start = self.program.exprs.index(0);
        for &arg in &node.args {
            let shape = self.plan.nodes[arg].shape.clone();
            let walk = self.walk(&shape);
            let value = self.element(arg, &walk.index);
            let skipped = self.program.exprs.mul_const(start, view.strides[dim] as i64);
            let offset = self.program.exprs.add2(view.offset, skipped);
            let write = self.write(&walk, &TileView { offset, ..view.clone() }, value);
            body.extend(self.pass(&walk, vec![write], Vec::new()));
            let len = self.len(&shape[dim].len);
            start = self.program.exprs.add2(start, len);
        }
        self.tiles[tile] = Some(view);
        body
    }

    /// Scratch for what is kept between iterations, with its first value.
    fn start_accumulators(&mut self, body: &mut Vec<Stmt>) {
        for tile in 0..self.plan.nodes.len() {
            let node = self.plan.nodes[tile].clone();
            let f = match node.work {
                _ if self.homes[tile] != Home::Scratch => continue,
                Work::Accumulate(f) => f,
                Work::Rescaled { .. } => ReduceFn::Sum,
                Work::RunningMax => ReduceFn::Max,
                _ => continue,
            };
            let view = self.scratch("sum", &node.shape);
            body.push(self.fill(&view, f));
            self.tiles[tile] = Some(view);
        }
    }

    fn fill(&mut self, view: &TileView, f: ReduceFn) -> Stmt {
        let elems = self.program.buffer(view.buffer).elems;
        let neutral = self.neutral(f);
        let value = self.program.exprs.splat(neutral, self.lanes);
        let (var, offset) = self.program.exprs.fresh_index("at", elems);
        let exprs = &mut self.program.exprs;
        let (start, end) = (exprs.index(0), exprs.index(elems as i64));
        let body = vec![Stmt::Store { buffer: view.buffer, offset, value, mask: None }];
        Stmt::For { var, start, end, step: self.lanes as i64, kind: LoopKind::Serial, body }
    }

    /// The scratch of an accumulator, the walk over it, and an element.
    fn kept_sum(&mut self, tile: usize) -> (TileView, Walk, ExprId) {
        let shape = self.plan.nodes[tile].shape.clone();
        let view = self.tiles[tile].clone().expect("accumulators are declared first");
        let walk = self.walk(&shape);
        let place = self.place(&view, &walk.index);
        let before = self.program.exprs.load(view.buffer, place, 1, None);
        (view, walk, before)
    }

    fn accumulate(&mut self, tile: usize, source: usize, f: ReduceFn) -> Vec<Stmt> {
        if self.homes[source] == Home::Into(tile) {
            let view = self.tiles[tile].clone().expect("accumulators are declared first");
            return self.matmul(source, &view, Finish::Add);
        }
        let (view, walk, before) = self.kept_sum(tile);
        let value = self.element(source, &walk.index);
        let next = match f {
            ReduceFn::Sum => self.program.exprs.add2(before, value),
            ReduceFn::Max => self.program.exprs.max(before, value),
        };
        let write = self.write(&walk, &view, next);
        self.pass(&walk, vec![write], Vec::new())
    }

    fn rescaled(&mut self, tile: usize, (source, max): (usize, usize), degree: f64) -> Vec<Stmt> {
        let known = self.factors.iter().find(|(of, by, _)| *of == max && *by == degree);
        let factor = known.expect("the maximum comes first").2.clone();
        if self.homes[source] == Home::Into(tile) {
            let view = self.tiles[tile].clone().expect("accumulators are declared first");
            return self.matmul(source, &view, Finish::Rescale(factor));
        }
        let (view, walk, before) = self.kept_sum(tile);
        let value = self.element(source, &walk.index);
        let factor = self.factor(&factor, &walk.index);
        let next = self.program.exprs.fma(before, factor, value);
        let write = self.write(&walk, &view, next);
        self.pass(&walk, vec![write], Vec::new())
    }

    /// A running maximum, and what the accumulators that are relative to it are rescaled by.
    fn running_max(&mut self, tile: usize) -> Vec<Stmt> {
        let node = self.plan.nodes[tile].clone();
        let (view, walk, before) = self.kept_sum(tile);
        let value = self.element(node.args[0], &walk.index);
        let now = self.program.exprs.max(before, value);
        let mut writes = Vec::new();
        for degree in self.degrees(tile) {
            let factor = self.rescaling((before, now), degree);
            let view = self.scratch("factor", &node.shape);
            writes.push(self.write(&walk, &view, factor));
            self.factors.push((tile, degree, MatmulOperand { view, max: tile }));
        }
        writes.push(self.write(&walk, &view, now));
        self.pass(&walk, writes, Vec::new())
    }

    /// The degrees of the accumulators that are relative to a running maximum.
    fn degrees(&self, max: usize) -> Vec<f64> {
        let mut degrees = Vec::new();
        for (node, home) in self.plan.nodes.iter().zip(&self.homes) {
            match node.work {
                _ if *home != Home::Scratch => {}
                Work::Rescaled { degree } if node.args[1] == max && !degrees.contains(&degree) => {
                    degrees.push(degree);
                }
                _ => {}
            }
        }
        degrees
    }

    /// `e^(degree (before - now))`. In the first iteration nothing has been summed yet, and any factor will do that is a
    /// number.
    fn rescaling(&mut self, (before, now): (ExprId, ExprId), degree: f64) -> ExprId {
        let now = self.unary(UnaryFn::Guard, now);
        let difference = self.program.exprs.sub(before, now);
        let degree_value = self.constant(degree);
        let exponent = self.program.exprs.mul(difference, degree_value);
        let factor = self.unary(UnaryFn::Exp, exponent);
        if degree > 0.0 {
            return factor;
        }
        let one = self.constant(1.0);
        let exprs = &mut self.program.exprs;
        let zero = exprs.index(0);
        let is_first = exprs.eq(self.iteration, zero);
        exprs.select(is_first, one, factor)
    }

    /// Puts a tile into its place of a result.
    fn store(&mut self, number: usize, grid: &[Option<usize>]) -> Result<Vec<Stmt>, CannotLower> {
        let tile = self.plan.stored[number];
        let shape = self.plan.nodes[tile].shape.clone();
        let tensor = TensorId(self.request.kernel.0 + number as u32);
        let stored = &self.request.stored[tensor.index()];
        let (dtype, strides) = (stored.dtype, stored.strides.clone());
        let mut offset = self.program.exprs.index(stored.offset as i64);
        for (axis, dim) in grid.iter().enumerate() {
            if let Some(dim) = *dim {
                let before = self.before(&shape[dim].len, axis)?;
                let distance = self.program.exprs.mul_const(before, strides[dim] as i64);
                offset = self.program.exprs.add2(offset, distance);
            }
        }
        let view = TileView { buffer: self.outputs[number], dtype, offset, strides };
        let is_line = |dim: &usize| shape[*dim].full > 1 && view.strides[*dim] == 1;
        let inner = (0..shape.len()).find(is_line).or_else(|| inner_dim(&shape));
        let walk = self.walk_along(&shape, inner);
        let value = self.element(tile, &walk.index);
        let write = self.write(&walk, &view, value);
        Ok(self.pass(&walk, vec![write], Vec::new()))
    }
}
