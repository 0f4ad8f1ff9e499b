//! The static typing of the LAX fragment: multi-linear operators, division, roots, and at most one exponential on any path.
//!
//! A number is represented by a residue modulo `p` and, below exponentials, one modulo `q`. What an exponential gives has
//! no residue modulo `q`, so it must not reach another exponential. Minus infinity, which masks bring in, has meaning
//! under additions, maxima and exponentials only. Signs over the real numbers are found on the way ([`super::sign`]). A
//! second pass, from the outputs up, finds which residues are needed.

use super::checks::{Check, Checks};
use super::rank::exponent;
use super::sign::{Sign, is_support, root_factor, signed};
use super::table::Table;
use crate::graph::{Accumulation, BlockGraph, InputKind, MuGraph, Node, TensorId, TileNode};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::rational::Rational;
use crate::tiling::ranges;

/// What is known of a value before anything is computed, and what of it is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaxFacts {
    /// It may be an exponent.
    pub has_q: bool,
    /// It may be minus infinity.
    pub may_be_infinite: bool,
    /// It is zero or one.
    pub is_mask: bool,
    /// Its sign over the real numbers.
    pub sign: Sign,
    /// A constant that it is a multiple of: what is seen of constants that were multiplied in.
    pub factor: Rational,
    /// The operator that gives it divides by, and takes roots of, what suits wherever its operands are defined.
    pub is_defined: bool,
    /// It divides by what [`is_support`] holds of, and is not negative.
    pub of_support: bool,
    /// See [`is_support`].
    pub is_support: bool,
    /// The operator changes nothing: a relu of what is not negative.
    pub is_identity: bool,
    /// The positive constant that the root, which the operator takes, is a multiple of.
    pub root: Rational,
    /// The constant that what the operator divides by is a multiple of.
    pub divided: Rational,
    /// Its residue modulo `p` is needed.
    pub needs_p: bool,
    /// Its residue modulo `q` is needed.
    pub needs_q: bool,
}

impl Default for LaxFacts {
    fn default() -> Self {
        LaxFacts {
            has_q: false,
            may_be_infinite: false,
            is_mask: false,
            sign: Sign::Any,
            factor: Rational::ONE,
            is_defined: true,
            of_support: false,
            is_support: false,
            is_identity: false,
            root: Rational::ONE,
            divided: Rational::ONE,
            needs_p: false,
            needs_q: false,
        }
    }
}

/// Types a µGraph, or says which value is outside the fragment.
///
/// # Errors
/// The first value outside, and why.
pub fn lax(graph: &MuGraph) -> Result<Table<LaxFacts>, String> {
    lax_under(graph, Checks::ALL)
}

/// [`lax`] by some of its checks.
pub(super) fn lax_under(graph: &MuGraph, checks: Checks) -> Result<Table<LaxFacts>, String> {
    let typing = Typing { checks };
    let mut table = Table::filled(graph, &LaxFacts::default());
    for (first, node) in graph.nodes() {
        match node {
            Node::Input { kind, .. } => {
                let is_mask = *kind == InputKind::Mask;
                let sign = if is_mask { Sign::NonNegative } else { Sign::Any };
                table.tensors[first.index()] =
                    LaxFacts { has_q: true, is_mask, sign, is_support: true, ..LaxFacts::default() };
            }
            Node::Op { op, args } => {
                let is_full = args.iter().all(|arg| crate::op::elems(graph.shape(*arg)) > 0);
                let args: Vec<LaxFacts> = args.iter().map(|arg| table.tensors[arg.index()]).collect();
                let facts =
                    typing.typed(op, &args, is_full).map_err(|problem| format!("{first}: {problem}"))?;
                table.tensors[first.index()] = facts;
            }
            Node::Block(block) => typing.typed_block(graph, &mut table, (first, block))?,
        }
    }
    for (name, id) in graph.outputs() {
        if table.tensors[id.index()].may_be_infinite && checks.make(Check::Infinity) {
            return Err(format!("output {name} may be minus infinity"));
        }
        table.tensors[id.index()].needs_p = true;
    }
    demand(graph, &mut table);
    Ok(table)
}

/// The types of a program of predefined operators, with only what its exponents are made of as needed.
pub(super) fn lax_of_exponents(program: &MuGraph, table: &Table<LaxFacts>) -> Table<LaxFacts> {
    let mut table = table.clone();
    for (first, node) in program.nodes() {
        let facts = &mut table.tensors[first.index()];
        (facts.needs_p, facts.needs_q) = (exponent(node).is_some(), false);
    }
    demand(program, &mut table);
    table
}

