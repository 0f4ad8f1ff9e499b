//! The contraction template against the reference interpreter, through the interpreter of thread programs, which
//! checks bounds, races and reads of undefined scratch.

mod support;

use orch_compute::layouts;
use orch_compute::{BlockProgram, Layout, fuse};
use orch_interp::{EvalOptions, evaluate};
use orch_ir::{
    BinaryFn, Contract, ConvSpec, DType, PrimGraph, PrimOp, ScalarFn, Tensor, TensorId, UnaryFn, Window,
};
use orch_template::contraction::{
    ContractionForm, CpuContractionSchedule, CpuMathUnit, GemmShape, RowOrder, lower, staging, work,
};
use orch_template::gpu::contraction as gpu;
use orch_template::{Design, designs};
use orch_thread::OperandPrecision;
use orch_thread::cta::SWIZZLE_ROW;
use orch_thread::kernel::{Binding, Kernel};
use orch_thread::passes::defer_grid_wait::defer_grid_wait;
use orch_thread::target::{SM_90, X86_64_V3, X86_64_V4};
use orch_thread::{BufferData, CpuTarget, ExecOptions, Report, interpret, parse_thread, validate_thread};
use std::collections::BTreeSet;
use support::square_window;

/// Most multiply-adds of a product that is tested with every operand precision.
const SMALL_PRODUCT: usize = 10_000;

/// A graph with one output, and values of its inputs and constants.
struct Case {
    graph: PrimGraph,
    inputs: Vec<Tensor>,
}

fn values(shape: &[usize], seed: usize) -> Tensor {
    let elems: usize = shape.iter().product();
    let data = (0..elems).map(|i| ((i * 37 + seed * 11) % 23) as f32 / 8.0 - 1.25).collect();
    Tensor::from_vec(shape.to_vec(), data)
}

/// The same values in f16, which represents them exactly.
fn half(tensor: &Tensor) -> Tensor {
    Tensor::from_f64(DType::F16, tensor.shape().clone(), &tensor.to_f64())
}

impl Case {
    fn new() -> Self {
        Self { graph: PrimGraph::new("case"), inputs: Vec::new() }
    }

    fn input(&mut self, shape: &[usize]) -> TensorId {
        let name = format!("x{}", self.inputs.len());
        self.inputs.push(values(shape, self.inputs.len()));
        self.graph.add_input(name, DType::F32, shape.to_vec())
    }

    fn half_input(&mut self, shape: &[usize]) -> TensorId {
        let name = format!("x{}", self.inputs.len());
        self.inputs.push(half(&values(shape, self.inputs.len())));
        self.graph.add_input(name, DType::F16, shape.to_vec())
    }

    fn half_constant(&mut self, shape: &[usize]) -> TensorId {
        self.graph.add_constant(half(&values(shape, 99)))
    }

    /// The graph as one block program, the expected output, and the output's layout.
    fn built(&mut self, result: TensorId) -> (BlockProgram, Tensor, Layout) {
        self.graph.add_output("y", result);
        let layouts = layouts::assign(&self.graph);
        let expected = evaluate(&self.graph, &self.inputs, &EvalOptions::default()).expect("the oracle runs");
        let nodes: Vec<_> = self.graph.node_ids().collect();
        let block = fuse::build(&self.graph, &nodes, &[result], &|t| layouts[t.index()].clone(), "kernel");
        let block = block.unwrap_or_else(|error| panic!("{error}"));
        (block, expected[0].clone(), layouts[result.index()].clone())
    }

    fn constant(&mut self, shape: &[usize]) -> TensorId {
        self.graph.add_constant(values(shape, 99))
    }

    fn add(&mut self, op: PrimOp, inputs: &[TensorId]) -> TensorId {
        self.graph.add(op, inputs).expect("a valid primitive")
    }

    /// Adds an epilogue: a bias along `dim` and a ReLU.
    fn bias_relu(&mut self, x: TensorId, dim: usize) -> TensorId {
        let shape = self.graph.shape(x).clone();
        let bias = self.constant(&[shape[dim]]);
        let bias = self.add(PrimOp::Broadcast { shape: shape.clone(), dims: vec![dim] }, &[bias]);
        let sum = self.add(PrimOp::Map(ScalarFn::Binary(BinaryFn::Add)), &[x, bias]);
        let zero = self.graph.add_constant(Tensor::scalar(0.0f32));
        let zero = self.add(PrimOp::Broadcast { shape, dims: vec![] }, &[zero]);
        self.add(PrimOp::Map(ScalarFn::Binary(BinaryFn::Max)), &[sum, zero])
    }

    /// Runs the whole graph as one kernel and compares.
    fn check(self, result: TensorId, layouts: Option<Vec<Layout>>, what: &str) {
        self.check_on(&[&X86_64_V4, &X86_64_V3], result, layouts, what, |_| ());
    }

    /// Runs the whole graph as one GPU kernel and compares: with f16 operands, and for small products with every
    /// precision; under one schedule of each kind, out of those that pad the product least.
    fn check_on_gpu(&self, block: &BlockProgram, expected: &Tensor, layout: &Layout, what: &str) {
        let form = ContractionForm::of(block).unwrap_or_else(|error| panic!("{what}: {error}"));
        let GemmShape { batch, m, n, k } = GemmShape::of(block, &form);
        for (precision, tolerance) in [
            (OperandPrecision::F16, 5e-3),
            (OperandPrecision::F32, 1e-4),
            (OperandPrecision::Tf32, 2e-2),
            (OperandPrecision::Bf16, 4e-2),
        ] {
            if precision != OperandPrecision::F16 && batch * m * n * k > SMALL_PRODUCT {
                continue;
            }
            let mut schedules = gpu::schedules(block, &SM_90, precision, usize::MAX);
            assert!((20..=200).contains(&schedules.len()), "{} schedules", schedules.len());
            // Multiply-adds of all tiles, padding included.
            schedules.sort_by_key(|schedule| {
                let tile = m.next_multiple_of(schedule.block_m) * n.next_multiple_of(schedule.block_n);
                tile * k.next_multiple_of(schedule.block_k * schedule.split_k)
            });
            // One schedule of each kind; different tests take different ones.
            let of_kind = |is_kind: fn(&gpu::GpuContractionSchedule) -> bool| {
                let kind: Vec<_> = schedules.iter().filter(|schedule| is_kind(schedule)).take(8).collect();
                let at = what.len() * 7 + block.args.len() * 31;
                (!kind.is_empty()).then(|| kind[at % kind.len()])
            };
            let kinds = [
                of_kind(|schedule| schedule.split_k == 1 && !schedule.wgmma),
                of_kind(|schedule| schedule.split_k > 1 && !schedule.wgmma),
                of_kind(|schedule| schedule.wgmma),
                of_kind(|schedule| schedule.wgmma && schedule.block_n % SWIZZLE_ROW == 0),
            ];
            for schedule in kinds.into_iter().flatten() {
                let what = format!("{what} {precision:?} {schedule:?}");
                let kernel =
                    gpu::lower(block, schedule, precision).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(validate_thread(&kernel.program), Vec::<String>::new(), "{what}");
                let got = self.run_kernel(block, &kernel, &what);
                compare(expected, &got, layout, tolerance, &what);
            }
        }
    }

