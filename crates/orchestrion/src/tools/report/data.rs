//! The report as a value.

use super::lives::{TensorLife, tensor_lives};
use super::timeline::{Timeline, timeline};
use crate::manifest::{ActionInfo, Device, Manifest};
use crate::run::joined::{JoinedSteps, joined_steps};
use crate::run::launch::starts_early;
use crate::run::launches::LaunchChoice;
use crate::tools::plan_text::{self, Measured};
use crate::{Error, RunContext, Tensor};
use serde::Serialize;
use std::collections::HashMap;
use std::time::Instant;

/// A plan, and what was measured of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The plan, as the `.orc` file has it.
    pub manifest: Manifest,
    /// Median microseconds of each step alone; `None` where it was not measured.
    pub measured_us: Vec<Option<f64>>,
    /// Whether library calls beside kernels are made here; `None` where that is not known.
    pub calls: Vec<Option<CallHere>>,
    /// Median microseconds of a whole run by the host's clock; `None` if it was not measured.
    pub run_us: Option<f64>,
    /// The steps by kernel, those that take most first.
    pub by_kernel: Vec<KernelSteps>,
    /// When each step runs.
    pub timeline: Timeline,
    /// The tensors that steps write, and how long each lives.
    pub lives: Vec<TensorLife>,
    /// The steps of a CPU that run together on as many threads as were planned for.
    pub joined: Vec<JoinedSteps>,
    /// How the device is given the steps, and why so, for people.
    pub launches: Vec<String>,
    /// What might make the model faster, for people.
    pub advice: Vec<String>,
}

/// Whether a library call beside a kernel is made on this machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CallHere {
    /// This release of the library is called.
    Called(String),
    /// The kernel runs, for this reason.
    NotCalled(String),
}

impl From<Result<String, String>> for CallHere {
    fn from(call: Result<String, String>) -> Self {
        call.map_or_else(Self::NotCalled, Self::Called)
    }
}

/// What was measured of a plan.
#[derive(Clone, Default, Debug)]
pub struct Measurements {
    /// Of each step; empty if nothing was measured.
    pub steps: Vec<Measured>,
    /// Median microseconds of a whole run by the host's clock.
    pub run_us: Option<f64>,
    /// How steps reach a GPU at the least cost.
    pub launches: Option<LaunchChoice>,
}

/// Whole runs whose median is shown.
const RUNS: usize = 7;

/// Runs the model on these inputs, step by step and as a whole.
///
/// # Errors
/// As [`RunContext::run`].
pub fn measure(context: &mut RunContext, inputs: &[Tensor]) -> Result<Measurements, Error> {
    let steps = plan_text::measure(context, inputs)?;
    let launches = context.choose_launches()?;
    let mut times_us = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let start = Instant::now();
        context.run(inputs)?;
        times_us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times_us.sort_by(f64::total_cmp);
    Ok(Measurements { steps, run_us: Some(times_us[RUNS / 2]), launches })
}

/// The steps that launch one kernel, or one step that launches none.
#[derive(Clone, Default, Debug, Serialize)]
pub struct KernelSteps {
    /// In the order of the plan.
    pub steps: Vec<usize>,
    /// What they take together: measured where that is known, otherwise modelled.
    pub us: f64,
    /// What their arithmetic and traffic take at least; `None` if that is not known of each.
    pub roofline_us: Option<f64>,
}

impl Report {
    /// The report of a plan, but for what might make it faster.
    pub fn without_advice(manifest: &Manifest, measured: &Measurements) -> Self {
        let of = |step: usize| measured.steps.get(step);
        let steps = 0..manifest.steps.len();
        let joined = joined_steps(manifest, manifest.planned_threads().unwrap_or(0));
        let measured_us: Vec<Option<f64>> = steps.clone().map(|step| of(step)?.median_us).collect();
        Self {
            by_kernel: by_kernel(manifest, &measured_us),
            timeline: timeline(manifest, &measured_us),
            measured_us,
            calls: steps.map(|step| of(step)?.call.clone().map(CallHere::from)).collect(),
            run_us: measured.run_us,
            lives: tensor_lives(manifest),
            launches: launches(manifest, &joined, measured.launches),
            joined,
            advice: Vec::new(),
            manifest: manifest.clone(),
        }
    }

    /// True if each step was measured.
    pub fn is_measured(&self) -> bool {
        !self.measured_us.is_empty() && self.measured_us.iter().all(Option::is_some)
    }

    /// What a step takes: measured if that is known, otherwise modelled.
    pub fn step_us(&self, step: usize) -> f64 {
        let measured = self.measured_us.get(step).copied().flatten();
        measured.unwrap_or_else(|| self.manifest.steps.get(step).map_or(0.0, |step| step.cost_us))
    }
}

