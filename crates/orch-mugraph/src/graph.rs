//! The µGraph: a graph of kernels, each either predefined or defined by a block graph.
//!
//! A **block graph** runs once per block of a grid of up to three dimensions. Its loads take tiles: `grid` says for each
//! grid dimension which dimension of the tensor it partitions (`-`: none, every block sees all), `along_loop` which one
//! the loop partitions. Parts are equal but for a remainder at the end, which may leave later parts empty
//! ([`part_size`](crate::tiling::part_size) says how large they are). Values are computed either in the loop (once per
//! iteration, from tiles that it partitions), after it (from accumulators), or anywhere (from tiles that it does not
//! partition). Stores put the tiles of the blocks beside each other.

use crate::op::Op;
use crate::rational::Rational;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A tensor of a µGraph, numbered in the order of definition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct TensorId(pub u32);

/// A tile of a block graph: a position among its nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub struct TileId(pub u32);

impl TensorId {
    /// The position in tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl TileId {
    /// The position in tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

impl fmt::Display for TileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// Why a µGraph cannot be: where, what was given, what was expected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct GraphError {
    /// The tensor or tile.
    pub place: String,
    /// What is wrong.
    pub problem: String,
}

impl GraphError {
    /// What is wrong, and where.
    pub fn new(place: impl fmt::Display, problem: impl Into<String>) -> GraphError {
        GraphError { place: place.to_string(), problem: problem.into() }
    }
}

/// A program on the kernel level.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct MuGraph {
    /// A name for people.
    pub name: String,
    nodes: Vec<Node>,
    shapes: Vec<Vec<usize>>,
    outputs: Vec<(String, TensorId)>,
}

/// What defines tensors.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize)]
pub enum Node {
    /// A tensor that the caller gives.
    Input {
        /// Its name.
        name: String,
        /// What its elements are.
        kind: InputKind,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A predefined kernel.
    Op {
        /// What it computes.
        op: Op,
        /// Its operands.
        args: Vec<TensorId>,
    },
    /// A kernel that a block graph defines; one tensor per store.
    Block(BlockGraph),
}

/// What the elements of an input are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
pub enum InputKind {
    /// Any numbers.
    Real,
    /// Zeros and ones.
    Mask,
}

/// What one block of a kernel computes.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize)]
pub struct BlockGraph {
    /// Blocks along each of up to three dimensions.
    pub grid: Vec<usize>,
    /// Iterations of the loop.
    pub loop_range: usize,
    /// Definitions of tiles; a [`TileId`] is a position here.
    pub nodes: Vec<TileNode>,
    /// What is stored.
    pub stores: Vec<Store>,
}

/// What defines a tile.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub enum TileNode {
    /// A part of a tensor.
    Load {
        /// The tensor.
        tensor: TensorId,
        /// For each grid dimension the dimension that it partitions.
        grid: Vec<Option<usize>>,
        /// The dimension that the loop partitions, within the block's part.
        along_loop: Option<usize>,
    },
    /// An operator on tiles.
    Op {
        /// Which.
        op: Op,
        /// Operands.
        args: Vec<TileId>,
    },
    /// The combination of a tile over all iterations; known after the loop.
    Accumulate {
        /// How.
        how: Accumulation,
        /// The tile.
        tile: TileId,
    },
    /// The largest of a tile over this and all earlier iterations; a value in the loop.
    RunningMax {
        /// The tile.
        tile: TileId,
    },
}

/// How iterations are combined.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub enum Accumulation {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
    /// Their sum, where what was summed so far is multiplied by `e^(degree * (before - now))` whenever a running
    /// maximum goes from `before` to `now`.
    RescaledSum {
        /// The running maximum.
        max: TileId,
        /// The degree of the tile in the exponentials that are relative to the maximum.
        degree: Rational,
    },
}

/// A tile that is stored: the kernel's result.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub struct Store {
    /// The tile.
    pub tile: TileId,
    /// For each grid dimension the dimension along which the blocks' tiles are put beside each other.
    pub grid: Vec<Option<usize>>,
}

impl MuGraph {
    /// A program of nothing.
    pub fn new(name: impl Into<String>) -> MuGraph {
        MuGraph { name: name.into(), ..MuGraph::default() }
    }

    /// Adds an input of numbers.
    pub fn input(&mut self, name: impl Into<String>, shape: &[usize]) -> TensorId {
        self.input_of(name, InputKind::Real, shape)
    }

