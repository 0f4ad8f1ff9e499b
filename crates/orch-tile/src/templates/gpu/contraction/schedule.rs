//! The schedule space and the model that orders it.

use crate::block::BlockProgram;
use crate::target::GpuTarget;
use crate::templates::contraction::{Extents, Form};
use crate::templates::gpu::Factors;
use crate::thread_team::{MAX_CLUSTER, Product, WARP};
use orch_ir::DType;

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
    pub split: usize,
}

/// What multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Engine {
    /// Multiply-adds of the type of the sum.
    Scalar(DType),
    /// Matrix instructions that add in f32.
    Matrix(Product),
}

impl Engine {
    /// What multiplies a contraction whose sum has this type; `None` if nothing does.
    pub fn of(sum: DType, factors: Factors) -> Option<Self> {
        match (sum, factors) {
            (DType::F32, Factors::F32) => Some(Engine::Scalar(DType::F32)),
            (DType::F32, Factors::Tf32) => Some(Engine::Matrix(Product::Tf32)),
            (DType::F32, Factors::F16) | (DType::F16, _) => Some(Engine::Matrix(Product::F16)),
            (DType::F32, Factors::Bf16) | (DType::BF16, _) => Some(Engine::Matrix(Product::Bf16)),
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

    /// Multiply-adds per cycle of a multiprocessor, as far as kernels of this template reach.
    fn rate(self) -> f64 {
        match self {
            Engine::Scalar(DType::F32) => 110.0,
            Engine::Scalar(_) => 30.0,
            Engine::Matrix(Product::Tf32) => 420.0,
            Engine::Matrix(_) => 1100.0,
        }
    }
}

/// Elements between rows of a tile in shared memory beyond its width: the places that a warp reads at once then lie
/// in different banks.
pub(super) fn padding(engine: Engine, k_inner: bool) -> usize {
    match engine {
        Engine::Matrix(Product::Tf32) if !k_inner => 8,
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

    /// Bytes of shared memory, at most.
    pub fn shared_bytes(&self, engine: Engine) -> usize {
        let pad = padding(engine, true).max(padding(engine, false));
        let factor = (self.block_m + self.block_n) * (self.block_k + pad) + 2 * self.block_k * pad;
        (self.stages * factor * engine.factor_type().size_bytes()).max(self.sum_bytes(engine))
    }

    fn sum_bytes(&self, engine: Engine) -> usize {
        self.block_m * (self.block_n + SUM_PADDING) * engine.sum_type().size_bytes()
    }

    /// 32-bit registers of a thread, about.
    fn registers(&self, engine: Engine) -> usize {
        let words = engine.sum_type().size_bytes() / 4;
        let sums = self.block_m * self.block_n / self.threads() * words;
        let fragments = match engine {
            Engine::Scalar(_) => 4 * words * (self.warp_m() / 4 + self.warp_n() / 8),
            Engine::Matrix(_) => self.warp_m() / 4 + self.warp_n() / 4,
        };
        sums + fragments + 48
    }

    /// Tasks that a multiprocessor holds at once.
    fn resident(&self, engine: Engine, target: &GpuTarget) -> usize {
        let by_shared = target.multiprocessor_shared_bytes / (self.shared_bytes(engine) + 1024);
        let by_threads = target.threads / self.threads();
        let by_registers = target.registers / (self.registers(engine).next_multiple_of(8) * self.threads());
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
            && (self.split == 1 || target.has_clusters)
            && self.block_m.is_multiple_of(self.split)
    }

    /// Modelled cycles of the whole grid.
    fn cycles(&self, extents: Extents, engine: Engine, target: &GpuTarget) -> f64 {
        let Extents { batch, m, n, k } = extents;
        let tiles = batch * m.div_ceil(self.block_m) * n.div_ceil(self.block_n);
        let tasks = tiles * self.split;
        let steps = k.div_ceil(self.block_k).div_ceil(self.split).max(1) as f64;
        let resident = self.resident(engine, target);
        let per_multiprocessor = tasks.div_ceil(target.multiprocessors);
        let bytes = ((self.block_m + self.block_n) * self.block_k * engine.factor_type().size_bytes()) as f64;
        let products = (self.block_m * self.block_n * self.block_k) as f64;
        // Small warp tiles read shared memory more often than they multiply.
        let reads = bytes * (self.warps_m.min(4) as f64 * 0.5 + self.warps_n.min(4) as f64 * 0.5);
        let work =
            (products / engine.rate()).max(bytes / L2_BYTES_PER_CYCLE).max(reads / SHARED_BYTES_PER_CYCLE);
        let warps = self.threads() / WARP;
        // One task alone: steps wait for memory that is not far enough ahead, and few warps leave units idle.
        let latency = MEMORY_LATENCY / (self.stages - 1) as f64;
        let idle = (8.0 / warps as f64).max(1.0).sqrt();
        let alone = (work * idle).max(latency).max(STEP_CYCLES);
        let waves = per_multiprocessor.div_ceil(resident) as f64;
        let together = per_multiprocessor as f64 * work;
        let epilogue = (self.block_m * self.block_n / self.split) as f64 / self.threads() as f64 * 12.0;
        let merge = if self.split > 1 { 900.0 + 150.0 * self.split as f64 } else { 0.0 };
        let fixed = MEMORY_LATENCY + 600.0 + epilogue + merge;
        (waves * (steps * alone + fixed)).max(steps * together + fixed)
    }
}

/// Elements between rows of the sums in shared memory beyond the tile's width.
pub(super) const SUM_PADDING: usize = 8;
const MEMORY_LATENCY: f64 = 900.0;
/// Least cycles of a step: barriers, addresses, copies.
const STEP_CYCLES: f64 = 120.0;
const L2_BYTES_PER_CYCLE: f64 = 40.0;
const SHARED_BYTES_PER_CYCLE: f64 = 100.0;

/// Tiles of tasks and how warps share them: `(block_m, block_n, warps_m, warps_n)`.
const TILES: [(usize, usize, usize, usize); 14] = [
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

/// Terms of a step, by the size of an element, and stages.
const STEPS: [(usize, usize); 3] = [(64, 3), (64, 4), (32, 4)];
const SCALAR_STEPS: [(usize, usize); 3] = [(16, 3), (16, 2), (32, 2)];
const TF32_STEPS: [(usize, usize); 3] = [(32, 3), (16, 4), (32, 2)];

/// At most `limit` schedules, the preferred one first; none if the template does not serve the program.
pub fn schedules(
    block: &BlockProgram,
    target: &GpuTarget,
    factors: Factors,
    limit: usize,
) -> Vec<ContractionSchedule> {
    let Ok(form) = Form::of(block) else { return Vec::new() };
    let Some(engine) = Engine::of(block.exprs.dtype(form.a), factors) else { return Vec::new() };
    let extents = Extents::of(block, &form);
    let mut ranked: Vec<(f64, ContractionSchedule)> =
        space(engine, target).map(|schedule| (schedule.cycles(extents, engine, target), schedule)).collect();
    ranked.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    ranked.into_iter().take(limit).map(|(_, schedule)| schedule).collect()
}

/// Every schedule that fits the target.
pub(super) fn space(engine: Engine, target: &GpuTarget) -> impl Iterator<Item = ContractionSchedule> + '_ {
    let steps: &[(usize, usize)] = match engine {
        Engine::Scalar(_) => &SCALAR_STEPS,
        Engine::Matrix(Product::Tf32) => &TF32_STEPS,
        Engine::Matrix(_) => &STEPS,
    };
    let splits = [1, 2, 4, MAX_CLUSTER];
    TILES
        .into_iter()
        .flat_map(move |(block_m, block_n, warps_m, warps_n)| {
            steps.iter().flat_map(move |&(block_k, stages)| {
                splits.into_iter().map(move |split| ContractionSchedule {
                    block_m,
                    block_n,
                    block_k,
                    warps_m,
                    warps_n,
                    stages,
                    split,
                })
            })
        })
        .filter(move |schedule| schedule.fits(engine, target))
}
