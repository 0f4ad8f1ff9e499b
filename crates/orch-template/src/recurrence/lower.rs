//! Recurrences as thread programs of a CPU.

use super::cell::{CellInputs, CellOutputs, CellWriter};
use super::schedule::RecurrenceSchedule;
use super::steps::{Pass, StatesAfter, TimeStep, passes, states_after, time_of};
use crate::bind::bind_index;
use orch_compute::block::ArgRole;
use orch_compute::expr::{ArgId, BufferId, ExprId, Type, VarId};
use orch_compute::recurrence::RecurrenceProgram;
use orch_ir::{DType, RecurrenceOperand, RnnCell};
use orch_thread::kernel::{Binding, Kernel, PackedConstant};
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use orch_thread::target::CpuTarget;

/// Iterations along the K dimension of a product that are unrolled.
const UNROLLED_K: u32 = 4;

/// Phases of a recurrence whose steps are shared: the states before the first step, the passes of each step, and those after the last one
/// if they are results.
fn phases(recurrence: &RecurrenceProgram) -> usize {
    let RecurrenceProgram { spec, extents, last_hidden, last_cell, .. } = recurrence;
    let has_last = last_hidden.is_some() || last_cell.is_some();
    1 + extents.time * passes(spec.cell).len() + usize::from(has_last)
}

/// Lowers a recurrence under a schedule.
pub fn lower(recurrence: &RecurrenceProgram, schedule: &RecurrenceSchedule, target: &CpuTarget) -> Kernel {
    let mut emitter = Emitter::new(recurrence, *schedule, target);
    let body = emitter.task();
    emitter.program.body = body;
    Kernel { program: emitter.program, bindings: emitter.bindings }
}

/// Scratch of a work item that computes all steps, `[row, unit]` with lines of `line` elements each; otherwise memory of the kernel,
/// `[direction, row, unit]`. The accumulators are always scratch.
struct States {
    /// Before and after a step, double-buffered.
    hidden: BufferId,
    /// The cell state of an LSTM.
    cell: Option<BufferId>,
    /// The hidden state times the reset gate.
    reset_hidden: Option<BufferId>,
    /// The update gate, if it is computed before the candidate.
    update: Option<BufferId>,
    /// `[row of the tile, gate, unit of the panel]`.
    accumulators: BufferId,
}

struct Emitter<'a> {
    recurrence: &'a RecurrenceProgram,
    schedule: RecurrenceSchedule,
    lanes: usize,
    /// The type of states and accumulators.
    ty: DType,
    program: ThreadProgram,
    bindings: Vec<Binding>,
    /// By argument.
    buffers: Vec<BufferId>,
    /// Whether the weights are packed.
    is_packed: bool,
    states: States,
    /// Elements between rows of a state.
    line: usize,
    /// Elements of a state.
    state_elems: usize,
    direction: ExprId,
    /// The first sequence of the work item.
    first_row: ExprId,
    /// The part of a step that the work item computes, if not all.
    part: Option<StepPart>,
}

/// A part of the panels of a step.
#[derive(Clone, Copy)]
struct StepPart {
    /// The number of the part.
    number: ExprId,
    /// How many parts there are.
    count: usize,
    /// Panels of a part, but for the last one.
    panels: usize,
}

/// Some vectors of hidden units of a panel.
#[derive(Clone, Copy)]
struct Units {
    /// The first unit of the panel.
    first: ExprId,
    /// Units of the panel.
    count: usize,
    /// The number of the panel.
    panel: ExprId,
}