    /// As [`Self::check`], on these targets; `seen` is called with each schedule.
    fn check_on(
        mut self,
        targets: &[&CpuTarget],
        result: TensorId,
        layouts: Option<Vec<Layout>>,
        what: &str,
        mut seen: impl FnMut(&CpuContractionSchedule),
    ) {
        self.graph.add_output("y", result);
        let layouts = layouts.unwrap_or_else(|| layouts::assign(&self.graph));
        let expected = evaluate(&self.graph, &self.inputs, &EvalOptions::default()).expect("the oracle runs");
        let nodes: Vec<_> = self.graph.node_ids().collect();
        let block = fuse::build(&self.graph, &nodes, &[result], &|t| layouts[t.index()].clone(), "kernel")
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        for target in targets {
            let form = ContractionForm::of(&block).unwrap_or_else(|error| panic!("{what}: {error}"));
            let lanes = target.lanes(4);
            for schedule in CpuContractionSchedule::candidates(
                GemmShape::of(&block, &form),
                staging(&block, &form, CpuMathUnit::Fma),
                lanes,
                target,
                3,
            ) {
                seen(&schedule);
                let got = self.run(&block, &schedule, target, what);
                let what = format!("{what} {schedule:?}");
                compare(&expected[0], &got, &layouts[result.index()], 1e-4, &what);
            }
        }
        if !what.starts_with("long chain") {
            self.check_on_gpu(&block, &expected[0], &layouts[result.index()], what);
        }
    }

    fn run(
        &self,
        block: &BlockProgram,
        schedule: &CpuContractionSchedule,
        target: &CpuTarget,
        what: &str,
    ) -> Vec<f64> {
        let kernel = lower(block, schedule, target).unwrap_or_else(|error| panic!("{what}: {error}"));
        self.run_kernel(block, &kernel, &format!("{what} {schedule:?}"))
    }

    fn run_kernel(&self, block: &BlockProgram, kernel: &Kernel, what: &str) -> Vec<f64> {
        self.interpreted(block, kernel, what).0
    }

    /// What a kernel computes, and what the interpreter noticed.
    fn interpreted(&self, block: &BlockProgram, kernel: &Kernel, what: &str) -> (Vec<f64>, Report) {
        let value = |tensor: TensorId| {
            let given = self.graph.inputs.iter().position(|(_, input)| *input == tensor);
            given.map(|i| &self.inputs[i]).or_else(|| self.graph.constant(tensor)).cloned()
        };
        let mut output = None;
        let mut buffers: Vec<BufferData> = Vec::new();
        for binding in &kernel.bindings {
            let buffer = match binding {
                Binding::Arg(arg) => {
                    let arg = block.arg(*arg);
                    value(arg.tensor).map(|tensor| BufferData::from_tensor(&tensor)).unwrap_or_else(|| {
                        output = Some(buffers.len());
                        BufferData::zeros(arg.dtype, arg.shape.elems())
                    })
                }
                Binding::Packed(packed) => {
                    let source = value(block.arg(packed.arg).tensor).expect("constants have values");
                    BufferData { dtype: packed.dtype, bytes: packed.pack(&source) }
                }
                Binding::Own { dtype, elems, .. } => BufferData::zeros(*dtype, *elems),
            };
            buffers.push(buffer);
        }
        let report = interpret(&kernel.program, &mut buffers, &ExecOptions::default())
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let output = output.expect("a kernel writes something");
        assert_eq!(report.unwritten[output], 0, "{what} leaves elements unwritten");
        let values = buffers[output].to_tensor([buffers[output].elems()]).expect("as many elements").to_f64();
        (values, report)
    }
}

/// Compares an output in `layout` with the row-major expectation.
fn compare(expected: &Tensor, got: &[f64], layout: &Layout, tolerance: f64, what: &str) {
    let shape = expected.shape();
    let (row_major, stored) = (shape.strides(), layout.strides(shape));
    for (position, want) in expected.to_f64().into_iter().enumerate() {
        let at: usize =
            (0..shape.rank()).map(|dim| position / row_major[dim] % shape[dim] * stored[dim]).sum();
        let error = (got[at] - want).abs() / want.abs().max(1.0);
        assert!(error < tolerance, "{what}: element {position} is {}, expected {want}", got[at]);
    }
}

#[test]
fn matrix_products_of_adversarial_sizes() {
    for (m, n, k) in [(1, 1, 3), (1, 50, 7), (13, 1, 5), (7, 16, 8), (9, 17, 31), (29, 49, 3), (16, 96, 16)] {
        let mut case = Case::new();
        let x = case.input(&[m, k]);
        let w = case.constant(&[k, n]);
        let y = case.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
        let y = case.bias_relu(y, 1);
        case.check(y, None, &format!("constant weights {m}x{n}x{k}"));

        let mut case = Case::new();
        let (x, w) = (case.input(&[m, k]), case.input(&[k, n]));
        let y = case.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
        case.check(y, None, &format!("computed weights {m}x{n}x{k}"));
    }
}

