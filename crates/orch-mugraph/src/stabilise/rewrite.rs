//! The stable form of one exponential that [`analyse`](super::homogeneity::analyse) allows.
//!
//! `e^a` becomes `e^(a - guard(m))` with the maximum `m` per row: within the tile, and running where the loop is summed
//! over; accumulators of degree d become sums that are rescaled by d. Where blocks of the grid share a row, their tiles
//! leave with the block's maximum beside them, and what reads them first multiplies by `e^(d (m - guard(M)))`, where `M`
//! is the largest over the blocks. Where a constant is added to a sum, the maximum is of zero too.

use super::homogeneity::{Axis, AxisGroup, Dependence, Refusal, ValueKey, refuse};
use crate::graph::{Accumulation, BlockGraph, GraphError, MuGraph, Node, TensorId, TileId, TileNode};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::rational::Rational;
use crate::tiling::{Stage, stages, tile_shapes};
use std::collections::BTreeMap;

/// Rewrites one exponential.
///
/// # Errors
/// If maxima cannot be handed over where kernels meet.
pub fn rewrite(graph: &MuGraph, group: &AxisGroup) -> Result<MuGraph, Refusal> {
    let mut rewriter = Rewriter {
        graph,
        group,
        new: MuGraph::new(graph.name.clone()),
        tensors: Vec::new(),
        exports: BTreeMap::new(),
        merged: BTreeMap::new(),
        largest: BTreeMap::new(),
        row_max: None,
    };
    for (first, node) in graph.nodes() {
        rewriter.node(first, node)?;
    }
    for (name, id) in graph.outputs() {
        rewriter.new.output(name.clone(), rewriter.tensors[id.index()]).map_err(internal)?;
    }
    Ok(rewriter.new)
}

fn internal(e: GraphError) -> Refusal {
    Refusal { place: e.place, reason: e.problem }
}

/// A stored tile and the maximum beside it.
#[derive(Clone, Debug)]
struct Export {
    max: TensorId,
    degree: Rational,
    /// Dimensions along which blocks of one row lie beside each other.
    merge: Vec<usize>,
    /// Dimensions along which one maximum serves several neighbours.
    repeat: Vec<(usize, usize)>,
}

struct Rewriter<'a> {
    graph: &'a MuGraph,
    group: &'a AxisGroup,
    new: MuGraph,
    /// New tensors by old ones.
    tensors: Vec<TensorId>,
    /// By old tensor.
    exports: BTreeMap<TensorId, Export>,
    /// Tensors multiplied by their factor, for readers among predefined kernels; by old tensor.
    merged: BTreeMap<TensorId, TensorId>,
    /// The largest over blocks, for readers among predefined kernels; by new tensor of maxima.
    largest: BTreeMap<TensorId, TensorId>,
    /// The maximum of an exponential among predefined kernels.
    row_max: Option<TensorId>,
}

/// What operators are added to: predefined kernels or a block graph.
trait Sink {
    type Id: Copy;
    fn op(&mut self, op: Op, args: &[Self::Id]) -> Result<Self::Id, Refusal>;

    fn largest(&mut self, value: Self::Id, dims: &[usize]) -> Result<Self::Id, Refusal> {
        let reduce = |dim| Op::Reduce { f: ReduceFn::Max, dim, keep: 1 };
        dims.iter().try_fold(value, |value, &dim| self.op(reduce(dim), &[value]))
    }

    /// `e^(d (a - guard(m)))`
    fn relative(&mut self, a: Self::Id, m: Self::Id, degree: Rational) -> Result<Self::Id, Refusal> {
        let guarded = self.op(Op::Unary(UnaryFn::Guard), &[m])?;
        let mut exponent = self.op(Op::Binary(BinaryFn::Sub), &[a, guarded])?;
        if degree != Rational::ONE {
            exponent = self.op(Op::Scale(degree), &[exponent])?;
        }
        self.op(Op::Unary(UnaryFn::Exp), &[exponent])
    }

    /// Zero for each element of a maximum.
    fn zero(&mut self, max: Self::Id) -> Result<Self::Id, Refusal> {
        let guarded = self.op(Op::Unary(UnaryFn::Guard), &[max])?;
        self.op(Op::Scale(Rational::ZERO), &[guarded])
    }

