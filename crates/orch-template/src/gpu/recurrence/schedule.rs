//! How a recurrence is shared out among CTAs and threads, and what a step takes by that.

use orch_compute::recurrence::RecurrenceProgram;
use orch_ir::RnnCell;
use orch_thread::cta::{MAX_CLUSTER, WARP};
use orch_thread::target::GpuTarget;
use std::fmt;

/// A schedule of the template.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuRecurrenceSchedule {
    /// Sequences of a cluster.
    pub rows: usize,
    /// CTAs of a cluster, which share the hidden units.
    pub cluster: usize,
    /// Hidden units of a CTA, a multiple of `lanes`.
    pub units: usize,
    /// Hidden units of a thread in a product.
    pub lanes: usize,
    /// Parts of the K dimension of a product, each accumulated by other threads.
    pub parts: usize,
    /// Of each part the extent of the K dimension whose weights are in shared memory.
    pub shared_k: usize,
}

/// Most sequences of a cluster: each has accumulators in registers.
const MAX_ROWS: usize = 8;
/// Threads of a CTA beyond which registers become scarce.
const MAX_THREADS: usize = 512;
/// Accumulators that a thread has at most, in registers.
const MAX_ACCUMULATORS: usize = 96;
/// Registers of a thread beside its accumulators: weights in flight, offsets, inputs of cells.
const OTHER_REGISTERS: usize = 72;

/// Cycles of a step without its products: barriers and cells of a CTA, and what a barrier of a cluster and stores through DSMEM add.
const CTA_STEP: f64 = 700.0;
const CLUSTER_STEP: f64 = 900.0;
/// Bytes of L2 that an SM reads in a cycle, and of shared memory.
const L2_BYTES: f64 = 48.0;
const SHARED_BYTES: f64 = 100.0;
/// Bytes of L2 that all SMs read in a cycle.
const ALL_L2_BYTES: f64 = 3000.0;
/// Multiply-adds of an SM in a cycle that products of few sequences reach.
const MULTIPLY_ADDS: f64 = 80.0;
/// Cycles of an index of the K dimension whose weights come from L2, and of one whose come from shared memory, with those of one or two others in flight.
const L2_K_CYCLES: f64 = 300.0;
const SHARED_K_CYCLES: f64 = 20.0;
/// Cycles of an accumulator of a part that a cell adds up.
const PARTIAL_CYCLES: f64 = 2.5;

impl GpuRecurrenceSchedule {
    /// Threads of a CTA: whole warps.
    pub fn threads(&self) -> usize {
        (self.parts * self.units / self.lanes).next_multiple_of(WARP)
    }

    /// The extent of the K dimension of a part.
    pub fn part_k(&self, recurrence: &RecurrenceProgram) -> usize {
        recurrence.extents.hidden.div_ceil(self.parts)
    }

    /// CTAs of the grid.
    pub fn ctas(&self, recurrence: &RecurrenceProgram) -> usize {
        recurrence.extents.directions * recurrence.extents.batch.div_ceil(self.rows) * self.cluster
    }

    /// Bytes of shared memory: weights, hidden states, accumulators of all parts and states of the own units.
    fn shared_bytes(&self, recurrence: &RecurrenceProgram) -> usize {
        let gates = recurrence.spec.cell.gates();
        let size = recurrence.compute_type().size_bytes();
        let hidden = recurrence.extents.hidden;
        let weights = self.shared_k * self.parts * gates * self.units * weight_bytes(recurrence);
        let states = match recurrence.spec.cell {
            RnnCell::Gru { linear_before_reset: false } => 3,
            _ => 2,
        };
        let all = states * self.rows * hidden;
        let accumulators = self.parts * self.rows * gates * self.units;
        let own = 2 * self.rows * self.units;
        // Each buffer begins at a multiple of 128 bytes.
        weights + (all + accumulators + own) * size + 8 * 128
    }

