//! Tiles that the copy engine brings: factors of products of whole tiles, if their tensors are plain arrays.
//!
//! A tile comes in boxes: one for each leading element and panel of 64 neighbours, cut below one another where another tile
//! needs more of them, because all slots count as many. Each tile has slots of its own, one for each stage, and is awaited
//! where it is read first: what needs one tile does not wait for the next. Tiles of few rows have room for all rows of a product
//! of tiles, in which is whatever was there before ([`few_rows`](super::few_rows)): the copy engine takes longer over lines
//! outside of a tensor than over others.

use super::few_rows::products;
use super::lowering::Lowering;
use super::tensors::Staged;
use orch_compute::{BufferId, ExprId};
use orch_thread::cta::SWIZZLE_ROW;
use orch_thread::tma::MAX_TMA_ROWS;
use orch_thread::{CtaStmt, Location, Mbarriers, Stmt, TensorMap, TensorMapId};

/// Lines that boxes are cut at multiples of, which a swizzled tile repeats after.
const BOX_LINES: usize = 8;

/// How a tile comes in boxes.
#[derive(Clone, Debug)]
pub(super) struct Boxes {
    view: TensorMapId,
    /// The slot of its first stage.
    first_slot: usize,
    /// The dimensions of lines and of their elements.
    lines: [usize; 2],
    /// Boxes below one another, and lines from one to the next.
    parts: [usize; 2],
    /// The dimensions of the tensor that the view has.
    dims: Vec<usize>,
}

/// A tile that is under way in boxes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub buffer: BufferId,
    pub slot: ExprId,
    pub turn: ExprId,
}

