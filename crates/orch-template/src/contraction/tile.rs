//! The register tile: accumulators, the loop over `k`, and the epilogue.

use super::engine::Engine;
use super::lower::{Lowering, prefix_mask};
use super::operand::{PanelsFrom, RowOrder, RowsFrom};
use super::stage::RowScratch;
use super::{pairs, tiles};
use crate::LONGEST_CHAIN;
use orch_compute::block::Stage;
use orch_compute::expr::substitute::Substitution;
use orch_compute::expr::{BufferId, Expr, ExprId, Type, VarId};
use orch_compute::simplify::simplify;
use orch_thread::program::{LoopKind, PREFETCH_PANELS, Stmt};

/// One register tile.
pub(super) struct Tile {
    /// Its first row.
    pub first_row: ExprId,
    /// The first row of the task's block.
    pub span_row: ExprId,
    /// The first panel of the task's block.
    pub span_panel: ExprId,
    /// Its panel.
    pub panel: ExprId,
    /// Rows.
    pub rows: usize,
    /// Columns; the last vector may be partial.
    pub columns: usize,
}

/// What a walk over the register tiles of a task does.
#[derive(Clone, Copy)]
pub(super) enum Phase {
    /// Sums all terms and stores the results.
    Whole,
    /// Adds the terms `start..end` to the partial sums; the terms from 0 on begin them.
    Accumulate {
        /// First term.
        start: ExprId,
        /// One more than the last.
        end: ExprId,
    },
    /// Stores the results of the finished sums.
    Finish,
}

/// Scratch that holds sums between their computation and the epilogue: of one register tile, or of a task's block.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    /// Where.
    pub buffer: BufferId,
    /// Elements between rows.
    pub line: usize,
    /// True if it has room for all of a task's rows and panels.
    pub of_block: bool,
    /// Rows of a register tile that are not the tile's own and come first.
    pub skipped_rows: usize,
}

/// Statements that do a tile's part of a phase.
pub(super) fn emit_tile(ctx: &mut Lowering<'_>, tile: &Tile, phase: Phase) -> Vec<Stmt> {
    if let Some(set) = ctx.tiles.clone() {
        return tiles::emit_tile(ctx, tile, &set);
    }
    let vectors = tile.columns.div_ceil(ctx.lanes);
    let mut body = Vec::new();
    match (phase, ctx.sums) {
        (Phase::Whole, Some(sums)) => {
            body.extend(emit_chains(ctx, tile, vectors, sums));
            body.extend(emit_epilogue_loop(ctx, tile, sums, vectors));
        }
        (Phase::Whole, None) => {
            let terms = (ctx.program.exprs.index(0), ctx.program.exprs.index(ctx.steps() as i64));
            let accumulators = declare_accumulators(ctx, tile.rows, vectors, &mut body);
            body.extend(emit_sum(ctx, tile, vectors, &accumulators, terms));
            for (row, registers) in accumulators.iter().enumerate() {
                for (vector, &register) in registers.iter().enumerate() {
                    let sum = ctx.program.exprs.var(register);
                    let at = ctx.program.exprs.add_const(tile.first_row, row as i64);
                    body.extend(emit_stores(ctx, tile, at, vector, sum));
                }
            }
        }
        (Phase::Accumulate { start, end }, Some(sums)) => {
            body.extend(emit_chain(ctx, tile, vectors, sums, (start, end)));
        }
        (Phase::Finish, Some(sums)) => body.extend(emit_epilogue_loop(ctx, tile, sums, vectors)),
        (Phase::Accumulate { .. } | Phase::Finish, None) => unreachable!("partial sums have a buffer"),
    }
    body
}

