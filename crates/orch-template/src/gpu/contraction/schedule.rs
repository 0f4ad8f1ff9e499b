//! The schedule space and the model that orders it.

use super::lower::takes_boxes;
use super::multiply::{LANE_COLUMNS, LANE_ROWS};
use super::operand::{Along, natural_along};
use crate::contraction::{ContractionForm, GemmShape};
use crate::gpu::varied;
use orch_compute::block::BlockProgram;
use orch_ir::DType;
use orch_thread::OperandPrecision;
use orch_thread::cta::{MAX_CLUSTER, MmaType, SWIZZLE_ROW, WARP, WARP_GROUP};
use orch_thread::target::GpuTarget;
use orch_thread::tma::MBARRIER_BYTES;
use std::fmt;

/// How a contraction is tiled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ContractionSchedule {
    /// Rows of a task's tile.
    pub block_m: usize,
    /// Columns of a task's tile.
    pub block_n: usize,
    /// Terms of a step.
    pub block_k: usize,
    /// Warps below one another.
    pub warps_m: usize,
    /// Warps beside one another.
    pub warps_n: usize,
    /// Steps whose factors are in shared memory at once.
    pub stages: usize,
    /// Tasks of a cluster that share the terms of a tile.
    pub split_k: usize,
    /// Whether groups of four warps multiply whole tiles of shared memory, instead of each warp fragments.
    pub wgmma: bool,
    /// Whether the copy engine brings the factors of products of tiles, instead of the threads.
    pub tma: bool,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for ContractionSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block_m, block_n, block_k, warps_m, warps_n, stages, split_k, wgmma, tma } = self;
        write!(
            f,
            "tile={block_m}x{block_n}x{block_k} warps={warps_m}x{warps_n} stages={stages} split_k={split_k}"
        )?;
        f.write_str(if *wgmma { " wgmma" } else { "" })?;
        f.write_str(if *tma { " tma" } else { "" })
    }
}

/// What multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Engine {
    /// Multiply-adds of the type of the sum.
    Scalar(DType),
    /// Matrix instructions that add in f32.
    Matrix(MmaType),
}

impl Engine {
    /// What multiplies a contraction; `None` if nothing does.
    pub fn of(block: &BlockProgram, form: &ContractionForm, factors: OperandPrecision) -> Option<Self> {
        let sum = block.exprs.dtype(form.a);
        match (sum, factors.within(block)) {
            (DType::F32, OperandPrecision::F32) => Some(Engine::Scalar(DType::F32)),
            (DType::F32, OperandPrecision::Tf32) => Some(Engine::Matrix(MmaType::Tf32)),
            (DType::F32, OperandPrecision::F16) | (DType::F16, _) => Some(Engine::Matrix(MmaType::F16)),
            (DType::F32, OperandPrecision::Bf16) | (DType::BF16, _) => Some(Engine::Matrix(MmaType::Bf16)),
            (DType::F64 | DType::I32 | DType::I64 | DType::U32 | DType::U64, _) => Some(Engine::Scalar(sum)),
            _ => None,
        }
    }

    /// Type of the factors in shared memory.
    pub fn factor_type(self) -> DType {
        match self {
            Engine::Scalar(dtype) => dtype,
            Engine::Matrix(product) => product.dtype(),
        }
    }

    /// Type of the sums in registers and shared memory.
    pub fn sum_type(self) -> DType {
        match self {
            Engine::Scalar(dtype) => dtype,
            Engine::Matrix(_) => DType::F32,
        }
    }
}

/// Elements between rows of a tile in shared memory beyond its width: the places that a warp reads at once then lie
/// in different banks.
pub(super) fn padding(engine: Engine, k_inner: bool) -> usize {
    match engine {
        Engine::Matrix(MmaType::Tf32) if !k_inner => 8,
        _ => 16 / engine.factor_type().size_bytes(),
    }
}

impl ContractionSchedule {
    /// Threads of a task.
    pub fn threads(&self) -> usize {
        WARP * self.warps_m * self.warps_n
    }

    /// Rows of a warp's tile.
    pub fn warp_m(&self) -> usize {
        self.block_m / self.warps_m
    }

    /// Columns of a warp's tile.
    pub fn warp_n(&self) -> usize {
        self.block_n / self.warps_n
    }

