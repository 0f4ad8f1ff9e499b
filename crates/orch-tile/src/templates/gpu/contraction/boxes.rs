//! Factors that the copy engine brings: plain arrays, in boxes of a view.

use super::lower::Lowering;
use super::operand::{Along, Operand, Side};
use crate::expr::{BufferId, Expr, ExprId, VarId};
use crate::templates::gpu::team::Lowers;
use crate::thread::{LoopKind, Stmt};
use crate::thread_team::{Spot, TILE_LINE, TeamStmt};
use crate::thread_view::{Slots, View, ViewId};

/// One factor's tiles, as boxes.
pub(super) struct Boxes<'a> {
    operand: &'a Operand,
    view: ViewId,
    /// Boxes beside one another that make a tile.
    panels: usize,
    /// The task's place in the extents of the view beyond the first two.
    batch: Vec<ExprId>,
}

/// A view, and the task's place in its extents beyond the first two.
type Viewed = (View, Vec<ExprId>);

impl<'a> Boxes<'a> {
    /// Those of both factors, if the copy engine can bring both.
    pub fn of(lowering: &mut Lowering<'_>, operands: [&'a Operand; 2]) -> Option<[Self; 2]> {
        let viewed = [viewed(lowering, operands[0])?, viewed(lowering, operands[1])?];
        let mut found = operands.into_iter().zip(viewed).map(|(operand, (view, batch))| {
            let panels = operand.stage_elems / view.box_elems();
            Self { operand, view: lowering.program.add_view(view), panels, batch }
        });
        let both = [found.next()?, found.next()?];
        drop(found);
        let boxes = both.iter().map(|boxes| boxes.panels).sum();
        lowering.program.slots = Slots { count: lowering.schedule.stages, boxes };
        Some(both)
    }

    /// Starts filling a stage with the tile of a step.
    fn fetch(&self, lowering: &mut Lowering<'_>, first_term: ExprId, stage: ExprId) -> Vec<Stmt> {
        let corner = lowering.corner[self.operand.side.number];
        let exprs = &mut lowering.program.exprs;
        let first = exprs.mul_const(stage, self.operand.stage_elems as i64);
        let elems = self.operand.stage_elems / self.panels;
        let mut copy = |panel| {
            let offset = exprs.add_const(first, (panel * elems) as i64);
            let to = Spot { buffer: self.operand.buffer, offset };
            let (inner, outer) = match self.operand.along {
                Along::Terms => (exprs.add_const(first_term, (panel * TILE_LINE) as i64), corner),
                Along::Rows => (exprs.add_const(corner, (panel * TILE_LINE) as i64), first_term),
            };
            let at = [inner, outer].into_iter().chain(self.batch.iter().copied()).collect();
            Stmt::Team(TeamStmt::CopyBox { to, view: self.view, at, slot: stage })
        };
        (0..self.panels).map(&mut copy).collect()
    }
}

impl Lowering<'_> {
    /// The loop over steps, of which boxes are copied ahead while products of tiles run on. The first steps' constants are
    /// copied before other kernels are awaited.
    pub fn box_pipeline(&mut self, boxes: &[Boxes<'_>; 2]) -> Vec<Stmt> {
        let (stages, steps) = (self.schedule.stages, self.steps());
        let ahead = self.schedule.ahead();
        let mut body = Vec::new();
        let (constant, other): (Vec<&Boxes<'_>>, Vec<&Boxes<'_>>) =
            boxes.iter().partition(|boxes| boxes.operand.is_constant(self));
        let first = |this: &mut Self, boxes: &[&Boxes<'_>], body: &mut Vec<Stmt>| {
            for stage in (0..ahead.min(steps)).filter(|_| !boxes.is_empty()) {
                let stage = this.program.exprs.index(stage as i64);
                let first_term = this.let_first_term(body, stage);
                boxes.iter().for_each(|boxes| body.extend(boxes.fetch(this, first_term, stage)));
            }
        };
        first(self, &constant, &mut body);
        body.push(Stmt::Team(TeamStmt::Await));
        first(self, &other, &mut body);
        body.extend(self.join());
        body.push(self.clear_sums());
        let (var, step) = self.program.exprs.fresh_index("step", steps.max(1));
        let exprs = &mut self.program.exprs;
        let count = exprs.index(stages as i64);
        let later_step = exprs.add_const(step, ahead as i64);
        let (turn, stage) = (exprs.floor_div(step, count), exprs.floor_rem(step, count));
        let later_stage = exprs.floor_rem(later_step, count);
        let mut inner = Vec::new();
        let turn = self.bind(&mut inner, "turn", turn, steps.div_ceil(stages));
        let stage = self.bind(&mut inner, "stage", stage, stages);
        inner.push(Stmt::Team(TeamStmt::AwaitBoxes { slot: stage, turn }));
        inner.extend(self.multiply(boxes[0].operand, boxes[1].operand, stage));
        // What the step before has multiplied, all have: its stage is free.
        inner.push(Stmt::Team(TeamStmt::Barrier));
        let limit = self.program.exprs.index(steps as i64);
        let condition = self.program.exprs.lt(later_step, limit);
        let mut then = Vec::new();
        let later_stage = self.bind(&mut then, "later_stage", later_stage, stages);
        let first_term = self.let_first_term(&mut then, later_step);
        for boxes in boxes {
            then.extend(boxes.fetch(self, first_term, later_stage));
        }
        inner.push(Stmt::If { condition, then, otherwise: Vec::new() });
        let start = self.program.exprs.index(0);
        body.push(Stmt::For { var, start, end: limit, step: 1, kind: LoopKind::Serial, body: inner });
        body.extend([TeamStmt::Settle, TeamStmt::Release, self.end_of_steps()].map(Stmt::Team));
        body
    }
}

