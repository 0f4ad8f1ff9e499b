//! From attention to a thread program.

use super::form::AttentionForm;
use super::tile::Tile;
use crate::CannotLower;
use crate::gpu::cta::{CtaEmitter, import};
use orch_compute::block::BlockProgram;
use orch_compute::expr::{ArgId, BufferId, ExprId, Exprs, StageId, Type, VarId};
use orch_compute::simplify::Simplifier;
use orch_ir::DType;
use orch_thread::OperandPrecision;
use orch_thread::Scope;
use orch_thread::cta::{CtaStmt, MmaType, WARP};
use orch_thread::kernel::{Binding, Kernel};
use orch_thread::program::{Stmt, ThreadProgram};
use orch_thread::target::GpuTarget;
use std::fmt;

/// Most keys of a row: as many scores as registers hold.
pub const MAX_KEYS: usize = 256;
/// Most terms of a score, and columns of a result.
const MAX_WIDTH: usize = 128;
/// Rows of a warp.
pub(super) const WARP_ROWS: usize = 16;

/// How attention is scheduled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttentionSchedule {
    /// Warps below one another, of 16 rows each.
    pub row_warps: usize,
    /// Warps that share the keys of the same rows.
    pub key_warps: usize,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for AttentionSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row_warps={} key_warps={}", self.row_warps, self.key_warps)
    }
}

impl AttentionSchedule {
    /// Warps of a task.
    pub fn warps(&self) -> usize {
        self.row_warps * self.key_warps
    }
}

/// Extents, and how far tiles are padded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub batch: usize,
    pub rows: usize,
    pub keys: usize,
    pub terms: usize,
    pub columns: usize,
}

impl Sizes {
    pub fn of(block: &BlockProgram, form: &AttentionForm) -> Self {
        let points = |axes: &[VarId]| AttentionForm::points(block, axes);
        Self {
            batch: points(&form.batch),
            rows: points(&form.rows),
            keys: points(&form.keys),
            terms: points(&form.terms),
            columns: points(&form.columns),
        }
    }

    pub fn padded_terms(&self) -> usize {
        self.terms.next_multiple_of(16)
    }

    pub fn padded_columns(&self) -> usize {
        self.columns.next_multiple_of(16)
    }
}

/// The schedules worth trying, the preferred one first; none if the template does not serve the program.
pub fn schedules(
    block: &BlockProgram,
    target: &GpuTarget,
    factors: OperandPrecision,
) -> Vec<AttentionSchedule> {
    let Ok(form) = AttentionForm::of(block) else { return Vec::new() };
    if product(block, &form, factors).is_none() {
        return Vec::new();
    }
    let sizes = Sizes::of(block, &form);
    if sizes.keys > MAX_KEYS || sizes.terms > MAX_WIDTH || sizes.columns > MAX_WIDTH {
        return Vec::new();
    }
    let tasks = |row_warps: usize| sizes.batch * sizes.rows.div_ceil(WARP_ROWS * row_warps);
    let mut found: Vec<AttentionSchedule> = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (4, 1), (4, 2)]
        .into_iter()
        .map(|(row_warps, key_warps)| AttentionSchedule { row_warps, key_warps })
        .filter(|schedule| {
            sizes.keys.div_ceil(16 * schedule.key_warps) * 16 * (schedule.key_warps - 1) < sizes.keys
        })
        .collect();
    // As many rows share the keys as leave tasks for all multiprocessors, and as many warps the rows as have keys to
    // share: a warp by itself waits for each of its products.
    let cost = |schedule: &AttentionSchedule| {
        let turns = tasks(schedule.row_warps).div_ceil(target.sms);
        let keys = sizes.keys.div_ceil(schedule.key_warps).next_multiple_of(16);
        let bring =
            (sizes.keys * (sizes.terms + sizes.columns)) as f64 / schedule.warps().min(4) as f64 / 8.0;
        let merge = if schedule.key_warps > 1 { 1500.0 } else { 0.0 };
        // Tasks side by side hide each other's waiting.
        let beside = (4.0 / schedule.warps() as f64).clamp(1.0, turns as f64);
        (turns as f64 / beside).max(1.0) * (bring + keys as f64 * 60.0 + merge)
            + 0.1 * schedule.warps() as f64
    };
    found.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
    found
}

