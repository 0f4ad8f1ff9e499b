//! The static typing of the LAX fragment: multi-linear operators, division, roots, and at most one exponential on any path.
//!
//! A number is represented by a residue modulo `p` and, below exponentials, one modulo `q`. What an exponential gives has
//! no residue modulo `q`, so it must not reach another exponential. Minus infinity, which masks bring in, has meaning
//! under additions, maxima and exponentials only. A second pass, from the outputs up, finds which residues are needed.

use super::residues::MaxMode;
use super::table::Table;
use crate::graph::{Accumulation, MuGraph, Node, TensorId, TileNode};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::rational::Rational;

/// What is known of a value before anything is computed, and what of it is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaxFacts {
    /// It may be an exponent.
    pub has_q: bool,
    /// It may be minus infinity.
    pub may_be_infinite: bool,
    /// Its residue modulo `p` is needed.
    pub needs_p: bool,
    /// Its residue modulo `q` is needed.
    pub needs_q: bool,
}

/// Types a µGraph, or says which value is outside the fragment. Where maxima are symbols, nothing of their operands is
/// needed.
///
/// # Errors
/// The first value outside, and why.
pub fn lax(graph: &MuGraph, max: MaxMode) -> Result<Table<LaxFacts>, String> {
    let mut table = Table::filled(graph, &LaxFacts::default());
    for (first, node) in graph.nodes() {
        match node {
            Node::Input { .. } => table.tensors[first.index()].has_q = true,
            Node::Op { op, args } => {
                let args: Vec<LaxFacts> = args.iter().map(|arg| table.tensors[arg.index()]).collect();
                let facts = typed(op, &args).map_err(|problem| format!("{first}: {problem}"))?;
                table.tensors[first.index()] = facts;
            }
            Node::Block(block) => {
                let mut tiles: Vec<LaxFacts> = Vec::with_capacity(block.nodes.len());
                for (position, node) in block.nodes.iter().enumerate() {
                    let facts = match node {
                        TileNode::Load { tensor, .. } => Ok(table.tensors[tensor.index()]),
                        TileNode::Op { op, args } => {
                            let args: Vec<LaxFacts> = args.iter().map(|arg| tiles[arg.index()]).collect();
                            typed(op, &args)
                        }
                        TileNode::RunningMax { tile } => Ok(tiles[tile.index()]),
                        TileNode::Accumulate { how, tile } => accumulated(*how, tiles[tile.index()], &tiles),
                    };
                    tiles.push(facts.map_err(|problem| format!("{first}, s{position}: {problem}"))?);
                }
                for (at, store) in block.stores.iter().enumerate() {
                    table.tensors[first.index() + at] = tiles[store.tile.index()];
                }
                table.tiles.insert(first, tiles);
            }
        }
    }
    for (name, id) in graph.outputs() {
        if table.tensors[id.index()].may_be_infinite {
            return Err(format!("output {name} may be minus infinity"));
        }
        table.tensors[id.index()].needs_p = true;
    }
    demand(graph, max, &mut table);
    Ok(table)
}

/// The type of a result.
fn typed(op: &Op, args: &[LaxFacts]) -> Result<LaxFacts, String> {
    let has_q = args.iter().all(|arg| arg.has_q);
    let finite = LaxFacts { has_q, ..LaxFacts::default() };
    let infinite = args.iter().any(|arg| arg.may_be_infinite);
    let either = LaxFacts { may_be_infinite: infinite, ..finite };
    let refuse_infinite =
        |facts| if infinite { Err("minus infinity has no meaning here".into()) } else { Ok(facts) };
    match op {
        Op::Unary(UnaryFn::Exp) if !has_q => Err("an exponential of an exponential".into()),
        Op::Unary(UnaryFn::Exp) => Ok(LaxFacts::default()),
        Op::Unary(UnaryFn::Silu | UnaryFn::Sigmoid | UnaryFn::Tanh | UnaryFn::Gelu) => {
            if has_q {
                refuse_infinite(LaxFacts::default())
            } else {
                Err("an exponential of an exponential".into())
            }
        }
        Op::Unary(UnaryFn::Log) => Err("a logarithm has no residue".into()),
        Op::Unary(UnaryFn::Guard) => Ok(finite),
        Op::Scale(c) if *c <= Rational::ZERO => refuse_infinite(finite),
        Op::Scale(_) | Op::Offset(_) => Ok(either),
        Op::Binary(BinaryFn::Add | BinaryFn::Max) | Op::Reduce { f: ReduceFn::Max, .. } => Ok(either),
        Op::Binary(BinaryFn::Sub) if args[1].may_be_infinite => Err("subtracts minus infinity".into()),
        Op::Binary(BinaryFn::Sub) => Ok(either),
        Op::Binary(BinaryFn::Mask) => Ok(LaxFacts { has_q: args[0].has_q, may_be_infinite: true, ..finite }),
        Op::Transpose(_) | Op::Reshape(_) | Op::Broadcast(_) => Ok(either),
        Op::Slice { .. } | Op::Repeat { .. } | Op::Concat { .. } => Ok(either),
        Op::Causal { .. } | Op::Below { .. } => Ok(finite),
        Op::Unary(UnaryFn::Square | UnaryFn::Sqrt | UnaryFn::Relu | UnaryFn::Erf) => refuse_infinite(finite),
        Op::Matmul | Op::RmsNorm { .. } | Op::Rotate { .. } => refuse_infinite(finite),
        Op::Binary(BinaryFn::Mul | BinaryFn::Div) | Op::Reduce { f: ReduceFn::Sum, .. } => {
            refuse_infinite(finite)
        }
    }
}

