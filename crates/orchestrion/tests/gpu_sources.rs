//! The sources of kernels for GPUs, of every template and of µGraphs, in every element type, compile for each generation,
//! without spilled registers. NVRTC needs no GPU; it is taken from the environment variable `ORCHESTRION_TEST_NVRTC` or from the usual
//! places, and what was asked for must be there.

#[allow(dead_code)]
#[path = "../../orch-mugraph/tests/common/programs.rs"]
mod programs;

use orch_codegen::cuda;
use orch_compute::operands::OperandRounding;
use orch_compute::{BlockProgram, ScatterProgram, SelectionProgram, Storage, fuse, layouts};
use orch_ir::{
    BinaryFn, Contract, DType, NodeId, OpaqueKind, OpaqueOp, PrimGraph, PrimOp, ReduceOp, ScalarFn, Shape,
    Tensor, TensorId, UnaryFn,
};
use orch_mugraph::lower::gpu::MugraphSchedule;
use orch_mugraph::lower::{Request, Stored, gpu};
use orch_mugraph::search::{Found, SearchOptions, search};
use orch_mugraph::{Band, InputKind, MuGraph, Node, parse, stabilise};
use orch_runtime::cuda::{Nvrtc, NvrtcTarget, SearchPaths, Source};
use orch_template::gpu::{attention, contraction, pointwise, row, scatter, selection, transpose};
use orch_thread::OperandPrecision;
use orch_thread::kernel::Kernel;
use orch_thread::passes::evict_first::read_once;
use orch_thread::passes::{PassContext, run_all};
use orch_thread::program::{Buffer, Scope};
use orch_thread::target::{GPU_TARGETS, GpuTarget, SM_80, SM_90};
use orch_thread::{print_thread, validate_thread};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of registers that a thread may spill, stored and loaded.
const MAX_SPILL_BYTES: u32 = 16;
/// Registers of a thread that instructions can name.
const NAMED_REGISTERS: usize = 255;
/// Schedules of each kind that are compiled, the preferred ones.
const SCHEDULES: usize = 2;
/// Threads that compile.
const THREADS: usize = 2;
/// What masks that are inputs keep.
const WINDOW: Band = Band { above: Some(0), below: Some(255) };

/// A graph of which a part is one kernel: what others make, and what they read, is stored in half precision.
struct Graph {
    graph: PrimGraph,
    others: Vec<NodeId>,
}

impl Graph {
    fn new() -> Self {
        Self { graph: PrimGraph::new("kernel"), others: Vec::new() }
    }

    fn op(&mut self, op: PrimOp, inputs: &[TensorId]) -> TensorId {
        self.graph.add(op, inputs).expect("operands that fit")
    }

    fn unary(&mut self, f: UnaryFn, x: TensorId) -> TensorId {
        self.op(PrimOp::Map(ScalarFn::Unary(f)), &[x])
    }

    fn binary(&mut self, f: BinaryFn, x: TensorId, y: TensorId) -> TensorId {
        self.op(PrimOp::Map(ScalarFn::Binary(f)), &[x, y])
    }

    /// What another kernel makes of a tensor.
    fn elsewhere(&mut self, x: TensorId) -> TensorId {
        let y = self.unary(UnaryFn::Neg, x);
        self.others.extend(self.graph.producer(y));
        y
    }

    fn input(&mut self, shape: &[usize]) -> TensorId {
        let name = format!("x{}", self.graph.inputs.len());
        let x = self.graph.add_input(name, DType::F32, shape);
        self.elsewhere(x)
    }

    /// A reduction over an axis, repeated along it.
    fn repeated(&mut self, op: ReduceOp, x: TensorId, axis: usize) -> TensorId {
        let shape = self.graph.shape(x).clone();
        let dims = (0..shape.rank()).filter(|&dim| dim != axis).collect();
        let reduced = self.op(PrimOp::Reduce { op, axes: vec![axis] }, &[x]);
        self.op(PrimOp::Broadcast { shape, dims }, &[reduced])
    }

