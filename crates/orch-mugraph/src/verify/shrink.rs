//! The same program at small extents: dimensions that must be equal stay equal, and extents keep their order.
//!
//! Extents that an operator's parameters fix (reshapes, slices, concatenations, reductions that keep some) stay as they
//! are. Masks are made anew: a causal mask keeps its alignment to the first or last column, a limit its proportion.

use crate::graph::{GraphError, MuGraph, Node, TensorId};
use crate::op::Op;
use std::collections::{BTreeMap, BTreeSet};

/// The program at extents 2, 3, .. in place of its distinct extents above 1.
///
/// # Errors
/// If the program has kernels that block graphs define.
pub fn shrink(program: &MuGraph) -> Result<MuGraph, GraphError> {
    let mut classes = Classes::of(program);
    let distinct: BTreeSet<usize> =
        program.shapes().iter().flatten().copied().filter(|&extent| extent > 1).collect();
    let smaller: BTreeMap<usize, usize> = distinct.into_iter().zip(2..).collect();
    resize(program, |id, dim| {
        let full = program.shape(id)[dim];
        if classes.fixed(id, dim) { full } else { smaller.get(&full).copied().unwrap_or(full) }
    })
}

/// The program at other extents, given by dimension of a tensor; dimensions that must be equal have to stay equal.
///
/// # Errors
/// If the program has kernels that block graphs define, or extents do not suit.
pub(crate) fn resize(
    program: &MuGraph,
    mut extent: impl FnMut(TensorId, usize) -> usize,
) -> Result<MuGraph, GraphError> {
    let mut small = MuGraph::new(program.name.clone());
    for (first, node) in program.nodes() {
        let mut shape = |id: TensorId| -> Vec<usize> {
            (0..program.shape(id).len()).map(|dim| extent(id, dim)).collect()
        };
        match node {
            Node::Input { name, kind, .. } => {
                small.input_of(name.clone(), *kind, &shape(first));
            }
            Node::Op { op, args } => {
                small.op(with_shape(op, program.shape(first), shape(first)), args)?;
            }
            Node::Block(_) => return Err(GraphError::new(first, "is defined by a block graph")),
        }
    }
    for (name, id) in program.outputs() {
        small.output(name.clone(), *id)?;
    }
    Ok(small)
}

/// An operator whose result has another shape than `full`, where its parameters tell the shape.
pub(crate) fn with_shape(op: &Op, full: &[usize], shape: Vec<usize>) -> Op {
    match op {
        Op::Broadcast(_) => Op::Broadcast(shape),
        Op::Reshape(_) => Op::Reshape(shape),
        Op::Causal { offset, .. } => {
            let slack = |shape: &[usize]| shape[shape.len() - 1] as i64 - shape[shape.len() - 2] as i64;
            let aligned_last = *offset == slack(full);
            Op::Causal { offset: if aligned_last { slack(&shape) } else { *offset }, shape }
        }
        Op::Rotate { dim, group } => {
            // The same number of pairs side by side, or neighbours.
            let group = (group * shape[*dim] / full[*dim].max(1)).max(1);
            Op::Rotate { dim: *dim, group }
        }
        Op::Below { dim, limit, .. } => {
            let limit = (limit * shape[*dim]).div_ceil(full[*dim].max(1));
            Op::Below { dim: *dim, limit, shape }
        }
        op => op.clone(),
    }
}

/// Dimensions of tensors that have the same extent at any size.
pub(crate) struct Classes {
    starts: Vec<usize>,
    parent: Vec<usize>,
    fixed: BTreeSet<usize>,
}

impl Classes {
    pub(crate) fn of(program: &MuGraph) -> Classes {
        let mut total = 0;
        let starts = program.shapes().iter().map(|shape| {
            total += shape.len();
            total - shape.len()
        });
        let starts = starts.collect();
        let mut classes = Classes { starts, parent: (0..total).collect(), fixed: BTreeSet::new() };
        for (result, node) in program.nodes() {
            if let Node::Op { op, args } = node {
                classes.relate(program, op, args, result);
            }
        }
        let fixed: Vec<usize> = classes.fixed.iter().copied().collect();
        classes.fixed = fixed.into_iter().map(|dim| classes.find(dim)).collect();
        classes
    }

    fn relate(&mut self, program: &MuGraph, op: &Op, args: &[TensorId], result: TensorId) {
        let rank = program.shape(result).len();
        match op {
            Op::Matmul => {
                let [lhs, rhs] = [args[0], args[1]];
                for dim in 0..rank - 2 {
                    self.equal(program, (lhs, dim), (result, dim));
                    self.equal(program, (rhs, dim), (result, dim));
                }
                self.equal(program, (lhs, rank - 2), (result, rank - 2));
                self.equal(program, (rhs, rank - 1), (result, rank - 1));
                self.equal(program, (lhs, rank - 1), (rhs, rank - 2));
            }
            Op::Transpose(perm) => {
                for (dim, &from) in perm.iter().enumerate() {
                    self.equal(program, (args[0], from), (result, dim));
                }
            }
            Op::Reshape(_) => {
                for id in [args[0], result] {
                    for dim in 0..program.shape(id).len() {
                        self.fix(id, dim);
                    }
                }
            }
            op => {
                let fixed = match op {
                    Op::Reduce { dim, keep, .. } if *keep > 1 => Some(*dim),
                    Op::Slice { dim, .. } | Op::Repeat { dim, .. } | Op::Concat { dim } => Some(*dim),
                    _ => None,
                };
                // The extent is that of whole pairs, and the same before and after.
                if let Op::Rotate { dim, .. } = op {
                    self.equal(program, (args[0], *dim), (result, *dim));
                    self.fix(result, *dim);
                }
                let reduced = match op {
                    Op::Reduce { dim, keep: 1, .. } => Some(*dim),
                    _ => None,
                };
                for dim in 0..rank {
                    for &arg in args {
                        if fixed == Some(dim) {
                            self.fix(arg, dim);
                            self.fix(result, dim);
                        } else if reduced != Some(dim) {
                            self.equal(program, (arg, dim), (result, dim));
                        }
                    }
                }
            }
        }
    }

    /// The class of a dimension.
    pub(crate) fn class(&mut self, id: TensorId, dim: usize) -> usize {
        self.find(self.starts[id.index()] + dim)
    }

    fn find(&mut self, dim: usize) -> usize {
        let mut root = dim;
        while self.parent[root] != root {
            root = self.parent[root];
        }
        self.parent[dim] = root;
        root
    }

    /// Dimensions of equal extents are one; an extent of 1 that is repeated is not.
    fn equal(&mut self, program: &MuGraph, a: (TensorId, usize), b: (TensorId, usize)) {
        if program.shape(a.0)[a.1] == program.shape(b.0)[b.1] {
            let [a, b] = [a, b].map(|(id, dim)| self.find(self.starts[id.index()] + dim));
            self.parent[a] = b;
        }
    }

    fn fix(&mut self, id: TensorId, dim: usize) {
        self.fixed.insert(self.starts[id.index()] + dim);
    }

    pub(crate) fn fixed(&mut self, id: TensorId, dim: usize) -> bool {
        let class = self.find(self.starts[id.index()] + dim);
        self.fixed.contains(&class)
    }
}
