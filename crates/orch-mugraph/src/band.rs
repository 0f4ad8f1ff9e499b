//! Masks that are bands along a diagonal: causal attention, and attention within a window.

use serde::{Deserialize, Serialize};

/// Bounds up to which the limits of bands are told apart: beyond any index, so that sums of both do not overflow.
const FARTHEST: i64 = 1 << 40;

/// A mask that keeps element `[row, column]` exactly if `-below <= column - row <= above`. A side without a limit keeps all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Band {
    /// How far right of the diagonal.
    pub above: Option<i64>,
    /// How far left of it.
    pub below: Option<i64>,
}

impl Band {
    /// A causal mask: `column <= row + offset`.
    pub fn causal(offset: i64) -> Band {
        Band { above: Some(offset), below: None }
    }

    /// Whether it keeps an element.
    pub fn contains(self, row: usize, column: usize) -> bool {
        let distance = column as i64 - row as i64;
        let Band { above, below } = self.limited();
        above.is_none_or(|above| distance <= above) && below.is_none_or(|below| distance >= -below)
    }

    /// Whether it keeps an element of each of so many rows, which have so many columns.
    pub fn shows_rows(self, rows: usize, columns: usize) -> bool {
        let Band { above, below } = self.limited();
        let (rows, columns) = (rows as i64, columns as i64);
        let meets = above.zip(below).is_none_or(|(above, below)| -below <= above);
        // The first row sees up to `above`, the last one from `rows - 1 - below` on.
        columns > 0
            && meets
            && above.is_none_or(|above| above >= 0)
            && below.is_none_or(|below| rows - 1 - below < columns)
    }

    /// The same mask with rows and columns exchanged.
    pub fn transposed(self) -> Band {
        Band { above: self.below, below: self.above }
    }

    /// What both bands keep.
    pub fn intersection(self, other: Band) -> Band {
        let least = |a: Option<i64>, b: Option<i64>| a.into_iter().chain(b).min();
        Band { above: least(self.above, other.above), below: least(self.below, other.below) }
    }

    /// The same band with limits that may be added to indices.
    pub fn limited(self) -> Band {
        let limit = |side: Option<i64>| side.map(|limit| limit.clamp(-FARTHEST, FARTHEST));
        Band { above: limit(self.above), below: limit(self.below) }
    }
}

#[cfg(test)]
mod tests {
    use super::Band;

    #[test]
    fn bands_keep_what_is_between_their_limits() {
        let window = Band { above: Some(1), below: Some(2) };
        let row: Vec<usize> = (0..8).filter(|&column| window.contains(3, column)).collect();
        assert_eq!(row, [1, 2, 3, 4]);
        assert!(!window.contains(3, 0) && !window.contains(3, 5) && window.transposed().contains(1, 3));
        assert!(Band::causal(i64::MAX).contains(0, usize::MAX >> 30));
        assert!(!Band { above: None, below: Some(i64::MIN) }.contains(0, 5));
        assert_eq!(Band::causal(3).intersection(window), window);
        for (above, below) in
            [(Some(1), Some(2)), (Some(-1), None), (None, Some(-2)), (Some(0), Some(0)), (Some(-3), Some(2))]
        {
            let band = Band { above, below };
            for (rows, columns) in [(4, 4), (2, 7), (7, 2)] {
                let is_seen = |row: usize| (0..columns).any(|column| band.contains(row, column));
                assert_eq!(
                    band.shows_rows(rows, columns),
                    (0..rows).all(is_seen),
                    "{band:?} {rows} {columns}"
                );
            }
        }
        assert_eq!(window.intersection(Band::causal(-1)), Band { above: Some(-1), below: Some(2) });
    }
}
