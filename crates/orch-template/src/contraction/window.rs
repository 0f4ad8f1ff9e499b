//! Windows: a first operand whose rows overlap, as those of convolutions do, is packed once per element, not once per row.
//!
//! Where an operand depends on an axis of rows and one of K only through `step * row + distance * term`, that sum is one coordinate
//! of the window; every other axis is a coordinate of its own. A block of rows is then a box of the window, which is smaller than
//! the rows by the number of terms that share elements (9 for a kernel of 3 x 3), and the place of an element in it is the sum of a
//! part of the row and a part of the term.

use super::form::ContractionForm;
use super::linear::linear_in;
use orch_compute::block::BlockProgram;
use orch_compute::expr::substitute::substitute;
use orch_compute::expr::{Expr, ExprId, Exprs, VarId};
use orch_compute::simplify::{Simplifier, simplify};

/// A first operand over batch axes and the coordinates of its window.
#[derive(Clone, Debug)]
pub struct Window {
    /// The operand.
    pub operand: ExprId,
    /// The coordinates, in the order of the memory that is read, outermost first.
    pub coordinates: Vec<Coordinate>,
    /// Rows that share the outermost axis of rows: a line.
    pub line_rows: usize,
    /// The position among the coordinates of the one that goes from line to line.
    pub line: usize,
    /// Rows of which each follows the one before at the same distance.
    pub row_run: usize,
    /// Terms of a run.
    term_run: usize,
}

/// One coordinate of a window.
#[derive(Clone, Copy, Debug)]
pub struct Coordinate {
    /// Its variable in the block program's arena.
    pub var: VarId,
    /// Its values are below this.
    pub extent: usize,
    /// The axis of rows that it goes along, and its steps from one row to the next.
    pub row: Option<(VarId, usize)>,
    /// The axis of K that it goes along, and its steps from one term to the next.
    pub term: Option<(VarId, usize)>,
}

/// How much of a window blocks of rows take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowSize {
    /// Rows of a line.
    pub line_rows: usize,
    /// Lines of the operand.
    pub lines: usize,
    /// Steps along the coordinate of lines from one line to the next.
    pub step: usize,
    /// Steps along that coordinate of the first line.
    pub first: usize,
    /// Elements of one step along that coordinate.
    pub step_elems: usize,
    /// Terms that follow each other at an equal distance.
    pub run: usize,
    /// Rows that do.
    pub row_run: usize,
}

impl WindowSize {
    /// Lines, at most, that a block of so many rows has parts of.
    pub fn lines_of(&self, rows: usize) -> usize {
        ((rows.max(1) - 1).div_ceil(self.line_rows) + 1).min(self.lines)
    }

    /// Steps along the coordinate of lines that a block of so many rows takes, at most.
    pub fn steps_of(&self, rows: usize) -> usize {
        (self.lines_of(rows) - 1) * self.step + self.first
    }

    /// Elements of a block of so many rows: a mean over where blocks begin, each right after the one before.
    pub fn usual_elems_of(&self, rows: usize) -> f64 {
        let lines = match rows % self.line_rows {
            0 => rows as f64 / self.line_rows as f64,
            _ => rows.saturating_sub(1) as f64 / self.line_rows as f64 + 1.0,
        };
        let steps = (lines.min(self.lines as f64) - 1.0) * self.step as f64 + self.first as f64;
        steps * self.step_elems as f64
    }

    /// Elements of a block of so many rows, at most.
    pub fn elems_of(&self, rows: usize) -> usize {
        self.steps_of(rows) * self.step_elems
    }
}

/// Elements of the window of one row tile, at most; of larger ones the rows are packed.
const MOST_ELEMS_OF_TILE: usize = 48 << 10;

/// Rows of the tile that is meant.
const TILE_ROWS: usize = 14;

