//! How a recurrence is tiled on a CPU.

use orch_compute::recurrence::RecurrenceProgram;
use orch_thread::target::CpuTarget;
use std::fmt;

/// Tiles of a recurrence: a task runs all steps of `batch_rows` sequences in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecurrenceSchedule {
    /// Sequences of a task, a multiple of `rows`.
    pub batch_rows: usize,
    /// Sequences of a register tile.
    pub rows: usize,
    /// Vectors of hidden units of a register tile.
    pub vectors: usize,
}

/// Sequences of a task whose weights stay in L2, and of one that reads them from farther away. Each task reads all
/// weights in every step, and other cores run other tasks.
const NEAR_ROWS: usize = 8;
const FAR_ROWS: usize = 16;

/// Accumulators that hide the latency of multiply-adds.
const LEAST_ACCUMULATORS: usize = 8;

/// The schedule for a target.
pub fn schedule(program: &RecurrenceProgram, target: &CpuTarget) -> RecurrenceSchedule {
    let extents = program.extents;
    let size = program.compute_type().size_bytes();
    let gates = gates_at_once(program);
    let unit_vectors = extents.hidden.div_ceil(target.lanes(size)).max(1);
    // Weights of each gate and a broadcast factor beside the accumulators.
    let budget = target.vector_registers - 2;
    let most_rows = (budget / gates).saturating_sub(1).max(1);
    let is_near = program.products() * size <= target.l2_bytes;
    let wanted = if is_near { NEAR_ROWS } else { FAR_ROWS };
    let tiles = extents.batch.div_ceil(wanted).max(1);
    let batch_rows = extents.batch.div_ceil(tiles).max(1);
    let rows = batch_rows.div_ceil(batch_rows.div_ceil(most_rows));
    let most_vectors = (budget / (gates * (rows + 1))).clamp(1, 4);
    let wanted_vectors = LEAST_ACCUMULATORS.div_ceil(gates * rows);
    let vectors = evenly(unit_vectors, wanted_vectors.min(most_vectors).max(1));
    RecurrenceSchedule { batch_rows: batch_rows.next_multiple_of(rows), rows, vectors }
}

/// The gates whose products have one operand.
fn gates_at_once(program: &RecurrenceProgram) -> usize {
    use orch_ir::RnnCell;
    match program.spec.cell {
        RnnCell::Gru { linear_before_reset: false } => 2,
        cell => cell.gates(),
    }
}

/// The largest part of at most `most` that as few parts of equal size cover.
fn evenly(extent: usize, most: usize) -> usize {
    extent.div_ceil(extent.div_ceil(most))
}

impl fmt::Display for RecurrenceSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sequences, tile {} x {} vectors", self.batch_rows, self.rows, self.vectors)
    }
}