    /// The sum of a value that is relative to a maximum and of a constant: `value + c e^(0 - m)`.
    fn sink(&mut self, value: Self::Id, c: Rational, max: Self::Id) -> Result<Self::Id, Refusal> {
        let zero = self.zero(max)?;
        let mut constant = self.relative(zero, max, Rational::ONE)?;
        if c != Rational::ONE {
            constant = self.op(Op::Scale(c), &[constant])?;
        }
        self.op(Op::Binary(BinaryFn::Add), &[value, constant])
    }

    /// The larger of a maximum and zero.
    fn at_least_zero(&mut self, max: Self::Id) -> Result<Self::Id, Refusal> {
        let zero = self.zero(max)?;
        self.op(Op::Binary(BinaryFn::Max), &[max, zero])
    }

    fn scaled(
        &mut self,
        value: Self::Id,
        max: (Self::Id, Self::Id),
        export: &Export,
    ) -> Result<Self::Id, Refusal> {
        let mut factor = self.relative(max.0, max.1, export.degree)?;
        for &(dim, times) in &export.repeat {
            factor = self.op(Op::Repeat { dim, times }, &[factor])?;
        }
        self.op(Op::Binary(BinaryFn::Mul), &[value, factor])
    }
}

impl Sink for MuGraph {
    type Id = TensorId;
    fn op(&mut self, op: Op, args: &[TensorId]) -> Result<TensorId, Refusal> {
        MuGraph::op(self, op, args).map_err(internal)
    }
}

impl Sink for BlockGraph {
    type Id = TileId;
    fn op(&mut self, op: Op, args: &[TileId]) -> Result<TileId, Refusal> {
        Ok(BlockGraph::op(self, op, args))
    }
}

