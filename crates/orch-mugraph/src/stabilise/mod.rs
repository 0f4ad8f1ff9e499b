//! Stable forms: exponentials relative to running maxima, wherever that changes nothing over the real numbers.
//!
//! A µGraph that was found without maxima is rewritten one exponential at a time. Four things must agree: the static
//! degrees ([`homogeneity`]); a random test, that scaling each row of the exponential leaves the outputs as they are; the
//! rewriting itself; and a proof that the result equals the program, with maxima as symbols of any value
//! ([`verify`](crate::verify())). In contrast to Mirage's online softmax, maxima leave a kernel with its partial sums, and
//! nothing is taken on trust.

mod homogeneity;
mod maxima;
mod rewrite;

pub use homogeneity::{Axis, AxisExtents, AxisGroup, Dependence, Refusal, ValueKey, analyse};
pub use maxima::check_maxima;
pub use rewrite::rewrite;

use crate::eval::{EvalError, Site, outputs};
use crate::graph::{MuGraph, Node, TileNode};
use crate::op::{BinaryFn, Op, UnaryFn};
use crate::verify::PROOF_BITS;
use crate::verify::field::{Stream, scramble};
use crate::verify::residues::{Residues, Scaling, TestBase};
use crate::verify::{
    Certificate, Checks, Pair, Rejection, VerifyOptions, isomorph, verify, with_given_masks,
};

/// A stable form.
#[derive(Clone, Debug)]
pub struct Stable {
    /// The µGraph.
    pub graph: MuGraph,
    /// What was rewritten, in order.
    pub groups: Vec<AxisGroup>,
    /// That it computes the program.
    pub certificate: Certificate,
}

/// Why there is no stable form.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unstable {
    /// Maxima cannot be subtracted.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Scaling the rows of an exponential changes the outputs.
    #[error("{0}: scaling the rows of the exponential changes the outputs")]
    NotInvariant(String),
    /// The stable form was not shown to be equal to the program.
    #[error("the stable form: {0}")]
    Rejected(#[from] Rejection),
}

/// The stable form of a µGraph that computes a program, proved.
///
/// # Errors
/// If there is none, or the proof fails.
pub fn stabilise(
    program: &MuGraph,
    candidate: &MuGraph,
    options: &VerifyOptions,
) -> Result<Stable, Unstable> {
    check_maxima(candidate)?;
    let mut graph = candidate.clone();
    let mut groups = Vec::new();
    while let Some(place) = unstable(&graph) {
        let group = analyse(&graph, place)?;
        // Constants are exponentials of zero, which would have to be scaled too.
        if group.sinks.is_empty() {
            let is_invariant =
                |program: &MuGraph, graph: &MuGraph| match isomorph(program, graph, Checks::ALL) {
                    Some(small) => check_invariance(&small.program, &small.candidate, &group, options.seed),
                    None => check_invariance(program, graph, &group, options.seed),
                };
            match with_given_masks(program, &graph) {
                Some([program, graph]) if is_invariant(&program, &graph).is_ok() => {}
                _ => is_invariant(program, &graph)?,
            }
        }
        graph = rewrite(&graph, &group)?;
        groups.push(group);
    }
    let certificate = verify(program, &graph, options)?;
    Ok(Stable { graph, groups, certificate })
}

/// The first exponential whose exponents have no maximum subtracted.
pub fn unstable(graph: &MuGraph) -> Option<ValueKey> {
    let exp = Op::Unary(UnaryFn::Exp);
    for (first, node) in graph.nodes() {
        match node {
            Node::Op { op, args } if *op == exp => {
                let relative = graph.definition(args[0]).is_some_and(|node| match node {
                    Node::Op { op, args } => is_relative(graph, op, args),
                    Node::Input { .. } | Node::Block(_) => false,
                });
                if !relative {
                    return Some((first, None));
                }
            }
            Node::Block(block) => {
                for (position, node) in block.nodes.iter().enumerate() {
                    if let TileNode::Op { op, args } = node
                        && *op == exp
                        && !is_relative_tile(&block.nodes, args[0].index())
                    {
                        return Some((first, Some(position as u32)));
                    }
                }
            }
            Node::Input { .. } | Node::Op { .. } => {}
        }
    }
    None
}