/// A kernel of merged products, their biases and one slice has the axes of the slice, reads that part of the constant only, and is right
/// wherever the slice begins.
#[test]
fn a_slice_of_merged_products_is_a_product_of_its_own() {
    let slice = |rank: usize, dim: usize, shape: &[usize], (start, extent): (usize, usize)| {
        let (mut starts, mut sizes) = (vec![0; rank], shape.to_vec());
        (starts[dim], sizes[dim]) = (start as i64, extent);
        PrimOp::Slice { starts, steps: vec![1; rank], sizes }
    };
    for (start, extent) in [(0, 16), (16, 33), (49, 1), (50, 14)] {
        let what = format!("{extent} of 64 from {start}");
        let mut case = Case::new();
        let (x, w) = (case.input(&[9, 40]), case.constant(&[40, 64]));
        let y = case.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
        let y = case.bias_relu(y, 1);
        let y = case.add(slice(2, 1, &[9, 64], (start, extent)), &[y]);
        let y = case.add(PrimOp::Map(ScalarFn::Unary(UnaryFn::Tanh)), &[y]);
        let (block, ..) = case.built(y);
        let form = ContractionForm::of(&block).unwrap_or_else(|error| panic!("{what}: {error}"));
        let GemmShape { batch, m, n, k } = GemmShape::of(&block, &form);
        assert_eq!((batch, m * n, k), (1, 9 * extent, 40), "{what}");
        case.graph.outputs.clear();
        case.check(y, None, &what);

        let mut case = Case::new();
        let (x, w) = (case.input(&[1, 3, 7, 6]), case.constant(&[64, 3, 3, 3]));
        let spec = ConvSpec { window: square_window(3, 2, 1, 1), groups: 1 };
        let y = case.add(PrimOp::Conv(spec), &[x, w]);
        let y = case.bias_relu(y, 1);
        let y = case.add(slice(4, 1, &[1, 64, 4, 3], (start, extent)), &[y]);
        case.check(y, None, &format!("channels {what}"));
    }
}

/// wgmma with K-major and MN-major operands, of one and of three warp groups, overlaps the copies of the next stages.
/// With programmatic dependent launch, the first stages of constants are loaded before the wait for other kernels.
#[test]
fn products_of_tiles_run_on_while_the_next_are_copied() {
    let (m, n, k) = (130, 136, 450);
    for (is_constant, a_is_k_major) in [(true, true), (false, true), (false, false)] {
        let mut case = Case::new();
        let x = match a_is_k_major {
            true => case.input(&[m, k]),
            false => {
                let x = case.input(&[k, m]);
                case.add(PrimOp::Transpose { perm: vec![1, 0] }, &[x])
            }
        };
        let w = if is_constant { case.constant(&[k, n]) } else { case.input(&[k, n]) };
        let y = case.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
        let y = case.bias_relu(y, 1);
        case.graph.add_output("y", y);
        let layouts = layouts::assign(&case.graph);
        let expected = evaluate(&case.graph, &case.inputs, &EvalOptions::default()).expect("the oracle runs");
        let nodes: Vec<_> = case.graph.node_ids().collect();
        let block = fuse::build(&case.graph, &nodes, &[y], &|t| layouts[t.index()].clone(), "kernel")
            .unwrap_or_else(|error| panic!("{error}"));
        let schedules = gpu::schedules(&block, &SM_90, OperandPrecision::F16, usize::MAX);
        for (block_m, block_n, split) in [(64, 64, 1), (64, 128, 2), (192, 128, 1)] {
            let is_meant = |schedule: &&gpu::GpuContractionSchedule| {
                let of_tile = schedule.wgmma && (schedule.block_m, schedule.block_n) == (block_m, block_n);
                of_tile && schedule.split_k == split
            };
            let mut count = 0;
            for schedule in schedules.iter().filter(is_meant) {
                let what = format!("constant {is_constant}, a K-major {a_is_k_major}: {schedule:?}");
                let mut kernel = gpu::lower(&block, schedule, OperandPrecision::F16)
                    .unwrap_or_else(|e| panic!("{what}: {e}"));
                defer_grid_wait(&mut kernel.program);
                assert_eq!(validate_thread(&kernel.program), Vec::<String>::new(), "{what}");
                let text = kernel.program.to_string();
                let (copied, awaited) = (text.find("arg1["), text.find("  grid_dependency_wait\n"));
                assert_eq!(is_constant, copied < awaited, "{what}");
                assert!(text.contains("transposed_b, async"), "{what}");
                assert_eq!(text.contains("transposed_a"), !a_is_k_major, "{what}");
                let got = case.run_kernel(&block, &kernel, &what);
                compare(&expected[0], &got, &layouts[y.index()], 5e-3, &what);
                count += 1;
            }
            assert!(count > 0, "{block_m} x {block_n}");
        }
    }
}

/// Row-major large operands are read in strips of long rows, by threads, which is faster than TMA; K-major ones in rows
/// along K. No tile has a warp group without a row.
#[test]
fn skinny_gemms_are_tiled_by_the_order_of_the_large_operand() {
    for (m, is_transposed) in [(8, false), (64, false), (8, true), (65, true)] {
        let mut graph = PrimGraph::new("large");
        let shapes = [vec![8, m, 4096], vec![8, 4096, 4096]];
        let [x, mut w] = shapes.map(|shape| graph.add_input(format!("x{m}{}", shape[1]), DType::F16, shape));
        if is_transposed {
            w = graph.add(PrimOp::Transpose { perm: vec![0, 2, 1] }, &[w]).expect("a valid primitive");
        }
        let y = graph.add(PrimOp::Contract(Contract::matmul(1)), &[x, w]).expect("a valid primitive");
        graph.add_output("y", y);
        let layouts = layouts::assign(&graph);
        let nodes: Vec<_> = graph.node_ids().collect();
        let block = fuse::build(&graph, &nodes, &[y], &|t| layouts[t.index()].clone(), "kernel")
            .unwrap_or_else(|error| panic!("{error}"));
        let schedules = gpu::schedules(&block, &SM_90, OperandPrecision::F16, usize::MAX);
        let is_wide = |schedule: &gpu::GpuContractionSchedule| schedule.block_n >= 2 * SWIZZLE_ROW;
        let what = format!("{m} rows, transposed {is_transposed}: {:?}", schedules[0]);
        assert_eq!(schedules[0].tma || !is_wide(&schedules[0]), is_transposed, "{what}");
        let tallest = schedules.iter().map(|schedule| schedule.block_m).max();
        assert_eq!(tallest, Some(if m > 64 { 128 } else { 64 }), "{what}");
    }
}