/// All terms of a tile, in chains of bounded length, into its scratch.
fn emit_chains(ctx: &mut Lowering<'_>, tile: &Tile, vectors: usize, sums: Sums) -> Vec<Stmt> {
    let k = ctx.steps();
    let exprs = &mut ctx.program.exprs;
    let (zero, all) = (exprs.index(0), exprs.index(k as i64));
    if k <= LONGEST_CHAIN {
        return emit_chain(ctx, tile, vectors, sums, (zero, all));
    }
    let terms = k.div_ceil(k.div_ceil(LONGEST_CHAIN)).next_multiple_of(ctx.lanes);
    let var = exprs.declare_index("first_term", k);
    let start = exprs.var(var);
    let past = exprs.add_const(start, terms as i64);
    let end = if k.is_multiple_of(terms) { past } else { exprs.min(past, all) };
    let body = emit_chain(ctx, tile, vectors, sums, (start, end));
    vec![Stmt::For { var, start: zero, end: all, step: terms as i64, kind: LoopKind::Serial, body }]
}

/// Sums a range of terms and adds the sums to those of the terms before, if there are any.
fn emit_chain(
    ctx: &mut Lowering<'_>,
    tile: &Tile,
    vectors: usize,
    sums: Sums,
    (start, end): (ExprId, ExprId),
) -> Vec<Stmt> {
    let mut body = Vec::new();
    let accumulators = declare_accumulators(ctx, tile.rows, vectors, &mut body);
    body.extend(emit_sum(ctx, tile, vectors, &accumulators, (start, end)));
    if ctx.program.exprs.as_int(start) != Some(0) {
        body.push(add_sums(ctx, tile, sums, &accumulators, start));
    }
    body.extend(store_sums(ctx, tile, sums, &accumulators));
    body
}

fn declare_accumulators(
    ctx: &mut Lowering<'_>,
    rows: usize,
    vectors: usize,
    body: &mut Vec<Stmt>,
) -> Vec<Vec<VarId>> {
    let ty = Type::vector(ctx.sum_type, ctx.lanes);
    let exprs = &mut ctx.program.exprs;
    let zero = exprs.zero(ctx.sum_type);
    let zeros = exprs.splat(zero, ctx.lanes);
    (0..rows)
        .map(|row| {
            (0..vectors)
                .map(|vector| {
                    let register = exprs.declare_register(format!("acc_{row}_{vector}"), ty);
                    body.push(Stmt::Register(register, zeros));
                    register
                })
                .collect()
        })
        .collect()
}

/// The loop over terms: one load per panel vector, one broadcast per row, `rows * vectors` multiply-adds.
fn emit_sum(
    ctx: &mut Lowering<'_>,
    tile: &Tile,
    vectors: usize,
    accumulators: &[Vec<VarId>],
    (start, end): (ExprId, ExprId),
) -> Vec<Stmt> {
    if ctx.engine == Engine::Pairs {
        return pairs::emit_sum(ctx, tile, vectors, accumulators, (start, end));
    }
    let mut out = Vec::new();
    let rows = row_addresses(ctx, tile, &mut out);
    let (panel_buffer, panel_base, panel_stride) = panel_address(ctx, tile, &mut out);
    let (k_var, k) = ctx.program.exprs.fresh_index("k", ctx.extents.k);
    let ty = Type::vector(ctx.sum_type, ctx.lanes);
    let mut body = Vec::new();
    let exprs = &mut ctx.program.exprs;
    let panel_line = exprs.mul_const(k, panel_stride);
    let panel_line = exprs.add2(panel_base, panel_line);
    let columns: Vec<ExprId> = (0..vectors)
        .map(|vector| {
            let offset = exprs.add_const(panel_line, (vector * ctx.lanes) as i64);
            let mask = partial_mask(exprs, &ctx.panels, tile.columns, vector, ctx.lanes);
            let load = exprs.load(panel_buffer, offset, ctx.lanes, mask);
            let var = exprs.declare_register(format!("b{vector}"), ty);
            body.push(Stmt::Let(var, load));
            exprs.var(var)
        })
        .collect();
    body.extend(ahead(ctx, vectors, (panel_buffer, panel_line, panel_stride)));
    let exprs = &mut ctx.program.exprs;
    let row_line = exprs.mul_const(k, rows.stride);
    for (row, registers) in accumulators.iter().enumerate() {
        let offset = exprs.add2(rows.bases[row], row_line);
        let load = exprs.load(rows.buffer, offset, 1, None);
        let splat = exprs.splat(load, ctx.lanes);
        let var = exprs.declare_register(format!("a{row}"), ty);
        body.push(Stmt::Let(var, splat));
        let factor = exprs.var(var);
        for (vector, &register) in registers.iter().enumerate() {
            let sum = exprs.var(register);
            let next = if ctx.sum_type.is_float() {
                exprs.fma(factor, columns[vector], sum)
            } else {
                let product = exprs.mul(factor, columns[vector]);
                exprs.add2(sum, product)
            };
            body.push(Stmt::Assign(register, next));
        }
    }
    out.push(Stmt::For { var: k_var, start, end, step: 1, kind: LoopKind::Serial, body });
    out
}

