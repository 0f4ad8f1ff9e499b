//! What the superoptimizer finds for parts of a model is chosen where it is cheaper, computes what it should on every
//! kind of target, and is proved.
//!
//! Plans run through the interpreter of thread programs.

mod attention;
mod cache_dir;
mod plan_options;

use attention::attention;
use cache_dir::CacheDir;
use orch_ir::generate::random_inputs;
use orch_ir::text::parse;
use orch_ir::{BinaryFn, Contract, DType, PrimGraph, PrimOp, ScalarFn, Shape, Tensor, TensorId, UnaryFn};
use orchestrion::compare::compare;
use orchestrion::verification::check_proof;
use orchestrion::{Executable, Model, Options, Precision, RunOptions};
use plan_options::options;

/// Attention of so many rows and keys, of which each row sees the keys up to its own and `window` before it: scores are chosen by
/// the condition, or (`is_added`) a low number is added to those that are hidden.
fn window_attention(rows: usize, window: usize, is_added: bool) -> PrimGraph {
    let scores = format!("f32[2, {rows}, {rows}]");
    let masked = match is_added {
        false => format!("  t17: {scores} = select t13, t16, t14\n"),
        true => format!("  t17: {scores} = select t13, t15, t14\n  t18: {scores} = add t16, t17\n"),
    };
    let first = 17 + usize::from(is_added);
    let [s, max, wide_max, difference, power, sum, wide_sum, weight, result] =
        [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|later| format!("t{}", first + later));
    let text = format!(
        "graph \"window\" {{
  input \"q\" t0: f32[2, {rows}, 16]
  input \"k\" t1: f32[2, 16, {rows}]
  input \"v\" t2: f32[2, {rows}, 16]
  const t3: i64[] = [{window}]
  const t4: f32[] = [-1e30]
  const t5: f32[] = [0]
  t6: i64[{rows}, {rows}] = iota axis=0
  t7: i64[{rows}, {rows}] = iota axis=1
  t8: bool[{rows}, {rows}] = le t7, t6
  t9: i64[{rows}, {rows}] = sub t6, t7
  t10: i64[{rows}, {rows}] = broadcast t3 dims=[]
  t11: bool[{rows}, {rows}] = le t9, t10
  t12: bool[{rows}, {rows}] = and t8, t11
  t13: bool[2, {rows}, {rows}] = broadcast t12 dims=[1, 2]
  t14: {scores} = broadcast t4 dims=[]
  t15: {scores} = broadcast t5 dims=[]
  t16: {scores} = contract t0, t1 labels=\"bmk,bkn->bmn\"
{masked}  {max}: f32[2, {rows}] = reduce.max {s} axes=[2]
  {wide_max}: {scores} = broadcast {max} dims=[0, 1]
  {difference}: {scores} = sub {s}, {wide_max}
  {power}: {scores} = exp {difference}
  {sum}: f32[2, {rows}] = reduce.sum {power} axes=[2]
  {wide_sum}: {scores} = broadcast {sum} dims=[0, 1]
  {weight}: {scores} = div {power}, {wide_sum}
  {result}: f32[2, {rows}, 16] = contract {weight}, t2 labels=\"bmk,bkn->bmn\"
  output \"o\" {result}
}}
"
    );
    parse(&text).unwrap_or_else(|error| panic!("{error:?}\n{text}"))
}

/// Inputs of which the logits are so large that exponentials without maxima overflow.
fn inputs(graph: &PrimGraph, scale: f64) -> Vec<Tensor> {
    let scaled = |tensor: Tensor| {
        let values: Vec<f64> = tensor.to_f64().into_iter().map(|value| value * scale).collect();
        Tensor::from_f64(DType::F32, tensor.shape().clone(), &values)
    };
    random_inputs(graph, 5).into_iter().map(scaled).collect()
}

/// Plans with a proved part, and compares what the plan computes.
fn check(graph: &PrimGraph, target: &str, (precision, tolerance): (Precision, f64), scale: f64) {
    let cache = CacheDir::new(&format!("substitutes-{}-{target}-{}", graph.name, precision.name()));
    let place = format!("{} for {target} in {}", graph.name, precision.name());
    let model = Model::from_graph(graph.clone());
    let planned = model.plan(&options(&cache, Some(target), precision)).unwrap_or_else(|e| panic!("{e}"));
    assert!(!planned.proofs().is_empty(), "{place}: kernels of templates are cheaper");
    for proof in planned.proofs() {
        assert!(proof.log2_bound < -80.0);
        let check = check_proof(proof);
        assert!(check.pass, "{place}: {check:?}");
        // It cannot say where masks are added and change as numbers do.
        let answers = if graph.name == "window" { &["proved", "cannot say"][..] } else { &["proved"] };
        assert!(answers.contains(&check.checker.answer), "{place}: {check:?}");
    }
    let inputs = inputs(graph, scale);
    let outputs = planned.emulate(&inputs).unwrap_or_else(|error| panic!("{place}: {error}"));
    let expected = model.interpret(&inputs, true).expect("the inputs fit");
    let difference = compare(&outputs[0], &expected[0]);
    assert!(difference.scaled <= tolerance && difference.mismatched == 0, "{place}: {difference:?}");
}

#[test]
fn attention_is_proved_and_does_not_overflow() {
    check(&attention(32, 256), "cuda:sm_90", (Precision::F32, 1e-4), 8.0);
    check(&attention(32, 256), "cuda:sm_80", (Precision::Tf32, 2e-2), 1.0);
}

