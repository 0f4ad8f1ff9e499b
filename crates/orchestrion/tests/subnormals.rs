//! Subnormal numbers of f32 on the CPU (decision 48): kept in what a model computes, but for exponentials below the smallest
//! normal number, which are 0.

use orch_ir::{BinaryFn, DType, PrimGraph, PrimOp, ScalarFn, Tensor, UnaryFn};
use orchestrion::{Error, Executable, Model, Options, RunOptions};

/// The least argument whose exponential is a normal number.
const LIMIT: f32 = -87.336_54;

/// `exp x`, `y z` and `y + z`.
fn graph(elems: usize) -> PrimGraph {
    let mut graph = PrimGraph::new("subnormals");
    let [x, y, z] = ["x", "y", "z"].map(|name| graph.add_input(name, DType::F32, [elems]));
    let mut output = |name: &str, f, operands: &[_]| {
        let value = graph.add(PrimOp::Map(f), operands).expect("operands are alike");
        graph.add_output(name, value);
    };
    output("power", ScalarFn::Unary(UnaryFn::Exp), &[x]);
    output("product", ScalarFn::Binary(BinaryFn::Mul), &[y, z]);
    output("sum", ScalarFn::Binary(BinaryFn::Add), &[y, z]);
    graph
}

/// Arguments around the limit, its neighbours among floats first, and pairs with subnormal members, products and sums.
fn inputs() -> [Tensor; 3] {
    let neighbours = (-8..8i32).map(|step| f32::from_bits(LIMIT.to_bits().wrapping_add_signed(step)));
    let x: Vec<f32> = neighbours.chain((0..185).map(|step| -80.0 - step as f32 * 0.17)).collect();
    let y: Vec<f32> = (0..x.len()).map(|i| f32::MIN_POSITIVE * (1.0 + i as f32 * 0.013)).collect();
    let z: Vec<f32> = (0..x.len())
        .map(|i| if i % 2 == 0 { 0.9 / (i + 1) as f32 } else { -f32::MIN_POSITIVE * (i as f32 * 0.0131) })
        .collect();
    [x, y, z].map(|values| Tensor::from_vec([values.len()], values))
}

#[test]
fn subnormals_stay_but_exponentials_end_at_normal_numbers() {
    let inputs = inputs();
    let model = Model::from_graph(graph(inputs[0].shape().elems()));
    let cache_dir = std::env::temp_dir().join(format!("orchestrion-subnormals-{}", std::process::id()));
    let artifact = match model.compile(&Options { cache_dir: cache_dir.clone(), ..Options::default() }) {
        Err(Error::Environment(reason)) => return println!("skipped: {reason}"),
        compiled => compiled.unwrap(),
    };
    let options = RunOptions { threads: 1, ..RunOptions::default() };
    let outputs = Executable::load(artifact, options).unwrap().run(&inputs).unwrap();
    let expected = model.interpret(&inputs, false).unwrap();
    let values = |tensor: &Tensor| tensor.to_vec::<f32>().expect("f32");

    for (x, (got, want)) in
        values(&inputs[0]).into_iter().zip(values(&outputs[0]).into_iter().zip(values(&expected[0])))
    {
        if x < LIMIT {
            assert!(got == 0.0 && want < f32::MIN_POSITIVE, "exp {x} is {got:e}, interpreted {want:e}");
        } else {
            assert!(
                got.is_normal() && (got - want).abs() <= want * 1.2e-7,
                "exp {x} is {got:e}, not {want:e}"
            );
        }
    }
    for (name, output) in [("product", 1), ("sum", 2)] {
        let [got, want] = [&outputs[output], &expected[output]].map(values);
        let subnormal = want.iter().filter(|value| value.is_subnormal()).count();
        assert!(subnormal > 50, "only {subnormal} subnormal {name}s");
        assert_eq!(got, want, "{name}s");
    }
    std::fs::remove_dir_all(&cache_dir).expect("compiling made it");
}
