//! Accumulators and running maxima: what the loop carries from one iteration to the next.
//!
//! A product or reduction whose only reader is an accumulation is fused with it: it adds to the accumulator
//! in registers in each iteration, and lanes, warps and CTAs are reduced once, after the loop. A rescaled sum
//! (of FlashAttention) is multiplied by `e^(degree * (max_before - max))` before it is added to.

use super::elements::ElementStore;
use super::emitter::BlockEmitter;
use super::layout::{FragmentLayout, RegisterTile};
use super::reduce::{ReductionState, reduction_of};
use super::steps::TileStep;
use super::value::{SharedTile, TileHome, TilePoint};
use crate::graph::Accumulation;
use crate::op::{Op, ReduceFn, UnaryFn};
use crate::rational::Rational;
use orch_compute::ExprId;
use orch_ir::{DType, UnaryFn as ScalarUnary};
use orch_thread::{Scope, Stmt};

/// The factor `e^(degree * (max_before - max))` by which accumulators are multiplied when a running maximum
/// grows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Rescale {
    /// The tile of the running maximum.
    pub max: usize,
    pub degree: Rational,
}

impl Rescale {
    /// The rescaling that an accumulation needs.
    pub fn of(how: Accumulation) -> Option<Rescale> {
        match how {
            Accumulation::RescaledSum { max, degree } => Some(Rescale { max: max.index(), degree }),
            Accumulation::Sum | Accumulation::Max => None,
        }
    }
}

/// What holds an accumulation while the loop runs: registers of a product, a tile in shared memory, or the
/// partial results of a reduction.
#[derive(Clone, Debug)]
pub(super) enum LoopAccumulator {
    Registers(RegisterTile),
    Shared(SharedTile),
    Reduction(ReductionState),
}

