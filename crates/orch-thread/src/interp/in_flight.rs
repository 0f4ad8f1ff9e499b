//! Asynchronous operations that have been started and not waited for.

use crate::cta::Location;
use orch_compute::expr::BufferId;
use orch_compute::expr::scalar::Number;
use std::ops::Range;

/// Elements that `cp.async` or TMA copies to shared memory, until it is waited for.
pub(crate) struct CopyInFlight {
    pub(crate) buffer: BufferId,
    pub(crate) offset: i64,
    pub(crate) values: Vec<Number>,
}

/// A `wgmma` of a warp group, until it is waited for.
#[derive(Clone)]
pub(crate) struct WgmmaInFlight {
    /// The accumulator: buffer, first element, elements of a thread.
    pub(crate) acc: (BufferId, i64, usize),
    /// The shared memory that it reads.
    pub(crate) reads: Vec<(BufferId, Range<i64>)>,
    /// Operand A, where it is in registers (scratch), and its values in each thread.
    pub(crate) a_registers: Option<(Location, Vec<Vec<Number>>)>,
}
