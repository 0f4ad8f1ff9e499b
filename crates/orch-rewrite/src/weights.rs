//! Weights of convolutions while these are rewritten.

use crate::prepare::computed;
use orch_interp::{EvalOptions, evaluate_node};
use orch_ir::{DType, PadMode, PrimGraph, PrimOp, Shape, Tensor, TensorId};

/// Weights that are known, or that the graph computes.
#[derive(Clone)]
pub(crate) enum Weights {
    /// Their values.
    Stored(Tensor),
    /// The tensor of the graph.
    Computed(TensorId),
}

impl Weights {
    /// The weights of a node of a graph that is being rebuilt.
    pub fn of_graph(graph: &PrimGraph, known: &[Option<TensorId>], weights: TensorId) -> Weights {
        match graph.constant(weights) {
            Some(value) => Weights::Stored(value.clone()),
            None => Weights::Computed(computed(known, weights)),
        }
    }

    /// Their shape.
    pub fn shape(&self, graph: &PrimGraph) -> Shape {
        match self {
            Weights::Stored(value) => value.shape().clone(),
            Weights::Computed(id) => graph.shape(*id).clone(),
        }
    }

    /// Their element type.
    pub fn dtype(&self, graph: &PrimGraph) -> DType {
        match self {
            Weights::Stored(value) => value.dtype(),
            Weights::Computed(id) => graph.dtype(*id),
        }
    }

    /// The result of a primitive.
    pub fn then(&self, graph: &mut PrimGraph, op: PrimOp) -> Weights {
        Self::of(graph, op, &[self])
    }

    /// The result of a primitive of several weights: stored if all of them are.
    pub fn of(graph: &mut PrimGraph, op: PrimOp, operands: &[&Weights]) -> Weights {
        let expected = "weights have the shape of the convolution's";
        let stored = |weights: &&Weights| match weights {
            Weights::Stored(value) => Some(value.clone()),
            Weights::Computed(_) => None,
        };
        if let Some(values) = operands.iter().map(stored).collect::<Option<Vec<Tensor>>>() {
            let mut results = evaluate_node(&op, &values.iter().collect::<Vec<_>>(), &EvalOptions::default())
                .expect(expected);
            return Weights::Stored(results.remove(0));
        }
        let ids: Vec<TensorId> = operands.iter().map(|weights| weights.tensor(graph)).collect();
        Weights::Computed(graph.add(op, &ids).expect(expected))
    }

    /// With zeros around them.
    pub fn padded(&self, graph: &mut PrimGraph, low: Vec<usize>, high: Vec<usize>) -> Weights {
        let zero = Weights::Stored(Tensor::zeros(self.dtype(graph), Shape::scalar()));
        Self::of(graph, PrimOp::Pad { mode: PadMode::Constant, low, high }, &[self, &zero])
    }

    /// The weights as a tensor of the graph.
    pub fn tensor(&self, graph: &mut PrimGraph) -> TensorId {
        match self {
            Weights::Stored(value) => graph.add_constant(value.clone()),
            Weights::Computed(id) => *id,
        }
    }
}
