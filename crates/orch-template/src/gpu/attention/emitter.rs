//! What all parts of attention's emission share: the block program, the schedule, and the thread program so far.

use super::form::AttentionForm;
use super::schedule::{AttentionSchedule, AttentionSizes, WARP_ROWS};
use crate::gpu::cta::{CtaEmitter, ProgramEmitter, import};
use orch_compute::block::BlockProgram;
use orch_compute::expr::{ArgId, BufferId, ExprId, Exprs, StageId, Type, VarId};
use orch_compute::simplify::Simplifier;
use orch_thread::Scope;
use orch_thread::cta::{MmaType, WARP};
use orch_thread::kernel::Binding;
use orch_thread::program::{Stmt, ThreadProgram};

/// Attention while its thread program is written.
pub(super) struct AttentionEmitter<'a> {
    pub block: &'a BlockProgram,
    pub source: Exprs,
    pub form: AttentionForm,
    pub mma_type: MmaType,
    pub schedule: AttentionSchedule,
    pub sizes: AttentionSizes,
    pub program: ThreadProgram,
    pub simplifier: Simplifier,
    pub arg_buffers: Vec<Option<BufferId>>,
    /// Batch axes as expressions of the CTA's number.
    pub batch_values: Vec<(VarId, ExprId)>,
    /// Values of stages for expressions that are imported.
    pub stage_values: Vec<(StageId, ExprId)>,
    pub thread: ExprId,
    pub lane: ExprId,
    /// The warp's number along rows.
    pub warp: ExprId,
    /// The warp's number along keys.
    pub key_warp: ExprId,
    /// The CTA's first row.
    pub first_row: ExprId,
    /// The thread's scores in registers, once they are declared.
    pub scores: Option<BufferId>,
    /// The thread's accumulators of results in registers, once they are declared.
    pub accumulators: Option<BufferId>,
    /// Statistics of the thread's two rows.
    pub row_values: [Vec<(StageId, ExprId)>; 2],
}

impl<'a> AttentionEmitter<'a> {
    /// An emitter that has emitted nothing.
    pub fn new(
        block: &'a BlockProgram,
        form: AttentionForm,
        mma_type: MmaType,
        schedule: AttentionSchedule,
    ) -> Self {
        let sizes = AttentionSizes::of(block, &form);
        let ctas = sizes.batch * sizes.rows.div_ceil(WARP_ROWS * schedule.row_warps);
        let mut program = ThreadProgram::new(&block.name, ctas);
        let thread = program.set_cta(WARP * schedule.warps(), 1);
        let thread = program.exprs.var(thread);
        let zero = program.exprs.index(0);
        Self {
            block,
            source: block.exprs.clone(),
            form,
            mma_type,
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
            accumulators: None,
            row_values: [Vec::new(), Vec::new()],
        }
    }

    /// Rows of a CTA.
    pub fn cta_rows(&self) -> usize {
        WARP_ROWS * self.schedule.row_warps
    }

    /// Keys of a warp.
    pub fn warp_keys(&self) -> usize {
        self.sizes.keys.div_ceil(16 * self.schedule.key_warps) * 16
    }

    /// Keys of a CTA: the number of keys rounded up to whole warps.
    pub fn padded_keys(&self) -> usize {
        self.warp_keys() * self.schedule.key_warps
    }

    /// Adds the buffers of arguments; what is passed for each.
    pub fn declare_arguments(&mut self) -> Vec<Binding> {
        let mut bindings = Vec::new();
        for (index, arg) in self.block.args.iter().enumerate() {
            let scope = Scope::from(arg.role);
            let buffer = self.add_buffer(&format!("arg{index}"), arg.dtype, arg.shape.elems(), scope);
            self.arg_buffers[index] = Some(buffer);
            bindings.push(Binding::Arg(ArgId::new(index)));
        }
        bindings
    }

    /// Binds the CTA's batch and rows, and the thread's warp and lane.
    ///
    /// ```text
    /// grid    [batch, blocks of cta_rows rows]
    /// thread  [row_warps, key_warps, 32 lanes]
    /// ```
    pub fn place_cta(&mut self, body: &mut Vec<Stmt>) {
        let blocks = self.sizes.rows.div_ceil(self.cta_rows());
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

    /// Each axis's index at a flat position.
    pub fn at(&mut self, axes: &[VarId], position: ExprId) -> Vec<(VarId, ExprId)> {
        let extents: Vec<usize> = axes.iter().map(|&axis| self.block.extent(axis)).collect();
        let values = self.program.exprs.unflatten(position, &extents);
        axes.iter().copied().zip(values).collect()
    }
}

impl ProgramEmitter for AttentionEmitter<'_> {
    fn program_and_simplifier(&mut self) -> (&mut ThreadProgram, &mut Simplifier) {
        (&mut self.program, &mut self.simplifier)
    }
}

impl CtaEmitter for AttentionEmitter<'_> {
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
