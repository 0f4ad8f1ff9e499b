//! How the register tile reads its two operands.

use super::form::ContractionForm;
use super::linear::{block_extent, linear_in, plain_read};
use super::lines::Lines;
use super::math_unit::{AMX_K, CpuMathUnit};
use super::pack_cost::{RowOrder, row_order};
use super::window::Window;
use orch_compute::block::{ArgRole, BlockProgram};
use orch_compute::expr::substitute::Substitution;
use orch_compute::expr::{ArgId, ExprId, Exprs, VarId};
use orch_compute::simplify::simplify;
use orch_thread::kernel::PackedConstant;

/// The first operand's elements.
#[derive(Clone, Debug)]
pub enum RowsFrom {
    /// An argument, at `base(batch, m) + stride * k`.
    Argument {
        /// Which.
        arg: ArgId,
        /// Elements between neighbours along K.
        stride: i64,
    },
    /// Scratch that the work item fills.
    Scratch(RowOrder),
    /// An argument, line by line.
    Lines(Lines),
    /// Scratch that holds each element once that several rows have.
    Window(Window),
}

/// The second operand's panels.
#[derive(Clone, Debug)]
pub enum PanelsFrom {
    /// A constant laid out as panels at compile time.
    Packed(PackedConstant),
    /// An argument whose columns are contiguous, `stride` elements between neighbours along K.
    Argument {
        /// Which.
        arg: ArgId,
        /// Elements between neighbours along K.
        stride: i64,
    },
    /// Scratch that the work item fills: `[k][column]`.
    Scratch,
}

impl PanelsFrom {
    /// Bytes between neighbours along K of panels in an argument.
    pub fn term_bytes(&self, dtype: orch_ir::DType) -> Option<usize> {
        match self {
            PanelsFrom::Argument { stride, .. } => Some(usize::try_from(*stride).ok()? * dtype.size_bytes()),
            PanelsFrom::Packed(_) | PanelsFrom::Scratch => None,
        }
    }
}

/// FlatAxes coordinates of a contraction, as variables of the block program's arena: substituting the axes by
/// expressions of these turns multi-dimensional reads into matrix reads.
#[derive(Clone, Debug)]
pub struct FlatAxes {
    /// The row.
    pub m: VarId,
    /// The column.
    pub n: VarId,
    /// The K index.
    pub k: VarId,
    /// What each row, column and K axis is in terms of those.
    pub bindings: Vec<(VarId, ExprId)>,
}

impl FlatAxes {
    /// Declares the flat coordinates.
    pub fn new(block: &BlockProgram, exprs: &mut Exprs, form: &ContractionForm) -> Self {
        let mut bindings = Vec::new();
        let mut flatten = |name: &str, axes: &[VarId]| {
            let extents: Vec<usize> = axes.iter().map(|&axis| block.extent(axis)).collect();
            let (var, linear) = exprs.fresh_index(name, extents.iter().product());
            let index = exprs.unflatten(linear, &extents);
            bindings.extend(axes.iter().copied().zip(index));
            var
        };
        let (m, n, k) = (flatten("m", &form.m), flatten("n", &form.n), flatten("k", &form.k));
        Self { m, n, k, bindings }
    }
}

/// Chooses how the first operand is read. `a` is over batch axes and flat coordinates.
pub fn rows_from(
    block: &BlockProgram,
    exprs: &mut Exprs,
    form: &ContractionForm,
    flat: &FlatAxes,
    a: ExprId,
    operand_type: orch_ir::DType,
) -> RowsFrom {
    let in_place = plain_read(block, exprs, a)
        .filter(|&(arg, _)| block.arg(arg).dtype == operand_type)
        .and_then(|(arg, offset)| Some((arg, linear_in(exprs, offset, flat.k)?)));
    match in_place {
        Some((arg, stride)) => RowsFrom::Argument { arg, stride },
        None => match Window::of(block, exprs, form) {
            Some(window) => RowsFrom::Window(window),
            None => RowsFrom::Scratch(row_order(block, form, block_lanes(operand_type))),
        },
    }
}

