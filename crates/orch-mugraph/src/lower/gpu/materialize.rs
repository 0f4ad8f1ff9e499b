//! Which tiles are materialized, in registers or shared memory, and which are recomputed at each use.
//!
//! Results of products, reductions and running maxima always are. An elementwise tile is if it is read more
//! than once (by several readers, by a reader in another stage of the loop, or by broadcasting) and
//! recomputing an element costs more than a limit.

use super::elements::ElementStore;
use super::emitter::BlockEmitter;
use super::layout::{FragmentLayout, RegisterTile};
use super::reduce::reduction_of;
use super::steps::TileStep;
use super::value::{TileHome, TilePoint};
use crate::op::{BinaryFn, Op};
use crate::tiling::Stage;
use orch_compute::BufferId;
use orch_ir::DType;
use orch_thread::{Scope, Stmt};

/// Simple operations per element up to which a tile is recomputed rather than kept in registers.
const CHEAP_IN_REGISTERS: usize = 2;
/// Simple operations per element up to which a tile is recomputed rather than kept in shared memory, which
/// costs a barrier.
const CHEAP_IN_SHARED: usize = 12;

impl BlockEmitter<'_> {
    /// Emits a tile, unless it is recomputed where it is read or a later statement makes it (an accumulator,
    /// a maximum that is found conditionally).
    pub fn emit_tile(&mut self, tile: usize) {
        match self.plan.steps.tiles[tile].step.clone() {
            TileStep::Load { .. } | TileStep::Inside { .. } | TileStep::Accumulate { .. } => {}
            TileStep::RunningMax { tile: from } => self.emit_running_max(tile, from),
            TileStep::Op { .. } if self.plan.schedule.is_combine => {}
            TileStep::Op { .. } if self.fused_accumulator(tile).is_some() => {}
            TileStep::Op { .. } if self.conditional_row_maximum(tile).is_some() => {}
            TileStep::Op { op: Op::Matmul, .. } => self.emit_matmul(tile),
            TileStep::Op { op: Op::Binary(BinaryFn::Mask), args }
                if self.mask_in_place(tile, [args[0], args[1]]) => {}
            TileStep::Op { op, args } => match reduction_of(&op) {
                Some(reduction) => self.emit_reduce(tile, reduction, args[0]),
                None if self.should_materialize(tile) => self.materialize(tile),
                None => {}
            },
        }
        self.stage_invariant_operands(tile);
    }

    /// Simple operations that recompute an element, back to tiles that have a home.
    fn recompute_cost(&self, tile: usize) -> usize {
        match &self.plan.steps.tiles[tile].step {
            TileStep::Op { op, args } if self.tiles.homes[tile].is_empty() => {
                let own = super::steps::op_cost(op);
                own + args.iter().map(|&arg| self.recompute_cost(arg)).sum::<usize>()
            }
            _ => 1,
        }
    }

    /// Whether a tile is read again, or broadcast, and too expensive to recompute.
    fn should_materialize(&self, tile: usize) -> bool {
        let known = &self.plan.steps.tiles[tile];
        let elems = crate::op::elems(&known.shape);
        let repeats = |reader: &super::steps::BlockTile| match &reader.step {
            TileStep::Op { op: Op::Matmul | Op::Reduce { .. }, .. } => false,
            step => step.args().contains(&tile) && crate::op::elems(&reader.shape) > elems,
        };
        let is_repeated = self.plan.steps.tiles.iter().any(|reader| reader.readers > 0 && repeats(reader));
        let is_read_again = known.readers > 1 || known.crosses_stages && self.plan.steps.loop_range > 1;
        let limit = match self.register_layout(tile) {
            Some(_) => CHEAP_IN_REGISTERS,
            None if is_repeated => CHEAP_IN_REGISTERS,
            None => CHEAP_IN_SHARED,
        };
        (is_repeated || is_read_again) && self.recompute_cost(tile) > limit
    }

    /// Computes all elements of a tile: in registers if it has a register layout, else in shared memory.
    fn materialize(&mut self, tile: usize) {
        if let Some(at) = self.register_layout(tile) {
            self.materialize_in_registers(tile, &at);
            return;
        }
        let shape = self.plan.steps.tiles[tile].shape.clone();
        self.prepare(tile, None);
        let view = self.alloc_shared("tile", DType::F32, &shape, shape.len().saturating_sub(1));
        let stmts = self.for_each_element(&shape, |this, coords| {
            let value = this.value_at(tile, &TilePoint { coords: coords.to_vec(), slot: None });
            let offset = this.shared_offset(&view, coords);
            vec![ElementStore { buffer: view.buffer, offset, value, mask: None }]
        });
        self.emit(stmts);
        self.tiles.homes[tile].push(TileHome::Shared(view));
    }

    /// Computes all elements of a tile to registers in a layout, and gives them.
    pub fn materialize_in_registers(&mut self, tile: usize, at: &FragmentLayout) -> BufferId {
        let shape = self.plan.steps.tiles[tile].shape.clone();
        self.prepare(tile, Some(at));
        let buffer = self.add_buffer("tile", DType::F32, at.registers_per_thread(), Scope::Scratch);
        let stmts = self.for_each_slot(at, |this, slot| {
            let point = this.point_of_slot(&slot, &shape);
            let value = this.value_at(tile, &point);
            let offset = this.register_offset(&slot, at);
            vec![Stmt::Store { buffer, offset, value, mask: None }]
        });
        self.emit(stmts);
        self.tiles.homes[tile].push(TileHome::Registers(RegisterTile { at: at.clone(), buffer }));
        buffer
    }

    /// Brings a loop-invariant tile to shared memory as the loop's products take operands, before the loop, unless it is computed in the
    /// fragments that they keep.
    fn stage_invariant_operands(&mut self, tile: usize) {
        let is_before_loop =
            self.plan.steps.tiles[tile].stage == Stage::Invariant && self.plan.steps.loop_range > 1;
        if !is_before_loop || self.load_of_held_fragments(tile).is_some() {
            return;
        }
        let rank = self.plan.steps.tiles[tile].shape.len();
        let readers =
            self.plan.steps.tiles.iter().filter(|reader| reader.readers > 0 && reader.stage == Stage::Loop);
        let mut dims = Vec::new();
        for reader in readers {
            if let TileStep::Op { op: Op::Matmul, args } = &reader.step {
                dims.extend((args[0] == tile).then(|| rank - 1));
                dims.extend((args[1] == tile).then(|| rank - 2));
            }
        }
        dims.dedup();
        for dim in dims {
            self.shared_operand(tile, dim);
        }
    }
}