    fn softmax(&mut self, x: TensorId, axis: usize) -> TensorId {
        let max = self.repeated(ReduceOp::Max, x, axis);
        let shifted = self.binary(BinaryFn::Sub, x, max);
        let exp = self.unary(UnaryFn::Exp, shifted);
        let sum = self.repeated(ReduceOp::Sum, exp, axis);
        self.binary(BinaryFn::Div, exp, sum)
    }

    /// The block program of what is not done elsewhere.
    fn build(mut self, y: TensorId, dtype: DType) -> BlockProgram {
        let read = self.elsewhere(y);
        self.graph.add_output("y", read);
        let nodes: Vec<NodeId> = self.graph.node_ids().filter(|node| !self.others.contains(node)).collect();
        let layouts = layouts::assign_gpu(&self.graph);
        let storage = match dtype {
            DType::F32 => Storage::as_stated(&self.graph, layouts),
            half => Storage::narrowed(&self.graph, layouts, half),
        };
        assert_eq!(storage.dtype(y), dtype);
        fuse::build_stored(&self.graph, &nodes, &[y], &storage, "kernel").expect("one kernel")
    }
}

/// A matrix product with a bias and a nonlinear function. Operands that are not weights have neighbours along either
/// direction.
fn product([m, n, k]: [usize; 3], has_weights: bool, dtype: DType) -> BlockProgram {
    let mut graph = Graph::new();
    let x = graph.input(&[m, k]);
    let w = match has_weights {
        true => graph.graph.add_constant(Tensor::from_vec([k, n], vec![0.5f32; k * n])),
        false => graph.input(&[k, n]),
    };
    let product = graph.op(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
    let bias = graph.input(&[n]);
    let bias = graph.op(PrimOp::Broadcast { shape: [m, n].into(), dims: vec![1] }, &[bias]);
    let sum = graph.binary(BinaryFn::Add, product, bias);
    let y = graph.unary(UnaryFn::Erf, sum);
    graph.build(y, dtype)
}

/// The second product of linear attention: queries in half precision by a wide factor, with the division behind it.
fn wide_product([m, n, k]: [usize; 3], dtype: DType) -> BlockProgram {
    let mut graph = Graph::new();
    let (q, keys, values) = (graph.input(&[m, k]), graph.input(&[m, k]), graph.input(&[m, n]));
    let labels = Contract { lhs: vec![0, 1], rhs: vec![0, 2], out: vec![1, 2] };
    let sums = graph.op(PrimOp::Contract(labels), &[keys, values]);
    graph.others.extend(graph.graph.producer(sums));
    let product = graph.op(PrimOp::Contract(Contract::matmul(0)), &[q, sums]);
    let divisor = graph.input(&[m, n]);
    let y = graph.binary(BinaryFn::Div, product, divisor);
    graph.build(y, dtype)
}

/// Softmax over an axis.
fn softmax(shape: [usize; 2], axis: usize, dtype: DType) -> BlockProgram {
    let mut graph = Graph::new();
    let x = graph.input(&shape);
    let y = graph.softmax(x, axis);
    graph.build(y, dtype)
}

/// The sums of columns, added to what is in memory: alone they would be f32.
fn column_sums(shape: [usize; 2], dtype: DType) -> BlockProgram {
    let mut graph = Graph::new();
    let x = graph.input(&shape);
    let sum = graph.op(PrimOp::Reduce { op: ReduceOp::Sum, axes: vec![0] }, &[x]);
    let z = graph.input(&shape[1..]);
    let y = graph.binary(BinaryFn::Add, sum, z);
    graph.build(y, dtype)
}

/// Attention of 12 heads.
fn attend(keys: usize, terms: usize, dtype: DType) -> BlockProgram {
    let mut graph = Graph::new();
    let (q, k, v) =
        (graph.input(&[12, keys, terms]), graph.input(&[12, keys, terms]), graph.input(&[12, keys, terms]));
    let k = graph.op(PrimOp::Transpose { perm: vec![0, 2, 1] }, &[k]);
    let scores = graph.op(PrimOp::Contract(Contract::matmul(1)), &[q, k]);
    let weights = graph.softmax(scores, 2);
    let y = graph.op(PrimOp::Contract(Contract::matmul(1)), &[weights, v]);
    graph.build(y, dtype)
}

fn elementwise(dtype: DType) -> BlockProgram {
    let mut graph = Graph::new();
    let (x, z) = (graph.input(&[1000, 1024]), graph.input(&[1000, 1024]));
    let tanh = graph.unary(UnaryFn::Tanh, x);
    let y = graph.binary(BinaryFn::Mul, tanh, z);
    graph.build(y, dtype)
}

fn transposition(dtype: DType) -> BlockProgram {
    let mut graph = Graph::new();
    let x = graph.input(&[1000, 1024]);
    let x = graph.op(PrimOp::Transpose { perm: vec![1, 0] }, &[x]);
    let z = graph.input(&[1024, 1000]);
    let y = graph.binary(BinaryFn::Max, x, z);
    graph.build(y, dtype)
}

/// Kernels of a target, each with what it is.
type Kernels = Vec<(String, Kernel)>;

/// Products under the preferred schedules of each kind.
fn contractions(target: &GpuTarget, kernels: &mut Kernels) {
    for (factors, dtype) in [
        (OperandPrecision::F32, DType::F32),
        (OperandPrecision::Tf32, DType::F32),
        (OperandPrecision::F16, DType::F16),
        (OperandPrecision::Bf16, DType::BF16),
    ] {
        for has_weights in [true, false] {
            let block = product([500, 768, 1000], has_weights, dtype);
            let schedules = contraction::schedules(&block, target, factors, usize::MAX);
            let kinds: BTreeSet<[bool; 3]> = schedules.iter().map(kind).collect();
            for wanted in kinds {
                let of_kind = schedules.iter().filter(|schedule| kind(schedule) == wanted);
                for schedule in of_kind.take(SCHEDULES) {
                    let kernel = contraction::lower(&block, schedule, factors).expect("its own schedule");
                    kernels.push((format!("{schedule:?} {factors:?} weights {has_weights}"), kernel));
                }
            }
        }
    }
}

/// Products with a factor beyond the range of f16, under the preferred schedules.
fn wide_contractions(target: &GpuTarget, kernels: &mut Kernels) {
    for extents in [[4096, 17, 16], [4096, 64, 64]] {
        let block = wide_product(extents, DType::F16);
        assert_eq!(block.rounding, OperandRounding::Tf32, "{block}");
        for schedule in contraction::schedules(&block, target, OperandPrecision::F16, SCHEDULES) {
            let kernel =
                contraction::lower(&block, &schedule, OperandPrecision::F16).expect("its own schedule");
            let is_shared = |buffer: &&Buffer| buffer.scope == Scope::Shared;
            let mut tiles = kernel.program.buffers.iter().filter(is_shared);
            assert!(tiles.all(|buffer| buffer.dtype == DType::F32), "{schedule:?}");
            kernels.push((format!("{schedule:?} of wide factors {extents:?}"), kernel));
        }
    }
}

/// Whether the K dimension is split over clusters, wgmma multiplies, and TMA loads the operands.
fn kind(schedule: &contraction::GpuContractionSchedule) -> [bool; 3] {
    [schedule.split_k > 1, schedule.wgmma, schedule.tma]
}

/// Attention of sequences under the preferred schedules.
fn attentions(target: &GpuTarget, kernels: &mut Kernels) {
    for (factors, dtype) in [(OperandPrecision::F16, DType::F16), (OperandPrecision::Bf16, DType::BF16)] {
        for (keys, terms) in [(100, 32), (197, 64), (256, 64)] {
            let block = attend(keys, terms, dtype);
            let schedules = attention::schedules(&block, target, factors);
            assert!(!schedules.is_empty(), "{block}");
            for schedule in schedules.iter().take(SCHEDULES) {
                let kernel = attention::lower(&block, schedule, factors).expect("its own schedule");
                kernels.push((format!("{schedule:?} {factors:?} {keys} keys"), kernel));
            }
        }
    }
}

/// The other templates under their preferred schedules.
fn nests(target: &GpuTarget, kernels: &mut Kernels) {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let block = elementwise(dtype);
        for schedule in pointwise::schedules(&block, target).iter().take(SCHEDULES) {
            let kernel = pointwise::lower(&block, schedule).expect("its own schedule");
            kernels.push((format!("{schedule:?} {dtype}"), kernel));
        }
        let block = transposition(dtype);
        for schedule in transpose::schedules(&block, target).iter().take(SCHEDULES) {
            let kernel = transpose::lower(&block, schedule).expect("its own schedule");
            kernels.push((format!("{schedule:?} {dtype}"), kernel));
        }
        let softmaxes = [([1000, 768], 1), ([4, 50_000], 1), ([4096, 100], 0)];
        let softmaxes = softmaxes.map(|(shape, axis)| softmax(shape, axis, dtype));
        let sums = [[4096, 4096], [2039, 100]].map(|shape| column_sums(shape, dtype));
        let thin = product([1, 4096, 11008], false, dtype);
        for block in softmaxes.into_iter().chain(sums).chain([thin]) {
            for schedule in row::schedules(&block, target).iter().take(SCHEDULES) {
                let kernel = row::lower(&block, schedule).expect("its own schedule");
                kernels.push((format!("{schedule:?} {dtype} {block}"), kernel));
            }
        }
    }
    let reads_once = |(_, kernel): &(String, Kernel)| !read_once(&kernel.program).is_empty();
    assert!(kernels.iter().any(reads_once), "sums of what caches do not hold");
}

