//! From a contraction to a thread program: tasks, operand staging and the walk over register tiles.

use super::engine::Engine;
use super::form::Form;
use super::operand::{Flat, PanelsFrom, RowOrder, RowsFrom, panels_from, row_bytes, rows_from};
use super::schedule::{ContractionSchedule, Extents, Staging};
use super::stage::RowScratch;
use super::tile::{Phase, Sums, Tile, emit_tile};
use super::tiles::TileSet;
use super::{pairs, tiles};
use crate::CannotLower;
use crate::LONGEST_CHAIN;
use orch_compute::block::{BlockProgram, Stage};
use orch_compute::expr::substitute::{Access, Importer, Substitution};
use orch_compute::expr::{ArgId, BufferId, ExprId, Exprs, Type, VarId};
use orch_compute::simplify::simplify;
use orch_ir::DType;
use orch_thread::kernel::{Binding, Kernel};
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use orch_thread::target::CpuTarget;
use orch_thread::vectorize::{Widening, vectorize};

/// A contraction while it is lowered: what all parts of the emission share.
pub(super) struct Lowering<'a> {
    /// What is computed.
    pub block: &'a BlockProgram,
    /// Its arena, with the flat coordinates added.
    pub source: Exprs,
    /// The roles of its axes.
    pub form: Form,
    /// What multiplies.
    pub engine: Engine,
    /// The factors over batch axes and flat coordinates, as the engine reads them.
    pub a: ExprId,
    /// See `a`.
    pub b: ExprId,
    /// The flat coordinates.
    pub flat: Flat,
    /// Extents of the flat coordinates.
    pub extents: Extents,
    /// How it is tiled.
    pub schedule: ContractionSchedule,
    /// Lanes of a vector.
    pub lanes: usize,
    /// Type of the sum.
    pub sum_type: DType,
    /// Type of the factors.
    pub factor_type: DType,
    /// Terms of a panel: those of the sum and zeros that the engine multiplies with them.
    pub terms: usize,
    /// The matrix tiles, if those multiply.
    pub tiles: Option<TileSet>,
    /// Where rows come from.
    pub rows: RowsFrom,
    /// Where panels come from.
    pub panels: PanelsFrom,
    /// Whether memory is what the product waits for, with panels in an argument.
    pub waits_for_panels: bool,
    /// The program that is built.
    pub program: ThreadProgram,
    /// The buffer of each argument that is passed.
    pub arg_buffers: Vec<Option<BufferId>>,
    /// The packed constant.
    pub packed_buffer: Option<BufferId>,
    /// Scratch rows.
    pub row_scratch: Option<RowScratch>,
    /// Scratch panel.
    pub panel_scratch: Option<BufferId>,
    /// Scratch for sums that are not stored from registers.
    pub sums: Option<Sums>,
    /// Batch axes of the block program as expressions of the program's task.
    pub batch_values: Vec<(VarId, ExprId)>,
    /// The flat batch number.
    pub batch: ExprId,
    /// Stands for one element of the sum in scalar expressions, before they are widened.
    pub sum: VarId,
}

/// Lowers a contraction.
///
/// # Errors
/// If the block program is no contraction.
pub fn lower(
    block: &BlockProgram,
    schedule: &ContractionSchedule,
    target: &CpuTarget,
) -> Result<Kernel, CannotLower> {
    let form = Form::of(block)?;
    let engine = Engine::of(block, &form, target);
    let mut lowering = Lowering::new(block, form, engine, *schedule, target);
    let body = lowering.emit_task();
    lowering.program.body = body;
    let bindings = lowering.bindings();
    Ok(Kernel { program: lowering.program, bindings })
}

/// Which factors tasks will copy, whatever the schedule.
pub fn staging(block: &BlockProgram, form: &Form, engine: Engine) -> Staging {
    let mut exprs = block.exprs.clone();
    let flat = Flat::new(block, &mut exprs, form);
    let factors = flat_factors(&mut exprs, form, &flat, engine);
    let (rows, panels) = sources(block, &mut exprs, form, &flat, factors, engine, 1);
    let (rows, row_bytes) = match rows {
        RowsFrom::Scratch(order) => (Some(order), None),
        RowsFrom::Argument { .. } => (None, row_bytes(block, &mut exprs, &flat, factors.0)),
    };
    let term_bytes = panels.term_bytes(exprs.dtype(factors.1));
    Staging { rows, panels: matches!(panels, PanelsFrom::Scratch), row_bytes, term_bytes }
}

