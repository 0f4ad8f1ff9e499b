//! The cells of recurrences as expressions over hidden units, scalars or vectors, for every target.

use orch_compute::expr::{ExprId, Exprs};
use orch_ir::{Activation, ActivationFn, Recurrence, RnnCell, UnaryFn};
use orch_thread::program::Stmt;

/// What a cell computes from, at one hidden unit or a vector of them.
pub(crate) struct CellInputs<'a> {
    /// Of each gate the sum of its input part and its product with the hidden state. Of a GRU's candidate that is reset
    /// after the product, the product alone.
    pub accumulators: &'a [ExprId],
    /// The input part of that candidate.
    pub candidate_input: Option<ExprId>,
    /// What is added to its product.
    pub candidate_bias: Option<ExprId>,
    /// The hidden state before the step.
    pub hidden: ExprId,
    /// The cell state of an LSTM before the step.
    pub cell: Option<ExprId>,
    /// Weights of the cell state in the gates `i o f`.
    pub peepholes: Option<[ExprId; 3]>,
}

/// The states after a step.
pub(crate) struct CellOutputs {
    /// The hidden state.
    pub hidden: ExprId,
    /// The cell state of an LSTM.
    pub cell: Option<ExprId>,
}

/// Writes cells; intermediate values are bound in `body`.
pub(crate) struct CellWriter<'a> {
    /// The arena of the program.
    pub exprs: &'a mut Exprs,
    /// The statements so far.
    pub body: &'a mut Vec<Stmt>,
    /// The recurrence.
    pub spec: &'a Recurrence,
    /// The number of the direction.
    pub direction: ExprId,
}

