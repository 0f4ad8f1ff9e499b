//! One step of a recurrent cell.

use super::activation::Activation;
use orch_ir::RnnCell;

/// Gates of a cell: row blocks of its weights. GRU: `z r h`; LSTM: `i o f c`.
pub fn gates(kind: RnnCell) -> usize {
    match kind {
        RnnCell::Rnn => 1,
        RnnCell::Gru { .. } => 3,
        RnnCell::Lstm { .. } => 4,
    }
}

/// Activation functions of a cell.
pub fn activation_count(kind: RnnCell) -> usize {
    match kind {
        RnnCell::Rnn => 1,
        RnnCell::Gru { .. } => 2,
        RnnCell::Lstm { .. } => 3,
    }
}

/// What a cell passes from one step to the next.
pub struct State {
    /// The hidden state.
    pub hidden: Vec<f64>,
    /// The memory of an LSTM; empty for other cells.
    pub memory: Vec<f64>,
}

/// A cell with the weights of one direction.
pub struct Cell<'a> {
    pub kind: RnnCell,
    pub hidden: usize,
    pub clip: Option<f64>,
    pub activations: &'a [Activation],
    /// `[gates * hidden, input]`.
    pub weights: &'a [f64],
    /// `[gates * hidden, hidden]`.
    pub recurrence: &'a [f64],
    /// `[2 * gates * hidden]`: of the input, then of the recurrence.
    pub bias: &'a [f64],
    /// `[3 * hidden]`: `i o f`; LSTM only.
    pub peepholes: &'a [f64],
}

impl Cell<'_> {
    /// The state after input `x`.
    pub fn step(&self, x: &[f64], state: &State) -> State {
        match self.kind {
            RnnCell::Rnn => self.rnn(x, state),
            RnnCell::Gru { linear_before_reset } => self.gru(x, state, linear_before_reset),
            RnnCell::Lstm { input_forget } => self.lstm(x, state, input_forget),
        }
    }

    /// `h' = f(W x + Wb + R h + Rb)`.
    fn rnn(&self, x: &[f64], state: &State) -> State {
        let hidden = (0..self.hidden).map(|unit| {
            self.activate(0, self.input_term(0, unit, x) + self.recurrent_term(0, unit, &state.hidden))
        });
        State { hidden: hidden.collect(), memory: Vec::new() }
    }

    /// `z = f(..)`, `r = f(..)`, `h~ = g(..)` of the reset state, `h' = (1 - z) h~ + z h`.
    fn gru(&self, x: &[f64], state: &State, linear_before_reset: bool) -> State {
        let h = &state.hidden;
        let gate = |gate: usize, unit: usize| {
            self.activate(0, self.input_term(gate, unit, x) + self.recurrent_term(gate, unit, h))
        };
        let reset: Vec<f64> = (0..self.hidden).map(|unit| gate(1, unit)).collect();
        let reset_state: Vec<f64> = reset.iter().zip(h).map(|(r, h)| r * h).collect();
        let hidden = (0..self.hidden).map(|unit| {
            let recurrent = if linear_before_reset {
                reset[unit] * self.recurrent_term(2, unit, h)
            } else {
                self.recurrent_term(2, unit, &reset_state)
            };
            let candidate = self.activate(1, self.input_term(2, unit, x) + recurrent);
            let update = gate(0, unit);
            (1.0 - update) * candidate + update * h[unit]
        });
        State { hidden: hidden.collect(), memory: Vec::new() }
    }

    /// `i`, `f`, `o = f(..)` with peepholes, `c~ = g(..)`, `c' = f c + i c~`, `h' = o h(c')`. The clip threshold holds for
    /// the gates, not for the memory.
    fn lstm(&self, x: &[f64], state: &State, input_forget: bool) -> State {
        let mut next = State { hidden: Vec::new(), memory: Vec::new() };
        for unit in 0..self.hidden {
            let sum =
                |gate: usize| self.input_term(gate, unit, x) + self.recurrent_term(gate, unit, &state.hidden);
            let peephole = |gate: usize| self.peepholes[gate * self.hidden + unit];
            let memory = state.memory[unit];
            let input = self.activate(0, sum(0) + peephole(0) * memory);
            let forget =
                if input_forget { 1.0 - input } else { self.activate(0, sum(2) + peephole(2) * memory) };
            let memory = forget * memory + input * self.activate(1, sum(3));
            let output = self.activate(0, sum(1) + peephole(1) * memory);
            next.memory.push(memory);
            next.hidden.push(output * self.activations[2].apply(memory));
        }
        next
    }

    /// One row of `W x + Wb`.
    fn input_term(&self, gate: usize, unit: usize, x: &[f64]) -> f64 {
        let row = gate * self.hidden + unit;
        self.bias[row] + dot(&self.weights[row * x.len()..], x)
    }

    /// One row of `R h + Rb`.
    fn recurrent_term(&self, gate: usize, unit: usize, h: &[f64]) -> f64 {
        let row = gate * self.hidden + unit;
        self.bias[self.bias.len() / 2 + row] + dot(&self.recurrence[row * self.hidden..], h)
    }

    /// An activation of the clipped value.
    fn activate(&self, index: usize, value: f64) -> f64 {
        let clipped = match self.clip {
            // NaN stays NaN: min and max would replace it by a bound.
            Some(clip) if !value.is_nan() => value.max(-clip).min(clip),
            _ => value,
        };
        self.activations[index].apply(clipped)
    }
}

/// The inner product of `x` with the first elements of `row`.
fn dot(row: &[f64], x: &[f64]) -> f64 {
    row.iter().zip(x).map(|(a, b)| a * b).sum()
}
