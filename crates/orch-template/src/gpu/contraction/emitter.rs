//! What all parts of a contraction's emission share: the block program, the schedule, and the thread program so far.

use super::schedule::{ACC_PADDING, GpuContractionSchedule};
use super::unit::MathUnit;
use crate::contraction::operand::FlatAxes;
use crate::contraction::{ContractionForm, GemmShape};
use crate::gpu::cta::{CtaEmitter, ProgramEmitter, import};
use orch_compute::block::BlockProgram;
use orch_compute::expr::substitute::Substitution;
use orch_compute::expr::{BufferId, ExprId, Exprs, Type, VarId};
use orch_compute::simplify::{Simplifier, simplify};
use orch_thread::cta::WARP;
use orch_thread::program::{Stmt, ThreadProgram};

/// Rows of tiles in a band of the raster: a band is walked column by column, so that the operand tiles that concurrent CTAs
/// read stay in L2.
const RASTER_ROWS: usize = 8;

/// A contraction while its thread program is written.
pub(super) struct GemmEmitter<'a> {
    /// What is computed.
    pub block: &'a BlockProgram,
    /// Its arena, with the flat coordinates m, n, k added.
    pub source: Exprs,
    /// The roles of its axes.
    pub form: ContractionForm,
    /// The unit that multiplies.
    pub unit: MathUnit,
    /// Elements of `a` and `b` over batch axes and flat coordinates, in the type that is multiplied; expressions of `source`.
    pub operands: [ExprId; 2],
    /// The flat coordinates.
    pub flat: FlatAxes,
    /// Their extents.
    pub extents: GemmShape,
    /// How it is tiled.
    pub schedule: GpuContractionSchedule,
    /// The program that is written.
    pub program: ThreadProgram,
    /// Bounds of its expressions.
    pub simplifier: Simplifier,
    /// The buffer of each argument that is passed.
    pub arg_buffers: Vec<Option<BufferId>>,
    /// Batch axes of the block program as expressions of the CTA's number.
    pub batch_values: Vec<(VarId, ExprId)>,
    /// The flat batch index.
    pub batch: ExprId,
    /// Stands for one accumulator in scalar expressions of the epilogue, before they are widened to vectors.
    pub acc_element: VarId,
    /// The accumulator tile in shared memory, `[block_m, block_n + ACC_PADDING]`. With split-K, `[split_k, block_m / split_k,
    /// block_n + ACC_PADDING]`: the rows that this CTA adds up, from each CTA of the cluster by its rank.
    pub acc_tile: BufferId,
    /// The thread's accumulators in registers, once they are declared.
    pub accumulators: BufferId,
    /// The thread's number in its CTA.
    pub thread: ExprId,
    /// The CTA's rank in its cluster.
    pub rank: ExprId,
    /// First row and column of the CTA's tile in the result.
    pub origin: [ExprId; 2],
    /// The thread's lane in its warp.
    pub lane: ExprId,
    /// Row and column of the warp in `[warps_m, warps_n]`.
    pub warp: [ExprId; 2],
}

impl<'a> GemmEmitter<'a> {
    /// An emitter that has emitted nothing.
    pub fn new(
        block: &'a BlockProgram,
        form: ContractionForm,
        unit: MathUnit,
        schedule: GpuContractionSchedule,
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
        let acc_element = program.exprs.declare_register("sum", Type::scalar(source.dtype(form.a)));
        let operands = [form.a, form.b].map(|operand| {
            let flattened = Substitution::new(&flat.bindings).apply(&mut source, operand);
            let typed = source.cast(unit.operand_type(), flattened);
            simplify(&mut source, typed)
        });
        Self {
            block,
            source,
            form,
            unit,
            flat,
            extents,
            schedule,
            program,
            simplifier: Simplifier::new(),
            arg_buffers: vec![None; block.args.len()],
            operands,
            batch_values: Vec::new(),
            batch: zero,
            acc_element,
            acc_tile: BufferId::new(0),
            accumulators: BufferId::new(0),
            thread,
            rank: zero,
            origin: [zero; 2],
            lane: zero,
            warp: [zero; 2],
        }
    }

