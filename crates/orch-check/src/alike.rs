//! Lemma 1: which indices both programs treat alike.
//!
//! An index is treated alike if element `i` along it, of every tensor that has it, depends on the elements `i` of the inputs
//! alone, by the same function for every `i`. The walk gives each dimension of an input an index of its own, joins
//! the indices of operands that are taken together element by element, and *refuses* an index where an operator
//! does anything else. Along an index that is not refused the first elements stand for all.
//!
//! Where a dimension is cut in parts of one size, the number of the part and the place in it are two digits of its index. Both belong to
//! the class of the index that is cut, and are refused with it.

use crate::program::{Extent, Op, Part, Program, lens};
use std::collections::BTreeMap;

/// What a dimension counts: a class of indices, and how many elements of it one step is: more than one if the dimension has the number of
/// the part that an index is cut in. `None` is an extent of 1.
type Index = Option<(usize, usize)>;

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
    /// A walk through both programs, whose outputs are to be the same, element by element.
    pub fn new(programs: [&Program; 2], outputs: &[Vec<usize>; 2]) -> Walk {
        let mut walk = Walk::default();
        for program in programs {
            let mut tensors: Vec<Vec<Index>> = Vec::new();
            for at in 0..program.nodes.len() {
                let indices = walk.indices(program, at, &tensors);
                tensors.push(indices);
            }
            walk.tensors.push(tensors);
        }
        for (&own, &other) in outputs[0].iter().zip(&outputs[1]) {
            for dim in 0..walk.tensors[0][own].len() {
                walk.join(walk.tensors[0][own][dim], walk.tensors[1][other][dim]);
            }
        }
        // What is in a tensor twice, but for the number of a part and the place in it.
        let nodes = programs.iter().flat_map(|program| &program.nodes);
        for (indices, node) in walk.tensors.concat().into_iter().zip(nodes) {
            let lens = lens(&node.shape);
            let all: Vec<_> =
                indices.iter().zip(lens).filter_map(|(&index, len)| Some((index?, len))).collect();
            for (at, &(own, _)) in all.iter().enumerate() {
                let is_again = |&((other, unit), len): &((usize, usize), usize)| {
                    walk.class(own.0) == walk.class(other) && own.1 != unit * len
                };
                if all[at + 1..].iter().any(is_again) {
                    walk.refuse(Some(own));
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
        (extent > 1).then_some((parent, 1))
    }

    fn refuse(&mut self, index: Index) {
        if let Some((class, _)) = index {
            let class = self.class(class);
            self.classes[class].is_refused = true;
        }
    }

    /// The index of elements that are taken together.
    fn join(&mut self, a: Index, b: Index) -> Index {
        let (Some((i, unit)), Some((j, other))) = (a, b) else { return a.or(b) };
        let (i, j) = (self.class(i), self.class(j));
        let is_refused = self.classes[i].is_refused
            || self.classes[j].is_refused
            || (unit, self.classes[i].extent) != (other, self.classes[j].extent);
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

    /// The indices of what is moved: an index that stays, is cut in digits, or is made of two; all others are refused.
    fn moved(
        &mut self,
        shape: &[Extent],
        parts: &[Vec<Part>],
        own: &[Index],
        extents: &[Extent],
    ) -> Vec<Index> {
        let mut indices: Vec<Option<Index>> = vec![None; shape.len()];
        for (at, parts) in parts.iter().enumerate() {
            if let &[number, place] = &parts[..]
                && let (Some((a, unit)), Some((b, 1))) = (own[number.dim], own[place.dim])
                && unit == extents[place.dim].len
                && number == (Part { divisor: unit, ..Part::of(number.dim) })
                && place == (Part { modulus: unit, ..Part::of(place.dim) })
            {
                indices[at] = Some(self.join(Some((a, 1)), Some((b, 1))));
            }
        }
        for (dim, &index) in own.iter().enumerate() {
            let readers =
                parts.iter().enumerate().flat_map(|(at, parts)| parts.iter().map(move |part| (at, part)));
            let readers: Vec<(usize, &Part)> = readers.filter(|(_, part)| part.dim == dim).collect();
            if readers.iter().any(|(at, _)| indices[*at].is_some()) {
                continue;
            }
            let mut count = 1;
            let is_digit = |(at, part): &(usize, &Part)| {
                let expected = Part { factor: count, ..Part::of(dim) };
                count *= shape[*at].len;
                parts[*at].len() == 1 && **part == expected
            };
            let are_digits = readers.iter().rev().all(is_digit);
            if are_digits && count >= extents[dim].len && (index.is_some() || count == 1) {
                for (at, part) in readers {
                    indices[at] = Some(index.map(|(class, unit)| (class, unit * part.factor)));
                }
            } else {
                self.refuse(index);
            }
        }
        let fresh = |(at, index): (usize, Option<Index>)| {
            index.unwrap_or_else(|| self.index(shape[at].len, !parts[at].is_empty()))
        };
        indices.into_iter().enumerate().map(fresh).collect()
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
            Some((_, unit)) if self.is_alike(index) => extent.len.min(KEPT.div_ceil(unit)),
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
