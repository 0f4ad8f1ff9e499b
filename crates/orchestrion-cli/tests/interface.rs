//! The interface that `docs/cli.md` promises to other programs: commands, options, exit codes, keys of JSON, and the protocol of
//! `bench --serve`. The tables of that page are read and compared with what the command does.

use orch_ir::DType;
use orch_onnx::builder::{GraphBuilder, node};
use orchestrion::manifest::Manifest;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PAGE: &str = include_str!("../../../docs/cli.md");

/// A small trained network.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits_cnn.onnx");

/// A program that is searched in no time.
const PROGRAM: &str = "mugraph \"m\" {\n  t0 = input \"x\" [4, 64]\n  t1 = input \"w\" [64, 64]\n  t2 = matmul t0, t1\n  \
                       t3 = relu t2\n  output \"o\" t3\n}\n";

/// What a kernel of a GPU has; a test has none.
const TEAM: &str = r#"{"threads": 128, "cluster": 2, "shared_bytes": 4096,
    "resources": {"registers": 96, "stack_bytes": 0, "spill_bytes": 8}}"#;

/// A folder in which the command runs; it is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(purpose: &str) -> Self {
        let name = format!("interface-{purpose}-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orchestrion"));
        command.args(arguments).current_dir(&self.0).stdin(Stdio::null());
        command.env("ORCHESTRION_CACHE", self.0.join("cache"));
        for name in ["CC", "NVRTC", "CUDA_DRIVER", "CUBLASLT", "CUDNN"] {
            command.env_remove(format!("ORCHESTRION_{name}"));
        }
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn code(&self, arguments: &[&str]) -> i32 {
        self.output(arguments).status.code().expect("it ends by itself")
    }

    /// Standard output of a call that succeeds.
    fn text(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(arguments)).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }

    /// The compiled model.
    fn compiled(&self) -> &'static str {
        self.text(&["compile", MODEL, "-o", "model.orc", "--no-calibration", "-q"]);
        "model.orc"
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays in the build folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The cells of the tables of a section, without heads; backticks are left out.
fn table(section: &str) -> Vec<Vec<String>> {
    let page = PAGE.replace('`', "");
    let heading = format!("\n## {section}\n");
    let (_, rest) =
        page.split_once(&heading).unwrap_or_else(|| panic!("docs/cli.md has no section {section}"));
    let lines: Vec<&str> = rest.split("\n## ").next().unwrap_or_default().lines().collect();
    let is_row = |at: usize| {
        let is_head = lines.get(at + 1).is_some_and(|next| next.starts_with("|---"));
        lines[at].starts_with("| ") && !is_head
    };
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let rows: Vec<_> = (0..lines.len()).filter(|&at| is_row(at)).map(|at| cells(lines[at])).collect();
    assert!(!rows.is_empty(), "{section} has no rows");
    rows
}

/// All values that a key such as `a[].b` leads to; none below a null that the page allows.
fn values<'a>(root: &'a Value, key: &str, nullable: &[String]) -> Result<Vec<&'a Value>, String> {
    let mut found = vec![root];
    let mut so_far = String::new();
    for part in key.split('.') {
        let (name, is_list) = part.strip_suffix("[]").map_or((part, false), |name| (name, true));
        if nullable.contains(&so_far) {
            found.retain(|value| !value.is_null());
        }
        so_far = if so_far.is_empty() { part.to_owned() } else { format!("{so_far}.{part}") };
        let mut next = Vec::new();
        for value in found {
            let value = if name.is_empty() { Some(value) } else { value.get(name) };
            let value = value.ok_or_else(|| format!("there is no `{so_far}`"))?;
            match (is_list, value.as_array()) {
                (false, _) => next.push(value),
                (true, Some(elements)) => next.extend(elements),
                (true, None) => return Err(format!("`{so_far}` is no list")),
            }
        }
        found = next;
    }
    Ok(found)
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "any" => true,
        "text" => value.is_string(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "list" => value.is_array(),
        "object" => value.is_object(),
        _ => match name.strip_suffix(" or null") {
            Some(rest) => value.is_null() || has_type(value, rest),
            None => panic!("docs/cli.md has an unknown type `{name}`"),
        },
    }
}

