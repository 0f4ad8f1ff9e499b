//! Graphs for GPUs, on which a launch costs as much as a small kernel and narrow accesses cost as much as wide ones.
//!
//! - Matrix products of one tensor with several constants become one product with the constants side by side, and
//!   slices of its result; constants that are added to all of the results are added before the slices. So do convolutions of one
//!   tensor with equal windows. Whether that pays is for the choice of kernels: one of the product and a slice computes only what the
//!   slice keeps.
//! - Inputs of f32 are copied before matrix products and convolutions read them: the copy may be stored in another
//!   order, and in half precision, so that the product reads it as it is. Whether that pays is for the choice of
//!   kernels: a copy may be fused into its readers. Inputs of f16 and bf16 are copied for convolutions, which read channels
//!   side by side.
//! - Factors of large matrix products whose rows have an odd number of elements may be copied to longer rows before,
//!   which start where memory is read 16 bytes at a time. That is for the choice of kernels too.

use crate::images::copied;
use orch_ir::{
    Contract, DType, NodeId, PadMode, PrimGraph, PrimNode, PrimOp, ScalarFn, Shape, Tensor, TensorId,
};
use std::collections::BTreeMap;

/// The graph with products of one tensor merged.
pub fn merge_products(graph: &PrimGraph) -> PrimGraph {
    let groups = groups(graph);
    if groups.is_empty() {
        return graph.clone();
    }
    let mut replaced: BTreeMap<NodeId, usize> = BTreeMap::new();
    for (number, group) in groups.iter().enumerate() {
        for member in &group.members {
            replaced.insert(member.product, number);
            replaced.extend(member.bias.map(|(node, _)| (node, number)));
        }
    }
    let mut emitted = vec![false; groups.len()];
    rebuilt(graph, |id, result, known| {
        let Some(&number) = replaced.get(&id) else { return false };
        if !std::mem::replace(&mut emitted[number], true) {
            groups[number].emit(graph, result, known);
        }
        true
    })
}

/// The graph with inputs of f32 copied for the products and convolutions that read them, directly or transposed, and those of half
/// precision for convolutions, which may read them moved: reversed weights in gradients of images.
pub fn stage_inputs(graph: &PrimGraph) -> PrimGraph {
    let consumers = graph.consumers();
    let is_convolution = |op: &PrimOp| matches!(op, PrimOp::Conv(_));
    // The reversal of weights in a gradient of images moves elements only.
    let is_moving = |op: &PrimOp| {
        matches!(
            op,
            PrimOp::Transpose { .. } | PrimOp::Slice { .. } | PrimOp::Pad { .. } | PrimOp::Concat { .. }
        )
    };
    let is_product = |op: &PrimOp| matches!(op, PrimOp::Contract(_) | PrimOp::Conv(_));
    let is_transposition = |op: &PrimOp| matches!(op, PrimOp::Transpose { .. });
    let convolved = leading_to(graph, &consumers, is_convolution, is_moving);
    let multiplied = leading_to(graph, &consumers, is_product, is_transposition);
    let is_operand = |id: &NodeId| convolved[id.index()] || multiplied[id.index()];
    let is_staged = |input: &TensorId| {
        let mut readers = consumers[input.index()].iter();
        match graph.dtype(*input) {
            DType::F32 => readers.any(is_operand),
            DType::F16 | DType::BF16 => readers.any(|id| convolved[id.index()]),
            _ => false,
        }
    };
    let staged: Vec<TensorId> = graph.inputs.iter().map(|&(_, input)| input).filter(is_staged).collect();
    with_copies(
        graph,
        |id, input| is_operand(&id) && staged.contains(&input),
        |result, _, given| copied(result, given),
    )
}

/// For each node whether it is of one kind, or of another kind and read by such nodes alone.
fn leading_to(
    graph: &PrimGraph,
    consumers: &[Vec<NodeId>],
    is_last: fn(&PrimOp) -> bool,
    is_between: fn(&PrimOp) -> bool,
) -> Vec<bool> {
    let mut leads = vec![false; graph.nodes().len()];
    for id in graph.node_ids().rev() {
        let node = graph.node(id);
        let mut readers = node.outputs.iter().flat_map(|output| &consumers[output.index()]).peekable();
        leads[id.index()] = is_last(&node.op)
            || is_between(&node.op)
                && readers.peek().is_some()
                && readers.all(|reader| leads[reader.index()]);
    }
    leads
}

