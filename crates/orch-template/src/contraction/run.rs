//! The loop over a run of terms of a register tile, whose rows are at constant distances from each other's.

use super::address::{RowAddresses, bind_offset};
use super::emitter::{ContractionEmitter, RegisterTile, prefix_mask};
use super::linear::{linear_in, plain_read};
use super::operand::PanelsFrom;
use super::pack_cost::AlongK;
use orch_compute::expr::{BufferId, Expr, ExprId, Exprs, Type, VarId};
use orch_compute::simplify::simplify;
use orch_thread::program::{CACHE_LINE, LoopKind, PREFETCH_PANELS, Stmt};

/// The runs of terms that have terms of a part of K.
pub(super) struct Runs {
    var: VarId,
    /// The number of a run.
    pub number: ExprId,
    /// Its first term.
    pub first_term: ExprId,
    /// True if the part is all terms of all runs.
    pub are_whole: bool,
    /// The runs.
    start: ExprId,
    end: ExprId,
    /// The terms of a run that are in the part, counted from its first one.
    from: ExprId,
    to: ExprId,
}

impl Runs {
    /// Of a part of K that consists of so many runs.
    pub fn of(
        ctx: &mut ContractionEmitter<'_>,
        (start, end): (ExprId, ExprId),
        run: usize,
        count: usize,
    ) -> Self {
        let are_whole = is_whole_runs(&ctx.program.exprs, (start, end), ctx.steps(), run);
        let (var, number) = ctx.program.exprs.fresh_index("run", count);
        let exprs = &mut ctx.program.exprs;
        let terms = exprs.index(run as i64);
        let first_run = exprs.floor_div(start, terms);
        let raised = exprs.add_const(end, run as i64 - 1);
        let past_run = exprs.floor_div(raised, terms);
        let first_term = exprs.mul_const(number, run as i64);
        let zero = exprs.index(0);
        let (from, to) = (exprs.sub(start, first_term), exprs.sub(end, first_term));
        let (from, to) = (exprs.max(from, zero), exprs.min(to, terms));
        let (from, to) = if are_whole { (zero, terms) } else { (simplify(exprs, from), simplify(exprs, to)) };
        let (start, end) = (simplify(exprs, first_run), simplify(exprs, past_run));
        Self { var, number, first_term, are_whole, start, end, from, to }
    }

    /// The terms of a run.
    pub fn of_run(&self) -> (ExprId, ExprId) {
        (self.from, self.to)
    }

    /// The loop over the runs.
    pub fn walk(&self, body: Vec<Stmt>) -> Vec<Stmt> {
        let Self { var, start, end, .. } = *self;
        vec![Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body }]
    }
}

/// Whether a range of K is all of it.
fn is_whole_runs(exprs: &Exprs, (start, end): (ExprId, ExprId), terms: usize, run: usize) -> bool {
    exprs.as_int(start) == Some(0) && exprs.as_int(end) == Some(terms as i64) && terms.is_multiple_of(run)
}

/// Where a run of terms starts.
pub(super) struct TermsAt<'a> {
    /// The panel, its first element, and elements between neighbours along K.
    pub panel: (BufferId, ExprId, i64),
    /// The rows.
    pub rows: &'a RowAddresses,
    /// Elements between neighbours of a row.
    pub stride: i64,
    /// Terms, at most.
    pub run: usize,
}

