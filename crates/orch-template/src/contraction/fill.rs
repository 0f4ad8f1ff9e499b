//! What it takes to bring the factors of a contraction to where its register tiles read them.

use super::engine::Engine;
use super::form::Form;
use super::lower::staging;
use super::operand::RowOrder;
use orch_compute::block::BlockProgram;
use orch_compute::expr::{Expr, ExprId, VarId};
use orch_compute::simplify::Simplifier;
use orch_thread::target::CpuTarget;

/// Elements that a contraction computes into scratch before it multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fill {
    /// Vector lanes that are filled, idle ones included.
    pub lanes: u64,
    /// Elements that are fetched one at a time, since their neighbours in the vector are not neighbours in memory.
    pub gathered: u64,
}

/// Counts the filling of both factors of a contraction; nothing for other programs, and for factors that are read
/// where they are.
pub fn fill(block: &BlockProgram, target: &CpuTarget, lanes: usize) -> Fill {
    let Ok(form) = Form::of(block) else { return Fill::default() };
    let staging = staging(block, &form, Engine::of(block, &form, target));
    let along = match staging.rows {
        Some(RowOrder::TermsInner) => form.k.last(),
        Some(RowOrder::RowsInner) => form.m.last(),
        None => None,
    };
    let rows = along.map(|&along| factor_fill(block, form.a, along, lanes));
    let panels =
        form.n.last().filter(|_| staging.panels).map(|&along| factor_fill(block, form.b, along, lanes));
    let (rows, panels) = (rows.unwrap_or_default(), panels.unwrap_or_default());
    Fill { lanes: rows.lanes + panels.lanes, gathered: rows.gathered + panels.gathered }
}

/// The order of scratch rows that takes less to fill.
pub(super) fn row_order(block: &BlockProgram, form: &Form, lanes: usize) -> RowOrder {
    let (Some(&term), Some(&row)) = (form.k.last(), form.m.last()) else { return RowOrder::TermsInner };
    let cost = |along| {
        let fill = factor_fill(block, form.a, along, lanes);
        fill.lanes + GATHERED_LANES * fill.gathered
    };
    if cost(row) < cost(term) { RowOrder::RowsInner } else { RowOrder::TermsInner }
}

/// Lanes that could be filled while one element is gathered.
const GATHERED_LANES: u64 = 8;

/// Filling one factor in vectors along an axis.
fn factor_fill(block: &BlockProgram, factor: ExprId, along: VarId, lanes: usize) -> Fill {
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
    let mut fill = Fill { lanes: used, gathered: 0 };
    for (arg, index) in reads {
        let strides = block.arg(arg).layout.strides(&block.arg(arg).shape);
        let offset = exprs.linear_index(&index, &strides);
        let is_together = matches!(simplifier.stride(&mut exprs, offset, along), Some(0 | 1));
        fill.gathered += if is_together { 0 } else { points };
    }
    fill
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_compute::{Layout, fuse, layouts};
    use orch_ir::{Contract, DType, PrimGraph, PrimOp};

    fn fill_of(graph: &PrimGraph, result: orch_ir::TensorId) -> Fill {
        let nodes: Vec<_> = graph.node_ids().collect();
        let layouts: Vec<Layout> = layouts::assign(graph);
        let block = fuse::build(graph, &nodes, &[result], &|t| layouts[t.index()].clone(), "kernel").unwrap();
        fill(&block, &orch_thread::target::X86_64_V4, 16)
    }

    #[test]
    fn a_transposed_factor_is_gathered() {
        let mut graph = PrimGraph::new("scores");
        let q = graph.add_input("q", DType::F32, [2, 40, 8]);
        let k = graph.add_input("k", DType::F32, [2, 50, 8]);
        let k = graph.add(PrimOp::Transpose { perm: vec![0, 2, 1] }, &[k]).unwrap();
        let scores = graph.add(PrimOp::Contract(Contract::matmul(1)), &[q, k]).unwrap();
        assert_eq!(fill_of(&graph, scores), Fill { lanes: 2 * 8 * 64, gathered: 2 * 8 * 50 });
    }

    #[test]
    fn plain_matrices_are_read_where_they_are() {
        let mut graph = PrimGraph::new("product");
        let x = graph.add_input("x", DType::F32, [40, 30]);
        let w = graph.add_input("w", DType::F32, [30, 64]);
        let y = graph.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]).unwrap();
        assert_eq!(fill_of(&graph, y), Fill::default());
    }
}