/// `(silu(x g) * (x u)) d` with constant weights: on GPUs the products by `g` and `u` are merged to one, which must not hide them.
fn gated_mlp() -> PrimGraph {
    let (rows, width, inner) = (4, 256, 512);
    let mut graph = PrimGraph::new("gated");
    let x = graph.add_input("x", DType::F32, [rows, width]);
    let mut weights = |shape: [usize; 2], step: usize| {
        let value = |at: usize| ((at * step) % 31) as f64 / 256.0 - 0.06;
        let values: Vec<f64> = (0..shape[0] * shape[1]).map(value).collect();
        graph.add_constant(Tensor::from_f64(DType::F32, shape, &values))
    };
    let [g, u, d] = [([width, inner], 7), ([width, inner], 11), ([inner, width], 13)]
        .map(|(shape, step)| weights(shape, step));
    let mut add = |op: PrimOp, inputs: &[TensorId]| graph.add(op, inputs).expect("operands that fit");
    let product = || PrimOp::Contract(Contract::matmul(0));
    let unary = |function| PrimOp::Map(ScalarFn::Unary(function));
    let binary = |function| PrimOp::Map(ScalarFn::Binary(function));
    let (gate, up) = (add(product(), &[x, g]), add(product(), &[x, u]));
    let negated = add(unary(UnaryFn::Neg), &[gate]);
    let power = add(unary(UnaryFn::Exp), &[negated]);
    let shape = Shape::from([rows, inner]);
    let one = graph.add_constant(Tensor::scalar(1.0f32));
    let mut add = |op: PrimOp, inputs: &[TensorId]| graph.add(op, inputs).expect("operands that fit");
    let ones = add(PrimOp::Broadcast { shape, dims: vec![] }, &[one]);
    let sum = add(binary(BinaryFn::Add), &[power, ones]);
    let silu = add(binary(BinaryFn::Div), &[gate, sum]);
    let gated = add(binary(BinaryFn::Mul), &[silu, up]);
    let result = add(product(), &[gated, d]);
    graph.add_output("y", result);
    graph
}

#[test]
fn merged_products_of_a_gated_mlp_are_found() {
    check(&gated_mlp(), "cuda:sm_90", (Precision::F16, 1e-2), 1.0);
}

/// The kernel computes the mask, its third input, from indices: nothing else computes it, and it is no argument.
#[test]
fn masks_that_are_bands_are_not_stored() {
    for (window, is_added, precision, tolerance) in [
        (1000, false, Precision::F32, 1e-4),
        (40, true, Precision::F32, 1e-4),
        (70, false, Precision::Tf32, 2e-2),
    ] {
        let graph = window_attention(256, window, is_added);
        check(&graph, "cuda:sm_90", (precision, tolerance), 1.0);
        let cache = CacheDir::new(&format!("substitutes-bands-{window}"));
        let model = Model::from_graph(graph);
        let sources = model.sources(&options(&cache, Some("cuda:sm_90"), precision)).expect("sources");
        let [source] = &sources[..] else { panic!("{} kernels", sources.len()) };
        assert!(!source.text.contains("__restrict__ t2"), "{}", source.text);
    }
}

#[test]
fn changed_kernels_are_refuted_by_the_checker() {
    let cache = CacheDir::new("substitutes-changed");
    let model = Model::from_graph(attention(32, 256));
    let planned = model.plan(&options(&cache, Some("cuda:sm_90"), Precision::F32)).expect("a plan");
    let mut changed = planned.proofs()[0].clone();
    let (before, after) = (" div ", " mul ");
    assert!(changed.candidate.contains(before), "{}", changed.candidate);
    changed.candidate = changed.candidate.replacen(before, after, 1);
    let check = check_proof(&changed);
    assert!(!check.pass, "{check:?}");
    assert_eq!(check.checker.answer, "refuted", "{check:?}");
}

#[test]
fn artifacts_carry_proofs_and_plans_with_them_are_remembered() {
    let cache = CacheDir::new("substitutes-compiled");
    // On CPUs it pays once the scores do not fit the caches.
    let graph = attention(128, 4096);
    let options = options(&cache, None, Precision::F32);
    let model = Model::from_graph(graph.clone());
    let first = model.compile(&options).expect("it compiles");
    let again = model.compile(&options).expect("it compiles");
    assert!(again.manifest.report.is_cached);
    assert_eq!(first.manifest.proofs, again.manifest.proofs);
    assert_eq!(first.manifest.steps, again.manifest.steps);
    let proved = first.manifest.steps.iter().filter(|step| step.proof.is_some());
    assert!(proved.count() > 0 && !first.manifest.proofs.is_empty());
    let without_us =
        first.manifest.report.without_superoptimizer_us.expect("there are kernels that were found");
    assert!(without_us > first.manifest.report.modelled_us);
    assert_eq!(again.manifest.report.without_superoptimizer_us, Some(without_us));
    let inputs = inputs(&graph, 4.0);
    let expected = model.interpret(&inputs, true).expect("the inputs fit");
    let executable = Executable::load(first, RunOptions::default()).expect("it loads");
    let outputs = executable.run(&inputs).expect("it runs");
    assert!(compare(&outputs[0], &expected[0]).scaled < 1e-4);
    let never = Options { superoptimize: false, ..options };
    let plain = model.compile(&never).expect("it compiles").manifest;
    assert!(plain.proofs.is_empty() && plain.report.without_superoptimizer_us.is_none());
    assert!((plain.report.modelled_us - without_us).abs() < 1e-6 * without_us);
}
