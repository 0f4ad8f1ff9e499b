//! A block graph made ready for lowering: its tiles in order, with readers and remainders known.
//!
//! Rewrites on the way: `rms_norm` is expanded; a product of concatenations along K is a sum of products; `x
//! (W + a b)` is `x W + (x a) b`; a loop of one iteration accumulates nothing; a sum over iterations is
//! pushed into sums and into products by a constant, `sum(x_i a_i w) = sum(x_i a_i) w`, so that products add
//! straight to accumulators; equal tiles are one.
//!
//! A loop may leave a remainder: its last iteration has tiles of the same shape, and elements past the end of tensors, which loads
//! give as zero. What becomes of them is followed through all operators ([`PastEnd`]), and must not change what is accumulated.
//! Operands of maxima and exponentials are masked where it would:
//!
//! ```text
//! 257 keys in 5 iterations of 64, the last of 1:   scores past the end = q * 0 = 0   -> masked to -inf, not larger than any maximum
//!                                                  weights = e^(-inf - max) = 0      -> add nothing to accumulators, nor times v = 0
//! ```

use super::hidden::{Hidden, hidden_value};
use super::register_direct::DirectLoad;
use crate::eval::rms_norm;
use crate::graph::{Accumulation, BlockGraph, Store, TensorId, TileNode};
use crate::lower::CannotLower;
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::tiling::{Stage, part_size};
use std::collections::BTreeMap;

/// Most elements of a tile.
const MAX_TILE_ELEMS: usize = 1 << 30;

/// What computes a tile. Numbers are positions in [`TileSteps::tiles`]; `grid` gives for each dimension of
/// the grid the dimension of the tensor that it partitions.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum TileStep {
    Load {
        tensor: TensorId,
        grid: Vec<Option<usize>>,
        along_loop: Option<usize>,
    },
    /// A mask: 1 where the index along dimension `dim` of the tile, counted over all iterations, is below `extent`.
    Inside {
        dim: usize,
        extent: usize,
    },
    Op {
        op: Op,
        args: Vec<usize>,
    },
    Accumulate {
        how: Accumulation,
        tile: usize,
    },
    RunningMax {
        tile: usize,
    },
}

/// Elements of a tile past the end of the tensors that it is made of.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct PastEnd {
    /// The dimension along which they lie there.
    pub dim: usize,
    /// The extent of the tensors.
    extent: usize,
    /// What they are.
    value: Hidden,
}

/// A tile and what is known of it.
#[derive(Clone, Debug)]
pub(super) struct BlockTile {
    pub step: TileStep,
    /// The shape in the first block and iteration, the largest.
    pub shape: Vec<usize>,
    /// Dimensions in which some blocks, or the last iteration, have fewer elements (a remainder).
    pub ragged: Vec<bool>,
    /// What the last iteration has past the end of tensors, if the loop leaves a remainder of the tile.
    pub past_end: Option<PastEnd>,
    /// Whether it is computed before, in or after the loop.
    pub stage: Stage,
    /// Operands and stores that name it; 0 for tiles that are not computed.
    pub readers: usize,
    /// Whether a reader is in another stage.
    pub crosses_stages: bool,
}

/// The tiles of a block graph in order.
pub(super) struct TileSteps {
    pub tiles: Vec<BlockTile>,
    /// Tiles that are stored, with the tensor dimension of each grid dimension.
    pub stores: Vec<(usize, Vec<Option<usize>>)>,
    /// Iterations of the loop.
    pub loop_range: usize,
    /// Products whose B is loaded directly to registers. Set by `schedules::lower_by_threads`.
    pub direct_loads: BTreeMap<usize, DirectLoad>,
    /// Copies of the loop body, each with registers of its own for direct loads; divides `loop_range`.
    pub unroll: usize,
}

impl TileStep {
    /// The tiles that are read.
    pub fn args(&self) -> Vec<usize> {
        match self {
            TileStep::Load { .. } | TileStep::Inside { .. } => Vec::new(),
            TileStep::Op { args, .. } => args.clone(),
            TileStep::Accumulate { how: Accumulation::RescaledSum { max, .. }, tile } => {
                vec![*tile, max.index()]
            }
            TileStep::Accumulate { tile, .. } | TileStep::RunningMax { tile } => vec![*tile],
        }
    }
}

