//! The thread level: which tiles of a block graph never leave registers.
//!
//! Rules, in order:
//! 1. An elementwise operator joins the chain of the operand with its own shape that only it reads and that is computed in
//!    the same stage: each element is made by the thread that made the operand's.
//! 2. An accumulator joins the chain of the tile that it accumulates if only it reads that tile: the sum stays where the
//!    tile was made.
//!
//! The last tile of a chain is kept in shared memory if a reader needs elements of other threads, the others in registers.

use crate::graph::{BlockGraph, TileId, TileNode};
use crate::tiling::{Stage, stages, tile_shapes};

/// Tiles that one pass over elements computes, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chain {
    /// The tiles.
    pub tiles: Vec<TileId>,
    /// True if the last tile goes to shared memory for readers of other chains.
    pub shared: bool,
}

/// The chains of a block graph, by their first tile. `tensors` are the shapes of the µGraph's tensors.
///
/// # Errors
/// If the block graph is not valid.
pub fn chains(block: &BlockGraph, tensors: &[Vec<usize>]) -> Result<Vec<Chain>, crate::GraphError> {
    let stages = stages(block)?;
    let shapes = tile_shapes(block, tensors, (&vec![0; block.grid.len()], 0))?;
    let mut readers = vec![0; block.nodes.len()];
    for arg in block.nodes.iter().flat_map(TileNode::args) {
        readers[arg.index()] += 1;
    }
    for store in &block.stores {
        readers[store.tile.index()] += 1;
    }
    let mut chain_of: Vec<usize> = Vec::with_capacity(block.nodes.len());
    let mut chains: Vec<Chain> = Vec::new();
    for (position, node) in block.nodes.iter().enumerate() {
        let id = TileId(position as u32);
        let host = match node {
            TileNode::Op { op, args } if op.is_elementwise() => args.iter().copied().find(|arg| {
                readers[arg.index()] == 1
                    && shapes[arg.index()] == shapes[position]
                    && stages[arg.index()] == stages[position]
                    && !matches!(block.nodes[arg.index()], TileNode::Load { .. })
            }),
            TileNode::Accumulate { tile, .. } if stages[tile.index()] == Stage::Loop => {
                let computed = !matches!(block.nodes[tile.index()], TileNode::Load { .. });
                Some(*tile).filter(|tile| computed && readers[tile.index()] == 1)
            }
            TileNode::Op { .. } | TileNode::Load { .. } => None,
            TileNode::Accumulate { .. } | TileNode::RunningMax { .. } => None,
        };
        let host = host.map(|tile| chain_of[tile.index()]);
        match host {
            Some(chain) => chains[chain].tiles.push(id),
            None => chains.push(Chain { tiles: vec![id], shared: false }),
        }
        chain_of.push(host.unwrap_or(chains.len() - 1));
    }
    for (position, node) in block.nodes.iter().enumerate() {
        for arg in node.args() {
            if chain_of[arg.index()] != chain_of[position] {
                chains[chain_of[arg.index()]].shared = true;
            }
        }
    }
    Ok(chains)
}
