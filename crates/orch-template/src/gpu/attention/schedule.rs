//! How attention is shared among warps, and the schedules worth trying.

use super::form::AttentionForm;
use orch_compute::block::BlockProgram;
use orch_compute::expr::VarId;
use orch_ir::DType;
use orch_thread::OperandPrecision;
use orch_thread::cta::MmaType;
use orch_thread::target::GpuTarget;
use std::fmt;

/// Most keys: as many scores of a row as registers hold.
pub const MAX_KEYS: usize = 256;
/// Largest head dimension, of queries and keys, and of values.
const MAX_WIDTH: usize = 128;
/// Rows of a warp: those of `mma.m16n8k16`.
pub(super) const WARP_ROWS: usize = 16;

/// How attention is scheduled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttentionSchedule {
    /// Warps along rows, of 16 rows each.
    pub row_warps: usize,
    /// Warps that share the keys of the same rows.
    pub key_warps: usize,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for AttentionSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row_warps={} key_warps={}", self.row_warps, self.key_warps)
    }
}

impl AttentionSchedule {
    /// Warps of a CTA.
    pub fn warps(&self) -> usize {
        self.row_warps * self.key_warps
    }
}

/// Extents, and extents of tiles rounded up to those of `mma` instructions.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionSizes {
    pub batch: usize,
    pub rows: usize,
    pub keys: usize,
    /// Extent that the first product reduces.
    pub head_dim: usize,
    /// Columns of values and results.
    pub columns: usize,
}

impl AttentionSizes {
    pub fn of(block: &BlockProgram, form: &AttentionForm) -> Self {
        let points = |axes: &[VarId]| AttentionForm::points(block, axes);
        Self {
            batch: points(&form.batch),
            rows: points(&form.rows),
            keys: points(&form.keys),
            head_dim: points(&form.head_dim),
            columns: points(&form.columns),
        }
    }

    pub fn padded_head_dim(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }

    pub fn padded_columns(&self) -> usize {
        self.columns.next_multiple_of(16)
    }
}

/// The schedules worth trying, the preferred one first; none if the template does not serve the program.
pub fn schedules(
    block: &BlockProgram,
    target: &GpuTarget,
    precision: OperandPrecision,
) -> Vec<AttentionSchedule> {
    let Ok(form) = AttentionForm::of(block) else { return Vec::new() };
    if mma_type(block, &form, precision).is_none() {
        return Vec::new();
    }
    let sizes = AttentionSizes::of(block, &form);
    if sizes.keys > MAX_KEYS || sizes.head_dim > MAX_WIDTH || sizes.columns > MAX_WIDTH {
        return Vec::new();
    }
    let ctas = |row_warps: usize| sizes.batch * sizes.rows.div_ceil(WARP_ROWS * row_warps);
    let mut found: Vec<AttentionSchedule> = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (4, 1), (4, 2)]
        .into_iter()
        .map(|(row_warps, key_warps)| AttentionSchedule { row_warps, key_warps })
        .filter(|schedule| {
            sizes.keys.div_ceil(16 * schedule.key_warps) * 16 * (schedule.key_warps - 1) < sizes.keys
        })
        .collect();
    // As many rows share the keys as leave CTAs for all SMs, and as many warps the rows as have keys to share: a warp by itself
    // waits for each of its products.
    let cost = |schedule: &AttentionSchedule| {
        let waves = ctas(schedule.row_warps).div_ceil(target.sms);
        let keys = sizes.keys.div_ceil(schedule.key_warps).next_multiple_of(16);
        let loading =
            (sizes.keys * (sizes.head_dim + sizes.columns)) as f64 / schedule.warps().min(4) as f64 / 8.0;
        let merge = if schedule.key_warps > 1 { 1500.0 } else { 0.0 };
        // CTAs of one SM hide each other's waits.
        let concurrent = (4.0 / schedule.warps() as f64).clamp(1.0, waves as f64);
        (waves as f64 / concurrent).max(1.0) * (loading + keys as f64 * 60.0 + merge)
            + 0.1 * schedule.warps() as f64
    };
    found.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
    found
}

/// What `mma` multiplies: f16 or bf16; `None` if the precision allows neither.
pub(super) fn mma_type(
    block: &BlockProgram,
    form: &AttentionForm,
    precision: OperandPrecision,
) -> Option<MmaType> {
    if block.exprs.dtype(form.q) != DType::F32 {
        return None;
    }
    match precision.within(block) {
        OperandPrecision::F16 => Some(MmaType::F16),
        OperandPrecision::Bf16 => Some(MmaType::Bf16),
        OperandPrecision::F32 | OperandPrecision::Tf32 => None,
    }
}
