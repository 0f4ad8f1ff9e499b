//! The register tile: accumulators, the loop over `k`, and the epilogue.

use super::address::{RowAddresses, bind_offset, panel_address, row_addresses};
use super::emitter::{AccumulatorScratch, ContractionEmitter, RegisterTile};
use super::epilogue::{emit_epilogue_loop, emit_stores, sums_base};
use super::math_unit::CpuMathUnit;
use super::operand::RowsFrom;
use super::run::{Runs, TermsAt, UNROLLED_ITERATIONS, emit_run};
use super::window::TermLoops;
use super::{amx, bf16_dot, line_tile};
use crate::design::LONGEST_PRODUCT_CHAIN;
use orch_compute::expr::{ExprId, Type, VarId};
use orch_compute::simplify::simplify;
use orch_thread::program::{LoopKind, Stmt};

/// What a walk over the register tiles of a work item does.
#[derive(Clone, Copy)]
pub(super) enum TilePass {
    /// Walks all of K and stores the results.
    Whole,
    /// Adds the part `start..end` of K to the accumulators in scratch; the part that starts at 0 begins them.
    Accumulate {
        /// First iteration.
        start: ExprId,
        /// One more than the last.
        end: ExprId,
    },
    /// Stores the results from the accumulators in scratch.
    Finish,
}