/// The factors over batch axes and flat coordinates, as the engine reads them.
fn flat_factors(exprs: &mut Exprs, form: &Form, flat: &Flat, engine: Engine) -> (ExprId, ExprId) {
    let (a, b) = (engine.factor(exprs, form.a), engine.factor(exprs, form.b));
    let mut flatten = Substitution::new(&flat.bindings);
    let (a, b) = (flatten.apply(exprs, a), flatten.apply(exprs, b));
    (simplify(exprs, a), simplify(exprs, b))
}

/// Where the engine reads the factors, whose panels are `width` columns wide.
fn sources(
    block: &BlockProgram,
    exprs: &mut Exprs,
    form: &Form,
    flat: &Flat,
    (a, b): (ExprId, ExprId),
    engine: Engine,
    width: usize,
) -> (RowsFrom, PanelsFrom) {
    let factor_type = exprs.dtype(a);
    let rows = rows_from(block, exprs, form, flat, a, factor_type);
    let rows = engine.rows(block, exprs, flat, a, rows);
    let panels = panels_from(block, exprs, form, flat, b, width, factor_type);
    (rows, engine.panels(panels))
}

impl<'a> Lowering<'a> {
    fn new(
        block: &'a BlockProgram,
        form: Form,
        engine: Engine,
        schedule: ContractionSchedule,
        target: &CpuTarget,
    ) -> Self {
        let mut source = block.exprs.clone();
        let extents = Extents::of(block, &form);
        let flat = Flat::new(block, &mut source, &form);
        let (a, b) = flat_factors(&mut source, &form, &flat, engine);
        let sum_type = source.dtype(form.a);
        let lanes = target.lanes(sum_type.size_bytes());
        let width = schedule.vectors * lanes;
        let factor_type = source.dtype(a);
        let (rows, panels) = sources(block, &mut source, &form, &flat, (a, b), engine, width);
        let staging = Staging { term_bytes: panels.term_bytes(factor_type), ..Staging::default() };
        let waits_for_panels = staging.waits_for_panels((schedule.rows, width), extents, target);
        let row_blocks = extents.m.div_ceil(schedule.block_rows).max(1);
        let panel_blocks = extents.n.div_ceil(width).max(1).div_ceil(schedule.block_panels);
        let mut program = ThreadProgram::new(&block.name, extents.batch * row_blocks * panel_blocks);
        let batch = program.exprs.index(0);
        let sum = program.exprs.declare_register("sum", Type::scalar(sum_type));
        let mut lowering = Self {
            block,
            source,
            form,
            engine,
            a,
            b,
            flat,
            extents,
            schedule,
            lanes,
            sum_type,
            factor_type,
            terms: extents.k.next_multiple_of(engine.terms()),
            tiles: None,
            rows,
            panels,
            waits_for_panels,
            program,
            arg_buffers: vec![None; block.args.len()],
            packed_buffer: None,
            row_scratch: None,
            panel_scratch: None,
            sums: None,
            batch_values: Vec::new(),
            batch,
            sum,
        };
        lowering.declare_buffers();
        if engine == Engine::Tiles {
            lowering.tiles = Some(tiles::declare(&mut lowering));
        }
        lowering
    }

    /// Columns of a panel.
    pub fn width(&self) -> usize {
        self.schedule.vectors * self.lanes
    }

    /// Steps of the loop over terms.
    pub fn steps(&self) -> usize {
        self.terms / self.engine.group()
    }