impl CellWriter<'_> {
    /// The states after a step, of cells whose products all have the hidden state as operand.
    pub fn step(&mut self, inputs: &CellInputs<'_>) -> CellOutputs {
        match self.spec.cell {
            RnnCell::Rnn => {
                let hidden = self.gate("hidden", 0, inputs.accumulators[0]);
                CellOutputs { hidden, cell: None }
            }
            RnnCell::Gru { .. } => {
                let (update, reset) = (self.update(inputs), self.reset(inputs));
                let product = match inputs.candidate_bias {
                    Some(bias) => self.exprs.add2(inputs.accumulators[2], bias),
                    None => inputs.accumulators[2],
                };
                let recurrent = self.exprs.mul(reset, product);
                let sum = match inputs.candidate_input {
                    Some(x) => self.exprs.add2(x, recurrent),
                    None => recurrent,
                };
                self.updated(sum, update, inputs.hidden)
            }
            RnnCell::Lstm { input_forget } => self.lstm(inputs, input_forget),
        }
    }

    /// The update gate of a GRU.
    pub fn update(&mut self, inputs: &CellInputs<'_>) -> ExprId {
        self.gate("update", 0, inputs.accumulators[0])
    }

    /// The reset gate of a GRU.
    pub fn reset(&mut self, inputs: &CellInputs<'_>) -> ExprId {
        self.gate("reset", 0, inputs.accumulators[1])
    }

    /// The hidden state of a GRU from the argument of its candidate: `(1 - z) n + z h`.
    pub fn updated(&mut self, candidate: ExprId, update: ExprId, hidden: ExprId) -> CellOutputs {
        let candidate = self.gate("candidate", 1, candidate);
        // n + z (h - n)
        let difference = self.exprs.sub(hidden, candidate);
        let next = self.exprs.fma(update, difference, candidate);
        CellOutputs { hidden: self.bind("next", next), cell: None }
    }

    fn lstm(&mut self, inputs: &CellInputs<'_>, input_forget: bool) -> CellOutputs {
        let before = inputs.cell.unwrap_or(inputs.hidden);
        let input = self.peeked(inputs, (0, 0), before);
        let input = self.gate("input", 0, input);
        let forget = if input_forget {
            let one = self.constant_like(1.0, input);
            self.exprs.sub(one, input)
        } else {
            let forget = self.peeked(inputs, (2, 2), before);
            self.gate("forget", 0, forget)
        };
        let candidate = self.gate("candidate", 1, inputs.accumulators[3]);
        let kept = self.exprs.mul(forget, before);
        let cell = self.exprs.fma(input, candidate, kept);
        let cell = self.bind("cell", cell);
        let output = self.peeked(inputs, (1, 1), cell);
        let output = self.gate("output", 0, output);
        let shown = self.activation(2, cell);
        let hidden = self.exprs.mul(output, shown);
        CellOutputs { hidden: self.bind("hidden", hidden), cell: Some(cell) }
    }

    /// The sum of a gate and what its peephole adds.
    fn peeked(&mut self, inputs: &CellInputs<'_>, (gate, peephole): (usize, usize), cell: ExprId) -> ExprId {
        match inputs.peepholes {
            Some(weights) => self.exprs.fma(weights[peephole], cell, inputs.accumulators[gate]),
            None => inputs.accumulators[gate],
        }
    }

    /// Activation `index` of the clipped value, bound.
    fn gate(&mut self, name: &str, index: usize, value: ExprId) -> ExprId {
        let clipped = match self.spec.clip {
            Some(clip) => {
                let (low, high) = (self.constant_like(-clip, value), self.constant_like(clip, value));
                let above = self.exprs.max(value, low);
                self.exprs.min(above, high)
            }
            None => value,
        };
        let argument = self.bind("argument", clipped);
        let value = self.activation(index, argument);
        self.bind(name, value)
    }

    /// Activation `index`, which may differ between directions.
    fn activation(&mut self, index: usize, x: ExprId) -> ExprId {
        let count = self.spec.directions.len();
        let of = |direction| self.spec.activations_of(direction)[index];
        let activations: Vec<Activation> = (0..count).map(of).collect();
        let mut value = self.function(&activations[0], x);
        for (direction, activation) in activations.iter().enumerate().skip(1) {
            if *activation != activations[0] {
                let number = self.exprs.index(direction as i64);
                let is_own = self.exprs.eq(self.direction, number);
                let own = self.function(activation, x);
                value = self.exprs.select(is_own, own, value);
            }
        }
        value
    }

    fn function(&mut self, activation: &Activation, x: ExprId) -> ExprId {
        let Activation { function, alpha, beta } = *activation;
        let constant = |writer: &mut Self, value: f64| writer.constant_like(value, x);
        match function {
            ActivationFn::Tanh => self.exprs.unary(UnaryFn::Tanh, x),
            ActivationFn::Sigmoid => {
                let opposite = self.exprs.neg(x);
                let decay = self.exprs.unary(UnaryFn::Exp, opposite);
                let one = constant(self, 1.0);
                let sum = self.exprs.add2(one, decay);
                self.exprs.unary(UnaryFn::Recip, sum)
            }
            ActivationFn::Relu => {
                let zero = constant(self, 0.0);
                let is_negative = self.exprs.lt(x, zero);
                self.exprs.select(is_negative, zero, x)
            }
            ActivationFn::LeakyRelu => {
                let scaled = self.scaled(alpha, x);
                self.unless_below(0.0, x, scaled)
            }
            ActivationFn::ThresholdedRelu => {
                let zero = constant(self, 0.0);
                self.unless_below(alpha, x, zero)
            }
            ActivationFn::Elu => {
                let grown = self.exprs.unary(UnaryFn::Expm1, x);
                let grown = self.scaled(alpha, grown);
                self.unless_below(0.0, x, grown)
            }
            ActivationFn::Affine => self.affine(alpha, beta, x),
            ActivationFn::HardSigmoid => {
                let line = self.affine(alpha, beta, x);
                let (zero, one) = (constant(self, 0.0), constant(self, 1.0));
                let above = self.exprs.max(line, zero);
                self.exprs.min(above, one)
            }
            ActivationFn::ScaledTanh => {
                let scaled = self.scaled(beta, x);
                let tanh = self.exprs.unary(UnaryFn::Tanh, scaled);
                self.scaled(alpha, tanh)
            }
            ActivationFn::Softsign => {
                let size = self.exprs.unary(UnaryFn::Abs, x);
                let one = constant(self, 1.0);
                let divisor = self.exprs.add2(one, size);
                let factor = self.exprs.unary(UnaryFn::Recip, divisor);
                self.exprs.mul(x, factor)
            }
            ActivationFn::Softplus => {
                let size = self.exprs.unary(UnaryFn::Abs, x);
                let opposite = self.exprs.neg(size);
                let decay = self.exprs.unary(UnaryFn::Exp, opposite);
                let rest = self.exprs.unary(UnaryFn::Log1p, decay);
                let zero = constant(self, 0.0);
                let line = self.exprs.max(x, zero);
                self.exprs.add2(line, rest)
            }
        }
    }

    /// `x` from `start` on, otherwise another value.
    fn unless_below(&mut self, start: f64, x: ExprId, otherwise: ExprId) -> ExprId {
        let start = self.constant_like(start, x);
        let is_there = self.exprs.ge(x, start);
        self.exprs.select(is_there, x, otherwise)
    }

    fn scaled(&mut self, factor: f64, x: ExprId) -> ExprId {
        let factor = self.constant_like(factor, x);
        self.exprs.mul(factor, x)
    }

    fn affine(&mut self, factor: f64, offset: f64, x: ExprId) -> ExprId {
        let (factor, offset) = (self.constant_like(factor, x), self.constant_like(offset, x));
        self.exprs.fma(factor, x, offset)
    }

    fn constant_like(&mut self, value: f64, like: ExprId) -> ExprId {
        let ty = self.exprs.ty(like);
        let constant = self.exprs.constant(ty.dtype, value);
        self.exprs.splat(constant, ty.lanes)
    }

    fn bind(&mut self, name: &str, value: ExprId) -> ExprId {
        let var = self.exprs.declare_register(name, self.exprs.ty(value));
        self.body.push(Stmt::Let(var, value));
        self.exprs.var(var)
    }
}
