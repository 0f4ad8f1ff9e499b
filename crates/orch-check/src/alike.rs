//! Lemma 1: which indices both programs treat alike, and programs whose extents along these are small.
//!
//! An index is treated alike if element `i` along it, of every tensor that has it, depends on the elements `i` of the inputs
//! alone, by the same function for every `i`. The walk gives each dimension of an input an index of its own, joins
//! the indices of operands that are taken together element by element ([`Origin::Same`]), and *refuses* an index where an operator, a
//! loop or a grid does anything else. What is refused stays whole.
//!
//! Where a grid cuts a dimension, its blocks and what each block has are indices of their own. They are refused together with the
//! index that is cut, and all that one axis of a grid cuts is one index.

use crate::program::{Axis, Extent, Node, Op, Origin, Program};
use std::collections::{BTreeMap, BTreeSet};

/// An index: the first of those that were joined.
pub type Class = usize;

/// What a dimension counts.
#[derive(Clone, Copy)]
struct Index {
    /// The index that it was joined with, its own where it is the first of a class.
    parent: usize,
    extent: usize,
    /// For parts of another index the program and axis that cut it, and whether these are its blocks or what each block has.
    part: Option<((usize, Axis), bool)>,
}

/// The indices of an axis: what it cuts, its blocks, what a block has.
#[derive(Clone, Copy)]
struct Cut {
    whole: usize,
    blocks: usize,
    inner: usize,
}

/// What a walk through programs finds out.
#[derive(Default)]
pub struct Walk {
    indices: Vec<Index>,
    refused: BTreeSet<usize>,
    /// By program and axis.
    cuts: BTreeMap<(usize, Axis), Cut>,
    /// Per program the indices of its tensors; none of what is repeated.
    tensors: Vec<Vec<Vec<Option<usize>>>>,
    inputs: BTreeMap<String, Vec<Option<usize>>>,
}

impl Walk {
    fn index(&mut self, extent: usize) -> usize {
        let parent = self.indices.len();
        self.indices.push(Index { parent, extent, part: None });
        parent
    }

    fn refused(&mut self, extent: usize) -> usize {
        let index = self.index(extent);
        self.refused.insert(index);
        index
    }

    fn class(&self, mut index: usize) -> Class {
        while self.indices[index].parent != index {
            index = self.indices[index].parent;
        }
        index
    }

    /// The index of elements that are taken together.
    fn join(&mut self, a: Option<usize>, b: Option<usize>) -> Option<usize> {
        let (Some(i), Some(j)) = (a, b) else { return a.or(b) };
        let (i, j) = (self.class(i), self.class(j));
        let (own, other) = (self.indices[i], self.indices[j]);
        if (own.extent, own.part) != (other.extent, other.part) {
            self.refused.extend([i, j, self.whole(i), self.whole(j)]);
        }
        self.indices[i.max(j)].parent = i.min(j);
        a
    }

    /// Joins an index of an axis with that of a dimension, which has to have one.
    fn cuts(&mut self, index: usize, dim: Option<usize>) {
        match dim {
            Some(_) => _ = self.join(Some(index), dim),
            None => _ = self.refused.insert(index),
        }
    }

    /// The indices of an axis of the program at hand, which are made where it is met first.
    fn cut(&mut self, axis: Axis, whole: Option<usize>) -> Cut {
        let key = (self.tensors.len(), axis);
        if let Some(cut) = self.cuts.get(&key) {
            return *cut;
        }
        let whole = whole.unwrap_or_else(|| self.refused(0));
        let [blocks, inner] = [true, false].map(|is_blocks| {
            let index = self.index(0);
            self.indices[index].part = Some((key, is_blocks));
            index
        });
        let cut = Cut { whole, blocks, inner };
        self.cuts.insert(key, cut);
        cut
    }

