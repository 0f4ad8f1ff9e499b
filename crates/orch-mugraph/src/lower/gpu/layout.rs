//! Layout of a tile in registers: that of `mma.m16n8` accumulators, spread over the warps of a CTA.
//!
//! ```text
//! tile [lead.., m, n]      WarpGrid: row_warps x column_warps, warp = row_warp * column_warps + column_warp
//!  a warp has row_tiles x column_tiles fragments of 16 x 8, and every leading index
//!  fragment of 16 x 8, lane = 4 g + c:       columns 2c, 2c + 1
//!    row g        acc[0], acc[1]             RegisterSlot: row_half 0, column_half 0 / 1
//!    row g + 8    acc[2], acc[3]             RegisterSlot: row_half 1, column_half 0 / 1
//! registers of a thread: [lead, row_tile, column_tile, row_half, column_half], row-major
//! ```
//!
//! `wgmma.m64nNk16` leaves its accumulators in the same layout: warp `w` of the group has rows `16 w..16 w +
//! 16`. A tile of one value per row is in all 4 lanes (and all column warps) that have the row.
//!
//! Accumulators of a [directly loaded](super::register_direct) B have their columns interleaved: in each unit
//! of `8 v` columns, with `v` the vector width (8 or 4), column `i` of fragment `j` is column `v i + j` of
//! the unit.

use orch_compute::{BufferId, ExprId};

/// Rows of an accumulator fragment.
pub(super) const FRAGMENT_ROWS: usize = 16;
/// Columns of an accumulator fragment.
pub(super) const FRAGMENT_COLUMNS: usize = 8;

/// How the warps of a CTA share the rows and columns of a tile `[lead.., m, n]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct WarpGrid {
    /// Extents of the leading (batch) dimensions, which every warp has whole.
    pub lead: Vec<usize>,
    /// Rows.
    pub m: usize,
    /// Warps along the rows.
    pub row_warps: usize,
    /// Warps along the columns.
    pub column_warps: usize,
}

/// Which columns a warp has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ColumnLayout {
    /// The tile has one value per row.
    PerRow,
    /// `n` columns, partitioned among the column warps.
    Partitioned(usize),
    /// Split-K: each column warp has all `n` columns, and a partial sum of each element.
    SplitK(usize),
    /// Split-K with the interleaved columns of a directly loaded B.
    SplitKInterleaved(usize),
}

/// The layout of a tile in registers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FragmentLayout {
    pub rows: WarpGrid,
    pub columns: ColumnLayout,
}

/// A tile in registers: a scratch buffer of each thread, in a layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RegisterTile {
    pub at: FragmentLayout,
    pub buffer: BufferId,
}

/// One register of a thread in a layout. The fragment indices are expressions, variables of unrolled loops.
#[derive(Clone, Debug)]
pub(super) struct RegisterSlot {
    pub at: FragmentLayout,
    /// Flattened leading index, fragment row and fragment column within the warp.
    pub lead: ExprId,
    pub row_tile: ExprId,
    pub column_tile: ExprId,
    /// Row `g` (0) or `g + 8` (1); column `2c` (0) or `2c + 1` (1).
    pub row_half: usize,
    pub column_half: usize,
}

impl WarpGrid {
    /// As many row warps as there are fragments of rows, the rest along the columns; `None` below rank 2.
    pub fn of(shape: &[usize], warps: usize) -> Option<WarpGrid> {
        let [lead @ .., m, _] = shape else { return None };
        let tiles = m.div_ceil(FRAGMENT_ROWS);
        let row_warps = (1..=warps).rev().find(|&rows| warps.is_multiple_of(rows) && rows <= tiles)?;
        Some(WarpGrid { lead: lead.to_vec(), m: *m, row_warps, column_warps: warps / row_warps })
    }

    /// All warps along the rows, 64 rows per warp group, for wgmma: warps beyond the last row have none.
    pub fn of_warp_groups(shape: &[usize], warps: usize) -> Option<WarpGrid> {
        let [lead @ .., m, _] = shape else { return None };
        Some(WarpGrid { lead: lead.to_vec(), m: *m, row_warps: warps, column_warps: 1 })
    }

    /// Product of the leading extents.
    pub fn batch(&self) -> usize {
        crate::op::elems(&self.lead)
    }

    /// Fragments of 16 rows per warp.
    pub fn row_tiles(&self) -> usize {
        self.m.div_ceil(FRAGMENT_ROWS).div_ceil(self.row_warps)
    }
}

impl FragmentLayout {
    /// The layout of one value per row.
    pub fn per_row(rows: &WarpGrid) -> FragmentLayout {
        FragmentLayout { rows: rows.clone(), columns: ColumnLayout::PerRow }
    }

    /// Columns of the tile.
    pub fn n(&self) -> usize {
        match self.columns {
            ColumnLayout::PerRow => 1,
            ColumnLayout::Partitioned(n) | ColumnLayout::SplitK(n) | ColumnLayout::SplitKInterleaved(n) => n,
        }
    }

    /// Fragments of 8 columns per warp: one, or an even number, as two of them become a 16 x 16 A fragment of
    /// a later product.
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

    /// Whether registers hold partial sums, which the column warps have to reduce.
    pub fn is_split_k(&self) -> bool {
        matches!(self.columns, ColumnLayout::SplitK(_) | ColumnLayout::SplitKInterleaved(_))
    }

    /// Whether a thread has adjacent columns `2c` and `2c + 1`, so that it can store two at a time.
    pub fn has_column_pairs(&self) -> bool {
        matches!(self.columns, ColumnLayout::Partitioned(_) | ColumnLayout::SplitK(_))
    }

    /// How many adjacent fragments interleave their columns: the vector width of direct loads, or 1 where
    /// columns are in order.
    pub fn interleaved(&self) -> usize {
        match self.columns {
            ColumnLayout::PerRow | ColumnLayout::Partitioned(_) | ColumnLayout::SplitK(_) => 1,
            ColumnLayout::SplitKInterleaved(n) => direct_vector_width(n),
        }
    }

    /// Whether a tile in layout `other` can be read at the slots of this layout: the same, or one value per
    /// row of the same rows.
    pub fn covers(&self, other: &FragmentLayout) -> bool {
        self.rows == other.rows && (other.columns == ColumnLayout::PerRow || other.columns == self.columns)
    }
}

/// Consecutive columns that a thread loads at once of a directly loaded B of `n` columns.
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
