//! Accumulators and running maxima: what the loop carries from one iteration to the next.
//!
//! A product or a reduction that only an accumulator reads is added straight into it, so that lanes and warps are combined
//! once, after the loop.

use super::elements::Write;
use super::layout::{Fragments, Registers};
use super::lowering::Lowering;
use super::reduce::{Reduction, reduction_of};
use super::steps::Step;
use super::value::{Place, Point, View};
use crate::graph::Accumulation;
use crate::op::{Op, ReduceFn, UnaryFn};
use crate::rational::Rational;
use orch_compute::ExprId;
use orch_ir::{DType, UnaryFn as ScalarUnary};
use orch_thread::{Scope, Stmt};

/// What sums are multiplied by when a running maximum grows: `e^(degree * (before - now))`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Rescale {
    pub max: usize,
    pub degree: Rational,
}

impl Rescale {
    /// What an accumulation multiplies its sums by, if anything.
    pub fn of(how: Accumulation) -> Option<Rescale> {
        match how {
            Accumulation::RescaledSum { max, degree } => Some(Rescale { max: max.index(), degree }),
            Accumulation::Sum | Accumulation::Max => None,
        }
    }
}

/// What holds a sum or maximum while the loop runs.
#[derive(Clone, Debug)]
pub(super) enum Accumulator {
    Registers(Registers),
    Shared(View),
    Reduction(Reduction),
}