impl CpuMathUnit {
    /// The rows as the math_unit can read them; rows that it cannot read in place are copied.
    fn rows(
        self,
        block: &BlockProgram,
        exprs: &mut Exprs,
        flat: &FlatAxes,
        a: ExprId,
        rows: RowsFrom,
    ) -> RowsFrom {
        if self == CpuMathUnit::Fma {
            return rows;
        }
        let k_inner = RowsFrom::Scratch(RowOrder::KInner);
        let RowsFrom::Argument { stride, .. } = rows else { return k_inner };
        let k_extent = exprs.var_info(flat.k).range.map_or(0, |(_, last)| last as usize + 1);
        let is_readable = match self {
            CpuMathUnit::Fma | CpuMathUnit::Bf16Dot => stride == 1 && k_extent.is_multiple_of(2),
            CpuMathUnit::Amx => {
                stride == 1
                    && k_extent.is_multiple_of(AMX_K)
                    && argument_row_distance(block, exprs, flat, a).is_some()
            }
        };
        if is_readable { rows } else { k_inner }
    }

    /// The panels as the math_unit can read them.
    pub fn panels(self, panels: PanelsFrom) -> PanelsFrom {
        match panels {
            PanelsFrom::Argument { .. } if self != CpuMathUnit::Fma => PanelsFrom::Scratch,
            PanelsFrom::Packed(mut packed) => {
                packed.group = self.group().lanes();
                packed.k_extent = packed.k_offsets.len().next_multiple_of(self.k_step());
                PanelsFrom::Packed(packed)
            }
            PanelsFrom::Argument { .. } | PanelsFrom::Scratch => panels,
        }
    }
}

/// Elements between neighbouring rows of a operand that is read in place, if they are at equal distances.
pub(super) fn argument_row_distance(
    block: &BlockProgram,
    exprs: &mut Exprs,
    flat: &FlatAxes,
    a: ExprId,
) -> Option<i64> {
    let (_, offset) = plain_read(block, exprs, a)?;
    linear_in(exprs, offset, flat.m)
}

/// The operands over batch axes and flat coordinates, as the math_unit reads them.
pub(super) fn flat_operands(
    exprs: &mut Exprs,
    form: &ContractionForm,
    flat: &FlatAxes,
    math_unit: CpuMathUnit,
) -> (ExprId, ExprId) {
    let (a, b) = (math_unit.factor(exprs, form.a), math_unit.factor(exprs, form.b));
    let mut flatten = Substitution::new(&flat.bindings);
    let (a, b) = (flatten.apply(exprs, a), flatten.apply(exprs, b));
    (simplify(exprs, a), simplify(exprs, b))
}

/// Where the math_unit reads the operands, whose panels are `width` columns wide.
pub(super) fn sources(
    block: &BlockProgram,
    exprs: &mut Exprs,
    form: &ContractionForm,
    flat: &FlatAxes,
    (a, b): (ExprId, ExprId),
    math_unit: CpuMathUnit,
    width: usize,
) -> (RowsFrom, PanelsFrom) {
    let operand_type = exprs.dtype(a);
    let rows = rows_from(block, exprs, form, flat, a, operand_type);
    let rows = math_unit.rows(block, exprs, flat, a, rows);
    let panels = panels_from(block, exprs, form, flat, b, width, operand_type);
    (rows, math_unit.panels(panels))
}
/// Bytes from one row of the first operand to the next, if it is read from an argument and they are evenly apart.
pub fn row_bytes(block: &BlockProgram, exprs: &mut Exprs, flat: &FlatAxes, a: ExprId) -> Option<usize> {
    let (arg, offset) = plain_read(block, exprs, a)?;
    let stride = usize::try_from(linear_in(exprs, offset, flat.m)?).ok()?;
    Some(stride * block.arg(arg).dtype.size_bytes())
}