fn product(block: &BlockProgram, form: &AttentionForm, factors: OperandPrecision) -> Option<MmaType> {
    if block.exprs.dtype(form.q) != DType::F32 {
        return None;
    }
    match factors.within(block) {
        OperandPrecision::F16 => Some(MmaType::F16),
        OperandPrecision::Bf16 => Some(MmaType::Bf16),
        OperandPrecision::F32 | OperandPrecision::Tf32 => None,
    }
}

/// The kernel under a schedule.
///
/// # Errors
/// If the block program is not attention, or of another type than f32 with half factors.
pub fn lower(
    block: &BlockProgram,
    schedule: &AttentionSchedule,
    factors: OperandPrecision,
) -> Result<Kernel, CannotLower> {
    let form = AttentionForm::of(block)?;
    let product =
        product(block, &form, factors).ok_or(CannotLower::NotThisTemplate("factors are not half"))?;
    Ok(AttentionEmitter::new(block, form, product, *schedule).emit())
}

/// Attention while it is lowered.
pub(super) struct AttentionEmitter<'a> {
    pub block: &'a BlockProgram,
    pub source: Exprs,
    pub form: AttentionForm,
    pub product: MmaType,
    pub schedule: AttentionSchedule,
    pub sizes: Sizes,
    pub program: ThreadProgram,
    pub simplifier: Simplifier,
    pub arg_buffers: Vec<Option<BufferId>>,
    /// Batch axes as expressions of the task.
    pub batch_values: Vec<(VarId, ExprId)>,
    /// Values of stages, where an expression that mentions them is imported.
    pub stage_values: Vec<(StageId, ExprId)>,
    pub thread: ExprId,
    pub lane: ExprId,
    /// The warp's place among those of rows, and of keys.
    pub warp: ExprId,
    /// See `warp`.
    pub key_warp: ExprId,
    /// The task's first row.
    pub first_row: ExprId,
    /// The thread's scores, and its sums, once they are declared.
    pub scores: Option<BufferId>,
    pub sums: Option<BufferId>,
    /// Statistics of the thread's two rows.
    pub row_values: [Vec<(StageId, ExprId)>; 2],
}

impl<'a> AttentionEmitter<'a> {
    fn new(
        block: &'a BlockProgram,
        form: AttentionForm,
        product: MmaType,
        schedule: AttentionSchedule,
    ) -> Self {
        let sizes = Sizes::of(block, &form);
        let tasks = sizes.batch * sizes.rows.div_ceil(WARP_ROWS * schedule.row_warps);
        let mut program = ThreadProgram::new(&block.name, tasks);
        let thread = program.set_cta(WARP * schedule.warps(), 1);
        let thread = program.exprs.var(thread);
        let zero = program.exprs.index(0);
        Self {
            block,
            source: block.exprs.clone(),
            form,
            product,
            schedule,
            sizes,
            program,
            simplifier: Simplifier::new(),
            arg_buffers: vec![None; block.args.len()],
            batch_values: Vec::new(),
            stage_values: Vec::new(),
            thread,
            lane: zero,
            warp: zero,
            key_warp: zero,
            first_row: zero,
            scores: None,
            sums: None,
            row_values: [Vec::new(), Vec::new()],
        }
    }

    /// Rows of a task.
    pub fn task_rows(&self) -> usize {
        WARP_ROWS * self.schedule.row_warps
    }

    /// Keys of a warp.
    pub fn warp_keys(&self) -> usize {
        self.sizes.keys.div_ceil(16 * self.schedule.key_warps) * 16
    }

    /// Keys of a task, with those that do not exist.
    pub fn padded_keys(&self) -> usize {
        self.warp_keys() * self.schedule.key_warps
    }