    /// Modelled cycles of the kernel.
    pub fn cycles(&self, recurrence: &RecurrenceProgram, target: &GpuTarget) -> f64 {
        let gates = recurrence.spec.cell.gates() as f64;
        let part_k = self.part_k(recurrence);
        let weights = (part_k * self.parts) as f64 * gates * self.units as f64;
        let shared = self.shared_k as f64 / part_k.max(1) as f64;
        let bytes = weights * weight_bytes(recurrence) as f64;
        let at_once = target.ctas_in_clusters(self.cluster).max(1);
        let resident = self.ctas(recurrence).min(at_once) as f64;
        let l2 = bytes * (1.0 - shared);
        let read = (l2 / L2_BYTES).max(l2 * resident / ALL_L2_BYTES) + bytes * shared / SHARED_BYTES;
        let latency = (part_k - self.shared_k) as f64 * L2_K_CYCLES + self.shared_k as f64 * SHARED_K_CYCLES;
        let multiply = weights * self.rows as f64 / MULTIPLY_ADDS;
        let cells = (self.rows * self.units).div_ceil(self.threads()) as f64;
        let reduce = cells * gates * self.parts as f64 * PARTIAL_CYCLES;
        let synchronise = CTA_STEP + if self.cluster > 1 { CLUSTER_STEP } else { 0.0 };
        let passes =
            if recurrence.spec.cell == (RnnCell::Gru { linear_before_reset: false }) { 2.0 } else { 1.0 };
        let step = passes * synchronise + reduce + read.max(multiply).max(latency);
        let waves = self.ctas(recurrence).div_ceil(at_once) as f64;
        waves * (recurrence.extents.time as f64 * step + bytes * shared / L2_BYTES)
    }
}

/// Bytes of a weight as it is stored.
fn weight_bytes(recurrence: &RecurrenceProgram) -> usize {
    recurrence.arg(RecurrenceProgram::R).dtype.size_bytes()
}

/// The schedules that fit the target, the fastest by the model first; none if states do not fit in shared memory.
pub fn schedules(recurrence: &RecurrenceProgram, target: &GpuTarget) -> Vec<GpuRecurrenceSchedule> {
    let extents = recurrence.extents;
    if extents.batch == 0 || extents.hidden == 0 || extents.directions == 0 {
        return Vec::new();
    }
    let lanes = [4, 2, 1].into_iter().find(|lanes| extents.hidden.is_multiple_of(*lanes)).unwrap_or(1);
    let mut found = Vec::new();
    let clusters = [1, 2, 4, MAX_CLUSTER].into_iter().filter(|&cluster| cluster == 1 || target.has_clusters);
    for cluster in clusters.filter(|&cluster| cluster * lanes <= extents.hidden) {
        let units = extents.hidden.div_ceil(cluster).next_multiple_of(lanes);
        for rows in [1, 2, 4, MAX_ROWS].into_iter().filter(|&rows| rows < 2 * extents.batch) {
            for parts in (0..7).map(|power| 1 << power).filter(|&parts| parts <= extents.hidden) {
                let schedule = GpuRecurrenceSchedule { rows, cluster, units, lanes, parts, shared_k: 0 };
                found.extend(with_shared_weights(schedule, recurrence, target));
            }
        }
    }
    found.sort_by(|a, b| a.cycles(recurrence, target).total_cmp(&b.cycles(recurrence, target)));
    found
}

/// The schedule with as many weights in shared memory as fit; `None` if it does not fit without them.
fn with_shared_weights(
    schedule: GpuRecurrenceSchedule,
    recurrence: &RecurrenceProgram,
    target: &GpuTarget,
) -> Option<GpuRecurrenceSchedule> {
    let gates = recurrence.spec.cell.gates();
    let accumulators = schedule.rows * gates * schedule.lanes;
    let threads = schedule.parts * schedule.units / schedule.lanes;
    let free = target.shared_bytes.checked_sub(schedule.shared_bytes(recurrence))?;
    let registers = schedule.threads() * (accumulators + OTHER_REGISTERS);
    let is_served =
        threads <= MAX_THREADS && accumulators <= MAX_ACCUMULATORS && registers <= target.sm_registers;
    let k_bytes = schedule.parts * gates * schedule.units * weight_bytes(recurrence);
    // Weights that are read once only gain nothing.
    let is_reread = recurrence.extents.time > 1;
    let most = if is_reread { free / k_bytes.max(1) } else { 0 };
    let shared_k = most.min(schedule.part_k(recurrence));
    is_served.then_some(GpuRecurrenceSchedule { shared_k, ..schedule })
}

impl fmt::Display for GpuRecurrenceSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, cluster, units, lanes, parts, shared_k } = self;
        write!(
            f,
            "{rows} sequences, cluster {cluster} of {units} units by {lanes}, {parts} parts, {shared_k} shared"
        )
    }
}
