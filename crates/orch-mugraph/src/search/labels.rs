//! Labels: dimensions of the program that are the same index, as in Einstein's notation. Indices of different outputs that
//! run in parallel are taken for one.

use crate::graph::{MuGraph, TensorId};
use crate::verify::Classes;
use std::collections::BTreeMap;

/// The label of every dimension.
#[derive(Clone, Debug)]
pub struct Labels {
    dims: Vec<Vec<Option<u8>>>,
    /// The extent of each label.
    pub extents: Vec<usize>,
}

/// As many labels as bits allow, three each.
const MOST: usize = 21;

impl Labels {
    /// The labels of a program; dimensions of extent 1 have none.
    ///
    /// # Errors
    /// If a tensor has an index twice, or there are too many.
    pub fn of(program: &MuGraph) -> Result<Labels, String> {
        let mut classes = Classes::of(program);
        let mut numbers: BTreeMap<usize, u8> = BTreeMap::new();
        let mut labels = Labels { dims: Vec::new(), extents: Vec::new() };
        for at in 0..program.shapes().len() {
            let id = TensorId(at as u32);
            let mut dims = Vec::new();
            for (dim, &extent) in program.shape(id).iter().enumerate() {
                if extent == 1 {
                    dims.push(None);
                    continue;
                }
                let next = numbers.len() as u8;
                let label = *numbers.entry(classes.class(id, dim)).or_insert(next);
                if label == next {
                    labels.extents.push(extent);
                }
                if dims.contains(&Some(label)) {
                    return Err(format!("{id}: dimension {dim} is an index that it has already"));
                }
                dims.push(Some(label));
            }
            labels.dims.push(dims);
        }
        labels.join_outputs(program);
        if labels.extents.len() > MOST {
            return Err(format!("{} different indices, {MOST} are searched at most", labels.extents.len()));
        }
        Ok(labels)
    }

    /// Makes one label of two that outputs have in the same place, with equal extents, where no tensor has both.
    fn join_outputs(&mut self, program: &MuGraph) {
        let Some(((_, first), others)) = program.outputs().split_first() else { return };
        let rank = self.dims(*first).len();
        for (_, other) in others.iter().filter(|(_, other)| program.shape(*other).len() == rank) {
            for dim in 0..rank {
                if let (Some(a), Some(b)) = (self.dims(*first)[dim], self.dims(*other)[dim])
                    && self.are_parallel(a, b)
                {
                    self.join(a.min(b), a.max(b));
                }
            }
        }
    }

    /// True for two labels of equal extents that no tensor has both of.
    fn are_parallel(&self, a: u8, b: u8) -> bool {
        let has_both = |dims: &Vec<Option<u8>>| dims.contains(&Some(a)) && dims.contains(&Some(b));
        self.extents[usize::from(a)] == self.extents[usize::from(b)] && !self.dims.iter().any(has_both)
    }

    /// Puts a label in the place of a later one, which is gone.
    fn join(&mut self, kept: u8, gone: u8) {
        self.extents.remove(usize::from(gone));
        for label in self.dims.iter_mut().flatten().flatten() {
            *label = match *label {
                own if own == gone => kept,
                own if own > gone => own - 1,
                own => own,
            };
        }
    }

    /// The labels of a tensor's dimensions.
    pub fn dims(&self, id: TensorId) -> &[Option<u8>] {
        &self.dims[id.index()]
    }
}
