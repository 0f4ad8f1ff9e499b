//! The schedule space: every tile size, pipeline depth and split of K that is tried, independent of the problem's shape.

use super::schedule::GpuContractionSchedule;
use super::unit::MathUnit;
use orch_thread::cta::{MAX_CLUSTER, MmaType, SWIZZLE_ROW, WARP_GROUP_ROWS};
use orch_thread::target::GpuTarget;

/// Columns of a tile from which on one of its lines has more than one swizzle panel.
pub(super) const WIDE_N: usize = 2 * SWIZZLE_ROW;

/// Tiles of `mma.sync`: `(block_m, block_n, warps_m, warps_n)`.
const MMA_TILES: [(usize, usize, usize, usize); 14] = [
    (128, 128, 2, 4),
    (128, 128, 2, 2),
    (128, 64, 2, 2),
    (64, 128, 2, 2),
    (64, 64, 2, 2),
    (64, 64, 2, 4),
    (64, 32, 2, 2),
    (32, 64, 2, 2),
    (32, 64, 1, 4),
    (32, 32, 2, 2),
    (16, 64, 1, 4),
    (16, 128, 1, 4),
    (128, 32, 4, 1),
    (256, 64, 4, 2),
];

/// Tiles of FMA units: `(block_m, block_n, warps_m, warps_n)`. Threads of 8 x 8 and 16 x 8 results read each operand least
/// often, which pays where loads of single elements take their share of instructions.
const FMA_TILES: [(usize, usize, usize, usize); 14] = [
    (256, 128, 4, 2),
    (128, 128, 2, 2),
    (128, 128, 4, 2),
    (128, 64, 4, 1),
    (64, 128, 2, 2),
    (64, 64, 2, 1),
    (64, 64, 2, 2),
    (64, 32, 2, 2),
    (32, 64, 2, 2),
    (32, 64, 1, 4),
    (32, 32, 2, 2),
    (16, 64, 1, 4),
    (16, 128, 1, 4),
    (128, 32, 4, 1),
];

/// `(block_k, stages)` of `mma.sync` with 16-bit operands.
const MMA_STAGES: [(usize, usize); 2] = [(64, 4), (32, 4)];
/// `(block_k, stages)` of FMA units.
const FMA_STAGES: [(usize, usize); 3] = [(16, 3), (16, 2), (32, 2)];
/// `(block_k, stages)` of `mma.sync` with tf32 operands.
const TF32_STAGES: [(usize, usize); 3] = [(32, 3), (16, 4), (32, 2)];

/// Tiles of `wgmma`, `(block_m, block_n)`: a warp group for each 64 rows.
const WGMMA_TILES: [(usize, usize); 15] = [
    (64, 16),
    (64, 32),
    (64, 64),
    (64, 96),
    (64, 128),
    (64, 256),
    (128, 32),
    (128, 64),
    (128, 128),
    (128, 192),
    (128, 256),
    (192, 128),
    (192, 256),
    (256, 64),
    (256, 128),
];
/// `(block_k, stages)` of `wgmma`; of schedules that are modelled alike the most stages come first.
const WGMMA_STAGES: [(usize, usize); 6] = [(128, 6), (64, 6), (128, 4), (64, 4), (128, 3), (64, 3)];

/// Every schedule that fits the target.
pub(super) fn space(unit: MathUnit, target: &GpuTarget) -> impl Iterator<Item = GpuContractionSchedule> + '_ {
    let pipelines: &[(usize, usize)] = match unit {
        MathUnit::Fma(_) => &FMA_STAGES,
        MathUnit::TensorCore(MmaType::Tf32) => &TF32_STAGES,
        // `wgmma` is faster: few schedules of `mma.sync` are worth trying beside it.
        MathUnit::TensorCore(_) if target.has_wgmma => &MMA_STAGES[..1],
        MathUnit::TensorCore(_) => &MMA_STAGES,
    };
    let splits = [1, 2, 4, MAX_CLUSTER];
    let tiles = if matches!(unit, MathUnit::Fma(_)) { FMA_TILES } else { MMA_TILES };
    (tiles.into_iter())
        .flat_map(move |(block_m, block_n, warps_m, warps_n)| {
            pipelines.iter().flat_map(move |&(block_k, stages)| {
                splits.into_iter().map(move |split_k| GpuContractionSchedule {
                    block_m,
                    block_n,
                    block_k,
                    warps_m,
                    warps_n,
                    stages,
                    split_k,
                    wgmma: false,
                    tma: false,
                })
            })
        })
        .chain(wgmma_space(unit, target))
        .filter(move |schedule| schedule.fits(unit, target))
}

/// Every schedule with `wgmma`, where the target has it.
fn wgmma_space(unit: MathUnit, target: &GpuTarget) -> impl Iterator<Item = GpuContractionSchedule> + use<> {
    let is_16_bit = matches!(unit, MathUnit::TensorCore(MmaType::F16 | MmaType::Bf16));
    let tiles: &[(usize, usize)] = if is_16_bit && target.has_wgmma { &WGMMA_TILES } else { &[] };
    tiles.iter().flat_map(|&(block_m, block_n)| {
        let pipelines =
            WGMMA_STAGES.into_iter().filter(move |&(block_k, _)| allows_block_k(block_m, block_n, block_k));
        let ways = pipelines.flat_map(|pipeline| [(pipeline, true), (pipeline, false)]);
        ways.flat_map(move |((block_k, stages), tma)| {
            // CTAs without split-K may share an SM, with fewer stages each.
            let splits: &[usize] = if stages == 3 { &[1] } else { &[1, 2, 4, MAX_CLUSTER] };
            splits.iter().map(move |&split_k| GpuContractionSchedule {
                block_m,
                block_n,
                block_k,
                warps_m: block_m / 16,
                warps_n: 1,
                stages,
                split_k,
                wgmma: true,
                tma,
            })
        })
    })
}

/// True if a tile of `wgmma` may have this `block_k`: long iterations save small tiles waits at barriers.
fn allows_block_k(block_m: usize, block_n: usize, block_k: usize) -> bool {
    block_k == SWIZZLE_ROW || block_m == WARP_GROUP_ROWS && (64..=128).contains(&block_n)
}
