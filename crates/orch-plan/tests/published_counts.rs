//! The counts of Korch's Table 2, reproduced by the published enumerator on the rebuilt graphs.

mod korch;
mod zoo;

use korch::{KorchCounts, published_counts};
use zoo::segformer::Segformer;

fn counts(states: usize, pairs: usize, convex: usize, raw: usize, distinct: usize) -> KorchCounts {
    KorchCounts { states, pairs, convex, raw, distinct }
}

#[test]
fn segformer() {
    let model = Segformer::build();
    assert_eq!(model.net.node_count(), 672);
    let dag = model.dag();
    let parts: Vec<_> =
        model.parts().iter().map(|(sources, outputs)| dag.between(sources, outputs).0).collect();
    let sizes: Vec<usize> = parts.iter().map(|part| part.nodes().len()).collect();
    assert_eq!(sizes, [167, 167, 167, 142, 3, 3, 3, 17, 3]);
    let stage = counts(584, 144_474, 133_952, 3078, 872);
    for (index, part) in parts.iter().enumerate() {
        match index {
            0 => assert_eq!(published_counts(part), stage),
            // The same structure as part 0.
            1 | 2 => assert_eq!(part.nodes().len(), parts[0].nodes().len()),
            3 => assert_eq!(published_counts(part), counts(447, 84_139, 77_985, 2150, 700)),
            7 => assert_eq!(part.nodes().len(), 17),
            8 => assert_eq!(published_counts(part).raw, 3),
            _ => assert_eq!(published_counts(part), counts(4, 6, 6, 4, 4)),
        }
    }
}

#[test]
fn candy() {
    let (net, output) = zoo::candy::build();
    assert_eq!(net.node_count(), 184);
    assert_eq!(published_counts(&net.dag(&[output])), counts(185, 17_020, 17_020, 1031, 1031));
}

#[test]
fn yolox_nano() {
    let model = zoo::yolox::build();
    assert_eq!(model.net.node_count(), 367);
    let dag = model.net.dag(&[model.output]);
    let (last, parts) = model.parts.split_last().expect("ten parts");
    assert_eq!(dag.between(&last.0, &last.1).0.nodes().len(), 14);
    let parts: Vec<KorchCounts> =
        parts.iter().map(|(sources, outputs)| published_counts(&dag.between(sources, outputs).0)).collect();
    let column = |get: fn(&KorchCounts) -> usize| parts.iter().map(get).collect::<Vec<_>>();
    assert_eq!(column(|part| part.states), [239, 146, 79, 61, 58, 63, 289, 227, 227]);
    assert_eq!(column(|part| part.raw), [611, 356, 177, 136, 132, 140, 696, 556, 556]);
    assert_eq!(column(|part| part.pairs).iter().max(), Some(&30_123));
    assert_eq!(column(|part| part.convex).iter().max(), Some(&26_721));
    // The last part is one candidate: its whole subgraph.
    assert_eq!(column(|part| part.raw).iter().sum::<usize>() + 1, 3361);
    assert_eq!(column(|part| part.distinct).iter().sum::<usize>() + 1, 594);
}

#[test]
fn yolov4() {
    let model = zoo::yolov4::build();
    assert_eq!(model.net.node_count(), 403);
    let (_, outputs) = model.parts.last().expect("seven parts");
    let fine = model.parts[5].1[0];
    let dag = model.net.dag(&[outputs[0], outputs[1], fine]);
    let parts: Vec<KorchCounts> = model
        .parts
        .iter()
        .map(|(sources, outputs)| published_counts(&dag.between(sources, outputs).0))
        .collect();
    let column = |get: fn(&KorchCounts) -> usize| parts.iter().map(get).collect::<Vec<_>>();
    assert_eq!(column(|part| part.states), [659, 414, 254, 29, 29, 4, 81]);
    assert_eq!(column(|part| part.raw), [2179, 1387, 811, 65, 65, 3, 133]);
    assert_eq!(column(|part| part.pairs).iter().max(), Some(&179_371));
    assert_eq!(column(|part| part.convex).iter().max(), Some(&163_165));
    // The last part, box decoding, is one candidate.
    assert_eq!(column(|part| part.raw).iter().sum::<usize>() + 1, 4644);
    assert_eq!(column(|part| part.distinct).iter().sum::<usize>() + 1, 807);
}

mod korch_itself {
    use super::korch::{KorchCounts, published_counts};
    use orch_ir::TensorId;
    use orch_plan::dag::{Dag, DagNode, NodeKind};

    /// `width` chains of `depth` nodes from one source, joined by a last node.
    fn parallel_chains(width: u32, depth: u32) -> Dag {
        let injective = |inputs, output| DagNode {
            kind: NodeKind::Injective,
            is_cheap: true,
            inputs,
            outputs: vec![TensorId(output)],
        };
        let mut nodes = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..width {
            let mut last = TensorId(0);
            for _ in 0..depth {
                let output = nodes.len() as u32 + 1;
                nodes.push(injective(vec![last], output));
                last = TensorId(output);
            }
            ends.push(last);
        }
        let join = nodes.len() as u32 + 1;
        nodes.push(injective(ends, join));
        Dag::new(nodes.len() + 1, nodes, vec![TensorId(join)]).unwrap()
    }

    #[test]
    fn states_grow_exponentially_with_width() {
        let counts = |width| published_counts(&parallel_chains(width, 3));
        assert_eq!(counts(2), KorchCounts { states: 17, pairs: 100, convex: 64, raw: 64, distinct: 28 });
        assert_eq!(counts(3), KorchCounts { states: 65, pairs: 1000, convex: 406, raw: 352, distinct: 82 });
        let four = KorchCounts { states: 257, pairs: 10_000, convex: 2656, raw: 1792, distinct: 280 };
        assert_eq!(counts(4), four);
    }

    #[test]
    fn a_compute_node_is_a_candidate_only_alone() {
        let node = |kind, input, output| DagNode {
            kind,
            is_cheap: false,
            inputs: vec![TensorId(input)],
            outputs: vec![TensorId(output)],
        };
        let nodes = vec![
            node(NodeKind::Injective, 0, 1),
            node(NodeKind::Anchor, 1, 2),
            node(NodeKind::Reduce, 2, 3),
            node(NodeKind::Injective, 3, 4),
        ];
        let dag = Dag::new(5, nodes, vec![TensorId(4)]).unwrap();
        let counts = published_counts(&dag);
        assert_eq!(counts, KorchCounts { states: 5, pairs: 10, convex: 10, raw: 5, distinct: 5 });
    }
}
