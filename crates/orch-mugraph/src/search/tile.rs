//! Tiles and tensors in the search: classes of the algebra with labelled dimensions.

use super::SearchOptions;
use super::algebra::{GRID, LOOP, TILE, WHOLE};
use super::labels::Labels;
use super::limits::Target;
use crate::graph::{MuGraph, TensorId};
use crate::op::{BinaryFn, UnaryFn};
use crate::rational::Rational;
use crate::tiling::Stage;
use egg::Id;
use serde::{Deserialize, Serialize};

/// Some parts of a labelled index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Atom {
    /// The label.
    pub label: u8,
    /// Which parts, as bits.
    pub parts: u8,
}

/// What a dimension runs over: nothing (extent 1), an index, or the blocks of one index around another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Dim {
    /// Blocks, if there are several per element of the inner index.
    pub outer: Option<Atom>,
    /// The index.
    pub inner: Option<Atom>,
}

impl Dim {
    /// All of an index.
    pub fn whole(label: Option<u8>) -> Dim {
        Dim { outer: None, inner: label.map(|label| Atom { label, parts: WHOLE }) }
    }

    /// True for an extent of 1.
    pub fn is_one(self) -> bool {
        self.outer.is_none() && self.inner.is_none()
    }

    /// Its atoms.
    pub fn atoms(self) -> impl Iterator<Item = Atom> {
        self.outer.into_iter().chain(self.inner)
    }
}

/// A tensor that blocks may load.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Source {
    /// What it is.
    pub class: Id,
    /// Its dimensions.
    pub dims: Vec<Dim>,
    /// Where it comes from: an input of the program, or a result of the kernel before.
    pub origin: Origin,
    /// Whether kernels compute its elements from indices instead of loading them.
    pub is_computed: bool,
    /// Whether its elements take 4 bytes where products take 2, so that kernels convert what they load.
    pub is_wide: bool,
    /// Whether its neighbours in memory are along the last dimension but one.
    pub is_transposed: bool,
}

/// Where a tensor comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Origin {
    /// A tensor of the program that is given: an input or a mask.
    Program(TensorId),
    /// A result of the first kernel.
    Stored(usize),
}

/// How a kernel is cut into blocks and iterations, by label; counts come later.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Structure {
    /// The indices that the grid partitions.
    pub grid: Vec<u8>,
    /// The index that the loop partitions.
    pub looped: Option<u8>,
}

impl Structure {
    /// The parts of an index within a tile.
    pub fn tile_parts(&self, label: u8) -> u8 {
        match (self.looped == Some(label), self.grid.contains(&label)) {
            (true, _) => TILE,
            (false, true) => TILE | LOOP,
            (false, false) => WHOLE,
        }
    }

    /// The parts of the looped index that the loop runs over.
    pub fn loop_parts(&self, label: u8) -> u8 {
        if self.grid.contains(&label) { LOOP } else { LOOP | GRID }
    }

    /// True if an index is partitioned.
    pub fn partitions(&self, label: u8) -> bool {
        self.looped == Some(label) || self.grid.contains(&label)
    }

    /// What a block sees of a tensor; `None` if an index that is not whole would be partitioned.
    pub fn load(&self, source: &Source) -> Option<(Vec<Dim>, Stage)> {
        let mut stage = Stage::Invariant;
        let mut dims = Vec::with_capacity(source.dims.len());
        for dim in &source.dims {
            let cut = |atom: Atom| self.partitions(atom.label);
            if dim.outer.is_some_and(cut)
                || dim.inner.is_some_and(|atom| cut(atom) && (atom.parts != WHOLE || dim.outer.is_some()))
            {
                return None;
            }
            if dim.inner.is_some_and(|atom| self.looped == Some(atom.label)) {
                stage = Stage::Loop;
            }
            let inner = dim.inner.map(|atom| {
                let parts = if atom.parts == WHOLE { self.tile_parts(atom.label) } else { atom.parts };
                Atom { parts, ..atom }
            });
            dims.push(Dim { inner, ..*dim });
        }
        Some((dims, stage))
    }