impl Lowering<'_> {
    /// Lets the copy engine bring the tiles that it can.
    pub fn box_tiles(&mut self, staged: &mut [Staged]) {
        let least = |staged: &Staged| Some(Self::least_boxes(staged, staged.view.lines?[0]));
        let boxes = staged.iter().filter_map(least).max();
        let Some(boxes) = boxes else { return };
        let mut slots = 0;
        for staged in staged {
            if let Some(lines) = staged.view.lines
                && let Some(parts) = self.cut(staged, lines[0], boxes)
                && let Some((view, dims)) = self.tensor_view(staged, lines, parts[1])
            {
                self.boxed.push(staged.tile);
                let view = self.program.add_tensor_map(view);
                staged.boxes = Some(Boxes { view, first_slot: slots, lines, parts, dims });
                slots += self.stages_of(staged.tile);
            }
        }
        if slots > 0 {
            self.program.mbarriers = Mbarriers { full: slots, loads: boxes, empty: 0 };
        }
    }

    /// Whether boxes bring a second factor of few rows.
    pub fn brings_factors(&self) -> bool {
        products(self.steps).iter().any(|(_, second)| self.boxed.contains(second))
    }

    /// The fewest boxes in which a tile comes whose lines are along a dimension.
    fn least_boxes(staged: &Staged, line: usize) -> usize {
        Self::panels(staged, line) * staged.view.padded[line].div_ceil(MAX_TMA_ROWS)
    }

    /// Boxes beside one another that a tile has.
    fn panels(staged: &Staged, line: usize) -> usize {
        staged.stage_elems / (staged.view.padded[line] * SWIZZLE_ROW)
    }

    /// A tile in so many boxes: those below one another, and lines from one to the next.
    fn cut(&self, staged: &Staged, line: usize, boxes: usize) -> Option<[usize; 2]> {
        let (padded, rows) = (staged.view.padded[line], self.steps.tiles[staged.tile].shape[line]);
        let panels = Self::panels(staged, line);
        let parts = boxes / panels;
        let is_cut = |lines: &usize| lines.is_multiple_of(parts * BOX_LINES);
        let lines = [rows, padded].into_iter().find(is_cut).filter(|_| boxes.is_multiple_of(panels))?;
        Some([parts, lines / parts])
    }

    /// The tensor of a tile as the copy engine takes it, in boxes of at most so many lines; and its dimensions.
    fn tensor_view(
        &self,
        staged: &Staged,
        [line, inner]: [usize; 2],
        most: usize,
    ) -> Option<(TensorMap, Vec<usize>)> {
        let tensor = self.tensor_in_memory(staged.tile)?;
        let buffer = self.arguments[tensor.index()]?;
        let (stored, full) = (&self.request.stored[tensor.index()], self.request.graph.shape(tensor));
        let others = (0..full.len()).rev().filter(|&dim| ![line, inner].contains(&dim) && full[dim] > 1);
        let dims: Vec<usize> = [inner, line].into_iter().chain(others).collect();
        let view = TensorMap {
            name: format!("{}_view", self.program.buffer(buffer).name),
            buffer,
            offset: stored.offset,
            extents: dims.iter().map(|&dim| full[dim]).collect(),
            // Of a single line the stride is anything.
            strides: (dims[1..].iter())
                .map(|&dim| if full[dim] == 1 { SWIZZLE_ROW } else { stored.strides[dim] })
                .collect(),
            rows: self.steps.tiles[staged.tile].shape[line].min(most),
        };
        let is_plain = stored.strides[inner] == 1 && view.strides.iter().all(|&stride| stride > 0);
        (is_plain && view.is_encodable(self.program.buffer(buffer))).then_some((view, dims))
    }

    /// Statements that start copying a tile of an iteration to a stage, in boxes.
    pub fn fetch_boxes(
        &mut self,
        (staged, boxes): (&Staged, &Boxes),
        iteration: ExprId,
        stage: ExprId,
    ) -> Vec<Stmt> {
        let [line, inner] = boxes.lines;
        let mut counts = staged.view.padded.clone();
        counts[line] = boxes.parts[0];
        counts[inner] /= SWIZZLE_ROW;
        let base = self.program.exprs.mul_const(stage, staged.stage_elems as i64);
        let slot = self.program.exprs.add_const(stage, boxes.first_slot as i64);
        let mut stmts = Vec::new();
        for number in 0..crate::op::elems(&counts) {
            let number = self.index(number);
            let mut coords = self.program.exprs.unflatten(number, &counts);
            coords[line] = self.program.exprs.mul_const(coords[line], boxes.parts[1] as i64);
            coords[inner] = self.program.exprs.mul_const(coords[inner], SWIZZLE_ROW as i64);
            let offset = self.offset(&super::value::View { base, ..staged.view.clone() }, &coords);
            let (position, _) = self.position(staged.tile, &coords, iteration);
            let at = boxes.dims.iter().map(|&dim| position[dim]);
            let at = at.map(|id| self.simplifier.simplify(&mut self.program.exprs, id)).collect();
            let to = Location { buffer: staged.view.buffer, offset };
            stmts.push(Stmt::Cta(CtaStmt::TmaLoad { to, map: boxes.view, at, mbarrier: slot }));
        }
        stmts
    }

    /// Notes that the boxes of a tile are to be awaited, if it comes in boxes.
    pub fn expect_boxes(&mut self, staged: &Staged, iteration: ExprId) {
        let due = self.due_boxes(staged, iteration);
        self.due.extend(due);
    }

    /// The boxes of an iteration's tile.
    pub fn due_boxes(&mut self, staged: &Staged, iteration: ExprId) -> Option<Due> {
        let first_slot = staged.boxes.as_ref()?.first_slot;
        let stages = self.stages_of(staged.tile);
        let [stage, turn] = self.stage_and_turn(iteration, stages);
        let slot = self.program.exprs.add_const(stage, first_slot as i64);
        Some(Due { buffer: staged.view.buffer, slot, turn })
    }

    /// Awaits the boxes that are due of such buffers.
    pub fn await_boxes(&mut self, is_wanted: impl Fn(BufferId) -> bool) {
        let (wanted, later) = self.due.iter().copied().partition(|due| is_wanted(due.buffer));
        self.due = later;
        self.body.extend(Vec::into_iter(wanted).map(Due::awaited));
    }
}

impl Due {
    /// The statement that awaits it.
    pub fn awaited(self) -> Stmt {
        Stmt::Cta(CtaStmt::MbarrierWaitFull { mbarrier: self.slot, phase: self.turn })
    }
}
