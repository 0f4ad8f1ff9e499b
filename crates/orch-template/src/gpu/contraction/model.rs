//! The performance model that orders schedules: modelled cycles of the whole grid.

use super::schedule::{GpuContractionSchedule, Major};
use super::space::WIDE_N;
use super::unit::MathUnit;
use crate::contraction::GemmShape;
use orch_ir::DType;
use orch_thread::cta::{MmaType, SWIZZLE_ROW, WARP_GROUP, WARP_GROUP_ROWS};
use orch_thread::target::GpuTarget;

/// Bytes per cycle of DRAM, to all SMs.
const DRAM_BYTES_PER_CYCLE: f64 = 2450.0;

/// A contraction as the model sees it.
#[derive(Clone, Copy)]
pub(super) struct Problem {
    pub extents: GemmShape,
    pub unit: MathUnit,
    /// How `b` lies in memory.
    pub b_major: Major,
    /// Whether an operand is computed on its way to shared memory.
    pub is_computed: bool,
    /// Elements of `a`, `b` and the result in memory. A convolution's windows overlap: `a` has fewer than `m * k`.
    pub elements: usize,
}

/// Cycles that an iteration of 64 elements of the K dimension takes longer if an operand is computed for tensor cores: its loads are
/// synchronous. Measured on an H100, whose products of an activation and a gate take 1.6 us a step.
const COMPUTED: f64 = 2200.0;

/// Modelled cycles of the whole grid, launch included: the largest of the times of multiplying, L2 and DRAM.
pub(super) fn cycles(schedule: &GpuContractionSchedule, problem: Problem, target: &GpuTarget) -> f64 {
    let Problem { extents, unit, b_major, is_computed, elements } = problem;
    let GemmShape { batch, m, n, k } = extents;
    let &GpuContractionSchedule { block_m, block_n, block_k, warps_m, warps_n, split_k, .. } = schedule;
    let speed = GemmSpeed::of(unit, schedule);
    let ctas = batch * m.div_ceil(block_m) * n.div_ceil(block_n) * split_k;
    let iterations = k.div_ceil(block_k).div_ceil(split_k).max(1) as f64;
    let per_sm = ctas.div_ceil(target.sms);
    let resident = schedule.ctas_per_sm(unit, target);
    let waves = per_sm.div_ceil(resident) as f64;
    let concurrent = per_sm.min(resident) as f64;

    let size = unit.operand_type().size_bytes();
    let bytes = ((block_m + block_n) * block_k * size) as f64;
    let products = (block_m * block_n * block_k) as f64;
    // Warps that share rows or columns of a tile read the operand again.
    let reads = 16.0 * (warps_m as f64 / block_m as f64 + warps_n as f64 / block_n as f64);
    let multiplying = products / speed.rate * (1.0 + speed.rereads * reads);
    let loading = bytes / speed.bytes;
    let work = match unit {
        MathUnit::Fma(_) => multiplying.max(loading),
        // Tensor cores read shared memory while loads write it.
        MathUnit::TensorCore(_) if schedule.wgmma => {
            let reads = warps_m / WARP_GROUP * (WARP_GROUP_ROWS + block_n) * block_k * size;
            (multiplying + loading).max((reads as f64 + bytes) / speed.shared)
        }
        MathUnit::TensorCore(_) => multiplying + loading,
    };
    let alone = (work + speed.iteration).max(speed.latency / schedule.prefetch_distance() as f64);
    let is_waiting = is_computed && matches!(unit, MathUnit::TensorCore(_));
    let waiting = if is_waiting { COMPUTED * block_k as f64 / SWIZZLE_ROW as f64 } else { 0.0 };
    let iteration = alone.max(concurrent * work + 0.3 * speed.iteration) + waiting;
    let results = (block_m * block_n / split_k / schedule.threads()) as f64;
    let merge = if split_k > 1 { speed.merge + speed.merge_part * split_k as f64 } else { 0.0 };
    let filling = speed.fixed + speed.result * results + merge;
    let computing = waves * (iterations * iteration + filling);
    let from_l2 = ctas as f64 * iterations * bytes / speed.l2 + filling;
    let touched = (elements * size) as f64;
    // A CTA that is alone on its SM leaves DRAM idle while it fills its pipeline, in each wave.
    let idle = if resident == 1 { waves } else { 1.0 };
    let from_dram = touched / dram_rate(schedule, b_major) + idle * filling;
    speed.launch + computing.max(from_l2).max(from_dram)
}

