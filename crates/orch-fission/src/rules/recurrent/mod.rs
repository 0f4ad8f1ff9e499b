//! Recurrent layers: RNN, GRU and LSTM as one contraction of all inputs with the input weights, `X W^T + b`, and the
//! recurrence over time.

use super::operand_lists::extent;
use crate::registry::{Applied, Rule};
use crate::{Call, Context, Operand, RuleError};
use orch_ir::{
    PrimOp, Recurrence, RecurrenceExtents, RecurrenceOperand, RnnCell, RnnDirection, Shape, TensorId,
};

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

/// Labels of the product of inputs with weights.
const TIME: u8 = 0;
const BATCH: u8 = 1;
const DIRECTION: u8 = 2;
const ROW: u8 = 3;
const INPUT: u8 = 4;

/// A layer: its cell and what the attributes and shapes say.
struct Layer {
    cell: RnnCell,
    extents: RecurrenceExtents,
    /// True for `[batch, time, ..]` operands.
    batch_major: bool,
}

/// The layer with `cell`.
fn recurrent(ctx: &mut Context<'_>, call: &Call<'_>, cell: RnnCell) -> Applied {
    let (x, w, r) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let directions = directions(call)?;
    let activations = activation::read(call, cell, directions.len())?;
    let hidden = hidden_size(ctx, call, r)?;
    let batch_major = call.flag_or("layout", false)?;
    let extents = extents(&ctx.shape(x), batch_major, directions.len(), hidden)?;
    let layer = Layer { cell, extents, batch_major };
    let biases = layer.biases(ctx, call)?;
    let projected = layer.projected(ctx, [x, w], &biases)?;
    let rows = ctx.transpose(r, &[0, 2, 1])?;
    let optional = layer.optional(ctx, call, &biases)?;
    let operands = optional.iter().map(|(operand, _)| *operand).collect();
    let inputs: Vec<TensorId> =
        [projected, rows].into_iter().chain(optional.iter().map(|(_, tensor)| *tensor)).collect();
    let clip = call.float("clip")?;
    let op = PrimOp::Recurrence(Box::new(Recurrence { cell, directions, activations, clip, operands }));
    let results = ctx.emit_all(op, &inputs)?;
    layer.results(ctx, &results)
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

fn extents(
    x: &Shape,
    batch_major: bool,
    directions: usize,
    hidden: usize,
) -> Result<RecurrenceExtents, RuleError> {
    let &[first, second, _] = x.dims() else {
        return Err(RuleError::invalid(format!("an operand of shape {x}, three dimensions are expected")));
    };
    let (time, batch) = if batch_major { (second, first) } else { (first, second) };
    Ok(RecurrenceExtents { time, batch, directions, hidden })
}

/// Biases of a layer, those of the input and of the recurrence together where the cell adds both.
struct Biases {
    /// `[directions, gates * hidden]`.
    of_input: Option<TensorId>,
    /// `[directions, hidden]`: of the product that a reset gate multiplies.
    of_candidate: Option<TensorId>,
}

impl Layer {
    /// Rows of the weights.
    fn rows(&self) -> usize {
        self.extents.hidden.saturating_mul(self.cell.gates())
    }

    fn biases(&self, ctx: &mut Context<'_>, call: &Call<'_>) -> Result<Biases, RuleError> {
        let Some(given) = call.optional_tensor(3)? else {
            return Ok(Biases { of_input: None, of_candidate: None });
        };
        let rows = self.rows();
        let expected = [self.extents.directions, rows.saturating_mul(2)];
        if ctx.shape(given)[..] != expected {
            let shape = ctx.shape(given);
            return Err(RuleError::invalid(format!("biases have shape {shape}, expected {expected:?}")));
        }
        let of_input = ctx.slice_axis(given, 1, 0, rows)?;
        let of_recurrence = ctx.slice_axis(given, 1, rows, rows)?;
        if self.cell != (RnnCell::Gru { linear_before_reset: true }) {
            let both = ctx.add(of_input, of_recurrence)?;
            return Ok(Biases { of_input: Some(both), of_candidate: None });
        }
        let hidden = self.extents.hidden;
        let of_gates = ctx.slice_axis(of_recurrence, 1, 0, 2 * hidden)?;
        let of_gates = ctx.pad_axis(of_gates, 1, [0, hidden], 0.0)?;
        let of_candidate = ctx.slice_axis(of_recurrence, 1, 2 * hidden, hidden)?;
        let both = ctx.add(of_input, of_gates)?;
        Ok(Biases { of_input: Some(both), of_candidate: Some(of_candidate) })
    }

    /// `X W^T + b`, `[time, batch, directions, gates * hidden]`.
    fn projected(
        &self,
        ctx: &mut Context<'_>,
        [x, w]: [TensorId; 2],
        biases: &Biases,
    ) -> Result<TensorId, RuleError> {
        let (given, expected) = (ctx.shape(w), [self.extents.directions, self.rows()]);
        if given.rank() != 3 || given[..2] != expected || given.last() != ctx.shape(x).last() {
            return Err(RuleError::invalid(format!("weights have shape {given}, inputs {}", ctx.shape(x))));
        }
        let steps = if self.batch_major { [BATCH, TIME, INPUT] } else { [TIME, BATCH, INPUT] };
        let labels: [&[u8]; 3] = [&steps, &[DIRECTION, ROW, INPUT], &[TIME, BATCH, DIRECTION, ROW]];
        let product = ctx.contract(x, w, labels)?;
        match biases.of_input {
            Some(bias) => ctx.add(product, bias),
            None => Ok(product),
        }
    }

    /// The operands of the recurrence that are given and not what it takes without them.
    fn optional(
        &self,
        ctx: &mut Context<'_>,
        call: &Call<'_>,
        biases: &Biases,
    ) -> Result<Vec<(RecurrenceOperand, TensorId)>, RuleError> {
        let mut operands = Vec::new();
        let is_lstm = self.cell.has_cell_state();
        let states = [(5, RecurrenceOperand::InitialHidden), (6, RecurrenceOperand::InitialCell)];
        for (index, operand) in states.into_iter().take(if is_lstm { 2 } else { 1 }) {
            if let Some(state) = call.optional_tensor(index)?.filter(|&state| !is_filled(ctx, state, 0.0)) {
                let state = if self.batch_major { self.swapped(ctx, state)? } else { state };
                operands.push((operand, state));
            }
        }
        if is_lstm && let Some(given) = call.optional_tensor(7)? {
            let RecurrenceExtents { directions, hidden, .. } = self.extents;
            operands.push((RecurrenceOperand::Peepholes, ctx.reshape(given, [directions, 3, hidden])?));
        }
        operands.extend(biases.of_candidate.map(|bias| (RecurrenceOperand::CandidateBias, bias)));
        let lengths = call.optional_tensor(4)?;
        let lengths = lengths.filter(|&lengths| !is_filled(ctx, lengths, self.extents.time as f64));
        operands.extend(lengths.map(|lengths| (RecurrenceOperand::Lengths, lengths)));
        Ok(operands)
    }

    /// A state with its first two dimensions exchanged.
    fn swapped(&self, ctx: &mut Context<'_>, state: TensorId) -> Result<TensorId, RuleError> {
        match ctx.rank(state) {
            3 => ctx.transpose(state, &[1, 0, 2]),
            rank => Err(RuleError::invalid(format!("an initial state of rank {rank}, expected 3"))),
        }
    }

    /// The results as ONNX lays them out.
    fn results(&self, ctx: &mut Context<'_>, results: &[TensorId]) -> Applied {
        // From [time, batch, directions, hidden].
        let perm = if self.batch_major { [1, 0, 2, 3] } else { [0, 2, 1, 3] };
        let mut outputs = vec![Operand::Tensor(ctx.transpose(results[0], &perm)?)];
        for &state in &results[1..] {
            let state = if self.batch_major { self.swapped(ctx, state)? } else { state };
            outputs.push(Operand::Tensor(state));
        }
        Ok(outputs)
    }
}

/// True for a constant all of whose elements are `value`.
fn is_filled(ctx: &mut Context<'_>, tensor: TensorId, value: f64) -> bool {
    let constant = ctx.constant(tensor);
    constant.is_some_and(|constant| constant.to_f64().iter().all(|&element| element == value))
}
