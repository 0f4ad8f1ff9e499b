//! Lines: a first operand that is read where it lies, though its rows are not evenly apart or lie partly in a padding.
//!
//! A line is all rows along the innermost of their axes, as the pixels of a line of an image. For each value of the outer axes of K, a
//! tap of a convolution, the rows of a line and the terms along the rest of K, a run, are evenly apart in the argument. A register
//! tile that lies within a line therefore reads its rows at constant distances from one address per run. Where a guard excludes a
//! line's first or last rows from a run, as the padding of an image does, the others are multiplied; of lines that it excludes, none.

use super::form::ContractionForm;
use super::linear::{linear_in, plain_read};
use orch_compute::block::BlockProgram;
use orch_compute::expr::{ArgId, Expr, ExprId, Exprs, VarId};
use orch_compute::simplify::simplify;
use std::ops::Range;

/// How a first operand is read line by line.
#[derive(Clone, Debug)]
pub struct Lines {
    /// The operand without its guard: a read of an argument.
    pub read: ExprId,
    /// What is read.
    pub arg: ArgId,
    /// The axis along a line.
    pub axis: VarId,
    /// The other axes of rows, and their extents.
    pub outer_rows: Vec<(VarId, usize)>,
    /// Elements between neighbouring rows of a line.
    pub row_stride: i64,
    /// The axes of K that go from run to run, and their extents.
    pub outer_terms: Vec<(VarId, usize)>,
    /// The axes of K along a run.
    pub run_terms: Vec<VarId>,
    /// Elements between neighbouring terms of a run.
    pub term_stride: i64,
    /// Whether a line has elements in a run, unless all have.
    pub line_guard: Option<ExprId>,
    /// Whether a row of a line has, unless all have.
    pub row_guard: Option<ExprId>,
    /// Its extents.
    pub size: LineSize,
}

/// Extents of lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineSize {
    /// Rows of a line.
    pub rows: usize,
    /// Bytes between neighbouring rows.
    pub row_bytes: usize,
    /// Terms of a run.
    pub run: usize,
    /// Pairs of a row and a run.
    pub pairs: usize,
    /// Those that are multiplied, as no guard excludes them.
    pub pairs_inside: usize,
}

/// Values of guards, at most, that are looked at.
const MOST_VALUES: usize = 1 << 14;

impl Lines {
    /// The lines of the first operand; `None` if it is no read of an argument, or its elements do not lie so.
    pub fn of(block: &BlockProgram, exprs: &mut Exprs, form: &ContractionForm) -> Option<Self> {
        let operand = simplify(exprs, form.a);
        let Expr::Read { arg, index, guard } = exprs.get(operand).clone() else { return None };
        let read = exprs.read(arg, index, None);
        let (_, offset) = plain_read(block, exprs, read)?;
        let long = |axes: &[VarId]| -> Vec<(VarId, usize)> {
            axes.iter().map(|&axis| (axis, block.extent(axis))).filter(|&(_, extent)| extent > 1).collect()
        };
        let (mut outer_rows, mut outer_terms) = (long(&form.m), long(&form.k));
        let (axis, rows) = outer_rows.pop()?;
        let row_stride = linear_in(exprs, offset, axis)?;
        let guards = guard.map(|guard| exprs.conjuncts(guard)).unwrap_or_default();
        let is_guarded = |exprs: &Exprs, axis| guards.iter().any(|&guard| exprs.depends_on(guard, axis));

        let (term, mut run) = outer_terms.pop()?;
        let term_stride = linear_in(exprs, offset, term)?;
        let mut run_terms = vec![term];
        if is_guarded(exprs, term) {
            return None;
        }
        while let Some(&(term, extent)) = outer_terms.last() {
            if is_guarded(exprs, term) || linear_in(exprs, offset, term) != Some(run as i64 * term_stride) {
                break;
            }
            outer_terms.pop();
            run_terms.insert(0, term);
            run *= extent;
        }

        let (of_rows, of_lines): (Vec<_>, Vec<_>) =
            guards.into_iter().partition(|&guard| exprs.depends_on(guard, axis));
        let all =
            |exprs: &mut Exprs, guards: &[ExprId]| (!guards.is_empty()).then(|| exprs.all(guards.to_vec()));
        let (line_guard, row_guard) = (all(exprs, &of_lines), all(exprs, &of_rows));
        let pairs = rows * outer_rows.iter().chain(&outer_terms).map(|(_, extent)| extent).product::<usize>();
        let row_bytes = row_stride.unsigned_abs() as usize * block.arg(arg).dtype.size_bytes();
        let size = LineSize { rows, row_bytes, run, pairs, pairs_inside: pairs };
        let mut lines = Self {
            read,
            arg,
            axis,
            outer_rows,
            row_stride,
            outer_terms,
            run_terms,
            term_stride,
            line_guard,
            row_guard,
            size,
        };
        lines.size.pairs_inside = lines.inside(exprs)?;
        Some(lines)
    }

