//! How much of the memory sectors that a kernel transfers it does not use, whatever its schedule.

use super::access::{SHORT_RUN, contiguous_bytes, unused_along};
use super::points::nest_of;
use super::transpose;
use crate::nest::flat::Nest;
use crate::nest::plan::outer_axes;
use orch_compute::block::{Axis, BlockProgram};
use orch_thread::cta::MAX_CLUSTER;

/// CTAs that use the whole device.
const ALL_CTAS: f64 = 128.0;

/// Bytes of sectors that a kernel which is no matrix product transfers beside the elements that it reads and writes, where its vectors
/// run along the axis for which these are fewest: operands and results of different layouts cannot all be contiguous, unless tiles of
/// the operands are transposed in shared memory. Results are not.
pub fn unused_bytes(block: &BlockProgram) -> f64 {
    let mut nest = nest_of(block);
    let axes: Vec<Axis> = nest.axes.iter().filter(|axis| axis.extent > 1).cloned().collect();
    let transposed = transpose::unused_bytes(&mut nest);
    let others = axes.iter().map(|axis| unused_along(&mut nest, axis, &[]) + short_runs(&mut nest, axis));
    transposed.into_iter().chain(others).reduce(f64::min).unwrap_or(0.0)
}

/// What short runs cost, in bytes, where results lie side by side along an axis and each is reduced from elements far apart, as statistics
/// of an image whose channels are last:
///
/// ```text
/// columns:   | c c c c | c c c c | ..     a CTA, or a cluster, reduces a few columns, so that there is one for each SM,
/// rows  r    |  run    |  run    |        and reads a run of each row
/// ```
///
/// Few columns are read in short runs, more of them by fewer SMs; the best of these counts.
fn short_runs(nest: &mut Nest, axis: &Axis) -> f64 {
    let outer = outer_axes(nest);
    let reduced = nest.stages.iter().map(|stage| nest.points(stage.reduced())).max().unwrap_or(1);
    if reduced == 1 || !outer.contains(axis) {
        return 0.0;
    }
    let others: usize = outer.iter().filter(|other| *other != axis).map(|other| other.extent).product();
    let (bytes, size) = contiguous_bytes(nest, axis);
    let rate = |columns: usize| {
        let ctas = others * axis.extent.div_ceil(columns) * MAX_CLUSTER;
        let run_bytes = (columns * size) as f64;
        (ctas as f64 / ALL_CTAS).min(1.0) / (1.0 + SHORT_RUN / run_bytes)
    };
    let widths = (0..=axis.extent.next_power_of_two().ilog2()).map(|log| 1 << log);
    let best = widths.map(rate).fold(0.0, f64::max);
    // Runs of the whole extent by all SMs are what other kernels have too.
    let usual = 1.0 / (1.0 + SHORT_RUN / (axis.extent * size) as f64);
    if best == 0.0 { 0.0 } else { bytes * (usual / best - 1.0).max(0.0) }
}
