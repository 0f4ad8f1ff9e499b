//! `orchestrion bench`: how long a model takes.

use crate::print::outln;
use crate::{CompileArguments, data};
use clap::Args;
use orchestrion::{
    DeviceCache, Error, Executable, Execution, OutputBuffers, RunContext, RunOptions, RunsInARow, Tensor,
    TensorView,
};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Arguments of `bench`.
#[derive(Args)]
pub struct Arguments {
    /// The .orc file, ONNX model or document of ATen calls (.json)
    model: PathBuf,
    /// Threads (default: one per core)
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// How long to measure
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Time by the GPU's own clock, without the launch and the wait for its end
    #[arg(long)]
    device_only: bool,
    /// Overwrite the GPU's L2 cache before each run, so that nothing is found there
    #[arg(long, requires = "device_only")]
    cold: bool,
    /// Time N runs in a row, each on tensors of its own: what a run takes of a GPU that has the next one at hand
    #[arg(long, value_name = "N", requires = "device_only", conflicts_with = "cold", value_parser = parse_row)]
    in_a_row: Option<usize>,
    /// How steps reach a GPU: one call of the driver each (direct), or a graph of a line or with branches (default: what takes least, found by
    /// up to 200 ms of runs)
    #[arg(long, value_name = "WAY", value_parser = parse_way)]
    launches: Option<Execution>,
    /// Also show the time of each step
    #[arg(long)]
    steps: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "steps")]
    json: bool,
    /// Answer each line `run N` of standard input with N times in milliseconds: for scripts that alternate with others
    #[arg(long, conflicts_with_all = ["json", "steps", "seconds"])]
    serve: bool,
    #[command(flatten)]
    inputs: data::InputArguments,
    #[command(flatten)]
    compile: CompileArguments,
}

/// Runs that are timed together by a GPU's clock.
const DEVICE_RUNS: usize = 50;

/// Least runs, however long they take.
const MIN_RUNS: usize = 5;

/// Times whole runs, and steps if asked.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let base_kib = resident_kib();
    let options = arguments.compile.options();
    let run_options =
        RunOptions { execution: arguments.launches, ..RunOptions::of(&options, arguments.threads) };
    let executable = Executable::load(data::artifact(&arguments.model, &options)?, run_options)?;
    let mut context = executable.context()?;
    arguments.inputs.note_generated_integers(&context.manifest().inputs);
    let inputs = arguments.inputs.tensors(&context.manifest().inputs)?;
    let mut buffers = OutputBuffers::new(context.manifest())?;
    // A GPU has the inputs from the first run on.
    context.run_views(&views(&inputs), &mut buffers.views())?;
    let launches = context.choose_launches()?;
    let clock = match (arguments.device_only, arguments.in_a_row, arguments.cold) {
        (false, ..) => Clock::Host,
        (true, Some(runs), _) => Clock::Row(context.in_a_row(runs)?),
        (true, None, false) => Clock::Device(DeviceCache::Warm),
        (true, None, true) => Clock::Device(DeviceCache::Cold),
    };
    let mut timed = Timed { context: &mut context, inputs: &inputs, buffers: &mut buffers, clock };
    if arguments.serve {
        return serve(&mut timed, base_kib);
    }
    let budget = Duration::from_secs_f64(arguments.seconds);
    let start = Instant::now();
    let mut samples_ms = Vec::new();
    while samples_ms.len() < MIN_RUNS || start.elapsed() < budget {
        samples_ms.extend(timed.runs_ms(timed.clock.runs_at_once())?);
    }
    samples_ms.sort_by(f64::total_cmp);
    let (min, median) = (samples_ms[0], samples_ms[samples_ms.len() / 2]);
    if arguments.json {
        let figures = serde_json::json!({ "min_ms": min, "median_ms": median, "runs": samples_ms.len() });
        outln!("{figures}");
    } else {
        outln!("median {}, best {} of {} runs", shown(median), shown(min), samples_ms.len());
        if let Some(launches) = launches {
            outln!("{launches}");
        }
    }
    if arguments.steps {
        print_steps(&mut context, &inputs, samples_ms.len().min(30), arguments.threads)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A time as it reads best.
fn shown(milliseconds: f64) -> String {
    if milliseconds < 1.0 { format!("{:.1} us", milliseconds * 1e3) } else { format!("{milliseconds:.3} ms") }
}

/// The longest measurement.
const MAX_SECONDS: f64 = 3600.0;

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=MAX_SECONDS).contains(seconds));
    seconds.ok_or_else(|| format!("expected a number of seconds from 0 to {MAX_SECONDS}"))
}

