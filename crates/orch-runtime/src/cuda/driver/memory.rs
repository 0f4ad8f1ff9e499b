//! Memory of a device, and memory of the host that devices read at full speed.

use super::device::Context;
use super::error::{CudaError, code};
use super::stream::Stream;
use super::sys::Address;
use std::ffi::c_void;
use std::fmt;

/// Memory of a device, freed on drop. Its start is a multiple of 256 bytes.
pub struct DeviceBuffer {
    context: Context,
    address: Address,
    len_bytes: usize,
}

/// Page-locked memory of the host, freed on drop: copies to and from a device do not pass through another buffer.
pub struct PinnedBuffer {
    context: Context,
    start: *mut u8,
    len_bytes: usize,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared references only read.
unsafe impl Sync for PinnedBuffer {}

impl DeviceBuffer {
    /// `len_bytes` of memory with undefined content; `purpose` is what an error says it was for.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] if there is not so much.
    pub fn new(context: &Context, len_bytes: usize, purpose: &str) -> Result<Self, CudaError> {
        let driver = context.enter()?;
        let mut address: Address = 0;
        if len_bytes > 0 {
            // SAFETY: the pointer is to an address.
            let status = unsafe { (driver.api.mem_alloc)(&raw mut address, len_bytes) };
            let doing = || format!("allocating memory for {purpose}");
            if status == code::OUT_OF_MEMORY {
                let (free_bytes, total_bytes) = context.memory()?;
                let needed_bytes = Some(len_bytes);
                return Err(CudaError::OutOfMemory { doing: doing(), needed_bytes, free_bytes, total_bytes });
            }
            driver.check(status, doing)?;
        }
        Ok(Self { context: context.clone(), address, len_bytes })
    }

    /// Memory with this content.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if the copy fails.
    pub fn copy_of(stream: &Stream, bytes: &[u8], purpose: &str) -> Result<Self, CudaError> {
        let buffer = Self::new(stream.context(), bytes.len(), purpose)?;
        buffer.copy_from_host(stream, 0, bytes)?;
        Ok(buffer)
    }

    /// Its device address, as kernels receive it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Writes `bytes` from `offset` on, after the work in `stream`, and waits for it.
    ///
    /// # Errors
    /// If the range leaves the buffer, or the device fails.
    pub fn copy_from_host(&self, stream: &Stream, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        // SAFETY: the bytes stay borrowed until `finish` has waited.
        let begun = unsafe { self.begin_copy_from_host(stream, offset, bytes) };
        finish(stream, begun)
    }

    /// Reads into `bytes` from `offset` on, after the work in `stream`, and waits for it.
    ///
    /// # Errors
    /// If the range leaves the buffer, or the device fails.
    pub fn copy_to_host(&self, stream: &Stream, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        // SAFETY: the bytes stay borrowed until `finish` has waited.
        let begun = unsafe { self.begin_copy_to_host(stream, offset, bytes) };
        finish(stream, begun)
    }

    /// As [`copy_from_host`](Self::copy_from_host), without waiting.
    ///
    /// # Errors
    /// If the range leaves the buffer, or the device has failed.
    ///
    /// # Safety
    /// `bytes` must stay as they are until the stream has done the copy.
    pub unsafe fn begin_copy_from_host(
        &self,
        stream: &Stream,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), CudaError> {
        let Some(to) = self.range(offset, bytes.len())? else { return Ok(()) };
        // SAFETY: both ranges are as long as stated, and stay valid by the caller's promise.
        unsafe { stream.upload(bytes, to) }
    }

    /// As [`copy_to_host`](Self::copy_to_host), without waiting.
    ///
    /// # Errors
    /// If the range leaves the buffer, or the device has failed.
    ///
    /// # Safety
    /// Until the stream has done the copy, `bytes` must stay where they are and must not be used otherwise.
    pub unsafe fn begin_copy_to_host(
        &self,
        stream: &Stream,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), CudaError> {
        let Some(from) = self.range(offset, bytes.len())? else { return Ok(()) };
        // SAFETY: both ranges are as long as stated, and stay valid by the caller's promise.
        unsafe { stream.download(from, bytes) }
    }

    /// Enqueues a copy of `len_bytes` from `from_offset` on in `from` to `offset` on here. Kernels and copies of other
    /// streams are not waited for.
    ///
    /// # Errors
    /// If a range leaves its buffer, or the device has failed.
    pub fn copy_from(
        &self,
        stream: &Stream,
        offset: usize,
        from: &DeviceBuffer,
        from_offset: usize,
        len_bytes: usize,
    ) -> Result<(), CudaError> {
        let (to, from) = (self.range(offset, len_bytes)?, from.range(from_offset, len_bytes)?);
        let (Some(to), Some(from)) = (to, from) else { return Ok(()) };
        stream.copy(from, to, len_bytes)
    }

    /// Enqueues setting every byte to `value`.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn fill(&self, stream: &Stream, value: u8) -> Result<(), CudaError> {
        if self.len_bytes == 0 {
            return Ok(());
        }
        let driver = self.context.enter()?;
        // SAFETY: the buffer has this address and size. Freeing memory waits for the work that uses it.
        let status = unsafe { (driver.api.memset)(self.address, value, self.len_bytes, stream.handle()) };
        driver.check(status, || format!("filling {} bytes of the device", self.len_bytes))
    }

    /// The address of a range of the buffer; `None` if it is empty.
    fn range(&self, offset: usize, len_bytes: usize) -> Result<Option<Address>, CudaError> {
        if offset.checked_add(len_bytes).is_none_or(|end| end > self.len_bytes) {
            return Err(CudaError::OutOfRange { offset, given: len_bytes, size: self.len_bytes });
        }
        Ok((len_bytes > 0).then(|| self.address + offset as Address))
    }
}

/// Waits for a copy, also for the part of it that was begun before an error.
fn finish(stream: &Stream, begun: Result<(), CudaError>) -> Result<(), CudaError> {
    let waited = stream.synchronize();
    begun.and(waited)
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.len_bytes > 0 {
            // SAFETY: allocated by `new`, and not used after this.
            self.context.release(|driver| unsafe { (driver.api.mem_free)(self.address) });
        }
    }
}

impl PinnedBuffer {
    /// `len_bytes` of zeros.
    ///
    /// # Errors
    /// If the system does not lock so much memory.
    pub fn new(context: &Context, len_bytes: usize) -> Result<Self, CudaError> {
        let driver = context.enter()?;
        let mut start: *mut c_void = std::ptr::null_mut();
        // SAFETY: the pointer is to a pointer. The driver refuses an empty buffer, hence the minimum.
        let status = unsafe { (driver.api.mem_host_alloc)(&raw mut start, len_bytes.max(1), 0) };
        driver.check(status, || format!("locking {len_bytes} bytes of the host's memory"))?;
        let start: *mut u8 = start.cast();
        // SAFETY: the memory was just allocated with this size.
        unsafe { start.write_bytes(0, len_bytes) };
        Ok(Self { context: context.clone(), start, len_bytes })
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory has this size, was initialised, and is not written while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.start, self.len_bytes) }
    }

    /// Its bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the memory has this size, was initialised, and is borrowed by this slice alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len_bytes) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, and not used after this.
        self.context.release(|driver| unsafe { (driver.api.mem_free_host)(self.start.cast()) });
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({:#x}, {} bytes)", self.address, self.len_bytes)
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuffer({:p}, {} bytes)", self.start, self.len_bytes)
    }
}
