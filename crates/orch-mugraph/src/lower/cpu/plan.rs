//! What a block computes, prepared for lowering: compound operators expanded, loops of one iteration gone, extents known.

use super::extent::{Extent, Len, Part};
use crate::eval;
use crate::graph::{Accumulation, BlockGraph, TensorId, TileId, TileNode};
use crate::lower::{CannotLower, Request};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::rational::Rational;
use crate::tiling::{Stage, stages};

/// The work of a block.
#[derive(Clone, Debug)]
pub(super) struct CpuTilePlan {
    /// What is computed, operands first.
    pub nodes: Vec<PlanNode>,
    /// For each store of the block graph the node that is stored.
    pub stored: Vec<usize>,
}

/// A tile.
#[derive(Clone, Debug)]
pub(super) struct PlanNode {
    /// How it is made.
    pub work: Work,
    /// Of which tiles.
    pub args: Vec<usize>,
    /// When.
    pub stage: Stage,
    /// Its extents.
    pub shape: Vec<Extent>,
}

/// How a tile is made of others.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Work {
    /// A part of a tensor.
    Load {
        /// The tensor.
        tensor: TensorId,
        /// Which part, by dimension.
        parts: Vec<Part>,
    },
    /// Elementwise.
    Map(Map),
    /// As [`Op::Reduce`].
    Reduce {
        /// How elements are combined.
        f: ReduceFn,
        /// Along which dimension.
        dim: usize,
        /// The extent of the result.
        keep: usize,
    },
    /// As [`Op::Transpose`].
    Transpose(Vec<usize>),
    /// As [`Op::Slice`].
    Slice {
        /// Along which dimension.
        dim: usize,
        /// The first element.
        start: usize,
    },
    /// As [`Op::Repeat`].
    Repeat {
        /// Along which dimension.
        dim: usize,
        /// How often.
        times: usize,
    },
    /// As [`Op::Rotate`].
    Rotate {
        /// Along which dimension.
        dim: usize,
        /// Distance between the elements of a pair.
        group: usize,
    },
    /// As [`Op::Concat`].
    Concat {
        /// The dimension.
        dim: usize,
    },
    /// As [`Op::Matmul`].
    Matmul,
    /// The sum or maximum over all iterations.
    Accumulate(ReduceFn),
    /// The sum that is rescaled to the running maximum, the second operand.
    Rescaled {
        /// By how many powers of the difference's exponential.
        degree: f64,
    },
    /// The largest so far.
    RunningMax,
}

/// A function of elements at the same place.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Map {
    /// Of one.
    Unary(UnaryFn),
    /// The product with a constant.
    Scale(f64),
    /// The sum with a constant.
    Offset(f64),
    /// The quotient by a length.
    Over(Len),
    /// Of two.
    Binary(BinaryFn),
}

impl CpuTilePlan {
    /// The plan of a kernel.
    ///
    /// # Errors
    /// If the block graph is not valid, or operands' extents differ in some blocks.
    pub fn of(request: &Request<'_>, block: &BlockGraph) -> Result<CpuTilePlan, CannotLower> {
        let stages = stages(block).map_err(|e| CannotLower(e.to_string()))?;
        let mut builder = Builder { request, block, nodes: Vec::new(), tiles: Vec::new() };
        for (node, stage) in block.nodes.iter().zip(stages) {
            let tile = builder.node(node, stage)?;
            builder.tiles.push(tile);
        }
        let stored = block.stores.iter().map(|store| builder.tile(store.tile)).collect::<Result<_, _>>()?;
        Ok(CpuTilePlan { nodes: builder.nodes, stored })
    }

    /// The parts of tensors that are loaded.
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        let parts = |node: &PlanNode| match &node.work {
            Work::Load { parts, .. } => parts.clone(),
            _ => Vec::new(),
        };
        self.nodes.iter().flat_map(parts)
    }
}

struct Builder<'a> {
    request: &'a Request<'a>,
    block: &'a BlockGraph,
    nodes: Vec<PlanNode>,
    /// Of each tile of the block graph its node.
    tiles: Vec<usize>,
}

