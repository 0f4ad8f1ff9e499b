//! Random inputs for which a program has meaning: uniform residues, with every radicand a square.
//!
//! Radicands depend on rows: where one is no square, the rows of inputs that it may depend on are drawn again, until all
//! are squares. So inputs are uniform among those for which the program's roots exist.

use super::field::Stream;
use super::lax::LaxFacts;
use super::residues::{MaxMode, Residues, TestBase};
use super::table::Table;
use crate::array::Array;
use crate::eval::{EvalError, evaluate};
use crate::graph::{InputKind, MuGraph, Node, TensorId};
use crate::op::{Op, UnaryFn};
use std::sync::Arc;

/// How often rows are drawn again before giving up.
const ROUNDS: usize = 200;

/// Draws the inputs of a program. `needs`: which residues of each input are needed.
///
/// # Errors
/// If no inputs were found for which all roots exist.
pub fn sample(
    program: &MuGraph,
    facts: &Table<LaxFacts>,
    needs: &[(bool, bool)],
    base: &TestBase,
    stream: &mut Stream,
) -> Result<Vec<Residues>, EvalError> {
    let mut inputs: Vec<Residues> = program
        .inputs()
        .zip(needs)
        .map(|((id, _, kind), &(p, q))| draw(program.shape(id), kind, (p, q), base, stream))
        .collect();
    let roots = roots(program);
    if roots.is_empty() {
        return Ok(inputs);
    }
    let relevant = crate::validate::live(&program.with_outputs(&roots));
    let mut partial = facts.clone();
    for (facts, relevant) in partial.tensors.iter_mut().zip(&relevant) {
        if !relevant {
            *facts = LaxFacts { needs_p: false, needs_q: false, ..*facts };
        }
    }
    for _ in 0..ROUNDS {
        let mut domain = base.domain(&partial, MaxMode::Lattice);
        domain.rootless = Some(Vec::new());
        evaluate(&mut domain, program, &inputs)?;
        let rootless = domain.rootless.take().unwrap_or_default();
        if rootless.is_empty() {
            return Ok(inputs);
        }
        for (site, shape, position) in rootless {
            draw_again(program, (site.kernel, &shape, position), &mut inputs, base, stream);
        }
    }
    Err(EvalError::Unsupported("no inputs were found for which all roots exist".into()))
}

/// The tensors that roots are taken for.
fn roots(program: &MuGraph) -> Vec<TensorId> {
    let has_root =
        |node: &Node| matches!(node, Node::Op { op: Op::Unary(UnaryFn::Sqrt) | Op::RmsNorm { .. }, .. });
    program.nodes().filter(|(_, node)| has_root(node)).map(|(id, _)| id).collect()
}

fn draw(
    shape: &[usize],
    kind: InputKind,
    (p, q): (bool, bool),
    base: &TestBase,
    stream: &mut Stream,
) -> Residues {
    let mut array = |limit: u64| Arc::new(Array::from_fn(shape, |_| stream.below(limit)));
    match kind {
        InputKind::Real => {
            let (p, q) = (p.then(|| array(base.p().prime)), q.then(|| array(base.q().prime)));
            Residues { shape: shape.to_vec(), p, q }
        }
        InputKind::Mask => {
            let bits = array(2);
            Residues { shape: shape.to_vec(), p: Some(bits.clone()), q: Some(bits) }
        }
    }
}

/// Draws the rows anew that a radicand may depend on; all inputs if no rows stand out.
fn draw_again(
    program: &MuGraph,
    (kernel, shape, position): (TensorId, &[usize], usize),
    inputs: &mut [Residues],
    base: &TestBase,
    stream: &mut Stream,
) {
    let ancestors = crate::validate::live(&program.with_outputs(&[kernel]));
    let strides = crate::array::strides(shape);
    let index: Vec<usize> =
        strides.iter().zip(shape).map(|(step, extent)| position / step % extent).collect();
    let reals = || {
        program
            .inputs()
            .enumerate()
            .filter(|(_, (id, _, kind))| ancestors[id.index()] && *kind == InputKind::Real)
    };
    let has_row = |own: &[usize]| {
        own.len() == shape.len() && own.iter().zip(shape).all(|(own, &extent)| extent == 1 || *own == extent)
    };
    let any = reals().any(|(_, (id, _, _))| has_row(program.shape(id)));
    for (at, (id, _, _)) in reals() {
        let own = program.shape(id);
        if any && !has_row(own) {
            continue;
        }
        let range = |dim: usize| if any && shape[dim] > 1 { (index[dim], 1) } else { (0, own[dim]) };
        let ranges: Vec<(usize, usize)> = (0..own.len()).map(range).collect();
        let extents: Vec<usize> = ranges.iter().map(|&(_, len)| len).collect();
        let steps = crate::array::strides(own);
        let input = &mut inputs[at];
        for (part, limit) in [(&mut input.p, base.p().prime), (&mut input.q, base.q().prime)] {
            let Some(part) = part else { continue };
            let part = Arc::make_mut(part);
            for offset in crate::tiling::indices(&extents) {
                let flat =
                    offset.iter().zip(&ranges).zip(&steps).map(|((i, (start, _)), step)| (start + i) * step);
                part.data[flat.sum::<usize>()] = stream.below(limit);
            }
        }
    }
}