impl Rewriter<'_> {
    fn node(&mut self, first: TensorId, node: &Node) -> Result<(), Refusal> {
        match node {
            Node::Input { name, kind, shape } => {
                let id = self.new.input_of(name.clone(), *kind, shape);
                self.tensors.push(id);
            }
            Node::Op { op, args } => {
                let args: Vec<TensorId> = args.iter().map(|arg| self.read(*arg)).collect::<Result<_, _>>()?;
                let id = if (first, None) == self.group.place {
                    let mut max = self.new.largest(args[0], &self.reduced_dims())?;
                    if !self.group.sinks.is_empty() {
                        max = self.new.at_least_zero(max)?;
                    }
                    self.row_max = Some(max);
                    self.new.relative(args[0], max, Rational::ONE)?
                } else if let (Op::Offset(c), Some(max), true) =
                    (op, self.row_max, self.group.sinks.contains(&(first, None)))
                {
                    self.new.sink(args[0], *c, max)?
                } else {
                    Sink::op(&mut self.new, op.clone(), &args)?
                };
                self.tensors.push(id);
            }
            Node::Block(block) => self.block(first, block)?,
        }
        Ok(())
    }

    /// The dimensions of the exponential that are summed.
    fn reduced_dims(&self) -> Vec<usize> {
        let dim = |axis: &Axis| match axis {
            Axis::Dim(dim) => Some(*dim),
            Axis::Loop | Axis::Grid(_) => None,
        };
        self.group.reduced.iter().filter_map(dim).collect()
    }

    /// A tensor as predefined kernels read it.
    fn read(&mut self, old: TensorId) -> Result<TensorId, Refusal> {
        let value = self.tensors[old.index()];
        let Some(export) = self.exports.get(&old).cloned() else { return Ok(value) };
        if let Some(merged) = self.merged.get(&old) {
            return Ok(*merged);
        }
        // One maximum for all partial sums of a row: as symbols, two would not cancel.
        let max = match self.largest.get(&export.max) {
            Some(known) => *known,
            None => self.new.largest(export.max, &export.merge)?,
        };
        self.largest.insert(export.max, max);
        let merged = self.new.scaled(value, (export.max, max), &export)?;
        self.merged.insert(old, merged);
        Ok(merged)
    }

    fn block(&mut self, first: TensorId, old: &BlockGraph) -> Result<(), Refusal> {
        let stages = stages(old).map_err(internal)?;
        let mut new = BlockGraph::new(&old.grid, old.loop_range);
        let mut tiles: Vec<TileId> = Vec::with_capacity(old.nodes.len());
        // The running maximum that a tile is relative to, and the final one to be stored, by old tile.
        let mut running: Vec<Option<TileId>> = Vec::with_capacity(old.nodes.len());
        let mut merges: BTreeMap<TileNode, (TileId, TileId, Option<TileId>)> = BTreeMap::new();
        let mut own_max = None;
        for (position, node) in old.nodes.iter().enumerate() {
            let place = (first, Some(position as u32));
            let of_args = node.args().iter().find_map(|arg| running[arg.index()]);
            let mut relative_to = of_args.filter(|_| self.group.values.contains_key(&place));
            let tile = match node {
                TileNode::Load { tensor, grid, along_loop } => {
                    let value = new.load(self.tensors[tensor.index()], grid, *along_loop);
                    match self.exports.get(tensor).cloned() {
                        None => value,
                        Some(export) => {
                            let key = TileNode::Load {
                                tensor: export.max,
                                grid: grid.clone(),
                                along_loop: *along_loop,
                            };
                            let (max, over, run) = match merges.get(&key) {
                                Some(known) => *known,
                                None => {
                                    let made = self.merge(&mut new, key.clone(), &export, *along_loop)?;
                                    merges.insert(key, made);
                                    made
                                }
                            };
                            relative_to = run;
                            new.scaled(value, (max, over), &export)?
                        }
                    }
                }
                TileNode::Op { args, .. } if place == self.group.place => {
                    let exponent = tiles[args[0].index()];
                    let mut largest = new.largest(exponent, &self.reduced_dims())?;
                    if !self.group.sinks.is_empty() {
                        largest = new.at_least_zero(largest)?;
                    }
                    let is_running =
                        self.group.reduced.contains(&Axis::Loop) && stages[position] == Stage::Loop;
                    let max = if is_running { new.running_max(largest) } else { largest };
                    relative_to = is_running.then_some(max);
                    own_max = Some((largest, is_running));
                    new.relative(exponent, max, Rational::ONE)?
                }
                TileNode::Op { op: Op::Offset(c), args } if self.group.sinks.contains(&place) => {
                    let max = self.row_max_after(&mut new, own_max, place)?;
                    new.sink(tiles[args[0].index()], *c, max)?
                }
                TileNode::Op { op, args } => {
                    let args: Vec<TileId> = args.iter().map(|arg| tiles[arg.index()]).collect();
                    new.op(op.clone(), &args)
                }
                TileNode::RunningMax { tile } => new.running_max(tiles[tile.index()]),
                TileNode::Accumulate { how, tile } => {
                    let how = self.accumulation(*how, (first, Some(tile.0)), running[tile.index()], &tiles);
                    relative_to = None;
                    new.accumulate(how, tiles[tile.index()])
                }
            };
            tiles.push(tile);
            running.push(relative_to);
        }
        for store in &old.stores {
            new.store(tiles[store.tile.index()], &store.grid);
        }
        let exports = self.export(first, old, (&mut new, own_max))?;
        let made = self.new.block(new).map_err(internal)?;
        self.tensors.extend(&made[..old.stores.len()]);
        for (tensor, (position, mut export)) in exports {
            export.max = made[position];
            self.exports.insert(tensor, export);
        }
        Ok(())
    }

    /// The maximum of all iterations.
    fn row_max_after(
        &self,
        new: &mut BlockGraph,
        own_max: Option<(TileId, bool)>,
        place: ValueKey,
    ) -> Result<TileId, Refusal> {
        match own_max {
            Some((largest, true)) => Ok(new.accumulate(Accumulation::Max, largest)),
            Some((largest, false)) => Ok(largest),
            None => Err(refuse(place, "adds a constant to a sum whose maximum is elsewhere")),
        }
    }

    fn accumulation(
        &self,
        how: Accumulation,
        tile: ValueKey,
        running: Option<TileId>,
        tiles: &[TileId],
    ) -> Accumulation {
        match (how, running, self.group.values.get(&tile)) {
            (Accumulation::Sum, Some(max), Some(value)) => {
                Accumulation::RescaledSum { max, degree: value.degree }
            }
            (Accumulation::RescaledSum { max, degree }, ..) => {
                Accumulation::RescaledSum { max: tiles[max.index()], degree }
            }
            (how, ..) => how,
        }
    }

    /// Loads the maxima beside a loaded tile: the tile of maxima, the largest over blocks so far, and if it is running.
    fn merge(
        &self,
        new: &mut BlockGraph,
        load: TileNode,
        export: &Export,
        along_loop: Option<usize>,
    ) -> Result<(TileId, TileId, Option<TileId>), Refusal> {
        let TileNode::Load { tensor, grid, along_loop: dim } = load else {
            return Err(refuse(self.group.place, "maxima are loaded"));
        };
        let max = new.load(tensor, &grid, dim);
        let largest = new.largest(max, &export.merge)?;
        let is_running = along_loop.is_some_and(|dim| export.merge.contains(&dim));
        if !is_running {
            return Ok((max, largest, None));
        }
        let running = new.running_max(largest);
        Ok((max, running, Some(running)))
    }

    /// Adds the stores of maxima: by old tensor the position of the store and what readers need.
    fn export(
        &self,
        first: TensorId,
        old: &BlockGraph,
        (new, own_max): (&mut BlockGraph, Option<(TileId, bool)>),
    ) -> Result<BTreeMap<TensorId, (usize, Export)>, Refusal> {
        let mut exports = BTreeMap::new();
        let shared: Vec<usize> =
            (0..old.grid.len()).filter(|&axis| self.group.reduced.contains(&Axis::Grid(axis))).collect();
        let (Some((largest, is_running)), false) = (own_max, shared.is_empty()) else { return Ok(exports) };
        let shapes =
            tile_shapes(old, self.graph.shapes(), (&vec![0; old.grid.len()], 0)).map_err(internal)?;
        let Some(exponential) = self.group.place.1 else { return Ok(exports) };
        let max_shape: Vec<usize> = shapes[exponential as usize]
            .iter()
            .enumerate()
            .map(|(dim, &extent)| if self.group.reduced.contains(&Axis::Dim(dim)) { 1 } else { extent })
            .collect();
        let mut stored: BTreeMap<Vec<Option<usize>>, usize> = BTreeMap::new();
        let mut last = None;
        for (at, store) in old.stores.iter().enumerate() {
            let tensor = TensorId(first.0 + at as u32);
            let Some(value) = self.group.values.get(&(tensor, None)) else { continue };
            let place = (first, Some(store.tile.0));
            let own = &shapes[store.tile.index()];
            self.check_rows(place, value, &max_shape)?;
            let merge: Vec<usize> = shared.iter().filter_map(|&axis| store.grid[axis]).collect();
            let mut repeat = Vec::new();
            for dim in store.grid.iter().flatten().copied() {
                match (max_shape[dim], own[dim]) {
                    (a, b) if a == b => {}
                    (1, times) => repeat.push((dim, times)),
                    _ => return Err(refuse(place, "partial sums whose rows are not those of the maximum")),
                }
            }
            if merge.iter().any(|&dim| max_shape[dim] != 1) {
                return Err(refuse(place, "blocks of one row lie beside each other along rows"));
            }
            let position = *stored.entry(store.grid.clone()).or_insert_with(|| {
                let tile = *last.get_or_insert_with(|| {
                    if is_running { new.accumulate(Accumulation::Max, largest) } else { largest }
                });
                new.store(tile, &store.grid);
                new.stores.len() - 1
            });
            exports.insert(tensor, (position, Export { max: tensor, degree: value.degree, merge, repeat }));
        }
        Ok(exports)
    }

    /// The rows of a stored tile must lie as in the exponential.
    fn check_rows(&self, place: ValueKey, value: &Dependence, max_shape: &[usize]) -> Result<(), Refusal> {
        let in_place = |(dim, &extent): (usize, &usize)| {
            extent == 1 || value.dims[dim].iter().any(|(axis, _)| *axis == Some(Axis::Dim(dim)))
        };
        if value.dims.len() == max_shape.len() && max_shape.iter().enumerate().all(in_place) {
            Ok(())
        } else {
            Err(refuse(place, "partial sums whose rows are not those of the maximum"))
        }
    }
}