/// Primitives that are a kernel by themselves: scattering of rows and of elements, to zeros and to data, and selections by sorting and by
/// merging.
fn alone(target: &GpuTarget, kernels: &mut Kernels) {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I64, DType::U8] {
        for combine in [None, Some(ReduceOp::Sum), Some(ReduceOp::Max)] {
            for (op, data, indices, updates) in [
                (PrimOp::ScatterNd { combine }, vec![3000, 768], vec![5000, 1], vec![5000, 768]),
                (PrimOp::ScatterNd { combine }, vec![100_003], vec![257, 1], vec![257]),
                (PrimOp::ScatterAlong { axis: 0, combine }, vec![997, 33], vec![501, 33], vec![501, 33]),
            ] {
                let mut graph = PrimGraph::new("kernel");
                let zero = graph.add_constant(Tensor::zeros(dtype, Shape::from([])));
                let fill = PrimOp::Broadcast { shape: data.clone().into(), dims: Vec::new() };
                let data = match dtype {
                    DType::F32 => graph.add(fill, &[zero]).expect("a number is repeated"),
                    _ => graph.add_input("x", dtype, data),
                };
                let (indices, updates) =
                    (graph.add_input("i", DType::I64, indices), graph.add_input("u", dtype, updates));
                let what = format!("{op:?} {dtype}");
                let y = graph.add(op, &[data, indices, updates]).expect("operands that fit");
                graph.add_output("y", y);
                let (nodes, storage) = (
                    graph.node_ids().collect::<Vec<_>>(),
                    Storage::as_stated(&graph, layouts::assign(&graph)),
                );
                let program = ScatterProgram::of(&graph, &nodes, &storage, "kernel").expect("a scatter");
                let design = scatter::design(&program, target).expect("few updates");
                kernels.push((format!("{what}: {}", design.schedule), design.kernel));
            }
        }
        let mut graph = PrimGraph::new("kernel");
        let sort = |graph: &mut PrimGraph, x: TensorId, axis: usize| {
            let shape = graph.shape(x).clone();
            let kind = OpaqueKind::TopK { axis, k: shape[axis], largest: true, sorted: true };
            let results = vec![(dtype, shape.clone()), (DType::I64, shape)];
            graph
                .add_node(PrimOp::Opaque(Box::new(OpaqueOp { kind, results })), vec![x])
                .expect("as many elements")
        };
        let x = graph.add_input("x", dtype, [3, 7, 1000]);
        let runs = sort(&mut graph, x, 2);
        let line =
            graph.add(PrimOp::Reshape { shape: [3, 7000].into() }, &[runs[0]]).expect("as many elements");
        let merged = sort(&mut graph, line, 1);
        merged.iter().for_each(|&y| graph.add_output("y", y));
        let storage = Storage::as_stated(&graph, layouts::assign(&graph));
        for (nodes, outputs) in [(vec![NodeId(0)], runs), (vec![NodeId(1), NodeId(2)], merged)] {
            let program =
                SelectionProgram::of(&graph, &nodes, &outputs, &storage, "kernel").expect("a selection");
            let design = selection::design(&program, target).expect("short lines");
            kernels.push((format!("{} {dtype}", design.schedule), design.kernel));
        }
    }
}

