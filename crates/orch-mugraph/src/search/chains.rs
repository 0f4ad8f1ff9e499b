//! Elementwise chains as one value: a smaller program that is searched in place of one whose operators are too many.
//!
//! Two kinds of chains are left out of the search, and written back into what it found:
//!
//! - What is computed of inputs alone, element by element, is an input of the smaller program. In a kernel that loads it, its inputs are
//!   loaded alike and its operators stand on their tiles.
//! - What is done element by element to the last value, with what is computed of inputs alone, is left out: the smaller program ends before
//!   it. The kernel that stores this value loads the inputs by the map of the store and does the rest after its loop.
//!
//! Exponentials stay, because sums divide them. What comes out is proved like everything else.

use crate::graph::{BlockGraph, GraphError, InputKind, MuGraph, Node, Store, TensorId, TileId, TileNode};
use crate::op::{BinaryFn, Op, UnaryFn, elems};
use std::collections::{BTreeMap, BTreeSet};

/// Operators that the smaller program must have fewer, at least.
const LEAST_SAVED: usize = 2;

/// Operators of a chain of inputs, at least: single ones are searched, since they may move.
const LEAST_CHAIN: usize = 2;

/// A program and a smaller one.
#[derive(Clone, Debug)]
pub struct Chains<'a> {
    program: &'a MuGraph,
    /// What is to be searched.
    pub contracted: MuGraph,
    /// For each tensor of the smaller program the program's.
    whole: Vec<TensorId>,
    /// The operators between the last value and the output, in order.
    suffix: Vec<TensorId>,
}

impl<'a> Chains<'a> {
    /// The smaller program of one of predefined operators with one output; `None` if it would not be much smaller.
    pub fn of(program: &'a MuGraph) -> Option<Chains<'a>> {
        let [(name, output)] = program.outputs() else { return None };
        let of_inputs = of_inputs(program);
        let (last, suffix) = suffix(program, *output, &of_inputs);
        // What the smaller program reads.
        let mut needed = BTreeSet::from([last]);
        let mut chains = BTreeSet::new();
        for (id, node) in program.nodes().collect::<Vec<_>>().into_iter().rev() {
            let Node::Op { args, .. } = node else { continue };
            if !needed.contains(&id) {
                continue;
            }
            if of_inputs.contains(&id) && chain(program, id).len() >= LEAST_CHAIN {
                chains.insert(id);
            } else {
                needed.extend(args);
            }
        }
        let mut contracted = MuGraph::new(program.name.clone());
        let mut whole = Vec::new();
        let mut numbers: BTreeMap<TensorId, TensorId> = BTreeMap::new();
        for (id, node) in program.nodes().filter(|(id, _)| needed.contains(id)) {
            let number = match node {
                _ if chains.contains(&id) => contracted.input(format!("chain {id}"), program.shape(id)),
                Node::Input { name, kind, shape } => contracted.input_of(name.clone(), *kind, shape),
                Node::Op { op, args } => {
                    let args: Option<Vec<TensorId>> =
                        args.iter().map(|arg| numbers.get(arg).copied()).collect();
                    contracted.op(op.clone(), &args?).ok()?
                }
                Node::Block(_) => return None,
            };
            numbers.insert(id, number);
            whole.push(id);
        }
        contracted.output(name.clone(), *numbers.get(&last)?).ok()?;
        let saved = program.nodes().count().checked_sub(contracted.nodes().count())?;
        let has_operators = contracted.nodes().any(|(_, node)| matches!(node, Node::Op { .. }));
        (saved >= LEAST_SAVED && has_operators).then_some(Chains { program, contracted, whole, suffix })
    }

    /// Bytes of an element times this are moved beyond what the smaller program moves, at least.
    pub fn further_elems(&self) -> usize {
        let inputs = |graph: &MuGraph| graph.inputs().map(|(id, ..)| elems(graph.shape(id))).sum::<usize>();
        inputs(self.program).saturating_sub(inputs(&self.contracted))
    }

    /// A µGraph of the whole program, of one of the smaller one.
    ///
    /// # Errors
    /// If the µGraph is not of the smaller program, or has kernels that no block graph defines.
    pub fn expand(&self, found: &MuGraph) -> Result<MuGraph, GraphError> {
        let mut graph = MuGraph::new(found.name.clone());
        let mut inputs: BTreeMap<TensorId, TensorId> = BTreeMap::new();
        for (id, node) in self.program.nodes() {
            if let Node::Input { name, kind, shape } = node {
                inputs.insert(id, graph.input_of(name.clone(), *kind, shape));
            }
        }
        let [(name, output)] = found.outputs() else { return Err(unknown("output")) };
        // What each tensor of `found` is: of inputs the program's tensor.
        let given: Vec<TensorId> = self.contracted.inputs().map(|(id, ..)| self.whole[id.index()]).collect();
        let mut tensors: Vec<Source> = Vec::new();
        let mut given = given.into_iter();
        for (first, node) in found.nodes() {
            match node {
                Node::Input { .. } => {
                    let whole = given.next().ok_or_else(|| unknown(first))?;
                    let source = inputs.get(&whole).map(|&id| Source::Tensor(id));
                    tensors.push(source.unwrap_or(Source::Chain(whole)));
                }
                Node::Op { op, args } if args.is_empty() => {
                    tensors.push(Source::Tensor(graph.op(op.clone(), &[])?));
                }
                Node::Op { .. } => return Err(unknown(first)),
                Node::Block(block) => {
                    let mut writer = BlockWriter { chains: self, inputs: &inputs, nodes: Vec::new() };
                    let mut expanded = writer.block(block, &tensors)?;
                    let store = output.index().checked_sub(first.index());
                    if let Some(store) = store.and_then(|store| expanded.stores.get_mut(store)) {
                        writer.finish(store, self.program.outputs())?;
                    }
                    expanded.nodes = writer.nodes;
                    tensors.extend(graph.block(expanded)?.into_iter().map(Source::Tensor));
                }
            }
        }
        match tensors.get(output.index()) {
            Some(Source::Tensor(id)) => graph.output(name.clone(), *id)?,
            _ => return Err(unknown(output)),
        }
        Ok(graph)
    }
}

fn unknown(place: impl std::fmt::Display) -> GraphError {
    GraphError::new(place, "is not what the search gives")
}

/// Where a tensor of what was found comes from.
#[derive(Clone, Copy)]
enum Source {
    /// A tensor of the µGraph that is written.
    Tensor(TensorId),
    /// A tensor of the program that is computed of inputs.
    Chain(TensorId),
}

/// Writes a block graph with chains in it.
struct BlockWriter<'a> {
    chains: &'a Chains<'a>,
    inputs: &'a BTreeMap<TensorId, TensorId>,
    nodes: Vec<TileNode>,
}