    /// Adds an input.
    pub fn input_of(&mut self, name: impl Into<String>, kind: InputKind, shape: &[usize]) -> TensorId {
        self.nodes.push(Node::Input { name: name.into(), kind, shape: shape.to_vec() });
        self.define(shape.to_vec())
    }

    /// Adds a predefined kernel.
    ///
    /// # Errors
    /// If the operands do not exist or do not suit.
    pub fn op(&mut self, op: Op, args: &[TensorId]) -> Result<TensorId, GraphError> {
        let place = TensorId(self.shapes.len() as u32);
        let shapes: Vec<&[usize]> =
            args.iter().map(|arg| self.known(*arg, &place)).collect::<Result<_, GraphError>>()?;
        let shape = op.infer(&shapes).map_err(|problem| GraphError::new(place, problem))?;
        self.nodes.push(Node::Op { op, args: args.to_vec() });
        Ok(self.define(shape))
    }

    /// Adds a kernel that a block graph defines; one tensor per store.
    ///
    /// # Errors
    /// If the block graph breaks a rule of [`crate::validate`].
    pub fn block(&mut self, block: BlockGraph) -> Result<Vec<TensorId>, GraphError> {
        let place = TensorId(self.shapes.len() as u32);
        let shapes = crate::tiling::stored_shapes(&block, &self.shapes)
            .map_err(|e| GraphError::new(format!("{place}, {}", e.place), e.problem))?;
        self.nodes.push(Node::Block(block));
        Ok(shapes.into_iter().map(|shape| self.define(shape)).collect())
    }

    /// Names a result.
    ///
    /// # Errors
    /// If the tensor does not exist.
    pub fn output(&mut self, name: impl Into<String>, tensor: TensorId) -> Result<(), GraphError> {
        self.known(tensor, &"output")?;
        self.outputs.push((name.into(), tensor));
        Ok(())
    }

    fn known(&self, tensor: TensorId, place: &dyn fmt::Display) -> Result<&[usize], GraphError> {
        let shape = self.shapes.get(tensor.index()).map(Vec::as_slice);
        shape.ok_or_else(|| GraphError::new(place, format!("{tensor} is not defined before")))
    }

    fn define(&mut self, shape: Vec<usize>) -> TensorId {
        self.shapes.push(shape);
        TensorId(self.shapes.len() as u32 - 1)
    }

    /// The nodes in order, each with the first tensor it defines.
    pub fn nodes(&self) -> impl Iterator<Item = (TensorId, &Node)> {
        let mut next = 0;
        self.nodes.iter().map(move |node| {
            let first = TensorId(next);
            next += node.results() as u32;
            (first, node)
        })
    }

    /// The node that begins with a tensor; `None` for the further results of a kernel.
    pub fn definition(&self, tensor: TensorId) -> Option<&Node> {
        self.nodes().find(|(first, _)| *first == tensor).map(|(_, node)| node)
    }

    /// The mask that a tensor is, if it has no operands: the kernel that reads it computes it.
    pub fn computed_mask(&self, tensor: TensorId) -> Option<&Op> {
        match self.definition(tensor) {
            Some(Node::Op { op, args }) if args.is_empty() => Some(op),
            _ => None,
        }
    }

    /// The results.
    pub fn outputs(&self) -> &[(String, TensorId)] {
        &self.outputs
    }

    /// The inputs in order: tensor, name, kind.
    pub fn inputs(&self) -> impl Iterator<Item = (TensorId, &str, InputKind)> {
        self.nodes().filter_map(|(id, node)| match node {
            Node::Input { name, kind, .. } => Some((id, name.as_str(), *kind)),
            Node::Op { .. } | Node::Block(_) => None,
        })
    }

    /// The name of a tensor that is an input or output, else `t` and its number.
    pub fn name(&self, tensor: TensorId) -> String {
        let input = self.inputs().find(|(id, ..)| *id == tensor).map(|(_, name, _)| name);
        let output = self.outputs.iter().find(|(_, id)| *id == tensor).map(|(name, _)| name.as_str());
        input.or(output).map_or_else(|| tensor.to_string(), str::to_owned)
    }

    /// The shape of a tensor.
    pub fn shape(&self, tensor: TensorId) -> &[usize] {
        &self.shapes[tensor.index()]
    }

    /// The shapes of all tensors.
    pub fn shapes(&self) -> &[Vec<usize>] {
        &self.shapes
    }

