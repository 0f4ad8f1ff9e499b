//! A graph after the stage "identify", with all that planning looks up.

use super::backend::Planner;
use super::context::PlanContext;
use super::known::KnownTensors;
use super::signature::Signatures;
use super::units::{UnitOptions, Units};
use super::updated::{UpdatedTensor, updated_tensors};
use crate::manifest::Update;
use orch_compute::Storage;
use orch_compute::layouts::is_view;
use orch_ir::{PrimGraph, PrimNode, TensorId};
use orch_plan::dag::DagError;
use std::collections::BTreeSet;

/// The owner of what a [`PlanContext`] refers to.
pub struct PreparedGraph {
    graph: PrimGraph,
    storage: Storage,
    units: Units,
    signatures: Signatures,
    known: KnownTensors,
    updates: Vec<UpdatedTensor>,
}

impl PreparedGraph {
    /// Of a graph that a target has prepared, and the outputs that are new values of inputs.
    ///
    /// # Errors
    /// If units cannot be ordered, which is a bug.
    pub fn of(
        graph: PrimGraph,
        storage: Storage,
        updates: &[Update],
        options: UnitOptions,
    ) -> Result<Self, DagError> {
        let units = Units::of(&graph, storage.layouts(), options)?;
        let signatures = Signatures::of(&graph, &storage);
        let known = KnownTensors::of(&graph);
        let updates = updated_tensors(&graph, &storage, updates);
        Ok(Self { graph, storage, units, signatures, known, updates })
    }

    /// What planning works on.
    pub fn context<'a>(&'a self, planner: &'a dyn Planner) -> PlanContext<'a> {
        let Self { graph, storage, units, signatures, known, updates } = self;
        PlanContext { graph, storage, units, signatures, known, updates, planner }
    }
}

/// How the tensors of a graph are stored that a target has prepared. What an output shows as a view of the same bytes is read from there,
/// unless the output is a new value of an input.
pub fn with_storage(graph: PrimGraph, updates: &[Update], planner: &dyn Planner) -> (PrimGraph, Storage) {
    let storage = planner.storage(&graph);
    let updated: Vec<TensorId> =
        updates.iter().filter_map(|update| Some(graph.outputs.get(update.output)?.1)).collect();
    let is_update = |node: &PrimNode| node.outputs.iter().any(|output| updated.contains(output));
    let is_same_bytes = |node: &PrimNode| {
        let dtypes = node.inputs.iter().chain(&node.outputs).map(|tensor| storage.dtype(*tensor));
        let has_one_type = dtypes.collect::<BTreeSet<_>>().len() == 1;
        has_one_type && is_view(&graph, node, storage.layouts()) && !is_update(node)
    };
    match orch_rewrite::read_outputs(&graph, is_same_bytes) {
        None => (graph, storage),
        Some(graph) => {
            let storage = planner.storage(&graph);
            (graph, storage)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{half_on_gpu, with_context};
    use orch_files::Scratch;
    use orch_ir::PrimOp;

    /// An image, what is read of it, and the image with another order of dimensions.
    fn text(image: &str, perm: &str, shape: &str) -> String {
        format!(
            "graph \"saved\" {{
  input \"x\" t0: f16[2, 64, 6, 8]
  input \"w\" t1: f16[64, 64, 1, 1]
  t2: f16[2, 64, 6, 8] = {image}
  t3: f16[{shape}] = transpose t2 perm=[{perm}]
  t4: f16[2, 64, 6, 8] = exp t2
  output \"saved\" t3
  output \"y\" t4
}}"
        )
    }

    /// A convolution lies channels last, what an input is computed of row by row.
    #[test]
    fn an_output_of_the_same_bytes_is_read() {
        let conv =
            "conv t0, t1 kernel=[1, 1] strides=[1, 1] dilations=[1, 1] low=[0, 0] high=[0, 0] groups=1";
        for (image, perm, shape, is_read) in [
            (conv, "0, 2, 3, 1", "2, 6, 8, 64", true),
            (conv, "0, 3, 2, 1", "2, 8, 6, 64", false),
            ("sqrt t0", "0, 2, 3, 1", "2, 6, 8, 64", false),
        ] {
            let cache = Scratch::new().unwrap();
            with_context(&text(image, perm, shape), &half_on_gpu(&cache), |ctx, _| {
                let transposes =
                    ctx.graph.nodes().iter().filter(|node| matches!(node.op, PrimOp::Transpose { .. }));
                let of_output = transposes.filter(|node| node.inputs[0] == ctx.graph.outputs[0].1).count();
                assert_eq!(of_output, usize::from(is_read), "{image} {perm}");
            });
        }
    }
}