impl BlockEmitter<'_> {
    /// The accumulation into which a product or reduction adds directly, so that the tile itself is never
    /// stored: its only reader, if the functions agree (sum of products or sums, max of maxima) and
    /// accumulators fit into registers.
    pub fn fused_accumulator(&self, tile: usize) -> Option<usize> {
        let reader = self.plan.steps.only_reader(tile)?;
        let TileStep::Accumulate { how, tile: from } = &self.plan.steps.tiles[reader].step else {
            return None;
        };
        let TileStep::Op { op, .. } = &self.plan.steps.tiles[tile].step else { return None };
        let suits = match (op, how) {
            (Op::Matmul, Accumulation::Sum | Accumulation::RescaledSum { .. }) => {
                !self.exceeds_registers(tile)
            }
            (Op::Reduce { f, .. }, how) => (*f == ReduceFn::Max) == (*how == Accumulation::Max),
            _ => false,
        };
        (suits && *from == tile).then_some(reader)
    }

    /// Adds this iteration's tile to an accumulation, and notes what holds it.
    pub fn emit_accumulate(&mut self, tile: usize) {
        let TileStep::Accumulate { how, tile: from } = self.plan.steps.tiles[tile].step.clone() else {
            return;
        };
        let rescale = Rescale::of(how);
        let f = if how == Accumulation::Max { ReduceFn::Max } else { ReduceFn::Sum };
        if let Some(running) = self.conditional_maximum_registers(from).filter(|_| how == Accumulation::Max) {
            self.tiles.accumulators[tile] = Some(LoopAccumulator::Registers(running));
            return;
        }
        let accumulator = match &self.plan.steps.tiles[from].step {
            TileStep::Op { op, args } if self.fused_accumulator(from) == Some(tile) => match reduction_of(op)
            {
                Some(reduction) => self.accumulate_reduction(args[0], reduction, rescale),
                None if self.has_direct_b(from) => self.accumulate_direct(from),
                None => self.accumulate_gemm(from, rescale),
            },
            _ => match self.register_layout(from) {
                Some(at) => self.accumulate_in_registers(from, at, f, rescale),
                None => self.accumulate_in_shared(from, f, rescale),
            },
        };
        self.tiles.accumulators[tile] = Some(accumulator);
    }

    /// Adds a reduction of tile `from`; threads keep partial results.
    fn accumulate_reduction(
        &mut self,
        from: usize,
        reduction: (ReduceFn, usize, usize),
        rescale: Option<Rescale>,
    ) -> LoopAccumulator {
        let reduction = self.new_reduction(from, reduction);
        let start = self.start_reduction(&reduction);
        self.code.before_loop.extend(start);
        self.add_to_reduction(&reduction, rescale);
        LoopAccumulator::Reduction(reduction)
    }

    /// Adds a product: `acc = acc * rescale + a * b`, by mma, wgmma or FMA.
    fn accumulate_gemm(&mut self, from: usize, rescale: Option<Rescale>) -> LoopAccumulator {
        if let Some(later) = self.accumulate_delayed(from, rescale) {
            return later;
        }
        let mut gemm = self.prepare_gemm(from, true);
        gemm.is_async = rescale.is_none() && self.may_stay_in_flight(from, &gemm);
        self.pending.loop_wgmma |= gemm.is_async;
        let registers = gemm.acc.clone();
        let zero = self.float(0.0);
        let start = self.fill_registers(registers.buffer, registers.at.registers_per_thread(), zero);
        self.code.before_loop.extend(start);
        if let Some(rescale) = rescale {
            self.rescale_registers(&registers, rescale);
        }
        self.emit_gemm(&gemm);
        LoopAccumulator::Registers(registers)
    }

    /// Combines a tile with an accumulation in registers of its layout.
    fn accumulate_in_registers(
        &mut self,
        from: usize,
        at: FragmentLayout,
        f: ReduceFn,
        rescale: Option<Rescale>,
    ) -> LoopAccumulator {
        let buffer = self.add_buffer("sum", DType::F32, at.registers_per_thread(), Scope::Scratch);
        let registers = RegisterTile { at: at.clone(), buffer };
        let identity = self.identity(f);
        let start = self.fill_registers(buffer, at.registers_per_thread(), identity);
        self.code.before_loop.extend(start);
        if let Some(rescale) = rescale {
            self.rescale_registers(&registers, rescale);
        }
        self.prepare(from, Some(&at));
        let shape = self.plan.steps.tiles[from].shape.clone();
        let stmts = self.for_each_slot(&at, |this, slot| {
            let point = this.point_of_slot(&slot, &shape);
            let value = this.value_at(from, &point);
            let offset = this.register_offset(&slot, &at);
            let so_far = this.program.exprs.load(buffer, offset, 1, None);
            let value = this.combine(f, so_far, value);
            vec![Stmt::Store { buffer, offset, value, mask: None }]
        });
        self.emit(stmts);
        LoopAccumulator::Registers(registers)
    }

    /// Combines a tile with an accumulation in shared memory, element by element.
    fn accumulate_in_shared(
        &mut self,
        from: usize,
        f: ReduceFn,
        rescale: Option<Rescale>,
    ) -> LoopAccumulator {
        let shape = self.plan.steps.tiles[from].shape.clone();
        let view = self.alloc_shared("sum", DType::F32, &shape, shape.len().saturating_sub(1));
        let identity = self.identity(f);
        let start = self.for_each_element(&shape, |this, coords| {
            let offset = this.shared_offset(&view, coords);
            vec![ElementStore { buffer: view.buffer, offset, value: identity, mask: None }]
        });
        self.code.before_loop.extend(start);
        self.prepare(from, None);
        if let Some(rescale) = rescale {
            self.share_maxima(rescale);
        }
        let stmts = self.for_each_element(&shape, |this, coords| {
            let point = TilePoint { coords: coords.to_vec(), slot: None };
            let offset = this.shared_offset(&view, coords);
            let mut so_far = this.program.exprs.load(view.buffer, offset, 1, None);
            if let Some(rescale) = rescale {
                let factor = this.rescale_factor(rescale, &point);
                so_far = this.program.exprs.mul(so_far, factor);
            }
            let value = this.value_at(from, &point);
            let value = this.combine(f, so_far, value);
            vec![ElementStore { buffer: view.buffer, offset, value, mask: None }]
        });
        self.emit(stmts);
        LoopAccumulator::Shared(view)
    }

    /// Makes the result of an accumulation readable after the loop: reduces split-K over warps, and
    /// reductions over lanes and warps.
    pub fn finish_accumulator(&mut self, tile: usize) {
        let place = match self.tiles.accumulators[tile].take() {
            Some(LoopAccumulator::Registers(registers)) => {
                let shape = self.plan.steps.tiles[tile].shape.clone();
                self.reduce_split_k(registers, &shape)
            }
            Some(LoopAccumulator::Shared(view)) => TileHome::Shared(view),
            Some(LoopAccumulator::Reduction(reduction)) => self.finish_reduction(&reduction),
            None => return,
        };
        self.tiles.homes[tile].push(place);
    }

    /// Updates a running maximum by the tile `from`, and keeps what it was before: conditionally, in
    /// registers, or in shared memory.
    pub fn emit_running_max(&mut self, tile: usize, from: usize) {
        if self.emit_conditional_maximum(tile, from) {
            return;
        }
        match self.register_layout(from) {
            Some(at) => {
                self.running_max_in_registers(&at, (tile, from));
            }
            None => self.running_max_in_shared(tile, from),
        }
    }

    /// Updates a running maximum in registers, `max_before = max; max = max(max, from)`; gives `[max,
    /// max_before]`.
    pub fn running_max_in_registers(
        &mut self,
        at: &FragmentLayout,
        (tile, from): (usize, usize),
    ) -> [RegisterTile; 2] {
        let lowest = self.float(f64::NEG_INFINITY);
        let shape = self.plan.steps.tiles[tile].shape.clone();
        let [now, before] = ["max", "max_before"]
            .map(|name| self.add_buffer(name, DType::F32, at.registers_per_thread(), Scope::Scratch));
        let start = self.fill_registers(now, at.registers_per_thread(), lowest);
        self.code.before_loop.extend(start);
        self.prepare(from, Some(at));
        let stmts = self.for_each_slot(at, |this, slot| {
            let point = this.point_of_slot(&slot, &shape);
            let value = this.value_at(from, &point);
            let offset = this.register_offset(&slot, at);
            let so_far = this.program.exprs.load(now, offset, 1, None);
            let largest = this.program.exprs.max(so_far, value);
            vec![
                Stmt::Store { buffer: before, offset, value: so_far, mask: None },
                Stmt::Store { buffer: now, offset, value: largest, mask: None },
            ]
        });
        self.emit(stmts);
        let [now, before] = [now, before].map(|buffer| RegisterTile { at: at.clone(), buffer });
        self.tiles.homes[tile].push(TileHome::Registers(now.clone()));
        self.tiles.previous_maxima[tile].push(TileHome::Registers(before.clone()));
        [now, before]
    }

    /// The same in shared memory.
    fn running_max_in_shared(&mut self, tile: usize, from: usize) {
        let lowest = self.float(f64::NEG_INFINITY);
        let shape = &self.plan.steps.tiles[tile].shape.clone();
        let inner = shape.len().saturating_sub(1);
        let [now, before] =
            ["max", "max_before"].map(|name| self.alloc_shared(name, DType::F32, shape, inner));
        let start = self.for_each_element(shape, |this, coords| {
            let offset = this.shared_offset(&now, coords);
            vec![ElementStore { buffer: now.buffer, offset, value: lowest, mask: None }]
        });
        self.code.before_loop.extend(start);
        self.prepare(from, None);
        let stmts = self.for_each_element(shape, |this, coords| {
            let value = this.value_at(from, &TilePoint { coords: coords.to_vec(), slot: None });
            let offset = this.shared_offset(&now, coords);
            let so_far = this.program.exprs.load(now.buffer, offset, 1, None);
            let largest = this.program.exprs.max(so_far, value);
            let before_offset = this.shared_offset(&before, coords);
            vec![
                ElementStore { buffer: before.buffer, offset: before_offset, value: so_far, mask: None },
                ElementStore { buffer: now.buffer, offset, value: largest, mask: None },
            ]
        });
        self.emit(stmts);
        self.tiles.homes[tile].push(TileHome::Shared(now));
        self.tiles.previous_maxima[tile].push(TileHome::Shared(before));
    }

    /// Multiplies registers by the rescaling factors of their rows; skipped where the maximum is unchanged
    /// and [conditional](super::conditional_rescale).
    pub fn rescale_registers(&mut self, registers: &RegisterTile, rescale: Rescale) {
        let RegisterTile { at, buffer } = registers;
        self.prepare_rescale(rescale, at);
        let n = at.n();
        let shape = [at.rows.lead.clone(), vec![at.rows.m, n]].concat();
        let stmts = self.for_each_slot(at, |this, slot| {
            let point = this.point_of_slot(&slot, &shape);
            let factor = this.rescale_factor(rescale, &point);
            let offset = this.register_offset(&slot, at);
            let value = this.program.exprs.load(*buffer, offset, 1, None);
            let value = this.program.exprs.mul(value, factor);
            vec![Stmt::Store { buffer: *buffer, offset, value, mask: None }]
        });
        let stmts = self.if_maximum_changed(rescale.max, at.registers_per_thread(), stmts);
        self.emit(stmts);
    }

    /// Computes the factor of each row once, to registers, if the maxima are in registers that layout `at`
    /// covers; brings the maxima to shared memory otherwise.
    pub fn prepare_rescale(&mut self, rescale: Rescale, at: &FragmentLayout) {
        let seen = self.tiles.homes[rescale.max].iter().find_map(|place| match place {
            TileHome::Registers(registers) if at.covers(&registers.at) => Some(registers.at.clone()),
            TileHome::Registers(_) | TileHome::Shared(_) => None,
        });
        let Some(max_at) = seen else {
            self.share_maxima(rescale);
            return;
        };
        let is_known =
            |(known, registers): &(Rescale, RegisterTile)| *known == rescale && at.covers(&registers.at);
        if self.tiles.rescale_factors.iter().any(is_known) {
            return;
        }
        let buffer = self.add_buffer("rescale", DType::F32, max_at.registers_per_thread(), Scope::Scratch);
        let shape = self.plan.steps.tiles[rescale.max].shape.clone();
        let stmts = self.for_each_slot(&max_at, |this, slot| {
            let point = this.point_of_slot(&slot, &shape);
            let value = this.rescale_factor(rescale, &point);
            let offset = this.register_offset(&slot, &max_at);
            vec![Stmt::Store { buffer, offset, value, mask: None }]
        });
        self.emit(stmts);
        self.tiles.rescale_factors.push((rescale, RegisterTile { at: max_at, buffer }));
    }

    /// Brings a running maximum and what it was before to shared memory.
    pub fn share_maxima(&mut self, rescale: Rescale) {
        self.prepare(rescale.max, None);
        if let [TileHome::Registers(registers)] = self.tiles.previous_maxima[rescale.max].as_slice() {
            let shape = self.plan.steps.tiles[rescale.max].shape.clone();
            let view = self.shared_copy(&registers.clone(), &shape);
            self.tiles.previous_maxima[rescale.max].push(TileHome::Shared(view));
        }
    }

    /// The factor at a point of what is rescaled: from registers if it is prepared, else computed from the
    /// maxima.
    pub fn rescale_factor(&mut self, Rescale { max, degree }: Rescale, point: &TilePoint) -> ExprId {
        let sees =
            |registers: &RegisterTile| point.slot.as_ref().is_some_and(|slot| slot.at.covers(&registers.at));
        let known = self
            .tiles
            .rescale_factors
            .iter()
            .find(|(known, registers)| *known == Rescale { max, degree } && sees(registers));
        if let Some((_, registers)) = known {
            let place = TileHome::Registers(registers.clone());
            return self.read_home(&place, point);
        }
        let before = self.tiles.previous_maxima[max].iter().find(|place| match place {
            TileHome::Registers(registers) => sees(registers),
            TileHome::Shared(_) => true,
        });
        let (before, lowest) = (before.cloned(), self.float(f64::NEG_INFINITY));
        let point = self.broadcast_point(max, point);
        let before = before.map_or(lowest, |place| self.read_home(&place, &point));
        let now = self.value_at(max, &point);
        let now = self.unary_value(UnaryFn::Guard, now);
        let factor = self.float(degree.to_f64());
        let zero = self.float(0.0);
        let exprs = &mut self.program.exprs;
        let difference = exprs.sub(before, now);
        let exponent = exprs.mul(difference, factor);
        let power = exprs.unary(ScalarUnary::Exp, exponent);
        // Before the first iteration `max_before` is -inf: the power is 0 for a positive degree, and set to 0
        // for a negative one.
        if degree.num() > 0 {
            return power;
        }
        // Accumulators are zero then.
        let is_first = exprs.eq(before, lowest);
        exprs.select(is_first, zero, power)
    }
}