    /// The number of kernels.
    pub fn kernels(&self) -> usize {
        self.kernel_nodes().count()
    }

    /// The kernels in order, with the first tensor that each defines. What has no operands is no kernel: the kernel that reads a mask
    /// computes it.
    pub fn kernel_nodes(&self) -> impl Iterator<Item = (TensorId, &Node)> {
        self.nodes().filter(|(_, node)| !node.args().is_empty())
    }
}

impl Node {
    /// How many tensors it defines.
    pub fn results(&self) -> usize {
        match self {
            Node::Input { .. } | Node::Op { .. } => 1,
            Node::Block(block) => block.stores.len(),
        }
    }

    /// Its operators: one, or those of its block graph.
    pub fn operators(&self) -> Box<dyn Iterator<Item = &Op> + '_> {
        match self {
            Node::Input { .. } => Box::new(std::iter::empty()),
            Node::Op { op, .. } => Box::new(std::iter::once(op)),
            Node::Block(block) => Box::new(block.nodes.iter().filter_map(|node| match node {
                TileNode::Op { op, .. } => Some(op),
                TileNode::Load { .. } | TileNode::Accumulate { .. } | TileNode::RunningMax { .. } => None,
            })),
        }
    }

    /// The tensors it reads.
    pub fn args(&self) -> Vec<TensorId> {
        match self {
            Node::Input { .. } => Vec::new(),
            Node::Op { args, .. } => args.clone(),
            Node::Block(block) => block.loaded().collect(),
        }
    }
}

impl BlockGraph {
    /// A block graph of nothing.
    pub fn new(grid: &[usize], loop_range: usize) -> BlockGraph {
        BlockGraph { grid: grid.to_vec(), loop_range, nodes: Vec::new(), stores: Vec::new() }
    }

    fn push(&mut self, node: TileNode) -> TileId {
        self.nodes.push(node);
        TileId(self.nodes.len() as u32 - 1)
    }

    /// Adds a load.
    pub fn load(&mut self, tensor: TensorId, grid: &[Option<usize>], along_loop: Option<usize>) -> TileId {
        self.push(TileNode::Load { tensor, grid: grid.to_vec(), along_loop })
    }

    /// Adds an operator.
    pub fn op(&mut self, op: Op, args: &[TileId]) -> TileId {
        self.push(TileNode::Op { op, args: args.to_vec() })
    }

    /// Adds an accumulator.
    pub fn accumulate(&mut self, how: Accumulation, tile: TileId) -> TileId {
        self.push(TileNode::Accumulate { how, tile })
    }

    /// Adds a running maximum.
    pub fn running_max(&mut self, tile: TileId) -> TileId {
        self.push(TileNode::RunningMax { tile })
    }

    /// Stores a tile.
    pub fn store(&mut self, tile: TileId, grid: &[Option<usize>]) {
        self.stores.push(Store { tile, grid: grid.to_vec() });
    }

    /// The tensors that are loaded, once per load.
    pub fn loaded(&self) -> impl Iterator<Item = TensorId> {
        self.nodes.iter().filter_map(|node| match node {
            TileNode::Load { tensor, .. } => Some(*tensor),
            TileNode::Op { .. } | TileNode::Accumulate { .. } | TileNode::RunningMax { .. } => None,
        })
    }

    /// The tensors that are right operands of products, as they are loaded or after operators of one operand.
    pub fn right_operands(&self) -> impl Iterator<Item = TensorId> {
        let loaded = |mut tile: TileId| loop {
            match self.nodes.get(tile.index())? {
                TileNode::Load { tensor, .. } => return Some(*tensor),
                TileNode::Op { args, .. } if args.len() == 1 => tile = args[0],
                _ => return None,
            }
        };
        self.nodes.iter().filter_map(move |node| match node {
            TileNode::Op { op: Op::Matmul, args } => loaded(*args.get(1)?),
            _ => None,
        })
    }

    /// The number of blocks.
    pub fn blocks(&self) -> usize {
        crate::op::elems(&self.grid)
    }
}

impl TileNode {
    /// The tiles it reads.
    pub fn args(&self) -> Vec<TileId> {
        match self {
            TileNode::Load { .. } => Vec::new(),
            TileNode::Op { args, .. } => args.clone(),
            TileNode::Accumulate { how: Accumulation::RescaledSum { max, .. }, tile } => vec![*tile, *max],
            TileNode::Accumulate { tile, .. } | TileNode::RunningMax { tile } => vec![*tile],
        }
    }
}