impl TileSteps {
    /// The tiles of a block graph over tensors of these shapes.
    pub fn of(block: &BlockGraph, tensors: &[Vec<usize>]) -> Result<TileSteps, CannotLower> {
        let mut builder =
            StepBuilder { block, tensors, tiles: Vec::new(), values: Vec::new(), renamed: Vec::new() };
        for (position, node) in block.nodes.iter().enumerate() {
            let tile = builder.node(node).map_err(|e| CannotLower(format!("s{position}: {}", e.0)))?;
            builder.renamed.push(tile);
        }
        let stores = block.stores.iter();
        let stores =
            stores.map(|Store { tile, grid }| (builder.renamed[tile.index()], grid.clone())).collect();
        if builder.tiles.iter().any(|tile| crate::op::elems(&tile.shape) > MAX_TILE_ELEMS) {
            return Err(CannotLower(format!("a tile of more than {MAX_TILE_ELEMS} elements")));
        }
        let mut steps = TileSteps {
            tiles: builder.tiles,
            stores,
            loop_range: block.loop_range,
            direct_loads: BTreeMap::new(),
            unroll: 1,
        };
        steps.count_readers();
        Ok(steps)
    }

    /// Counts live readers, from the last tile to the first.
    fn count_readers(&mut self) {
        for (tile, _) in &self.stores {
            self.tiles[*tile].readers += 1;
        }
        for position in (0..self.tiles.len()).rev() {
            if self.tiles[position].readers == 0 {
                continue;
            }
            let stage = self.tiles[position].stage;
            for arg in self.tiles[position].step.args() {
                self.tiles[arg].readers += 1;
                self.tiles[arg].crosses_stages |= self.tiles[arg].stage != stage;
            }
        }
    }

    /// The live tiles of a stage, in order; accumulations belong to the loop as well as to what follows it.
    pub fn in_stage(&self, stage: Stage) -> Vec<usize> {
        let wanted = |&position: &usize| {
            let tile = &self.tiles[position];
            let in_loop = tile.stage == Stage::Loop
                || stage == Stage::Loop && matches!(tile.step, TileStep::Accumulate { .. });
            let own = if stage == Stage::Loop { in_loop } else { tile.stage == stage };
            tile.readers > 0 && own
        };
        (0..self.tiles.len()).filter(wanted).collect()
    }

    /// The live reader of a tile that has one.
    pub fn only_reader(&self, tile: usize) -> Option<usize> {
        if self.tiles[tile].readers != 1 {
            return None;
        }
        self.readers(tile).next()
    }

    /// The live readers of a tile, in order.
    pub fn readers(&self, tile: usize) -> impl Iterator<Item = usize> {
        (0..self.tiles.len())
            .filter(move |&at| self.tiles[at].readers > 0 && self.tiles[at].step.args().contains(&tile))
    }

    /// The dimensions of a tile that are K of a product, also through transpositions.
    pub fn k_dims(&self, tile: usize) -> Vec<usize> {
        let mut found = Vec::new();
        for reader in self.tiles.iter().filter(|reader| reader.readers > 0) {
            let TileStep::Op { op, args } = &reader.step else { continue };
            let rank = self.tiles[tile].shape.len();
            match op {
                Op::Matmul => {
                    found.extend((args[0] == tile).then(|| rank - 1));
                    found.extend((args[1] == tile).then(|| rank - 2));
                }
                Op::Transpose(perm) if args[0] == tile => {
                    let position = self.tiles.iter().position(|other| std::ptr::eq(other, reader));
                    let dims = position.map(|position| self.k_dims(position)).unwrap_or_default();
                    found.extend(dims.into_iter().map(|dim| perm[dim]));
                }
                _ => {}
            }
        }
        found
    }
}

/// How large a tile is; the fields are those of [`BlockTile`].
struct TileExtents {
    shape: Vec<usize>,
    ragged: Vec<bool>,
    past_end: Option<PastEnd>,
}

/// Builds the tiles of a block graph.
struct StepBuilder<'a> {
    block: &'a BlockGraph,
    tensors: &'a [Vec<usize>],
    tiles: Vec<BlockTile>,
    /// What elements of each tile are that do not lie past an end.
    values: Vec<Hidden>,
    /// The tile of each node.
    renamed: Vec<usize>,
}