impl Builder<'_> {
    fn tile(&self, tile: TileId) -> Result<usize, CannotLower> {
        self.tiles.get(tile.index()).copied().ok_or_else(|| CannotLower(format!("{tile} is not defined")))
    }

    fn push(&mut self, work: Work, args: &[usize], stage: Stage, shape: Vec<Extent>) -> usize {
        self.nodes.push(PlanNode { work, args: args.to_vec(), stage, shape });
        self.nodes.len() - 1
    }

    fn node(&mut self, node: &TileNode, stage: Stage) -> Result<usize, CannotLower> {
        let args = node.args().into_iter().map(|arg| self.tile(arg)).collect::<Result<Vec<usize>, _>>()?;
        let work = match node {
            TileNode::Load { tensor, grid, along_loop } => {
                let parts = self.parts(*tensor, grid, *along_loop);
                let shape = parts.iter().map(Part::tile).collect();
                return Ok(self.push(Work::Load { tensor: *tensor, parts }, &[], stage, shape));
            }
            TileNode::Op { op: Op::RmsNorm { eps }, .. } => return self.rms_norm(args[0], *eps, stage),
            TileNode::Op { op, .. } => return self.op(op, &args, stage),
            // With one iteration, what is accumulated is the tile.
            TileNode::Accumulate { .. } | TileNode::RunningMax { .. } if self.block.loop_range == 1 => {
                return Ok(args[0]);
            }
            TileNode::Accumulate { how: Accumulation::Sum, .. } => Work::Accumulate(ReduceFn::Sum),
            TileNode::Accumulate { how: Accumulation::Max, .. } => Work::Accumulate(ReduceFn::Max),
            TileNode::Accumulate { how: Accumulation::RescaledSum { degree, .. }, .. } => {
                Work::Rescaled { degree: degree.to_f64() }
            }
            TileNode::RunningMax { .. } => Work::RunningMax,
        };
        let shape = self.nodes[args[0]].shape.clone();
        if let Some(&max) = args.get(1) {
            for (extent, of_max) in shape.iter().zip(&self.nodes[max].shape) {
                extent.joint(of_max)?;
            }
        }
        Ok(self.push(work, &args, stage, shape))
    }

    fn parts(&self, tensor: TensorId, grid: &[Option<usize>], along_loop: Option<usize>) -> Vec<Part> {
        let part = |(dim, &extent): (usize, &usize)| {
            let axis = grid.iter().position(|by| *by == Some(dim));
            Part {
                extent,
                grid: axis.map(|axis| (axis, self.block.grid[axis])),
                iterations: (along_loop == Some(dim)).then_some(self.block.loop_range),
            }
        };
        self.request.graph.shape(tensor).iter().enumerate().map(part).collect()
    }

    fn op(&mut self, op: &Op, args: &[usize], stage: Stage) -> Result<usize, CannotLower> {
        let work = match op {
            Op::Matmul => Work::Matmul,
            Op::Unary(f) => Work::Map(Map::Unary(*f)),
            Op::Scale(c) => Work::Map(Map::Scale(c.to_f64())),
            Op::Offset(c) => Work::Map(Map::Offset(c.to_f64())),
            Op::Binary(f) => Work::Map(Map::Binary(*f)),
            Op::Reduce { f, dim, keep } => Work::Reduce { f: *f, dim: *dim, keep: *keep },
            Op::Transpose(perm) => Work::Transpose(perm.clone()),
            Op::Slice { dim, start, .. } => Work::Slice { dim: *dim, start: *start },
            Op::Repeat { dim, times } => Work::Repeat { dim: *dim, times: *times },
            Op::Rotate { dim, group } => Work::Rotate { dim: *dim, group: *group },
            Op::Concat { dim } => Work::Concat { dim: *dim },
            Op::RmsNorm { .. } | Op::Reshape(_) | Op::Broadcast(_) | Op::Causal { .. } | Op::Below { .. } => {
                return Err(CannotLower(format!("{op:?} of tiles")));
            }
        };
        let shape = self.shape(op, args)?;
        Ok(self.push(work, args, stage, shape))
    }

    fn shape(&self, op: &Op, args: &[usize]) -> Result<Vec<Extent>, CannotLower> {
        let of = |arg: usize| &self.nodes[args[arg]].shape;
        let with = |dim: usize, extent: Extent| {
            let mut shape = of(0).clone();
            shape[dim] = extent;
            shape
        };
        let joint = |lhs: &[Extent], rhs: &[Extent]| -> Result<Vec<Extent>, CannotLower> {
            lhs.iter().zip(rhs).map(|(a, b)| a.joint(b)).collect()
        };
        Ok(match op {
            Op::Matmul => {
                let rank = of(0).len();
                if of(0)[rank - 1] != of(1)[rank - 2] {
                    return Err(CannotLower("a product whose factors differ in some blocks".into()));
                }
                let mut shape = joint(&of(0)[..rank - 2], &of(1)[..rank - 2])?;
                shape.extend([of(0)[rank - 2].clone(), of(1)[rank - 1].clone()]);
                shape
            }
            Op::Binary(_) => joint(of(0), of(1))?,
            Op::Reduce { dim, keep, .. } => with(*dim, Extent::fixed(*keep)),
            Op::Transpose(perm) => perm.iter().map(|&dim| of(0)[dim].clone()).collect(),
            Op::Slice { dim, len, .. } => with(*dim, Extent::fixed(*len)),
            Op::Repeat { dim, times } => with(*dim, of(0)[*dim].times(*times)),
            Op::Concat { dim } => {
                let extents: Vec<Extent> = (0..args.len()).map(|arg| of(arg)[*dim].clone()).collect();
                for arg in 1..args.len() {
                    let others = |dims: &[Extent]| [&dims[..*dim], &dims[dim + 1..]].concat();
                    if others(of(arg)) != others(of(0)) {
                        return Err(CannotLower(
                            "a concatenation of tiles that differ in some blocks".into(),
                        ));
                    }
                }
                with(*dim, Extent::sum(&extents))
            }
            _ => of(0).clone(),
        })
    }

    /// The steps of [`eval::rms_norm`]; where the row's length depends on the block, so does the mean.
    fn rms_norm(&mut self, arg: usize, eps: Rational, stage: Stage) -> Result<usize, CannotLower> {
        let row = self.nodes[arg].shape.last().cloned();
        let row = row.ok_or_else(|| CannotLower("a norm of a scalar".into()))?;
        let full: Vec<usize> = self.nodes[arg].shape.iter().map(|extent| extent.full).collect();
        let steps = eval::rms_norm(&full, eps).map_err(|e| CannotLower(e.to_string()))?;
        let mut values = vec![arg];
        for (op, args) in steps {
            let args: Vec<usize> = args.iter().map(|&at| values[at]).collect();
            // The third value is the sum of squares.
            let is_mean = values.len() == 3 && !matches!(row.len, Len::Fixed(_));
            let value = if is_mean {
                let shape = self.nodes[args[0]].shape.clone();
                self.push(Work::Map(Map::Over(row.len.clone())), &args, stage, shape)
            } else {
                self.op(&op, &args, stage)?
            };
            values.push(value);
        }
        Ok(values[values.len() - 1])
    }
}