impl Window {
    /// The window of the first operand; `None` if its rows do not overlap, or in another way.
    pub fn of(block: &BlockProgram, exprs: &mut Exprs, form: &ContractionForm) -> Option<Self> {
        let operand = simplify(exprs, form.a);
        let used = exprs.free_vars(operand);
        let (rows, terms) = (long(block, &form.m), long(block, &form.k));
        if !rows.iter().chain(&terms).all(|axis| used.contains(axis)) {
            return None;
        }
        let index = exprs.reachable(&[operand]).into_iter().find_map(|id| match exprs.get(id) {
            Expr::Read { index, .. } => Some(index.clone()),
            _ => None,
        })?;
        let mut coordinates = Vec::new();
        let mut window = operand;
        let mut original = Vec::new();
        for dim in index {
            let vars = exprs.free_vars(dim);
            let of =
                |axes: &[VarId]| axes.iter().copied().filter(|axis| vars.contains(axis)).collect::<Vec<_>>();
            let ([row], [term]) = (&of(&rows)[..], &of(&terms)[..]) else { continue };
            let dim = simplify(exprs, dim);
            let (step, distance) = (linear_in(exprs, dim, *row)?, linear_in(exprs, dim, *term)?);
            let (step, distance) = (usize::try_from(step).ok()?, usize::try_from(distance).ok()?);
            // The coordinate takes the place of the axis whose steps are one.
            let (replaced, other) = if distance == 1 { (*term, *row) } else { (*row, *term) };
            if step.min(distance) != 1 {
                return None;
            }
            let extent = step * (block.extent(*row) - 1) + distance * (block.extent(*term) - 1) + 1;
            let (var, value) = exprs.fresh_index("place", extent);
            let zero = exprs.index(0);
            window = substitute(exprs, window, &[(replaced, value), (other, zero)]);
            let (row_value, term_value) = (exprs.var(*row), exprs.var(*term));
            let row_part = exprs.mul_const(row_value, step as i64);
            let term_part = exprs.mul_const(term_value, distance as i64);
            original.push((var, exprs.add2(row_part, term_part)));
            coordinates.push(Coordinate {
                var,
                extent,
                row: Some((*row, step)),
                term: Some((*term, distance)),
            });
        }
        if coordinates.is_empty() {
            return None;
        }
        for (axes, is_row) in [(&rows, true), (&terms, false)] {
            for &axis in axes {
                let is_paired = |at: &Coordinate| {
                    at.row.is_some_and(|it| it.0 == axis) || at.term.is_some_and(|it| it.0 == axis)
                };
                if coordinates.iter().any(is_paired) {
                    continue;
                }
                let extent = block.extent(axis);
                let (var, value) = exprs.fresh_index("place", extent);
                window = substitute(exprs, window, &[(axis, value)]);
                original.push((var, exprs.var(axis)));
                let (row, term) = if is_row { (Some((axis, 1)), None) } else { (None, Some((axis, 1))) };
                coordinates.push(Coordinate { var, extent, row, term });
            }
        }
        let window = simplify(exprs, window);
        let back = substitute(exprs, window, &original);
        if simplify(exprs, back) != operand {
            return None;
        }
        order(block, exprs, window, &mut coordinates)?;
        let line_axis = *rows.first()?;
        let line = coordinates.iter().position(|at| at.row.is_some_and(|it| it.0 == line_axis))?;
        let line_rows = rows[1..].iter().map(|&axis| block.extent(axis)).product();
        let row_run = block.extent(*rows.last()?);
        let mut window = Self { operand: window, coordinates, line_rows, line, row_run, term_run: 1 };
        window.term_run = window.terms(block, form, &window.strides(block, TILE_ROWS).0).run;
        let is_small = window.size(block).elems_of(TILE_ROWS) <= MOST_ELEMS_OF_TILE;
        (is_small && line + 1 < window.coordinates.len()).then_some(window)
    }

    /// Steps along the coordinate of lines from one line to the next.
    pub fn line_step(&self) -> usize {
        self.coordinates[self.line].row.map_or(1, |(_, step)| step)
    }

