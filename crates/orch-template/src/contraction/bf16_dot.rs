//! Register tiles whose operands are pairs of bf16: the loop over pairs along K (`vdpbf16ps`), and panels that work items pack.

use super::address::{panel_address, row_addresses};
use super::emitter::{ContractionEmitter, PanelFill, RegisterTile, prefix_mask};
use orch_compute::expr::{BufferId, ExprId, Type, VarId};
use orch_ir::DType;
use orch_thread::program::{LoopKind, Stmt};
use std::ops::Range;

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

/// The pairs of a panel that are not whole: the last one of an odd K, and those past it.
pub(super) fn fill_last_pairs(ctx: &mut ContractionEmitter<'_>, panel: &PanelFill) -> Vec<Stmt> {
    let (k, padded) = (ctx.extents.k, ctx.padded_k);
    let rests =
        [(k / 2..k.div_ceil(2), PresentTerms::First), (k.div_ceil(2)..padded / 2, PresentTerms::Neither)];
    let mut filled = Vec::new();
    for (pairs, present) in rests {
        if !pairs.is_empty() {
            filled.push(fill_pairs(ctx, panel, pairs, present));
        }
    }
    filled
}

/// Which elements of a pair there are; `k` may be odd.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PresentTerms {
    /// Both.
    Whole,
    /// The first.
    First,
    /// None: it is past K.
    Neither,
}

/// Some pairs, one at a time in vectors along columns; lanes past the last column are zero.
pub(super) fn fill_pairs(
    ctx: &mut ContractionEmitter<'_>,
    panel: &PanelFill,
    pairs: Range<usize>,
    present: PresentTerms,
) -> Stmt {
    let (width, lanes) = (ctx.width(), ctx.lanes);
    let (var, pair) = ctx.program.exprs.fresh_index("pair", pairs.end);
    let exprs = &mut ctx.program.exprs;
    let line = exprs.mul_const(pair, 2 * width as i64);
    let even = exprs.mul_const(pair, 2);
    let odd = exprs.add_const(even, 1);
    let zero = exprs.zero(DType::BF16);
    let zeros = exprs.splat(zero, lanes);
    let mut body = Vec::new();
    for vector in 0..panel.columns.div_ceil(lanes) {
        let start = vector * lanes;
        let first = ctx.program.exprs.add_const(panel.first_column, start as i64);
        let mask = ctx.tail_mask((panel.columns - start).min(lanes));
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
        body.push(Stmt::Store { buffer: panel.buffer, offset, value, mask: None });
    }
    let exprs = &mut ctx.program.exprs;
    let (start, end) = (exprs.index(pairs.start as i64), exprs.index(pairs.end as i64));
    Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body }
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
