//! Recurrent layers: RNN, GRU and LSTM run as one routine each, with every optional operand and attribute filled in.

use super::operand_lists::extent;
use crate::build::checked_shape;
use crate::registry::{Applied, Rule};
use crate::{Call, Context, Operand, RuleError};
use orch_ir::{DType, OpaqueKind, OpaqueOp, RnnCell, RnnDirection, RnnSpec, Shape, TensorId};

mod activation;

/// The rules of this family.
pub const RULES: &[Rule] = &[
    Rule::onnx("RNN", |ctx, call| recurrent(ctx, call, RnnCell::Rnn)),
    Rule::onnx("GRU", |ctx, call| {
        let linear_before_reset = call.flag_or("linear_before_reset", false)?;
        recurrent(ctx, call, RnnCell::Gru { linear_before_reset })
    })
    .since(3),
    Rule::onnx("LSTM", |ctx, call| {
        let input_forget = call.flag_or("input_forget", false)?;
        recurrent(ctx, call, RnnCell::Lstm { input_forget })
    }),
];

/// The layer with `cell`.
fn recurrent(ctx: &mut Context<'_>, call: &Call<'_>, cell: RnnCell) -> Applied {
    let (x, w, r) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let directions = directions(call)?;
    let activations = activation::read(call, cell, directions.len())?;
    let spec = RnnSpec {
        cell,
        hidden: hidden_size(ctx, call, r)?,
        activations: activations.names,
        alphas: activations.alphas,
        betas: activations.betas,
        clip: call.float("clip")?,
        batch_major: call.flag_or("layout", false)?,
        directions,
    };
    let sizes = Sizes::of(&spec, &ctx.shape(x))?;
    let mut operands = vec![x, w, r];
    let filled = sizes.optional_operands(&spec, ctx.dtype(x))?;
    for (index, (dtype, value, shape)) in (3..).zip(filled) {
        operands.push(match call.optional_tensor(index)? {
            Some(given) => given,
            None => ctx.full(dtype, value, &shape)?,
        });
    }
    let results = sizes.results(&spec, ctx.dtype(x))?;
    let outputs = ctx.emit_opaque(OpaqueOp { kind: OpaqueKind::Rnn(spec), results }, &operands)?;
    Ok(outputs.into_iter().map(Operand::Tensor).collect())
}

fn directions(call: &Call<'_>) -> Result<Vec<RnnDirection>, RuleError> {
    match call.text_or("direction", "forward")? {
        "forward" => Ok(vec![RnnDirection::Forward]),
        "reverse" => Ok(vec![RnnDirection::Reverse]),
        "bidirectional" => Ok(vec![RnnDirection::Forward, RnnDirection::Reverse]),
        other => Err(RuleError::invalid(format!(
            "direction is {other}, expected forward, reverse or bidirectional"
        ))),
    }
}

/// The attribute `hidden_size`, or the last extent of the recurrence weights.
fn hidden_size(ctx: &Context<'_>, call: &Call<'_>, r: TensorId) -> Result<usize, RuleError> {
    let shape = ctx.shape(r);
    let from_weights = shape.last().copied().unwrap_or(0);
    let hidden = match call.int("hidden_size")? {
        Some(hidden) => extent(hidden, "hidden_size")?,
        None => from_weights,
    };
    if shape.rank() != 3 || hidden != from_weights {
        return Err(RuleError::invalid(format!(
            "hidden_size is {hidden}, recurrence weights have shape {shape}"
        )));
    }
    Ok(hidden)
}

/// The extents of a layer.
struct Sizes {
    time: usize,
    batch: usize,
    directions: usize,
    hidden: usize,
}

impl Sizes {
    fn of(spec: &RnnSpec, x: &Shape) -> Result<Self, RuleError> {
        let &[first, second, _] = x.dims() else {
            return Err(RuleError::invalid(format!(
                "an operand of shape {x}, three dimensions are expected"
            )));
        };
        let (time, batch) = if spec.batch_major { (second, first) } else { (first, second) };
        Ok(Self { time, batch, directions: spec.directions.len(), hidden: spec.hidden })
    }

    /// The shape of a state.
    fn state(&self, spec: &RnnSpec) -> Result<Shape, RuleError> {
        checked_shape(match spec.batch_major {
            true => vec![self.batch, self.directions, self.hidden],
            false => vec![self.directions, self.batch, self.hidden],
        })
    }

    /// Type, value and shape of each operand from the fourth on where it is left out.
    fn optional_operands(&self, spec: &RnnSpec, dtype: DType) -> Result<Vec<(DType, f64, Shape)>, RuleError> {
        let gates = match spec.cell {
            RnnCell::Rnn => 1,
            RnnCell::Gru { .. } => 3,
            RnnCell::Lstm { .. } => 4,
        };
        let per_direction =
            |count: usize| checked_shape(vec![self.directions, self.hidden.saturating_mul(count)]);
        let lengths = checked_shape(vec![self.batch])?;
        let mut operands = vec![
            (dtype, 0.0, per_direction(2 * gates)?),
            (DType::I32, self.time as f64, lengths),
            (dtype, 0.0, self.state(spec)?),
        ];
        if matches!(spec.cell, RnnCell::Lstm { .. }) {
            operands.extend([(dtype, 0.0, self.state(spec)?), (dtype, 0.0, per_direction(3)?)]);
        }
        Ok(operands)
    }

    /// Type and shape of each result.
    fn results(&self, spec: &RnnSpec, dtype: DType) -> Result<Vec<(DType, Shape)>, RuleError> {
        let all = checked_shape(match spec.batch_major {
            true => vec![self.batch, self.time, self.directions, self.hidden],
            false => vec![self.time, self.directions, self.batch, self.hidden],
        })?;
        let mut results = vec![(dtype, all), (dtype, self.state(spec)?)];
        if matches!(spec.cell, RnnCell::Lstm { .. }) {
            results.push((dtype, self.state(spec)?));
        }
        Ok(results)
    }
}
