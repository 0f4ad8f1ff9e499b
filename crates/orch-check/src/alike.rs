//! Lemma 1: which indices both programs treat alike.
//!
//! An index is treated alike if element `i` along it, of every tensor that has it, depends on the elements `i` of the inputs
//! alone, by the same function for every `i`. Each dimension of an input gets an index of its own. The operators of
//! [`crate::program`] *join* the indices of operands that are taken together element by element, and *refuse* an index to which they
//! do anything else. Along an index that is not refused the first elements stand for all.
//!
//! Where a dimension is cut in parts of one size, the number of the part and the place in it are two digits of its index. Both belong to
//! the class of the index that is cut, and are refused with it.

use crate::program::Extent;
use itertools::Itertools;
use petgraph::unionfind::UnionFind;

/// What a dimension counts: a class of indices, and how many elements of it one step is: more than one if the dimension has the number of
/// the part that an index is cut in. `None` is an extent of 1.
pub type Index = Option<(usize, usize)>;

/// The index of what is not treated alike.
pub const REFUSED: Index = Some((0, 1));

/// How many elements stand for all.
pub const KEPT: usize = 2;

/// Indices, in classes of those that were joined. The class of the first one is refused.
#[derive(Clone, Debug)]
pub struct Indices {
    classes: UnionFind<usize>,
    /// Of each index.
    extents: Vec<usize>,
}

impl Default for Indices {
    fn default() -> Indices {
        Indices { classes: UnionFind::new(1), extents: vec![0] }
    }
}

impl Indices {
    /// An extent with an index that no other tensor has.
    pub fn extent(&mut self, len: usize) -> Extent {
        self.extents.push(len);
        Extent::new(len, Some((self.classes.new_set(), 1)))
    }

    /// The index of elements that are taken together.
    pub fn join(&mut self, a: Index, b: Index) -> Index {
        let (Some((i, unit)), Some((j, other))) = (a, b) else { return a.or(b) };
        self.classes.union(i, j);
        if (unit, self.extents[i]) != (other, self.extents[j]) {
            self.classes.union(i, 0);
        }
        a
    }

    /// The index of what is anything else.
    pub fn refuse(&mut self, index: Index) -> Index {
        self.join(REFUSED, index)
    }

    /// The index of which the number of a part and the place in it are the digits.
    pub fn whole(&mut self, number: Index, place: &Extent) -> Index {
        match (number, place.index) {
            (Some((class, unit)), Some((_, step))) if step.checked_mul(place.len) == Some(unit) => {
                self.join(place.index, Some((class, step)))
            }
            (Some(_), None) if place.len == 1 => number,
            _ => {
                self.refuse(number);
                self.refuse(place.index)
            }
        }
    }

    /// Adds the indices of others: what is added to their numbers.
    pub fn append(&mut self, others: &Indices) -> usize {
        let offset = self.extents.len();
        others.extents.iter().for_each(|&extent| _ = self.extent(extent));
        for index in 0..others.extents.len() {
            self.classes.union(offset + index, offset + others.classes.find(index));
        }
        self.classes.union(offset, 0);
        offset
    }

    /// Refuses what is in a tensor twice, but for the number of a part and the place in it.
    pub fn refuse_diagonals(&mut self, shape: &[Extent]) {
        for (extent, other) in shape.iter().tuple_combinations() {
            let (Some((i, unit)), Some((j, step))) = (extent.index, other.index) else { continue };
            if self.classes.equiv(i, j) && Some(unit) != step.checked_mul(other.len) {
                self.refuse(extent.index);
            }
        }
    }

    /// Whether an index is treated alike.
    pub fn is_alike(&self, index: Index) -> bool {
        index.is_some_and(|(index, _)| !self.classes.equiv(index, 0))
    }

    /// Extents of which less is kept, and how much.
    pub fn cut(&self) -> Vec<(usize, usize)> {
        let indices = (0..self.extents.len()).filter(|&index| self.is_alike(Some((index, 1))));
        let extents = indices.unique_by(|&index| self.classes.find(index)).map(|index| self.extents[index]);
        extents.filter(|&extent| extent > KEPT).map(|extent| (extent, KEPT)).collect()
    }
}
