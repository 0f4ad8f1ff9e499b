//! Lemma 1: which indices both programs treat alike.
//!
//! An index is treated alike if element `i` along it, of every tensor that has it, depends on the elements `i` of the inputs
//! alone, by the same function for every `i`. The walk gives each dimension of an input an index of its own, joins
//! the indices of operands that are taken together element by element, and *refuses* an index where an operator
//! does anything else. Along an index that is not refused the first elements stand for all.
//!
//! Where a dimension is cut in parts of one size, the number of the part and the place in it are two digits of its index. Both belong to
//! the class of the index that is cut, and are refused with it.

use crate::program::{Extent, Op, Part, Program};
use std::collections::BTreeMap;

/// What a dimension counts: a class of indices, and, of an index that is cut in parts of a size, whether it is the number of the part or
/// the place in it. `None` is an extent of 1.
type Index = Option<(usize, Digit)>;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Digit {
    Whole,
    /// Of parts of a size.
    Number(usize),
    /// In a part of a size.
    Place(usize),
}

/// Indices that were joined.
struct Class {
    /// The class that it was joined with, its own where it was not.
    parent: usize,
    extent: usize,
    is_refused: bool,
}

/// How many elements stand for all.
const KEPT: usize = 2;

/// What a walk through programs finds out.
#[derive(Default)]
pub struct Walk {
    classes: Vec<Class>,
    inputs: BTreeMap<String, Vec<Index>>,
    /// Per program the indices of its tensors.
    tensors: Vec<Vec<Vec<Index>>>,
}

impl Walk {
    /// A walk through both programs, whose outputs are to be the same, element by element: pairs of tensors.
    pub fn new(programs: [&Program; 2], outputs: impl Iterator<Item = [usize; 2]>) -> Walk {
        let mut walk = Walk::default();
        for program in programs {
            let mut tensors: Vec<Vec<Index>> = Vec::new();
            for at in 0..program.nodes.len() {
                let indices = walk.indices(program, at, &tensors);
                tensors.push(indices);
            }
            walk.tensors.push(tensors);
        }
        for [own, other] in outputs {
            for dim in 0..walk.tensors[0][own].len() {
                walk.join(walk.tensors[0][own][dim], walk.tensors[1][other][dim]);
            }
        }
        // What is in a tensor twice, but for both digits of one index.
        for indices in walk.tensors.concat() {
            for (at, &index) in indices.iter().enumerate() {
                let is_again = |&(class, digit): &(usize, Digit)| {
                    index.is_some_and(|(other, also)| {
                        let is_cut = match (digit, also) {
                            (Digit::Number(a), Digit::Place(b)) | (Digit::Place(a), Digit::Number(b)) => {
                                a == b
                            }
                            _ => false,
                        };
                        walk.class(class) == walk.class(other) && !is_cut
                    })
                };
                if indices[..at].iter().flatten().any(is_again) {
                    walk.refuse(index);
                }
            }
        }
        walk
    }

    fn class(&self, mut class: usize) -> usize {
        while self.classes[class].parent != class {
            class = self.classes[class].parent;
        }
        class
    }

    /// An index that no other tensor has.
    fn index(&mut self, extent: usize, is_refused: bool) -> Index {
        let parent = self.classes.len();
        self.classes.push(Class { parent, extent, is_refused });
        (extent > 1).then_some((parent, Digit::Whole))
    }

    fn refuse(&mut self, index: Index) {
        if let Some((class, _)) = index {
            let class = self.class(class);
            self.classes[class].is_refused = true;
        }
    }

    /// The index of elements that are taken together.
    fn join(&mut self, a: Index, b: Index) -> Index {
        let (Some((i, digit)), Some((j, other))) = (a, b) else { return a.or(b) };
        let (i, j) = (self.class(i), self.class(j));
        let is_refused = self.classes[i].is_refused
            || self.classes[j].is_refused
            || (digit, self.classes[i].extent) != (other, self.classes[j].extent);
        self.classes[j].parent = i;
        self.classes[i].is_refused = is_refused;
        a
    }

