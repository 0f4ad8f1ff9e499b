//! The pointwise, transpose and row templates for GPUs, at adversarial shapes: through the interpreter of thread
//! programs, which checks bounds, races, divergence and undefined scratch, against the reference interpreter.

mod support;

use orch_compute::Layout;
use orch_ir::*;
use orch_template::gpu::{design, pointwise, row, transpose, unused_bytes};
use orch_thread::OperandPrecision;
use orch_thread::parse_thread;
use orch_thread::passes::evict_first::read_once;
use orch_thread::target::{GPU_TARGETS, SM_90};
use support::gpu::Sample;
use support::{G, cases};

#[test]
fn elementwise() {
    cases::elementwise(&|g| g.check_gpu(Sample(1)));
}

#[test]
fn mixed_types_and_broadcasts() {
    cases::mixed_types_and_broadcasts(&|g| g.check_gpu(Sample(1)));
}

#[test]
fn moved_elements() {
    cases::moved_elements(&|g| g.check_gpu(Sample(1)));
}

#[test]
fn concatenations_and_gathers() {
    cases::concatenations_and_gathers(&|g| g.check_gpu(Sample(1)));
}

#[test]
fn softmax_and_normalisation() {
    cases::softmax_and_normalisation(&|g| g.check_gpu(Sample(1)));
}

#[test]
fn every_reduction_of_every_type() {
    cases::every_reduction_of_every_type(&|g| g.check_gpu(Sample(0)));
}

#[test]
fn long_sums_are_several_chains() {
    cases::long_sums_are_several_chains(&|g| g.check_gpu(Sample(1)));
}

#[test]
fn stages_of_inner_axes() {
    cases::stages_of_inner_axes(&|g| g.check_gpu(Sample(1)));
}

#[test]
fn group_normalisation() {
    cases::group_normalisation(&|g| g.check_gpu(Sample(1)));
}

#[test]
fn pooling() {
    cases::pooling(&|g| g.check_gpu(Sample(1)));
}

#[test]
fn depthwise_and_transposed_convolutions() {
    cases::depthwise_and_transposed_convolutions(&|g| g.check_gpu(Sample(0)));
}

#[test]
fn random_chains() {
    cases::random_chains(&|g| g.check_gpu(Sample(1)));
}

/// Of operands in two layouts one is read an element of each sector at a time, unless a tile of it is transposed in shared memory.
#[test]
fn layouts_that_differ_leave_parts_of_sectors_unused() {
    let shape = [4, 64, 8, 8];
    let mut g = G::new();
    let (a, b) = (g.f32(&shape), g.f32(&shape));
    let product = g.binary(BinaryFn::Mul, a, b);
    let sums = g.reduce(ReduceOp::Sum, product, &[0, 2, 3]);
    g.output(sums);
    let unused = |g: &G, channels_last: &[TensorId]| {
        let layout = |tensor: TensorId| match channels_last.contains(&tensor) {
            true => Layout::channels_last(4),
            false => Layout::row_major(g.0.shape(tensor).rank()),
        };
        unused_bytes(&g.build_with(&layout).expect("a kernel"))
    };
    assert_eq!(unused(&g, &[]), 0.0);
    let elems: usize = shape.iter().product();
    // An SM for each few of 64 channels reads short runs of each pixel's: as much again and more.
    assert!(unused(&g, &[a, b]) > 4.0 * elems as f64);
    // Four bytes of a sector of 32.
    assert_eq!(unused(&g, &[b]), 28.0 * elems as f64);
    let mut g = G::new();
    let (a, b) = (g.f32(&shape), g.f32(&shape));
    let sum = g.binary(BinaryFn::Add, a, b);
    g.output(sum);
    assert_eq!(unused(&g, &[b]), 0.0);
    // A second result in the layout of `b` is not transposed.
    let twice = g.binary(BinaryFn::Add, b, b);
    g.output(twice);
    assert_eq!(unused(&g, &[b]), 0.0);
    assert_eq!(unused(&g, &[b, twice]), 28.0 * elems as f64);
}

/// Types of tensors in models.
const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::I64];

fn cast(g: &mut G, dtype: DType, x: TensorId) -> TensorId {
    if g.0.dtype(x) == dtype { x } else { g.op(PrimOp::Map(ScalarFn::Cast(dtype)), &[x]) }
}

