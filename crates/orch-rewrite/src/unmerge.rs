//! Products by slices of constants in place of slices of products: what [`merge_products`](crate::merge_products) has put together, taken
//! apart again for those who look for patterns of products, as a gated MLP has.

use crate::prepare::{computed, merged_dims, rebuilt, repeated_row};
use orch_ir::{BinaryFn, NodeId, PrimGraph, PrimOp, ScalarFn, TensorId};
use std::collections::{BTreeMap, BTreeSet};

/// A graph without slices of products, and what its parts are in the graph that it was made of.
pub struct UnmergedProducts {
    /// Computes the same outputs.
    pub graph: PrimGraph,
    /// For each tensor of it the tensor with the same value there; `None` if there is none.
    pub tensors: Vec<Option<TensorId>>,
    /// For each node of it the nodes in whose place it stands there; several for what was a slice of a product.
    pub nodes: Vec<Vec<NodeId>>,
}

/// A slice of a product by a constant, and of a constant row that is added to it.
struct SlicedProduct {
    product: NodeId,
    bias: Option<(NodeId, TensorId)>,
    start: i64,
    extent: usize,
}

/// The graph with slices of matrix products by constants, along columns, as products by slices of the constants; `None` if it has none.
pub fn unmerge_products(graph: &PrimGraph) -> Option<UnmergedProducts> {
    let found: BTreeMap<NodeId, SlicedProduct> =
        graph.node_ids().filter_map(|id| Some((id, sliced_product(graph, id)?))).collect();
    if found.is_empty() {
        return None;
    }
    let consumers = graph.consumers();
    let is_output = |tensor: TensorId| graph.outputs.iter().any(|(_, output)| *output == tensor);
    let mut unread: BTreeSet<NodeId> = BTreeSet::new();
    for id in graph.node_ids().rev() {
        let output = graph.node(id).outputs[0];
        let is_part =
            found.values().any(|part| part.product == id || part.bias.is_some_and(|(add, _)| add == id));
        let is_replaced = |reader: &NodeId| found.contains_key(reader) || unread.contains(reader);
        if is_part && !is_output(output) && consumers[output.index()].iter().all(is_replaced) {
            unread.insert(id);
        }
    }
    let mut nodes: Vec<Vec<NodeId>> = Vec::new();
    let mut before = None;
    let result = rebuilt(graph, |id, result, known| {
        // The node before this one that stayed as it is.
        nodes.resize_with(result.nodes().len(), || before.into_iter().collect());
        before = Some(id);
        match found.get(&id) {
            Some(part) => {
                let (output, stands_for) = part.emit(graph, id, result, known);
                nodes.extend(stands_for);
                known[graph.node(id).outputs[0].index()] = Some(output);
                true
            }
            None => unread.contains(&id),
        }
    });
    nodes.resize_with(result.nodes().len(), || before.into_iter().collect());
    let mut tensors = vec![None; result.tensors().len()];
    for ((_, new), (_, old)) in result.inputs.iter().zip(&graph.inputs) {
        tensors[new.index()] = Some(*old);
    }
    for (new, old) in result.constants().keys().zip(graph.constants().keys()) {
        tensors[new.index()] = Some(*old);
    }
    for (id, old) in result.node_ids().zip(&nodes) {
        let Some(last) = old.last() else { continue };
        for (&new, &old) in result.node(id).outputs.iter().zip(&graph.node(*last).outputs) {
            // The product of a part, before something is added to it, is nowhere by itself.
            tensors[new.index()] = (result.shape(new) == graph.shape(old)).then_some(old);
        }
    }
    Some(UnmergedProducts { graph: result, tensors, nodes })
}

/// What a node slices, if that is the columns of a matrix product by a constant.
fn sliced_product(graph: &PrimGraph, id: NodeId) -> Option<SlicedProduct> {
    let node = graph.node(id);
    let PrimOp::Slice { starts, steps, sizes } = &node.op else { return None };
    let whole = graph.shape(node.inputs[0]);
    let last = whole.rank().checked_sub(1)?;
    let is_whole = |dim: usize| starts[dim] == 0 && sizes[dim] == whole[dim];
    if steps.iter().any(|&step| step != 1) || !(0..last).all(is_whole) {
        return None;
    }
    let from = graph.producer(node.inputs[0])?;
    let is_product = |id: NodeId| {
        let node = graph.node(id);
        let is_contract = matches!(node.op, PrimOp::Contract(_)) && merged_dims(&node.op).is_some();
        is_contract && graph.constant(node.inputs[1]).is_some()
    };
    let (start, extent) = (starts[last], sizes[last]);
    if is_product(from) {
        return Some(SlicedProduct { product: from, bias: None, start, extent });
    }
    let product = graph
        .node(from)
        .inputs
        .iter()
        .filter_map(|&input| graph.producer(input))
        .find(|&id| is_product(id))?;
    let value = repeated_row(graph, from, product, last)?;
    Some(SlicedProduct { product, bias: Some((from, value)), start, extent })
}

impl SlicedProduct {
    /// Adds the product by a slice; its result, and for each node that was added the nodes in whose place it stands.
    fn emit(
        &self,
        graph: &PrimGraph,
        slice: NodeId,
        result: &mut PrimGraph,
        known: &[Option<TensorId>],
    ) -> (TensorId, Vec<Vec<NodeId>>) {
        let expected = "a part fits where the whole does";
        let part = |tensor: TensorId, result: &mut PrimGraph| {
            let shape = graph.shape(tensor);
            let (mut starts, mut sizes) = (vec![0; shape.rank()], shape.to_vec());
            (starts[shape.rank() - 1], sizes[shape.rank() - 1]) = (self.start, self.extent);
            let slice = PrimOp::Slice { starts, steps: vec![1; shape.rank()], sizes };
            result.add(slice, &[computed(known, tensor)]).expect(expected)
        };
        let node = graph.node(self.product);
        let weights = part(node.inputs[1], result);
        let lhs = computed(known, node.inputs[0]);
        let product = result.add(node.op.clone(), &[lhs, weights]).expect(expected);
        let Some((add, bias)) = self.bias else {
            return (product, vec![Vec::new(), vec![self.product, slice]]);
        };
        let bias = part(bias, result);
        let shape = graph.shape(graph.node(slice).outputs[0]).clone();
        let dims = vec![shape.rank() - 1];
        let bias = result.add(PrimOp::Broadcast { shape, dims }, &[bias]).expect(expected);
        let sum = PrimOp::Map(ScalarFn::Binary(BinaryFn::Add));
        let sum = result.add(sum, &[product, bias]).expect(expected);
        (sum, vec![Vec::new(), vec![self.product], Vec::new(), Vec::new(), vec![add, slice]])
    }
}