/// Which factors of products [`align_rows`] gives longer rows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RowAlignment {
    /// Rows of a multiple of so many elements stay as they are.
    pub kept: usize,
    /// Other ones become a multiple of so many elements.
    pub wanted: usize,
    /// Operations of a product, a multiply-add as two, from which on its factors may be worth a copy.
    pub least_flops: f64,
}

/// The graph with factors of large products padded with zeros, and sliced to their extents again, along the dimension
/// that `innermost` says to be contiguous in memory. Where the padding is a kernel of its own and the slice is read by the
/// product, the product's rows are aligned; where neither is, they cancel. Constants stay: kernels lay them out anew.
/// Batched products stay as well: most are attention's, and part of larger kernels.
pub fn align_rows(
    graph: &PrimGraph,
    alignment: RowAlignment,
    innermost: impl Fn(TensorId) -> Option<usize>,
) -> PrimGraph {
    let RowAlignment { kept, wanted, least_flops } = alignment;
    let is_large_product = |id: NodeId| {
        let node = graph.node(id);
        let PrimOp::Contract(contract) = &node.op else { return false };
        let is_batch = |dim: &u8| contract.rhs.contains(dim) && contract.out.contains(dim);
        !contract.lhs.iter().any(is_batch) && contract_flops(graph, node, contract) >= least_flops
    };
    let odd_dim = |input: TensorId| {
        let dim = innermost(input)?;
        let extent = graph.shape(input)[dim];
        let is_odd = graph.constant(input).is_none() && extent > 1 && !extent.is_multiple_of(kept);
        (is_odd && graph.dtype(input).is_float()).then_some(dim)
    };
    with_copies(
        graph,
        |id, input| odd_dim(input).is_some() && is_large_product(id),
        |result, input, given| {
            odd_dim(input).map_or(given, |dim| with_longer_rows(result, given, (dim, wanted)))
        },
    )
}

/// The graph in which some primitives of one result read copies of some operands. `copy` is told where to, the operand as
/// it was, and what is to be copied; each operand is copied once.
pub(crate) fn with_copies(
    graph: &PrimGraph,
    is_copied: impl Fn(NodeId, TensorId) -> bool,
    mut copy: impl FnMut(&mut PrimGraph, TensorId, TensorId) -> TensorId,
) -> PrimGraph {
    let mut copies: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    rebuilt(graph, |id, result, known| {
        let node = graph.node(id);
        let copied: Vec<bool> = node.inputs.iter().map(|&input| is_copied(id, input)).collect();
        if !copied.contains(&true) {
            return false;
        }
        let mut inputs = Vec::new();
        for (&input, is_copied) in node.inputs.iter().zip(copied) {
            let given = computed(known, input);
            inputs.push(match is_copied {
                false => given,
                true => *copies.entry(input).or_insert_with(|| copy(result, input, given)),
            });
        }
        let output = result.add(node.op.clone(), &inputs).expect("operands have the types they had");
        known[node.outputs[0].index()] = Some(output);
        true
    })
}

/// A tensor padded with zeros at the end of a dimension to a multiple of some elements, and sliced to its own extent again.
fn with_longer_rows(graph: &mut PrimGraph, tensor: TensorId, (dim, multiple): (usize, usize)) -> TensorId {
    let shape = graph.shape(tensor).clone();
    let (low, mut high) = (vec![0; shape.rank()], vec![0; shape.rank()]);
    high[dim] = shape[dim].next_multiple_of(multiple) - shape[dim];
    let padded = zero_padded(graph, tensor, low, high);
    sliced(graph, padded, vec![0; shape.rank()], shape.to_vec())
}

