//! How a scatter is cut into tiles, and what they cost.

use orch_compute::{ScatterIndex, ScatterProgram};
use orch_thread::cta::WARP;
use orch_thread::target::GpuTarget;
use std::fmt;

/// How updates of a tile find their places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ScatterMethod {
    /// The last one of each slot replaces it.
    Replace,
    /// They are combined with a slot of one element in shared memory.
    Rounds,
    /// They are combined with slots of several elements.
    Combine,
}

impl ScatterMethod {
    /// The method for a scatter.
    pub fn of(scatter: &ScatterProgram) -> Self {
        match (scatter.combine, &scatter.index) {
            (None, _) => Self::Replace,
            (Some(_), ScatterIndex::Elements) => Self::Rounds,
            (Some(_), ScatterIndex::Tuples(_)) if scatter.inner == 1 => Self::Rounds,
            (Some(_), ScatterIndex::Tuples(_)) => Self::Combine,
        }
    }

    /// Bytes of shared memory that a slot takes.
    fn slot_bytes(self, scatter: &ScatterProgram) -> usize {
        match self {
            Self::Replace => 4,
            Self::Rounds => 8 + scatter.dtype().size_bytes(),
            Self::Combine => 0,
        }
    }

    /// Instructions of a thread that looks at an update, and of a thread for each update that falls into the tile of its CTA.
    fn instructions(self) -> [f64; 2] {
        match self {
            Self::Replace => [14.0, 4.0],
            Self::Rounds => [20.0, 40.0],
            // All threads go along the list.
            Self::Combine => [40.0, 12.0],
        }
    }
}

/// How a scatter is cut into tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuScatterSchedule {
    /// Rows of a tile.
    pub rows: usize,
    /// Columns of a tile.
    pub columns: usize,
    /// Threads of the CTA, a power of two.
    pub threads: usize,
}

/// Bytes of shared memory for the slots of a tile.
const SLOTS_BYTES: usize = 64 << 10;

/// Elements of a tile, at least: smaller ones take as long as to start them.
const LEAST_ELEMS: usize = 1 << 10;

/// Columns of a tile where each element has an index: four of i64 are a sector of memory, which is read whole.
const LEAST_COLUMNS: usize = 4;

/// Columns of a tile of rows are a multiple of as many elements as a line of memory has of f32.
const COLUMN_UNIT: usize = 32;

/// Updates that a thread looks at in one step, whose indices are read together.
pub(super) const MAX_STEP: usize = 8;

/// Cycles until what a step reads has arrived: an index, and then the update.
const STEP_CYCLES: f64 = 1400.0;

/// Warps from which an SM issues in a cycle.
const ISSUED: f64 = 4.0;

/// Threads of a CTA that has an SM to itself, at most.
const MAX_THREADS: usize = 1024;

/// Bytes of a line of L1, of which an SM looks at one in a cycle.
const LINE_BYTES: usize = 128;

/// The text is the key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for GpuScatterSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows={} columns={} threads={}", self.rows, self.columns, self.threads)
    }
}

impl GpuScatterSchedule {
    /// The schedule of a scatter; `None` if a tile has more updates than i32 can number.
    pub fn of(scatter: &ScatterProgram, target: &GpuTarget) -> Option<Self> {
        // Tiles of elements look at the same updates again for each part of the rows: fewer and larger ones may take less.
        let of_sm: &[usize] = match scatter.index {
            ScatterIndex::Elements => &[1, 2],
            ScatterIndex::Tuples(_) => &[2],
        };
        let schedules = of_sm.iter().map(|tiles| Self::with_tiles(scatter, target, tiles * target.sms));
        let numbered = schedules.filter(|schedule| i32::try_from(schedule.updates(scatter)).is_ok());
        numbered.min_by(|a, b| a.cycles(scatter, target).total_cmp(&b.cycles(scatter, target)))
    }

