//! The static memory plan: an offset in one arena for every buffer, from when it is live.
//!
//! Steps are positions in the execution order. A buffer is live from its first to its last use, both included; two
//! buffers that are live at a common step do not overlap, unless the caller declared one a *view* of the other, or
//! allowed an output to be written *in place* of an input that dies in the step that writes it.
//!
//! Finding the smallest arena is NP-hard (dynamic storage allocation). Several greedy orders are tried - large buffers
//! first being the best known simple one - each with and without the allowed in-place writes, and the smallest arena
//! is taken. [`MemoryPlan::live_bytes`] says how far from perfect it can be.
//!
//! Buffers that live outside the arena (graph inputs and outputs, constants) are not given to it.

mod occupied;
mod pack;
mod storage;

use pack::smallest_packing;
use storage::{InPlacePolicy, Storages};

/// A position in [`MemoryRequest::buffers`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufferId(pub u32);

impl BufferId {
    /// The position of the buffer in tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for BufferId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "b{}", self.0)
    }
}

/// Memory that some steps use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Size; may be 0.
    pub bytes: u64,
    /// The address is a multiple of this power of two.
    pub alignment: u64,
    /// The step that writes it.
    pub first_use: u32,
    /// The last step that reads or writes it.
    pub last_use: u32,
}

/// A buffer that is part of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryAlias {
    /// The part. It takes no memory of its own, and keeps the whole alive.
    pub view: BufferId,
    /// The whole; may be a view itself.
    pub of: BufferId,
    /// Where the part begins in the whole.
    pub offset_bytes: u64,
}

/// Permission to write an output over an input: the step reads each element before it writes that place, and nothing
/// else of the input's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InPlace {
    /// The buffer that the step writes.
    pub output: BufferId,
    /// The buffer that the step reads. The permission is only used if an earlier step wrote it and this is its last
    /// use.
    pub input: BufferId,
}

/// What to plan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryRequest {
    /// Buffers of the arena.
    pub buffers: Vec<Buffer>,
    /// Which of them are parts of others; each buffer at most once.
    pub views: Vec<MemoryAlias>,
    /// Which may take the place of which.
    pub in_place: Vec<InPlace>,
}

/// Where everything is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryPlan {
    /// For each buffer its offset in the arena.
    pub offsets: Vec<u64>,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// The arena's address must be a multiple of this.
    pub arena_alignment: u64,
    /// The most bytes live at one step under the same sharing: no offsets give a smaller arena.
    pub live_bytes: u64,
    /// The permissions that were used.
    pub in_place: Vec<InPlace>,
    /// Buffers placed, and address ranges looked at for them, in all attempts.
    pub steps: usize,
}

/// Why a [`MemoryRequest`] is not one. These are bugs of the caller.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant documents its fields")]
pub enum MemoryError {
    /// An id is out of range.
    #[error("{buffer} does not exist: there are {buffers} buffers")]
    UnknownBuffer { buffer: BufferId, buffers: usize },
    /// An alignment is not a power of two.
    #[error("{buffer} has alignment {alignment}: it must be a power of two")]
    Alignment { buffer: BufferId, alignment: u64 },
    /// A life ends before it begins.
    #[error("{buffer} is used last at step {last_use}, before its first use at step {first_use}")]
    Life { buffer: BufferId, first_use: u32, last_use: u32 },
    /// All buffers together have more than 2^62 bytes.
    #[error("the buffers have more than 2^62 bytes together")]
    TooLarge,
    /// A view ends after the whole.
    #[error("{view} does not lie inside {of}: it has {bytes} bytes at offset {offset_bytes} of {of_bytes}")]
    ViewOutside { view: BufferId, of: BufferId, bytes: u64, offset_bytes: u64, of_bytes: u64 },
    /// A view is not aligned as its buffer demands when the whole is.
    #[error("{view} needs alignment {alignment}, but lies at offset {offset_bytes} of the whole")]
    ViewAlignment { view: BufferId, alignment: u64, offset_bytes: u64 },
    /// A buffer is declared a view twice, or of itself through others.
    #[error("{view} is a view of two buffers, or of itself")]
    ViewTwice { view: BufferId },
}

/// Assigns offsets. Time grows with the number of buffers, its logarithm, and the gaps between those that live at once.
///
/// # Errors
/// If the request is malformed.
pub fn plan_memory(request: &MemoryRequest) -> Result<MemoryPlan, MemoryError> {
    let base = Storages::new(request)?;
    let mut best: Option<MemoryPlan> = None;
    let mut steps = 0;
    for policy in InPlacePolicy::ALL {
        let mut storages = base.clone();
        let in_place = storages.share_in_place(request, policy);
        let packing = smallest_packing(&storages.storages);
        steps += packing.steps;
        if best.as_ref().is_none_or(|best| packing.arena_bytes < best.arena_bytes) {
            best = Some(MemoryPlan {
                offsets: storages.buffer_offsets(&packing.offsets),
                arena_bytes: packing.arena_bytes,
                arena_alignment: storages.storages.iter().map(|storage| storage.alignment).max().unwrap_or(1),
                live_bytes: pack::live_bytes(&storages.storages),
                in_place,
                steps,
            });
        }
    }
    Ok(MemoryPlan { steps, ..best.expect("there is a policy") })
}

#[cfg(test)]
mod tests;
