//! A plan in words: what runs, what each kernel fuses, and what it costs.

use crate::manifest::{ActionInfo, CallInfo, CtaInfo, Device, KernelInfo, Manifest, ProvedPart, Resources};
use crate::run::joined::{JoinedSteps, joined_steps};
use crate::{Error, RunContext, Tensor};
use std::collections::BTreeSet;
use std::fmt::Write;

/// What a step took, and how it was done.
#[derive(Clone, Default, Debug)]
pub struct Measured {
    /// Median in microseconds; `None` if it was not measured.
    pub median_us: Option<f64>,
    /// Whether the library call beside its kernel was made, or why not.
    pub call: Option<Result<String, String>>,
}

/// Runs whose median is shown.
const MEASURED_RUNS: usize = 7;

/// Runs each step on these inputs.
///
/// # Errors
/// As [`RunContext::run`].
pub fn measure(context: &mut RunContext, inputs: &[Tensor]) -> Result<Vec<Measured>, Error> {
    let profile = context.profile(inputs, MEASURED_RUNS)?;
    let measured = profile.into_iter().enumerate().map(|(step, time)| Measured {
        median_us: Some(time.median_us),
        call: context.call_of(step).map(|call| call.map_err(str::to_owned)),
    });
    Ok(measured.collect())
}

/// All of the plan, with what each step took where that was measured.
pub fn text(manifest: &Manifest, measured: &[Measured]) -> String {
    let mut text = String::new();
    write_plan(manifest, measured, &mut text).expect("a string takes all text");
    text
}

/// The library call beside a kernel.
fn call(call: &CallInfo, measured: &Measured) -> String {
    let own = call.own_us.map_or_else(String::new, |us| format!(", which took {us:.1} us"));
    let now = match &measured.call {
        None => String::new(),
        Some(Ok(release)) => format!("; here {release} is called"),
        Some(Err(reason)) => format!("; here the kernel runs: {}", reason.lines().next().unwrap_or_default()),
    };
    format!("a call of {}, with the kernel below as fallback{own}{now}", call.release)
}

/// What the superoptimizer's kernels save, by the times that decided about them.
fn superoptimizer(manifest: &Manifest, without_us: f64) -> String {
    let found: Vec<usize> = manifest.steps.iter().filter_map(|step| step.proof).collect();
    let graphs = found.iter().collect::<BTreeSet<_>>().len();
    let (steps, graphs) = (counted(found.len(), "step"), counted(graphs, "µGraph"));
    let ratio = without_us / manifest.report.modelled_us.max(f64::MIN_POSITIVE);
    format!("superoptimizer: {steps} of {graphs}; without them {without_us:.1} us ({ratio:.2} times as long)")
}

fn counted(number: usize, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}

/// The steps that a step runs together with on so many threads.
fn together(number: usize, joined: &JoinedSteps, threads: usize) -> String {
    let others: Vec<String> =
        joined.steps.clone().filter(|&other| other != number).map(|other| other.to_string()).collect();
    let steps = if others.len() == 1 { "step" } else { "steps" };
    format!("on {threads} threads its work items are one list with those of {steps} {}", others.join(", "))
}

/// How a GPU launches a kernel, and what the compiler made of it.
fn launch(kernel: &KernelInfo, cta: &CtaInfo) -> String {
    let mut text = format!("{} blocks of {} threads", kernel.tasks, cta.threads);
    if cta.cluster > 1 {
        text += &format!(" in clusters of {}", cta.cluster);
    }
    if cta.is_cooperative {
        text += ", which wait for each other";
    }
    text += &format!(", {:.1} KiB shared", cta.shared_bytes as f64 / 1024.0);
    if let Some(Resources { registers, stack_bytes, spill_bytes }) = cta.resources {
        text +=
            &format!(", {registers} registers, {spill_bytes} bytes spilled, {stack_bytes} bytes of stack");
    }
    text
}