    /// The dimensions of a stored tile and the dimension of each grid index; `None` if several blocks would store the
    /// same. `free`: the parts that the tile depends on.
    pub fn store(&self, dims: &[Dim], free: u64) -> Option<(Vec<Dim>, Vec<usize>)> {
        let mut dims = dims.to_vec();
        let mut map = Vec::with_capacity(self.grid.len());
        for &label in &self.grid {
            let own = dims.iter().position(|dim| dim.inner.is_some_and(|atom| atom.label == label));
            if let Some(at) = own {
                let inner = dims[at].inner.map(|atom| Atom { parts: atom.parts | GRID, ..atom });
                dims[at].inner = inner;
                map.push(at);
                continue;
            }
            if free >> (3 * label + 2) & 1 == 0 {
                return None;
            }
            let blocks = Some(Atom { label, parts: GRID });
            let fits = |dim: &Dim| {
                dim.outer.is_none()
                    && dim.inner.is_none_or(|atom| !self.partitions(atom.label) && atom.parts == WHOLE)
            };
            let at = (0..dims.len()).rev().find(|&at| fits(&dims[at]) && !map.contains(&at))?;
            dims[at] = match dims[at].inner {
                None => Dim { outer: None, inner: blocks },
                inner => Dim { outer: blocks, inner },
            };
            map.push(at);
        }
        Some((dims, map))
    }
}

/// An operator of a block, with parameters that depend on counts left open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum TileOp {
    /// A matrix product.
    Matmul,
    /// Elementwise of one.
    Unary(UnaryFn),
    /// A product with, or sum with, a constant of the program, by its position.
    Constant(usize),
    /// Elementwise of two.
    Binary(BinaryFn),
    /// The sum along a dimension.
    Sum(usize),
    /// The sum along the outer part of a dimension.
    SumOuter(usize),
    /// The root-mean-square norm along the last dimension.
    RmsNorm(Rational),
    /// A rotary position embedding of the program, by its position: of a tile, cosines and sines.
    Rope(usize),
}

impl TileOp {
    /// True if an element takes more than a few instructions.
    pub fn is_special(self) -> bool {
        match self {
            TileOp::Unary(f) => !matches!(f, UnaryFn::Square | UnaryFn::Relu | UnaryFn::Guard),
            TileOp::Binary(f) => f == BinaryFn::Div,
            TileOp::RmsNorm(_) => true,
            TileOp::Matmul | TileOp::Constant(_) | TileOp::Sum(_) | TileOp::SumOuter(_) => false,
            TileOp::Rope(_) => false,
        }
    }

    /// Operators that it stands for.
    pub fn count(self) -> usize {
        if matches!(self, TileOp::Rope(_)) { 4 } else { 1 }
    }
}

/// A definition of a tile.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum SketchStep {
    /// A load of a source, by position.
    Load(usize),
    /// An operator on earlier tiles.
    Op(TileOp, Vec<usize>),
    /// The sum of a tile over all iterations.
    Accumulate(usize),
}

/// A block program without counts.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Sketch {
    /// How it is cut.
    pub structure: Structure,
    /// Definitions.
    pub steps: Vec<SketchStep>,
    /// Dimensions of each tile.
    pub dims: Vec<Vec<Dim>>,
    /// When each tile is known.
    pub in_loop: Vec<bool>,
    /// What is stored: tile, dimensions of the tensor, dimension of each grid index.
    pub stores: Vec<(usize, Vec<Dim>, Vec<usize>)>,
    /// The classes of what is stored.
    pub classes: Vec<Id>,
    /// The sources.
    pub sources: Vec<Source>,
}

impl Sketch {
    /// What is stored, in order.
    pub fn results(&self) -> Vec<Target> {
        let stores = self.stores.iter().zip(&self.classes);
        stores.map(|((_, dims, _), class)| (*class, dims.clone())).collect()
    }

    /// The steps that read a tile.
    pub fn readers(&self, tile: usize) -> impl Iterator<Item = usize> {
        let reads = move |at: &usize| match &self.steps[*at] {
            SketchStep::Load(_) => false,
            SketchStep::Op(_, args) => args.contains(&tile),
            SketchStep::Accumulate(from) => *from == tile,
        };
        (0..self.steps.len()).filter(reads)
    }

    /// Whether a product has a tile as its right operand.
    pub fn is_right_operand(&self, tile: usize) -> bool {
        let is_right =
            |step: &SketchStep| matches!(step, SketchStep::Op(TileOp::Matmul, args) if args[1] == tile);
        self.steps.iter().any(is_right)
    }