    /// Binds the CTA's batch, tile and rank, and the thread's warp and lane.
    ///
    /// ```text
    /// grid    [batch, tiles, split_k]              the CTAs of a cluster are neighbours
    /// thread  [warps_m, warps_n, 32 lanes]
    /// ```
    pub fn place_cta(&mut self, body: &mut Vec<Stmt>) {
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
        self.origin =
            [exprs.mul_const(row, schedule.block_m as i64), exprs.mul_const(column, schedule.block_n as i64)];
        let extents: Vec<usize> = self.form.batch.iter().map(|&axis| self.block.extent(axis)).collect();
        let values = exprs.unflatten(self.batch, &extents);
        self.batch_values = self.form.batch.iter().copied().zip(values).collect();
    }

    /// The row and column of a tile in the grid of tiles `[rows, columns]`: bands of [`RASTER_ROWS`] rows, the last one of fewer,
    /// column by column. CTAs that run at once share tiles of `b` in a column, and the band's tiles of `a` stay in L2.
    fn raster(&mut self, tile: ExprId, rows: usize, columns: usize) -> (ExprId, ExprId) {
        let exprs = &mut self.program.exprs;
        if rows <= RASTER_ROWS || columns == 1 {
            let parts = exprs.unflatten(tile, &[columns, rows]);
            return (parts[1], parts[0]);
        }
        // [band, column, row of the band]
        let parts = exprs.unflatten(tile, &[rows.div_ceil(RASTER_ROWS), columns * RASTER_ROWS]);
        let first_row = exprs.mul_const(parts[0], RASTER_ROWS as i64);
        let mut band_rows = exprs.index(RASTER_ROWS as i64);
        if !rows.is_multiple_of(RASTER_ROWS) {
            let rows = exprs.index(rows as i64);
            let rest = exprs.sub(rows, first_row);
            band_rows = exprs.min(band_rows, rest);
        }
        let (column, row) = (exprs.floor_div(parts[1], band_rows), exprs.floor_rem(parts[1], band_rows));
        (exprs.add2(first_row, row), column)
    }

    /// Whether the CTAs of a cluster share the K dimension of a tile.
    pub fn is_split_k(&self) -> bool {
        self.schedule.split_k > 1
    }

    /// Iterations of a CTA's main loop.
    pub fn iterations(&self) -> usize {
        self.extents.k.div_ceil(self.schedule.block_k).div_ceil(self.schedule.split_k)
    }

    /// K rounded up to what all iterations of all CTAs of a cluster cover.
    pub fn padded_k(&self) -> usize {
        self.iterations() * self.schedule.split_k * self.schedule.block_k
    }

    /// The first `k` of an iteration, bound to a variable: `(rank * iterations + iteration) * block_k`.
    pub fn bind_first_k(&mut self, body: &mut Vec<Stmt>, iteration: ExprId) -> ExprId {
        let iterations = self.iterations() as i64;
        let block_k = self.schedule.block_k;
        let exprs = &mut self.program.exprs;
        let before = exprs.mul_const(self.rank, iterations);
        let number = exprs.add2(before, iteration);
        let first = exprs.mul_const(number, block_k as i64);
        let limit = self.padded_k() + self.schedule.stages * block_k;
        self.bind_multiple(body, "k_position", first, (limit, block_k))
    }

    /// Elements between rows of the accumulator tile in shared memory.
    pub fn acc_stride(&self) -> usize {
        self.schedule.block_n + ACC_PADDING
    }
}

impl ProgramEmitter for GemmEmitter<'_> {
    fn program_and_simplifier(&mut self) -> (&mut ThreadProgram, &mut Simplifier) {
        (&mut self.program, &mut self.simplifier)
    }
}

impl CtaEmitter for GemmEmitter<'_> {
    fn lane(&self) -> ExprId {
        self.lane
    }

    fn import(&mut self, root: ExprId, bindings: &[(VarId, ExprId)], guard: Option<ExprId>) -> ExprId {
        let acc = self.acc_element;
        import(
            (self.block, &self.source),
            (&mut self.program.exprs, &mut self.simplifier),
            root,
            (self.batch_values.iter().chain(bindings).copied(), guard),
            &self.arg_buffers,
            |exprs, _| exprs.var(acc),
        )
    }
}
