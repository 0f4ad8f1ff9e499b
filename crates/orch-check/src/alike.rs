//! Lemma 1: which indices both programs treat alike, and programs whose extents along these are small.
//!
//! An index is treated alike if element `i` along it, of every tensor that has it, depends on the elements `i` of the inputs
//! alone, by the same function for every `i`. The walk gives each dimension of an input an index of its own, joins
//! the indices of operands that are taken together element by element, and *refuses* an index where an operator, a loop
//! or a grid does anything else. What is refused stays whole.

use crate::program::{Extent, Node, Op, Program, Tiling};
use std::collections::{BTreeMap, BTreeSet};

/// What a dimension is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Dim {
    /// Of extent 1: repeated where the other operand is longer.
    One,
    /// Not treated alike.
    Fixed,
    /// Of an index.
    Index(usize, Part),
}

/// What of an index a dimension counts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Part {
    /// All of it.
    Whole,
    /// The blocks along an axis of a kernel's grid.
    Blocks(usize, usize),
    /// What one of these blocks has.
    Inner(usize, usize),
}

/// An index: the first of those that were joined.
pub type Class = usize;

/// What a walk through programs finds out.
#[derive(Default)]
pub struct Walk {
    /// The index that each index was joined with, its own where it is the first of a class.
    parents: Vec<usize>,
    extents: Vec<usize>,
    refused: BTreeSet<usize>,
    /// Per program, for each kernel and axis: the dimensions that are cut or filled by it.
    axes: Vec<BTreeMap<(usize, usize), Vec<Dim>>>,
    /// Per program the dimensions of its tensors.
    tensors: Vec<Vec<Vec<Dim>>>,
    inputs: BTreeMap<String, Vec<Dim>>,
}

impl Walk {
    fn index(&mut self, extent: usize) -> Dim {
        if extent == 1 {
            return Dim::One;
        }
        self.parents.push(self.parents.len());
        self.extents.push(extent);
        Dim::Index(self.parents.len() - 1, Part::Whole)
    }

    fn class(&self, mut index: usize) -> Class {
        while self.parents[index] != index {
            index = self.parents[index];
        }
        index
    }

    fn refuse(&mut self, dim: Dim) -> Dim {
        if let Dim::Index(index, _) = dim {
            self.refused.insert(index);
        }
        Dim::Fixed
    }

    /// The dimension of elements that are taken together.
    fn join(&mut self, a: Dim, b: Dim) -> Dim {
        match (a, b) {
            (Dim::One, other) | (other, Dim::One) => other,
            (Dim::Index(i, part), Dim::Index(j, other)) => {
                let (i, j) = (self.class(i), self.class(j));
                if part != other || self.extents[i] != self.extents[j] {
                    self.refused.insert(i);
                }
                self.parents[j.max(i)] = i.min(j);
                a
            }
            (dim, Dim::Fixed) | (Dim::Fixed, dim) => self.refuse(dim),
        }
    }

    fn joined(&mut self, a: &[Dim], b: &[Dim]) -> Vec<Dim> {
        a.iter().zip(b).map(|(&a, &b)| self.join(a, b)).collect()
    }

    /// The dimensions of what an operator computes of operands with dimensions.
    fn dims(&mut self, node: &Node, args: &[&[Dim]]) -> Vec<Dim> {
        match &node.op {
            Op::Input { name, shape, .. } => {
                if let Some(known) = self.inputs.get(name) {
                    return known.clone();
                }
                let dims: Vec<Dim> = shape.iter().map(|&extent| self.index(extent)).collect();
                self.inputs.insert(name.clone(), dims.clone());
                dims
            }
            Op::Causal { shape, .. } | Op::Below { shape, .. } => {
                let is_counted = |at: usize| match node.op {
                    Op::Below { dim, .. } => at == dim,
                    _ => at + 2 >= shape.len(),
                };
                let dims = shape.iter().enumerate();
                dims.map(|(at, &extent)| if is_counted(at) { Dim::Fixed } else { self.index(extent) })
                    .collect()
            }
            Op::Each(_) => args[1..].iter().fold(args[0].to_vec(), |dims, arg| self.joined(&dims, arg)),
            Op::Matmul => {
                let batch = args[0].len() - 2;
                let mut result = self.joined(&args[0][..batch], &args[1][..batch]);
                self.refuse(args[0][batch + 1]);
                self.refuse(args[1][batch]);
                result.extend([args[0][batch], args[1][batch + 1]]);
                result
            }
            Op::Reduce(_, dim) => {
                let mut result = args[0].to_vec();
                self.refuse(result[*dim]);
                result[*dim] = Dim::One;
                result
            }
            Op::Transpose(order) => order.iter().map(|&dim| args[0][dim]).collect(),
            Op::Reshape(shape) => {
                args[0].iter().for_each(|&dim| _ = self.refuse(dim));
                vec![Dim::Fixed; shape.len()]
            }
            Op::Broadcast(shape) => {
                let dims = args[0].iter().zip(shape);
                dims.map(|(&dim, &extent)| if dim == Dim::One { self.index(extent) } else { dim }).collect()
            }
            // What is left of a longer extent is no repeated element, even if it is one.
            Op::Slice { dim, .. } | Op::Repeat { dim, .. } | Op::Concat(dim) => {
                let mut result =
                    args.iter().skip(1).fold(args[0].to_vec(), |dims, arg| self.joined(&dims, arg));
                args.iter().for_each(|arg| _ = self.refuse(arg[*dim]));
                let is_one = !matches!(node.op, Op::Concat(_))
                    && args[0][*dim] == Dim::One
                    && node.shape[*dim].len == 1;
                result[*dim] = if is_one { Dim::One } else { Dim::Fixed };
                result
            }
            Op::Split { tiling, along, iterations } => {
                self.parts(tiling, along.filter(|_| *iterations > 1), args[0])
            }
            Op::Merge(tiling) => self.merged(tiling, args[0]),
        }
    }