    /// The indices of a tensor, after those before it.
    fn indices(&mut self, program: &Program, at: usize, tensors: &[Vec<Index>]) -> Vec<Index> {
        let node = &program.nodes[at];
        let args: Vec<&Vec<Index>> = node.args.iter().map(|&arg| &tensors[arg]).collect();
        match &node.op {
            Op::Input { name, .. } => {
                let known = self.inputs.get(name).cloned();
                let indices = known.unwrap_or_else(|| {
                    node.shape.iter().map(|extent| self.index(extent.len, false)).collect()
                });
                self.inputs.insert(name.clone(), indices.clone());
                indices
            }
            Op::Constant(_) => vec![None; node.shape.len()],
            Op::Compare { dim, with, .. } => {
                let is_compared = |at: usize| at == *dim || Some(at) == *with;
                let extents = node.shape.iter().enumerate();
                extents.map(|(at, extent)| self.index(extent.len, is_compared(at))).collect()
            }
            Op::Move(parts) => self.moved(&node.shape, parts, args[0], program.shape(node.args[0])),
            Op::Each(_) | Op::Reduce(..) | Op::Concat(_) => {
                let mut joined = |at: usize| {
                    let index = args.iter().fold(None, |index, arg| self.join(index, arg[at]));
                    if !matches!(node.op, Op::Reduce(_, dim) | Op::Concat(dim) if dim == at) {
                        return index;
                    }
                    args.iter().for_each(|arg| self.refuse(arg[at]));
                    self.index(node.shape[at].len, true)
                };
                (0..node.shape.len()).map(&mut joined).collect()
            }
        }
    }

    /// The indices of what is moved: an index that stays, is cut in two digits, or is made of both; all others are refused.
    fn moved(
        &mut self,
        shape: &[Extent],
        parts: &[Vec<Part>],
        own: &[Index],
        extents: &[Extent],
    ) -> Vec<Index> {
        // The number of a part and the place in it, of the operand, that make an index of the result.
        let digits = |at: usize| -> Option<[Index; 2]> {
            let [number, place] = parts[at][..] else { return None };
            let size = number.divisor;
            let is_whole = number == Part { divisor: size, ..Part::of(number.dim) }
                && place == Part { modulus: size, ..Part::of(place.dim) };
            match (own[number.dim], own[place.dim]) {
                (Some((a, Digit::Number(s))), Some((b, Digit::Place(t))))
                    if is_whole && s == size && t == size =>
                {
                    Some([Some((a, Digit::Whole)), Some((b, Digit::Whole))])
                }
                _ => None,
            }
        };
        let mut indices: Vec<Option<Index>> =
            (0..shape.len()).map(|at| digits(at).map(|[a, b]| self.join(a, b))).collect();
        for (dim, &index) in own.iter().enumerate() {
            let readers =
                parts.iter().enumerate().flat_map(|(at, parts)| parts.iter().map(move |part| (at, part)));
            let readers: Vec<(usize, &Part)> = readers.filter(|(_, part)| part.dim == dim).collect();
            let is_alone = readers.iter().all(|(at, _)| parts[*at].len() == 1);
            match (&readers[..], index) {
                (&[(at, _)], _) if indices[at].is_some() => {}
                (&[(at, part)], _) if is_alone && *part == Part::of(dim) && shape[at] == extents[dim] => {
                    indices[at] = Some(index);
                }
                (&[(number, many), (place, one)], Some((class, Digit::Whole)))
                    if is_alone
                        && *one == Part::of(dim)
                        && *many == (Part { factor: shape[place].len, ..Part::of(dim) }) =>
                {
                    indices[number] = Some(Some((class, Digit::Number(many.factor))));
                    indices[place] = Some(Some((class, Digit::Place(many.factor))));
                }
                _ => self.refuse(index),
            }
        }
        let mut rest = |(at, index): (usize, Option<Index>)| {
            index.unwrap_or_else(|| self.index(shape[at].len, !parts[at].is_empty()))
        };
        indices.into_iter().enumerate().map(&mut rest).collect()
    }

    /// For each dimension of a tensor whether its index is treated alike.
    pub fn alike(&self, number: usize, tensor: usize) -> impl Iterator<Item = bool> {
        self.tensors[number][tensor].iter().map(|&index| self.is_alike(index))
    }

    fn is_alike(&self, index: Index) -> bool {
        index.is_some_and(|(class, _)| !self.classes[self.class(class)].is_refused)
    }

    /// For each tensor of a program, how many elements along each dimension stand for all.
    pub fn kept(&self, number: usize, program: &Program) -> Vec<Vec<usize>> {
        let kept = |(&index, extent): (&Index, &Extent)| match index {
            Some((_, Digit::Number(size))) if self.is_alike(index) => extent.len.min(KEPT.div_ceil(size)),
            Some(_) if self.is_alike(index) => extent.len.min(KEPT),
            _ => extent.len,
        };
        let tensors = self.tensors[number].iter().zip(&program.nodes);
        tensors.map(|(indices, node)| indices.iter().zip(&node.shape).map(kept).collect()).collect()
    }

    /// Extents of which less is kept, and how much.
    pub fn cut(&self) -> Vec<(usize, usize)> {
        let classes = self.classes.iter().enumerate();
        let cut =
            classes.filter(|(at, class)| class.parent == *at && !class.is_refused && class.extent > KEPT);
        cut.map(|(_, class)| (class.extent, KEPT)).collect()
    }
}
