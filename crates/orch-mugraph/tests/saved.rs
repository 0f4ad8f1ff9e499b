//! The published saved sets, rebuilt in the published form: the right ones are read and proved; the wrong ones are
//! read, and refused because their values differ from those of the program, not for another reason.

mod common;

use common::saved_form::import_saved;
use common::saved_sets::{SavedSet, good_sets};
use common::wrong_qknorm::{Extents, Form, Logits, forms};
use common::{mugraph, random_inputs};
use orch_mugraph::array::Array;
use orch_mugraph::eval::outputs;
use orch_mugraph::verify::field::Stream;
use orch_mugraph::verify::residues::{Residues, TestBase};
use orch_mugraph::verify::{PROOF_BITS, lax};
use orch_mugraph::{MuGraph, Precision, Rejection, VerifyOptions, interpret, print, validate, verify};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

fn imported(set: &[Value]) -> Vec<MuGraph> {
    let graphs = import_saved(&Value::from(set).to_string()).unwrap_or_else(|e| panic!("{e}"));
    for graph in &graphs {
        assert_eq!(validate(graph), []);
    }
    let distinct: BTreeSet<String> = graphs.iter().map(print).collect();
    assert_eq!(distinct.len(), graphs.len(), "a graph is there twice");
    graphs
}

