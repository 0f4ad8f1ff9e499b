//! The pieces into which the emitter cuts outer loops, so that no guard changes within a piece:
//!
//! ```text
//! 0   cut                            cut  extent
//! |----|-------------------------------|----|
//! border         interior: no guards    border
//! ```

use super::cuts::guard_cuts;
use super::emit::NestEmitter;
use super::flat::StageWork;
use orch_compute::block::Axis;
use orch_compute::expr::ExprId;
use std::ops::Range;

/// Most cuts of one axis, to limit the size of the code. An axis with more is not cut and its guards stay.
const MAX_CUTS: usize = 6;

/// Fewest vectors in a piece of the vector axis. An axis with a shorter piece is not cut: masked vectors are faster.
const MIN_VECTORS: usize = 2;

impl NestEmitter<'_> {
    /// The values at which the loop over an outer axis is cut, ascending.
    pub fn cuts(&mut self, axis: &Axis) -> Vec<usize> {
        let roots = self.guarded_roots();
        let mut cuts = guard_cuts(&mut self.nest, &roots, axis);
        if self.plan.vector.as_ref() == Some(axis) {
            let shortest = self.plan.lanes * MIN_VECTORS;
            let ends = [&[0], &cuts[..], &[axis.extent]].concat();
            if ends.windows(2).any(|ends| ends[1] - ends[0] < shortest) {
                cuts.clear();
            }
        }
        if cuts.len() > MAX_CUTS { Vec::new() } else { cuts }
    }

    /// The expressions that stages evaluate, without the guards that bound reduction loops.
    fn guarded_roots(&mut self) -> Vec<ExprId> {
        let mut roots = Vec::new();
        for stage in self.nest.stages.clone() {
            match &stage.work {
                StageWork::Store { body, .. } => roots.push(*body),
                StageWork::Reduce(reduction) => {
                    let axes = self.inner_axes(&reduction.reduced);
                    let (looped, _) = self.plan.looped_and_unrolled(&axes);
                    let (reduction, _) = self.limited(reduction, looped);
                    roots.push(reduction.body);
                }
            }
        }
        roots
    }

    /// The pieces of an axis between cuts, ascending. Vectors of a chunk lie at multiples of `granularity`, so cuts of
    /// the vector axis elsewhere are left out.
    pub fn pieces(&mut self, axis: &Axis, granularity: usize) -> Vec<Range<usize>> {
        let mut cuts = self.cuts(axis);
        if self.plan.vector.as_ref() == Some(axis) {
            cuts.retain(|cut| cut.is_multiple_of(granularity));
        }
        let ends = [&[0], &cuts[..], &[axis.extent]].concat();
        ends.windows(2).map(|ends| ends[0]..ends[1]).collect()
    }
}
