//! Scan: a body over the slices of sequences, with a state. A short scan is unrolled, so that its operators are
//! optimized with those around it.
//!
//! Version 8 of the operator set scans each sequence of a batch; since version 9 there is no batch.

use super::super::operand_lists::extent;
use super::{MAX_UNROLLED_OPERATORS, UNROLLED_OPERATORS, operators, result_types};
use crate::registry::Applied;
use crate::{Call, Context, Operand, RuleError, normalize_axis};
use orch_ir::{OpaqueKind, OpaqueOp, OperatorGraph, ScanSpec, Shape, TensorId};

/// A scan of the model.
struct Scan<'a> {
    body: &'a OperatorGraph,
    spec: ScanSpec,
    states: Vec<TensorId>,
    sequences: Vec<TensorId>,
}

pub(super) fn scan(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let body = call.graph("body")?.ok_or_else(|| RuleError::invalid("attribute body is missing"))?;
    let count =
        call.int("num_scan_inputs")?.ok_or_else(|| RuleError::invalid("num_scan_inputs is missing"))?;
    let count = extent(count, "num_scan_inputs")?;
    if call.opset() >= 9 {
        return Scan::read(ctx, call, body, (0, count))?.apply(ctx);
    }
    if call.operand(0).is_some() {
        return Err(RuleError::unsupported(
            "sequence lengths of a scan; convert the model to version 9 or later",
        ));
    }
    batched(ctx, call, body, count)
}

/// The form of version 8: the same scan for each position of dimension 0 of all operands.
fn batched(ctx: &mut Context<'_>, call: &Call<'_>, body: &OperatorGraph, count: usize) -> Applied {
    let whole = Scan::read(ctx, call, body, (1, count))?;
    let first = whole.states.iter().chain(&whole.sequences).next();
    let batch = first.and_then(|&tensor| ctx.shape(tensor).first().copied()).unwrap_or(0);
    if batch == 0 || batch.saturating_mul(operators(body)) > MAX_UNROLLED_OPERATORS {
        return Err(RuleError::unsupported(format!("a scan over a batch of {batch} in operator set 8")));
    }
    let mut results: Vec<Vec<TensorId>> = vec![Vec::new(); body.outputs.len()];
    for position in 0..batch {
        let mut part = |tensors: &[TensorId]| {
            tensors.iter().map(|&tensor| slice_at(ctx, tensor, 0, position)).collect::<Result<Vec<_>, _>>()
        };
        let (states, sequences) = (part(&whole.states)?, part(&whole.sequences)?);
        let one = Scan { body, spec: whole.spec.clone(), states, sequences };
        for (parts, result) in results.iter_mut().zip(one.apply(ctx)?) {
            if let Operand::Tensor(result) = result {
                parts.push(ctx.unsqueeze(result, 0)?);
            }
        }
    }
    results.iter().map(|parts| Ok(ctx.concat(parts, 0)?.into())).collect()
}

impl<'a> Scan<'a> {
    /// Operands from `skipped` on: states, then `count` sequences.
    fn read(
        ctx: &Context<'_>,
        call: &Call<'_>,
        body: &'a OperatorGraph,
        (skipped, count): (usize, usize),
    ) -> Result<Self, RuleError> {
        let operands: Vec<TensorId> =
            (skipped..call.arity()).map(|index| call.tensor(index)).collect::<Result<_, _>>()?;
        let states = operands.len().checked_sub(count);
        let collected = states.and_then(|states| body.outputs.len().checked_sub(states));
        let (Some(states), Some(collected)) = (states.filter(|_| count > 0), collected) else {
            return Err(RuleError::invalid(format!(
                "{} operands, {count} of them scanned, and {} results of the body",
                operands.len(),
                body.outputs.len()
            )));
        };
        let (states, sequences) = operands.split_at(states);
        let version_8 = call.opset() < 9;
        let reversed =
            directions(call, if version_8 { "directions" } else { "scan_input_directions" }, count)?;
        let axes = axes(call, "scan_input_axes", count)?;
        let inputs = (axes.iter().zip(&reversed).zip(sequences))
            .map(|((&axis, &reverse), &sequence)| {
                let rank = if version_8 { ctx.rank(sequence).saturating_sub(1) } else { ctx.rank(sequence) };
                Ok((normalize_axis(axis, rank)?, reverse))
            })
            .collect::<Result<_, RuleError>>()?;
        let reversed = directions(call, "scan_output_directions", collected)?;
        let axes = self::axes(call, "scan_output_axes", collected)?;
        let outputs = (axes.iter().zip(&reversed).zip(&body.outputs[states.len()..]))
            .map(|((&axis, &reverse), &output)| Ok((output_axis(body, output, axis)?, reverse)))
            .collect::<Result<_, RuleError>>()?;
        let spec = ScanSpec { states: states.len(), inputs, outputs };
        Ok(Self { body, spec, states: states.to_vec(), sequences: sequences.to_vec() })
    }

    fn apply(&self, ctx: &mut Context<'_>) -> Applied {
        let length = self.length(ctx)?;
        if length > 0 && length.saturating_mul(operators(self.body)) <= UNROLLED_OPERATORS {
            self.unroll(ctx, length)
        } else {
            self.whole(ctx, length)
        }
    }

