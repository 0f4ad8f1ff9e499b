//! Products by multiply-adds whose weights are in shared memory, as far as they fit there, and are read from L2 otherwise.

use super::emitter::Emitter;
use super::schedule::GpuRecurrenceSchedule;
use crate::recurrence::steps::{Pass, TimeStep};
use orch_compute::expr::{ExprId, Type, VarId};
use orch_compute::recurrence::RecurrenceProgram;
use orch_compute::simplify::simplify;
use orch_thread::program::{LoopKind, Stmt};

/// Iterations along the K dimension whose loads are in flight together.
const K_IN_FLIGHT: u32 = 8;

impl Emitter<'_> {
    /// Copies the weights of the own units for the first part of the K dimension to shared memory.
    pub(super) fn copy_weights(&mut self) -> Option<Stmt> {
        let buffer = self.shared.weights?;
        let GpuRecurrenceSchedule { units, lanes, parts, shared_k, .. } = self.schedule;
        let gates = self.recurrence.spec.cell.gates();
        let hidden = self.recurrence.extents.hidden;
        let groups = units / lanes;
        let shape = [shared_k * parts, gates, groups];
        Some(self.shared_loop("vector", shape.iter().product(), |emitter, number| {
            let index = emitter.program.exprs.unflatten(number, &shape);
            let own = emitter.program.exprs.mul_const(index[2], lanes as i64);
            let unit = emitter.unit(own);
            let exprs = &mut emitter.program.exprs;
            let line = exprs.linear_index(&index[..2], &[gates * units, units]);
            let to = exprs.add2(line, own);
            let from = emitter.weight_offset(index[0], index[1], unit);
            let exprs = &mut emitter.program.exprs;
            // Terms and units past the last one are not read.
            let [all_k, all_units] = [hidden, hidden].map(|extent| exprs.index(extent as i64));
            let exists = [exprs.lt(index[0], all_k), exprs.lt(unit, all_units)];
            let exists = exprs.all(exists);
            let mask = exprs.splat(exists, lanes);
            let arg = emitter.buffer(RecurrenceProgram::R);
            let value = emitter.program.exprs.load(arg, from, lanes, Some(mask));
            vec![Stmt::Store { buffer, offset: to, value, mask: None }]
        }))
    }

    /// The thread's part of the accumulators: `lanes` units of all rows and gates over every `parts`-th index of the K dimension.
    pub(super) fn shared_product(&mut self, pass: &Pass, step: TimeStep) -> Vec<Stmt> {
        let GpuRecurrenceSchedule { units, lanes, parts, .. } = self.schedule;
        let groups = units / lanes;
        let mut out = Vec::new();
        let exprs = &mut self.program.exprs;
        let line = exprs.index(groups as i64);
        let [part, group] = [exprs.floor_div(self.thread, line), exprs.floor_rem(self.thread, line)];
        let most_parts = self.schedule.threads().div_ceil(groups);
        let part = self.bind(&mut out, "part", part, most_parts);
        let own = self.program.exprs.mul_const(group, lanes as i64);
        let own = self.bind_multiple(&mut out, "first", own, (units, lanes));
        let unit = self.unit(own);
        let unit = self.bind_multiple(&mut out, "first_unit", unit, (self.schedule.ctas * units, lanes));
        let exprs = &mut self.program.exprs;
        let (all, count) = (exprs.index(self.recurrence.extents.hidden as i64), exprs.index(parts as i64));
        let conditions = [exprs.lt(part, count), exprs.lt(unit, all)];
        let condition = exprs.all(conditions);
        let condition = simplify(exprs, condition);
        let then = self.part_of_product(pass, step, (part, own, unit));
        out.push(Stmt::If { condition, then, otherwise: Vec::new() });
        out
    }

    fn part_of_product(
        &mut self,
        pass: &Pass,
        step: TimeStep,
        (part, own, unit): (ExprId, ExprId, ExprId),
    ) -> Vec<Stmt> {
        let GpuRecurrenceSchedule { rows, units, lanes, shared_k, .. } = self.schedule;
        let gates = self.recurrence.spec.cell.gates();
        let part_k = self.schedule.part_k(self.recurrence);
        let mut out = Vec::new();
        let zero = self.program.exprs.zero(self.ty);
        let zeros = self.program.exprs.splat(zero, lanes);
        let mut accumulators: Vec<VarId> = Vec::new();
        for _ in 0..rows * pass.gates.len() {
            let register = self.program.exprs.declare_register("accumulator", Type::vector(self.ty, lanes));
            out.push(Stmt::Register(register, zeros));
            accumulators.push(register);
        }
        let at = AccumulatorsAt { pass, step, part, own, unit };
        out.extend(self.accumulate((0, shared_k), true, &at, &accumulators));
        out.extend(self.accumulate((shared_k, part_k), false, &at, &accumulators));
        for (number, &register) in accumulators.iter().enumerate() {
            let [row, gate] = [number / pass.gates.len(), pass.gates[number % pass.gates.len()]];
            let exprs = &mut self.program.exprs;
            let [row, gate] = [row, gate].map(|value| exprs.index(value as i64));
            let strides = [rows * gates * units, gates * units, units, 1];
            let offset = exprs.linear_index(&[part, row, gate, own], &strides);
            let value = exprs.var(register);
            out.push(Stmt::Store { buffer: self.shared.accumulators, offset, value, mask: None });
        }
        out
    }

    /// A loop over a range of the thread's part of the K dimension.
    fn accumulate(
        &mut self,
        (first, last): (usize, usize),
        is_shared: bool,
        at: &AccumulatorsAt<'_>,
        accumulators: &[VarId],
    ) -> Option<Stmt> {
        if first == last {
            return None;
        }
        let GpuRecurrenceSchedule { rows, units, lanes, parts, .. } = self.schedule;
        let hidden = self.recurrence.extents.hidden;
        let gates = self.recurrence.spec.cell.gates();
        let (var, own_k) = self.program.exprs.fresh_index("own_k", last);
        let mut body = Vec::new();
        let k = self.program.exprs.linear_index(&[own_k, at.part], &[parts, 1]);
        let k = self.bind(&mut body, "k", k, last * parts);
        let exists = (last * parts > hidden).then(|| {
            let all = self.program.exprs.index(hidden as i64);
            self.program.exprs.lt(k, all)
        });
        let mut weights = Vec::new();
        for &gate in &at.pass.gates {
            let gate_index = self.program.exprs.index(gate as i64);
            let weight = match self.shared.weights.filter(|_| is_shared) {
                Some(buffer) => {
                    let strides = [gates * units, units, 1];
                    let exprs = &mut self.program.exprs;
                    let offset = exprs.linear_index(&[k, gate_index, at.own], &strides);
                    exprs.load(buffer, offset, lanes, None)
                }
                None => {
                    let offset = self.weight_offset(k, gate_index, at.unit);
                    let mask = exists.map(|exists| self.program.exprs.splat(exists, lanes));
                    self.program.exprs.load(self.buffer(RecurrenceProgram::R), offset, lanes, mask)
                }
            };
            let weight = self.program.exprs.cast(self.ty, weight);
            weights.push(self.let_value(&mut body, "weight", weight));
        }
        let (operand, base) = match self.shared.reset_hidden.filter(|_| at.pass.resets_operand) {
            Some(buffer) => (buffer, self.program.exprs.index(0)),
            None => (self.shared.hidden.expect("products take states from shared memory"), at.step.before),
        };
        for row in 0..rows {
            let exprs = &mut self.program.exprs;
            let offset = exprs.add2(base, k);
            let offset = exprs.add_const(offset, (row * hidden) as i64);
            let factor = exprs.load(operand, offset, 1, exists);
            let factor = self.let_value(&mut body, "factor", factor);
            for (number, &weight) in weights.iter().enumerate() {
                let register = accumulators[row * weights.len() + number];
                let exprs = &mut self.program.exprs;
                let acc = exprs.var(register);
                let next = exprs.fma(factor, weight, acc);
                body.push(Stmt::Assign(register, next));
            }
        }
        let [start, end] = [first, last].map(|value| self.program.exprs.index(value as i64));
        Some(Stmt::For { var, start, end, step: 1, kind: LoopKind::UnrollBy(K_IN_FLIGHT), body })
    }
}

/// Which accumulators a thread adds to.
struct AccumulatorsAt<'a> {
    pass: &'a Pass,
    step: TimeStep,
    /// The thread's part of the K dimension.
    part: ExprId,
    /// Its first own unit, and the same among all hidden units.
    own: ExprId,
    unit: ExprId,
}
