//! What it takes to bring the operands of a contraction to where its register tiles read them.

use super::form::ContractionForm;
use orch_compute::block::BlockProgram;
use orch_compute::expr::{Expr, ExprId, VarId};
use orch_compute::simplify::Simplifier;

/// Elements that a contraction computes into scratch before it multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PackingWork {
    /// Vector lanes that are filled, idle ones included.
    pub lanes: u64,
    /// Elements that are fetched one at a time, since their neighbours in the vector are not neighbours in memory.
    pub gathered: u64,
}

/// How a work item's rows lie in scratch. They are filled in vectors along the inner coordinate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowOrder {
    /// `[block row][k]`: right where the elements of a row along K are neighbours in memory.
    KInner,
    /// `[k][block row]`: right where rows are, as pixels of a channels-first image.
    RowsInner,
}

/// The order of scratch rows that takes less to fill.
pub(super) fn row_order(block: &BlockProgram, form: &ContractionForm, lanes: usize) -> RowOrder {
    let (Some(&term), Some(&row)) = (form.k.last(), form.m.last()) else { return RowOrder::KInner };
    let cost = |along| {
        let fill = operand_packing(block, form.a, along, lanes);
        fill.lanes + GATHERED_LANES * fill.gathered
    };
    if cost(row) < cost(term) { RowOrder::RowsInner } else { RowOrder::KInner }
}

/// Lanes that could be filled while one element is gathered.
const GATHERED_LANES: u64 = 8;

/// Filling one operand in vectors along an axis.
pub(super) fn operand_packing(
    block: &BlockProgram,
    factor: ExprId,
    along: VarId,
    lanes: usize,
) -> PackingWork {
    let mut exprs = block.exprs.clone();
    let points: u64 = exprs.free_vars(factor).iter().map(|&axis| block.extent(axis) as u64).product();
    let extent = block.extent(along).max(1);
    let used = points / extent as u64 * extent.next_multiple_of(lanes) as u64;
    let reads: Vec<_> = (exprs.reachable(&[factor]).into_iter())
        .filter_map(|id| match exprs.get(id) {
            Expr::Read { arg, index, .. } => Some((*arg, index.clone())),
            _ => None,
        })
        .collect();
    let mut simplifier = Simplifier::new();
    let mut fill = PackingWork { lanes: used, gathered: 0 };
    for (arg, index) in reads {
        let strides = block.arg(arg).layout.strides(&block.arg(arg).shape);
        let offset = exprs.linear_index(&index, &strides);
        let is_together = matches!(simplifier.stride(&mut exprs, offset, along), Some(0 | 1));
        fill.gathered += if is_together { 0 } else { points };
    }
    fill
}