/// The steps by kernel, those that take most first.
fn by_kernel(manifest: &Manifest, measured_us: &[Option<f64>]) -> Vec<KernelSteps> {
    let mut all: Vec<KernelSteps> = Vec::new();
    let mut of_kernel: HashMap<usize, usize> = HashMap::new();
    for (number, step) in manifest.steps.iter().enumerate() {
        let new = all.len();
        let at = match step.action {
            ActionInfo::Kernel(kernel) => *of_kernel.entry(kernel).or_insert(new),
            ActionInfo::Copy | ActionInfo::Host { .. } => new,
        };
        if at == new {
            all.push(KernelSteps { roofline_us: Some(0.0), ..KernelSteps::default() });
        }
        let entry = &mut all[at];
        entry.steps.push(number);
        entry.us += measured_us[number].unwrap_or(step.cost_us);
        let roofline_us = Some(step.roofline_us).filter(|&us| us > 0.0);
        entry.roofline_us = entry.roofline_us.zip(roofline_us).map(|(sum, us)| sum + us);
    }
    all.sort_by(|a, b| b.us.total_cmp(&a.us));
    all
}

/// How the device is given the steps.
fn launches(manifest: &Manifest, joined: &[JoinedSteps], chosen: Option<LaunchChoice>) -> Vec<String> {
    let host = manifest.steps.iter().filter(|step| step.is_on_host()).count();
    match manifest.device {
        Device::Cpu => {
            let steps: usize = joined.iter().map(|joined| joined.steps.len()).sum();
            let saved_us: f64 = joined.iter().map(|joined| joined.saved_us).sum();
            let together = (steps > 0).then(|| {
                let threads = manifest.planned_threads().unwrap_or(1);
                format!(
                    "on {threads} threads, {steps} of them run together with independent ones next to them, as one list of work items: \
                     modelled to save {saved_us:.1} us"
                )
            });
            let first =
                "the steps run one after the other; the work items of a kernel are shared among threads";
            std::iter::once(first.to_owned()).chain(together).collect()
        }
        Device::Cuda => {
            let way = match chosen {
                Some(choice) => choice.to_string(),
                None => "launch by launch, as a CUDA graph in one line, or as one with branches where steps share no bytes: the first runs \
                         are timed and decide (not measured here)"
                    .to_owned(),
            };
            let host = (host > 0).then(|| format!("{host} steps run on the host, between graphs"));
            let early = if starts_early(manifest) {
                "kernels are launched before their predecessors have ended (programmatic dependent launch): measured on an H200, \
                 that saves up to a tenth of a model's time in half precision"
            } else {
                "kernels are launched when their predecessors have ended: programmatic dependent launch is for half precision on \
                 GPUs that have it, and in f32 cost up to a fifth on an H200"
            };
            [way].into_iter().chain(host).chain([early.to_owned()]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{KernelInfo, SlotMemory};
    use crate::testing::{manifest, slot};

    #[test]
    fn independent_steps_of_a_cpu_run_together() {
        let (input, output) = (SlotMemory::Input(0), SlotMemory::Output(0));
        let step = |to| [slot(input, 8, false), slot(SlotMemory::Arena(to), 8, true)];
        let read = [slot(SlotMemory::Arena(0), 8, false), slot(SlotMemory::Arena(64), 8, false)];
        let mut plan =
            manifest(&[&step(0), &step(64), &[read[0].clone(), read[1].clone(), slot(output, 8, true)]]);
        plan.device = Device::Cpu;
        plan.machine = "m; 8 threads".to_owned();
        plan.kernels = vec![KernelInfo {
            name: "k0".into(),
            symbol: "k0".into(),
            library: 0,
            tasks: 5,
            phases: 1,
            scratch_bytes: 0,
            arguments: Vec::new(),
            fingerprint: String::new(),
            cta: None,
            schedule: String::new(),
            call: None,
            source: String::new(),
        }];
        for step in &mut plan.steps {
            (step.action, step.alone_us) = (ActionInfo::Kernel(0), 100.0);
        }
        let report = Report::without_advice(&plan, &Measurements::default());
        // Each by itself takes 3 + 20 us, and both 3 + 40 with 5 and 5 of 8 threads.
        assert_eq!(report.joined, [JoinedSteps { steps: 0..2, saved_us: 3.0 }]);
        let line = "on 8 threads, 2 of them run together with independent ones next to them, as one list of work items: modelled to \
                    save 3.0 us";
        assert_eq!(report.launches[1..], [line]);
        let text = plan_text::text(&plan, &[]);
        assert!(text.contains("on 8 threads its work items are one list with those of step 1\n"), "{text}");
    }

    #[test]
    fn steps_of_one_kernel_are_counted_together() {
        let mut plan = manifest(&[&[][..]; 5]);
        for (step, kernel) in [(1, 0), (2, 1), (4, 1)] {
            plan.steps[step].action = ActionInfo::Kernel(kernel);
        }
        plan.steps[1].cost_us = 1.5;
        plan.steps[1].roofline_us = 0.0;
        let found = Report::without_advice(&plan, &Measurements::default()).by_kernel;
        let steps: Vec<&[usize]> = found.iter().map(|kernel| &kernel.steps[..]).collect();
        assert_eq!(steps, [&[2, 4][..], &[1], &[0], &[3]]);
        assert_eq!((found[0].us, found[0].roofline_us), (2.0, Some(1.0)));
        assert_eq!((found[1].us, found[1].roofline_us), (1.5, None));
        assert!(Report::without_advice(&manifest(&[]), &Measurements::default()).by_kernel.is_empty());
    }
}
