//! `orchestrion-check FILE [--seed N] [--json]`: whether the candidate of a proof computes its program.

use orch_check::{MAX_TIME, Program, Verdict, check, parse, random_seed};
use std::process::ExitCode;

/// The longest file, in bytes.
const MAX_BYTES: u64 = 8 << 20;
const USAGE: &str = "usage: orchestrion-check FILE [--seed N] [--json]";

fn main() -> ExitCode {
    run().unwrap_or_else(|problem| {
        eprintln!("error: {problem}");
        ExitCode::from(3)
    })
}

fn run() -> Result<ExitCode, String> {
    let (mut file, mut seed, mut json) = (None, None, false);
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--json" => json = true,
            "--seed" => {
                let number = given.next().and_then(|number| number.parse().ok());
                seed = Some(number.ok_or("--seed takes a number below 2^128")?);
            }
            _ if argument.starts_with('-') || file.is_some() => return Err(USAGE.into()),
            _ => file = Some(argument),
        }
    }
    let (file, seed) = (file.ok_or(USAGE)?, seed.unwrap_or_else(random_seed));
    let failed = |error: std::io::Error| format!("{file}: {error}");
    if std::fs::metadata(&file).map_err(failed)?.len() > MAX_BYTES {
        return Err(format!("{file}: more than {MAX_BYTES} bytes"));
    }
    let text = std::fs::read_to_string(&file).map_err(failed)?;
    let [program, candidate] = programs(&text).map_err(|problem| format!("{file}: {problem}"))?;
    let verdict = check(&program, &candidate, seed, MAX_TIME);
    let (name, code) = verdict.name();
    if json {
        let details = match &verdict {
            Verdict::Proved(proof) => serde_json::json!(proof),
            Verdict::Refuted(witness) => serde_json::json!(witness),
            Verdict::CannotSay(reason) => serde_json::json!({ "reason": reason }),
        };
        let answer = serde_json::json!({ "verdict": name, "seed": seed.to_string(), "details": details });
        println!("{answer:#}");
    } else {
        println!("{verdict}\nseed: {seed}");
    }
    Ok(ExitCode::from(code))
}

/// The program and the candidate of a certificate (JSON), or of a text with one after the other.
fn programs(text: &str) -> Result<[Program; 2], String> {
    let programs = if text.trim_start().starts_with('{') {
        let certificate: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let read = |field: &str| {
            let text = certificate[field].as_str().ok_or(format!("no field {field}"))?;
            parse(text).map_err(|problem| format!("{field}: {problem}"))
        };
        let (program, candidate) = (read("program")?, read("candidate")?);
        if program.len() != 1 { program } else { [program, candidate].concat() }
    } else {
        parse(text)?
    };
    let count = programs.len();
    programs.try_into().map_err(|_| format!("{count} programs, expected a program and a candidate"))
}
