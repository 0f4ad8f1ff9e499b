//! Recurrences as thread programs of CTAs.

use super::emitter::{Emitter, GridBuffers, HiddenSource, LOADS_IN_FLIGHT};
use super::schedule::{Engine, Exchange, GpuRecurrenceSchedule};
use crate::bind::bound_kernel;
use crate::recurrence::cell::{CellInputs, CellOutputs, CellWriter};
use crate::recurrence::steps::{Pass, StatesAfter, TimeStep, passes, states_after, time_of};
use orch_compute::expr::{BufferId, ExprId};
use orch_compute::recurrence::RecurrenceProgram;
use orch_compute::simplify::simplify;
use orch_ir::{RecurrenceExtents, RecurrenceOperand, RnnCell};
use orch_thread::cta::{CtaStmt, Location};
use orch_thread::kernel::{Binding, Kernel};
use orch_thread::program::{Buffer, LoopKind, Stmt};

/// Bytes of a load.
const LOAD_BYTES: usize = 16;

/// Lowers a recurrence under a schedule.
pub fn lower(recurrence: &RecurrenceProgram, schedule: &GpuRecurrenceSchedule) -> Kernel {
    let mut emitter = Emitter::new(recurrence, *schedule);
    let body = emitter.cta();
    emitter.program.body = body;
    let grid = emitter.grid;
    let mut kernel = bound_kernel(emitter.program, &recurrence.args);
    if let Some(GridBuffers { arrived, states }) = grid {
        for (buffer, is_zeroed) in [(arrived, true), (states, false)] {
            let Buffer { dtype, elems, .. } = *kernel.program.buffer(buffer);
            kernel.bindings.push(Binding::Own { dtype, elems, is_zeroed });
        }
    }
    kernel
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

impl Emitter<'_> {
    fn cta(&mut self) -> Vec<Stmt> {
        let extents = self.recurrence.extents;
        let tiles = extents.batch.div_ceil(self.schedule.rows);
        let mut body = Vec::new();
        let task = self.program.exprs.var(self.program.task);
        let parts = self.program.exprs.unflatten(task, &[extents.directions, tiles, self.schedule.ctas]);
        self.direction = self.bind(&mut body, "direction", parts[0], extents.directions);
        self.tile = self.bind(&mut body, "tile", parts[1], tiles);
        self.rank = self.bind(&mut body, "rank", parts[2], self.schedule.ctas);
        self.first_row = self.program.exprs.mul_const(self.tile, self.schedule.rows as i64);
        body.extend(self.copy_weights());
        body.extend(self.load_weights());
        body.extend(self.initial_states());
        match self.schedule.exchange {
            Exchange::Cluster => {
                body.push(self.cluster_barrier());
                body.push(self.steps());
            }
            Exchange::Grid => body.extend(self.steps_in_grid()),
        }
        body.extend(self.last_states());
        body
    }

    /// The hidden states of all units, and the cell states of the own ones. No step writes the states of rows past the last
    /// sequence, which products read.
    fn initial_states(&mut self) -> Vec<Stmt> {
        let (rows, hidden) = (self.schedule.rows, self.recurrence.extents.hidden);
        let is_doubled = self.schedule.exchange == Exchange::Cluster;
        let mut out = Vec::new();
        if let Some(buffer) = self.shared.hidden {
            out.push(self.shared_loop("state", rows * hidden, |emitter, number| {
                let index = emitter.program.exprs.unflatten(number, &[rows, hidden]);
                let value = emitter.initial(RecurrenceOperand::InitialHidden, index[0], index[1]);
                let mut places = vec![(buffer, number)];
                if is_doubled {
                    places.push((buffer, emitter.program.exprs.add_const(number, (rows * hidden) as i64)));
                }
                places.extend(emitter.shared.reset_hidden.map(|buffer| (buffer, number)));
                let store = |(buffer, offset)| Stmt::Store { buffer, offset, value, mask: None };
                places.into_iter().map(store).collect()
            }));
        }
        if let Some(buffer) = self.shared.own_hidden {
            out.extend(self.items(|emitter, item| {
                let value = emitter.initial(RecurrenceOperand::InitialHidden, item.row, item.unit);
                vec![Stmt::Store { buffer, offset: item.number, value, mask: None }]
            }));
        }
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
        let unit = self.bind(body, "unit", unit, self.schedule.ctas * units);
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
        let [before, after] = self.buffers_by_turns(&mut body, step, states, ["before", "after"]);
        for pass in passes(self.recurrence.spec.cell) {
            let step = TimeStep { time: at, before, after };
            body.extend(self.pass(&pass, step, HiddenSource::Shared));
            body.push(self.cluster_barrier());
        }
        let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(time as i64));
        Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body }
    }

    /// The offsets of two buffers of `states` elements, one behind the other: of that which even steps begin with, and of the other one.
    fn buffers_by_turns(
        &mut self,
        body: &mut Vec<Stmt>,
        step: ExprId,
        states: usize,
        names: [&str; 2],
    ) -> [ExprId; 2] {
        let exprs = &mut self.program.exprs;
        let two = exprs.index(2);
        let parity = exprs.floor_rem(step, two);
        let own = exprs.mul_const(parity, states as i64);
        let own = self.bind_multiple(body, names[0], own, (states + 1, states));
        let both = self.program.exprs.index(states as i64);
        let other = self.program.exprs.sub(both, own);
        [own, self.bind_multiple(body, names[1], other, (states + 1, states))]
    }

    /// The hidden state of an item, which is at `offset` in the shared memory of CTAs that have those of all units.
    fn hidden_state(&mut self, item: Item, offset: ExprId) -> ExprId {
        let exprs = &mut self.program.exprs;
        match (self.shared.own_hidden, self.shared.hidden) {
            (Some(own), _) => exprs.load(own, item.number, 1, None),
            (None, Some(all)) => exprs.load(all, offset, 1, None),
            (None, None) => unreachable!("hidden states are in shared memory"),
        }
    }

    /// The first step, and the loop over the others, which read what the other CTAs have written.
    fn steps_in_grid(&mut self) -> Vec<Stmt> {
        let RecurrenceExtents { time, batch, directions, hidden } = self.recurrence.extents;
        let states = directions * batch * hidden;
        let zero = self.program.exprs.index(0);
        let mut out = Vec::new();
        let initial = match self.recurrence.operand(RecurrenceOperand::InitialHidden) {
            Some(_) if self.shared.hidden.is_some() => HiddenSource::Shared,
            Some(arg) => HiddenSource::Initial(arg),
            None => HiddenSource::Zeros,
        };
        if matches!(initial, HiddenSource::Shared) {
            out.push(self.barrier());
        }
        let (var, step) = self.program.exprs.fresh_index("step", time);
        let all = passes(self.recurrence.spec.cell);
        let at = time_of(&mut self.program.exprs, self.recurrence, self.direction, zero);
        let at = self.bind(&mut out, "time", at, time);
        for pass in &all {
            out.extend(self.pass(pass, TimeStep { time: at, before: zero, after: zero }, initial));
        }
        let mut body = Vec::new();
        let at = time_of(&mut self.program.exprs, self.recurrence, self.direction, step);
        let at = self.bind(&mut body, "time", at, time);
        // The first step writes the first buffer, which the second one reads.
        let [after, before] = self.buffers_by_turns(&mut body, step, states, ["after", "before"]);
        for pass in &all {
            let hidden = HiddenSource::Exchanged(before);
            body.extend(self.pass(pass, TimeStep { time: at, before: zero, after }, hidden));
        }
        let (start, end) = (self.program.exprs.index(1), self.program.exprs.index(time as i64));
        out.push(Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body });
        out
    }

    /// Copies the hidden states of all units that CTAs have exchanged, from an offset on, to shared memory.
    fn copy_states(&mut self, before: ExprId) -> Option<Stmt> {
        let (buffer, from) = (self.shared.hidden?, self.grid?.states);
        let (rows, extents) = (self.schedule.rows, self.recurrence.extents);
        let dtype = self.program.buffer(from).dtype;
        let lanes = [8, 4, 2]
            .into_iter()
            .find(|&lanes| extents.hidden.is_multiple_of(lanes) && lanes * dtype.size_bytes() <= LOAD_BYTES);
        let lanes = lanes.unwrap_or(1);
        let count = rows * extents.hidden / lanes;
        let chunk = self.schedule.threads() * LOADS_IN_FLIGHT;
        let chunks = count.div_ceil(chunk);
        let (var, number) = self.program.exprs.fresh_index("chunk", chunks);
        let first = self.program.exprs.linear_index(&[number, self.thread], &[chunk, 1]);
        // All loads of a chunk before its stores, which no load is moved across.
        let (mut body, mut stores) = (Vec::new(), Vec::new());
        for load in 0..LOADS_IN_FLIGHT.min(count.div_ceil(self.schedule.threads())) {
            let exprs = &mut self.program.exprs;
            let number = exprs.add_const(first, (load * self.schedule.threads()) as i64);
            let of_row = exprs.index((extents.hidden / lanes) as i64);
            let [row, vector] = [exprs.floor_div(number, of_row), exprs.floor_rem(number, of_row)];
            let unit = exprs.mul_const(vector, lanes as i64);
            let (sequence, sequences) = (exprs.add2(self.first_row, row), exprs.index(extents.batch as i64));
            let (limit, zero) = (exprs.index(count as i64), exprs.index(0));
            let limits = [exprs.lt(number, limit), exprs.lt(sequence, sequences)];
            let exists = exprs.all(limits);
            let exists = simplify(exprs, exists);
            let exists = self.let_value(&mut body, "exists", exists);
            // What does not exist is loaded from the first sequence.
            let exprs = &mut self.program.exprs;
            let sequence = exprs.select(exists, sequence, self.first_row);
            let unit = exprs.select(exists, unit, zero);
            let value = self.exchanged_states(&mut body, before, sequence, unit, lanes);
            let exprs = &mut self.program.exprs;
            let value = exprs.cast(self.ty, value);
            let offset = exprs.mul_const(number, lanes as i64);
            let then = vec![Stmt::Store { buffer, offset, value, mask: None }];
            stores.push(Stmt::If { condition: exists, then, otherwise: Vec::new() });
        }
        body.extend(stores);
        let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(chunks as i64));
        Some(Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body })
    }

    /// Inputs of the items' gates are loaded before the product, whose loads they are in flight with.
    fn pass(&mut self, pass: &Pass, step: TimeStep, hidden: HiddenSource) -> Vec<Stmt> {
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
        if let HiddenSource::Exchanged(before) = hidden {
            out.extend(self.grid_barrier());
            if let Some(copy) = self.copy_states(before) {
                out.extend([copy, self.barrier()]);
            }
        }
        let is_zero = matches!(hidden, HiddenSource::Zeros);
        if !is_zero {
            out.extend(match self.schedule.engine {
                Engine::SharedWeights => self.shared_product(pass, step),
                Engine::RegisterWeights | Engine::Mma(_) => self.register_product(hidden),
            });
            out.push(self.barrier());
        }
        for (item, inputs) in items {
            let then = self.cell(pass, step, item, &inputs, is_zero);
            out.push(Stmt::If { condition: item.exists, then, otherwise: Vec::new() });
        }
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

    /// The cell of an item.
    fn cell(
        &mut self,
        pass: &Pass,
        step: TimeStep,
        item: Item,
        inputs: &[ExprId],
        is_zero: bool,
    ) -> Vec<Stmt> {
        let hidden_units = self.recurrence.extents.hidden;
        let mut body = Vec::new();
        let exprs = &mut self.program.exprs;
        let state = exprs.linear_index(&[item.row, item.unit], &[hidden_units, 1]);
        let before = exprs.add2(step.before, state);
        let hidden = self.hidden_state(item, before);
        let hidden = self.let_value(&mut body, "before", hidden);
        let cell = self.shared.cell.map(|buffer| {
            let cell = self.program.exprs.load(buffer, item.number, 1, None);
            self.let_value(&mut body, "cell_before", cell)
        });
        let mut accumulators = Vec::new();
        let mut candidate_input = None;
        for (&gate, &input) in pass.gates.iter().zip(inputs) {
            let product = match is_zero {
                true => self.program.exprs.zero(self.ty),
                false => self.sum_of_parts(&mut body, item, gate),
            };
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
        let of_row = self.schedule.accumulators_of_row(self.recurrence);
        let exprs = &mut self.program.exprs;
        let line = exprs.linear_index(&[item.row, item.own], &[of_row, 1]);
        let mut values: Vec<ExprId> = (0..parts)
            .map(|part| {
                let offset = exprs.add_const(line, (part * rows * of_row + gate * units) as i64);
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
        match (self.shared.own_hidden, self.shared.hidden) {
            (Some(buffer), _) => {
                out.push(Stmt::Store { buffer, offset: item.number, value: next, mask: None });
                if let Some(GridBuffers { states, .. }) = self.grid {
                    let offset = self.state_offset(item.sequence, item.unit);
                    let dtype = self.program.buffer(states).dtype;
                    let exprs = &mut self.program.exprs;
                    let (offset, value) = (exprs.add2(step.after, offset), exprs.cast(dtype, next));
                    out.push(Stmt::Store { buffer: states, offset, value, mask: None });
                }
            }
            (None, Some(buffer)) => {
                let exprs = &mut self.program.exprs;
                let state = exprs.linear_index(&[item.row, item.unit], &[extents.hidden, 1]);
                let after = exprs.add2(step.after, state);
                out.extend(self.store_to_all(buffer, after, next));
            }
            (None, None) => unreachable!("hidden states are in shared memory"),
        }
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
        if self.schedule.ctas == 1 {
            return vec![Stmt::Store { buffer, offset, value, mask: None }];
        }
        let mut out = Vec::new();
        let value = self.let_value(&mut out, "state", value);
        for rank in 0..self.schedule.ctas {
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
                let value = emitter.hidden_state(item, from);
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
