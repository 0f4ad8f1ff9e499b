//! How the work items of a plan for 16 CPUs fall to threads, counted from its thread programs.

mod cache_dir;
mod plan_options;

use cache_dir::CacheDir;
use orch_ir::{BinaryFn, ConvSpec, DType, PrimGraph, PrimOp, ReduceOp, ScalarFn, Tensor, TensorId, Window};
use orchestrion::{Model, Options, Precision, StepShares};
use plan_options::options;

/// Steps of this modelled time on one thread, in microseconds, are shared evenly.
const LONG_US: f64 = 100.0;

fn op(graph: &mut PrimGraph, op: PrimOp, inputs: &[TensorId]) -> TensorId {
    graph.add(op, inputs).expect("operands that fit")
}

fn binary(graph: &mut PrimGraph, f: BinaryFn, x: TensorId, y: TensorId) -> TensorId {
    op(graph, PrimOp::Map(ScalarFn::Binary(f)), &[x, y])
}

/// `max(x, 0)`.
fn relu(graph: &mut PrimGraph, x: TensorId) -> TensorId {
    let zero = graph.add_constant(Tensor::scalar(0.0f32));
    let shape = graph.shape(x).clone();
    let zero = op(graph, PrimOp::Broadcast { shape, dims: Vec::new() }, &[zero]);
    binary(graph, BinaryFn::Max, x, zero)
}

/// A convolution with a square kernel of as many groups.
fn conv(
    graph: &mut PrimGraph,
    x: TensorId,
    maps: usize,
    (kernel, stride, groups): (usize, usize, usize),
) -> TensorId {
    let channels = graph.shape(x)[1] / groups;
    let shape = [maps, channels, kernel, kernel];
    let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i % 17) as f32 / 17.0 - 0.5).collect();
    let weights = graph.add_constant(Tensor::from_vec(shape, values));
    let pad = vec![kernel / 2; 2];
    let (kernels, strides) = (vec![kernel; 2], vec![stride; 2]);
    let window = Window { kernel: kernels, strides, dilations: vec![1; 2], low: pad.clone(), high: pad };
    op(graph, PrimOp::Conv(ConvSpec { window, groups }), &[x, weights])
}

/// `1 x 1`, `3 x 3` and `1 x 1`, added to the input.
fn bottleneck(graph: &mut PrimGraph, x: TensorId, inner: usize) -> TensorId {
    let channels = graph.shape(x)[1];
    let narrow = conv(graph, x, inner, (1, 1, 1));
    let narrow = relu(graph, narrow);
    let narrow = conv(graph, narrow, inner, (3, 1, 1));
    let narrow = relu(graph, narrow);
    let wide = conv(graph, narrow, channels, (1, 1, 1));
    let sum = binary(graph, BinaryFn::Add, wide, x);
    relu(graph, sum)
}

/// A network of 4 GFLOP: a stem, residual blocks of images of 56 to 7 pixels a side, a branch that is joined to another one before it is
/// multiplied, one that is computed channel by channel, and the means of the first image.
fn network() -> PrimGraph {
    let mut graph = PrimGraph::new("network");
    let x = graph.add_input("x", DType::F32, [1, 3, 224, 224]);
    let stem = conv(&mut graph, x, 64, (7, 4, 1));
    let mut sum = relu(&mut graph, stem);
    let means = op(&mut graph, PrimOp::Reduce { op: ReduceOp::Sum, axes: vec![2, 3] }, &[sum]);
    graph.add_output("means", means);
    for (channels, inner) in [(256, 64), (512, 128), (1024, 256), (2048, 512)] {
        let stride = if inner == 64 { 1 } else { 2 };
        let wide = conv(&mut graph, sum, channels, (1, stride, 1));
        sum = relu(&mut graph, wide);
        sum = bottleneck(&mut graph, sum, inner);
        sum = bottleneck(&mut graph, sum, inner);
        if inner == 128 {
            let left = conv(&mut graph, sum, 256, (1, 1, 1));
            let right = conv(&mut graph, sum, 256, (1, 1, 1));
            let right = relu(&mut graph, right);
            let right = conv(&mut graph, right, 256, (3, 1, 256));
            let joined = op(&mut graph, PrimOp::Concat { axis: 1 }, &[left, right]);
            let joined = relu(&mut graph, joined);
            sum = conv(&mut graph, joined, 512, (1, 1, 1));
        }
    }
    graph.add_output("y", sum);
    graph
}

fn steps(cache: &CacheDir, target: &str) -> Vec<StepShares> {
    let options =
        Options { threads: 16, superoptimize: false, ..options(cache, Some(target), Precision::F32) };
    Model::from_graph(network()).plan(&options).expect("it is planned").shares()
}

#[test]
fn work_items_allow_many_threads() {
    let cache = CacheDir::new("shares");
    for target in ["x86-64-v4", "x86-64-v3"] {
        check(target, &steps(&cache, target));
    }
}

fn check(target: &str, steps: &[StepShares]) {
    let flops: f64 = steps.iter().map(|step| step.flops).sum();
    assert!(flops > 3e9, "{flops}");
    let alone_us: f64 = steps.iter().map(|step| step.alone_us).sum();
    for (threads, least) in [(8, 7.2), (16, 13.5), (32, 22.0)] {
        let shared_us: f64 = steps.iter().map(|step| step.alone_us / step.shares.speed_up(threads)).sum();
        assert!(alone_us / shared_us >= least, "{target}, {threads} threads: {}", alone_us / shared_us);
    }
    for step in steps.iter().filter(|step| step.alone_us >= LONG_US) {
        for threads in [2, 4, 8, 16] {
            let largest = step.shares.largest(threads);
            let StepShares { name, schedule, work_items, .. } = step;
            assert!(
                largest <= 1.15,
                "{target}: {name}, {work_items} work items of {schedule}, {threads} threads: {largest}"
            );
        }
    }
    let distinct: usize = steps.iter().map(|step| step.shares.distinct()).sum();
    assert!(distinct > 0);
    // Smaller L2 caches make blocks of windows smaller, which overlap more.
    let bounds = if target == "x86-64-v4" { [(1, 1.1), (16, 1.6)] } else { [(1, 1.2), (16, 2.0)] };
    for (threads, most) in bounds {
        let packed: usize = steps.iter().map(|step| step.shares.packed(threads)).sum();
        let times = packed as f64 / distinct as f64;
        assert!(times <= most, "{target}: {threads} threads pack an element {times} times");
    }
}