    fn declare_buffers(&mut self) {
        let packed = match &self.panels {
            PanelsFrom::Packed(packed) => Some(packed.clone()),
            PanelsFrom::Argument { .. } | PanelsFrom::Scratch => None,
        };
        let only_packed = |arg: ArgId| {
            packed.as_ref().is_some_and(|packed| packed.arg == arg) && !self.is_read_elsewhere(arg)
        };
        let passed: Vec<bool> = (0..self.block.args.len()).map(|arg| !only_packed(ArgId::new(arg))).collect();
        for (index, arg) in self.block.args.iter().enumerate() {
            if passed[index] {
                let scope = Scope::from(arg.role);
                let buffer =
                    Buffer { name: format!("arg{index}"), dtype: arg.dtype, elems: arg.shape.elems(), scope };
                self.arg_buffers[index] = Some(self.program.add_buffer(buffer));
            }
        }
        if let Some(packed) = &packed {
            let (dtype, elems) = (packed.dtype, packed.elems());
            let buffer = Buffer { name: "packed".into(), dtype, elems, scope: Scope::Constant };
            self.packed_buffer = Some(self.program.add_buffer(buffer));
        }
        let (sum_type, factor_type) = (self.sum_type, self.factor_type);
        let scratch = |name: &str, dtype: DType, elems: usize| Buffer {
            name: name.into(),
            dtype,
            elems,
            scope: Scope::Scratch,
        };
        let panel = scratch("panel", factor_type, self.terms.max(1) * self.width());
        if let RowsFrom::Scratch(order) = self.rows {
            let (elems, distance) = match order {
                RowOrder::TermsInner => {
                    let line = self.lanes * sum_type.size_bytes() / factor_type.size_bytes();
                    let distance = line_distance(self.terms, line);
                    (self.schedule.block_rows * distance + self.lanes, distance)
                }
                RowOrder::RowsInner => {
                    let distance = line_distance(self.schedule.block_rows + 3 * self.lanes, self.lanes);
                    (self.extents.k.max(1) * distance + self.lanes, distance)
                }
            };
            let buffer = self.program.add_buffer(scratch("rows", factor_type, elems));
            self.row_scratch = Some(RowScratch { buffer, order, distance });
        }
        if matches!(self.panels, PanelsFrom::Scratch) {
            self.panel_scratch = Some(self.program.add_buffer(panel));
        }
        let of_block = self.schedule.block_terms < self.steps();
        let is_long = self.steps() > LONGEST_CHAIN;
        if of_block || is_long || self.engine == Engine::Tiles || self.epilogue_is_costly() {
            let panels = if of_block { self.schedule.block_panels } else { 1 };
            let rows = if of_block { self.schedule.block_rows } else { self.schedule.rows };
            let line = panels * self.width();
            let buffer = self.program.add_buffer(scratch("sums", sum_type, rows * line));
            self.sums = Some(Sums { buffer, line, of_block, skipped_rows: 0 });
        }
    }

    /// True if an argument is read by more than the packed factor.
    fn is_read_elsewhere(&self, arg: ArgId) -> bool {
        let mut roots = vec![self.a];
        for stage in &self.block.stages {
            if let Stage::Store { index, body, .. } = stage {
                roots.extend(index.iter().chain([body]));
            }
        }
        let reads = |id: ExprId| matches!(self.source.get(id), orch_compute::expr::Expr::Read { arg: read, .. } if *read == arg);
        self.source.reachable(&roots).into_iter().any(reads)
    }

    /// True if the epilogue is long enough that repeating it for every accumulator would bloat the code.
    fn epilogue_is_costly(&self) -> bool {
        const UNROLLED_OPERATIONS: usize = 160;
        let bodies: Vec<ExprId> = (self.block.stages.iter())
            .filter_map(|stage| match stage {
                Stage::Store { body, .. } => Some(*body),
                Stage::Reduce { .. } => None,
            })
            .collect();
        let operations: usize =
            self.source.reachable(&bodies).into_iter().map(|id| operation_weight(&self.source, id)).sum();
        operations * self.schedule.rows * self.schedule.vectors > UNROLLED_OPERATIONS
    }

    fn bindings(&self) -> Vec<Binding> {
        let passed = (0..self.arg_buffers.len()).filter(|&index| self.arg_buffers[index].is_some());
        let mut bindings: Vec<Binding> = passed.map(|index| Binding::Arg(ArgId::new(index))).collect();
        if let PanelsFrom::Packed(packed) = &self.panels {
            bindings.push(Binding::Packed(packed.clone()));
        }
        bindings
    }