    /// True if a tile is added up over iterations, or is a summand of one that is, and is read for nothing else.
    pub fn is_accumulated(&self, tile: usize) -> bool {
        let mut readers = self.readers(tile);
        let (Some(reader), None) = (readers.next(), readers.next()) else { return false };
        match &self.steps[reader] {
            SketchStep::Load(_) => false,
            SketchStep::Accumulate(_) => true,
            SketchStep::Op(op, _) => {
                matches!(op, TileOp::Binary(BinaryFn::Add)) && self.is_accumulated(reader)
            }
        }
    }

    /// True if a tile is a product, or a sum of products, that is only added up over iterations, or if it is what they add
    /// up to. The first factor of a product has none in it, or is one by what the loop does not change.
    pub fn is_sum_of_products(&self, tile: usize) -> bool {
        match &self.steps[tile] {
            SketchStep::Accumulate(from) => self.is_sum_of_products(*from),
            _ => self.is_accumulated(tile) && self.adds_products(tile),
        }
    }

    fn adds_products(&self, tile: usize) -> bool {
        match &self.steps[tile] {
            SketchStep::Op(TileOp::Matmul, args) => {
                let is_product = matches!(self.steps[args[0]], SketchStep::Op(TileOp::Matmul, _));
                match is_product && !self.in_loop[args[1]] {
                    true => self.adds_products(args[0]),
                    false => !self.has_product(args[0]),
                }
            }
            SketchStep::Op(TileOp::Binary(BinaryFn::Add), args) => {
                args.iter().all(|&arg| self.adds_products(arg))
            }
            _ => false,
        }
    }

    /// True if a tile is made of a product.
    pub fn has_product(&self, tile: usize) -> bool {
        match &self.steps[tile] {
            SketchStep::Load(_) => false,
            SketchStep::Accumulate(from) => self.has_product(*from),
            SketchStep::Op(op, args) => {
                *op == TileOp::Matmul || args.iter().any(|&arg| self.has_product(arg))
            }
        }
    }

    /// Whether a tile is a load of a tensor whose elements are converted.
    pub fn loads_wide(&self, tile: usize) -> bool {
        matches!(self.steps[tile], SketchStep::Load(source) if self.sources[source].is_wide)
    }

    /// Whether a tile is a load of a transposed tensor, or made element by element of one.
    pub fn is_transposed(&self, tile: usize) -> bool {
        match &self.steps[tile] {
            SketchStep::Load(source) => self.sources[*source].is_transposed,
            SketchStep::Op(TileOp::Unary(_) | TileOp::Constant(_) | TileOp::Binary(_), args) => {
                args.iter().any(|&arg| self.is_transposed(arg))
            }
            SketchStep::Op(..) | SketchStep::Accumulate(_) => false,
        }
    }

    /// True if it loads partial results, one per block of an index.
    pub fn splits(&self, label: u8) -> bool {
        let atoms = self.sources.iter().flat_map(|source| &source.dims).flat_map(|dim| dim.atoms());
        atoms.into_iter().any(|atom| atom.label == label && atom.parts != WHOLE)
    }
}

/// The tensors that a program is given; masks that it computes are among those that are computed.
pub fn given(program: &MuGraph, labels: &Labels, classes: &[Id], options: &SearchOptions) -> Vec<Source> {
    let is_given = |node: &crate::Node| node.args().is_empty();
    let inputs: Vec<TensorId> = program.inputs().map(|(id, ..)| id).collect();
    let source = |id: TensorId| {
        let number = inputs.iter().position(|input| *input == id);
        Source {
            class: classes[id.index()],
            dims: labels.dims(id).iter().map(|label| Dim::whole(*label)).collect(),
            origin: Origin::Program(id),
            is_computed: number.is_none_or(|number| options.inputs.computed.contains(number)),
            is_wide: number.is_some_and(|number| options.inputs.wide.contains(number)),
            is_transposed: number.is_some_and(|number| options.inputs.transposed.contains(number)),
        }
    };
    program.nodes().filter(|(_, node)| is_given(node)).map(|(id, _)| source(id)).collect()
}
