//! Results do not depend on the number of threads: sums are cut by plans, not by runs, and each element is written by one work item.

mod cache_dir;
mod plan_options;

use cache_dir::CacheDir;
use orch_ir::generate::random_inputs;
use orch_ir::{
    Activation, ActivationFn, BinaryFn, Contract, ConvSpec, DType, PrimGraph, PrimOp, Recurrence, ReduceOp,
    RnnCell, RnnDirection, ScalarFn, Tensor, TensorId, UnaryFn, Window,
};
use orchestrion::{Executable, Model, Options, Precision, RunOptions, report};
use plan_options::options;

/// One thread, even and odd shares, and more threads than many machines have cores.
const THREADS: [usize; 5] = [1, 2, 3, 8, 16];

/// Runs with each of them: which thread takes which work items differs.
const RUNS: usize = 3;

fn op(graph: &mut PrimGraph, op: PrimOp, inputs: &[TensorId]) -> TensorId {
    graph.add(op, inputs).expect("operands that fit")
}

fn binary(graph: &mut PrimGraph, f: BinaryFn, x: TensorId, y: TensorId) -> TensorId {
    op(graph, PrimOp::Map(ScalarFn::Binary(f)), &[x, y])
}

/// Weights between -1 and 1, over the root of the number of terms.
fn weights(graph: &mut PrimGraph, shape: &[usize]) -> TensorId {
    let terms: usize = shape[1..].iter().product();
    let scale = (terms as f32).sqrt().recip();
    let value = |i: usize| ((i * 7919 + 13) % 10007) as f32 / 5003.5 - 1.0;
    let values: Vec<f32> = (0..shape.iter().product()).map(|i| value(i) * scale).collect();
    graph.add_constant(Tensor::from_vec(shape, values))
}

/// A convolution with a square kernel, and no negative results.
fn conv(graph: &mut PrimGraph, x: TensorId, maps: usize, kernel: usize, stride: usize) -> TensorId {
    let channels = graph.shape(x)[1];
    let weights = weights(graph, &[maps, channels, kernel, kernel]);
    let (kernels, pad) = (vec![kernel; 2], vec![kernel / 2; 2]);
    let strides = vec![stride; 2];
    let window = Window { kernel: kernels, strides, dilations: vec![1; 2], low: pad.clone(), high: pad };
    let result = op(graph, PrimOp::Conv(ConvSpec { window, groups: 1 }), &[x, weights]);
    let zero = graph.add_constant(Tensor::scalar(0.0f32));
    let shape = graph.shape(result).clone();
    let zero = op(graph, PrimOp::Broadcast { shape, dims: Vec::new() }, &[zero]);
    binary(graph, BinaryFn::Max, result, zero)
}

/// Convolutions with windows and of one pixel, with steps and of many channels, and connections around them.
fn convolutions() -> PrimGraph {
    let mut graph = PrimGraph::new("convolutions");
    let x = graph.add_input("x", DType::F32, [1, 3, 58, 58]);
    let stem = conv(&mut graph, x, 32, 7, 2);
    let wide = conv(&mut graph, stem, 96, 1, 1);
    let inner = conv(&mut graph, wide, 32, 3, 1);
    let sum = binary(&mut graph, BinaryFn::Add, inner, stem);
    let deep = conv(&mut graph, sum, 320, 3, 2);
    let narrow = conv(&mut graph, deep, 40, 3, 1);
    let last = conv(&mut graph, narrow, 320, 1, 1);
    let sum = binary(&mut graph, BinaryFn::Add, last, deep);
    let mean = op(&mut graph, PrimOp::Reduce { op: ReduceOp::Sum, axes: vec![2, 3] }, &[sum]);
    graph.add_output("y", mean);
    graph.add_output("z", narrow);
    graph
}

/// Products of many rows, of few, and of few columns with a long sum, and rows that are summed.
fn products() -> PrimGraph {
    let mut graph = PrimGraph::new("products");
    let x = graph.add_input("x", DType::F32, [197, 384]);
    let first = weights(&mut graph, &[384, 640]);
    let wide = op(&mut graph, PrimOp::Contract(Contract::matmul(0)), &[x, first]);
    let exp = op(&mut graph, PrimOp::Map(ScalarFn::Unary(UnaryFn::Tanh)), &[wide]);
    let second = weights(&mut graph, &[640, 384]);
    let narrow = op(&mut graph, PrimOp::Contract(Contract::matmul(0)), &[exp, second]);
    let sum = binary(&mut graph, BinaryFn::Add, narrow, x);
    let rows = op(&mut graph, PrimOp::Reduce { op: ReduceOp::Sum, axes: vec![1] }, &[sum]);
    let v = graph.add_input("v", DType::F32, [2, 4096]);
    let long = weights(&mut graph, &[4096, 24]);
    let few = op(&mut graph, PrimOp::Contract(Contract::matmul(0)), &[v, long]);
    graph.add_output("rows", rows);
    graph.add_output("few", few);
    graph
}

