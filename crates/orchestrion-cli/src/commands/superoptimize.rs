//! `orchestrion superoptimize`: the cheapest µGraphs of a program, with proofs, and code that runs.

use crate::print::{note_line, outln};
use crate::{CompileArguments, files, parse_budget};
use clap::{Args, ValueEnum};
use orchestrion::superoptimize::{
    self, Baseline, Certificate, NotLowered, Program, Proved, SEARCH_BUDGET, Searched, Timed,
};
use orchestrion::{Artifact, Error, Options, emit, whole_file};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Arguments of `superoptimize`.
#[derive(Args)]
pub struct Arguments {
    /// A program as text (.txt), or an ONNX model, of which all parts that are worth it are taken
    program: PathBuf,
    /// Folder for the proofs, one NAME.json each
    #[arg(long, value_name = "DIR")]
    certificates: Option<PathBuf>,
    /// Time what was found on this machine, beside the program without the superoptimizer
    #[arg(long)]
    measure: bool,
    /// Write the best that was found as code that runs: NAME_found.c, .cu or .orc, with its proof (NAME_found.json) and the program
    /// (NAME_found.txt)
    #[arg(long, value_name = "KIND")]
    emit: Option<Emission>,
    /// Folder for what --emit writes (default: the current folder)
    #[arg(long, value_name = "DIR", requires = "emit")]
    emit_dir: Option<PathBuf>,
    /// Time for searches beyond the first: elementwise chains as one value, and more operators in a block (default: 15)
    #[arg(long, value_name = "SECONDS", value_parser = parse_budget)]
    search_budget: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compile: CompileArguments,
}

/// What code is written as.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Emission {
    /// One file of C with a function that runs it; for CPUs
    C,
    /// CUDA C++ of the kernels, with their launches; for GPUs
    Cuda,
    /// An executable, as `orchestrion run` takes it
    Orc,
}

impl Emission {
    /// Why it does not suit the target.
    fn problem(self, options: &Options) -> Option<&'static str> {
        let is_cuda = options.target.as_deref().is_some_and(|target| target.starts_with("cuda"));
        match self {
            Emission::C if is_cuda => Some("--emit c is for CPUs; give --emit cuda or --emit orc"),
            Emission::Cuda if !is_cuda => {
                Some("--emit cuda is for GPUs; give --target cuda or cuda:sm_90 with it")
            }
            Emission::C | Emission::Cuda | Emission::Orc => None,
        }
    }

    fn extension(self) -> &'static str {
        match self {
            Emission::C => "c",
            Emission::Cuda => "cu",
            Emission::Orc => "orc",
        }
    }
}

/// What came of one program.
struct Row<'a> {
    program: &'a Program,
    searched: Searched,
    seconds: f64,
    modelled: Baseline,
    timed: Option<Timed>,
    emitted: Option<PathBuf>,
}

