//! Puts the nodes of a graph in topological order.
//!
//! The order is the file's where that already is one: of the nodes that can go next, the first in the file does.

use orch_ir::{Attribute, OperatorGraph, OperatorNode, ValueId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Sorts `graph.nodes`.
///
/// # Errors
/// If nodes depend on themselves: some of the cycles, each as the positions of its nodes in data-flow order from the
/// least one. No two share a node. The graph is left as it is.
pub(crate) fn sort(graph: &mut OperatorGraph) -> Result<(), Vec<Vec<usize>>> {
    let producers = producers_read(graph);
    let mut consumers = vec![Vec::new(); producers.len()];
    for (node, sources) in producers.iter().enumerate() {
        sources.iter().for_each(|&source| consumers[source].push(node));
    }
    let mut waiting: Vec<usize> = producers.iter().map(Vec::len).collect();
    let mut ready: BinaryHeap<_> = (0..waiting.len()).filter(|&n| waiting[n] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(waiting.len());
    while let Some(Reverse(node)) = ready.pop() {
        order.push(node);
        for &consumer in &consumers[node] {
            waiting[consumer] -= 1;
            if waiting[consumer] == 0 {
                ready.push(Reverse(consumer));
            }
        }
    }
    if order.len() < waiting.len() {
        return Err(cycles(&producers, &waiting));
    }
    let mut unsorted: Vec<_> = std::mem::take(&mut graph.nodes).into_iter().map(Some).collect();
    graph.nodes = order.into_iter().filter_map(|node| unsorted[node].take()).collect();
    Ok(())
}

/// For each node, the nodes that produce what it or its subgraphs read; one that is read twice stands twice.
fn producers_read(graph: &OperatorGraph) -> Vec<Vec<usize>> {
    let mut producer = vec![None; graph.values.len()];
    for (position, node) in graph.nodes.iter().enumerate() {
        node.outputs.iter().flatten().for_each(|id| producer[id.index()] = Some(position));
    }
    let by_name: BTreeMap<&str, ValueId> = graph
        .values
        .iter()
        .enumerate()
        .map(|(index, value)| (value.name.as_str(), ValueId::new(index)))
        .collect();
    let sources = |node: &OperatorNode| {
        let captured = subgraphs(node).flat_map(|body| &body.captures);
        let captured = captured.filter_map(|(_, name)| by_name.get(name.as_str()));
        let read = node.inputs.iter().flatten().chain(captured);
        read.filter_map(|id| producer[id.index()]).collect()
    };
    graph.nodes.iter().map(sources).collect()
}

/// The bodies of a control-flow operator.
fn subgraphs(node: &OperatorNode) -> impl Iterator<Item = &OperatorGraph> {
    node.attributes.values().filter_map(|attribute| match attribute {
        Attribute::Graph(body) => Some(body.as_ref()),
        _ => None,
    })
}

/// Cycles among the nodes that still wait: each of those has a source that waits too, so that following one source
/// from each always ends in a cycle.
fn cycles(producers: &[Vec<usize>], waiting: &[usize]) -> Vec<Vec<usize>> {
    let source = |node: usize| producers[node].iter().copied().find(|&source| waiting[source] > 0);
    let mut walk_of = vec![None; waiting.len()];
    let mut found = Vec::new();
    for start in (0..waiting.len()).filter(|&node| waiting[node] > 0) {
        let mut path = Vec::new();
        let mut next = Some(start);
        while let Some(node) = next.filter(|&node| walk_of[node].is_none()) {
            walk_of[node] = Some(start);
            path.push(node);
            next = source(node);
        }
        if let Some(node) = next.filter(|&node| walk_of[node] == Some(start)) {
            let begin = path.iter().position(|&on_path| on_path == node).unwrap_or(0);
            let mut cycle: Vec<usize> = path[begin..].iter().rev().copied().collect();
            let first = (0..cycle.len()).min_by_key(|&position| cycle[position]).unwrap_or(0);
            cycle.rotate_left(first);
            found.push(cycle);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::Value;

    /// A graph of `nodes` nodes, node `i` producing value `i`, reading what `edges` say as (reader, read).
    fn graph(nodes: usize, edges: &[(usize, usize)]) -> OperatorGraph {
        let mut graph = OperatorGraph::default();
        for index in 0..nodes {
            let output = graph.add_value(Value { name: format!("v{index}"), ..Value::default() });
            let read = edges.iter().filter(|edge| edge.0 == index).map(|edge| Some(ValueId::new(edge.1)));
            graph.nodes.push(OperatorNode {
                name: format!("n{index}"),
                domain: String::new(),
                op_type: "Op".into(),
                opset: 17,
                inputs: read.collect(),
                outputs: vec![Some(output)],
                attributes: BTreeMap::new(),
            });
        }
        graph
    }

    fn names(graph: &OperatorGraph) -> Vec<&str> {
        graph.nodes.iter().map(|node| node.name.as_str()).collect()
    }

    #[test]
    fn the_order_of_the_file_is_kept() {
        let mut graph = graph(4, &[(1, 0), (3, 2), (3, 2)]);
        assert_eq!(sort(&mut graph), Ok(()));
        assert_eq!(names(&graph), ["n0", "n1", "n2", "n3"]);
    }

    #[test]
    fn late_producers_move_up() {
        let mut graph = graph(4, &[(0, 3), (1, 0), (3, 2)]);
        assert_eq!(sort(&mut graph), Ok(()));
        assert_eq!(names(&graph), ["n2", "n3", "n0", "n1"]);
    }

    #[test]
    fn cycles_are_found_without_what_hangs_on_them() {
        let edges = [(0, 1), (1, 2), (2, 0), (3, 2), (4, 4), (6, 5)];
        let mut graph = graph(7, &edges);
        assert_eq!(sort(&mut graph), Err(vec![vec![0, 2, 1], vec![4]]));
        assert_eq!(graph.nodes.len(), 7);
    }

    #[test]
    fn captures_order_nodes_too() {
        let mut graph = graph(2, &[]);
        let mut body = OperatorGraph::default();
        let here = body.add_value(Value::default());
        body.captures.push((here, "v1".into()));
        graph.nodes[0].attributes.insert("body".into(), Attribute::Graph(Box::new(body)));
        assert_eq!(sort(&mut graph), Ok(()));
        assert_eq!(names(&graph), ["n1", "n0"]);
    }
}
