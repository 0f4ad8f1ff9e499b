//! Recurrences of RNN, GRU and LSTM, as [`Recurrence`] defines them. A step is computed in `f64`, then the state is rounded to
//! the element type. Results past a sequence's length are 0; a reverse pass starts at each sequence's own end.

mod activation;
mod cell;

use crate::EvalError;
use crate::element::{Element, indices, with_element};
use crate::scalar::Calc;
use cell::{Cell, State};
use orch_ir::{DType, Recurrence, RecurrenceExtents, RecurrenceOperand, RnnDirection, Tensor};

/// The results of a recurrence whose operands inference has accepted.
///
/// # Errors
/// If the operands are not those of the recurrence.
pub fn recurrence(spec: &Recurrence, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
    let extents = spec
        .extents(inputs[0].shape(), inputs[1].shape())
        .map_err(|error| EvalError::operation("recurrence", error.to_string()))?;
    let operands = Operands::of(spec, inputs, extents);
    let mut results = Results::zeros(extents);
    for direction in 0..extents.directions {
        let cell = Cell {
            kind: spec.cell,
            hidden: extents.hidden,
            clip: spec.clip,
            activations: spec.activations_of(direction),
            recurrence: part(&operands.r, direction, extents.directions),
            candidate_bias: part(&operands.candidate_bias, direction, extents.directions),
            peepholes: part(&operands.peepholes, direction, extents.directions),
        };
        for batch in 0..extents.batch {
            let at = Sequence { direction, batch, order: spec.directions[direction] };
            run_sequence(&operands, &cell, &at, &mut results);
        }
    }
    Ok(results.tensors(spec, extents, operands.dtype))
}

/// One sequence in one direction.
struct Sequence {
    direction: usize,
    batch: usize,
    order: RnnDirection,
}

fn run_sequence(operands: &Operands, cell: &Cell<'_>, at: &Sequence, results: &mut Results) {
    let RecurrenceExtents { batch, directions, hidden, .. } = operands.extents;
    let own = (at.direction * batch + at.batch) * hidden;
    let initial = |values: &[f64]| match values.get(own..own + hidden) {
        Some(state) => state.to_vec(),
        None => vec![0.0; hidden],
    };
    let mut state = State { hidden: initial(&operands.h0), cell: initial(&operands.c0) };
    let length = operands.lengths[at.batch];
    let gates = cell.kind.gates() * hidden;
    for step in 0..length {
        let time = match at.order {
            RnnDirection::Forward => step,
            RnnDirection::Reverse => length - 1 - step,
        };
        // [t, b, d]
        let place = (time * batch + at.batch) * directions + at.direction;
        state = cell.step(&operands.x[place * gates..][..gates], &state);
        state.hidden.iter_mut().chain(&mut state.cell).for_each(|v| *v = round(operands.dtype, *v));
        results.y[place * hidden..][..hidden].copy_from_slice(&state.hidden);
    }
    results.h_last[own..own + hidden].copy_from_slice(&state.hidden);
    results.c_last[own..own + hidden].copy_from_slice(&state.cell);
}

/// The value rounded to the element type.
fn round(dtype: DType, value: f64) -> f64 {
    with_element!(dtype, T => T::from_f64(value).widen().to_f64())
}

/// The part of an operand that belongs to one direction; nothing of an operand that is left out.
fn part(values: &[f64], direction: usize, directions: usize) -> &[f64] {
    let size = values.len() / directions;
    &values[direction * size..][..size]
}

/// Operands in `f64`; those that are left out are empty.
struct Operands {
    dtype: DType,
    extents: RecurrenceExtents,
    lengths: Vec<usize>,
    x: Vec<f64>,
    r: Vec<f64>,
    h0: Vec<f64>,
    c0: Vec<f64>,
    peepholes: Vec<f64>,
    candidate_bias: Vec<f64>,
}

impl Operands {
    fn of(spec: &Recurrence, inputs: &[&Tensor], extents: RecurrenceExtents) -> Self {
        let tensor = |operand| spec.position(operand).map(|at| inputs[at]);
        let values = |operand| tensor(operand).map(Tensor::to_f64).unwrap_or_default();
        let lengths = match tensor(RecurrenceOperand::Lengths) {
            Some(lengths) => indices(lengths, extents.time + 1),
            None => vec![extents.time; extents.batch],
        };
        Self {
            dtype: inputs[0].dtype(),
            extents,
            lengths,
            x: inputs[0].to_f64(),
            r: inputs[1].to_f64(),
            h0: values(RecurrenceOperand::InitialHidden),
            c0: values(RecurrenceOperand::InitialCell),
            peepholes: values(RecurrenceOperand::Peepholes),
            candidate_bias: values(RecurrenceOperand::CandidateBias),
        }
    }
}

/// Results in `f64`.
struct Results {
    y: Vec<f64>,
    h_last: Vec<f64>,
    c_last: Vec<f64>,
}

impl Results {
    fn zeros(extents: RecurrenceExtents) -> Self {
        let state = extents.directions * extents.batch * extents.hidden;
        Self { y: vec![0.0; extents.time * state], h_last: vec![0.0; state], c_last: vec![0.0; state] }
    }

    fn tensors(&self, spec: &Recurrence, extents: RecurrenceExtents, dtype: DType) -> Vec<Tensor> {
        let RecurrenceExtents { time, batch, directions, hidden } = extents;
        let state = [directions, batch, hidden];
        let mut results = vec![
            Tensor::from_f64(dtype, [time, batch, directions, hidden], &self.y),
            Tensor::from_f64(dtype, state, &self.h_last),
        ];
        if spec.cell.has_cell_state() {
            results.push(Tensor::from_f64(dtype, state, &self.c_last));
        }
        results
    }
}