/// Programs whose µGraphs are compiled: attention of few and of many rows, with normalised and with rotated factors, and what
/// else there is.
const PROGRAMS: [&str; 11] = [
    "gqa_inc",
    "gqa_spec",
    "mqa_prefill",
    "osdi_qknorm",
    "rope_gqa_qk",
    "rope_gqa_part",
    "moe",
    "osdi_rmsnorm",
    "osdi_gated_mlp",
    "osdi_lora",
    "osdi_ntrans",
];

/// What is found for a program, the cheapest first, each with other numbers of blocks and iterations behind it.
fn candidates(program: &MuGraph) -> Vec<MuGraph> {
    let options = SearchOptions { threads: THREADS, alternatives: 24, ..SearchOptions::default() };
    let (found, _) = search(program, &options).expect("the search covers it");
    let all = |found: Found| {
        std::iter::once(found.graph).chain(found.alternatives.into_iter().map(|(_, graph)| graph))
    };
    found.into_iter().flat_map(all).map(|graph| stable(&graph).unwrap_or(graph)).collect()
}

/// The form whose exponentials are relative to maxima, if there is one.
fn stable(graph: &MuGraph) -> Option<MuGraph> {
    let place = stabilise::unstable(graph)?;
    let group = stabilise::analyse(graph, place).ok()?;
    stabilise::rewrite(graph, &group).ok()
}

