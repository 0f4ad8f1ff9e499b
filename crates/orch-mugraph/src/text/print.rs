//! Writing the text form.

use super::op::op_text;
use crate::graph::{Accumulation, BlockGraph, InputKind, MuGraph, Node, TensorId, TileNode};
use std::fmt::{Display, Write};

/// The text of a µGraph.
pub fn print(graph: &MuGraph) -> String {
    let mut text = format!("mugraph {:?} {{\n", graph.name);
    for (first, node) in graph.nodes() {
        let names: Vec<TensorId> = (0..node.results()).map(|at| TensorId(first.0 + at as u32)).collect();
        text += &format!("  {} = ", joined(&names));
        match node {
            Node::Input { name, kind, shape } => {
                let word = if *kind == InputKind::Real { "input" } else { "mask" };
                let _ = writeln!(text, "{word} {name:?} {shape:?}");
            }
            Node::Op { op, args } => text += &applied(&op_text(op), args),
            Node::Block(block) => print_block(&mut text, block),
        }
    }
    for (name, id) in graph.outputs() {
        let _ = writeln!(text, "  output {name:?} {id}");
    }
    text + "}\n"
}

fn print_block(text: &mut String, block: &BlockGraph) {
    let _ = writeln!(text, "block {:?} loop {} {{", block.grid, block.loop_range);
    for (position, node) in block.nodes.iter().enumerate() {
        let _ = write!(text, "    s{position} = ");
        match node {
            TileNode::Load { tensor, grid, along_loop } => {
                let _ = writeln!(text, "load {tensor} {} {}", map(grid), dim(along_loop));
            }
            TileNode::Op { op, args } => *text += &applied(&op_text(op), args),
            TileNode::Accumulate { how: Accumulation::Sum, tile } => {
                let _ = writeln!(text, "accumulate sum {tile}");
            }
            TileNode::Accumulate { how: Accumulation::Max, tile } => {
                let _ = writeln!(text, "accumulate max {tile}");
            }
            TileNode::Accumulate { how: Accumulation::RescaledSum { max, degree }, tile } => {
                let _ = writeln!(text, "accumulate rescaled {max} {degree} {tile}");
            }
            TileNode::RunningMax { tile } => {
                let _ = writeln!(text, "running_max {tile}");
            }
        }
    }
    for store in &block.stores {
        let _ = writeln!(text, "    store {} {}", store.tile, map(&store.grid));
    }
    *text += "  }\n";
}

fn applied(op: &str, args: &[impl Display]) -> String {
    if args.is_empty() { format!("{op}\n") } else { format!("{op} {}\n", joined(args)) }
}

fn joined(items: &[impl Display]) -> String {
    items.iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

fn map(grid: &[Option<usize>]) -> String {
    format!("[{}]", grid.iter().map(dim).collect::<Vec<_>>().join(", "))
}

fn dim(dim: &Option<usize>) -> String {
    dim.map_or("-".into(), |dim| dim.to_string())
}
