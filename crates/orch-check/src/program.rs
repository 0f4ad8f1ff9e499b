//! Programs: tensors, kernels that blocks of a grid compute, and which part of a tensor a block sees.

use crate::op::{Op, Ratio};

/// A program. A tensor has the number of the node that defines it.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// What defines tensors, in order.
    pub nodes: Vec<Node>,
    /// The shape of each; of no meaning for [`Node::Block`].
    pub shapes: Vec<Vec<usize>>,
    /// The number of the first place of each node: its own, then those of its tiles.
    places: Vec<usize>,
    /// The number of places.
    pub place_count: usize,
    /// Names and tensors of the results.
    pub outputs: Vec<(String, usize)>,
}

/// What defines a tensor.
#[derive(Clone, Debug)]
pub enum Node {
    /// A tensor that is given: name, and whether its elements are zeros and ones.
    Input(String, bool),
    /// An operator.
    Op(Op, Vec<usize>),
    /// A kernel.
    Block(Block),
    /// What a kernel stores: the node of the kernel, the position among its stores.
    Stored(usize, usize),
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Block {
    /// Blocks along up to three axes.
    pub grid: Vec<usize>,
    /// Iterations of the loop of a block.
    pub iterations: usize,
    /// What defines tiles, in order.
    pub tiles: Vec<Tile>,
    /// Tiles that are stored, with the dimension that each axis of the grid fills.
    pub stores: Vec<(usize, Vec<Option<usize>>)>,
}

/// What defines a tile.
#[derive(Clone, Debug)]
pub enum Tile {
    /// A part of a tensor: the dimension that each axis of the grid cuts, and the one that the loop cuts within it.
    Load { tensor: usize, grid: Vec<Option<usize>>, along: Option<usize> },
    /// An operator.
    Op(Op, Vec<usize>),
    /// The sum over iterations.
    Sum(usize),
    /// The largest over iterations.
    Largest(usize),
    /// The sum over iterations, where the sum so far is multiplied by `e^(degree (before - now))` as a running maximum changes.
    Rescaled { tile: usize, max: usize, degree: Ratio },
    /// The largest over this and earlier iterations.
    RunningMax(usize),
}

/// When a tile is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// It is the same in all iterations.
    Fixed,
    /// In each iteration anew.
    Loop,
    /// After the loop.
    After,
}

impl Tile {
    /// The tiles that it reads.
    pub fn args(&self) -> Vec<usize> {
        match self {
            Tile::Load { .. } => Vec::new(),
            Tile::Op(_, args) => args.clone(),
            Tile::Rescaled { tile, max, .. } => vec![*tile, *max],
            Tile::Sum(tile) | Tile::Largest(tile) | Tile::RunningMax(tile) => vec![*tile],
        }
    }

    /// True if it combines the iterations.
    pub fn accumulates(&self) -> bool {
        matches!(self, Tile::Sum(_) | Tile::Largest(_) | Tile::Rescaled { .. })
    }
}

/// Start and length of part `number` of `parts` of an extent: all have the same size but for what is left at the end.
fn part(extent: usize, parts: usize, number: usize) -> (usize, usize) {
    let size = extent.div_ceil(parts);
    let start = number.saturating_mul(size).min(extent);
    (start, size.min(extent - start))
}

impl Block {
    /// What a load takes along each dimension: start and length.
    pub fn ranges(
        &self,
        load: &Tile,
        shape: &[usize],
        block: &[usize],
        iteration: usize,
    ) -> Vec<(usize, usize)> {
        let mut ranges: Vec<(usize, usize)> = shape.iter().map(|&extent| (0, extent)).collect();
        let Tile::Load { grid, along, .. } = load else { return ranges };
        for ((dim, &parts), &number) in grid.iter().zip(&self.grid).zip(block) {
            if let Some(dim) = *dim {
                ranges[dim] = part(shape[dim], parts, number);
            }
        }
        if let Some(dim) = *along {
            let whole = grid.iter().position(|cut| *cut == Some(dim));
            let whole = whole.map_or(shape[dim], |axis| shape[dim].div_ceil(self.grid[axis]));
            let size = whole.div_ceil(self.iterations);
            let (start, len) = ranges[dim];
            let skipped = iteration.saturating_mul(size).min(len);
            ranges[dim] = (start + skipped, size.min(len - skipped));
        }
        ranges
    }

