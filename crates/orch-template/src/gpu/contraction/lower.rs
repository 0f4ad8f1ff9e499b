//! From a contraction to a thread program: tasks, the pipeline over steps, and what its parts share.

use super::boxes::Boxes;
use super::operand::{Operand, Side};
use super::schedule::{ContractionSchedule, Engine, SUM_PADDING};
use crate::CannotLower;
use crate::contraction::operand::FlatAxes;
use crate::contraction::{ContractionForm, GemmShape};
use crate::gpu::cta::{Lowers, import};
use orch_compute::block::{ArgRole, BlockProgram, Stage};
use orch_compute::expr::substitute::Substitution;
use orch_compute::expr::{ArgId, BufferId, Expr, ExprId, Exprs, Type, VarId};
use orch_compute::simplify::{Simplifier, simplify};
use orch_thread::OperandPrecision;
use orch_thread::cta::{CtaStmt, WARP};
use orch_thread::kernel::{Binding, Kernel};
use orch_thread::program::{LoopKind, Scope, Stmt, ThreadProgram};

/// Tiles of rows that are walked before the next tile of columns, so that both factors stay in the cache.
const RASTER_ROWS: usize = 8;

/// A contraction while it is lowered: what all parts of the emission share.
pub(super) struct Lowering<'a> {
    /// What is computed.
    pub block: &'a BlockProgram,
    /// Its arena, with the flat coordinates added.
    pub source: Exprs,
    /// The roles of its axes.
    pub form: ContractionForm,
    /// What multiplies.
    pub engine: Engine,
    /// The factors over batch axes and flat coordinates, in the type that is multiplied.
    pub factors: [ExprId; 2],
    /// The flat coordinates.
    pub flat: FlatAxes,
    /// Their extents.
    pub extents: GemmShape,
    /// How it is tiled.
    pub schedule: ContractionSchedule,
    /// The program that is built.
    pub program: ThreadProgram,
    /// What is known of its expressions.
    pub simplifier: Simplifier,
    /// The buffer of each argument that is passed.
    pub arg_buffers: Vec<Option<BufferId>>,
    /// Batch axes of the block program as expressions of the task.
    pub batch_values: Vec<(VarId, ExprId)>,
    /// The flat batch number.
    pub batch: ExprId,
    /// Stands for one element of the sum in scalar expressions, before they are widened.
    pub sum: VarId,
    /// Sums of the task's tile, `block_m` rows of `block_n + SUM_PADDING`. Of a cluster's tasks each adds up as many rows of
    /// a tile: it has the rows that each of the others gives it, by their ranks.
    pub sums: BufferId,
    /// The thread's sums, once they are declared.
    pub registers: BufferId,
    /// The thread's number.
    pub thread: ExprId,
    /// The task's place in its cluster.
    pub rank: ExprId,
    /// First row and column of the task's tile.
    pub corner: [ExprId; 2],
    /// The thread's place in its warp, and the row and column of the warp among those of the task.
    pub lane: ExprId,
    /// See `lane`.
    pub warp: [ExprId; 2],
}

/// Lowers a contraction.
///
/// # Errors
/// If the block program is no contraction, or of a type that nothing multiplies.
pub fn lower(
    block: &BlockProgram,
    schedule: &ContractionSchedule,
    factors: OperandPrecision,
) -> Result<Kernel, CannotLower> {
    let form = ContractionForm::of(block)?;
    let engine = Engine::of(block, &form, factors)
        .ok_or(CannotLower::NotThisTemplate("nothing multiplies this type"))?;
    Lowering::new(block, form, engine, *schedule).emit()
}

/// True if the copy engine brings the factors of a contraction under a schedule with products of whole tiles.
pub(super) fn takes_boxes(
    block: &BlockProgram,
    form: ContractionForm,
    engine: Engine,
    schedule: ContractionSchedule,
) -> bool {
    let mut lowering = Lowering::new(block, form, engine, schedule);
    lowering.place_task(&mut Vec::new());
    let (sides, _) = lowering.declare_arguments();
    let [a, b] = sides.map(|side| Operand::new(&mut lowering, side));
    Boxes::of(&mut lowering, [&a, &b]).is_some()
}

