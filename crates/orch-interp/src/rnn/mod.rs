//! Recurrent layers: RNN, GRU and LSTM as the ONNX operators define them.
//!
//! Operands, all present (`d` directions, `h` hidden, `g` gates: 1, 3 or 4):
//! `x [seq, batch, input]`, `w [d, g*h, input]`, `r [d, g*h, h]`, `b [d, 2*g*h]`, `lengths [batch]` (integers; `seq`
//! where the model gives none), `h0 [d, batch, h]`, and for LSTM `c0 [d, batch, h]`, `p [d, 3*h]` (peepholes).
//! Results: `y [seq, d, batch, h]`, `h_last [d, batch, h]`, and for LSTM `c_last [d, batch, h]`.
//! With `batch_major`: `x [batch, seq, input]`, `h0`, `c0`, `h_last`, `c_last [batch, d, h]`, `y [batch, seq, d, h]`.
//!
//! `activations`, `alphas` and `betas` have one entry per direction and activation of the cell (RNN `f`; GRU `f g`;
//! LSTM `f g h`). Results past a sequence's length are 0; a reverse pass starts at each sequence's own end. A step is
//! computed in `f64`, then the state is rounded to the element type.

mod activation;
mod cell;

use crate::element::{Element, indices, with_element};
use crate::error::require;
use crate::scalar::Calc;
use crate::{EvalError, layout};
use activation::Activation;
use cell::{Cell, State};
use orch_ir::{DType, RnnCell, RnnDirection, RnnSpec, Shape, Tensor};

/// The results of a recurrent layer.
///
/// # Errors
/// If the operands or activations are not those that the module documentation lists.
pub fn rnn(spec: &RnnSpec, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
    let layer = Layer::of(spec, inputs)?;
    let per_direction = cell::activation_count(spec.cell);
    let activations = Activation::list(spec)?;
    require!(
        activations.len() == per_direction * spec.directions.len(),
        "RNN",
        "{per_direction} activations per direction expected, {} given",
        activations.len()
    );
    let mut results = Results::zeros(&layer, spec);
    for (index, &direction) in spec.directions.iter().enumerate() {
        let cell = Cell {
            kind: spec.cell,
            hidden: spec.hidden,
            clip: spec.clip,
            activations: &activations[index * per_direction..][..per_direction],
            weights: layer.part(&layer.w, index, spec.directions.len()),
            recurrence: layer.part(&layer.r, index, spec.directions.len()),
            bias: layer.part(&layer.b, index, spec.directions.len()),
            peepholes: layer.part(&layer.p, index, spec.directions.len()),
        };
        for batch in 0..layer.batch {
            run_sequence(&layer, &cell, direction, (index, batch), &mut results);
        }
    }
    Ok(results.tensors(&layer, spec))
}

/// One sequence in one direction; `at` is (direction, batch).
fn run_sequence(
    layer: &Layer,
    cell: &Cell<'_>,
    direction: RnnDirection,
    at: (usize, usize),
    results: &mut Results,
) {
    let (index, batch) = at;
    let (hidden, length) = (cell.hidden, layer.lengths[batch]);
    let own = (index * layer.batch + batch) * hidden;
    let initial = |values: &[f64]| values.get(own..own + hidden).unwrap_or_default().to_vec();
    let mut state = State { hidden: initial(&layer.h0), memory: initial(&layer.c0) };
    for step in 0..length {
        let time = match direction {
            RnnDirection::Forward => step,
            RnnDirection::Reverse => length - 1 - step,
        };
        let x = &layer.x[(time * layer.batch + batch) * layer.input..][..layer.input];
        state = cell.step(x, &state);
        state.hidden.iter_mut().chain(&mut state.memory).for_each(|v| *v = round(layer.dtype, *v));
        let start = ((time * layer.directions + index) * layer.batch + batch) * hidden;
        results.y[start..start + hidden].copy_from_slice(&state.hidden);
    }
    results.h_last[own..own + hidden].copy_from_slice(&state.hidden);
    if !state.memory.is_empty() {
        results.c_last[own..own + hidden].copy_from_slice(&state.memory);
    }
}

/// The value rounded to the element type.
fn round(dtype: DType, value: f64) -> f64 {
    with_element!(dtype, T => T::from_f64(value).widen().to_f64())
}

/// Operands in `f64`, sequence-major.
struct Layer {
    dtype: DType,
    sequence: usize,
    batch: usize,
    input: usize,
    directions: usize,
    lengths: Vec<usize>,
    x: Vec<f64>,
    w: Vec<f64>,
    r: Vec<f64>,
    b: Vec<f64>,
    h0: Vec<f64>,
    c0: Vec<f64>,
    p: Vec<f64>,
}

