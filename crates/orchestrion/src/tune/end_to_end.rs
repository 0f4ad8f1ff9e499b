//! Stage "select end to end": plans timed as whole executables. Kernels of a GPU overlap, and on every device single times may be wrong, so
//! that a plan by measured times stays only if as a whole it is faster than the untuned one.

use super::budget::{Budget, Phase};
use super::select::fastest;
use crate::manifest::{ActionInfo, Device, Port, typed};
use crate::plan::planned::EndToEndTime;
use crate::run::executable::{Executable, OutputBuffers, RunContext};
use crate::run::launch::noise;
use crate::run::options::{DeviceCache, RunOptions};
use crate::{Artifact, Error, Options};
use orch_ir::Tensor;
use orch_runtime::view::TensorView;
use orch_tune::Database;
use std::time::Instant;

/// Rounds of the timing, and runs of each plan in each but the first; one if a run takes so many microseconds.
const ROUNDS: usize = 8;
const RUNS: usize = 10;
const LONG_US: f64 = 1000.0;

/// Runs of each plan from which on their median says which is faster.
const LEAST_RUNS: usize = 7;

/// The number of the fastest plan. Plans without a time lose.
pub fn winner(times: &[Option<f64>]) -> usize {
    fastest(times).map_or(0, |(number, _)| number)
}

/// The times that there are, the winner's first; none if it has none.
pub fn ordered(mut times: Vec<Option<f64>>, winner: usize) -> Vec<f64> {
    match times.get_mut(..=winner) {
        Some(first) if first[winner].is_some() => first.rotate_right(1),
        _ => return Vec::new(),
    }
    times.into_iter().flatten().collect()
}

/// Microseconds of a run of each artifact, on noise, on a GPU with a cold L2; `None` of those that the device does not take, and of all
/// where time was up before enough runs. The times are stored.
///
/// # Errors
/// If the device fails.
pub fn times(
    artifacts: &[Artifact],
    plans: &[EndToEndTime],
    budget: &Budget,
    options: &Options,
) -> Result<Vec<Option<f64>>, Error> {
    let times = times_in_turns(artifacts, budget, options)?;
    if let Ok(database) = Database::open(&options.cache_dir) {
        for (plan, time) in plans.iter().zip(&times) {
            // A time that cannot be stored is measured again.
            let _ = time.map(|time| database.put(&plan.key, &time));
        }
    }
    Ok(times)
}

/// The same without storing them.
///
/// # Errors
/// If the device fails.
pub fn times_in_turns(
    artifacts: &[Artifact],
    budget: &Budget,
    options: &Options,
) -> Result<Vec<Option<f64>>, Error> {
    // Several may be more than the device's memory holds.
    let mut timed: Vec<Option<TimedPlan>> =
        artifacts.iter().map(|artifact| TimedPlan::load(artifact, options).ok()).collect();
    race(artifacts.len(), budget, options, &mut |plan, runs| match &mut timed[plan] {
        Some(plan) => plan.times_us(runs),
        None => Ok(Vec::new()),
    })
}

/// Median microseconds of plans that are run in turns, because a machine is faster at one time than at another: `run` gives times of some
/// runs of a plan, none of one that cannot run. All are `None` if time is up before there are enough runs.
pub fn race(
    plans: usize,
    budget: &Budget,
    options: &Options,
    run: &mut dyn FnMut(usize, usize) -> Result<Vec<f64>, Error>,
) -> Result<Vec<Option<f64>>, Error> {
    let deadline = budget.deadline(Phase::Plans);
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); plans];
    for round in 0..ROUNDS {
        if budget.is_over(deadline) {
            if times.iter().any(|times| !times.is_empty() && times.len() < LEAST_RUNS) || round == 0 {
                (1..plans).for_each(|plan| budget.leave_out(Phase::Plans, plan));
                return Ok(vec![None; plans]);
            }
            break;
        }
        for (plan, times) in times.iter_mut().enumerate() {
            let runs = if times.first().is_some_and(|&us| us < LONG_US) { RUNS } else { 1 };
            times.extend(run(plan, runs)?);
        }
        if let Some(best_us) = times.iter().filter_map(|times| median(times)).min_by(f64::total_cmp) {
            options.progress.note(&format!("{best_us:.1} us so far"));
        }
    }
    Ok(times.iter().map(|times| median(times)).collect())
}

fn median(times: &[f64]) -> Option<f64> {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// A plan with inputs, ready to be timed.
struct TimedPlan {
    context: RunContext,
    inputs: Vec<Tensor>,
    outputs: OutputBuffers,
}

impl TimedPlan {
    /// Loads a plan and runs it once.
    fn load(artifact: &Artifact, options: &Options) -> Result<Self, Error> {
        // All plans are timed alike, whatever was chosen for one of them.
        let run_options = RunOptions { cache_dir: None, ..RunOptions::of(options, 0) };
        let mut context = Executable::load(artifact.clone(), run_options)?.context()?;
        let inputs: Vec<Tensor> = artifact.manifest.inputs.iter().map(any_value).collect::<Result<_, _>>()?;
        let mut outputs = OutputBuffers::new(&artifact.manifest)?;
        context.run_views(&views(&inputs), &mut outputs.views())?;
        Ok(Self { context, inputs, outputs })
    }

    /// Microseconds of runs: by the GPU's own clock, or by the host's where it has none or steps run on the host.
    fn times_us(&mut self, runs: usize) -> Result<Vec<f64>, Error> {
        let manifest = self.context.manifest();
        let has_host_steps = manifest.steps.iter().any(|step| matches!(step.action, ActionInfo::Host { .. }));
        if manifest.device == Device::Cuda && !has_host_steps {
            return self.context.device_times_us(runs, DeviceCache::Cold);
        }
        (0..runs).map(|_| self.time_us()).collect()
    }

    fn time_us(&mut self) -> Result<f64, Error> {
        let (inputs, mut outputs) = (views(&self.inputs), self.outputs.views());
        let start = Instant::now();
        self.context.run_again(&inputs, &mut outputs)?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }
}

fn views(inputs: &[Tensor]) -> Vec<TensorView<'_>> {
    inputs.iter().map(TensorView::from).collect()
}

/// Noise for floats; zeros, which are indices of something, for others.
fn any_value(port: &Port) -> Result<Tensor, Error> {
    let (dtype, shape) = typed(&port.dtype, &port.shape)?;
    let bytes = dtype.size_bytes() * shape.elems();
    let bytes = if dtype.is_float() { noise(bytes) } else { vec![0; bytes] };
    Tensor::from_bytes(dtype, shape, bytes.into()).map_err(Error::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_of_the_least_sum_wins_unless_another_is_clearly_faster() {
        assert_eq!(winner(&[Some(10.0), Some(9.9), None]), 0);
        assert_eq!(winner(&[Some(10.0), Some(9.0), Some(8.0), None]), 2);
        assert_eq!(winner(&[None, Some(9.0)]), 1);
        assert_eq!(winner(&[None, None]), 0);
        assert_eq!(winner(&[]), 0);
        assert_eq!(ordered(vec![Some(10.0), Some(9.0), None, Some(8.0)], 3), [8.0, 10.0, 9.0]);
        assert_eq!(ordered(vec![None, None], 0), [0.0; 0]);
        assert_eq!(ordered(Vec::new(), 0), [0.0; 0]);
    }
}