/// Checks JSON by the table of a section. Where `all` is set, each key must lead to a value.
fn check(json: &Value, section: &str, all: bool) {
    let rows = table(section);
    let nullable: Vec<String> =
        rows.iter().filter(|row| row[1].ends_with(" or null")).map(|row| row[0].clone()).collect();
    for row in &rows {
        let (key, kind) = (&row[0], &row[1]);
        let found = values(json, key, &nullable).unwrap_or_else(|problem| panic!("{section}: {problem}"));
        assert!(!all || !found.is_empty(), "{section}: `{key}` leads to nothing");
        let wrong = found.iter().find(|value| !has_type(value, kind));
        assert!(wrong.is_none(), "{section}: `{key}` should be {kind}, not {wrong:?}");
    }
}

#[test]
fn commands_and_options_are_those_of_the_page() {
    let folder = Folder::new("help");
    let help = folder.text(&["--help"]);
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    let documented: Vec<Vec<String>> = table("Commands");
    let (options, commands): (Vec<_>, Vec<_>) =
        documented.iter().map(|row| row[0].as_str()).partition(|name| name.starts_with('-'));
    assert_eq!(names.collect::<Vec<_>>(), commands, "left: --help, right: docs/cli.md");
    let help = folder.text(&["compile", "--help"]);
    let known: Vec<&str> = help.split([' ', ',', '\n']).filter(|word| word.starts_with('-')).collect();
    for option in options {
        let name = option.split(' ').next().unwrap_or_default();
        assert!(known.contains(&name), "docs/cli.md names `{name}`, `compile --help` does not");
    }
}

#[test]
fn exit_codes_are_those_of_the_page() {
    let folder = Folder::new("codes");
    let compiled = folder.compiled();
    let random = GraphBuilder::new("g")
        .input("x", DType::F32, [2])
        .node(node("Bernoulli", ["x"], ["y"]))
        .output("y")
        .model(17);
    std::fs::write(folder.0.join("random.onnx"), random.encode()).unwrap();
    let given: [(i32, &[&str]); 6] = [
        (0, &["run", compiled]),
        (1, &["run", "missing.onnx"]),
        (2, &["run", compiled, "--no-such-option"]),
        (3, &["compile", "random.onnx", "-o", "random.orc"]),
        (4, &["compile", MODEL, "-o", "other.orc", "--cc", "/nonexistent/cc"]),
        (5, &["verify", compiled, "--onnx", MODEL, "--tolerance", "0"]),
    ];
    for (code, arguments) in given {
        assert_eq!(folder.code(arguments), code, "{arguments:?}");
    }
    // `bad_input/devices.rs` and `bad_input/interrupt.rs` beside this file provoke the last two.
    let documented: Vec<String> = table("Exit codes").into_iter().map(|row| row[0].clone()).collect();
    let known = given.iter().map(|(code, _)| *code).chain([70, 130]).map(|code| code.to_string());
    assert_eq!(documented, known.collect::<Vec<_>>());
}

#[test]
fn explain_prints_the_manifest() {
    let folder = Folder::new("explain");
    let compiled = folder.compiled();
    let mut json = folder.json(&["explain", compiled, "--json"]);
    check(&json, "JSON of explain", false);
    let steps = json["manifest"]["steps"].as_array().unwrap();
    let kernels = json["manifest"]["kernels"].as_array().unwrap();
    let names: Vec<&Value> = steps
        .iter()
        .map(|step| &kernels[usize::try_from(step["action"]["kernel"].as_u64().unwrap()).unwrap()]["name"])
        .collect();
    assert_eq!(names, steps.iter().map(|step| &step["name"]).collect::<Vec<_>>(), "all steps are kernels");
    assert_eq!(json["measured_us"].as_array().unwrap().len(), steps.len());

    // As a GPU's: what is read and written again has all keys.
    json["manifest"]["kernels"][0]["team"] = serde_json::from_str(TEAM).unwrap();
    let manifest: Manifest = serde_json::from_value(json["manifest"].take()).unwrap();
    json["manifest"] = serde_json::to_value(&manifest).unwrap();
    check(&json, "JSON of explain", true);
    let team = &json["manifest"]["kernels"][0]["team"];
    assert_eq!((&team["cluster"], &team["resources"]["spill_bytes"]), (&2.into(), &8.into()));
}

