//! Recurrences as thread programs of CTAs.

use super::schedule::GpuRecurrenceSchedule;
use crate::bind::{add_arguments, bind_index, bind_value, bind_var, bound_kernel};
use crate::recurrence::cell::{CellInputs, CellOutputs, CellWriter};
use crate::recurrence::steps::{Pass, StatesAfter, TimeStep, passes, states_after, time_of};
use orch_compute::expr::{ArgId, BufferId, ExprId, Type, VarId};
use orch_compute::recurrence::RecurrenceProgram;
use orch_compute::simplify::simplify;
use orch_ir::{DType, RecurrenceOperand, RnnCell};
use orch_thread::cta::{CtaStmt, Location};
use orch_thread::kernel::Kernel;
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};

/// Iterations along the K dimension whose loads are in flight together.
const K_IN_FLIGHT: u32 = 8;

/// Lowers a recurrence under a schedule.
pub fn lower(recurrence: &RecurrenceProgram, schedule: &GpuRecurrenceSchedule) -> Kernel {
    let mut emitter = Emitter::new(recurrence, *schedule);
    let body = emitter.cta();
    emitter.program.body = body;
    bound_kernel(emitter.program, &recurrence.args)
}

/// Shared memory of a CTA.
struct SharedBuffers {
    /// `[2, row, unit]`, all hidden units: before and after a step, double-buffered.
    hidden: BufferId,
    /// `[row, unit]`, all hidden units: the hidden state times the reset gate.
    reset_hidden: Option<BufferId>,
    /// `[item]`: the update gate, if it is computed before the candidate.
    update: Option<BufferId>,
    /// `[item]`: the cell state of an LSTM.
    cell: Option<BufferId>,
    /// `[part, row, gate, unit]`, own units.
    accumulators: BufferId,
    /// `[k, gate, unit]`, own units.
    weights: Option<BufferId>,
}

/// One row and one own unit of a thread: what its cell needs. Their product is the number of items of a CTA.
#[derive(Clone, Copy)]
struct Item {
    /// The number, `row * units + unit`.
    number: ExprId,
    row: ExprId,
    /// The own unit, and the same among all hidden units.
    own: ExprId,
    unit: ExprId,
    sequence: ExprId,
    /// Whether there is such a sequence and unit.
    exists: ExprId,
}

struct Emitter<'a> {
    recurrence: &'a RecurrenceProgram,
    schedule: GpuRecurrenceSchedule,
    /// The type of states and accumulators.
    ty: DType,
    program: ThreadProgram,
    shared: SharedBuffers,
    thread: ExprId,
    direction: ExprId,
    first_row: ExprId,
    rank: ExprId,
}

impl<'a> Emitter<'a> {
    fn new(recurrence: &'a RecurrenceProgram, schedule: GpuRecurrenceSchedule) -> Self {
        let mut program = ThreadProgram::new(&recurrence.name, schedule.ctas(recurrence));
        let thread = program.set_cta(schedule.threads(), schedule.cluster);
        let ty = recurrence.compute_type();
        add_arguments(&mut program, &recurrence.args);
        let cell = recurrence.spec.cell;
        let gates = cell.gates();
        let states = schedule.rows * recurrence.extents.hidden;
        let items = schedule.rows * schedule.units;
        let resets_operand = cell == RnnCell::Gru { linear_before_reset: false };
        let mut shared = |name: &str, dtype: DType, elems: usize| {
            program.add_buffer(Buffer { name: name.to_owned(), dtype, elems, scope: Scope::Shared })
        };
        let weight_elems = schedule.shared_k * schedule.parts * gates * schedule.units;
        let weight_type = recurrence.arg(RecurrenceProgram::R).dtype;
        let shared = SharedBuffers {
            weights: (weight_elems > 0).then(|| shared("weights", weight_type, weight_elems)),
            hidden: shared("hidden", ty, 2 * states),
            reset_hidden: resets_operand.then(|| shared("reset_hidden", ty, states)),
            update: resets_operand.then(|| shared("update", ty, items)),
            cell: cell.has_cell_state().then(|| shared("cell", ty, items)),
            accumulators: shared("accumulators", ty, schedule.parts * schedule.rows * gates * schedule.units),
        };
        let zero = program.exprs.index(0);
        let thread = program.exprs.var(thread);
        Self {
            recurrence,
            schedule,
            ty,
            program,
            shared,
            thread,
            direction: zero,
            first_row: zero,
            rank: zero,
        }
    }