impl<'a> Emitter<'a> {
    fn new(recurrence: &'a RecurrenceProgram, schedule: RecurrenceSchedule, target: &CpuTarget) -> Self {
        let extents = recurrence.extents;
        let ty = recurrence.compute_type();
        let lanes = target.lanes(ty.size_bytes());
        let is_shared = schedule.panels.is_some();
        let phases = if is_shared { phases(recurrence) } else { 1 };
        let mut program = ThreadProgram::new(&recurrence.name, phases * schedule.items(recurrence, target));
        program.phases = phases;
        let is_packed = recurrence.arg(RecurrenceProgram::R).role == ArgRole::Constant;
        let mut bindings = Vec::new();
        let mut buffers = Vec::new();
        let panel_units = schedule.vectors * lanes;
        for (number, arg) in recurrence.args.iter().enumerate() {
            let id = ArgId::new(number);
            let (elems, binding) = match is_packed && id == RecurrenceProgram::R {
                true => {
                    let packed = packed_weights(recurrence, panel_units);
                    (packed.elems(), Binding::Packed(packed))
                }
                false => (arg.shape.elems(), Binding::Arg(id)),
            };
            let (name, scope) = (format!("arg{number}"), Scope::from(arg.role));
            buffers.push(program.add_buffer(Buffer { name, dtype: arg.dtype, elems, scope }));
            bindings.push(binding);
        }
        let line = extents.hidden.next_multiple_of(panel_units).max(lanes);
        let mut buffer = |name: &str, elems: usize, scope: Scope| {
            if scope != Scope::Scratch {
                bindings.push(Binding::Own { dtype: ty, elems, is_zeroed: false });
            }
            program.add_buffer(Buffer { name: name.to_owned(), dtype: ty, elems, scope })
        };
        let (scope, states) =
            if is_shared { (Scope::Updated, extents.directions) } else { (Scope::Scratch, 1) };
        let state_elems = states * schedule.batch_rows * line;
        let cell = recurrence.spec.cell;
        let resets_operand = cell == RnnCell::Gru { linear_before_reset: false };
        let states = States {
            hidden: buffer("hidden", 2 * state_elems, scope),
            cell: cell.has_cell_state().then(|| buffer("cell", state_elems, scope)),
            reset_hidden: resets_operand.then(|| buffer("reset_hidden", state_elems, scope)),
            update: resets_operand.then(|| buffer("update", state_elems, scope)),
            accumulators: buffer("accumulators", schedule.rows * cell.gates() * panel_units, Scope::Scratch),
        };
        let zero = program.exprs.index(0);
        Self {
            recurrence,
            schedule,
            lanes,
            ty,
            program,
            bindings,
            buffers,
            is_packed,
            states,
            line,
            state_elems,
            direction: zero,
            first_row: zero,
            part: None,
        }
    }

    /// Units of a panel.
    fn panel_units(&self) -> usize {
        self.schedule.vectors * self.lanes
    }

    fn task(&mut self) -> Vec<Stmt> {
        match self.schedule.panels {
            Some(panels) => self.phase(panels),
            None => self.all_steps(),
        }
    }

    /// A work item of one phase. The first phase stores the states before the first step, the last one those after the last step where
    /// they are results; each of the others is a pass of a step.
    fn phase(&mut self, panels: usize) -> Vec<Stmt> {
        let extents = self.recurrence.extents;
        let (phases, count) = (self.program.phases, self.program.phase_items() / extents.directions);
        let mut body = Vec::new();
        let task = self.program.exprs.var(self.program.task);
        let index = self.program.exprs.unflatten(task, &[phases, extents.directions, count]);
        let phase = self.bind(&mut body, "phase", index[0], phases);
        self.direction = self.bind(&mut body, "direction", index[1], extents.directions);
        let number = self.bind(&mut body, "part", index[2], count);
        self.part = Some(StepPart { number, count, panels });
        let zero = self.program.exprs.index(0);
        let is_first_part = self.program.exprs.eq(number, zero);
        let once = |stmt| Stmt::If { condition: is_first_part, then: vec![stmt], otherwise: Vec::new() };
        let mut otherwise = self.pass_of_phase(phase);
        if let Some(last_states) = self.last_states() {
            let last = self.program.exprs.index(phases as i64 - 1);
            let condition = self.program.exprs.eq(phase, last);
            otherwise = vec![Stmt::If { condition, then: vec![once(last_states)], otherwise }];
        }
        let condition = self.program.exprs.eq(phase, zero);
        let then = vec![once(self.initial_states())];
        body.push(Stmt::If { condition, then, otherwise });
        body
    }

