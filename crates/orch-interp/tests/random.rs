//! Random graphs through the interpreter: rounding is all that separates its precisions, and nothing makes it panic.

use orch_interp::compare::{Tolerance, compare};
use orch_interp::{EvalOptions, evaluate};
use orch_ir::generate::{GenerateOptions, Rng, generate, random_inputs};
use orch_ir::text::{parse, print};
use orch_ir::{DType, PrimOp, Tensor};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn rounding_separates_the_precisions(seed: u64) {
        let graph = generate(seed, &GenerateOptions { steps: 25, ..GenerateOptions::default() });
        let inputs = random_inputs(&graph, seed);
        let native = evaluate(&graph, &inputs, &EvalOptions::default()).expect("generated graphs are valid");
        let wide = evaluate(&graph, &inputs, &EvalOptions::wide()).expect("generated graphs are valid");
        for ((native, wide), (name, id)) in native.iter().zip(&wide).zip(&graph.outputs) {
            prop_assert_eq!(native.dtype(), graph.dtype(*id));
            prop_assert_eq!(native.shape(), graph.shape(*id));
            let outcome = compare(wide, native, Tolerance { relative: 1e-4, absolute: 1e-3 });
            prop_assert!(outcome.is_ok(), "{name}: {outcome:?}\n{}", print(&graph));
        }
    }

    #[test]
    fn no_valid_graph_makes_the_interpreter_panic(seed: u64) {
        let mut rng = Rng::new(seed);
        let text = print(&generate(seed, &GenerateOptions { steps: 6, ..GenerateOptions::default() }));
        let Ok(graph) = parse(&with_other_numbers(&mut rng, &text)) else { return Ok(()) };
        // A loop may run for as long as its model says.
        let repeats = graph.nodes().iter().any(|node| matches!(node.op.name().as_str(), "loop" | "scan"));
        let elems: usize = graph.inputs.iter().map(|(_, id)| graph.shape(*id).elems()).sum();
        if elems < 1 << 20 && !repeats {
            let inputs = random_inputs(&graph, seed);
            let options = EvalOptions { max_result_bytes: 1 << 22, ..EvalOptions::default() };
            let _ = evaluate(&graph, &inputs, &options);
        }
    }
}

/// The text with one number replaced everywhere by another: extents and attributes stay consistent now and then.
fn with_other_numbers(rng: &mut Rng, text: &str) -> String {
    let old = rng.choose(&["1", "2", "3", "4", "5", "7", "8", "13", "16"]).to_string();
    let new = rng.choose(&["0", "1", "2", "6", "1099511627776", "4294967295"]).to_string();
    let mut result = String::new();
    let mut digits = String::new();
    let mut previous = ' ';
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        let is_extent = digits == old && matches!(previous, '[' | ' ' | '=');
        result += if is_extent { &new } else { &digits };
        digits.clear();
        result.push(c);
        previous = c;
    }
    result
}

#[test]
fn huge_empty_tensors_are_evaluated() {
    let cases = [
        "t1: f32[] = reduce.sum t0 axes=[0, 1]",
        "t1: f32[0] = reduce.max t0 axes=[0]",
        "t1: f32[0, 1099511627776] = transpose t0 perm=[1, 0]",
        "t1: f32[] = contract t0, t0 labels=\"ab,ab->\"",
        "t1: f32[1099511627776, 0] = exp t0",
        "(t1: f32[1099511627776, 0], t2: i64[1099511627776, 0]) = top_k t0 axis=1 k=0 largest=true sorted=true",
        "t1: f32[1099511627776, 0] = concat t0, t0 axis=1",
        "t1: f32[1099511627776, 0] = broadcast t0 dims=[0, 1]",
        "t1: f32[5, 0] = slice t0 starts=[3, 0] steps=[-0, 1]",
    ];
    for case in cases {
        let text =
            format!("graph \"g\" {{\ninput \"x\" t0: f32[1099511627776, 0]\n{case}\noutput \"y\" t1\n}}");
        let graph = parse(&text).unwrap_or_else(|error| panic!("{case}: {error}"));
        let x = Tensor::zeros(DType::F32, [1 << 40, 0]);
        let results =
            evaluate(&graph, &[x], &EvalOptions::default()).unwrap_or_else(|e| panic!("{case}: {e}"));
        assert!(results[0].to_f64().iter().all(|&v| v == 0.0), "{case}");
    }
}

#[test]
fn windows_far_larger_than_their_image_are_evaluated() {
    let text = "graph \"g\" {\ninput \"x\" t0: f32[1, 1, 2]
        t1: f32[1, 1, 3] = window.sum t0 kernel=[1099511627776] low=[1] high=[1099511627775]
        output \"y\" t1\n}";
    let graph = parse(text).expect("the graph is valid");
    let x = Tensor::from_vec([1, 1, 2], vec![1f32, 2.0]);
    let results = evaluate(&graph, &[x], &EvalOptions::default()).expect("the graph can be evaluated");
    assert_eq!(results[0].to_f64(), [3.0, 3.0, 2.0]);
}

#[test]
fn large_results_are_refused() {
    let text = "graph \"g\" {\ninput \"x\" t0: f32[]\nt1: f32[1000000, 1000000] = broadcast t0 dims=[]\noutput \"y\" t1\n}";
    let graph = parse(text).expect("the graph is valid");
    let error = evaluate(&graph, &[Tensor::scalar(1f32)], &EvalOptions::default()).unwrap_err();
    let expected = "node n0 (from \"\"): result f32[1000000, 1000000] takes 4000000000000 bytes, the limit is 17179869184";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn inputs_are_checked() {
    let graph =
        parse("graph \"g\" {\ninput \"x\" t0: f32[2]\noutput \"y\" t0\n}").expect("the graph is valid");
    let given =
        |inputs: &[Tensor]| evaluate(&graph, inputs, &EvalOptions::default()).unwrap_err().to_string();
    assert_eq!(given(&[]), "graph \"g\" takes 1 inputs, 0 were given");
    let wrong = Tensor::from_vec([2], vec![1i32, 2]);
    assert_eq!(given(&[wrong]), "input \"x\" of graph \"g\" is f32[2], i32[2] was given");
    let op = PrimOp::Reshape { shape: [3].into() };
    let x = Tensor::from_vec([2], vec![1f32, 2.0]);
    let error = orch_interp::evaluate_node(&op, &[&x], &EvalOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "[2] cannot be reshaped to [3]");
}