/// The kernels of a µGraph, each in at most `limit` ways; `None` if one is not lowered.
fn lowered(
    graph: &MuGraph,
    target: &GpuTarget,
    (factors, dtype): (OperandPrecision, DType),
    limit: usize,
) -> Option<Vec<(MugraphSchedule, Kernel)>> {
    let row_major = |shape: &Vec<usize>| Stored::row_major(dtype, shape);
    let mut stored: Vec<Stored> = graph.shapes().iter().map(row_major).collect();
    for (mask, ..) in graph.inputs().filter(|(.., kind)| *kind == InputKind::Mask) {
        stored[mask.index()].band = Some(WINDOW);
    }
    let mut kernels = Vec::new();
    for (kernel, _) in graph.nodes().filter(|(_, node)| matches!(node, Node::Block(_))) {
        let request = Request { graph, kernel, stored: &stored, name: "kernel" };
        let lower = |schedule| Some((schedule, gpu::lower_as(&request, target, factors, schedule).ok()?));
        let schedules = gpu::schedules(&request, target, factors).ok()?;
        let all: Vec<_> = schedules.into_iter().filter_map(lower).take(limit).collect();
        if all.is_empty() {
            return None;
        }
        kernels.extend(all);
    }
    Some(kernels)
}

/// The kernels of the cheapest µGraph that is lowered, of each program.
fn mugraphs(found: &[(&str, Vec<MuGraph>)], target: &GpuTarget, kernels: &mut Kernels) {
    for (factors, dtype) in [(OperandPrecision::F32, DType::F32), (OperandPrecision::F16, DType::F16)] {
        for (name, candidates) in found {
            let best = candidates
                .iter()
                .find_map(|graph| Some((graph, lowered(graph, target, (factors, dtype), 1)?)));
            let (graph, of_graph) = best.unwrap_or_else(|| panic!("no µGraph of {name} is lowered"));
            let what = format!("{factors:?} {}", orch_mugraph::print(graph));
            kernels.extend(of_graph.into_iter().map(|(_, kernel)| (what.clone(), kernel)));
        }
    }
}

