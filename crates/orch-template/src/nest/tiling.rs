//! What is staged in tiles, and how a tile lies in its buffer. [`super::tile`] emits the loops.

use super::flat::{Nest, NestStage};
use orch_compute::block::Axis;
use orch_compute::expr::{BufferId, Expr, ExprId, Exprs, VarId};
use orch_ir::BinaryFn;

/// Bytes of a row of a tile: two cache lines of the result; a tile of as many rows stays in L1.
const ROW_BYTES: usize = 128;

/// Tiles over a pair of axes: loads are contiguous along `source`, the result along the vector axis.
#[derive(Clone, Debug)]
pub(crate) struct Tiling {
    /// The axis along which staged loads are contiguous.
    pub source: Axis,
    /// Its points in a tile.
    pub source_tile: usize,
    /// Points of the vector axis in a tile, a multiple of the lanes.
    pub vector_tile: usize,
    /// What is staged: loads, and choices among loads.
    pub values: Vec<ExprId>,
}

/// Layout of a tile `[source_tile, vector_tile]` in its buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TileLayout {
    /// `[row][column]`.
    RowMajor,
    /// `[row][swizzled column]`: the parts of a row are permuted by the row index, so that the elements of a column are
    /// in different banks of shared memory.
    Swizzled(XorSwizzle),
}

/// An XOR swizzle of rows that consist of parts of neighbouring elements: part `p` of row `r` is stored as part
/// `p ^ (r / rows_per_pattern % parts)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XorSwizzle {
    /// Elements of a part.
    pub part: usize,
    /// Parts of a row, a power of two.
    pub parts: usize,
    /// Neighbouring rows that have the same permutation of parts.
    pub rows_per_pattern: usize,
}

impl XorSwizzle {
    /// The column at which element `[row, column]` is stored in its row.
    pub fn swizzled_column(&self, row: usize, column: usize) -> usize {
        let swizzled = (column / self.part) ^ (row / self.rows_per_pattern % self.parts);
        swizzled * self.part + column % self.part
    }

    /// [`Self::swizzled_column`] of expressions.
    pub fn swizzled_column_expr(&self, exprs: &mut Exprs, row: ExprId, column: ExprId) -> ExprId {
        let [part, parts, rows_per_pattern] =
            [self.part, self.parts, self.rows_per_pattern].map(|elems| exprs.index(elems as i64));
        let (part_index, within) = (exprs.floor_div(column, part), exprs.floor_rem(column, part));
        let pattern = exprs.floor_div(row, rows_per_pattern);
        let pattern = exprs.floor_rem(pattern, parts);
        let swizzled = exprs.binary(BinaryFn::Xor, part_index, pattern);
        // [part, element within the part]
        exprs.linear_index(&[swizzled, within], &[self.part, 1])
    }
}

/// A value that is staged in a tile.
#[derive(Clone, Debug)]
pub(crate) struct StagedValue {
    /// The value, a load or a choice among loads, which fills the tile.
    pub value: ExprId,
    /// The tile, `[source_tile, vector_tile]`.
    pub buffer: BufferId,
    /// Element offset of the value in the tile, in terms of the [`Corner`] and both axes.
    pub offset: ExprId,
}

/// Variables that hold the values of both axes at the first element of the current tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Corner {
    /// First value of the source axis.
    pub source: VarId,
    /// First value of the vector axis.
    pub vector: VarId,
}

impl Tiling {
    /// The tiling for a nest of stores with this vector axis: of all loads that are strided along the vector axis and
    /// contiguous along the same outer axis as the first such load. `None` if there is no such load.
    pub fn of(nest: &mut Nest, outer: &[Axis], vector: &Axis, lanes: usize) -> Option<Tiling> {
        let mut tiling: Option<Tiling> = None;
        for load in strided_loads(nest, vector.var) {
            let Some(source) = contiguous_axis(nest, load, outer, vector.var) else { continue };
            match &mut tiling {
                Some(tiling) if tiling.source == source => tiling.values.push(load),
                Some(_) => {}
                None => {
                    let size = nest.program.exprs.dtype(load).size_bytes();
                    let tile = (ROW_BYTES / size).max(lanes);
                    let source_tile = tile.min(source.extent);
                    let vector_tile = tile.min(vector.extent.next_multiple_of(lanes));
                    tiling = Some(Tiling { source, source_tile, vector_tile, values: vec![load] });
                }
            }
        }
        if let Some(tiling) = &mut tiling {
            tiling.values = with_choices(nest, &tiling.values, vector.var);
        }
        tiling
    }
}

/// The values that are staged for these loads: instead of loads a choice among them that is the same along the vector axis,
/// as of the parts of a concatenation, so that one tile serves all of them.
fn with_choices(nest: &Nest, loads: &[ExprId], vector: VarId) -> Vec<ExprId> {
    let exprs = &nest.program.exprs;
    let roots: Vec<ExprId> = nest.stages.iter().flat_map(NestStage::roots).collect();
    let mut staged = loads.to_vec();
    let mut chosen = Vec::new();
    let reachable = exprs.reachable(&roots);
    // Operands come first.
    for &id in &reachable {
        let Expr::Select(condition, a, b) = *exprs.get(id) else { continue };
        if [a, b].iter().all(|part| staged.contains(part)) && !exprs.depends_on(condition, vector) {
            staged.push(id);
            chosen.push(id);
        }
    }
    let mut read = roots;
    for &id in reachable.iter().filter(|id| !chosen.contains(id)) {
        exprs.get(id).for_each_operand(|operand| read.push(operand));
    }
    staged.retain(|value| read.contains(value));
    // A choice is replaced before its parts are.
    staged.reverse();
    staged
}

/// Loads with a constant stride other than 0 and 1 along an axis: vectors along that axis would gather their elements.
pub(crate) fn strided_loads(nest: &mut Nest, vector: VarId) -> Vec<ExprId> {
    let roots: Vec<ExprId> = nest.stages.iter().flat_map(NestStage::roots).collect();
    let (exprs, simplifier) = (&mut nest.program.exprs, &mut nest.simplifier);
    let mut found = Vec::new();
    for id in exprs.reachable(&roots) {
        let Expr::Load { offset, .. } = *exprs.get(id) else { continue };
        let stride = simplifier.stride(exprs, offset, vector);
        if stride.is_some_and(|stride| !(0..=1).contains(&stride)) {
            found.push(id);
        }
    }
    found
}

/// The outer axis other than the vector axis along which a load is contiguous.
pub(crate) fn contiguous_axis(nest: &mut Nest, load: ExprId, outer: &[Axis], vector: VarId) -> Option<Axis> {
    let (exprs, simplifier) = (&mut nest.program.exprs, &mut nest.simplifier);
    let Expr::Load { offset, .. } = *exprs.get(load) else { return None };
    let mut others = outer.iter().filter(|axis| axis.var != vector && axis.extent > 1);
    others.find(|axis| simplifier.stride(exprs, offset, axis.var) == Some(1)).cloned()
}