impl<'a> Lowering<'a> {
    pub fn new(
        block: &'a BlockProgram,
        form: ContractionForm,
        engine: Engine,
        schedule: ContractionSchedule,
    ) -> Self {
        let mut source = block.exprs.clone();
        let extents = GemmShape::of(block, &form);
        let flat = FlatAxes::new(block, &mut source, &form);
        let tiles =
            extents.batch * extents.m.div_ceil(schedule.block_m) * extents.n.div_ceil(schedule.block_n);
        let mut program = ThreadProgram::new(&block.name, tiles * schedule.split_k);
        let thread = program.set_cta(schedule.threads(), schedule.split_k);
        let thread = program.exprs.var(thread);
        let zero = program.exprs.index(0);
        let sum = program.exprs.declare_register("sum", Type::scalar(source.dtype(form.a)));
        let factors = [form.a, form.b].map(|factor| {
            let flattened = Substitution::new(&flat.bindings).apply(&mut source, factor);
            let typed = source.cast(engine.factor_type(), flattened);
            simplify(&mut source, typed)
        });
        Self {
            block,
            source,
            form,
            engine,
            flat,
            extents,
            schedule,
            program,
            simplifier: Simplifier::new(),
            arg_buffers: vec![None; block.args.len()],
            factors,
            batch_values: Vec::new(),
            batch: zero,
            sum,
            sums: BufferId::new(0),
            registers: BufferId::new(0),
            thread,
            rank: zero,
            corner: [zero; 2],
            lane: zero,
            warp: [zero; 2],
        }
    }

    fn emit(mut self) -> Result<Kernel, CannotLower> {
        let schedule = self.schedule;
        let mut body = Vec::new();
        self.place_task(&mut body);
        let (sides, bindings) = self.declare_arguments();
        let [a, b] = sides.map(|side| Operand::new(&mut self, side));
        let (sum_type, sum_elems) =
            (self.engine.sum_type(), schedule.block_m * (schedule.block_n + SUM_PADDING));
        // Others may give theirs while this task still multiplies.
        let scope = if self.is_split() { Scope::Shared } else { Scope::ReusedShared };
        self.sums = self.add_buffer("sums", sum_type, sum_elems, scope);

        let moved = if self.schedule.tma {
            let boxes = Boxes::of(&mut self, [&a, &b]);
            let boxes = boxes
                .ok_or(CannotLower::NotThisTemplate("a factor is no array that the copy engine reads"))?;
            self.box_pipeline(&boxes)
        } else {
            self.pipeline(&a, &b)
        };
        body.extend(moved);
        body.extend(self.epilogue(a.along, b.along));
        Ok(Kernel { program: ThreadProgram { body, ..self.program }, bindings })
    }

    /// Adds the buffers of arguments, and of constant factors that are laid out anew.
    pub fn declare_arguments(&mut self) -> ([Side; 2], Vec<Binding>) {
        let mut sides = [Side::rows(self), Side::columns(self)];
        let packed = [sides[0].packing(self), sides[1].packing(self)];
        let mut roots: Vec<ExprId> = (self.factors.iter().zip(&packed))
            .filter(|(_, packed)| packed.is_none())
            .map(|(&factor, _)| factor)
            .collect();
        for stage in &self.block.stages {
            if let Stage::Store { index, body, .. } = stage {
                roots.extend(index.iter().chain([body]));
            }
        }
        let mut is_passed: Vec<bool> =
            self.block.args.iter().map(|arg| arg.role == ArgRole::Output).collect();
        for id in self.source.reachable(&roots) {
            if let Expr::Read { arg, .. } = self.source.get(id) {
                is_passed[arg.index()] = true;
            }
        }
        let mut bindings = Vec::new();
        for (index, arg) in self.block.args.iter().enumerate().filter(|(index, _)| is_passed[*index]) {
            let scope = Scope::from(arg.role);
            let buffer = self.add_buffer(&format!("arg{index}"), arg.dtype, arg.shape.elems(), scope);
            self.arg_buffers[index] = Some(buffer);
            bindings.push(Binding::Arg(ArgId::new(index)));
        }
        for (side, packed) in sides.iter_mut().zip(packed) {
            if let Some(packed) = packed {
                side.packed = Some((
                    self.add_buffer("packed", packed.dtype, packed.elems(), Scope::Constant),
                    packed.terms,
                ));
                bindings.push(Binding::Packed(packed));
            }
        }
        (sides, bindings)
    }

