//! The combine kernel of split-KV or split-K: each element of the result is a reduction of few partial
//! results that an earlier kernel left in global memory.
//!
//! There is little to do but wait: for memory once, and for a barrier at each sum, maximum and exponential
//! that several elements have in common. So threads share nothing here. Each recomputes the maxima and
//! factors of its elements from parts that L2 and L1 serve; this takes less time than the barriers would.
//! With many more columns per row than attention's heads have (up to 128) or more parts, sharing would pay
//! again.

use super::emitter::BlockEmitter;
use super::reduce::reduction_of;
use super::steps::{TileStep, TileSteps};
use super::value::TilePoint;
use crate::op::{Op, ReduceFn};
use orch_compute::ExprId;

/// Most parts of a reduction that a thread reads.
const MAX_PARTS: usize = 32;

/// Whether a block only reduces few parts per element: no products, no loop.
pub(super) fn combines_partials(steps: &TileSteps) -> bool {
    let mut is_any = false;
    let mut are_few = true;
    for tile in steps.tiles.iter().filter(|tile| tile.readers > 0) {
        match &tile.step {
            TileStep::Op { op: Op::Matmul, .. } => are_few = false,
            TileStep::Op { op, args } => {
                let Some((_, dim, keep)) = reduction_of(op) else { continue };
                is_any = true;
                are_few &= steps.tiles[args[0]].shape[dim] / keep <= MAX_PARTS;
            }
            TileStep::Load { .. } | TileStep::Inside { .. } => {}
            TileStep::Accumulate { .. } | TileStep::RunningMax { .. } => are_few = false,
        }
    }
    is_any && are_few && steps.loop_range == 1
}

impl BlockEmitter<'_> {
    /// An element of a reduction, of `parts` elements `keep` apart, as an expression of one thread.
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
