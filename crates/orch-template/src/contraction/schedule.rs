//! The schedule of a contraction on a CPU: register tile and cache blocking.

use super::form::GemmShape;
use std::fmt;

/// How a contraction is tiled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CpuContractionSchedule {
    /// Rows of the register tile.
    pub rows: usize,
    /// Vectors per row of the register tile; a panel of the second operand is that wide.
    pub vectors: usize,
    /// Rows that stay in a cache, or are packed, while panels pass by; a multiple of `task_rows`.
    pub block_rows: usize,
    /// Panels that one work item computes.
    pub block_panels: usize,
    /// Rows of a block that one work item computes, a multiple of `rows`.
    pub task_rows: usize,
    /// Iterations of K that are done for a work item's whole block before the next ones; at least `k` if accumulators are
    /// finished one register tile after the other.
    pub block_k: usize,
    /// True if a strip of rows meets all panels before the next one, which stay in the L2: results are then stored in the order of their
    /// addresses.
    pub rows_outer: bool,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for CpuContractionSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, vectors, block_rows, block_panels, task_rows, block_k, rows_outer } = self;
        write!(f, "rows={rows} vectors={vectors} block_rows={block_rows} block_panels={block_panels} ")?;
        write!(f, "task_rows={task_rows} block_k={block_k}")?;
        f.write_str(if *rows_outer { " rows_outer" } else { "" })
    }
}

impl CpuContractionSchedule {
    /// How `m` rows are cut into row tiles.
    ///
    /// Where the rows of a last row tile would leave most of the registers idle, several row tiles are one row shorter
    /// instead: 197 rows in tiles of 8 are 22 of 8 and 3 of 7, not 24 of 8 and 5.
    pub fn row_split(&self, m: usize) -> RowSplit {
        let strips = m.div_ceil(self.rows);
        let short = strips * self.rows - m;
        if short > 0 && short <= strips && self.rows > 1 {
            return RowSplit { full: strips - short, rest_rows: self.rows - 1, rests: short };
        }
        let rest = m % self.rows;
        RowSplit { full: m / self.rows, rest_rows: rest, rests: usize::from(rest > 0) }
    }
}

/// Row tiles: first the full ones, then shorter ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowSplit {
    /// Row tiles of the schedule's rows.
    pub full: usize,
    /// Rows of each shorter tile.
    pub rest_rows: usize,
    /// Shorter row tiles.
    pub rests: usize,
}

/// How a contraction is cut into work items, whose numbers are `[batch, row block, panel block, part of the rows]`, row-major.
/// Consecutive work items share a panel, and those of a row block its rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskGrid {
    /// Independent products.
    pub batch: usize,
    /// Blocks of rows.
    pub row_blocks: usize,
    /// Blocks of panels.
    pub panel_blocks: usize,
    /// Parts of a block of rows.
    pub row_parts: usize,
}

impl TaskGrid {
    /// Work items that share the rows of a block.
    pub fn tasks_of_block(&self) -> usize {
        self.panel_blocks * self.row_parts
    }

    /// All work items.
    pub fn tasks(&self) -> usize {
        self.batch * self.row_blocks * self.tasks_of_block()
    }
}

impl CpuContractionSchedule {
    /// The work items of a contraction whose panels are `vectors` vectors of so many lanes wide.
    pub fn grid(&self, extents: GemmShape, lanes: usize) -> TaskGrid {
        let panels = extents.n.div_ceil(self.vectors * lanes).max(1);
        TaskGrid {
            batch: extents.batch,
            row_blocks: extents.m.div_ceil(self.block_rows).max(1),
            panel_blocks: panels.div_ceil(self.block_panels),
            row_parts: self.block_rows.div_ceil(self.task_rows).max(1),
        }
    }
}