    /// Steps that copies run ahead of products. Where threads copy, products of tiles still read the stage before.
    pub fn ahead(&self) -> usize {
        self.stages - 1 - usize::from(self.wgmma && !self.tma)
    }

    /// The direction in which elements of a factor's tiles have to be neighbours, if they have to be in one.
    pub(super) fn along(&self, factor: usize) -> Option<Along> {
        let is_asked = self.wgmma && (factor == 0 || !self.block_n.is_multiple_of(SWIZZLE_ROW));
        is_asked.then_some(Along::Terms)
    }

    /// Bytes of shared memory, at most.
    pub fn shared_bytes(&self, engine: Engine) -> usize {
        if self.wgmma {
            let factor = (self.block_m + self.block_n) * self.block_k;
            let tiles = self.stages * factor * engine.factor_type().size_bytes();
            return self.with_sums(tiles, engine) + self.stages * MBARRIER_BYTES;
        }
        let pad = padding(engine, true).max(padding(engine, false));
        let factor = (self.block_m + self.block_n) * (self.block_k + pad) + 2 * self.block_k * pad;
        self.with_sums(self.stages * factor * engine.factor_type().size_bytes(), engine)
    }

    /// Sums take the place of factors, or a place beside them if other tasks give them.
    fn with_sums(&self, factor_bytes: usize, engine: Engine) -> usize {
        let sums = self.sum_bytes(engine);
        if self.split_k > 1 { factor_bytes + sums } else { factor_bytes.max(sums) }
    }

    /// True if it is worth trying where the copy engine brings factors: short sums end before its first box comes, and threads
    /// read strips (see [`Self::memory_rate`]) faster than it does. Six stages of 64 columns, and four of 128, leave room for two tasks.
    fn is_beside_boxes(&self) -> bool {
        let stages = if self.block_n < WIDE { 6 } else { 4 };
        (self.block_k, self.stages, self.split_k) == (SWIZZLE_ROW, stages, 1)
    }

    fn sum_bytes(&self, engine: Engine) -> usize {
        self.block_m * (self.block_n + SUM_PADDING) * engine.sum_type().size_bytes()
    }

    /// 32-bit registers of a thread, about.
    fn registers(&self, engine: Engine) -> usize {
        let words = engine.sum_type().size_bytes() / 4;
        let sums = self.block_m * self.block_n / self.threads() * words;
        let fragments = match engine {
            Engine::Scalar(_) => {
                self.terms_at_once(engine)
                    * words
                    * (self.warp_m() / LANE_ROWS + self.warp_n() / LANE_COLUMNS)
            }
            Engine::Matrix(_) if self.wgmma => 0,
            Engine::Matrix(_) => self.warp_m() / 4 + self.warp_n() / 4,
        };
        sums + fragments + if self.wgmma { 40 } else { 48 }
    }

    /// Terms whose factors a thread has in registers at once on scalar units: 16 bytes of each, or half as many beside
    /// many sums.
    pub(super) fn terms_at_once(&self, engine: Engine) -> usize {
        const MANY_SUMS: usize = 128;
        let terms = 16 / engine.factor_type().size_bytes();
        if self.block_m * self.block_n / self.threads() < MANY_SUMS { terms } else { terms / 2 }
    }

    /// Tasks that a multiprocessor holds at once.
    fn resident(&self, engine: Engine, target: &GpuTarget) -> usize {
        let by_shared = target.sm_shared_bytes / (self.shared_bytes(engine) + 1024);
        let by_threads = target.sm_threads / self.threads();
        let by_registers =
            target.sm_registers / (self.registers(engine).next_multiple_of(8) * self.threads());
        by_shared.min(by_threads).min(by_registers)
    }

    fn fits(&self, engine: Engine, target: &GpuTarget) -> bool {
        let tile = match engine {
            Engine::Scalar(_) => (4, 8),
            Engine::Matrix(_) => (16, 8),
        };
        self.warp_m().is_multiple_of(tile.0)
            && self.warp_n().is_multiple_of(tile.1)
            && self.shared_bytes(engine) <= target.shared_bytes
            && self.registers(engine) <= 232
            && self.resident(engine, target) > 0
            && (self.split_k == 1 || target.has_clusters)
            && self.block_m.is_multiple_of(self.split_k)
    }

