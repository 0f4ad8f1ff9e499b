//! What the parts of the template share: the program, its buffers, and how they are indexed.

use super::schedule::{
    Engine, Exchange, FRAGMENTS_IN_FLIGHT, GpuRecurrenceSchedule, MMA_BLOCK_K, MMA_COLUMNS, MMA_SEQUENCES,
};
use crate::bind::{add_arguments, bind_index, bind_value, bind_var};
use orch_compute::expr::{ArgId, BufferId, ExprId, Type};
use orch_compute::recurrence::RecurrenceProgram;
use orch_ir::{DType, RnnCell};
use orch_thread::cta::{CtaStmt, Location};
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};

/// Loads of a thread that are in flight together.
pub(super) const LOADS_IN_FLIGHT: usize = 8;

/// Memory of CTAs that exchange states in the grid.
#[derive(Clone, Copy)]
pub(super) struct GridBuffers {
    /// The counters of grid barriers, one for each group of CTAs that share the hidden units.
    pub arrived: BufferId,
    /// `[2, direction, sequence, unit]`: hidden states before and after a step, double-buffered; in the type of `mma.sync`'s operands if
    /// it multiplies.
    pub states: BufferId,
}

/// Shared memory of a CTA.
pub(super) struct SharedBuffers {
    /// `[2, row, unit]`, all hidden units: before and after a step, double-buffered. Of CTAs that exchange states in the grid
    /// `[row, unit]`, before a step, and only if products take states from there.
    pub hidden: Option<BufferId>,
    /// `[item]`: the hidden state of CTAs that exchange states in the grid.
    pub own_hidden: Option<BufferId>,
    /// `[row, unit]`, all hidden units: the hidden state times the reset gate.
    pub reset_hidden: Option<BufferId>,
    /// `[item]`: the update gate, if it is computed before the candidate.
    pub update: Option<BufferId>,
    /// `[item]`: the cell state of an LSTM.
    pub cell: Option<BufferId>,
    /// `[part, row, gate, unit]`, own units; neighbouring rows are
    /// [`accumulators_of_row`](GpuRecurrenceSchedule::accumulators_of_row) apart.
    pub accumulators: BufferId,
    /// `[k, gate, unit]`, own units.
    pub weights: Option<BufferId>,
}

/// Where the hidden states before a step are.
#[derive(Clone, Copy)]
pub(super) enum HiddenSource {
    /// In shared memory.
    Shared,
    /// In an operand: the first step.
    Initial(ArgId),
    /// In what CTAs exchange in the grid, from this offset on.
    Exchanged(ExprId),
    /// Nowhere: they are zeros.
    Zeros,
}

/// Emits the program of a CTA: its parts are in `lower` (steps and cells), `shared_weights` and `register_weights` (products).
pub(super) struct Emitter<'a> {
    pub recurrence: &'a RecurrenceProgram,
    pub schedule: GpuRecurrenceSchedule,
    /// The type of states and accumulators.
    pub ty: DType,
    pub program: ThreadProgram,
    pub shared: SharedBuffers,
    pub registers: Option<RegisterBuffers>,
    pub grid: Option<GridBuffers>,
    pub thread: ExprId,
    /// The CTA's direction, its tile of sequences and the first of these, and its rank among the CTAs that share the hidden units.
    pub direction: ExprId,
    pub tile: ExprId,
    pub first_row: ExprId,
    pub rank: ExprId,
}

/// Registers of a thread that outlive a step.
pub(super) struct RegisterBuffers {
    /// Weights. By multiply-adds `[block, column]`, of the lane's index in each block of 32 along K. By `mma.sync`
    /// `[tile of 16 columns, block, half of it]` fragments of A.
    pub weights: BufferId,
    /// By `mma.sync`: `[tile of columns, tile of sequences]` accumulators.
    pub accumulators: Option<BufferId>,
    /// By `mma.sync`: fragments of B in flight.
    pub states: Option<BufferId>,
}

