//! What it takes to bring the operands of a contraction to where its register tiles read them.

use super::form::ContractionForm;
use super::linear::read_offsets;
use super::math_unit::CpuMathUnit;
use crate::design::CannotLower;
use orch_compute::block::{ArgRole, BlockProgram};
use orch_compute::expr::{ExprId, LaneGroup, VarId};
use orch_compute::simplify::Simplifier;

/// The form of a contraction that this template serves on CPUs.
///
/// One row times an operand that has neighbours along K is a row of dot products in vectors along K, for which nothing is packed: that is
/// left to nests of loops. Constants are packed once, when the program is compiled.
///
/// # Errors
/// If the program is no contraction, or such a row.
pub fn cpu_form(block: &BlockProgram) -> Result<ContractionForm, CannotLower> {
    let form = ContractionForm::of(block)?;
    let is_row = form.m.iter().all(|&axis| block.extent(axis) == 1);
    if !is_row {
        return Ok(form);
    }
    let reads = read_offsets(block, &mut block.exprs.clone(), form.b);
    let is_constant = reads.iter().all(|&(arg, _)| block.arg(arg).role == ArgRole::Constant);
    if !is_constant && AlongK::of(block, &form).is_some() {
        return Err(CannotLower::NotThisTemplate("a row of dot products along memory"));
    }
    Ok(form)
}

/// Elements that a contraction computes into scratch before it multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PackingWork {
    /// Vector lanes that are filled, idle ones included.
    pub lanes: u64,
    /// Elements that are fetched one at a time, since their neighbours in the vector are not neighbours in memory.
    pub gathered: u64,
    /// Elements that are loaded in vectors along another axis and transposed in registers.
    pub transposed: u64,
}

impl PackingWork {
    /// The same where elements are transposed in place of gathered, but for a last line of an odd number.
    pub(super) fn transposing(self, lines: usize) -> Self {
        let gathered = self.gathered / lines as u64 * (lines % 2) as u64;
        Self { gathered, transposed: self.gathered - gathered, ..self }
    }

    /// The work for two operands.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            lanes: self.lanes + other.lanes,
            gathered: self.gathered + other.gathered,
            transposed: self.transposed + other.transposed,
        }
    }
}

/// Fewest elements that are loaded together to be transposed.
const LEAST_RUN: i64 = 4;

/// The K axes of an operand, outermost first as they lie in memory: its elements are neighbours along them, and not along columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AlongK {
    /// The axes.
    pub axes: Vec<VarId>,
}

impl AlongK {
    /// The same where panels for this unit are filled in vectors along K: pairs of bf16 only if memory has them side by side.
    pub fn of_panels(block: &BlockProgram, form: &ContractionForm, math_unit: CpuMathUnit) -> Option<Self> {
        Self::of(block, form).filter(|along| math_unit.group() == LaneGroup::One || along.axes == form.k)
    }

    /// The K axes of the second operand, if its elements are neighbours along all of them, and some, and not along columns.
    pub fn of(block: &BlockProgram, form: &ContractionForm) -> Option<Self> {
        let mut exprs = block.exprs.clone();
        let mut simplifier = Simplifier::new();
        let mut order = None;
        for (_, offset) in read_offsets(block, &mut exprs, form.b) {
            let mut stride = |axis| simplifier.stride(&mut exprs, offset, axis);
            if form.n.last().is_none_or(|&column| matches!(stride(column), Some(0 | 1))) {
                return None;
            }
            let strides = form.k.iter().map(|&axis| Some((stride(axis)?, axis)));
            let mut strides = strides.collect::<Option<Vec<(i64, VarId)>>>()?;
            strides.sort_by_key(|&(stride, _)| std::cmp::Reverse(stride));
            let mut next = 1;
            for &(stride, axis) in strides.iter().rev().filter(|(_, axis)| block.extent(*axis) > 1) {
                if stride != next {
                    return None;
                }
                next *= block.extent(axis) as i64;
            }
            let axes: Vec<VarId> = strides.into_iter().map(|(_, axis)| axis).collect();
            if next < LEAST_RUN || order.as_ref().is_some_and(|other| *other != axes) {
                return None;
            }
            order = Some(axes);
        }
        order.map(|axes| Self { axes })
    }
}

/// How a work item's rows lie in scratch. They are filled in vectors along the inner coordinate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowOrder {
    /// `[block row][k]`: right where the elements of a row along K are neighbours in memory.
    KInner,
    /// `[k][block row]`: right where rows are, as pixels of a channels-first image.
    RowsInner,
}

/// The order of scratch rows that takes less to fill.
pub(super) fn row_order(block: &BlockProgram, form: &ContractionForm, lanes: usize) -> RowOrder {
    let (Some(&term), Some(&row)) = (form.k.last(), form.m.last()) else { return RowOrder::KInner };
    let cost = |along| {
        let fill = operand_packing(block, form.a, along, lanes);
        fill.lanes + GATHERED_LANES * fill.gathered
    };
    if cost(row) < cost(term) { RowOrder::RowsInner } else { RowOrder::KInner }
}

/// Lanes that could be filled while one element is gathered.
const GATHERED_LANES: u64 = 8;

/// Filling one operand in vectors along an axis.
pub(super) fn operand_packing(
    block: &BlockProgram,
    factor: ExprId,
    along: VarId,
    lanes: usize,
) -> PackingWork {
    let mut exprs = block.exprs.clone();
    let points: u64 = exprs.free_vars(factor).iter().map(|&axis| block.extent(axis) as u64).product();
    let extent = block.extent(along).max(1);
    let used = points / extent as u64 * extent.next_multiple_of(lanes) as u64;
    let mut simplifier = Simplifier::new();
    let mut fill = PackingWork { lanes: used, ..PackingWork::default() };
    for (_, offset) in read_offsets(block, &mut exprs, factor) {
        let is_together = matches!(simplifier.stride(&mut exprs, offset, along), Some(0 | 1));
        fill.gathered += if is_together { 0 } else { points };
    }
    fill
}