    /// Binds the task's batch, tile and rank.
    pub fn place_task(&mut self, body: &mut Vec<Stmt>) {
        let GemmShape { batch, m, n, .. } = self.extents;
        let schedule = self.schedule;
        let (rows, columns) = (m.div_ceil(schedule.block_m), n.div_ceil(schedule.block_n));
        let task = self.program.exprs.var(self.program.task);
        let parts = self.program.exprs.unflatten(task, &[batch, rows * columns, schedule.split_k]);
        self.rank = self.bind(body, "rank", parts[2], schedule.split_k);
        self.batch = self.bind(body, "batch", parts[0], batch);
        let tile = self.bind(body, "tile", parts[1], rows * columns);
        let (row, column) = self.raster(tile, rows, columns);
        let row = self.bind(body, "tile_row", row, rows);
        let column = self.bind(body, "tile_column", column, columns);
        let parts = self.program.exprs.unflatten(self.thread, &[schedule.warps_m, schedule.warps_n, WARP]);
        self.lane = self.bind(body, "lane", parts[2], WARP);
        self.warp = [
            self.bind(body, "warp_row", parts[0], schedule.warps_m),
            self.bind(body, "warp_column", parts[1], schedule.warps_n),
        ];
        let exprs = &mut self.program.exprs;
        self.corner =
            [exprs.mul_const(row, schedule.block_m as i64), exprs.mul_const(column, schedule.block_n as i64)];
        let extents: Vec<usize> = self.form.batch.iter().map(|&axis| self.block.extent(axis)).collect();
        let values = exprs.unflatten(self.batch, &extents);
        self.batch_values = self.form.batch.iter().copied().zip(values).collect();
    }

    /// The row and column of a tile: bands of [`RASTER_ROWS`] rows, column by column, if there are whole ones.
    fn raster(&mut self, tile: ExprId, rows: usize, columns: usize) -> (ExprId, ExprId) {
        let exprs = &mut self.program.exprs;
        if rows.is_multiple_of(RASTER_ROWS) && rows > RASTER_ROWS {
            let parts = exprs.unflatten(tile, &[rows / RASTER_ROWS, columns, RASTER_ROWS]);
            let band = exprs.mul_const(parts[0], RASTER_ROWS as i64);
            return (exprs.add2(band, parts[2]), parts[1]);
        }
        // Neighbouring tasks share columns of the second factor, which is the larger one more often.
        let parts = exprs.unflatten(tile, &[columns, rows]);
        (parts[1], parts[0])
    }

    /// Whether tasks of a cluster share the terms of a tile.
    pub fn is_split(&self) -> bool {
        self.schedule.split_k > 1
    }

    /// Steps of one task.
    pub fn steps(&self) -> usize {
        self.extents.k.div_ceil(self.schedule.block_k).div_ceil(self.schedule.split_k)
    }

    /// One more than the largest term that any step of any task looks at.
    pub fn padded_terms(&self) -> usize {
        self.steps() * self.schedule.split_k * self.schedule.block_k
    }

    /// The first term of a step.
    fn first_term(&mut self, step: ExprId) -> ExprId {
        let steps = self.steps() as i64;
        let exprs = &mut self.program.exprs;
        let before = exprs.mul_const(self.rank, steps);
        let step = exprs.add2(before, step);
        exprs.mul_const(step, self.schedule.block_k as i64)
    }

