//! Streams, in which a device's work is done in order, and events, which measure when.

use super::device::Context;
use super::error::CudaError;
use super::sys::{
    Address, CAPTURE_NONE, CAPTURE_RELAXED, DriverHandle, EVENT_DEFAULT, NOT_READY, STREAM_NON_BLOCKING,
    WAIT_VALUE_EQUAL,
};
use std::ffi::c_void;
use std::fmt;

/// A queue of work. What is enqueued runs in this order; streams do not wait for each other.
pub struct Stream {
    context: Context,
    handle: DriverHandle,
    /// False for a stream that somebody else made and destroys.
    is_owned: bool,
}

/// A point in a stream's work, with its time.
pub struct Event {
    context: Context,
    handle: DriverHandle,
}

// SAFETY: streams and events may be used from any thread, and from several at once.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}
// SAFETY: as above.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Stream {
    /// A new stream.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        let driver = context.enter()?;
        let doing = || "making a stream".into();
        // SAFETY: the pointer is to a handle.
        let make = |made| unsafe { (driver.api.stream_create)(made, STREAM_NON_BLOCKING) };
        Ok(Self { handle: driver.create(doing, make)?, context: context.clone(), is_owned: true })
    }

    /// A stream that somebody else made, by its handle (`CUstream` or `cudaStream_t`; null is the default stream).
    ///
    /// # Safety
    /// It must be a stream of this context's device, and live as long as the result and what was given work in it.
    pub unsafe fn of_handle(context: &Context, handle: *mut c_void) -> Self {
        Self { context: context.clone(), handle, is_owned: false }
    }

    /// True if what is enqueued is captured in a graph of somebody else, and not run.
    ///
    /// # Errors
    /// If the stream cannot be used while another is captured, or the device has failed.
    pub fn is_capturing(&self) -> Result<bool, CudaError> {
        let driver = self.context.enter()?;
        let mut status = CAPTURE_NONE;
        // SAFETY: the pointer is to a number, and the stream lives as long as `self`.
        let called = unsafe { (driver.api.stream_is_capturing)(self.handle, &raw mut status) };
        driver.check(called, || "asking whether a stream is captured".into())?;
        Ok(status != CAPTURE_NONE)
    }

    /// Lets what is enqueued from now on wait for what `other` has been given so far.
    pub(in crate::cuda) fn follow(&self, other: &Stream) -> Result<(), CudaError> {
        let event = Event::new(&self.context)?;
        event.record(other)?;
        let driver = self.context.enter()?;
        // SAFETY: both live as long as their borrows; an event that is destroyed is still waited for.
        let status = unsafe { (driver.api.stream_wait_event)(self.handle, event.handle, 0) };
        driver.check(status, || "waiting for another stream".into())
    }

    /// Enqueues a copy from the host.
    ///
    /// # Safety
    /// `from` must stay as it is, and the memory from `to` on allocated, until the copy is done.
    pub(in crate::cuda) unsafe fn upload(&self, from: &[u8], to: Address) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: the caller's promise.
        let status =
            unsafe { (driver.api.memcpy_to_device)(to, from.as_ptr().cast(), from.len(), self.handle) };
        driver.check(status, || format!("copying {} bytes to the device", from.len()))
    }

    /// Enqueues a copy to the host.
    ///
    /// # Safety
    /// Until the copy is done, `to` must stay where it is and not be used otherwise, and the memory from `from` on stay allocated.
    pub(in crate::cuda) unsafe fn download(&self, from: Address, to: &mut [u8]) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: the caller's promise.
        let status =
            unsafe { (driver.api.memcpy_to_host)(to.as_mut_ptr().cast(), from, to.len(), self.handle) };
        driver.check(status, || format!("copying {} bytes from the device", to.len()))
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Waits until all work enqueued so far is done.
    ///
    /// # Errors
    /// If any of it failed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.wait_for(|| "waiting for the device".into())
    }

    /// As [`synchronize`](Self::synchronize); `doing` is what an error says was being done.
    pub(in crate::cuda) fn wait_for(&self, doing: impl FnOnce() -> String) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: the stream lives as long as `self`.
        driver.check(unsafe { (driver.api.stream_synchronize)(self.handle) }, doing)
    }

    /// Enqueues a copy within the device's memory, whose ranges the caller has checked.
    pub(in crate::cuda) fn copy(
        &self,
        from: Address,
        to: Address,
        len_bytes: usize,
    ) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: the caller's promise. Freeing memory waits for the work that uses it.
        let status = unsafe { (driver.api.memcpy_on_device)(to, from, len_bytes, self.handle) };
        driver.check(status, || format!("copying {len_bytes} bytes on the device"))
    }

    /// Holds back what is enqueued from now on until the device's memory has this number at the address, which must stay
    /// allocated until then.
    pub(in crate::cuda) fn hold_until(&self, address: Address, number: u32) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: the caller's promise.
        let status =
            unsafe { (driver.api.stream_wait_value)(self.handle, address, number, WAIT_VALUE_EQUAL) };
        driver.check(status, || "holding back a stream".into())
    }

    pub(in crate::cuda) fn handle(&self) -> DriverHandle {
        self.handle
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.is_owned {
            return;
        }
        // SAFETY: made by `new`, and not used after this; the driver lets work that is in flight end.
        self.context.release(|driver| unsafe { (driver.api.stream_destroy)(self.handle) });
    }
}

