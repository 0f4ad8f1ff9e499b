//! The command: exit codes and what is printed.

use std::path::PathBuf;
use std::process::{Command, Output};

fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("orchestrion-check-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

fn run(path: &std::path::Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orchestrion-check")).arg(path).args(more).output().unwrap()
}

const EXP: &str = "mugraph \"p\" {\n t0 = input \"x\" [2, 3]\n t1 = exp t0\n output \"o\" t1\n}\n";

#[test]
fn exit_codes_are_the_answers() {
    let square = EXP.replace("exp", "square");
    let certificate =
        serde_json::json!({ "program": EXP, "candidate": EXP, "log2_bound": -1e9, "p": 7 }).to_string();
    let both = serde_json::json!({ "program": format!("{EXP}{EXP}"), "candidate": "" }).to_string();
    for (name, text, code, said) in [
        ("right", format!("{EXP}{EXP}"), 0, "proved"),
        ("wrong", format!("{EXP}{square}"), 1, "refuted"),
        ("other", format!("{EXP}{}", EXP.replace("\"x\"", "\"y\"")), 2, "cannot say"),
        ("one", EXP.to_owned(), 3, "1 programs, expected a program and a candidate"),
        ("bad", EXP.replace("exp", "frob"), 3, "line 3: no operator frob"),
        ("certificate", certificate, 0, "proved"),
        ("both-in-one-field", both, 3, "program: not one program"),
        ("no-certificate", "{\"program\": 3}".to_owned(), 3, "no field program"),
        ("no-json", "{".to_owned(), 3, "error"),
    ] {
        let path = file(name, &text);
        let output = run(&path, &["--seed", "5"]);
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{name}: {text}");
        assert!(text.contains(said), "{name}: {text}");
        std::fs::remove_file(path).unwrap();
    }
    assert_eq!(run(std::path::Path::new("/nonexistent"), &[]).status.code(), Some(3));
    assert_eq!(run(std::path::Path::new("x"), &["--seed", "-1"]).status.code(), Some(3));
    assert_eq!(run(std::path::Path::new("x"), &["--frob"]).status.code(), Some(3));
}

#[test]
fn a_seed_replays_an_answer_and_is_drawn_where_none_is_given() {
    let path = file("seed", &format!("{EXP}{EXP}"));
    let json = |more: &[&str]| -> serde_json::Value {
        serde_json::from_slice(&run(&path, &[&["--json"], more].concat()).stdout).unwrap()
    };
    let drawn = json(&[]);
    assert_ne!(drawn["seed"], json(&[])["seed"]);
    assert!(drawn["seed"].as_str().unwrap().parse::<u128>().unwrap() > u128::from(u64::MAX));
    let replayed = json(&["--seed", drawn["seed"].as_str().unwrap()]);
    assert_eq!(drawn, replayed);
    assert_eq!(replayed["verdict"], "proved");
    assert!(replayed["details"]["log2_bound"].as_f64().unwrap() <= -80.0);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn help_is_no_error_and_an_unknown_option_is_one() {
    let command = |option: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_orchestrion-check")).arg(option).output().unwrap();
        (output.status.code(), !output.stdout.is_empty(), !output.stderr.is_empty())
    };
    assert_eq!(command("--help"), (Some(0), true, false));
    assert_eq!(command("--unknown"), (Some(3), false, true));
}

#[test]
fn where_nobody_reads_the_exit_code_answers() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/small/lora.txt");
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchestrion-check"));
    let mut child = command.arg(path).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
