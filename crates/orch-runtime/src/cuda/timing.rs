//! Times of work on a device, by the device's own clock.

use super::device::Context;
use super::error::CudaError;
use super::executable::{Executable, ExecutableError};
use super::memory::DeviceBuffer;
use super::stream::{Event, Stream};
use std::sync::Arc;

/// How work is timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeOptions {
    /// Repetitions before those that count.
    pub warmup: usize,
    /// Repetitions that count.
    pub replays: usize,
    /// Overwrites the second-level cache before each repetition, so that it finds nothing there.
    pub flush_l2: bool,
}

impl Default for TimeOptions {
    fn default() -> Self {
        Self { warmup: 3, replays: 20, flush_l2: false }
    }
}

/// Repetitions that are enqueued together: enough that the device does not wait for the host, few enough that its queue
/// takes them.
const BATCH: usize = 32;

/// Times what `enqueue` puts into the stream: microseconds of each repetition that counts.
///
/// Repetitions are enqueued one behind the other, so a time is that from the end of one repetition, or of the flushing
/// before this one, to the end of this one.
///
/// # Errors
/// Those of `enqueue`, or if the device fails.
pub fn time_on_device<E: From<CudaError>>(
    stream: &Stream,
    options: &TimeOptions,
    mut enqueue: impl FnMut() -> Result<(), E>,
) -> Result<Vec<f64>, E> {
    let flush = options.flush_l2.then(|| flush_buffer(stream.context())).transpose()?;
    let context = stream.context();
    let event = |_| Event::new(context);
    let events = (0..2 * BATCH.min(options.replays)).map(event).collect::<Result<Vec<_>, _>>()?;
    (0..options.warmup).try_for_each(|_| enqueue())?;
    let mut times_us = Vec::with_capacity(options.replays);
    while times_us.len() < options.replays {
        let batch = BATCH.min(options.replays - times_us.len());
        for pair in events.chunks_exact(2).take(batch) {
            if let Some(flush) = &flush {
                flush.fill(stream, 0)?;
            }
            pair[0].record(stream)?;
            enqueue()?;
            pair[1].record(stream)?;
        }
        stream.synchronize()?;
        for pair in events.chunks_exact(2).take(batch) {
            times_us.push(pair[1].elapsed_us(&pair[0])?);
        }
    }
    Ok(times_us)
}

/// Memory whose overwriting leaves nothing else in the second-level cache.
fn flush_buffer(context: &Context) -> Result<DeviceBuffer, CudaError> {
    let bytes = usize::try_from(2 * context.device().info().l2_bytes).unwrap_or(usize::MAX);
    DeviceBuffer::new(context, bytes, "flushing the second-level cache")
}

impl Executable {
    /// Times whole runs, in the way that the executable was prepared for, on the inputs that are on the device:
    /// microseconds of each.
    ///
    /// # Errors
    /// If a host routine fails, or the device does.
    pub fn time_runs(&mut self, options: &TimeOptions) -> Result<Vec<f64>, ExecutableError> {
        let stream = Arc::clone(self.stream());
        let times = time_on_device(&stream, options, || self.enqueue());
        self.end_timing(times)
    }

    /// Times one step alone, on the tensors that are on the device: microseconds of each repetition.
    ///
    /// # Errors
    /// If it is a host routine that fails, or the device does.
    pub fn time_step(&mut self, step: usize, options: &TimeOptions) -> Result<Vec<f64>, ExecutableError> {
        let stream = Arc::clone(self.stream());
        let times = time_on_device(&stream, options, || self.run_step(step));
        self.end_timing(times)
    }

    fn end_timing(&mut self, times: Result<Vec<f64>, ExecutableError>) -> Result<Vec<f64>, ExecutableError> {
        let times = times.map_err(|error| match error {
            ExecutableError::Cuda(error) => self.blame(error).into(),
            other => other,
        })?;
        self.wait()?;
        Ok(times)
    }
}
