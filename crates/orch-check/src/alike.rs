//! Which indices both programs treat alike, and the programs cut along them.
//!
//! A dimension of a tensor is *one* (extent 1), *fixed*, or has an **index**: a class of dimensions whose elements belong
//! together. A program treats an index alike if element `i` of every tensor along it depends on the elements `i` of the
//! inputs alone, by the same function for every `i`. The walk gives each dimension of an input an index of its own, joins
//! the indices of operands that are taken together element by element, and *refuses* an index where an operator, a loop
//! or a grid does anything else. What is refused stays whole.

use crate::eval::rebuilt;
use crate::op::Op;
use crate::program::{Block, Node, Program, Tile};
use std::collections::{BTreeMap, BTreeSet};

/// What a dimension is: of tiles also the axis of the grid that cuts the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dim {
    /// Of extent 1: repeated where the other operand is longer.
    One,
    /// Not treated alike.
    Fixed,
    /// Of an index.
    Index(usize, Option<usize>),
}

/// What a walk through programs finds out.
#[derive(Default)]
pub struct Walk {
    /// The index that each index was joined with, its own where it is the first of a class.
    parents: Vec<usize>,
    extents: Vec<usize>,
    refused: BTreeSet<usize>,
    /// Dimensions of everything that was seen, to find an index that is in one tensor twice.
    seen: Vec<Vec<Dim>>,
    /// Per program, for each kernel and axis: the dimensions that are cut or filled by it.
    axes: Vec<BTreeMap<(usize, usize), Vec<Dim>>>,
    /// Per program the dimensions of its tensors.
    tensors: Vec<Vec<Vec<Dim>>>,
}

/// An index of what is cut: its class.
pub type Class = usize;

impl Walk {
    fn index(&mut self, extent: usize) -> Dim {
        if extent == 1 {
            return Dim::One;
        }
        self.parents.push(self.parents.len());
        self.extents.push(extent);
        Dim::Index(self.parents.len() - 1, None)
    }

    fn class(&self, mut index: usize) -> Class {
        while self.parents[index] != index {
            index = self.parents[index];
        }
        index
    }

    fn refuse(&mut self, dim: Dim) {
        if let Dim::Index(index, _) = dim {
            self.refused.insert(index);
        }
    }

    /// The dimension of elements that are taken together.
    fn join(&mut self, a: Dim, b: Dim) -> Dim {
        match (a, b) {
            (Dim::One, other) | (other, Dim::One) => other,
            (Dim::Index(i, axis), Dim::Index(j, other)) => {
                let (i, j) = (self.class(i), self.class(j));
                if axis != other || self.extents[i] != self.extents[j] {
                    self.refused.insert(i);
                }
                self.parents[j.max(i)] = i.min(j);
                if self.refused.contains(&i) || self.refused.contains(&j) {
                    self.refused.insert(i.min(j));
                }
                a
            }
            (dim, Dim::Fixed) | (Dim::Fixed, dim) => {
                self.refuse(dim);
                Dim::Fixed
            }
        }
    }

    fn joined(&mut self, a: &[Dim], b: &[Dim]) -> Vec<Dim> {
        a.iter().zip(b).map(|(&a, &b)| self.join(a, b)).collect()
    }

    /// A dimension along which elements are taken together or moved, with `extent` of them left.
    fn serial(&mut self, dim: Dim, extent: usize) -> Dim {
        self.refuse(dim);
        if extent == 1 { Dim::One } else { Dim::Fixed }
    }

