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
    /// Rows of a line, if register tiles lie within lines of rows that are read where they lie.
    pub line_rows: Option<usize>,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for CpuContractionSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, vectors, block_rows, block_panels, task_rows, block_k, rows_outer, line_rows } =
            self;
        write!(f, "rows={rows} vectors={vectors} block_rows={block_rows} block_panels={block_panels} ")?;
        write!(f, "task_rows={task_rows} block_k={block_k}")?;
        f.write_str(if *rows_outer { " rows_outer" } else { "" })?;
        line_rows.map_or(Ok(()), |rows| write!(f, " line_rows={rows}"))
    }
}

impl CpuContractionSchedule {
    /// How `m` rows are cut into row tiles: all at once, or line by line.
    ///
    /// Where the rows of a last row tile would leave most of the registers idle, several row tiles are one row shorter
    /// instead: 197 rows in tiles of 8 are 22 of 8 and 3 of 7, not 24 of 8 and 5.
    pub fn row_split(&self, m: usize) -> RowSplit {
        let of_line = |rows: usize| {
            let RowSplit { full, rest_rows, rests } = self.split_evenly(rows);
            RowSplit { full: full * (m / rows), rest_rows, rests: rests * (m / rows) }
        };
        self.line_rows.map_or_else(|| self.split_evenly(m), of_line)
    }

    /// How the row tiles of a line lie, if tiles lie within lines.
    pub fn line_split(&self) -> Option<RowSplit> {
        self.line_rows.map(|rows| self.split_evenly(rows))
    }

    /// How rows that follow each other are cut into row tiles.
    fn split_evenly(&self, m: usize) -> RowSplit {
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

impl RowSplit {
    /// Row tiles.
    pub fn strips(&self) -> usize {
        self.full + self.rests
    }

    /// The first row of each row tile that is one of the full ones.
    pub fn full_starts(&self, rows: usize) -> impl Iterator<Item = usize> {
        (0..self.full).map(move |strip| strip * rows)
    }

    /// The first row of each shorter tile.
    pub fn rest_starts(&self, rows: usize) -> impl Iterator<Item = usize> {
        let (first, rest_rows) = (self.full * rows, self.rest_rows);
        (0..self.rests).map(move |strip| first + strip * rest_rows)
    }
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
    /// The first of `m` rows that a row tile has; `m` for tiles that there are not.
    pub fn first_row(&self, m: usize, strip: usize) -> usize {
        let row = match self.line_split().zip(self.line_rows) {
            None => strip * self.rows,
            Some((split, line_rows)) => {
                let (line, strip) = (strip / split.strips(), strip % split.strips());
                line * line_rows + strip * self.rows - strip.saturating_sub(split.full)
            }
        };
        row.min(m)
    }

    /// The work items of a contraction whose panels are `vectors` vectors of so many lanes wide.
    pub fn grid(&self, extents: GemmShape, lanes: usize) -> TaskGrid {
        let panels = extents.n.div_ceil(self.vectors * lanes).max(1);
        TaskGrid {
            batch: extents.batch,
            row_blocks: self.row_split(extents.m).strips().div_ceil(self.block_rows / self.rows).max(1),
            panel_blocks: panels.div_ceil(self.block_panels),
            row_parts: self.block_rows.div_ceil(self.task_rows).max(1),
        }
    }
}