    /// The indices of what a node computes of operands with indices.
    fn dims(&mut self, node: &Node, args: &[&[Option<usize>]]) -> Vec<Option<usize>> {
        if let Op::Input { name, .. } = &node.op
            && let Some(known) = self.inputs.get(name)
        {
            return known.clone();
        }
        // Dimensions of operands that are not refused.
        let mut kept = BTreeSet::new();
        let mut result = Vec::new();
        for origin in &node.origins {
            result.push(match origin {
                Origin::Same(dims) => {
                    kept.extend(dims.iter().copied());
                    dims.iter().fold(None, |index, &(arg, dim)| self.join(index, args[arg][dim]))
                }
                Origin::Repeated(extent) => (extent.len > 1).then(|| self.index(extent.len)),
                Origin::Other(extent) => Some(self.refused(extent.len)),
                Origin::Blocks(axis, dim, _) => {
                    let cut = self.cut(*axis, args[0][*dim]);
                    self.cuts(cut.whole, args[0][*dim]);
                    Some(cut.blocks)
                }
                Origin::Inner(axis, dim, _) => {
                    kept.insert((0, *dim));
                    Some(self.cut(*axis, args[0][*dim]).inner)
                }
                Origin::Whole(axis, dim, _) => {
                    kept.extend([(0, *dim), (0, axis.1)]);
                    let cut = self.cut(*axis, None);
                    self.join(Some(cut.blocks), args[0][axis.1]);
                    self.cuts(cut.inner, args[0][*dim]);
                    Some(cut.whole)
                }
            });
        }
        for (arg, dims) in args.iter().enumerate() {
            let others = dims.iter().enumerate().filter(|(dim, _)| !kept.contains(&(arg, *dim)));
            self.refused.extend(others.filter_map(|(_, index)| *index));
        }
        if let Op::Input { name, .. } = &node.op {
            self.inputs.insert(name.clone(), result.clone());
        }
        result
    }

    /// Walks through the tensors of a program that are wanted. Inputs of the same name have the same indices in all programs.
    pub fn program(&mut self, program: &Program, wanted: impl Fn(usize) -> bool) {
        let mut tensors: Vec<Vec<Option<usize>>> = Vec::new();
        for (at, node) in program.nodes.iter().enumerate() {
            let args: Vec<&[Option<usize>]> = node.args.iter().map(|&arg| tensors[arg].as_slice()).collect();
            let dims = if wanted(at) { self.dims(node, &args) } else { Vec::new() };
            tensors.push(dims);
        }
        self.tensors.push(tensors);
    }

    /// Element `i` of an output of one program must be element `i` of the other's.
    pub fn match_outputs(&mut self, pairs: &[(usize, usize)]) {
        for &(first, second) in pairs {
            for dim in 0..self.tensors[0][first].len() {
                self.join(self.tensors[0][first][dim], self.tensors[1][second][dim]);
            }
        }
    }

    /// The index that one is, or is a part of.
    fn whole(&self, index: usize) -> Class {
        let class = self.class(index);
        self.indices[class].part.map_or(class, |(axis, _)| self.class(self.cuts[&axis].whole))
    }

    /// Refuses what is in a tensor twice, and parts together with what they are parts of; to be called last.
    pub fn finish(&mut self) {
        let mut twice = Vec::new();
        for dims in self.tensors.iter().flatten() {
            let indices: Vec<usize> = dims.iter().flatten().map(|&index| self.class(index)).collect();
            for (at, &index) in indices.iter().enumerate() {
                let is_again = |&other: &usize| {
                    // Blocks, and what each has.
                    let is_cut = match (self.indices[index].part, self.indices[other].part) {
                        (Some((axis, is_blocks)), Some((also, are_blocks))) => {
                            axis == also && is_blocks != are_blocks
                        }
                        _ => false,
                    };
                    self.whole(index) == self.whole(other) && !is_cut
                };
                if indices[..at].iter().any(is_again) {
                    twice.push(index);
                }
            }
        }
        self.refused.extend(twice);
        self.refused =
            self.refused.iter().flat_map(|&index| [self.class(index), self.whole(index)]).collect();
    }