impl Lowering<'_> {
    /// The accumulator into which a tile is added without being kept itself.
    pub fn fused_into(&self, tile: usize) -> Option<usize> {
        let reader = self.steps.only_reader(tile)?;
        let Step::Accumulate { how, tile: from } = &self.steps.tiles[reader].step else { return None };
        let Step::Op { op, .. } = &self.steps.tiles[tile].step else { return None };
        let suits = match (op, how) {
            (Op::Matmul, Accumulation::Sum | Accumulation::RescaledSum { .. }) => !self.is_large(tile),
            (Op::Reduce { f, .. }, how) => (*f == ReduceFn::Max) == (*how == Accumulation::Max),
            _ => false,
        };
        (suits && *from == tile).then_some(reader)
    }

    /// Adds this iteration's tile.
    pub fn accumulate(&mut self, tile: usize) {
        let Step::Accumulate { how, tile: from } = self.steps.tiles[tile].step.clone() else { return };
        let rescale = Rescale::of(how);
        let f = if how == Accumulation::Max { ReduceFn::Max } else { ReduceFn::Sum };
        if let Some(running) = self.lazy_maximum(from).filter(|_| how == Accumulation::Max) {
            self.accumulators[tile] = Some(Accumulator::Registers(running));
            return;
        }
        let accumulator = match &self.steps.tiles[from].step {
            Step::Op { op, args } if self.fused_into(from) == Some(tile) => match reduction_of(op) {
                Some(reduction) => self.accumulate_reduction(args[0], reduction, rescale),
                None if self.is_streamed(from) => self.accumulate_streamed(from),
                None => self.accumulate_product(from, rescale),
            },
            _ => match self.home(from) {
                Some(at) => self.accumulate_registers(from, at, f, rescale),
                None => self.accumulate_shared(from, f, rescale),
            },
        };
        self.accumulators[tile] = Some(accumulator);
    }

    fn accumulate_reduction(
        &mut self,
        from: usize,
        reduction: (ReduceFn, usize, usize),
        rescale: Option<Rescale>,
    ) -> Accumulator {
        let reduction = self.new_reduction(from, reduction);
        let start = self.start_reduction(&reduction);
        self.before_loop.extend(start);
        self.add_to_reduction(&reduction, rescale);
        Accumulator::Reduction(reduction)
    }

    fn accumulate_product(&mut self, from: usize, rescale: Option<Rescale>) -> Accumulator {
        if let Some(later) = self.accumulate_later(from, rescale) {
            return later;
        }
        let mut product = self.new_product(from, true);
        product.runs_on = rescale.is_none() && self.may_run_on(from, &product);
        self.run_on |= product.runs_on;
        let registers = product.sum.clone();
        let zero = self.float(0.0);
        let start = self.filled(registers.buffer, registers.at.registers(), zero);
        self.before_loop.extend(start);
        if let Some(rescale) = rescale {
            self.rescale_registers(&registers, rescale);
        }
        self.add_product(&product);
        Accumulator::Registers(registers)
    }

    fn accumulate_registers(
        &mut self,
        from: usize,
        at: Fragments,
        f: ReduceFn,
        rescale: Option<Rescale>,
    ) -> Accumulator {
        let buffer = self.add_buffer("sum", DType::F32, at.registers(), Scope::Scratch);
        let registers = Registers { at: at.clone(), buffer };
        let identity = self.identity(f);
        let start = self.filled(buffer, at.registers(), identity);
        self.before_loop.extend(start);
        if let Some(rescale) = rescale {
            self.rescale_registers(&registers, rescale);
        }
        self.prepare(from, Some(&at));
        let shape = self.steps.tiles[from].shape.clone();
        let stmts = self.each_site(&at, |this, site| {
            let point = this.point(&site, &shape);
            let value = this.value(from, &point);
            let offset = this.register(&site, &at);
            let so_far = this.program.exprs.load(buffer, offset, 1, None);
            let value = this.combined(f, so_far, value);
            vec![Stmt::Store { buffer, offset, value, mask: None }]
        });
        self.run(stmts);
        Accumulator::Registers(registers)
    }

    fn accumulate_shared(&mut self, from: usize, f: ReduceFn, rescale: Option<Rescale>) -> Accumulator {
        let shape = self.steps.tiles[from].shape.clone();
        let view = self.new_view("sum", DType::F32, &shape, shape.len().saturating_sub(1));
        let identity = self.identity(f);
        let start = self.each_element(&shape, |this, coords| {
            let offset = this.offset(&view, coords);
            vec![Write { buffer: view.buffer, offset, value: identity, mask: None }]
        });
        self.before_loop.extend(start);
        self.prepare(from, None);
        if let Some(rescale) = rescale {
            self.share_rescale(rescale);
        }
        let stmts = self.each_element(&shape, |this, coords| {
            let point = Point { coords: coords.to_vec(), site: None };
            let offset = this.offset(&view, coords);
            let mut so_far = this.program.exprs.load(view.buffer, offset, 1, None);
            if let Some(rescale) = rescale {
                let factor = this.rescale_value(rescale, &point);
                so_far = this.program.exprs.mul(so_far, factor);
            }
            let value = this.value(from, &point);
            let value = this.combined(f, so_far, value);
            vec![Write { buffer: view.buffer, offset, value, mask: None }]
        });
        self.run(stmts);
        Accumulator::Shared(view)
    }

    /// Makes the result of an accumulator readable, after the loop.
    pub fn finish_accumulator(&mut self, tile: usize) {
        let place = match self.accumulators[tile].take() {
            Some(Accumulator::Registers(registers)) => {
                let shape = self.steps.tiles[tile].shape.clone();
                self.joined_sums(registers, &shape)
            }
            Some(Accumulator::Shared(view)) => Place::Shared(view),
            Some(Accumulator::Reduction(reduction)) => self.finish_reduction(&reduction),
            None => return,
        };
        self.places[tile].push(place);
    }

    /// Keeps the largest of a tile so far, and what it was before.
    pub fn running_max(&mut self, tile: usize, from: usize) {
        if self.lazy_running_max(tile, from) {
            return;
        }
        match self.home(from) {
            Some(at) => {
                self.running_max_at(&at, (tile, from));
            }
            None => self.shared_running_max(tile, from),
        }
    }

    /// The same in registers, which it gives: those with the maximum, and with what it was before.
    pub fn running_max_at(&mut self, at: &Fragments, (tile, from): (usize, usize)) -> [Registers; 2] {
        let lowest = self.float(f64::NEG_INFINITY);
        let shape = self.steps.tiles[tile].shape.clone();
        let [now, before] = ["max", "max_before"]
            .map(|name| self.add_buffer(name, DType::F32, at.registers(), Scope::Scratch));
        let start = self.filled(now, at.registers(), lowest);
        self.before_loop.extend(start);
        self.prepare(from, Some(at));
        let stmts = self.each_site(at, |this, site| {
            let point = this.point(&site, &shape);
            let value = this.value(from, &point);
            let offset = this.register(&site, at);
            let so_far = this.program.exprs.load(now, offset, 1, None);
            let largest = this.program.exprs.max(so_far, value);
            vec![
                Stmt::Store { buffer: before, offset, value: so_far, mask: None },
                Stmt::Store { buffer: now, offset, value: largest, mask: None },
            ]
        });
        self.run(stmts);
        let [now, before] = [now, before].map(|buffer| Registers { at: at.clone(), buffer });
        self.places[tile].push(Place::Registers(now.clone()));
        self.before[tile].push(Place::Registers(before.clone()));
        [now, before]
    }

    fn shared_running_max(&mut self, tile: usize, from: usize) {
        let lowest = self.float(f64::NEG_INFINITY);
        let shape = &self.steps.tiles[tile].shape.clone();
        let inner = shape.len().saturating_sub(1);
        let [now, before] = ["max", "max_before"].map(|name| self.new_view(name, DType::F32, shape, inner));
        let start = self.each_element(shape, |this, coords| {
            let offset = this.offset(&now, coords);
            vec![Write { buffer: now.buffer, offset, value: lowest, mask: None }]
        });
        self.before_loop.extend(start);
        self.prepare(from, None);
        let stmts = self.each_element(shape, |this, coords| {
            let value = this.value(from, &Point { coords: coords.to_vec(), site: None });
            let offset = this.offset(&now, coords);
            let so_far = this.program.exprs.load(now.buffer, offset, 1, None);
            let largest = this.program.exprs.max(so_far, value);
            let before_offset = this.offset(&before, coords);
            vec![
                Write { buffer: before.buffer, offset: before_offset, value: so_far, mask: None },
                Write { buffer: now.buffer, offset, value: largest, mask: None },
            ]
        });
        self.run(stmts);
        self.places[tile].push(Place::Shared(now));
        self.before[tile].push(Place::Shared(before));
    }

    /// Multiplies registers by the factor of their rows.
    pub fn rescale_registers(&mut self, registers: &Registers, rescale: Rescale) {
        let Registers { at, buffer } = registers;
        self.prepare_rescale(rescale, at);
        let n = at.n();
        let shape = [at.rows.lead.clone(), vec![at.rows.m, n]].concat();
        let stmts = self.each_site(at, |this, site| {
            let point = this.point(&site, &shape);
            let factor = this.rescale_value(rescale, &point);
            let offset = this.register(&site, at);
            let value = this.program.exprs.load(*buffer, offset, 1, None);
            let value = this.program.exprs.mul(value, factor);
            vec![Stmt::Store { buffer: *buffer, offset, value, mask: None }]
        });
        let stmts = self.if_moved(rescale.max, at.registers(), stmts);
        self.run(stmts);
    }

    /// Computes the factor once per row where rows are in registers.
    pub fn prepare_rescale(&mut self, rescale: Rescale, at: &Fragments) {
        let seen = self.places[rescale.max].iter().find_map(|place| match place {
            Place::Registers(registers) if at.sees(&registers.at) => Some(registers.at.clone()),
            Place::Registers(_) | Place::Shared(_) => None,
        });
        let Some(max_at) = seen else {
            self.share_rescale(rescale);
            return;
        };
        let is_known =
            |(known, registers): &(Rescale, Registers)| *known == rescale && at.sees(&registers.at);
        if self.rescales.iter().any(is_known) {
            return;
        }
        let buffer = self.add_buffer("rescale", DType::F32, max_at.registers(), Scope::Scratch);
        let shape = self.steps.tiles[rescale.max].shape.clone();
        let stmts = self.each_site(&max_at, |this, site| {
            let point = this.point(&site, &shape);
            let value = this.rescale_value(rescale, &point);
            let offset = this.register(&site, &max_at);
            vec![Stmt::Store { buffer, offset, value, mask: None }]
        });
        self.run(stmts);
        self.rescales.push((rescale, Registers { at: max_at, buffer }));
    }

    /// Brings a maximum, and what it was before, to shared memory.
    pub fn share_rescale(&mut self, rescale: Rescale) {
        self.prepare(rescale.max, None);
        if let [Place::Registers(registers)] = self.before[rescale.max].as_slice() {
            let shape = self.steps.tiles[rescale.max].shape.clone();
            let view = self.shared_copy(&registers.clone(), &shape);
            self.before[rescale.max].push(Place::Shared(view));
        }
    }

    /// The factor at a point of what is rescaled.
    pub fn rescale_value(&mut self, Rescale { max, degree }: Rescale, point: &Point) -> ExprId {
        let sees =
            |registers: &Registers| point.site.as_ref().is_some_and(|site| site.at.sees(&registers.at));
        let known = self
            .rescales
            .iter()
            .find(|(known, registers)| *known == Rescale { max, degree } && sees(registers));
        if let Some((_, registers)) = known {
            let place = Place::Registers(registers.clone());
            return self.read_place(&place, point);
        }
        let before = self.before[max].iter().find(|place| match place {
            Place::Registers(registers) => sees(registers),
            Place::Shared(_) => true,
        });
        let (before, lowest) = (before.cloned(), self.float(f64::NEG_INFINITY));
        let point = self.repeated_point(max, point);
        let before = before.map_or(lowest, |place| self.read_place(&place, &point));
        let now = self.value(max, &point);
        let now = self.unary(UnaryFn::Guard, now);
        let factor = self.float(degree.to_f64());
        let zero = self.float(0.0);
        let exprs = &mut self.program.exprs;
        let difference = exprs.sub(before, now);
        let exponent = exprs.mul(difference, factor);
        let power = exprs.unary(ScalarUnary::Exp, exponent);
        if degree.num() > 0 {
            return power;
        }
        // Nothing has been summed before the first maximum.
        let is_first = exprs.eq(before, lowest);
        exprs.select(is_first, zero, power)
    }
}