fn parse_way(text: &str) -> Result<Execution, String> {
    let names = Execution::ALL.map(Execution::name).join(", ");
    Execution::of_name(text).ok_or_else(|| format!("expected one of {names}"))
}

/// Most runs in a row.
const MAX_ROW: usize = 1000;

fn parse_row(text: &str) -> Result<usize, String> {
    let runs = text.parse().ok().filter(|runs| (1..=MAX_ROW).contains(runs));
    runs.ok_or_else(|| format!("expected a number of runs from 1 to {MAX_ROW}"))
}

/// Whose clock times a run.
enum Clock {
    /// On a GPU from the launch until the host knows that it has ended.
    Host,
    /// The GPU's own.
    Device(DeviceCache),
    /// The GPU's own, for runs in a row.
    Row(RunsInARow),
}

impl Clock {
    fn runs_at_once(&self) -> usize {
        match self {
            Clock::Host => 1,
            Clock::Device(_) | Clock::Row(_) => DEVICE_RUNS,
        }
    }
}

/// A context with all memory of a run at hand, so that what is timed allocates nothing.
struct Timed<'a> {
    context: &'a mut RunContext,
    inputs: &'a [Tensor],
    buffers: &'a mut OutputBuffers,
    clock: Clock,
}

fn views(inputs: &[Tensor]) -> Vec<TensorView<'_>> {
    inputs.iter().map(TensorView::from).collect()
}

impl Timed<'_> {
    /// Times of runs, in milliseconds.
    fn runs_ms(&mut self, runs: usize) -> Result<Vec<f64>, Error> {
        let times_us = match &self.clock {
            Clock::Host => return (0..runs).map(|_| self.run_ms()).collect(),
            Clock::Device(cache) => self.context.device_times_us(runs, *cache)?,
            Clock::Row(row) => row.times_us(runs)?,
        };
        Ok(times_us.into_iter().map(|time_us| time_us / 1e3).collect())
    }

    /// Time of one run by the host's clock, in milliseconds.
    fn run_ms(&mut self) -> Result<f64, Error> {
        let (inputs, mut outputs) = (views(self.inputs), self.buffers.views());
        let start = Instant::now();
        self.context.run_again(&inputs, &mut outputs)?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }
}

/// Says `ready`, then answers requests until standard input ends.
///
/// `base_kib` is what the process held before it loaded the model.
fn serve(timed: &mut Timed<'_>, base_kib: u64) -> Result<ExitCode, Error> {
    outln!("ready {base_kib}");
    for line in std::io::stdin().lines() {
        let line = line.map_err(|source| Error::File { path: PathBuf::from("standard input"), source })?;
        let runs = line.strip_prefix("run ").and_then(|count| count.trim().parse::<usize>().ok());
        let runs = runs.ok_or_else(|| Error::Input(format!("`{line}` was read, `run N` is understood")))?;
        let times = timed.runs_ms(runs)?;
        let words: Vec<String> = times.iter().map(|time| format!("{time:.6}")).collect();
        outln!("{}", words.join(" "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the time of each step; `threads` run it, or all if that is 0.
fn print_steps(
    context: &mut RunContext,
    inputs: &[Tensor],
    runs: usize,
    threads: usize,
) -> Result<(), Error> {
    let profile = context.profile(inputs, runs)?;
    data::note_modelled_threads(context.manifest(), threads);
    for (number, (step, time)) in context.manifest().steps.iter().zip(profile).enumerate() {
        let call = context.call_of(number).and_then(Result::ok);
        let call = call.map_or_else(String::new, |release| format!("  ({release})"));
        let gflops = step.flops / time.median_us.max(1e-3) / 1e3;
        let gbytes = step.traffic_bytes as f64 / time.median_us.max(1e-3) / 1e3;
        outln!(
            "{:10.1} us  model {:10.1}  {gflops:7.1} GFLOP/s {gbytes:6.1} GB/s  {}{call}",
            time.median_us,
            step.cost_us,
            time.name
        );
    }
    Ok(())
}

/// Resident memory of this process; 0 where the system does not tell.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