/// A graph with the names of another one's inputs and outputs: the published form has none.
fn named_like(graph: &MuGraph, like: &MuGraph) -> MuGraph {
    let inputs = like.inputs().map(|(_, name, _)| name);
    let mut names = inputs.chain(like.outputs().iter().map(|(name, _)| name.as_str()));
    let text = print(graph);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for line in lines.iter_mut().skip(1).filter(|line| line.contains('"')) {
        let parts: Vec<&str> = line.split('"').collect();
        let name = names.next().unwrap_or_else(|| panic!("{text} has more inputs and outputs"));
        *line = [parts[0], name, parts[2]].join("\"");
    }
    orch_mugraph::parse(&lines.join("\n")).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Fails unless the programs are proved to be equal.
fn assert_proved(program: &MuGraph, candidate: &MuGraph, what: &str) {
    let candidate = &named_like(candidate, program);
    let certificate = verify(program, candidate, &VerifyOptions::default());
    let certificate = certificate.unwrap_or_else(|e| panic!("{what}: {e}\n{}", print(candidate)));
    assert!(certificate.log2_bound < -80.0, "{what}: {}", certificate.log2_bound);
}

/// Fails unless values of the programs differ.
fn assert_told_apart(program: &MuGraph, candidate: &MuGraph, what: &str) {
    let candidate = &named_like(candidate, program);
    let result = verify(program, candidate, &VerifyOptions::default()).map(|c| c.log2_bound);
    let is_told_apart = matches!(result, Err(Rejection::Different { output: 0, .. }));
    assert!(is_told_apart, "{what}: {result:?}\n{}", print(candidate));
}

#[test]
fn sets_have_as_many_graphs_as_the_published_ones() {
    let sizes: Vec<(&str, usize)> = good_sets().iter().map(|set| (set.name, set.graphs.len())).collect();
    let published = [
        ("gqa_bs1", 28),
        ("gqa_bs8", 10),
        ("mqa_bs1", 12),
        ("mqa_bs8", 17),
        ("mha_bs1", 21),
        ("rmsnorm_bs1", 18),
        ("rmsnorm_bs8", 20),
        ("rmsnorm_bs16", 26),
        ("lora", 4),
        ("gated_mlp", 32),
        ("ntrans", 9),
    ];
    assert_eq!(sizes, published);
    assert!(forms().len() >= 190);
}

#[test]
fn good_sets_are_accepted_at_their_full_shapes() {
    for SavedSet { name, program, graphs } in good_sets() {
        for (at, graph) in imported(&graphs).iter().enumerate() {
            assert_proved(&program, graph, &format!("{name}, graph {at}"));
        }
    }
}

/// A graph of a right set with one operator replaced, or with operands in the wrong order.
fn broken(graph: &Value) -> Value {
    let text = graph.to_string();
    let edits = [
        ("_div_op", "_mul_op"),
        ("_silu_op", "_square_op"),
        ("_add_op", "_mul_op"),
        ("_rms_norm_op", "_square_op"),
    ];
    if let Some((from, to)) = edits.iter().find(|(from, _)| text.contains(from)) {
        return text.replacen(from, to, 1).parse().expect("the form is the same");
    }
    let mut graph = graph.clone();
    let concatenation = &mut graph[4]["bgraph"]["operators"][5];
    assert_eq!(concatenation["op_type"], "tb_concat_then_matmul_op");
    concatenation["input_tensors"].as_array_mut().expect("operands").swap(0, 1);
    graph
}

#[test]
fn one_wrong_operator_in_a_good_graph_is_noticed() {
    for SavedSet { name, program, graphs } in good_sets() {
        let graphs: Vec<Value> = graphs.iter().map(broken).collect();
        for (at, graph) in imported(&graphs).iter().enumerate() {
            assert_told_apart(&program, graph, &format!("{name}, graph {at}"));
        }
    }
}

/// An element of an input, by the position of the input and its own.
type Element = fn(usize, usize) -> u64;

/// The published verifier's inputs.
fn ramp(input: usize, position: usize) -> u64 {
    100_003 * input as u64 + position as u64
}

/// Numbers below both primes without a pattern.
fn scrambled(input: usize, position: usize) -> u64 {
    ramp(input, position).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 6
}

/// The outputs over the fields of a proof.
fn outputs_for(graph: &MuGraph, element: Element) -> Vec<Residues> {
    let inputs = graph.inputs().enumerate().map(|(at, (id, _, _))| {
        let shape = graph.shape(id).to_vec();
        let data = Arc::new(Array::from_fn(&shape, |i| element(at, i)));
        Residues { shape, p: Some(data.clone()), q: Some(data), weight: None, terms: None }
    });
    let inputs: Vec<Residues> = inputs.collect();
    let facts = lax::lax(graph).unwrap();
    let base = TestBase::new(PROOF_BITS, &mut Stream::new(5));
    let mut domain = base.domain(&facts);
    outputs(&mut domain, graph, &inputs).unwrap()
}

/// All forms of the wrong normalised attention, or of the right one that differs from it in the logits alone.
fn qknorm(extents: Extents, logits: Logits) -> Vec<MuGraph> {
    let graphs: Vec<Value> = forms().iter().map(|form| form.graph(extents, logits)).collect();
    imported(&graphs)
}

#[test]
fn the_first_wrong_graph_is_the_published_one_and_is_rejected_at_its_full_shapes() {
    for batch in [1, 8] {
        let extents = Extents::published(batch);
        let first: Form = forms()[0];
        let graph = &imported(&[first.graph(extents, Logits::SumTimesRow)])[0];
        if batch == 1 {
            let published = mugraph("qknorm_wrong");
            assert_eq!(graph.shapes(), published.shapes());
            assert_eq!(outputs_for(graph, scrambled), outputs_for(&published, scrambled));
        }
        assert_told_apart(&extents.program(), graph, &format!("batch {batch}"));
    }
}

#[test]
fn wrong_normalised_attentions_are_rejected_and_their_right_twins_are_accepted() {
    // Of the published ones for batch 8, six are known to be wrong.
    for (batch, count) in [(1, forms().len()), (8, 6)] {
        let extents = Extents::small(batch);
        let program = extents.program();
        let wrong = qknorm(extents, Logits::SumTimesRow);
        let right = qknorm(extents, Logits::Product);
        for ((form, wrong), right) in forms().iter().zip(&wrong).zip(&right).take(count) {
            let what = format!("batch {batch}, {form:?}");
            assert_told_apart(&program, wrong, &what);
            assert_proved(&program, right, &what);
        }
    }
}

#[test]
fn wrong_normalised_attentions_are_wrong_in_floating_point() {
    let extents = Extents::small(1);
    let program = extents.program();
    let inputs = random_inputs(&program, 1, 1.0);
    let run = |graph: &MuGraph| interpret(graph, &inputs, Precision::F64).unwrap().remove(0).data;
    let expected = run(&program);
    let relative_error = |graph: &MuGraph| {
        let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
        let given = run(graph);
        let error = squares(&mut given.iter().zip(&expected).map(|(a, b)| a - b));
        (error / squares(&mut expected.iter().copied())).sqrt()
    };
    let all = |logits| qknorm(extents, logits).iter().map(relative_error).collect::<Vec<f64>>();
    assert!(all(Logits::SumTimesRow).iter().all(|&error| error > 0.5));
    assert!(all(Logits::Product).iter().all(|&error| error < 1e-9));
}

#[test]
fn ramps_as_inputs_would_accept_all_wrong_normalised_attentions() {
    let extents = Extents::small(1);
    let program = extents.program();
    let (expected, told_apart) = (outputs_for(&program, ramp), outputs_for(&program, scrambled));
    for (form, graph) in forms().iter().zip(qknorm(extents, Logits::SumTimesRow)) {
        assert_eq!(outputs_for(&graph, ramp), expected, "{form:?}");
        assert_ne!(outputs_for(&graph, scrambled), told_apart, "{form:?}");
    }
}

#[test]
fn wrong_normalised_attentions_are_right_where_heads_have_one_column() {
    let extents = Extents { heads: 2, rows: 4, keys: 8, columns: 1 };
    let program = extents.program();
    for (form, graph) in forms().iter().zip(qknorm(extents, Logits::SumTimesRow)) {
        assert_proved(&program, &graph, &format!("{form:?}"));
    }
}