    /// The stage of each tile, if values of the loop and after it are not mixed.
    pub fn stages(&self) -> Result<Vec<Stage>, String> {
        let mut stages: Vec<Stage> = Vec::new();
        for (at, tile) in self.tiles.iter().enumerate() {
            let args: Vec<Stage> = tile.args().iter().map(|&arg| stages[arg]).collect();
            let latest = args.iter().copied().max().unwrap_or(Stage::Fixed);
            let is_late = latest == Stage::After;
            stages.push(match tile {
                Tile::Load { along, .. } => {
                    if along.is_some() {
                        Stage::Loop
                    } else {
                        Stage::Fixed
                    }
                }
                Tile::Op(..) if is_late && args.contains(&Stage::Loop) => {
                    return Err(format!("s{at} mixes values of the loop with values after it"));
                }
                Tile::Op(..) => latest,
                _ if is_late => return Err(format!("s{at} accumulates a value after the loop")),
                Tile::RunningMax(_) => Stage::Loop,
                _ => Stage::After,
            });
        }
        Ok(stages)
    }

    /// The shapes of all tiles in a block and iteration.
    pub fn tile_shapes(
        &self,
        tensors: &[Vec<usize>],
        block: &[usize],
        iteration: usize,
    ) -> Result<Vec<Vec<usize>>, String> {
        let mut shapes: Vec<Vec<usize>> = Vec::with_capacity(self.tiles.len());
        for tile in &self.tiles {
            shapes.push(match tile {
                Tile::Load { tensor, .. } => {
                    let ranges = self.ranges(tile, &tensors[*tensor], block, iteration);
                    ranges.into_iter().map(|(_, len)| len).collect()
                }
                Tile::Op(op, args) => {
                    op.shape(&args.iter().map(|&arg| shapes[arg].as_slice()).collect::<Vec<_>>())?
                }
                Tile::Rescaled { tile, max, .. } => {
                    let shape = Op::Mul.shape(&[&shapes[*tile], &shapes[*max]])?;
                    if shape != shapes[*tile] {
                        return Err(format!("a maximum larger than the sum that it rescales: {shape:?}"));
                    }
                    shape
                }
                Tile::Sum(tile) | Tile::Largest(tile) | Tile::RunningMax(tile) => shapes[*tile].clone(),
            });
        }
        Ok(shapes)
    }

    /// Where along an axis of the grid the tile of each block starts in what is stored; one list per store, with the end.
    pub fn starts(&self, tensors: &[Vec<usize>], axis: usize) -> Result<Vec<Vec<usize>>, String> {
        let mut starts: Vec<Vec<usize>> = vec![vec![0]; self.stores.len()];
        let (mut known, mut extents) = (Vec::new(), Vec::new());
        for number in 0..self.grid[axis] {
            let mut block = vec![0; self.grid.len()];
            block[axis] = number;
            let cut = |tile: &Tile| match tile {
                Tile::Load { tensor, grid, .. } => {
                    grid[axis].map(|dim| part(tensors[*tensor][dim], self.grid[axis], number).1)
                }
                _ => None,
            };
            let lengths: Vec<Option<usize>> = self.tiles.iter().map(cut).collect();
            if number == 0 || lengths != known {
                let shapes = self.tile_shapes(tensors, &block, 0)?;
                let extent = |(tile, grid): &(usize, Vec<Option<usize>>)| {
                    grid[axis].map_or(0, |dim| shapes[*tile][dim])
                };
                extents = self.stores.iter().map(extent).collect();
                known = lengths;
            }
            for (starts, extent) in starts.iter_mut().zip(&extents) {
                let end = starts[number].checked_add(*extent).ok_or("a stored tensor is too long")?;
                starts.push(end);
            }
        }
        Ok(starts)
    }

    /// The shapes of what is stored, if the kernel has a meaning as far as shapes tell.
    fn stored_shapes(&self, tensors: &[Vec<usize>]) -> Result<Vec<Vec<usize>>, String> {
        let blocks = crate::op::elems(&self.grid).filter(|blocks| (1..=MAX_BLOCKS).contains(blocks));
        if blocks.is_none()
            || !(1..=3).contains(&self.grid.len())
            || !(1..=MAX_ITERATIONS).contains(&self.iterations)
        {
            return Err(format!("a grid of {:?} with a loop of {}", self.grid, self.iterations));
        }
        for (at, tile) in self.tiles.iter().enumerate() {
            if tile.args().iter().any(|&arg| arg >= at) {
                return Err(format!("s{at} reads a tile that is not defined before"));
            }
            let is_wrong = match tile {
                Tile::Load { tensor, grid, along } => {
                    let Some(shape) = tensors.get(*tensor) else {
                        return Err(format!("s{at} loads what is not defined before"));
                    };
                    !self.is_map(grid, shape.len()) || along.is_some_and(|dim| dim >= shape.len())
                }
                Tile::Op(op, _) => op.is_for_tensors(),
                Tile::Rescaled { max, .. } => !matches!(self.tiles[*max], Tile::RunningMax(_)),
                _ => false,
            };
            if is_wrong {
                return Err(format!("s{at} = {tile:?} may not stand in a block like this"));
            }
        }
        let stages = self.stages()?;
        let mut shapes = Vec::new();
        let first = self.tile_shapes(tensors, &vec![0; self.grid.len()], 0)?;
        for (tile, grid) in &self.stores {
            let is_stored_once =
                grid.iter().zip(&self.grid).all(|(dim, &blocks)| dim.is_some() || blocks == 1);
            if !first.get(*tile).is_some_and(|shape| self.is_map(grid, shape.len()))
                || !is_stored_once
                || stages[*tile] == Stage::Loop
            {
                return Err(format!("s{tile} is stored by {grid:?}"));
            }
            shapes.push(first[*tile].clone());
        }
        for axis in 0..self.grid.len() {
            let starts = self.starts(tensors, axis)?;
            for ((starts, (_, grid)), shape) in starts.iter().zip(&self.stores).zip(&mut shapes) {
                if let Some(dim) = grid[axis] {
                    shape[dim] = starts[self.grid[axis]];
                }
            }
        }
        Ok(shapes)
    }

