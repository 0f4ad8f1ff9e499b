//! What might make a model faster, by what is known of its plan.

use super::data::Report;
use crate::Precision;
use crate::manifest::Device;

/// A share of the run that is worth a word.
const WORTH: f64 = 0.05;

/// A plan that takes so many times its roofline has kernels that could be faster.
const FAR_FROM_ROOFLINE: f64 = 2.0;

/// What to try, what gains most first.
pub fn advice(report: &Report) -> Vec<String> {
    let manifest = &report.manifest;
    let mut found = Vec::new();
    let times_us: Vec<f64> = (0..manifest.steps.len()).map(|step| report.step_us(step)).collect();
    let all_us: f64 = times_us.iter().sum();
    let host = manifest.steps.iter().zip(&times_us).filter(|(step, _)| step.is_on_host());
    let host_us: f64 = host.map(|(_, us)| us).sum();
    if host_us > WORTH * all_us {
        found.push(format!(
            "{:.0} % of the time is steps on the host: docs/decisions/11-host-routines-are-interpreted.md says why",
            100.0 * host_us / all_us
        ));
    }
    let is_tuned = manifest.steps.iter().any(|step| step.tuned_us.is_some());
    let roofline_us: f64 = manifest.steps.iter().map(|step| step.roofline_us).sum();
    if !is_tuned && all_us > FAR_FROM_ROOFLINE * roofline_us {
        found.push("compile with --tune: kernels were chosen by a model and timed by nobody".to_owned());
    }
    if manifest.device == Device::Cuda && manifest.precision == Precision::F32 {
        found.push(
            "--precision tf32 or f16, if the model bears it: products of f32 do not use tensor cores"
                .to_owned(),
        );
    }
    if manifest.report.solver_gap > WORTH {
        found.push(format!(
            "the plan may be {:.0} % above the best one: a limit of the choice was met",
            100.0 * manifest.report.solver_gap
        ));
    }
    if !report.is_measured() {
        found.push("explain --measure: no step was timed here".to_owned());
    }
    found
}