    fn emit(mut self) -> Kernel {
        let bindings = self.declare_arguments();
        let mut body = Vec::new();
        self.place_task(&mut body);
        let (q, k, v) = (self.form.q, self.form.k, self.form.v);
        let q = Tile::of_queries(&mut self, q);
        let k = Tile::of_keys(&mut self, k);
        let v = Tile::of_values(&mut self, v);
        body.extend(q.fill(&mut self));
        body.extend(k.fill(&mut self));
        body.push(Stmt::Cta(CtaStmt::CpAsyncCommit));
        body.extend(v.fill(&mut self));
        body.push(Stmt::Cta(CtaStmt::CpAsyncCommit));
        body.push(Stmt::Cta(CtaStmt::CpAsyncWait(1)));
        body.push(Stmt::Cta(CtaStmt::Barrier));
        body.extend(self.score(&q, &k));
        body.extend(self.statistics());
        body.push(Stmt::Cta(CtaStmt::CpAsyncWait(0)));
        body.push(Stmt::Cta(CtaStmt::Barrier));
        body.extend(self.weigh(&v));
        body.push(Stmt::Cta(CtaStmt::LaunchDependents));
        body.push(Stmt::Cta(CtaStmt::ReuseShared));
        body.extend(self.epilogue());
        Kernel { program: ThreadProgram { body, ..self.program }, bindings }
    }

    fn declare_arguments(&mut self) -> Vec<Binding> {
        let mut bindings = Vec::new();
        for (index, arg) in self.block.args.iter().enumerate() {
            let scope = Scope::from(arg.role);
            let buffer = self.add_buffer(&format!("arg{index}"), arg.dtype, arg.shape.elems(), scope);
            self.arg_buffers[index] = Some(buffer);
            bindings.push(Binding::Arg(ArgId::new(index)));
        }
        bindings
    }

    fn place_task(&mut self, body: &mut Vec<Stmt>) {
        let blocks = self.sizes.rows.div_ceil(self.task_rows());
        let task = self.program.exprs.var(self.program.task);
        let parts = self.program.exprs.unflatten(task, &[self.sizes.batch, blocks]);
        let batch = self.bind(body, "batch", parts[0], self.sizes.batch);
        let block = self.bind(body, "block", parts[1], blocks);
        let AttentionSchedule { row_warps, key_warps } = self.schedule;
        let parts = self.program.exprs.unflatten(self.thread, &[row_warps, key_warps, WARP]);
        self.warp = self.bind(body, "row_warp", parts[0], row_warps);
        self.key_warp = self.bind(body, "key_warp", parts[1], key_warps);
        self.lane = self.bind(body, "lane", parts[2], WARP);
        let exprs = &mut self.program.exprs;
        self.first_row = exprs.mul_const(block, (WARP_ROWS * row_warps) as i64);
        self.batch_values = self.at(&self.form.batch.clone(), batch);
    }

    /// Declares a variable with its value.
    pub fn let_value(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId) -> ExprId {
        let ty: Type = self.program.exprs.ty(value);
        let var = self.program.exprs.declare_register(name, ty);
        body.push(Stmt::Let(var, value));
        self.program.exprs.var(var)
    }

    /// What axes are at flat positions.
    pub fn at(&mut self, axes: &[VarId], position: ExprId) -> Vec<(VarId, ExprId)> {
        let extents: Vec<usize> = axes.iter().map(|&axis| self.block.extent(axis)).collect();
        let values = self.program.exprs.unflatten(position, &extents);
        axes.iter().copied().zip(values).collect()
    }
}

impl CtaEmitter for AttentionEmitter<'_> {
    fn program_and_simplifier(&mut self) -> (&mut ThreadProgram, &mut Simplifier) {
        (&mut self.program, &mut self.simplifier)
    }

    fn lane(&self) -> ExprId {
        self.lane
    }

    fn import(&mut self, root: ExprId, bindings: &[(VarId, ExprId)], guard: Option<ExprId>) -> ExprId {
        let stages = &self.stage_values;
        import(
            (self.block, &self.source),
            (&mut self.program.exprs, &mut self.simplifier),
            root,
            (self.batch_values.iter().chain(bindings).copied(), guard),
            &self.arg_buffers,
            |_, stage| stages.iter().find(|(known, _)| *known == stage).expect("stages are in order").1,
        )
    }
}
