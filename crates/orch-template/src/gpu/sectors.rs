//! How much of the memory sectors that a kernel transfers it does not use, whatever its schedule.

use super::access::unused_along;
use super::points::nest_of;
use super::transpose;
use orch_compute::block::{Axis, BlockProgram};

/// Bytes of sectors that a kernel which is no matrix product transfers beside the elements that it reads and writes, where its vectors
/// run along the axis for which these are fewest: operands and results of different layouts cannot all be contiguous, unless a tile of
/// them is transposed in shared memory.
pub fn unused_bytes(block: &BlockProgram) -> f64 {
    let mut nest = nest_of(block);
    if transpose::serves(&mut nest) {
        return 0.0;
    }
    let axes: Vec<Axis> = nest.axes.iter().filter(|axis| axis.extent > 1).cloned().collect();
    let bytes = axes.iter().map(|axis| unused_along(&mut nest, axis));
    bytes.reduce(f64::min).unwrap_or(0.0)
}
