//! Where a register tile reads its rows and its panel.

use super::emitter::{ContractionEmitter, RegisterTile, RowScratch, WindowScratch};
use super::operand::{PanelsFrom, RowsFrom};
use super::pack_cost::RowOrder;
use super::window::{TermLoops, Window};
use orch_compute::expr::{BufferId, Expr, ExprId};
use orch_compute::simplify::simplify;
use orch_thread::program::Stmt;

/// Where the tile's rows start.
pub(super) struct RowAddresses {
    pub buffer: BufferId,
    pub bases: Vec<ExprId>,
    /// The loops over K; their strides count from the bases.
    pub terms: TermLoops,
}

pub(super) fn row_addresses(
    ctx: &mut ContractionEmitter<'_>,
    tile: &RegisterTile,
    out: &mut Vec<Stmt>,
) -> RowAddresses {
    match ctx.rows.clone() {
        RowsFrom::Scratch(_) => {
            let RowScratch { buffer, order, distance } = ctx.row_scratch.expect("declared with the rows");
            let exprs = &mut ctx.program.exprs;
            let local = exprs.sub(tile.first_row, tile.block_row);
            let (first, between, stride) = match order {
                RowOrder::KInner => (exprs.mul_const(local, distance as i64), distance, 1),
                RowOrder::RowsInner => (exprs.add_const(local, ctx.lanes as i64), 1, distance as i64),
            };
            let base = bind_offset(ctx, "a_base", first, out);
            let bases =
                (0..tile.rows).map(|row| ctx.program.exprs.add_const(base, (row * between) as i64)).collect();
            RowAddresses { buffer, bases, terms: ctx.one_run(stride) }
        }
        RowsFrom::Window(window) => window_addresses(ctx, &window, tile, out),
        RowsFrom::Lines(_) => unreachable!("lines have addresses for each run"),
        RowsFrom::Argument { arg, stride } => {
            let zero = ctx.program.exprs.index(0);
            let offset_of = |ctx: &mut ContractionEmitter<'_>, row: usize| {
                let at = ctx.program.exprs.add_const(tile.first_row, row as i64);
                let element = ctx.import_scalar(ctx.a, &[(ctx.flat.m, at), (ctx.flat.k, zero)]);
                match *ctx.program.exprs.get(element) {
                    Expr::Load { offset, .. } => simplify(&mut ctx.program.exprs, offset),
                    _ => unreachable!("a plain read is imported as a load"),
                }
            };
            let first = offset_of(ctx, 0);
            let base = bind_offset(ctx, "a_base", first, out);
            let mut bases = vec![base];
            for row in 1..tile.rows {
                let offset = offset_of(ctx, row);
                let difference = ctx.program.exprs.sub(offset, first);
                let difference = simplify(&mut ctx.program.exprs, difference);
                bases.push(match ctx.program.exprs.as_int(difference) {
                    Some(distance) => ctx.program.exprs.add_const(base, distance),
                    None => bind_offset(ctx, "a_base", offset, out),
                });
            }
            let buffer = ctx.arg_buffers[arg.index()].expect("arguments that are read are passed");
            RowAddresses { buffer, bases, terms: ctx.one_run(stride) }
        }
    }
}