    /// The extent of a class.
    pub fn extent(&self, class: Class) -> usize {
        self.indices[class].extent
    }

    /// For each dimension of a tensor the index that it is or is a part of, if that is treated alike.
    pub fn classes(&self, number: usize, tensor: usize) -> Vec<Option<Class>> {
        self.tensors[number][tensor].iter().map(|&index| self.alike(index?)).collect()
    }

    fn alike(&self, index: usize) -> Option<Class> {
        let whole = self.whole(index);
        [whole, self.class(index)].iter().all(|class| !self.refused.contains(class)).then_some(whole)
    }

    /// Smaller extents for indices that are treated alike: two or more, and each another one that nothing else has.
    pub fn extents(&self, programs: [&Program; 2]) -> BTreeMap<Class, usize> {
        let mut taken: BTreeSet<usize> = BTreeSet::new();
        let mut found: BTreeSet<Class> = BTreeSet::new();
        for (program, number) in programs.iter().zip(0..) {
            for (at, node) in program.nodes.iter().enumerate() {
                for (class, extent) in self.classes(number, at).into_iter().zip(&node.shape) {
                    match class {
                        Some(class) => found.extend([class]),
                        None => taken.extend([extent.len]),
                    }
                }
            }
        }
        let mut extents = BTreeMap::new();
        for class in found {
            if let Some(extent) = (2..self.extent(class)).find(|extent| !taken.contains(extent)) {
                taken.insert(extent);
                extents.insert(class, extent);
            }
        }
        extents
    }

    /// A program of the walk with other extents, and at most two blocks along each index that is cut.
    ///
    /// # Errors
    /// If it has no meaning with them, which it has if indices are treated alike.
    pub fn small(
        &self,
        number: usize,
        program: &Program,
        extents: &BTreeMap<Class, usize>,
    ) -> Result<Program, String> {
        let part = |index: usize| self.indices[self.class(index)].part;
        // Of blocks there are at most two; what each has follows.
        let now = |index: usize, before: usize| {
            let extent = *extents.get(&self.alike(index)?)?;
            Some(if part(index).is_some() { extent.min(before).min(2) } else { extent })
        };
        let mut small = Program { outputs: program.outputs.clone(), ..Program::default() };
        for (node, dims) in program.nodes.iter().zip(&self.tensors[number]) {
            let len = |(index, extent): (&Option<usize>, &Extent)| {
                index.and_then(|index| now(index, extent.len)).unwrap_or(extent.len)
            };
            let expected: Vec<usize> = dims.iter().zip(&node.shape).map(len).collect();
            let mut op = node.op.clone();
            match &mut op {
                Op::Input { shape, .. } | Op::Compare { shape, .. } => {
                    shape.clone_from(&expected);
                }
                Op::Broadcast(shape) => {
                    let operand = &small.nodes[node.args[0]].shape;
                    for (at, extent) in shape.iter_mut().enumerate() {
                        let is_same = matches!(node.origins[at], Origin::Same(_));
                        *extent = if is_same { operand[at].len } else { expected[at] };
                    }
                }
                Op::Split { tiling, .. } | Op::Merge(tiling) => {
                    for (axis, blocks) in tiling.blocks.iter_mut().enumerate() {
                        let cut = self.cuts.get(&(number, (tiling.kernel, axis)));
                        *blocks = cut.and_then(|cut| now(cut.blocks, *blocks)).unwrap_or(*blocks);
                    }
                }
                _ => {}
            }
            let at = small.push(op, &node.args)?;
            let is_inner = |index: Option<usize>| matches!(index.and_then(part), Some((_, false)));
            let mut pairs = small.nodes[at].shape.iter().zip(expected).zip(dims);
            if !pairs.all(|((extent, expected), index)| extent.len == expected || is_inner(*index)) {
                return Err(format!("{:?} does not follow its indices", node.op));
            }
        }
        Ok(small)
    }
}
