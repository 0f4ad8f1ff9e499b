//! Buffers that share memory, merged into storages.

use super::{Buffer, BufferId, InPlace, MemoryAlias, MemoryError, MemoryRequest};

/// More bytes than this are refused, so that offsets can be added without overflow.
const MAX_BYTES: u64 = 1 << 62;

/// Memory that one or several buffers share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Storage {
    pub bytes: u64,
    pub alignment: u64,
    pub first_use: u32,
    pub last_use: u32,
}

/// All storages, and where each buffer lies in one.
#[derive(Clone, Debug)]
pub(super) struct Storages {
    pub storages: Vec<Storage>,
    /// For each buffer its storage and its offset in it.
    places: Vec<(usize, u64)>,
}

/// Which permitted in-place writes are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InPlacePolicy {
    /// All that are possible. A small output then keeps a large storage alive.
    Always,
    /// Those that need the whole storage, which cannot make any step need more memory.
    WhenWhole,
    /// None.
    Never,
}

impl InPlacePolicy {
    pub const ALL: [InPlacePolicy; 3] =
        [InPlacePolicy::WhenWhole, InPlacePolicy::Always, InPlacePolicy::Never];
}

impl Storages {
    /// One storage per buffer that is not a view.
    pub fn new(request: &MemoryRequest) -> Result<Self, MemoryError> {
        check(request)?;
        let parents = parents(request)?;
        let mut storages = Storages { storages: Vec::new(), places: vec![(0, 0); request.buffers.len()] };
        for (index, buffer) in request.buffers.iter().enumerate() {
            if parents[index].is_none() {
                storages.places[index] = (storages.storages.len(), 0);
                storages.storages.push(Storage {
                    bytes: buffer.bytes,
                    alignment: buffer.alignment,
                    first_use: buffer.first_use,
                    last_use: buffer.last_use,
                });
            }
        }
        for index in 0..request.buffers.len() {
            if parents[index].is_some() {
                storages.add_view(request, &parents, BufferId(index as u32))?;
            }
        }
        Ok(storages)
    }

    fn add_view(
        &mut self,
        request: &MemoryRequest,
        parents: &[Option<MemoryAlias>],
        view: BufferId,
    ) -> Result<(), MemoryError> {
        let mut root = view;
        let mut offset_bytes = 0;
        // A chain of views without a circle visits no buffer twice.
        for _ in 0..parents.len() {
            let Some(link) = parents[root.index()] else { break };
            offset_bytes += link.offset_bytes;
            root = link.of;
        }
        if parents[root.index()].is_some() {
            return Err(MemoryError::ViewTwice { view });
        }
        let buffer = request.buffers[view.index()];
        if offset_bytes % buffer.alignment != 0 {
            return Err(MemoryError::ViewAlignment { view, alignment: buffer.alignment, offset_bytes });
        }
        let (at, _) = self.places[root.index()];
        self.places[view.index()] = (at, offset_bytes);
        let storage = &mut self.storages[at];
        storage.alignment = storage.alignment.max(buffer.alignment);
        storage.first_use = storage.first_use.min(buffer.first_use);
        storage.last_use = storage.last_use.max(buffer.last_use);
        Ok(())
    }

    /// Uses permissions in their order, as far as the policy wants and lives allow. Returns those used.
    pub fn share_in_place(&mut self, request: &MemoryRequest, policy: InPlacePolicy) -> Vec<InPlace> {
        if policy == InPlacePolicy::Never {
            return Vec::new();
        }
        let mut used = Vec::new();
        for &pair in &request.in_place {
            if self.try_in_place(request, pair, policy) {
                used.push(pair);
            }
        }
        self.drop_unused();
        used
    }

