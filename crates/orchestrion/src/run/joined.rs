//! Which consecutive steps of a CPU run as one loop over the work items of all of them.
//!
//! Plans put steps that do not depend on each other next to each other, in memory of their own, whatever the number of threads. A run
//! decides, for its threads, which of them are joined: those that are modelled to gain by it.

use super::launch::buffer_ref;
use crate::manifest::{ActionInfo, Device, Manifest, StepInfo};
use crate::plan::sharing::{SharedWork, gains, joined_us, pieces, separate_us};
use orch_runtime::conflict;
use orch_runtime::cpu::{JoinedLaunches, Piece};
use orch_runtime::program::BufferRef;
use serde::Serialize;
use std::ops::Range;

/// Consecutive steps that run together.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct JoinedSteps {
    /// The steps, two or more.
    pub steps: Range<usize>,
    /// Modelled microseconds that it saves.
    pub saved_us: f64,
}

/// The steps that run together on so many threads of a CPU, in order: each range as long as one more step is modelled to gain.
pub fn joined_steps(manifest: &Manifest, threads: usize) -> Vec<JoinedSteps> {
    if manifest.device != Device::Cpu || threads < 2 {
        return Vec::new();
    }
    let mut joined = Vec::new();
    let mut open = OpenSteps::default();
    for (number, step) in manifest.steps.iter().enumerate() {
        let Some(work) = work(manifest, step) else {
            joined.extend(open.close(number, threads));
            continue;
        };
        let ranges = ranges(manifest, step);
        let is_independent = !open.ranges.iter().any(|other| conflict(other, &ranges));
        if !(is_independent && !open.works.is_empty() && gains(&open.works, work, threads)) {
            joined.extend(open.close(number, threads));
        }
        open.works.push(work);
        open.ranges.push(ranges);
    }
    joined.extend(open.close(manifest.steps.len(), threads));
    joined
}

/// The same, with the work items cut for the threads.
pub fn joined(manifest: &Manifest, threads: usize) -> Vec<JoinedLaunches> {
    let cut = |JoinedSteps { steps, .. }: JoinedSteps| {
        let works: Vec<SharedWork> =
            manifest.steps[steps.clone()].iter().filter_map(|step| work(manifest, step)).collect();
        let pieces = pieces(&works, threads).into_iter().map(|piece| Piece {
            step: steps.start + piece.launch,
            tasks: piece.tasks.start as i64..piece.tasks.end as i64,
        });
        JoinedLaunches { pieces: pieces.collect(), steps }
    };
    joined_steps(manifest, threads).into_iter().map(cut).collect()
}

/// Steps that so far run together.
#[derive(Default)]
struct OpenSteps {
    works: Vec<SharedWork>,
    ranges: Vec<Vec<BufferRef>>,
}

impl OpenSteps {
    /// Empties it; the steps, if they are several, which end before this one.
    fn close(&mut self, end: usize, threads: usize) -> Option<JoinedSteps> {
        self.ranges.clear();
        let works = std::mem::take(&mut self.works);
        let apart_us: f64 = works.iter().map(|work| separate_us(*work, threads)).sum();
        (works.len() > 1).then(|| JoinedSteps {
            steps: end - works.len()..end,
            saved_us: apart_us - joined_us(&works, threads),
        })
    }
}

/// What a step has to share; `None` if it launches no kernel, or one of several phases.
fn work(manifest: &Manifest, step: &StepInfo) -> Option<SharedWork> {
    match &step.action {
        ActionInfo::Kernel(kernel) => {
            let kernel = manifest.kernels.get(*kernel).filter(|kernel| kernel.phases == 1)?;
            // More than the runtime counts is none, as there.
            let tasks = i64::try_from(kernel.tasks).map_or(0, |_| kernel.tasks);
            Some(SharedWork { tasks, alone_us: step.alone_us })
        }
        ActionInfo::Copy | ActionInfo::Host { .. } => None,
    }
}

/// The memory of a step, where an output that updates an input is that input.
fn ranges(manifest: &Manifest, step: &StepInfo) -> Vec<BufferRef> {
    step.slots.iter().map(|slot| buffer_ref(slot).identity(&manifest.updates)).collect()
}