/// Searches, and prints what was found.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let options = arguments.compile.options();
    if let Some(problem) = arguments.emit.and_then(|kind| kind.problem(&options)) {
        return files::Refusal::Usage(problem.to_owned()).report();
    }
    let programs = superoptimize::programs(&arguments.program, &options)?;
    let stems = files::names(programs.iter().map(|program| program.name.as_str()), "");
    if programs.is_empty() {
        note_line(format_args!("no part of the model is of a kind that is superoptimized"));
    }
    let mut rows = Vec::new();
    for (program, stem) in programs.iter().zip(&stems) {
        let start = Instant::now();
        let searched =
            superoptimize::find(program, arguments.search_budget.unwrap_or(SEARCH_BUDGET), &options)?;
        let seconds = start.elapsed().as_secs_f64();
        let emission = arguments.emit.map(|kind| EmittedFiles::of(arguments, kind, stem));
        let certificates = certificate_paths(arguments, stem, searched.found.proved.len());
        let outputs: Vec<PathBuf> =
            certificates.iter().cloned().chain(emission.iter().flat_map(EmittedFiles::all)).collect();
        let inputs = [Some(&arguments.program), options.records.as_ref()];
        let inputs = inputs.into_iter().flatten().map(PathBuf::as_path);
        if let Err(refusal) = files::check_outputs(inputs, &outputs) {
            return refusal.report();
        }
        for (path, proved) in certificates.iter().zip(&searched.found.proved) {
            write(path, proved.certificate.to_json().as_bytes())?;
        }
        let path = emission.as_ref().map_or(Path::new(""), |files| &files.program);
        let model = program.model(path)?;
        let modelled = superoptimize::modelled_baseline(&model, &options)?;
        let kernels = kernels(arguments, program, &searched.found.proved, path, &options)?;
        let timed = match arguments.measure && !kernels.is_empty() {
            true => Some(superoptimize::measure(&model, &kernels, &options)?),
            false => None,
        };
        let best = timed.as_ref().map_or(0, |timed| fastest(&timed.found_us));
        let emitted = match emission.zip(kernels.get(best)) {
            Some((files, artifact)) => {
                let code = Code { kind: files.kind, artifact, proved: &searched.found.proved[best] };
                code.write(&files, program)?;
                Some(files.code)
            }
            None => None,
        };
        let row = Row { program, searched, seconds, modelled, timed, emitted };
        if arguments.json {
            rows.push(row.json());
        } else {
            row.print();
        }
    }
    if arguments.json {
        outln!("{:#}", serde_json::Value::from(rows));
    }
    Ok(ExitCode::SUCCESS)
}

/// The files of the proofs, in order; none if they are not wanted.
fn certificate_paths(arguments: &Arguments, stem: &str, count: usize) -> Vec<PathBuf> {
    let folder = arguments.certificates.iter();
    folder
        .flat_map(|folder| (1..=count).map(move |number| folder.join(format!("{stem}_{number}.json"))))
        .collect()
}

/// Executables of what was found, as far as they are needed: all if they are measured, else the first if code is written.
fn kernels(
    arguments: &Arguments,
    program: &Program,
    found: &[Proved],
    path: &Path,
    options: &Options,
) -> Result<Vec<Artifact>, Error> {
    let needed = match (arguments.measure, arguments.emit) {
        (true, _) => found.len(),
        (false, Some(_)) => 1,
        (false, None) => 0,
    };
    let artifact = |proved| superoptimize::compile(program, proved, path, options);
    found.iter().take(needed).map(artifact).collect()
}

/// The number of the least time.
fn fastest(times_us: &[f64]) -> usize {
    (0..times_us.len()).min_by(|&a, &b| times_us[a].total_cmp(&times_us[b])).unwrap_or(0)
}

/// Where code, its proof and its program are written.
struct EmittedFiles {
    kind: Emission,
    code: PathBuf,
    certificate: PathBuf,
    program: PathBuf,
}

impl EmittedFiles {
    fn of(arguments: &Arguments, kind: Emission, stem: &str) -> Self {
        let folder = arguments.emit_dir.clone().unwrap_or_default();
        let file = |extension: &str| folder.join(format!("{stem}_found.{extension}"));
        Self { kind, code: file(kind.extension()), certificate: file("json"), program: file("txt") }
    }

    fn all(&self) -> [PathBuf; 3] {
        [self.code.clone(), self.certificate.clone(), self.program.clone()]
    }
}

/// What was found, as it is written.
struct Code<'a> {
    kind: Emission,
    artifact: &'a Artifact,
    proved: &'a Proved,
}

impl Code<'_> {
    fn write(&self, files: &EmittedFiles, program: &Program) -> Result<(), Error> {
        let Code { kind, artifact, proved } = *self;
        let text = match kind {
            Emission::C => Some(emit::c_source(artifact)?),
            Emission::Cuda => Some(emit::cuda_source(artifact)?),
            Emission::Orc => None,
        };
        write(&files.program, program.text().as_bytes())?;
        write(&files.certificate, proved.certificate.to_json().as_bytes())?;
        match text {
            Some(text) => write(&files.code, text.as_bytes()),
            None => artifact.save(&files.code),
        }
    }
}

