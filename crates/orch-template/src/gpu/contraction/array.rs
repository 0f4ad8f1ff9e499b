//! OperandPrecision and results that are arrays in memory: the copy engine and libraries take them as they are.

use super::lower::Lowering;
use super::operand::Side;
use crate::gpu::cta::Lowers;
use orch_compute::expr::{BufferId, Expr, ExprId, VarId};

/// A factor whose elements have places that are linear in row, term and batch axes.
pub(super) struct Array {
    /// Where it is.
    pub buffer: BufferId,
    /// Its elements' places.
    pub places: Places,
    /// The extent of each batch axis of `places`, and the task's place on it.
    pub batch: Vec<(usize, ExprId)>,
}

/// Places in a buffer, in elements.
pub(super) struct Places {
    /// Of the first element.
    pub offset: usize,
    /// From one row to the next.
    pub row: usize,
    /// From one term, or column of a result, to the next.
    pub line: usize,
    /// From one place of each batch axis to the next.
    pub batch: Vec<usize>,
}

impl Array {
    /// A factor as an array, if it is one.
    pub fn of(lowering: &mut Lowering<'_>, side: &Side) -> Option<Self> {
        match side.packed {
            Some((buffer, terms)) => Some(Self::packed(lowering, side, buffer, terms)),
            None => Self::plain(lowering, side),
        }
    }

    /// A constant that is laid out anew, `[batch][row][term]`.
    fn packed(lowering: &Lowering<'_>, side: &Side, buffer: BufferId, terms: usize) -> Self {
        let batches = lowering.extents.batch;
        let is_batched = batches > 1;
        let places = Places {
            offset: 0,
            row: terms,
            line: 1,
            batch: is_batched.then_some(side.rows * terms).into_iter().collect(),
        };
        let batch = is_batched.then_some((batches, lowering.batch)).into_iter().collect();
        Self { buffer, places, batch }
    }

    /// A tensor that is read where it is.
    fn plain(lowering: &mut Lowering<'_>, side: &Side) -> Option<Self> {
        let anywhere = Anywhere::new(lowering, (side.row, side.rows), lowering.flat.k, lowering.extents.k);
        let value = anywhere.import(lowering, lowering.factors[side.number]);
        let Expr::Load { buffer, offset, lanes: 1, mask: None } = *lowering.program.exprs.get(value) else {
            return None;
        };
        let places = anywhere.places(lowering, offset)?;
        let own = lowering.batch_values.iter().map(|&(_, value)| value);
        let batch = anywhere.batch.iter().map(|&(_, _, extent)| extent).zip(own).collect();
        Some(Self { buffer, places, batch })
    }
}

/// Any row, term (or column) and batch of a contraction, as variables that nothing else is known of.
pub(super) struct Anywhere {
    row: (VarId, ExprId),
    line: (VarId, ExprId),
    batch: Vec<(VarId, ExprId, usize)>,
}

impl Anywhere {
    /// Variables for two flat coordinates with their extents, and for the batch axes.
    pub fn new(lowering: &mut Lowering<'_>, (row, rows): (VarId, usize), line: VarId, lines: usize) -> Self {
        let row = (row, lowering.program.exprs.fresh_index("row", rows).1);
        let line = (line, lowering.program.exprs.fresh_index("term", lines).1);
        let axes = lowering.form.batch.clone().into_iter();
        let batch = axes.map(|axis| {
            let extent = lowering.block.extent(axis);
            (axis, lowering.program.exprs.fresh_index("batch", extent).1, extent)
        });
        Self { row, line, batch: batch.collect() }
    }

    /// An expression over the coordinates and batch axes as one over these variables.
    pub fn import(&self, lowering: &mut Lowering<'_>, root: ExprId) -> ExprId {
        let any = self.batch.iter().map(|&(axis, any, _)| (axis, any)).collect();
        let own = std::mem::replace(&mut lowering.batch_values, any);
        let value = lowering.import(root, &[self.row, self.line], None);
        lowering.batch_values = own;
        value
    }

    /// The places that an imported offset stands for, if it is linear and does not descend.
    pub fn places(&self, lowering: &mut Lowering<'_>, offset: ExprId) -> Option<Places> {
        let batch = self.batch.iter().map(|&(_, any, _)| any);
        let atoms: Vec<ExprId> = [self.row.1, self.line.1].into_iter().chain(batch).collect();
        let (offset, strides) = linear_places(lowering, offset, &atoms)?;
        let [row, line, batch @ ..] = &strides[..] else { return None };
        Some(Places { offset, row: *row, line: *line, batch: batch.to_vec() })
    }
}

/// The first place of an offset and its strides along variables, if it is linear in these alone and does not descend.
pub(super) fn linear_places(
    lowering: &mut Lowering<'_>,
    offset: ExprId,
    atoms: &[ExprId],
) -> Option<(usize, Vec<usize>)> {
    let form = lowering.simplifier.linear(&mut lowering.program.exprs, offset);
    if !form.terms().iter().all(|(atom, _)| atoms.contains(atom)) {
        return None;
    }
    let first = usize::try_from(form.constant_term()).ok()?;
    let strides = atoms.iter().map(|&atom| usize::try_from(form.coefficient(atom)).ok());
    Some((first, strides.collect::<Option<_>>()?))
}
