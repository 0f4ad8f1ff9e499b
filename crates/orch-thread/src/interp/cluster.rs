//! The state of a cluster of CTAs between two statements.

use crate::interp::Value;
use crate::interp::in_flight::{CopyInFlight, WgmmaInFlight};
use crate::interp::tma::{EmptyBarriers, FullBarrier};

/// The threads of a cluster between statements. A place is the number of a thread among those of the cluster, CTA by CTA.
pub(crate) struct Cluster {
    /// The first CTA's task number.
    pub(crate) first: usize,
    /// Variables of each thread.
    pub(crate) vars: Vec<Vec<Option<Value>>>,
    /// `cp.async` groups of each thread that are in flight; the last one is not committed.
    pub(crate) copies: Vec<Vec<Vec<CopyInFlight>>>,
    /// The `wgmma` in flight of each warp group.
    pub(crate) wgmmas: Vec<Option<WgmmaInFlight>>,
    /// The full mbarriers of each CTA.
    pub(crate) mbarriers: Vec<Vec<FullBarrier>>,
    /// The empty mbarriers of each CTA.
    pub(crate) empty: Vec<EmptyBarriers>,
    /// How far the first cluster barrier has come.
    pub(crate) sync: ClusterSync,
}

/// How far the first barrier of a cluster has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClusterSync {
    /// No CTA has arrived: others may not have started.
    NotArrived,
    /// All CTAs have arrived, and not waited.
    Arrived,
    /// All CTAs have waited: all have started.
    Complete,
}
