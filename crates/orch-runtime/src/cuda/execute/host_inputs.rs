//! Inputs of a run on the device that are in the host's memory: numbers and small tensors, mostly those of the run before.
//!
//! Each is compared with what was sent last, and sent if it differs: through page-locked memory, so that nothing is waited for. Slots of
//! that memory are used in turn, each again when its copies are done. Tensors of more than [`KEPT_BYTES`] are sent with each run, and
//! waited for.

use crate::cuda::driver::device::Context;
use crate::cuda::driver::error::CudaError;
use crate::cuda::driver::memory::PinnedBuffer;
use crate::cuda::driver::stream::{Event, Stream};
use crate::cuda::driver::sys::Address;

/// The largest tensor whose bytes are kept for comparison.
const KEPT_BYTES: usize = 64 << 10;

/// Runs whose copies may be in flight.
const SLOTS: usize = 8;

/// A tensor of the host, and where it belongs on the device.
pub(in crate::cuda) struct HostInput<'a> {
    pub(in crate::cuda) idx: usize,
    pub(in crate::cuda) bytes: &'a [u8],
    pub(in crate::cuda) to: Address,
}

/// What was sent to an executable's own buffers for inputs.
pub(in crate::cuda) struct HostInputs {
    /// The bytes that the buffer of each input has; `None` if that is not known.
    sent: Vec<Option<Box<[u8]>>>,
    slots: Vec<Slot>,
    next: usize,
}

/// Page-locked memory that copies read.
struct Slot {
    memory: PinnedBuffer,
    /// After the copies that read it last.
    done: Event,
}

impl HostInputs {
    /// Nothing was sent to any of so many inputs.
    pub(in crate::cuda) fn new(inputs: usize) -> Self {
        Self { sent: (0..inputs).map(|_| None).collect(), slots: Vec::new(), next: 0 }
    }

    /// Says that something else writes the buffer of an input.
    pub(in crate::cuda) fn forget(&mut self, idx: usize) {
        self.sent[idx] = None;
    }

    /// Enqueues copies of those tensors that are not what their buffers have.
    ///
    /// # Errors
    /// If the device fails, or no memory can be locked.
    ///
    /// # Safety
    /// Each buffer is as long as its tensor, and is used in this stream only, or by work that the stream has waited for.
    pub(in crate::cuda) unsafe fn send(
        &mut self,
        stream: &Stream,
        inputs: &[HostInput<'_>],
    ) -> Result<(), CudaError> {
        let has_changed = |input: &&HostInput<'_>| self.sent[input.idx].as_deref() != Some(input.bytes);
        let changed: Vec<&HostInput<'_>> =
            inputs.iter().filter(|input| !input.bytes.is_empty()).filter(has_changed).collect();
        let (small, large): (Vec<_>, Vec<_>) =
            changed.into_iter().partition(|input| input.bytes.len() <= KEPT_BYTES);
        if !small.is_empty() {
            let total = small.iter().map(|input| input.bytes.len()).sum();
            let slot = self.slot(stream.context(), total)?;
            let mut rest = slot.memory.as_mut_slice();
            let mut copied = Ok(());
            for input in &small {
                let (place, others) = rest.split_at_mut(input.bytes.len());
                place.copy_from_slice(input.bytes);
                // SAFETY: the slot is written again only when `done` says that its copies are; the rest is the caller's promise.
                copied = copied.and_then(|()| unsafe { stream.upload(place, input.to) });
                rest = others;
            }
            let recorded = slot.done.record(stream);
            small.iter().for_each(|input| self.forget(input.idx));
            copied.and(recorded)?;
            small.iter().for_each(|input| self.sent[input.idx] = Some(input.bytes.into()));
        }
        for input in &large {
            // SAFETY: the bytes stay borrowed until the wait below; the rest is the caller's promise.
            let copied = unsafe { stream.upload(input.bytes, input.to) };
            let waited = stream.synchronize();
            copied.and(waited)?;
        }
        Ok(())
    }

    /// The next slot, which no copy reads, with room for so many bytes.
    fn slot(&mut self, context: &Context, len_bytes: usize) -> Result<&mut Slot, CudaError> {
        let new = || {
            let memory = PinnedBuffer::new(context, len_bytes.next_power_of_two())?;
            Ok::<_, CudaError>(Slot { memory, done: Event::new(context)? })
        };
        if self.slots.len() < SLOTS {
            self.slots.push(new()?);
            let last = self.slots.len() - 1;
            return Ok(&mut self.slots[last]);
        }
        let idx = self.next;
        self.next = (self.next + 1) % SLOTS;
        self.slots[idx].done.synchronize()?;
        if self.slots[idx].memory.as_slice().len() < len_bytes {
            self.slots[idx] = new()?;
        }
        Ok(&mut self.slots[idx])
    }
}

impl Drop for HostInputs {
    fn drop(&mut self) {
        for slot in &self.slots {
            // A device that has failed reads no more.
            let _ = slot.done.synchronize();
        }
    }
}
