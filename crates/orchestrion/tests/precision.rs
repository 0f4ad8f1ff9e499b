//! `Precision::Bf16` from end to end: rounded as the reference interpreter rounds, and refused where it gains nothing.

use orch_ir::{BinaryFn, Contract, DType, PrimGraph, PrimOp, ScalarFn, Tensor};
use orchestrion::compare::compare;
use orchestrion::{Error, Executable, Model, Options, Precision, RunOptions};

/// `(x v)^2 w + x v`: two products, and what lies between and after them.
fn graph() -> PrimGraph {
    let mut graph = PrimGraph::new("two_products");
    let x = graph.add_input("x", DType::F32, [37, 48]);
    let weight = |rows: usize, columns: usize| {
        let values = (0..rows * columns).map(|i| ((i * 37 + 11) % 101) as f32 / 101.0 - 0.5).collect();
        Tensor::from_vec([rows, columns], values)
    };
    let (first, second) = (graph.add_constant(weight(48, 40)), graph.add_constant(weight(40, 40)));
    let product = PrimOp::Contract(Contract::matmul(0));
    let hidden = graph.add(product.clone(), &[x, first]).unwrap();
    let squared = graph.add(PrimOp::Map(ScalarFn::Binary(BinaryFn::Mul)), &[hidden, hidden]).unwrap();
    let result = graph.add(product, &[squared, second]).unwrap();
    let sum = graph.add(PrimOp::Map(ScalarFn::Binary(BinaryFn::Add)), &[result, hidden]).unwrap();
    graph.add_output("y", sum);
    graph
}

fn options(target: Option<&str>) -> Options {
    let folder = std::env::temp_dir().join(format!("orchestrion-precision-{}", std::process::id()));
    let target = target.map(ToOwned::to_owned);
    Options { precision: Precision::Bf16, target, cache_dir: folder, ..Options::default() }
}

#[test]
fn contractions_round_as_the_interpreter_does() {
    let model = Model::from_graph(graph());
    let options = options(None);
    let artifact = match model.compile(&options) {
        Err(Error::Environment(reason)) => return println!("skipped: {reason}"),
        compiled => compiled.unwrap(),
    };
    assert_eq!(artifact.manifest.precision, Precision::Bf16);
    assert_eq!(artifact.manifest.inputs[0].dtype, "f32");
    let values = (0..37 * 48).map(|i| ((i * 29 + 5) % 97) as f32 / 97.0 - 0.4).collect();
    let inputs = [Tensor::from_vec([37, 48], values)];
    let outputs = Executable::load(artifact, RunOptions { threads: 1, ..RunOptions::default() })
        .unwrap()
        .run(&inputs)
        .unwrap();

    let exact = model.interpret(&inputs, true).unwrap();
    let error = compare(&outputs[0], &exact[0]).scaled;
    assert!(
        error > 1e-5 && error < Precision::Bf16.tolerance(),
        "{error:e}: rounding to bf16 shows, and no more"
    );
    // Sums in another order round a few values to the other side; all others agree to f32.
    let rounded = model.with_precision(Precision::Bf16).interpret(&inputs, false).unwrap();
    let difference = compare(&outputs[0], &rounded[0]).scaled;
    assert!(
        difference < error / 2.0,
        "{difference:e} from the reference that rounds alike, {error:e} from f64"
    );
    std::fs::remove_dir_all(&options.cache_dir).expect("compiling made it");
}

#[test]
fn targets_without_bf16_refuse_it() {
    let error = Model::from_graph(graph()).compile(&options(Some("x86-64-v3"))).unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert!(error.to_string().contains("x86-64-v4-bf16"), "{error}");
}
