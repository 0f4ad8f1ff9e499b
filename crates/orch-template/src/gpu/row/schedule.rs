//! How the threads of a CTA or a cluster share rows.

use crate::LaneAxis;
use std::fmt;

/// How rows are shared among threads. A *row* is what is reduced together: the elements at one point of the outer axes, or, for
/// vectors along an outer axis, at `lanes` neighbouring points.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RowSchedule {
    /// The axis of vectors, as a position among the merged axes, and what it is.
    pub vector: Option<(usize, LaneAxis)>,
    /// Elements of a vector.
    pub lanes: usize,
    /// Threads of a CTA that share a row, a power of two.
    pub row_threads: usize,
    /// Rows of a CTA.
    pub rows: usize,
    /// CTAs of a cluster, which share their rows.
    pub cluster: usize,
    /// Whether values are kept in registers between stages.
    pub keep: bool,
    /// Vectors whose loads a thread has in flight loads_in_flight, where values are not kept.
    pub loads_in_flight: usize,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for RowSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vector, lanes, row_threads, rows, cluster, keep, loads_in_flight } = self;
        if let Some((axis, along)) = vector {
            write!(f, "vector_axis={axis} along={along} ")?;
        }
        write!(f, "lanes={lanes} threads={row_threads}x{rows} cluster={cluster} loads={loads_in_flight}")?;
        f.write_str(if *keep { " keep" } else { "" })
    }
}

impl RowSchedule {
    /// Threads of a CTA.
    pub fn threads(&self) -> usize {
        self.row_threads * self.rows
    }

    /// Whether the loads of `loads_in_flight` vectors are issued before the first is used, at the cost of registers for all.
    /// Vectors along reduced axes have many neighbouring threads, whose loads are in flight instead.
    pub(super) fn loads_ahead(&self) -> bool {
        matches!(self.vector, Some((_, LaneAxis::Output))) && !self.keep
    }

    /// Threads that share a row, of all CTAs of the cluster.
    pub(super) fn threads_of_row(&self) -> usize {
        self.row_threads * self.cluster
    }
}
