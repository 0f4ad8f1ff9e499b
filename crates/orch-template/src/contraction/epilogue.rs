//! The epilogue: the stores of the block program, from accumulators in registers or in scratch.

use super::emitter::{AccumulatorScratch, ContractionEmitter, RegisterTile};
use orch_compute::block::Stage;
use orch_compute::expr::substitute::Substitution;
use orch_compute::expr::{Expr, ExprId, Type, VarId};
use orch_compute::simplify::simplify;
use orch_thread::program::{LoopKind, Stmt};

/// Offset of the accumulators of a tile's first row in scratch, laid out as `[row, column]`.
pub(super) fn sums_base(
    ctx: &mut ContractionEmitter<'_>,
    tile: &RegisterTile,
    sums: AccumulatorScratch,
) -> ExprId {
    let width = ctx.width();
    let exprs = &mut ctx.program.exprs;
    if !sums.of_block {
        return exprs.index((sums.skipped_rows * sums.line) as i64);
    }
    let row = exprs.sub(tile.first_row, tile.task_row);
    let line = exprs.mul_const(row, sums.line as i64);
    let panel = exprs.sub(tile.panel, tile.task_panel);
    let column = exprs.mul_const(panel, width as i64);
    let base = exprs.add2(line, column);
    simplify(exprs, base)
}

/// The epilogue as a loop over the rows of the stored tile, and over its full vectors.
pub(super) fn emit_epilogue_loop(
    ctx: &mut ContractionEmitter<'_>,
    tile: &RegisterTile,
    sums: AccumulatorScratch,
    vectors: usize,
) -> Vec<Stmt> {
    let lanes = ctx.lanes;
    let base = sums_base(ctx, tile, sums);
    let (row_var, row) = ctx.program.exprs.fresh_index("tile_row", tile.rows);
    let at = ctx.program.exprs.add2(tile.first_row, row);
    let mut body = Vec::new();
    for vector in 0..vectors {
        let exprs = &mut ctx.program.exprs;
        let line = exprs.mul_const(row, sums.line as i64);
        let line = exprs.add2(base, line);
        let offset = exprs.add_const(line, (vector * lanes) as i64);
        let load = exprs.load(sums.buffer, offset, lanes, None);
        let var = exprs.declare_register("sum", Type::vector(ctx.sum_type, lanes));
        body.push(Stmt::Let(var, load));
        let sum = ctx.program.exprs.var(var);
        body.extend(emit_stores(ctx, tile, at, vector, sum));
    }
    let (zero, end) = (ctx.program.exprs.index(0), ctx.program.exprs.index(tile.rows as i64));
    vec![Stmt::For { var: row_var, start: zero, end, step: 1, kind: LoopKind::Serial, body }]
}

/// The stores of the block program for one vector of accumulators at row `row`.
pub(super) fn emit_stores(
    ctx: &mut ContractionEmitter<'_>,
    tile: &RegisterTile,
    row: ExprId,
    vector: usize,
    sum: ExprId,
) -> Vec<Stmt> {
    let lanes = ctx.lanes;
    let start = vector * lanes;
    let mask = ctx.tail_mask(tile.columns - start);
    let exprs = &mut ctx.program.exprs;
    let first = exprs.mul_const(tile.panel, (ctx.schedule.vectors * lanes) as i64);
    let first = exprs.add_const(first, start as i64);
    let mut out = Vec::new();
    let column = ctx.vector_index(&mut out, "column", first, ctx.extents.n);
    let point = ResultVector { row, column, sum, mask };
    for stage in &ctx.block.stages {
        let Stage::Store { arg, index, body, .. } = stage else { continue };
        let strides = ctx.block.arg(*arg).layout.strides(&ctx.block.arg(*arg).shape);
        let offset = ctx.source.linear_index(index, &strides);
        let mut flatten = Substitution::new(&ctx.flat.bindings);
        let (offset, value) = (flatten.apply(&mut ctx.source, offset), flatten.apply(&mut ctx.source, *body));
        let offset = simplify(&mut ctx.source, offset);
        let value = at_point(ctx, value, &point);
        let offset = at_point(ctx, offset, &point);
        let offset = contiguous_base(ctx, offset);
        let buffer = ctx.arg_buffers[arg.index()].expect("outputs are passed");
        let value =
            if ctx.program.exprs.lanes(value) == 1 { ctx.program.exprs.splat(value, lanes) } else { value };
        out.push(Stmt::Store { buffer, offset, value, mask });
    }
    out
}

/// A vector of results.
struct ResultVector {
    row: ExprId,
    column: VarId,
    sum: ExprId,
    mask: Option<ExprId>,
}

/// A ramp of stride 1 is a contiguous store from its base on.
fn contiguous_base(ctx: &ContractionEmitter<'_>, offset: ExprId) -> ExprId {
    match *ctx.program.exprs.get(offset) {
        Expr::Ramp { base, stride: 1, .. } => base,
        _ => offset,
    }
}

/// The vector form of an expression of the block program at a vector of results.
fn at_point(ctx: &mut ContractionEmitter<'_>, root: ExprId, point: &ResultVector) -> ExprId {
    let (bindings, along) = ([(ctx.flat.m, point.row)], (ctx.flat.n, point.column));
    ctx.import_at(root, &bindings, along, point.mask, &[(ctx.sum, point.sum)])
}