impl BlockWriter<'_> {
    fn add(&mut self, node: TileNode) -> TileId {
        self.nodes.push(node);
        TileId(self.nodes.len() as u32 - 1)
    }

    fn block(&mut self, block: &BlockGraph, tensors: &[Source]) -> Result<BlockGraph, GraphError> {
        let mut tiles: Vec<TileId> = Vec::new();
        for node in &block.nodes {
            let tile = |tile: &TileId| tiles.get(tile.index()).copied().ok_or_else(|| unknown(tile));
            let new = match node {
                TileNode::Load { tensor, grid, along_loop } => {
                    match tensors.get(tensor.index()).ok_or_else(|| unknown(tensor))? {
                        Source::Tensor(tensor) => self.add(TileNode::Load {
                            tensor: *tensor,
                            grid: grid.clone(),
                            along_loop: *along_loop,
                        }),
                        Source::Chain(whole) => self.chain(*whole, grid, *along_loop)?,
                    }
                }
                TileNode::Op { op, args } => {
                    let args = args.iter().map(tile).collect::<Result<_, _>>()?;
                    self.add(TileNode::Op { op: op.clone(), args })
                }
                TileNode::Accumulate { how, tile: of } => {
                    let tile = tile(of)?;
                    self.add(TileNode::Accumulate { how: *how, tile })
                }
                TileNode::RunningMax { tile: of } => {
                    let tile = tile(of)?;
                    self.add(TileNode::RunningMax { tile })
                }
            };
            tiles.push(new);
        }
        let stores = block.stores.iter().map(|store| {
            let tile = tiles.get(store.tile.index()).copied().ok_or_else(|| unknown(store.tile))?;
            Ok(Store { tile, grid: store.grid.clone() })
        });
        Ok(BlockGraph {
            nodes: Vec::new(),
            stores: stores.collect::<Result<_, GraphError>>()?,
            ..block.clone()
        })
    }

    /// The tile of a tensor that is computed of inputs, by the map of a load.
    fn chain(
        &mut self,
        whole: TensorId,
        grid: &[Option<usize>],
        along_loop: Option<usize>,
    ) -> Result<TileId, GraphError> {
        let mut known = BTreeMap::new();
        for id in chain(self.chains.program, whole).into_iter().chain([whole]) {
            self.tile(id, (grid, along_loop), &mut known)?;
        }
        known.get(&whole).copied().ok_or_else(|| unknown(whole))
    }

    /// Adds the tile of one tensor of a chain, and of the inputs that it reads.
    fn tile(
        &mut self,
        id: TensorId,
        (grid, along_loop): (&[Option<usize>], Option<usize>),
        known: &mut BTreeMap<TensorId, TileId>,
    ) -> Result<(), GraphError> {
        let program = self.chains.program;
        if known.contains_key(&id) {
            return Ok(());
        }
        let tile = match program.definition(id) {
            Some(Node::Input { .. }) => {
                let tensor = *self.inputs.get(&id).ok_or_else(|| unknown(id))?;
                // What is repeated is not cut.
                let cut = |dim: &usize| program.shape(id).get(*dim).is_some_and(|&extent| extent > 1);
                self.add(TileNode::Load {
                    tensor,
                    grid: grid.iter().map(|dim| dim.filter(cut)).collect(),
                    along_loop: along_loop.filter(cut),
                })
            }
            Some(Node::Op { op, args }) => {
                for &arg in args {
                    self.tile(arg, (grid, along_loop), known)?;
                }
                let args = args.iter().map(|arg| known[arg]).collect();
                self.add(TileNode::Op { op: op.clone(), args })
            }
            Some(Node::Block(_)) | None => return Err(unknown(id)),
        };
        known.insert(id, tile);
        Ok(())
    }

    /// What is done to the last value before it is stored.
    fn finish(&mut self, store: &mut Store, outputs: &[(String, TensorId)]) -> Result<(), GraphError> {
        let Some(last) = self.chains.contracted.outputs().first() else { return Err(unknown("output")) };
        let last = self.chains.whole[last.1.index()];
        let mut known = BTreeMap::from([(last, store.tile)]);
        for &id in &self.chains.suffix {
            self.tile(id, (&store.grid.clone(), None), &mut known)?;
        }
        let [(_, output)] = outputs else { return Err(unknown("output")) };
        store.tile = *known.get(output).ok_or_else(|| unknown(output))?;
        Ok(())
    }
}

