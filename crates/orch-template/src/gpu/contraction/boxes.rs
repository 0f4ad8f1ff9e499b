//! OperandPrecision that the copy engine brings: plain arrays, in boxes of a view.

use super::array::Array;
use super::lower::Lowering;
use super::operand::{Along, Operand};
use crate::gpu::cta::Lowers;
use orch_compute::expr::ExprId;
use orch_thread::cta::{CtaStmt, Location, SWIZZLE_ROW};
use orch_thread::program::{LoopKind, Stmt};
use orch_thread::tma::{Mbarriers, TensorMap, TensorMapId};

/// One factor's tiles, as boxes.
pub(super) struct Boxes<'a> {
    operand: &'a Operand,
    tensor_map: TensorMapId,
    /// Boxes beside one another that make a tile.
    panels: usize,
    /// The task's place in the extents of the view beyond the first two.
    batch: Vec<ExprId>,
}

/// A view, and the task's place in its extents beyond the first two.
type Viewed = (TensorMap, Vec<ExprId>);

impl<'a> Boxes<'a> {
    /// Those of both factors, if the copy engine can bring both.
    pub fn of(lowering: &mut Lowering<'_>, operands: [&'a Operand; 2]) -> Option<[Self; 2]> {
        let viewed = [viewed(lowering, operands[0])?, viewed(lowering, operands[1])?];
        let mut found = operands.into_iter().zip(viewed).map(|(operand, (tensor_map, batch))| {
            let panels = operand.stride / SWIZZLE_ROW;
            Self { operand, tensor_map: lowering.program.add_tensor_map(tensor_map), panels, batch }
        });
        let both = [found.next()?, found.next()?];
        drop(found);
        let boxes = both.iter().map(|boxes| boxes.panels).sum();
        lowering.program.mbarriers = Mbarriers { full: lowering.schedule.stages, loads: boxes, empty: 0 };
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
            let to = Location { buffer: self.operand.buffer, offset };
            let (inner, outer) = match self.operand.along {
                Along::Terms => (exprs.add_const(first_term, (panel * SWIZZLE_ROW) as i64), corner),
                Along::Rows => (exprs.add_const(corner, (panel * SWIZZLE_ROW) as i64), first_term),
            };
            let at = [inner, outer].into_iter().chain(self.batch.iter().copied()).collect();
            Stmt::Cta(CtaStmt::TmaLoad { to, map: self.tensor_map, at, mbarrier: stage })
        };
        (0..self.panels).map(&mut copy).collect()
    }
}

impl Lowering<'_> {
    /// The loop over steps, of which boxes are copied ahead while products of tiles run on.
    pub fn box_pipeline(&mut self, boxes: &[Boxes<'_>; 2]) -> Vec<Stmt> {
        let (stages, steps) = (self.schedule.stages, self.steps());
        let ahead = self.schedule.ahead();
        let mut body = Vec::new();
        for stage in 0..ahead.min(steps) {
            let stage = self.program.exprs.index(stage as i64);
            let first_term = self.let_first_term(&mut body, stage);
            for boxes in boxes {
                body.extend(boxes.fetch(self, first_term, stage));
            }
        }
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
        inner.push(Stmt::Cta(CtaStmt::MbarrierWaitFull { mbarrier: stage, phase: turn }));
        inner.extend(self.multiply(boxes[0].operand, boxes[1].operand, stage));
        // What the step before has multiplied, all have: its stage is free.
        inner.push(Stmt::Cta(CtaStmt::Barrier));
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
        body.extend([CtaStmt::WgmmaWait, CtaStmt::LaunchDependents, self.end_of_steps()].map(Stmt::Cta));
        body
    }
}

/// A factor as a view, if it is an array that the hardware takes. Boxes have no more rows of the first factor than there are:
/// the copy engine takes longer over lines outside of an array than over others, and whatever is in their place is multiplied
/// to sums that nobody stores.
fn viewed(lowering: &mut Lowering<'_>, operand: &Operand) -> Option<Viewed> {
    let side = &operand.side;
    let Array { buffer, places, batch } = Array::of(lowering, side)?;
    let terms = side.terms(lowering);
    let [(inner, inner_extent), (outer, outer_extent)] = match operand.along {
        Along::Terms => [(places.line, terms), (places.row, side.rows)],
        Along::Rows => [(places.row, side.rows), (places.line, terms)],
    };
    // Of a single line the stride is anything.
    let outer = if outer_extent == 1 { SWIZZLE_ROW } else { outer };
    if inner != 1 || outer == 0 {
        return None;
    }
    let (mut extents, mut strides) = (vec![inner_extent, outer_extent], vec![outer]);
    let mut at = Vec::new();
    for ((extent, value), stride) in batch.into_iter().zip(places.batch).filter(|&(_, stride)| stride > 0) {
        extents.push(extent);
        strides.push(stride);
        at.push(value);
    }
    let lines = match (side.number, operand.along) {
        (0, Along::Terms) => operand.lines().min(side.rows),
        _ => operand.lines(),
    };
    let name = format!("{}_view", side.name);
    let tensor_map = TensorMap { name, buffer, offset: places.offset, extents, strides, rows: lines };
    let buffer = lowering.program.buffers.get(buffer.index())?;
    tensor_map.is_encodable(buffer).then_some((tensor_map, at))
}