fn accumulated(how: Accumulation, tile: LaxFacts, tiles: &[LaxFacts]) -> Result<LaxFacts, String> {
    match how {
        Accumulation::Max => Ok(tile),
        _ if tile.may_be_infinite => Err("sums minus infinity".into()),
        Accumulation::Sum => Ok(tile),
        Accumulation::RescaledSum { max, .. } if !tiles[max.index()].has_q => {
            Err("an exponential of an exponential".into())
        }
        Accumulation::RescaledSum { .. } => Ok(LaxFacts::default()),
    }
}

/// Marks what is needed, from the outputs up.
fn demand(graph: &MuGraph, max: MaxMode, table: &mut Table<LaxFacts>) {
    let nodes: Vec<(TensorId, &Node)> = graph.nodes().collect();
    for (first, node) in nodes.into_iter().rev() {
        match node {
            Node::Input { .. } => {}
            Node::Op { op, args } => {
                let result = table.tensors[first.index()];
                for (at, arg) in args.iter().enumerate() {
                    need(&mut table.tensors[arg.index()], wanted(op, at, (result, max)));
                }
            }
            Node::Block(block) => {
                let mut tiles = table.tiles.remove(&first).unwrap_or_default();
                for (at, store) in block.stores.iter().enumerate() {
                    let facts = table.tensors[first.index() + at];
                    need(&mut tiles[store.tile.index()], (facts.needs_p, facts.needs_q));
                }
                for position in (0..block.nodes.len()).rev() {
                    let result = tiles[position];
                    let same = (result.needs_p, result.needs_q);
                    match &block.nodes[position] {
                        TileNode::Load { tensor, .. } => need(&mut table.tensors[tensor.index()], same),
                        TileNode::Op { op, args } => {
                            for (at, arg) in args.iter().enumerate() {
                                need(&mut tiles[arg.index()], wanted(op, at, (result, max)));
                            }
                        }
                        TileNode::Accumulate { how: Accumulation::RescaledSum { max: by, .. }, tile } => {
                            need(&mut tiles[tile.index()], same);
                            need(&mut tiles[by.index()], (false, result.needs_p));
                        }
                        TileNode::Accumulate { how: Accumulation::Sum, tile } => {
                            need(&mut tiles[tile.index()], same);
                        }
                        TileNode::Accumulate { how: Accumulation::Max, tile }
                        | TileNode::RunningMax { tile } => {
                            let any = max == MaxMode::Lattice && (same.0 || same.1);
                            need(&mut tiles[tile.index()], (any, any));
                        }
                    }
                }
                table.tiles.insert(first, tiles);
            }
        }
    }
}

fn need(facts: &mut LaxFacts, (p, q): (bool, bool)) {
    facts.needs_p |= p;
    facts.needs_q |= q && facts.has_q;
}

/// Which residues of an operand are needed for those of a result.
fn wanted(op: &Op, operand: usize, (result, max): (LaxFacts, MaxMode)) -> (bool, bool) {
    let (p, q) = (result.needs_p, result.needs_q);
    let any = p || q;
    match op {
        Op::Unary(UnaryFn::Exp | UnaryFn::Sigmoid | UnaryFn::Tanh) => (false, any),
        Op::Unary(UnaryFn::Silu | UnaryFn::Gelu | UnaryFn::Relu | UnaryFn::Erf) => (any, any),
        Op::Binary(BinaryFn::Max) | Op::Reduce { f: ReduceFn::Max, .. } => match max {
            MaxMode::Lattice => (any, any),
            MaxMode::Free | MaxMode::Zero => (false, false),
        },
        Op::Binary(BinaryFn::Mask) if operand == 1 => (any, false),
        Op::Matmul | Op::Unary(_) | Op::Scale(_) | Op::Offset(_) | Op::Binary(_) | Op::Reduce { .. } => {
            (p, q)
        }
        Op::RmsNorm { .. } | Op::Transpose(_) | Op::Reshape(_) | Op::Broadcast(_) => (p, q),
        Op::Slice { .. } | Op::Repeat { .. } | Op::Rotate { .. } => (p, q),
        Op::Concat { .. } | Op::Causal { .. } | Op::Below { .. } => (p, q),
    }
}
