//! Independence of the exponentials that one output element reads.
//!
//! The bound of a proof needs exponents that are independent, and take each value with a small chance only. That holds if each exponent has
//! a *pivot*: an element of an input that it depends on, and that no other exponent depends on, the other elements given. An exponent
//! that is affine in its pivot is uniform; another one of degree d has a value with a chance of at most d over the prime. The check is made at the extents of the test: only indices that the program treats element by
//! element are cut. What an output element reads is found backwards from it; pivots are found backwards from exponents,
//! and checked by residues. Equal exponents are one exponential.

use super::field::Stream;
use super::lax::LaxFacts;
use super::residues::{Residues, Term, TestBase, atom};
use super::sample::sample;
use super::table::Table;
use crate::array::{Array, strides};
use crate::eval::{EvalError, Site, evaluate};
use crate::graph::{MuGraph, Node, TensorId};
use crate::op::{Op, UnaryFn};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankCheck {
    /// Distinct exponentials that an output element reads, the most of any that was looked at.
    pub exponentials: usize,
    /// The inputs that have their pivots.
    pub inputs: Vec<String>,
    /// Output elements that were looked at, of those that the program does not treat alike.
    pub elements: [usize; 2],
    /// True if some exponent is not affine in its pivot, so that it may take a value as often as its degree.
    #[serde(default)]
    pub is_nonlinear: bool,
}

/// Elements of outputs that are looked at: the first of all outputs, those in the middle, and the last; each once.
pub(super) fn looked_at(program: &MuGraph) -> Vec<Vec<(TensorId, usize)>> {
    let count = |id: TensorId| crate::op::elems(program.shape(id));
    let outputs = || program.outputs().iter().map(|(_, id)| *id).filter(|id| count(*id) > 0);
    let places: [fn(usize) -> usize; 3] = [|_| 0, |count| count / 2, |count| count - 1];
    let mut all: Vec<Vec<_>> =
        places.iter().map(|place| outputs().map(|id| (id, place(count(id)))).collect()).collect();
    all.dedup();
    all
}

/// Checks that the exponentials are independent. `splits`: exponents are taken apart into what they are sums of.
///
/// # Errors
/// If they are not, or could not be shown to be.
pub(super) fn check_rank(
    program: &MuGraph,
    facts: &Table<LaxFacts>,
    base: &TestBase,
    (splits, stream): (bool, &mut Stream),
) -> Result<RankCheck, EvalError> {
    let mut check = RankCheck::default();
    if !program.nodes().any(|(_, node)| exponent(node).is_some()) {
        return Ok(check);
    }
    let probe = Probe { program, facts, base, splits };
    let inputs = sample(program, &vec![(true, true); program.inputs().count()], base, stream);
    let usual = probe.exponents(&inputs)?;
    let mut names = BTreeSet::new();
    check.elements[1] = program.outputs().iter().map(|(_, id)| crate::op::elems(program.shape(*id))).sum();
    let all = program
        .outputs()
        .iter()
        .flat_map(|(_, id)| (0..crate::op::elems(program.shape(*id))).map(|at| (*id, at)));
    let all: Vec<(TensorId, usize)> = all.collect();
    // All elements together, if they read no more than what is independent; else some of them.
    let is_joint = probe.pivots(&inputs, &usual, &probe.groups(&usual, &all), stream)?.is_some();
    for elements in if is_joint { vec![all] } else { looked_at(program) } {
        check.elements[0] += elements.len();
        // What one output reads may be in a candidate's other output, so that all are independent together.
        let groups = probe.groups(&usual, &elements);
        let exponentials = groups.iter().map(|group| group.atoms.len()).sum();
        check.exponentials = check.exponentials.max(exponentials);
        let (pivots, dependence) = probe.pivots(&inputs, &usual, &groups, stream)?.ok_or_else(|| {
            EvalError::Unsupported("exponents that an output element reads are not independent".into())
        })?;
        names.extend(pivots);
        check.is_nonlinear |= dependence == Dependence::Other;
    }
    let name = |at: usize| program.inputs().nth(at).map(|(_, name, _)| name.to_owned());
    check.inputs = names.into_iter().filter_map(name).collect();
    Ok(check)
}

