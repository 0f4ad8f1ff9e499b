//! Work grows with the size of a graph, not with the number of ways through it: results that are read twice, again and
//! again, and primitives of many operands.
//!
//! Nothing here looks at a clock. A walk over a shared expression as if it were a tree takes more steps than there are
//! nanoseconds in a year for the chains of this file, so that a test with such a walk does not end. What is generated is
//! counted.

mod cache_dir;
mod plan_options;

use cache_dir::CacheDir;
use orch_ir::generate::random_inputs;
use orch_ir::{BinaryFn, CompareFn, Contract, DType, PrimGraph, PrimOp, ReduceOp, ScalarFn, Shape, Tensor};
use orch_ir::{TensorId, UnaryFn};
use orchestrion::compare::compare;
use orchestrion::{Model, Options, Precision};
use plan_options::options;

/// What is planned for: vectors, masks, dot products and tiles of a CPU, and a GPU.
const TARGETS: [&str; 4] = ["x86-64-v3", "x86-64-v4", "x86-64-amx", "cuda:sm_90"];

/// Operations of a chain.
const LENGTH: usize = 200;

fn map(graph: &mut PrimGraph, f: impl Into<ScalarFn>, operands: &[TensorId]) -> TensorId {
    graph.add(PrimOp::Map(f.into()), operands).expect("operands that fit")
}

/// A graph of inputs of one shape, and what is computed from them.
fn graph_of(
    inputs: &[(DType, &[usize])],
    build: impl FnOnce(&mut PrimGraph, &[TensorId]) -> TensorId,
) -> PrimGraph {
    let mut graph = PrimGraph::new("scaling");
    let inputs: Vec<TensorId> = (inputs.iter().enumerate())
        .map(|(number, (dtype, shape))| graph.add_input(format!("x{number}"), *dtype, *shape))
        .collect();
    let output = build(&mut graph, &inputs);
    graph.add_output("y", output);
    graph
}

/// `t = step(t)`, so many times.
fn chain(
    length: usize,
    dtype: DType,
    step: impl Fn(&mut PrimGraph, TensorId, usize) -> TensorId,
) -> PrimGraph {
    graph_of(&[(dtype, &[2, 3])], |graph, inputs| {
        (0..length).fold(inputs[0], |t, number| step(graph, t, number))
    })
}

fn doubled(graph: &mut PrimGraph, t: TensorId) -> TensorId {
    map(graph, BinaryFn::Add, &[t, t])
}

/// Two results at each step, each of which reads both of the step before.
fn crossed(
    graph: &mut PrimGraph,
    length: usize,
    first: [TensorId; 2],
    mut step: impl FnMut(&mut PrimGraph, [TensorId; 2], usize) -> TensorId,
) -> TensorId {
    let last = (0..length)
        .fold(first, |[a, b], number| [step(graph, [a, b], 2 * number), step(graph, [b, a], 2 * number + 1)]);
    last[0]
}

/// The bytes of what is generated, without the functions for GPUs that all sources begin with, and whether a plan computes what the interpreter
/// does.
fn check(graph: &PrimGraph, options: &Options) -> usize {
    let model = Model::from_graph(graph.clone());
    let inputs = random_inputs(graph, 3);
    let planned = model.plan(options).unwrap_or_else(|error| panic!("{error}"));
    let outputs = planned.emulate(&inputs).unwrap_or_else(|error| panic!("{error}"));
    let expected = model.interpret(&inputs, false).unwrap();
    for (got, want) in outputs.iter().zip(&expected) {
        let difference = compare(got, want);
        assert!(difference.scaled < 1e-4 && difference.mismatched == 0, "{difference:?}");
    }
    let own = |text: &str| text.len() - text.find("extern \"C\"").unwrap_or(0);
    model.sources(options).unwrap().iter().map(|source| own(&source.text)).sum()
}