    fn used(&mut self, kernel: usize, axis: usize, dim: Dim) {
        if let Some(axes) = self.axes.last_mut() {
            axes.entry((kernel, axis)).or_default().push(dim);
        }
    }

    fn parts(&mut self, tiling: &Tiling, along: Option<usize>, whole: &[Dim]) -> Vec<Dim> {
        let mut dims = whole.to_vec();
        let mut prefix = vec![Dim::One; tiling.blocks.len() + 1];
        for (axis, dim) in tiling.dims.iter().enumerate().filter(|(axis, _)| tiling.blocks[*axis] > 1) {
            let Some(dim) = *dim else { continue };
            self.used(tiling.kernel, axis, dims[dim]);
            (prefix[axis], dims[dim]) = match dims[dim] {
                Dim::Index(index, _) => {
                    let part = |part: fn(usize, usize) -> Part| Dim::Index(index, part(tiling.kernel, axis));
                    (part(Part::Blocks), part(Part::Inner))
                }
                _ => (Dim::Fixed, Dim::Fixed),
            };
        }
        if let Some(dim) = along {
            dims[dim] = self.refuse(dims[dim]);
            prefix[tiling.blocks.len()] = Dim::Fixed;
        }
        [prefix, dims].concat()
    }

    fn merged(&mut self, tiling: &Tiling, tile: &[Dim]) -> Vec<Dim> {
        let (prefix, dims) = tile.split_at(tiling.blocks.len() + 1);
        let mut result = Vec::new();
        for (at, &dim) in dims.iter().enumerate() {
            let axis = tiling
                .dims
                .iter()
                .position(|filled| *filled == Some(at))
                .filter(|&axis| tiling.blocks[axis] > 1);
            result.push(match (axis, dim) {
                (None, Dim::One | Dim::Fixed | Dim::Index(_, Part::Whole)) => dim,
                (Some(axis), Dim::Index(index, Part::Inner(kernel, cut)))
                    if (kernel, cut) == (tiling.kernel, axis) =>
                {
                    self.join(prefix[axis], Dim::Index(index, Part::Blocks(kernel, cut)));
                    Dim::Index(index, Part::Whole)
                }
                (axis, dim) => {
                    if let Some(axis) = axis {
                        self.refuse(prefix[axis]);
                        self.used(tiling.kernel, axis, Dim::Fixed);
                    }
                    self.refuse(dim)
                }
            });
        }
        result
    }

    /// Walks through the tensors of a program that are wanted. Inputs of the same name have the same indices in all programs.
    pub fn program(&mut self, program: &Program, wanted: impl Fn(usize) -> bool) {
        let mut tensors: Vec<Vec<Dim>> = Vec::new();
        self.axes.push(BTreeMap::new());
        for (at, node) in program.nodes.iter().enumerate() {
            let args: Vec<&[Dim]> = node.args.iter().map(|&arg| tensors[arg].as_slice()).collect();
            let dims = if wanted(at) { self.dims(node, &args) } else { Vec::new() };
            tensors.push(dims);
        }
        self.tensors.push(tensors);
    }

