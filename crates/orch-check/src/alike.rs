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

/// What a dimension counts: a class of indices, and how many elements of it one step is: more than one if the dimension has the number of
/// the part that an index is cut in. `None` is an extent of 1.
pub type Index = Option<(usize, usize)>;

/// The index of what is not treated alike.
pub const REFUSED: Index = Some((0, 1));

/// How many elements stand for all.
pub const KEPT: usize = 2;

/// Classes of indices that were joined. The first one is of those that are refused.
#[derive(Clone, Debug)]
pub struct Indices {
    /// Of each index another one of its class, itself if it is the class's name; and its extent.
    parents: Vec<(usize, usize)>,
}

impl Default for Indices {
    fn default() -> Indices {
        Indices { parents: vec![(0, 0)] }
    }
}

impl Indices {
    fn class(&mut self, mut index: usize) -> usize {
        while self.parents[index].0 != index {
            let next = self.parents[index].0;
            self.parents[index].0 = self.parents[next].0;
            index = next;
        }
        index
    }

    /// An extent with an index that no other tensor has.
    pub fn extent(&mut self, len: usize) -> Extent {
        self.parents.push((self.parents.len(), len));
        Extent::new(len, Some((self.parents.len() - 1, 1)))
    }

    /// The index of elements that are taken together.
    pub fn join(&mut self, a: Index, b: Index) -> Index {
        let (Some((i, unit)), Some((j, other))) = (a, b) else { return a.or(b) };
        let (i, j) = (self.class(i), self.class(j));
        let is_same = (unit, self.parents[i].1) == (other, self.parents[j].1);
        let class = if is_same { i.min(j) } else { 0 };
        self.parents[i].0 = class;
        self.parents[j].0 = class;
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
        let offset = self.parents.len();
        self.parents.extend(others.parents.iter().map(|(parent, extent)| (parent + offset, *extent)));
        self.parents[offset].0 = 0;
        offset
    }

    /// Refuses what is in a tensor twice, but for the number of a part and the place in it.
    pub fn refuse_diagonals(&mut self, shape: &[Extent]) {
        for (at, extent) in shape.iter().enumerate() {
            for other in &shape[at + 1..] {
                let (Some((i, unit)), Some((j, step))) = (extent.index, other.index) else { continue };
                if self.class(i) == self.class(j) && Some(unit) != step.checked_mul(other.len) {
                    self.refuse(extent.index);
                }
            }
        }
    }

    /// Whether an index is treated alike.
    pub fn is_alike(&mut self, index: Index) -> bool {
        index.is_some_and(|(index, _)| self.class(index) != 0)
    }

    /// Extents of which less is kept, and how much.
    pub fn cut(&self) -> Vec<(usize, usize)> {
        let classes = self.parents.iter().enumerate();
        let cut = classes.filter(|(at, (parent, extent))| at == parent && *extent > KEPT);
        cut.map(|(_, (_, extent))| (*extent, KEPT)).collect()
    }
}