/// The loop over terms at equal distances.
pub(super) fn emit_run(
    ctx: &mut ContractionEmitter<'_>,
    tile: &RegisterTile,
    vectors: usize,
    accumulators: &[Vec<VarId>],
    at: &TermsAt<'_>,
    (start, end): (ExprId, ExprId),
) -> Vec<Stmt> {
    let (panel_buffer, panel_base, panel_stride) = at.panel;
    let rows = at.rows;
    let mut out = Vec::new();
    let next = next_panel(ctx, tile, (accumulators.len(), vectors), at, (start, end), &mut out);
    let (k_var, k) = ctx.program.exprs.fresh_index("k", at.run);
    let ty = Type::vector(ctx.sum_type, ctx.lanes);
    let mut body = Vec::new();
    let exprs = &mut ctx.program.exprs;
    let panel_line = exprs.mul_const(k, panel_stride);
    let panel_line = exprs.add2(panel_base, panel_line);
    let row_line = exprs.mul_const(k, at.stride);
    body.extend(ahead(ctx, vectors, (panel_buffer, panel_line, panel_stride)));
    body.extend(next.into_iter().flat_map(|next| next.prefetches(ctx, k)));
    let exprs = &mut ctx.program.exprs;
    let mut loaded = Vec::new();
    let columns: Vec<ExprId> = (0..vectors)
        .map(|vector| {
            let offset = exprs.add_const(panel_line, (vector * ctx.lanes) as i64);
            let mask = partial_mask(exprs, &ctx.panels, tile.columns, vector, ctx.lanes);
            let load = exprs.load(panel_buffer, offset, ctx.lanes, mask);
            let var = exprs.declare_register(format!("b{vector}"), ty);
            loaded.push(Stmt::Let(var, load));
            exprs.var(var)
        })
        .collect();
    let mut broadcast = Vec::new();
    let a_elements: Vec<ExprId> = (0..accumulators.len())
        .map(|row| {
            let offset = exprs.add2(rows.bases[row], row_line);
            let load = exprs.load(rows.buffer, offset, 1, None);
            let splat = exprs.splat(load, ctx.lanes);
            let var = exprs.declare_register(format!("a{row}"), ty);
            broadcast.push(Stmt::Let(var, splat));
            exprs.var(var)
        })
        .collect();
    let mut add = |row: usize, vector: usize| {
        let register = accumulators[row][vector];
        let sum = exprs.var(register);
        let next = if ctx.sum_type.is_float() {
            exprs.fma(a_elements[row], columns[vector], sum)
        } else {
            let product = exprs.mul(a_elements[row], columns[vector]);
            exprs.add2(sum, product)
        };
        Stmt::Assign(register, next)
    };
    // The side of the tile that has fewer registers is held; those of the other are used one after the other.
    if vectors <= accumulators.len() {
        body.extend(loaded);
        for (row, splat) in broadcast.into_iter().enumerate() {
            body.push(splat);
            body.extend((0..vectors).map(|vector| add(row, vector)));
        }
    } else {
        body.extend(broadcast);
        for (vector, load) in loaded.into_iter().enumerate() {
            body.push(load);
            body.extend((0..accumulators.len()).map(|row| add(row, vector)));
        }
    }
    let exprs = &ctx.program.exprs;
    let is_whole = is_whole_runs(exprs, (start, end), at.run, at.run);
    let kind = if is_whole && at.run <= UNROLLED_ITERATIONS { LoopKind::Unroll } else { LoopKind::Serial };
    out.push(Stmt::For { var: k_var, start, end, step: 1, kind, body });
    out
}

/// Iterations of K in a run, at most, that are written one after the other: a loop over so few costs as much as one of them.
pub(super) const UNROLLED_ITERATIONS: usize = 8;

/// Prefetches lines of a panel that lies in an argument before they are read, if memory is what the product waits for: those of
/// the next panel but one, or of the next block of K where there is none. Rows of a panel are too far apart for the hardware to find
/// out in time. On a Zen 5 core, 8 rows by 4096 x 4096 elements take 3.6 ms, not 7.2.
fn ahead(
    ctx: &mut ContractionEmitter<'_>,
    vectors: usize,
    (buffer, line, stride): (BufferId, ExprId, i64),
) -> Vec<Stmt> {
    if !ctx.waits_for_panels {
        return Vec::new();
    }
    let schedule = ctx.schedule;
    let distance = match schedule.block_panels > PREFETCH_PANELS {
        true => (PREFETCH_PANELS * ctx.width()) as i64,
        false => schedule.block_k.min(ctx.extents.k) as i64 * stride,
    };
    let first = ctx.program.exprs.add_const(line, distance);
    Stmt::prefetches(&mut ctx.program, buffer, first, vectors * ctx.lanes)
}

/// Tiles of rows that meet a panel, at most, if its first one's wait counts.
const MOST_TILES: usize = 64;

/// What a register tile prefetches of the panel after its own: for each term, some neighbouring elements.
struct NextPanel {
    buffer: BufferId,
    /// Those of term 0.
    first: ExprId,
    /// How many for each term.
    elems: usize,
}

impl NextPanel {
    fn prefetches(self, ctx: &mut ContractionEmitter<'_>, k: ExprId) -> Vec<Stmt> {
        let Self { buffer, elems, .. } = self;
        let exprs = &mut ctx.program.exprs;
        let of_term = exprs.mul_const(k, elems as i64);
        let first = exprs.add2(self.first, of_term);
        let lines = (0..elems).step_by(CACHE_LINE / ctx.operand_type.size_bytes());
        lines.map(|elem| Stmt::Prefetch { buffer, offset: exprs.add_const(first, elem as i64) }).collect()
    }
}

/// The elements of the next panel where they lie side by side in memory: of a packed constant, or of an operand that is dense along K, column
/// after column, from which panels are filled.
struct PanelInMemory {
    buffer: BufferId,
    first: ExprId,
    /// Elements of all panels, from the start of the buffer.
    elems: usize,
}

impl PanelInMemory {
    fn after(ctx: &mut ContractionEmitter<'_>, tile: &RegisterTile, at: &TermsAt<'_>) -> Option<Self> {
        match &ctx.panels {
            PanelsFrom::Packed(packed) => {
                let (panel_elems, elems) = ((packed.k_extent * ctx.width()) as i64, packed.elems());
                let (buffer, base, _) = at.panel;
                Some(Self { buffer, first: ctx.program.exprs.add_const(base, panel_elems), elems })
            }
            PanelsFrom::Scratch => Self::of_operand(ctx, tile),
            PanelsFrom::Argument { .. } => None,
        }
    }

