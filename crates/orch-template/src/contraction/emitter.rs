//! What all parts of the emission of a contraction share: the roles of its axes, its buffers, and the import of the block
//! program's expressions into the thread program.

use super::form::{ContractionForm, GemmShape};
use super::lines::Lines;
use super::math_unit::CpuMathUnit;
use super::operand::{FlatAxes, PanelsFrom, RowsFrom, flat_operands, sources};
use super::pack_cost::RowOrder;
use super::schedule::CpuContractionSchedule;
use super::staging::Staging;
use super::window::TermLoops;
use crate::bind::bind_index;
use crate::design::LONGEST_PRODUCT_CHAIN;
use orch_compute::block::{BlockProgram, Stage};
use orch_compute::expr::substitute::{Access, Importer};
use orch_compute::expr::{ArgId, BufferId, ExprId, Exprs, Type, VarId};
use orch_compute::simplify::simplify;
use orch_ir::DType;
use orch_thread::amx::TileId;
use orch_thread::kernel::Binding;
use orch_thread::program::{Buffer, Scope, Stmt, ThreadProgram};
use orch_thread::target::CpuTarget;
use orch_thread::vectorize::{Widening, vectorize};

/// A contraction while it is lowered: what all parts of the emission share.
pub(super) struct ContractionEmitter<'a> {
    /// What is computed.
    pub block: &'a BlockProgram,
    /// Its arena, with the flat coordinates added.
    pub source: Exprs,
    /// The roles of its axes.
    pub form: ContractionForm,
    /// What multiplies.
    pub math_unit: CpuMathUnit,
    /// The operands over batch axes and flat coordinates, as the math_unit reads them.
    pub a: ExprId,
    /// See `a`.
    pub b: ExprId,
    /// The flat coordinates.
    pub flat: FlatAxes,
    /// Extents of the flat coordinates.
    pub extents: GemmShape,
    /// How it is tiled.
    pub schedule: CpuContractionSchedule,
    /// Lanes of a vector.
    pub lanes: usize,
    /// Type of the sum.
    pub sum_type: DType,
    /// Type of the operands.
    pub operand_type: DType,
    /// Extent of K in a panel: that of the contraction, and of zeros that the math_unit multiplies with it.
    pub padded_k: usize,
    /// The matrix tiles, if those multiply.
    pub tiles: Option<AmxTiles>,
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
    /// Scratch of a window.
    pub window_scratch: Option<WindowScratch>,
    /// Scratch panel.
    pub panel_scratch: Option<BufferId>,
    /// Scratch for accumulators that are not stored from registers.
    pub accumulator_scratch: Option<AccumulatorScratch>,
    /// Batch axes of the block program as expressions of the program's work item.
    pub batch_values: Vec<(VarId, ExprId)>,
    /// The flat batch number.
    pub batch: ExprId,
    /// Stands for one element of the sum in scalar expressions, before they are widened.
    pub sum: VarId,
}

/// What a panel in scratch is filled with.
pub(super) struct PanelFill {
    /// Where: `[k][column]`, or `[pair][column][2]`.
    pub buffer: BufferId,
    /// Its first column.
    pub first_column: ExprId,
    /// How many columns it has.
    pub columns: usize,
    /// Its elements.
    pub element: PanelElement,
}

/// An element of the second operand.
pub(super) struct PanelElement {
    /// Its value, over batch axes, the flat column and `k`.
    pub value: ExprId,
    /// Counts along the K axes, in the order of `axes`.
    pub k: VarId,
    /// The K axes, outermost first.
    pub axes: Vec<VarId>,
}

/// Scratch for a work item's rows of the first operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowScratch {
    /// Where.
    pub buffer: BufferId,
    /// Which coordinate is the inner one.
    pub order: RowOrder,
    /// Elements between neighbours along the outer coordinate.
    pub distance: usize,
}

/// Scratch for the part of a window that a block of rows takes.
#[derive(Clone, Debug)]
pub(super) struct WindowScratch {
    /// Where.
    pub buffer: BufferId,
    /// Elements between neighbours along each coordinate.
    pub strides: Vec<usize>,
    /// The loops over K.
    pub terms: TermLoops,
}

