//! Maxima that a µGraph has already: each must be of no more than one row.
//!
//! A maximum of more elements than are summed into one divisor is right over the real numbers, but where one row's
//! exponents are all far below another's, all its exponentials underflow. The check takes the maxima out, which keeps every
//! place, finds the rows ([`analyse`]), and compares what the maximum is taken of.

use super::homogeneity::{Axis, Refusal, ValueKey, analyse, refuse};
use crate::graph::{Accumulation, BlockGraph, GraphError, MuGraph, Node, TensorId, TileId, TileNode};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::rational::Rational;
use crate::tiling::tile_shapes;

/// Checks the maxima that exponentials are relative to.
///
/// # Errors
/// The first exponential that may underflow with all of its row.
pub fn check_maxima(graph: &MuGraph) -> Result<(), Refusal> {
    let mut plain = MuGraph::new(graph.name.clone());
    let mut relative: Vec<Relative> = Vec::new();
    let mut maxima = vec![false; graph.shapes().len()];
    for (first, node) in graph.nodes() {
        match node {
            Node::Input { name, kind, shape } => {
                plain.input_of(name.clone(), *kind, shape);
            }
            Node::Op { op, args } => {
                let places =
                    Places { defined: &|id: u32| op_of(graph, id), maximum: &|id: u32| maxima[id as usize] };
                let ids: Vec<u32> = args.iter().map(|arg| arg.0).collect();
                let (op, kept) = places.without_maxima(op, &ids);
                if let Some((exponent, max)) = places.exponential(op, &kept) {
                    let shapes = [exponent, max].map(|id| graph.shape(TensorId(id)).to_vec());
                    relative.push(Relative { place: (first, None), shapes, is_running: false });
                }
                maxima[first.index()] = is_maximum(op_of(graph, first.0), &places);
                let kept: Vec<TensorId> = kept.into_iter().map(TensorId).collect();
                plain.op(op.clone(), &kept).map_err(internal)?;
            }
            Node::Block(block) => {
                let (stripped, tiles) = strip(graph, block, (first, &maxima), &mut relative)?;
                for (at, store) in block.stores.iter().enumerate() {
                    maxima[first.index() + at] = tiles[store.tile.index()];
                }
                plain.block(stripped).map_err(internal)?;
            }
        }
    }
    for (name, id) in graph.outputs() {
        plain.output(name.clone(), *id).map_err(internal)?;
    }
    relative.iter().try_for_each(|one| one.check(&plain))
}

const ONCE: &Op = &Op::Scale(Rational::ONE);

fn internal(e: GraphError) -> Refusal {
    Refusal { place: e.place, reason: e.problem }
}

/// An exponential of an exponent less a maximum.
struct Relative {
    place: ValueKey,
    /// Of the exponent and of the maximum.
    shapes: [Vec<usize>; 2],
    is_running: bool,
}

impl Relative {
    fn check(&self, plain: &MuGraph) -> Result<(), Refusal> {
        let reduced = analyse(plain, self.place)?.reduced;
        let [exponent, max] = &self.shapes;
        let is_wide = |dim: usize| exponent[dim] > 1 && max[dim] == 1 && !reduced.contains(&Axis::Dim(dim));
        if (0..exponent.len()).any(is_wide) || (self.is_running && !reduced.contains(&Axis::Loop)) {
            return Err(refuse(
                self.place,
                "is relative to a maximum of more than its row, which may underflow",
            ));
        }
        Ok(())
    }
}

/// What defines a value: an operator and its operands.
type Definition<'a> = Option<(&'a Op, Vec<u32>)>;

/// Definitions of values, and which are maxima.
struct Places<'a, 'b> {
    defined: &'b dyn Fn(u32) -> Definition<'a>,
    maximum: &'b dyn Fn(u32) -> bool,
}

impl Places<'_, '_> {
    /// `a` and `m` of `a - guard(m)`, seen through factors.
    fn relative(&self, id: u32) -> Option<(u32, u32)> {
        match (self.defined)(id)? {
            (Op::Scale(_), args) => self.relative(args[0]),
            (Op::Binary(BinaryFn::Sub), args) => match (self.defined)(args[1])? {
                (Op::Unary(UnaryFn::Guard), guarded) => Some((args[0], guarded[0])),
                _ => None,
            },
            _ => None,
        }
    }