    /// One task: a block of rows times a block of panels of one batch.
    fn emit_task(&mut self) -> Vec<Stmt> {
        let Extents { batch, m, n, .. } = self.extents;
        let (width, schedule, steps) = (self.width(), self.schedule, self.steps());
        let row_blocks = m.div_ceil(schedule.block_rows).max(1);
        let panels = n.div_ceil(width).max(1);
        let panel_blocks = panels.div_ceil(schedule.block_panels);

        let mut body = Vec::new();
        let task = self.program.exprs.var(self.program.task);
        let place = self.program.exprs.unflatten(task, &[batch, row_blocks, panel_blocks]);
        self.batch = self.bind(&mut body, "batch", place[0], batch);
        let row_block = self.bind(&mut body, "row_block", place[1], row_blocks);
        let panel_block = self.bind(&mut body, "panel_block", place[2], panel_blocks);
        let batch_extents: Vec<usize> = self.form.batch.iter().map(|&axis| self.block.extent(axis)).collect();
        let values = self.program.exprs.unflatten(self.batch, &batch_extents);
        self.batch_values = self.form.batch.iter().copied().zip(values).collect();

        let exprs = &mut self.program.exprs;
        let first_row = exprs.mul_const(row_block, schedule.block_rows as i64);
        let past_rows = exprs.add_const(first_row, schedule.block_rows as i64);
        let all_rows = exprs.index(m as i64);
        let end_row =
            if m.is_multiple_of(schedule.block_rows) { past_rows } else { exprs.min(past_rows, all_rows) };
        let first_panel = exprs.mul_const(panel_block, schedule.block_panels as i64);
        let past_panels = exprs.add_const(first_panel, schedule.block_panels as i64);

        if let Some(scratch) = self.row_scratch {
            body.extend(self.fill_rows(scratch, first_row, end_row));
            if self.engine == Engine::Tiles {
                body.extend(tiles::clear_rows(self, scratch, first_row, end_row));
            }
        }
        let span = PanelSpan { first_panel, past_panels, first_row, end_row };
        let terms = schedule.block_terms;
        if terms >= steps {
            body.extend(self.walk_panels(&span, Phase::Whole));
            return body;
        }
        let var = self.program.exprs.declare_index("first_term", steps);
        let exprs = &mut self.program.exprs;
        let (start, all) = (exprs.var(var), exprs.index(steps as i64));
        let past = exprs.add_const(start, terms as i64);
        let end = if steps.is_multiple_of(terms) { past } else { exprs.min(past, all) };
        let zero = exprs.index(0);
        let walk = self.walk_panels(&span, Phase::Accumulate { start, end });
        let kind = LoopKind::Serial;
        body.push(Stmt::For { var, start: zero, end: all, step: terms as i64, kind, body: walk });
        body.extend(self.walk_panels(&span, Phase::Finish));
        body
    }

    /// All register tiles of a task: its full panels, then the partial one if it is the task's.
    fn walk_panels(&mut self, span: &PanelSpan, phase: Phase) -> Vec<Stmt> {
        let (n, width) = (self.extents.n, self.width());
        let full_panels = n / width;
        let mut body = Vec::new();
        if full_panels > 0 {
            body.extend(self.walk_full_panels(span, full_panels, phase));
        }
        if !n.is_multiple_of(width) || n == 0 {
            let last = self.program.exprs.index(full_panels as i64);
            let rest = self.walk_rows(last, n - full_panels * width, span, phase);
            body.extend(self.only_if_last(rest, span));
        }
        body
    }

    /// Binds an expression with values `0..extent` to a readable name; a constant stays one.
    fn bind(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId, extent: usize) -> ExprId {
        if extent <= 1 {
            return self.program.exprs.index(0);
        }
        let value = simplify(&mut self.program.exprs, value);
        let var = self.program.exprs.declare_index(name, extent);
        body.push(Stmt::Let(var, value));
        self.program.exprs.var(var)
    }

    fn walk_full_panels(&mut self, span: &PanelSpan, full_panels: usize, phase: Phase) -> Vec<Stmt> {
        let exprs = &mut self.program.exprs;
        let limit = exprs.index(full_panels as i64);
        let end = exprs.min(span.past_panels, limit);
        let end = simplify(exprs, end);
        let (var, panel) = exprs.fresh_index("panel", full_panels);
        let body = self.walk_rows(panel, self.width(), span, phase);
        vec![Stmt::For { var, start: span.first_panel, end, step: 1, kind: LoopKind::Serial, body }]
    }