/// What an exponential function takes, if a node is one.
fn exponent(node: &Node) -> Option<TensorId> {
    match node {
        Node::Op { op: Op::Unary(f), args } => {
            let is_exponential =
                matches!(f, UnaryFn::Exp | UnaryFn::Sigmoid | UnaryFn::Silu | UnaryFn::Tanh | UnaryFn::Gelu);
            is_exponential.then(|| args[0])
        }
        Node::Input { .. } | Node::Op { .. } | Node::Block(_) => None,
    }
}

/// Values of the terms of exponents, by site: where they are zero they are of no interest.
type Values = BTreeMap<(Site, usize), (Arc<Array<u64>>, bool)>;

/// Exponents of one site and term, by position.
struct Group {
    key: (Site, usize),
    /// What is taken as exponent.
    argument: TensorId,
    atoms: Vec<usize>,
}

/// Elements of inputs: the input's number and the position.
type Pivots = Vec<(usize, usize)>;

/// How exponents depend on their own pivots.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dependence {
    /// Affinely, with a factor that is not zero.
    Affine,
    /// In any other way.
    Other,
}

struct Probe<'a> {
    program: &'a MuGraph,
    facts: &'a Table<LaxFacts>,
    base: &'a TestBase,
    splits: bool,
}

impl Probe<'_> {
    fn exponents(&self, inputs: &[Residues]) -> Result<Values, EvalError> {
        let mut domain = self.base.domain(self.facts);
        domain.notes.exponents = true;
        domain.splits = self.splits;
        evaluate(&mut domain, self.program, inputs)?;
        let mut values = Values::new();
        for (site, (live, terms)) in std::mem::take(&mut domain.notes.kept) {
            for (number, Term { values: all, is_gelu, .. }) in terms.into_iter().enumerate() {
                let is_live = |at: usize| live.as_ref().is_none_or(|live| live[at]);
                let of_interest = |at: usize| is_live(at) && !domain.is_maximum(all.data[at]);
                let kept = Array::from_fn(&all.shape, |at| if of_interest(at) { all.data[at] } else { 0 });
                values.insert((site, number), (Arc::new(kept), is_gelu));
            }
        }
        Ok(values)
    }

    /// The exponents that output elements read, each value once.
    fn groups(&self, usual: &Values, elements: &[(TensorId, usize)]) -> Vec<Group> {
        let read = read(self.program, elements);
        let mut seen = BTreeSet::new();
        let mut groups = Vec::new();
        for (&key, (values, is_gelu)) in usual {
            let Some(argument) = self.program.definition(key.0.kernel).and_then(exponent) else { continue };
            let Some(marks) = &read[key.0.kernel.index()] else { continue };
            let is_new = |at: &usize| {
                marks[*at] && values.data[*at] != 0 && seen.insert(atom(values.data[*at], *is_gelu))
            };
            let atoms: Vec<usize> = (0..values.data.len()).filter(is_new).collect();
            if !atoms.is_empty() {
                groups.push(Group { key, argument, atoms });
            }
        }
        groups
    }

    /// Inputs' elements that an element of a tensor depends on, one for each way through the program.
    fn ends(&self, (tensor, at): (TensorId, usize), ends: &mut Vec<(usize, usize)>) {
        match self.program.definition(tensor) {
            Some(Node::Input { .. }) => {
                let number = self.program.inputs().position(|(id, _, _)| id == tensor);
                ends.extend(number.map(|number| (number, at)));
            }
            Some(Node::Op { op, args }) if ends.len() < MOST_WAYS => {
                let shapes: Vec<&[usize]> = args.iter().map(|arg| self.program.shape(*arg)).collect();
                for (number, arg) in args.iter().enumerate() {
                    let one = sources(op, &shapes, (self.program.shape(tensor), at), number, 1);
                    one.into_iter().for_each(|source| self.ends((*arg, source), ends));
                }
            }
            _ => {}
        }
    }

    /// Inputs with pivots of all groups together, and how exponents depend on these; `None` if there are none.
    fn pivots(
        &self,
        inputs: &[Residues],
        usual: &Values,
        groups: &[Group],
        stream: &mut Stream,
    ) -> Result<Option<(BTreeSet<usize>, Dependence)>, EvalError> {
        let available: usize = inputs.iter().map(|input| crate::op::elems(&input.shape)).sum();
        if groups.iter().map(|group| group.atoms.len()).sum::<usize>() > available {
            return Ok(None);
        }
        let mut chosen: Vec<Pivots> = Vec::new();
        let mut dependence = Dependence::Affine;
        for group in groups {
            let ways: Vec<Pivots> = group
                .atoms
                .iter()
                .map(|&at| {
                    let mut ends = Vec::new();
                    self.ends((group.argument, at), &mut ends);
                    ends
                })
                .collect();
            let count = ways.iter().map(Vec::len).min().unwrap_or(0);
            let mut found = false;
            for way in 0..count {
                chosen.push(ways.iter().map(|ends| ends[way]).collect());
                let so_far = (&groups[..chosen.len()], chosen.as_slice());
                if let Some(own) = self.dependence(inputs, usual, so_far, stream)? {
                    (found, dependence) = (true, own);
                    break;
                }
                chosen.pop();
            }
            if !found {
                return Ok(None);
            }
        }
        Ok(Some((chosen.iter().flatten().map(|(input, _)| *input).collect(), dependence)))
    }

    /// How each exponent depends on its own pivot, if it does, and on no other one.
    ///
    /// All pivots are moved by `r`, by `2 r`, and by other random numbers: what changes in proportion to its own pivot's move is affine in it
    /// and does not depend on the others. Otherwise one half of the pivots is moved at a time, by each bit of their numbers, so that
    /// any two are told apart: then exponents change whose own pivots were moved, and no others.
    fn dependence(
        &self,
        inputs: &[Residues],
        usual: &Values,
        (groups, pivots): (&[Group], &[Pivots]),
        stream: &mut Stream,
    ) -> Result<Option<Dependence>, EvalError> {
        let q = self.base.q();
        let all: Vec<(usize, usize)> = pivots.iter().flatten().copied().collect();
        if all.iter().collect::<BTreeSet<_>>().len() < all.len() {
            return Ok(None);
        }
        let mut draw = || -> Vec<u64> { all.iter().map(|_| 1 + stream.below(q.prime - 1)).collect() };
        let (once, other) = (draw(), draw());
        let twice: Vec<u64> = once.iter().map(|&r| q.add(r, r)).collect();
        let moved = |by: &[u64]| self.changes(inputs, (usual, groups), &all, by);
        let (Some(first), Some(second), Some(third)) = (moved(&once)?, moved(&twice)?, moved(&other)?) else {
            return Ok(None);
        };
        let is_affine = |at: usize| {
            second[at] == q.add(first[at], first[at])
                && q.mul(first[at], other[at]) == q.mul(third[at], once[at])
        };
        if first.contains(&0) {
            return Ok(None);
        }
        if (0..all.len()).all(is_affine) {
            return Ok(Some(Dependence::Affine));
        }
        let bits = usize::BITS - (all.len() - 1).leading_zeros();
        for (bit, side) in (0..bits).flat_map(|bit| [(bit, 0), (bit, 1)]) {
            let is_moved = |at: usize| at >> bit & 1 == side;
            let by: Vec<u64> = (0..all.len()).map(|at| if is_moved(at) { once[at] } else { 0 }).collect();
            let Some(changes) = moved(&by)? else { return Ok(None) };
            if changes.iter().enumerate().any(|(at, &change)| is_moved(at) != (change != 0)) {
                return Ok(None);
            }
        }
        Ok(Some(Dependence::Other))
    }

    /// What exponents change by when elements of inputs are moved; `None` if the program is another one then.
    fn changes(
        &self,
        inputs: &[Residues],
        (usual, groups): (&Values, &[Group]),
        elements: &[(usize, usize)],
        by: &[u64],
    ) -> Result<Option<Vec<u64>>, EvalError> {
        let q = self.base.q();
        let mut inputs = inputs.to_vec();
        for (&(input, at), &by) in elements.iter().zip(by) {
            let Some(part) = &mut inputs[input].q else { return Ok(None) };
            let part = Arc::make_mut(part);
            part.data[at] = q.add(part.data[at], by);
        }
        let moved = self.exponents(&inputs)?;
        let mut changes = Vec::with_capacity(elements.len());
        for group in groups {
            let (before, after) = (&usual[&group.key].0, moved.get(&group.key).map(|(after, _)| after));
            let Some(after) = after.filter(|after| after.shape == before.shape) else { return Ok(None) };
            changes.extend(group.atoms.iter().map(|&at| q.sub(after.data[at], before.data[at])));
        }
        Ok(Some(changes))
    }
}

