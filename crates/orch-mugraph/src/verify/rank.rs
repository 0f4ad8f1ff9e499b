//! Independence of the exponentials that one output element reads.
//!
//! The bound of a proof needs exponents that are independent, and take each value with a small chance only. That holds if each exponent has
//! a *pivot*: an element of an input that it depends on, and that no other exponent depends on, the other elements given. An exponent
//! that is affine in its pivot is uniform; another one of degree d has a value with a chance of at most d over the prime. The check is made at the extents of the test: only indices that the program treats element by
//! element are cut. What an output element reads is found backwards from it; pivots are found backwards from exponents,
//! and checked by residues. Equal exponents are one exponential.

use super::field::{Modulus, Stream};
use super::lax::{LaxFacts, lax_of_exponents};
use super::residues::{Residues, Term, TestBase, atom};
use super::sample::sample;
use super::table::Table;
use crate::array::{Array, repeated, strides};
use crate::eval::{EvalError, Site, evaluate};
use crate::graph::{MuGraph, Node, TensorId};
use crate::op::{Op, UnaryFn};
use orch_ir::permutation::inverse;
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
    let facts = &lax_of_exponents(program, facts);
    let probe = Probe { program, facts, base, splits };
    let needs = program.inputs().map(|(id, ..)| {
        let facts = facts.tensors[id.index()];
        (facts.needs_p, facts.needs_q)
    });
    let mut inputs = sample(program, &needs.collect::<Vec<_>>(), base, stream);
    let usual = probe.exponents(&inputs)?;
    let mut names = BTreeSet::new();
    check.elements[1] = program.outputs().iter().map(|(_, id)| crate::op::elems(program.shape(*id))).sum();
    let all = program
        .outputs()
        .iter()
        .flat_map(|(_, id)| (0..crate::op::elems(program.shape(*id))).map(|at| (*id, at)));
    let all: Vec<(TensorId, usize)> = all.collect();
    let mut add = |elements: usize, groups: &[Group], (pivots, dependence): (BTreeSet<usize>, Dependence)| {
        check.elements[0] += elements;
        // What one output reads may be in a candidate's other output, so that all are independent together.
        let exponentials = groups.iter().map(|group| group.atoms.len()).sum();
        check.exponentials = check.exponentials.max(exponentials);
        names.extend(pivots);
        check.is_nonlinear |= dependence == Dependence::Other;
    };
    // All elements together, if they read no more than what is independent; else some of them.
    let groups = probe.groups(&usual, &all);
    match probe.pivots(&mut inputs, &usual, &groups, stream)? {
        Some(independent) => add(all.len(), &groups, independent),
        None => {
            for elements in looked_at(program) {
                let groups = probe.groups(&usual, &elements);
                let independent = probe.pivots(&mut inputs, &usual, &groups, stream)?.ok_or_else(|| {
                    EvalError::Unsupported(
                        "exponents that an output element reads are not independent".into(),
                    )
                })?;
                add(elements.len(), &groups, independent);
            }
        }
    }
    let name = |at: usize| program.inputs().nth(at).map(|(_, name, _)| name.to_owned());
    check.inputs = names.into_iter().filter_map(name).collect();
    Ok(check)
}

