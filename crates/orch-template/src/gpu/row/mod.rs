//! Kernels whose threads reduce together: softmax, normalisations, sums, extrema and their positions over rows or
//! columns, with whatever is computed before, between and after the reductions, in one kernel.
//!
//! At a point of the outer axes (over which every stage varies) a group of threads, its *members*, run the stages one
//! after the other: each takes every so-manieth vector of the axes that a stage loops over, and what members found is
//! combined by shuffles within a warp, through shared memory between warps, and between the tasks of a cluster.
//!
//! - Vectors along reduced axes ([`LaneAxis::Reduced`]): members are neighbouring threads; a part of a warp, a warp, several
//!   or all of a task, or of a cluster of tasks.
//! - Vectors along an outer axis ([`LaneAxis::Output`]): neighbouring threads have neighbouring columns, members are
//!   warps apart.
//!
//! What several stages need of an element is kept in registers, if it fits, so that inputs are read once. Results of
//! reductions that vary over more than the outer axes are computed by one thread each and lie in shared memory.
//!
//! Numerics: sums have a partial sum for each lane of each member; 16-bit floats are summed in f32.

mod choose;
mod combine;
mod lower;

use super::points::nest_of;
pub(super) use choose::serves;

use crate::{CannotLower, LaneAxis};
use orch_compute::block::BlockProgram;
use orch_thread::kernel::Kernel;
use orch_thread::target::GpuTarget;
use std::fmt;

/// How rows are dealt out.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RowSchedule {
    /// The axis of vectors, as a position among the merged axes, and what it is.
    pub vector: Option<(usize, LaneAxis)>,
    /// Elements of a vector.
    pub lanes: usize,
    /// Threads of a task that work at one point of the outer axes, a power of two.
    pub members: usize,
    /// Points of the outer axes (vectors of them, if those lie along one) of a task.
    pub groups: usize,
    /// Tasks that work at the same points.
    pub cluster: usize,
    /// Whether values are kept in registers between stages.
    pub keep: bool,
    /// Vectors that a thread loads before it uses the first of them, where values are not kept.
    pub together: usize,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for RowSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vector, lanes, members, groups, cluster, keep, together } = self;
        if let Some((axis, along)) = vector {
            write!(f, "vector_axis={axis} along={along} ")?;
        }
        write!(f, "lanes={lanes} threads={members}x{groups} cluster={cluster} loads={together}")?;
        f.write_str(if *keep { " keep" } else { "" })
    }
}

impl RowSchedule {
    /// Threads of a task.
    pub fn threads(&self) -> usize {
        self.members * self.groups
    }

    /// Whether threads have registers for all vectors that they load together. Members of rows have many neighbours with
    /// as many loads instead.
    fn loads_ahead(&self) -> bool {
        matches!(self.vector, Some((_, LaneAxis::Output))) && !self.keep
    }

    /// Threads that work at one point.
    fn all_members(&self) -> usize {
        self.members * self.cluster
    }
}

/// The schedules worth trying, the preferred one first; none if the template does not serve the program.
pub fn schedules(block: &BlockProgram, target: &GpuTarget) -> Vec<RowSchedule> {
    ranked(block, target).into_iter().map(|(_, schedule)| schedule).collect()
}

/// Schedules with their estimated cycles, the preferred one first.
pub(super) fn ranked(block: &BlockProgram, target: &GpuTarget) -> Vec<(f64, RowSchedule)> {
    choose::ranked(&mut nest_of(block), target)
}

/// The kernel under a schedule.
///
/// # Errors
/// If threads have nothing to do together, or the schedule is not one for the program.
pub fn lower(block: &BlockProgram, schedule: &RowSchedule) -> Result<Kernel, CannotLower> {
    lower::lower(nest_of(block), schedule)
}