    /// Guards the partial last panel so that one panel block computes it.
    fn only_if_last(&mut self, body: Vec<Stmt>, span: &PanelSpan) -> Vec<Stmt> {
        let panels = self.extents.n.div_ceil(self.width()).max(1);
        if panels <= self.schedule.block_panels {
            return body;
        }
        let exprs = &mut self.program.exprs;
        let all = exprs.index(panels as i64);
        let condition = exprs.ge(span.past_panels, all);
        vec![Stmt::If { condition, then: body, otherwise: Vec::new() }]
    }

    /// All register tiles of the task's rows in one panel of `columns` columns.
    fn walk_rows(&mut self, panel: ExprId, columns: usize, span: &PanelSpan, phase: Phase) -> Vec<Stmt> {
        let mut body = Vec::new();
        if let Some(buffer) = self.panel_scratch {
            body.extend(match self.engine {
                Engine::Vectors => self.fill_panel(buffer, panel, columns),
                Engine::Pairs | Engine::Tiles => pairs::fill_panel(self, buffer, panel, columns),
            });
        }
        let m = self.extents.m;
        let split = self.schedule.row_split(m);
        let full_end = split.full * self.schedule.rows;
        if split.full > 0 {
            let exprs = &mut self.program.exprs;
            let limit = exprs.index(full_end as i64);
            let end = exprs.min(span.end_row, limit);
            let strips = Strips { start: span.first_row, end, rows: self.schedule.rows, past: full_end };
            body.push(self.walk_strips(&strips, (panel, columns), span, phase));
        }
        if split.rests > 0 {
            let start = self.program.exprs.index(full_end as i64);
            let end = self.program.exprs.index(m as i64);
            let strips = Strips { start, end, rows: split.rest_rows, past: m };
            let inner = self.walk_strips(&strips, (panel, columns), span, phase);
            let condition = self.program.exprs.ge(span.end_row, end);
            let condition = simplify(&mut self.program.exprs, condition);
            match self.program.exprs.as_bool(condition) {
                Some(true) => body.push(inner),
                _ => body.push(Stmt::If { condition, then: vec![inner], otherwise: Vec::new() }),
            }
        }
        body
    }

    /// The loop over strips of equal height.
    fn walk_strips(
        &mut self,
        strips: &Strips,
        (panel, columns): (ExprId, usize),
        span: &PanelSpan,
        phase: Phase,
    ) -> Stmt {
        let exprs = &mut self.program.exprs;
        let end = simplify(exprs, strips.end);
        let var = exprs.declare_index("row", strips.past);
        let rows = strips.rows;
        let (first_row, span_row, span_panel) = (exprs.var(var), span.first_row, span.first_panel);
        let tile = Tile { first_row, span_row, span_panel, panel, rows, columns };
        let body = emit_tile(self, &tile, phase);
        Stmt::For { var, start: strips.start, end, step: rows as i64, kind: LoopKind::Serial, body }
    }

    /// Binds the first of `lanes` neighbouring values of an index below `extent`, a multiple of the lanes.
    pub fn vector_index(&mut self, body: &mut Vec<Stmt>, name: &str, first: ExprId, extent: usize) -> VarId {
        let var = self.program.exprs.declare_index(name, extent.next_multiple_of(self.lanes));
        self.program.exprs.set_multiple_of(var, self.lanes as i64);
        body.push(Stmt::Let(var, first));
        var
    }

    /// Copies an expression of the block program at neighbouring values of the flat coordinate `along.0`, the
    /// first of which is the variable `along.1`: a full vector, splatted if it does not vary.
    pub fn import_vector(
        &mut self,
        root: ExprId,
        bindings: &[(VarId, ExprId)],
        along: (VarId, VarId),
        mask: Option<ExprId>,
    ) -> ExprId {
        let value = self.import_widened(root, bindings, along, mask);
        if self.program.exprs.lanes(value) == 1 { self.program.exprs.splat(value, self.lanes) } else { value }
    }

    /// As [`Self::import_vector`], but a value that does not vary stays a scalar.
    fn import_widened(
        &mut self,
        root: ExprId,
        bindings: &[(VarId, ExprId)],
        along: (VarId, VarId),
        mask: Option<ExprId>,
    ) -> ExprId {
        self.import_at(root, bindings, along, mask, &[])
    }

