//! The meaning of a µGraph over any domain of values: floating-point numbers, residues, degrees.

use crate::graph::{Accumulation, BlockGraph, MuGraph, Node, TensorId, TileNode};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::rational::Rational;
use crate::tiling::{Stage, indices, ranges, stages};
use rustc_hash::FxHashMap;

/// Where an operator stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Site {
    /// The first tensor that the kernel defines.
    pub kernel: TensorId,
    /// The tile within its block graph, if it has one.
    pub tile: Option<u32>,
    /// The block, numbered row by row.
    pub block: u32,
    /// The iteration of the loop.
    pub iteration: u32,
}

/// Why a program has no value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EvalError {
    /// A divisor or radicand for which the residues have no meaning; other inputs may do.
    #[error("{0} is undefined for these inputs")]
    Undefined(String),
    /// The program is outside what the domain can express.
    #[error("{0}")]
    Unsupported(String),
    /// Inputs that do not suit the program.
    #[error("{0}")]
    Inputs(String),
}

/// A domain of values.
pub trait Domain {
    /// A tensor or tile.
    type Value: Clone;

    /// What an operator gives.
    fn apply(&mut self, site: Site, op: &Op, args: &[&Self::Value]) -> Result<Self::Value, EvalError>;
    /// The part of a tensor in some ranges: start and length per dimension.
    fn slice(&self, value: &Self::Value, ranges: &[(usize, usize)]) -> Self::Value;
    /// Values one after the other along a dimension; one at least.
    fn concat(&self, parts: &[Self::Value], dim: usize) -> Self::Value;
    /// The value as it is kept between kernels.
    fn stored(&mut self, value: Self::Value) -> Self::Value {
        value
    }

    /// True if an operator gives the same of the same values in every block.
    fn is_alike_in_blocks(&self) -> bool {
        true
    }

    /// The running maximum after one more iteration.
    fn running_max(
        &mut self,
        site: Site,
        before: Option<&Self::Value>,
        tile: &Self::Value,
    ) -> Result<Self::Value, EvalError> {
        match before {
            None => Ok(tile.clone()),
            Some(before) => self.apply(site, &Op::Binary(BinaryFn::Max), &[before, tile]),
        }
    }

    /// The maximum over all iterations, of a tile whose running maximum would be `running`.
    fn final_max(&mut self, _site: Site, running: Self::Value) -> Result<Self::Value, EvalError> {
        Ok(running)
    }

    /// `sum * e^(degree * (before - now))`.
    fn rescale(
        &mut self,
        site: Site,
        sum: &Self::Value,
        (before, now): (&Self::Value, &Self::Value),
        degree: Rational,
    ) -> Result<Self::Value, EvalError> {
        let now = self.apply(site, &Op::Unary(UnaryFn::Guard), &[now])?;
        let difference = self.apply(site, &Op::Binary(BinaryFn::Sub), &[before, &now])?;
        let exponent = self.apply(site, &Op::Scale(degree), &[&difference])?;
        let factor = self.apply(site, &Op::Unary(UnaryFn::Exp), &[&exponent])?;
        self.apply(site, &Op::Binary(BinaryFn::Mul), &[sum, &factor])
    }
}

/// The values of all tensors that a program's outputs need, given its inputs in order.
///
/// # Errors
/// If there are too few inputs, or the domain has no value for an operator.
pub fn evaluate<D: Domain>(
    domain: &mut D,
    graph: &MuGraph,
    inputs: &[D::Value],
) -> Result<Vec<Option<D::Value>>, EvalError> {
    let mut values: Vec<Option<D::Value>> = vec![None; graph.shapes().len()];
    let mut inputs = inputs.iter();
    for (first, node) in graph.nodes() {
        let get = |id: &TensorId| {
            let value = values.get(id.index()).and_then(Option::as_ref);
            value.ok_or_else(|| EvalError::Inputs(format!("{id} has no value")))
        };
        match node {
            Node::Input { name, .. } => {
                let value = inputs.next().ok_or_else(|| EvalError::Inputs(format!("no value for {name}")))?;
                values[first.index()] = Some(value.clone());
            }
            Node::Op { op, args } => {
                let args: Vec<&D::Value> = args.iter().map(get).collect::<Result<_, _>>()?;
                let site = Site { kernel: first, tile: None, block: 0, iteration: 0 };
                let value = domain.apply(site, op, &args)?;
                values[first.index()] = Some(domain.stored(value));
            }
            Node::Block(block) => {
                let results = kernel(domain, graph, (first, block), &values)?;
                for (at, value) in results.into_iter().enumerate() {
                    values[first.index() + at] = Some(value);
                }
            }
        }
    }
    Ok(values)
}

