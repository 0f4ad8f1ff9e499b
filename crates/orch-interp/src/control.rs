//! Control flow: `If`, `Loop`, `Scan`. Bodies are graphs, evaluated like any other.

use crate::element::{Element, elems, tensor, with_element};
use crate::error::require;
use crate::index::{copy, dense_tables, steps, strides};
use crate::{EvalError, EvalOptions, evaluate, layout};
use orch_ir::{DType, PrimGraph, ScanSpec, Shape, Tensor};

/// `(condition, captures..)`: the outputs of one of two graphs.
///
/// # Errors
/// If the condition is not one boolean, or the chosen graph fails.
pub fn branch(
    then_graph: &PrimGraph,
    else_graph: &PrimGraph,
    inputs: &[&Tensor],
    options: &EvalOptions,
) -> Result<Vec<Tensor>, EvalError> {
    let (condition, captures) =
        inputs.split_first().ok_or_else(|| EvalError::operation("If", "no condition is given"))?;
    let chosen = if truth(condition, "If")? { then_graph } else { else_graph };
    evaluate(chosen, &owned(captures), options)
}

/// `(trip_count, condition, carried.., captures..) -> (carried.., scans..)`.
///
/// # Errors
/// If the loop collects scans and does not run exactly `trips` times, or the body fails.
pub fn repeat(
    body: &PrimGraph,
    carried: usize,
    trips: usize,
    inputs: &[&Tensor],
    options: &EvalOptions,
) -> Result<Vec<Tensor>, EvalError> {
    require!(inputs.len() >= 2 + carried, "Loop", "{} operands for {carried} carried values", inputs.len());
    require!(body.inputs.len() >= 2, "Loop", "the body takes no iteration number and condition");
    require!(body.outputs.len() > carried, "Loop", "the body has {} outputs", body.outputs.len());
    let trip_count = inputs[0].to_i64().and_then(|values| values.first().copied());
    let trip_count =
        trip_count.ok_or_else(|| EvalError::operation("Loop", "the trip count is not an integer"))?;
    let mut go_on = truth(inputs[1], "Loop")?;
    let mut state = owned(&inputs[2..2 + carried]);
    let captures = owned(&inputs[2 + carried..]);
    let scanned = &body.outputs[1 + carried..];
    let mut scans: Vec<Vec<Tensor>> = vec![Vec::new(); scanned.len()];
    let mut iteration = 0;
    while go_on && iteration < trip_count {
        let unforeseen = !scanned.is_empty() && iteration as usize >= trips;
        require!(!unforeseen, "Loop", "it runs more often than the {trips} times that its results are for");
        let head = [filled(body, 0, iteration), filled(body, 1, 1)];
        let arguments: Vec<Tensor> = head.into_iter().chain(state).chain(captures.iter().cloned()).collect();
        let mut results = evaluate(body, &arguments, options)?.into_iter();
        go_on = match results.next() {
            Some(condition) => truth(&condition, "Loop")?,
            None => false,
        };
        state = results.by_ref().take(carried).collect();
        scans.iter_mut().zip(results).for_each(|(slices, slice)| slices.push(slice));
        iteration += 1;
    }
    let foreseen = scanned.is_empty() || iteration as usize == trips;
    require!(foreseen, "Loop", "it ran {iteration} times, its results are for {trips}");
    for (slices, (_, id)) in scans.iter().zip(scanned) {
        let dtype = options.precision.held(body.dtype(*id));
        state.push(stack(slices, dtype, body.shape(*id), (0, false)));
    }
    Ok(state)
}

