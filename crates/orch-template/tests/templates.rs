//! The injective and row templates at adversarial shapes: every schedule and target through the interpreter of
//! thread programs, which checks bounds, races and undefined scratch, against the reference interpreter.

mod support;

use orch_ir::{BinaryFn, DType, PrimOp, ReduceOp, UnaryFn};
use orch_template::{AxisBlock, LaneAxis, NestSchedule, contraction, gpu, injective, row};
use orch_thread::target::{X86_64_V3, X86_64_V4};
use support::{G, cases};

#[test]
fn elementwise() {
    cases::elementwise(&|g| g.check_lowering());
}

#[test]
fn mixed_types_and_broadcasts() {
    cases::mixed_types_and_broadcasts(&|g| g.check_lowering());
}

#[test]
fn moved_elements() {
    cases::moved_elements(&|g| g.check_lowering());
}

#[test]
fn transposes() {
    cases::transposes(&|g| g.check_lowering());
}

#[test]
fn concatenations_and_gathers() {
    cases::concatenations_and_gathers(&|g| g.check_lowering());
}

#[test]
fn softmax_and_normalisation() {
    cases::softmax_and_normalisation(&|g| g.check_lowering());
}

#[test]
fn every_reduction_of_every_type() {
    cases::every_reduction_of_every_type(&|g| g.check_lowering());
}

#[test]
fn long_sums_are_several_chains() {
    cases::long_sums_are_several_chains(&|g| g.check_lowering());
}

/// A reduction of columns.
fn columns(op: ReduceOp, shape: [usize; 2]) -> G {
    let mut g = G::new();
    let x = g.input(DType::F32, &shape);
    let y = g.reduce(op, x, &[0]);
    g.output(y);
    g
}

/// Reductions with a stride of a page or more compute as many vectors together as there are registers for.
#[test]
fn columns_of_long_rows() {
    for shape in [[40, 1024], [33, 1100], [7, 5000]] {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::ArgMin { last: true }] {
            columns(op, shape).check_lowering();
        }
    }
    for (target, length, vectors) in
        [(&X86_64_V4, 1024, 16), (&X86_64_V3, 1024, 8), (&X86_64_V4, 1023, 4), (&X86_64_V3, 1023, 4)]
    {
        let block = columns(ReduceOp::Sum, [100, length]).build().expect("a kernel");
        let schedule = row::schedules(&block, target).swap_remove(0);
        assert_eq!(schedule.vectors, vectors, "{length} on {}", target.name);
    }
}

/// Functions of four rows each of 40 channels, written as 40 planes of 1024 elements: vectors along the channels would write each element to another
/// line of the same cache set. Planes of 1000 elements begin in different sets.
#[test]
fn planes_of_one_cache_set_are_written_one_by_one() {
    const CHANNELS: usize = 40;
    const ROWS: usize = 64;
    let widened = |pixels: usize| {
        let mut g = G::new();
        let x = g.f32(&[ROWS, CHANNELS]);
        let select = |g: &mut G, first: usize| {
            let rows = (0..pixels).map(|pixel| ((pixel + first) / 13).min(ROWS - 1)).collect();
            g.op(PrimOp::Select { positions: vec![Some(rows), None] }, &[x])
        };
        let mut sum = select(&mut g, 0);
        for first in 1..4 {
            let other = select(&mut g, 40 * first);
            sum = g.binary(BinaryFn::Add, sum, other);
        }
        let tanh = g.unary(UnaryFn::Tanh, sum);
        let planes = g.transpose(tanh, &[1, 0]);
        g.output(planes);
        let block = g.build().expect("a kernel");
        // Axes are [channels, pixels].
        injective::schedules(&block, &X86_64_V4)[0].vector
    };
    assert_eq!([1024, 1000].map(widened), [Some(1), Some(0)]);
}

#[test]
fn stages_of_inner_axes() {
    cases::stages_of_inner_axes(&|g| g.check_lowering());
}

#[test]
fn group_normalisation() {
    cases::group_normalisation(&|g| g.check_lowering());
}

#[test]
fn pooling() {
    cases::pooling(&|g| g.check_lowering());
}

#[test]
fn depthwise_and_transposed_convolutions() {
    cases::depthwise_and_transposed_convolutions(&|g| g.check_lowering());
}

#[test]
fn random_chains() {
    cases::random_chains(&|g| g.check_lowering());
}

/// These texts are keys in records of measured times and in caches: a change makes existing entries useless.
#[test]
fn keys_of_schedules_are_stable() {
    let keys = [
        contraction::CpuContractionSchedule {
            rows: 7,
            vectors: 4,
            block_rows: 14,
            block_panels: 2,
            task_rows: 7,
            block_k: 256,
            rows_outer: false,
            line_rows: None,
        }
        .to_string(),
        contraction::CpuMathUnit::Bf16Dot.to_string(),
        NestSchedule {
            vector: Some(1),
            lanes: 8,
            vectors: 2,
            block: Some(AxisBlock { axis: 0, points: 4 }),
            tiled: true,
            work_item_cycles: 20_000,
        }
        .to_string(),
        gpu::contraction::GpuContractionSchedule {
            block_m: 128,
            block_n: 64,
            block_k: 32,
            warps_m: 4,
            warps_n: 1,
            stages: 3,
            split_k: 2,
            wgmma: true,
            tma: true,
        }
        .to_string(),
        gpu::attention::AttentionSchedule { row_warps: 2, key_warps: 4 }.to_string(),
        gpu::pointwise::PointwiseSchedule {
            vector: Some(2),
            lanes: 4,
            block: None,
            threads: 256,
            vectors: 2,
        }
        .to_string(),
        gpu::row::RowSchedule {
            vector: Some((1, LaneAxis::Reduced)),
            lanes: 8,
            row_threads: 32,
            rows: 4,
            cluster: 1,
            keep: true,
            loads_in_flight: 2,
        }
        .to_string(),
        gpu::transpose::TransposeSchedule {
            source: 64,
            vector: 32,
            load_lanes: 8,
            store_lanes: 4,
            threads: 128,
        }
        .to_string(),
    ];
    assert_eq!(
        keys,
        [
            "rows=7 vectors=4 block_rows=14 block_panels=2 task_rows=7 block_k=256",
            "pairs",
            "vector_axis=1 block_axis=0 block=4 lanes=8 vectors=2 task_cycles=20000 tiled",
            "tile=128x64x32 warps=4x1 stages=3 split_k=2 wgmma tma",
            "row_warps=2 key_warps=4",
            "vector_axis=2 lanes=4 threads=256 vectors=2",
            "vector_axis=1 along=k lanes=8 threads=32x4 cluster=1 loads=2 keep",
            "tile=64x32 load_lanes=8 store_lanes=4 threads=128",
        ]
    );
}