impl RegisterBuffers {
    /// Adds them to a program; `None` if the engine keeps weights elsewhere.
    pub fn add(
        program: &mut ThreadProgram,
        engine: Engine,
        columns: usize,
        rows: usize,
        blocks: usize,
    ) -> Option<Self> {
        let mut scratch = |name: &str, dtype: DType, elems: usize| {
            program.add_buffer(Buffer { name: name.to_owned(), dtype, elems, scope: Scope::Scratch })
        };
        match engine {
            Engine::SharedWeights => None,
            Engine::RegisterWeights => Some(Self {
                weights: scratch("weights", DType::F32, blocks * columns),
                accumulators: None,
                states: None,
            }),
            Engine::Mma(ty) => {
                let tiles = columns.div_ceil(MMA_COLUMNS);
                let row_tiles = rows / MMA_SEQUENCES;
                let in_flight = row_tiles.max(FRAGMENTS_IN_FLIGHT / row_tiles * row_tiles);
                Some(Self {
                    weights: scratch("weights", ty.dtype(), tiles * blocks * 2 * 8),
                    accumulators: Some(scratch("mma_accumulators", DType::F32, tiles * row_tiles * 4)),
                    states: Some(scratch("fragments", ty.dtype(), in_flight * 8)),
                })
            }
        }
    }
}

impl<'a> Emitter<'a> {
    pub fn new(recurrence: &'a RecurrenceProgram, schedule: GpuRecurrenceSchedule) -> Self {
        let mut program = ThreadProgram::new(&recurrence.name, schedule.grid(recurrence));
        let thread = program.set_cta(schedule.threads(), schedule.cluster());
        let ty = recurrence.compute_type();
        add_arguments(&mut program, &recurrence.args);
        let in_grid = schedule.exchange == Exchange::Grid;
        let extents = recurrence.extents;
        let exchanged = match schedule.engine {
            Engine::Mma(mma) => mma.dtype(),
            Engine::SharedWeights | Engine::RegisterWeights => ty,
        };
        let mut own = |name: &str, dtype: DType, elems: usize| {
            program.add_buffer(Buffer { name: name.to_owned(), dtype, elems, scope: Scope::Updated })
        };
        let grid = in_grid.then(|| GridBuffers {
            arrived: own("arrived", DType::I32, schedule.groups(recurrence)),
            states: own("states", exchanged, 2 * extents.directions * extents.batch * extents.hidden),
        });
        if let Some(cta) = program.cta.as_mut().filter(|_| in_grid) {
            cta.barrier_group = schedule.ctas;
        }
        let cell = recurrence.spec.cell;
        let gates = cell.gates();
        let states = schedule.rows * recurrence.extents.hidden;
        let items = schedule.rows * schedule.units;
        let resets_operand = cell == RnnCell::Gru { linear_before_reset: false };
        let mut shared = |name: &str, dtype: DType, elems: usize| {
            program.add_buffer(Buffer { name: name.to_owned(), dtype, elems, scope: Scope::Shared })
        };
        let copies = if in_grid { 1 } else { 2 };
        let has_states = !in_grid || schedule.shares_states();
        let weight_elems = schedule.shared_k * schedule.parts * gates * schedule.units;
        let accumulator_elems = schedule.parts * schedule.rows * schedule.accumulators_of_row(recurrence);
        let weight_type = recurrence.arg(RecurrenceProgram::R).dtype;
        let shared = SharedBuffers {
            weights: (weight_elems > 0).then(|| shared("weights", weight_type, weight_elems)),
            hidden: has_states.then(|| shared("hidden", ty, copies * states)),
            own_hidden: in_grid.then(|| shared("own_hidden", ty, items)),
            reset_hidden: resets_operand.then(|| shared("reset_hidden", ty, states)),
            update: resets_operand.then(|| shared("update", ty, items)),
            cell: cell.has_cell_state().then(|| shared("cell", ty, items)),
            accumulators: shared("accumulators", ty, accumulator_elems),
        };
        let columns = schedule.columns(recurrence);
        let blocks = schedule.part_k(recurrence) / MMA_BLOCK_K;
        let registers = RegisterBuffers::add(&mut program, schedule.engine, columns, schedule.rows, blocks);
        let zero = program.exprs.index(0);
        let thread = program.exprs.var(thread);
        Self {
            recurrence,
            schedule,
            ty,
            program,
            shared,
            registers,
            grid,
            thread,
            direction: zero,
            tile: zero,
            first_row: zero,
            rank: zero,
        }
    }