impl StepBuilder<'_> {
    /// The tile of a node.
    fn node(&mut self, node: &TileNode) -> Result<usize, CannotLower> {
        let once = self.block.loop_range == 1;
        match node {
            TileNode::Load { tensor, grid, along_loop } => {
                self.load(*tensor, grid, along_loop.filter(|_| !once))
            }
            TileNode::Op { op, args } => {
                let mut args: Vec<usize> = args.iter().map(|arg| self.renamed[arg.index()]).collect();
                if matches!(op, Op::Unary(UnaryFn::Exp) | Op::Reduce { f: ReduceFn::Max, .. }) {
                    args[0] = self.mask_past_end(args[0])?;
                }
                self.op(op, &args)
            }
            TileNode::Accumulate { tile, .. } | TileNode::RunningMax { tile } if once => {
                Ok(self.renamed[tile.index()])
            }
            TileNode::Accumulate { how, tile } => {
                let tile = self.renamed[tile.index()];
                let how = match how {
                    Accumulation::RescaledSum { max, degree } => Accumulation::RescaledSum {
                        max: crate::graph::TileId(self.renamed[max.index()] as u32),
                        degree: *degree,
                    },
                    how => *how,
                };
                match how {
                    Accumulation::Sum => self.sum_over_iterations(tile),
                    how => Ok(self.like(TileStep::Accumulate { how, tile }, Stage::After, tile)),
                }
            }
            TileNode::RunningMax { tile } => {
                let tile = self.renamed[tile.index()];
                Ok(self.like(TileStep::RunningMax { tile }, Stage::Loop, tile))
            }
        }
    }

    /// The sum of a tile over all iterations, pushed into sums and products so that products add straight to
    /// accumulators.
    fn sum_over_iterations(&mut self, tile: usize) -> Result<usize, CannotLower> {
        let changes = |this: &Self, tile: usize| this.tiles[tile].stage == Stage::Loop;
        let is_product =
            |this: &Self, tile: usize| matches!(this.tiles[tile].step, TileStep::Op { op: Op::Matmul, .. });
        if let TileStep::Op { op, args } = self.tiles[tile].step.clone() {
            match op {
                Op::Binary(BinaryFn::Add)
                    if args.iter().all(|&arg| changes(self, arg) && self.same_shape(arg, tile))
                        && args.iter().any(|&arg| is_product(self, arg)) =>
                {
                    let sums: Result<Vec<usize>, CannotLower> =
                        args.iter().map(|&arg| self.sum_over_iterations(arg)).collect();
                    return self.plain(&op, &sums?);
                }
                Op::Matmul
                    if is_product(self, args[0]) && changes(self, args[0]) && !changes(self, args[1]) =>
                {
                    let sum = self.sum_over_iterations(args[0])?;
                    return self.plain(&op, &[sum, args[1]]);
                }
                _ => {}
            }
        }
        Ok(self.like(TileStep::Accumulate { how: Accumulation::Sum, tile }, Stage::After, tile))
    }

    /// Whether two tiles have the same shape.
    fn same_shape(&self, a: usize, b: usize) -> bool {
        self.tiles[a].shape == self.tiles[b].shape
    }

    /// The tile of a step: an equal one if there is one, else a new one.
    fn define(
        &mut self,
        step: TileStep,
        TileExtents { shape, ragged, past_end }: TileExtents,
        stage: Stage,
    ) -> usize {
        if let Some(known) = self.tiles.iter().position(|tile| tile.step == step) {
            return known;
        }
        let of = |args: &[usize]| args.iter().map(|&arg| self.values[arg]).collect::<Vec<_>>();
        let value = match &step {
            TileStep::Load { .. } | TileStep::Inside { .. } => Hidden::Finite,
            TileStep::Op { op, args } => hidden_value(op, &of(args)),
            TileStep::Accumulate { tile, .. } | TileStep::RunningMax { tile } => self.values[*tile],
        };
        self.values.push(value);
        self.tiles.push(BlockTile {
            step,
            shape,
            ragged,
            past_end,
            stage,
            readers: 0,
            crosses_stages: false,
        });
        self.tiles.len() - 1
    }

    /// A tile of the shape of another one.
    fn like(&mut self, step: TileStep, stage: Stage, other: usize) -> usize {
        let BlockTile { shape, ragged, past_end, .. } = self.tiles[other].clone();
        self.define(step, TileExtents { shape, ragged, past_end }, stage)
    }

    /// The tile of a load: each dimension divided by its grid extent and, along the loop, by the iterations; remainders are
    /// `ragged`.
    fn load(
        &mut self,
        tensor: TensorId,
        grid: &[Option<usize>],
        along_loop: Option<usize>,
    ) -> Result<usize, CannotLower> {
        let mut shape = self.tensors[tensor.index()].clone();
        let mut ragged = vec![false; shape.len()];
        for (dim, &blocks) in grid.iter().zip(&self.block.grid) {
            if let Some(dim) = *dim {
                ragged[dim] = !shape[dim].is_multiple_of(blocks);
                shape[dim] = part_size(shape[dim], blocks);
            }
        }
        let mut past_end = None;
        if let Some(dim) = along_loop {
            let (extent, range) = (shape[dim], self.block.loop_range);
            let size = part_size(extent, range);
            let is_even = size * range == extent;
            let is_whole = extent == self.tensors[tensor.index()][dim];
            let has_all_iterations = size * (range - 1) < extent;
            if ragged[dim] || !(is_even || is_whole && has_all_iterations) {
                let problem =
                    "the loop leaves a remainder of a block's part, or an iteration without elements";
                return Err(CannotLower(format!("{problem}: dimension {dim} of {tensor}")));
            }
            ragged[dim] = !is_even;
            past_end = (!is_even).then_some(PastEnd { dim, extent, value: Hidden::Zero });
            shape[dim] = size;
        }
        if shape.contains(&0) {
            return Err(CannotLower(format!("{tensor} has no elements")));
        }
        let stage = if along_loop.is_some() { Stage::Loop } else { Stage::Invariant };
        let step = TileStep::Load { tensor, grid: grid.to_vec(), along_loop };
        Ok(self.define(step, TileExtents { shape, ragged, past_end }, stage))
    }

    /// A tile whose elements past the end are minus infinity, which every reader reads from here on. Positive factors and
    /// constants do not change that, so the mask comes before them, at what they are applied to.
    fn mask_past_end(&mut self, tile: usize) -> Result<usize, CannotLower> {
        let Some(PastEnd { dim, extent, value }) = self.tiles[tile].past_end else { return Ok(tile) };
        if value == Hidden::Lowest {
            return Ok(tile);
        }
        let masked = match self.tiles[tile].step.clone() {
            TileStep::Op { op, args }
                if args.len() == 1 && hidden_value(&op, &[Hidden::Lowest]) == Hidden::Lowest =>
            {
                let arg = self.mask_past_end(args[0])?;
                self.plain(&op, &[arg])?
            }
            _ => {
                let rank = self.tiles[tile].shape.len();
                let shape = crate::op::with(&vec![1; rank], dim, self.tiles[tile].shape[dim]);
                let ragged = (0..rank).map(|at| at == dim).collect();
                let past_end = Some(PastEnd { dim, extent, value: Hidden::Zero });
                let step = TileStep::Inside { dim, extent };
                let inside = self.define(step, TileExtents { shape, ragged, past_end }, Stage::Loop);
                self.plain(&Op::Binary(BinaryFn::Mask), &[tile, inside])?
            }
        };
        self.renamed.iter_mut().filter(|renamed| **renamed == tile).for_each(|renamed| *renamed = masked);
        Ok(masked)
    }

    /// The tile of an operator, with compound operators expanded.
    fn op(&mut self, op: &Op, args: &[usize]) -> Result<usize, CannotLower> {
        match op {
            Op::RmsNorm { eps } => {
                let BlockTile { shape, past_end, .. } = &self.tiles[args[0]];
                if past_end.is_some_and(|end| end.dim + 1 == shape.len()) {
                    return Err(CannotLower("a mean over a remainder of the loop".into()));
                }
                let steps =
                    rms_norm(&self.tiles[args[0]].shape, *eps).map_err(|e| CannotLower(e.to_string()))?;
                let mut values = vec![args[0]];
                for (op, args) in steps {
                    let args: Vec<usize> = args.iter().map(|&at| values[at]).collect();
                    values.push(self.op(&op, &args)?);
                }
                Ok(values[values.len() - 1])
            }
            Op::Matmul => match self.concat_parts(args[0], args[1]) {
                Some(parts) => {
                    let products: Result<Vec<usize>, CannotLower> =
                        parts.iter().map(|pair| self.plain(op, pair)).collect();
                    let mut products = products?.into_iter();
                    let first = products.next().ok_or_else(|| CannotLower("a product of nothing".into()))?;
                    let add = Op::Binary(BinaryFn::Add);
                    products.try_fold(first, |sum, product| self.plain(&add, &[sum, product]))
                }
                None => match self.load_plus_product(args[0], args[1]) {
                    Some((factor, [left, right])) => {
                        let product = self.plain(op, &[args[0], factor])?;
                        let narrow = self.plain(op, &[args[0], left])?;
                        let other = self.plain(op, &[narrow, right])?;
                        self.plain(&Op::Binary(BinaryFn::Add), &[product, other])
                    }
                    None => self.plain(op, args),
                },
            },
            op => self.plain(op, args),
        }
    }

    /// For a product of concatenations along K, the pairs of operands that are multiplied with each other.
    fn concat_parts(&self, lhs: usize, rhs: usize) -> Option<Vec<[usize; 2]>> {
        let concat = |tile: usize| match &self.tiles[tile].step {
            TileStep::Op { op: Op::Concat { dim }, args } => Some((*dim, args.clone())),
            _ => None,
        };
        let ((lhs_dim, lhs), (rhs_dim, rhs)) = (concat(lhs)?, concat(rhs)?);
        let rank = self.tiles[lhs[0]].shape.len();
        let suits =
            |(a, b): (&usize, &usize)| self.tiles[*a].shape[rank - 1] == self.tiles[*b].shape[rank - 2];
        let fits = lhs_dim == rank - 1 && rhs_dim == rank - 2 && lhs.len() == rhs.len();
        (fits && lhs.iter().zip(&rhs).all(suits))
            .then(|| lhs.into_iter().zip(rhs).map(|(a, b)| [a, b]).collect())
    }

    /// For `x (W + a b)` with W and b loads: W and `[a, b]`, if x is so skinny (small M) that `(x a) b` is not much
    /// more work than `a b`. As in LoRA; a rewrite that the search could do as well.
    fn load_plus_product(&self, first: usize, second: usize) -> Option<(usize, [usize; 2])> {
        let TileStep::Op { op: Op::Binary(BinaryFn::Add), args } = &self.tiles[second].step else {
            return None;
        };
        let is_load = |tile: usize| matches!(self.tiles[tile].step, TileStep::Load { .. });
        let operands = |tile: usize| match &self.tiles[tile].step {
            TileStep::Op { op: Op::Matmul, args } if is_load(args[1]) => Some([args[0], args[1]]),
            _ => None,
        };
        let shape = &self.tiles[second].shape;
        let is_plain = shape.len() == 2 && self.same_shape(args[0], args[1]);
        // x may have at most twice as many rows as W has columns per block.
        // `(x a) b` has x's rows, `a b` K of them.
        if !is_plain || self.tiles[first].shape[0] > 2 * shape[1] {
            return None;
        }
        let pairs = [(args[0], args[1]), (args[1], args[0])];
        pairs.into_iter().find_map(|(load, other)| Some((load, operands(other).filter(|_| is_load(load))?)))
    }

    /// The tile of an operator as it is.
    fn plain(&mut self, op: &Op, args: &[usize]) -> Result<usize, CannotLower> {
        let shapes: Vec<&[usize]> = args.iter().map(|&arg| self.tiles[arg].shape.as_slice()).collect();
        let shape = op.infer(&shapes).map_err(CannotLower)?;
        if shape.contains(&0) {
            return Err(CannotLower("a tile without elements".into()));
        }
        let ragged = self.ragged_dims(op, args, &shape)?;
        let past_end = self.past_end_of(op, args)?;
        let stage = args.iter().map(|&arg| self.tiles[arg].stage).max().unwrap_or(Stage::Invariant);
        let step = TileStep::Op { op: op.clone(), args: args.to_vec() };
        Ok(self.define(step, TileExtents { shape, ragged, past_end }, stage))
    }

    /// What a result has past the end of tensors, from what its operands have there; an error if elements would be combined that
    /// are not neutral, or moved.
    fn past_end_of(&self, op: &Op, args: &[usize]) -> Result<Option<PastEnd>, CannotLower> {
        let rank = args.first().map_or(0, |&arg| self.tiles[arg].shape.len());
        // Where the dimension of an operand is in the result; `None` if the operator combines it.
        let place = |arg: usize, dim: usize| match op {
            Op::Matmul => (dim + [1, 2][arg] != rank).then_some(dim),
            Op::Reduce { dim: reduced, .. } => (dim != *reduced).then_some(dim),
            Op::Transpose(perm) => perm.iter().position(|&from| from == dim),
            _ => Some(dim),
        };
        let ends = || args.iter().enumerate().filter_map(|(at, &arg)| Some((at, self.tiles[arg].past_end?)));
        let Some((_, PastEnd { extent, .. })) = ends().next() else { return Ok(None) };
        let refused = |why: &str| Err(CannotLower(format!("the loop leaves a remainder of {extent}: {why}")));
        // In an iteration of which it hides nothing else the mask of a band is left out.
        let is_left_out = |at| {
            *op == Op::Binary(BinaryFn::Mask)
                && at == 1
                && !matches!(self.tiles[args[1]].step, TileStep::Inside { .. })
        };
        let values = args.iter().enumerate().map(|(at, &arg)| match self.tiles[arg].past_end {
            Some(_) if is_left_out(at) => Hidden::Finite,
            Some(end) => end.value,
            None => self.values[arg],
        });
        let value = hidden_value(op, &values.collect::<Vec<_>>());
        let moves = match op {
            Op::Slice { dim, .. } | Op::Rotate { dim, .. } | Op::Concat { dim } | Op::Repeat { dim, .. } => {
                Some(*dim)
            }
            _ => None,
        };
        if ends().any(|(_, end)| end.extent != extent || moves == Some(end.dim)) {
            return refused("its elements are moved, or meet others");
        }
        let mut dims = ends().map(|(at, end)| place(at, end.dim));
        let first = dims.next().flatten();
        if !dims.all(|dim| dim == first) {
            return refused("it lies along two dimensions");
        }
        let neutral =
            if matches!(op, Op::Reduce { f: ReduceFn::Max, .. }) { Hidden::Lowest } else { Hidden::Zero };
        match first {
            Some(dim) => Ok(Some(PastEnd { dim, extent, value })),
            None if value == neutral => Ok(None),
            None => refused("what lies past the end would change a result"),
        }
    }

    /// Which dimensions of a result have a remainder; an error if a dimension with one of the grid is reduced or moved.
    fn ragged_dims(&self, op: &Op, args: &[usize], shape: &[usize]) -> Result<Vec<bool>, CannotLower> {
        let of = |arg: usize| &self.tiles[args[arg]].ragged;
        let is_past_end = |arg: usize, dim| self.tiles[args[arg]].past_end.is_some_and(|end| end.dim == dim);
        let whole = |arg: usize, dim: usize| match of(arg)[dim] && !is_past_end(arg, dim) {
            true => Err(CannotLower(format!("a remainder along dimension {dim}, which is combined"))),
            false => Ok(()),
        };
        let rank = shape.len();
        Ok(match op {
            Op::Matmul => {
                whole(0, rank - 1)?;
                whole(1, rank - 2)?;
                (0..rank)
                    .map(|dim| (dim + 1 != rank && of(0)[dim]) || (dim + 2 != rank && of(1)[dim]))
                    .collect()
            }
            Op::Reduce { dim, .. } | Op::Slice { dim, .. } | Op::Rotate { dim, .. } => {
                whole(0, *dim)?;
                (0..rank).map(|at| at != *dim && of(0)[at]).collect()
            }
            Op::Concat { dim } => {
                (0..args.len()).try_for_each(|arg| whole(arg, *dim))?;
                (0..rank).map(|dim| (0..args.len()).any(|arg| of(arg)[dim])).collect()
            }
            Op::Transpose(perm) => perm.iter().map(|&dim| of(0)[dim]).collect(),
            Op::Unary(_) | Op::Scale(_) | Op::Offset(_) | Op::Binary(_) | Op::Repeat { .. } => {
                (0..rank).map(|dim| (0..args.len()).any(|arg| of(arg)[dim])).collect()
            }
            Op::RmsNorm { .. } | Op::Reshape(_) | Op::Broadcast(_) | Op::Causal { .. } | Op::Below { .. } => {
                return Err(CannotLower(format!("{op:?} is no operator of tiles")));
            }
        })
    }
}

/// About how many instructions an operator takes per element.
pub(super) fn op_cost(op: &Op) -> usize {
    match op {
        Op::Unary(UnaryFn::Square | UnaryFn::Relu | UnaryFn::Guard) => 1,
        Op::Unary(UnaryFn::Sqrt) | Op::Binary(BinaryFn::Div) => 4,
        Op::Unary(_) => 16,
        _ => 1,
    }
}
