//! µGraphs from sketches and counts.

use super::cost::{Beside, KernelExtents, PartCounts};
use super::limits::Target;
use super::rope::{Rope, ropes};
use super::tile::{Origin, Sketch, SketchStep, TileOp};
use crate::graph::{Accumulation, BlockGraph, GraphError, MuGraph, Node, TensorId, TileId};
use crate::op::{BinaryFn, Op, ReduceFn};

/// A chain of kernels: sketches with counts.
pub type Chain<'a> = [(&'a Sketch, &'a PartCounts)];

/// The µGraph of a chain of kernels, of which the last one stores the program's outputs, whose classes and dimensions are the
/// `targets`. `extents` are those of the labels, `constants` the program's in order.
///
/// # Errors
/// If the sketches do not fit the program.
pub fn build(
    program: &MuGraph,
    (chain, targets): (&Chain<'_>, &[Target]),
    extents: &[usize],
    constants: &[Op],
) -> Result<MuGraph, GraphError> {
    let mut graph = MuGraph::new(program.name.clone());
    let mut given: Vec<Option<TensorId>> = vec![None; program.shapes().len()];
    let used = |id: TensorId| {
        chain.iter().any(|(sketch, _)| sketch.sources.iter().any(|s| s.origin == Origin::Program(id)))
    };
    for (id, node) in program.nodes() {
        given[id.index()] = match node {
            Node::Input { name, kind, shape } => Some(graph.input_of(name.clone(), *kind, shape)),
            Node::Op { op, args } if args.is_empty() && used(id) => Some(graph.op(op.clone(), &[])?),
            Node::Op { .. } | Node::Block(_) => None,
        };
    }
    let ropes = ropes(program);
    let mut before: Vec<(u8, usize)> = Vec::new();
    let mut stored: Vec<TensorId> = Vec::new();
    for (sketch, counts) in chain {
        let beside = Beside { before: &before, ..Beside::default() };
        let extents = KernelExtents::new(extents, sketch, counts, beside);
        let kernel = SketchKernel { extents, constants, ropes: &ropes };
        let source = |origin: Origin| match origin {
            Origin::Program(id) => given[id.index()],
            Origin::Stored(at) => stored.get(at).copied(),
        };
        stored = graph.block(kernel.block(&source)?)?;
        before = sketch.structure.grid.iter().copied().zip(counts.grid.iter().copied()).collect();
    }
    let results = chain.last().map(|(sketch, _)| sketch.results()).unwrap_or_default();
    for ((name, _), target) in program.outputs().iter().zip(targets) {
        let tensor = results.iter().position(|result| result == target).and_then(|at| stored.get(at));
        graph.output(name, *tensor.ok_or_else(|| GraphError::new("graph", "a result is not stored"))?)?;
    }
    Ok(graph)
}

struct SketchKernel<'a> {
    extents: KernelExtents<'a>,
    constants: &'a [Op],
    ropes: &'a [Rope],
}

impl SketchKernel<'_> {
    fn block(&self, tensor: &dyn Fn(Origin) -> Option<TensorId>) -> Result<BlockGraph, GraphError> {
        let (sketch, counts) = (self.extents.sketch, self.extents.counts);
        let structure = &sketch.structure;
        let alone = structure.grid.is_empty();
        let grid: &[usize] = if alone { &[1] } else { &counts.grid };
        let mut block = BlockGraph::new(grid, counts.looped);
        // The tile of each step.
        let mut tiles: Vec<TileId> = Vec::new();
        for step in &sketch.steps {
            let tile = match step {
                SketchStep::Load(at) => {
                    let source = &sketch.sources[*at];
                    let dim_of = |label: u8| {
                        source.dims.iter().position(|dim| dim.inner.is_some_and(|atom| atom.label == label))
                    };
                    let mut map: Vec<Option<usize>> =
                        structure.grid.iter().map(|label| dim_of(*label)).collect();
                    map.extend(alone.then_some(None));
                    let id = tensor(source.origin)
                        .ok_or_else(|| GraphError::new("load", "a tensor is missing"))?;
                    block.load(id, &map, structure.looped.and_then(dim_of))
                }
                SketchStep::Accumulate(arg) => block.accumulate(Accumulation::Sum, tiles[*arg]),
                SketchStep::Op(TileOp::Rope(at), args) => {
                    let rope = self.ropes.get(*at);
                    let rope = rope.ok_or_else(|| GraphError::new("rope", "a rotation is missing"))?;
                    rotated(&mut block, rope, &args.iter().map(|arg| tiles[*arg]).collect::<Vec<_>>())
                }
                SketchStep::Op(op, args) => {
                    let op = self.op(*op, args[0])?;
                    let args: Vec<TileId> = args.iter().map(|arg| tiles[*arg]).collect();
                    block.op(op, &args)
                }
            };
            tiles.push(tile);
        }
        for (tile, _, map) in &sketch.stores {
            let mut map: Vec<Option<usize>> = map.iter().map(|dim| Some(*dim)).collect();
            map.extend(alone.then_some(None));
            block.store(tiles[*tile], &map);
        }
        Ok(block)
    }

    fn op(&self, op: TileOp, arg: usize) -> Result<Op, GraphError> {
        Ok(match op {
            TileOp::Matmul => Op::Matmul,
            TileOp::Unary(f) => Op::Unary(f),
            TileOp::Binary(f) => Op::Binary(f),
            TileOp::RmsNorm(eps) => Op::RmsNorm { eps },
            TileOp::Sum(dim) => Op::Reduce { f: ReduceFn::Sum, dim, keep: 1 },
            TileOp::SumOuter(dim) => {
                let inner = self.extents.sketch.dims[arg][dim].inner;
                let keep = inner.map_or(1, |atom| self.extents.atom(atom));
                Op::Reduce { f: ReduceFn::Sum, dim, keep }
            }
            TileOp::Constant(at) => {
                let constant = self.constants.get(at).cloned();
                constant.ok_or_else(|| GraphError::new("constant", "a constant is missing"))?
            }
            TileOp::Rope(_) => return Err(GraphError::new("rope", "several operators")),
        })
    }
}

/// The operators of a rotary position embedding of a tile, by cosines and sines, and of what is joined to it.
fn rotated(block: &mut BlockGraph, rope: &Rope, args: &[TileId]) -> TileId {
    let x = args[0];
    let [cos, sin] = [args[1], args[2]].map(|angles| match &rope.spread {
        None => angles,
        Some(op) => {
            let copies = op.arity().unwrap_or(2);
            block.op(op.clone(), &vec![angles; copies])
        }
    });
    let (dim, group) = (rope.dim, rope.group);
    let plain = block.op(Op::Binary(BinaryFn::Mul), &[x, cos]);
    let rotated = block.op(Op::Rotate { dim, group }, &[x]);
    let turned = block.op(Op::Binary(BinaryFn::Mul), &[rotated, sin]);
    let sum = block.op(Op::Binary(BinaryFn::Add), &[plain, turned]);
    match rope.rest {
        None => sum,
        Some(rest) if rest.is_first => block.op(Op::Concat { dim }, &[args[3], sum]),
        Some(_) => block.op(Op::Concat { dim }, &[sum, args[3]]),
    }
}
