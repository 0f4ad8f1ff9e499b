//! The meaning of a program over any kind of values, element by element.

use crate::op::{Op, Ratio, elems};
use crate::program::{Block, Node, Program, Stage, Tile};

/// Elements in row-major order.
#[derive(Clone, Debug)]
pub struct Array<V> {
    /// The shape.
    pub shape: Vec<usize>,
    /// The elements.
    pub data: Vec<V>,
}

/// Why there is no value.
#[derive(Clone, PartialEq, Debug)]
pub enum Stop {
    /// A divisor is zero: other inputs may do.
    Undefined(String),
    /// No statement is made about programs like this one.
    Unsupported(String),
}

/// What a kind of values is told, and says, as places of a program are computed.
pub trait Places {
    /// An element.
    type Value: Copy;
    /// The next operations are those at this place.
    fn enter(&mut self, _place: usize) {}
    /// What a place gave.
    fn finish(&mut self, _place: usize, _values: &[Self::Value]) {}
    /// Why there is no value, once.
    fn stopped(&mut self) -> Option<Stop>;
}

/// A kind of values. Where an operation has no value the domain says so in [`Places::stopped`], and what it gave is dropped.
pub trait Domain: Places {
    /// An element of an input: the input's place, whether it is a mask, position.
    fn input(&mut self, place: usize, is_mask: bool, at: usize) -> Self::Value;
    /// A constant.
    fn constant(&mut self, ratio: Ratio) -> Self::Value;
    /// A function of one number: `Exp`, `Square`, `Sqrt`, `Log`, `Erf`, `Reciprocal`, `Guard`, `GeluFactor`.
    fn unary(&mut self, op: &Op, x: Self::Value) -> Self::Value;
    /// A function of two numbers: `Add`, `Sub`, `Mul`, `Mask`, and `Scale` by the constant that is the second.
    fn binary(&mut self, op: &Op, a: Self::Value, b: Self::Value) -> Self::Value;
    /// Adds the products of a row with a factor to sums.
    fn add_products(&mut self, sums: &mut [Self::Value], factor: Self::Value, row: &[Self::Value]) {
        for (sum, &x) in sums.iter_mut().zip(row) {
            let product = self.binary(&Op::Mul, factor, x);
            *sum = self.binary(&Op::Add, *sum, product);
        }
    }
    /// The largest of some; minus infinity of none.
    fn largest(&mut self, items: &[Self::Value]) -> Self::Value;
}

const ZERO: Ratio = Ratio { num: 0, den: 1 };

/// The outputs of a program.
///
/// # Errors
/// Why there are none.
pub fn outputs<D: Domain>(domain: &mut D, program: &Program) -> Result<Vec<Array<D::Value>>, Stop> {
    let mut tensors: Vec<Option<Array<D::Value>>> = Vec::new();
    for (at, node) in program.nodes.iter().enumerate() {
        let place = program.place(at, None);
        let value = match node {
            Node::Input(..) | Node::Stored(..) => None,
            Node::Op(op, args) => {
                let mut given = Vec::new();
                for &arg in args {
                    if tensors[arg].is_none() {
                        domain.enter(program.place(arg, None));
                    }
                    // The second operand of a product is the large one: its rows are made as they are needed.
                    let is_large = *op == Op::Matmul && given.len() == 1;
                    given.push(Operand::new(domain, program, &tensors, arg, is_large));
                }
                domain.enter(place);
                let value = apply(domain, op, &given)?;
                domain.finish(place, &value.data);
                Some(value)
            }
            Node::Block(block) => {
                let results = kernel(domain, program, (at, block), &tensors)?;
                tensors.push(None);
                tensors.extend(results.into_iter().map(Some));
                continue;
            }
        };
        if !matches!(node, Node::Stored(..)) {
            tensors.push(value);
        }
    }
    let mut results = Vec::new();
    for (_, id) in &program.outputs {
        results.push(Operand::new(domain, program, &tensors, *id, false).owned());
    }
    Ok(results)
}

