//! Labels: dimensions of the program that are the same index, as in Einstein's notation.

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
        if labels.extents.len() > MOST {
            return Err(format!("{} different indices, {MOST} are searched at most", labels.extents.len()));
        }
        Ok(labels)
    }

    /// The labels of a tensor's dimensions.
    pub fn dims(&self, id: TensorId) -> &[Option<u8>] {
        &self.dims[id.index()]
    }
}
