//! Shorter iterations: splits each iteration of a loop along K into several.
//!
//! Where all that leaves the loop is sums over the dimension along which it partitions tensors, an iteration
//! `[m, K'] x [K', n]` equals several of `K' / times`. The search chooses iterations by what a block holds;
//! how much is loaded at a time is chosen at lowering.

use super::steps::{BlockTile, TileStep, TileSteps};
use crate::graph::{Accumulation, BlockGraph};
use crate::op::{BinaryFn, Op, ReduceFn};
use crate::tiling::Stage;

/// What a shorter iteration has of a tile of the loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum IterationPart {
    /// All of it: the tile does not change in the loop.
    Whole,
    /// Some of the elements along a dimension.
    Part(usize),
    /// A partial sum of each element.
    Summand,
}

/// The block graph with `times` as many iterations; `None` if it would not compute the same, or extents do
/// not divide.
pub(super) fn with_shorter_iterations(
    block: &BlockGraph,
    steps: &TileSteps,
    times: usize,
) -> Option<BlockGraph> {
    // More iterations would leave another remainder.
    if times > 1 && steps.tiles.iter().any(|tile| tile.past_end.is_some()) {
        return None;
    }
    let mut shares: Vec<Option<IterationPart>> = Vec::new();
    for tile in &steps.tiles {
        let share = match tile.stage {
            Stage::Invariant => Some(IterationPart::Whole),
            Stage::Loop => share(tile, steps, &shares),
            Stage::After => is_sum(tile, &shares).then_some(IterationPart::Whole),
        };
        if tile.readers > 0 {
            let is_whole =
                |share| !matches!(share, IterationPart::Part(dim) if !tile.shape[dim].is_multiple_of(times));
            share.filter(|&share| is_whole(share))?;
        }
        shares.push(share);
    }
    Some(BlockGraph { loop_range: block.loop_range * times, ..block.clone() })
}

/// Whether a tile behind the loop, if it accumulates, sums up partial sums.
fn is_sum(tile: &BlockTile, shares: &[Option<IterationPart>]) -> bool {
    match &tile.step {
        TileStep::Accumulate { how, tile } => {
            *how == Accumulation::Sum && shares[*tile] == Some(IterationPart::Summand)
        }
        TileStep::Load { .. } | TileStep::Inside { .. } => true,
        TileStep::Op { .. } | TileStep::RunningMax { .. } => true,
    }
}

/// What a shorter iteration has of a tile, from what it has of the tile's operands; `None` if that is not
/// defined.
fn share(tile: &BlockTile, steps: &TileSteps, shares: &[Option<IterationPart>]) -> Option<IterationPart> {
    let (op, args) = match &tile.step {
        TileStep::Load { along_loop, .. } => return along_loop.map(IterationPart::Part),
        TileStep::Op { op, args } => (op, args),
        TileStep::Inside { dim, .. } => return Some(IterationPart::Part(*dim)),
        TileStep::Accumulate { .. } | TileStep::RunningMax { .. } => return None,
    };
    let given: Option<Vec<IterationPart>> = args.iter().map(|&arg| shares[arg]).collect();
    let (given, last) = (given?, tile.shape.len().wrapping_sub(1));
    match (op, given.as_slice()) {
        (Op::Scale(_) | Op::Binary(BinaryFn::Add), [IterationPart::Summand, ..])
            if given.iter().all(|share| *share == IterationPart::Summand) =>
        {
            Some(IterationPart::Summand)
        }
        (op, _) if op.is_elementwise() => {
            let dim = given.iter().find_map(|share| match share {
                IterationPart::Part(dim) => Some(*dim),
                IterationPart::Whole | IterationPart::Summand => None,
            })?;
            let suits = |(share, &arg): (&IterationPart, &usize)| match share {
                IterationPart::Whole => steps.tiles[arg].shape[dim] == 1,
                IterationPart::Part(own) => *own == dim,
                IterationPart::Summand => false,
            };
            given.iter().zip(args).all(suits).then_some(IterationPart::Part(dim))
        }
        (Op::Matmul, &[IterationPart::Part(left), IterationPart::Part(right)]) => {
            (left == last && right + 1 == last).then_some(IterationPart::Summand)
        }
        (Op::Matmul, [IterationPart::Summand, IterationPart::Whole]) => Some(IterationPart::Summand),
        (Op::Reduce { f, dim, keep: 1 }, &[IterationPart::Part(part)]) => match part == *dim {
            true => (*f == ReduceFn::Sum).then_some(IterationPart::Summand),
            false => Some(IterationPart::Part(part)),
        },
        (Op::Transpose(perm), [IterationPart::Part(part)]) => {
            perm.iter().position(|from| from == part).map(IterationPart::Part)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Node;

    /// The iterations of a block over `x` `[8, 64]` and `w` `[64, 32]`, of 32 terms at first, if it is refined.
    fn range(body: &str, times: usize) -> Option<usize> {
        let text = format!(
            "mugraph \"r\" {{\n t0 = input \"x\" [8, 64]\n t1 = input \"w\" [64, 32]\n t2 = block [1] loop 2 {{\n \
             s0 = load t0 [-] 1\n s1 = load t1 [-] 0\n {body}\n }}\n output \"o\" t2\n}}\n"
        );
        let graph = crate::text::parse(&text).expect("a graph");
        let block = graph.nodes().find_map(|(_, node)| match node {
            Node::Block(block) => Some(block.clone()),
            Node::Input { .. } | Node::Op { .. } => None,
        });
        let block = block.expect("a block");
        let steps = TileSteps::of(&block, graph.shapes()).expect("steps");
        with_shorter_iterations(&block, &steps, times).map(|block| block.loop_range)
    }

    #[test]
    fn sums_over_terms_are_refined() {
        for body in [
            "s2 = matmul s0, s1\n s3 = accumulate sum s2\n store s3 [0]",
            "s2 = square s0\n s3 = sum(1) s2\n s4 = scale(1/64) s3\n s5 = accumulate sum s4\n store s5 [0]",
            "s2 = sum(0) s0\n s3 = sum(1) s2\n s4 = accumulate sum s3\n store s4 [-]",
        ] {
            assert_eq!([range(body, 1), range(body, 4)], [Some(2), Some(8)], "{body}");
            assert_eq!(range(body, 3), None, "{body}");
        }
    }

    #[test]
    fn what_is_no_sum_over_terms_is_not_refined() {
        for body in [
            // Of a function of sums, of parts of a row, of the largest, and of elements of iterations.
            "s2 = matmul s0, s1\n s3 = relu s2\n s4 = accumulate sum s3\n store s4 [0]",
            "s2 = sum(1, 16) s0\n s3 = accumulate sum s2\n store s3 [0]",
            "s2 = largest(1) s0\n s3 = accumulate max s2\n store s3 [0]",
            "s2 = exp s0\n s3 = accumulate sum s2\n store s3 [0]",
        ] {
            assert_eq!([range(body, 1), range(body, 2)], [None, None], "{body}");
        }
    }
}
