//! Recurrences over time: what remains of RNN, GRU and LSTM layers once the product of all inputs with the input
//! weights is a contraction.
//!
//! Operands (`t` steps, `b` sequences, `d` directions, `h` hidden units, `g` gates of the cell):
//!
//! - `x [t, b, d, g*h]`: the input's part of every gate, biases added: `X W^T + b`;
//! - `r [d, h, g*h]`: the recurrence weights, `r[., k, n]` is the weight of unit `k` in row `n` of the gates;
//! - those that [`Recurrence::operands`] lists, in that order.
//!
//! Results: `y [t, b, d, h]`, the hidden state after every step; `[d, b, h]`, the hidden state after the last one; for LSTM
//! `[d, b, h]`, the cell state after the last one. Steps past a sequence's length leave the state as it is, and their `y` is 0.
//!
//! With `s = h_{t-1} r` and gates in ONNX's order, each activation of a clipped argument (RNN `f`; GRU `f g`; LSTM `f g h`,
//! of which `h` is not clipped):
//!
//! ```text
//! RNN:   h' = f(x + s)
//! GRU:   z = f(x_z + s_z), r = f(x_r + s_r), n = g(x_n + (r h_{t-1}) r_n), or g(x_n + r (s_n + candidate_bias))
//!        h' = (1 - z) n + z h_{t-1}
//! LSTM:  i = f(x_i + s_i + p_i c), f = f(x_f + s_f + p_f c), c' = f c + i g(x_c + s_c)
//!        o = f(x_o + s_o + p_o c'), h' = o h(c')
//! ```

use crate::infer::InferError;
use crate::{DType, Shape};

/// A recurrence: see the [module](self).
#[derive(Clone, PartialEq, Debug)]
pub struct Recurrence {
    /// The cell.
    pub cell: RnnCell,
    /// Of each direction the order of steps.
    pub directions: Vec<RnnDirection>,
    /// Per direction those of the cell.
    pub activations: Vec<Activation>,
    /// Arguments of activations are clipped to `-clip..clip`.
    pub clip: Option<f64>,
    /// The operands after the first two: sorted, distinct.
    pub operands: Vec<RecurrenceOperand>,
}

/// The kinds of recurrent cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each variant documents its fields")]
pub enum RnnCell {
    /// Elman cell.
    Rnn,
    /// Gated recurrent unit, gates `z r n`. With `linear_before_reset` the reset gate multiplies the product with the
    /// recurrence weights, otherwise its operand.
    Gru { linear_before_reset: bool },
    /// Long short-term memory, gates `i o f c`. With `input_forget` the forget gate is `1 - i`.
    Lstm { input_forget: bool },
}

/// Direction of one recurrent pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RnnDirection {
    /// First element first.
    Forward,
    /// Last element first.
    Reverse,
}

/// Operands that a recurrence may have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RecurrenceOperand {
    /// `[d, b, h]`: the hidden state before the first step; 0 without it.
    InitialHidden,
    /// `[d, b, h]`, LSTM: the cell state before the first step; 0 without it.
    InitialCell,
    /// `[d, 3, h]`, LSTM: weights of the cell state in the gates `i o f`; 0 without it.
    Peepholes,
    /// `[d, h]`, GRU with `linear_before_reset`: added to the candidate's product; 0 without it.
    CandidateBias,
    /// `[b]`, integers: the steps of each sequence; all without it.
    Lengths,
}

/// An activation of a cell.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Activation {
    /// The function.
    pub function: ActivationFn,
    /// Its first parameter; 0 if it has none.
    pub alpha: f64,
    /// Its second parameter; 0 if it has none.
    pub beta: f64,
}

/// Functions of `x` and the parameters `a` and `b`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActivationFn {
    /// `max(x, 0)`.
    Relu,
    /// `tanh(x)`.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `ln(1 + exp(x))`.
    Softplus,
    /// `a x + b`.
    Affine,
    /// `x` from 0 on, otherwise `a x`.
    LeakyRelu,
    /// `x` from `a` on, otherwise 0.
    ThresholdedRelu,
    /// `a tanh(b x)`.
    ScaledTanh,
    /// `a x + b` within 0 and 1.
    HardSigmoid,
    /// `x` from 0 on, otherwise `a (exp(x) - 1)`.
    Elu,
}

