//! Tensors between steps: which step writes each, which read it, and where it is meanwhile.

use crate::manifest::{Manifest, Slot, SlotMemory};
use serde::Serialize;
use std::ops::Range;

/// A tensor that a step writes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TensorLife {
    /// Where it is.
    pub memory: SlotMemory,
    /// Bytes.
    pub bytes: usize,
    /// Element type.
    pub dtype: String,
    /// Logical shape.
    pub shape: Vec<usize>,
    /// The step that writes it.
    pub writer: usize,
    /// The steps that read it, ascending.
    pub readers: Vec<usize>,
}

impl TensorLife {
    /// The last step that needs it.
    pub fn last(&self) -> usize {
        self.readers.last().copied().unwrap_or(self.writer)
    }

    /// True if it lies in working memory, in some of these bytes.
    fn overlaps(&self, memory: SlotMemory, bytes: usize) -> bool {
        match (range(self.memory, self.bytes), range(memory, bytes)) {
            (Some(own), Some(other)) => own.start < other.end && other.start < own.end,
            _ => self.memory == memory,
        }
    }
}

/// The bytes of working memory that something takes.
fn range(memory: SlotMemory, bytes: usize) -> Option<Range<usize>> {
    match memory {
        SlotMemory::Arena(offset) => Some(offset..offset.saturating_add(bytes)),
        SlotMemory::Constant(_) | SlotMemory::Input(_) | SlotMemory::Output(_) => None,
    }
}

/// The tensors of a plan, in the order in which they are written. With `n` slots and `m` tensors at a time this compares `n * m` ranges.
pub fn tensor_lives(manifest: &Manifest) -> Vec<TensorLife> {
    let mut all: Vec<TensorLife> = Vec::new();
    let mut current: Vec<usize> = Vec::new();
    for (number, step) in manifest.steps.iter().enumerate() {
        for slot in step.slots.iter().filter(|slot| !slot.written) {
            for &life in &current {
                let life = &mut all[life];
                if life.overlaps(slot.memory, slot.bytes) && life.readers.last() != Some(&number) {
                    life.readers.push(number);
                }
            }
        }
        for slot in step.slots.iter().filter(|slot| slot.written) {
            current.retain(|&life| !all[life].overlaps(slot.memory, slot.bytes));
            let Slot { memory, bytes, dtype, shape, .. } = slot.clone();
            current.push(all.len());
            all.push(TensorLife { memory, bytes, dtype, shape, writer: number, readers: Vec::new() });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{manifest, slot};

    #[test]
    fn tensors_live_until_their_bytes_are_written_again() {
        let plan = manifest(&[
            &[slot(SlotMemory::Input(0), 64, false), slot(SlotMemory::Arena(0), 64, true)],
            &[slot(SlotMemory::Arena(0), 64, false), slot(SlotMemory::Arena(64), 64, true)],
            // Reads a part of the first tensor, and then takes the place of both.
            &[slot(SlotMemory::Arena(32), 8, false), slot(SlotMemory::Arena(64), 64, false)],
            &[slot(SlotMemory::Arena(0), 128, true)],
            &[slot(SlotMemory::Arena(0), 128, false), slot(SlotMemory::Output(0), 4, true)],
        ]);
        let lives: Vec<(usize, Vec<usize>)> =
            tensor_lives(&plan).into_iter().map(|life| (life.writer, life.readers)).collect();
        assert_eq!(lives, [(0, vec![1, 2]), (1, vec![2]), (3, vec![4]), (4, vec![])]);
    }
}
