//! The `orchestrion` command: arguments, progress and printing; all work is done by the library.
//!
//! Exit codes: 0 success, 1 something given is wrong, 2 usage, 3 the model needs what is not supported, 4 the machine
//! lacks something, 5 a check failed, 70 a bug, 130 interrupted.

mod commands;
mod data;
mod dump;
mod files;
mod print;
mod progress;
mod python;

use clap::{Args, Parser, Subcommand};
use orchestrion::{Error, Library, Nvtx, Options, Precision, SearchPaths};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Want of memory is the machine's, like that of a compiler.
#[global_allocator]
static ALLOCATOR: orchestrion::ExitingAllocator<4> = orchestrion::ExitingAllocator;

/// Compiles tensor programs to the fastest executables that it can check.
///
/// An .orc file is native code: run, bench and verify execute it with your rights. Take it only from people whose programs you would run.
#[derive(Parser)]
#[command(name = "orchestrion", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compile an ONNX model to an .orc file
    Compile(commands::compile::Arguments),
    /// Run a model on given or generated inputs
    Run(commands::run::Arguments),
    /// Time a model
    Bench(commands::bench::Arguments),
    /// Show what was fused, why, and at what cost
    Explain(commands::explain::Arguments),
    /// Find the cheapest kernels of one program, with proofs
    Superoptimize(commands::superoptimize::Arguments),
    /// Compare a compiled model with the reference interpreter, and check its proofs
    Verify(commands::verify::Arguments),
    /// Run folders of ONNX backend test cases
    Conformance(commands::conformance::Arguments),
    /// Show the machine, its compilers, its GPUs and the cache
    Doctor(commands::doctor::Arguments),
    /// Inspect or clear the cache
    Cache(commands::cache::Arguments),
}

/// Options of every command that compiles.
#[derive(Args, Clone)]
pub struct CompileArguments {
    /// Value of a symbolic dimension; repeatable
    #[arg(long = "dim", value_name = "NAME=N", value_parser = parse_dim)]
    dims: Vec<(String, usize)>,
    /// Folder in which external data of the model may lie besides the model's own, once links are resolved; repeatable
    #[arg(long = "external-data-root", value_name = "DIR")]
    external_data_roots: Vec<PathBuf>,
    /// What to compile for: cpu (default), cuda (the GPU of this machine), cuda:sm_90 or cuda:sm_80 (one that need not be
    /// here), cuda:compute_80 (PTX for any GPU of compute capability 8.0 or later; so is cuda:sm_XY of others), or another CPU: x86-64-amx, x86-64-v4-bf16, x86-64-v4, x86-64-v3, aarch64
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// In what to compute: f32; bf16 with sums in f32 (GPUs, CPUs with AVX512-BF16 or AMX); f16 or tf32 with sums in f32
    /// (GPUs)
    #[arg(long, value_name = "TYPE", value_parser = parse_precision, default_value = "f32")]
    precision: Precision,
    /// C compiler (default: cc, gcc or clang)
    #[arg(long, value_name = "PROGRAM", env = "ORCHESTRION_CC")]
    cc: Option<PathBuf>,
    /// NVRTC's library (default: where the system, CUDA and Python have it)
    #[arg(long, value_name = "FILE", env = "ORCHESTRION_NVRTC")]
    nvrtc: Option<PathBuf>,
    /// cuBLASLt's library (default: where the system, CUDA and Python have it); a file that is not there, as `none`, for none
    #[arg(long, value_name = "FILE", env = "ORCHESTRION_CUBLASLT")]
    cublaslt: Option<PathBuf>,
    /// cuDNN's library (default: where the system, CUDA and Python have it); a file that is not there, as `none`, for none
    #[arg(long, value_name = "FILE", env = "ORCHESTRION_CUDNN")]
    cudnn: Option<PathBuf>,
    /// The NVIDIA driver's library (default: the system's)
    #[arg(long, value_name = "FILE", env = "ORCHESTRION_CUDA_DRIVER")]
    cuda_driver: Option<PathBuf>,
    /// Folder of compiled kernels and measurements (default: orchestrion below $XDG_CACHE_HOME or ~/.cache). One that belongs to
    /// somebody else, or to which others may write, is refused
    #[arg(long, value_name = "DIR", env = "ORCHESTRION_CACHE")]
    cache_dir: Option<PathBuf>,
    /// Make every primitive a kernel of its own, but for those that cost nothing where they are read (broadcasts, views of the
    /// same bytes, widening of 16-bit floats): a baseline to compare with
    #[arg(long)]
    no_fusion: bool,
    /// Choose among kernels of templates only, not those that the superoptimizer finds and proves
    #[arg(long)]
    no_superoptimizer: bool,
    /// Plan by figures usual for such processors instead of measuring this one
    #[arg(long)]
    no_calibration: bool,
    /// Measure kernels where candidates are close, and plan by that (the first time up to half a minute longer)
    #[arg(long, group = "times")]
    tune: bool,
    /// What --tune may add to the compilation, in seconds: what takes most of the run is measured first, a quarter is kept for comparing
    /// whole plans, and the best plan so far is taken, which is never slower than the untuned one
    #[arg(long, value_name = "SECONDS", value_parser = parse_budget, requires = "tune")]
    budget: Option<Duration>,
    /// Plan by times of kernels that another machine measured, as `orchestrion cache export` wrote them
    #[arg(long, value_name = "FILE", group = "times")]
    records: Option<PathBuf>,
    /// Schedules of each kernel of the plan to time with --tune, or to look up in --records: on a GPU the whole space of a template
    /// has up to 200, on a CPU the best 4 are timed. The first time takes up to 20 seconds longer for every 8
    #[arg(long, value_name = "N", value_parser = parse_schedules, default_value = "8", requires = "times")]
    tune_schedules: usize,
    /// Vendor libraries, separated by commas, to call instead of own kernels where --tune or --records finds them faster:
    /// cublaslt, cudnn (default: none, as results then depend on what is installed). An executable has its own kernels as well, and
    /// runs them where the library is not there. Nothing is called without --tune or --records
    #[arg(long, value_name = "NAMES", value_parser = parse_library, value_delimiter = ',')]
    libraries: Vec<Library>,
    /// Threads that compile (default: one per CPU)
    #[arg(long, value_name = "N", default_value_t = 0)]
    jobs: usize,
    /// Do not show progress
    #[arg(long, short)]
    quiet: bool,
}

