//! Register tiles as matrix tiles (AMX): two by two tiles of 16 x 16 accumulators, 32 elements of K at a time.
//!
//! The hardware is configured once, for full tiles. Fewer rows than a tile has are computed with a tile that starts
//! earlier, where rows are read in place, so that it ends with the last row; its first rows are computed twice and
//! stored once. In scratch, rows of zeros follow the last one instead.

use super::address::{bind_offset, panel_address};
use super::emitter::{AccumulatorScratch, AmxTiles, ContractionEmitter, RegisterTile, RowScratch};
use super::epilogue::emit_epilogue_loop;
use super::math_unit::{AMX_COLUMNS, AMX_K};
use super::operand::{RowsFrom, argument_row_distance};
use orch_compute::expr::{BufferId, Expr, ExprId};
use orch_compute::simplify::simplify;
use orch_ir::DType;
use orch_thread::amx::{AmxShape, AmxStmt, MAX_TILE_ROWS};
use orch_thread::program::{LoopKind, Stmt};

/// Declares the tiles of a kernel.
pub(super) fn declare(ctx: &mut ContractionEmitter<'_>) -> AmxTiles {
    let rows = MAX_TILE_ROWS.min(ctx.schedule.rows);
    let (row_tiles, column_tiles) = (ctx.schedule.rows.div_ceil(rows), ctx.schedule.vectors);
    let mut add =
        |name: String, dtype, rows, columns| ctx.program.add_tile(AmxShape { name, dtype, rows, columns });
    let sums = (0..row_tiles)
        .map(|i| {
            (0..column_tiles).map(|j| add(format!("sum_{i}_{j}"), DType::F32, rows, AMX_COLUMNS)).collect()
        })
        .collect();
    let a = (0..row_tiles).map(|i| add(format!("a_{i}"), DType::BF16, rows, AMX_K)).collect();
    let b =
        (0..column_tiles).map(|j| add(format!("b_{j}"), DType::BF16, AMX_K / 2, 2 * AMX_COLUMNS)).collect();
    AmxTiles { rows, sums, a, b }
}

/// Statements that compute a tile and store its results.
pub(super) fn emit_tile(ctx: &mut ContractionEmitter<'_>, tile: &RegisterTile, set: &AmxTiles) -> Vec<Stmt> {
    let row_tiles = tile.rows.div_ceil(set.rows);
    let column_tiles = tile.columns.div_ceil(AMX_COLUMNS);
    let sums = ctx.accumulator_scratch.expect("tiles of sums are stored to scratch");
    // The first row of each row of tiles, relative to the tile's first row.
    let in_place = matches!(ctx.rows, RowsFrom::Argument { .. });
    let last_start = tile.rows as i64 - set.rows as i64;
    let starts: Vec<i64> = (0..row_tiles)
        .map(|i| (i * set.rows) as i64)
        .map(|start| if in_place || last_start >= 0 { start.min(last_start) } else { start })
        .collect();
    let skipped = (-starts[0]) as usize;

    let mut out = Vec::new();
    let rows: Vec<(BufferId, ExprId, i64)> =
        starts.iter().map(|&start| row_address(ctx, tile, start, &mut out)).collect();
    let (panel_buffer, panel_base, _) = panel_address(ctx, tile, &mut out);
    let width = ctx.width() as i64;
    for row in &set.sums[..row_tiles] {
        out.extend(row[..column_tiles].iter().map(|&sum| Stmt::Amx(AmxStmt::Zero(sum))));
    }

    let exprs = &mut ctx.program.exprs;
    let term_var = exprs.declare_index("term", ctx.padded_k);
    exprs.set_multiple_of(term_var, AMX_K as i64);
    let term = exprs.var(term_var);
    // Each tile is loaded right before its first use: loads and products of tiles overlap only if they alternate.
    let mut body = Vec::new();
    for (i, &(buffer, base, stride)) in rows.iter().enumerate() {
        let offset = exprs.add2(base, term);
        body.push(Stmt::Amx(AmxStmt::Load { tile: set.a[i], buffer, offset, stride }));
        for (j, &b) in set.b[..column_tiles].iter().enumerate() {
            if i == 0 {
                let line = exprs.mul_const(term, width);
                let line = exprs.add2(panel_base, line);
                let offset = exprs.add_const(line, (2 * j * AMX_COLUMNS) as i64);
                let stride = 2 * width;
                body.push(Stmt::Amx(AmxStmt::Load { tile: b, buffer: panel_buffer, offset, stride }));
            }
            body.push(Stmt::Amx(AmxStmt::Dot { acc: set.sums[i][j], a: set.a[i], b }));
        }
    }
    let (zero, end) = (exprs.index(0), exprs.index(ctx.padded_k as i64));
    let step = AMX_K as i64;
    out.push(Stmt::For { var: term_var, start: zero, end, step, kind: LoopKind::Serial, body });

    for (i, &start) in starts.iter().enumerate() {
        for (j, &sum) in set.sums[i][..column_tiles].iter().enumerate() {
            let first = (start + skipped as i64) * sums.line as i64 + (j * AMX_COLUMNS) as i64;
            let offset = ctx.program.exprs.index(first);
            let (buffer, stride) = (sums.buffer, sums.line as i64);
            out.push(Stmt::Amx(AmxStmt::Store { tile: sum, buffer, offset, stride }));
        }
    }
    let sums = AccumulatorScratch { skipped_rows: skipped, ..sums };
    out.extend(emit_epilogue_loop(ctx, tile, sums, column_tiles));
    out
}

