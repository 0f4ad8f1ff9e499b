//! `orchestrion superoptimize`: the cheapest µGraphs of a program, with proofs.

use crate::print::{note_line, outln};
use crate::{CompileArguments, files};
use clap::Args;
use orchestrion::superoptimize::{self, Program, Proved, Searched};
use orchestrion::{Error, whole_file};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Arguments of `superoptimize`.
#[derive(Args)]
pub struct Arguments {
    /// A program as text (.txt), or an ONNX model, of which all parts that are worth it are taken
    program: PathBuf,
    /// Folder for the proofs, one NAME.json each
    #[arg(long, value_name = "DIR")]
    certificates: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compile: CompileArguments,
}

/// Searches, and prints what was found.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let options = arguments.compile.options();
    let programs = superoptimize::programs(&arguments.program, &options)?;
    let stems = files::names(programs.iter().map(|program| program.name.as_str()), "");
    if programs.is_empty() {
        note_line(format_args!("no part of the model is of a kind that is superoptimized"));
    }
    let mut rows = Vec::new();
    for (program, stem) in programs.iter().zip(&stems) {
        let start = Instant::now();
        let searched = superoptimize::find(program, &options)?;
        let seconds = start.elapsed().as_secs_f64();
        if let Some(folder) = &arguments.certificates {
            let proved = &searched.found.proved;
            let paths: Vec<PathBuf> =
                (1..=proved.len()).map(|number| folder.join(format!("{stem}_{number}.json"))).collect();
            let inputs = [Some(&arguments.program), options.records.as_ref()];
            if let Err(refusal) =
                files::check_outputs(inputs.into_iter().flatten().map(PathBuf::as_path), &paths)
            {
                return refusal.report();
            }
            save(folder, &paths, proved)?;
        }
        if arguments.json {
            rows.push(serde_json::json!({
                "program": program.name, "stands_for": program.count, "seconds": seconds,
                "remembered": searched.is_cached, "found": searched.found,
            }));
        } else {
            print(program, &searched, seconds);
        }
    }
    if arguments.json {
        outln!("{:#}", serde_json::Value::from(rows));
    }
    Ok(ExitCode::SUCCESS)
}

fn print(program: &Program, searched: &Searched, seconds: f64) {
    let Searched { found, is_cached } = searched;
    let report = &found.report;
    let places = if program.count > 1 { format!(" ({} times)", program.count) } else { String::new() };
    outln!("program `{}`{places}", program.name);
    for line in superoptimize::text(&program.graph).lines() {
        outln!("  {line}");
    }
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
    if found.proved.is_empty() {
        outln!("nothing was found\n");
    }
    for (number, proved) in found.proved.iter().enumerate() {
        let certificate = &proved.certificate;
        let maxima = match proved.maxima {
            0 => String::new(),
            1 => ", its exponential relative to a running maximum".to_owned(),
            count => format!(", {count} exponentials relative to running maxima"),
        };
        outln!(
            "\n{}: modelled {:.2} us{maxima}; equal to the program but for a chance of 2^{:.0} ({} tests, primes of {} bits)",
            number + 1,
            proved.cost_us,
            certificate.log2_bound,
            certificate.tests.len(),
            certificate.prime_bits
        );
        if let Some(reason) = &proved.unstable {
            outln!("  not stable, exponentials may overflow: {reason}");
        }
        certificate.candidate.lines().for_each(|line| outln!("  {line}"));
        if number == 0 {
            certificate.premises.iter().for_each(|premise| outln!("  premise: {premise}"));
        }
    }
    outln!("");
}

/// Writes the proofs of a program.
fn save(folder: &Path, paths: &[PathBuf], proved: &[Proved]) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    };
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    for (path, proved) in paths.iter().zip(proved) {
        let text = proved.certificate.to_json();
        whole_file::write(path, |out| out.write_all(text.as_bytes())).map_err(failed(path))?;
    }
    Ok(())
}