/// A tensor with zeros around it.
pub(crate) fn zero_padded(
    graph: &mut PrimGraph,
    tensor: TensorId,
    low: Vec<usize>,
    high: Vec<usize>,
) -> TensorId {
    let zero = graph.add_constant(Tensor::zeros(graph.dtype(tensor), Shape::scalar()));
    let pad = PrimOp::Pad { mode: PadMode::Constant, low, high };
    graph.add(pad, &[tensor, zero]).expect("a tensor can be padded in each of its dimensions")
}

/// So many elements of a tensor in each dimension, from these on.
pub(crate) fn sliced(
    graph: &mut PrimGraph,
    tensor: TensorId,
    starts: Vec<i64>,
    sizes: Vec<usize>,
) -> TensorId {
    let slice = PrimOp::Slice { steps: vec![1; starts.len()], starts, sizes };
    graph.add(slice, &[tensor]).expect("the part is within the tensor")
}

/// Operations of a product, a multiply-add as two.
fn contract_flops(graph: &PrimGraph, node: &PrimNode, contract: &Contract) -> f64 {
    let mut extents: BTreeMap<usize, usize> = BTreeMap::new();
    for (dims, &input) in [&contract.lhs, &contract.rhs].into_iter().zip(&node.inputs) {
        extents.extend(dims.iter().map(|&dim| dim as usize).zip(graph.shape(input).iter().copied()));
    }
    2.0 * extents.values().map(|&extent| extent as f64).product::<f64>()
}

/// What a tensor became in a graph that is being rebuilt.
pub(crate) fn computed(known: &[Option<TensorId>], tensor: TensorId) -> TensorId {
    known[tensor.index()].expect("operands come before users")
}

/// A copy of a graph in which `replace` may emit something else for a node.
pub(crate) fn rebuilt(
    graph: &PrimGraph,
    mut replace: impl FnMut(NodeId, &mut PrimGraph, &mut [Option<TensorId>]) -> bool,
) -> PrimGraph {
    let mut result = PrimGraph::new(&graph.name);
    let mut known: Vec<Option<TensorId>> = vec![None; graph.tensors().len()];
    for (name, id) in &graph.inputs {
        known[id.index()] = Some(result.add_input(name, graph.dtype(*id), graph.shape(*id).clone()));
    }
    for (id, value) in graph.constants() {
        known[id.index()] = Some(result.add_constant(value.clone()));
    }
    for id in graph.node_ids() {
        result.set_origin(graph.origin(id));
        if replace(id, &mut result, &mut known) {
            continue;
        }
        let node = graph.node(id);
        let inputs = node.inputs.iter().map(|&input| computed(&known, input)).collect();
        let outputs = result.add_node(node.op.clone(), inputs).expect("operands have the types they had");
        for (old, new) in node.outputs.iter().zip(outputs) {
            known[old.index()] = Some(new);
        }
    }
    for (name, output) in &graph.outputs {
        result.add_output(name, known[output.index()].expect("every output is computed"));
    }
    result
}

/// Products of one tensor.
struct Group {
    op: PrimOp,
    lhs: TensorId,
    /// The dimension of the result, and that of the weights, along which the members lie beside one another.
    result_dim: usize,
    weights_dim: usize,
    members: Vec<Member>,
}

/// A product `lhs * weights`, and a constant that is added to it and nothing else.
struct Member {
    product: NodeId,
    weights: TensorId,
    bias: Option<(NodeId, TensorId)>,
}

/// The dimensions of result and weights along which products, or convolutions, of one tensor lie beside one another; `None` if they do not.
pub(crate) fn merged_dims(op: &PrimOp) -> Option<(usize, usize)> {
    match op {
        PrimOp::Contract(contract) => match contract.rhs[..] {
            [k, n] => {
                let is_plain = contract.lhs.contains(&k) && !contract.lhs.contains(&n);
                (is_plain && contract.out.last() == Some(&n)).then(|| (contract.out.len() - 1, 1))
            }
            _ => None,
        },
        PrimOp::Conv(spec) => (spec.groups == 1).then_some((1, 0)),
        _ => None,
    }
}