#[test]
fn results_that_are_read_twice_are_computed_once() {
    let cache = CacheDir::new("scaling-chains");
    type Step = fn(&mut PrimGraph, TensorId, usize) -> TensorId;
    let chains: [(DType, Step); 6] = [
        (DType::F32, |graph, t, _| doubled(graph, t)),
        (DType::I32, |graph, t, _| doubled(graph, t)),
        (DType::F32, |graph, t, _| map(graph, BinaryFn::Mul, &[t, t])),
        (DType::I32, |graph, t, _| map(graph, BinaryFn::Mul, &[t, t])),
        (DType::F32, |graph, t, number| match number % 3 {
            0 => map(graph, UnaryFn::Tanh, &[t]),
            1 => map(graph, BinaryFn::Pow, &[t, t]),
            _ => doubled(graph, t),
        }),
        (DType::F32, |graph, t, number| match number % 10 {
            0 => {
                let (sum, square) = (doubled(graph, t), map(graph, BinaryFn::Mul, &[t, t]));
                let is_less = map(graph, CompareFn::Lt, &[t, sum]);
                map(graph, ScalarFn::Select, &[is_less, sum, square])
            }
            1 | 2 => map(graph, UnaryFn::Tanh, &[t]),
            _ => doubled(graph, t),
        }),
    ];
    for target in TARGETS {
        for (dtype, step) in chains {
            let options = options(&cache, Some(target), Precision::F32);
            let sizes = [1, 2].map(|times| check(&chain(times * LENGTH / 2, dtype, step), &options));
            assert!(sizes[1] < 3 * sizes[0], "{target}, {dtype}: {sizes:?}");
            assert!(sizes[1] < 100 * LENGTH, "{target}, {dtype}: {sizes:?}");
        }
    }
}

/// Conditions, selections and masked products of sums, and exponents of attention, in which others are shared.
#[test]
fn shared_operands_of_reductions_and_products_are_looked_at_once() {
    let cache = CacheDir::new("scaling-shared");
    let zero = |graph: &mut PrimGraph, like: TensorId| {
        let (zero, shape) = (graph.add_constant(Tensor::scalar(0f32)), graph.shape(like).clone());
        graph.add(PrimOp::Broadcast { shape, dims: Vec::new() }, &[zero]).unwrap()
    };
    let conditions = graph_of(&[(DType::F32, &[4usize, 8][..]); 2], |graph, inputs| {
        let first = [CompareFn::Lt, CompareFn::Ne].map(|f| map(graph, f, inputs));
        let condition = crossed(graph, 40, first, |graph, [a, b], number| {
            let other = map(graph, if number % 4 < 2 { BinaryFn::And } else { BinaryFn::Or }, &[a, b]);
            let own = map(graph, UnaryFn::Not, &[a]);
            map(graph, if number % 2 < 1 { BinaryFn::And } else { BinaryFn::Xor }, &[other, own])
        });
        let zero = zero(graph, inputs[0]);
        let masked = map(graph, ScalarFn::Select, &[condition, inputs[0], zero]);
        graph.add(PrimOp::Reduce { op: ReduceOp::Sum, axes: vec![1] }, &[masked]).unwrap()
    });
    let padded = graph_of(&[(DType::F32, &[4, 6]), (DType::F32, &[4, 8])], |graph, inputs| {
        let none = graph.add_constant(Tensor::scalar(0f32));
        let pad = PrimOp::Pad { mode: orch_ir::PadMode::Constant, low: vec![0, 1], high: vec![0, 1] };
        let padded = graph.add(pad, &[inputs[0], none]).unwrap();
        let tanh = [map(graph, UnaryFn::Tanh, &[padded]), map(graph, UnaryFn::Tanh, &[inputs[1]])];
        let product = crossed(graph, 40, tanh, |graph, [a, b], _| map(graph, BinaryFn::Mul, &[a, b]));
        graph.add(PrimOp::Reduce { op: ReduceOp::Sum, axes: vec![1] }, &[product]).unwrap()
    });
    let selected =
        graph_of(&[(DType::Bool, &[16, 16]), (DType::F32, &[16, 16]), (DType::F32, &[16, 16])], |g, x| {
            let halves = [x[1], x[2]].map(|x| {
                let narrow = map(g, ScalarFn::Cast(DType::BF16), &[x]);
                map(g, ScalarFn::Cast(DType::F32), &[narrow])
            });
            let flags: Vec<TensorId> = (0..80)
                .map(|number| {
                    let level = g.add_constant(Tensor::scalar(number as f32 / 80.0 - 0.5));
                    let level = g
                        .add(PrimOp::Broadcast { shape: [16, 16].into(), dims: Vec::new() }, &[level])
                        .unwrap();
                    let flag = map(g, CompareFn::Lt, &[x[1], level]);
                    map(g, BinaryFn::Xor, &[flag, x[0]])
                })
                .collect();
            let either =
                crossed(g, 40, halves, |g, [a, b], number| map(g, ScalarFn::Select, &[flags[number], a, b]));
            let contract = Contract { lhs: vec![0, 1], rhs: vec![1, 2], out: vec![0, 2] };
            g.add(PrimOp::Contract(contract), &[either, halves[0]]).unwrap()
        });
    let attention = graph_of(&[(DType::F32, &[16usize, 8][..]); 3], |graph, inputs| {
        let scores = Contract { lhs: vec![0, 2], rhs: vec![1, 2], out: vec![0, 1] };
        let scores = graph.add(PrimOp::Contract(scores), &inputs[..2]).unwrap();
        let small = graph.add_constant(Tensor::scalar(1e-6f32));
        let small =
            graph.add(PrimOp::Broadcast { shape: [16, 16].into(), dims: Vec::new() }, &[small]).unwrap();
        let scores = map(graph, BinaryFn::Mul, &[scores, small]);
        let scores = (0..30).fold(scores, |t, _| doubled(graph, t));
        let exp = map(graph, UnaryFn::Exp, &[scores]);
        let sum = graph.add(PrimOp::Reduce { op: ReduceOp::Sum, axes: vec![1] }, &[exp]).unwrap();
        let sum = graph.add(PrimOp::Broadcast { shape: [16, 16].into(), dims: vec![0] }, &[sum]).unwrap();
        let weights = map(graph, BinaryFn::Div, &[exp, sum]);
        let contract = Contract { lhs: vec![0, 1], rhs: vec![1, 2], out: vec![0, 2] };
        graph.add(PrimOp::Contract(contract), &[weights, inputs[2]]).unwrap()
    });
    for (name, graph) in
        [("conditions", conditions), ("padded", padded), ("selected", selected), ("attention", attention)]
    {
        for target in TARGETS {
            let size = check(&graph, &options(&cache, Some(target), Precision::F32));
            let most = if target.starts_with("cuda") { 28_000 } else { 60_000 };
            assert!(size < most, "{name} for {target}: {size} bytes");
        }
    }
}