/// Types values by some of the checks.
struct Typing {
    checks: Checks,
}

impl Typing {
    fn typed_block(
        &self,
        graph: &MuGraph,
        table: &mut Table<LaxFacts>,
        (first, block): (TensorId, &BlockGraph),
    ) -> Result<(), String> {
        // Of all parts those of the last block in the last iteration are the smallest.
        let last: Vec<usize> = block.grid.iter().map(|blocks| blocks - 1).collect();
        let is_full = block.nodes.iter().all(|node| match node {
            TileNode::Load { tensor, grid, along_loop } => {
                let at = (&last[..], block.loop_range - 1);
                let part = ranges(graph.shape(*tensor), block, (grid, *along_loop), at);
                part.iter().all(|(_, len)| *len > 0)
            }
            _ => true,
        });
        let mut tiles: Vec<LaxFacts> = Vec::with_capacity(block.nodes.len());
        for (position, node) in block.nodes.iter().enumerate() {
            let facts = match node {
                TileNode::Load { tensor, .. } => {
                    Ok(LaxFacts { needs_p: false, needs_q: false, ..table.tensors[tensor.index()] })
                }
                TileNode::Op { op, args } => {
                    let args: Vec<LaxFacts> = args.iter().map(|arg| tiles[arg.index()]).collect();
                    self.typed(op, &args, is_full)
                }
                TileNode::RunningMax { tile } => Ok(LaxFacts { is_mask: false, ..tiles[tile.index()] }),
                TileNode::Accumulate { how, tile } => self.accumulated(*how, tiles[tile.index()], &tiles),
            };
            tiles.push(facts.map_err(|problem| format!("{first}, s{position}: {problem}"))?);
        }
        for (at, store) in block.stores.iter().enumerate() {
            table.tensors[first.index() + at] = tiles[store.tile.index()];
        }
        table.tiles.insert(first, tiles);
        Ok(())
    }

    /// The type of a result. `is_full`: no operand is ever without elements.
    fn typed(&self, op: &Op, args: &[LaxFacts], is_full: bool) -> Result<LaxFacts, String> {
        let facts = self.fragment(op, args, is_full)?;
        let sign = signed(op, args, facts.may_be_infinite, is_full);
        let is_positive = |at: usize| args[at].sign == Sign::Positive;
        let is_sum = |at: usize| args[at].sign >= Sign::NonNegative && args[at].is_support;
        let (is_defined, of_support) = match op {
            Op::Binary(BinaryFn::Div) => (is_positive(1), is_sum(1)),
            Op::Unary(UnaryFn::Sqrt) => (args[0].sign >= Sign::NonNegative, false),
            Op::RmsNorm { eps } => (*eps > Rational::ZERO, args[0].has_q && *eps >= Rational::ZERO),
            _ => (true, false),
        };
        let (root, is_support) = (root_factor(op, args), is_support(op, args, facts.has_q));
        let factor = super::sign::factor(op, args, root);
        let is_identity = matches!(op, Op::Unary(UnaryFn::Relu)) && args[0].sign >= Sign::NonNegative;
        let divided = if let Op::Binary(BinaryFn::Div) = op { args[1].factor } else { Rational::ONE };
        Ok(LaxFacts { divided, is_identity, is_defined, of_support, is_support, root, sign, factor, ..facts })
    }

