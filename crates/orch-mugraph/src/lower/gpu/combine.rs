//! Blocks that combine partial results: of each element of the result a thread reads the few parts, and all else that the
//! element depends on, once.
//!
//! Where blocks of a kernel before have each summed up some keys of attention, or some terms of a product, little is left to do:
//! waiting is what takes time, for memory once and then at a barrier for each sum, maximum and exponential that several elements
//! have in common. Here threads share nothing. They find the same maxima again, from parts that come from a cache together.
//! Reading the parts of an element takes longer than the exponentials that it needs.

use super::emitter::BlockEmitter;
use super::reduce::reduction_of;
use super::steps::{TileStep, TileSteps};
use super::value::TilePoint;
use crate::op::{Op, ReduceFn};
use orch_compute::ExprId;

/// Parts of a sum or maximum, at most.
const MOST_PARTS: usize = 32;

/// Whether a block combines few parts of each element of its results, and does nothing else that takes time.
pub(super) fn combines_partials(steps: &TileSteps) -> bool {
    let mut is_any = false;
    let mut are_few = true;
    for tile in steps.tiles.iter().filter(|tile| tile.readers > 0) {
        match &tile.step {
            TileStep::Op { op: Op::Matmul, .. } => are_few = false,
            TileStep::Op { op, args } => {
                let Some((_, dim, keep)) = reduction_of(op) else { continue };
                is_any = true;
                are_few &= steps.tiles[args[0]].shape[dim] / keep <= MOST_PARTS;
            }
            TileStep::Load { .. } => {}
            TileStep::Accumulate { .. } | TileStep::RunningMax { .. } => are_few = false,
        }
    }
    is_any && are_few && steps.loop_range == 1
}

impl BlockEmitter<'_> {
    /// An element of a reduction, from all its parts.
    pub fn reduce_in_thread(
        &mut self,
        from: usize,
        (f, dim, keep): (ReduceFn, usize, usize),
        point: &TilePoint,
    ) -> ExprId {
        let parts = self.plan.steps.tiles[from].shape[dim] / keep;
        let mut all = None;
        for part in 0..parts {
            let mut coords = point.coords.clone();
            coords[dim] = self.program.exprs.add_const(coords[dim], (part * keep) as i64);
            let value = self.value_at(from, &TilePoint { coords, slot: None });
            all = Some(all.map_or(value, |all| self.combine(f, all, value)));
        }
        all.unwrap_or_else(|| self.identity(f))
    }
}
