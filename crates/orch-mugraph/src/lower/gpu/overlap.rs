//! Products that run while the loop computes what follows another one: of attention, the values of one iteration are added
//! while the scores of the next one become weights.
//!
//! ```text
//! scores = queries * keys[i]                  runs on
//! sums  += weights * values[i - 1]            runs on, and waits for the scores
//! maxima, exponentials and their sums
//! await keys[i + 1]
//! settle
//! sums  *= rescale; weights = exponentials
//! ```
//!
//! The last iteration's product is added after the loop. Compilers move the end of a product before what is computed while
//! it runs, but not across a wait: the next keys are awaited there, instead of where they are multiplied. It is the order of
//! FlashAttention-3 within a warp group (Shah et al. 2024, section 3.2), for one product of 64 rows by each group.

use super::accumulate::{Accumulator, Rescale};
use super::boxes::Due;
use super::lowering::Lowering;
use super::multiply::{First, Product};
use super::steps::Step;
use super::tensors::Staged;
use super::tiles::are_groups;
use crate::op::Op;
use crate::tiling::Stage;
use orch_thread::{CtaStmt, Scope, Stmt};

/// A product of the loop that is added an iteration later.
#[derive(Clone, Debug)]
pub(super) struct Overlap {
    /// The product whose sums it is made of, after which it is added.
    pub scores: usize,
    /// The product, and its second factor.
    product: usize,
    pub values: usize,
    /// How its second factor comes, and that of the scores.
    staged: Staged,
    keys: Staged,
    /// Where in the loop it is added: behind the other product, once that is written.
    pub place: Option<usize>,
    /// Adds the last iteration's product, once that is known.
    pub last: Vec<Stmt>,
}

impl Overlap {
    /// Whether both products have been found to be of whole tiles, and written so.
    pub fn is_written(&self) -> bool {
        !self.last.is_empty()
    }
}

impl Lowering<'_> {
    /// The product that is to be added an iteration later, if the plan asks for it and there is one.
    pub fn find_overlap(&self, looped: &[Staged]) -> Option<Overlap> {
        if !self.plan.overlaps || self.plan.stages < 2 || self.steps.turns > 1 {
            return None;
        }
        let is_product =
            |tile: &usize| matches!(self.steps.tiles[*tile].step, Step::Op { op: Op::Matmul, .. });
        let products: Vec<usize> = self.steps.in_stage(Stage::Loop).into_iter().filter(is_product).collect();
        let &[scores, product] = products.as_slice() else { return None };
        let of_one_tile = |tile: usize| {
            let rows = self.rows(&self.steps.tiles[tile].shape);
            rows.is_some_and(|rows| are_groups(&rows) && rows.batch() == 1 && rows.row_tiles() == 1)
        };
        let values = self.steps.tiles[product].step.args()[1];
        let suits = products.iter().all(|&tile| of_one_tile(tile) && !self.is_large(tile))
            && self.fused_into(scores).is_none()
            && self.fused_into(product).is_some()
            && self.steps.only_reader(values) == Some(product);
        let boxed =
            |tile| looped.iter().find(|staged| staged.tile == tile && staged.boxes.is_some()).cloned();
        let (staged, keys) = (boxed(values)?, boxed(self.turned(self.steps.tiles[scores].step.args()[1]))?);
        let (place, last) = (None, Vec::new());
        suits.then_some(Overlap { scores, product, values, staged, keys, place, last })
    }

    /// What a tile is a transposition of, or itself.
    fn turned(&self, tile: usize) -> usize {
        match &self.steps.tiles[tile].step {
            Step::Op { op: Op::Transpose(_), args } => self.turned(args[0]),
            _ => tile,
        }
    }

    /// Whether the boxes of a tile are awaited while the product of the iteration before runs.
    pub fn is_awaited_early(&self, tile: usize) -> bool {
        self.overlap.as_ref().is_some_and(|overlap| overlap.keys.tile == tile)
    }

    /// Awaits the boxes that iterations do not await themselves, but those before them.
    pub fn await_first_boxes(&mut self) {
        let Some(overlap) = self.overlap.clone() else { return };
        let first = self.index(0);
        let due = self.due_boxes(&overlap.keys, first);
        self.body.extend(due.map(Due::awaited));
    }

    /// Whether a tile is read an iteration later than others.
    pub fn is_read_later(&self, tile: usize) -> bool {
        self.overlap.as_ref().is_some_and(|overlap| overlap.values == tile)
    }

    /// Whether a product is the one behind which another one is added, and may run on until then.
    pub fn scores_run_on(&self, tile: usize, product: &Product) -> bool {
        let are_scores = self.overlap.as_ref().is_some_and(|overlap| overlap.scores == tile);
        are_scores && self.lines_are_terms(product).is_some()
    }

    /// Notes where the product of the iteration before is added, behind one that runs on.
    pub fn place_later_product(&mut self, product: &Product) {
        let place = self.body.len();
        if let Some(overlap) = self.overlap.as_mut().filter(|_| product.runs_on) {
            overlap.place = Some(place);
        }
    }

    /// Adds a product an iteration later, if it is the one to be; `None` if it is another one.
    pub fn accumulate_later(&mut self, from: usize, rescale: Option<Rescale>) -> Option<Accumulator> {
        let overlap = self.overlap.clone().filter(|overlap| overlap.product == from)?;
        let place = overlap.place?;
        let product = self.new_product(from, true);
        let (kind, transposed) = (self.product_kind()?, self.lines_are_terms(&product)?);
        if !matches!(product.first, First::Registers(..)) {
            return None;
        }
        let registers = product.sum.clone();
        let zero = self.float(0.0);
        let start = self.filled(registers.buffer, registers.at.registers(), zero);
        self.before_loop.extend(start);
        let weights = self.add_buffer("weights", kind.dtype(), product.terms / 2, Scope::Scratch);
        let weights = self.place(weights, 0);
        let added = |this: &mut Self, product: &Product, runs_on: bool| {
            let zero = this.index(0);
            this.tile_product(product, (kind, transposed), (zero, zero), (weights, runs_on))
        };

        let before = self.program.exprs.add_const(self.iteration, -1);
        let due = self.due_boxes(&overlap.staged, before)?;
        let then = vec![due.awaited(), added(self, &product, true)];
        let first = self.index(0);
        let condition = self.program.exprs.lt(first, self.iteration);
        let otherwise = vec![Stmt::Cta(CtaStmt::WgmmaWait)];
        self.body.insert(place, Stmt::If { condition, then, otherwise });

        let next = self.program.exprs.add_const(self.iteration, 1);
        let due = self.due_boxes(&overlap.keys, next)?;
        if let Some(condition) = self.below(next, self.own_iterations()) {
            self.body.push(Stmt::If { condition, then: vec![due.awaited()], otherwise: Vec::new() });
        }
        self.body.push(Stmt::Cta(CtaStmt::WgmmaWait));
        if let Some(rescale) = rescale {
            self.rescale_registers(&registers, rescale);
        }
        let zero = self.index(0);
        let stmts = self.first_fragments(&product, kind, (zero, zero), weights);
        self.run(stmts);

        let last = self.index(self.own_iterations() - 1);
        let base = self.stage_start(&overlap.staged, last);
        let mut product = product;
        product.second.base = base;
        let due = self.due_boxes(&overlap.staged, last)?;
        let last = vec![due.awaited(), added(self, &product, false)];
        self.overlap = Some(Overlap { last, ..overlap });
        Some(Accumulator::Registers(registers))
    }
}