    fn cta(&mut self) -> Vec<Stmt> {
        let extents = self.recurrence.extents;
        let tiles = extents.batch.div_ceil(self.schedule.rows);
        let mut body = Vec::new();
        let task = self.program.exprs.var(self.program.task);
        let parts = self.program.exprs.unflatten(task, &[extents.directions, tiles, self.schedule.cluster]);
        self.direction = self.bind(&mut body, "direction", parts[0], extents.directions);
        let tile = self.bind(&mut body, "tile", parts[1], tiles);
        self.rank = self.bind(&mut body, "rank", parts[2], self.schedule.cluster);
        self.first_row = self.program.exprs.mul_const(tile, self.schedule.rows as i64);
        body.extend(self.copy_weights());
        body.extend(self.initial_states());
        body.push(self.cluster_barrier());
        body.push(self.steps());
        body.extend(self.last_states());
        body
    }

    /// Binds an expression with values `0..extent`; a constant stays one.
    fn bind(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId, extent: usize) -> ExprId {
        bind_index(&mut self.program, body, name, value, extent)
    }

    fn let_value(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId) -> ExprId {
        bind_value(&mut self.program, body, name, value)
    }

    /// Binds an offset below `extent` that is a multiple of the lanes of a thread.
    fn bind_multiple(
        &mut self,
        body: &mut Vec<Stmt>,
        name: &str,
        value: ExprId,
        (extent, multiple): (usize, usize),
    ) -> ExprId {
        let var = bind_var(&mut self.program, body, name, value, extent.max(1));
        self.program.exprs.set_multiple_of(var, multiple as i64);
        self.program.exprs.var(var)
    }

    /// A barrier of the CTA, which is alone or whose peers need not see what it has written.
    fn barrier(&self) -> Stmt {
        Stmt::Cta(CtaStmt::Barrier)
    }

    fn cluster_barrier(&self) -> Stmt {
        Stmt::Cta(if self.schedule.cluster > 1 { CtaStmt::ClusterBarrier } else { CtaStmt::Barrier })
    }

    /// A loop whose iterations the threads of the CTA share: `body` takes numbers below `count`.
    fn shared_loop(
        &mut self,
        name: &str,
        count: usize,
        body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>,
    ) -> Stmt {
        let threads = self.schedule.threads();
        let exprs = &mut self.program.exprs;
        let (var, value) = exprs.fresh_index(name, count);
        let body = body(self, value);
        let end = self.program.exprs.index(count as i64);
        Stmt::For { var, start: self.thread, end, step: threads as i64, kind: LoopKind::Serial, body }
    }

