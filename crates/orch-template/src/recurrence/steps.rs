//! Steps of recurrences, for every target: their order, the products of each, and the states that they leave.

use super::cell::CellOutputs;
use orch_compute::expr::{ExprId, Exprs};
use orch_compute::recurrence::RecurrenceProgram;
use orch_ir::{DType, RnnCell, RnnDirection};

/// A step of a loop over time.
#[derive(Clone, Copy)]
pub(crate) struct TimeStep {
    /// Its place in time.
    pub time: ExprId,
    /// Offset of the hidden states before the step, which two buffers in one hold by turns.
    pub before: ExprId,
    /// Offset of those after it.
    pub after: ExprId,
}

/// The accumulators of some gates with one operand.
pub(crate) struct Pass {
    /// The gates.
    pub gates: Vec<usize>,
    /// Whether the operand is the hidden state times the reset gate, which an earlier pass computes.
    pub resets_operand: bool,
}

/// The passes of a step.
pub(crate) fn passes(cell: RnnCell) -> Vec<Pass> {
    match cell {
        RnnCell::Gru { linear_before_reset: false } => vec![
            Pass { gates: vec![0, 1], resets_operand: false },
            Pass { gates: vec![2], resets_operand: true },
        ],
        cell => vec![Pass { gates: (0..cell.gates()).collect(), resets_operand: false }],
    }
}

/// The place in time of a step in a direction.
pub(crate) fn time_of(
    exprs: &mut Exprs,
    recurrence: &RecurrenceProgram,
    direction: ExprId,
    step: ExprId,
) -> ExprId {
    let orders = &recurrence.spec.directions;
    let last = exprs.index(recurrence.extents.time as i64 - 1);
    let from_end = exprs.sub(last, step);
    let place = |order| if order == RnnDirection::Forward { step } else { from_end };
    let mut time = place(orders[0]);
    for (number, &order) in orders.iter().enumerate().skip(1).filter(|(_, order)| **order != orders[0]) {
        let number = exprs.index(number as i64);
        let is_own = exprs.eq(direction, number);
        time = exprs.select(is_own, place(order), time);
    }
    time
}

/// What a step leaves.
pub(crate) struct StatesAfter {
    /// The hidden state.
    pub hidden: ExprId,
    /// The cell state of an LSTM.
    pub cell: Option<ExprId>,
    /// The step's result.
    pub shown: ExprId,
}

/// The states of a cell, rounded to the type that the graph states. Past a sequence's length they are those before the step,
/// and the result is 0; `limit` is the step's time and the length.
pub(crate) fn states_after(
    exprs: &mut Exprs,
    dtype: DType,
    (hidden, cell): (ExprId, Option<ExprId>),
    outputs: &CellOutputs,
    limit: Option<(ExprId, ExprId)>,
) -> StatesAfter {
    let ty = exprs.ty(hidden);
    let rounded = |exprs: &mut Exprs, value| {
        let narrow = exprs.cast(dtype, value);
        exprs.cast(ty.dtype, narrow)
    };
    let next = rounded(exprs, outputs.hidden);
    let next_cell = outputs.cell.map(|cell| rounded(exprs, cell));
    let Some((time, length)) = limit else {
        return StatesAfter { hidden: next, cell: next_cell, shown: next };
    };
    let length = exprs.cast(DType::I64, length);
    let runs = exprs.lt(time, length);
    let zero = exprs.zero(ty.dtype);
    let zeros = exprs.splat(zero, ty.lanes);
    StatesAfter {
        hidden: exprs.select(runs, next, hidden),
        cell: next_cell.zip(cell).map(|(next, before)| exprs.select(runs, next, before)),
        shown: exprs.select(runs, next, zeros),
    }
}
