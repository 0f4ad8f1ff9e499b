//! What a schedule of a contraction fixes, and the shared memory, registers and threads that it takes.

use super::unit::MathUnit;
use orch_thread::cta::{MmaType, SWIZZLE_ROW, WARP};
use orch_thread::target::{CtaResources, GpuTarget};
use orch_thread::tma::MBARRIER_BYTES;
use std::fmt;

/// How a contraction is tiled, loaded and multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GpuContractionSchedule {
    /// Rows of a CTA's tile.
    pub block_m: usize,
    /// Columns of a CTA's tile.
    pub block_n: usize,
    /// Length along K of an iteration of the main loop.
    pub block_k: usize,
    /// Warps of a CTA along M.
    pub warps_m: usize,
    /// Warps of a CTA along N.
    pub warps_n: usize,
    /// Pipeline stages: iterations whose operand tiles are in shared memory at once.
    pub stages: usize,
    /// CTAs of a cluster that share the K dimension of a tile.
    pub split_k: usize,
    /// Whether warp groups multiply operand tiles in shared memory (`wgmma`), instead of each warp fragments in registers
    /// (`mma.sync`).
    pub wgmma: bool,
    /// Whether TMA loads the operands of `wgmma`, instead of the threads.
    pub tma: bool,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for GpuContractionSchedule {
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

/// The dimension along which the elements of an operand's tile are consecutive: `K-major` or `MN-major`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Major {
    /// `[row, k]`, where rows are those of `a`, or the columns of `b`.
    K,
    /// `[k, row]`.
    Mn,
}

/// Elements between rows of the accumulator tile in shared memory beyond its width, against bank conflicts.
pub(super) const ACC_PADDING: usize = 8;

/// Rows of a warp that its lanes cover side by side on FMA units.
pub(super) const FMA_LANES_M: usize = 4;
/// Columns of a warp that its lanes cover side by side on FMA units.
pub(super) const FMA_LANES_N: usize = 8;

/// Elements between lines of an operand tile in shared memory beyond their length: the places that a warp reads at once are
/// then in different banks. Tiles of `wgmma` are swizzled instead.
pub(super) fn padding(unit: MathUnit, major: Major) -> usize {
    match unit {
        MathUnit::TensorCore(MmaType::Tf32) if major == Major::Mn => 8,
        _ => 16 / unit.operand_type().size_bytes(),
    }
}

impl GpuContractionSchedule {
    /// A schedule for block programs that are only examined: its tile sizes decide nothing.
    pub(super) const EXAMINE: Self = Self {
        block_m: 16,
        block_n: 16,
        block_k: 16,
        warps_m: 1,
        warps_n: 1,
        stages: 2,
        split_k: 1,
        wgmma: false,
        tma: false,
    };

    /// Threads of a CTA.
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

    /// Iterations that loads run ahead of the multiplication. Where threads load, the asynchronous `wgmma` of the iteration
    /// before still reads its stage, which is therefore not overwritten yet.
    pub fn prefetch_distance(&self) -> usize {
        self.stages - 1 - usize::from(self.wgmma && !self.tma)
    }

    /// The major dimension that `wgmma` requires of an operand's tiles (0 is `a`, 1 is `b`), if it does: they may be MN-major if
    /// their rows fill whole swizzled lines.
    pub(super) fn required_major(&self, operand: usize) -> Option<Major> {
        let rows = [self.block_m, self.block_n][operand];
        (self.wgmma && !rows.is_multiple_of(SWIZZLE_ROW)).then_some(Major::K)
    }

    /// Bytes of shared memory of a CTA, at most.
    pub fn shared_bytes(&self, unit: MathUnit) -> usize {
        if self.wgmma {
            let stage_elems = (self.block_m + self.block_n) * self.block_k;
            let tiles = self.stages * stage_elems * unit.operand_type().size_bytes();
            return self.with_acc_tile(tiles, unit) + self.stages * MBARRIER_BYTES;
        }
        let pad = padding(unit, Major::K).max(padding(unit, Major::Mn));
        let stage_elems = (self.block_m + self.block_n) * (self.block_k + pad) + 2 * self.block_k * pad;
        self.with_acc_tile(self.stages * stage_elems * unit.operand_type().size_bytes(), unit)
    }

    /// Bytes of operand tiles and the accumulator tile. The latter reuses the memory of the former, unless other CTAs of the
    /// cluster write to it while this one still multiplies.
    fn with_acc_tile(&self, operand_bytes: usize, unit: MathUnit) -> usize {
        let acc = self.acc_bytes(unit);
        if self.split_k > 1 { operand_bytes + acc } else { operand_bytes.max(acc) }
    }

    /// Bytes of the accumulator tile, `[block_m, block_n]` with padded rows.
    fn acc_bytes(&self, unit: MathUnit) -> usize {
        self.block_m * (self.block_n + ACC_PADDING) * unit.acc_type().size_bytes()
    }

    /// 32-bit registers of a thread, about.
    fn registers(&self, unit: MathUnit) -> usize {
        let words = unit.acc_type().size_bytes() / 4;
        let accumulators = self.block_m * self.block_n / self.threads() * words;
        let fragments = match unit {
            MathUnit::Fma(_) => {
                self.fma_fragment_k(unit)
                    * words
                    * (self.warp_m() / FMA_LANES_M + self.warp_n() / FMA_LANES_N)
            }
            MathUnit::TensorCore(_) if self.wgmma => 0,
            MathUnit::TensorCore(_) => self.warp_m() / 4 + self.warp_n() / 4,
        };
        accumulators + fragments + if self.wgmma { 40 } else { 48 }
    }

    /// Length along K of the operand fragments that a thread has in registers at once on FMA units: 16 bytes, or half as many
    /// beside many accumulators.
    pub(super) fn fma_fragment_k(&self, unit: MathUnit) -> usize {
        const MANY_ACCUMULATORS: usize = 128;
        let k = 16 / unit.operand_type().size_bytes();
        if self.block_m * self.block_n / self.threads() < MANY_ACCUMULATORS { k } else { k / 2 }
    }

    /// CTAs that an SM holds at once.
    pub(super) fn ctas_per_sm(&self, unit: MathUnit, target: &GpuTarget) -> usize {
        target.resident_ctas(CtaResources {
            threads: self.threads(),
            registers: self.registers(unit),
            shared_bytes: self.shared_bytes(unit),
        })
    }

    /// True if a CTA fits on an SM, and warps have full tiles of the unit's instructions.
    pub(super) fn fits(&self, unit: MathUnit, target: &GpuTarget) -> bool {
        let (instruction_m, instruction_n) = match unit {
            MathUnit::Fma(_) => (4, 8),
            MathUnit::TensorCore(_) => (16, 8),
        };
        self.warp_m().is_multiple_of(instruction_m)
            && self.warp_n().is_multiple_of(instruction_n)
            && self.shared_bytes(unit) <= target.shared_bytes
            && self.registers(unit) <= 232
            && self.ctas_per_sm(unit, target) > 0
            && (self.split_k == 1 || target.has_clusters)
            && self.block_m.is_multiple_of(self.split_k)
    }
}