/// A factor as a view, if it is an array that the hardware takes.
fn viewed(lowering: &mut Lowering<'_>, operand: &Operand) -> Option<Viewed> {
    let lines = operand.stage_elems / operand.stride;
    let (mut view, batch) = match operand.side.packed {
        Some((buffer, terms)) => packed(lowering, &operand.side, buffer, terms),
        None => plain(lowering, &operand.side, operand.along)?,
    };
    view.lines = lines;
    let buffer = lowering.program.buffers.get(view.buffer.index())?;
    view.is_taken(buffer).then_some((view, batch))
}

/// A constant that is laid out anew, `[batch][row][term]`.
fn packed(lowering: &Lowering<'_>, side: &Side, buffer: BufferId, terms: usize) -> Viewed {
    let batches = lowering.extents.batch;
    let is_batched = batches > 1;
    let extents = [terms, side.rows].into_iter().chain(is_batched.then_some(batches)).collect();
    let strides = [terms].into_iter().chain(is_batched.then_some(side.rows * terms)).collect();
    let view = View { name: format!("{}_view", side.name), buffer, offset: 0, extents, strides, lines: 1 };
    (view, is_batched.then_some(lowering.batch).into_iter().collect())
}

/// A tensor whose elements have places that are linear in row, term and batch axes.
fn plain(lowering: &mut Lowering<'_>, side: &Side, along: Along) -> Option<Viewed> {
    let terms = lowering.extents.k;
    let row = lowering.program.exprs.fresh_index("row", side.rows).1;
    let term = lowering.program.exprs.fresh_index("term", terms).1;
    let axes: Vec<(VarId, ExprId, usize)> = (lowering.form.batch.clone().into_iter())
        .map(|axis| {
            let extent = lowering.block.extent(axis);
            (axis, lowering.program.exprs.fresh_index("batch", extent).1, extent)
        })
        .collect();
    let any = axes.iter().map(|&(axis, any, _)| (axis, any)).collect();
    let own = std::mem::replace(&mut lowering.batch_values, any);
    let bindings = [(side.row, row), (lowering.flat.k, term)];
    let value = lowering.import(lowering.factors[side.number], &bindings, None);
    lowering.batch_values.clone_from(&own);
    let Expr::Load { buffer, offset, lanes: 1, mask: None } = *lowering.program.exprs.get(value) else {
        return None;
    };
    let form = lowering.simplifier.linear(&mut lowering.program.exprs, offset);
    let atoms: Vec<ExprId> = [row, term].into_iter().chain(axes.iter().map(|&(_, any, _)| any)).collect();
    if !form.terms().iter().all(|(atom, _)| atoms.contains(atom)) {
        return None;
    }
    let stride = |atom| usize::try_from(form.coefficient(atom)).ok();
    let [(inner, inner_extent), (outer, outer_extent)] = match along {
        Along::Terms => [(term, terms), (row, side.rows)],
        Along::Rows => [(row, side.rows), (term, terms)],
    };
    // Of a single line the stride is anything.
    let outer_stride = if outer_extent == 1 { TILE_LINE } else { stride(outer)? };
    if stride(inner)? != 1 || outer_stride == 0 {
        return None;
    }
    let (mut extents, mut strides) = (vec![inner_extent, outer_extent], vec![outer_stride]);
    let mut batch = Vec::new();
    for ((_, any, extent), (_, value)) in axes.into_iter().zip(own) {
        let stride = stride(any)?;
        if stride > 0 {
            extents.push(extent);
            strides.push(stride);
            batch.push(value);
        }
    }
    let offset = usize::try_from(form.constant_term()).ok()?;
    let view = View { name: format!("{}_view", side.name), buffer, offset, extents, strides, lines: 1 };
    Some((view, batch))
}
