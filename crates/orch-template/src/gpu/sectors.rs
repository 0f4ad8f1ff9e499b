//! How much of the memory sectors that a kernel transfers it does not use, whatever its schedule.

use super::access::unused_along;
use super::points::nest_of;
use super::transpose;
use orch_compute::block::{Axis, BlockProgram};

/// Bytes of sectors that a kernel which is no matrix product transfers beside the elements that it reads and writes, where its vectors
/// run along the axis for which these are fewest: operands and results of different layouts cannot all be contiguous, unless tiles of
/// the operands are transposed in shared memory. Results are not.
pub fn unused_bytes(block: &BlockProgram) -> f64 {
    let mut nest = nest_of(block);
    let axes: Vec<Axis> = nest.axes.iter().filter(|axis| axis.extent > 1).cloned().collect();
    let transposed = transpose::unused_bytes(&mut nest);
    let others = axes.iter().map(|axis| unused_along(&mut nest, axis, &[]));
    transposed.into_iter().chain(others).reduce(f64::min).unwrap_or(0.0)
}
