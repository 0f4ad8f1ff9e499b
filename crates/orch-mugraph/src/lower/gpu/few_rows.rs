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

use super::refine::refined;
use super::steps::{Step, Steps};
use super::tiles::{GROUP_ROWS, most_terms};
use crate::graph::{Accumulation, BlockGraph};
use crate::op::Op;
use crate::tiling::Stage;
use orch_thread::cta::MAX_WGMMA_N;

/// Terms of an iteration, the preferred ones first.
const BOX_TERMS: [usize; 2] = [128, 64];
/// Most bytes of the factors of an iteration of more terms than the least.
const MOST_BYTES: usize = 48 << 10;
/// Most groups of warps.
const MOST_GROUPS: usize = 2;
/// Most registers of a thread for sums.
const MOST_SUMS: usize = 160;

/// A block that multiplies few rows by large factors, with iterations of so many terms as suit boxes, the preferred number
/// first; `None` if it adds up no products of few rows, or more.
pub(super) fn few_rows(block: &BlockGraph, shapes: &[Vec<usize>]) -> Option<Vec<BlockGraph>> {
    // A loop of one iteration is none for the steps.
    let looped = BlockGraph { loop_range: block.loop_range.max(2), ..block.clone() };
    let steps = Steps::of(&looped, shapes).ok()?;
    let products = products(&steps);
    let shape = |tile: usize| steps.tiles[tile].shape.as_slice();
    let &(_, second) = products.first()?;
    let terms = shape(second)[shape(second).len() - 2];
    let sums: usize = multiplied(&steps).map(|tile| shape(tile)[shape(tile).len() - 1] / 2).sum();
    let same = refined(&looped, &steps, 1).filter(|_| sums <= MOST_SUMS)?;
    let groups = groups(&steps);
    let shorter = |&own: &usize| match terms.is_multiple_of(own) {
        true => Some((own, refined(&looped, &steps, terms / own)?)),
        false => None,
    };
    let as_it_is = (block.loop_range > 1).then_some((terms, same));
    let mut loops: Vec<(usize, BlockGraph)> = BOX_TERMS.iter().filter_map(shorter).chain(as_it_is).collect();
    let columns: usize = products.iter().map(|&(tile, _)| shape(tile)[shape(tile).len() - 1]).sum();
    let bytes = |terms: usize| 2 * terms * (groups * GROUP_ROWS + columns);
    loops.retain(|&(terms, _)| terms <= most_terms(groups));
    loops.sort_by_key(|&(terms, _)| if bytes(terms) <= MOST_BYTES { 0 } else { bytes(terms) });
    let loops: Vec<BlockGraph> = loops.into_iter().map(|(_, block)| block).collect();
    (!loops.is_empty()).then_some(loops)
}

/// Groups of warps that have rows of their own.
pub(super) fn groups(steps: &Steps) -> usize {
    let rows = |(tile, _): (usize, usize)| steps.tiles[tile].shape.iter().rev().nth(1).copied();
    let most = products(steps).into_iter().filter_map(rows).max();
    most.unwrap_or(1).div_ceil(GROUP_ROWS)
}

/// The products of the loop.
fn multiplied(steps: &Steps) -> impl Iterator<Item = usize> {
    let is_product = |tile: &usize| matches!(steps.tiles[*tile].step, Step::Op { op: Op::Matmul, .. });
    steps.in_stage(Stage::Loop).into_iter().filter(is_product)
}

/// The products of few rows in the loop that are only added up, and their second factors, loads that only products read.
pub(super) fn products(steps: &Steps) -> Vec<(usize, usize)> {
    multiplied(steps).filter_map(|product| Some((product, second_of(steps, product)?))).collect()
}

/// Whether a product has as few rows and columns as groups of warps have sums of.
pub(super) fn is_few(shape: &[usize]) -> bool {
    match shape {
        [lead @ .., m, n] => {
            *m <= MOST_GROUPS * GROUP_ROWS && *n <= MAX_WGMMA_N && crate::op::elems(lead) == 1
        }
        _ => false,
    }
}

fn second_of(steps: &Steps, product: usize) -> Option<usize> {
    let tile = &steps.tiles[product];
    let args = tile.step.args();
    let is_summed = steps.only_reader(product).is_some_and(|reader| {
        matches!(&steps.tiles[reader].step, Step::Accumulate { how: Accumulation::Sum, tile } if *tile == product)
    });
    let (second, last) = (&steps.tiles[args[1]], tile.shape.len() - 1);
    let is_load = matches!(second.step, Step::Load { along_loop: Some(dim), .. } if dim + 1 == last);
    let by_products =
        (steps.tiles.iter().filter(|reader| reader.readers > 0)).all(|reader| match &reader.step {
            Step::Op { op: Op::Matmul, args: own } => own[0] != args[1],
            step => !step.args().contains(&args[1]),
        });
    (is_few(&tile.shape) && is_summed && is_load && by_products).then_some(args[1])
}
