//! Invariants of `ARCHITECTURE.md` that no test of one crate holds.

mod cache_dir;

use cache_dir::CacheDir;
use orch_ir::{BinaryFn, Contract, DType, PrimGraph, PrimOp, ScalarFn, Tensor};
use orchestrion::compare::compare;
use orchestrion::{Artifact, Executable, Model, Options, Precision, RunOptions};
use std::path::{Path, PathBuf};

/// Crates that see operators of a model; all others see primitives.
const OPERATOR_CRATES: [&str; 6] =
    ["orch-ir", "orch-onnx", "orch-aten", "orch-fission", "orchestrion", "orchestrion-cli"];

/// The crate that may read environment variables.
const COMMAND: &str = "orchestrion-cli";

/// The folders of all crates.
fn crates() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let entries = std::fs::read_dir(root).expect("this crate lies among the others").flatten();
    entries.map(|entry| entry.path()).filter(|path| path.join("Cargo.toml").is_file()).collect()
}

fn name(folder: &Path) -> &str {
    folder.file_name().and_then(|name| name.to_str()).expect("crates have names in ASCII")
}

/// The lines of a folder's Rust files that contain one of `words`, without files of tests.
fn lines_with(folder: &Path, words: &[&str], found: &mut Vec<String>) {
    for path in std::fs::read_dir(folder).expect("a crate has sources").flatten().map(|entry| entry.path()) {
        let is_test = path.file_stem().is_some_and(|stem| stem == "tests" || stem == "testing");
        if path.is_dir() && !is_test {
            lines_with(&path, words, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
            let text = std::fs::read_to_string(&path).expect("a source is text");
            let lines = text.lines().filter(|line| words.iter().any(|word| line.contains(word)));
            found.extend(lines.map(|line| format!("{}: {}", path.display(), line.trim())));
        }
    }
}

#[test]
fn operators_are_unknown_after_fission() {
    let mut found = Vec::new();
    for folder in crates().iter().filter(|folder| !OPERATOR_CRATES.contains(&name(folder))) {
        lines_with(&folder.join("src"), &["OperatorGraph", "OperatorNode"], &mut found);
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).expect("cargo reads it too");
        let dependencies = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for crate_of_operators in ["orch-onnx", "orch-aten", "orch-fission"] {
            assert!(!dependencies.contains(crate_of_operators), "{} depends on it", folder.display());
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn only_the_command_reads_the_environment() {
    let mut found = Vec::new();
    for folder in crates().iter().filter(|folder| name(folder) != COMMAND) {
        lines_with(&folder.join("src"), &["env::var", "env::vars", "option_env!"], &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn elementwise_operands_have_equal_shapes() {
    let mut graph = PrimGraph::new("shapes");
    let matrix = graph.add_input("x", DType::F32, [2, 3]);
    for shape in [&[3][..], &[1, 3], &[2, 1], &[]] {
        let other = graph.add_input("y", DType::F32, shape);
        let add = PrimOp::Map(ScalarFn::Binary(BinaryFn::Add));
        assert!(
            graph.add(add, &[matrix, other]).is_err(),
            "broadcasting is a primitive of its own: {shape:?}"
        );
    }
}

/// `x w + x`, with weights that neither bf16 nor tf32 holds.
fn product() -> PrimGraph {
    const K: usize = 96;
    let mut graph = PrimGraph::new("product");
    let x = graph.add_input("x", DType::F32, [40, K]);
    let w = graph.add_constant(Tensor::from_vec([K, K], values(K * K)));
    let product = graph.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]).expect("shapes fit");
    let sum = graph.add(PrimOp::Map(ScalarFn::Binary(BinaryFn::Add)), &[product, x]).expect("shapes fit");
    graph.add_output("y", sum);
    graph
}

/// Values between 0.1 and 1.1.
fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + 13) % 10007) as f32 / 10007.0 + 0.1).collect()
}

fn options(cache: &CacheDir) -> Options {
    Options { cache_dir: cache.path().to_owned(), calibrate: false, ..Options::default() }
}

