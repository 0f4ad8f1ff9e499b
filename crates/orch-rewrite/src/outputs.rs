//! Outputs that are views of what is read on.
//!
//! ```text
//! t -> ..                            out = transpose t -> output
//! out = transpose t -> output   =>   t'  = transpose^-1 out -> ..
//! ```
//!
//! An output has to be stored. Where a transpose or reshape of a tensor that others read as well is one, both would be stored: a copy of the
//! whole tensor. Its readers read the output instead, which costs them nothing if both are the same bytes.

use crate::prepare::{computed, rebuilt};
use orch_ir::permutation;
use orch_ir::{NodeId, PrimGraph, PrimNode, PrimOp, TensorId};
use std::collections::{BTreeMap, BTreeSet};

/// The graph whose primitives read an output in the place of the tensor that it shows, where `is_same_bytes` says that it is a view of it;
/// `None` if there is no such output.
pub fn read_outputs(graph: &PrimGraph, is_same_bytes: impl Fn(&PrimNode) -> bool) -> Option<PrimGraph> {
    let consumers = graph.consumers();
    let is_output = |tensor: TensorId| graph.outputs.iter().any(|(_, output)| *output == tensor);
    // What makes the tensor, the view of it, and what makes the tensor of the view.
    let mut views: BTreeMap<NodeId, (NodeId, PrimOp)> = BTreeMap::new();
    for id in graph.node_ids() {
        let node = graph.node(id);
        let (Some(&shown), [view]) = (node.inputs.first(), &node.outputs[..]) else { continue };
        let (Some(producer), Some(back)) = (graph.producer(shown), inverse(graph, node)) else { continue };
        if is_output(*view)
            && !is_output(shown)
            && consumers[shown.index()].len() > 1
            && graph.node(producer).outputs.len() == 1
            && is_same_bytes(node)
        {
            views.entry(producer).or_insert((id, back));
        }
    }
    if views.is_empty() {
        return None;
    }
    let moved: BTreeSet<NodeId> = views.values().map(|(view, _)| *view).collect();
    Some(rebuilt(graph, |id, result, known| {
        if moved.contains(&id) {
            return true;
        }
        let Some((view, back)) = views.get(&id) else { return false };
        let (node, view) = (graph.node(id), graph.node(*view));
        let inputs: Vec<TensorId> = node.inputs.iter().map(|input| computed(known, *input)).collect();
        let mut add = |op: &PrimOp, inputs: &[TensorId]| {
            result.add(op.clone(), inputs).expect("operands have the types they had")
        };
        let made = add(&node.op, &inputs);
        let output = add(&view.op, &[made]);
        known[view.outputs[0].index()] = Some(output);
        known[node.outputs[0].index()] = Some(add(back, &[output]));
        true
    }))
}

/// What makes the operand of a view of it; `None` of other primitives.
fn inverse(graph: &PrimGraph, view: &PrimNode) -> Option<PrimOp> {
    match &view.op {
        PrimOp::Transpose { perm } => Some(PrimOp::Transpose { perm: permutation::inverse(perm) }),
        PrimOp::Reshape { .. } => Some(PrimOp::Reshape { shape: graph.shape(view.inputs[0]).clone() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::read_outputs;
    use orch_interp::{EvalOptions, evaluate};
    use orch_ir::{PrimGraph, PrimOp, Tensor};

    const TEXT: &str = "graph \"saved\" {
  input \"x\" t0: f32[2, 3, 4, 5]
  t1: f32[2, 3, 4, 5] = exp t0
  t2: f32[2, 3, 4, 5] = sqrt t1
  t3: f32[2, 4, 5, 3] = transpose t1 perm=[0, 2, 3, 1]
  t4: f32[120] = reshape t2
  output \"saved\" t3
  output \"root\" t2
  output \"flat\" t4
}";

    #[test]
    fn readers_take_the_output() {
        let graph = orch_ir::text::parse(TEXT).unwrap();
        let read = read_outputs(&graph, |_| true).expect("a view of what is read on");
        let reader = read.nodes().iter().find(|node| format!("{:?}", node.op).contains("Sqrt")).unwrap();
        let back = read.node(read.producer(reader.inputs[0]).unwrap());
        assert_eq!(back.op, PrimOp::Transpose { perm: vec![0, 3, 1, 2] });
        assert_eq!(back.inputs, [read.outputs[0].1]);
        // What is an output itself is read as it is.
        assert_eq!(read.nodes().len(), graph.nodes().len() + 1);
        let values = (0..120).map(|i| i as f32 / 60.0 - 1.0).collect();
        let inputs = [Tensor::from_vec(vec![2, 3, 4, 5], values)];
        let results = |graph: &PrimGraph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap();
        for (expected, given) in results(&graph).iter().zip(results(&read)) {
            assert_eq!((expected.shape(), expected.to_f64()), (given.shape(), given.to_f64()));
        }
        assert_eq!(read_outputs(&graph, |_| false), None);
    }
}