/// Few rows by large factors of 4096 terms: normalised rows, two products in one loop, a small product beside a large one.
fn streamed(target: &GpuTarget, kernels: &mut Kernels) {
    let normalised = |rows: usize| {
        format!(
            "t0 = input \"x\" [{rows}, 4096]\n t1 = input \"w\" [4096, 6144]\n t2 = block [96] loop 8 {{\n \
             s0 = load t0 [-] 1\n s1 = load t1 [1] 0\n s2 = square s0\n s3 = scale(1/4096) s2\n s4 = sum(1) s3\n \
             s5 = accumulate sum s4\n s6 = matmul s0, s1\n s7 = accumulate sum s6\n s8 = offset(1/100000) s5\n \
             s9 = sqrt s8\n s10 = div s7, s9\n store s10 [1]\n }}\n output \"o\" t2"
        )
    };
    let gated = |rows: usize, blocks: usize, range: usize| {
        format!(
            "t0 = input \"x\" [{rows}, 4096]\n t1 = input \"w\" [4096, 4096]\n t2 = input \"v\" [4096, 4096]\n \
             t3 = block [{blocks}] loop {range} {{\n s0 = load t0 [-] 1\n s1 = load t1 [1] 0\n s2 = load t2 [1] 0\n \
             s3 = matmul s0, s1\n s4 = accumulate sum s3\n s5 = matmul s0, s2\n s6 = accumulate sum s5\n s7 = silu s4\n \
             s8 = mul s7, s6\n store s8 [1]\n }}\n output \"o\" t3"
        )
    };
    let adapted = |rows: usize| {
        format!(
            "t0 = input \"x\" [{rows}, 4096]\n t1 = input \"w\" [4096, 4096]\n t2 = input \"a\" [4096, 16]\n \
             t3 = input \"b\" [16, 4096]\n t4 = block [64] loop 16 {{\n s0 = load t0 [-] 1\n s1 = load t1 [1] 0\n \
             s2 = load t2 [-] 0\n s3 = load t3 [1] -\n s4 = matmul s0, s1\n s5 = accumulate sum s4\n s6 = matmul s0, s2\n \
             s7 = accumulate sum s6\n s8 = matmul s7, s3\n s9 = add s5, s8\n store s9 [1]\n }}\n output \"o\" t4"
        )
    };
    let texts = [
        normalised(2),
        normalised(16),
        gated(8, 128, 8),
        gated(8, 128, 16),
        gated(64, 128, 16),
        gated(8, 64, 8),
        // Too many sums to load factors straight to registers.
        gated(64, 64, 16),
        adapted(16),
        adapted(64),
    ];
    for text in texts {
        let graph = parse(&format!("mugraph \"s\" {{\n {text}\n}}\n")).expect("a graph");
        let of_graph =
            lowered(&graph, target, (OperandPrecision::F16, DType::F16), usize::MAX).expect("it is lowered");
        let has_boxes = target.has_wgmma && !text.contains("[128]");
        let shares = has_boxes && text.contains("[64]");
        assert_eq!(of_graph.len(), 1 + usize::from(has_boxes) + usize::from(shares), "{text}");
        for (schedule, kernel) in of_graph {
            let streams = kernel.program.buffers.iter().any(|buffer| buffer.name == "stream");
            match schedule.tma_operands {
                true => assert!(!streams && !kernel.program.tensor_maps.is_empty(), "{text}"),
                false => assert!(streams || text == gated(64, 64, 16), "{text}"),
            }
            kernels.push((format!("{schedule}: {text}"), kernel));
        }
    }
}