/// A function of an f32 tensor, with its input and its result in another type.
fn through_f32(dtype: DType, dims: &[usize], f: impl Fn(&mut G, TensorId) -> TensorId) -> G {
    let mut g = G::new();
    let x = g.input(dtype, dims);
    let x = cast(&mut g, DType::F32, x);
    let y = f(&mut g, x);
    let y = cast(&mut g, dtype, y);
    g.output(y);
    g
}

#[test]
fn pointwise_kernels() {
    for dtype in DTYPES {
        for dims in [&[1][..], &[127], &[1031], &[5, 7, 8], &[3, 1, 65]] {
            through_f32(dtype, dims, |g, x| g.unary(UnaryFn::Neg, x)).check_gpu(Sample(6));
        }
    }
}

#[test]
fn transposed_kernels() {
    for dtype in [DType::F32, DType::F16, DType::I64, DType::U8] {
        for dims in [[1, 33, 65], [2, 31, 8], [1, 64, 64], [3, 1, 7], [1, 40, 128]] {
            let mut g = G::new();
            let x = g.input(dtype, &dims);
            let y = g.transpose(x, &[0, 2, 1]);
            let z = g.input(dtype, &[dims[0], dims[2], dims[1]]);
            let y = g.binary(BinaryFn::Max, y, z);
            g.output(y);
            g.check_gpu(Sample(6));
        }
    }
}

#[test]
fn row_kernels() {
    for dims in [[3, 1], [1, 5], [5, 33], [2, 128], [9, 260]] {
        for axis in [0, 1] {
            through_f32(DType::F16, &dims, |g, x| g.softmax(x, &[axis])).check_gpu(Sample(6));
            let mut g = G::new();
            let x = g.f32(&dims);
            let y = g.reduce(ReduceOp::ArgMax { last: axis == 0 }, x, &[axis]);
            g.output(y);
            g.check_gpu(Sample(6));
        }
    }
}

#[test]
fn long_rows_and_columns() {
    let cases = [
        (DType::F16, [1, 5000], [1]),
        (DType::F32, [2, 4099], [1]),
        (DType::F32, [4096, 3], [0]),
        (DType::BF16, [1030, 40], [0]),
        (DType::I64, [301, 24], [1]),
    ];
    for (dtype, dims, axes) in cases {
        through_f32(dtype, &dims, |g, x| {
            let norm = g.normalize(x, &axes);
            g.softmax(norm, &axes)
        })
        .check_gpu(Sample(1));
        let mut g = G::new();
        let x = g.input(dtype, &dims);
        let sum = g.reduce(ReduceOp::Max, x, &axes);
        let first = g.reduce(ReduceOp::ArgMin { last: false }, x, &axes);
        g.output(sum).output(first);
        g.check_gpu(Sample(1));
    }
}

#[test]
fn a_long_row() {
    let mut g = G::new();
    let x = g.f32(&[1, 9000]);
    let max = g.reduce(ReduceOp::Max, x, &[1]);
    let max = g.spread(max, x, &[1]);
    let shifted = g.binary(BinaryFn::Sub, x, max);
    let exp = g.unary(UnaryFn::Exp, shifted);
    let sum = g.reduce(ReduceOp::Sum, exp, &[1]);
    let log = g.unary(UnaryFn::Log, sum);
    g.output(log);
    g.check_gpu(Sample(6));
}

#[test]
fn a_tall_column() {
    let mut g = G::new();
    let x = g.f32(&[1100, 36]);
    let last = g.reduce(ReduceOp::ArgMax { last: true }, x, &[0]);
    let sum = g.reduce(ReduceOp::Sum, x, &[0]);
    g.output(last).output(sum);
    g.check_gpu(Sample(6));
}

/// CTAs of a cluster read at least four bytes of each other.
#[test]
fn small_elements_are_reduced_without_clusters() {
    for (dtype, may_cluster) in [(DType::U8, false), (DType::F16, true)] {
        let mut g = G::new();
        let x = g.input(dtype, &[1, 100_000]);
        let max = g.reduce(ReduceOp::Max, x, &[1]);
        g.output(max);
        let schedules = row::schedules(&g.build().expect("a kernel"), &SM_90);
        assert_eq!(schedules.iter().any(|schedule| schedule.cluster > 1), may_cluster, "{dtype}");
    }
}