    /// Merges the storage of the output into that of the input, if the input's dies where the output's is born.
    fn try_in_place(&mut self, request: &MemoryRequest, pair: InPlace, policy: InPlacePolicy) -> bool {
        let (output, input) = (request.buffers[pair.output.index()], request.buffers[pair.input.index()]);
        let (from, offset_in_from) = self.places[pair.output.index()];
        let (into, offset) = self.places[pair.input.index()];
        let (old, new) = (self.storages[into], self.storages[from]);
        let meets = from != into && old.last_use == output.first_use && new.first_use == output.first_use;
        let fits = offset_in_from == 0 && new.bytes <= input.bytes && offset % new.alignment == 0;
        let is_whole = new.bytes == old.bytes;
        if !meets
            || !fits
            || input.first_use >= output.first_use
            || input.last_use != output.first_use
            || (policy == InPlacePolicy::WhenWhole && !is_whole)
            || self.is_read_beside(request, pair.input, output.first_use)
        {
            return false;
        }
        for place in self.places.iter_mut().filter(|place| place.0 == from) {
            *place = (into, place.1 + offset);
        }
        self.storages[into].alignment = old.alignment.max(new.alignment);
        self.storages[into].last_use = new.last_use;
        // Its buffers are gone, so it is dropped.
        self.storages[from].bytes = 0;
        true
    }

    /// True if a step uses other buffers in the memory of `input`: overwriting it would change them.
    fn is_read_beside(&self, request: &MemoryRequest, input: BufferId, step: u32) -> bool {
        let range = |id: usize| {
            let start = self.places[id].1;
            start..start + request.buffers[id].bytes
        };
        let own = range(input.index());
        (0..request.buffers.len()).any(|other| {
            other != input.index()
                && self.places[other].0 == self.places[input.index()].0
                && request.buffers[other].last_use >= step
                && range(other).start < own.end
                && own.start < range(other).end
        })
    }

    /// Drops storages without buffers.
    fn drop_unused(&mut self) {
        let mut is_used = vec![false; self.storages.len()];
        self.places.iter().for_each(|place| is_used[place.0] = true);
        let mut renumbered = vec![0; self.storages.len()];
        let mut kept = Vec::new();
        for (index, storage) in self.storages.iter().enumerate().filter(|&(index, _)| is_used[index]) {
            renumbered[index] = kept.len();
            kept.push(*storage);
        }
        self.places.iter_mut().for_each(|place| place.0 = renumbered[place.0]);
        self.storages = kept;
    }

    /// The offset of each buffer, given those of the storages.
    pub fn buffer_offsets(&self, storage_offsets: &[u64]) -> Vec<u64> {
        self.places.iter().map(|&(storage, offset)| storage_offsets[storage] + offset).collect()
    }
}

fn check(request: &MemoryRequest) -> Result<(), MemoryError> {
    let mut total: u64 = 0;
    for (index, &Buffer { bytes, alignment, first_use, last_use }) in request.buffers.iter().enumerate() {
        let buffer = BufferId(u32::try_from(index).expect("fewer than 2^32 buffers"));
        if !alignment.is_power_of_two() {
            return Err(MemoryError::Alignment { buffer, alignment });
        }
        if first_use > last_use {
            return Err(MemoryError::Life { buffer, first_use, last_use });
        }
        total = total.saturating_add(bytes).saturating_add(alignment);
        if total > MAX_BYTES {
            return Err(MemoryError::TooLarge);
        }
    }
    let aliases = request.views.iter().flat_map(|view| [view.view, view.of]);
    for buffer in aliases.chain(request.in_place.iter().flat_map(|pair| [pair.output, pair.input])) {
        if buffer.index() >= request.buffers.len() {
            return Err(MemoryError::UnknownBuffer { buffer, buffers: request.buffers.len() });
        }
    }
    Ok(())
}

/// For each buffer what it is a view of.
fn parents(request: &MemoryRequest) -> Result<Vec<Option<MemoryAlias>>, MemoryError> {
    let mut parents: Vec<Option<MemoryAlias>> = vec![None; request.buffers.len()];
    for &link in &request.views {
        let MemoryAlias { view, of, offset_bytes } = link;
        let (bytes, of_bytes) = (request.buffers[view.index()].bytes, request.buffers[of.index()].bytes);
        if offset_bytes.checked_add(bytes).is_none_or(|end| end > of_bytes) {
            return Err(MemoryError::ViewOutside { view, of, bytes, offset_bytes, of_bytes });
        }
        if parents[view.index()].replace(link).is_some() {
            return Err(MemoryError::ViewTwice { view });
        }
    }
    Ok(parents)
}