/// What an exponential function takes, if a node is one.
pub(super) fn exponent(node: &Node) -> Option<TensorId> {
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
                marks.data[*at] && values.data[*at] != 0 && seen.insert(atom(values.data[*at], *is_gelu))
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
                    if let Some(source) = source(op, &shapes, (self.program.shape(tensor), at), number) {
                        self.ends((*arg, source), ends);
                    }
                }
            }
            _ => {}
        }
    }

    /// Inputs with pivots of all groups together, and how exponents depend on these; `None` if there are none.
    fn pivots(
        &self,
        inputs: &mut [Residues],
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
        inputs: &mut [Residues],
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
        let mut moved = |by: &[u64]| self.changes(inputs, (usual, groups), &all, by);
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

    /// What exponents change by when elements of inputs are moved, which are moved back then; `None` if the program is another one
    /// with them.
    fn changes(
        &self,
        inputs: &mut [Residues],
        (usual, groups): (&Values, &[Group]),
        elements: &[(usize, usize)],
        by: &[u64],
    ) -> Result<Option<Vec<u64>>, EvalError> {
        let q = self.base.q();
        if elements.iter().any(|&(input, _)| inputs[input].q.is_none()) {
            return Ok(None);
        }
        let change = |inputs: &mut [Residues], f: fn(&Modulus, u64, u64) -> u64| {
            for (&(input, at), &by) in elements.iter().zip(by) {
                let Some(part) = &mut inputs[input].q else { continue };
                let slot = &mut Arc::make_mut(part).data[at];
                *slot = f(&q, *slot, by);
            }
        };
        change(inputs, Modulus::add);
        let moved = self.exponents(inputs);
        change(inputs, Modulus::sub);
        let moved = moved?;
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
pub(super) fn read(program: &MuGraph, elements: &[(TensorId, usize)]) -> Vec<Option<Array<bool>>> {
    let mut read: Vec<Option<Array<bool>>> = vec![None; program.shapes().len()];
    for &(output, element) in elements {
        read[output.index()].get_or_insert_with(|| Array::full(program.shape(output), false)).data[element] =
            true;
    }
    let nodes: Vec<(TensorId, &Node)> = program.nodes().collect();
    for (first, node) in nodes.into_iter().rev() {
        let (Node::Op { op, args }, Some(marks)) = (node, read[first.index()].clone()) else { continue };
        let shapes: Vec<&[usize]> = args.iter().map(|arg| program.shape(*arg)).collect();
        for (number, arg) in args.iter().enumerate() {
            let more = sources(op, &shapes, &marks, number);
            match &mut read[arg.index()] {
                Some(known) => known.data.iter_mut().zip(more.data).for_each(|(known, is)| *known |= is),
                none => *none = Some(more),
            }
        }
    }
    read
}

/// The elements of an operand that some elements of a result depend on.
fn sources(op: &Op, shapes: &[&[usize]], marks: &Array<bool>, number: usize) -> Array<bool> {
    let own = shapes[number];
    let or = |a: bool, b: bool| a || b;
    // All elements along a dimension whose only element in `marks` is marked; of repeated ones the one that they are.
    let spread = |marks: &Array<bool>, dim: Option<usize>| {
        let one = dim.map_or(own.to_vec(), |dim| crate::op::with(own, dim, 1));
        let mut lines = Array::full(&one, false);
        repeated(&one, &marks.shape).zip(&marks.data).for_each(|(at, &is)| lines.data[at] |= is);
        lines.broadcast(own)
    };
    let along = |dim: usize, lost: usize| spread(&marks.reduce(lost, 1, false, or), Some(dim));
    let rank = own.len();
    match op {
        Op::Matmul if number == 0 => along(rank - 1, rank - 1),
        Op::Matmul => along(rank - 2, rank - 2),
        Op::RmsNorm { .. } => along(rank - 1, rank - 1),
        Op::Unary(_) | Op::Scale(_) | Op::Offset(_) | Op::Binary(_) | Op::Broadcast(_) => spread(marks, None),
        Op::Reduce { dim, keep, .. } => {
            let (_, extent, inner) = Array::<bool>::around(own, *dim);
            let place = |at: usize| {
                let (outer, along, rest) = (at / (extent * inner), at / inner % extent, at % inner);
                (outer * keep + along % keep) * inner + rest
            };
            Array::from_fn(own, |at| marks.data[place(at)])
        }
        Op::Transpose(perm) => marks.transpose(&inverse(perm)),
        Op::Reshape(_) => Array { shape: own.to_vec(), data: marks.data.clone() },
        Op::Slice { dim, start, len } => {
            let (_, extent, inner) = Array::<bool>::around(own, *dim);
            Array::from_fn(own, |at| {
                let along = (at / inner % extent).wrapping_sub(*start);
                along < *len && marks.data[(at / (extent * inner) * len + along) * inner + at % inner]
            })
        }
        Op::Repeat { dim, times } => {
            let (outer, extent, inner) = Array::<bool>::around(own, *dim);
            let split = Array { shape: vec![outer, extent, *times, inner], data: marks.data.clone() };
            Array { shape: own.to_vec(), data: split.reduce(2, 1, false, or).data }
        }
        Op::Rotate { dim, group } => marks.rotate(*dim, *group, |is| is),
        Op::Concat { dim } => {
            let mut ranges: Vec<(usize, usize)> = own.iter().map(|&extent| (0, extent)).collect();
            ranges[*dim].0 = shapes[..number].iter().map(|shape| shape[*dim]).sum();
            marks.slice(&ranges)
        }
        Op::Causal { .. } | Op::Below { .. } => Array::full(own, false),
    }
}

/// Ways from an exponent to inputs that are tried.
const MOST_WAYS: usize = 16;

/// An element of an operand that an element of a result depends on: of several the first, of a norm its own.
fn source(op: &Op, shapes: &[&[usize]], (shape, at): (&[usize], usize), number: usize) -> Option<usize> {
    let own = shapes[number];
    let mut index: Vec<usize> =
        strides(shape).iter().zip(shape).map(|(step, extent)| at / step % extent).collect();
    match op {
        Op::Matmul => index[own.len() - if number == 0 { 1 } else { 2 }] = 0,
        Op::Unary(_) | Op::Scale(_) | Op::Offset(_) | Op::Binary(_) | Op::Broadcast(_) => {}
        Op::Reduce { .. } | Op::RmsNorm { .. } => {}
        Op::Transpose(perm) => {
            let to = index.clone();
            perm.iter().zip(to).for_each(|(&dim, i)| index[dim] = i);
        }
        Op::Reshape(_) => return Some(at),
        Op::Slice { dim, start, .. } => index[*dim] += start,
        Op::Repeat { dim, times } => index[*dim] /= (*times).max(1),
        Op::Rotate { dim, group } => {
            let half = index[*dim] / group % 2;
            index[*dim] = if half == 0 { index[*dim] + group } else { index[*dim] - group };
        }
        Op::Concat { dim } => {
            let before: usize = shapes[..number].iter().map(|shape| shape[*dim]).sum();
            index[*dim] = index[*dim].checked_sub(before).filter(|&i| i < own[*dim])?;
        }
        Op::Causal { .. } | Op::Below { .. } => return None,
    }
    let in_place = index.iter().zip(own).map(|(i, &extent)| if extent == 1 { 0 } else { *i });
    Some(in_place.zip(strides(own)).map(|(i, step)| i * step).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floats::{Precision, interpret};

    #[test]
    fn elements_read_are_those_that_change_an_element() {
        for (inputs, op) in [
            ("x [2, 3, 4]; y [2, 4, 5]", "matmul t0, t1"),
            ("x [2, 3, 4]; y [1, 4, 5]", "matmul t0, t1"),
            ("x [2, 3]", "square t0"),
            ("x [2, 3]; y [2, 1]", "mul t0, t1"),
            ("x [2, 3]; y [1, 3]", "add t1, t0"),
            ("x [2, 6, 2]", "sum(1) t0"),
            ("x [2, 6, 2]", "sum(1, 2) t0"),
            ("x [2, 3, 4]", "rms_norm(1/9) t0"),
            ("x [2, 3, 4]", "transpose(2, 0, 1) t0"),
            ("x [2, 6]", "reshape(3, 4) t0"),
            ("x [2, 1, 3]", "broadcast(2, 4, 3) t0"),
            ("x [2, 6, 2]", "slice(1, 2, 3) t0"),
            ("x [2, 3, 2]", "repeat(1, 2) t0"),
            ("x [2, 8, 2]", "rotate(1, 2) t0"),
            ("x [2, 3, 2]; y [2, 4, 2]", "concat(1) t0, t1"),
        ] {
            let given = inputs.split("; ").enumerate().map(|(at, input)| {
                let (name, shape) = input.split_once(' ').expect("a name and a shape");
                format!(" t{at} = input \"{name}\" {shape}\n")
            });
            let given: Vec<String> = given.collect();
            let last = given.len();
            let text =
                format!("mugraph \"p\" {{\n{} t{last} = {op}\n output \"o\" t{last}\n}}\n", given.concat());
            let program = crate::parse(&text).unwrap_or_else(|error| panic!("{op}: {error}"));
            let result = TensorId(last as u32);
            let mut seed = 0.0;
            let values: Vec<Array<f64>> = program
                .inputs()
                .map(|(id, ..)| {
                    Array::from_fn(program.shape(id), |_| {
                        seed += 0.7;
                        1.0 + f64::sin(seed)
                    })
                })
                .collect();
            let run = |values: &[Array<f64>]| {
                interpret(&program, values, Precision::F64)
                    .unwrap_or_else(|error| panic!("{op}: {error}"))
                    .remove(0)
            };
            let usual = run(&values);
            let read: Vec<_> = (0..usual.data.len()).map(|at| read(&program, &[(result, at)])).collect();
            for (input, value) in values.iter().enumerate() {
                for element in 0..value.data.len() {
                    let mut moved = values.clone();
                    moved[input].data[element] += 0.5;
                    let moved = run(&moved);
                    for (at, read) in read.iter().enumerate() {
                        let is_read = read[input].as_ref().is_some_and(|marks| marks.data[element]);
                        assert_eq!(
                            is_read,
                            usual.data[at] != moved.data[at],
                            "{op}: {element} of {input}, {at}"
                        );
                    }
                }
            }
            // The element that a way to an input goes through is one that is read.
            let shapes: Vec<&[usize]> =
                (0..last).map(|input| program.shape(TensorId(input as u32))).collect();
            let Some(Node::Op { op, .. }) = program.definition(result) else { panic!("{text}") };
            for (at, read) in read.iter().enumerate() {
                for (input, marks) in read[..last].iter().enumerate() {
                    let one = source(op, &shapes, (program.shape(result), at), input);
                    let marks = marks.as_ref().map(|marks| marks.data.as_slice()).unwrap_or_default();
                    assert!(one.map_or(!marks.contains(&true), |one| marks[one]), "{text}: {at}");
                }
            }
        }
    }
}