/// Which elements of each tensor output elements depend on; `None` of tensors of which they depend on none.
pub(super) fn read(program: &MuGraph, elements: &[(TensorId, usize)]) -> Vec<Option<Vec<bool>>> {
    let count = |id: TensorId| crate::op::elems(program.shape(id));
    let mut read: Vec<Option<Vec<bool>>> = vec![None; program.shapes().len()];
    for &(output, element) in elements {
        read[output.index()].get_or_insert_with(|| vec![false; count(output)])[element] = true;
    }
    let nodes: Vec<(TensorId, &Node)> = program.nodes().collect();
    for (first, node) in nodes.into_iter().rev() {
        let (Node::Op { op, args }, Some(marks)) = (node, read[first.index()].clone()) else { continue };
        let shapes: Vec<&[usize]> = args.iter().map(|arg| program.shape(*arg)).collect();
        for (number, arg) in args.iter().enumerate() {
            let slot = read[arg.index()].get_or_insert_with(|| vec![false; count(*arg)]);
            for at in (0..marks.len()).filter(|&at| marks[at]) {
                for source in sources(op, &shapes, (program.shape(first), at), number, usize::MAX) {
                    slot[source] = true;
                }
            }
        }
    }
    read
}

/// Ways from an exponent to inputs that are tried.
const MOST_WAYS: usize = 16;

