//! Properties of random graphs: they are valid, cover every primitive, and survive printing and parsing; and no text
//! makes the parser panic.

use orch_ir::PrimGraph;
use orch_ir::generate::{GenerateOptions, Rng, generate, random_inputs};
use orch_ir::text::{parse, print};
use orch_ir::validate::validate;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn options(steps: usize) -> GenerateOptions {
    let dtypes = vec![orch_ir::DType::F32, orch_ir::DType::F64, orch_ir::DType::F16, orch_ir::DType::BF16];
    GenerateOptions { steps, dtypes, ..GenerateOptions::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn graphs_are_valid_and_read_back(seed: u64, steps in 0usize..60) {
        let graph = generate(seed, &options(steps));
        prop_assert_eq!(validate(&graph), vec![]);
        let text = print(&graph);
        let read = parse(&text);
        prop_assert_eq!(read.as_ref(), Ok(&graph), "{}", text);
        prop_assert_eq!(generate(seed, &options(steps)), graph);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[ -~\\n]{0,200}") {
        let _ = parse(&text);
        let _ = parse(&format!("graph \"g\" {{\n{text}\n}}"));
    }

    #[test]
    fn no_change_of_a_text_makes_the_parser_panic(seed: u64, edits in 1usize..6) {
        let mut rng = Rng::new(seed);
        let text = if rng.one_in(3) {
            include_str!("everything.prim").to_owned()
        } else {
            print(&generate(seed, &options(8)))
        };
        if let Ok(graph) = parse(&edited(&mut rng, &text, edits)) {
            prop_assert_eq!(parse(&print(&graph)), Ok(graph));
        }
    }
}

/// The text with characters replaced, removed, repeated, or numbers replaced by extreme ones.
fn edited(rng: &mut Rng, text: &str, edits: usize) -> String {
    const EXTREMES: [&str; 8] =
        ["0", "-1", "1", "99999999999", "18446744073709551615", "-9223372036854775808", "[]", "4294967295"];
    let mut text = text.to_owned();
    for _ in 0..edits {
        let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        if starts.len() < 2 {
            break;
        }
        let at = starts[rng.below(starts.len() - 1)];
        let end = starts[starts.partition_point(|&start| start <= at)];
        match rng.below(4) {
            0 => text.replace_range(at..end, ""),
            1 => text
                .insert(at, *rng.choose(&['0', '9', '[', ']', '{', '}', ',', '"', 't', '=', '\n', '-', '.'])),
            2 => {
                let copy = text[at..(at + 40).min(text.len())].to_owned();
                text.insert_str(at, &copy);
            }
            _ => {
                let digits = text[at..].find(|c: char| c.is_ascii_digit()).map_or(at, |offset| at + offset);
                let rest = &text[digits..];
                let length = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                text.replace_range(digits..digits + length, EXTREMES[rng.below(EXTREMES.len())]);
            }
        }
    }
    text
}

/// How often each operation occurs.
fn census(graphs: impl Iterator<Item = PrimGraph>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for graph in graphs {
        for node in graph.nodes() {
            *counts.entry(node.op.name()).or_default() += 1;
        }
    }
    counts
}

#[test]
fn every_operation_occurs() {
    use orch_ir::{BinaryFn, CompareFn, DType, ReduceOp, UnaryFn};
    let counts = census((0..600).map(|seed| generate(seed, &options(40))));
    let mut expected: Vec<String> = [
        "broadcast",
        "transpose",
        "reshape",
        "slice",
        "pad.constant",
        "pad.edge",
        "pad.reflect",
        "pad.wrap",
        "concat",
        "pick",
        "contract",
        "conv",
        "conv_transpose",
        "take",
        "take_along",
        "gather_nd",
        "scatter_along",
        "scatter_nd",
        "iota",
        "select",
        "is_nan",
        "is_inf",
        "top_k",
        "cumulative",
        "if",
        "loop",
        "scan",
        "recurrence.rnn",
        "recurrence.gru",
        "recurrence.lstm",
        "routine.ReverseSequence",
    ]
    .map(str::to_owned)
    .to_vec();
    expected.extend(UnaryFn::ALL.iter().map(|f| f.name().to_owned()));
    expected.extend(BinaryFn::ALL.iter().map(|f| f.name().to_owned()));
    expected.extend(CompareFn::ALL.iter().map(|f| f.name().to_owned()));
    expected.extend(DType::ALL.iter().map(|dtype| format!("cast.{dtype}")));
    expected.extend(
        ReduceOp::ALL.iter().flat_map(|op| ["reduce", "window"].map(|kind| format!("{kind}.{}", op.name()))),
    );
    let missing: Vec<&String> = expected.iter().filter(|name| !counts.contains_key(*name)).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
}

#[test]
fn options_are_kept() {
    let plain = GenerateOptions { opaque: false, empty: false, max_elems: 256, max_rank: 3, ..options(60) };
    for seed in 0..50 {
        let graph = generate(seed, &plain);
        assert!(graph.nodes().iter().all(|node| !matches!(node.op, orch_ir::PrimOp::Opaque(_))));
        let results = graph.nodes().iter().flat_map(|node| &node.outputs);
        assert!(results.clone().all(|&id| graph.shape(id).elems() <= 256));
        assert!(graph.inputs.iter().all(|(_, id)| graph.shape(*id).elems() > 0));
        let inputs = random_inputs(&graph, seed);
        assert_eq!(inputs, random_inputs(&graph, seed));
        assert!(inputs.iter().all(|input| input.to_f64().iter().all(|v| v.abs() <= 1.0)));
    }
}