#[test]
fn explain_writes_pages_traces_and_comparisons() {
    let folder = Folder::new("explain-files");
    let compiled = folder.compiled();
    folder.text(&["compile", MODEL, "-o", "other.orc", "--no-calibration", "--no-fusion", "-q"]);
    let (screen, all) = (folder.text(&["explain", compiled]), folder.text(&["explain", compiled, "--all"]));
    assert!(screen.lines().count() <= 24 && all.lines().count() > 24, "{screen}");
    assert!(screen.contains("nothing runs on the host") && screen.contains("try: "), "{screen}");
    assert!(!all.contains("try: ") && all.contains("modelled"), "{all}");
    let said = folder.text(&["compile", MODEL, "-o", "model.orc", "--no-calibration", "-q"]);
    assert!(said.lines().last().is_some_and(|line| line.contains("; costliest k")), "{said}");

    folder.text(&["explain", compiled, "--html", "page.html", "--trace", "run.json"]);
    let page = std::fs::read_to_string(folder.0.join("page.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("\"comparison\":null"));
    let trace = std::fs::read_to_string(folder.0.join("run.json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    let is_modelled = |event: &&Value| event["args"]["times"] == "modelled";
    let steps = folder.json(&["explain", compiled, "--json"])["manifest"]["steps"].as_array().unwrap().len();
    assert_eq!(trace["traceEvents"].as_array().unwrap().iter().filter(is_modelled).count(), steps);

    let both = folder.json(&["explain", compiled, "--against", "other.orc", "--json"]);
    check(&both, "JSON of explain", false);
    assert!(both["against"]["manifest"]["steps"].as_array().unwrap().len() > steps);
    let rows = both["comparison"]["rows"].as_array().unwrap();
    let change = |row: &Value| (row["second_us"].as_f64().unwrap() - row["first_us"].as_f64().unwrap()).abs();
    assert!(rows.windows(2).all(|pair| change(&pair[0]) >= change(&pair[1])), "{rows:?}");
    assert!(folder.text(&["explain", compiled, "--against", "other.orc"]).contains(" -> "));

    // Nothing that is read is replaced, and a folder that is missing is told.
    assert_eq!(folder.code(&["explain", compiled, "--html", compiled]), 2);
    assert_eq!(folder.code(&["explain", compiled, "--against", "other.orc", "--html", "other.orc"]), 2);
    assert_eq!(folder.code(&["explain", compiled, "--html", "same", "--trace", "same"]), 2);
    assert_eq!(folder.code(&["explain", compiled, "--html", "missing/page.html"]), 1);
}

#[test]
fn compile_verify_and_run_report() {
    let folder = Folder::new("reports");
    let report = folder.json(&["compile", MODEL, "-o", "model.orc", "--no-calibration", "-q", "--json"]);
    check(&report, "JSON of compile", true);
    assert_eq!(report["solver_status"], "optimal");

    let report = folder.json(&["verify", "model.orc", "--onnx", MODEL, "--json", "--quiet"]);
    check(&report, "JSON of verify", true);
    assert_eq!((&report["pass"], &report["outputs"][0]["output"]), (&true.into(), &"output".into()));

    folder.text(&["run", "model.orc", "-i", &format!("image={}", image(&folder)), "--output-dir", "out"]);
    let array = std::fs::read(folder.0.join("out/output.npy")).unwrap();
    assert!(array.starts_with(b"\x93NUMPY"), "outputs are arrays of numpy, named as in the model");
}

/// An input of the model as a file: zeros.
fn image(folder: &Folder) -> &'static str {
    std::fs::write(folder.0.join("image.npy"), npy("<f4", "(1, 1, 8, 8)", &[0; 4 * 8 * 8])).unwrap();
    "image.npy"
}

/// The file of an array.
fn npy(dtype: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let about = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}");
    let header = format!("{about:<117}\n");
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), elements].concat()
}

