//! `orchestrion explain`: what runs, what each kernel fuses, and what it costs.

use crate::dump::DumpArguments;
use crate::print::{note_line, outln};
use crate::{CompileArguments, data};
use clap::Args;
use orchestrion::manifest::{ActionInfo, CallInfo, CtaInfo, KernelInfo, Manifest, Resources};
use orchestrion::{Error, Executable, Options, RunContext};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `explain`.
#[derive(Args)]
pub struct Arguments {
    /// The .orc file, ONNX model or document of ATen calls (.json)
    model: PathBuf,
    /// Print the whole manifest and the measured times as JSON
    #[arg(long)]
    json: bool,
    /// Print the source, in C or CUDA C++, of kernels whose name contains this
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// Run the model on generated inputs and show what each step takes. Without it nothing of an .orc file is executed
    #[arg(long)]
    measure: bool,
    /// As without --measure
    #[arg(long, hide = true, conflicts_with = "measure")]
    no_measure: bool,
    #[command(flatten)]
    compile: CompileArguments,
    #[command(flatten)]
    dump: DumpArguments,
}

/// Runs whose median is shown.
const MEASURED_RUNS: usize = 7;

/// Prints the plan.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let dump_after = arguments.dump.option(None);
    if dump_after.is_some() && data::is_artifact(&arguments.model) {
        let path = arguments.model.display();
        return Err(Error::Input(format!("{path} is compiled already: --dump-after needs the model")));
    }
    let options = Options { dump_after, ..arguments.compile.options() };
    let artifact = data::artifact(&arguments.model, &options)?;
    let manifest = artifact.manifest.clone();
    if let Some(wanted) = &arguments.source {
        for kernel in manifest.kernels.iter().filter(|kernel| kernel.name.contains(wanted)) {
            outln!("/* {}: {} */\n{}", kernel.name, kernel.schedule, kernel.source);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let unmeasured = vec![Measured::default(); manifest.steps.len()];
    let measured = if !arguments.measure || arguments.no_measure {
        unmeasured
    } else {
        match Executable::load(artifact, data::run_options(&options, 0)).and_then(|it| it.context()) {
            Ok(context) => {
                data::note_modelled_threads(&manifest, 0);
                measure(context)?
            }
            // A plan can be read on machines that cannot run it.
            Err(Error::Environment(reason)) => {
                note_line(format_args!("no times are measured: {reason}"));
                unmeasured
            }
            Err(error) => return Err(error),
        }
    };
    if arguments.json {
        let times: Vec<Option<f64>> = measured.iter().map(|step| step.median_us).collect();
        let value = serde_json::json!({ "manifest": manifest, "measured_us": times });
        outln!("{value:#}");
    } else {
        print_plan(&manifest, &measured);
    }
    Ok(ExitCode::SUCCESS)
}

/// What a step took, and how it was done.
#[derive(Clone, Default)]
struct Measured {
    median_us: Option<f64>,
    /// Whether the library call beside its kernel was made, or why not.
    call: Option<Result<String, String>>,
}

/// Runs each step.
fn measure(mut context: RunContext) -> Result<Vec<Measured>, Error> {
    let inputs = data::InputArguments::default().tensors(&context.manifest().inputs)?;
    let profile = context.profile(&inputs, MEASURED_RUNS)?;
    let measured = profile.into_iter().enumerate().map(|(step, time)| Measured {
        median_us: Some(time.median_us),
        call: context.call_of(step).map(|call| call.map_err(str::to_owned)),
    });
    Ok(measured.collect())
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

/// How a GPU launches a kernel, and what the compiler made of it.
fn launch(kernel: &KernelInfo, cta: &CtaInfo) -> String {
    let mut text = format!("{} blocks of {} threads", kernel.tasks, cta.threads);
    if cta.cluster > 1 {
        text += &format!(" in clusters of {}", cta.cluster);
    }
    text += &format!(", {:.1} KiB shared", cta.shared_bytes as f64 / 1024.0);
    if let Some(Resources { registers, stack_bytes, spill_bytes }) = cta.resources {
        text +=
            &format!(", {registers} registers, {spill_bytes} bytes spilled, {stack_bytes} bytes of stack");
    }
    text
}

fn print_plan(manifest: &Manifest, measured: &[Measured]) {
    let report = &manifest.report;
    outln!(
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
    );
    outln!(
        "plan {} (gap {:.3} %), modelled {:.1} us, working memory {:.1} MiB",
        report.solver_status,
        report.solver_gap * 100.0,
        report.modelled_us,
        manifest.arena_bytes as f64 / f64::from(1 << 20)
    );
    if let Some(without_us) = report.without_superoptimizer_us {
        outln!("{}", superoptimizer(manifest, without_us));
    }
    if let [own_us, others @ ..] = &report.alternatives_us[..] {
        let times: Vec<String> = others.iter().map(|us| format!("{us:.1}")).collect();
        outln!("timed whole, with a cold cache: {own_us:.1} us, other plans {} us", times.join(", "));
    }
    for (stage, seconds) in &report.stage_seconds {
        outln!("  {stage:12} {:8.3} s", seconds);
    }
    let total: f64 = measured.iter().filter_map(|step| step.median_us).sum();
    for (number, (step, of_step)) in manifest.steps.iter().zip(measured).enumerate() {
        let measured = of_step.median_us.map_or_else(String::new, |us| {
            let share = 100.0 * us / total.max(1e-9);
            let roofline = 100.0 * step.roofline_us / us.max(1e-3);
            let roofline =
                if roofline > 0.0 { format!(", {roofline:.0} % of roofline") } else { String::new() };
            let speed = step.flops / us.max(1e-3) / 1e3;
            format!(", measured {us:.1} us ({share:.1} %), {speed:.1} GFLOP/s{roofline}")
        });
        let tuned = step.tuned_us.map_or_else(String::new, |us| format!(", alone {us:.1} us"));
        outln!(
            "\n{number}: {}  modelled {:.1} us{tuned}{measured}, {:.2} MB",
            step.name,
            step.cost_us,
            step.traffic_bytes as f64 / 1e6
        );
        if let ActionInfo::Kernel(kernel) = step.action {
            let kernel = manifest.kernels.get(kernel);
            if let Some(info) = kernel.and_then(|kernel| kernel.call.as_ref()) {
                outln!("   {}", call(info, of_step));
            }
            outln!("   {}", kernel.map_or("no such kernel", |kernel| &kernel.schedule));
            if let Some((kernel, cta)) = kernel.and_then(|kernel| Some((kernel, kernel.cta.as_ref()?))) {
                outln!("   {}", launch(kernel, cta));
            }
        }
        if let Some(proof) = step.proof.and_then(|proof| manifest.proofs.get(proof)) {
            let chance = proof.log2_bound;
            outln!("   found by the superoptimizer, equal but for a chance of 2^{chance:.0}:");
        }
        for line in &step.computes {
            outln!("   {line}");
        }
        outln!("   from {}", step.origins.join(", "));
    }
}