/// Products that can be merged: of one tensor with matrices of as many rows, or convolutions of one tensor by windows that are alike.
fn groups(graph: &PrimGraph) -> Vec<Group> {
    let consumers = graph.consumers();
    let mut groups: Vec<Group> = Vec::new();
    for id in graph.node_ids() {
        let PrimNode { op, inputs, .. } = graph.node(id);
        let Some((result_dim, weights_dim)) = merged_dims(op) else { continue };
        let (lhs, weights) = (inputs[0], inputs[1]);
        if graph.constant(weights).is_none() || graph.constant(lhs).is_some() {
            continue;
        }
        let member = Member { product: id, weights, bias: bias(graph, &consumers, id, result_dim) };
        match groups.iter_mut().find(|group| group.lhs == lhs && group.op == *op) {
            Some(group) => group.members.push(member),
            None => {
                groups.push(Group { op: op.clone(), lhs, result_dim, weights_dim, members: vec![member] })
            }
        }
    }
    groups.retain(|group| group.members.len() > 1);
    for group in &mut groups {
        if group.members.iter().any(|member| member.bias.is_none()) {
            group.members.iter_mut().for_each(|member| member.bias = None);
        }
    }
    groups
}

/// The addition of a constant, repeated along all dimensions but one, to a product that nobody else reads.
fn bias(
    graph: &PrimGraph,
    consumers: &[Vec<NodeId>],
    product: NodeId,
    dim: usize,
) -> Option<(NodeId, TensorId)> {
    let output = graph.node(product).outputs[0];
    let [reader] = consumers[output.index()][..] else { return None };
    if graph.outputs.iter().any(|(_, tensor)| *tensor == output) {
        return None;
    }
    Some((reader, repeated_row(graph, reader, product, dim)?))
}

/// The constant that a node adds to a product, repeated along all dimensions but one.
pub(crate) fn repeated_row(
    graph: &PrimGraph,
    reader: NodeId,
    product: NodeId,
    dim: usize,
) -> Option<TensorId> {
    let (node, output) = (graph.node(reader), graph.node(product).outputs[0]);
    if node.op != PrimOp::Map(ScalarFn::Binary(orch_ir::BinaryFn::Add)) {
        return None;
    }
    let other = node.inputs.iter().copied().find(|&input| input != output)?;
    let repeated = graph.node(graph.producer(other)?);
    let PrimOp::Broadcast { dims, .. } = &repeated.op else { return None };
    let value = repeated.inputs[0];
    let is_row = dims[..] == [dim] && graph.shape(value)[0] == graph.shape(output)[dim];
    (is_row && graph.constant(value).is_some()).then_some(value)
}

impl Group {
    fn emit(&self, graph: &PrimGraph, result: &mut PrimGraph, known: &mut [Option<TensorId>]) {
        let constant = |tensor: TensorId| graph.constant(tensor).expect("members have constant weights");
        let expected = "merged operands fit as their parts did";
        let weights: Vec<&Tensor> = self.members.iter().map(|member| constant(member.weights)).collect();
        let weights = result.add_constant(side_by_side(&weights, self.weights_dim));
        let lhs = computed(known, self.lhs);
        let mut merged = result.add(self.op.clone(), &[lhs, weights]).expect(expected);
        let biases: Option<Vec<&Tensor>> =
            self.members.iter().map(|member| member.bias.map(|(_, value)| constant(value))).collect();
        let (shape, dim) = (result.shape(merged).clone(), self.result_dim);
        if let Some(biases) = biases {
            let bias = result.add_constant(side_by_side(&biases, 0));
            let repeat = PrimOp::Broadcast { shape: shape.clone(), dims: vec![dim] };
            let bias = result.add(repeat, &[bias]).expect(expected);
            let add = PrimOp::Map(ScalarFn::Binary(orch_ir::BinaryFn::Add));
            merged = result.add(add, &[merged, bias]).expect(expected);
        }
        let mut start = 0;
        for member in &self.members {
            let extent = graph.shape(member.weights)[self.weights_dim];
            let (mut starts, mut sizes) = (vec![0; shape.rank()], shape.to_vec());
            (starts[dim], sizes[dim]) = (start as i64, extent);
            let part = sliced(result, merged, starts, sizes);
            let node = member.bias.map_or(member.product, |(node, _)| node);
            known[graph.node(node).outputs[0].index()] = Some(part);
            start += extent;
        }
    }
}

