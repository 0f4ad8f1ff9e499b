//! What the user is told.

mod common;

use common::{f32s, operator};
use orch_fission::{FissionOptions, fission};
use orch_ir::{Attribute, OperatorGraph, OperatorNode, Value, ValueId};
use std::collections::BTreeMap;

/// A chain: `input -> first -> second -> third -> output`, one operator each.
fn chain(op_types: &[&str]) -> OperatorGraph {
    let mut graph = OperatorGraph::default();
    let value = |graph: &mut OperatorGraph, name: String| {
        graph.add_value(Value {
            name,
            dtype: Some(orch_ir::DType::F32),
            shape: Some(vec![Some(2)]),
            encoding: None,
        })
    };
    let mut last: ValueId = value(&mut graph, "x".to_owned());
    graph.inputs.push(last);
    for (position, op_type) in op_types.iter().enumerate() {
        let next = value(&mut graph, format!("v{position}"));
        graph.nodes.push(OperatorNode {
            name: format!("node{position}"),
            domain: String::new(),
            op_type: (*op_type).to_owned(),
            opset: 18,
            inputs: vec![Some(last)],
            outputs: vec![Some(next)],
            attributes: BTreeMap::new(),
        });
        last = next;
    }
    graph.outputs.push(last);
    graph
}

#[test]
fn every_problem_is_told_once_and_consequences_are_not() {
    let mut graph = chain(&["Relu", "Frobnicate", "Relu", "Einsum"]);
    // Another problem that does not depend on the first.
    let second = chain(&["Einsum"]).nodes.remove(0);
    graph.nodes.push(OperatorNode { name: "other".to_owned(), outputs: vec![None], ..second });
    let errors = fission(&graph, &FissionOptions::default()).expect_err("two operators fail");
    assert_eq!(
        errors.to_string(),
        "node1 (Frobnicate): not supported: operator Frobnicate of ai.onnx; docs/unsupported-operators.md says why, or what does \
         the same\n\
         other (Einsum): invalid: attribute equation is missing"
    );
}

#[test]
fn operators_of_an_old_set_are_refused() {
    let error = operator("Add").opset(6).input(f32s(&[1], &[1.0])).input(f32s(&[1], &[1.0])).error();
    assert_eq!(
        error,
        "node (Add): not supported: Add of operator set 6; convert the model to version 7 or later"
    );
}

#[test]
fn operands_that_do_not_fit_are_named() {
    let error = operator("Add").input(f32s(&[2], &[1.0; 2])).input(f32s(&[3], &[1.0; 3])).error();
    assert_eq!(error, "node (Add): invalid: shape [3] does not broadcast with extent 2 of another operand");
    let missing = operator("Add").input(f32s(&[2], &[1.0; 2])).error();
    assert_eq!(missing, "node (Add): operand 1 is missing");
    let kind = operator("Softmax").text("axis", "last").input(f32s(&[1], &[1.0])).error();
    assert_eq!(kind, "node (Softmax): invalid: attribute axis is a string, expected an integer");
}

#[test]
fn a_symbolic_input_is_refused() {
    let mut graph = chain(&["Relu"]);
    graph.values[0].shape = Some(vec![None]);
    let errors = fission(&graph, &FissionOptions::default()).expect_err("no shape");
    assert_eq!(
        errors.to_string(),
        "input x: not supported: its shape is not static; give every symbolic dimension a value"
    );
}

#[test]
fn fixed_inputs_become_constants() {
    let graph = chain(&["Relu", "Neg"]);
    let fixed = BTreeMap::from([("x".to_owned(), f32s(&[2], &[-1.0, 3.0]))]);
    let options = FissionOptions { fixed_inputs: fixed, ..FissionOptions::default() };
    let prims = fission(&graph, &options).expect("two operators");
    assert!(prims.inputs.is_empty() && prims.nodes().is_empty());
    let value = prims.constant(prims.outputs[0].1).expect("folded");
    assert_eq!(value.to_f64(), [0.0, -3.0]);
}

#[test]
fn nodes_say_where_they_come_from() {
    let prims = fission(&chain(&["Relu", "Neg"]), &FissionOptions::default()).expect("two operators");
    let origins: Vec<&str> = prims.node_ids().map(|id| prims.origin(id)).collect();
    assert_eq!(origins, ["node0 (Relu)", "node0 (Relu)", "node1 (Neg)"]);
}

#[test]
fn unsupported_operators_behind_others_are_told() {
    let mut graph = chain(&["First", "Relu", "Second", "Einsum"]);
    graph.nodes[2].domain = "com.microsoft".to_owned();
    let mut loop_body = chain(&["Relu", "Third"]);
    loop_body.name = "body".to_owned();
    graph.nodes[3].attributes.insert("body".to_owned(), Attribute::Graph(Box::new(loop_body)));
    let errors = fission(&graph, &FissionOptions::default()).expect_err("three operators are not known");
    assert!(errors.are_limits());
    let text = errors.to_string();
    let starts: Vec<&str> = text.lines().map(|line| line.split(';').next().unwrap_or_default()).collect();
    assert_eq!(
        starts,
        [
            "node0 (First): not supported: operator First of ai.onnx",
            "node2 (Second): not supported: operator Second of com.microsoft",
            "node3 (Einsum) / node1 (Third): not supported: operator Third of ai.onnx",
        ]
    );
}

#[test]
fn a_model_with_hundreds_of_problems_shows_their_causes() {
    let kinds = ["A", "B", "C", "D", "E", "F", "G"];
    let graph = chain(&kinds.repeat(43)[..300]);
    let text = fission(&graph, &FissionOptions::default()).expect_err("all are unknown").to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 7);
    assert!(lines[0].starts_with("node0 (A): not supported: operator A of ai.onnx;"), "{text}");
    assert!(
        lines[0].ends_with("(and 42 more such places)") && lines[6].ends_with("(and 41 more such places)"),
        "{text}"
    );
}

/// Whatever is quoted: names, attributes, sizes.
#[test]
fn messages_stay_short_whatever_they_quote() {
    let long = "n".repeat(1 << 20);
    let mut graph = chain(&["Einsum", "Transpose"]);
    graph.nodes[0].name = long.clone();
    graph.nodes[0].attributes.insert("equation".to_owned(), Attribute::String(long.clone()));
    graph.nodes[1].inputs = graph.nodes[0].inputs.clone();
    graph.nodes[1].attributes.insert("perm".to_owned(), Attribute::Ints(vec![7; 1 << 20]));
    let mut other = graph.nodes[0].clone();
    (other.op_type, other.domain, other.outputs) = (long.clone(), long, vec![None]);
    graph.nodes.push(other);
    let text = fission(&graph, &FissionOptions::default()).expect_err("all are wrong").to_string();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.len() < 4000 && text.contains('\u{2026}'), "{} bytes: {text}", text.len());
}