/// Branches of several lengths, given one after the other, that meet in a sum, around steps too short to be shared, and heads.
fn branches() -> PrimGraph {
    let mut graph = PrimGraph::new("branches");
    let x = graph.add_input("x", DType::F32, [1, 24, 17, 17]);
    let mut sum = conv(&mut graph, x, 40, 3, 1);
    for _ in 0..2 {
        let long = conv(&mut graph, sum, 24, 1, 1);
        let long = conv(&mut graph, long, 32, 3, 1);
        let long = conv(&mut graph, long, 40, 3, 1);
        let short = conv(&mut graph, sum, 16, 1, 1);
        let short = conv(&mut graph, short, 40, 3, 1);
        let direct = conv(&mut graph, sum, 40, 1, 1);
        let both = binary(&mut graph, BinaryFn::Add, long, short);
        sum = binary(&mut graph, BinaryFn::Add, both, direct);
    }
    for (name, maps) in [("class", 10), ("place", 4), ("object", 1)] {
        let head = conv(&mut graph, sum, 20, 3, 1);
        let head = conv(&mut graph, head, maps, 1, 1);
        graph.add_output(name, head);
    }
    graph
}

/// A GRU of 3 steps in both directions over 5 sequences, of so many units that threads share each step, and its last state.
fn recurrence() -> PrimGraph {
    let mut graph = PrimGraph::new("recurrence");
    let hidden = 150;
    let x = graph.add_input("x", DType::F32, [3, 5, 2, 3 * hidden]);
    let r = weights(&mut graph, &[2, hidden, 3 * hidden]);
    let activation = |function| Activation { function, alpha: 0.0, beta: 0.0 };
    let spec = Recurrence {
        cell: RnnCell::Gru { linear_before_reset: false },
        directions: vec![RnnDirection::Forward, RnnDirection::Reverse],
        activations: [ActivationFn::Sigmoid, ActivationFn::Tanh].map(activation).repeat(2),
        clip: None,
        operands: Vec::new(),
    };
    let results = graph.add_node(PrimOp::Recurrence(Box::new(spec)), vec![x, r]).expect("operands that fit");
    graph.add_output("y", results[0]);
    graph.add_output("last", results[1]);
    graph
}

/// Steps that are planned side by side, and are one list of work items for some numbers of threads.
#[test]
fn independent_steps_run_together() {
    let cache = CacheDir::new("thread-counts-branches");
    let model = Model::from_graph(branches());
    let joined = [1, 2, 16].map(|threads| {
        let options = Options { threads, ..options(&cache, None, Precision::F32) };
        let artifact = model.compile(&options).expect("it compiles");
        let report = report::report(&artifact.manifest, &report::Measurements::default());
        assert!(report.joined.iter().all(|joined| joined.saved_us > 0.0), "{:?}", report.joined);
        report.joined.iter().map(|joined| joined.steps.len()).max().unwrap_or(0)
    });
    assert_eq!(joined[0], 0);
    // All three branches begin together.
    assert!(joined[2] >= 3, "{joined:?}");
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let cache = CacheDir::new("thread-counts");
    for graph in [convolutions(), products(), branches(), recurrence()] {
        let inputs = random_inputs(&graph, 11);
        let model = Model::from_graph(graph.clone());
        let artifact = model.compile(&options(&cache, None, Precision::F32)).expect("it compiles");
        let most_tasks = artifact.manifest.kernels.iter().map(|kernel| kernel.tasks).max();
        assert!(most_tasks >= Some(16), "{most_tasks:?}: nothing is shared among 16 threads");
        let phases = artifact.manifest.kernels.iter().map(|kernel| kernel.phases).max();
        assert_eq!(phases > Some(1), graph.name == "recurrence", "{phases:?} phases in `{}`", graph.name);
        let mut expected: Option<Vec<Tensor>> = None;
        for threads in THREADS {
            let run = RunOptions { threads, ..RunOptions::default() };
            let executable = Executable::load(artifact.clone(), run).expect("it loads");
            for _ in 0..RUNS {
                let outputs = executable.run(&inputs).expect("it runs");
                let expected = expected.get_or_insert_with(|| outputs.clone());
                for (output, expected) in outputs.iter().zip(expected.iter()) {
                    let is_same = output.bytes() == expected.bytes();
                    assert!(is_same, "`{}` differs with {threads} threads", graph.name);
                }
            }
        }
    }
}