    /// The loop over steps: copies some steps ahead.
    fn pipeline(&mut self, a: &Operand, b: &Operand) -> Vec<Stmt> {
        let (stages, steps, ahead) = (self.schedule.stages, self.steps(), self.schedule.ahead());
        let mut body = Vec::new();
        body.extend(a.place_chunks(self));
        body.extend(b.place_chunks(self));
        for stage in 0..ahead {
            if stage < steps {
                body.extend(self.first_fetch(&[a, b], stage));
            }
            body.push(Stmt::Cta(CtaStmt::CpAsyncCommit));
        }
        body.extend(self.join());
        body.push(self.clear_sums());
        let (var, step) = self.program.exprs.fresh_index("step", steps.max(1));
        let exprs = &mut self.program.exprs;
        let count = exprs.index(stages as i64);
        let later_step = exprs.add_const(step, ahead as i64);
        let (stage, later_stage) = (exprs.floor_rem(step, count), exprs.floor_rem(later_step, count));
        let mut inner = Vec::new();
        let stage = self.bind(&mut inner, "stage", stage, stages);
        let later_stage = self.bind(&mut inner, "later_stage", later_stage, stages);
        inner.push(Stmt::Cta(CtaStmt::CpAsyncWait(ahead - 1)));
        inner.push(Stmt::Cta(CtaStmt::Barrier));
        let mut later = Vec::new();
        for operand in [a, b] {
            let moved = operand.fetch(self, later_step, later_stage);
            inner.extend(moved.now);
            later.extend(moved.later);
        }
        inner.push(Stmt::Cta(CtaStmt::CpAsyncCommit));
        inner.extend(self.multiply(a, b, stage));
        inner.extend(later);
        let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(steps as i64));
        body.push(Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body: inner });
        body.push(Stmt::Cta(CtaStmt::CpAsyncWait(0)));
        if self.schedule.wgmma {
            body.push(Stmt::Cta(CtaStmt::WgmmaWait));
        }
        body.push(Stmt::Cta(CtaStmt::LaunchDependents));
        body.push(Stmt::Cta(self.end_of_steps()));
        body
    }

    /// Tells the others of the cluster that this task runs.
    pub fn join(&self) -> Option<Stmt> {
        self.is_split().then_some(Stmt::Cta(CtaStmt::ClusterArrive))
    }

    /// What is between the last step and the exchange of sums.
    pub fn end_of_steps(&self) -> CtaStmt {
        if self.is_split() { CtaStmt::ClusterWait } else { CtaStmt::ReuseShared }
    }

    /// Declares the thread's sums, as zeros.
    pub fn clear_sums(&mut self) -> Stmt {
        let elems = self.schedule.block_m * self.schedule.block_n / self.schedule.threads();
        let (registers, clear) = self.cleared("acc", self.engine.sum_type(), elems);
        self.registers = registers;
        clear
    }

    /// Fills a stage before the loop.
    fn first_fetch(&mut self, operands: &[&Operand], stage: usize) -> Vec<Stmt> {
        let step = self.program.exprs.index(stage as i64);
        let mut body = Vec::new();
        for operand in operands {
            let moved = operand.fetch(self, step, step);
            body.extend(moved.now);
            body.extend(moved.later);
        }
        body
    }

    /// The first term of a step, as a statement's variable.
    pub fn let_first_term(&mut self, body: &mut Vec<Stmt>, step: ExprId) -> ExprId {
        let first = self.first_term(step);
        let block_k = self.schedule.block_k;
        let limit = self.padded_terms() + self.schedule.stages * block_k;
        self.bind_multiple(body, "first_term", first, (limit, block_k))
    }
}

impl Lowers for Lowering<'_> {
    fn writing(&mut self) -> (&mut ThreadProgram, &mut Simplifier) {
        (&mut self.program, &mut self.simplifier)
    }

    fn lane(&self) -> ExprId {
        self.lane
    }

    fn import(&mut self, root: ExprId, bindings: &[(VarId, ExprId)], guard: Option<ExprId>) -> ExprId {
        let sum = self.sum;
        import(
            (self.block, &self.source),
            (&mut self.program.exprs, &mut self.simplifier),
            root,
            (self.batch_values.iter().chain(bindings).copied(), guard),
            &self.arg_buffers,
            |exprs, _| exprs.var(sum),
        )
    }
}