/// Scratch that holds accumulators between their computation and the epilogue: of one register tile, or of a work item's block.
#[derive(Clone, Copy)]
pub(super) struct AccumulatorScratch {
    /// Where.
    pub buffer: BufferId,
    /// Elements between rows.
    pub line: usize,
    /// True if it has room for all of a work item's rows and panels.
    pub of_block: bool,
    /// Rows of a register tile that are not the tile's own and come first.
    pub skipped_rows: usize,
}

/// The tiles of a kernel.
#[derive(Clone, Debug)]
pub(super) struct AmxTiles {
    /// Rows of a tile.
    pub rows: usize,
    /// Sums, by row of tiles.
    pub sums: Vec<Vec<TileId>>,
    /// The first operand, one per row of tiles.
    pub a: Vec<TileId>,
    /// The second operand, one per column of tiles.
    pub b: Vec<TileId>,
}

/// One register tile.
pub(super) struct RegisterTile {
    /// Its first row.
    pub first_row: ExprId,
    /// The first row of the block that its work item has a part of.
    pub block_row: ExprId,
    /// The first row of the work item.
    pub task_row: ExprId,
    /// The first panel of the work item.
    pub task_panel: ExprId,
    /// Its panel.
    pub panel: ExprId,
    /// Rows.
    pub rows: usize,
    /// Columns; the last vector may be partial.
    pub columns: usize,
}

impl<'a> ContractionEmitter<'a> {
    pub fn new(
        block: &'a BlockProgram,
        form: ContractionForm,
        math_unit: CpuMathUnit,
        schedule: CpuContractionSchedule,
        target: &CpuTarget,
    ) -> Self {
        let mut source = block.exprs.clone();
        let extents = GemmShape::of(block, &form);
        let flat = FlatAxes::new(block, &mut source, &form);
        let (a, b) = flat_operands(&mut source, &form, &flat, math_unit);
        let sum_type = source.dtype(form.a);
        let lanes = target.lanes(sum_type.size_bytes());
        let width = schedule.vectors * lanes;
        let operand_type = source.dtype(a);
        let (rows, panels) = sources(block, &mut source, &form, &flat, (a, b), math_unit, width);
        let rows = match schedule.line_rows {
            Some(_) => {
                RowsFrom::Lines(Lines::of(block, &mut source, &form).expect("the schedule is for lines"))
            }
            None => rows,
        };
        let staging = Staging { term_bytes: panels.term_bytes(operand_type), ..Staging::default() };
        let waits_for_panels = staging.waits_for_panels((schedule.rows, width), extents, target);
        let mut program = ThreadProgram::new(&block.name, schedule.grid(extents, lanes).tasks());
        let batch = program.exprs.index(0);
        let sum = program.exprs.declare_register("sum", Type::scalar(sum_type));
        let mut emitter = Self {
            block,
            source,
            form,
            math_unit,
            a,
            b,
            flat,
            extents,
            schedule,
            lanes,
            sum_type,
            operand_type,
            padded_k: extents.k.next_multiple_of(math_unit.k_step()),
            tiles: None,
            rows,
            panels,
            waits_for_panels,
            program,
            arg_buffers: vec![None; block.args.len()],
            packed_buffer: None,
            row_scratch: None,
            window_scratch: None,
            panel_scratch: None,
            accumulator_scratch: None,
            batch_values: Vec::new(),
            batch,
            sum,
        };
        emitter.declare_buffers();
        emitter
    }

    /// Columns of a panel.
    pub fn width(&self) -> usize {
        self.schedule.vectors * self.lanes
    }

    /// Iterations of the loop over K.
    pub fn steps(&self) -> usize {
        self.padded_k / self.math_unit.group().lanes()
    }

    /// Terms of a run, if not all are at equal distances.
    pub fn run_terms(&self) -> Option<usize> {
        match &self.rows {
            RowsFrom::Lines(lines) => (!lines.outer_terms.is_empty()).then_some(lines.size.run),
            _ => self.window_scratch.as_ref().map(|window| window.terms.run),
        }
    }