    /// Bytes per cycle that come from memory, by the direction in which elements of the second factor are neighbours: if they
    /// are along its rows, a task reads a strip of each of its lines. Eight times 8 rows by 4096 x 4096 in f16, and again by as
    /// much, on an H200: 122 us where threads copy strips of 128 or 256 columns, 127 of 64, 132 to 134 in boxes, 137 to 139 with
    /// products of fragments.
    fn memory_rate(&self, along: Along) -> f64 {
        let share = match along {
            Along::Terms => 1.0,
            Along::Rows if !self.wgmma => 0.88,
            Along::Rows if self.tma => 0.92,
            Along::Rows if self.block_n < WIDE => 0.96,
            Along::Rows => 1.0,
        };
        share * MEMORY_BYTES_PER_CYCLE
    }

    /// Modelled cycles of the whole grid, launch included.
    fn cycles(&self, (extents, along): (GemmShape, Along), engine: Engine, target: &GpuTarget) -> f64 {
        let GemmShape { batch, m, n, k } = extents;
        let speed = Speed::of(engine, self);
        let tasks = batch * m.div_ceil(self.block_m) * n.div_ceil(self.block_n) * self.split_k;
        let steps = k.div_ceil(self.block_k).div_ceil(self.split_k).max(1) as f64;
        let per_multiprocessor = tasks.div_ceil(target.sms);
        let resident = self.resident(engine, target);
        let waves = per_multiprocessor.div_ceil(resident) as f64;
        let beside = per_multiprocessor.min(resident) as f64;

        let size = engine.factor_type().size_bytes();
        let bytes = ((self.block_m + self.block_n) * self.block_k * size) as f64;
        let products = (self.block_m * self.block_n * self.block_k) as f64;
        // Warps that share a tile read its factors again.
        let reads =
            16.0 * (self.warps_m as f64 / self.block_m as f64 + self.warps_n as f64 / self.block_n as f64);
        let multiplying = products / speed.rate * (1.0 + speed.rereads * reads);
        let copying = bytes / speed.bytes;
        let work = match engine {
            Engine::Scalar(_) => multiplying.max(copying),
            // Matrix units read shared memory while copies write it.
            Engine::Matrix(_) if self.wgmma => {
                let reads =
                    self.warps_m / WARP_GROUP * (16 * WARP_GROUP + self.block_n) * self.block_k * size;
                (multiplying + copying).max((reads as f64 + bytes) / speed.shared)
            }
            Engine::Matrix(_) => multiplying + copying,
        };
        let alone = (work + speed.step).max(speed.latency / self.ahead() as f64);
        let step = alone.max(beside * work + 0.3 * speed.step);
        let results = (self.block_m * self.block_n / self.split_k / self.threads()) as f64;
        let merge = if self.split_k > 1 { speed.merge + speed.merge_part * self.split_k as f64 } else { 0.0 };
        let filling = speed.fixed + speed.result * results + merge;
        let computing = waves * (steps * step + filling);
        let from_cache = tasks as f64 * steps * bytes / speed.cache + filling;
        let touched = (batch * (m * k + n * k + m * n) * size) as f64;
        // Memory waits for tasks that are alone on a multiprocessor, in each wave.
        let waits = if resident == 1 { waves } else { 1.0 };
        let from_memory = touched / self.memory_rate(along) + waits * filling;
        speed.launch + computing.max(from_cache).max(from_memory)
    }
}

/// What the model knows of a kind of kernel, in cycles, fitted to kernels measured on an H200: 3289 of 25 matrix products in
/// f16 whose factors come in boxes, 2479 whose threads copy, and 2080 of 13 in f32. The first choice is 2 to 4 % slower than
/// the best on average, and the best of the first eight less than 1 %.
struct Speed {
    /// Multiply-adds per cycle of a multiprocessor.
    rate: f64,
    /// What reading factors again costs, relative to multiplying.
    rereads: f64,
    /// Bytes per cycle that a task's copies bring.
    bytes: f64,
    /// Bytes per cycle of shared memory, and of the second-level cache to all multiprocessors.
    shared: f64,
    cache: f64,
    /// Of a step beside its work.
    step: f64,
    /// From a copy's start to its end.
    latency: f64,
    /// Of a task beside its steps.
    fixed: f64,
    /// Of a result of a thread.
    result: f64,
    /// Of adding up the sums of a cluster, and of each of its tasks.
    merge: f64,
    merge_part: f64,
    /// Of the kernel.
    launch: f64,
}

