//! Index notation: which dimensions of the primitive tensors run over the same index.
//!
//! A dimension runs over a list of labels, outermost first; its extent is the product of theirs. Unifying two lists of
//! labels, as a reshape does, splits the labels with larger extents and equates those with equal ones. Dimensions of
//! extent 1 have no labels, so they vanish from programs.
//!
//! ```text
//! [rows, columns]          reshaped to    [rows, heads, channels]
//!  5     12 = (3, 4)                       5     3      4
//! ```

/// An index, by its number. A label that was split or equated stands for its [leaves](Index::leaves).
pub(super) type Label = u32;

/// The labels that a dimension runs over, outermost first.
pub(super) type Dim = Vec<Label>;

#[derive(Clone, Copy, Debug)]
enum Entry {
    /// A label of this extent.
    Leaf(usize),
    /// Equal to another label.
    Same(Label),
    /// An outer and an inner label.
    Split(Label, Label),
}

/// All labels: a union-find structure whose sets may be split.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    entries: Vec<Entry>,
}

impl Index {
    /// A new label.
    pub(super) fn fresh(&mut self, extent: usize) -> Label {
        self.entries.push(Entry::Leaf(extent));
        self.entries.len() as Label - 1
    }

    /// A dimension that runs over a new label; over none for an extent of 1.
    pub(super) fn fresh_dim(&mut self, extent: usize) -> Dim {
        if extent == 1 { Vec::new() } else { vec![self.fresh(extent)] }
    }

    /// The number of values of a label.
    pub(super) fn extent(&self, leaf: Label) -> usize {
        match self.entries[leaf as usize] {
            Entry::Leaf(extent) => extent,
            Entry::Same(label) => self.extent(label),
            Entry::Split(outer, inner) => self.extent(outer) * self.extent(inner),
        }
    }

    /// The leaves that labels stand for, outermost first.
    pub(super) fn leaves(&self, labels: &[Label]) -> Vec<Label> {
        let mut leaves = Vec::new();
        for &label in labels {
            match self.entries[label as usize] {
                Entry::Leaf(_) => leaves.push(label),
                Entry::Same(other) => leaves.extend(self.leaves(&[other])),
                Entry::Split(outer, inner) => leaves.extend(self.leaves(&[outer, inner])),
            }
        }
        leaves
    }

    /// Equates two lists of labels, from the innermost label outwards; labels are split where extents differ. `None` if
    /// neither of two extents divides the other.
    pub(super) fn unify(&mut self, lhs: &[Label], rhs: &[Label]) -> Option<()> {
        let (mut lhs, mut rhs) = (lhs.to_vec(), rhs.to_vec());
        loop {
            match (self.pop_leaf(&mut lhs), self.pop_leaf(&mut rhs)) {
                (None, None) => return Some(()),
                (Some(a), Some(b)) if a == b => {}
                (Some(a), Some(b)) => {
                    let (a_extent, b_extent) = (self.extent(a), self.extent(b));
                    if a_extent == b_extent {
                        self.entries[b as usize] = Entry::Same(a);
                    } else if a_extent > b_extent {
                        lhs.push(self.split(a, b)?);
                    } else {
                        rhs.push(self.split(b, a)?);
                    }
                }
                _ => return None,
            }
        }
    }

    /// Removes the innermost leaf of the last label; its other leaves stay in the list.
    fn pop_leaf(&self, labels: &mut Vec<Label>) -> Option<Label> {
        let leaves = self.leaves(&[labels.pop()?]);
        labels.extend(leaves);
        labels.pop()
    }

    /// Splits a leaf into a new outer label and `inner`; the outer label. `None` if the extent of `inner` does not
    /// divide the leaf's.
    fn split(&mut self, leaf: Label, inner: Label) -> Option<Label> {
        let (extent, part) = (self.extent(leaf), self.extent(inner));
        if part == 0 || extent % part != 0 {
            return None;
        }
        let outer = self.fresh(extent / part);
        self.entries[leaf as usize] = Entry::Split(outer, inner);
        Some(outer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reshapes_split_labels() {
        let mut index = Index::default();
        let (rows, columns) = (index.fresh(5), index.fresh(12));
        let parts = [index.fresh(5), index.fresh(3), index.fresh(4)];
        assert!(index.unify(&[rows, columns], &parts).is_some());
        assert_eq!(index.leaves(&[columns]).len(), 2);
        assert_eq!(index.leaves(&[rows, columns]), index.leaves(&parts));
        let other = [index.fresh(10), index.fresh(6)];
        assert!(index.unify(&[rows, columns], &other).is_none());
    }
}
