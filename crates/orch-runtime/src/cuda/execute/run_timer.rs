//! Times of runs that are made anyway: an event before and one after, which nothing waits for. A run that makes a graph is not timed.

use super::executable::{CudaExecutable, ExecutableError, Execution};
use crate::cuda::driver::error::CudaError;
use crate::cuda::driver::stream::{Event, Stream};
use std::collections::VecDeque;
use std::time::Instant;

/// What a run took.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TimedRun {
    /// The number that it was given.
    pub number: u64,
    /// How its steps reached the device.
    pub execution: Execution,
    /// Microseconds in which the host set addresses and enqueued the steps.
    pub host_us: f64,
    /// Microseconds from its begin to its end by the device's clock. In an idle stream they include the host's.
    pub device_us: f64,
    /// Whether the stream was idle when the run began: the timed run before had ended.
    pub was_idle: bool,
}

/// The runs that are timed.
#[derive(Default)]
pub(super) struct RunTimer {
    /// The number of runs from now on; `None` if they are not timed.
    number: Option<u64>,
    /// Those that may not have ended, in order.
    open: VecDeque<OpenRun>,
    /// Events of those that have.
    spare: Vec<Event>,
}

struct OpenRun {
    number: u64,
    execution: Execution,
    host_us: f64,
    was_idle: bool,
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
    /// The number under which runs from now on are timed; `None` if they are not. Runs that are captured never are, nor the first one in
    /// a way of execution, which makes its graph.
    pub fn set_timed(&mut self, number: Option<u64>) {
        self.timer.number = number;
    }

    /// The times of those timed runs that have ended, in order; each is told once.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn timed_runs(&mut self) -> Result<Vec<TimedRun>, CudaError> {
        let mut ended = Vec::new();
        while let Some(OpenRun { number, execution, host_us, was_idle, begin, end }) = self.timer.open.front()
        {
            if !end.is_reached()? {
                break;
            }
            let device_us = end.elapsed_us(begin)?;
            let run = TimedRun {
                number: *number,
                execution: *execution,
                host_us: *host_us,
                device_us,
                was_idle: *was_idle,
            };
            ended.push(run);
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
        let Some(number) = self.timer.number else {
            self.has_new_form = false;
            return enqueue(self);
        };
        let was_idle = match self.timer.open.back() {
            Some(before) => before.end.is_reached()?,
            None => true,
        };
        let begin = self.timer.event(&self.current)?;
        let start = Instant::now();
        enqueue(self)?;
        let host_us = start.elapsed().as_secs_f64() * 1e6;
        if std::mem::take(&mut self.has_new_form) {
            self.timer.spare.push(begin);
            return Ok(());
        }
        let end = self.timer.event(&self.current)?;
        self.timer.open.push_back(OpenRun {
            number,
            execution: self.execution,
            host_us,
            was_idle,
            begin,
            end,
        });
        Ok(())
    }
}