/// `(state.., scanned.., captures..) -> (state.., scans..)`.
///
/// # Errors
/// If the scanned operands do not have the axes that `spec` names with one extent, or the body fails.
pub fn scan(
    body: &PrimGraph,
    spec: &ScanSpec,
    inputs: &[&Tensor],
    options: &EvalOptions,
) -> Result<Vec<Tensor>, EvalError> {
    let (states, scanned) = (spec.states, spec.inputs.len());
    let operands = states + scanned;
    require!(
        inputs.len() >= operands,
        "Scan",
        "{} operands for {operands} states and sequences",
        inputs.len()
    );
    let results = states + spec.outputs.len();
    require!(
        body.outputs.len() == results,
        "Scan",
        "the body has {} outputs of {results}",
        body.outputs.len()
    );
    let sequences = &inputs[states..operands];
    let mut length = None;
    for (sequence, (axis, _)) in sequences.iter().zip(&spec.inputs) {
        let extent = sequence.shape().get(*axis).copied();
        require!(extent.is_some(), "Scan", "axis {axis} of {}", sequence.shape());
        require!(
            length.is_none() || length == extent,
            "Scan",
            "sequences of {length:?} and {extent:?} slices"
        );
        length = extent;
    }
    let length = length.ok_or_else(|| EvalError::operation("Scan", "there is no sequence"))?;
    for ((_, id), (axis, _)) in body.outputs[states..].iter().zip(&spec.outputs) {
        require!(
            *axis <= body.shape(*id).rank(),
            "Scan",
            "result axis {axis} for slices {}",
            body.shape(*id)
        );
    }

    let mut state = owned(&inputs[..states]);
    let captures = owned(&inputs[operands..]);
    let mut scans: Vec<Vec<Tensor>> = vec![Vec::new(); spec.outputs.len()];
    for step in 0..length {
        let slices = sequences.iter().zip(&spec.inputs).map(|(sequence, &(axis, reverse))| {
            slice_at(sequence, axis, if reverse { length - 1 - step } else { step })
        });
        let arguments: Vec<Tensor> =
            state.into_iter().chain(slices).chain(captures.iter().cloned()).collect();
        let mut results = evaluate(body, &arguments, options)?.into_iter();
        state = results.by_ref().take(states).collect();
        scans.iter_mut().zip(results).for_each(|(slices, slice)| slices.push(slice));
    }
    for ((slices, (_, id)), &placement) in scans.iter().zip(&body.outputs[states..]).zip(&spec.outputs) {
        let dtype = options.precision.held(body.dtype(*id));
        state.push(stack(slices, dtype, body.shape(*id), placement));
    }
    Ok(state)
}

/// The single element of a boolean tensor.
fn truth(condition: &Tensor, operation: &str) -> Result<bool, EvalError> {
    let fits = condition.dtype() == DType::Bool && condition.shape().elems() == 1;
    let given = || format!("{}{}", condition.dtype(), condition.shape());
    require!(fits, operation, "the condition is {}, not one boolean", given());
    Ok(condition.bytes()[0] != 0)
}

/// An argument for the body's input number `position` whose elements are all `value`.
fn filled(body: &PrimGraph, position: usize, value: i64) -> Tensor {
    let info = body.tensor(body.inputs[position].1);
    Tensor::from_i64(info.dtype, info.shape.clone(), &vec![value; info.shape.elems()])
}

/// The slice of `x` at `position` along `axis`, without that axis.
fn slice_at(x: &Tensor, axis: usize, position: usize) -> Tensor {
    let mut dims = x.shape().to_vec();
    dims[axis] = 1;
    let mut starts = vec![0; dims.len()];
    starts[axis] = position as i64;
    let slice = layout::slice(x, &dims.clone().into(), &starts, &vec![1; dims.len()]);
    dims.remove(axis);
    slice.reshaped(dims)
}

/// Slices of one shape joined along a new axis; the last slice first if the placement `(axis, reverse)` says so.
fn stack(slices: &[Tensor], dtype: DType, slice_shape: &Shape, (axis, reverse): (usize, bool)) -> Tensor {
    let mut dims = slice_shape.to_vec();
    dims.insert(axis, slices.len());
    if dims.contains(&0) {
        return Tensor::zeros(dtype, dims);
    }
    let stride = strides(&dims)[axis];
    with_element!(dtype, T => {
        let mut result = vec![T::from_int(0); dims.iter().product()];
        for (step, slice) in slices.iter().enumerate() {
            let position = if reverse { slices.len() - 1 - step } else { step };
            let mut to = dense_tables(&dims);
            to[axis] = steps(position..position + 1, stride);
            let mut from = dense_tables(slice_shape);
            from.insert(axis, vec![0]);
            copy(&mut result, &to, &elems::<T>(slice), &from);
        }
        tensor(dims, result)
    })
}

/// Copies of tensors, which share their elements.
fn owned(tensors: &[&Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|&tensor| tensor.clone()).collect()
}