#[test]
fn f32_means_f32() {
    // Rounding operands to 10 bits of fraction, as tf32 does, is an error above 1e-5 of this sum of positive products.
    const BOUND: f64 = 2e-6;
    let cache = CacheDir::new("f32");
    let model = Model::from_graph(product());
    let inputs = [Tensor::from_vec([40, 96], values(40 * 96))];
    let exact = model.interpret(&inputs, true).expect("the interpreter runs it");
    let artifact = model.compile(&options(&cache)).expect("it compiles");
    assert_eq!(artifact.manifest.precision, Precision::F32);
    let outputs = Executable::load(artifact, RunOptions { threads: 1, ..RunOptions::default() })
        .and_then(|executable| executable.run(&inputs))
        .expect("it runs");
    assert!(compare(&outputs[0], &exact[0]).scaled < BOUND, "on the CPU");
    for target in ["cuda:sm_80", "cuda:sm_90"] {
        let options = Options { target: Some(target.to_owned()), ..options(&cache) };
        let outputs = model.plan(&options).and_then(|planned| planned.emulate(&inputs)).expect("it runs");
        assert!(compare(&outputs[0], &exact[0]).scaled < BOUND, "{target}");
    }
    let tf32 =
        Options { target: Some("cuda:sm_90".to_owned()), precision: Precision::Tf32, ..options(&cache) };
    let outputs = model.plan(&tf32).and_then(|planned| planned.emulate(&inputs)).expect("it runs");
    assert!(compare(&outputs[0], &exact[0]).scaled > BOUND, "the bound tells tf32 from f32");
}

/// ALiBi, which adds the same large numbers to the scores of all queries: f16 has one in 1/16 of them there, of which softmax would make
/// weights that are wrong by 3 %.
#[test]
fn constants_that_f16_does_not_hold_are_added_in_f32() {
    const BOUND: f64 = 4e-3;
    const ALIBI: &str = r#"graph "alibi" {
  input "q" t0: f32[2, 32, 64]
  input "k" t1: f32[2, 32, 64]
  input "v" t2: f32[2, 32, 64]
  const t3: f32[2, 32] = [BIAS]
  t4: f32[2, 32, 32] = contract t0, t1 labels="hqd,hkd->hqk"
  t5: f32[2, 32, 32] = broadcast t3 dims=[0, 2]
  t6: f32[2, 32, 32] = add t4, t5
  t7: f32[2, 32] = reduce.max t6 axes=[2]
  t8: f32[2, 32, 32] = broadcast t7 dims=[0, 1]
  t9: f32[2, 32, 32] = sub t6, t8
  t10: f32[2, 32, 32] = exp t9
  t11: f32[2, 32] = reduce.sum t10 axes=[2]
  t12: f32[2, 32, 32] = broadcast t11 dims=[0, 1]
  t13: f32[2, 32, 32] = div t10, t12
  t14: f32[2, 32, 64] = contract t13, t2 labels="hqk,hkd->hqd"
  output "y" t14
}"#;
    let cache = CacheDir::new("alibi");
    let bias: Vec<String> = (0..64).map(|key| format!("{}", -120.1 + 0.02 * f64::from(key % 32))).collect();
    let graph = orch_ir::text::parse(&ALIBI.replace("BIAS", &bias.join(", "))).expect("a valid graph");
    let model = Model::from_graph(graph);
    let given = |scale: f32, offset: f32, first: usize| {
        let values: Vec<f32> =
            values(first + 2 * 32 * 64).split_off(first).iter().map(|x| scale * (x - offset)).collect();
        Tensor::from_vec([2, 32, 64], values)
    };
    let inputs = [given(0.1, 0.6, 0), given(0.1, 0.6, 5), given(1.0, 0.6, 11)];
    let exact = model.interpret(&inputs, true).expect("the interpreter runs it");
    for target in ["cuda:sm_80", "cuda:sm_90"] {
        let precision = Precision::F16;
        let options = Options { target: Some(target.to_owned()), precision, ..options(&cache) };
        let outputs = model.plan(&options).and_then(|planned| planned.emulate(&inputs)).expect("it runs");
        let error = compare(&outputs[0], &exact[0]).scaled;
        assert!(error < BOUND, "{target}: {error}");
    }
}

/// Plan, sources and constants. (Shared objects name the temporary file that they were compiled from.)
#[test]
fn the_same_input_gives_the_same_program() {
    let compiled = |jobs: usize| -> Artifact {
        let cache = CacheDir::new(&format!("deterministic-{jobs}"));
        let options = Options { jobs, ..options(&cache) };
        Model::from_graph(product()).compile(&options).expect("it compiles")
    };
    let (first, second) = (compiled(1), compiled(4));
    assert!(!second.manifest.report.is_cached, "both plans are searched");
    assert_eq!(first.manifest.kernels, second.manifest.kernels);
    assert_eq!(first.manifest.steps, second.manifest.steps);
    assert_eq!(first.constants, second.constants);
}
