//! Times of work on a device, by the device's own clock.

use super::executable::{CudaExecutable, ExecutableError};
use super::launch::{Action, CudaStep};
use crate::cuda::driver::device::Context;
use crate::cuda::driver::error::CudaError;
use crate::cuda::driver::memory::DeviceBuffer;
use crate::cuda::driver::stream::{Event, Stream};
use std::ops::Range;
use std::sync::Arc;

/// How work is timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeOptions {
    /// Repetitions before those that count.
    pub warmup: usize,
    /// Repetitions that count.
    pub replays: usize,
    /// Overwrites L2 before each repetition, so that it finds nothing there.
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
    enqueue: impl FnMut() -> Result<(), E>,
) -> Result<Vec<f64>, E> {
    time_batches(stream, options, None, enqueue)
}

/// As [`time_on_device`]; with a hold, a batch of repetitions starts when all of it is enqueued. Otherwise times of a few
/// microseconds vary by a tenth with the pace of the host: the device idles after a flush, or it does not.
fn time_batches<E: From<CudaError>>(
    stream: &Stream,
    options: &TimeOptions,
    mut hold: Option<&mut BatchHold>,
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
        if let Some(hold) = &mut hold {
            hold.close(stream)?;
        }
        let enqueued: Result<(), E> = events.chunks_exact(2).take(batch).try_for_each(|pair| {
            if let Some(flush) = &flush {
                flush.fill(stream, 0)?;
            }
            pair[0].record(stream)?;
            enqueue()?;
            Ok(pair[1].record(stream)?)
        });
        if let Some(hold) = &hold {
            hold.release()?;
        }
        enqueued?;
        stream.synchronize()?;
        for pair in events.chunks_exact(2).take(batch) {
            times_us.push(pair[1].elapsed_us(&pair[0])?);
        }
    }
    Ok(times_us)
}

/// A flag in device memory for which a stream waits until another stream sets it.
pub(in crate::cuda) struct BatchHold {
    flag: DeviceBuffer,
    releasing: Stream,
    /// The number of the batch, from 1 to 255 and round again: the flag holds it four times when the batch is released.
    batch: u8,
}

impl BatchHold {
    fn new(context: &Context) -> Result<Self, CudaError> {
        let flag = DeviceBuffer::new(context, size_of::<u32>(), "a flag for timing")?;
        let releasing = Stream::new(context)?;
        flag.fill(&releasing, 0)?;
        releasing.synchronize()?;
        Ok(Self { flag, releasing, batch: 0 })
    }

    /// Holds back what is enqueued on the stream from now on.
    fn close(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.batch = self.batch % u8::MAX + 1;
        stream.hold_until(self.flag.address(), u32::from_ne_bytes([self.batch; 4]))
    }

    /// Lets the stream go on.
    fn release(&self) -> Result<(), CudaError> {
        self.flag.fill(&self.releasing, self.batch)
    }
}

/// Most steps of a run of which a batch is held back: the driver's queue holds about a thousand launches, and a call that waits
/// for room in it while the batch is held would never return.
const MOST_HELD_STEPS: usize = 8;

/// A buffer of twice the size of L2: writing it evicts everything else.
fn flush_buffer(context: &Context) -> Result<DeviceBuffer, CudaError> {
    let bytes = usize::try_from(2 * context.device().info().l2_bytes).unwrap_or(usize::MAX);
    DeviceBuffer::new(context, bytes, "flushing L2")
}

impl CudaExecutable {
    /// Times whole runs, in the way that the executable was prepared for, on the inputs that are on the device:
    /// microseconds of each.
    ///
    /// # Errors
    /// If a host routine fails, or the device does.
    pub fn time_runs(&mut self, options: &TimeOptions) -> Result<Vec<f64>, ExecutableError> {
        let steps = 0..self.program().steps.len();
        self.time(steps, options, Self::enqueue)
    }

    /// Times a few steps that follow one another, on the tensors that are on the device: microseconds of each repetition.
    ///
    /// # Errors
    /// If one is a host routine that fails, or the device does.
    pub fn time_steps(
        &mut self,
        steps: Range<usize>,
        options: &TimeOptions,
    ) -> Result<Vec<f64>, ExecutableError> {
        self.time(steps.clone(), options, |executable| {
            steps.clone().try_for_each(|step| executable.run_step(step))
        })
    }

    /// Times what `enqueue` puts into the stream, which is these steps.
    fn time(
        &mut self,
        steps: Range<usize>,
        options: &TimeOptions,
        mut enqueue: impl FnMut(&mut Self) -> Result<(), ExecutableError>,
    ) -> Result<Vec<f64>, ExecutableError> {
        self.use_own()?;
        let stream = Arc::clone(self.stream());
        let mut hold = self.batch_hold(steps)?;
        let times = time_batches(&stream, options, hold.as_mut(), || enqueue(self));
        let times = times.map_err(|error| match error {
            ExecutableError::Cuda(error) => self.blame(error).into(),
            other => other,
        })?;
        self.wait()?;
        // After an error the device may still read the flag, so it is not reused.
        self.keep_batch_hold(hold);
        Ok(times)
    }

    /// The hold for batches of these steps; `None` if there are many, or if one waits for the device.
    fn batch_hold(&mut self, steps: Range<usize>) -> Result<Option<BatchHold>, CudaError> {
        let waits = self.waits_after_steps();
        let steps = &self.program().steps[steps];
        let is_held = |step: &CudaStep| !matches!(step.action, Action::Host(_));
        let may_hold = !waits && steps.len() <= MOST_HELD_STEPS && steps.iter().all(is_held);
        if !may_hold {
            return Ok(None);
        }
        self.take_batch_hold().map_or_else(|| BatchHold::new(self.stream().context()), Ok).map(Some)
    }
}