/// Elements of an operand that an element of a result depends on, at most so many.
fn sources(
    op: &Op,
    shapes: &[&[usize]],
    (shape, at): (&[usize], usize),
    number: usize,
    most: usize,
) -> Vec<usize> {
    let own = shapes[number];
    let steps = strides(own);
    let index: Vec<usize> =
        strides(shape).iter().zip(shape).map(|(step, extent)| at / step % extent).collect();
    let flat = |index: &[usize]| -> usize {
        let in_place = index.iter().zip(own).map(|(i, &extent)| if extent == 1 { 0 } else { *i });
        in_place.zip(&steps).map(|(i, step)| i * step).sum()
    };
    // All elements along a dimension.
    let along = |dim: usize, every: usize, start: usize| -> Vec<usize> {
        let mut index = index.clone();
        let positions = (start..own[dim]).step_by(every).take(most);
        positions
            .map(|position| {
                index[dim] = position;
                flat(&index)
            })
            .collect()
    };
    let at_dim = |dim: usize, position: Option<usize>| -> Vec<usize> {
        let mut index = index.clone();
        let Some(position) = position else { return Vec::new() };
        index[dim] = position;
        vec![flat(&index)]
    };
    match op {
        Op::Matmul => along(own.len() - if number == 0 { 1 } else { 2 }, 1, 0),
        Op::Unary(_) | Op::Scale(_) | Op::Offset(_) | Op::Binary(_) | Op::Broadcast(_) => vec![flat(&index)],
        Op::Reduce { dim, keep, .. } => along(*dim, *keep, index[*dim]),
        // Its own element first.
        Op::RmsNorm { .. } => {
            let others = along(own.len() - 1, 1, 0).into_iter().filter(|&other| other != at);
            std::iter::once(at).chain(others).take(most).collect()
        }
        Op::Transpose(perm) => {
            let mut from = vec![0; perm.len()];
            perm.iter().zip(&index).for_each(|(&dim, &i)| from[dim] = i);
            vec![flat(&from)]
        }
        Op::Reshape(_) => vec![at],
        Op::Slice { dim, start, .. } => at_dim(*dim, Some(index[*dim] + start)),
        Op::Repeat { dim, times } => at_dim(*dim, Some(index[*dim] / (*times).max(1))),
        Op::Rotate { dim, group } => {
            let half = index[*dim] / group % 2;
            at_dim(*dim, Some(if half == 0 { index[*dim] + group } else { index[*dim] - group }))
        }
        Op::Concat { dim } => {
            let before: usize = shapes[..number].iter().map(|shape| shape[*dim]).sum();
            at_dim(*dim, index[*dim].checked_sub(before).filter(|&i| i < own[*dim]))
        }
        Op::Causal { .. } | Op::Below { .. } => Vec::new(),
    }
}