/// A tensor type.
type Type<'a> = (DType, &'a Shape);

impl RnnCell {
    /// Gates: row blocks of the weights.
    pub fn gates(self) -> usize {
        match self {
            RnnCell::Rnn => 1,
            RnnCell::Gru { .. } => 3,
            RnnCell::Lstm { .. } => 4,
        }
    }

    /// Activations of one direction.
    pub fn activations(self) -> usize {
        match self {
            RnnCell::Rnn => 1,
            RnnCell::Gru { .. } => 2,
            RnnCell::Lstm { .. } => 3,
        }
    }

    /// The name in text forms.
    pub fn name(self) -> &'static str {
        match self {
            RnnCell::Rnn => "rnn",
            RnnCell::Gru { .. } => "gru",
            RnnCell::Lstm { .. } => "lstm",
        }
    }

    /// True for the cell that has a cell state beside the hidden state.
    pub fn has_cell_state(self) -> bool {
        matches!(self, RnnCell::Lstm { .. })
    }
}

impl RnnDirection {
    /// The name in text forms.
    pub fn name(self) -> &'static str {
        match self {
            RnnDirection::Forward => "forward",
            RnnDirection::Reverse => "reverse",
        }
    }
}

impl RecurrenceOperand {
    /// Every operand, in order.
    pub const ALL: [RecurrenceOperand; 5] = [
        RecurrenceOperand::InitialHidden,
        RecurrenceOperand::InitialCell,
        RecurrenceOperand::Peepholes,
        RecurrenceOperand::CandidateBias,
        RecurrenceOperand::Lengths,
    ];

    /// The name in text forms.
    pub fn name(self) -> &'static str {
        match self {
            RecurrenceOperand::InitialHidden => "initial_hidden",
            RecurrenceOperand::InitialCell => "initial_cell",
            RecurrenceOperand::Peepholes => "peepholes",
            RecurrenceOperand::CandidateBias => "candidate_bias",
            RecurrenceOperand::Lengths => "lengths",
        }
    }

    /// Whether a cell may have it.
    fn suits(self, cell: RnnCell) -> bool {
        match self {
            RecurrenceOperand::InitialHidden | RecurrenceOperand::Lengths => true,
            RecurrenceOperand::InitialCell | RecurrenceOperand::Peepholes => cell.has_cell_state(),
            RecurrenceOperand::CandidateBias => cell == RnnCell::Gru { linear_before_reset: true },
        }
    }

    fn dims(self, extents: RecurrenceExtents) -> Vec<usize> {
        let RecurrenceExtents { batch, directions, hidden, .. } = extents;
        match self {
            RecurrenceOperand::InitialHidden | RecurrenceOperand::InitialCell => {
                vec![directions, batch, hidden]
            }
            RecurrenceOperand::Peepholes => vec![directions, 3, hidden],
            RecurrenceOperand::CandidateBias => vec![directions, hidden],
            RecurrenceOperand::Lengths => vec![batch],
        }
    }
}

impl ActivationFn {
    /// Every function.
    pub const ALL: [ActivationFn; 11] = [
        ActivationFn::Relu,
        ActivationFn::Tanh,
        ActivationFn::Sigmoid,
        ActivationFn::Softsign,
        ActivationFn::Softplus,
        ActivationFn::Affine,
        ActivationFn::LeakyRelu,
        ActivationFn::ThresholdedRelu,
        ActivationFn::ScaledTanh,
        ActivationFn::HardSigmoid,
        ActivationFn::Elu,
    ];

    /// The name in text forms: ONNX's, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            ActivationFn::Relu => "relu",
            ActivationFn::Tanh => "tanh",
            ActivationFn::Sigmoid => "sigmoid",
            ActivationFn::Softsign => "softsign",
            ActivationFn::Softplus => "softplus",
            ActivationFn::Affine => "affine",
            ActivationFn::LeakyRelu => "leakyrelu",
            ActivationFn::ThresholdedRelu => "thresholdedrelu",
            ActivationFn::ScaledTanh => "scaledtanh",
            ActivationFn::HardSigmoid => "hardsigmoid",
            ActivationFn::Elu => "elu",
        }
    }
}