#[test]
fn bench_prints_figures_and_serves() {
    let folder = Folder::new("bench");
    let compiled = folder.compiled();
    let figures = folder.json(&["bench", compiled, "--json", "--seconds", "0.01"]);
    check(&figures, "JSON of bench", true);
    let steps = folder.text(&["bench", compiled, "--steps", "--seconds", "0.01"]);
    assert!(steps.lines().count() > 1, "{steps}");

    let mut command = folder.command(&["bench", compiled, "--serve", "--threads", "1"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut requests = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let ready = answers.next().unwrap();
    let base_kib = ready.strip_prefix("ready ").and_then(|number| number.parse::<u64>().ok());
    assert!(base_kib.is_some(), "{ready}");
    for runs in [1, 3] {
        writeln!(requests, "run {runs}").unwrap();
        let times: Vec<f64> = answers.next().unwrap().split(' ').map(|word| word.parse().unwrap()).collect();
        assert!(times.len() == runs && times.iter().all(|&ms| ms > 0.0), "{times:?}");
    }
    drop(requests);
    assert!(child.wait().unwrap().success(), "it ends with standard input");
}

/// Integers that nobody gives are 0 and 1; what times depend on them is said, and times with given ones are to be had.
#[test]
fn generated_integers_are_told() {
    let folder = Folder::new("integers");
    let table = GraphBuilder::new("g")
        .input("ids", DType::I64, [6])
        .input("table", DType::F32, [50, 8])
        .node(node("Gather", ["table", "ids"], ["rows"]))
        .output("rows")
        .model(17);
    std::fs::write(folder.0.join("table.onnx"), table.encode()).unwrap();
    let ids = [49i64, 3, 17, 20, 0, 41].map(i64::to_le_bytes).concat();
    std::fs::write(folder.0.join("ids.npy"), npy("<i8", "(6,)", &ids)).unwrap();
    for command in
        [&["explain", "table.onnx", "--measure"][..], &["bench", "table.onnx", "--seconds", "0.01"]]
    {
        for (inputs, is_told) in [(&[][..], true), (&["-i", "ids=ids.npy"], false)] {
            let arguments = [command, inputs, &["--no-calibration", "-q"]].concat();
            let output = folder.output(&arguments);
            let notes = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{arguments:?}: {notes}");
            assert_eq!(notes.contains("integers of `ids` are generated"), is_told, "{arguments:?}: {notes}");
        }
    }
}

#[test]
fn superoptimize_prints_proofs() {
    let folder = Folder::new("superoptimize");
    std::fs::write(folder.0.join("program.txt"), PROGRAM).unwrap();
    let found = folder.json(&[
        "superoptimize",
        "program.txt",
        "--measure",
        "--emit=orc",
        "--json",
        "--no-calibration",
        "-q",
    ]);
    check(&found, "JSON of superoptimize", true);
}

#[test]
fn doctor_and_conformance_report() {
    let folder = Folder::new("doctor");
    let output = folder.output(&["doctor", "--json", "--no-calibration", "--cc", "/nonexistent/cc"]);
    assert_eq!(output.status.code(), Some(4), "there is no compiler");
    check(&serde_json::from_slice(&output.stdout).unwrap(), "JSON of doctor", false);

    std::fs::create_dir(folder.0.join("cases")).unwrap();
    let output = folder.output(&["conformance", "cases", "--json"]);
    if output.status.success() {
        check(&serde_json::from_slice(&output.stdout).unwrap(), "JSON of conformance", true);
    } else {
        panic!("{}", String::from_utf8_lossy(&output.stderr));
    }
}