/// Tensors after one another along a dimension.
fn side_by_side(parts: &[&Tensor], dim: usize) -> Tensor {
    let mut shape = parts[0].shape().to_vec();
    let lines: usize = shape[..dim].iter().product();
    let line = |part: &Tensor| part.bytes().len() / lines.max(1);
    let bytes: Vec<u8> = (0..lines)
        .flat_map(|at| parts.iter().flat_map(move |part| &part.bytes()[at * line(part)..][..line(part)]))
        .copied()
        .collect();
    shape[dim] = parts.iter().map(|part| part.shape()[dim]).sum();
    Tensor::from_bytes(parts[0].dtype(), shape.into(), bytes.into())
        .expect("as many elements as the parts have")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use orch_interp::{EvalOptions, evaluate};
    use orch_ir::{BinaryFn, ConvSpec, Window};

    #[test]
    fn odd_rows_of_large_products_become_longer() {
        let mut graph = PrimGraph::new("odd");
        let (a, b) = (graph.add_input("a", DType::F32, [6, 7]), graph.add_input("b", DType::F32, [7, 8]));
        let contract = Contract { lhs: vec![0, 2], rhs: vec![2, 1], out: vec![0, 1] };
        let y = graph.add(PrimOp::Contract(contract), &[a, b]).unwrap();
        graph.add_output("y", y);
        let shapes = graph.clone();
        let innermost = |tensor: TensorId| shapes.shape(tensor).rank().checked_sub(1);
        let alignment = RowAlignment { kept: 2, wanted: 4, least_flops: 2.0 * 6.0 * 7.0 * 8.0 };
        let aligned = align_rows(&graph, alignment, innermost);
        // Rows of `b` are a multiple of two already.
        assert_eq!(count(&aligned, |op| matches!(op, PrimOp::Pad { .. })), 1);
        let rows = aligned.nodes().iter().find(|node| matches!(node.op, PrimOp::Pad { .. })).unwrap();
        assert_eq!(aligned.shape(rows.outputs[0])[..], [6, 8]);
        let inputs = [values(&[6, 7], 1), values(&[7, 8], 2)];
        let results = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap()[0].to_f64();
        assert_eq!(results(&aligned), results(&graph));
        let small = RowAlignment { least_flops: alignment.least_flops + 1.0, ..alignment };
        assert_eq!(count(&align_rows(&graph, small, innermost), |op| matches!(op, PrimOp::Pad { .. })), 0);
    }

    pub(crate) fn values(shape: &[usize], seed: usize) -> Tensor {
        let elems: usize = shape.iter().product();
        let data = (0..elems).map(|i| ((i * 37 + seed * 11) % 23) as f32 / 8.0 - 1.25).collect();
        Tensor::from_vec(shape.to_vec(), data)
    }

    /// Three products of one tensor, two of other widths, with constants added to some.
    fn products(biased: &[bool]) -> PrimGraph {
        let mut graph = PrimGraph::new("products");
        let x = graph.add_input("x", DType::F32, vec![2, 5, 6]);
        for (number, &is_biased) in biased.iter().enumerate() {
            let columns = 4 + number;
            let w = graph.add_constant(values(&[6, columns], number));
            let contract = Contract { lhs: vec![0, 1, 3], rhs: vec![3, 2], out: vec![0, 1, 2] };
            let mut y = graph.add(PrimOp::Contract(contract), &[x, w]).unwrap();
            if is_biased {
                let bias = graph.add_constant(values(&[columns], 50 + number));
                let shape = graph.shape(y).clone();
                let bias = graph.add(PrimOp::Broadcast { shape, dims: vec![2] }, &[bias]).unwrap();
                y = graph.add(PrimOp::Map(ScalarFn::Binary(BinaryFn::Add)), &[y, bias]).unwrap();
            }
            graph.add_output(format!("y{number}"), y);
        }
        graph
    }

    fn count(graph: &PrimGraph, is_wanted: impl Fn(&PrimOp) -> bool) -> usize {
        graph.nodes().iter().filter(|node| is_wanted(&node.op)).count()
    }

    #[test]
    fn products_of_one_tensor_are_merged() {
        for biased in [[false; 3], [true; 3], [true, false, true]] {
            let graph = products(&biased);
            let merged = merge_products(&graph);
            assert_eq!(count(&merged, |op| matches!(op, PrimOp::Contract(_))), 1);
            let adds = if biased == [true; 3] { 1 } else { biased.iter().filter(|&&biased| biased).count() };
            assert_eq!(count(&merged, |op| matches!(op, PrimOp::Map(_))), adds, "{biased:?}");
            let inputs = [values(&[2, 5, 6], 9)];
            let results = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap();
            for (expected, given) in results(&graph).iter().zip(results(&merged)) {
                assert_eq!(expected.to_f64(), given.to_f64(), "{biased:?}");
            }

            let unmerged = crate::unmerge_products(&merged).unwrap();
            assert_eq!(count(&unmerged.graph, |op| matches!(op, PrimOp::Contract(_))), 3);
            for (expected, given) in results(&graph).iter().zip(results(&unmerged.graph)) {
                assert_eq!(expected.to_f64(), given.to_f64(), "{biased:?}");
            }
            for (id, old) in unmerged.graph.node_ids().zip(&unmerged.nodes) {
                let of_slice =
                    old.last().is_some_and(|old| matches!(merged.node(*old).op, PrimOp::Slice { .. }));
                let tensor = unmerged.graph.node(id).outputs[0];
                let is_known =
                    unmerged.tensors[tensor.index()] == old.last().map(|old| merged.node(*old).outputs[0]);
                assert!(!of_slice || old.len() == 2 && is_known, "{biased:?}");
            }
        }
    }

    /// Convolutions of one tensor by windows of such extents, strides and groups, with constants added to all but the last.
    fn convolutions(windows: &[(usize, usize, usize)]) -> PrimGraph {
        let mut graph = PrimGraph::new("branches");
        let x = graph.add_input("x", DType::F32, vec![2, 4, 5, 6]);
        for (number, &(extent, stride, groups)) in windows.iter().enumerate() {
            let (channels, pad) = (2 * (1 + number), extent / 2);
            let w = graph.add_constant(values(&[channels, 4 / groups, extent, extent], number));
            let window = Window {
                kernel: vec![extent; 2],
                strides: vec![stride; 2],
                dilations: vec![1; 2],
                low: vec![pad; 2],
                high: vec![pad; 2],
            };
            let mut y = graph.add(PrimOp::Conv(ConvSpec { window, groups }), &[x, w]).unwrap();
            if number + 1 < windows.len() {
                let bias = graph.add_constant(values(&[channels], 50 + number));
                let shape = graph.shape(y).clone();
                let bias = graph.add(PrimOp::Broadcast { shape, dims: vec![1] }, &[bias]).unwrap();
                y = graph.add(PrimOp::Map(ScalarFn::Binary(BinaryFn::Add)), &[y, bias]).unwrap();
            }
            graph.add_output(format!("y{number}"), y);
        }
        graph
    }

    #[test]
    fn convolutions_of_one_tensor_with_equal_windows_are_merged() {
        for (windows, left) in [
            (&[(1, 1, 1), (1, 1, 1), (3, 1, 1)][..], 2),
            (&[(3, 2, 1), (3, 2, 1)], 1),
            (&[(3, 1, 1), (1, 1, 1), (3, 1, 1), (1, 1, 1)], 2),
            (&[(1, 1, 1), (1, 2, 1)], 2),
            (&[(1, 1, 2), (1, 1, 2)], 2),
        ] {
            let graph = convolutions(windows);
            let merged = merge_products(&graph);
            assert_eq!(count(&merged, |op| matches!(op, PrimOp::Conv(_))), left, "{windows:?}");
            let inputs = [values(&[2, 4, 5, 6], 9)];
            let results = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap();
            for (expected, given) in results(&graph).iter().zip(results(&merged)) {
                assert_eq!(expected.to_f64(), given.to_f64(), "{windows:?}");
            }
        }
    }

    #[test]
    fn one_product_stays() {
        let graph = products(&[true]);
        assert_eq!(orch_ir::text::print(&merge_products(&graph)), orch_ir::text::print(&graph));
        assert!(crate::unmerge_products(&graph).is_none());
    }

    /// Keys of attention are read transposed.
    #[test]
    fn inputs_are_copied_for_products_that_read_them_transposed() {
        let text = "graph \"scores\" {\n  input \"q\" t0: f32[5, 4]\n  input \"k\" t1: f32[6, 4]\n  \
                    t2: f32[4, 6] = transpose t1 perm=[1, 0]\n  t3: f32[5, 6] = contract t0, t2 labels=\"ac,cb->ab\"\n  \
                    output \"s\" t3\n}\n";
        let graph = orch_ir::text::parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            count(&stage_inputs(&graph), |op| matches!(op, PrimOp::Map(ScalarFn::Cast(DType::F32)))),
            2
        );
    }

    #[test]
    fn inputs_of_half_precision_are_copied_for_convolutions_only() {
        let text = |node: &str| {
            format!(
                "graph \"g\" {{\n  input \"x\" t0: f16[1, 4, 4, 4]\n  input \"w\" t1: f16[4, 4, 1, 1]\n  {node}\n  output \"y\" t2\n}}\n"
            )
        };
        let copies = |node: &str| {
            let graph = orch_ir::text::parse(&text(node)).unwrap_or_else(|error| panic!("{error}"));
            count(&stage_inputs(&graph), |op| matches!(op, PrimOp::Map(ScalarFn::Cast(DType::F16))))
        };
        let conv = "t2: f16[1, 4, 4, 4] = conv t0, t1 kernel=[1, 1] strides=[1, 1] dilations=[1, 1] low=[0, 0] high=[0, 0] groups=1";
        assert_eq!(copies(conv), 2);
        assert_eq!(copies("t2: f16[4, 4, 1, 1] = contract t1, t1 labels=\"abcd,becd->aecd\""), 0);
    }

    /// A gradient of an image, by weights that are exchanged and reversed.
    #[test]
    fn weights_are_copied_before_they_are_moved() {
        let text = "graph \"g\" {\n  input \"dy\" t0: f16[1, 4, 4, 4]\n  input \"w\" t1: f16[4, 2, 3, 3]\n  \
                    t2: f16[2, 4, 3, 3] = transpose t1 perm=[1, 0, 2, 3]\n  \
                    t3: f16[2, 4, 3, 3] = slice t2 starts=[0, 0, 2, 2] steps=[1, 1, -1, -1]\n  \
                    t4: f16[1, 2, 4, 4] = conv t0, t3 kernel=[3, 3] strides=[1, 1] dilations=[1, 1] low=[1, 1] high=[1, 1] \
                    groups=1\n  output \"dx\" t4\n}\n";
        let graph = orch_ir::text::parse(text).unwrap_or_else(|error| panic!("{error}"));
        let staged = stage_inputs(&graph);
        let copied: Vec<TensorId> = (staged.nodes().iter())
            .filter(|node| matches!(node.op, PrimOp::Map(ScalarFn::Cast(DType::F16))))
            .map(|node| node.inputs[0])
            .collect();
        let inputs: Vec<TensorId> = staged.inputs.iter().rev().map(|&(_, input)| input).collect();
        assert_eq!(copied, inputs, "{}", orch_ir::text::print(&staged));
    }

    #[test]
    fn inputs_are_copied_once_for_products() {
        let graph = products(&[false; 3]);
        let staged = stage_inputs(&graph);
        assert_eq!(count(&staged, |op| matches!(op, PrimOp::Map(ScalarFn::Cast(DType::F32)))), 1);
        let inputs = [values(&[2, 5, 6], 9)];
        let results = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap();
        assert_eq!(results(&graph).len(), results(&staged).len());
        for (expected, given) in results(&graph).iter().zip(results(&staged)) {
            assert_eq!(expected.to_f64(), given.to_f64());
        }
    }
}