    /// Binds an expression with values `0..extent`; a constant stays one.
    pub fn bind(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId, extent: usize) -> ExprId {
        bind_index(&mut self.program, body, name, value, extent)
    }

    pub fn let_value(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId) -> ExprId {
        bind_value(&mut self.program, body, name, value)
    }

    /// Binds an offset below `extent` that is a multiple of the lanes of a thread.
    pub fn bind_multiple(
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
    pub fn barrier(&self) -> Stmt {
        Stmt::Cta(CtaStmt::Barrier)
    }

    pub fn cluster_barrier(&self) -> Stmt {
        Stmt::Cta(if self.schedule.cluster() > 1 { CtaStmt::ClusterBarrier } else { CtaStmt::Barrier })
    }

    /// A barrier of the CTAs that share the hidden units of some sequences in a direction.
    pub fn grid_barrier(&mut self) -> Option<Stmt> {
        let buffer = self.grid?.arrived;
        let tiles = self.schedule.groups(self.recurrence) / self.recurrence.extents.directions;
        let offset = self.program.exprs.linear_index(&[self.direction, self.tile], &[tiles, 1]);
        Some(Stmt::Cta(CtaStmt::GridBarrier { arrived: Location { buffer, offset } }))
    }

    /// A loop whose iterations the threads of the CTA share: `body` takes numbers below `count`.
    pub fn shared_loop(
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
        let kind = LoopKind::UnrollBy(LOADS_IN_FLIGHT as u32);
        Stmt::For { var, start: self.thread, end, step: threads as i64, kind, body }
    }

    /// An own unit among all hidden units.
    pub fn unit(&mut self, own: ExprId) -> ExprId {
        let first = self.program.exprs.mul_const(self.rank, self.schedule.units as i64);
        self.program.exprs.add2(first, own)
    }

    /// `[direction, k, gate, unit]` of the weights.
    pub fn weight_offset(&mut self, k: ExprId, gate: ExprId, unit: ExprId) -> ExprId {
        let hidden = self.recurrence.extents.hidden;
        let rows = self.recurrence.spec.cell.gates() * hidden;
        let index = [self.direction, k, gate, unit];
        self.program.exprs.linear_index(&index, &[hidden * rows, rows, hidden, 1])
    }

    pub fn buffer(&self, arg: ArgId) -> BufferId {
        BufferId::new(arg.index())
    }

    /// An element of an argument in the type of the accumulators.
    pub fn load(&mut self, arg: ArgId, offset: ExprId, mask: Option<ExprId>) -> ExprId {
        let value = self.program.exprs.load(self.buffer(arg), offset, 1, mask);
        self.program.exprs.cast(self.ty, value)
    }

    pub fn store(&mut self, arg: ArgId, offset: ExprId, value: ExprId) -> Stmt {
        let value = self.program.exprs.cast(self.recurrence.arg(arg).dtype, value);
        Stmt::Store { buffer: self.buffer(arg), offset, value, mask: None }
    }

    /// `[direction, sequence, unit]`.
    pub fn state_offset(&mut self, sequence: ExprId, unit: ExprId) -> ExprId {
        let extents = self.recurrence.extents;
        let strides = [extents.batch * extents.hidden, extents.hidden, 1];
        self.program.exprs.linear_index(&[self.direction, sequence, unit], &strides)
    }

    /// Loads hidden states of a sequence that CTAs have exchanged, from a unit on.
    pub fn exchanged_states(
        &mut self,
        out: &mut Vec<Stmt>,
        before: ExprId,
        sequence: ExprId,
        unit: ExprId,
        lanes: usize,
    ) -> ExprId {
        let buffer = self.grid.expect("states are exchanged in the grid").states;
        let offset = self.state_offset(sequence, unit);
        let offset = self.program.exprs.add2(before, offset);
        let ty = Type::vector(self.program.buffer(buffer).dtype, lanes);
        let var = self.program.exprs.declare_register("hidden", ty);
        out.push(Stmt::Cta(CtaStmt::LoadRelaxed { var, from: Location { buffer, offset } }));
        self.program.exprs.var(var)
    }
}
