//! What `orchestrion superoptimize` ends with: code that runs, with its proof, and times that say what they are.

use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Attention of 3 rows by 24 keys: in two heads, with extents that no vector divides.
const ATTENTION: &str = "mugraph \"small attention\" {
  t0 = input \"q\" [2, 3, 5]
  t1 = input \"k\" [2, 5, 24]
  t2 = input \"v\" [2, 24, 7]
  t3 = matmul t0, t1
  t4 = exp t3
  t5 = sum(2) t4
  t6 = div t4, t5
  t7 = matmul t6, t2
  output \"o\" t7
}
";

/// A sum, and its norm times weights: an output is an operand of the other one.
const SUM_AND_NORM: &str = "mugraph \"sum and norm\" {
  t0 = input \"x\" [5, 24]
  t1 = input \"r\" [5, 24]
  t2 = input \"w\" [1, 24]
  t3 = add t0, t1
  t4 = rms_norm(1/1000) t3
  t5 = mul t4, t2
  output \"normed\" t5
  output \"sum\" t3
}
";

/// A folder in which the command runs; it is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(purpose: &str) -> Self {
        let name = format!("superoptimize-{purpose}-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("attention.txt"), ATTENTION).unwrap();
        std::fs::write(folder.join("two.txt"), SUM_AND_NORM).unwrap();
        Self(folder)
    }

    fn output(&self, arguments: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orchestrion"));
        command.args(arguments.split_whitespace()).current_dir(&self.0).stdin(Stdio::null());
        command.env("ORCHESTRION_CACHE", self.0.join("cache"));
        command.output().unwrap()
    }

    /// Standard output of a call that succeeds.
    fn text(&self, arguments: &str) -> String {
        succeeds(arguments, &self.output(arguments))
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays in the build folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn succeeds(what: &str, output: &Output) -> String {
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// An element of an input: what the C program below fills it with.
fn element(number: usize, at: usize) -> f64 {
    ((at * 37 + number * 11) % 19) as f64 / 8.0 - 1.0
}

/// The attention of these inputs, in f64.
fn expected() -> Vec<f64> {
    let (rows, inner, keys, columns) = (3, 5, 24, 7);
    let mut all = Vec::new();
    for head in 0..2 {
        for row in 0..rows {
            let logit = |key: usize| -> f64 {
                let term = |at: usize| {
                    element(0, (head * rows + row) * inner + at)
                        * element(1, (head * inner + at) * keys + key)
                };
                (0..inner).map(term).sum()
            };
            let weights: Vec<f64> = (0..keys).map(|key| logit(key).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for column in 0..columns {
                let value = |key: usize| weights[key] * element(2, (head * keys + key) * columns + column);
                all.push((0..keys).map(value).sum::<f64>() / sum);
            }
        }
    }
    all
}

/// Calls the function of the file, and prints what it computes.
const MAIN: &str = "
#include <stdio.h>
int small_attention_found_run(const float *, const float *, const float *, float *);
static float q[30], k[240], v[336], o[42];
static void fill(float *a, int count, int number) {
    for (int at = 0; at < count; at++) a[at] = (float)((at * 37 + number * 11) % 19) / 8 - 1;
}
int main(void) {
    fill(q, 30, 0), fill(k, 240, 1), fill(v, 336, 2);
    if (small_attention_found_run(q, k, v, o)) return 1;
    for (int at = 0; at < 42; at++) printf(\"%.9g\\n\", o[at]);
    return 0;
}
";

#[test]
fn c_is_compiled_and_computes_the_program() {
    let folder = Folder::new("c");
    let text = folder.text("superoptimize attention.txt --emit c --emit-dir out --no-calibration -q");
    assert!(text.contains("written: out/small_attention_found.c, with its proof"), "{text}");
    let source = folder.read("out/small_attention_found.c");
    let header = source.split("*/").next().unwrap_or_default();
    for part in
        ["int small_attention_found_run(const float *in0_q,", "`v`, f32[2, 24, 7]", "chance of 2^-", "cc -O2"]
    {
        assert!(header.contains(part), "no `{part}` in\n{header}");
    }
    std::fs::write(folder.0.join("main.c"), MAIN).unwrap();
    for flags in ["-O2 -march=native", "-O2 -march=native -fopenmp"] {
        let mut cc = Command::new("cc");
        cc.args(flags.split_whitespace());
        cc.args("-std=gnu11 -ffp-contract=fast -fno-math-errno -fno-trapping-math".split_whitespace());
        cc.args(["-Wall", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function", "-Wno-psabi"]);
        cc.args(["out/small_attention_found.c", "main.c", "-lm", "-o", "main"]);
        succeeds("cc", &cc.current_dir(&folder.0).output().unwrap());
        let printed = succeeds("main", &Command::new(folder.0.join("main")).output().unwrap());
        let given: Vec<f64> = printed.lines().map(|line| line.parse().unwrap()).collect();
        let expected = expected();
        assert_eq!(given.len(), expected.len());
        for (given, expected) in given.iter().zip(&expected) {
            assert!((given - expected).abs() < 1e-5, "{given} and {expected}");
        }
    }
}

#[test]
fn an_executable_runs_and_is_verified() {
    let folder = Folder::new("orc");
    folder.text("superoptimize attention.txt --emit orc --no-calibration -q");
    let outputs = folder.text("run small_attention_found.orc");
    assert!(outputs.contains('o'), "{outputs}");
    let verified: Value =
        serde_json::from_str(&folder.text("verify small_attention_found.orc --json -q")).unwrap();
    assert_eq!((&verified["pass"], &verified["proofs"][0]["pass"]), (&true.into(), &true.into()));
    assert_eq!(verified["proofs"][0]["checker"]["answer"], "proved");
    assert_eq!(verified["parts"][0]["pass"], true);
    let explained = folder.text("explain small_attention_found.orc --all");
    assert!(explained.contains("found by the superoptimizer"), "{explained}");
    let certificate = folder.text("verify small_attention_found.json");
    assert!(certificate.contains("pass"), "{certificate}");
}

/// The JSON that `verify` prints.
fn verified(folder: &Folder, file: &str) -> Value {
    serde_json::from_str(&folder.text(&format!("verify {file} --json -q"))).unwrap()
}

const TWO_MAIN: &str = "
#include <stdio.h>
int sum_and_norm_found_run(const float *, const float *, const float *, float *, float *);
static float x[120], r[120], w[24], normed[120], sum[120];
static void fill(float *a, int count, int number) {
    for (int at = 0; at < count; at++) a[at] = (float)((at * 37 + number * 11) % 19) / 8 - 1;
}
int main(void) {
    fill(x, 120, 0), fill(r, 120, 1), fill(w, 24, 2);
    if (sum_and_norm_found_run(x, r, w, normed, sum)) return 1;
    for (int at = 0; at < 120; at++) printf(\"%.9g %.9g\\n\", normed[at], sum[at]);
    return 0;
}
";

#[test]
fn programs_of_two_outputs_become_code() {
    let folder = Folder::new("two");
    folder.text("superoptimize two.txt --emit c --no-calibration -q");
    std::fs::write(folder.0.join("main.c"), TWO_MAIN).unwrap();
    let mut cc = Command::new("cc");
    cc.args("-O2 -march=native -std=gnu11 -Wno-psabi sum_and_norm_found.c main.c -lm -o main".split(' '));
    succeeds("cc", &cc.current_dir(&folder.0).output().unwrap());
    let printed = succeeds("main", &Command::new(folder.0.join("main")).output().unwrap());
    let given: Vec<f64> = printed.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let (rows, columns) = (5, 24);
    assert_eq!(given.len(), 2 * rows * columns);
    for row in 0..rows {
        let sums: Vec<f64> =
            (0..columns).map(|at| element(0, row * columns + at) + element(1, row * columns + at)).collect();
        let square = sums.iter().map(|sum| sum * sum).sum::<f64>() / columns as f64 + 1e-3;
        for (at, sum) in sums.iter().enumerate() {
            let normed = sum / square.sqrt() * element(2, at);
            let [given_norm, given_sum] = [0, 1].map(|output| given[2 * (row * columns + at) + output]);
            assert!((given_norm - normed).abs() < 1e-5 && (given_sum - sum).abs() < 1e-6, "{row} {at}");
        }
    }

    folder.text("superoptimize two.txt --emit orc --no-calibration -q");
    let outputs = folder.text("run sum_and_norm_found.orc");
    assert!(outputs.contains("normed") && outputs.contains("sum"), "{outputs}");
    let answer = verified(&folder, "sum_and_norm_found.orc");
    assert_eq!(
        (&answer["pass"], &answer["proofs"][0]["checker"]["answer"]),
        (&true.into(), &"proved".into())
    );
    let part = &answer["parts"][0];
    assert!(part["pass"] == true && part["kernel_test"]["inputs"].as_u64() > Some(0), "{answer}");
    assert_eq!(answer["outputs"].as_array().map(Vec::len), Some(2));
}

/// NVRTC compiles what is written, and needs no GPU.
#[test]
fn programs_of_two_outputs_become_cuda() {
    let folder = Folder::new("cuda");
    let arguments = "superoptimize two.txt --emit cuda --target cuda:sm_90 --no-calibration -q";
    let asked = std::env::var_os("ORCHESTRION_TEST_NVRTC");
    let output = folder.output(&match &asked {
        Some(path) => format!("{arguments} --nvrtc {}", path.display()),
        None => arguments.to_owned(),
    });
    if asked.is_none() && output.status.code() == Some(4) {
        eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    succeeds(arguments, &output);
    let source = folder.read("sum_and_norm_found.cu");
    for part in ["output `normed`", "output `sum`", "input `w`", "<<<", "__global__", "chance of 2^-"] {
        assert!(source.contains(part), "no `{part}` in\n{source}");
    }
    assert!(folder.text("verify sum_and_norm_found.json").contains("pass"));
}

#[test]
fn times_say_whether_they_were_measured() {
    let folder = Folder::new("times");
    let modelled = folder.text("superoptimize attention.txt --no-calibration -q");
    assert!(modelled.contains("modelled, not measured: "), "{modelled}");
    assert!(!modelled.contains("measured on this machine"), "{modelled}");
    let measured = folder.text("superoptimize attention.txt --measure --no-calibration -q");
    assert!(measured.contains("\nmeasured on this machine: "), "{measured}");
    let json = folder.text("superoptimize attention.txt --measure --json --no-calibration -q");
    let json: Value = serde_json::from_str(&json).unwrap();
    let times = &json[0]["measured"];
    let found = times["found_us"].as_array().unwrap();
    assert_eq!(found.len(), json[0]["found"]["proved"].as_array().unwrap().len());
    let all = [
        &times["baseline"]["unfused_us"],
        &times["baseline"]["templates_us"],
        &json[0]["modelled"]["unfused_us"],
    ];
    for time in found.iter().chain(all) {
        assert!(time.as_f64().is_some_and(|us| us > 0.0), "{json}");
    }
}

#[test]
fn parts_of_a_model_are_written_each() {
    use orch_ir::DType;
    use orch_onnx::builder::{GraphBuilder, node};
    let folder = Folder::new("model");
    let model = GraphBuilder::new("g")
        .input("x", DType::F32, [8, 16])
        .input("w", DType::F32, [16, 24])
        .node(node("MatMul", ["x", "w"], ["p"]))
        .node(node("Softmax", ["p"], ["y"]))
        .output("y")
        .model(17);
    std::fs::write(folder.0.join("model.onnx"), model.encode()).unwrap();
    let json = folder.text("superoptimize model.onnx --emit orc --emit-dir out --json --no-calibration -q");
    let json: Value = serde_json::from_str(&json).unwrap();
    let rows = json.as_array().unwrap();
    assert!(!rows.is_empty());
    let mut written = String::new();
    for row in rows.iter().filter(|row| !row["emitted"].is_null()) {
        let path = row["emitted"].as_str().unwrap();
        let verified: Value =
            serde_json::from_str(&folder.text(&format!("verify {path} --json -q"))).unwrap();
        assert_eq!(verified["pass"], true, "{verified}");
        writeln!(written, "{path}").unwrap();
    }
    assert!(!written.is_empty(), "{json}");
}

#[test]
fn code_that_does_not_suit_the_target_is_refused() {
    let folder = Folder::new("usage");
    for arguments in ["--emit cuda", "--emit c --target cuda:sm_90", "--emit rust", "--emit-dir out"] {
        let output = folder.output(&format!("superoptimize attention.txt {arguments} --no-calibration -q"));
        assert_eq!(output.status.code(), Some(2), "{arguments}");
    }
    // What is read is not replaced.
    std::fs::write(folder.0.join("small_attention_found.txt"), ATTENTION).unwrap();
    let output = folder.output("superoptimize small_attention_found.txt --emit c --no-calibration -q");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(folder.read("small_attention_found.txt"), ATTENTION);
}