/// Tensors that operators compute element by element of inputs alone. Masks, and what is as large as no input, are left.
fn of_inputs(program: &MuGraph) -> BTreeSet<TensorId> {
    let mut found = BTreeSet::new();
    for (id, node) in program.nodes() {
        let is_one = match node {
            Node::Input { kind, .. } => *kind == InputKind::Real,
            Node::Op { op, args } => is_chained(op) && args.iter().all(|arg| found.contains(arg)),
            Node::Block(_) => false,
        };
        if is_one {
            found.insert(id);
        }
    }
    found
}

/// The operators that a tensor of [`of_inputs`] is computed by, in order, its own included.
fn chain(program: &MuGraph, id: TensorId) -> Vec<TensorId> {
    let mut found = BTreeSet::new();
    let mut pending = vec![id];
    while let Some(id) = pending.pop() {
        if let Some(Node::Op { args, .. }) = program.definition(id) {
            found.insert(id);
            pending.extend(args);
        }
    }
    found.into_iter().collect()
}

/// The last value that is not computed element by element of the one before it and of inputs, and the operators behind it.
fn suffix(program: &MuGraph, output: TensorId, of_inputs: &BTreeSet<TensorId>) -> (TensorId, Vec<TensorId>) {
    let (mut last, mut suffix) = (output, Vec::new());
    while let Some(Node::Op { op, args }) = program.definition(last) {
        let rest: BTreeSet<TensorId> = args.iter().copied().filter(|arg| !of_inputs.contains(arg)).collect();
        let readers = |id: TensorId| program.nodes().filter(|(_, node)| node.args().contains(&id)).count();
        let Some(&before) = rest.first().filter(|_| rest.len() == 1 && is_chained(op)) else { break };
        if readers(before) != 1 || program.shape(before) != program.shape(last) {
            break;
        }
        suffix.push(last);
        last = before;
    }
    suffix.reverse();
    (last, suffix)
}

/// True of operators that chains are made of.
fn is_chained(op: &Op) -> bool {
    match op {
        Op::Unary(f) => !matches!(f, UnaryFn::Exp | UnaryFn::Log | UnaryFn::Guard),
        Op::Binary(f) => *f != BinaryFn::Mask,
        Op::Scale(_) | Op::Offset(_) => true,
        _ => false,
    }
}
