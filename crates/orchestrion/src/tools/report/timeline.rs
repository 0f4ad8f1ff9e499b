//! When each step of a run takes place: the steps of a CPU one after the other, those of a GPU as soon as what they depend on has ended.

use crate::manifest::{Device, Manifest};
use crate::run::launch::buffer_ref;
use orch_runtime::dependencies;
use serde::Serialize;

/// When steps run. Each takes as long as alone; whether the device has room for those that overlap is not modelled.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Timeline {
    /// By step.
    pub spans: Vec<Span>,
    /// Microseconds until the last step has ended.
    pub end_us: f64,
    /// For each step the earlier ones that it waits for.
    pub waits: Vec<Vec<usize>>,
}

/// When a step runs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Span {
    /// Microseconds from the start of the run.
    pub start_us: f64,
    /// Microseconds.
    pub duration_us: f64,
    /// True if the duration was measured, of the step alone; modelled otherwise. Starts follow from durations.
    pub is_measured: bool,
    /// Steps that overlap are in different lanes.
    pub lane: usize,
}

/// Shortest difference that counts as time passing.
const EPSILON_US: f64 = 1e-9;

/// When each step runs.
pub fn timeline(manifest: &Manifest, measured_us: &[Option<f64>]) -> Timeline {
    let waits = waits(manifest);
    let mut spans: Vec<Span> = Vec::with_capacity(manifest.steps.len());
    let mut lanes: Vec<f64> = Vec::new();
    for (number, step) in manifest.steps.iter().enumerate() {
        let measured = measured_us.get(number).copied().flatten();
        let duration_us = measured.unwrap_or(step.cost_us).max(0.0);
        let end = |&earlier: &usize| spans[earlier].start_us + spans[earlier].duration_us;
        let start_us = waits[number].iter().map(end).fold(0.0, f64::max);
        let free = lanes.iter().position(|&until| until <= start_us + EPSILON_US);
        let lane = free.unwrap_or_else(|| {
            lanes.push(0.0);
            lanes.len() - 1
        });
        lanes[lane] = start_us + duration_us;
        spans.push(Span { start_us, duration_us, is_measured: measured.is_some(), lane });
    }
    Timeline { end_us: lanes.iter().copied().fold(0.0, f64::max), spans, waits }
}

/// The earlier steps that each step waits for.
fn waits(manifest: &Manifest) -> Vec<Vec<usize>> {
    let steps = &manifest.steps;
    match manifest.device {
        Device::Cpu => (0..steps.len()).map(|step| step.checked_sub(1).into_iter().collect()).collect(),
        Device::Cuda => {
            let mut waits = Vec::with_capacity(steps.len());
            // Between steps of the host all others are one graph.
            for part in steps.chunk_by(|a, b| !a.is_on_host() && !b.is_on_host()) {
                let first = waits.len();
                let ranges: Vec<_> =
                    part.iter().map(|step| step.slots.iter().map(buffer_ref).collect()).collect();
                let last_ones = ends(&waits);
                for own in dependencies(&ranges) {
                    let within: Vec<usize> = own.into_iter().map(|step| first + step).collect();
                    waits.push(if within.is_empty() { last_ones.clone() } else { within });
                }
            }
            waits
        }
    }
}

/// Steps that no other one waits for.
fn ends(waits: &[Vec<usize>]) -> Vec<usize> {
    let mut is_end = vec![true; waits.len()];
    waits.iter().flatten().for_each(|&step| is_end[step] = false);
    (0..waits.len()).filter(|&step| is_end[step]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{ActionInfo, SlotMemory};
    use crate::testing::{manifest, slot};

    #[test]
    fn branches_overlap_on_gpus_only() {
        let (arena, input) = (SlotMemory::Arena, SlotMemory::Input(0));
        let mut plan = manifest(&[
            &[slot(input, 8, false), slot(arena(0), 8, true)],
            &[slot(input, 8, false), slot(arena(8), 8, true)],
            &[slot(arena(0), 16, false), slot(arena(16), 8, true)],
        ]);
        let found = timeline(&plan, &[Some(3.0), None, None]);
        let spans: Vec<_> =
            found.spans.iter().map(|span| (span.start_us, span.lane, span.is_measured)).collect();
        assert_eq!(spans, [(0.0, 0, true), (0.0, 1, false), (3.0, 0, false)]);
        assert_eq!((found.end_us, &found.waits), (4.0, &vec![vec![], vec![], vec![0, 1]]));
        // A step on the host waits for all, and all for it.
        plan.steps[1].action = ActionInfo::Host { graph: String::new(), layouts: Vec::new() };
        assert_eq!(timeline(&plan, &[]).waits, [vec![], vec![0], vec![1]]);
        plan.device = Device::Cpu;
        assert_eq!(timeline(&plan, &[]).end_us, 3.0);
    }
}