    /// The schedule with about so many tiles, fewer if these were too small.
    fn with_tiles(scatter: &ScatterProgram, target: &GpuTarget, most: usize) -> Self {
        let ScatterProgram { outer, extent, inner, ref index, .. } = *scatter;
        let wanted = (outer * extent * inner / LEAST_ELEMS).clamp(1, most);
        let columns = match index {
            ScatterIndex::Elements => inner.min(LEAST_COLUMNS),
            // Each tile looks at all indices, so that columns are cut only if the rows alone give too little.
            ScatterIndex::Tuples(_) => {
                let parts = wanted.div_ceil(extent);
                inner.div_ceil(parts).next_multiple_of(COLUMN_UNIT).min(inner)
            }
        };
        let slots_of_row = if *index == ScatterIndex::Elements { columns } else { 1 };
        let slot_bytes = ScatterMethod::of(scatter).slot_bytes(scatter);
        let most_rows = match SLOTS_BYTES.checked_div(slot_bytes * slots_of_row) {
            Some(rows) => rows.max(1),
            None => extent,
        };
        let column_parts = outer * inner.div_ceil(columns);
        // Of elements no more than wanted, so that all tiles run at once.
        let row_parts = match index {
            ScatterIndex::Elements => (wanted / column_parts).max(1),
            ScatterIndex::Tuples(_) => wanted.div_ceil(column_parts),
        };
        let rows = extent.div_ceil(row_parts.min(extent)).min(most_rows);
        let schedule = Self { rows, columns, threads: 0 };
        let work = (rows * columns / 4).max(schedule.updates(scatter) / 2);
        let is_alone = *index == ScatterIndex::Elements && schedule.tiles(scatter) <= target.sms;
        let most_threads = if is_alone { MAX_THREADS } else { MAX_THREADS / 2 };
        let threads = work.next_power_of_two().clamp(2 * WARP, most_threads);
        Self { threads, ..schedule }
    }

    /// Parts of rows and of columns.
    pub fn parts(&self, scatter: &ScatterProgram) -> [usize; 2] {
        [scatter.extent.div_ceil(self.rows), scatter.inner.div_ceil(self.columns)]
    }

    /// Tiles, which are the CTAs.
    pub fn tiles(&self, scatter: &ScatterProgram) -> usize {
        scatter.outer * self.parts(scatter).iter().product::<usize>()
    }

    /// Updates that a tile looks at.
    pub fn updates(&self, scatter: &ScatterProgram) -> usize {
        match scatter.index {
            ScatterIndex::Elements => scatter.count * self.columns,
            ScatterIndex::Tuples(_) => scatter.count,
        }
    }

    /// Updates that a thread looks at in one step.
    pub(super) fn step(&self, scatter: &ScatterProgram) -> usize {
        self.updates(scatter).div_ceil(self.threads).clamp(1, MAX_STEP)
    }

    /// Modelled cycles of an SM for finding and applying the updates of its tiles, beyond writing the result; updates are spread over
    /// the rows.
    pub fn cycles(&self, scatter: &ScatterProgram, target: &GpuTarget) -> f64 {
        let method = ScatterMethod::of(scatter);
        let [look, apply] = method.instructions();
        let looked_at = self.updates(scatter) as f64;
        let applied = looked_at / self.parts(scatter)[0] as f64;
        let applied_warps = match method {
            ScatterMethod::Replace | ScatterMethod::Rounds => applied / WARP as f64,
            ScatterMethod::Combine => applied * (self.threads / WARP) as f64,
        };
        let looks = looked_at / WARP as f64;
        let issued = (look * looks + apply * applied_warps) / ISSUED;
        let lines = looks * self.index_lines(scatter) as f64;
        let resident = self.tiles(scatter).div_ceil(target.sms) as f64;
        let steps = looked_at / (self.threads * self.step(scatter)) as f64;
        // Tiles of an SM run at the same time, and wait at the same time.
        (resident * issued.max(lines)).max(steps.ceil() * STEP_CYCLES)
    }

    /// Lines of L1 in which the indices lie that a warp looks at together.
    fn index_lines(&self, scatter: &ScatterProgram) -> usize {
        let bytes = scatter.arg(ScatterProgram::INDICES).dtype.size_bytes();
        match &scatter.index {
            // `[count, inner]`: a run of the tile's columns for each update.
            ScatterIndex::Elements => {
                WARP.div_ceil(self.columns) * (self.columns * bytes).div_ceil(LINE_BYTES)
            }
            ScatterIndex::Tuples(extents) => (WARP * extents.len() * bytes).div_ceil(LINE_BYTES),
        }
    }
}