impl Row<'_> {
    fn json(&self) -> serde_json::Value {
        let Row { program, searched, seconds, modelled, timed, emitted } = self;
        serde_json::json!({
            "program": program.name, "stands_for": program.count, "seconds": seconds,
            "remembered": searched.is_cached, "found": searched.found, "modelled": modelled,
            "measured": timed, "emitted": emitted,
        })
    }

    fn print(&self) {
        let Row { program, searched: Searched { found, is_cached }, seconds, modelled, timed, emitted } =
            self;
        let report = &found.report;
        let places = if program.count > 1 { format!(" ({} times)", program.count) } else { String::new() };
        outln!("program `{}`{places}", program.name);
        print_indented(&program.text());
        let searched = if *is_cached { "remembered" } else { "searched" };
        outln!(
            "{searched} in {seconds:.2} s: {} structures, {} states, {} candidates screened; {}",
            report.structures,
            report.counts.states,
            report.screened[0],
            report.stopped
        );
        let pruned: Vec<String> =
            report.counts.pruned.iter().map(|(rule, count)| format!("{count} by {rule}")).collect();
        if !pruned.is_empty() {
            outln!("left aside: {}", pruned.join(", "));
        }
        for reason in &found.refused {
            outln!("refused: {reason}");
        }
        for NotLowered { reason, count, cost_us, candidate } in &found.not_lowered {
            let count = if *count == 1 { "1 µGraph".to_owned() } else { format!("{count} µGraphs") };
            outln!("found, but not lowered: {count}, the cheapest modelled {cost_us:.2} us: {reason}");
            print_indented(candidate);
        }
        let Baseline { unfused_us, templates_us } = modelled;
        outln!(
            "without the superoptimizer: modelled {unfused_us:.2} us unfused, {templates_us:.2} us by templates"
        );
        if found.proved.is_empty() {
            outln!("nothing was found");
        }
        for (number, proved) in found.proved.iter().enumerate() {
            print_found(number, proved, timed.as_ref());
        }
        if let Some(first) = found.proved.first() {
            outln!("\n{}", gain(first, modelled, timed.as_ref()));
        }
        if let Some(path) = emitted {
            outln!("written: {}, with its proof", path.display());
        }
        outln!("");
    }
}

fn print_indented(text: &str) {
    text.lines().for_each(|line| outln!("  {line}"));
}

fn print_found(number: usize, proved: &Proved, timed: Option<&Timed>) {
    let Certificate { log2_bound, tests, prime_bits, premises, candidate, .. } = &proved.certificate;
    let maxima = match proved.maxima {
        0 => String::new(),
        1 => ", its exponential relative to a running maximum".to_owned(),
        count => format!(", {count} exponentials relative to running maxima"),
    };
    let measured = timed.and_then(|timed| timed.found_us.get(number));
    let measured = measured.map_or_else(String::new, |us| format!(", measured {us:.2} us"));
    outln!(
        "\n{}: modelled {:.2} us{measured}{maxima}; equal to the program but for a chance of 2^{log2_bound:.0} ({} tests, primes of \
         {prime_bits} bits)",
        number + 1,
        proved.cost_us,
        tests.len(),
    );
    if let Some(reason) = &proved.unstable {
        outln!("  not stable, exponentials may overflow: {reason}");
    }
    print_indented(candidate);
    if number == 0 {
        premises.iter().for_each(|premise| outln!("  premise: {premise}"));
    }
}

/// What the best µGraph gains, by measured times where there are some.
fn gain(first: &Proved, modelled: &Baseline, timed: Option<&Timed>) -> String {
    let (how, Baseline { unfused_us, templates_us }, own_us) = match timed {
        Some(timed) => {
            ("measured on this machine", &timed.baseline, timed.found_us[fastest(&timed.found_us)])
        }
        None => ("modelled, not measured", modelled, first.cost_us),
    };
    let own_us_or_more = own_us.max(f64::MIN_POSITIVE);
    format!(
        "{how}: {unfused_us:.2} us unfused, {templates_us:.2} us by templates, {own_us:.2} us found: {:.2} times as fast as templates",
        templates_us / own_us_or_more
    )
}

/// Writes a file and the folder that it lies in.
fn write(path: &Path, content: &[u8]) -> Result<(), Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    whole_file::write(path, |out| out.write_all(content)).map_err(failed)
}