/// 16-bit operands that are plain arrays are loaded by TMA, whatever their order, offsets and remainders.
#[test]
fn plain_operands_are_loaded_by_tma() {
    // Heads, rows, columns, K; whether the second operand is a constant, and whether K is the inner dimension of each in memory.
    for (heads, m, n, k, is_constant, a_is_k_major, is_transposed) in [
        (1, 70, 136, 456, false, true, false),
        (1, 70, 136, 456, true, true, false),
        (1, 1, 64, 200, false, true, true),
        (1, 130, 72, 128, true, true, true),
        (3, 33, 72, 64, false, true, true),
        (2, 65, 64, 72, false, true, false),
        (1, 136, 72, 200, false, false, false),
        (2, 72, 64, 96, false, false, true),
    ] {
        let mut case = Case::new();
        let (shape, perm) = match a_is_k_major {
            true => ([m, heads, k], vec![1, 0, 2]),
            false => ([k, heads, m], vec![1, 2, 0]),
        };
        let x = case.half_input(&shape);
        let x = case.add(PrimOp::Transpose { perm }, &[x]);
        let shape = if is_transposed { [heads, n, k] } else { [heads, k, n] };
        let w = if is_constant { case.half_constant(&shape) } else { case.half_input(&shape) };
        let w = match is_transposed {
            true => case.add(PrimOp::Transpose { perm: vec![0, 2, 1] }, &[w]),
            false => w,
        };
        let y = case.add(PrimOp::Contract(Contract::matmul(1)), &[x, w]);
        let what = format!("{heads} x {m} x {n} x {k}");
        let (block, expected, layout) = case.built(y);
        let schedules = gpu::schedules(&block, &SM_90, OperandPrecision::F16, usize::MAX);
        assert!((20..=200).contains(&schedules.len()), "{what}: {} schedules", schedules.len());
        let with_boxes: Vec<_> = schedules.iter().filter(|schedule| schedule.tma).collect();
        let (stride, least) = (with_boxes.len() / 3, with_boxes.iter().min_by_key(|s| s.block_m * s.block_n));
        for schedule in with_boxes.iter().step_by(stride.max(1)).chain(least) {
            let what = format!("{what} {schedule:?}");
            let mut kernel =
                gpu::lower(&block, schedule, OperandPrecision::F16).unwrap_or_else(|e| panic!("{what}: {e}"));
            defer_grid_wait(&mut kernel.program);
            assert_eq!(validate_thread(&kernel.program), Vec::<String>::new(), "{what}");
            let text = kernel.program.to_string();
            assert_eq!(parse_thread(&text).expect("its own text").to_string(), text, "{what}");
            assert!(!text.contains("cp_async a_tiles"), "{what}");
            assert_eq!(text.contains("transposed_a"), !a_is_k_major, "{what}");
            let (copied, awaited) = (text.find("tma_load b_tiles"), text.find("  grid_dependency_wait\n"));
            assert_eq!(is_constant, copied < awaited, "{what}");
            let got = case.run_kernel(&block, &kernel, &what);
            compare(&expected, &got, &layout, 5e-3, &what);
        }
    }
}

/// Operands whose rows are the first elements of longer rows are read in whole 16-byte accesses, with zeros beyond the
/// operand: TMA fills them by itself, and threads copy only the valid bytes of the last access.
#[test]
fn operands_of_odd_width_in_longer_rows_are_copied_in_place() {
    for (m, n, k, row) in [(21, 30, 19, 32), (17, 18, 23, 24)] {
        for is_half in [false, true] {
            let mut case = Case::new();
            let given = [[m, row], [k, row]].map(|shape| match is_half {
                true => case.half_input(&shape),
                false => case.input(&shape),
            });
            let mut first = |tensor, sizes: [usize; 2]| {
                let slice = PrimOp::Slice { starts: vec![0; 2], steps: vec![1; 2], sizes: sizes.to_vec() };
                case.add(slice, &[tensor])
            };
            let precision = [first(given[0], [m, k]), first(given[1], [k, n])];
            let y = case.add(PrimOp::Contract(Contract::matmul(0)), &precision);
            let what = format!("{m} x {n} x {k} of rows of {row}");
            let (block, expected, layout) = case.built(y);
            let multiplied = if is_half { OperandPrecision::F16 } else { OperandPrecision::F32 };
            let schedules = gpu::schedules(&block, &SM_90, multiplied, usize::MAX);
            let is_tried =
                |schedule: &&gpu::GpuContractionSchedule| schedule.block_m * schedule.block_n < 8192;
            let mut seen = [false; 2];
            for schedule in schedules.iter().filter(is_tried).step_by(9) {
                let what = format!("{what} {schedule:?}");
                let kernel = gpu::lower(&block, schedule, multiplied).expect("its own schedule");
                assert_eq!(validate_thread(&kernel.program), Vec::<String>::new(), "{what}");
                let text = kernel.program.to_string();
                assert_eq!(parse_thread(&text).expect("its own text").to_string(), text, "{what}");
                let whole = if is_half { ", 8 real" } else { ", 4 real" };
                assert!(text.contains(if schedule.tma { "tma_load a_tiles" } else { whole }), "{what}");
                seen[usize::from(schedule.tma)] = true;
                let got = case.run_kernel(&block, &kernel, &what);
                compare(&expected, &got, &layout, if is_half { 5e-3 } else { 1e-4 }, &what);
            }
            assert_eq!(seen, [true, is_half], "{what}");
        }
    }
}

/// Threads load operands that TMA cannot: those whose start or strides are no multiples of 16 bytes, computed ones, and
/// gathered ones.
#[test]
fn operands_without_a_tensor_map_are_loaded_by_threads() {
    for (k, is_computed) in [(100, false), (128, true)] {
        let mut case = Case::new();
        let mut x = case.half_input(&[64, k]);
        let w = case.half_input(&[k, 64]);
        if is_computed {
            x = case.add(PrimOp::Map(ScalarFn::Unary(UnaryFn::Neg)), &[x]);
        }
        let y = case.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
        let (block, ..) = case.built(y);
        let mut schedules = gpu::schedules(&block, &SM_90, OperandPrecision::F16, usize::MAX);
        assert!(schedules.iter().any(|schedule| schedule.wgmma), "{k}");
        assert!(schedules.iter().all(|schedule| !schedule.tma), "{k}");
        let schedule = schedules.iter_mut().find(|schedule| schedule.wgmma).expect("one of tiles");
        schedule.tma = true;
        assert!(gpu::lower(&block, schedule, OperandPrecision::F16).is_err(), "{k}");
    }
}