fn write_plan(manifest: &Manifest, measured: &[Measured], text: &mut String) -> std::fmt::Result {
    let report = &manifest.report;
    writeln!(
        text,
        "{} for {} in {}: {} operators -> {} primitives -> {} units -> {} candidates ({} distinct kernels) -> {} steps",
        manifest.model.name,
        manifest.target,
        manifest.precision.name(),
        report.operators,
        report.primitives,
        report.units,
        report.candidates,
        report.distinct_kernels,
        manifest.steps.len()
    )?;
    writeln!(
        text,
        "plan {} (gap {:.3} %), modelled {:.1} us, working memory {:.1} MiB",
        report.solver_status,
        report.solver_gap * 100.0,
        report.modelled_us,
        manifest.arena_bytes as f64 / f64::from(1 << 20)
    )?;
    if let Some(threads) = manifest.planned_threads() {
        writeln!(text, "planned for runs on 1 to {threads} threads; modelled times are of {threads}")?;
    }
    report.notes.iter().try_for_each(|note| writeln!(text, "note: {note}"))?;
    if !manifest.updates.is_empty() {
        let inputs = manifest.updates.iter().filter_map(|update| manifest.inputs.get(update.input));
        let names: Vec<&str> = inputs.map(|port| port.name.as_str()).collect();
        writeln!(
            text,
            "updated in place where the new value is given the same memory: {}",
            names.join(", ")
        )?;
    }
    if let Some(without_us) = report.without_superoptimizer_us {
        writeln!(text, "{}", superoptimizer(manifest, without_us))?;
    }
    if let [own_us, others @ ..] = &report.alternatives_us[..] {
        let cache = if manifest.device == Device::Cuda { ", with a cold cache" } else { "" };
        write!(text, "timed whole{cache}: {own_us:.1} us")?;
        let times: Vec<String> = others.iter().map(|us| format!("{us:.1}")).collect();
        match &times[..] {
            [] => writeln!(text, "; no other plan could be timed")?,
            _ => writeln!(text, ", other plans {} us", times.join(", "))?,
        }
    }
    for (stage, seconds) in &report.stage_seconds {
        writeln!(text, "  {stage:12} {:8.3} s", seconds)?;
    }
    let total: f64 = measured.iter().filter_map(|step| step.median_us).sum();
    let unmeasured = Measured::default();
    let threads = manifest.planned_threads().unwrap_or(0);
    let joined = joined_steps(manifest, threads);
    for (number, step) in manifest.steps.iter().enumerate() {
        let of_step = measured.get(number).unwrap_or(&unmeasured);
        let measured = of_step.median_us.map_or_else(String::new, |us| {
            let share = 100.0 * us / total.max(1e-9);
            let roofline = 100.0 * step.roofline_us / us.max(1e-3);
            let roofline =
                if roofline > 0.0 { format!(", {roofline:.0} % of roofline") } else { String::new() };
            let speed = step.flops / us.max(1e-3) / 1e3;
            format!(", measured {us:.1} us ({share:.1} %), {speed:.1} GFLOP/s{roofline}")
        });
        let tuned = step.tuned_us.map_or_else(String::new, |us| format!(", alone {us:.1} us"));
        writeln!(
            text,
            "\n{number}: {}  modelled {:.1} us{tuned}{measured}, {:.2} MB",
            step.name,
            step.cost_us,
            step.traffic_bytes as f64 / 1e6
        )?;
        if let ActionInfo::Kernel(kernel) = step.action {
            let kernel = manifest.kernels.get(kernel);
            if let Some(info) = kernel.and_then(|kernel| kernel.call.as_ref()) {
                writeln!(text, "   {}", call(info, of_step))?;
            }
            writeln!(text, "   {}", kernel.map_or("no such kernel", |kernel| &kernel.schedule))?;
            if let Some((kernel, cta)) = kernel.and_then(|kernel| Some((kernel, kernel.cta.as_ref()?))) {
                writeln!(text, "   {}", launch(kernel, cta))?;
            }
            if let Some(joined) = joined.iter().find(|joined| joined.steps.contains(&number)) {
                writeln!(text, "   {}", together(number, joined, threads))?;
            }
        }
        if let Some(proof) = step.proof.and_then(|proof| manifest.proofs.get(proof)) {
            let chance = proof.log2_bound;
            writeln!(
                text,
                "   found by the superoptimizer: program extracted from the model, µGraph proved to equal it but for a chance of \
                 2^{chance:.0}, kernel tested by `orchestrion verify`"
            )?;
            let is_own = |part: &&ProvedPart| part.kernels.iter().any(|kernel| kernel.step == number);
            if let Some(reason) = manifest.parts.iter().find(is_own).and_then(|part| part.unstable.as_ref()) {
                writeln!(text, "   unstable: {reason}")?;
            }
        }
        for line in &step.computes {
            writeln!(text, "   {line}")?;
        }
        writeln!(text, "   from {}", step.origins.join(", "))?;
    }
    Ok(())
}
