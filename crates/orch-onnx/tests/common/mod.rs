//! What the tests of this crate share: imports of built models, a text form of graphs, and their invariants.

#![allow(dead_code, reason = "each test file uses a part")]

use orch_ir::{Attribute, OperatorGraph, OperatorNode, ValueId};
use orch_onnx::builder::ModelBuilder;
use orch_onnx::{ImportErrors, ImportOptions, import};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The graph of a model that is fine.
pub fn graph(model: &ModelBuilder) -> OperatorGraph {
    graph_with(model, &ImportOptions::default())
}

/// The graph of a model that is fine with these options.
pub fn graph_with(model: &ModelBuilder, options: &ImportOptions) -> OperatorGraph {
    let graph = import(model.encode(), options).unwrap_or_else(|errors| panic!("{errors}")).graph;
    check(&graph);
    graph
}

/// The problems of a model that is not fine.
pub fn errors(model: &ModelBuilder, options: &ImportOptions) -> ImportErrors {
    import(model.encode(), options).expect_err("a model with problems")
}

/// The problems of a model, each as `place: message` without the advice.
pub fn problems(model: &ModelBuilder) -> Vec<String> {
    messages(&errors(model, &ImportOptions::default()))
}

/// Each problem as `place: message` without the advice.
pub fn messages(errors: &ImportErrors) -> Vec<String> {
    errors.0.iter().map(|problem| format!("{}: {}", problem.place, problem.reason)).collect()
}

/// A graph as text: a line for each node, `outputs = Operator@opset(inputs) {attributes} "name"`; subgraphs indented.
pub fn dump(graph: &OperatorGraph) -> String {
    let mut text = String::new();
    dump_into(graph, 0, &mut text);
    text
}

fn dump_into(graph: &OperatorGraph, indent: usize, text: &mut String) {
    let pad = "  ".repeat(indent);
    let name = |id: &ValueId| graph.value(*id).name.clone();
    let list = |ids: &[ValueId]| ids.iter().map(name).collect::<Vec<_>>().join(", ");
    let operands = |ids: &[Option<ValueId>]| {
        ids.iter().map(|id| id.as_ref().map_or("_".into(), name)).collect::<Vec<_>>().join(", ")
    };
    writeln!(text, "{pad}graph {}({}) -> ({})", graph.name, list(&graph.inputs), list(&graph.outputs))
        .unwrap();
    for (id, outside) in &graph.captures {
        writeln!(text, "{pad}  capture {} = {outside}", name(id)).unwrap();
    }
    for (id, tensor) in &graph.initializers {
        writeln!(text, "{pad}  const {} = {tensor:?}", name(id)).unwrap();
    }
    for node in &graph.nodes {
        let domain = if node.domain.is_empty() { String::new() } else { format!("{}::", node.domain) };
        let (outputs, inputs) = (operands(&node.outputs), operands(&node.inputs));
        let opset = node.opset;
        write!(text, "{pad}  {outputs} = {domain}{}@{opset}({inputs})", node.op_type).unwrap();
        for (key, attribute) in &node.attributes {
            match attribute {
                Attribute::Graph(_) => write!(text, " {key}=graph").unwrap(),
                Attribute::Int(value) => write!(text, " {key}={value}").unwrap(),
                Attribute::Float(value) => write!(text, " {key}={value:?}").unwrap(),
                Attribute::String(value) => write!(text, " {key}={value:?}").unwrap(),
                other => write!(text, " {key}={other:?}").unwrap(),
            }
        }
        writeln!(text, " {:?}", node.name).unwrap();
        bodies(node).for_each(|body| dump_into(body, indent + 2, text));
    }
}

fn bodies(node: &OperatorNode) -> impl Iterator<Item = &OperatorGraph> {
    node.attributes.values().filter_map(|attribute| match attribute {
        Attribute::Graph(body) => Some(body.as_ref()),
        _ => None,
    })
}

/// Checks what an imported main graph promises.
pub fn check(graph: &OperatorGraph) {
    assert!(graph.captures.is_empty(), "a main graph has nothing outside");
    for &input in &graph.inputs {
        let value = graph.value(input);
        assert!(value.dtype.is_some(), "input {} has a type", value.name);
        let shape = value.shape.as_ref().expect("an input has a shape");
        assert!(shape.iter().all(Option::is_some), "input {} is bound", value.name);
    }
    check_level(graph, None);
}

/// Checks a graph in the one around it, of which the values in `visible` have been computed.
fn check_level(graph: &OperatorGraph, outside: Option<(&OperatorGraph, &BTreeSet<ValueId>)>) {
    let names: BTreeSet<&str> = graph.values.iter().map(|value| value.name.as_str()).collect();
    assert_eq!(names.len(), graph.values.len(), "value names are unique");
    let mut known = BTreeSet::new();
    let captures = graph.captures.iter().map(|(id, _)| *id);
    for id in graph.inputs.iter().copied().chain(graph.initializers.keys().copied()).chain(captures) {
        assert!(known.insert(id), "{id} is defined once");
    }
    for (_, name) in &graph.captures {
        let (around, computed) = outside.expect("a graph with captures is inside another");
        let source = around.values.iter().position(|value| value.name == *name);
        let source = ValueId::new(source.expect("a captured name exists outside"));
        assert!(computed.contains(&source), "{name} is computed before it is captured");
    }
    for node in &graph.nodes {
        for id in node.inputs.iter().flatten() {
            assert!(known.contains(id), "{} reads {id}, which is not computed yet", node.name);
        }
        bodies(node).for_each(|body| check_level(body, Some((graph, &known))));
        for id in node.outputs.iter().flatten() {
            assert!(known.insert(*id), "{id} is defined once");
        }
    }
    for id in &graph.outputs {
        assert!(known.contains(id), "output {id} is computed");
    }
}