    /// The pass of a step that a phase is: those of the first step begin with phase 1.
    fn pass_of_phase(&mut self, phase: ExprId) -> Vec<Stmt> {
        let passes = passes(self.recurrence.spec.cell);
        let mut body = Vec::new();
        let exprs = &mut self.program.exprs;
        let (number, count) = (exprs.add_const(phase, -1), exprs.index(passes.len() as i64));
        let (step, pass) = (exprs.floor_div(number, count), exprs.floor_rem(number, count));
        let step = self.bind(&mut body, "step", step, self.recurrence.extents.time);
        let step = self.time_step(&mut body, step);
        let mut alternatives =
            passes.iter().map(|pass| self.pass(pass, step)).collect::<Vec<_>>().into_iter();
        let mut statements = alternatives.next().unwrap_or_default();
        for (number, then) in (1..).zip(alternatives) {
            let number = self.program.exprs.index(number);
            let condition = self.program.exprs.eq(pass, number);
            statements = vec![Stmt::If { condition, then, otherwise: statements }];
        }
        body.extend(statements);
        body
    }

    /// A work item that computes all steps.
    fn all_steps(&mut self) -> Vec<Stmt> {
        let extents = self.recurrence.extents;
        let tiles = extents.batch.div_ceil(self.schedule.batch_rows).max(1);
        let mut body = Vec::new();
        let task = self.program.exprs.var(self.program.task);
        let parts = self.program.exprs.unflatten(task, &[extents.directions, tiles]);
        self.direction = self.bind(&mut body, "direction", parts[0], extents.directions);
        let tile = self.bind(&mut body, "tile", parts[1], tiles);
        self.first_row = self.program.exprs.mul_const(tile, self.schedule.batch_rows as i64);
        body.push(self.initial_states());
        body.push(self.steps());
        body.extend(self.last_states());
        body
    }

    /// Binds an expression with values `0..extent`; a constant stays one.
    fn bind(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId, extent: usize) -> ExprId {
        bind_index(&mut self.program, body, name, value, extent)
    }