/// Attention of few queries by 4096 keys, which tasks of a cluster share.
fn shared(target: &GpuTarget, kernels: &mut Kernels) {
    for rows in [1, 16] {
        let text = format!(
            "mugraph \"a\" {{\n t0 = input \"q\" [8, {rows}, 64]\n t1 = input \"k\" [8, 64, 4096]\n \
             t2 = input \"v\" [8, 4096, 64]\n t3 = block [8] loop 16 {{\n s0 = load t0 [0] -\n s1 = load t1 [0] 2\n \
             s2 = load t2 [0] 1\n s3 = matmul s0, s1\n s4 = exp s3\n s5 = sum(2) s4\n s6 = accumulate sum s5\n \
             s7 = matmul s4, s2\n s8 = accumulate sum s7\n s9 = div s8, s6\n store s9 [0]\n }}\n output \"o\" t3\n}}\n"
        );
        let graph = stable(&parse(&text).expect("a graph")).expect("a stable form");
        let of_graph =
            lowered(&graph, target, (OperandPrecision::F16, DType::F16), usize::MAX).expect("it is lowered");
        let tasks: Vec<usize> = of_graph.iter().map(|(schedule, _)| schedule.ctas).collect();
        assert_eq!(tasks, if target.has_clusters { vec![1, 8, 4, 2] } else { vec![1] });
        kernels
            .extend(of_graph.into_iter().map(|(schedule, kernel)| (format!("{schedule}: {text}"), kernel)));
    }
}

/// Attention of 2048 queries whose loops leave out what a causal mask or a window hides, and of few queries, in clusters.
fn masked(target: &GpuTarget, kernels: &mut Kernels) {
    for ([rows, columns, blocks, range], mask) in [
        ([2048, 64, 16, 32], "causal(0, 1, 2048, 2048)"),
        ([2048, 128, 16, 64], "causal(0, 1, 2048, 2048)"),
        ([2048, 64, 32, 32], "mask \"m\" [1, 2048, 2048]"),
        // More blocks of 128 rows than SMs, which persistent CTAs share.
        ([4096, 64, 32, 16], "causal(0, 1, 4096, 2048)"),
        ([4096, 128, 32, 32], "causal(0, 1, 4096, 2048)"),
        ([4096, 128, 32, 32], "mask \"m\" [1, 4096, 2048]"),
        ([16, 64, 1, 32], "mask \"m\" [1, 16, 2048]"),
    ] {
        let text = format!(
            "mugraph \"a\" {{\n t0 = input \"q\" [8, {rows}, {columns}]\n t1 = input \"k\" [8, {columns}, 2048]\n \
             t2 = input \"v\" [8, 2048, {columns}]\n t3 = {mask}\n t4 = block [8, {blocks}] loop {range} {{\n \
             s0 = load t0 [0, 1] -\n s1 = load t1 [0, -] 2\n s2 = load t2 [0, -] 1\n s3 = load t3 [-, 1] 2\n \
             s4 = matmul s0, s1\n s5 = mask s4, s3\n s6 = exp s5\n s7 = sum(2) s6\n s8 = accumulate sum s7\n \
             s9 = matmul s6, s2\n s10 = accumulate sum s9\n s11 = div s10, s8\n store s11 [0, 1]\n }}\n \
             output \"o\" t4\n}}\n"
        );
        let graph = stable(&parse(&text).expect("a graph")).expect("a stable form");
        let of_graph =
            lowered(&graph, target, (OperandPrecision::F16, DType::F16), usize::MAX).expect("it is lowered");
        let (is_shared, is_dealt) = (target.has_clusters && rows == 16, target.has_wgmma && rows == 4096);
        let ways = of_graph.len();
        assert_eq!(ways > 1, is_shared || is_dealt, "{text}");
        let persistent = of_graph.iter().filter(|(schedule, _)| schedule.persistent).count();
        assert_eq!(persistent, usize::from(is_dealt), "{text}");
        for (schedule, kernel) in of_graph {
            let program = print_thread(&kernel.program);
            assert!(program.contains("let iterations") && !program.contains("input t3"), "{text}");
            kernels.push((format!("{schedule}: {text}"), kernel));
        }
    }
}

fn nvrtc() -> Option<Nvrtc> {
    let asked = std::env::var_os("ORCHESTRION_TEST_NVRTC");
    let is_asked = asked.is_some();
    match Nvrtc::load(&SearchPaths { nvrtc: asked.map(Into::into), ..SearchPaths::default() }) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) if is_asked => panic!("{error}"),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// What is wrong with the source of a kernel, if anything.
