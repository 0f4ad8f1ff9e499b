//! The schedule of a contraction on a CPU: register tile and cache blocking.

use std::fmt;

/// How a contraction is tiled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CpuContractionSchedule {
    /// Rows of the register tile.
    pub rows: usize,
    /// Vectors per row of the register tile; a panel of the second operand is that wide.
    pub vectors: usize,
    /// Rows that one work item computes, a multiple of `rows`.
    pub block_rows: usize,
    /// Panels that one work item computes.
    pub block_panels: usize,
    /// Iterations of K that are done for a work item's whole block before the next ones; at least `k` if accumulators are
    /// finished one register tile after the other.
    pub block_k: usize,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for CpuContractionSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, vectors, block_rows, block_panels, block_k } = self;
        write!(f, "rows={rows} vectors={vectors} block_rows={block_rows} block_panels={block_panels} ")?;
        write!(f, "block_k={block_k}")
    }
}

impl CpuContractionSchedule {
    /// How `m` rows are cut into row tiles.
    ///
    /// Where the rows of a last row tile would leave most of the registers idle, and the last block of rows has room,
    /// several row tiles are one row shorter instead: 197 rows in tiles of 8 are 22 of 8 and 3 of 7, not 24 of 8 and 5.
    pub fn row_split(&self, m: usize) -> RowSplit {
        let strips = m.div_ceil(self.rows);
        let short = strips * self.rows - m;
        let in_last_block = m - m.saturating_sub(1) / self.block_rows.max(1) * self.block_rows;
        if short > 0 && short <= strips && self.rows > 1 && short * (self.rows - 1) <= in_last_block {
            return RowSplit { full: strips - short, rest_rows: self.rows - 1, rests: short };
        }
        let rest = m % self.rows;
        RowSplit { full: m / self.rows, rest_rows: rest, rests: usize::from(rest > 0) }
    }
}

/// Row tiles: first the full ones, then shorter ones, all of which belong to the last block of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowSplit {
    /// Row tiles of the schedule's rows.
    pub full: usize,
    /// Rows of each shorter tile.
    pub rest_rows: usize,
    /// Shorter row tiles.
    pub rests: usize,
}
