//! The backward enumerator against the published one, against brute force, and at its limits.

mod korch;
mod zoo;

use korch::published_counts;
use orch_ir::{NodeId, TensorId};
use orch_plan::dag::{Dag, DagNode, NodeKind};
use orch_plan::enumerate::{
    AnchorPolicy, Candidate, Growing, KindRule, Limits, ReducePolicy, Verdict, enumerate,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use zoo::segformer::Segformer;

const SINK_REDUCES: KindRule = KindRule { anchors: AnchorPolicy::Alone, reduces: ReducePolicy::SinkOnly };

fn anything(_: &Growing<'_>) -> Verdict {
    Verdict::Keep
}

fn node(kind: NodeKind, inputs: &[u32], outputs: &[u32]) -> DagNode {
    let ids = |list: &[u32]| list.iter().copied().map(TensorId).collect();
    DagNode { kind, is_cheap: kind == NodeKind::Injective, inputs: ids(inputs), outputs: ids(outputs) }
}

fn dag(nodes: Vec<DagNode>, outputs: &[u32]) -> Dag {
    let tensors = nodes.iter().flat_map(|node| node.outputs.iter().chain(&node.inputs)).map(|t| t.0 + 1);
    let tensors = tensors.max().unwrap_or(0) as usize;
    Dag::new(tensors, nodes, outputs.iter().copied().map(TensorId).collect()).expect("valid")
}

/// `width` chains of `depth` nodes from one source, joined by a last node.
fn parallel_chains(width: u32, depth: u32) -> Dag {
    let mut nodes = Vec::new();
    let mut ends = Vec::new();
    for _ in 0..width {
        let mut last = 0;
        for _ in 0..depth {
            let output = nodes.len() as u32 + 1;
            nodes.push(node(NodeKind::Injective, &[last], &[output]));
            last = output;
        }
        ends.push(last);
    }
    let join = nodes.len() as u32 + 1;
    nodes.push(node(NodeKind::Injective, &ends, &[join]));
    dag(nodes, &[join])
}

#[test]
fn whole_segformer_without_cut_points() {
    let dag = Segformer::build().dag();
    let all = enumerate(&dag, &KindRule::PUBLISHED, &Limits::NONE);
    assert_eq!(all.candidates.len(), 4074);
    assert!(all.report.is_complete());
    assert_eq!(all.report.sets, 4074 + all.report.stopped_by_rule);
    assert_eq!(enumerate(&dag, &SINK_REDUCES, &Limits::NONE).candidates.len(), 2370);
}

#[test]
fn parts_of_segformer_equal_the_published_enumerator() {
    let model = Segformer::build();
    let dag = model.dag();
    for (sources, outputs) in [0, 3, 4].map(|index| model.parts()[index].clone()) {
        let (part, _) = dag.between(&sources, &outputs);
        let ours = enumerate(&part, &KindRule::PUBLISHED, &Limits::NONE);
        assert_eq!(ours.candidates.len(), published_counts(&part).distinct);
    }
    let (stage, _) = dag.between(&model.parts()[0].0, &model.parts()[0].1);
    assert_eq!(enumerate(&stage, &SINK_REDUCES, &Limits::NONE).candidates.len(), 428);
}

#[test]
fn width_does_not_blow_up() {
    // 1024 subsets of the chains below the join, and 6 stretches of each chain.
    let all = enumerate(&parallel_chains(5, 3), &anything, &Limits::NONE);
    assert_eq!(all.candidates.len(), 1054);
    let limits = Limits { max_sets_per_sink: 100, ..Limits::NONE };
    let wide = parallel_chains(16, 3);
    let some = enumerate(&wide, &anything, &limits);
    assert_eq!(some.report.truncated_sinks, [NodeId(48)]);
    assert!(!some.report.is_complete());
    // The smallest sets, then a chain of sets up to the largest.
    let of_join: Vec<usize> =
        some.candidates[16 * 6..].iter().map(|candidate| candidate.nodes.len()).collect();
    assert_eq!(of_join[..100].iter().filter(|&&size| size <= 3).count(), 100);
    assert_eq!(of_join.last(), Some(&49));
    assert!(of_join.len() < 150);
    let distinct: BTreeSet<&Vec<NodeId>> = some.candidates.iter().map(|candidate| &candidate.nodes).collect();
    assert_eq!(distinct.len(), some.candidates.len());
}

#[test]
fn size_is_limited() {
    let limits = Limits { max_nodes: 2, ..Limits::NONE };
    let some = enumerate(&parallel_chains(1, 4), &anything, &limits);
    assert_eq!(some.candidates.len(), 5 + 4);
    assert_eq!(some.report.beyond_max_nodes, 3);
    assert!(!some.report.is_complete());
}

#[test]
fn nodes_that_no_output_needs_are_left_out() {
    let nodes = vec![node(NodeKind::Injective, &[0], &[1]), node(NodeKind::Injective, &[1], &[2])];
    let found = enumerate(&dag(nodes, &[1]), &anything, &Limits::NONE);
    let sinks: Vec<&[NodeId]> = found.candidates.iter().map(|candidate| candidate.nodes.as_slice()).collect();
    assert_eq!(sinks, [[NodeId(0)]]);
}

#[test]
fn verdicts_steer_the_growth() {
    let chain = parallel_chains(1, 3);
    let count = |rule: fn(&Growing<'_>) -> Verdict| {
        let limits = Limits { max_exports: 1, ..Limits::NONE };
        enumerate(&chain, &rule, &limits).candidates.len()
    };
    assert_eq!(count(|_| Verdict::Keep), 10);
    assert_eq!(count(|_| Verdict::Stop), 0);
    assert_eq!(count(|_| Verdict::Pass), 0);
    assert_eq!(count(|_| Verdict::KeepExporting), 0);
    assert_eq!(count(|set| if set.nodes().len() < 3 { Verdict::Pass } else { Verdict::Keep }), 3);
    assert_eq!(count(|set| if set.nodes().len() < 3 { Verdict::Keep } else { Verdict::Stop }), 7);
}

#[test]
fn a_kernel_may_leave_behind_what_others_read() {
    // A residual block: sum = x + y, mean(sum), out = sum - mean, and the sum is read again later.
    let nodes = vec![
        node(NodeKind::Injective, &[0, 1], &[2]),
        node(NodeKind::Reduce, &[2], &[3]),
        node(NodeKind::Injective, &[2, 3], &[4]),
        node(NodeKind::Anchor, &[4], &[5]),
        node(NodeKind::Injective, &[5, 2], &[6]),
    ];
    let limits = Limits { max_exports: 1, ..Limits::NONE };
    let rule = KindRule { anchors: AnchorPolicy::Alone, reduces: ReducePolicy::Inside };
    let found = enumerate(&dag(nodes, &[6]), &rule, &limits);
    let exporting: Vec<&Candidate> =
        found.candidates.iter().filter(|candidate| candidate.outputs.len() > 1).collect();
    assert_eq!(exporting.len(), found.report.exporting);
    let both = exporting.iter().find(|candidate| candidate.nodes.len() == 3).expect("the block");
    assert_eq!(both.outputs, [TensorId(4), TensorId(2)]);
    assert_eq!(both.inputs, [TensorId(0), TensorId(1)]);
}

#[test]
fn exports_before_the_last_input_are_left_out() {
    // out = f(early) + late, where early is read elsewhere and late comes after it.
    let nodes = vec![
        node(NodeKind::Injective, &[0], &[1]),
        node(NodeKind::Anchor, &[0], &[2]),
        node(NodeKind::Injective, &[1, 2], &[3]),
        node(NodeKind::Anchor, &[1, 3], &[4]),
    ];
    let limits = Limits { max_exports: 2, ..Limits::NONE };
    let found = enumerate(&dag(nodes, &[4]), &KindRule::PUBLISHED, &limits);
    assert_eq!(found.report.exporting, 0);
}

#[test]
fn anchors_take_a_prologue_and_an_epilogue_and_run_once() {
    // pad -> matmul -> bias -> matmul; the bias reads what the first matmul makes, and so does the output.
    let nodes = vec![
        node(NodeKind::Injective, &[0], &[1]),
        node(NodeKind::Anchor, &[1], &[2]),
        node(NodeKind::Injective, &[2], &[3]),
        node(NodeKind::Anchor, &[3], &[4]),
        node(NodeKind::Opaque, &[4], &[5]),
    ];
    let rule = KindRule { anchors: AnchorPolicy::Fused, reduces: ReducePolicy::Inside };
    let sets = |outputs: &[u32], max_exports| {
        let limits = Limits { max_exports, ..Limits::NONE };
        let found = enumerate(&dag(nodes.clone(), outputs), &rule, &limits);
        let show = |candidate: &Candidate| {
            let nodes: Vec<String> = candidate.nodes.iter().map(NodeId::to_string).collect();
            let outputs: Vec<String> = candidate.outputs.iter().map(TensorId::to_string).collect();
            format!("{} -> {}", nodes.join("+"), outputs.join(","))
        };
        found.candidates.iter().map(show).collect::<Vec<_>>()
    };
    let always = ["n0 -> t1", "n1 -> t2", "n0+n1 -> t2", "n2 -> t3"];
    let tail = ["n3 -> t4", "n2+n3 -> t4", "n4 -> t5"];
    let fused = ["n1+n2 -> t3", "n0+n1+n2 -> t3"];
    assert_eq!(sets(&[5], 0), [&always[..], &fused, &tail].concat());
    // If the first product is an output too, a fused kernel would run the anchor twice, unless it leaves it behind.
    assert_eq!(sets(&[5, 2], 0), [&always[..], &tail].concat());
    let exporting = ["n1+n2 -> t3,t2", "n0+n1+n2 -> t3,t2"];
    assert_eq!(sets(&[5, 2], 1), [&always[..], &exporting, &tail].concat());
}

#[test]
fn sinks_with_several_outputs_leave_those_behind_that_are_read() {
    let nodes = vec![node(NodeKind::Injective, &[0], &[1, 2, 3]), node(NodeKind::Injective, &[1], &[4])];
    let found = enumerate(&dag(nodes, &[4, 3]), &anything, &Limits { max_exports: 1, ..Limits::NONE });
    let outputs: Vec<&[TensorId]> =
        found.candidates.iter().map(|candidate| candidate.outputs.as_slice()).collect();
    let (split, after, fused) = ([TensorId(1), TensorId(3)], [TensorId(4)], [TensorId(4), TensorId(3)]);
    assert_eq!(outputs, [&split[..], &after, &after, &fused]);
}

/// A random graph with up to 8 nodes with one output each.
fn any_dag() -> impl Strategy<Value = Dag> {
    let any_node = (any::<bool>(), prop::collection::vec(any::<prop::sample::Index>(), 1..4));
    prop::collection::vec(any_node, 1..9).prop_map(|specs| {
        let mut nodes = Vec::new();
        for (index, (is_cheap, inputs)) in specs.iter().enumerate() {
            let kind = if *is_cheap { NodeKind::Injective } else { NodeKind::Reduce };
            let inputs: Vec<u32> = inputs.iter().map(|input| input.index(index + 1) as u32).collect();
            nodes.push(node(kind, &inputs, &[index as u32 + 1]));
        }
        let last = nodes.len() as u32;
        dag(nodes, &[last])
    })
}

/// The sets of a mask, by their definition: one sink, reached by every node inside; re-entrant nodes cheap and few.
fn is_candidate(dag: &Dag, mask: u32, max_reentrant_nodes: usize) -> bool {
    let holds = |node: NodeId| mask >> node.0 & 1 == 1;
    let members: Vec<NodeId> = dag.node_ids().filter(|&node| holds(node)).collect();
    let sinks = members.iter().filter(|&&node| !dag.successors(node).iter().any(|&next| holds(next))).count();
    let returns = |&node: &NodeId| {
        let mut pending: Vec<NodeId> =
            dag.successors(node).iter().copied().filter(|&next| !holds(next)).collect();
        while let Some(outside) = pending.pop() {
            if holds(outside) {
                return true;
            }
            pending.extend(dag.successors(outside));
        }
        false
    };
    let reentrant: Vec<&NodeId> = members.iter().filter(|node| returns(node)).collect();
    sinks == 1
        && reentrant.len() <= max_reentrant_nodes
        && reentrant.iter().all(|&&node| dag.node(node).is_cheap)
}

/// True if a graph output depends on the node.
fn is_needed(dag: &Dag, node: NodeId) -> bool {
    dag.writes_output(node) || dag.successors(node).iter().any(|&next| is_needed(dag, next))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn exactly_the_sets_of_the_definition_are_found(dag in any_dag(), max_reentrant_nodes in 0..4usize) {
        let limits = Limits { max_reentrant_nodes, ..Limits::NONE };
        let found = enumerate(&dag, &anything, &limits);
        let mut masks: Vec<u32> = Vec::new();
        for candidate in &found.candidates {
            masks.push(candidate.nodes.iter().map(|node| 1 << node.0).sum());
            prop_assert_eq!(candidate.is_convex, is_candidate(&dag, *masks.last().unwrap(), 0));
        }
        masks.sort_unstable();
        let all = 1..1u32 << dag.nodes().len();
        let needed = |mask: u32| dag.node_ids().all(|node| mask >> node.0 & 1 == 0 || is_needed(&dag, node));
        let expected: Vec<u32> =
            all.filter(|&mask| is_candidate(&dag, mask, max_reentrant_nodes) && needed(mask)).collect();
        prop_assert_eq!(masks, expected);
    }

    #[test]
    fn exports_never_wait_for_each_other(dag in any_dag()) {
        let limits = Limits { max_reentrant_nodes: 3, max_exports: 3, ..Limits::NONE };
        for candidate in enumerate(&dag, &anything, &limits).candidates {
            let producers = |tensors: &[TensorId]| -> Vec<NodeId> {
                tensors.iter().filter_map(|&tensor| dag.producer(tensor)).collect()
            };
            let last_input = producers(&candidate.inputs).into_iter().max();
            let first_output = producers(&candidate.outputs).into_iter().min();
            prop_assert!(last_input < first_output);
        }
    }
}
