//! One step of a recurrent cell.

use super::activation::apply;
use orch_ir::{Activation, RnnCell};

/// What a cell passes from one step to the next.
pub struct State {
    /// The hidden state.
    pub hidden: Vec<f64>,
    /// The cell state of an LSTM; zeros for other cells.
    pub cell: Vec<f64>,
}

/// A cell with the weights of one direction.
pub struct Cell<'a> {
    pub kind: RnnCell,
    pub hidden: usize,
    pub clip: Option<f64>,
    pub activations: &'a [Activation],
    /// `[hidden, gates * hidden]`.
    pub recurrence: &'a [f64],
    /// `[hidden]`, GRU only; may be empty.
    pub candidate_bias: &'a [f64],
    /// `[3, hidden]`: `i o f`, LSTM only; may be empty.
    pub peepholes: &'a [f64],
}

impl Cell<'_> {
    /// The state after a step, whose input gives `x [gates * hidden]` to the gates.
    pub fn step(&self, x: &[f64], state: &State) -> State {
        match self.kind {
            RnnCell::Rnn => self.rnn(x, state),
            RnnCell::Gru { linear_before_reset } => self.gru(x, state, linear_before_reset),
            RnnCell::Lstm { input_forget } => self.lstm(x, state, input_forget),
        }
    }

    /// `h' = f(x + R h)`.
    fn rnn(&self, x: &[f64], state: &State) -> State {
        let hidden =
            (0..self.hidden).map(|unit| self.activate(0, x[unit] + self.product(0, unit, &state.hidden)));
        State { hidden: hidden.collect(), cell: state.cell.clone() }
    }

    /// `z = f(..)`, `r = f(..)`, `n = g(..)` of the reset state, `h' = (1 - z) n + z h`.
    fn gru(&self, x: &[f64], state: &State, linear_before_reset: bool) -> State {
        let h = &state.hidden;
        let gate = |gate: usize, unit: usize| {
            self.activate(0, x[gate * self.hidden + unit] + self.product(gate, unit, h))
        };
        let reset: Vec<f64> = (0..self.hidden).map(|unit| gate(1, unit)).collect();
        let reset_state: Vec<f64> = reset.iter().zip(h).map(|(r, h)| r * h).collect();
        let hidden = (0..self.hidden).map(|unit| {
            let recurrent = if linear_before_reset {
                let bias = self.candidate_bias.get(unit).copied().unwrap_or(0.0);
                reset[unit] * (self.product(2, unit, h) + bias)
            } else {
                self.product(2, unit, &reset_state)
            };
            let candidate = self.activate(1, x[2 * self.hidden + unit] + recurrent);
            let update = gate(0, unit);
            (1.0 - update) * candidate + update * h[unit]
        });
        State { hidden: hidden.collect(), cell: state.cell.clone() }
    }

    /// `i`, `f`, `o = f(..)` with peepholes, `c' = f c + i g(..)`, `h' = o h(c')`. The clip threshold holds for the gates, not
    /// for the cell state.
    fn lstm(&self, x: &[f64], state: &State, input_forget: bool) -> State {
        let mut next = State { hidden: Vec::new(), cell: Vec::new() };
        for unit in 0..self.hidden {
            let sum = |gate: usize| x[gate * self.hidden + unit] + self.product(gate, unit, &state.hidden);
            let peephole = |gate: usize, cell: f64| match self.peepholes.get(gate * self.hidden + unit) {
                Some(weight) => weight * cell,
                None => 0.0,
            };
            let cell = state.cell[unit];
            let input = self.activate(0, sum(0) + peephole(0, cell));
            let forget =
                if input_forget { 1.0 - input } else { self.activate(0, sum(2) + peephole(2, cell)) };
            let cell = forget * cell + input * self.activate(1, sum(3));
            let output = self.activate(0, sum(1) + peephole(1, cell));
            next.cell.push(cell);
            next.hidden.push(output * apply(&self.activations[2], cell));
        }
        next
    }

    /// One unit of one gate of `h R`.
    fn product(&self, gate: usize, unit: usize, h: &[f64]) -> f64 {
        let rows = self.recurrence.len() / self.hidden;
        let column = gate * self.hidden + unit;
        h.iter().enumerate().map(|(k, h)| h * self.recurrence[k * rows + column]).sum()
    }

    /// An activation of the clipped value.
    fn activate(&self, index: usize, value: f64) -> f64 {
        let clipped = match self.clip {
            // NaN stays NaN: min and max would replace it by a bound.
            Some(clip) if !value.is_nan() => value.max(-clip).min(clip),
            _ => value,
        };
        apply(&self.activations[index], clipped)
    }
}
