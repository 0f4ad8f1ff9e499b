//! Which tiles get a place of their own, and how they get there.

use super::elements::Write;
use super::layout::{Fragments, Registers};
use super::lowering::Lowering;
use super::reduce::reduction_of;
use super::steps::Step;
use super::value::{Place, Point};
use crate::op::Op;
use crate::tiling::Stage;
use orch_compute::BufferId;
use orch_ir::DType;
use orch_thread::{Scope, Stmt};

/// Simple operations that are made again rather than kept in registers.
const CHEAP_IN_REGISTERS: usize = 2;
/// Simple operations that are made again rather than kept in shared memory.
const CHEAP_IN_SHARED: usize = 12;

impl Lowering<'_> {
    /// Computes a tile, unless it is computed where it is needed.
    pub fn tile(&mut self, tile: usize) {
        match self.steps.tiles[tile].step.clone() {
            Step::Load { .. } | Step::Accumulate { .. } => {}
            Step::RunningMax { tile: from } => self.running_max(tile, from),
            Step::Op { .. } if self.plan.combines => {}
            Step::Op { .. } if self.fused_into(tile).is_some() => {}
            Step::Op { .. } if self.lazily_reduced(tile).is_some() => {}
            Step::Op { op: Op::Matmul, .. } => self.multiply(tile),
            Step::Op { op, args } => match reduction_of(&op) {
                Some(reduction) => self.reduce(tile, reduction, args[0]),
                None if self.is_worth_keeping(tile) => self.keep(tile),
                None => {}
            },
        }
        self.bring_factors(tile);
    }

    /// Operations for an element, back to what has a place.
    fn cost(&self, tile: usize) -> usize {
        match &self.steps.tiles[tile].step {
            Step::Op { op, args } if self.places[tile].is_empty() => {
                let own = super::steps::own_cost(op);
                own + args.iter().map(|&arg| self.cost(arg)).sum::<usize>()
            }
            _ => 1,
        }
    }

    fn is_worth_keeping(&self, tile: usize) -> bool {
        let known = &self.steps.tiles[tile];
        let elems = crate::op::elems(&known.shape);
        let repeats = |reader: &super::steps::Tile| match &reader.step {
            Step::Op { op: Op::Matmul | Op::Reduce { .. }, .. } => false,
            step => step.args().contains(&tile) && crate::op::elems(&reader.shape) > elems,
        };
        let is_repeated = self.steps.tiles.iter().any(|reader| reader.readers > 0 && repeats(reader));
        let is_read_again = known.readers > 1 || known.crosses && self.steps.loop_range > 1;
        let limit = match self.home(tile) {
            Some(_) => CHEAP_IN_REGISTERS,
            None if is_repeated => CHEAP_IN_REGISTERS,
            None => CHEAP_IN_SHARED,
        };
        (is_repeated || is_read_again) && self.cost(tile) > limit
    }

    /// Computes all elements of a tile.
    fn keep(&mut self, tile: usize) {
        if let Some(at) = self.home(tile) {
            self.keep_at(tile, &at);
            return;
        }
        let shape = self.steps.tiles[tile].shape.clone();
        self.prepare(tile, None);
        let view = self.new_view("tile", DType::F32, &shape, shape.len().saturating_sub(1));
        let stmts = self.each_element(&shape, |this, coords| {
            let value = this.value(tile, &Point { coords: coords.to_vec(), site: None });
            let offset = this.offset(&view, coords);
            vec![Write { buffer: view.buffer, offset, value, mask: None }]
        });
        self.run(stmts);
        self.places[tile].push(Place::Shared(view));
    }

    /// Computes all elements of a tile to registers.
    pub fn keep_at(&mut self, tile: usize, at: &Fragments) -> BufferId {
        let shape = self.steps.tiles[tile].shape.clone();
        self.prepare(tile, Some(at));
        let buffer = self.add_buffer("tile", DType::F32, at.registers(), Scope::Scratch);
        let stmts = self.each_site(at, |this, site| {
            let point = this.point(&site, &shape);
            let value = this.value(tile, &point);
            let offset = this.register(&site, at);
            vec![Stmt::Store { buffer, offset, value, mask: None }]
        });
        self.run(stmts);
        self.places[tile].push(Place::Registers(Registers { at: at.clone(), buffer }));
        buffer
    }

    /// Brings a tile that does not change to where the loop's products take it, before the loop.
    fn bring_factors(&mut self, tile: usize) {
        if self.steps.tiles[tile].stage != Stage::Invariant || self.steps.loop_range == 1 {
            return;
        }
        let rank = self.steps.tiles[tile].shape.len();
        let readers =
            self.steps.tiles.iter().filter(|reader| reader.readers > 0 && reader.stage == Stage::Loop);
        let mut dims = Vec::new();
        for reader in readers {
            if let Step::Op { op: Op::Matmul, args } = &reader.step {
                dims.extend((args[0] == tile).then(|| rank - 1));
                dims.extend((args[1] == tile).then(|| rank - 2));
            }
        }
        dims.dedup();
        for dim in dims {
            self.factor(tile, dim);
        }
    }
}
