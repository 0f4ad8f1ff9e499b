//! From a contraction to a thread program: work items, operand staging and the walk over register tiles.

use super::amx;
use super::emitter::{ContractionEmitter, RegisterTile};
use super::form::{ContractionForm, GemmShape};
use super::math_unit::CpuMathUnit;
use super::micro_kernel::{TilePass, emit_tile};
use super::pack_cost::cpu_form;
use super::schedule::TaskGrid;
use super::schedule::{CpuContractionSchedule, RowSplit};
use super::staging::staging;
use crate::design::CannotLower;
use orch_compute::block::BlockProgram;
use orch_compute::expr::ExprId;
use orch_compute::simplify::simplify;
use orch_thread::kernel::Kernel;
use orch_thread::program::{LoopKind, Stmt};
use orch_thread::target::CpuTarget;

/// Lowers a contraction.
///
/// # Errors
/// If the block program is no contraction.
pub fn lower(
    block: &BlockProgram,
    schedule: &CpuContractionSchedule,
    target: &CpuTarget,
) -> Result<Kernel, CannotLower> {
    let form = ContractionForm::of(block)?;
    let math_unit = CpuMathUnit::of(block, &form, target);
    let mut emitter = ContractionEmitter::new(block, form, math_unit, *schedule, target);
    if math_unit == CpuMathUnit::Amx {
        emitter.tiles = Some(amx::declare(&mut emitter));
    }
    let body = emitter.emit_work_item();
    emitter.program.body = body;
    let bindings = emitter.bindings();
    Ok(Kernel { program: emitter.program, bindings })
}

/// At most `limit` schedules in the order of the model's preference, with what multiplies; `None` if the block program is no
/// contraction.
pub(crate) fn schedules(
    block: &BlockProgram,
    target: &CpuTarget,
    limit: usize,
) -> Option<(CpuMathUnit, Vec<CpuContractionSchedule>)> {
    let form = cpu_form(block).ok()?;
    let extents = GemmShape::of(block, &form);
    let lanes = target.lanes(block.exprs.dtype(form.a).size_bytes());
    let math_unit = CpuMathUnit::of(block, &form, target);
    let staging = staging(block, &form, math_unit);
    Some((math_unit, math_unit.schedules(extents, staging, lanes, target, limit)))
}

