//! Evaluation of one primitive.

use crate::element::with_element;
use crate::{EvalError, EvalOptions, Precision};
use crate::{
    contract, control, conv, cumulative, gather, layout, map, recurrence, reduce, routines, scatter, topk,
    window,
};
use orch_ir::{DType, OpaqueKind, OpaqueOp, PrimOp, ScalarFn, Shape, Tensor, infer::infer};
use std::borrow::Cow;

/// The results of one primitive for these operands.
///
/// With [`Precision::Wide`], floating operands may be of any floating type and floating results are `f64`.
///
/// # Errors
/// If the operands do not suit the primitive, a result exceeds [`EvalOptions::max_result_bytes`], or an opaque
/// routine meets data that it cannot work with.
pub fn evaluate_node(
    op: &PrimOp,
    inputs: &[&Tensor],
    options: &EvalOptions,
) -> Result<Vec<Tensor>, EvalError> {
    let op = held_op(op, options.precision);
    let held: Vec<Tensor> = inputs.iter().map(|input| options.precision.hold(input)).collect();
    let types: Vec<(DType, &Shape)> = held.iter().map(|t| (t.dtype(), t.shape())).collect();
    let expected = infer(&op, &types)?;
    for (dtype, shape) in &expected {
        let needed_bytes = shape.elems() * dtype.size_bytes();
        if needed_bytes > options.max_result_bytes {
            return Err(EvalError::TooLarge {
                dtype: *dtype,
                shape: shape.clone(),
                needed_bytes,
                limit_bytes: options.max_result_bytes,
            });
        }
    }
    let results = compute(&op, &held.iter().collect::<Vec<_>>(), &expected, options)?;
    check_results(&expected, &results)?;
    Ok(results)
}

/// The primitive with every floating type that it names replaced by the type in which tensors are held.
fn held_op(op: &PrimOp, precision: Precision) -> Cow<'_, PrimOp> {
    if precision == Precision::Native {
        return Cow::Borrowed(op);
    }
    match op {
        PrimOp::Map(ScalarFn::Cast(to)) => Cow::Owned(PrimOp::Map(ScalarFn::Cast(precision.held(*to)))),
        PrimOp::Iota { dtype, shape, axis } => {
            Cow::Owned(PrimOp::Iota { dtype: precision.held(*dtype), shape: shape.clone(), axis: *axis })
        }
        PrimOp::Opaque(opaque) => {
            let mut held = opaque.clone();
            held.results.iter_mut().for_each(|(dtype, _)| *dtype = precision.held(*dtype));
            Cow::Owned(PrimOp::Opaque(held))
        }
        _ => Cow::Borrowed(op),
    }
}

/// The results of a primitive whose operands inference has accepted.
fn compute(
    op: &PrimOp,
    inputs: &[&Tensor],
    expected: &[(DType, Shape)],
    options: &EvalOptions,
) -> Result<Vec<Tensor>, EvalError> {
    if expected.iter().all(|(_, shape)| shape.elems() == 0) && !is_control_flow(op) {
        return Ok(expected.iter().map(|(dtype, shape)| Tensor::zeros(*dtype, shape.clone())).collect());
    }
    let Some((_, shape)) = expected.first() else { return Ok(Vec::new()) };
    let x = |index: usize| inputs[index];
    let result = match op {
        PrimOp::Map(function) => map::map(*function, inputs),
        PrimOp::Reduce { op, axes } => {
            with_element!(x(0).dtype(), T => reduce::reduce::<T>(*op, axes, x(0), shape))
        }
        PrimOp::Window { op, window } => {
            with_element!(x(0).dtype(), T => window::window::<T>(*op, window, x(0), shape))
        }
        PrimOp::Broadcast { dims, .. } => layout::broadcast(x(0), shape, dims),
        PrimOp::Transpose { perm } => layout::transpose(x(0), shape, perm),
        PrimOp::Reshape { .. } => x(0).reshaped(shape.clone()),
        PrimOp::Slice { starts, steps, .. } => layout::slice(x(0), shape, starts, steps),
        PrimOp::Pad { mode, low, .. } => layout::pad(x(0), inputs.get(1).copied(), shape, *mode, low),
        PrimOp::Concat { axis } => layout::concat(inputs, shape, *axis),
        PrimOp::Select { positions } => layout::select(x(0), shape, positions),
        PrimOp::Contract(labels) => {
            with_element!(x(0).dtype(), T => contract::contract::<T>(labels, x(0), x(1), shape))
        }
        PrimOp::Conv(spec) => with_element!(x(0).dtype(), T => conv::conv::<T>(spec, x(0), x(1), shape)),
        PrimOp::ConvTranspose { spec, .. } => {
            with_element!(x(0).dtype(), T => conv::conv_transpose::<T>(spec, x(0), x(1), shape))
        }
        PrimOp::Take { axis } => gather::take(x(0), x(1), shape, *axis),
        PrimOp::TakeAlong { axis } => gather::take_along(x(0), x(1), *axis),
        PrimOp::GatherNd { batch_dims } => gather::gather_nd(x(0), x(1), shape, *batch_dims),
        PrimOp::ScatterAlong { axis, combine } => scatter::scatter_along([x(0), x(1), x(2)], *axis, *combine),
        PrimOp::ScatterNd { combine } => scatter::scatter_nd([x(0), x(1), x(2)], *combine),
        PrimOp::Iota { dtype, axis, .. } => layout::iota(*dtype, shape, *axis),
        PrimOp::Recurrence(spec) => return recurrence::recurrence(spec, inputs),
        PrimOp::Opaque(opaque) => return compute_opaque(opaque, inputs, options),
    };
    Ok(vec![result])
}

/// True for the operations whose bodies run even if their results are empty.
fn is_control_flow(op: &PrimOp) -> bool {
    let PrimOp::Opaque(opaque) = op else { return false };
    matches!(opaque.kind, OpaqueKind::If { .. } | OpaqueKind::Loop { .. } | OpaqueKind::Scan { .. })
}

/// An opaque operation.
fn compute_opaque(
    op: &OpaqueOp,
    inputs: &[&Tensor],
    options: &EvalOptions,
) -> Result<Vec<Tensor>, EvalError> {
    match &op.kind {
        OpaqueKind::TopK { axis, k, largest, .. } => topk::top_k(inputs, *axis, *k, *largest),
        OpaqueKind::Cumulative(spec) => cumulative::cumulative(inputs, *spec),
        OpaqueKind::If { then_graph, else_graph } => control::branch(then_graph, else_graph, inputs, options),
        OpaqueKind::Loop { body, carried, trips } => control::repeat(body, *carried, *trips, inputs, options),
        OpaqueKind::Scan { body, spec } => control::scan(body, spec, inputs, options),
        OpaqueKind::Routine { name, ints, floats, texts } => {
            routines::call(&routines::Call { name, inputs, ints, floats, texts, results: &op.results })
        }
    }
}

/// Checks that an opaque operation returned what it states.
fn check_results(expected: &[(DType, Shape)], results: &[Tensor]) -> Result<(), EvalError> {
    let given: Vec<String> = results.iter().map(|t| format!("{}{}", t.dtype(), t.shape())).collect();
    let stated: Vec<String> = expected.iter().map(|(dtype, shape)| format!("{dtype}{shape}")).collect();
    if given == stated {
        return Ok(());
    }
    Err(EvalError::operation(
        "opaque operation",
        format!("it states the results ({}), but computes ({})", stated.join(", "), given.join(", ")),
    ))
}
