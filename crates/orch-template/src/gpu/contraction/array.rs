//! Operands and results that are strided arrays in memory: TMA and libraries read them in place.

use super::emitter::GemmEmitter;
use super::operand::GemmOperand;
use crate::gpu::cta::CtaEmitter;
use orch_compute::expr::{BufferId, Expr, ExprId, VarId};

/// An operand whose element offsets are linear in row, `k` and batch axes.
pub(super) struct StridedOperand {
    /// Where it is.
    pub buffer: BufferId,
    /// Offsets of its elements, with `k` as the column.
    pub strides: MatrixStrides,
    /// The extent of each batch axis of `strides`, and the CTA's index on it.
    pub batch: Vec<(usize, ExprId)>,
}

/// Element offsets `offset + row * r + column * c + sum of batch[i] * z[i]` in a buffer.
pub(super) struct MatrixStrides {
    /// Of the first element.
    pub offset: usize,
    /// From one row to the next.
    pub row: usize,
    /// From one column to the next; the columns of an operand are its `k`.
    pub column: usize,
    /// From one index of each batch axis to the next.
    pub batch: Vec<usize>,
}

impl StridedOperand {
    /// An operand as a strided array, if it is one.
    pub fn of(emitter: &mut GemmEmitter<'_>, operand: &GemmOperand) -> Option<Self> {
        match operand.packed {
            Some((buffer, k_extent)) => Some(Self::packed(emitter, operand, buffer, k_extent)),
            None => Self::in_place(emitter, operand),
        }
    }

    /// A constant that is packed for this kernel, `[batch, row, k]`.
    fn packed(emitter: &GemmEmitter<'_>, operand: &GemmOperand, buffer: BufferId, k_extent: usize) -> Self {
        let batches = emitter.extents.batch;
        let is_batched = batches > 1;
        let strides = MatrixStrides {
            offset: 0,
            row: k_extent,
            column: 1,
            batch: is_batched.then_some(operand.rows * k_extent).into_iter().collect(),
        };
        let batch = is_batched.then_some((batches, emitter.batch)).into_iter().collect();
        Self { buffer, strides, batch }
    }

    /// A tensor that is read in place.
    fn in_place(emitter: &mut GemmEmitter<'_>, operand: &GemmOperand) -> Option<Self> {
        let point =
            SymbolicPoint::new(emitter, (operand.row, operand.rows), emitter.flat.k, emitter.extents.k);
        let value = point.import(emitter, emitter.operands[operand.number]);
        let Expr::Load { buffer, offset, lanes: 1, mask: None } = *emitter.program.exprs.get(value) else {
            return None;
        };
        let strides = point.strides(emitter, offset)?;
        let own = emitter.batch_values.iter().map(|&(_, value)| value);
        let batch = point.batch.iter().map(|&(_, _, extent)| extent).zip(own).collect();
        Some(Self { buffer, strides, batch })
    }
}

/// A row, column (or `k`) and batch of a contraction as free variables, in which offsets are examined for strides.
pub(super) struct SymbolicPoint {
    /// Each flat coordinate or axis of the block program, and the variable of the thread program that stands for it.
    row: (VarId, ExprId),
    column: (VarId, ExprId),
    /// The same with the extent.
    batch: Vec<(VarId, ExprId, usize)>,
}

impl SymbolicPoint {
    /// Variables for two flat coordinates with their extents, and for the batch axes.
    pub fn new(
        emitter: &mut GemmEmitter<'_>,
        (row, rows): (VarId, usize),
        column: VarId,
        columns: usize,
    ) -> Self {
        let row = (row, emitter.program.exprs.fresh_index("row", rows).1);
        let column = (column, emitter.program.exprs.fresh_index("column", columns).1);
        let axes = emitter.form.batch.clone().into_iter();
        let batch = axes.map(|axis| {
            let extent = emitter.block.extent(axis);
            (axis, emitter.program.exprs.fresh_index("batch", extent).1, extent)
        });
        Self { row, column, batch: batch.collect() }
    }

    /// An expression over the coordinates and batch axes as one over these variables.
    pub fn import(&self, emitter: &mut GemmEmitter<'_>, root: ExprId) -> ExprId {
        let any = self.batch.iter().map(|&(axis, any, _)| (axis, any)).collect();
        let own = std::mem::replace(&mut emitter.batch_values, any);
        let value = emitter.import(root, &[self.row, self.column], None);
        emitter.batch_values = own;
        value
    }

    /// The strides of an imported offset, if it is linear in the variables and does not descend.
    pub fn strides(&self, emitter: &mut GemmEmitter<'_>, offset: ExprId) -> Option<MatrixStrides> {
        let batch = self.batch.iter().map(|&(_, any, _)| any);
        let atoms: Vec<ExprId> = [self.row.1, self.column.1].into_iter().chain(batch).collect();
        let (offset, strides) = linear_strides(emitter, offset, &atoms)?;
        let [row, column, batch @ ..] = &strides[..] else { return None };
        Some(MatrixStrides { offset, row: *row, column: *column, batch: batch.to_vec() })
    }
}

/// The constant term of an offset and its strides along variables, if it is linear in these alone and does not descend.
pub(super) fn linear_strides(
    emitter: &mut GemmEmitter<'_>,
    offset: ExprId,
    atoms: &[ExprId],
) -> Option<(usize, Vec<usize>)> {
    let form = emitter.simplifier.linear(&mut emitter.program.exprs, offset);
    if !form.terms().iter().all(|(atom, _)| atoms.contains(atom)) {
        return None;
    }
    let first = usize::try_from(form.constant_term()).ok()?;
    let strides = atoms.iter().map(|&atom| usize::try_from(form.coefficient(atom)).ok());
    Some((first, strides.collect::<Option<_>>()?))
}