    fn is_map(&self, map: &[Option<usize>], rank: usize) -> bool {
        let mut dims: Vec<usize> = map.iter().flatten().copied().collect();
        dims.sort_unstable();
        map.len() == self.grid.len()
            && dims.iter().all(|&dim| dim < rank)
            && dims.windows(2).all(|pair| pair[0] != pair[1])
    }
}

/// The largest grid.
const MAX_BLOCKS: usize = 1 << 20;
/// The longest loop.
const MAX_ITERATIONS: usize = 1 << 16;

impl Program {
    /// Adds an input.
    pub fn input(&mut self, name: &str, is_mask: bool, shape: Vec<usize>) -> usize {
        self.define(Node::Input(name.to_owned(), is_mask), shape, 1)
    }

    /// Adds an operator on tensors.
    pub fn op(&mut self, op: Op, args: Vec<usize>) -> Result<usize, String> {
        let shapes: Option<Vec<&[usize]>> =
            args.iter().map(|&arg| self.shapes.get(arg).map(Vec::as_slice)).collect();
        let shape = op.shape(&shapes.ok_or("reads what is not defined before")?)?;
        Ok(self.define(Node::Op(op, args), shape, 1))
    }

    /// Adds a kernel; gives the numbers of what it stores.
    pub fn block(&mut self, block: Block) -> Result<Vec<usize>, String> {
        let shapes = block.stored_shapes(&self.shapes)?;
        let places = 1 + block.tiles.len();
        let kernel = self.define(Node::Block(block), Vec::new(), places);
        Ok(shapes
            .into_iter()
            .enumerate()
            .map(|(at, shape)| self.define(Node::Stored(kernel, at), shape, 1))
            .collect())
    }

    fn define(&mut self, node: Node, shape: Vec<usize>, places: usize) -> usize {
        self.places.push(self.place_count);
        self.place_count += places;
        self.nodes.push(node);
        self.shapes.push(shape);
        self.nodes.len() - 1
    }

    /// The place of a node, or of a tile of it.
    pub fn place(&self, node: usize, tile: Option<usize>) -> usize {
        self.places[node] + tile.map_or(0, |tile| tile + 1)
    }

    /// The operator at a node or tile, if it is one.
    pub fn op_at(&self, node: usize, tile: Option<usize>) -> Option<(&Op, &[usize])> {
        match (&self.nodes[node], tile) {
            (Node::Op(op, args), None) => Some((op, args)),
            (Node::Block(block), Some(tile)) => match &block.tiles[tile] {
                Tile::Op(op, args) => Some((op, args)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Every node, and every tile of kernels: node, tile.
    pub fn all(&self) -> Vec<(usize, Option<usize>)> {
        let tiles = |node: &Node| if let Node::Block(block) = node { block.tiles.len() } else { 0 };
        let of = |(at, node): (usize, &Node)| -> Vec<_> {
            std::iter::once((at, None)).chain((0..tiles(node)).map(|tile| (at, Some(tile)))).collect()
        };
        self.nodes.iter().enumerate().flat_map(of).collect()
    }

    /// The inputs: node, name, whether it is a mask.
    pub fn inputs(&self) -> impl Iterator<Item = (usize, &str, bool)> {
        self.nodes.iter().enumerate().filter_map(|(at, node)| match node {
            Node::Input(name, is_mask) => Some((at, name.as_str(), *is_mask)),
            _ => None,
        })
    }

    /// The nodes that a node reads.
    pub fn reads(&self, node: usize) -> Vec<usize> {
        match &self.nodes[node] {
            Node::Input(..) => Vec::new(),
            Node::Op(_, args) => args.clone(),
            Node::Stored(kernel, _) => vec![*kernel],
            Node::Block(block) => {
                let load =
                    |tile: &Tile| if let Tile::Load { tensor, .. } = tile { Some(*tensor) } else { None };
                block.tiles.iter().filter_map(load).collect()
            }
        }
    }
}