    /// A loop over `0..end` in steps, whose body takes the variable.
    fn loop_over(
        &mut self,
        name: &str,
        (end, step): (usize, usize),
        body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>,
    ) -> Stmt {
        let exprs = &mut self.program.exprs;
        let (var, value) = exprs.fresh_index(name, end);
        exprs.set_multiple_of(var, step as i64);
        let body = body(self, value);
        let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(end as i64));
        Stmt::For { var, start, end, step: step as i64, kind: LoopKind::Serial, body }
    }

    /// The sequence in a row of the task. Rows past the last sequence repeat it.
    fn sequence(&mut self, row: ExprId) -> ExprId {
        let batch = self.recurrence.extents.batch;
        let exprs = &mut self.program.exprs;
        let sequence = exprs.add2(self.first_row, row);
        if batch.is_multiple_of(self.schedule.batch_rows) {
            return sequence;
        }
        let last = exprs.index(batch as i64 - 1);
        exprs.min(sequence, last)
    }

    /// The first lanes, as many as there are units from a constant on: none masks nothing.
    fn tail_mask(&mut self, valid: usize) -> Option<ExprId> {
        if valid >= self.lanes {
            return None;
        }
        let exprs = &mut self.program.exprs;
        let (zero, count) = (exprs.index(0), exprs.index(valid as i64));
        let (lane, count) = (exprs.ramp(zero, 1, self.lanes), exprs.splat(count, self.lanes));
        Some(exprs.lt(lane, count))
    }

    /// Runs `body` for every vector of `count` units: it takes the first unit and the mask of the vector.
    fn vectors(
        &mut self,
        count: usize,
        mut body: impl FnMut(&mut Self, ExprId, Option<ExprId>) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let whole = count / self.lanes * self.lanes;
        let mut out = Vec::new();
        match whole / self.lanes {
            0 => {}
            1 => {
                let first = self.program.exprs.index(0);
                out.extend(body(self, first, None));
            }
            _ => out.push(
                self.loop_over("vector", (whole, self.lanes), |emitter, first| body(emitter, first, None)),
            ),
        }
        if whole < count {
            let first = self.program.exprs.index(whole as i64);
            let mask = self.tail_mask(count - whole);
            out.extend(body(self, first, mask));
        }
        out
    }

    /// A vector of an argument in the type of the accumulators.
    fn load(&mut self, arg: ArgId, offset: ExprId, mask: Option<ExprId>) -> ExprId {
        let buffer = self.buffers[arg.index()];
        let value = self.program.exprs.load(buffer, offset, self.lanes, mask);
        self.program.exprs.cast(self.ty, value)
    }

    fn store(&mut self, arg: ArgId, offset: ExprId, value: ExprId, mask: Option<ExprId>) -> Stmt {
        let buffer = self.buffers[arg.index()];
        let value = self.program.exprs.cast(self.recurrence.arg(arg).dtype, value);
        Stmt::Store { buffer, offset, value, mask }
    }

    /// The place of a unit in a state.
    fn place_in_state(&mut self, row: ExprId, unit: ExprId) -> ExprId {
        let exprs = &mut self.program.exprs;
        match self.part {
            Some(_) => {
                let strides = [self.schedule.batch_rows * self.line, self.line, 1];
                exprs.linear_index(&[self.direction, row, unit], &strides)
            }
            None => exprs.linear_index(&[row, unit], &[self.line, 1]),
        }
    }

    /// The place of a unit in `[direction, sequence, unit]`.
    fn state_at(&mut self, sequence: ExprId, unit: ExprId) -> ExprId {
        let extents = self.recurrence.extents;
        let strides = [extents.batch * extents.hidden, extents.hidden, 1];
        self.program.exprs.linear_index(&[self.direction, sequence, unit], &strides)
    }

    /// Stores the states before the first step. Units past the last one are 0.
    fn initial_states(&mut self) -> Stmt {
        let operands = [
            (Some(self.states.hidden), RecurrenceOperand::InitialHidden),
            (self.states.cell, RecurrenceOperand::InitialCell),
        ];
        self.loop_over("row", (self.schedule.batch_rows, 1), |emitter, row| {
            let mut body = Vec::new();
            let sequence = emitter.sequence(row);
            for (buffer, operand) in operands {
                let Some(buffer) = buffer else { continue };
                let zeros = emitter.zeros();
                let line = emitter.line;
                body.push(emitter.loop_over("vector", (line, emitter.lanes), |emitter, unit| {
                    let offset = emitter.place_in_state(row, unit);
                    vec![Stmt::Store { buffer, offset, value: zeros, mask: None }]
                }));
                let Some(arg) = emitter.recurrence.operand(operand) else { continue };
                body.extend(emitter.vectors(emitter.recurrence.extents.hidden, |emitter, unit, mask| {
                    let from = emitter.state_at(sequence, unit);
                    let value = emitter.load(arg, from, mask);
                    let offset = emitter.place_in_state(row, unit);
                    vec![Stmt::Store { buffer, offset, value, mask: None }]
                }));
            }
            body
        })
    }

    fn zeros(&mut self) -> ExprId {
        let zero = self.program.exprs.zero(self.ty);
        self.program.exprs.splat(zero, self.lanes)
    }

    /// Stores the states after the last step.
    fn last_states(&mut self) -> Option<Stmt> {
        let RecurrenceProgram { last_hidden, last_cell, extents, .. } = self.recurrence;
        let hidden_base = extents.time % 2 * self.state_elems;
        let results =
            [(Some(self.states.hidden), *last_hidden, hidden_base), (self.states.cell, *last_cell, 0)];
        if results.iter().all(|(_, arg, _)| arg.is_none()) {
            return None;
        }
        Some(self.loop_over("row", (self.schedule.batch_rows, 1), |emitter, row| {
            let mut body = Vec::new();
            let sequence = emitter.sequence(row);
            for (buffer, arg, base) in results {
                let (Some(buffer), Some(arg)) = (buffer, arg) else { continue };
                body.extend(emitter.vectors(extents.hidden, |emitter, unit, mask| {
                    let from = emitter.place_in_state(row, unit);
                    let from = emitter.program.exprs.add_const(from, base as i64);
                    let value = emitter.program.exprs.load(buffer, from, emitter.lanes, None);
                    let to = emitter.state_at(sequence, unit);
                    vec![emitter.store(arg, to, value, mask)]
                }));
            }
            body
        }))
    }

    /// The loop over time.
    fn steps(&mut self) -> Stmt {
        self.loop_over("step", (self.recurrence.extents.time, 1), |emitter, step| {
            let mut body = Vec::new();
            let step = emitter.time_step(&mut body, step);
            for pass in passes(emitter.recurrence.spec.cell) {
                body.extend(emitter.pass(&pass, step));
            }
            body
        })
    }

    /// Binds the place in time of a step, and which half of the hidden states it reads.
    fn time_step(&mut self, body: &mut Vec<Stmt>, step: ExprId) -> TimeStep {
        let state = self.state_elems as i64;
        let time = time_of(&mut self.program.exprs, self.recurrence, self.direction, step);
        let time = self.bind(body, "time", time, self.recurrence.extents.time);
        let exprs = &mut self.program.exprs;
        let two = exprs.index(2);
        let parity = exprs.floor_rem(step, two);
        let before = exprs.mul_const(parity, state);
        let before = self.bind_multiple(body, "before", before, state);
        let whole = self.program.exprs.index(state);
        let after = self.program.exprs.sub(whole, before);
        let after = self.bind_multiple(body, "after", after, state);
        TimeStep { time, before, after }
    }

    /// Binds an offset that is 0 or `state`.
    fn bind_multiple(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId, state: i64) -> ExprId {
        let var = self.program.exprs.declare_index(name, state as usize + 1);
        self.program.exprs.set_multiple_of(var, self.lanes as i64);
        body.push(Stmt::Let(var, value));
        self.program.exprs.var(var)
    }

    /// A pass over the panels of the work item: a loop over the whole ones, and the last one of all.
    fn pass(&mut self, pass: &Pass, step: TimeStep) -> Vec<Stmt> {
        let (hidden, units) = (self.recurrence.extents.hidden, self.panel_units());
        let whole = hidden / units;
        let mut out = Vec::new();
        if whole > 0 {
            let exprs = &mut self.program.exprs;
            let (var, panel) = exprs.fresh_index("panel", whole);
            let (mut start, mut end) = (exprs.index(0), exprs.index(whole as i64));
            if let Some(StepPart { number, panels, .. }) = self.part {
                start = exprs.mul_const(number, panels as i64);
                let own_end = exprs.add_const(start, panels as i64);
                end = exprs.min(own_end, end);
            }
            let mut body = Vec::new();
            let first = exprs.mul_const(panel, units as i64);
            let first_unit = exprs.declare_index("first_unit", hidden);
            exprs.set_multiple_of(first_unit, units as i64);
            body.push(Stmt::Let(first_unit, first));
            let first = exprs.var(first_unit);
            body.push(self.panel(pass, step, Units { first, count: units, panel }));
            out.push(Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body });
        }
        if whole * units < hidden {
            let [first, panel] = [whole * units, whole].map(|value| self.program.exprs.index(value as i64));
            let last = self.panel(pass, step, Units { first, count: hidden - whole * units, panel });
            out.push(match self.part {
                Some(StepPart { number, count, .. }) if count > 1 => {
                    let of_last = self.program.exprs.index(count as i64 - 1);
                    let condition = self.program.exprs.eq(number, of_last);
                    Stmt::If { condition, then: vec![last], otherwise: Vec::new() }
                }
                _ => last,
            });
        }
        out
    }

    /// A loop over the tiles of sequences.
    fn panel(&mut self, pass: &Pass, step: TimeStep, units: Units) -> Stmt {
        let rows = self.schedule.rows;
        self.loop_over("tile_row", (self.schedule.batch_rows, rows), |emitter, first| {
            let mut body = emitter.accumulate(pass, step, units, first);
            body.push(emitter.loop_over("row", (rows, 1), |emitter, row| {
                let tile_row = row;
                let row = emitter.program.exprs.add2(first, row);
                let sequence = emitter.sequence(row);
                emitter.vectors(units.count, |emitter, unit, mask| {
                    let at = UnitVector { tile_row, row, sequence, in_panel: unit, mask };
                    emitter.cell(pass, step, units, at)
                })
            }));
            body
        })
    }

    /// Stores the products of a tile with the weights of a panel.
    fn accumulate(&mut self, pass: &Pass, step: TimeStep, units: Units, first_row: ExprId) -> Vec<Stmt> {
        let vectors = units.count.div_ceil(self.lanes);
        let (operand, base) = match self.states.reset_hidden.filter(|_| pass.resets_operand) {
            Some(buffer) => (buffer, self.program.exprs.index(0)),
            None => (self.states.hidden, step.before),
        };
        let mut out = Vec::new();
        let rows = self.schedule.rows;
        let accumulators = self.accumulators((rows, pass.gates.len(), vectors), &mut out);
        let hidden = self.recurrence.extents.hidden;
        let (k_var, k) = self.program.exprs.fresh_index("k", hidden);
        let mut body = Vec::new();
        let mut weights = Vec::new();
        for &gate in &pass.gates {
            for vector in 0..vectors {
                let weight = self.weight(k, gate, units, vector);
                weights.push(self.let_value(&mut body, "weight", weight));
            }
        }
        for (row, registers) in accumulators.iter().enumerate() {
            let exprs = &mut self.program.exprs;
            let at = exprs.add_const(first_row, row as i64);
            let offset = self.place_in_state(at, k);
            let exprs = &mut self.program.exprs;
            let offset = exprs.add2(base, offset);
            let factor = exprs.load(operand, offset, 1, None);
            let factor = exprs.splat(factor, self.lanes);
            let factor = self.let_value(&mut body, "factor", factor);
            for (&register, &weight) in registers.iter().zip(&weights) {
                let acc = self.program.exprs.var(register);
                let next = self.program.exprs.fma(factor, weight, acc);
                body.push(Stmt::Assign(register, next));
            }
        }
        let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(hidden as i64));
        let kind = LoopKind::UnrollBy(UNROLLED_K);
        out.push(Stmt::For { var: k_var, start, end, step: 1, kind, body });
        for (row, registers) in accumulators.iter().enumerate() {
            for (number, &register) in registers.iter().enumerate() {
                let (gate, vector) = (pass.gates[number / vectors], number % vectors);
                let place = (row * self.recurrence.spec.cell.gates() + gate) * self.panel_units();
                let offset = self.program.exprs.index((place + vector * self.lanes) as i64);
                let value = self.program.exprs.var(register);
                out.push(Stmt::Store { buffer: self.states.accumulators, offset, value, mask: None });
            }
        }
        out
    }

    /// Zeros: `[row][gate, vector]`.
    fn accumulators(
        &mut self,
        (rows, gates, vectors): (usize, usize, usize),
        body: &mut Vec<Stmt>,
    ) -> Vec<Vec<VarId>> {
        let zeros = self.zeros();
        let ty = Type::vector(self.ty, self.lanes);
        let mut row = || {
            let register = |_| {
                let register = self.program.exprs.declare_register("accumulator", ty);
                body.push(Stmt::Register(register, zeros));
                register
            };
            (0..gates * vectors).map(register).collect()
        };
        (0..rows).map(|_| row()).collect()
    }

    fn let_value(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId) -> ExprId {
        let var = self.program.exprs.declare_register(name, self.program.exprs.ty(value));
        body.push(Stmt::Let(var, value));
        self.program.exprs.var(var)
    }

    /// A vector of weights: of `[direction, panel, k, gate, unit]` if they are packed, otherwise of `[direction, k, gate, unit]`.
    fn weight(&mut self, k: ExprId, gate: usize, units: Units, vector: usize) -> ExprId {
        let (gates, hidden) = (self.recurrence.spec.cell.gates(), self.recurrence.extents.hidden);
        let in_panel = vector * self.lanes;
        let width = gates * self.panel_units();
        let exprs = &mut self.program.exprs;
        if self.is_packed {
            let panels = hidden.div_ceil(self.schedule.vectors * self.lanes);
            let strides = [panels * hidden * width, hidden * width, width];
            let line = exprs.linear_index(&[self.direction, units.panel, k], &strides);
            let offset = exprs.add_const(line, (gate * self.schedule.vectors * self.lanes + in_panel) as i64);
            return self.load(RecurrenceProgram::R, offset, None);
        }
        let rows = gates * hidden;
        let line = exprs.linear_index(&[self.direction, k, units.first], &[hidden * rows, rows, 1]);
        let offset = exprs.add_const(line, (gate * hidden + in_panel) as i64);
        let mask = self.tail_mask(units.count - in_panel);
        self.load(RecurrenceProgram::R, offset, mask)
    }

    /// The statements of a cell at a vector of units.
    fn cell(&mut self, pass: &Pass, step: TimeStep, units: Units, at: UnitVector) -> Vec<Stmt> {
        let mut body = Vec::new();
        let exprs = &mut self.program.exprs;
        let unit = exprs.add2(units.first, at.in_panel);
        let state = self.place_in_state(at.row, unit);
        let before = self.program.exprs.add2(step.before, state);
        let hidden = self.program.exprs.load(self.states.hidden, before, self.lanes, None);
        let hidden = self.let_value(&mut body, "before", hidden);
        let cell = self.states.cell.map(|buffer| {
            let cell = self.program.exprs.load(buffer, state, self.lanes, None);
            self.let_value(&mut body, "cell_before", cell)
        });
        let mut accumulators = Vec::new();
        let mut candidate_input = None;
        for &gate in &pass.gates {
            let acc = self.accumulator_of(at, gate);
            let input = self.input(step, units, at, gate);
            let is_reset = self.recurrence.spec.cell == RnnCell::Gru { linear_before_reset: true };
            let both = if is_reset && gate == 2 {
                candidate_input = Some(input);
                acc
            } else {
                self.program.exprs.add2(acc, input)
            };
            accumulators.push(self.let_value(&mut body, "gate", both));
        }
        let peepholes = self.recurrence.operand(RecurrenceOperand::Peepholes).map(|arg| {
            [0, 1, 2].map(|gate| {
                let hidden = self.recurrence.extents.hidden;
                let line = self.program.exprs.linear_index(&[self.direction, unit], &[3 * hidden, 1]);
                let offset = self.program.exprs.add_const(line, (gate * hidden) as i64);
                self.load(arg, offset, at.mask)
            })
        });
        let candidate_bias = self.recurrence.operand(RecurrenceOperand::CandidateBias).map(|arg| {
            let hidden = self.recurrence.extents.hidden;
            let offset = self.program.exprs.linear_index(&[self.direction, unit], &[hidden, 1]);
            self.load(arg, offset, at.mask)
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
        let reset_buffers = self.states.reset_hidden.zip(self.states.update);
        let outputs = match (reset_buffers, pass.resets_operand) {
            (Some((reset_hidden, update)), false) => {
                let (z, r) = (writer.update(&inputs), writer.reset(&inputs));
                let product = self.program.exprs.mul(r, hidden);
                for (buffer, value) in [(update, z), (reset_hidden, product)] {
                    body.push(Stmt::Store { buffer, offset: state, value, mask: None });
                }
                return body;
            }
            (Some((_, update)), true) => {
                let z = writer.exprs.load(update, state, self.lanes, None);
                writer.updated(accumulators[0], z, hidden)
            }
            (None, _) => writer.step(&inputs),
        };
        body.extend(self.store_states(step, at, unit, (hidden, cell), outputs));
        body
    }

    /// A vector of the accumulators of a gate.
    fn accumulator_of(&mut self, at: UnitVector, gate: usize) -> ExprId {
        let gates = self.recurrence.spec.cell.gates();
        let units = self.panel_units();
        let gate = self.program.exprs.index(gate as i64);
        let strides = [gates * units, units, 1];
        let offset = self.program.exprs.linear_index(&[at.tile_row, gate, at.in_panel], &strides);
        self.program.exprs.load(self.states.accumulators, offset, self.lanes, None)
    }

    /// The input's part of a gate: `x[time, sequence, direction, gate, unit]`.
    fn input(&mut self, step: TimeStep, units: Units, at: UnitVector, gate: usize) -> ExprId {
        let extents = self.recurrence.extents;
        let rows = self.recurrence.spec.cell.gates() * extents.hidden;
        let exprs = &mut self.program.exprs;
        let unit = exprs.add2(units.first, at.in_panel);
        let strides = [extents.batch * extents.directions * rows, extents.directions * rows, rows, 1];
        let line = exprs.linear_index(&[step.time, at.sequence, self.direction, unit], &strides);
        let offset = exprs.add_const(line, (gate * extents.hidden) as i64);
        self.load(RecurrenceProgram::X, offset, at.mask)
    }

    /// Stores the states after a step, which past a sequence's length are those before it, and the step's result.
    fn store_states(
        &mut self,
        step: TimeStep,
        at: UnitVector,
        unit: ExprId,
        (hidden, cell): (ExprId, Option<ExprId>),
        outputs: CellOutputs,
    ) -> Vec<Stmt> {
        let mut out = Vec::new();
        let state = self.place_in_state(at.row, unit);
        let length = self.recurrence.operand(RecurrenceOperand::Lengths).map(|arg| {
            let length = self.program.exprs.load(self.buffers[arg.index()], at.sequence, 1, None);
            (step.time, length)
        });
        let StatesAfter { hidden: next, cell: next_cell, shown } =
            states_after(&mut self.program.exprs, self.recurrence.dtype, (hidden, cell), &outputs, length);
        let after = self.program.exprs.add2(step.after, state);
        out.push(Stmt::Store { buffer: self.states.hidden, offset: after, value: next, mask: None });
        if let Some((buffer, value)) = self.states.cell.zip(next_cell) {
            out.push(Stmt::Store { buffer, offset: state, value, mask: None });
        }
        if let Some(y) = self.recurrence.y {
            let extents = self.recurrence.extents;
            let line = extents.directions * extents.hidden;
            let strides = [extents.batch * line, line, extents.hidden, 1];
            let index = [step.time, at.sequence, self.direction, unit];
            let offset = self.program.exprs.linear_index(&index, &strides);
            out.push(self.store(y, offset, shown, at.mask));
        }
        out
    }
}

/// A vector of units of one sequence.
#[derive(Clone, Copy)]
struct UnitVector {
    /// The row in the tile.
    tile_row: ExprId,
    /// The row in the task.
    row: ExprId,
    /// The sequence.
    sequence: ExprId,
    /// The first unit, counted from the first of the panel.
    in_panel: ExprId,
    /// Units that exist; `None` is all.
    mask: Option<ExprId>,
}

/// The weights in panels of `units` hidden units: `[direction, panel, k, gate, unit]`. Units past the last one repeat it.
fn packed_weights(recurrence: &RecurrenceProgram, units: usize) -> PackedConstant {
    let extents = recurrence.extents;
    let (gates, hidden) = (recurrence.spec.cell.gates(), extents.hidden);
    let rows = gates * hidden;
    let mut column_offsets = Vec::new();
    for first in (0..hidden).step_by(units) {
        for gate in 0..gates {
            column_offsets.extend((first..first + units).map(|unit| gate * hidden + unit.min(hidden - 1)));
        }
    }
    PackedConstant {
        arg: RecurrenceProgram::R,
        dtype: recurrence.arg(RecurrenceProgram::R).dtype,
        width: gates * units,
        group: 1,
        k_extent: hidden,
        batch_offsets: (0..extents.directions).map(|direction| direction * hidden * rows).collect(),
        k_offsets: (0..hidden).map(|k| k * rows).collect(),
        column_offsets,
    }
}
