//! `orchestrion-check FILE [--seed N] [--json]`: whether the candidate of a proof computes its program.

use clap::Parser;
use orch_check::{MAX_TIME, Program, Verdict, check, parse, random_seed};
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// What is read of a file, in bytes.
const MAX_BYTES: u64 = 8 << 20;

/// Decides whether the candidate of a proof computes its program.
#[derive(Parser)]
#[command(name = "orchestrion-check")]
struct Options {
    /// A certificate, or a text with the program and then the candidate.
    file: PathBuf,
    /// What primes, keys and inputs are drawn from; the operating system draws one where it is not given.
    #[arg(long)]
    seed: Option<u128>,
    /// Prints the answer as JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let options = Options::try_parse().unwrap_or_else(|usage| {
        let _ = usage.print();
        std::process::exit(if usage.use_stderr() { 3 } else { 0 })
    });
    run(&options).unwrap_or_else(|problem| {
        eprintln!("{problem}");
        ExitCode::from(3)
    })
}

fn run(options: &Options) -> Result<ExitCode, String> {
    let seed = options.seed.unwrap_or_else(random_seed);
    let mut text = String::new();
    let read = File::open(&options.file).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
    let both = read.map_err(|error| error.to_string()).and_then(|_| programs(&text));
    let [program, candidate] =
        both.map_err(|problem| format!("error: {}: {problem}", options.file.display()))?;
    let verdict = check(&program, &candidate, seed, MAX_TIME);
    let mut answer = serde_json::json!(verdict);
    answer["seed"] = seed.to_string().into();
    let text = if options.json { format!("{answer:#}") } else { format!("{verdict}seed: {seed}") };
    // The exit code says it too, where nobody reads on.
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(match verdict {
        Verdict::Proved(_) => ExitCode::SUCCESS,
        Verdict::Refuted(_) => ExitCode::from(1),
        Verdict::CannotSay(_) => ExitCode::from(2),
    })
}

/// The program and the candidate of a certificate (JSON), or of a text with one after the other.
fn programs(text: &str) -> Result<[Program; 2], String> {
    let mut programs = Vec::new();
    if text.trim_start().starts_with('{') {
        let certificate: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        for field in ["program", "candidate"] {
            let text = certificate[field].as_str().ok_or(format!("no field {field}"))?;
            let read = parse(text).map_err(|problem| format!("{field}: {problem}"))?;
            let one: [Program; 1] = read.try_into().map_err(|_| format!("{field}: not one program"))?;
            programs.extend(one);
        }
    } else {
        programs = parse(text)?;
    }
    let count = programs.len();
    programs.try_into().map_err(|_| format!("{count} programs, expected a program and a candidate"))
}