    /// All of K as one run of terms.
    pub fn one_run(&self, stride: i64) -> TermLoops {
        TermLoops { outer: Vec::new(), run: self.extents.k, stride }
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
        let (sum_type, operand_type) = (self.sum_type, self.operand_type);
        let scratch = |name: &str, dtype: DType, elems: usize| Buffer {
            name: name.into(),
            dtype,
            elems,
            scope: Scope::Scratch,
        };
        let panel = scratch("panel", operand_type, self.padded_k.max(1) * self.width());
        if let RowsFrom::Scratch(order) = self.rows {
            let (elems, distance) = match order {
                RowOrder::KInner => {
                    let line = self.lanes * sum_type.size_bytes() / operand_type.size_bytes();
                    let distance = line_distance(self.padded_k, line);
                    (self.schedule.block_rows * distance + self.lanes, distance)
                }
                RowOrder::RowsInner => {
                    let distance = line_distance(self.schedule.block_rows + 3 * self.lanes, self.lanes);
                    (self.extents.k.max(1) * distance + self.lanes, distance)
                }
            };
            let buffer = self.program.add_buffer(scratch("rows", operand_type, elems));
            self.row_scratch = Some(RowScratch { buffer, order, distance });
        }
        if let RowsFrom::Window(window) = &self.rows {
            let (strides, elems) = window.strides(self.block, self.schedule.block_rows);
            let terms = window.terms(self.block, &self.form, &strides);
            let buffer = self.program.add_buffer(scratch("window", operand_type, elems + self.lanes));
            self.window_scratch = Some(WindowScratch { buffer, strides, terms });
        }
        if matches!(self.panels, PanelsFrom::Scratch) {
            self.panel_scratch = Some(self.program.add_buffer(panel));
        }
        let of_block = self.schedule.block_k < self.steps();
        let is_long = self.steps() > LONGEST_PRODUCT_CHAIN;
        if of_block || is_long || self.math_unit == CpuMathUnit::Amx || self.epilogue_is_costly() {
            let panels = if of_block { self.schedule.block_panels } else { 1 };
            let rows = if of_block { self.schedule.task_rows } else { self.schedule.rows };
            let line = panels * self.width();
            let buffer = self.program.add_buffer(scratch("sums", sum_type, rows * line));
            self.accumulator_scratch = Some(AccumulatorScratch { buffer, line, of_block, skipped_rows: 0 });
        }
    }

    /// True if an argument is read by more than the packed operand.
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

    pub fn bindings(&self) -> Vec<Binding> {
        let passed = (0..self.arg_buffers.len()).filter(|&index| self.arg_buffers[index].is_some());
        let mut bindings: Vec<Binding> = passed.map(|index| Binding::Arg(ArgId::new(index))).collect();
        if let PanelsFrom::Packed(packed) = &self.panels {
            bindings.push(Binding::Packed(packed.clone()));
        }
        bindings
    }
    /// Binds an expression with values `0..extent` to a readable name; a constant stays one.
    pub fn bind(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId, extent: usize) -> ExprId {
        bind_index(&mut self.program, body, name, value, extent)
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
        let (scalar, var) = self.import_each(root, bindings, coordinate, self.lanes);
        let base = self.program.exprs.var(base);
        let widening = Widening { var, base, lanes: self.lanes, mask, registers: registers.to_vec() };
        vectorize(&mut self.program.exprs, scalar, &widening).value
    }

    /// As [`Self::import_vector`], of so many lanes.
    pub fn import_run(
        &mut self,
        root: ExprId,
        bindings: &[(VarId, ExprId)],
        (coordinate, base): (VarId, VarId),
        lanes: usize,
    ) -> ExprId {
        let (scalar, var) = self.import_each(root, bindings, coordinate, lanes);
        let exprs = &mut self.program.exprs;
        let base = exprs.var(base);
        let value = vectorize(exprs, scalar, &Widening::new(var, base, lanes)).value;
        if exprs.lanes(value) == 1 { exprs.splat(value, lanes) } else { value }
    }

    /// Copies an expression of the block program at each value of a flat coordinate, which the variable is.
    fn import_each(
        &mut self,
        root: ExprId,
        bindings: &[(VarId, ExprId)],
        coordinate: VarId,
        lanes: usize,
    ) -> (ExprId, VarId) {
        let extent = self.source.var_info(coordinate).range.map_or(0, |(_, last)| last as usize + 1);
        let (var, each) = self.program.exprs.fresh_index("each", extent.next_multiple_of(lanes));
        let bindings = [bindings, &[(coordinate, each)]].concat();
        (self.import_scalar(root, &bindings), var)
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
        Expr::Binary(BinaryFn::Philox, ..) => 100,
        Expr::Binary(..) | Expr::Fma(..) | Expr::Compare(..) | Expr::Select(..)
            if exprs.dtype(id).is_float() =>
        {
            1
        }
        Expr::Read { .. } => 1,
        _ => 0,
    }
}