/// Where rows lie in a window. Those of a tile that lies within a line are at equal distances.
fn window_addresses(
    ctx: &mut ContractionEmitter<'_>,
    window: &Window,
    tile: &RegisterTile,
    out: &mut Vec<Stmt>,
) -> RowAddresses {
    let WindowScratch { buffer, strides, terms } =
        ctx.window_scratch.clone().expect("declared with the rows");
    let axes = ctx.form.m.clone();
    let extents: Vec<usize> = axes.iter().map(|&axis| ctx.block.extent(axis)).collect();
    let distances: Vec<i64> = (axes.iter())
        .map(|&axis| {
            let mut places = window.coordinates.iter().zip(&strides);
            let distance =
                places.find_map(|(at, stride)| at.row.filter(|it| it.0 == axis).map(|it| it.1 * stride));
            distance.unwrap_or(0) as i64
        })
        .collect();
    let line_rows = window.line_rows as i64;
    let exprs = &mut ctx.program.exprs;
    let lines = exprs.index(line_rows);
    let block_line = exprs.floor_div(tile.block_row, lines);
    let line_elems = (window.line_step() * strides[window.line]) as i64;
    let start = exprs.mul_const(block_line, line_elems);
    let offset_of = |ctx: &mut ContractionEmitter<'_>, row: usize| {
        let exprs = &mut ctx.program.exprs;
        let at = exprs.add_const(tile.first_row, row as i64);
        let mut offset = exprs.index(0);
        for (value, &distance) in exprs.unflatten(at, &extents).into_iter().zip(&distances) {
            let part = exprs.mul_const(value, distance);
            offset = exprs.add2(offset, part);
        }
        exprs.sub(offset, start)
    };
    let first = offset_of(ctx, 0);
    let base = bind_offset(ctx, "a_base", first, out);
    let is_within_line = window.row_run.is_multiple_of(ctx.schedule.rows) && tile.rows == ctx.schedule.rows;
    let step = distances.last().copied().unwrap_or(0);
    let bases = (0..tile.rows)
        .map(|row| match row {
            0 => base,
            row if is_within_line => ctx.program.exprs.add_const(base, row as i64 * step),
            row => {
                let offset = offset_of(ctx, row);
                bind_offset(ctx, "a_base", offset, out)
            }
        })
        .collect();
    RowAddresses { buffer, bases, terms }
}

/// Buffer, first offset and distance between neighbours along K of the tile's panel.
pub(super) fn panel_address(
    ctx: &mut ContractionEmitter<'_>,
    tile: &RegisterTile,
    out: &mut Vec<Stmt>,
) -> (BufferId, ExprId, i64) {
    let width = ctx.width();
    match ctx.panels.clone() {
        PanelsFrom::Scratch => {
            let buffer = ctx.panel_scratch.expect("declared with the panels");
            (buffer, ctx.program.exprs.index(0), width as i64)
        }
        PanelsFrom::Packed(packed) => {
            let panel_elems = packed.k_extent * width;
            let batch = ctx.batch;
            let exprs = &mut ctx.program.exprs;
            let batch_line = exprs.mul_const(batch, (packed.panels() * panel_elems) as i64);
            let line = exprs.mul_const(tile.panel, panel_elems as i64);
            let line = exprs.add2(batch_line, line);
            let base = bind_offset(ctx, "b_base", line, out);
            (ctx.packed_buffer.expect("declared with the panels"), base, width as i64)
        }
        PanelsFrom::Argument { arg, stride } => {
            let exprs = &mut ctx.program.exprs;
            let column = exprs.mul_const(tile.panel, width as i64);
            let zero = exprs.index(0);
            let element = ctx.import_scalar(ctx.b, &[(ctx.flat.n, column), (ctx.flat.k, zero)]);
            let Expr::Load { offset, .. } = *ctx.program.exprs.get(element) else {
                unreachable!("a plain read is imported as a load")
            };
            let base = bind_offset(ctx, "b_base", offset, out);
            let buffer = ctx.arg_buffers[arg.index()].expect("arguments that are read are passed");
            (buffer, base, stride)
        }
    }
}

/// Names an offset so that it is computed once per tile.
pub(super) fn bind_offset(
    ctx: &mut ContractionEmitter<'_>,
    name: &str,
    offset: ExprId,
    out: &mut Vec<Stmt>,
) -> ExprId {
    let offset = simplify(&mut ctx.program.exprs, offset);
    if ctx.program.exprs.as_int(offset).is_some() {
        return offset;
    }
    let var = ctx.program.exprs.declare_index(name, 0);
    out.push(Stmt::Let(var, offset));
    ctx.program.exprs.var(var)
}