#[test]
fn extrema_of_nan_and_ties() {
    for count in [3, 70, 300] {
        for last in [false, true] {
            for axis in [0, 1] {
                let dims = if axis == 1 { [5, count] } else { [count, 5] };
                let value = |at: usize| match at % 7 {
                    _ if at.is_multiple_of(11) && at / count != 2 => f32::NAN,
                    3 => f32::NEG_INFINITY,
                    5 => f32::INFINITY,
                    other => (other % 3) as f32,
                };
                let mut g = G::new();
                let x = g.0.add_constant(Tensor::from_vec(dims, (0..5 * count).map(value).collect()));
                let most = g.reduce(ReduceOp::ArgMax { last }, x, &[axis]);
                let least = g.reduce(ReduceOp::ArgMin { last }, x, &[axis]);
                g.output(most).output(least);
                g.check_gpu(Sample(1));
            }
        }
    }
}

/// Graphs with shapes of real models.
fn large() -> Vec<(&'static str, G)> {
    let mut all = Vec::new();
    for (name, dims) in [("rows", [8192, 1024]), ("short", [128, 768]), ("long rows", [16, 100_000])] {
        all.push((name, through_f32(DType::F16, &dims, |g, x| g.softmax(x, &[1]))));
        all.push((name, through_f32(DType::F32, &dims, |g, x| g.normalize(x, &[1]))));
        if dims[0] > 16 {
            all.push(("columns", through_f32(DType::F32, &dims, |g, x| g.reduce(ReduceOp::Sum, x, &[0]))));
        }
        all.push(("elementwise", through_f32(DType::F16, &dims, |g, x| g.unary(UnaryFn::Tanh, x))));
        let mut g = G::new();
        let x = g.input(DType::F16, &dims);
        let y = g.transpose(x, &[1, 0]);
        g.output(y);
        all.push(("transpose", g));
    }
    let mut g = G::new();
    let x = g.f32(&[1, 96, 56, 56]);
    let w = g.constant(&[96, 1, 3, 3], 5);
    let window = support::square_window(3, 1, 1, 1);
    let y = g.op(PrimOp::Conv(ConvSpec { window, groups: 96 }), &[x, w]);
    g.output(y);
    all.push(("depthwise", g));
    all
}

/// A convolution of images `[n, c, side, side]` to `maps`, in so many groups.
fn convolution([n, c, side]: [usize; 3], maps: usize, groups: usize, window: Window) -> G {
    let mut g = G::new();
    let x = g.f32(&[n, c, side, side]);
    let sizes: Vec<usize> = [maps, c / groups].into_iter().chain(window.kernel.clone()).collect();
    let w = g.constant(&sizes, 5);
    let y = g.op(PrimOp::Conv(ConvSpec { window, groups }), &[x, w]);
    g.output(y);
    g
}

/// Channels last, but for constants.
fn channels_last(g: &G) -> impl Fn(TensorId) -> Layout + '_ {
    |tensor| match (g.0.constant(tensor), g.0.shape(tensor).rank()) {
        (Some(_), rank) => Layout::row_major(rank),
        (None, rank) => Layout::channels_last(rank),
    }
}

/// Threads of depthwise convolutions compute neighbouring pixels, which share elements and weights, not those of several images, which
/// share weights alone; blocks divide the images.
#[test]
fn windows_of_neighbouring_pixels_are_reduced_together() {
    for (n, c, side, kernel) in [(64, 128, 14, 5), (64, 64, 28, 3), (128, 8, 112, 3)] {
        let g = convolution([n, c, side], c, c, support::square_window(kernel, 1, kernel / 2, 1));
        let block = g.build_with(&channels_last(&g)).expect("a kernel");
        let schedule = pointwise::schedules(&block, &SM_90).swap_remove(0);
        let shared = schedule.block.expect("a block");
        assert!(shared.axis > 1 && shared.points > 2 && side % shared.points == 0, "{kernel}: {schedule}");
    }
}

/// Of many pixels of few channels threads compute all maps, each by itself: the tiles of a contraction would end before they have begun.
#[test]
fn short_products_of_many_rows_are_for_threads() {
    let window = || support::square_window(3, 2, 1, 1);
    for (images, template) in [(1, "contraction"), (32, "pointwise")] {
        let g = convolution([images, 3, 182], 8, 1, window());
        let design = design(&g.build().expect("a kernel"), &SM_90, OperandPrecision::F16).expect("a design");
        assert!(design.schedule.starts_with(template), "{images}: {}", design.schedule);
    }
}

