//! The 128-byte swizzle of tiles in shared memory that TMA writes and `wgmma` reads.

use orch_compute::expr::{ExprId, Exprs};
use orch_compute::simplify::simplify;
use orch_ir::BinaryFn;

/// 16-bit elements of a 128-byte row of a panel of a swizzled tile.
pub const SWIZZLE_ROW: usize = 64;
/// Elements of 8 such rows (1024 bytes); a swizzled tile starts at a multiple of them.
pub const SWIZZLE_ALIGNMENT: usize = 8 * SWIZZLE_ROW;

/// The offset of element `at` of a row of a swizzled tile of `rows` rows (`CU_TENSOR_MAP_SWIZZLE_128B`). The tile is in panels
/// `[rows, SWIZZLE_ROW]` along its rows, one panel after the other; of the eight 16-byte parts of a row of a panel, part `p` of
/// row `r` lies at position `p xor (r mod 8)`, so that the same parts of eight rows are in different banks.
pub fn swizzled(rows: usize, row: usize, at: usize) -> usize {
    let (panel, at) = (at / SWIZZLE_ROW, at % SWIZZLE_ROW);
    (panel * rows + row) * SWIZZLE_ROW + ((at / 8) ^ (row % 8)) * 8 + at % 8
}

/// [`swizzled`] of expressions.
pub fn swizzled_offset(exprs: &mut Exprs, rows: usize, row: ExprId, at: ExprId) -> ExprId {
    let [part_elems, line_elems] = [8, SWIZZLE_ROW].map(|elems| exprs.index(elems as i64));
    let (panel, at) = (exprs.floor_div(at, line_elems), exprs.floor_rem(at, line_elems));
    let (part, within) = (exprs.floor_div(at, part_elems), exprs.floor_rem(at, part_elems));
    let phase = exprs.floor_rem(row, part_elems);
    let part = exprs.binary(BinaryFn::Xor, part, phase);
    let place = exprs.linear_index(&[panel, row, part, within], &[rows * SWIZZLE_ROW, SWIZZLE_ROW, 8, 1]);
    simplify(exprs, place)
}
