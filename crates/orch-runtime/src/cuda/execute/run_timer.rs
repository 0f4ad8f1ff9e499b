//! Times of runs that are made anyway: an event before and one after, which nothing waits for.

use super::executable::{CudaExecutable, ExecutableError, Execution};
use crate::cuda::driver::error::CudaError;
use crate::cuda::driver::stream::{Event, Stream};
use std::collections::VecDeque;
use std::time::Instant;

/// What a run took.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TimedRun {
    /// How its steps reached the device.
    pub execution: Execution,
    /// Microseconds in which the host set addresses and enqueued the steps.
    pub host_us: f64,
    /// Microseconds from its begin to its end by the device's clock.
    pub device_us: f64,
}

/// The runs that are timed.
#[derive(Default)]
pub(super) struct RunTimer {
    /// Whether runs from now on are.
    is_on: bool,
    /// Those that may not have ended, in order.
    open: VecDeque<OpenRun>,
    /// Events of those that have.
    spare: Vec<Event>,
}

struct OpenRun {
    execution: Execution,
    host_us: f64,
    begin: Event,
    end: Event,
}

impl RunTimer {
    /// An event at the end of what the stream has been given.
    fn event(&mut self, stream: &Stream) -> Result<Event, CudaError> {
        let event = self.spare.pop().map_or_else(|| Event::new(stream.context()), Ok)?;
        event.record(stream)?;
        Ok(event)
    }
}

impl CudaExecutable {
    /// Whether runs from now on are timed, apart from those that are captured or have scratch.
    pub fn set_timed(&mut self, is_timed: bool) {
        self.timer.is_on = is_timed;
    }

    /// The times of those timed runs that have ended, in order; each is told once.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn timed_runs(&mut self) -> Result<Vec<TimedRun>, CudaError> {
        let mut ended = Vec::new();
        while let Some(OpenRun { execution, host_us, begin, end }) = self.timer.open.front() {
            if !end.is_reached()? {
                break;
            }
            let device_us = end.elapsed_us(begin)?;
            ended.push(TimedRun { execution: *execution, host_us: *host_us, device_us });
            let events = self.timer.open.pop_front().map(|run| [run.begin, run.end]);
            self.timer.spare.extend(events.into_iter().flatten());
        }
        Ok(ended)
    }

    /// Does what enqueues a run in the current stream, and times it if that is wanted.
    pub(super) fn timed(
        &mut self,
        enqueue: impl FnOnce(&mut Self) -> Result<(), ExecutableError>,
    ) -> Result<(), ExecutableError> {
        if !self.timer.is_on {
            return enqueue(self);
        }
        let begin = self.timer.event(&self.current)?;
        let start = Instant::now();
        enqueue(self)?;
        let host_us = start.elapsed().as_secs_f64() * 1e6;
        let end = self.timer.event(&self.current)?;
        self.timer.open.push_back(OpenRun { execution: self.execution, host_us, begin, end });
        Ok(())
    }
}
