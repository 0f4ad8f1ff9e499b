//! Graphs as text.

use super::attr::Attr;
use super::constant::print_elements;
use super::describe::attributes;
use super::lex::quote;
use crate::{NodeId, PrimGraph, Tensor, TensorId};
use std::fmt::Write;

/// The text of a graph, which [`parse`](super::parse) reads back.
pub fn print(graph: &PrimGraph) -> String {
    let mut out = String::new();
    print_graph(&mut out, graph, 0);
    out.push('\n');
    out
}

/// The text of a tensor, `f32[2] = [1, 2]`, which [`parse_tensor`](super::parse_tensor) reads back.
pub fn print_tensor(tensor: &Tensor) -> String {
    let mut out = format!("{}{} = ", tensor.dtype(), tensor.shape());
    print_elements(&mut out, tensor);
    out
}

fn print_graph(out: &mut String, graph: &PrimGraph, depth: usize) {
    push(out, format_args!("graph {} {{", quote(&graph.name)));
    let line = |out: &mut String| push(out, format_args!("\n{:width$}", "", width = 2 * depth + 2));
    for (name, id) in &graph.inputs {
        line(out);
        push(out, format_args!("input {} {}", quote(name), typed(graph, *id)));
    }
    // Constants and nodes in the order of their tensors; a node without results comes where its turn is.
    let mut nodes = graph.node_ids().peekable();
    for (index, info) in graph.tensors().iter().enumerate() {
        let id = TensorId::new(index);
        if let Some(value) = graph.constant(id) {
            line(out);
            push(out, format_args!("const {} = ", typed(graph, id)));
            print_elements(out, value);
        }
        while let Some(node) = nodes.next_if(|&node| Some(node) <= info.producer) {
            line(out);
            print_node(out, graph, node, depth + 1);
        }
    }
    for node in nodes {
        line(out);
        print_node(out, graph, node, depth + 1);
    }
    for (name, id) in &graph.outputs {
        line(out);
        push(out, format_args!("output {} {id}", quote(name)));
    }
    push(out, format_args!("\n{:width$}}}", "", width = 2 * depth));
}

fn print_node(out: &mut String, graph: &PrimGraph, id: NodeId, depth: usize) {
    let node = graph.node(id);
    let results: Vec<String> = node.outputs.iter().map(|&output| typed(graph, output)).collect();
    match &results[..] {
        [result] => out.push_str(result),
        _ => push(out, format_args!("({})", results.join(", "))),
    }
    push(out, format_args!(" = {}", node.op.name()));
    for (position, input) in node.inputs.iter().enumerate() {
        push(out, format_args!("{} {input}", if position == 0 { "" } else { "," }));
    }
    for (name, value) in attributes(&node.op) {
        push(out, format_args!(" {name}="));
        print_attr(out, &value, depth);
    }
    if !graph.origin(id).is_empty() {
        push(out, format_args!(" ; from {}", quote(graph.origin(id))));
    }
}

fn print_attr(out: &mut String, value: &Attr<'_>, depth: usize) {
    match value {
        Attr::Number(text) | Attr::Word(text) => out.push_str(text),
        Attr::Text(text) => out.push_str(&quote(text)),
        Attr::List(values) => {
            out.push('[');
            for (position, value) in values.iter().enumerate() {
                out.push_str(if position == 0 { "" } else { ", " });
                print_attr(out, value, depth);
            }
            out.push(']');
        }
        Attr::Graph(graph) => print_graph(out, graph, depth),
    }
}

/// `t3: f32[2, 5]`.
fn typed(graph: &PrimGraph, id: TensorId) -> String {
    let info = graph.tensor(id);
    format!("{id}: {}{}", info.dtype, info.shape)
}

/// Appends formatted text.
fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes any text");
}