    /// What the fragment says of a result.
    fn fragment(&self, op: &Op, args: &[LaxFacts], is_full: bool) -> Result<LaxFacts, String> {
        let has_q = args.iter().all(|arg| arg.has_q);
        let finite = LaxFacts { has_q, ..LaxFacts::default() };
        let infinite = args.iter().any(|arg| arg.may_be_infinite);
        let either = LaxFacts { may_be_infinite: infinite, ..finite };
        let is_refused = self.checks.make(Check::Infinity);
        let is_mask = args.iter().all(|arg| arg.is_mask);
        let refuse_infinite = |facts| {
            if infinite && is_refused { Err("minus infinity has no meaning here".into()) } else { Ok(facts) }
        };
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
            Op::Binary(BinaryFn::Max) => Ok(LaxFacts { is_mask: is_mask && !infinite, ..either }),
            // The largest of none is minus infinity.
            Op::Reduce { f: ReduceFn::Max, .. } => {
                let may_be_infinite = infinite || !is_full;
                Ok(LaxFacts { is_mask: is_mask && !may_be_infinite, may_be_infinite, ..finite })
            }
            Op::Binary(BinaryFn::Add) => Ok(either),
            Op::Binary(BinaryFn::Sub) if args[1].may_be_infinite && is_refused => {
                Err("subtracts minus infinity".into())
            }
            Op::Binary(BinaryFn::Sub) => Ok(either),
            Op::Binary(BinaryFn::Mask) => {
                Ok(LaxFacts { has_q: args[0].has_q, may_be_infinite: true, ..finite })
            }
            Op::Transpose(_) | Op::Reshape(_) | Op::Broadcast(_) => Ok(LaxFacts { is_mask, ..either }),
            Op::Slice { .. } | Op::Repeat { .. } | Op::Concat { .. } => Ok(LaxFacts { is_mask, ..either }),
            Op::Causal { .. } | Op::Below { .. } => Ok(LaxFacts { is_mask: true, ..finite }),
            Op::Unary(UnaryFn::Square | UnaryFn::Sqrt | UnaryFn::Relu | UnaryFn::Erf) => {
                refuse_infinite(finite)
            }
            Op::Matmul | Op::RmsNorm { .. } | Op::Rotate { .. } => refuse_infinite(finite),
            Op::Binary(BinaryFn::Mul) => refuse_infinite(LaxFacts { is_mask, ..finite }),
            Op::Binary(BinaryFn::Div) | Op::Reduce { f: ReduceFn::Sum, .. } => refuse_infinite(finite),
        }
    }

    fn accumulated(&self, how: Accumulation, tile: LaxFacts, tiles: &[LaxFacts]) -> Result<LaxFacts, String> {
        match how {
            Accumulation::Max => Ok(LaxFacts { is_mask: false, ..tile }),
            _ if tile.may_be_infinite && self.checks.make(Check::Infinity) => {
                Err("sums minus infinity".into())
            }
            Accumulation::Sum => Ok(LaxFacts { is_mask: false, ..tile }),
            Accumulation::RescaledSum { max, .. } if !tiles[max.index()].has_q => {
                Err("an exponential of an exponential".into())
            }
            // A factor may be zero, but then so is the sum that it multiplies; what is added last is not multiplied.
            Accumulation::RescaledSum { .. } => {
                Ok(LaxFacts { sign: tile.sign, is_support: tile.is_support, ..LaxFacts::default() })
            }
        }
    }
}

/// Marks what is needed, from the outputs up.
fn demand(graph: &MuGraph, table: &mut Table<LaxFacts>) {
    let nodes: Vec<(TensorId, &Node)> = graph.nodes().collect();
    for (first, node) in nodes.into_iter().rev() {
        match node {
            Node::Input { .. } => {}
            Node::Op { op, args } => {
                let result = table.tensors[first.index()];
                for (at, arg) in args.iter().enumerate() {
                    need(&mut table.tensors[arg.index()], wanted(op, at, result));
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
                                need(&mut tiles[arg.index()], wanted(op, at, result));
                            }
                        }
                        TileNode::Accumulate { how: Accumulation::RescaledSum { max: by, .. }, tile } => {
                            need(&mut tiles[tile.index()], same);
                            need(&mut tiles[by.index()], (false, result.needs_p));
                        }
                        TileNode::Accumulate { how: Accumulation::Sum | Accumulation::Max, tile }
                        | TileNode::RunningMax { tile } => need(&mut tiles[tile.index()], same),
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
fn wanted(op: &Op, operand: usize, result: LaxFacts) -> (bool, bool) {
    let (p, q) = (result.needs_p, result.needs_q);
    let any = p || q;
    match op {
        Op::Unary(UnaryFn::Exp | UnaryFn::Sigmoid | UnaryFn::Tanh) => (false, any),
        Op::Unary(UnaryFn::Silu | UnaryFn::Gelu) => (any, any),
        Op::Binary(BinaryFn::Mask) if operand == 1 => (any, false),
        Op::Matmul | Op::Unary(_) | Op::Scale(_) | Op::Offset(_) | Op::Binary(_) | Op::Reduce { .. } => {
            (p, q)
        }
        Op::RmsNorm { .. } | Op::Transpose(_) | Op::Reshape(_) | Op::Broadcast(_) => (p, q),
        Op::Slice { .. } | Op::Repeat { .. } | Op::Rotate { .. } => (p, q),
        Op::Concat { .. } | Op::Causal { .. } | Op::Below { .. } => (p, q),
    }
}