    /// Pairs of a row and a run that are multiplied; `None` if those of a line are not neighbours.
    fn inside(&self, exprs: &Exprs) -> Option<usize> {
        let rows_inside: usize = match self.row_guard {
            None => self.size.rows * extents(&self.outer_terms),
            Some(_) => self.rows_inside(exprs, 0..self.size.rows)?.iter().map(|rows| rows.len()).sum(),
        };
        let of_lines = [&self.outer_rows[..], &self.outer_terms[..]].concat();
        let Some(guard) = self.line_guard else { return Some(rows_inside * extents(&self.outer_rows)) };
        let used: Vec<_> =
            of_lines.iter().copied().filter(|&(axis, _)| exprs.depends_on(guard, axis)).collect();
        let lines_inside = every(&used)?
            .map(|values| exprs.evaluate(guard, &values).map(|value| usize::from(value != 0)))
            .sum::<Option<usize>>()?;
        // Conditions on lines and on rows are about different axes of the image.
        Some(rows_inside * extents(&self.outer_rows) * lines_inside / extents(&used))
    }

    /// Rows of a part of a line that are inside in each run.
    fn rows_inside(&self, exprs: &Exprs, part: Range<usize>) -> Option<Vec<Range<usize>>> {
        let Some(guard) = self.row_guard else { return Some(vec![part; extents(&self.outer_terms)]) };
        let of_run = |values: Vec<(VarId, i64)>| {
            let mut inside = Vec::new();
            for row in part.clone() {
                let values = [&values[..], &[(self.axis, row as i64)]].concat();
                if exprs.evaluate(guard, &values)? != 0 {
                    inside.push(row);
                }
            }
            let (Some(&first), Some(&last)) = (inside.first(), inside.last()) else {
                return Some(part.start..part.start);
            };
            (last + 1 - first == inside.len()).then_some(first..last + 1)
        };
        every(&self.outer_terms)?.map(of_run).collect()
    }

    /// The sets of rows of register tiles that some run has, counted from a tile's first row, if tiles of `height` rows start at these
    /// rows of a line; the largest first.
    pub fn row_sets(
        &self,
        exprs: &Exprs,
        starts: impl Iterator<Item = usize>,
        height: usize,
    ) -> Vec<Range<usize>> {
        let mut sets: Vec<Range<usize>> = Vec::new();
        for start in starts {
            let inside = self.rows_inside(exprs, start..start + height).expect("looked at before");
            for rows in inside {
                let rows = rows.start - start..rows.end - start;
                if !rows.is_empty() && !sets.contains(&rows) {
                    sets.push(rows);
                }
            }
        }
        sets.sort_by_key(|rows| (height - rows.len(), rows.start));
        sets
    }
}

/// The number of values of some axes.
fn extents(axes: &[(VarId, usize)]) -> usize {
    axes.iter().map(|(_, extent)| extent).product()
}

/// All values of some axes, unless there are many; the last one runs fastest.
fn every(axes: &[(VarId, usize)]) -> Option<impl Iterator<Item = Vec<(VarId, i64)>>> {
    let (axes, count) = (axes.to_vec(), extents(axes));
    let at = move |number: usize| {
        let mut rest = number;
        let mut values: Vec<(VarId, i64)> = Vec::with_capacity(axes.len());
        for &(axis, extent) in axes.iter().rev() {
            values.push((axis, (rest % extent) as i64));
            rest /= extent;
        }
        values
    };
    (count <= MOST_VALUES).then(|| (0..count).map(at))
}
