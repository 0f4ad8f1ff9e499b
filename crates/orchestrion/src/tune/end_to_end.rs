//! Stage "select end to end": alternative plans timed as whole executables, because kernels of a GPU overlap.

use super::select::fastest;
use crate::manifest::{Port, typed};
use crate::plan::planned::EndToEndTime;
use crate::run::executable::{Executable, RunContext};
use crate::run::launch::noise;
use crate::run::options::{DeviceCache, RunOptions};
use crate::{Artifact, Error, Options};
use orch_ir::Tensor;
use orch_tune::Database;

/// Rounds of the timing, and runs of each plan in each but the first; one if a run takes so many microseconds.
const ROUNDS: usize = 8;
const RUNS: usize = 10;
const LONG_US: f64 = 1000.0;

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

/// Microseconds of a run of each artifact, on noise and with a cold L2; `None` of those that the
/// device does not take. The times are stored.
///
/// # Errors
/// If the device fails.
pub fn times(
    artifacts: &[Artifact],
    plans: &[EndToEndTime],
    options: &Options,
) -> Result<Vec<Option<f64>>, Error> {
    let run_options = RunOptions { cuda: options.cuda.clone(), ..RunOptions::default() };
    let load = |artifact: &Artifact| -> Result<RunContext, Error> {
        let mut context = Executable::load(artifact.clone(), run_options.clone())?.context()?;
        let inputs: Vec<Tensor> = artifact.manifest.inputs.iter().map(any_value).collect::<Result<_, _>>()?;
        context.run(&inputs)?;
        Ok(context)
    };
    // Several may be more than the device's memory holds.
    let mut contexts: Vec<Option<RunContext>> =
        artifacts.iter().map(|artifact| load(artifact).ok()).collect();
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); artifacts.len()];
    for _ in 0..ROUNDS {
        for (context, times) in contexts.iter_mut().zip(&mut times) {
            if let Some(context) = context {
                let runs = if times.first().is_some_and(|&us| us < LONG_US) { RUNS } else { 1 };
                times.extend(context.device_times_us(runs, DeviceCache::Cold)?);
            }
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    };
    let times: Vec<Option<f64>> = times.into_iter().map(median).collect();
    if let Ok(database) = Database::open(&options.cache_dir) {
        for (plan, time) in plans.iter().zip(&times) {
            // A time that cannot be stored is measured again.
            let _ = time.map(|time| database.put(&plan.key, &time));
        }
    }
    Ok(times)
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