/// With small caches even short reductions are split into K blocks.
#[test]
fn long_reductions_are_split_into_k_blocks() {
    let target = CpuTarget { l1_bytes: 4 << 10, l2_bytes: 32 << 10, ..X86_64_V4 };
    for (m, n, k, packed) in [(29, 49, 1027, true), (300, 20, 600, true), (13, 130, 1100, false)] {
        let mut case = Case::new();
        let x = case.input(&[m, k]);
        let x = if m == 300 { case.add(PrimOp::Map(ScalarFn::Unary(UnaryFn::Neg)), &[x]) } else { x };
        let w = if packed { case.constant(&[k, n]) } else { case.input(&[k, n]) };
        let y = case.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
        let y = case.bias_relu(y, 1);
        let mut blocked = 0;
        case.check_on(&[&target], y, None, &format!("{m}x{n}x{k}"), |schedule| {
            blocked += usize::from(schedule.block_k < k);
        });
        assert!(!packed || blocked > 0, "{m}x{n}x{k} is not blocked");
    }
}

/// The schedule that the model prefers, on units that multiply and add, and its kernel.
fn preferred(block: &BlockProgram, target: &CpuTarget) -> (CpuContractionSchedule, Kernel) {
    let form = ContractionForm::of(block).unwrap_or_else(|error| panic!("{error}"));
    let (extents, staging) = (GemmShape::of(block, &form), staging(block, &form, CpuMathUnit::Fma));
    let schedule = CpuContractionSchedule::candidates(extents, staging, target.lanes(4), target, 1)[0];
    (schedule, lower(block, &schedule, target).unwrap_or_else(|error| panic!("{schedule:?}: {error}")))
}

/// Skinny GEMMs whose large operand does not fit in the caches read it in K blocks and prefetch it, if it is an
/// argument of the kernel.
#[test]
fn large_operands_of_skinny_gemms_are_prefetched() {
    let target = CpuTarget { l1_bytes: 4 << 10, l2_bytes: 32 << 10, ..X86_64_V4 };
    for (m, n, k, is_constant, is_prefetched, is_blocked) in [
        (11, 96, 200, false, true, true),
        (2, 512, 150, false, true, true),
        (16, 320, 48, false, true, false),
        // One cache line per row, many rows, a small operand, and a packed one.
        (11, 32, 600, false, false, false),
        (300, 96, 60, false, false, false),
        (11, 64, 16, false, false, false),
        (11, 96, 200, true, false, false),
    ] {
        let mut case = Case::new();
        let x = case.input(&[2, m, k]);
        let w = if is_constant { case.constant(&[2, k, n]) } else { case.input(&[2, k, n]) };
        let y = case.add(PrimOp::Contract(Contract::matmul(1)), &[x, w]);
        let (block, expected, layout) = case.built(y);
        let (schedule, kernel) = preferred(&block, &target);
        let what = format!("{m} x {n} x {k} {schedule:?}");
        assert_eq!(validate_thread(&kernel.program), Vec::<String>::new(), "{what}");
        let text = kernel.program.to_string();
        assert_eq!(text.contains("prefetch arg1["), is_prefetched, "{what}");
        assert_eq!(schedule.block_k == 64, is_blocked, "{what}");
        let got = case.run_kernel(&block, &kernel, &what);
        compare(&expected, &got, &layout, 1e-4, &what);
    }
}

/// Of a constant in panels, register tiles prefetch all of the next panel while they multiply by theirs, a part each.
#[test]
fn panels_of_constants_are_prefetched_while_the_one_before_is_multiplied() {
    let small = CpuTarget { l1_bytes: 4 << 10, l2_bytes: 32 << 10, ..X86_64_V4 };
    let small_v3 = CpuTarget { l1_bytes: 2 << 10, l2_bytes: 8 << 10, ..X86_64_V3 };
    for (target, m, n, k) in [
        (X86_64_V4, 40, 200, 20),
        (X86_64_V4, 128, 200, 36),
        (small_v3, 128, 100, 36),
        // Rows in tiles of two heights; a K dimension of several chains; one in blocks.
        (X86_64_V4, 77, 200, 36),
        (X86_64_V4, 40, 200, 700),
        (small, 64, 192, 700),
    ] {
        let mut case = Case::new();
        let x = case.input(&[m, k]);
        let w = case.constant(&[k, n]);
        let y = case.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
        let (block, _, _) = case.built(y);
        let (schedule, kernel) = preferred(&block, &target);
        let what = format!("{m} x {n} x {k} {schedule:?}");
        let packed = (kernel.bindings.iter().position(|binding| matches!(binding, Binding::Packed(_))))
            .unwrap_or_else(|| panic!("{what}: no packed constant"));
        let Binding::Packed(constant) = &kernel.bindings[packed] else { unreachable!() };
        let (panel, elems) = (constant.k_extent * constant.width, constant.elems());
        let line = 16;
        let lines: BTreeSet<usize> = (case.interpreted(&block, &kernel, &what).1.prefetched.iter())
            .filter(|(buffer, _)| buffer.index() == packed)
            .map(|&(_, offset)| offset as usize / line)
            .collect();
        assert!(constant.panels() > 1, "{what}");
        let missed = (panel / line..elems / line).filter(|at| !lines.contains(at)).count();
        assert_eq!(missed, 0, "{what}");
        // Nothing before the second panel, and nothing past the last one.
        let (first, last) = (lines.first().unwrap() * line, lines.last().unwrap() * line);
        assert!(first >= panel - line && last < elems, "{what}: {first} to {last} of {elems}");
    }
}

/// In one chain all ones that are added after 2^24 are lost, since each is half a unit in the last place.
#[test]
fn long_sums_are_several_chains() {
    for packed in [true, false] {
        let (m, n, k) = (2, 20, 4096);
        let mut case = Case::new();
        let x = case.input(&[m, k]);
        let values = (0..m * k).map(|i| if i % k == 0 { f32::exp2(24.0) } else { 1.0 }).collect();
        case.inputs[0] = Tensor::from_vec([m, k], values);
        let ones = Tensor::from_vec([k, n], vec![1.0f32; k * n]);
        let w = if packed {
            case.graph.add_constant(ones)
        } else {
            let w = case.input(&[k, n]);
            case.inputs[1] = ones;
            w
        };
        let y = case.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
        // On GPUs each part of split-K is one chain.
        case.check(y, None, &format!("long chain, packed {packed}"));
    }
}