/// Sizes of schedule spaces do not grow with shapes.
#[test]
fn schedule_spaces_are_small() {
    for (name, g) in large() {
        let block = g.build_with(&channels_last(&g)).expect("a kernel");
        for target in GPU_TARGETS {
            let sizes = [
                pointwise::schedules(&block, target).len(),
                transpose::schedules(&block, target).len(),
                row::schedules(&block, target).len(),
            ];
            println!("{name} on {}: pointwise, transpose, row {sizes:?}", target.name);
            assert!(sizes.iter().all(|&size| size <= 200), "{name}: {sizes:?}");
        }
    }
}

/// The preferred designs access memory in vectors of 16 bytes where shapes allow it and there are enough threads.
#[test]
fn large_kernels_use_wide_accesses() {
    for (name, g) in large() {
        let block = g.build().expect("a kernel");
        let design = design(&block, &SM_90, OperandPrecision::F32).expect("a design");
        let template = match name {
            "elementwise" | "depthwise" => "pointwise",
            "transpose" => "transpose",
            _ => "row",
        };
        assert!(design.schedule.starts_with(template), "{name}: {}\n{block}", design.schedule);
        let elems: usize = g.0.inputs.iter().map(|(_, tensor)| g.0.shape(*tensor).elems()).sum();
        // Long rows are kept in registers by a cluster with few elements per thread.
        if elems > 1 << 20 && name != "long rows" {
            assert!(
                design.schedule.contains("lanes=4") || design.schedule.contains("lanes=8"),
                "{name}: {}",
                design.schedule
            );
        }
    }
}

/// A sum of columns, or a product of a row with a matrix, in a type.
fn column_sums(dtype: DType, rows: usize, columns: usize, is_product: bool) -> G {
    let mut g = G::new();
    let x = g.input(dtype, &[rows, columns]);
    let y = if is_product {
        let row = g.input(dtype, &[1, rows]);
        g.op(PrimOp::Contract(Contract::matmul(0)), &[row, x])
    } else {
        g.reduce(ReduceOp::Sum, x, &[0])
    };
    g.output(y);
    g
}

/// The partial results of a column are combined by other threads than those that computed them, and read from the CTAs
/// of a cluster through DSMEM.
#[test]
fn columns_of_all_heights() {
    for (rows, columns) in
        [(1, 16), (37, 8), (61, 40), (130, 1), (257, 24), (301, 136), (1031, 24), (1100, 64)]
    {
        for dtype in [DType::F16, DType::F32] {
            column_sums(dtype, rows, columns, false).check_gpu(Sample(5));
            column_sums(dtype, rows, columns, true).check_gpu(Sample(3));
        }
        through_f32(DType::F16, &[rows, columns], |g, x| g.normalize(x, &[0])).check_gpu(Sample(2));
    }
}

/// Sums of neighbouring columns keep every SM busy, with enough loads in flight.
#[test]
fn columns_keep_memory_busy() {
    let (sms, threads) = (SM_90.sms, SM_90.sm_threads);
    for (rows, columns, is_product) in [
        (1024, 4096, false),
        (8192, 8192, false),
        (4096, 4096, true),
        (4096, 11008, true),
        (11008, 4096, true),
    ] {
        let block = column_sums(DType::F16, rows, columns, is_product).build().expect("a kernel");
        let schedule = row::schedules(&block, &SM_90).swap_remove(0);
        let program = row::lower(&block, &schedule).expect("its own schedule").program;
        let cta = program.cta.as_ref().expect("a cta");
        assert!(cta.loads_ahead, "{program}");
        // The caches hold the smallest matrix.
        let is_streamed = !read_once(&program).is_empty();
        assert_eq!(is_streamed, 2 * rows * columns >= 16 << 20, "{program}");
        let text = program.to_string();
        assert_eq!(parse_thread(&text).map(|parsed| parsed.to_string()), Ok(text));
        let tasks = program.tasks;
        let what = format!("{rows} x {columns}: {tasks} CTAs of {schedule:?}");
        assert_eq!(schedule.lanes, 8, "{what}");
        assert!(10 * tasks >= 9 * sms, "{what}");
        let resident = (tasks * schedule.threads()).min(sms * threads) / sms;
        let in_flight = resident * schedule.loads_in_flight * schedule.lanes * DType::F16.size_bytes();
        println!("{what}: {in_flight} bytes in flight");
        assert!(in_flight >= 32 << 10, "{what}: {in_flight} bytes in flight");
    }
}