/// The outputs of a program.
///
/// # Errors
/// As [`evaluate`].
pub fn outputs<D: Domain>(
    domain: &mut D,
    graph: &MuGraph,
    inputs: &[D::Value],
) -> Result<Vec<D::Value>, EvalError> {
    let values = evaluate(domain, graph, inputs)?;
    let get = |(_, id): &(String, TensorId)| {
        values[id.index()].clone().ok_or_else(|| EvalError::Inputs(format!("{id} has no value")))
    };
    graph.outputs().iter().map(get).collect()
}

/// What a block graph stores.
fn kernel<D: Domain>(
    domain: &mut D,
    graph: &MuGraph,
    (first, block): (TensorId, &BlockGraph),
    values: &[Option<D::Value>],
) -> Result<Vec<D::Value>, EvalError> {
    let stages = stages(block).map_err(|e| EvalError::Unsupported(e.to_string()))?;
    let repeats = Repeats::of(block, domain.is_alike_in_blocks());
    let mut known = Known::default();
    let mut tiles: Vec<Vec<D::Value>> = vec![Vec::new(); block.stores.len()];
    for (number, index) in indices(&block.grid).enumerate() {
        let run = Run {
            graph,
            block,
            stages: &stages,
            repeats: &repeats,
            values,
            index,
            first,
            number: number as u32,
        };
        let results = run.tiles(domain, &mut known)?;
        for (store, tiles) in block.stores.iter().zip(&mut tiles) {
            let tile = results[store.tile.index()].clone();
            tiles.push(tile.ok_or_else(|| EvalError::Unsupported(format!("{} has no value", store.tile)))?);
        }
    }
    let join = |(mut tiles, store): (Vec<D::Value>, &crate::graph::Store)| {
        for (axis, &blocks) in block.grid.iter().enumerate().rev() {
            let dim = store.grid[axis];
            tiles = tiles
                .chunks(blocks)
                .map(|row| dim.map_or_else(|| row[0].clone(), |dim| domain.concat(row, dim)))
                .collect();
        }
        domain.stored(tiles.swap_remove(0))
    };
    Ok(tiles.into_iter().zip(&block.stores).map(join).collect())
}

/// Which tiles are the same in several blocks: those that no load makes depend on the block's index along some axis of the grid.
struct Repeats {
    /// Of each tile the axes of more than one block that it depends on.
    axes: Vec<Vec<bool>>,
    /// True of tiles that one reads which depends on more axes, or that are stored.
    is_kept: Vec<bool>,
}

/// Values of tiles that further blocks read: by tile, the first block that has it, and iteration.
type Known<V> = FxHashMap<(usize, u32, usize), V>;

impl Repeats {
    /// `are_alike`: blocks may share values.
    fn of(block: &BlockGraph, are_alike: bool) -> Repeats {
        let all: Vec<bool> = block.grid.iter().map(|&blocks| blocks > 1).collect();
        let mut axes: Vec<Vec<bool>> = Vec::with_capacity(block.nodes.len());
        let mut is_kept = vec![false; block.nodes.len()];
        for node in &block.nodes {
            let own: Vec<bool> = match node {
                _ if !are_alike => all.clone(),
                TileNode::Load { grid, .. } => {
                    all.iter().zip(grid).map(|(&several, dim)| several && dim.is_some()).collect()
                }
                node => {
                    (0..all.len()).map(|axis| node.args().iter().any(|arg| axes[arg.index()][axis])).collect()
                }
            };
            for arg in node.args() {
                is_kept[arg.index()] |= axes[arg.index()] != own;
            }
            axes.push(own);
        }
        for store in &block.stores {
            is_kept[store.tile.index()] |= axes[store.tile.index()] != all;
        }
        Repeats { axes, is_kept }
    }
}

