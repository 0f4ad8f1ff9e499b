//! Streams, in which a device's work is done in order, and events, which measure when.

use super::device::Context;
use super::error::CudaError;
use super::sys::{Address, DriverHandle, EVENT_DEFAULT, STREAM_NON_BLOCKING, WAIT_VALUE_EQUAL};
use std::fmt;

/// A queue of work. What is enqueued runs in this order; streams do not wait for each other.
pub struct Stream {
    context: Context,
    handle: DriverHandle,
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
        Ok(Self { handle: driver.create(doing, make)?, context: context.clone() })
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
