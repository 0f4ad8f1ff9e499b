//! The part of the anchor's result that a kernel computes: all of it, or what a slice keeps that alone is computed from it. So a
//! kernel of a product of several matrices side by side, and of the slice that takes one of them out, multiplies by that one only.

use super::builder::{Builder, KeptSlice};
use orch_ir::{NodeId, PrimOp, TensorId};

impl Builder<'_> {
    /// Looks for the slice behind an anchor, with only elementwise primitives between.
    pub fn find_kept(&mut self, anchor: NodeId, outputs: &[TensorId]) {
        let graph = self.graph;
        let mut tensor = graph.node(anchor).outputs[0];
        self.kept = loop {
            let mut readers = self.nodes.iter().filter(|&&node| graph.node(node).inputs.contains(&tensor));
            let (Some(&reader), None) = (readers.next(), readers.next()) else { break None };
            if outputs.contains(&tensor) {
                break None;
            }
            let node = graph.node(reader);
            match &node.op {
                PrimOp::Map(_) => tensor = node.outputs[0],
                PrimOp::Slice { starts, steps, sizes } if steps.iter().all(|&step| step == 1) => {
                    let starts = starts.iter().map(|&start| start as usize);
                    break Some(KeptSlice {
                        node: reader,
                        ranges: starts.zip(sizes.iter().copied()).collect(),
                    });
                }
                _ => break None,
            }
        };
        if let PrimOp::Conv(spec) = &graph.node(anchor).op {
            // Windows reach over what a slice of another dimension keeps.
            let result = graph.shape(graph.node(anchor).outputs[0]);
            let is_whole = |(dim, range): (usize, &(usize, usize))| dim == 1 || *range == (0, result[dim]);
            let is_channels = |kept: &KeptSlice| kept.ranges.iter().enumerate().all(is_whole);
            self.kept = self.kept.take().filter(|kept| spec.groups == 1 && is_channels(kept));
        }
    }

    /// The first index and the extent of a dimension of the anchor's result that the kernel computes; `extent` is the whole one.
    pub fn kept_range(&self, dim: usize, extent: usize) -> (usize, usize) {
        self.kept.as_ref().map_or((0, extent), |kept| kept.ranges[dim])
    }

    /// True for the slice that keeps what the kernel computes.
    pub fn is_kept_slice(&self, node: NodeId) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.node == node)
    }
}