impl Speed {
    fn of(engine: Engine, schedule: &ContractionSchedule) -> Self {
        let matrix = Self {
            rate: 2708.0,
            rereads: 0.0,
            bytes: 104.0,
            shared: 113.0,
            cache: 6521.0,
            step: 62.0,
            latency: 1317.0,
            fixed: 659.0,
            result: 32.0,
            merge: 0.0,
            merge_part: 1743.0,
            launch: 1977.0,
        };
        let boxes = Self {
            rate: 1981.0,
            rereads: 0.0,
            bytes: 211.0,
            shared: 128.0,
            cache: 7851.0,
            step: 93.0,
            latency: 1800.0,
            fixed: 1820.0,
            result: 8.9,
            merge: 1879.0,
            merge_part: 910.0,
            launch: 972.0,
        };
        let scalar = Self {
            rate: 103.0,
            rereads: 0.06,
            bytes: 35.2,
            shared: 113.0,
            cache: 2034.0,
            step: 199.0,
            latency: 1294.0,
            fixed: 0.0,
            result: 309.0,
            merge: 3107.0,
            merge_part: 2131.0,
            launch: 3230.0,
        };
        match engine {
            Engine::Matrix(_) if schedule.tma => boxes,
            Engine::Matrix(_) if schedule.wgmma => matrix,
            Engine::Matrix(MmaType::Tf32) => Self { rate: 865.0, rereads: 2.9, step: 0.0, ..matrix },
            Engine::Matrix(_) => Self { rate: 1729.0, rereads: 2.9, step: 0.0, ..matrix },
            Engine::Scalar(DType::F32) => scalar,
            Engine::Scalar(_) => Self { rate: 30.0, ..scalar },
        }
    }
}

const MEMORY_BYTES_PER_CYCLE: f64 = 2450.0;

/// Columns from which on a tile's lines are more than those of a box.
const WIDE: usize = 2 * SWIZZLE_ROW;

