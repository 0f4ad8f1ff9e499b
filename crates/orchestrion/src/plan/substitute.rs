//! A proved µGraph in place of some primitives: plain data, as it is stored in the plan cache.

use super::context::PlanContext;
use orch_ir::{DType, TensorId};
use orch_mugraph::lower::Stored;
use orch_mugraph::search::limits::{InputSet, InputStorage};
use orch_mugraph::{Band, MuGraph, Node, Proved};
use serde::{Deserialize, Serialize};

/// A proved µGraph in place of some primitives.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Substitute {
    /// Where its inputs and outputs are.
    pub views: StoredViews,
    /// True if the primitives subtract maxima from exponents and the program does not.
    pub must_be_stable: bool,
    /// The µGraph.
    pub proved: Proved,
}

/// How the inputs and outputs of a µGraph lie in tensors of the graph.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StoredViews {
    /// In the order of the µGraph's inputs.
    pub inputs: Vec<StoredView>,
    /// In the order of its outputs, at least one.
    pub outputs: Vec<StoredView>,
}

/// A tensor of a µGraph in the memory of a tensor of the graph: element `[i, j, ..]` is at
/// `offset + i * strides[0] + j * strides[1] + ..` elements.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StoredView {
    /// The number of the graph's tensor.
    pub tensor: u32,
    /// Elements in memory from one index to the next one, by dimension.
    pub strides: Vec<usize>,
    /// Elements in memory before the first one.
    pub offset: usize,
    /// The band that a mask is, where kernels compute it and do not read the tensor.
    pub band: Option<Band>,
}

/// Where a tensor of a µGraph is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SubstituteTensor {
    /// In a tensor of the graph.
    Graph(TensorId),
    /// Between two kernels of the substitute, by its number; f32 in row-major order.
    Inner(usize),
}

impl Substitute {
    /// What identifies its kernels: the µGraph, and how its inputs and outputs lie in memory.
    pub fn key(&self) -> String {
        format!("{} {}", self.proved.certificate.candidate, self.views.key())
    }

    /// Whether the right operand of one of its products is a constant of the graph.
    pub fn multiplies_by_constants(&self, ctx: PlanContext<'_>) -> bool {
        let graph = self.proved.graph().unwrap_or_default();
        let inputs = graph.inputs().map(|(tensor, ..)| tensor).zip(&self.views.inputs);
        let constants: Vec<_> = inputs
            .filter(|(_, view)| ctx.graph.constant(TensorId(view.tensor)).is_some())
            .map(|(tensor, _)| tensor)
            .collect();
        graph.kernel_nodes().any(|(_, node)| match node {
            Node::Block(block) => block.right_operands().any(|tensor| constants.contains(&tensor)),
            _ => false,
        })
    }

    /// The shape of a tensor of the µGraph.
    pub fn inner_shape(&self, number: usize) -> Vec<usize> {
        let graph = self.proved.graph().unwrap_or_default();
        graph.shapes().get(number).cloned().unwrap_or_default()
    }
}

impl StoredViews {
    /// Text that is equal for equal layouts and bands.
    pub fn key(&self) -> String {
        let band = |band: Band| format!(" {:?}..{:?}", band.below, band.above);
        let view = |view: &StoredView| {
            format!("{:?} {}{}", view.strides, view.offset, view.band.map(band).unwrap_or_default())
        };
        let views: Vec<String> = self.inputs.iter().chain(&self.outputs).map(view).collect();
        views.join(" ")
    }

    /// How the inputs of a µGraph are in memory, for the cost model of the search.
    pub fn input_storage(&self, ctx: PlanContext<'_>) -> InputStorage {
        let element_bytes = ctx.planner.search_options().machine.element_bytes;
        let is_wide = |view: &StoredView| {
            view.band.is_none() && ctx.storage.dtype(TensorId(view.tensor)).size_bytes() > element_bytes
        };
        let is_transposed = |view: &StoredView| matches!(view.strides[..], [.., 1, last] if last > 1);
        let those = |suits: &dyn Fn(&StoredView) -> bool| {
            let numbered = self.inputs.iter().enumerate();
            InputSet::of(numbered.filter(|(_, view)| suits(view)).map(|(number, _)| number))
        };
        InputStorage {
            computed: those(&|view| view.band.is_some()),
            wide: those(&is_wide),
            transposed: those(&is_transposed),
        }
    }

    /// How each tensor of a µGraph is stored, and where; `None` if the views are not of this µGraph or this graph.
    pub fn memory(
        &self,
        graph: &MuGraph,
        ctx: PlanContext<'_>,
    ) -> Option<(Vec<Stored>, Vec<SubstituteTensor>)> {
        let mut stored: Vec<Stored> =
            graph.shapes().iter().map(|shape| Stored::row_major(DType::F32, shape)).collect();
        let mut tensors: Vec<SubstituteTensor> = (0..stored.len()).map(SubstituteTensor::Inner).collect();
        if (graph.inputs().count(), graph.outputs().len()) != (self.inputs.len(), self.outputs.len()) {
            return None;
        }
        let inputs = graph.inputs().map(|(tensor, ..)| tensor).zip(&self.inputs);
        let outputs = graph.outputs().iter().map(|(_, tensor)| *tensor).zip(&self.outputs);
        for (tensor, view) in inputs.chain(outputs) {
            let id = TensorId(view.tensor);
            if id.index() >= ctx.graph.tensors().len() || view.strides.len() != graph.shape(tensor).len() {
                return None;
            }
            stored[tensor.index()] = Stored {
                dtype: ctx.storage.dtype(id),
                strides: view.strides.clone(),
                offset: view.offset,
                elems: ctx.graph.shape(id).elems(),
                band: view.band,
            };
            // Nothing reads a mask that is computed, which need not be a tensor that the units of the region see.
            if view.band.is_none() {
                let place = &mut tensors[tensor.index()];
                // One tensor of the µGraph is not stored to two of the graph.
                if matches!(*place, SubstituteTensor::Graph(other) if other != id) {
                    return None;
                }
                *place = SubstituteTensor::Graph(id);
            }
        }
        Some((stored, tensors))
    }
}
