//! Products of few rows whose factors the copy engine brings to shared memory.
//!
//! Where few rows are multiplied by a large factor, reading the factor is all that takes time. Threads that load it to
//! registers ([`stream`](super::stream)) ask for at most 96 KiB, for less where they have many sums, and for more only after
//! they have multiplied; all of them copy the first factor besides, which every block reads whole, and wait for each other in
//! every long iteration. The copy engine is asked for several iterations at once, by one thread. So both factors come in
//! [boxes](super::boxes) here, from which groups of four warps multiply whole tiles, if the second one has lines of whole
//! boxes: 64 neighbours, columns or terms. Blocks of 64 columns read the first factor half as often as blocks of 32, which
//! only threads can load; where blocks are few, clusters run them ([`cluster`](super::cluster)).
//!
//! Rows beyond those that there are, up to the 64 of a product of tiles, are zeros that the copy engine writes, or rows of other
//! blocks. Each warp has 16 rows, the last ones often none: what is done with sums is little beside reading the factors. More
//! than 64 rows take a second group. Whoever else reads a first factor, as a norm does, finds it in the same tiles.
//!
//! The search makes iterations long, so that they are few; here they become shorter ones of [`BOX_TERMS`] terms
//! ([`refine`](super::refine)). Products run on while the next iteration begins, which copies to the tiles that the iteration
//! before this one has read.

use super::split_iterations::with_shorter_iterations;
use super::steps::{TileStep, TileSteps};
use super::wgmma::{WARP_GROUP_ROWS, max_shared_a_k};
use crate::graph::{Accumulation, BlockGraph};
use crate::op::Op;
use crate::tiling::Stage;
use orch_thread::cta::MAX_WGMMA_N;

/// Terms of an iteration, the preferred ones first.
const PREFERRED_K: [usize; 2] = [128, 64];
/// Most bytes of the factors of an iteration of more terms than the least.
const MAX_OPERAND_BYTES: usize = 48 << 10;
/// Most groups of warps.
const MAX_WARP_GROUPS: usize = 2;
/// Most registers of a thread for sums.
const MAX_ACCUMULATORS: usize = 160;

/// A block that multiplies few rows by large factors, with iterations of so many terms as suit boxes, the preferred number
/// first; `None` if it adds up no products of few rows, or more.
pub(super) fn skinny_loops(block: &BlockGraph, shapes: &[Vec<usize>]) -> Option<Vec<BlockGraph>> {
    // A loop of one iteration is none for the steps.
    let looped = BlockGraph { loop_range: block.loop_range.max(2), ..block.clone() };
    let steps = TileSteps::of(&looped, shapes).ok()?;
    let products = skinny_products(&steps);
    let shape = |tile: usize| steps.tiles[tile].shape.as_slice();
    let &(_, b) = products.first()?;
    let k = shape(b)[shape(b).len() - 2];
    let accumulators: usize = loop_products(&steps).map(|tile| shape(tile)[shape(tile).len() - 1] / 2).sum();
    let same = with_shorter_iterations(&looped, &steps, 1).filter(|_| accumulators <= MAX_ACCUMULATORS)?;
    let groups = warp_groups(&steps);
    let shorter = |&own: &usize| match k.is_multiple_of(own) {
        true => Some((own, with_shorter_iterations(&looped, &steps, k / own)?)),
        false => None,
    };
    let as_it_is = (block.loop_range > 1).then_some((k, same));
    let mut loops: Vec<(usize, BlockGraph)> =
        PREFERRED_K.iter().filter_map(shorter).chain(as_it_is).collect();
    let columns: usize = products.iter().map(|&(tile, _)| shape(tile)[shape(tile).len() - 1]).sum();
    let bytes = |k: usize| 2 * k * (groups * WARP_GROUP_ROWS + columns);
    loops.retain(|&(k, _)| k <= max_shared_a_k(groups));
    loops.sort_by_key(|&(k, _)| if bytes(k) <= MAX_OPERAND_BYTES { 0 } else { bytes(k) });
    let loops: Vec<BlockGraph> = loops.into_iter().map(|(_, block)| block).collect();
    (!loops.is_empty()).then_some(loops)
}

/// Groups of warps that have rows of their own.
pub(super) fn warp_groups(steps: &TileSteps) -> usize {
    let rows = |(tile, _): (usize, usize)| steps.tiles[tile].shape.iter().rev().nth(1).copied();
    let most = skinny_products(steps).into_iter().filter_map(rows).max();
    most.unwrap_or(1).div_ceil(WARP_GROUP_ROWS)
}

/// The products of the loop.
fn loop_products(steps: &TileSteps) -> impl Iterator<Item = usize> {
    let is_product = |tile: &usize| matches!(steps.tiles[*tile].step, TileStep::Op { op: Op::Matmul, .. });
    steps.in_stage(Stage::Loop).into_iter().filter(is_product)
}

/// The products of few rows in the loop that are only added up, and their second factors, loads that only products read.
pub(super) fn skinny_products(steps: &TileSteps) -> Vec<(usize, usize)> {
    loop_products(steps).filter_map(|product| Some((product, loaded_b(steps, product)?))).collect()
}

/// Whether a product has as few rows and columns as groups of warps have sums of.
pub(super) fn is_skinny_shape(shape: &[usize]) -> bool {
    match shape {
        [lead @ .., m, n] => {
            *m <= MAX_WARP_GROUPS * WARP_GROUP_ROWS && *n <= MAX_WGMMA_N && crate::op::elems(lead) == 1
        }
        _ => false,
    }
}

fn loaded_b(steps: &TileSteps, product: usize) -> Option<usize> {
    let tile = &steps.tiles[product];
    let args = tile.step.args();
    let is_summed = steps.only_reader(product).is_some_and(|reader| {
        matches!(&steps.tiles[reader].step, TileStep::Accumulate { how: Accumulation::Sum, tile } if *tile == product)
    });
    let (b, last) = (&steps.tiles[args[1]], tile.shape.len() - 1);
    let is_load = matches!(b.step, TileStep::Load { along_loop: Some(dim), .. } if dim + 1 == last);
    let by_products =
        (steps.tiles.iter().filter(|reader| reader.readers > 0)).all(|reader| match &reader.step {
            TileStep::Op { op: Op::Matmul, args: own } => own[0] != args[1],
            step => !step.args().contains(&args[1]),
        });
    (is_skinny_shape(&tile.shape) && is_summed && is_load && by_products).then_some(args[1])
}