impl Event {
    /// A new event.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        let driver = context.enter()?;
        let doing = || "making an event".into();
        // SAFETY: the pointer is to a handle.
        let make = |made| unsafe { (driver.api.event_create)(made, EVENT_DEFAULT) };
        Ok(Self { handle: driver.create(doing, make)?, context: context.clone() })
    }

    /// Moves the event to the end of the work that `stream` has been given so far.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: both live as long as their borrows.
        let status = unsafe { (driver.api.event_record)(self.handle, stream.handle) };
        driver.check(status, || "recording an event".into())
    }

    /// Whether the device has reached it.
    ///
    /// # Errors
    /// If work before it failed.
    pub fn is_reached(&self) -> Result<bool, CudaError> {
        let driver = self.context.enter()?;
        // While somebody captures a stream, the driver takes the question for an error of that capture unless this thread says that it
        // knows what it does.
        let mut mode = CAPTURE_RELAXED;
        // SAFETY: the pointer is to a mode; the event lives as long as `self`; the mode that was there is set again.
        let (exchanged, status) = unsafe {
            let exchanged = (driver.api.exchange_capture_mode)(&raw mut mode);
            let status = (driver.api.event_query)(self.handle);
            if exchanged == 0 {
                (driver.api.exchange_capture_mode)(&raw mut mode);
            }
            (exchanged, status)
        };
        driver.check(exchanged, || "changing how captures are guarded".into())?;
        if status == NOT_READY {
            return Ok(false);
        }
        driver.check(status, || "asking for an event".into())?;
        Ok(true)
    }

    /// Waits until the device has reached it.
    ///
    /// # Errors
    /// If work before it failed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: the event lives as long as `self`.
        let status = unsafe { (driver.api.event_synchronize)(self.handle) };
        driver.check(status, || "waiting for an event".into())
    }

    /// Microseconds from `earlier` to this event, both of which the device has reached; the clock has a resolution of
    /// about half a microsecond.
    ///
    /// # Errors
    /// If one of them was not recorded or not reached.
    pub fn elapsed_us(&self, earlier: &Event) -> Result<f64, CudaError> {
        let driver = self.context.enter()?;
        let mut milliseconds = 0f32;
        // SAFETY: the pointer is to a number of this type; both events live as long as their borrows.
        let status =
            unsafe { (driver.api.event_elapsed)(&raw mut milliseconds, earlier.handle, self.handle) };
        driver.check(status, || "reading the time of an event".into())?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not used after this.
        self.context.release(|driver| unsafe { (driver.api.event_destroy)(self.handle) });
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:p})", self.handle)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:p})", self.handle)
    }
}
