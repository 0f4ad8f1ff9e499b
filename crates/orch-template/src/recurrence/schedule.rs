//! How a recurrence is tiled on a CPU.

use orch_compute::recurrence::RecurrenceProgram;
use orch_thread::target::CpuTarget;
use std::fmt;

/// Tiles of a recurrence, and what a work item computes in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecurrenceSchedule {
    /// Sequences of a work item, a multiple of `rows`.
    pub batch_rows: usize,
    /// Sequences of a register tile.
    pub rows: usize,
    /// Vectors of hidden units of a register tile: a panel.
    pub vectors: usize,
    /// Panels of a work item that computes one step of all sequences: those of a step are a phase. `None`: a work item computes all
    /// steps of `batch_rows` sequences.
    pub panels: Option<usize>,
}

/// Sequences of a work item that computes all steps, if its weights stay in L2, and if it reads them from farther away. Each reads all
/// weights in every step, and other cores run other work items.
const NEAR_ROWS: usize = 8;
const FAR_ROWS: usize = 16;

/// So many work items by sequences serve all threads.
const ENOUGH_ITEMS: usize = 16;

/// Multiply-adds of a step, from which on its units are shared: of an LSTM of 128 units (2^16) two threads save what waiting for each other
/// takes, of 192 a quarter.
const LEAST_SHARED: usize = 1 << 17;

/// Multiply-adds of a work item that computes one step, at least.
const LEAST_OF_ITEM: usize = 1 << 14;

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
    let step_products = program.products() * extents.batch * extents.directions;
    let is_shared =
        extents.time > 0 && tiles * extents.directions < ENOUGH_ITEMS && step_products >= LEAST_SHARED;
    let tiles = if is_shared { 1 } else { tiles };
    let batch_rows = extents.batch.div_ceil(tiles).max(1);
    let rows = batch_rows.div_ceil(batch_rows.div_ceil(most_rows));
    let most_vectors = (budget / (gates * (rows + 1))).clamp(1, 4);
    let wanted_vectors = LEAST_ACCUMULATORS.div_ceil(gates * rows);
    let vectors = evenly(unit_vectors, wanted_vectors.min(most_vectors).max(1));
    let panel_products = program.products() / unit_vectors * vectors * batch_rows;
    let panels = is_shared.then(|| LEAST_OF_ITEM.div_ceil(panel_products.max(1)));
    RecurrenceSchedule { batch_rows: batch_rows.next_multiple_of(rows), rows, vectors, panels }
}

impl RecurrenceSchedule {
    /// Work items of a recurrence that run at the same time.
    pub fn items(&self, program: &RecurrenceProgram, target: &CpuTarget) -> usize {
        let extents = program.extents;
        let units = self.vectors * target.lanes(program.compute_type().size_bytes());
        let parts = match self.panels {
            Some(panels) => extents.hidden.div_ceil(units * panels),
            None => extents.batch.div_ceil(self.batch_rows),
        };
        extents.directions * parts
    }
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
        write!(f, "{} sequences, tile {} x {} vectors", self.batch_rows, self.rows, self.vectors)?;
        self.panels.map_or(Ok(()), |panels| write!(f, ", a step is a phase of work items of {panels} panels"))
    }
}