impl Layer {
    fn of(spec: &RnnSpec, inputs: &[&Tensor]) -> Result<Self, EvalError> {
        let is_lstm = matches!(spec.cell, RnnCell::Lstm { .. });
        let expected = if is_lstm { 8 } else { 6 };
        require!(inputs.len() == expected, "RNN", "{expected} operands expected, {} given", inputs.len());
        let dtype = inputs[0].dtype();
        require!(dtype.is_float(), "RNN", "the operand is {dtype}");
        require!(
            inputs[0].shape().rank() == 3,
            "RNN",
            "x is {}, three dimensions expected",
            inputs[0].shape()
        );
        require!(inputs[4].dtype().is_int(), "RNN", "the sequence lengths are {}", inputs[4].dtype());

        let sequence_major = |index: usize| match inputs.get(index) {
            None => Tensor::zeros(dtype, [0, 0, 0]),
            Some(x) if spec.batch_major && x.shape().rank() == 3 => swap_leading(x),
            Some(x) => (*x).clone(),
        };
        let (x, h0, c0) = (sequence_major(0), sequence_major(5), sequence_major(6));
        let &[sequence, batch, input] = x.shape().dims() else {
            return Err(EvalError::operation("RNN", "x does not have three dimensions"));
        };
        let (directions, hidden, rows) =
            (spec.directions.len(), spec.hidden, cell::gates(spec.cell) * spec.hidden);
        let check = |name: &str, given: &Shape, expected: &[usize]| {
            require!(given[..] == *expected, "RNN", "{name} is {given}, {expected:?} expected");
            Ok(())
        };
        check("w", inputs[1].shape(), &[directions, rows, input])?;
        check("r", inputs[2].shape(), &[directions, rows, hidden])?;
        check("b", inputs[3].shape(), &[directions, 2 * rows])?;
        check("lengths", inputs[4].shape(), &[batch])?;
        check("h0", h0.shape(), &[directions, batch, hidden])?;
        if is_lstm {
            check("c0", c0.shape(), &[directions, batch, hidden])?;
            check("p", inputs[7].shape(), &[directions, 3 * hidden])?;
        }
        Ok(Self {
            dtype,
            sequence,
            batch,
            input,
            directions,
            lengths: indices(inputs[4], sequence + 1),
            x: x.to_f64(),
            w: inputs[1].to_f64(),
            r: inputs[2].to_f64(),
            b: inputs[3].to_f64(),
            h0: h0.to_f64(),
            c0: c0.to_f64(),
            p: inputs.get(7).map_or_else(Vec::new, |p| p.to_f64()),
        })
    }

    /// The part of an operand that belongs to one direction.
    fn part<'a>(&self, values: &'a [f64], index: usize, directions: usize) -> &'a [f64] {
        let size = values.len() / directions;
        &values[index * size..][..size]
    }
}

/// Results in `f64`, sequence-major.
struct Results {
    y: Vec<f64>,
    h_last: Vec<f64>,
    c_last: Vec<f64>,
}

impl Results {
    fn zeros(layer: &Layer, spec: &RnnSpec) -> Self {
        let state = layer.directions * layer.batch * spec.hidden;
        Self { y: vec![0.0; layer.sequence * state], h_last: vec![0.0; state], c_last: vec![0.0; state] }
    }

    fn tensors(&self, layer: &Layer, spec: &RnnSpec) -> Vec<Tensor> {
        let state = [layer.directions, layer.batch, spec.hidden];
        let y_dims = [&[layer.sequence][..], &state].concat();
        let y = Tensor::from_f64(layer.dtype, y_dims, &self.y);
        let h_last = Tensor::from_f64(layer.dtype, state, &self.h_last);
        let mut results = vec![y, h_last];
        if matches!(spec.cell, RnnCell::Lstm { .. }) {
            results.push(Tensor::from_f64(layer.dtype, state, &self.c_last));
        }
        if !spec.batch_major {
            return results;
        }
        let mut batch_major: Vec<Tensor> = results[1..].iter().map(swap_leading).collect();
        let y_dims = [layer.batch, layer.sequence, layer.directions, spec.hidden];
        batch_major.insert(0, layout::transpose(&results[0], &y_dims.into(), &[2, 0, 1, 3]));
        batch_major
    }
}

/// A tensor of rank 3 with its first two dimensions exchanged.
fn swap_leading(x: &Tensor) -> Tensor {
    let dims = [x.shape()[1], x.shape()[0], x.shape()[2]];
    layout::transpose(x, &dims.into(), &[1, 0, 2])
}