/// The extents of a recurrence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecurrenceExtents {
    /// Steps.
    pub time: usize,
    /// Sequences.
    pub batch: usize,
    /// Directions.
    pub directions: usize,
    /// Hidden units.
    pub hidden: usize,
}

impl Recurrence {
    /// The activations of one direction.
    pub fn activations_of(&self, direction: usize) -> &[Activation] {
        let count = self.cell.activations();
        self.activations.get(direction * count..(direction + 1) * count).unwrap_or_default()
    }

    /// The position among the operands of an optional one.
    pub fn position(&self, operand: RecurrenceOperand) -> Option<usize> {
        self.operands.iter().position(|&other| other == operand).map(|at| at + 2)
    }

    /// The number of operands.
    pub fn arity(&self) -> usize {
        2 + self.operands.len()
    }

    /// The extents that the shapes of the first two operands state.
    ///
    /// # Errors
    /// If the shapes do not suit each other.
    pub fn extents(&self, x: &Shape, r: &Shape) -> Result<RecurrenceExtents, InferError> {
        let gates = self.cell.gates();
        let (&[time, batch, directions, rows], &[_, hidden, _]) = (x.dims(), r.dims()) else {
            return Err(InferError(format!("x is {x}, r is {r}; ranks 4 and 3 expected")));
        };
        let is_consistent = Some(rows) == hidden.checked_mul(gates)
            && r[..] == [directions, hidden, rows]
            && directions == self.directions.len();
        match is_consistent {
            true => Ok(RecurrenceExtents { time, batch, directions, hidden }),
            false => Err(InferError(format!(
                "x is {x}, r is {r} for {} directions and {gates} gates",
                self.directions.len()
            ))),
        }
    }

    /// The types of the results.
    ///
    /// # Errors
    /// If the operands do not suit the recurrence.
    pub fn infer(&self, inputs: &[Type<'_>]) -> Result<Vec<(DType, Shape)>, InferError> {
        let (&[(dtype, x), (_, r), ..], true) = (inputs, inputs.len() == self.arity()) else {
            return Err(InferError(format!("{} operands expected, {} given", self.arity(), inputs.len())));
        };
        let extents = self.extents(x, r)?;
        self.check_attributes()?;
        if !dtype.is_float() || inputs[1].0 != dtype {
            return Err(InferError(format!("x is {dtype}, r is {}", inputs[1].0)));
        }
        for (operand, (given, shape)) in self.operands.iter().zip(&inputs[2..]) {
            let is_typed = match operand {
                RecurrenceOperand::Lengths => given.is_int(),
                _ => *given == dtype,
            };
            let dims = operand.dims(extents);
            if !is_typed || shape[..] != dims[..] {
                let name = operand.name();
                return Err(InferError(format!("{name} is {given}{shape}, extents {dims:?} expected")));
            }
        }
        let RecurrenceExtents { time, batch, directions, hidden } = extents;
        let states = if self.cell.has_cell_state() { 2 } else { 1 };
        let all = vec![time, batch, directions, hidden];
        let state = vec![directions, batch, hidden];
        let typed = |dims: Vec<usize>| {
            let too_large = || InferError(format!("a result of shape {dims:?} is too large"));
            Shape::checked(dims.clone()).map(|shape| (dtype, shape)).ok_or_else(too_large)
        };
        std::iter::once(all).chain(vec![state; states]).map(typed).collect()
    }

    fn check_attributes(&self) -> Result<(), InferError> {
        let expected = self.directions.len() * self.cell.activations();
        if self.activations.len() != expected {
            return Err(InferError(format!("{} activations, {expected} expected", self.activations.len())));
        }
        let unsuited = self.operands.iter().find(|operand| !operand.suits(self.cell));
        if let Some(operand) = unsuited {
            return Err(InferError(format!("{} of a cell {}", operand.name(), self.cell.name())));
        }
        match self.operands.is_sorted_by(|a, b| a < b) {
            true => Ok(()),
            false => Err(InferError("operands are not in order".to_owned())),
        }
    }
}
