//! Where the elements of a tile in registers are: the layout of sums of matrix products, spread over the warps of a CTA.
//!
//! Warps stand in rows and columns. Each has, of the last two dimensions, tiles of 16 rows below one another and of 8
//! columns beside one another; of these, thread `t` has rows `g` and `g + 8` and columns `2c` and `2c + 1`, where
//! `g = t / 4` and `c = t % 4`. Leading dimensions are in every thread. A tile of one column per row is held by every
//! thread that has the row.
//!
//! Sums of a [streamed](super::stream) factor have their columns in another order: of the 8 tiles of each 64 columns (of
//! the 4 of each 32), column `i` of tile `j` is column `8i + j` (`4i + j`).

use orch_compute::{BufferId, ExprId};

/// Rows of a tile of sums.
pub(super) const FRAGMENT_ROWS: usize = 16;
/// Columns of a tile of sums.
pub(super) const FRAGMENT_COLUMNS: usize = 8;

/// How rows are spread over warps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct WarpGrid {
    /// Leading extents.
    pub lead: Vec<usize>,
    /// Rows.
    pub m: usize,
    /// Warps below one another.
    pub row_warps: usize,
    /// Warps beside one another.
    pub column_warps: usize,
}

/// What the columns of a tile in registers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ColumnLayout {
    /// One value per row.
    PerRow,
    /// Spread over the warps beside one another.
    Partitioned(usize),
    /// Each of the warps beside one another has all columns, and a summand of the value.
    SplitK(usize),
    /// The same, in the order in which threads load a streamed factor.
    SplitKInterleaved(usize),
}

/// The layout of a tile in registers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FragmentLayout {
    pub rows: WarpGrid,
    pub columns: ColumnLayout,
}

/// Registers of a thread, in a layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RegisterTile {
    pub at: FragmentLayout,
    pub buffer: BufferId,
}

/// One register of a layout, of each thread.
#[derive(Clone, Debug)]
pub(super) struct RegisterSlot {
    pub at: FragmentLayout,
    /// Which of the leading elements, tile of rows and tile of columns of the warp.
    pub lead: ExprId,
    pub row_tile: ExprId,
    pub column_tile: ExprId,
    /// Which of the rows `g` and `g + 8`, and of the columns `2c` and `2c + 1`.
    pub row_half: usize,
    pub column_half: usize,
}

impl WarpGrid {
    /// The layout of the rows of a tile of this shape, over some warps.
    pub fn of(shape: &[usize], warps: usize) -> Option<WarpGrid> {
        let [lead @ .., m, _] = shape else { return None };
        let tiles = m.div_ceil(FRAGMENT_ROWS);
        let row_warps = (1..=warps).rev().find(|&rows| warps.is_multiple_of(rows) && rows <= tiles)?;
        Some(WarpGrid { lead: lead.to_vec(), m: *m, row_warps, column_warps: warps / row_warps })
    }

    /// The layout over warps that multiply whole tiles in groups: each has rows of its own, if there are any.
    pub fn of_warp_groups(shape: &[usize], warps: usize) -> Option<WarpGrid> {
        let [lead @ .., m, _] = shape else { return None };
        Some(WarpGrid { lead: lead.to_vec(), m: *m, row_warps: warps, column_warps: 1 })
    }

    /// Leading elements.
    pub fn batch(&self) -> usize {
        crate::op::elems(&self.lead)
    }

    /// Tiles of rows of a warp.
    pub fn row_tiles(&self) -> usize {
        self.m.div_ceil(FRAGMENT_ROWS).div_ceil(self.row_warps)
    }
}

impl FragmentLayout {
    /// One value per row.
    pub fn per_row(rows: &WarpGrid) -> FragmentLayout {
        FragmentLayout { rows: rows.clone(), columns: ColumnLayout::PerRow }
    }

    /// The columns there are.
    pub fn n(&self) -> usize {
        match self.columns {
            ColumnLayout::PerRow => 1,
            ColumnLayout::Partitioned(n) | ColumnLayout::SplitK(n) | ColumnLayout::SplitKInterleaved(n) => n,
        }
    }