#[test]
fn batched_products_with_a_transposed_operand() {
    for (heads, s, t, d) in [(1, 5, 7, 3), (3, 9, 17, 16), (2, 33, 20, 8)] {
        let mut case = Case::new();
        let (q, k) = (case.input(&[heads, s, d]), case.input(&[heads, t, d]));
        let k = case.add(PrimOp::Transpose { perm: vec![0, 2, 1] }, &[k]);
        let scores = case.add(PrimOp::Contract(Contract::matmul(1)), &[q, k]);
        case.check(scores, None, &format!("scores {heads} {s} {t} {d}"));
    }
}

/// Weights that are inputs, `[n][k]`, have neighbours along K: they are transposed in registers, by as many at a time as are left, also if they are
/// computed.
#[test]
fn operands_along_k_are_transposed_in_registers() {
    for (m, n, k, is_computed) in
        [(3, 50, 37, false), (9, 16, 16, true), (1, 33, 70, true), (5, 48, 4, false)]
    {
        let mut case = Case::new();
        let (x, w) = (case.input(&[m, k]), case.input(&[n, k]));
        let w = match is_computed {
            true => case.add(PrimOp::Map(ScalarFn::Unary(UnaryFn::Neg)), &[w]),
            false => w,
        };
        let w = case.add(PrimOp::Transpose { perm: vec![1, 0] }, &[w]);
        let y = case.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
        let what = format!("{m}x{n}x{k}, computed {is_computed}");
        let (block, expected, layout) = case.built(y);
        for target in [&X86_64_V4, &X86_64_V3] {
            let (_, kernel) = preferred(&block, target);
            let text = kernel.program.to_string();
            assert!(text.contains("interleave(") && text.contains("low("), "{what}: {text}");
            // A line of its own, if their number is odd, is gathered.
            assert_eq!(text.contains("[ramp("), k % 2 == 1, "{what}: {text}");
            let got = case.run_kernel(&block, &kernel, &what);
            compare(&expected, &got, &layout, 1e-4, &what);
        }
        case.check_on_gpu(&block, &expected, &layout, &what);
    }
}

/// One row times weights `[n][k]` is dot products along memory, for which nothing is packed, unless the weights are constants.
#[test]
fn a_row_times_an_operand_along_k_is_a_nest() {
    for (n, k, is_constant) in [(50, 37, false), (33, 256, false), (48, 64, true)] {
        let mut case = Case::new();
        let x = case.input(&[1, k]);
        let w = if is_constant { case.constant(&[n, k]) } else { case.input(&[n, k]) };
        let w = case.add(PrimOp::Transpose { perm: vec![1, 0] }, &[w]);
        let y = case.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
        let y = case.bias_relu(y, 1);
        let (block, expected, layout) = case.built(y);
        for target in [&X86_64_V4, &X86_64_V3] {
            let what = format!("{n} x {k}, constant {is_constant}");
            let Design { kernel, schedule } = designs(&block, target, 1).pop().expect("a template serves it");
            let expected_design = if is_constant { "contraction" } else { "row" };
            assert!(schedule.starts_with(expected_design), "{what}: {schedule}");
            assert_eq!(work(&block, target, 16).is_some(), is_constant, "{what}");
            compare(&expected, &case.run_kernel(&block, &kernel, &what), &layout, 1e-4, &what);
        }
    }
}

/// Weights of a convolution that are inputs, `[m][c r s]`, are read in the order of their memory, though K counts windows before channels.
#[test]
fn weights_of_convolutions_are_packed_in_the_order_of_memory() {
    for (channels, maps, window, groups) in [
        (16, 20, square_window(3, 1, 1, 1), 1),
        (5, 33, square_window(3, 1, 0, 1), 1),
        (24, 24, square_window(1, 1, 0, 1), 1),
        (12, 32, square_window(2, 2, 0, 1), 2),
    ] {
        let mut case = Case::new();
        let x = case.input(&[2, 7, 7, channels]);
        let x = case.add(PrimOp::Transpose { perm: vec![0, 3, 1, 2] }, &[x]);
        let kernel = window.kernel[0];
        let w = case.input(&[maps, channels / groups, kernel, kernel]);
        let what = format!("{channels} -> {maps} by {kernel}, {groups} groups");
        let y = case.add(PrimOp::Conv(ConvSpec { window, groups }), &[x, w]);
        let mut layouts: Vec<Layout> =
            case.graph.tensors().iter().map(|info| Layout::row_major(info.shape.rank())).collect();
        layouts[y.index()] = Layout::channels_last(4);
        let nodes: Vec<_> = case.graph.node_ids().collect();
        let block = fuse::build(&case.graph, &nodes, &[y], &|t| layouts[t.index()].clone(), "conv").unwrap();
        let packing = work(&block, &X86_64_V4, 16).expect("a contraction").packing;
        let elements = (maps * channels / groups * kernel * kernel) as u64;
        let odd = channels / groups * kernel * kernel % 2;
        assert_eq!(packing.gathered, maps as u64 * odd as u64, "{what}: {packing:?}");
        assert_eq!(packing.transposed, elements - packing.gathered, "{what}: {packing:?}");
        case.check(y, Some(layouts), &what);
    }
}

#[test]
fn long_epilogues_run_as_a_loop() {
    let mut case = Case::new();
    let x = case.input(&[19, 12]);
    let w = case.constant(&[12, 37]);
    let mut y = case.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
    for f in [UnaryFn::Tanh, UnaryFn::Exp, UnaryFn::Erf, UnaryFn::Sin] {
        y = case.add(PrimOp::Map(ScalarFn::Unary(f)), &[y]);
    }
    let other = case.input(&[19, 37]);
    let y = case.add(PrimOp::Map(ScalarFn::Binary(BinaryFn::Mul)), &[y, other]);
    case.check(y, None, "long epilogue");
}

