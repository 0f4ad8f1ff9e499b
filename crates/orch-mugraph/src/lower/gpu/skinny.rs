//! Skinny GEMM (M up to 128) by TMA and wgmma: both operands are loaded by [TMA](super::tma) to swizzled
//! tiles.
//!
//! Reading B is all that takes time. Direct loads to registers ([`register_direct`](super::register_direct))
//! have at most 96 KiB in flight per SM, less with many accumulators, and all threads copy A besides and wait
//! for each other. Here one thread issues TMA for several stages ahead, of as much shared memory as there is.
//! Blocks of 64 columns read A half as often as blocks of 32. Where blocks are few,
//! [clusters](super::cluster) split K.
//!
//! ```text
//! A [64 per warp group, K'] swizzled, rows beyond M arbitrary     x     B [K', n] swizzled (K-major or MN-major)
//! K' = K per iteration: 128 or 64, chosen here (split_iterations), so that stages are small and many
//! wgmma stays in flight when the next iteration begins, so a stage is loaded again two iterations later
//! ```
//!
//! `schedules` says what it measured. Kernels of short loops may be faster with direct loads: both are schedules, and timed.

use super::split_iterations::with_shorter_iterations;
use super::steps::{TileStep, TileSteps};
use super::wgmma::max_shared_a_k;
use crate::graph::{Accumulation, BlockGraph};
use crate::op::Op;
use crate::tiling::Stage;
use orch_thread::cta::{MAX_WGMMA_N, WARP_GROUP_ROWS};

/// K per iteration, preferred first.
const PREFERRED_K: [usize; 2] = [128, 64];
/// Most bytes of operands per stage; iterations of more are used only if none has less.
const MAX_OPERAND_BYTES: usize = 48 << 10;
/// Most warp groups, of 64 rows each.
const MAX_WARP_GROUPS: usize = 2;
/// Most accumulator registers of a thread.
const MAX_ACCUMULATORS: usize = 160;

/// The block with K per iteration as suits TMA, preferred first; `None` if it does not sum up skinny products
/// in its loop.
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

/// Warp groups for the rows of the products.
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

/// The skinny products of the loop that are only summed up, each with its B, a load that only products read
/// as B.
pub(super) fn skinny_products(steps: &TileSteps) -> Vec<(usize, usize)> {
    loop_products(steps).filter_map(|product| Some((product, loaded_b(steps, product)?))).collect()
}

/// Whether a result has at most 128 rows and 256 columns, and no batch.
pub(super) fn is_skinny_shape(shape: &[usize]) -> bool {
    match shape {
        [lead @ .., m, n] => {
            *m <= MAX_WARP_GROUPS * WARP_GROUP_ROWS && *n <= MAX_WGMMA_N && crate::op::elems(lead) == 1
        }
        _ => false,
    }
}

/// The B of a product, if the product is skinny and only summed up, and B is a load along the loop that only
/// products read as B.
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