/// One block.
struct Run<'a, V> {
    graph: &'a MuGraph,
    block: &'a BlockGraph,
    stages: &'a [Stage],
    repeats: &'a Repeats,
    values: &'a [Option<V>],
    index: Vec<usize>,
    first: TensorId,
    number: u32,
}

impl<V: Clone> Run<'_, V> {
    /// The first block that has the same tile, and whether this is the last one.
    fn shared(&self, position: usize) -> (u32, bool) {
        let (mut first, mut is_last) = (0, true);
        for ((&at, &blocks), &depends) in
            self.index.iter().zip(&self.block.grid).zip(&self.repeats.axes[position])
        {
            first = first * blocks as u32 + if depends { at as u32 } else { 0 };
            is_last &= depends || at + 1 == blocks;
        }
        (first, is_last)
    }

    /// A tile in an iteration: as an earlier block has it, or new. `None` if an earlier block has it and none reads it here.
    fn known_or(
        &self,
        known: &mut Known<V>,
        (position, iteration): (usize, usize),
        new: impl FnOnce() -> Result<V, EvalError>,
    ) -> Result<Option<V>, EvalError> {
        let (first, is_last) = self.shared(position);
        let key = (position, first, iteration);
        if first != self.number {
            return Ok(if is_last { known.remove(&key) } else { known.get(&key).cloned() });
        }
        let value = new()?;
        if self.repeats.is_kept[position] && !is_last {
            known.insert(key, value.clone());
        }
        Ok(Some(value))
    }

    fn tiles<D: Domain<Value = V>>(
        &self,
        domain: &mut D,
        known: &mut Known<V>,
    ) -> Result<Vec<Option<V>>, EvalError> {
        let count = self.block.nodes.len();
        let mut tiles: Vec<Option<V>> = vec![None; count];
        // Of an accumulator what it holds so far.
        let mut sums: Vec<Option<V>> = vec![None; count];
        let last = self.block.loop_range - 1;
        for iteration in 0..self.block.loop_range {
            // Running maxima of the iteration before, which rescaled sums need.
            let keep = |node: &TileNode| matches!(node, TileNode::RunningMax { .. });
            let before: Vec<Option<V>> =
                (0..count).map(|at| tiles[at].take_if(|_| keep(&self.block.nodes[at]))).collect();
            for position in 0..count {
                let wanted = match self.stages[position] {
                    Stage::Invariant => iteration == 0,
                    Stage::Loop => true,
                    Stage::After => false,
                };
                let accumulates = matches!(self.block.nodes[position], TileNode::Accumulate { .. });
                if wanted {
                    let running = before[position].as_ref();
                    let new = || self.tile(domain, position, iteration, &tiles, running);
                    tiles[position] = self.known_or(known, (position, iteration), new)?;
                } else if accumulates && self.shared(position).0 == self.number {
                    let sum = self.accumulate(domain, position, iteration, (&tiles, &before), &sums)?;
                    sums[position] = Some(sum);
                }
            }
        }
        for position in 0..count {
            if self.stages[position] != Stage::After {
                continue;
            }
            let site = self.site(position, last);
            let sum = sums[position].take();
            let new = || match (&self.block.nodes[position], sum) {
                (TileNode::Accumulate { how: Accumulation::Max, tile }, Some(sum)) => {
                    domain.final_max(Site { tile: Some(tile.0), ..site }, sum)
                }
                (_, Some(sum)) => Ok(sum),
                (_, None) => self.tile(domain, position, last, &tiles, None),
            };
            tiles[position] = self.known_or(known, (position, last), new)?;
        }
        Ok(tiles)
    }

    fn site(&self, position: usize, iteration: usize) -> Site {
        Site {
            kernel: self.first,
            tile: Some(position as u32),
            block: self.number,
            iteration: iteration as u32,
        }
    }

    fn tile<D: Domain<Value = V>>(
        &self,
        domain: &mut D,
        position: usize,
        iteration: usize,
        tiles: &[Option<V>],
        running: Option<&V>,
    ) -> Result<V, EvalError> {
        let get = |at: usize| tiles[at].as_ref().ok_or_else(|| missing(at));
        let site = self.site(position, iteration);
        match &self.block.nodes[position] {
            TileNode::Load { tensor, grid, along_loop } => {
                let shape = self.graph.shape(*tensor);
                let ranges = ranges(shape, self.block, (grid, *along_loop), (&self.index, iteration));
                let tensor = self.values[tensor.index()].as_ref().ok_or_else(|| missing(position))?;
                Ok(domain.slice(tensor, &ranges))
            }
            TileNode::Op { op, args } => {
                let args: Vec<&V> = args.iter().map(|arg| get(arg.index())).collect::<Result<_, _>>()?;
                domain.apply(site, op, &args)
            }
            TileNode::RunningMax { tile } => {
                domain.running_max(Site { tile: Some(tile.0), ..site }, running, get(tile.index())?)
            }
            TileNode::Accumulate { .. } => Err(missing(position)),
        }
    }

    fn accumulate<D: Domain<Value = V>>(
        &self,
        domain: &mut D,
        position: usize,
        iteration: usize,
        (tiles, before): (&[Option<V>], &[Option<V>]),
        sums: &[Option<V>],
    ) -> Result<V, EvalError> {
        let TileNode::Accumulate { how, tile } = &self.block.nodes[position] else {
            return Err(missing(position));
        };
        let site = self.site(position, iteration);
        let now = tiles[tile.index()].as_ref().ok_or_else(|| missing(tile.index()))?;
        let Some(sum) = &sums[position] else { return Ok(now.clone()) };
        match how {
            Accumulation::Sum => domain.apply(site, &Op::Binary(BinaryFn::Add), &[sum, now]),
            Accumulation::Max => domain.running_max(Site { tile: Some(tile.0), ..site }, Some(sum), now),
            Accumulation::RescaledSum { max, degree } => {
                let get =
                    |tiles: &[Option<V>]| tiles[max.index()].clone().ok_or_else(|| missing(max.index()));
                let (old, new) = (get(before)?, get(tiles)?);
                let sum = domain.rescale(site, sum, (&old, &new), *degree)?;
                domain.apply(site, &Op::Binary(BinaryFn::Add), &[&sum, now])
            }
        }
    }
}