fn problem(nvrtc: &Nvrtc, target: &GpuTarget, kernel: &Kernel) -> Option<String> {
    let mut program = kernel.program.clone();
    run_all(&mut program, &PassContext::default(), &mut |_, _| {});
    let program = &program;
    let violations = validate_thread(program);
    if !violations.is_empty() {
        return Some(violations.join("\n"));
    }
    let options = cuda::flags().iter().map(|&flag| flag.to_owned()).collect();
    let compiler = NvrtcTarget { options, ..NvrtcTarget::new(target.arch) };
    let source =
        Source { name: program.name.clone(), text: cuda::emit(program, target), symbols: Vec::new() };
    let code = match nvrtc.compile(&source, &compiler, &std::env::temp_dir()) {
        Ok(code) => code,
        Err(error) => return Some(error.to_string()),
    };
    // The driver allocates the registers of PTX.
    if compiler.is_ptx() {
        return (program.shared_bytes() > target.shared_bytes)
            .then(|| format!("{} bytes", program.shared_bytes()));
    }
    let [resources] = &code.kernels[..] else { return Some(format!("{} kernels", code.kernels.len())) };
    let threads = program.cta.as_ref().map_or(1, |cta| cta.threads);
    let registers = (target.sm_registers / threads).min(NAMED_REGISTERS) as u32;
    let spilled = resources.spill_store_bytes + resources.spill_load_bytes;
    let is_right = resources.registers <= registers
        && spilled <= MAX_SPILL_BYTES
        && program.shared_bytes() <= target.shared_bytes;
    (!is_right).then(|| format!("{threads} threads, at most {registers} registers: {resources:?}"))
}

/// Compiles all kernels.
fn check(nvrtc: &Nvrtc, target: &GpuTarget, kernels: &[(String, Kernel)]) {
    println!("{}: {} kernels", target.name, kernels.len());
    let next = AtomicUsize::new(0);
    let problems = Mutex::new(Vec::new());
    let work = || {
        while let Some((what, kernel)) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Some(problem) = problem(nvrtc, target, kernel) {
                let text = format!("{what} for {}: {problem}", target.name);
                problems.lock().expect("no thread panicked").push(text);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    let problems = problems.into_inner().expect("no thread panicked");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn sources_compile_without_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    for target in GPU_TARGETS {
        let mut kernels = Vec::new();
        contractions(target, &mut kernels);
        wide_contractions(target, &mut kernels);
        attentions(target, &mut kernels);
        nests(target, &mut kernels);
        let has = |text: &str| kernels.iter().any(|(what, _)| what.contains(text));
        assert_eq!(has("wgmma: true"), target.has_wgmma);
        assert_eq!(has("tma: true"), target.has_wgmma);
        assert_eq!(has("split_k: 2") || has("split_k: 4"), target.has_clusters);
        check(&nvrtc, target, &kernels);
    }
}

#[test]
fn sources_of_scatters_and_selections_compile_without_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    for target in GPU_TARGETS {
        let mut kernels = Vec::new();
        alone(target, &mut kernels);
        check(&nvrtc, target, &kernels);
    }
}

#[test]
fn sources_of_skinny_gemms_compile_without_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    // The tiles of these µGraphs do not fit the shared memory that every GPU has.
    for target in [&SM_90, &SM_80] {
        let mut kernels = Vec::new();
        streamed(target, &mut kernels);
        shared(target, &mut kernels);
        check(&nvrtc, target, &kernels);
    }
}

#[test]
fn sources_of_mugraphs_compile_without_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    let programs = programs::programs(1).expect("small shapes");
    let found: Vec<(&str, Vec<MuGraph>)> = (programs.iter())
        .filter(|program| PROGRAMS.contains(&program.name))
        .map(|program| (program.name, candidates(&program.graph)))
        .collect();
    assert_eq!(found.len(), PROGRAMS.len());
    for target in GPU_TARGETS {
        let mut kernels = Vec::new();
        mugraphs(&found, target, &mut kernels);
        check(&nvrtc, target, &kernels);
    }
}

#[test]
fn sources_of_masked_attention_compile_without_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    for target in GPU_TARGETS {
        let mut kernels = Vec::new();
        masked(target, &mut kernels);
        check(&nvrtc, target, &kernels);
    }
}