    fn of_operand(ctx: &mut ContractionEmitter<'_>, tile: &RegisterTile) -> Option<Self> {
        let along_k = AlongK::of_panels(ctx.block, &ctx.form, ctx.math_unit)?;
        let element = ctx.panel_element(Some(along_k));
        let (arg, offset) = plain_read(ctx.block, &mut ctx.source, element.value)?;
        let (column_elems, column) = (ctx.extents.k as i64, ctx.flat.n);
        let mut step = |var: VarId| linear_in(&mut ctx.source, offset, var);
        ((step(element.k), step(column)) == (Some(1), Some(column_elems))).then_some(())?;
        let width = ctx.width() as i64;
        let exprs = &mut ctx.program.exprs;
        let (zero, next) = (exprs.index(0), exprs.add_const(tile.panel, 1));
        let first_column = exprs.mul_const(next, width);
        let read = ctx.import_scalar(element.value, &[(column, first_column), (element.k, zero)]);
        let &Expr::Load { buffer, offset, .. } = ctx.program.exprs.get(read) else { return None };
        let first = simplify(&mut ctx.program.exprs, offset);
        Some(Self { buffer, first, elems: ctx.block.arg(arg).shape.elems() })
    }
}

/// The part of the next panel that a register tile prefetches: operands are read once in a run of a model, or packed once for many rows, so
/// that the first tile of each panel, or what fills it, would wait for memory, which hardware prefetches only up to the end of a page. The
/// tiles of rows that meet a panel share the work evenly. A product of 128 rows by 768 x 3072 elements reaches 98 % of a Zen 5 core with it,
/// 90 % without.
///
/// ```text
/// terms start..end of panel p + 1, [term, column] or [column, term]:   | tile 0 | tile 1 | .. | tile T - 1 |
/// tile t at term k prefetches `elems` elements from  start * width + (t * width / T) * (end - start) + (k - start) * elems
///                                                    (counted from the panel's first element)
/// ```
fn next_panel(
    ctx: &mut ContractionEmitter<'_>,
    tile: &RegisterTile,
    (rows, vectors): (usize, usize),
    at: &TermsAt<'_>,
    (start, end): (ExprId, ExprId),
    out: &mut Vec<Stmt>,
) -> Option<NextPanel> {
    let (_, _, stride) = at.panel;
    let (schedule, width) = (ctx.schedule, ctx.width());
    let (first_row, block_rows) = match schedule.block_panels {
        1 => (tile.block_row, schedule.block_rows),
        _ => (tile.task_row, schedule.task_rows),
    };
    let tiles = (block_rows / schedule.rows).min(schedule.row_split(ctx.extents.m).strips());
    let elems = width.div_ceil(tiles);
    let lines = (elems * ctx.operand_type.size_bytes()).div_ceil(CACHE_LINE);
    let is_free = rows + vectors + lines <= rows * vectors;
    let is_last = tile.columns < width || ctx.extents.n <= width;
    if schedule.rows_outer || is_last || tiles > MOST_TILES || !is_free {
        return None;
    }
    let next = PanelInMemory::after(ctx, tile, at)?;
    let exprs = &mut ctx.program.exprs;
    let row = exprs.sub(tile.first_row, first_row);
    // Tiles after the full ones begin up to `rows - 1` rows earlier than full ones would.
    let row = exprs.add_const(row, schedule.rows as i64 - 1);
    let tile_rows = exprs.index(schedule.rows as i64);
    let number = exprs.floor_div(row, tile_rows);
    let (share, all_tiles) = (exprs.mul_const(number, width as i64), exprs.index(tiles as i64));
    let share = exprs.floor_div(share, all_tiles);
    let terms = exprs.sub(end, start);
    let before = exprs.mul(share, terms);
    // Terms count from the start of the run.
    let skipped = exprs.mul_const(start, stride - elems as i64);
    let place = exprs.add2(before, skipped);
    let first = exprs.add2(next.first, place);
    // After the last panel there may be no memory: its tiles ask for its own end again.
    let last = exprs.index(next.elems.saturating_sub(at.run * elems) as i64);
    let first = exprs.min(first, last);
    Some(NextPanel { buffer: next.buffer, first: bind_offset(ctx, "next_panel", first, out), elems })
}

/// A panel that lies in an argument ends where the argument does, so its last vector is masked.
fn partial_mask(
    exprs: &mut orch_compute::expr::Exprs,
    panels: &PanelsFrom,
    columns: usize,
    vector: usize,
    lanes: usize,
) -> Option<ExprId> {
    let valid = columns - vector * lanes;
    if valid >= lanes || !matches!(panels, PanelsFrom::Argument { .. }) {
        return None;
    }
    Some(prefix_mask(exprs, valid, lanes))
}