/// An operand: an array, or an input whose elements are made when they are read.
enum Operand<'a, V> {
    Dense(&'a Array<V>),
    Made(Array<V>),
    Input { place: usize, is_mask: bool, shape: &'a [usize] },
}

impl<'a, V: Copy> Operand<'a, V> {
    fn new<D: Domain<Value = V>>(
        domain: &mut D,
        program: &'a Program,
        tensors: &'a [Option<Array<V>>],
        id: usize,
        is_lazy: bool,
    ) -> Operand<'a, V> {
        let shape = program.shapes[id].as_slice();
        match (&tensors[id], &program.nodes[id]) {
            (Some(array), _) => Operand::Dense(array),
            (None, Node::Input(_, is_mask)) if is_lazy => {
                Operand::Input { place: program.place(id, None), is_mask: *is_mask, shape }
            }
            (None, node) => {
                let is_mask = matches!(node, Node::Input(_, true));
                domain.enter(program.place(id, None));
                let count = elems(shape).unwrap_or(0);
                let data: Vec<V> =
                    (0..count).map(|at| domain.input(program.place(id, None), is_mask, at)).collect();
                domain.finish(program.place(id, None), &data);
                Operand::Made(Array { shape: shape.to_vec(), data })
            }
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Operand::Dense(array) => &array.shape,
            Operand::Made(array) => &array.shape,
            Operand::Input { shape, .. } => shape,
        }
    }

    fn data(&self) -> &[V] {
        match self {
            Operand::Dense(array) => &array.data,
            Operand::Made(array) => &array.data,
            Operand::Input { .. } => &[],
        }
    }

    fn borrowed(&self) -> Operand<'_, V> {
        match self {
            Operand::Dense(array) => Operand::Dense(array),
            Operand::Made(array) => Operand::Dense(array),
            Operand::Input { place, is_mask, shape } => {
                Operand::Input { place: *place, is_mask: *is_mask, shape }
            }
        }
    }

    fn owned(self) -> Array<V> {
        match self {
            Operand::Dense(array) => array.clone(),
            Operand::Made(array) => array,
            Operand::Input { shape, .. } => Array { shape: shape.to_vec(), data: Vec::new() },
        }
    }
}

/// Distances between neighbours along each dimension; none where an extent of 1 is repeated.
fn steps(shape: &[usize]) -> Vec<usize> {
    let mut step = 1;
    let mut steps: Vec<usize> =
        shape.iter().rev().map(|&extent| (if extent == 1 { 0 } else { step }, step *= extent).0).collect();
    steps.reverse();
    steps
}

