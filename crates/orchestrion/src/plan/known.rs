//! Tensors that depend on constants alone. No step of a plan computes one: what the choice of kernels wants stored is evaluated
//! when compiling and becomes a constant; other kernels compute it where they read it.

use orch_interp::{EvalError, EvalOptions, evaluate_node};
use orch_ir::{PrimGraph, Tensor, TensorId};
use std::collections::BTreeMap;

/// Larger tensors are computed by each run: they are neither stored in executables nor evaluated.
const MAX_BYTES: usize = 1 << 28;

/// What the choice of kernels counts for storing as many bytes as the model's constants have, and [`SPARE_BYTES`].
const PRICE_US: f64 = 100.0;

/// Added to the bytes of a model's constants: in a small executable a mask of a few megabytes is no burden.
const SPARE_BYTES: usize = 64 << 20;

/// Which tensors of a graph depend on constants alone.
pub struct KnownTensors {
    is_known: Vec<bool>,
    /// What storing one byte counts.
    price_us: f64,
}

impl KnownTensors {
    /// Those of a graph.
    pub fn of(graph: &PrimGraph) -> Self {
        let bytes = |tensor: TensorId| graph.shape(tensor).elems() * graph.dtype(tensor).size_bytes();
        let mut is_known = vec![false; graph.tensors().len()];
        let mut model_bytes = SPARE_BYTES;
        for (id, value) in graph.constants() {
            is_known[id.index()] = true;
            model_bytes += value.bytes().len();
        }
        for id in graph.node_ids() {
            let node = graph.node(id);
            let is_computed = node.inputs.iter().all(|input| is_known[input.index()]);
            for &output in &node.outputs {
                is_known[output.index()] = is_computed && bytes(output) <= MAX_BYTES;
            }
        }
        Self { is_known, price_us: PRICE_US / model_bytes as f64 }
    }

    /// True if all of these tensors depend on constants alone.
    pub fn contains_all(&self, tensors: &[TensorId]) -> bool {
        tensors.iter().all(|tensor| self.is_known[tensor.index()])
    }

    /// What the choice of kernels counts for storing tensors of so many bytes.
    pub fn price_us(&self, bytes: f64) -> f64 {
        self.price_us * bytes
    }
}

/// A step of a plan that computes the same in every run, which the choice of kernels should have evaluated: a bug in choosing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a step that computes {0:?} depends on constants alone, and was not evaluated when compiling")]
pub struct ConstantStep(pub Vec<TensorId>);

/// The first step, given by what it writes, all of which depends on constants alone. Steps are left that write more than is stored
/// ([`MAX_BYTES`]), and those that cannot be evaluated: they give the error when they run.
pub fn constant_step<'a>(
    graph: &PrimGraph,
    steps: impl IntoIterator<Item = &'a [TensorId]>,
) -> Option<ConstantStep> {
    let known = KnownTensors::of(graph);
    let is_of_graph =
        |written: &[TensorId]| written.iter().all(|tensor| tensor.index() < graph.tensors().len());
    let is_left = |written: &[TensorId]| evaluate_known(graph, written, &mut BTreeMap::new()).is_err();
    let mut found = steps
        .into_iter()
        .filter(|written| is_of_graph(written) && known.contains_all(written) && !is_left(written));
    found.next().map(|written| ConstantStep(written.to_vec()))
}

/// The values of tensors that depend on constants alone; `values` holds those that were evaluated already.
///
/// # Errors
/// If a primitive cannot be evaluated, as with an index out of range.
pub fn evaluate_known(
    graph: &PrimGraph,
    tensors: &[TensorId],
    values: &mut BTreeMap<TensorId, Tensor>,
) -> Result<(), EvalError> {
    let mut needed = Vec::new();
    let mut open = tensors.to_vec();
    let mut seen = std::collections::BTreeSet::new();
    while let Some(tensor) = open.pop() {
        if values.contains_key(&tensor) {
            continue;
        }
        if let Some(node) = graph.producer(tensor).filter(|&node| seen.insert(node)) {
            needed.push(node);
            open.extend(&graph.node(node).inputs);
        }
    }
    needed.sort_unstable();
    let options = EvalOptions { max_result_bytes: MAX_BYTES, ..EvalOptions::default() };
    let mut between: BTreeMap<TensorId, Tensor> = BTreeMap::new();
    for id in needed {
        let node = graph.node(id);
        let operand = |input: &TensorId| {
            graph.constant(*input).or_else(|| values.get(input)).or_else(|| between.get(input))
        };
        let operands: Vec<&Tensor> = node.inputs.iter().filter_map(operand).collect();
        let results = evaluate_node(&node.op, &operands, &options)?;
        between.extend(node.outputs.iter().copied().zip(results));
    }
    values.extend(between.into_iter().filter(|(tensor, _)| tensors.contains(tensor)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::{BinaryFn, DType, PrimOp, ScalarFn};

    #[test]
    fn what_depends_on_constants_alone_is_evaluated() {
        let add = PrimOp::Map(ScalarFn::Binary(BinaryFn::Add));
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", DType::F32, [2]);
        let c = graph.add_constant(Tensor::from_vec([2], vec![1f32, 2.0]));
        let twice = graph.add(add.clone(), &[c, c]).unwrap();
        let four = graph.add(add.clone(), &[twice, twice]).unwrap();
        let live = graph.add(add, &[four, x]).unwrap();
        graph.add_output("y", live);
        let known = KnownTensors::of(&graph);
        assert!(known.contains_all(&[c, twice, four]) && !known.contains_all(&[four, live]));
        let mut values = BTreeMap::new();
        evaluate_known(&graph, &[four], &mut values).unwrap();
        assert_eq!(values.len(), 1);
        assert_eq!(values[&four].to_f64(), [4.0, 8.0]);
    }

    #[test]
    fn a_step_on_constants_alone_is_found() {
        let add = PrimOp::Map(ScalarFn::Binary(BinaryFn::Add));
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", DType::F32, [2]);
        let c = graph.add_constant(Tensor::from_vec([2], vec![1f32, 2.0]));
        let twice = graph.add(add.clone(), &[c, c]).unwrap();
        let live = graph.add(add, &[twice, x]).unwrap();
        graph.add_output("y", live);
        let (of_constants, of_inputs) = ([twice], [live]);
        assert_eq!(constant_step(&graph, [&of_inputs[..]]), None);
        assert_eq!(
            constant_step(&graph, [&of_inputs[..], &of_constants[..]]),
            Some(ConstantStep(of_constants.to_vec()))
        );
    }
}