    /// Tiles of columns of a warp: one, or an even number, so that they are terms of another product.
    pub fn column_tiles(&self) -> usize {
        let tiles = self.n().div_ceil(FRAGMENT_COLUMNS);
        let own = match self.columns {
            ColumnLayout::PerRow | ColumnLayout::SplitK(_) | ColumnLayout::SplitKInterleaved(_) => tiles,
            ColumnLayout::Partitioned(_) => tiles.div_ceil(self.rows.column_warps),
        };
        if own > 1 { own.next_multiple_of(2) } else { own }
    }

    /// Registers of a thread.
    pub fn registers_per_thread(&self) -> usize {
        let rows = self.rows.batch() * self.rows.row_tiles();
        match self.columns {
            ColumnLayout::PerRow => 2 * rows,
            ColumnLayout::Partitioned(_) | ColumnLayout::SplitK(_) | ColumnLayout::SplitKInterleaved(_) => {
                4 * rows * self.column_tiles()
            }
        }
    }

    /// Whether registers are summands that several warps have to add.
    pub fn is_split_k(&self) -> bool {
        matches!(self.columns, ColumnLayout::SplitK(_) | ColumnLayout::SplitKInterleaved(_))
    }

    /// Whether a thread has neighbouring columns, two by two.
    pub fn has_column_pairs(&self) -> bool {
        matches!(self.columns, ColumnLayout::Partitioned(_) | ColumnLayout::SplitK(_))
    }

    /// Tiles of columns that are interleaved, and whose columns of the same number are neighbours.
    pub fn interleaved(&self) -> usize {
        match self.columns {
            ColumnLayout::PerRow | ColumnLayout::Partitioned(_) | ColumnLayout::SplitK(_) => 1,
            ColumnLayout::SplitKInterleaved(n) => direct_vector_width(n),
        }
    }

    /// Whether registers in another layout can be read at places of this one.
    pub fn covers(&self, other: &FragmentLayout) -> bool {
        self.rows == other.rows && (other.columns == ColumnLayout::PerRow || other.columns == self.columns)
    }
}

/// Columns of a line that a thread loads at once, if a streamed factor has `n`.
pub(super) fn direct_vector_width(n: usize) -> usize {
    if n.is_multiple_of(8 * FRAGMENT_COLUMNS) { 8 } else { 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(m: usize, warps: usize, columns: ColumnLayout) -> FragmentLayout {
        let rows = WarpGrid { lead: Vec::new(), m, row_warps: 1, column_warps: warps };
        FragmentLayout { rows, columns }
    }

    #[test]
    fn streamed_columns_are_interleaved_in_whole_units() {
        for (n, neighbours) in [(32, 4), (64, 8), (96, 4), (128, 8), (160, 4)] {
            let layout = at(16, 8, ColumnLayout::SplitKInterleaved(n));
            assert_eq!(layout.interleaved(), neighbours);
            assert_eq!(layout.column_tiles(), n / FRAGMENT_COLUMNS);
            assert!(layout.column_tiles().is_multiple_of(neighbours));
            assert_eq!(layout.registers_per_thread(), n / 2);
        }
    }

    #[test]
    fn only_layouts_of_neighbours_are_stored_in_pairs() {
        let pairs = [
            ColumnLayout::PerRow,
            ColumnLayout::Partitioned(64),
            ColumnLayout::SplitK(64),
            ColumnLayout::SplitKInterleaved(64),
        ]
        .map(|columns| at(40, 4, columns).has_column_pairs());
        assert_eq!(pairs, [false, true, true, false]);
        assert!(at(40, 4, ColumnLayout::SplitKInterleaved(64)).is_split_k());
        assert!(!at(40, 4, ColumnLayout::Partitioned(64)).covers(&at(
            40,
            4,
            ColumnLayout::SplitKInterleaved(64)
        )));
    }
}