/// Statements that do a tile's part of a phase.
pub(super) fn emit_tile(ctx: &mut ContractionEmitter<'_>, tile: &RegisterTile, phase: TilePass) -> Vec<Stmt> {
    if let Some(set) = ctx.tiles.clone() {
        return amx::emit_tile(ctx, tile, &set);
    }
    let vectors = tile.columns.div_ceil(ctx.lanes);
    let mut body = Vec::new();
    match (phase, ctx.accumulator_scratch) {
        (TilePass::Whole, Some(sums)) => {
            let k = ctx.steps();
            let all = (ctx.program.exprs.index(0), ctx.program.exprs.index(k as i64));
            body.extend(emit_chains(ctx, tile, vectors, sums, all, k));
            body.extend(emit_epilogue_loop(ctx, tile, sums, vectors));
        }
        (TilePass::Whole, None) => {
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
        (TilePass::Accumulate { start, end }, Some(sums)) => {
            let terms = ctx.schedule.block_k;
            body.extend(emit_chains(ctx, tile, vectors, sums, (start, end), terms));
        }
        (TilePass::Finish, Some(sums)) => body.extend(emit_epilogue_loop(ctx, tile, sums, vectors)),
        (TilePass::Accumulate { .. } | TilePass::Finish, None) => unreachable!("partial sums have a buffer"),
    }
    body
}

/// A part of K of at most `terms` for a tile, in chains of bounded length, into its scratch.
fn emit_chains(
    ctx: &mut ContractionEmitter<'_>,
    tile: &RegisterTile,
    vectors: usize,
    sums: AccumulatorScratch,
    (start, end): (ExprId, ExprId),
    terms: usize,
) -> Vec<Stmt> {
    if terms <= LONGEST_PRODUCT_CHAIN {
        return emit_chain(ctx, tile, vectors, sums, (start, end));
    }
    let k = ctx.steps();
    let chain = ctx
        .run_terms()
        .and_then(terms_in_step)
        .unwrap_or_else(|| terms.div_ceil(terms.div_ceil(LONGEST_PRODUCT_CHAIN)).next_multiple_of(ctx.lanes));
    let exprs = &mut ctx.program.exprs;
    let var = exprs.declare_index("first_of_chain", k);
    let first = exprs.var(var);
    let past = exprs.add_const(first, chain as i64);
    let is_even = terms.is_multiple_of(chain) && k.is_multiple_of(terms);
    let past = if is_even { past } else { exprs.min(past, end) };
    let body = emit_chain(ctx, tile, vectors, sums, (first, past));
    vec![Stmt::For { var, start, end, step: chain as i64, kind: LoopKind::Serial, body }]
}

/// Terms of a chain that begins and ends where runs of so many terms do, or that runs consist of; `None` if such chains are short.
fn terms_in_step(run: usize) -> Option<usize> {
    let chain = match run <= LONGEST_PRODUCT_CHAIN {
        true => LONGEST_PRODUCT_CHAIN / run * run,
        false => (1..=LONGEST_PRODUCT_CHAIN).rev().find(|&chain| run.is_multiple_of(chain))?,
    };
    (chain >= LONGEST_PRODUCT_CHAIN / 2).then_some(chain)
}

/// Walks a part of K in registers and adds the accumulators to those of the parts before, if there are any.
fn emit_chain(
    ctx: &mut ContractionEmitter<'_>,
    tile: &RegisterTile,
    vectors: usize,
    sums: AccumulatorScratch,
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
    ctx: &mut ContractionEmitter<'_>,
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

/// The loop over K: one load per panel vector, one broadcast per row, `rows * vectors` multiply-adds.
fn emit_sum(
    ctx: &mut ContractionEmitter<'_>,
    tile: &RegisterTile,
    vectors: usize,
    accumulators: &[Vec<VarId>],
    (start, end): (ExprId, ExprId),
) -> Vec<Stmt> {
    if ctx.math_unit == CpuMathUnit::Bf16Dot {
        return bf16_dot::emit_sum(ctx, tile, vectors, accumulators, (start, end));
    }
    if let RowsFrom::Lines(lines) = ctx.rows.clone() {
        return line_tile::emit_sum(ctx, &lines, tile, vectors, accumulators, (start, end));
    }
    let mut out = Vec::new();
    let rows = row_addresses(ctx, tile, &mut out);
    let (panel_buffer, panel_base, panel_stride) = panel_address(ctx, tile, &mut out);
    let TermLoops { outer, run, stride } = rows.terms.clone();
    if outer.is_empty() {
        let at = TermsAt { panel: (panel_buffer, panel_base, panel_stride), rows: &rows, stride, run };
        out.extend(emit_run(ctx, tile, vectors, accumulators, &at, (start, end)));
        return out;
    }
    let runs = Runs::of(ctx, (start, end), run, outer.iter().map(|(extent, _)| extent).product());
    let exprs = &mut ctx.program.exprs;
    let extents: Vec<usize> = outer.iter().map(|(extent, _)| *extent).collect();
    let places = exprs.unflatten(runs.number, &extents);
    let mut distance = exprs.index(0);
    for (place, (_, stride)) in places.into_iter().zip(&outer) {
        let part = exprs.mul_const(place, *stride);
        distance = exprs.add2(distance, part);
    }
    let panel_line = exprs.mul_const(runs.first_term, panel_stride);
    let panel_line = exprs.add2(panel_base, panel_line);
    let mut body = Vec::new();
    let bases = if runs.are_whole && run <= UNROLLED_ITERATIONS {
        // With one address compilers see which elements several rows share, and hold those, for which there are no registers.
        let distance = bind_offset(ctx, "a_run", distance, &mut body);
        rows.bases.iter().map(|&base| ctx.program.exprs.add2(base, distance)).collect()
    } else {
        bases_of_run(ctx, &rows.bases, distance, &mut body)
    };
    let panel_line = bind_offset(ctx, "b_run", panel_line, &mut body);
    let of_run = RowAddresses { buffer: rows.buffer, bases, terms: rows.terms.clone() };
    let at = TermsAt { panel: (panel_buffer, panel_line, panel_stride), rows: &of_run, stride, run };
    body.extend(emit_run(ctx, tile, vectors, accumulators, &at, runs.of_run()));
    out.extend(runs.walk(body));
    out
}

/// Where rows start in a run of K that begins so many elements after the rows do. Rows at a constant distance from the first one are
/// addressed from it: compilers then hold one address for all of them, and find no other common subexpressions to hold instead.
fn bases_of_run(
    ctx: &mut ContractionEmitter<'_>,
    bases: &[ExprId],
    distance: ExprId,
    body: &mut Vec<Stmt>,
) -> Vec<ExprId> {
    let first = ctx.program.exprs.add2(bases[0], distance);
    let first = bind_offset(ctx, "a_run", first, body);
    let of_row = |&base: &ExprId| {
        let exprs = &mut ctx.program.exprs;
        let apart = exprs.sub(base, bases[0]);
        let apart = simplify(exprs, apart);
        match exprs.as_int(apart) {
            Some(apart) => exprs.add_const(first, apart),
            None => exprs.add2(base, distance),
        }
    };
    bases.iter().map(of_row).collect()
}

/// The offset of a vector of accumulators of a tile.
fn sum_offset(
    ctx: &mut ContractionEmitter<'_>,
    base: ExprId,
    sums: AccumulatorScratch,
    row: usize,
    vector: usize,
) -> ExprId {
    ctx.program.exprs.add_const(base, (row * sums.line + vector * ctx.lanes) as i64)
}

/// Stores the accumulators.
fn store_sums(
    ctx: &mut ContractionEmitter<'_>,
    tile: &RegisterTile,
    sums: AccumulatorScratch,
    accumulators: &[Vec<VarId>],
) -> Vec<Stmt> {
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

/// Adds the accumulators in scratch to those in registers, unless `start` is 0.
fn add_sums(
    ctx: &mut ContractionEmitter<'_>,
    tile: &RegisterTile,
    sums: AccumulatorScratch,
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