/// A constant that is repeated, not stored, and what is computed from it.
#[test]
fn known_values_are_evaluated_once() {
    let shape = Shape::from([512, 512]);
    let graph = graph_of(&[(DType::F32, &[512, 512])], |graph, inputs| {
        let small = graph.add_constant(Tensor::scalar(1e-3f32));
        let known = graph.add(PrimOp::Broadcast { shape, dims: Vec::new() }, &[small]).unwrap();
        let iota = PrimOp::Iota { dtype: DType::F32, shape: [512, 512].into(), axis: 0 };
        let iota = graph.add(iota, &[]).unwrap();
        let known = map(graph, BinaryFn::Mul, &[known, iota]);
        let known = (0..30).fold(known, |t, _| {
            let double = doubled(graph, t);
            map(graph, UnaryFn::Sin, &[double])
        });
        map(graph, BinaryFn::Add, &[inputs[0], known])
    });
    let (_, report) = orch_rewrite::rewrite(&graph, &orch_rewrite::RewriteOptions::default());
    assert!(report.folded < 100, "{report:?}");
}

#[test]
fn wide_concatenations_and_sums_are_several_kernels() {
    let cache = CacheDir::new("scaling-wide");
    let joined = |width: usize, axis: usize, is_same: bool| {
        let inputs = vec![(DType::F32, &[2usize, 3][..]); if is_same { 1 } else { width }];
        graph_of(&inputs, |graph, inputs| {
            let operands: Vec<TensorId> = inputs.iter().copied().cycle().take(width).collect();
            graph.add(PrimOp::Concat { axis }, &operands).unwrap()
        })
    };
    let summed = |width: usize| {
        graph_of(&vec![(DType::F32, &[2usize, 3][..]); width], |graph, inputs| {
            inputs[1..].iter().fold(inputs[0], |sum, &x| map(graph, BinaryFn::Add, &[sum, x]))
        })
    };
    let cases = [
        ("concat 0", joined(300, 0, false)),
        ("concat 1", joined(300, 1, false)),
        ("concat 0 of one", joined(300, 0, true)),
        ("concat 1 of one", joined(1000, 1, true)),
        ("concat 0 of 1000", joined(1000, 0, false)),
        ("concat 1 of 1000", joined(1000, 1, false)),
        ("sum of 300", summed(300)),
        ("sum of 2000", summed(2000)),
    ];
    for (name, graph) in cases {
        for target in ["x86-64-v3", "cuda:sm_90"] {
            let options = options(&cache, Some(target), Precision::F32);
            let size = check(&graph, &options);
            let model = Model::from_graph(graph.clone());
            let planned = model.plan(&options).unwrap();
            assert_eq!(planned.host_steps(), Vec::<&str>::new(), "{name} for {target}");
            let sources = model.sources(&options).unwrap();
            let longest = sources.iter().map(|source| source.text.len()).max();
            assert!(longest < Some(60_000), "{name} for {target}: {longest:?} bytes");
            let most = if target.starts_with("cuda") { 30_000 } else { 100_000 };
            assert!(size < most, "{name} for {target}: {size} bytes");
        }
    }
}