    fn op(&mut self, op: &Op, args: &[Vec<Dim>], shape: &[usize]) -> Vec<Dim> {
        let result = match op {
            Op::Matmul => {
                let (lhs, rhs) = (&args[0], &args[1]);
                let batch = lhs.len() - 2;
                let mut result = self.joined(&lhs[..batch], &rhs[..batch]);
                self.refuse(lhs[batch + 1]);
                self.refuse(rhs[batch]);
                result.extend([lhs[batch], rhs[batch + 1]]);
                result
            }
            Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Max | Op::Mask => self.joined(&args[0], &args[1]),
            Op::Transpose(order) => order.iter().map(|&dim| args[0][dim]).collect(),
            Op::Concat { dim } => {
                let mut result = args[0].clone();
                for arg in args {
                    self.refuse(arg[*dim]);
                    for other in (0..result.len()).filter(|other| other != dim) {
                        result[other] = self.join(result[other], arg[other]);
                    }
                }
                result[*dim] = Dim::Fixed;
                result
            }
            Op::Sum { dim, .. }
            | Op::Largest { dim, .. }
            | Op::Slice { dim, .. }
            | Op::Repeat { dim, .. }
            | Op::Rotate { dim, .. } => {
                let mut result = args[0].clone();
                result[*dim] = self.serial(result[*dim], shape[*dim]);
                // Of a slice or a part a single element may be left, which is no repeated one.
                if !matches!(op, Op::Sum { .. } | Op::Largest { .. }) && args[0][*dim] != Dim::One {
                    result[*dim] = Dim::Fixed;
                }
                result
            }
            Op::Mean => {
                let mut result = args[0].clone();
                let last = result.len() - 1;
                result[last] = self.serial(result[last], 1);
                result
            }
            Op::Reshape(_) => {
                args[0].iter().for_each(|&dim| self.refuse(dim));
                vec![Dim::Fixed; shape.len()]
            }
            Op::Broadcast(_) => {
                let repeated = |walk: &mut Walk, (&dim, &extent): (&Dim, &usize)| match dim {
                    Dim::One => walk.index(extent),
                    dim => dim,
                };
                args[0].iter().zip(shape).map(|pair| repeated(self, pair)).collect()
            }
            Op::Causal { .. } | Op::Below { .. } => {
                let is_serial = |at: usize| match op {
                    Op::Below { dim, .. } => at == *dim,
                    _ => at + 2 >= shape.len(),
                };
                let dims = shape.iter().enumerate();
                dims.map(|(at, &extent)| if is_serial(at) { Dim::Fixed } else { self.index(extent) })
                    .collect()
            }
            _ => args[0].clone(),
        };
        self.seen.push(result.clone());
        result
    }

    /// Walks through the nodes of a program that are wanted. Inputs of the same name have the same indices in all programs.
    pub fn program(
        &mut self,
        program: &Program,
        inputs: &mut BTreeMap<String, Vec<Dim>>,
        wanted: impl Fn(usize) -> bool,
    ) {
        let mut tensors: Vec<Vec<Dim>> = Vec::new();
        self.axes.push(BTreeMap::new());
        for (at, node) in program.nodes.iter().enumerate() {
            let shape = &program.shapes[at];
            let dims = match node {
                _ if !wanted(at) => Vec::new(),
                Node::Input(name, _) => {
                    let known = inputs.entry(name.clone());
                    let dims = known
                        .or_insert_with(|| shape.iter().map(|&extent| self.index(extent)).collect())
                        .clone();
                    self.seen.push(dims.clone());
                    dims
                }
                Node::Op(op, args) => {
                    let args: Vec<Vec<Dim>> = args.iter().map(|&arg| tensors[arg].clone()).collect();
                    self.op(op, &args, shape)
                }
                Node::Block(block) => {
                    let stored = self.block(at, block, program, &tensors);
                    tensors.push(Vec::new());
                    tensors.extend(stored);
                    continue;
                }
                Node::Stored(..) => continue,
            };
            tensors.push(dims);
        }
        self.tensors.push(tensors);
    }

    fn block(
        &mut self,
        node: usize,
        block: &Block,
        program: &Program,
        tensors: &[Vec<Dim>],
    ) -> Vec<Vec<Dim>> {
        let mut tiles: Vec<Vec<Dim>> = Vec::new();
        let mut axes: BTreeMap<(usize, usize), Vec<Dim>> = BTreeMap::new();
        let shapes = block.tile_shapes(&program.shapes, &vec![0; block.grid.len()], 0).unwrap_or_default();
        for (at, tile) in block.tiles.iter().enumerate() {
            let dims = match tile {
                Tile::Load { tensor, grid, along } => {
                    let mut dims = tensors[*tensor].clone();
                    for (axis, dim) in grid.iter().enumerate().filter(|(axis, _)| block.grid[*axis] > 1) {
                        let Some(dim) = *dim else { continue };
                        axes.entry((node, axis)).or_default().push(dims[dim]);
                        dims[dim] = match dims[dim] {
                            Dim::Index(index, _) => Dim::Index(index, Some(axis)),
                            _ => Dim::Fixed,
                        };
                    }
                    if let Some(dim) = along.filter(|_| block.iterations > 1) {
                        self.refuse(dims[dim]);
                        if dims[dim] == Dim::One {
                            dims[dim] = Dim::Fixed;
                        }
                    }
                    dims
                }
                Tile::Op(op, args) => {
                    let args: Vec<Vec<Dim>> = args.iter().map(|&arg| tiles[arg].clone()).collect();
                    self.op(op, &args, &shapes[at])
                }
                Tile::Rescaled { tile, max, .. } => self.joined(&tiles[*tile].clone(), &tiles[*max].clone()),
                Tile::Sum(tile) | Tile::Largest(tile) | Tile::RunningMax(tile) => tiles[*tile].clone(),
            };
            self.seen.push(dims.clone());
            tiles.push(dims);
        }
        let mut results = Vec::new();
        for (tile, grid) in &block.stores {
            let mut dims = tiles[*tile].clone();
            for (at, dim) in dims.iter_mut().enumerate() {
                let axis = (0..grid.len()).find(|&axis| grid[axis] == Some(at) && block.grid[axis] > 1);
                *dim = match (*dim, axis) {
                    (Dim::Index(index, cut), axis) if cut == axis => Dim::Index(index, None),
                    (dim, None) if !matches!(dim, Dim::Index(..)) => dim,
                    (dim, axis) => {
                        self.refuse(dim);
                        if let Some(axis) = axis {
                            axes.entry((node, axis)).or_default().push(Dim::Fixed);
                        }
                        Dim::Fixed
                    }
                };
            }
            self.seen.push(dims.clone());
            results.push(dims);
        }
        if let Some(known) = self.axes.last_mut() {
            known.extend(axes);
        }
        results
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
        for dims in std::mem::take(&mut self.seen) {
            for (at, &dim) in dims.iter().enumerate() {
                if let Some(class) = self.class_of(dim)
                    && dims[..at].iter().any(|&other| self.class_of(other) == Some(class))
                {
                    self.refused.insert(class);
                }
            }
        }
        for dims in self.axes.iter().flat_map(BTreeMap::values).cloned().collect::<Vec<_>>() {
            let first = self.class_of(dims[0]);
            if dims.iter().any(|&dim| self.class_of(dim) != first) {
                dims.into_iter().for_each(|dim| self.refuse(dim));
            }
        }
        self.refused = self.refused.iter().map(|&index| self.class(index)).collect();
    }

