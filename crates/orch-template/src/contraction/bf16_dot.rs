//! Register tiles whose operands are pairs of bf16: the loop over pairs along K (`vdpbf16ps`), and panels that work items pack.

use super::address::{panel_address, row_addresses};
use super::emitter::{ContractionEmitter, RegisterTile, prefix_mask};
use orch_compute::expr::{BufferId, ExprId, Type, VarId};
use orch_ir::DType;
use orch_thread::program::{LoopKind, Stmt};

/// The loop over pairs along K: one load per panel vector, one pair per row, `rows * vectors` dot products.
pub(super) fn emit_sum(
    ctx: &mut ContractionEmitter<'_>,
    tile: &RegisterTile,
    vectors: usize,
    accumulators: &[Vec<VarId>],
    (start, end): (ExprId, ExprId),
) -> Vec<Stmt> {
    let mut out = Vec::new();
    let rows = row_addresses(ctx, tile, &mut out);
    let (panel_buffer, panel_base, _) = panel_address(ctx, tile, &mut out);
    let width = ctx.width();
    let exprs = &mut ctx.program.exprs;
    let (pair_var, pair) = exprs.fresh_index("pair", ctx.padded_k / 2);
    let mut body = Vec::new();
    let panel_line = exprs.mul_const(pair, 2 * width as i64);
    let panel_line = exprs.add2(panel_base, panel_line);
    let columns: Vec<ExprId> = (0..vectors)
        .map(|vector| {
            let offset = exprs.add_const(panel_line, (2 * vector * ctx.lanes) as i64);
            let load = exprs.load(panel_buffer, offset, 2 * ctx.lanes, None);
            let var = exprs.declare_register(format!("b{vector}"), Type::vector(DType::BF16, 2 * ctx.lanes));
            body.push(Stmt::Let(var, load));
            exprs.var(var)
        })
        .collect();
    let row_line = exprs.mul_const(pair, 2);
    for (row, registers) in accumulators.iter().enumerate() {
        let offset = exprs.add2(rows.bases[row], row_line);
        let load = exprs.load(rows.buffer, offset, 2, None);
        let var = exprs.declare_register(format!("a{row}"), Type::vector(DType::BF16, 2));
        body.push(Stmt::Let(var, load));
        let factor = exprs.var(var);
        for (vector, &register) in registers.iter().enumerate() {
            let sum = exprs.var(register);
            body.push(Stmt::Assign(register, exprs.dot_pairs(factor, columns[vector], sum)));
        }
    }
    out.push(Stmt::For { var: pair_var, start, end, step: 1, kind: LoopKind::Serial, body });
    out
}

/// Computes one panel of the second operand into scratch as `[pair][column][2]`, zeros past the last column and past `k`.
pub(super) fn fill_panel(
    ctx: &mut ContractionEmitter<'_>,
    buffer: BufferId,
    panel: ExprId,
    columns: usize,
) -> Vec<Stmt> {
    let terms = ctx.extents.k;
    let full = terms / 2;
    let mut out = Vec::new();
    let (pair_var, pair) = ctx.program.exprs.fresh_index("pair", full.max(1));
    let (zero, full_end) = (ctx.program.exprs.index(0), ctx.program.exprs.index(full as i64));
    if full > 0 {
        let body = fill_pair(ctx, buffer, panel, columns, pair, PresentTerms::Whole);
        out.push(Stmt::For {
            var: pair_var,
            start: zero,
            end: full_end,
            step: 1,
            kind: LoopKind::Serial,
            body,
        });
    }
    if terms > 2 * full {
        out.extend(fill_pair(ctx, buffer, panel, columns, full_end, PresentTerms::First));
    }
    let (first, end) = (terms.div_ceil(2), ctx.padded_k / 2);
    if first < end {
        let exprs = &mut ctx.program.exprs;
        let var = exprs.declare_index("pair", end);
        let (pair, start, end) = (exprs.var(var), exprs.index(first as i64), exprs.index(end as i64));
        let body = fill_pair(ctx, buffer, panel, columns, pair, PresentTerms::Neither);
        out.push(Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body });
    }
    out
}

/// Which elements of a pair there are; `k` may be odd.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PresentTerms {
    Whole,
    First,
    Neither,
}

fn fill_pair(
    ctx: &mut ContractionEmitter<'_>,
    buffer: BufferId,
    panel: ExprId,
    columns: usize,
    pair: ExprId,
    present: PresentTerms,
) -> Vec<Stmt> {
    let (width, lanes) = (ctx.width(), ctx.lanes);
    let exprs = &mut ctx.program.exprs;
    let line = exprs.mul_const(pair, 2 * width as i64);
    let first_column = exprs.mul_const(panel, width as i64);
    let even = exprs.mul_const(pair, 2);
    let odd = exprs.add_const(even, 1);
    let zero = exprs.zero(DType::BF16);
    let zeros = exprs.splat(zero, lanes);
    let mut body = Vec::new();
    for vector in 0..columns.div_ceil(lanes) {
        let start = vector * lanes;
        let first = ctx.program.exprs.add_const(first_column, start as i64);
        let mask = ctx.tail_mask((columns - start).min(lanes));
        let mut halves = [zeros; 2];
        if present != PresentTerms::Neither {
            let column = ctx.vector_index(&mut body, "column", first, ctx.extents.n);
            let terms: &[ExprId] = if present == PresentTerms::Whole { &[even, odd] } else { &[even] };
            for (half, &term) in halves.iter_mut().zip(terms) {
                let value = ctx.import_vector(ctx.b, &[(ctx.flat.k, term)], (ctx.flat.n, column), mask);
                *half = match mask {
                    Some(mask) => ctx.program.exprs.select(mask, value, zeros),
                    None => value,
                };
            }
        }
        let exprs = &mut ctx.program.exprs;
        let value = exprs.interleave(halves[0], halves[1]);
        let offset = exprs.add_const(line, 2 * start as i64);
        body.push(Stmt::Store { buffer, offset, value, mask: None });
    }
    body
}

/// Zeros in the scratch row at `line` from element `k` on, so that what is multiplied with the panel's zeros is finite.
pub(super) fn clear_row_end(
    ctx: &mut ContractionEmitter<'_>,
    buffer: BufferId,
    line: ExprId,
) -> Option<Stmt> {
    let (terms, rest) = (ctx.extents.k, ctx.padded_k - ctx.extents.k);
    if rest == 0 {
        return None;
    }
    let group = ctx.math_unit.k_step();
    let exprs = &mut ctx.program.exprs;
    let zero = exprs.zero(DType::BF16);
    let value = exprs.splat(zero, group);
    let mask = prefix_mask(exprs, rest, group);
    let offset = exprs.add_const(line, terms as i64);
    Some(Stmt::Store { buffer, offset, value, mask: Some(mask) })
}