    /// The common extent of the sequences.
    fn length(&self, ctx: &Context<'_>) -> Result<usize, RuleError> {
        let lengths: Vec<usize> = (self.sequences.iter().zip(&self.spec.inputs))
            .map(|(&sequence, &(axis, _))| ctx.shape(sequence)[axis])
            .collect();
        match lengths[..] {
            [first, ..] if lengths.iter().all(|&length| length == first) => Ok(first),
            _ => Err(RuleError::invalid(format!("sequences of lengths {lengths:?}"))),
        }
    }

    /// The steps one after the other.
    fn unroll(&self, ctx: &mut Context<'_>, length: usize) -> Applied {
        let mut state: Vec<Operand> = self.states.iter().map(|&state| state.into()).collect();
        let mut collected: Vec<Vec<TensorId>> = vec![Vec::new(); self.spec.outputs.len()];
        for step in 0..length {
            let mut operands = state;
            for (&sequence, &(axis, reverse)) in self.sequences.iter().zip(&self.spec.inputs) {
                let position = if reverse { length - 1 - step } else { step };
                operands.push(slice_at(ctx, sequence, axis, position)?.into());
            }
            let mut results = ctx.inline(self.body, &operands)?.into_iter();
            state = results.by_ref().take(self.spec.states).collect();
            for ((slices, slice), &(axis, _)) in collected.iter_mut().zip(results).zip(&self.spec.outputs) {
                let Operand::Tensor(slice) = slice else {
                    return Err(RuleError::unsupported("a scan that collects sequences"));
                };
                if axis > ctx.rank(slice) {
                    return Err(RuleError::invalid(format!(
                        "output axis {axis} of slices {}",
                        ctx.shape(slice)
                    )));
                }
                slices.push(ctx.unsqueeze(slice, axis)?);
            }
        }
        for (mut slices, &(axis, reverse)) in collected.into_iter().zip(&self.spec.outputs) {
            if reverse {
                slices.reverse();
            }
            state.push(ctx.concat(&slices, axis)?.into());
        }
        Ok(state)
    }

    /// The scan as one operation.
    fn whole(&self, ctx: &mut Context<'_>, length: usize) -> Applied {
        let mut types: Vec<_> =
            self.states.iter().map(|&state| (ctx.dtype(state), ctx.shape(state))).collect();
        for (&sequence, &(axis, _)) in self.sequences.iter().zip(&self.spec.inputs) {
            let mut dims = ctx.shape(sequence).to_vec();
            dims.remove(axis);
            types.push((ctx.dtype(sequence), Shape::from(dims)));
        }
        let captures = ctx.captures(&[self.body]);
        let body = ctx.body(self.body, &types, &captures)?;
        let mut results = result_types(&body, 0);
        let states = self.spec.states;
        if results[..states] != types[..states] {
            return Err(RuleError::unsupported(format!(
                "a scan whose state changes type or shape: {:?} becomes {:?}",
                &types[..states],
                &results[..states]
            )));
        }
        for ((_, shape), &(axis, _)) in results[states..].iter_mut().zip(&self.spec.outputs) {
            let mut dims = shape.to_vec();
            if axis > dims.len() {
                return Err(RuleError::invalid(format!("output axis {axis} of slices {shape}")));
            }
            dims.insert(axis, length);
            *shape = crate::build::checked_shape(dims)?;
        }
        let operands = [&self.states[..], &self.sequences, &captures].concat();
        let kind = OpaqueKind::Scan { body: Box::new(body.graph), spec: self.spec.clone() };
        let outputs = ctx.emit_opaque(OpaqueOp { kind, results }, &operands)?;
        Ok(outputs.into_iter().map(Operand::Tensor).collect())
    }
}

/// One axis per operand or result, 0 without the attribute.
fn axes(call: &Call<'_>, name: &str, count: usize) -> Result<Vec<i64>, RuleError> {
    let axes = call.ints(name)?.map_or_else(|| vec![0; count], <[i64]>::to_vec);
    if axes.len() == count { Ok(axes) } else { Err(wrong_count(name, axes.len(), count)) }
}

/// One direction per operand or result: true for backwards; forwards without the attribute.
fn directions(call: &Call<'_>, name: &str, count: usize) -> Result<Vec<bool>, RuleError> {
    let directions = call.ints(name)?.map_or_else(|| vec![0; count], <[i64]>::to_vec);
    if directions.len() != count {
        return Err(wrong_count(name, directions.len(), count));
    }
    Ok(directions.iter().map(|&direction| direction != 0).collect())
}

fn wrong_count(name: &str, given: usize, expected: usize) -> RuleError {
    RuleError::invalid(format!("{name} has {given} entries, expected {expected}"))
}

/// The axis along which slices are joined; a negative one needs the rank that the body declares.
fn output_axis(body: &OperatorGraph, output: orch_ir::ValueId, axis: i64) -> Result<usize, RuleError> {
    match (usize::try_from(axis), &body.value(output).shape) {
        (Ok(axis), _) => Ok(axis),
        (Err(_), Some(dims)) => normalize_axis(axis, dims.len() + 1),
        (Err(_), None) => {
            Err(RuleError::unsupported(format!("output axis {axis} of slices of unknown rank")))
        }
    }
}

/// The slice at `position` along `axis`, which disappears.
fn slice_at(ctx: &mut Context<'_>, x: TensorId, axis: usize, position: usize) -> Result<TensorId, RuleError> {
    let slice = ctx.slice_axis(x, axis, position, 1)?;
    let mut dims = ctx.shape(slice).to_vec();
    dims.remove(axis);
    ctx.reshape(slice, dims)
}