impl CompileArguments {
    /// Where to look for CUDA's libraries.
    fn cuda(&self) -> SearchPaths {
        SearchPaths {
            driver: self.cuda_driver.clone(),
            nvrtc: self.nvrtc.clone(),
            cublaslt: self.cublaslt.clone(),
            cudnn: self.cudnn.clone(),
            nvtx: nvtx(),
            site_packages: python::site_packages(),
        }
    }

    /// The library's options; Ctrl-C cancels the work.
    fn options(&self) -> Options {
        Options {
            dims: self.dims.iter().cloned().collect(),
            external_data_roots: self.external_data_roots.clone(),
            target: self.target.clone(),
            c_compiler: self.cc.clone(),
            cuda: self.cuda(),
            cache_dir: self.cache_dir.clone().unwrap_or_else(default_cache_folder),
            precision: self.precision,
            fuse: !self.no_fusion,
            calibrate: !self.no_calibration,
            superoptimize: !self.no_superoptimizer,
            tune: self.tune,
            tune_schedules: self.tune_schedules,
            tune_budget: self.budget,
            records: self.records.clone(),
            libraries: self.libraries.clone(),
            jobs: self.jobs,
            progress: progress::bars(self.quiet),
            cancel: cancel_flag(),
            ..Options::default()
        }
    }
}

/// Whether runs are marked for profilers: as `$ORCHESTRION_NVTX` says, else if there is one.
fn nvtx() -> Nvtx {
    let variable = |name: &str| std::env::var_os(name);
    Nvtx::of_setting(variable("ORCHESTRION_NVTX").as_deref(), variable("NVTX_INJECTION64_PATH").as_deref())
}

/// The cache of this user.
fn default_cache_folder() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    orchestrion::default_cache_folder(variable("XDG_CACHE_HOME"), variable("HOME"))
}

/// How long work may take to notice that it is interrupted: compilations take a moment, one long kernel takes as long as it takes.
const PATIENCE: Duration = Duration::from_secs(2);

/// A flag that Ctrl-C, SIGTERM and SIGHUP set. Work that does not heed it in time, or a second signal, ends the process at once.
fn cancel_flag() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&flag);
    let handler = move || {
        if shared.swap(true, Ordering::SeqCst) {
            end_now();
        }
        // A second signal is noticed while another thread waits. Where the system gives none, this one does.
        if std::thread::Builder::new().spawn(end_later).is_err() {
            end_later();
        }
    };
    // Without a handler signals still end the process; the cache is safe either way.
    let _ = ctrlc::set_handler(handler);
    flag
}

/// Ends the process after [`PATIENCE`].
fn end_later() {
    std::thread::sleep(PATIENCE);
    end_now();
}

/// Ends the process as an interrupted one. Compilers that still run end with it.
fn end_now() -> ! {
    orchestrion::remove_unfinished();
    print::error_line(format_args!("{}", Error::Interrupted));
    std::process::exit(i32::from(Error::Interrupted.exit_code()));
}

fn parse_dim(text: &str) -> Result<(String, usize), String> {
    let (name, size) = text.split_once('=').ok_or("expected NAME=N, for example batch=1")?;
    let size = size.parse().map_err(|_| format!("`{size}` is not a number of elements"))?;
    Ok((name.to_owned(), size))
}

fn parse_precision(text: &str) -> Result<Precision, String> {
    let known = Precision::ALL.into_iter().find(|precision| precision.name() == text);
    known.ok_or_else(|| format!("there are {}", Precision::ALL.map(Precision::name).join(", ")))
}

fn parse_library(text: &str) -> Result<Library, String> {
    let known = Library::ALL.into_iter().find(|library| library.name() == text);
    known.ok_or_else(|| format!("there is {}", Library::ALL.map(Library::name).join(", ")))
}

fn parse_schedules(text: &str) -> Result<usize, String> {
    let schedules = text.parse().ok().filter(|&schedules| schedules > 0);
    schedules.ok_or_else(|| "expected a number of schedules, at least 1".to_owned())
}

fn parse_budget(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "expected a number of seconds from 0 on".to_owned())
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Compile(arguments) => commands::compile::run(&arguments),
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Bench(arguments) => commands::bench::run(&arguments),
        Command::Explain(arguments) => commands::explain::run(&arguments),
        Command::Superoptimize(arguments) => commands::superoptimize::run(&arguments),
        Command::Verify(arguments) => commands::verify::run(&arguments),
        Command::Conformance(arguments) => commands::conformance::run(&arguments),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Cache(arguments) => commands::cache::run(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            print::error_line(format_args!("{error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn dimensions_and_budgets_are_read() {
        assert_eq!(parse_dim("batch=4"), Ok(("batch".to_owned(), 4)));
        assert_eq!(parse_budget("0.5"), Ok(Duration::from_millis(500)));
        assert!(parse_budget("-1").is_err() && parse_budget("inf").is_err() && parse_budget("1 s").is_err());
        assert!(parse_dim("batch").is_err() && parse_dim("batch=-1").is_err());
    }
}