    /// Element `i` of an output of one program must be element `i` of the other's.
    pub fn match_outputs(&mut self, pairs: &[(usize, usize)]) {
        for &(first, second) in pairs {
            let (a, b) = (self.tensors[0][first].clone(), self.tensors[1][second].clone());
            self.joined(&a, &b);
        }
    }

    /// Refuses what is in a tensor twice, and what shares an axis of a grid with anything else; to be called last.
    pub fn finish(&mut self) {
        let mut refused = Vec::new();
        for dims in self.tensors.iter().flatten() {
            for (at, &dim) in dims.iter().enumerate() {
                let is_again = |other: &Dim| match (dim, *other) {
                    (Dim::Index(i, part), Dim::Index(j, other)) if self.class(i) == self.class(j) => {
                        !matches!((part, other), (Part::Inner(a, b), Part::Blocks(c, d)) if (a, b) == (c, d))
                    }
                    _ => false,
                };
                if dims[..at].iter().any(is_again) {
                    refused.push(dim);
                }
            }
        }
        for dims in self.axes.iter().flat_map(BTreeMap::values) {
            if dims
                .iter()
                .any(|&dim| self.class_of(dim).is_none() || self.class_of(dim) != self.class_of(dims[0]))
            {
                refused.extend(dims);
            }
        }
        refused.into_iter().for_each(|dim| _ = self.refuse(dim));
        self.refused = self.refused.iter().map(|&index| self.class(index)).collect();
    }

    /// The extent of a class.
    pub fn extent(&self, class: Class) -> usize {
        self.extents[class]
    }

    fn class_of(&self, dim: Dim) -> Option<Class> {
        if let Dim::Index(index, _) = dim { Some(self.class(index)) } else { None }
    }

    /// For each dimension of a tensor its class, if it is treated alike.
    pub fn classes(&self, number: usize, tensor: usize) -> Vec<Option<Class>> {
        self.tensors[number][tensor].iter().map(|&dim| self.alike(dim)).collect()
    }

    fn alike(&self, dim: Dim) -> Option<Class> {
        self.class_of(dim).filter(|class| !self.refused.contains(class))
    }

    /// Smaller extents for indices that are treated alike: two or more, and each another one that nothing else has.
    pub fn extents(&self, programs: [&Program; 2]) -> BTreeMap<Class, usize> {
        let mut taken: BTreeSet<usize> = BTreeSet::new();
        let mut found: BTreeSet<Class> = BTreeSet::new();
        for (program, tensors) in programs.iter().zip(&self.tensors) {
            for (dims, node) in tensors.iter().zip(&program.nodes) {
                for (&dim, extent) in dims.iter().zip(&node.shape) {
                    match self.alike(dim) {
                        Some(class) => found.extend([class]),
                        None => taken.extend([extent.len]),
                    }
                }
            }
        }
        let mut extents = BTreeMap::new();
        for class in found {
            if let Some(extent) = (2..self.extents[class]).find(|extent| !taken.contains(extent)) {
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
    pub fn cut(
        &self,
        number: usize,
        program: &Program,
        extents: &BTreeMap<Class, usize>,
    ) -> Result<Program, String> {
        let now = |dim: Dim| self.alike(dim).and_then(|class| extents.get(&class).copied());
        let mut small = Program { outputs: program.outputs.clone(), ..Program::default() };
        for (node, dims) in program.nodes.iter().zip(&self.tensors[number]) {
            let len = |(&dim, extent): (&Dim, &Extent)| now(dim).unwrap_or(extent.len);
            let expected: Vec<usize> = dims.iter().zip(&node.shape).map(len).collect();
            let mut op = node.op.clone();
            match &mut op {
                Op::Input { shape, .. }
                | Op::Causal { shape, .. }
                | Op::Below { shape, .. }
                | Op::Broadcast(shape) => {
                    shape.clone_from(&expected);
                }
                Op::Split { tiling, .. } | Op::Merge(tiling) => {
                    for (axis, blocks) in tiling.blocks.iter_mut().enumerate() {
                        let used = self.axes[number].get(&(tiling.kernel, axis));
                        *blocks = used
                            .and_then(|dims| now(dims[0]))
                            .map_or(*blocks, |extent| extent.min(*blocks).min(2));
                    }
                }
                _ => {}
            }
            let at = small.push(op, &node.args)?;
            let is_whole = |dim: &Dim| !matches!(dim, Dim::Index(_, Part::Blocks(..) | Part::Inner(..)));
            let given = &small.nodes[at].shape;
            if (0..dims.len()).any(|dim| is_whole(&dims[dim]) && given[dim].len != expected[dim]) {
                return Err(format!("{:?} does not follow its indices", node.op));
            }
        }
        Ok(small)
    }
}