    /// Copies the weights of the own units for the first part of the K dimension to shared memory.
    fn copy_weights(&mut self) -> Option<Stmt> {
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

    /// An own unit among all hidden units.
    fn unit(&mut self, own: ExprId) -> ExprId {
        let first = self.program.exprs.mul_const(self.rank, self.schedule.units as i64);
        self.program.exprs.add2(first, own)
    }

    /// `[direction, k, gate, unit]` of the weights.
    fn weight_offset(&mut self, k: ExprId, gate: ExprId, unit: ExprId) -> ExprId {
        let hidden = self.recurrence.extents.hidden;
        let rows = self.recurrence.spec.cell.gates() * hidden;
        let index = [self.direction, k, gate, unit];
        self.program.exprs.linear_index(&index, &[hidden * rows, rows, hidden, 1])
    }

    fn buffer(&self, arg: ArgId) -> BufferId {
        BufferId::new(arg.index())
    }

    /// An element of an argument in the type of the accumulators.
    fn load(&mut self, arg: ArgId, offset: ExprId, mask: Option<ExprId>) -> ExprId {
        let value = self.program.exprs.load(self.buffer(arg), offset, 1, mask);
        self.program.exprs.cast(self.ty, value)
    }

    fn store(&mut self, arg: ArgId, offset: ExprId, value: ExprId) -> Stmt {
        let value = self.program.exprs.cast(self.recurrence.arg(arg).dtype, value);
        Stmt::Store { buffer: self.buffer(arg), offset, value, mask: None }
    }

    /// `[direction, sequence, unit]`.
    fn state_offset(&mut self, sequence: ExprId, unit: ExprId) -> ExprId {
        let extents = self.recurrence.extents;
        let strides = [extents.batch * extents.hidden, extents.hidden, 1];
        self.program.exprs.linear_index(&[self.direction, sequence, unit], &strides)
    }

    /// The hidden states of all units, and the cell states of the own ones. No step writes the states of rows past the last
    /// sequence, which products read.
    fn initial_states(&mut self) -> Vec<Stmt> {
        let (rows, hidden) = (self.schedule.rows, self.recurrence.extents.hidden);
        let buffer = self.shared.hidden;
        let mut out = vec![self.shared_loop("state", rows * hidden, |emitter, number| {
            let index = emitter.program.exprs.unflatten(number, &[rows, hidden]);
            let value = emitter.initial(RecurrenceOperand::InitialHidden, index[0], index[1]);
            let after = emitter.program.exprs.add_const(number, (rows * hidden) as i64);
            let mut places = vec![(buffer, number), (buffer, after)];
            places.extend(emitter.shared.reset_hidden.map(|buffer| (buffer, number)));
            let store = |(buffer, offset)| Stmt::Store { buffer, offset, value, mask: None };
            places.into_iter().map(store).collect()
        })];
        if let Some(buffer) = self.shared.cell {
            out.extend(self.items(|emitter, item| {
                let value = emitter.initial(RecurrenceOperand::InitialCell, item.row, item.unit);
                vec![Stmt::Store { buffer, offset: item.number, value, mask: None }]
            }));
        }
        out
    }

    /// A state before the first step; 0 in rows past the last sequence.
    fn initial(&mut self, operand: RecurrenceOperand, row: ExprId, unit: ExprId) -> ExprId {
        let Some(arg) = self.recurrence.operand(operand) else { return self.program.exprs.zero(self.ty) };
        let exprs = &mut self.program.exprs;
        let sequence = exprs.add2(self.first_row, row);
        let batch = exprs.index(self.recurrence.extents.batch as i64);
        let exists = exprs.lt(sequence, batch);
        let offset = self.state_offset(sequence, unit);
        self.load(arg, offset, Some(exists))
    }

    /// Runs `body` for each item of the thread that exists, iteration by iteration.
    fn items(&mut self, mut body: impl FnMut(&mut Self, Item) -> Vec<Stmt>) -> Vec<Stmt> {
        let mut out = Vec::new();
        for iteration in 0..self.iterations() {
            let item = self.item(&mut out, iteration);
            let then = body(self, item);
            out.push(Stmt::If { condition: item.exists, then, otherwise: Vec::new() });
        }
        out
    }

    /// Items of a thread.
    fn iterations(&self) -> usize {
        (self.schedule.rows * self.schedule.units).div_ceil(self.schedule.threads())
    }

    fn item(&mut self, body: &mut Vec<Stmt>, iteration: usize) -> Item {
        let GpuRecurrenceSchedule { rows, units, .. } = self.schedule;
        let (items, threads) = (rows * units, self.schedule.threads());
        let extents = self.recurrence.extents;
        let number = self.program.exprs.add_const(self.thread, (iteration * threads) as i64);
        let number = self.bind(body, "item", number, (iteration + 1) * threads);
        let index = {
            let exprs = &mut self.program.exprs;
            let line = exprs.index(units as i64);
            [exprs.floor_div(number, line), exprs.floor_rem(number, line)]
        };
        let most_rows = ((iteration + 1) * threads).div_ceil(units);
        let row = self.bind(body, "row", index[0], most_rows);
        let own = self.bind(body, "own", index[1], units);
        let unit = self.unit(own);
        let unit = self.bind(body, "unit", unit, self.schedule.cluster * units);
        let exprs = &mut self.program.exprs;
        let sequence = exprs.add2(self.first_row, row);
        let sequence =
            self.bind(body, "sequence", sequence, extents.batch.next_multiple_of(rows) + most_rows);
        let exprs = &mut self.program.exprs;
        let limits = [(number, items), (unit, extents.hidden), (sequence, extents.batch)];
        let conditions: Vec<ExprId> = limits
            .into_iter()
            .map(|(value, limit)| {
                let limit = exprs.index(limit as i64);
                exprs.lt(value, limit)
            })
            .collect();
        let exists = exprs.all(conditions);
        let exists = simplify(exprs, exists);
        let exists = self.let_value(body, "exists", exists);
        Item { number, row, own, unit, sequence, exists }
    }

    /// The loop over time.
    fn steps(&mut self) -> Stmt {
        let time = self.recurrence.extents.time;
        let states = self.schedule.rows * self.recurrence.extents.hidden;
        let (var, step) = self.program.exprs.fresh_index("step", time);
        let mut body = Vec::new();
        let at = time_of(&mut self.program.exprs, self.recurrence, self.direction, step);
        let at = self.bind(&mut body, "time", at, time);
        let exprs = &mut self.program.exprs;
        let two = exprs.index(2);
        let parity = exprs.floor_rem(step, two);
        let before = exprs.mul_const(parity, states as i64);
        let before = self.bind_multiple(&mut body, "before", before, (states + 1, states));
        let whole = self.program.exprs.index(states as i64);
        let after = self.program.exprs.sub(whole, before);
        let after = self.bind_multiple(&mut body, "after", after, (states + 1, states));
        for pass in passes(self.recurrence.spec.cell) {
            body.extend(self.pass(&pass, TimeStep { time: at, before, after }));
        }
        let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(time as i64));
        Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body }
    }

    /// Inputs of the items' gates are loaded before the product, whose loads they are in flight with.
    fn pass(&mut self, pass: &Pass, step: TimeStep) -> Vec<Stmt> {
        let mut out = Vec::new();
        let mut items = Vec::new();
        for iteration in 0..self.iterations() {
            let item = self.item(&mut out, iteration);
            let mut inputs = Vec::new();
            for &gate in &pass.gates {
                let input = self.input(step, item, gate);
                inputs.push(self.let_value(&mut out, "x", input));
            }
            items.push((item, inputs));
        }
        out.extend(self.product(pass, step));
        out.push(self.barrier());
        for (item, inputs) in items {
            let then = self.cell(pass, step, item, &inputs);
            out.push(Stmt::If { condition: item.exists, then, otherwise: Vec::new() });
        }
        out.push(self.cluster_barrier());
        out
    }

    /// `x[time, sequence, direction, gate, unit]`.
    fn input(&mut self, step: TimeStep, item: Item, gate: usize) -> ExprId {
        let extents = self.recurrence.extents;
        let rows = self.recurrence.spec.cell.gates() * extents.hidden;
        let strides = [extents.batch * extents.directions * rows, extents.directions * rows, rows, 1];
        let index = [step.time, item.sequence, self.direction, item.unit];
        let line = self.program.exprs.linear_index(&index, &strides);
        let offset = self.program.exprs.add_const(line, (gate * extents.hidden) as i64);
        self.load(RecurrenceProgram::X, offset, Some(item.exists))
    }

    /// The thread's part of the accumulators: `lanes` units of all rows and gates over every `parts`-th index of the K dimension.
    fn product(&mut self, pass: &Pass, step: TimeStep) -> Vec<Stmt> {
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
        let unit = self.bind_multiple(&mut out, "first_unit", unit, (self.schedule.cluster * units, lanes));
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
            None => (self.shared.hidden, at.step.before),
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

    /// The cell of an item.
    fn cell(&mut self, pass: &Pass, step: TimeStep, item: Item, inputs: &[ExprId]) -> Vec<Stmt> {
        let hidden_units = self.recurrence.extents.hidden;
        let mut body = Vec::new();
        let exprs = &mut self.program.exprs;
        let state = exprs.linear_index(&[item.row, item.unit], &[hidden_units, 1]);
        let before = exprs.add2(step.before, state);
        let hidden = exprs.load(self.shared.hidden, before, 1, None);
        let hidden = self.let_value(&mut body, "before", hidden);
        let cell = self.shared.cell.map(|buffer| {
            let cell = self.program.exprs.load(buffer, item.number, 1, None);
            self.let_value(&mut body, "cell_before", cell)
        });
        let mut accumulators = Vec::new();
        let mut candidate_input = None;
        for (&gate, &input) in pass.gates.iter().zip(inputs) {
            let product = self.sum_of_parts(&mut body, item, gate);
            let is_reset = self.recurrence.spec.cell == RnnCell::Gru { linear_before_reset: true };
            accumulators.push(if is_reset && gate == 2 {
                candidate_input = Some(input);
                product
            } else {
                let both = self.program.exprs.add2(input, product);
                self.let_value(&mut body, "gate", both)
            });
        }
        let peepholes = self.recurrence.operand(RecurrenceOperand::Peepholes).map(|arg| {
            [0, 1, 2].map(|gate| {
                let exprs = &mut self.program.exprs;
                let line = exprs.linear_index(&[self.direction, item.unit], &[3 * hidden_units, 1]);
                let offset = exprs.add_const(line, (gate * hidden_units) as i64);
                self.load(arg, offset, None)
            })
        });
        let candidate_bias = self.recurrence.operand(RecurrenceOperand::CandidateBias).map(|arg| {
            let offset = self.program.exprs.linear_index(&[self.direction, item.unit], &[hidden_units, 1]);
            self.load(arg, offset, None)
        });
        let spec = &self.recurrence.spec;
        let inputs = CellInputs {
            accumulators: &accumulators,
            candidate_input,
            candidate_bias,
            hidden,
            cell,
            peepholes,
        };
        let exprs = &mut self.program.exprs;
        let mut writer = CellWriter { exprs, body: &mut body, spec, direction: self.direction };
        let outputs = match (self.shared.reset_hidden.zip(self.shared.update), pass.resets_operand) {
            (Some((reset_hidden, update)), false) => {
                let (z, r) = (writer.update(&inputs), writer.reset(&inputs));
                let product = self.program.exprs.mul(r, hidden);
                body.push(Stmt::Store { buffer: update, offset: item.number, value: z, mask: None });
                body.extend(self.store_to_all(reset_hidden, state, product));
                return body;
            }
            (Some((_, update)), true) => {
                let z = writer.exprs.load(update, item.number, 1, None);
                writer.updated(accumulators[0], z, hidden)
            }
            (None, _) => writer.step(&inputs),
        };
        body.extend(self.store_states(step, item, (hidden, cell), outputs));
        body
    }

    /// The accumulators of a gate over all parts, added up.
    fn sum_of_parts(&mut self, body: &mut Vec<Stmt>, item: Item, gate: usize) -> ExprId {
        let GpuRecurrenceSchedule { rows, units, parts, .. } = self.schedule;
        let gates = self.recurrence.spec.cell.gates();
        let exprs = &mut self.program.exprs;
        let line = exprs.linear_index(&[item.row, item.own], &[gates * units, 1]);
        let mut values: Vec<ExprId> = (0..parts)
            .map(|part| {
                let offset = exprs.add_const(line, ((part * rows * gates + gate) * units) as i64);
                exprs.load(self.shared.accumulators, offset, 1, None)
            })
            .collect();
        // Pairwise, which is also what rounds least.
        while values.len() > 1 {
            values = values
                .chunks(2)
                .map(|pair| match *pair {
                    [a, b] => exprs.add2(a, b),
                    _ => pair[0],
                })
                .collect();
        }
        self.let_value(body, "product", values[0])
    }

    /// Stores the states after a step, which past a sequence's length are those before it, and the step's result.
    fn store_states(
        &mut self,
        step: TimeStep,
        item: Item,
        (hidden, cell): (ExprId, Option<ExprId>),
        outputs: CellOutputs,
    ) -> Vec<Stmt> {
        let extents = self.recurrence.extents;
        let mut out = Vec::new();
        let length = self.recurrence.operand(RecurrenceOperand::Lengths).map(|arg| {
            let length = self.program.exprs.load(self.buffer(arg), item.sequence, 1, None);
            (step.time, length)
        });
        let StatesAfter { hidden: next, cell: next_cell, shown } =
            states_after(&mut self.program.exprs, self.recurrence.dtype, (hidden, cell), &outputs, length);
        if let Some((buffer, value)) = self.shared.cell.zip(next_cell) {
            out.push(Stmt::Store { buffer, offset: item.number, value, mask: None });
        }
        let exprs = &mut self.program.exprs;
        let state = exprs.linear_index(&[item.row, item.unit], &[extents.hidden, 1]);
        let after = exprs.add2(step.after, state);
        out.extend(self.store_to_all(self.shared.hidden, after, next));
        if let Some(y) = self.recurrence.y {
            let line = extents.directions * extents.hidden;
            let index = [step.time, item.sequence, self.direction, item.unit];
            let strides = [extents.batch * line, line, extents.hidden, 1];
            let offset = self.program.exprs.linear_index(&index, &strides);
            out.push(self.store(y, offset, shown));
        }
        out
    }

    /// Stores an element to the shared buffer of every CTA of the cluster.
    fn store_to_all(&mut self, buffer: BufferId, offset: ExprId, value: ExprId) -> Vec<Stmt> {
        if self.schedule.cluster == 1 {
            return vec![Stmt::Store { buffer, offset, value, mask: None }];
        }
        let mut out = Vec::new();
        let value = self.let_value(&mut out, "state", value);
        for rank in 0..self.schedule.cluster {
            let rank = self.program.exprs.index(rank as i64);
            out.push(Stmt::Cta(CtaStmt::StoreDsmem { to: Location { buffer, offset }, rank, value }));
        }
        out
    }

    /// Stores the states of the own units after the last step.
    fn last_states(&mut self) -> Vec<Stmt> {
        let RecurrenceProgram { last_hidden, last_cell, extents, .. } = self.recurrence;
        let states = self.schedule.rows * extents.hidden;
        let base = extents.time % 2 * states;
        if last_hidden.is_none() && last_cell.is_none() {
            return Vec::new();
        }
        self.items(|emitter, item| {
            let mut out = Vec::new();
            let to = emitter.state_offset(item.sequence, item.unit);
            if let Some(arg) = *last_hidden {
                let exprs = &mut emitter.program.exprs;
                let from = exprs.linear_index(&[item.row, item.unit], &[extents.hidden, 1]);
                let from = exprs.add_const(from, base as i64);
                let value = exprs.load(emitter.shared.hidden, from, 1, None);
                out.push(emitter.store(arg, to, value));
            }
            if let Some((arg, buffer)) = last_cell.zip(emitter.shared.cell) {
                let value = emitter.program.exprs.load(buffer, item.number, 1, None);
                out.push(emitter.store(arg, to, value));
            }
            out
        })
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