#[test]
fn producers_are_fused_into_the_rows() {
    let mut case = Case::new();
    let x = case.input(&[21, 10]);
    let x = case.add(PrimOp::Map(ScalarFn::Unary(UnaryFn::Exp)), &[x]);
    let w = case.constant(&[10, 18]);
    let y = case.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
    case.check(y, None, "prologue");
}

#[test]
fn heads_are_merged_by_the_store() {
    let mut case = Case::new();
    let (p, v) = (case.input(&[2, 3, 5, 7]), case.input(&[2, 3, 7, 4]));
    let o = case.add(PrimOp::Contract(Contract::matmul(2)), &[p, v]);
    let o = case.add(PrimOp::Transpose { perm: vec![0, 2, 1, 3] }, &[o]);
    let o = case.add(PrimOp::Reshape { shape: [2, 5, 12].into() }, &[o]);
    case.check(o, None, "merged heads");
}

#[test]
fn convolutions() {
    let shapes = [
        (3, 16, 9, square_window(3, 1, 1, 1), 1),
        (5, 7, 8, square_window(3, 2, 1, 1), 1),
        (16, 33, 6, square_window(1, 1, 0, 1), 1),
        (4, 20, 7, square_window(1, 2, 0, 1), 1),
        (8, 12, 7, square_window(3, 1, 2, 2), 4),
        (2, 3, 11, square_window(7, 2, 3, 1), 1),
    ];
    for (channels, maps, size, window, groups) in shapes {
        for channels_last in [false, true] {
            let mut case = Case::new();
            let x = case.input(&[2, channels, size, size]);
            let kernel = window.kernel[0];
            let w = case.constant(&[maps, channels / groups, kernel, kernel]);
            let what = format!("{channels}->{maps} {window:?} groups {groups} channels-last {channels_last}");
            let y = case.add(PrimOp::Conv(ConvSpec { window: window.clone(), groups }), &[x, w]);
            let y = case.bias_relu(y, 1);
            let mut layouts: Vec<Layout> =
                case.graph.tensors().iter().map(|info| Layout::row_major(info.shape.rank())).collect();
            if channels_last {
                layouts[y.index()] = Layout::channels_last(4);
            }
            case.check(y, Some(layouts), &what);
        }
    }
}

/// Images and gradients of results have channels last. A gradient of weights, `[m, c r s]` by sums over `n h w`, reads both along channels, though
/// windows stand between them and the pixels; `wgmma` takes both operands MN-major.
#[test]
fn gradients_of_weights_read_channels_side_by_side() {
    let (images, size, channels, maps) = (2, 12, 16, 24);
    let mut case = Case::new();
    let (x, dy) =
        (case.half_input(&[images, size, size, channels]), case.half_input(&[images, size, size, maps]));
    let [data, taps] = [x, dy].map(|x| case.add(PrimOp::Transpose { perm: vec![3, 0, 1, 2] }, &[x]));
    let window = Window {
        kernel: vec![size; 2],
        strides: vec![1; 2],
        dilations: vec![1; 2],
        low: vec![1; 2],
        high: vec![1; 2],
    };
    let dw = case.add(PrimOp::Conv(ConvSpec { window, groups: 1 }), &[data, taps]);
    let (block, expected, layout) = case.built(dw);
    let form = gpu::form_of(&block).expect("a contraction");
    assert_eq!(gpu::access_bytes(&block, &form), [16, 16]);
    // Results of neighbouring columns, channels, are the windows of all maps apart: of each sector 30 bytes are not the result's.
    assert_eq!(gpu::unused_stored_bytes(&block, &form), 30 * (channels * maps * 9) as u64);
    let schedules = gpu::schedules(&block, &SM_90, OperandPrecision::F16, usize::MAX);
    let schedule = schedules.iter().find(|schedule| schedule.wgmma).expect("a schedule of wgmma");
    let kernel = gpu::lower(&block, schedule, OperandPrecision::F16).expect("its own schedule");
    let text = kernel.program.to_string();
    assert!(text.contains("transposed_a") && text.contains("transposed_b"), "{text}");
    case.check_on_gpu(&block, &expected, &layout, "gradient of weights");
}

/// A gradient of an image is a convolution by the reversed weights, which stay where they are: `[c r s, m]`, the sums over maps and window.
#[test]
fn gradients_of_images_read_reversed_weights() {
    let (images, size, channels, maps) = (2, 6, 16, 24);
    let mut case = Case::new();
    let (dy, w) = (case.half_input(&[images, size, size, maps]), case.half_input(&[channels, 3, 3, maps]));
    let [dy, w] = [dy, w].map(|x| case.add(PrimOp::Transpose { perm: vec![0, 3, 1, 2] }, &[x]));
    let reversed = PrimOp::Slice {
        starts: vec![0, 0, 2, 2],
        steps: vec![1, 1, -1, -1],
        sizes: vec![channels, maps, 3, 3],
    };
    let w = case.add(reversed, &[w]);
    let dx = case.add(PrimOp::Conv(ConvSpec { window: square_window(3, 1, 1, 1), groups: 1 }), &[dy, w]);
    let (block, expected, layout) = case.built(dx);
    let form = gpu::form_of(&block).expect("a contraction");
    assert_eq!(gpu::access_bytes(&block, &form), [16, 16]);
    assert_eq!(gpu::unused_stored_bytes(&block, &form), 0, "pixels are side by side");
    case.check_on_gpu(&block, &expected, &layout, "gradient of an image");
}

