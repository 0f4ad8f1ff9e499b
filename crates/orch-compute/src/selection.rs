//! The compute definition of a selection of the best along an axis (TopK), which is a kernel by itself; sorting is the selection of all.

use crate::alone::{operand_arg, result_arg};
use crate::block::Arg;
use crate::expr::ArgId;
use crate::storage::Storage;
use orch_ir::{DType, NodeId, OpaqueKind, PrimGraph, PrimOp, TensorId};

/// One kernel's selection. Of every line of `x [outer, extent, inner]` along the extent the `k` best, best first, ties to the lower
/// position: `values [outer, k, inner]` and `places [outer, k, inner]`, positions in `0..extent`. NaN counts as larger than any number.
#[derive(Clone, Debug)]
pub struct SelectionProgram {
    /// A name for people, also the stem of the C function's name.
    pub name: String,
    /// Lines before one another.
    pub outer: usize,
    /// Elements of a line, at least 1.
    pub extent: usize,
    /// Lines beside one another: the distance between elements of a line.
    pub inner: usize,
    /// How many are selected, at least 1.
    pub k: usize,
    /// Whether the largest are best, or the smallest.
    pub largest: bool,
    /// Runs of equal length, one after the other, that a line consists of, each of which is known to be in order, best first; 1 if
    /// none is.
    pub runs: usize,
    /// Tensor arguments: the operand, then the results that are wanted.
    pub args: Vec<Arg>,
    /// The selected elements, if they are wanted.
    pub values: Option<ArgId>,
    /// Their positions, if they are wanted.
    pub places: Option<ArgId>,
}

/// The length of the runs that a tensor consists of, each in order along an axis with `inner` elements behind it: what a selection has
/// made, reshaped.
fn sorted_run(graph: &PrimGraph, tensor: TensorId, inner: usize, largest: bool) -> Option<usize> {
    let mut source = tensor;
    let mut producer = graph.node(graph.producer(source)?);
    while matches!(producer.op, PrimOp::Reshape { .. }) {
        source = producer.inputs[0];
        producer = graph.node(graph.producer(source)?);
    }
    let PrimOp::Opaque(opaque) = &producer.op else { return None };
    let OpaqueKind::TopK { axis, k, largest: of_largest, .. } = opaque.kind else { return None };
    let behind: usize = graph.shape(source)[axis + 1..].iter().product();
    (producer.outputs[0] == source && of_largest == largest && behind == inner).then_some(k)
}

impl SelectionProgram {
    /// The selection among `nodes`, all others of which are views of its operand; `None` if there is none, if it is of nothing, or one
    /// of its tensors is not stored row by row.
    pub fn of(
        graph: &PrimGraph,
        nodes: &[NodeId],
        outputs: &[TensorId],
        storage: &Storage,
        name: impl Into<String>,
    ) -> Option<Self> {
        let (node, axis, k, largest) = nodes.iter().find_map(|&id| {
            let PrimOp::Opaque(opaque) = &graph.node(id).op else { return None };
            match opaque.kind {
                OpaqueKind::TopK { axis, k, largest, .. } => Some((graph.node(id), axis, k, largest)),
                _ => None,
            }
        })?;
        let shape = graph.shape(node.inputs[0]);
        let (outer, inner) = (shape[..axis].iter().product(), shape[axis + 1..].iter().product());
        if k == 0 || shape.elems() == 0 {
            return None;
        }
        let mut args = vec![operand_arg(graph, nodes, storage, node.inputs[0])?];
        let mut result = |number: usize| -> Option<Option<ArgId>> {
            let Some(tensor) = node.outputs.get(number).filter(|tensor| outputs.contains(tensor)) else {
                return Some(None);
            };
            args.push(result_arg(graph, storage, *tensor)?);
            Some(Some(ArgId::new(args.len() - 1)))
        };
        let [values, places] = [result(0)?, result(1)?];
        let (name, extent) = (name.into(), shape[axis]);
        let run = sorted_run(graph, node.inputs[0], inner, largest).filter(|run| extent.is_multiple_of(*run));
        let runs = run.map_or(1, |run| extent / run);
        Some(Self { name, outer, extent, inner, k, largest, runs, args, values, places })
    }

    /// The argument that is `x`.
    pub const X: ArgId = ArgId(0);

    /// The argument with this id.
    pub fn arg(&self, id: ArgId) -> &Arg {
        &self.args[id.index()]
    }

    /// Lines.
    pub fn lines(&self) -> usize {
        self.outer * self.inner
    }

    /// The type in which elements are compared: one that holds all of theirs.
    pub fn key_type(&self) -> DType {
        match self.arg(Self::X).dtype {
            DType::F16 | DType::BF16 => DType::F32,
            DType::Bool | DType::I8 | DType::U8 | DType::I16 | DType::U16 => DType::I32,
            DType::U32 => DType::I64,
            wide @ (DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::U64) => wide,
        }
    }
}
