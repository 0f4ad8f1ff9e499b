//! Random recurrences.

use super::{Generator, TensorFacts};
use crate::{
    Activation, ActivationFn, DType, PrimOp, Recurrence, RecurrenceOperand, RnnCell, RnnDirection, TensorId,
};

/// A recurrence of any cell over a few steps, with constant weights.
pub fn recurrence(g: &mut Generator<'_>) -> Option<TensorId> {
    let cell = *g.rng.choose(&[
        RnnCell::Rnn,
        RnnCell::Gru { linear_before_reset: true },
        RnnCell::Gru { linear_before_reset: false },
        RnnCell::Lstm { input_forget: false },
    ]);
    let (gates, time) = (cell.gates(), 1 + g.rng.below(4));
    let directions: &[RnnDirection] = match g.rng.below(3) {
        0 => &[RnnDirection::Forward],
        1 => &[RnnDirection::Reverse],
        _ => &[RnnDirection::Forward, RnnDirection::Reverse],
    };
    let (batch, hidden) = (g.extent(), *g.rng.choose(&[1, 3, 8, 17]));
    let dtype = *g.rng.choose(&g.options.dtypes);
    let d = directions.len();
    let x = recurrence_input(g, dtype, &[time, batch, d, gates * hidden]);
    let r = g.floats(dtype, &[d, hidden, gates * hidden], -0.5, 0.5);
    let (mut inputs, mut operands) = (vec![x, r], Vec::new());
    if g.rng.one_in(2) {
        operands.push(RecurrenceOperand::InitialHidden);
        inputs.push(g.floats(dtype, &[d, batch, hidden], -1.0, 1.0));
    }
    if cell.has_cell_state() && g.rng.one_in(2) {
        operands.push(RecurrenceOperand::Peepholes);
        inputs.push(g.floats(dtype, &[d, 3, hidden], -0.5, 0.5));
    }
    if g.rng.one_in(3) {
        operands.push(RecurrenceOperand::Lengths);
        inputs.push(g.integers(DType::I32, &[batch], 0, time as i64));
    }
    let functions: &[ActivationFn] = match cell {
        RnnCell::Rnn => &[ActivationFn::Tanh],
        RnnCell::Gru { .. } => &[ActivationFn::Sigmoid, ActivationFn::Tanh],
        RnnCell::Lstm { .. } => &[ActivationFn::Sigmoid, ActivationFn::Tanh, ActivationFn::Softsign],
    };
    let activation = |&function: &ActivationFn| Activation { function, alpha: 0.0, beta: 0.0 };
    let op = Recurrence {
        cell,
        directions: directions.to_vec(),
        activations: functions.iter().map(activation).collect::<Vec<_>>().repeat(d),
        clip: if g.rng.one_in(2) { Some(2.0) } else { None },
        operands,
    };
    let reach = time as f64 + 2.0;
    let facts = [TensorFacts::rounded(-reach, reach); 3];
    let results = if cell.has_cell_state() { 3 } else { 2 };
    g.add_all(PrimOp::Recurrence(Box::new(op)), &inputs, &facts[..results]).map(|results| results[0])
}

/// An existing tensor of this type and shape, or a constant.
fn recurrence_input(g: &mut Generator<'_>, dtype: DType, shape: &[usize]) -> TensorId {
    let existing = g.pick(|graph, id, facts| {
        graph.dtype(id) == dtype && graph.shape(id)[..] == *shape && facts.magnitude() <= 10.0
    });
    existing.unwrap_or_else(|| g.floats(dtype, shape, -2.0, 2.0))
}
