//! The loop over K of a register tile whose rows are read line by line.

use super::address::{RowAddresses, bind_offset, panel_address};
use super::emitter::{ContractionEmitter, RegisterTile};
use super::lines::Lines;
use super::run::{Runs, TermsAt, emit_run};
use orch_compute::expr::{Expr, ExprId, VarId};
use orch_compute::simplify::simplify;
use orch_thread::program::Stmt;

/// For each run of terms, a loop over those of the rows of the tile that no guard excludes from it.
pub(super) fn emit_sum(
    ctx: &mut ContractionEmitter<'_>,
    lines: &Lines,
    tile: &RegisterTile,
    vectors: usize,
    accumulators: &[Vec<VarId>],
    range: (ExprId, ExprId),
) -> Vec<Stmt> {
    let mut out = Vec::new();
    let (panel_buffer, panel_base, panel_stride) = panel_address(ctx, tile, &mut out);
    let place = bind_place(ctx, lines, tile, &mut out);
    let run = lines.size.run;
    let extents: Vec<usize> = lines.outer_terms.iter().map(|&(_, extent)| extent).collect();
    let runs = Runs::of(ctx, range, run, extents.iter().product());

    let mut body = Vec::new();
    let exprs = &mut ctx.program.exprs;
    let panel_line = exprs.mul_const(runs.first_term, panel_stride);
    let panel_line = exprs.add2(panel_base, panel_line);
    let panel_line = bind_offset(ctx, "b_run", panel_line, &mut body);
    let exprs = &mut ctx.program.exprs;
    let zero = exprs.index(0);
    let mut bindings: Vec<(VarId, ExprId)> = lines.run_terms.iter().map(|&axis| (axis, zero)).collect();
    let places = exprs.unflatten(runs.number, &extents);
    bindings.extend(lines.outer_terms.iter().map(|&(axis, _)| axis).zip(places));
    bindings.extend(place.outer);
    let at_row = |ctx: &mut ContractionEmitter<'_>, root: ExprId, row: usize| {
        let row = ctx.program.exprs.add_const(place.first, row as i64);
        ctx.import_scalar(root, &[&bindings[..], &[(lines.axis, row)]].concat())
    };

    let mut inner = Vec::new();
    let element = at_row(ctx, lines.read, 0);
    let Expr::Load { offset, .. } = *ctx.program.exprs.get(element) else {
        unreachable!("a plain read is imported as a load")
    };
    let first = bind_offset(ctx, "a_run", offset, &mut inner);
    let buffer = ctx.arg_buffers[lines.arg.index()].expect("arguments that are read are passed");
    // The largest set of rows that are all inside is the set of those that are: it has no gaps.
    let mut chain = Vec::new();
    for rows in ctx.row_sets(lines, tile.rows).into_iter().rev() {
        let bases = rows.clone().map(|row| ctx.program.exprs.add_const(first, row as i64 * lines.row_stride));
        let bases = bases.collect();
        let of_rows = RowAddresses { buffer, bases, terms: ctx.one_run(lines.term_stride) };
        let panel = (panel_buffer, panel_line, panel_stride);
        let at = TermsAt { panel, rows: &of_rows, stride: lines.term_stride, run };
        let multiply = emit_run(ctx, tile, vectors, &accumulators[rows.clone()], &at, runs.of_run());
        let Some(guard) = lines.row_guard else {
            chain = multiply;
            break;
        };
        let (low, high) = (at_row(ctx, guard, rows.start), at_row(ctx, guard, rows.end - 1));
        let both = ctx.program.exprs.and(low, high);
        let condition = simplify(&mut ctx.program.exprs, both);
        chain = only_if(ctx, condition, multiply, chain);
    }
    inner.extend(chain);
    let inner = match lines.line_guard {
        Some(guard) => {
            let condition = at_row(ctx, guard, 0);
            only_if(ctx, condition, inner, Vec::new())
        }
        None => inner,
    };
    body.extend(inner);
    out.extend(runs.walk(body));
    out
}

/// Statements under a condition, which may be known.
fn only_if(
    ctx: &ContractionEmitter<'_>,
    condition: ExprId,
    then: Vec<Stmt>,
    otherwise: Vec<Stmt>,
) -> Vec<Stmt> {
    match ctx.program.exprs.as_bool(condition) {
        Some(true) => then,
        Some(false) => otherwise,
        None => vec![Stmt::If { condition, then, otherwise }],
    }
}

/// Where a register tile is.
struct TilePlace {
    /// The axes of rows from line to line.
    outer: Vec<(VarId, ExprId)>,
    /// The place in the line of its first row.
    first: ExprId,
}

fn bind_place(
    ctx: &mut ContractionEmitter<'_>,
    lines: &Lines,
    tile: &RegisterTile,
    out: &mut Vec<Stmt>,
) -> TilePlace {
    let rows = lines.size.rows;
    let extents: Vec<usize> = lines.outer_rows.iter().map(|&(_, extent)| extent).collect();
    let exprs = &mut ctx.program.exprs;
    let line_rows = exprs.index(rows as i64);
    let (line, first) =
        (exprs.floor_div(tile.first_row, line_rows), exprs.floor_rem(tile.first_row, line_rows));
    let (line, first) = (simplify(exprs, line), simplify(exprs, first));
    let line = ctx.bind(out, "line", line, extents.iter().product());
    let first = match rows == tile.rows {
        true => ctx.program.exprs.index(0),
        false => ctx.bind(out, "first", first, rows),
    };
    let places = ctx.program.exprs.unflatten(line, &extents);
    TilePlace { outer: lines.outer_rows.iter().map(|&(axis, _)| axis).zip(places).collect(), first }
}

impl ContractionEmitter<'_> {
    /// The sets of rows that some tile of so many rows multiplies in some run.
    fn row_sets(&self, lines: &Lines, height: usize) -> Vec<std::ops::Range<usize>> {
        let split = self.schedule.line_split().expect("tiles lie within lines");
        let rows = self.schedule.rows;
        let full = split.full_starts(rows).filter(|_| height == rows);
        let rests = split.rest_starts(rows).filter(|_| height == split.rest_rows);
        lines.row_sets(&self.source, full.chain(rests), height)
    }
}
