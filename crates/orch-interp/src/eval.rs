//! Evaluation of whole primitive graphs.

use crate::element::Element;
use crate::element::{elems, tensor, with_element};
use crate::scalar::Calc;
use crate::{EvalError, evaluate_node};
use orch_ir::{DType, PrimGraph, Tensor, TensorId};

/// In what arithmetic a graph is evaluated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Precision {
    /// Each primitive's result is rounded to its type. Sums of many elements (reductions, contractions,
    /// convolutions) accumulate in `f64` for `f32` and `f64`, in `f32` for `f16` and `bf16`, and round once.
    #[default]
    Native,
    /// Every floating tensor is `f64`, results included: the reference against which executables are judged.
    /// Integers are as in `Native`.
    Wide,
}

impl Precision {
    /// The type in which a tensor that the graph declares as `dtype` is held.
    pub fn held(self, dtype: DType) -> DType {
        match self {
            Precision::Wide if dtype.is_float() => DType::F64,
            _ => dtype,
        }
    }

    /// The tensor in the type in which it is held.
    pub(crate) fn hold(self, value: &Tensor) -> Tensor {
        if self.held(value.dtype()) == value.dtype() {
            return value.clone();
        }
        let wide: Vec<f64> =
            with_element!(value.dtype(), T => elems::<T>(value).iter().map(|v| v.widen().to_f64()).collect());
        tensor(value.shape().clone(), wide)
    }
}

/// How to evaluate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EvalOptions {
    /// The arithmetic.
    pub precision: Precision,
    /// Results larger than this are refused with [`EvalError::TooLarge`].
    pub max_result_bytes: usize,
}

impl EvalOptions {
    /// `f64` throughout.
    pub fn wide() -> Self {
        Self { precision: Precision::Wide, ..Self::default() }
    }
}

impl Default for EvalOptions {
    fn default() -> Self {
        Self { precision: Precision::Native, max_result_bytes: 1 << 34 }
    }
}

/// The outputs of `graph` for these inputs, in the graph's order.
///
/// A tensor is freed after its last use. With [`Precision::Wide`], floating inputs may be of the declared type or
/// `f64`, and floating outputs are `f64`.
///
/// # Errors
/// If the inputs are not those the graph declares, or a node cannot be evaluated.
pub fn evaluate(
    graph: &PrimGraph,
    inputs: &[Tensor],
    options: &EvalOptions,
) -> Result<Vec<Tensor>, EvalError> {
    let mut values = bind_inputs(graph, inputs, options)?;
    let mut uses = use_counts(graph);
    for id in graph.node_ids() {
        let node = graph.node(id);
        let fail = |source: EvalError| EvalError::Node {
            node: id,
            origin: graph.origin(id).to_owned(),
            source: Box::new(source),
        };
        let operands: Vec<Tensor> = node
            .inputs
            .iter()
            .map(|&input| read(graph, &values, input, options))
            .collect::<Result<_, _>>()
            .map_err(fail)?;
        let results = evaluate_node(&node.op, &operands.iter().collect::<Vec<_>>(), options).map_err(fail)?;
        drop(operands);
        for &input in &node.inputs {
            uses[input.index()] -= 1;
            if uses[input.index()] == 0 {
                values[input.index()] = None;
            }
        }
        for (&output, result) in node.outputs.iter().zip(results) {
            if uses[output.index()] > 0 {
                values[output.index()] = Some(result);
            }
        }
    }
    graph.outputs.iter().map(|(_, output)| read(graph, &values, *output, options)).collect()
}

/// The value of a tensor that is computed, given or constant.
fn read(
    graph: &PrimGraph,
    values: &[Option<Tensor>],
    id: TensorId,
    options: &EvalOptions,
) -> Result<Tensor, EvalError> {
    if let Some(value) = &values[id.index()] {
        return Ok(value.clone());
    }
    match graph.constant(id) {
        Some(value) => Ok(options.precision.hold(value)),
        None => Err(EvalError::operation(
            id.to_string(),
            "the tensor has no value: it is neither an input, a constant nor computed by an earlier node",
        )),
    }
}

/// The table of tensor values with the graph's inputs filled in.
fn bind_inputs(
    graph: &PrimGraph,
    inputs: &[Tensor],
    options: &EvalOptions,
) -> Result<Vec<Option<Tensor>>, EvalError> {
    if inputs.len() != graph.inputs.len() {
        return Err(EvalError::InputCount {
            graph: graph.name.clone(),
            expected: graph.inputs.len(),
            given: inputs.len(),
        });
    }
    let mut values = vec![None; graph.tensors().len()];
    for ((name, id), value) in graph.inputs.iter().zip(inputs) {
        let info = graph.tensor(*id);
        let dtype_fits = value.dtype() == info.dtype || value.dtype() == options.precision.held(info.dtype);
        if !dtype_fits || *value.shape() != info.shape {
            return Err(EvalError::InputType {
                graph: graph.name.clone(),
                name: name.clone(),
                expected_dtype: info.dtype,
                expected_shape: info.shape.clone(),
                given_dtype: value.dtype(),
                given_shape: value.shape().clone(),
            });
        }
        values[id.index()] = Some(options.precision.hold(value));
    }
    Ok(values)
}

/// How often each tensor is read: by nodes, and as a graph output.
fn use_counts(graph: &PrimGraph) -> Vec<usize> {
    let mut uses = vec![0; graph.tensors().len()];
    let reads = graph.nodes().iter().flat_map(|node| &node.inputs);
    for id in reads.chain(graph.outputs.iter().map(|(_, id)| id)) {
        uses[id.index()] += 1;
    }
    uses
}