/// Multiplications of an evaluation, about; applications of other operators count as one for each element.
pub fn work(graph: &MuGraph) -> u64 {
    let elems = |shape: &[usize]| crate::op::elems(shape) as u64;
    let applied = |op: &Op, shapes: &[&[usize]]| -> u64 {
        let result = op.infer(shapes).map_or(0, |shape| elems(&shape));
        let operands = shapes.iter().map(|shape| elems(shape)).max().unwrap_or(0);
        match op {
            Op::Matmul => result.saturating_mul(shapes[0].last().map_or(1, |&inner| inner as u64)),
            _ => result.max(operands),
        }
    };
    let node = |node: &Node| match node {
        Node::Input { .. } => 0,
        Node::Op { op, args } => applied(op, &args.iter().map(|arg| graph.shape(*arg)).collect::<Vec<_>>()),
        Node::Block(block) => {
            let origin = vec![0; block.grid.len()];
            let Ok(shapes) = crate::tiling::tile_shapes(block, graph.shapes(), (&origin, 0)) else {
                return u64::MAX;
            };
            let tiles = block.nodes.iter().zip(&shapes).map(|(node, shape)| match node {
                TileNode::Op { op, args } => {
                    applied(op, &args.iter().map(|arg| shapes[arg.index()].as_slice()).collect::<Vec<_>>())
                }
                // Sets of arguments grow along the loop.
                TileNode::RunningMax { .. } => elems(shape).saturating_mul(64),
                TileNode::Load { .. } | TileNode::Accumulate { .. } => elems(shape),
            });
            let repeats = (block.blocks() as u64).saturating_mul(block.loop_range as u64);
            tiles.fold(0, u64::saturating_add).saturating_mul(repeats)
        }
    };
    graph.nodes().map(|(_, at)| node(at)).fold(0, u64::saturating_add)
}

fn missing(position: usize) -> EvalError {
    EvalError::Unsupported(format!("s{position} has no value"))
}