/// Calls `visit` with every index of a shape, in order.
fn each_index(shape: &[usize], mut visit: impl FnMut(&[usize])) {
    let mut index = vec![0; shape.len()];
    for _ in 0..elems(shape).unwrap_or(0) {
        visit(&index);
        for dim in (0..shape.len()).rev() {
            index[dim] += 1;
            if index[dim] < shape[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
}

fn at(index: &[usize], steps: &[usize]) -> usize {
    index.iter().zip(steps).map(|(index, step)| index * step).sum()
}

fn apply<D: Domain>(
    domain: &mut D,
    op: &Op,
    args: &[Operand<'_, D::Value>],
) -> Result<Array<D::Value>, Stop> {
    let shapes: Vec<&[usize]> = args.iter().map(Operand::shape).collect();
    let shape = op.shape(&shapes).map_err(Stop::Unsupported)?;
    let own = |arg: usize| args[arg].data();
    let mut data: Vec<D::Value> = Vec::with_capacity(elems(&shape).unwrap_or(0));
    let moved = |data: &mut Vec<D::Value>, from: &dyn Fn(&[usize]) -> usize| {
        each_index(&shape, |index| data.push(own(0)[from(index)]))
    };
    match op {
        Op::Matmul => data = matmul(domain, args, &shape),
        Op::Exp | Op::Square | Op::Sqrt | Op::Log | Op::Erf | Op::Reciprocal | Op::Guard | Op::GeluFactor => {
            data.extend(own(0).iter().map(|&x| domain.unary(op, x)));
        }
        Op::Relu => {
            let zero = domain.constant(ZERO);
            data.extend(own(0).iter().map(|&x| domain.largest(&[x, zero])));
        }
        Op::Scale(ratio) => {
            let c = domain.constant(*ratio);
            data.extend(own(0).iter().map(|&x| domain.binary(op, x, c)));
        }
        Op::Offset(ratio) => {
            let c = domain.constant(*ratio);
            data.extend(own(0).iter().map(|&x| domain.binary(&Op::Add, x, c)));
        }
        Op::Div => {
            let inverse: Vec<D::Value> = own(1).iter().map(|&x| domain.unary(&Op::Reciprocal, x)).collect();
            let inverse = Array { shape: shapes[1].to_vec(), data: inverse };
            return apply(domain, &Op::Mul, &[args[0].borrowed(), Operand::Dense(&inverse)]);
        }
        Op::Add | Op::Sub | Op::Mul | Op::Max | Op::Mask => {
            let steps = [steps(shapes[0]), steps(shapes[1])];
            each_index(&shape, |index| {
                let (a, b) = (own(0)[at(index, &steps[0])], own(1)[at(index, &steps[1])]);
                data.push(if *op == Op::Max { domain.largest(&[a, b]) } else { domain.binary(op, a, b) });
            });
        }
        Op::Sum { dim, keep } | Op::Largest { dim, keep } => {
            let steps = steps(shapes[0]);
            let mut items = Vec::new();
            each_index(&shape, |index| {
                let first = at(index, &steps);
                items.clear();
                items.extend(
                    (0..shapes[0][*dim] / keep).map(|number| own(0)[first + number * keep * steps[*dim]]),
                );
                data.push(if matches!(op, Op::Sum { .. }) {
                    sum(domain, &items)
                } else {
                    domain.largest(&items)
                });
            });
        }
        Op::Mean => {
            let extent = shapes[0][shape.len() - 1];
            let ratio = Ratio { num: 1, den: i64::try_from(extent.max(1)).unwrap_or(i64::MAX) };
            let c = domain.constant(ratio);
            let rows = elems(&shape).unwrap_or(0);
            for row in 0..rows {
                let sum = sum(domain, &own(0)[row * extent..(row + 1) * extent]);
                data.push(domain.binary(&Op::Scale(ratio), sum, c));
            }
        }
        Op::Transpose(order) => {
            let from = steps(shapes[0]);
            let steps: Vec<usize> = order.iter().map(|&dim| from[dim]).collect();
            moved(&mut data, &|index| at(index, &steps));
        }
        Op::Reshape(_) => data.extend_from_slice(own(0)),
        Op::Broadcast(_) => {
            let steps = steps(shapes[0]);
            moved(&mut data, &|index| at(index, &steps));
        }
        Op::Slice { dim, start, .. } => {
            let steps = steps(shapes[0]);
            moved(&mut data, &|index| at(index, &steps) + start * steps[*dim]);
        }
        Op::Repeat { dim, times } => {
            let steps = steps(shapes[0]);
            moved(&mut data, &|index| {
                at(index, &steps) - index[*dim] * steps[*dim] + index[*dim] / times * steps[*dim]
            });
        }
        Op::Rotate { dim, group } => {
            let steps = steps(shapes[0]);
            let minus = Ratio { num: -1, den: 1 };
            let c = domain.constant(minus);
            each_index(&shape, |index| {
                let (here, other) = (at(index, &steps), group * steps[*dim]);
                data.push(match index[*dim] / group % 2 {
                    0 => domain.binary(&Op::Scale(minus), own(0)[here + other], c),
                    _ => own(0)[here - other],
                });
            });
        }
        Op::Concat { dim } => each_index(&shape, |index| {
            let (mut arg, mut index) = (0, index.to_vec());
            while index[*dim] >= shapes[arg][*dim] {
                index[*dim] -= shapes[arg][*dim];
                arg += 1;
            }
            data.push(own(arg)[at(&index, &steps(shapes[arg]))]);
        }),
        Op::Causal { .. } | Op::Below { .. } => {
            let [zero, one] = [0, 1].map(|num| domain.constant(Ratio { num, den: 1 }));
            let rank = shape.len();
            each_index(&shape, |index| {
                let keeps = match op {
                    Op::Causal { offset, .. } => {
                        (index[rank - 1] as i128) <= index[rank - 2] as i128 + i128::from(*offset)
                    }
                    Op::Below { dim, limit, .. } => index[*dim] < *limit,
                    _ => false,
                };
                data.push(if keeps { one } else { zero });
            });
        }
    }
    match domain.stopped() {
        Some(stop) => Err(stop),
        None => Ok(Array { shape, data }),
    }
}

fn sum<D: Domain>(domain: &mut D, items: &[D::Value]) -> D::Value {
    let zero = domain.constant(ZERO);
    items.iter().fold(zero, |sum, &x| domain.binary(&Op::Add, sum, x))
}

fn matmul<D: Domain>(domain: &mut D, args: &[Operand<'_, D::Value>], shape: &[usize]) -> Vec<D::Value> {
    let (batch, [m, n]) = shape.split_at(shape.len() - 2) else { return Vec::new() };
    let (m, n) = (*m, *n);
    let k = args[0].shape()[shape.len() - 1];
    let [lhs_steps, rhs_steps] = [0, 1].map(|arg| steps(&args[arg].shape()[..batch.len()]));
    let zero = domain.constant(ZERO);
    let mut data = vec![zero; elems(shape).unwrap_or(0)];
    let mut made = Vec::with_capacity(n);
    let mut product = 0;
    each_index(batch, |index| {
        let [lhs, rhs] = [at(index, &lhs_steps) * m * k, at(index, &rhs_steps) * k * n];
        for l in 0..k {
            let start = rhs + l * n;
            let row = match &args[1] {
                Operand::Input { place, is_mask, .. } => {
                    made.clear();
                    made.extend((start..start + n).map(|at| domain.input(*place, *is_mask, at)));
                    &made
                }
                dense => &dense.data()[start..start + n],
            };
            for i in 0..m {
                let factor = args[0].data()[lhs + i * k + l];
                domain.add_products(&mut data[product + i * n..product + (i + 1) * n], factor, row);
            }
        }
        product += m * n;
    });
    data
}

/// What a kernel stores.
fn kernel<D: Domain>(
    domain: &mut D,
    program: &Program,
    (node, block): (usize, &Block),
    tensors: &[Option<Array<D::Value>>],
) -> Result<Vec<Array<D::Value>>, Stop> {
    let starts = (0..block.grid.len()).map(|axis| block.starts(&program.shapes, axis));
    let starts: Vec<Vec<Vec<usize>>> = starts.collect::<Result<_, _>>().map_err(Stop::Unsupported)?;
    let stages = block.stages().map_err(Stop::Unsupported)?;
    let zero = domain.constant(ZERO);
    let shapes: Vec<&Vec<usize>> =
        (0..block.stores.len()).map(|store| &program.shapes[node + 1 + store]).collect();
    let whole =
        |shape: &&Vec<usize>| Array { shape: (*shape).clone(), data: vec![zero; elems(shape).unwrap_or(0)] };
    let mut results: Vec<Array<D::Value>> = shapes.iter().map(whole).collect();
    let mut numbers = Vec::new();
    each_index(&block.grid, |index| numbers.push(index.to_vec()));
    for number in numbers {
        let run = Run { program, block, node, tensors, stages: &stages, number: &number };
        let tiles = run.tiles(domain)?;
        for (store, (tile, grid)) in block.stores.iter().enumerate() {
            let tile =
                tiles[*tile].as_ref().ok_or_else(|| Stop::Unsupported("a tile without a value".into()))?;
            let result = &mut results[store];
            let mut start = vec![0; result.shape.len()];
            let mut fits = result.shape.clone();
            for (axis, dim) in grid.iter().enumerate() {
                if let Some(dim) = *dim {
                    let starts = &starts[axis][store];
                    (start[dim], fits[dim]) =
                        (starts[number[axis]], starts[number[axis] + 1] - starts[number[axis]]);
                }
            }
            if tile.shape != fits {
                return Err(Stop::Unsupported(format!(
                    "block {number:?} stores a tile of {:?}, not {fits:?}",
                    tile.shape
                )));
            }
            let steps = steps(&result.shape);
            let first = at(&start, &steps);
            let mut values = tile.data.iter();
            each_index(&tile.shape, |index| {
                if let Some(&value) = values.next() {
                    result.data[first + at(index, &steps)] = value;
                }
            });
        }
    }
    for (store, result) in results.iter().enumerate() {
        domain.finish(program.place(node + 1 + store, None), &result.data);
    }
    Ok(results)
}

/// Tiles that have a value.
type Tiles<V> = [Option<Array<V>>];

/// One block of a kernel.
struct Run<'a, V> {
    program: &'a Program,
    block: &'a Block,
    node: usize,
    tensors: &'a [Option<Array<V>>],
    stages: &'a [Stage],
    number: &'a [usize],
}

impl<V: Copy> Run<'_, V> {
    fn tiles<D: Domain<Value = V>>(&self, domain: &mut D) -> Result<Vec<Option<Array<V>>>, Stop> {
        let count = self.block.tiles.len();
        // For a tile that combines iterations, what it is so far.
        let mut tiles: Vec<Option<Array<V>>> = (0..count).map(|_| None).collect();
        for iteration in 0..self.block.iterations {
            let mut before: Vec<Option<Array<V>>> = (0..count).map(|_| None).collect();
            for at in 0..count {
                let tile = &self.block.tiles[at];
                let is_wanted = match self.stages[at] {
                    Stage::Fixed => iteration == 0,
                    Stage::Loop => true,
                    Stage::After => tile.accumulates(),
                };
                if is_wanted {
                    let last = tiles[at].take();
                    let value = self.tile(domain, at, iteration, (&tiles, &before), last.as_ref())?;
                    tiles[at] = Some(value);
                    before[at] = last;
                }
            }
        }
        for at in 0..count {
            if self.stages[at] == Stage::After && !self.block.tiles[at].accumulates() {
                tiles[at] = Some(self.tile(domain, at, 0, (&tiles, &[]), None)?);
            }
        }
        Ok(tiles)
    }

    fn tile<D: Domain<Value = V>>(
        &self,
        domain: &mut D,
        at: usize,
        iteration: usize,
        (tiles, before): (&Tiles<V>, &Tiles<V>),
        last: Option<&Array<V>>,
    ) -> Result<Array<V>, Stop> {
        let missing = || Stop::Unsupported(format!("s{at} reads a tile without a value"));
        let get = |arg: usize| tiles[arg].as_ref().map(Operand::Dense).ok_or_else(missing);
        let place = self.program.place(self.node, Some(at));
        domain.enter(place);
        let tile = &self.block.tiles[at];
        let combined = |domain: &mut D, op: &Op, arg: usize| match last {
            Some(last) if last.shape == get(arg)?.shape() => {
                apply(domain, op, &[Operand::Dense(last), get(arg)?])
            }
            Some(_) => Err(Stop::Unsupported(format!("s{at} has another shape in iteration {iteration}"))),
            None => Ok(get(arg)?.owned()),
        };
        let value = match tile {
            Tile::Load { tensor, .. } => self.load(domain, tile, *tensor, iteration)?,
            Tile::Op(op, args) => {
                let args: Vec<Operand<'_, V>> = args.iter().map(|&arg| get(arg)).collect::<Result<_, _>>()?;
                apply(domain, op, &args)?
            }
            Tile::Sum(arg) => combined(domain, &Op::Add, *arg)?,
            Tile::Largest(arg) | Tile::RunningMax(arg) => combined(domain, &Op::Max, *arg)?,
            Tile::Rescaled { tile, max, degree } => match (last, before[*max].as_ref()) {
                (Some(last), Some(before)) => {
                    let now = apply(domain, &Op::Guard, &[get(*max)?])?;
                    let change = apply(domain, &Op::Sub, &[Operand::Dense(before), Operand::Dense(&now)])?;
                    let exponent = apply(domain, &Op::Scale(*degree), &[Operand::Dense(&change)])?;
                    let factor = apply(domain, &Op::Exp, &[Operand::Dense(&exponent)])?;
                    let scaled = apply(domain, &Op::Mul, &[Operand::Dense(last), Operand::Dense(&factor)])?;
                    if scaled.shape != get(*tile)?.shape() {
                        return Err(Stop::Unsupported(format!(
                            "s{at} has another shape in iteration {iteration}"
                        )));
                    }
                    apply(domain, &Op::Add, &[Operand::Dense(&scaled), get(*tile)?])?
                }
                _ => get(*tile)?.owned(),
            },
        };
        // A sum over some of its iterations equals no value of the program.
        if !tile.accumulates() || iteration + 1 == self.block.iterations {
            domain.finish(place, &value.data);
        }
        Ok(value)
    }

    fn load<D: Domain<Value = V>>(
        &self,
        domain: &mut D,
        load: &Tile,
        tensor: usize,
        iteration: usize,
    ) -> Result<Array<V>, Stop> {
        let from = &self.program.shapes[tensor];
        let ranges = self.block.ranges(load, from, self.number, iteration);
        let shape: Vec<usize> = ranges.iter().map(|&(_, len)| len).collect();
        let steps = steps(from);
        let first: usize = ranges.iter().zip(&steps).map(|((start, _), step)| start * step).sum();
        let mut data = Vec::with_capacity(elems(&shape).unwrap_or(0));
        let is_mask = matches!(self.program.nodes[tensor], Node::Input(_, true));
        each_index(&shape, |index| {
            let at = first + at(index, &steps);
            data.push(match &self.tensors[tensor] {
                Some(array) => array.data[at],
                None => domain.input(self.program.place(tensor, None), is_mask, at),
            });
        });
        Ok(Array { shape, data })
    }
}

/// A bound for what an evaluation takes: elementary operations, and elements that are held at once.
pub fn cost(program: &Program) -> Result<(f64, f64), String> {
    let count = |shape: &[usize]| shape.iter().map(|&extent| extent as f64).product::<f64>();
    let of = |op: &Op, args: &[&[usize]]| -> Result<(f64, f64), String> {
        let held = count(&op.shape(args)?);
        let largest = args.iter().map(|arg| count(arg)).fold(held, f64::max);
        let work = match op {
            Op::Matmul => held * args[0].last().map_or(1.0, |&k| k as f64) + count(args[1]) * 8.0,
            Op::Exp | Op::Div | Op::Reciprocal => 120.0 * largest,
            Op::Max | Op::Largest { .. } | Op::Relu | Op::Sqrt | Op::Log | Op::Erf => 40.0 * largest,
            _ => 8.0 * largest,
        };
        Ok((work, held))
    };
    let (mut work, mut held) = (0.0, 0.0);
    for (at, node) in program.nodes.iter().enumerate() {
        match node {
            Node::Input(..) => {}
            Node::Stored(..) => held += count(&program.shapes[at]),
            Node::Op(op, args) => {
                let is_input = |arg: &&usize| matches!(program.nodes[**arg], Node::Input(..));
                let made = args.iter().take(if *op == Op::Matmul { 1 } else { 9 }).filter(is_input);
                held += made.map(|&arg| count(&program.shapes[arg])).sum::<f64>();
                let shapes: Vec<&[usize]> = args.iter().map(|&arg| program.shapes[arg].as_slice()).collect();
                let (more, elements) = of(op, &shapes)?;
                (work, held) = (work + more, held + elements);
            }
            Node::Block(block) => {
                let shapes = block.tile_shapes(&program.shapes, &vec![0; block.grid.len()], 0)?;
                let (mut once, mut tiles) = (0.0, 0.0);
                for (tile, shape) in block.tiles.iter().zip(&shapes) {
                    let (more, elements) = match tile {
                        Tile::Op(op, args) => {
                            of(op, &args.iter().map(|&arg| shapes[arg].as_slice()).collect::<Vec<_>>())?
                        }
                        _ => (count(shape) * 30.0, count(shape)),
                    };
                    (once, tiles) = (once + more + 100.0, tiles + 2.0 * elements);
                }
                work += once * block.iterations as f64 * count(&block.grid);
                held += tiles;
            }
        }
    }
    Ok((work, held))
}

/// The same program with other shapes of inputs; `change` gives the new parameters of operators and grids.
pub fn rebuilt(
    program: &Program,
    mut shape: impl FnMut(usize) -> Vec<usize>,
    mut grid: impl FnMut(usize, usize) -> usize,
) -> Result<Program, String> {
    let mut small = Program::default();
    for (at, node) in program.nodes.iter().enumerate() {
        match node {
            Node::Input(name, is_mask) => {
                small.input(name, *is_mask, shape(at));
            }
            Node::Stored(..) => {}
            Node::Op(op, args) => {
                let op = match op {
                    Op::Broadcast(_) => Op::Broadcast(shape(at)),
                    Op::Causal { offset, .. } => Op::Causal { shape: shape(at), offset: *offset },
                    Op::Below { dim, limit, .. } => Op::Below { shape: shape(at), dim: *dim, limit: *limit },
                    op => op.clone(),
                };
                small.op(op, args.clone())?;
            }
            Node::Block(block) => {
                let mut block = block.clone();
                for axis in 0..block.grid.len() {
                    block.grid[axis] = grid(at, axis);
                }
                small.block(block)?;
            }
        }
    }
    small.outputs.clone_from(&program.outputs);
    debug_assert_eq!(small.nodes.len(), program.nodes.len());
    Ok(small)
}
