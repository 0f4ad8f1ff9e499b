//! The compute definition of scattering, which is a kernel by itself: updates apply in order.

use crate::alone::{operand_arg, result_arg};
use crate::block::{Arg, ArgRole};
use crate::expr::{ArgId, Const};
use crate::storage::Storage;
use orch_ir::{DType, NodeId, PrimGraph, PrimOp, ReduceOp, TensorId};

/// What says where an update goes. Indices are limited to the extent that they address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScatterIndex {
    /// `[outer, count, inner]`: each update has an index of its own.
    Elements,
    /// `[count, extents]`: a tuple of indices for `inner` elements beside one another; the product of these extents is the row extent.
    Tuples(Vec<usize>),
}

/// What is updated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScatterData {
    /// An argument.
    Tensor(ArgId),
    /// The same number everywhere, which is not read from memory.
    Fill(Const),
}

/// The number that a tensor consists of, by views and broadcasts of a constant; `None` if it may have several, or one that `f64` does
/// not hold.
pub fn fill_of(graph: &PrimGraph, tensor: TensorId) -> Option<f64> {
    /// Integers below are exact in `f64`.
    const EXACT: f64 = (1u64 << 53) as f64;
    let mut source = tensor;
    while let Some(producer) = graph.producer(source) {
        let node = graph.node(producer);
        let is_moved =
            matches!(node.op, PrimOp::Broadcast { .. } | PrimOp::Reshape { .. } | PrimOp::Transpose { .. });
        source = *node.inputs.first().filter(|_| is_moved)?;
    }
    let constant = graph.constant(source).filter(|constant| constant.shape().elems() == 1)?;
    let value = constant.to_f64()[0];
    (constant.dtype().is_float() || value.abs() < EXACT).then_some(value)
}

/// One kernel's scattering: `y [outer, extent, inner]` is `data` of that shape with `updates [outer, count, inner]` combined into the
/// rows that the indices name, one update after the other, each rounded to the element type.
#[derive(Clone, Debug)]
pub struct ScatterProgram {
    /// A name for people, also the stem of the C function's name.
    pub name: String,
    /// Independent parts; 1 where tuples are indices.
    pub outer: usize,
    /// Rows of a part.
    pub extent: usize,
    /// Elements of a row.
    pub inner: usize,
    /// Updates of a part.
    pub count: usize,
    /// Where updates go.
    pub index: ScatterIndex,
    /// How an update is combined with the element that is there; `None` replaces it.
    pub combine: Option<ReduceOp>,
    /// What is updated.
    pub data: ScatterData,
    /// Tensor arguments: indices, updates, result, and the data if it is a tensor.
    pub args: Vec<Arg>,
}

impl ScatterProgram {
    /// The argument that is the indices.
    pub const INDICES: ArgId = ArgId(0);
    /// The argument that is the updates.
    pub const UPDATES: ArgId = ArgId(1);
    /// The argument that is the result.
    pub const RESULT: ArgId = ArgId(2);

    /// The scattering among `nodes`, all others of which are views of its operands; `None` if there is none, if it is of nothing, if
    /// positions of updates differ in more than the axis, if booleans are combined, or one of its tensors is not stored row by row.
    pub fn of(
        graph: &PrimGraph,
        nodes: &[NodeId],
        storage: &Storage,
        name: impl Into<String>,
    ) -> Option<Self> {
        let is_scatter = |id: &&NodeId| {
            matches!(graph.node(**id).op, PrimOp::ScatterAlong { .. } | PrimOp::ScatterNd { .. })
        };
        let node = graph.node(*nodes.iter().find(is_scatter)?);
        let [data, indices] = [0, 1].map(|operand| graph.shape(node.inputs[operand]));
        let product = |extents: &[usize]| extents.iter().product::<usize>();
        let (outer, extent, inner, count, index, combine) = match node.op {
            PrimOp::ScatterAlong { axis, combine } => {
                let is_line = |dim: usize| dim == axis || indices[dim] == data[dim];
                if !(0..data.rank()).all(is_line) {
                    return None;
                }
                let (outer, inner) = (product(&data[..axis]), product(&data[axis + 1..]));
                (outer, data[axis], inner, indices[axis], ScatterIndex::Elements, combine)
            }
            PrimOp::ScatterNd { combine } => {
                let (&depth, outer_dims) = indices.split_last()?;
                let (rows, row) = data.split_at(depth);
                let index = ScatterIndex::Tuples(rows.to_vec());
                (1, product(rows), product(row), product(outer_dims), index, combine)
            }
            _ => return None,
        };
        let is_arg = matches!(combine, Some(ReduceOp::ArgMax { .. } | ReduceOp::ArgMin { .. }));
        let is_combined_bool = combine.is_some() && graph.dtype(node.inputs[0]) == DType::Bool;
        if data.elems() == 0 || is_arg || is_combined_bool {
            return None;
        }
        let mut args = Vec::new();
        for &operand in &node.inputs[1..] {
            args.push(operand_arg(graph, nodes, storage, operand)?);
        }
        args.push(result_arg(graph, storage, node.outputs[0])?);
        let dtype = args[Self::RESULT.index()].dtype;
        let data = match fill_of(graph, node.inputs[0]) {
            Some(value) => ScatterData::Fill(Const::converted(dtype, value)),
            None => {
                args.push(operand_arg(graph, nodes, storage, node.inputs[0])?);
                ScatterData::Tensor(ArgId::new(args.len() - 1))
            }
        };
        Some(Self { name: name.into(), outer, extent, inner, count, index, combine, data, args })
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.arg(Self::RESULT).dtype
    }

    /// The program with its result in the memory of the data; `None` if there is no tensor of data, or types or layouts differ.
    pub fn updated(&self) -> Option<Self> {
        let ScatterData::Tensor(data) = self.data else { return None };
        let [data, result] = [data, Self::RESULT].map(|id| self.arg(id));
        let is_alike =
            (data.dtype, &data.shape, &data.layout) == (result.dtype, &result.shape, &result.layout);
        if !is_alike || data.role != ArgRole::Input {
            return None;
        }
        let mut program = self.clone();
        program.args[Self::RESULT.index()].role = ArgRole::Updated;
        Some(program)
    }

    /// The argument with this id.
    pub fn arg(&self, id: ArgId) -> &Arg {
        &self.args[id.index()]
    }
}