/// Lanes by which orders of scratch are compared: those of the widest vectors.
fn block_lanes(operand_type: orch_ir::DType) -> usize {
    64 / operand_type.size_bytes()
}

/// Chooses how the second operand is read. `b` is over batch axes and flat coordinates.
pub fn panels_from(
    block: &BlockProgram,
    exprs: &mut Exprs,
    form: &ContractionForm,
    flat: &FlatAxes,
    b: ExprId,
    width: usize,
    operand_type: orch_ir::DType,
) -> PanelsFrom {
    let Some((arg, offset)) = plain_read(block, exprs, b) else { return PanelsFrom::Scratch };
    if block.arg(arg).dtype != operand_type {
        return PanelsFrom::Scratch;
    }
    if block.arg(arg).role == ArgRole::Constant {
        return pack(block, exprs, form, flat, (arg, offset), width)
            .map_or(PanelsFrom::Scratch, PanelsFrom::Packed);
    }
    let columns = block_extent(exprs, flat.n);
    match (linear_in(exprs, offset, flat.n), linear_in(exprs, offset, flat.k)) {
        (Some(1), Some(stride)) if columns.is_multiple_of(width) || columns <= width => {
            PanelsFrom::Argument { arg, stride }
        }
        _ => PanelsFrom::Scratch,
    }
}

/// The packing recipe of a constant operand whose offset is a sum of a batch, a column and a K part.
pub(crate) fn pack(
    block: &BlockProgram,
    exprs: &mut Exprs,
    form: &ContractionForm,
    flat: &FlatAxes,
    (arg, offset): (ArgId, ExprId),
    width: usize,
) -> Option<PackedConstant> {
    if !block.arg(arg).layout.is_row_major() {
        return None;
    }
    let batch_points = points(block, &form.batch);
    let at = |exprs: &mut Exprs, batch: &[i64], n: i64, k: i64| -> Option<usize> {
        let mut values: Vec<(VarId, i64)> = form.batch.iter().copied().zip(batch.iter().copied()).collect();
        values.extend([(flat.n, n), (flat.k, k)]);
        let value = exprs.evaluate(offset, &values)?;
        usize::try_from(value).ok()
    };
    let origin = vec![0; form.batch.len()];
    let (columns, k_extent) = (block_extent(exprs, flat.n), block_extent(exprs, flat.k));
    let start = at(exprs, &origin, 0, 0)?;
    let batch_offsets: Vec<usize> =
        batch_points.iter().map(|point| at(exprs, point, 0, 0)).collect::<Option<_>>()?;
    let last = batch_points.last()?.clone();
    let relative = |value: Option<usize>| value.and_then(|v| v.checked_sub(start));
    let k_offsets: Vec<usize> =
        (0..k_extent as i64).map(|k| relative(at(exprs, &origin, 0, k))).collect::<Option<_>>()?;
    let column_offsets =
        (0..columns as i64).map(|n| relative(at(exprs, &origin, n, 0))).collect::<Option<_>>()?;
    let packed = PackedConstant {
        arg,
        dtype: block.arg(arg).dtype,
        width,
        group: 1,
        k_extent,
        batch_offsets,
        k_offsets,
        column_offsets,
    };
    let corner = at(exprs, &last, columns as i64 - 1, k_extent as i64 - 1)?;
    let sum = packed.batch_offsets.last()? + packed.k_offsets.last()? + packed.column_offsets.last()?;
    (corner == sum).then_some(packed)
}

/// All index tuples of some axes, row-major.
fn points(block: &BlockProgram, axes: &[VarId]) -> Vec<Vec<i64>> {
    let mut points = vec![Vec::new()];
    for &axis in axes {
        points = points
            .into_iter()
            .flat_map(|point: Vec<i64>| {
                (0..block.extent(axis) as i64).map(move |value| [&point[..], &[value]].concat())
            })
            .collect();
    }
    points
}
