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
    places: Vec<StoragePlace>,
    /// For each storage the buffers in it that are used as late as it is.
    latest: Vec<Vec<BufferId>>,
    /// For each storage where it lies in another one, once it is merged into that.
    merged: Vec<Option<StoragePlace>>,
}

/// A storage, and an offset in it.
type StoragePlace = (usize, u64);

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
        let mut storages = Storages {
            storages: Vec::new(),
            places: vec![(0, 0); request.buffers.len()],
            latest: Vec::new(),
            merged: Vec::new(),
        };
        let mut is_placed = vec![false; request.buffers.len()];
        for (index, buffer) in request.buffers.iter().enumerate() {
            if parents[index].is_none() {
                storages.places[index] = (storages.storages.len(), 0);
                is_placed[index] = true;
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
                storages.add_view(request, &parents, BufferId(index as u32), &mut is_placed)?;
            }
        }
        storages.merged = vec![None; storages.storages.len()];
        storages.latest = vec![Vec::new(); storages.storages.len()];
        for (index, buffer) in request.buffers.iter().enumerate() {
            let (at, _) = storages.places[index];
            if buffer.last_use == storages.storages[at].last_use {
                storages.latest[at].push(BufferId(index as u32));
            }
        }
        Ok(storages)
    }

    fn add_view(
        &mut self,
        request: &MemoryRequest,
        parents: &[Option<MemoryAlias>],
        view: BufferId,
        is_placed: &mut [bool],
    ) -> Result<(), MemoryError> {
        let mut chain: Vec<MemoryAlias> = Vec::new();
        let mut root = view;
        while !is_placed[root.index()] {
            // A chain of views without a circle visits no buffer twice.
            let link = parents[root.index()].filter(|_| chain.len() < parents.len());
            let link = link.ok_or(MemoryError::ViewTwice { view })?;
            chain.push(link);
            root = link.of;
        }
        for link in chain.into_iter().rev() {
            let (at, offset_bytes) = self.places[link.of.index()];
            self.places[link.view.index()] = (at, offset_bytes + link.offset_bytes);
            is_placed[link.view.index()] = true;
        }
        let buffer = request.buffers[view.index()];
        let (at, offset_bytes) = self.places[view.index()];
        if offset_bytes % buffer.alignment != 0 {
            return Err(MemoryError::ViewAlignment { view, alignment: buffer.alignment, offset_bytes });
        }
        let storage = &mut self.storages[at];
        storage.alignment = storage.alignment.max(buffer.alignment);
        storage.first_use = storage.first_use.min(buffer.first_use);
        storage.last_use = storage.last_use.max(buffer.last_use);
        Ok(())
    }

    /// Where a buffer lies, after merging. Its way is shortened for the next time.
    fn place(&mut self, buffer: BufferId) -> StoragePlace {
        let (storage, offset) = self.places[buffer.index()];
        let mut way = vec![storage];
        while let Some((next, _)) = self.merged[way[way.len() - 1]] {
            way.push(next);
        }
        let root = way.pop().expect("begins with a storage");
        let mut in_root = (root, 0);
        for link in way.into_iter().rev() {
            let (_, offset) = self.merged[link].expect("links lead to the root");
            in_root = (root, in_root.1 + offset);
            self.merged[link] = Some(in_root);
        }
        self.places[buffer.index()] = (root, in_root.1 + offset);
        self.places[buffer.index()]
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
        self.drop_merged();
        used
    }

    /// Merges the storage of the output into that of the input, if the input's dies where the output's is born.
    fn try_in_place(&mut self, request: &MemoryRequest, pair: InPlace, policy: InPlacePolicy) -> bool {
        let (output, input) = (request.buffers[pair.output.index()], request.buffers[pair.input.index()]);
        let (from, offset_in_from) = self.place(pair.output);
        let (into, offset) = self.place(pair.input);
        let (old, new) = (self.storages[into], self.storages[from]);
        let meets = from != into && old.last_use == output.first_use && new.first_use == output.first_use;
        let fits = offset_in_from == 0 && new.bytes <= input.bytes && offset % new.alignment == 0;
        let is_whole = new.bytes == old.bytes;
        if !meets
            || !fits
            || input.first_use >= output.first_use
            || input.last_use != output.first_use
            || (policy == InPlacePolicy::WhenWhole && !is_whole)
            || self.is_read_beside(request, pair.input)
        {
            return false;
        }
        self.merged[from] = Some((into, offset));
        let latest = std::mem::take(&mut self.latest[from]);
        if new.last_use > old.last_use {
            self.latest[into] = latest;
        } else {
            self.latest[into].extend(latest);
        }
        self.storages[into].alignment = old.alignment.max(new.alignment);
        self.storages[into].last_use = new.last_use;
        true
    }

    /// True if the last step that uses the storage of `input` uses other buffers in its memory: overwriting it would change them.
    fn is_read_beside(&mut self, request: &MemoryRequest, input: BufferId) -> bool {
        let (storage, start) = self.place(input);
        let own = start..start + request.buffers[input.index()].bytes;
        let latest = std::mem::take(&mut self.latest[storage]);
        let is_beside = latest.iter().any(|&other| {
            let (_, start) = self.place(other);
            other != input && start < own.end && own.start < start + request.buffers[other.index()].bytes
        });
        self.latest[storage] = latest;
        is_beside
    }

    /// Drops storages that were merged into others.
    fn drop_merged(&mut self) {
        let mut renumbered = vec![0; self.storages.len()];
        let mut kept = Vec::new();
        for (index, storage) in self.storages.iter().enumerate() {
            if self.merged[index].is_none() {
                renumbered[index] = kept.len();
                kept.push(*storage);
            }
        }
        for index in 0..self.places.len() {
            let (storage, offset) = self.place(BufferId(index as u32));
            self.places[index] = (renumbered[storage], offset);
        }
        self.storages = kept;
        self.merged = vec![None; self.storages.len()];
        self.latest.clear();
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