/// Asks for lines of a panel that lies in an argument before they are read, if memory is what the product waits for: those of
/// the next panel but one, or of the next terms where there is none. Their terms are too far apart for the hardware to find
/// out in time. On a Zen 5 core, 8 rows by 4096 x 4096 elements take 3.6 ms, not 7.2.
fn ahead(
    ctx: &mut Lowering<'_>,
    vectors: usize,
    (buffer, line, stride): (BufferId, ExprId, i64),
) -> Vec<Stmt> {
    if !ctx.waits_for_panels {
        return Vec::new();
    }
    let schedule = ctx.schedule;
    let distance = match schedule.block_panels > PREFETCH_PANELS {
        true => (PREFETCH_PANELS * ctx.width()) as i64,
        false => schedule.block_terms.min(ctx.extents.k) as i64 * stride,
    };
    let first = ctx.program.exprs.add_const(line, distance);
    Stmt::prefetches(&mut ctx.program.exprs, (buffer, ctx.factor_type), first, vectors * ctx.lanes)
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

/// Where the tile's rows start.
pub(super) struct RowAddresses {
    pub buffer: BufferId,
    pub bases: Vec<ExprId>,
    stride: i64,
}

pub(super) fn row_addresses(ctx: &mut Lowering<'_>, tile: &Tile, out: &mut Vec<Stmt>) -> RowAddresses {
    match ctx.rows.clone() {
        RowsFrom::Scratch(_) => {
            let RowScratch { buffer, order, distance } = ctx.row_scratch.expect("declared with the rows");
            let exprs = &mut ctx.program.exprs;
            let local = exprs.sub(tile.first_row, tile.span_row);
            let (first, between, stride) = match order {
                RowOrder::TermsInner => (exprs.mul_const(local, distance as i64), distance, 1),
                RowOrder::RowsInner => (exprs.add_const(local, ctx.lanes as i64), 1, distance as i64),
            };
            let base = bind_offset(ctx, "a_base", first, out);
            let bases =
                (0..tile.rows).map(|row| ctx.program.exprs.add_const(base, (row * between) as i64)).collect();
            RowAddresses { buffer, bases, stride }
        }
        RowsFrom::Argument { arg, stride } => {
            let zero = ctx.program.exprs.index(0);
            let offset_of = |ctx: &mut Lowering<'_>, row: usize| {
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
            RowAddresses { buffer, bases, stride }
        }
    }
}

/// Buffer, first offset and distance between terms of the tile's panel.
pub(super) fn panel_address(
    ctx: &mut Lowering<'_>,
    tile: &Tile,
    out: &mut Vec<Stmt>,
) -> (BufferId, ExprId, i64) {
    let width = ctx.width();
    match ctx.panels.clone() {
        PanelsFrom::Scratch => {
            let buffer = ctx.panel_scratch.expect("declared with the panels");
            (buffer, ctx.program.exprs.index(0), width as i64)
        }
        PanelsFrom::Packed(packed) => {
            let panel_elems = packed.terms * width;
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
pub(super) fn bind_offset(ctx: &mut Lowering<'_>, name: &str, offset: ExprId, out: &mut Vec<Stmt>) -> ExprId {
    let offset = simplify(&mut ctx.program.exprs, offset);
    if ctx.program.exprs.as_int(offset).is_some() {
        return offset;
    }
    let var = ctx.program.exprs.declare_index(name, 0);
    out.push(Stmt::Let(var, offset));
    ctx.program.exprs.var(var)
}

/// Where the sums of a tile's first row are.
fn sums_base(ctx: &mut Lowering<'_>, tile: &Tile, sums: Sums) -> ExprId {
    let width = ctx.width();
    let exprs = &mut ctx.program.exprs;
    if !sums.of_block {
        return exprs.index((sums.skipped_rows * sums.line) as i64);
    }
    let row = exprs.sub(tile.first_row, tile.span_row);
    let line = exprs.mul_const(row, sums.line as i64);
    let panel = exprs.sub(tile.panel, tile.span_panel);
    let column = exprs.mul_const(panel, width as i64);
    let base = exprs.add2(line, column);
    simplify(exprs, base)
}

/// The offset of a vector of sums of a tile.
fn sum_offset(ctx: &mut Lowering<'_>, base: ExprId, sums: Sums, row: usize, vector: usize) -> ExprId {
    ctx.program.exprs.add_const(base, (row * sums.line + vector * ctx.lanes) as i64)
}

/// Stores the accumulators.
fn store_sums(ctx: &mut Lowering<'_>, tile: &Tile, sums: Sums, accumulators: &[Vec<VarId>]) -> Vec<Stmt> {
    let mut out = Vec::new();
    let base = sums_base(ctx, tile, sums);
    for (row, registers) in accumulators.iter().enumerate() {
        for (vector, &register) in registers.iter().enumerate() {
            let offset = sum_offset(ctx, base, sums, row, vector);
            let value = ctx.program.exprs.var(register);
            out.push(Stmt::Store { buffer: sums.buffer, offset, value, mask: None });
        }
    }
    out
}

/// Adds the stored sums to the accumulators, unless `start` is the first term.
fn add_sums(
    ctx: &mut Lowering<'_>,
    tile: &Tile,
    sums: Sums,
    accumulators: &[Vec<VarId>],
    start: ExprId,
) -> Stmt {
    let mut then = Vec::new();
    let base = sums_base(ctx, tile, sums);
    for (row, registers) in accumulators.iter().enumerate() {
        for (vector, &register) in registers.iter().enumerate() {
            let offset = sum_offset(ctx, base, sums, row, vector);
            let exprs = &mut ctx.program.exprs;
            let before = exprs.load(sums.buffer, offset, ctx.lanes, None);
            let chain = exprs.var(register);
            let both = exprs.add2(before, chain);
            then.push(Stmt::Assign(register, both));
        }
    }
    let one = ctx.program.exprs.index(1);
    let condition = ctx.program.exprs.ge(start, one);
    Stmt::If { condition, then, otherwise: Vec::new() }
}

/// The epilogue as a loop over the rows of the stored tile, and over its full vectors.
pub(super) fn emit_epilogue_loop(
    ctx: &mut Lowering<'_>,
    tile: &Tile,
    sums: Sums,
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

/// The stores of the block program for one vector of sums at row `row`.
fn emit_stores(ctx: &mut Lowering<'_>, tile: &Tile, row: ExprId, vector: usize, sum: ExprId) -> Vec<Stmt> {
    let lanes = ctx.lanes;
    let start = vector * lanes;
    let mask = ctx.tail_mask(tile.columns - start);
    let exprs = &mut ctx.program.exprs;
    let first = exprs.mul_const(tile.panel, (ctx.schedule.vectors * lanes) as i64);
    let first = exprs.add_const(first, start as i64);
    let mut out = Vec::new();
    let column = ctx.vector_index(&mut out, "column", first, ctx.extents.n);
    let point = Point { row, column, sum, mask };
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
struct Point {
    row: ExprId,
    column: VarId,
    sum: ExprId,
    mask: Option<ExprId>,
}

/// A ramp of stride 1 is a contiguous store from its base on.
fn contiguous_base(ctx: &Lowering<'_>, offset: ExprId) -> ExprId {
    match *ctx.program.exprs.get(offset) {
        Expr::Ramp { base, stride: 1, .. } => base,
        _ => offset,
    }
}

/// The vector form of an expression of the block program at a vector of results.
fn at_point(ctx: &mut Lowering<'_>, root: ExprId, point: &Point) -> ExprId {
    let (bindings, along) = ([(ctx.flat.m, point.row)], (ctx.flat.n, point.column));
    ctx.import_at(root, &bindings, along, point.mask, &[(ctx.sum, point.sum)])
}
