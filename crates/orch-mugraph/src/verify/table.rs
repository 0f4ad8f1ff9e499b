//! LaxFacts about every tensor and tile of a µGraph.

use crate::eval::Site;
use crate::graph::{MuGraph, Node, TensorId};
use std::collections::BTreeMap;

/// One fact per tensor and per tile.
#[derive(Clone, Debug)]
pub struct Table<T> {
    /// By tensor.
    pub tensors: Vec<T>,
    /// By the first tensor of a kernel with a block graph: one per tile.
    pub tiles: BTreeMap<TensorId, Vec<T>>,
}

impl<T: Clone> Table<T> {
    /// The same fact everywhere.
    pub fn filled(graph: &MuGraph, fact: &T) -> Table<T> {
        let tiles = graph.nodes().filter_map(|(first, node)| match node {
            Node::Block(block) => Some((first, vec![fact.clone(); block.nodes.len()])),
            Node::Input { .. } | Node::Op { .. } => None,
        });
        Table { tensors: vec![fact.clone(); graph.shapes().len()], tiles: tiles.collect() }
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.tensors.iter().chain(self.tiles.values().flatten())
    }

    /// The fact about the result at a site.
    pub fn at(&self, site: Site) -> Option<&T> {
        match site.tile {
            None => self.tensors.get(site.kernel.index()),
            Some(tile) => self.tiles.get(&site.kernel)?.get(tile as usize),
        }
    }
}