/// Buffer, first offset and distance of the rows from `start` on, counted from the tile's first row.
fn row_address(
    ctx: &mut ContractionEmitter<'_>,
    tile: &RegisterTile,
    start: i64,
    out: &mut Vec<Stmt>,
) -> (BufferId, ExprId, i64) {
    let exprs = &mut ctx.program.exprs;
    let row = exprs.add_const(tile.first_row, start);
    match ctx.rows.clone() {
        RowsFrom::Scratch(_) => {
            let RowScratch { buffer, distance, .. } = ctx.row_scratch.expect("declared with the rows");
            let local = exprs.sub(row, tile.block_row);
            let line = exprs.mul_const(local, distance as i64);
            (buffer, bind_offset(ctx, "a_base", line, out), distance as i64)
        }
        RowsFrom::Window(_) | RowsFrom::Lines(_) => {
            unreachable!("tiles read rows in place or as they are packed")
        }
        RowsFrom::Argument { arg, .. } => {
            let zero = exprs.index(0);
            let element = ctx.import_scalar(ctx.a, &[(ctx.flat.m, row), (ctx.flat.k, zero)]);
            let Expr::Load { offset, .. } = *ctx.program.exprs.get(element) else {
                unreachable!("a plain read is imported as a load")
            };
            let base = bind_offset(ctx, "a_base", offset, out);
            let distance = argument_row_distance(ctx.block, &mut ctx.source, &ctx.flat, ctx.a)
                .expect("the math_unit reads rows in place only at equal distances");
            (ctx.arg_buffers[arg.index()].expect("arguments that are read are passed"), base, distance)
        }
    }
}

/// Rows of zeros after the last one of the work item's scratch rows, up to a whole tile.
pub(super) fn clear_rows(
    ctx: &mut ContractionEmitter<'_>,
    RowScratch { buffer, distance, .. }: RowScratch,
    first: ExprId,
    end: ExprId,
) -> Option<Stmt> {
    let split = ctx.schedule.row_split(ctx.extents.m);
    let (height, block_rows) = (MAX_TILE_ROWS.min(ctx.schedule.rows), ctx.schedule.block_rows);
    if split.rests == 0 || split.rest_rows >= height {
        return None;
    }
    let exprs = &mut ctx.program.exprs;
    let row_var = exprs.declare_index("row", ctx.extents.m.next_multiple_of(ctx.schedule.rows));
    let row = exprs.var(row_var);
    let used = exprs.sub(end, first);
    let height_expr = exprs.index(height as i64);
    let tiles = exprs.floor_div(used, height_expr);
    let full = exprs.mul_const(tiles, height as i64);
    let raised = exprs.add_const(full, height as i64);
    let room = exprs.index(block_rows as i64);
    let past = exprs.min(raised, room);
    let past = exprs.add2(first, past);
    let past = simplify(exprs, past);
    let local = exprs.sub(row, first);
    let line = exprs.mul_const(local, distance as i64);
    let term_var = exprs.declare_index("term", ctx.padded_k);
    let term = exprs.var(term_var);
    let offset = exprs.add2(line, term);
    let zero = exprs.zero(DType::BF16);
    let value = exprs.splat(zero, AMX_K);
    let (start, terms) = (exprs.index(0), exprs.index(ctx.padded_k as i64));
    let store = Stmt::Store { buffer, offset, value, mask: None };
    let kind = LoopKind::Serial;
    let step = AMX_K as i64;
    let clear = Stmt::For { var: term_var, start, end: terms, step, kind, body: vec![store] };
    Some(Stmt::For { var: row_var, start: end, end: past, step: 1, kind, body: vec![clear] })
}
