//! The state of a cluster of CTAs between two statements.

use crate::interp::Value;
use crate::interp::in_flight::{CopyInFlight, WgmmaInFlight};
use crate::interp::tma::{EmptyBarriers, FullBarrier};

/// The threads of a cluster between statements.
pub(crate) struct Cluster {
    /// The first CTA's task number.
    pub(crate) first: usize,
    /// Variables of each thread.
    pub(crate) vars: Vec<Vec<Option<Value>>>,
    /// Groups of copies of each thread that are in flight; the last one is not committed.
    pub(crate) copies: Vec<Vec<Vec<CopyInFlight>>>,
    /// Of each warp group the `wgmma` that is in flight.
    pub(crate) products: Vec<Option<WgmmaInFlight>>,
    /// The full mbarriers of each CTA.
    pub(crate) mbarriers: Vec<Vec<FullBarrier>>,
    /// The empty mbarriers of each CTA.
    pub(crate) empty: Vec<EmptyBarriers>,
    /// What the CTAs know of each other.
    pub(crate) presence: Presence,
}

/// What CTAs of a cluster know of each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Nothing: others may not have started.
    Unknown,
    /// They have arrived at the cluster barrier, and not waited.
    Told,
    /// All run.
    Known,
}