/// Applies [`rms_norm`] step by step.
pub(crate) fn apply_rms_norm<D: Domain>(
    domain: &mut D,
    site: Site,
    (value, shape): (&D::Value, &[usize]),
    eps: Rational,
) -> Result<D::Value, EvalError> {
    let mut values = vec![value.clone()];
    for (op, args) in rms_norm(shape, eps)? {
        let args: Vec<&D::Value> = args.iter().map(|&at| &values[at]).collect();
        values.push(domain.apply(site, &op, &args)?);
    }
    Ok(values.swap_remove(values.len() - 1))
}

/// The operators that `x / sqrt(mean of x² + eps)` stands for, each with positions of its operands: 0 is `x`.
pub fn rms_norm(shape: &[usize], eps: Rational) -> Result<Vec<(Op, Vec<usize>)>, EvalError> {
    let dim = shape.len() - 1;
    let mean = Rational::one_over(shape[dim].max(1))
        .ok_or_else(|| EvalError::Unsupported(format!("a mean of {} elements", shape[dim])))?;
    let mut steps = vec![
        (Op::Unary(UnaryFn::Square), vec![0]),
        (Op::Reduce { f: ReduceFn::Sum, dim, keep: 1 }, vec![1]),
        (Op::Scale(mean), vec![2]),
    ];
    if eps != Rational::ZERO {
        steps.push((Op::Offset(eps), vec![3]));
    }
    steps.push((Op::Unary(UnaryFn::Sqrt), vec![steps.len()]));
    steps.push((Op::Binary(BinaryFn::Div), vec![0, steps.len()]));
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Array;
    use crate::floats::{Floats, Precision};

    /// Floating-point numbers, with a count of operators that are applied.
    struct Counted {
        floats: Floats,
        are_alike: bool,
        applied: usize,
    }

    impl Domain for Counted {
        type Value = Array<f64>;

        fn is_alike_in_blocks(&self) -> bool {
            self.are_alike
        }

        fn apply(&mut self, site: Site, op: &Op, args: &[&Array<f64>]) -> Result<Array<f64>, EvalError> {
            self.applied += 1;
            self.floats.apply(site, op, args)
        }

        fn slice(&self, value: &Array<f64>, ranges: &[(usize, usize)]) -> Array<f64> {
            self.floats.slice(value, ranges)
        }

        fn concat(&self, parts: &[Array<f64>], dim: usize) -> Array<f64> {
            self.floats.concat(parts, dim)
        }
    }

    #[test]
    fn tiles_that_blocks_share_are_computed_once() {
        // Uneven blocks; a running maximum and what it scales depend on rows alone, their product with columns on both.
        let text = "mugraph \"p\" {\n t0 = input \"x\" [5, 12]\n t1 = input \"w\" [12, 7]\n t2 = block [2, 3] loop 4 {\n \
                    s0 = load t0 [0, -] 1\n s1 = load t1 [-, 1] 0\n s2 = largest(1) s0\n s3 = running_max s2\n \
                    s4 = guard s3\n s5 = sub s0, s4\n s6 = exp s5\n s7 = matmul s6, s1\n s8 = accumulate rescaled s3 1 s7\n \
                    s9 = sum(1) s6\n s10 = accumulate rescaled s3 1 s9\n s11 = square s10\n s12 = div s8, s11\n \
                    store s12 [0, 1]\n }\n output \"o\" t2\n}\n";
        let graph = crate::parse(text).unwrap_or_else(|error| panic!("{error}"));
        let inputs: Vec<Array<f64>> = graph
            .inputs()
            .map(|(id, ..)| Array::from_fn(graph.shape(id), |at| f64::sin(at as f64)))
            .collect();
        let run = |are_alike| {
            let floats = Floats { precision: Precision::F64 };
            let mut domain = Counted { floats, are_alike, applied: 0 };
            (outputs(&mut domain, &graph, &inputs).unwrap_or_else(|error| panic!("{error}")), domain.applied)
        };
        let ((shared, few), (apart, many)) = (run(true), run(false));
        assert_eq!(shared, apart);
        // In two rows of blocks, of three each: in an iteration five operators and, after the first, a maximum and a rescaled sum
        // of rows; the product and its rescaled sum in each block.
        let of_rows = 4 * 5 + 3 * (1 + 6) + 1;
        let of_blocks = 4 + 3 * 6 + 1;
        assert_eq!((few, many), (2 * (of_rows + 3 * of_blocks), 6 * (of_rows + of_blocks)));
    }
}