    /// The extent of a class.
    pub fn extent(&self, class: Class) -> usize {
        self.extents[class]
    }

    /// The dimensions of a tensor of the first program.
    pub fn dims(&self, node: usize) -> &[Dim] {
        &self.tensors[0][node]
    }

    fn class_of(&self, dim: Dim) -> Option<Class> {
        if let Dim::Index(index, _) = dim { Some(self.class(index)) } else { None }
    }

    /// The class of a dimension that is treated alike.
    pub fn alike(&self, dim: Dim) -> Option<Class> {
        self.class_of(dim).filter(|class| !self.refused.contains(class))
    }

    /// Smaller extents for indices that are treated alike: two or more, and each another one that nothing else has.
    pub fn extents(&self, programs: [&Program; 2]) -> BTreeMap<Class, usize> {
        let mut taken: BTreeSet<usize> = BTreeSet::new();
        let mut found: BTreeSet<Class> = BTreeSet::new();
        for (program, tensors) in programs.iter().zip(&self.tensors) {
            for (dims, shape) in tensors.iter().zip(&program.shapes) {
                for (&dim, &extent) in dims.iter().zip(shape) {
                    match self.alike(dim) {
                        Some(class) => found.extend([class]),
                        None => taken.extend([extent]),
                    }
                }
            }
        }
        let mut extents = BTreeMap::new();
        for class in found {
            let free = (2..self.extents[class]).find(|extent| !taken.contains(extent));
            if let Some(extent) = free {
                taken.insert(extent);
                extents.insert(class, extent);
            }
        }
        extents
    }

    /// A program of the walk with other extents, and at most so many blocks along each index that is cut.
    ///
    /// # Errors
    /// If it has no meaning with them, which it has if indices are treated alike.
    pub fn cut(
        &self,
        number: usize,
        program: &Program,
        extents: &BTreeMap<Class, usize>,
        blocks: usize,
    ) -> Result<Program, String> {
        let now = |dim: Dim| self.alike(dim).and_then(|class| extents.get(&class).copied());
        let shape = |at: usize| -> Vec<usize> {
            let dims = self.tensors[number][at].iter().zip(&program.shapes[at]);
            dims.map(|(&dim, &extent)| now(dim).unwrap_or(extent)).collect()
        };
        let grid = |node: usize, axis: usize| {
            let Node::Block(block) = &program.nodes[node] else { return 1 };
            let cut = self.axes[number].get(&(node, axis)).and_then(|dims| now(dims[0]));
            cut.map_or(block.grid[axis], |extent| block.grid[axis].min(extent).min(blocks))
        };
        let small = rebuilt(program, shape, grid)?;
        for (at, expected) in small.shapes.iter().enumerate() {
            if !matches!(small.nodes[at], Node::Block(_)) && *expected != shape(at) {
                return Err(format!("t{at} does not follow its indices"));
            }
        }
        Ok(small)
    }
}