/// Elements between rows of the sums in shared memory beyond the tile's width.
pub(super) const SUM_PADDING: usize = 8;
/// Tiles of tasks and how warps share them: `(block_m, block_n, warps_m, warps_n)`.
const TILES: [Tile; 14] = [
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

/// The same for scalar units. Threads of 8 x 8 and 16 x 8 results read each factor least often, which pays where copies of
/// single elements take their share of instructions.
const SCALAR_TILES: [Tile; 14] = [
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

/// `(block_m, block_n, warps_m, warps_n)`.
type Tile = (usize, usize, usize, usize);

/// Terms of a step, by the size of an element, and stages.
const STEPS: [(usize, usize); 2] = [(64, 4), (32, 4)];
const SCALAR_STEPS: [(usize, usize); 3] = [(16, 3), (16, 2), (32, 2)];
const TF32_STEPS: [(usize, usize); 3] = [(32, 3), (16, 4), (32, 2)];

/// Tiles of tasks whose warp groups, of 64 rows each, multiply whole tiles.
const GROUP_TILES: [(usize, usize); 15] = [
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
/// Terms of their steps, and stages: of equal ones the most.
const GROUP_STEPS: [(usize, usize); 6] = [(128, 6), (64, 6), (128, 4), (64, 4), (128, 3), (64, 3)];

/// True for a contraction of a type that something multiplies.
pub fn is_served(block: &BlockProgram, factors: OperandPrecision) -> bool {
    ContractionForm::of(block).is_ok_and(|form| Engine::of(block, &form, factors).is_some())
}

/// True for a contraction with one row or one column.
pub fn is_thin(block: &BlockProgram) -> bool {
    ContractionForm::of(block).is_ok_and(|form| {
        let extents = GemmShape::of(block, &form);
        extents.m == 1 || extents.n == 1
    })
}

/// At most `limit` schedules, the preferred one first; none if the template does not serve the program.
pub fn schedules(
    block: &BlockProgram,
    target: &GpuTarget,
    factors: OperandPrecision,
    limit: usize,
) -> Vec<ContractionSchedule> {
    let Ok(form) = ContractionForm::of(block) else { return Vec::new() };
    let Some(engine) = Engine::of(block, &form, factors) else { return Vec::new() };
    let extents = GemmShape::of(block, &form);
    let mut space: Vec<ContractionSchedule> = space(engine, target).collect();
    // A task has no more rows than there are by a whole warp group.
    let spare = 16 * WARP_GROUP;
    space.retain(|schedule| schedule.block_m <= spare || schedule.block_m < extents.m + spare);
    // What multiplies no whole tiles is modelled as it was fitted, whatever the direction.
    let mut streamed = Along::Terms;
    if space.iter().any(|schedule| schedule.wgmma) {
        let along = natural_along(block, &form, engine);
        streamed = along[1];
        let is_right = |schedule: &ContractionSchedule, factor: usize| {
            schedule.along(factor).is_none_or(|asked| along[factor] == asked)
        };
        space.retain(|schedule| is_right(schedule, 0) && is_right(schedule, 1));
        let with_boxes = space.iter().find(|schedule| schedule.tma);
        let has_boxes = with_boxes.is_some_and(|&schedule| takes_boxes(block, form, engine, schedule));
        space.retain(|schedule| {
            !schedule.wgmma || schedule.tma == has_boxes || has_boxes && schedule.is_beside_boxes()
        });
    }
    let mut ranked: Vec<(f64, ContractionSchedule)> = (space.into_iter())
        .map(|schedule| (schedule.cycles((extents, streamed), engine, target), schedule))
        .collect();
    ranked.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let ranked = ranked.into_iter().map(|(_, schedule)| schedule);
    // With matrix units those that differ in stages and steps only are of one kind.
    let kind = |schedule: &ContractionSchedule| {
        let ContractionSchedule { block_m, block_n, warps_m, split_k: split, tma: boxes, .. } = *schedule;
        matches!(engine, Engine::Matrix(_)).then_some((block_m, block_n, warps_m, split, boxes))
    };
    varied(ranked, kind).take(limit).collect()
}

/// Every schedule that fits the target.
pub(super) fn space(engine: Engine, target: &GpuTarget) -> impl Iterator<Item = ContractionSchedule> + '_ {
    let steps: &[(usize, usize)] = match engine {
        Engine::Scalar(_) => &SCALAR_STEPS,
        Engine::Matrix(MmaType::Tf32) => &TF32_STEPS,
        // Where products of tiles are faster, the other ones are not worth many schedules.
        Engine::Matrix(_) if target.has_wgmma => &STEPS[..1],
        Engine::Matrix(_) => &STEPS,
    };
    let splits = [1, 2, 4, MAX_CLUSTER];
    let tiles = if matches!(engine, Engine::Scalar(_)) { SCALAR_TILES } else { TILES };
    (tiles.into_iter())
        .flat_map(move |(block_m, block_n, warps_m, warps_n)| {
            steps.iter().flat_map(move |&(block_k, stages)| {
                splits.into_iter().map(move |split| ContractionSchedule {
                    block_m,
                    block_n,
                    block_k,
                    warps_m,
                    warps_n,
                    stages,
                    split_k: split,
                    wgmma: false,
                    tma: false,
                })
            })
        })
        .chain(group_space(engine, target))
        .filter(move |schedule| schedule.fits(engine, target))
}

/// Every schedule with products of whole tiles, where the target has them.
fn group_space(engine: Engine, target: &GpuTarget) -> impl Iterator<Item = ContractionSchedule> + use<> {
    let is_half = matches!(engine, Engine::Matrix(MmaType::F16 | MmaType::Bf16));
    let tiles: &[(usize, usize)] = if is_half && target.has_wgmma { &GROUP_TILES } else { &[] };
    tiles.iter().flat_map(|&(block_m, block_n)| {
        let steps = GROUP_STEPS.into_iter().filter(move |&(block_k, _)| is_step(block_m, block_n, block_k));
        let ways = steps.flat_map(|step| [(step, true), (step, false)]);
        ways.flat_map(move |((block_k, stages), boxes)| {
            // Tasks that share no terms may run side by side, with fewer stages each.
            let splits: &[usize] = if stages == 3 { &[1] } else { &[1, 2, 4, MAX_CLUSTER] };
            splits.iter().map(move |&split| ContractionSchedule {
                block_m,
                block_n,
                block_k,
                warps_m: block_m / 16,
                warps_n: 1,
                stages,
                split_k: split,
                wgmma: true,
                tma: boxes,
            })
        })
    })
}

/// True if a tile of whole tiles may take so many terms in a step. Long steps save small ones waiting.
fn is_step(block_m: usize, block_n: usize, block_k: usize) -> bool {
    block_k == SWIZZLE_ROW || block_m == 16 * WARP_GROUP && (64..=128).contains(&block_n)
}
