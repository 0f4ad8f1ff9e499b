//! The axes that dimensions are split into.

use orch_ir::NodeId;
use std::collections::BTreeMap;

/// A dimension that becomes axes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum AxisKey {
    /// A dimension of the first output.
    Output(usize),
    /// A dimension that a node reduces.
    Reduced(NodeId, usize),
}

/// The extents of the axes that dimensions are split into, outermost first.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Splits {
    pub parts: BTreeMap<AxisKey, Vec<usize>>,
}

impl Splits {
    /// The axes of a dimension of this extent: none for 1.
    pub fn parts(&self, key: AxisKey, extent: usize) -> Vec<usize> {
        match self.parts.get(&key) {
            Some(parts) => parts.clone(),
            None if extent == 1 => Vec::new(),
            None => vec![extent],
        }
    }

    /// Splits the axis at `position` into `extent / factor` and `factor`.
    pub fn split(&mut self, key: AxisKey, position: usize, extent: usize, factor: usize) {
        let parts = self.parts.entry(key).or_insert_with(|| vec![extent]);
        if parts.get(position) == Some(&extent) {
            parts.splice(position..=position, [extent / factor, factor]);
        }
    }
}