    /// True of a factor that makes what is relative to one maximum relative to another one.
    fn is_factor(&self, id: u32) -> bool {
        match (self.defined)(id) {
            Some((Op::Repeat { .. } | Op::Transpose(_), args)) => self.is_factor(args[0]),
            Some((Op::Unary(UnaryFn::Exp), args)) => {
                self.relative(args[0]).is_some_and(|(exponent, _)| (self.maximum)(exponent))
            }
            _ => false,
        }
    }

    /// The same operator where nothing is relative to a maximum.
    fn without_maxima<'o>(&self, op: &'o Op, args: &[u32]) -> (&'o Op, Vec<u32>) {
        match op {
            Op::Binary(BinaryFn::Mul) if self.is_factor(args[1]) => (ONCE, vec![args[0]]),
            Op::Binary(BinaryFn::Mul) if self.is_factor(args[0]) => (ONCE, vec![args[1]]),
            Op::Binary(BinaryFn::Sub) => match (self.defined)(args[1]) {
                Some((Op::Unary(UnaryFn::Guard), _)) => (ONCE, vec![args[0]]),
                _ => (op, args.to_vec()),
            },
            op => (op, args.to_vec()),
        }
    }

    /// The exponent and the maximum, if this is an exponential relative to one.
    fn exponential(&self, op: &Op, args: &[u32]) -> Option<(u32, u32)> {
        let relative = (*op == Op::Unary(UnaryFn::Exp)).then(|| self.relative(args[0])).flatten();
        relative.filter(|(exponent, _)| !(self.maximum)(*exponent))
    }
}

fn op_of(graph: &MuGraph, id: u32) -> Definition<'_> {
    match graph.definition(TensorId(id)) {
        Some(Node::Op { op, args }) => Some((op, args.iter().map(|arg| arg.0).collect())),
        _ => None,
    }
}

fn is_maximum(definition: Definition<'_>, places: &Places<'_, '_>) -> bool {
    match definition {
        Some((Op::Binary(BinaryFn::Max) | Op::Reduce { f: ReduceFn::Max, .. }, _)) => true,
        Some((Op::Unary(UnaryFn::Guard) | Op::Transpose(_) | Op::Repeat { .. } | Op::Broadcast(_), args)) => {
            (places.maximum)(args[0])
        }
        _ => false,
    }
}

/// A block graph without maxima, and which of its tiles are maxima.
fn strip(
    graph: &MuGraph,
    block: &BlockGraph,
    (first, tensors): (TensorId, &[bool]),
    relative: &mut Vec<Relative>,
) -> Result<(BlockGraph, Vec<bool>), Refusal> {
    let shapes = tile_shapes(block, graph.shapes(), (&vec![0; block.grid.len()], 0)).map_err(internal)?;
    let mut plain = BlockGraph { nodes: Vec::new(), ..block.clone() };
    let mut maxima: Vec<bool> = Vec::new();
    let defined = |id: u32| match &block.nodes[id as usize] {
        TileNode::Op { op, args } => Some((op, args.iter().map(|arg| arg.0).collect())),
        _ => None,
    };
    for (position, node) in block.nodes.iter().enumerate() {
        let known = maxima.clone();
        let places = Places { defined: &defined, maximum: &|id| known[id as usize] };
        let (node, is_one) = match node {
            TileNode::Op { op, args } => {
                let ids: Vec<u32> = args.iter().map(|arg| arg.0).collect();
                let (kept_op, kept) = places.without_maxima(op, &ids);
                if let Some((exponent, max)) = places.exponential(kept_op, &kept) {
                    let is_running = matches!(block.nodes[max as usize], TileNode::RunningMax { .. });
                    let shapes = [exponent, max].map(|id| shapes[id as usize].clone());
                    relative.push(Relative { place: (first, Some(position as u32)), shapes, is_running });
                }
                let is_one = is_maximum(defined(position as u32), &places);
                let args = kept.into_iter().map(TileId).collect();
                (TileNode::Op { op: kept_op.clone(), args }, is_one)
            }
            TileNode::Load { tensor, .. } => (node.clone(), tensors[tensor.index()]),
            TileNode::Accumulate { how: Accumulation::RescaledSum { .. }, tile } => {
                (TileNode::Accumulate { how: Accumulation::Sum, tile: *tile }, false)
            }
            TileNode::Accumulate { how, .. } => (node.clone(), *how == Accumulation::Max),
            TileNode::RunningMax { .. } => (node.clone(), true),
        };
        plain.nodes.push(node);
        maxima.push(is_one);
    }
    Ok((plain, maxima))
}
