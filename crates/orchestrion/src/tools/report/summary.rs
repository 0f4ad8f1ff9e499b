//! A plan on a screen: the costliest kernels, what is on the host, the roofline, what to try next.

use super::data::{KernelSteps, Report};
use crate::manifest::Device;
use orch_ir::message;
use std::fmt::Write;

/// Kernels that are shown.
const SHOWN: usize = 10;

/// Notes, and pieces of advice, that are shown.
const LINES: usize = 3;

/// The plan in at most 24 lines.
pub fn summary(report: &Report) -> String {
    let mut text = String::new();
    write_summary(report, &mut text).expect("a string takes all text");
    text
}

fn write_summary(report: &Report, text: &mut String) -> std::fmt::Result {
    let manifest = &report.manifest;
    let steps = manifest.steps.len();
    writeln!(
        text,
        "{} for {} in {}: {} operators, {steps} steps, {} kernels, working memory {:.1} MiB",
        message::name(&manifest.model.name),
        message::name(&manifest.target),
        manifest.precision.name(),
        manifest.report.operators,
        manifest.kernels.len(),
        manifest.arena_bytes as f64 / f64::from(1 << 20)
    )?;
    writeln!(text, "{}", times(report))?;
    for note in manifest.report.notes.iter().take(LINES) {
        writeln!(text, "note: {}", message::sentence(note))?;
    }
    let kernels = &report.by_kernel;
    let all_us: f64 = kernels.iter().map(|kernel| kernel.us).sum();
    let share = |us: f64| 100.0 * us / all_us.max(1e-9);
    let basis = if report.is_measured() { "measured" } else { "modelled" };
    writeln!(text, "{basis:>12}  share  roofline  steps")?;
    for kernel in kernels.iter().take(SHOWN) {
        let us = kernel.us;
        let roofline = match kernel.roofline_us.filter(|_| us > 0.0) {
            Some(known) => format!("{:.0} %", 100.0 * known / us),
            None => "unknown".to_owned(),
        };
        writeln!(text, "{us:9.1} us  {:4.1} %  {roofline:>8}  {}", share(us), described(report, kernel))?;
    }
    if let Some(rest) = kernels.get(SHOWN..).filter(|rest| !rest.is_empty()) {
        let rest_us: f64 = rest.iter().map(|kernel| kernel.us).sum();
        let rest_steps: usize = rest.iter().map(|kernel| kernel.steps.len()).sum();
        writeln!(
            text,
            "{rest_us:9.1} us  {:4.1} %            {rest_steps} other steps (--all)",
            share(rest_us)
        )?;
    }
    writeln!(text, "{}", on_host(report))?;
    let chosen = report.launches.first().filter(|_| manifest.device == Device::Cuda && report.is_measured());
    chosen.iter().try_for_each(|launches| writeln!(text, "{launches}"))?;
    report.advice.iter().take(LINES).try_for_each(|advice| writeln!(text, "try: {advice}"))
}

/// The steps of a kernel: the first one's number, name and origins, and how many others there are.
fn described(report: &Report, kernel: &KernelSteps) -> String {
    let Some((&first, others)) = kernel.steps.split_first() else { return String::new() };
    let step = &report.manifest.steps[first];
    let others = match others.len() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let from = match &step.origins[..] {
        [] => String::new(),
        [only] => format!(" from {}", message::shortened(only, 40)),
        [one, more @ ..] => format!(" from {} and {} more", message::shortened(one, 40), more.len()),
    };
    format!("{first}{others}: {}{from}", message::shortened(&step.name, 40))
}

/// Modelled and measured time of the plan beside its roofline.
fn times(report: &Report) -> String {
    let manifest = &report.manifest;
    let roofline_us: f64 = manifest.steps.iter().map(|step| step.roofline_us).sum();
    let modelled_us: f64 = manifest.steps.iter().map(|step| step.cost_us).sum();
    let measured_us: Option<f64> = report.measured_us.iter().copied().sum();
    let measured = match measured_us.filter(|_| report.is_measured()) {
        Some(us) => format!("measured {us:.1} us step by step"),
        None => "not measured".to_owned(),
    };
    let whole = report.run_us.map_or_else(String::new, |us| format!(", {us:.1} us whole"));
    let share = match report.is_measured() {
        true => roofline_us / measured_us.unwrap_or(f64::INFINITY),
        false => roofline_us / modelled_us,
    };
    let share = if share.is_finite() { format!(" ({:.0} % of that)", 100.0 * share) } else { String::new() };
    format!(
        "modelled {modelled_us:.1} us, {measured}{whole}; arithmetic and traffic take at least {roofline_us:.1} us{share}"
    )
}

/// What is on the host.
fn on_host(report: &Report) -> String {
    let steps = &report.manifest.steps;
    let host: Vec<usize> = (0..steps.len()).filter(|&step| steps[step].is_on_host()).collect();
    let host_us: f64 = host.iter().map(|&step| report.step_us(step)).sum();
    match host.len() {
        0 => "nothing runs on the host".to_owned(),
        1 => format!("1 step runs on the host, {host_us:.1} us"),
        count => format!("{count} steps run on the host, {host_us:.1} us"),
    }
}

/// The plan in a line: the costliest kernel, the roofline, what is on the host, and what to try.
pub fn line(report: &Report) -> String {
    let costliest = report.by_kernel.first().map_or_else(String::new, |kernel| {
        let name = message::shortened(&report.manifest.steps[kernel.steps[0]].name, 40);
        let steps = if kernel.steps.len() == 1 { "step" } else { "steps" };
        format!("; costliest {name} with {:.1} us in {} {steps}", kernel.us, kernel.steps.len())
    });
    let advice = report.advice.first().map_or_else(String::new, |advice| format!("; try: {advice}"));
    format!("{}{costliest}; {}{advice}", times(report), on_host(report))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::manifest;
    use crate::tools::report::{Measurements, report};

    #[test]
    fn any_plan_fits_a_screen() {
        let mut plan = manifest(&[&[][..]; 50]);
        plan.report.notes = vec!["n".repeat(10_000); 20];
        plan.steps[7].cost_us = 100.0;
        plan.steps[7].name = "x\0\n".repeat(100_000);
        plan.steps[7].origins = vec!["y\n".repeat(100_000)];
        plan.steps[8].roofline_us = 0.0;
        plan.steps[8].cost_us = 50.0;
        let text = summary(&report(&plan, &Measurements::default()));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() <= 24, "{text}");
        assert!(text.len() < 6_000 && !text.contains('\0'), "{text}");
        assert!(lines[6].contains("100.0 us") && lines[6].contains(" 7: x"), "{text}");
        assert!(lines[7].contains("unknown") && text.contains("40 other steps"), "{text}");
        assert!(text.contains("not measured"), "{text}");
        let empty = summary(&report(&manifest(&[]), &Measurements::default()));
        assert!(empty.contains("0 steps") && !empty.contains("NaN") && !empty.contains("inf"), "{empty}");
    }
}
