//! Pooling: a reduction over a sliding window, or over all spatial dimensions.

use super::window::{AutoPad, WindowAttributes, extend_to_ceil, extents};
use crate::registry::Rule;
use crate::{Call, Context, RuleError};
use orch_ir::{TensorId, Window};

mod average;
mod global;
mod lp;
mod max;
mod max_unpool;

/// The rules of this family.
pub const RULES: &[Rule] = &[
    Rule::onnx("MaxPool", max::max_pool),
    Rule::onnx("AveragePool", average::average_pool),
    Rule::onnx("LpPool", lp::lp_pool).since(2),
    Rule::onnx("GlobalMaxPool", global::max_pool),
    Rule::onnx("GlobalAveragePool", global::average_pool),
    Rule::onnx("GlobalLpPool", global::lp_pool).since(2),
    Rule::onnx("MaxUnpool", max_unpool::max_unpool),
];

/// The window over `x`, and the padding after each dimension before `ceil_mode` extended it.
fn pool_window(ctx: &Context<'_>, call: &Call<'_>, x: TensorId) -> Result<(Window, Vec<usize>), RuleError> {
    let attributes = WindowAttributes::read(call, kernel(call)?)?;
    let explicit = attributes.auto_pad == AutoPad::Explicit;
    let shape = ctx.shape(x);
    let mut window = attributes.resolve(&shape)?;
    let high = window.high.clone();
    if explicit && call.flag_or("ceil_mode", false)? {
        extend_to_ceil(&mut window, &shape)?;
    }
    Ok((window, high))
}

/// The attribute `kernel_shape`.
fn kernel(call: &Call<'_>) -> Result<Vec<usize>, RuleError> {
    let given = call.ints("kernel_shape")?.ok_or_else(|| RuleError::invalid("kernel_shape is missing"))?;
    let kernel = extents(call, "kernel_shape", given.len(), 1)?;
    if kernel.contains(&0) {
        return Err(RuleError::invalid(format!("kernel_shape is {kernel:?}")));
    }
    Ok(kernel)
}
