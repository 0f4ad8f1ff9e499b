//! Which reductions are split in two parts.

use orch_compute::Layout;
use orch_ir::PrimGraph;
use orch_rewrite::{LongReductions, split_long_reductions};

/// The reductions that a target splits, by what their work items read.
pub struct SplitReductions {
    /// Of results that lie side by side as the elements do: a work item has a few of them, and reads across rows.
    pub columns: LongReductions,
    /// Of results each of which is made of elements side by side.
    pub rows: LongReductions,
}

impl SplitReductions {
    /// The graph, whose tensors have these layouts, with long reductions in two parts.
    pub fn split(&self, graph: &PrimGraph, layouts: &[Layout]) -> PrimGraph {
        split_long_reductions(graph, |tensor, axes| {
            let innermost = layouts[tensor.index()].order().last();
            if innermost.is_none_or(|dim| axes.contains(dim)) { self.rows } else { self.columns }
        })
    }
}