    /// How much of it blocks of rows take.
    pub fn size(&self, block: &BlockProgram) -> WindowSize {
        let line = &self.coordinates[self.line];
        let (axis, step) = line.row.expect("lines are rows");
        let lines = block.extent(axis);
        let others = (0..self.coordinates.len()).filter(|&at| at != self.line);
        WindowSize {
            line_rows: self.line_rows,
            lines,
            step,
            first: line.extent - step * (lines - 1),
            step_elems: others.map(|at| self.scratch_extent(at)).product(),
            run: self.term_run,
            row_run: self.row_run,
        }
    }

    /// Elements along a coordinate in scratch: rows that would share places of the caches are moved apart.
    fn scratch_extent(&self, at: usize) -> usize {
        const ALIASING_ELEMS: usize = 256;
        const LINE_ELEMS: usize = 16;
        let coordinate = &self.coordinates[at];
        let is_innermost = at + 1 == self.coordinates.len();
        let aliases = coordinate.extent.is_multiple_of(ALIASING_ELEMS);
        coordinate.extent + if is_innermost && coordinate.row.is_none() && aliases { LINE_ELEMS } else { 0 }
    }

    /// Elements between neighbours along each coordinate in scratch for blocks of so many rows, and all elements.
    pub fn strides(&self, block: &BlockProgram, block_rows: usize) -> (Vec<usize>, usize) {
        let steps = self.size(block).steps_of(block_rows);
        let mut strides = vec![0; self.coordinates.len()];
        let mut elems = 1;
        for at in (0..self.coordinates.len()).rev() {
            strides[at] = elems;
            elems *= if at == self.line { steps } else { self.scratch_extent(at) };
        }
        (strides, elems)
    }

    /// The terms as loops over scratch with these strides.
    pub fn terms(&self, block: &BlockProgram, form: &ContractionForm, strides: &[usize]) -> TermLoops {
        let mut outer = Vec::new();
        for axis in long(block, &form.k) {
            let mut at = self.coordinates.iter().zip(strides);
            let stride =
                at.find_map(|(place, stride)| place.term.filter(|it| it.0 == axis).map(|it| it.1 * stride));
            outer.push((block.extent(axis), stride.unwrap_or(0) as i64));
        }
        let (mut run, stride) = outer.pop().unwrap_or((1, 1));
        while let Some((extent, next)) = outer.pop_if(|(_, next)| *next == run as i64 * stride) {
            debug_assert_eq!(next, run as i64 * stride);
            run *= extent;
        }
        TermLoops { outer, run, stride }
    }
}

/// The loops over K of a row: runs of terms at equal distances inside of others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TermLoops {
    /// Extents, and elements between neighbours, of the axes outside of a run.
    pub outer: Vec<(usize, i64)>,
    /// Terms of a run.
    pub run: usize,
    /// Elements between neighbours of a run.
    pub stride: i64,
}

/// Axes of more than one value.
fn long(block: &BlockProgram, axes: &[VarId]) -> Vec<VarId> {
    axes.iter().copied().filter(|&axis| block.extent(axis) > 1).collect()
}

/// Puts coordinates in the order of the memory that the operand's first read goes through.
fn order(
    block: &BlockProgram,
    exprs: &mut Exprs,
    window: ExprId,
    coordinates: &mut [Coordinate],
) -> Option<()> {
    let (arg, index) = exprs.reachable(&[window]).into_iter().find_map(|id| match exprs.get(id) {
        Expr::Read { arg, index, .. } => Some((*arg, index.clone())),
        _ => None,
    })?;
    let strides = block.arg(arg).layout.strides(&block.arg(arg).shape);
    let offset = exprs.linear_index(&index, &strides);
    let mut simplifier = Simplifier::new();
    let mut keyed = Vec::new();
    for coordinate in coordinates.iter() {
        keyed.push((simplifier.stride(exprs, offset, coordinate.var)?, *coordinate));
    }
    keyed.sort_by_key(|&(stride, _)| std::cmp::Reverse(stride));
    for (place, (_, coordinate)) in coordinates.iter_mut().zip(keyed) {
        *place = coordinate;
    }
    Some(())
}
