//! Runs one after the other in one graph: the time of a run on a device that has the next one enqueued.

use super::executable::{CudaExecutable, ExecutableError};
use super::form::GraphEnd;
use super::graph::{Graph, GraphBuilder};
use super::launch::Action;
use super::timing::{TimeOptions, time_on_device};
use crate::cuda::driver::error::CudaError;
use crate::cuda::driver::stream::Stream;

/// Runs of a program in a row, as one graph: each on tensors of its own, so that together they can be larger than a cache;
/// constants are shared. The first kernel of a run may start before the run before has ended, as kernels of one run do.
pub struct Row {
    // Fields drop in order: the graph before what its nodes point to.
    graph: Graph,
    runs: Vec<CudaExecutable>,
}

impl Row {
    /// `runs` (at least one) of a program, on the inputs that are on the device; `None` if host routines are among its steps,
    /// which cannot be in a graph.
    ///
    /// # Errors
    /// If the device lacks memory.
    pub fn new(executable: &CudaExecutable, runs: usize) -> Result<Option<Self>, ExecutableError> {
        let steps = &executable.program().steps;
        if steps.iter().any(|step| matches!(step.action, Action::Host(_))) {
            return Ok(None);
        }
        let runs = (0..runs.max(1)).map(|_| executable.duplicate_with_inputs());
        let runs = runs.collect::<Result<Vec<_>, _>>()?;
        let stream = runs[0].stream();
        let builder = GraphBuilder::new(stream.context())?;
        let mut end = GraphEnd::default();
        for run in &runs {
            end = run.add_steps(&builder, 0..steps.len(), end)?.end;
        }
        Ok(Some(Self { graph: builder.build(stream)?, runs }))
    }

    /// The runs, in order: each with its outputs.
    pub fn runs_mut(&mut self) -> &mut [CudaExecutable] {
        &mut self.runs
    }

    /// Runs all of them, and waits.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(&self) -> Result<(), CudaError> {
        self.launch()?;
        self.stream().synchronize()
    }

    /// Times all of them: microseconds of one run, which is an equal share, for each repetition.
    ///
    /// # Errors
    /// If the device fails.
    pub fn time(&self, options: &TimeOptions) -> Result<Vec<f64>, CudaError> {
        let times_us = time_on_device(self.stream(), options, || self.launch())?;
        Ok(times_us.into_iter().map(|time_us| time_us / self.runs.len() as f64).collect())
    }

    fn stream(&self) -> &Stream {
        self.runs[0].stream()
    }

    fn launch(&self) -> Result<(), CudaError> {
        self.graph.launch(self.stream(), || format!("launching {} runs in a row", self.runs.len()))
    }
}