fn is_relative(graph: &MuGraph, op: &Op, args: &[crate::TensorId]) -> bool {
    let op_of = |id| match graph.definition(id) {
        Some(Node::Op { op, args }) => Some((op, args)),
        _ => None,
    };
    match op {
        Op::Scale(_) => op_of(args[0]).is_some_and(|(op, args)| is_relative(graph, op, args)),
        Op::Binary(BinaryFn::Sub) => op_of(args[1]).is_some_and(|(op, _)| *op == Op::Unary(UnaryFn::Guard)),
        _ => false,
    }
}

fn is_relative_tile(nodes: &[TileNode], at: usize) -> bool {
    match &nodes[at] {
        TileNode::Op { op: Op::Scale(_), args } => is_relative_tile(nodes, args[0].index()),
        TileNode::Op { op: Op::Binary(BinaryFn::Sub), args } => {
            matches!(&nodes[args[1].index()], TileNode::Op { op: Op::Unary(UnaryFn::Guard), .. })
        }
        _ => false,
    }
}

/// A random test that the outputs do not change if each row of an exponential is multiplied by a factor of its own. Inputs
/// are such that the program, whose roots are those of the µGraph, has meaning.
fn check_invariance(
    program: &MuGraph,
    graph: &MuGraph,
    group: &AxisGroup,
    seed: u64,
) -> Result<(), Unstable> {
    let outside = |problem: String| Unstable::Rejected(Rejection::Outside(problem));
    let pair = Pair::new(program, graph, Checks::ALL)?;
    let mut stream = Stream::new(scramble(seed ^ 0x5ca1e));
    let base = TestBase::new(PROOF_BITS, &mut stream);
    let run = |inputs: &[Residues], scaled| {
        let mut domain = base.domain(pair.candidate_facts());
        domain.scaled = scaled;
        outputs(&mut domain, graph, inputs)
    };
    for _ in 0..crate::verify::ATTEMPTS {
        let inputs = pair.sample(&base, &mut stream);
        let both =
            run(&inputs, None).and_then(|plain| Ok((plain, run(&inputs, Some(scaling(graph, group)))?)));
        match both {
            Ok((plain, scaled)) if plain == scaled => return Ok(()),
            Ok(_) => {
                let tile = group.place.1.map_or(String::new(), |tile| format!(", s{tile}"));
                return Err(Unstable::NotInvariant(format!("{}{tile}", group.place.0)));
            }
            Err(EvalError::Undefined(_)) => {}
            Err(e) => return Err(outside(e.to_string())),
        }
    }
    Err(outside("a program without a defined sample".into()))
}

/// A factor per row: equal along the axes that are summed.
fn scaling(graph: &MuGraph, group: &AxisGroup) -> Scaling {
    let grid = graph.nodes().find_map(|(first, node)| match node {
        Node::Block(block) if first == group.place.0 => Some(block.grid.clone()),
        _ => None,
    });
    let (grid, reduced) = (grid.unwrap_or_default(), group.reduced.clone());
    let row = move |site: Site, shape: &[usize], position: usize| {
        let mut number = 0;
        let mut mix = |axis: Axis, index: usize| {
            let index = if reduced.contains(&axis) { 0 } else { index };
            number = scramble(number ^ index as u64);
        };
        for (dim, (step, extent)) in crate::array::strides(shape).iter().zip(shape).enumerate() {
            mix(Axis::Dim(dim), position / step % extent);
        }
        for (axis, (step, extent)) in crate::array::strides(&grid).iter().zip(&grid).enumerate() {
            mix(Axis::Grid(axis), site.block as usize / step % extent);
        }
        mix(Axis::Loop, site.iteration as usize);
        number
    };
    Scaling { kernel: group.place.0, tile: group.place.1, row: Box::new(row) }
}