impl ContractionEmitter<'_> {
    /// One work item: a part of a block of rows times a block of panels of one batch.
    fn emit_work_item(&mut self) -> Vec<Stmt> {
        let (schedule, steps) = (self.schedule, self.steps());
        let grid = schedule.grid(self.extents, self.lanes);
        let TaskGrid { batch, row_blocks, panel_blocks, row_parts } = grid;

        let mut body = Vec::new();
        let task = self.program.exprs.var(self.program.task);
        let place = self.program.exprs.unflatten(task, &[batch, row_blocks, panel_blocks, row_parts]);
        self.batch = self.bind(&mut body, "batch", place[0], batch);
        let row_block = self.bind(&mut body, "row_block", place[1], row_blocks);
        let panel_block = self.bind(&mut body, "panel_block", place[2], panel_blocks);
        let row_part = self.bind(&mut body, "row_part", place[3], row_parts);
        let batch_extents: Vec<usize> = self.form.batch.iter().map(|&axis| self.block.extent(axis)).collect();
        let values = self.program.exprs.unflatten(self.batch, &batch_extents);
        self.batch_values = self.form.batch.iter().copied().zip(values).collect();

        let (block_strips, task_strips) =
            (schedule.block_rows / schedule.rows, schedule.task_rows / schedule.rows);
        let exprs = &mut self.program.exprs;
        let block_strip = exprs.mul_const(row_block, block_strips as i64);
        let past_block = exprs.add_const(block_strip, block_strips as i64);
        let part = exprs.mul_const(row_part, task_strips as i64);
        let strip = exprs.add2(block_strip, part);
        let past_strip = exprs.add_const(strip, task_strips as i64);
        let (block_row, past_block_row) = (self.first_row_of(block_strip), self.first_row_of(past_block));
        let (first_row, end_row) = (self.first_row_of(strip), self.first_row_of(past_strip));
        let exprs = &mut self.program.exprs;
        let first_panel = exprs.mul_const(panel_block, schedule.block_panels as i64);
        let past_panels = exprs.add_const(first_panel, schedule.block_panels as i64);

        if let Some(scratch) = self.row_scratch {
            let mut fill = self.fill_rows(scratch, block_row, past_block_row);
            if self.math_unit == CpuMathUnit::Amx {
                fill.extend(amx::clear_rows(self, scratch, block_row, past_block_row));
            }
            body.extend(self.once_in_block(grid, fill));
        }
        if let Some(scratch) = self.window_scratch.clone() {
            let fill = self.fill_window(&scratch, block_row, past_block_row);
            body.extend(self.once_in_block(grid, fill));
        }
        let (first_strip, past_strip) = (strip, past_strip);
        let span = WorkItemBlock {
            first_panel,
            past_panels,
            block_row,
            first_row,
            end_row,
            first_strip,
            past_strip,
        };
        let terms = schedule.block_k;
        if terms >= steps {
            body.extend(self.walk_tiles(&span, TilePass::Whole));
            return body;
        }
        let var = self.program.exprs.declare_index("first_term", steps);
        let exprs = &mut self.program.exprs;
        let (start, all) = (exprs.var(var), exprs.index(steps as i64));
        let past = exprs.add_const(start, terms as i64);
        let end = if steps.is_multiple_of(terms) { past } else { exprs.min(past, all) };
        let zero = exprs.index(0);
        let walk = self.walk_tiles(&span, TilePass::Accumulate { start, end });
        let kind = LoopKind::Serial;
        body.push(Stmt::For { var, start: zero, end: all, step: terms as i64, kind, body: walk });
        body.extend(self.walk_tiles(&span, TilePass::Finish));
        body
    }

    /// Statements that fill scratch for all work items of a block of rows: done by a thread's first one of them.
    fn once_in_block(&mut self, grid: TaskGrid, fill: Vec<Stmt>) -> Vec<Stmt> {
        if grid.tasks_of_block() == 1 {
            return fill;
        }
        let first = self.program.set_groups(grid.tasks_of_block());
        let exprs = &mut self.program.exprs;
        let (flag, one) = (exprs.var(first), exprs.index(1));
        let condition = exprs.ge(flag, one);
        vec![Stmt::If { condition, then: fill, otherwise: Vec::new() }]
    }

    /// The first row of a row tile, or one more than the last row for tiles that there are not.
    fn first_row_of(&mut self, strip: ExprId) -> ExprId {
        let (m, schedule) = (self.extents.m, self.schedule);
        let (row, is_exact) = match schedule.line_split().zip(schedule.line_rows) {
            Some((split, line_rows)) => {
                let exprs = &mut self.program.exprs;
                let strips = exprs.index(split.strips() as i64);
                let (line, strip) = (exprs.floor_div(strip, strips), exprs.floor_rem(strip, strips));
                let (line, row) = (exprs.mul_const(line, line_rows as i64), self.row_of(strip, split));
                let block_strips = schedule.block_rows / schedule.rows;
                let is_exact = schedule.row_split(m).strips().is_multiple_of(block_strips);
                (self.program.exprs.add2(line, row), is_exact)
            }
            None => {
                let is_exact = m.is_multiple_of(schedule.block_rows);
                (self.row_of(strip, schedule.row_split(m)), is_exact)
            }
        };
        let exprs = &mut self.program.exprs;
        let row = if is_exact {
            row
        } else {
            let all = exprs.index(m as i64);
            exprs.min(row, all)
        };
        simplify(exprs, row)
    }

    /// The first row of a row tile, of rows that are cut like this.
    fn row_of(&mut self, strip: ExprId, split: RowSplit) -> ExprId {
        let exprs = &mut self.program.exprs;
        let even = exprs.mul_const(strip, self.schedule.rows as i64);
        if split.rests <= 1 {
            return even;
        }
        // Each tile beyond the full ones is one row shorter.
        let full = exprs.index(split.full as i64);
        let beyond = exprs.sub(strip, full);
        let zero = exprs.index(0);
        let short = exprs.max(beyond, zero);
        exprs.sub(even, short)
    }

    /// All register tiles of a work item: panel by panel, or strip by strip if all panels stay in the L2.
    fn walk_tiles(&mut self, span: &WorkItemBlock, phase: TilePass) -> Vec<Stmt> {
        if self.schedule.rows_outer && self.panel_scratch.is_none() {
            return self.walk_rows(span, |ctx, rows| {
                ctx.walk_panels(span, |ctx, panel| emit_tile(ctx, &span.tile(rows, panel), phase))
            });
        }
        self.walk_panels(span, |ctx, panel| {
            let mut body = ctx.fill_panel_of_tiles(panel);
            body.extend(ctx.walk_rows(span, |ctx, rows| emit_tile(ctx, &span.tile(rows, panel), phase)));
            body
        })
    }

    /// The row tiles of a work item, each with its first row and its rows.
    fn walk_rows(
        &mut self,
        span: &WorkItemBlock,
        mut body_of: impl FnMut(&mut Self, (ExprId, usize)) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        match self.schedule.line_split() {
            Some(split) if split.rests > 0 => self.walk_lines(span, split, body_of),
            _ => (self.row_tiles(span).iter())
                .map(|strips| self.walk_strips(strips, |ctx, row| body_of(ctx, (row, strips.rows))))
                .collect(),
        }
    }

    /// The same of lines that are cut into row tiles of two heights.
    fn walk_lines(
        &mut self,
        span: &WorkItemBlock,
        split: RowSplit,
        mut body_of: impl FnMut(&mut Self, (ExprId, usize)) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let (m, rows) = (self.extents.m, self.schedule.rows);
        let strips = self.schedule.row_split(m).strips();
        let (var, strip) = self.program.exprs.fresh_index("strip", strips);
        let row = self.first_row_of(strip);
        let mut body = Vec::new();
        let row = self.bind(&mut body, "row", row, m);
        let (full, rest) = (body_of(self, (row, rows)), body_of(self, (row, split.rest_rows)));
        let exprs = &mut self.program.exprs;
        let (in_line, full_strips) = (exprs.index(split.strips() as i64), exprs.index(split.full as i64));
        let in_line = exprs.floor_rem(strip, in_line);
        let condition = exprs.lt(in_line, full_strips);
        body.push(Stmt::If { condition, then: full, otherwise: rest });
        let all = exprs.index(strips as i64);
        let end = exprs.min(span.past_strip, all);
        let end = simplify(exprs, end);
        vec![Stmt::For { var, start: span.first_strip, end, step: 1, kind: LoopKind::Serial, body }]
    }

    /// The full panels of a work item, then the partial one if it is the work item's.
    fn walk_panels(
        &mut self,
        span: &WorkItemBlock,
        mut body_of: impl FnMut(&mut Self, Panel) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let (n, width) = (self.extents.n, self.width());
        let full_panels = n / width;
        let mut body = Vec::new();
        if full_panels > 0 {
            let exprs = &mut self.program.exprs;
            let limit = exprs.index(full_panels as i64);
            let end = exprs.min(span.past_panels, limit);
            let end = simplify(exprs, end);
            let (var, number) = exprs.fresh_index("panel", full_panels);
            let inner = body_of(self, Panel { number, columns: width });
            let kind = LoopKind::Serial;
            body.push(Stmt::For { var, start: span.first_panel, end, step: 1, kind, body: inner });
        }
        if !n.is_multiple_of(width) || n == 0 {
            let number = self.program.exprs.index(full_panels as i64);
            let rest = body_of(self, Panel { number, columns: n - full_panels * width });
            body.extend(self.only_if_last(rest, span));
        }
        body
    }

    /// Guards the partial last panel so that one panel block computes it.
    fn only_if_last(&mut self, body: Vec<Stmt>, span: &WorkItemBlock) -> Vec<Stmt> {
        let panels = self.extents.n.div_ceil(self.width()).max(1);
        if panels <= self.schedule.block_panels {
            return body;
        }
        let exprs = &mut self.program.exprs;
        let all = exprs.index(panels as i64);
        let condition = exprs.ge(span.past_panels, all);
        vec![Stmt::If { condition, then: body, otherwise: Vec::new() }]
    }

    /// Brings a panel to scratch, where that is needed.
    fn fill_panel_of_tiles(&mut self, Panel { number, columns }: Panel) -> Vec<Stmt> {
        let Some(buffer) = self.panel_scratch else { return Vec::new() };
        self.fill_panel(buffer, number, columns)
    }

    /// The row tiles of a work item: the full ones, and shorter ones.
    fn row_tiles(&mut self, span: &WorkItemBlock) -> Vec<RowTiles> {
        let m = self.extents.m;
        let split = self.schedule.row_split(m);
        let full_end = split.full * self.schedule.rows;
        let mut tiles = Vec::new();
        if split.full > 0 {
            let exprs = &mut self.program.exprs;
            let limit = exprs.index(full_end as i64);
            let end = exprs.min(span.end_row, limit);
            tiles.push(RowTiles { start: span.first_row, end, rows: self.schedule.rows, past: full_end });
        }
        if split.rests > 0 {
            let exprs = &mut self.program.exprs;
            let limit = exprs.index(full_end as i64);
            let start = exprs.max(span.first_row, limit);
            let start = simplify(exprs, start);
            tiles.push(RowTiles { start, end: span.end_row, rows: split.rest_rows, past: m });
        }
        tiles
    }

    /// The loop over row tiles of equal height.
    fn walk_strips(
        &mut self,
        strips: &RowTiles,
        body_of: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>,
    ) -> Stmt {
        let exprs = &mut self.program.exprs;
        let end = simplify(exprs, strips.end);
        let var = exprs.declare_index("row", strips.past);
        let row = exprs.var(var);
        let body = body_of(self, row);
        Stmt::For { var, start: strips.start, end, step: strips.rows as i64, kind: LoopKind::Serial, body }
    }
}

/// A panel.
#[derive(Clone, Copy)]
struct Panel {
    number: ExprId,
    /// Its columns.
    columns: usize,
}

/// Register tiles of equal height below one another.
struct RowTiles {
    start: ExprId,
    end: ExprId,
    rows: usize,
    /// One more than the last row that any work item has.
    past: usize,
}

/// The rows and panels of one work item.
struct WorkItemBlock {
    first_panel: ExprId,
    past_panels: ExprId,
    /// The first row of the block whose part these rows are.
    block_row: ExprId,
    first_row: ExprId,
    end_row: ExprId,
    /// The row tiles that these rows are.
    first_strip: ExprId,
    past_strip: ExprId,
}

impl WorkItemBlock {
    /// A tile of the rows from the first on, in a panel.
    fn tile(&self, (first_row, rows): (ExprId, usize), panel: Panel) -> RegisterTile {
        RegisterTile {
            first_row,
            block_row: self.block_row,
            task_row: self.first_row,
            task_panel: self.first_panel,
            panel: panel.number,
            rows,
            columns: panel.columns,
        }
    }
}