/// Bytes per cycle that come from DRAM. If `b` is MN-major, `[k, n]`, a CTA reads a strip of `block_n` elements of each of its
/// lines. Eight products `[8, 4096] x [4096, 4096]` in f16, each multiplied by another such matrix, on an H200: 122 us where
/// threads load strips of 128 or 256 columns, 127 of 64, 132 to 134 by TMA, 137 to 139 with `mma.sync`.
fn dram_rate(schedule: &GpuContractionSchedule, b_major: Major) -> f64 {
    let share = match b_major {
        Major::K => 1.0,
        Major::Mn if !schedule.wgmma => 0.88,
        Major::Mn if schedule.tma => 0.92,
        Major::Mn if schedule.block_n < WIDE_N => 0.96,
        Major::Mn => 1.0,
    };
    share * DRAM_BYTES_PER_CYCLE
}

/// Multiply-adds of 16-bit operands per cycle of an SM that `wgmma` reaches; 2048 is the hardware's peak. Where threads load, the fit
/// below alone says 2708, which let loads by threads win where K is long: squares of 4096 on an H100 take 192 us by TMA and 248 by
/// threads.
const TENSOR_CORE_RATE: f64 = 1981.0;

/// Parameters of one kind of kernel, in cycles, fitted to kernels measured on an H200: 3289 of 25 matrix products in f16 by TMA
/// and `wgmma`, 2479 whose threads load, and 2080 of 13 in f32. The schedule that the model prefers is 2 to 4 % slower than the
/// best on average, and the best of the first eight less than 1 %.
struct GemmSpeed {
    /// Multiply-adds per cycle of an SM.
    rate: f64,
    /// Cost of reading operands from shared memory again, relative to multiplying.
    rereads: f64,
    /// Bytes per cycle that a CTA's loads bring.
    bytes: f64,
    /// Bytes per cycle of an SM's shared memory.
    shared: f64,
    /// Bytes per cycle of L2, to all SMs.
    l2: f64,
    /// Of an iteration of the main loop beside its work.
    iteration: f64,
    /// From a load's issue to its arrival.
    latency: f64,
    /// Of a CTA beside its main loop.
    fixed: f64,
    /// Of the epilogue, for each result of a thread.
    result: f64,
    /// Of split-K's reduction over a cluster.
    merge: f64,
    /// The same for each CTA of the cluster.
    merge_part: f64,
    /// Of the kernel's launch.
    launch: f64,
}

impl GemmSpeed {
    fn of(unit: MathUnit, schedule: &GpuContractionSchedule) -> Self {
        let wgmma = Self {
            rate: TENSOR_CORE_RATE,
            rereads: 0.0,
            bytes: 104.0,
            shared: 113.0,
            l2: 6521.0,
            iteration: 62.0,
            latency: 1317.0,
            fixed: 659.0,
            result: 32.0,
            merge: 0.0,
            merge_part: 1743.0,
            launch: 1977.0,
        };
        let tma = Self {
            rate: TENSOR_CORE_RATE,
            rereads: 0.0,
            bytes: 211.0,
            shared: 128.0,
            l2: 7851.0,
            iteration: 93.0,
            latency: 1800.0,
            fixed: 1820.0,
            result: 8.9,
            merge: 1879.0,
            merge_part: 910.0,
            launch: 972.0,
        };
        let fma = Self {
            rate: 103.0,
            rereads: 0.06,
            bytes: 35.2,
            shared: 113.0,
            l2: 2034.0,
            iteration: 199.0,
            latency: 1294.0,
            fixed: 0.0,
            result: 309.0,
            merge: 3107.0,
            merge_part: 2131.0,
            launch: 3230.0,
        };
        match unit {
            MathUnit::TensorCore(_) if schedule.tma => tma,
            MathUnit::TensorCore(_) if schedule.wgmma => wgmma,
            MathUnit::TensorCore(MmaType::Tf32) => {
                Self { rate: 865.0, rereads: 2.9, iteration: 0.0, ..wgmma }
            }
            MathUnit::TensorCore(_) => Self { rate: 1729.0, rereads: 2.9, iteration: 0.0, ..wgmma },
            MathUnit::Fma(DType::F32) => fma,
            MathUnit::Fma(_) => Self { rate: 30.0, ..fma },
        }
    }
}