/// The pixels of a channels-first image are contiguous, its channels are not, so scratch is filled along pixels, with each element once
/// unless rows and terms are both several pixels apart. Blocks of rows may begin and end within a line of pixels.
#[test]
fn stems_are_filled_along_pixels() {
    let target = CpuTarget { l2_bytes: 8 << 10, ..X86_64_V4 };
    let shapes = [
        (2, 32, 1, 1, 1),
        (1, 32, 1, 1, 1),
        (1, 37, 0, 1, 1),
        (1, 43, 2, 2, 1),
        (1, 29, 2, 1, 3),
        (1, 41, 2, 2, 2),
        (2, 43, 0, 3, 2),
    ];
    for (batch, size, pad, stride, dilation) in shapes {
        let mut case = Case::new();
        let x = case.input(&[batch, 3, size, size]);
        let w = case.constant(&[20, 3, 3, 3]);
        let spec = ConvSpec { window: square_window(3, stride, pad, dilation), groups: 1 };
        let y = case.add(PrimOp::Conv(spec), &[x, w]);
        let y = case.bias_relu(y, 1);
        let mut layouts: Vec<Layout> =
            case.graph.tensors().iter().map(|info| Layout::row_major(info.shape.rank())).collect();
        layouts[y.index()] = Layout::channels_last(4);
        let nodes: Vec<_> = case.graph.node_ids().collect();
        let block = fuse::build(&case.graph, &nodes, &[y], &|t| layouts[t.index()].clone(), "stem").unwrap();
        let staging = staging(&block, &ContractionForm::of(&block).unwrap(), CpuMathUnit::Fma);
        let is_window = stride.min(dilation) == 1;
        assert_eq!(staging.rows, (!is_window).then_some(RowOrder::RowsInner), "{size} {pad}");
        assert_eq!(staging.window.is_some(), is_window, "{size} {pad}");
        let mut blocks = 0;
        let what = format!("stem {size} padded by {pad}");
        case.check_on(&[&target], y, Some(layouts), &what, |schedule| {
            blocks = blocks.max(schedule.block_rows)
        });
        assert!(blocks < batch * (size / stride - 3).pow(2), "{what}: one block is no test of their borders");
    }
}

/// Register tiles within lines of an image read it where it lies: no row is packed, and rows in the padding are left out of a tap. Lines of
/// one, two and several tiles, of two heights; taps that some line, row or tile has no pixels in; runs that chains and blocks of K cut.
#[test]
fn lines_of_images_are_read_where_they_lie() {
    let window = |kernel: [usize; 2],
                  strides: [usize; 2],
                  dilations: [usize; 2],
                  low: [usize; 2],
                  high: [usize; 2]| {
        let [kernel, strides, dilations, low, high] = [kernel, strides, dilations, low, high].map(Vec::from);
        Window { kernel, strides, dilations, low, high }
    };
    let three = square_window(3, 1, 1, 1);
    for (batch, channels, maps, [height, width], window) in [
        (1, 8, 40, [5, 14], three.clone()),
        (2, 20, 16, [4, 7], three.clone()),
        (1, 16, 33, [3, 28], three.clone()),
        (1, 9, 5, [3, 19], three.clone()),
        (1, 70, 17, [4, 35], three.clone()),
        (1, 260, 9, [3, 8], three),
        (1, 12, 32, [9, 13], square_window(3, 2, 1, 1)),
        (2, 16, 20, [8, 14], square_window(1, 2, 0, 1)),
        (1, 8, 16, [6, 9], square_window(5, 1, 2, 1)),
        (1, 8, 16, [9, 11], square_window(3, 1, 2, 2)),
        (1, 8, 16, [9, 11], square_window(3, 1, 4, 4)),
        (1, 16, 16, [4, 17], window([1, 7], [1, 1], [1, 1], [0, 3], [0, 3])),
        (1, 16, 16, [17, 4], window([7, 1], [1, 1], [1, 1], [3, 0], [3, 0])),
        (1, 8, 16, [6, 12], window([2, 4], [1, 3], [1, 1], [0, 1], [1, 5])),
        (1, 8, 16, [4, 6], window([3, 3], [1, 1], [1, 1], [0, 0], [0, 0])),
    ] {
        let mut case = Case::new();
        let x = case.input(&[batch, channels, height, width]);
        let w = case.constant(&[[maps, channels], [window.kernel[0], window.kernel[1]]].concat());
        let what = format!("{batch} of {channels}->{maps} of {height} x {width}, {window:?}");
        let y = case.add(PrimOp::Conv(ConvSpec { window, groups: 1 }), &[x, w]);
        let y = case.bias_relu(y, 1);
        case.graph.add_output("y", y);
        let layouts: Vec<Layout> = (case.graph.tensors().iter())
            .map(|info| match info.shape.rank() {
                4 => Layout::channels_last(4),
                rank => Layout::row_major(rank),
            })
            .collect();
        let values = case.inputs[0].to_f64();
        let expected = evaluate(&case.graph, &case.inputs, &EvalOptions::default()).expect("the oracle runs");
        // Inputs are given in the order of their layout.
        let shape = [batch, channels, height, width];
        let strides = layouts[x.index()].strides(&shape.to_vec().into());
        let mut stored = vec![0.0f32; values.len()];
        for (position, value) in values.into_iter().enumerate() {
            let (column, line) = (position % width, position / width % height);
            let (channel, image) =
                (position / (width * height) % channels, position / (width * height * channels));
            let at = image * strides[0] + channel * strides[1] + line * strides[2] + column * strides[3];
            stored[at] = value as f32;
        }
        case.inputs[0] = Tensor::from_vec(shape.to_vec(), stored);
        let nodes: Vec<_> = case.graph.node_ids().collect();
        // Weights are constants, which packing reads in row-major order.
        let layout_of = |t: TensorId| if t == w { Layout::row_major(4) } else { layouts[t.index()].clone() };
        let block = fuse::build(&case.graph, &nodes, &[y], &layout_of, "kernel")
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        for target in [&X86_64_V4, &X86_64_V3] {
            let small = CpuTarget { l1_bytes: 4 << 10, l2_bytes: 16 << 10, ..(*target).clone() };
            for target in [target, &small] {
                let form = ContractionForm::of(&block).unwrap_or_else(|error| panic!("{what}: {error}"));
                let staging = staging(&block, &form, CpuMathUnit::Fma);
                let extents = GemmShape::of(&block, &form);
                let all =
                    CpuContractionSchedule::candidates(extents, staging, target.lanes(4), target, usize::MAX);
                let of_lines: Vec<_> = all.iter().filter(|schedule| schedule.line_rows.is_some()).collect();
                assert!(!of_lines.is_empty(), "{what}: {staging:?}");
                for schedule in of_lines {
                    let what = format!("{what} {schedule:?}");
                    let kernel =
                        lower(&block, schedule, target).unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(validate_thread(&kernel.program), Vec::<String>::new(), "{what}");
                    let text = kernel.program.to_string();
                    assert!(!text.contains("window") && !text.contains("rows: "), "{what}: {text}");
                    let got = case.run_kernel(&block, &kernel, &what);
                    compare(&expected[0], &got, &layouts[y.index()], 1e-4, &what);
                }
            }
        }
    }
}