    /// As [`Self::import_widened`], where registers hold values that differ between lanes.
    pub fn import_at(
        &mut self,
        root: ExprId,
        bindings: &[(VarId, ExprId)],
        (coordinate, base): (VarId, VarId),
        mask: Option<ExprId>,
        registers: &[(VarId, ExprId)],
    ) -> ExprId {
        let extent = self.source.var_info(coordinate).range.map_or(0, |(_, last)| last as usize + 1);
        let exprs = &mut self.program.exprs;
        let (var, each) = exprs.fresh_index("each", extent.next_multiple_of(self.lanes));
        let bindings = [bindings, &[(coordinate, each)]].concat();
        let scalar = self.import_scalar(root, &bindings);
        let base = self.program.exprs.var(base);
        let widening = Widening { var, base, lanes: self.lanes, mask, registers: registers.to_vec() };
        vectorize(&mut self.program.exprs, scalar, &widening).value
    }

    /// Lanes below `valid`; `None` when that is all of them.
    pub fn tail_mask(&mut self, valid: usize) -> Option<ExprId> {
        if valid >= self.lanes {
            return None;
        }
        Some(prefix_mask(&mut self.program.exprs, valid, self.lanes))
    }

    /// Copies a scalar expression of the block program (over batch axes and flat coordinates) into the program.
    pub fn import_scalar(&mut self, root: ExprId, bindings: &[(VarId, ExprId)]) -> ExprId {
        let mut importer = Importer::new();
        for &(var, value) in self.batch_values.iter().chain(bindings) {
            importer.bind(var, value);
        }
        let (block, buffers, sum) = (self.block, &self.arg_buffers, self.sum);
        let copied =
            importer.import(&self.source, &mut self.program.exprs, root, |exprs, access| match access {
                Access::Read { arg, index, guard } => {
                    let meta = block.arg(arg);
                    let offset = exprs.linear_index(index, &meta.layout.strides(&meta.shape));
                    let buffer = buffers[arg.index()].expect("arguments that are read are passed");
                    exprs.load(buffer, offset, 1, guard)
                }
                Access::Stage(_) => exprs.var(sum),
            });
        simplify(&mut self.program.exprs, copied)
    }
}

/// The first `valid` of `lanes` lanes.
pub(super) fn prefix_mask(exprs: &mut Exprs, valid: usize, lanes: usize) -> ExprId {
    let (zero, count) = (exprs.index(0), exprs.index(valid as i64));
    let (lane, count) = (exprs.ramp(zero, 1, lanes), exprs.splat(count, lanes));
    exprs.lt(lane, count)
}

/// Register tiles of equal height below one another.
struct Strips {
    start: ExprId,
    end: ExprId,
    rows: usize,
    /// One more than the last row that any task has.
    past: usize,
}

/// The rows and panels of one task.
struct PanelSpan {
    first_panel: ExprId,
    past_panels: ExprId,
    first_row: ExprId,
    end_row: ExprId,
}

/// Elements between lines of scratch: whole vectors, and never a multiple of 4 KiB, so that lines do not compete for
/// the same cache sets.
fn line_distance(elems: usize, lanes: usize) -> usize {
    const ALIASING_ELEMS: usize = 1024;
    let distance = elems.max(1).next_multiple_of(lanes);
    if distance.is_multiple_of(ALIASING_ELEMS) { distance + lanes } else { distance }
}

/// Roughly how many instructions an operation is.
fn operation_weight(exprs: &Exprs, id: ExprId) -> usize {
    use orch_compute::expr::Expr;
    use orch_ir::{BinaryFn, UnaryFn};
    match exprs.get(id) {
        Expr::Unary(UnaryFn::Neg | UnaryFn::Abs | UnaryFn::Sqrt | UnaryFn::Recip, _) => 1,
        Expr::Unary(..) | Expr::Binary(BinaryFn::Pow | BinaryFn::FloorMod | BinaryFn::TruncMod, ..) => 25,
        Expr::Binary(..) | Expr::Fma(..) | Expr::Compare(..) | Expr::Select(..)
            if exprs.dtype(id).is_float() =>
        {
            1
        }
        Expr::Read { .. } => 1,
        _ => 0,
    }
}
