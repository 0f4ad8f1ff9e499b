//! Random kernels: block graphs of all operators, with partitions that leave remainders.

use orch_mugraph::tiling::{stages, tile_shapes};
use orch_mugraph::{
    Accumulation, BinaryFn, BlockGraph, MuGraph, Op, Rational, ReduceFn, TensorId, TileId, UnaryFn,
};

/// A stream of numbers.
pub struct Choices(u64);

impl Choices {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Choices {
        Choices(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit.max(1)
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

const EXTENTS: [usize; 8] = [1, 2, 3, 5, 8, 13, 17, 40];

/// A valid µGraph of inputs and one block graph.
pub fn random_kernel(choices: &mut Choices) -> MuGraph {
    loop {
        let mut graph = MuGraph::new("random");
        let rank = choices.pick(&[2, 2, 3]);
        let common: Vec<usize> = (0..rank).map(|_| choices.pick(&EXTENTS)).collect();
        for number in 0..3 {
            let extent = |dim: usize, choices: &mut Choices| match choices.below(6) {
                0 => 1,
                1 => common[(dim + 1) % rank],
                _ => common[dim],
            };
            let shape: Vec<usize> = (0..rank).map(|dim| extent(dim, choices)).collect();
            graph.input(format!("x{number}"), &shape);
        }
        let block = random_block(&graph, choices);
        if let Some(graph) = with_stores(graph, block, choices) {
            return graph;
        }
    }
}

/// Random loads and operators; those whose tiles do not fit are left out.
fn random_block(graph: &MuGraph, choices: &mut Choices) -> BlockGraph {
    let grid: Vec<usize> = (0..choices.pick(&[1, 2])).map(|_| choices.pick(&[1, 2, 3, 4])).collect();
    let mut block = BlockGraph::new(&grid, choices.pick(&[1, 2, 3, 5]));
    let rank = graph.shape(TensorId(0)).len();
    for tensor in 0..3 {
        let mut dims: Vec<Option<usize>> = (0..rank).map(Some).chain([None, None]).collect();
        let mut take = |choices: &mut Choices| {
            let at = choices.below(dims.len());
            dims.swap_remove(at)
        };
        let map: Vec<Option<usize>> = grid.iter().map(|_| take(choices)).collect();
        let along_loop = take(choices);
        block.load(TensorId(tensor), &map, along_loop);
    }
    for _ in 0..14 {
        let mut longer = block.clone();
        random_node(&mut longer, rank, choices);
        if is_valid(graph, &longer) {
            block = longer;
        }
    }
    block
}

/// True if the shapes of tiles fit in the first block and no tile is large.
fn is_valid(graph: &MuGraph, block: &BlockGraph) -> bool {
    let first = vec![0; block.grid.len()];
    let shapes = tile_shapes(block, graph.shapes(), (&first, 0));
    let is_small = |shape: &Vec<usize>| shape.iter().product::<usize>() < 20_000;
    stages(block).is_ok() && shapes.is_ok_and(|shapes| shapes.iter().all(is_small))
}

fn random_node(block: &mut BlockGraph, rank: usize, choices: &mut Choices) {
    let tile = |block: &BlockGraph, choices: &mut Choices| TileId(choices.below(block.nodes.len()) as u32);
    let (a, b) = (tile(block, choices), tile(block, choices));
    let dim = choices.below(rank);
    let ratio = Rational::new(choices.below(7) as i64 - 3, 2).unwrap_or(Rational::ONE);
    match choices.below(17) {
        0..=2 => {
            let f = choices.pick(&[
                UnaryFn::Tanh,
                UnaryFn::Sigmoid,
                UnaryFn::Relu,
                UnaryFn::Gelu,
                UnaryFn::Silu,
                UnaryFn::Erf,
                UnaryFn::Guard,
            ]);
            block.op(Op::Unary(f), &[a]);
        }
        3 => {
            let op = if choices.below(2) == 0 { Op::Scale(ratio) } else { Op::Offset(ratio) };
            block.op(op, &[a]);
        }
        4..=6 => {
            let f = choices.pick(&[BinaryFn::Add, BinaryFn::Sub, BinaryFn::Mul, BinaryFn::Max]);
            block.op(Op::Binary(f), &[a, b]);
        }
        7 | 8 => {
            block.op(Op::Matmul, &[a, b]);
        }
        9 => {
            let f = choices.pick(&[ReduceFn::Sum, ReduceFn::Max]);
            block.op(Op::Reduce { f, dim, keep: choices.pick(&[1, 1, 2, 4]) }, &[a]);
        }
        10 => {
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.swap(dim, choices.below(rank));
            block.op(Op::Transpose(perm), &[a]);
        }
        11 => {
            let (start, len) = (choices.below(3), 1 + choices.below(6));
            block.op(Op::Slice { dim, start, len }, &[a]);
        }
        12 => {
            block.op(Op::Repeat { dim, times: 1 + choices.below(3) }, &[a]);
        }
        13 => {
            block.op(Op::Concat { dim }, &[a, b]);
        }
        14 => {
            block.op(Op::Rotate { dim, group: choices.pick(&[1, 1, 2, 4]) }, &[a]);
        }
        15 => {
            block.op(Op::RmsNorm { eps: Rational::new(1, 4).unwrap_or(Rational::ONE) }, &[a]);
        }
        _ => {
            let max = block.running_max(a);
            let how = choices.pick(&[
                Accumulation::Sum,
                Accumulation::Max,
                Accumulation::RescaledSum { max, degree: Rational::ONE },
            ]);
            block.accumulate(how, b);
        }
    }
}

/// The graph with the block graph and as many stores as are valid.
fn with_stores(graph: MuGraph, block: BlockGraph, choices: &mut Choices) -> Option<MuGraph> {
    let rank = graph.shape(TensorId(0)).len();
    let mut stored = block.clone();
    for tile in (0..block.nodes.len()).rev() {
        for _ in 0..4 {
            let mut dims: Vec<Option<usize>> = (0..rank).map(Some).collect();
            let map: Vec<Option<usize>> =
                block.grid.iter().map(|_| dims.swap_remove(choices.below(dims.len()))).collect();
            let mut longer = stored.clone();
            longer.store(TileId(tile as u32), &map);
            if stored.stores.len() < 4 && graph.clone().block(longer.clone()).is_ok() {
                stored = longer;
                break;
            }
        }
    }
    if stored.stores.is_empty() {
        return None;
    }
    let mut graph = graph;
    let results = graph.block(stored).ok()?;
    for result in results {
        graph.output(result.to_string(), result).ok()?;
    }
    Some(graph)
}
