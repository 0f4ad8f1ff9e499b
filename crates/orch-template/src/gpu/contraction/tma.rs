//! Operands that TMA loads: strided arrays described by a tensor map, a tile of which is loaded panel by panel.
//!
//! A tile in shared memory is swizzled: panels of [`SWIZZLE_ROW`] elements (128 bytes) of each line, one panel after the other.
//! A TMA load brings one panel.
//!
//! ```text
//! K-major   lines are rows: panel p = tile[0..block_m, 64 p .. 64 p + 64]      tensor map extents [k, rows, batch..]
//! MN-major  lines are k:    panel p = tile[0..block_k, 64 p .. 64 p + 64]      tensor map extents [rows, k, batch..]
//! ```

use super::array::StridedOperand;
use super::emitter::GemmEmitter;
use super::operand::declare_arguments;
use super::schedule::{GpuContractionSchedule, Major};
use super::tiles::OperandTiles;
use super::unit::MathUnit;
use crate::contraction::ContractionForm;
use orch_compute::block::BlockProgram;
use orch_compute::expr::ExprId;
use orch_thread::cta::{CtaStmt, Location, SWIZZLE_ROW};
use orch_thread::program::Stmt;
use orch_thread::tma::{Mbarriers, TensorMap, TensorMapId};

/// One operand's tiles, as TMA loads them.
pub(super) struct TmaOperand<'a> {
    pub tiles: &'a OperandTiles,
    tensor_map: TensorMapId,
    /// Swizzle panels of a tile: one TMA load each.
    panels: usize,
    /// The CTA's coordinates in the extents of the tensor map beyond the first two.
    batch: Vec<ExprId>,
}

/// True if TMA can load the operands of a contraction under a schedule with `wgmma`.
pub(super) fn loads_by_tma(
    block: &BlockProgram,
    form: ContractionForm,
    unit: MathUnit,
    schedule: GpuContractionSchedule,
) -> bool {
    let mut emitter = GemmEmitter::new(block, form, unit, schedule);
    emitter.place_cta(&mut Vec::new());
    let (operands, _) = declare_arguments(&mut emitter);
    let [a, b] = operands.map(|operand| OperandTiles::new(&mut emitter, operand));
    TmaOperand::of_both(&mut emitter, [&a, &b]).is_some()
}

impl<'a> TmaOperand<'a> {
    /// Both operands with their tensor maps and a full mbarrier for each stage, if TMA can load both.
    pub fn of_both(emitter: &mut GemmEmitter<'_>, tiles: [&'a OperandTiles; 2]) -> Option<[Self; 2]> {
        let maps = [tensor_map(emitter, tiles[0])?, tensor_map(emitter, tiles[1])?];
        let mut found = tiles.into_iter().zip(maps).map(|(tiles, (tensor_map, batch))| {
            let panels = tiles.stride / SWIZZLE_ROW;
            Self { tiles, tensor_map: emitter.program.add_tensor_map(tensor_map), panels, batch }
        });
        let both = [found.next()?, found.next()?];
        drop(found);
        let loads = both.iter().map(|operand| operand.panels).sum();
        emitter.program.mbarriers = Mbarriers { full: emitter.schedule.stages, loads, empty: 0 };
        Some(both)
    }

    /// Starts loading the tile from `first_k` on to a stage; the stage's full mbarrier counts the panels.
    pub fn load(&self, emitter: &mut GemmEmitter<'_>, first_k: ExprId, stage: ExprId) -> Vec<Stmt> {
        let tiles = self.tiles;
        let first_row = emitter.origin[tiles.operand.number];
        let exprs = &mut emitter.program.exprs;
        // [stage, panel, line, 64]
        let first = exprs.mul_const(stage, tiles.stage_elems as i64);
        let panel_elems = tiles.stage_elems / self.panels;
        let mut load_panel = |panel| {
            let offset = exprs.add_const(first, (panel * panel_elems) as i64);
            let to = Location { buffer: tiles.buffer, offset };
            let (inner, outer) = match tiles.major {
                Major::K => (exprs.add_const(first_k, (panel * SWIZZLE_ROW) as i64), first_row),
                Major::Mn => (exprs.add_const(first_row, (panel * SWIZZLE_ROW) as i64), first_k),
            };
            let at = [inner, outer].into_iter().chain(self.batch.iter().copied()).collect();
            Stmt::Cta(CtaStmt::TmaLoad { to, map: self.tensor_map, at, mbarrier: stage })
        };
        (0..self.panels).map(&mut load_panel).collect()
    }
}

/// The tensor map of an operand, and the CTA's coordinates in its extents beyond the first two; `None` if the operand is no
/// strided array that the hardware encodes.
///
/// A TMA tile has no more rows of `a` than there are: TMA takes longer over rows outside of the array than over others, and
/// the accumulators of the rows that are then not loaded are never stored.
fn tensor_map(emitter: &mut GemmEmitter<'_>, tiles: &OperandTiles) -> Option<(TensorMap, Vec<ExprId>)> {
    let operand = &tiles.operand;
    let StridedOperand { buffer, strides, batch } = StridedOperand::of(emitter, operand)?;
    let k_extent = operand.k_extent(emitter);
    let [(inner, inner_extent), (outer, outer_extent)] = match tiles.major {
        Major::K => [(strides.column, k_extent), (strides.row, operand.rows)],
        Major::Mn => [(strides.row, operand.rows), (strides.column, k_extent)],
    };
    // The stride of a single line is arbitrary, but must be encodable.
    let outer = if outer_extent == 1 { SWIZZLE_ROW } else { outer };
    if inner != 1 || outer == 0 {
        return None;
    }
    let (mut extents, mut outer_strides) = (vec![inner_extent, outer_extent], vec![outer]);
    let mut at = Vec::new();
    for ((extent, value), stride) in batch.into_iter().zip(strides.batch).filter(|&(_, stride)| stride > 0) {
        extents.push(extent);
        outer_strides.push(stride);
        at.push(value);
    }
    let rows = match (operand.number, tiles.major) {
        (0, Major::K) => tiles.lines().min(operand.rows),
        _ => tiles.lines(),
    };
    let name = format!("{}_view", operand.name);
    let tensor_map =
        TensorMap { name, buffer, offset: strides.offset, extents, strides: outer_strides, rows };
    let buffer = emitter.program.buffers.get(buffer.index())?;
    tensor_map.is_encodable(buffer).then_some((tensor_map, at))
}
