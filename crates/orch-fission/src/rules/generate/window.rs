//! Cosine-sum windows: `w[i] = sum_j (-1)^j a_j cos(2 pi j i / n)`, with `n` the size, or the size - 1 for a symmetric
//! window.

use super::super::operand_lists::{extent, single_int};
use super::generated_shape;
use crate::registry::{Applied, one};
use crate::{Call, Context};
use orch_ir::{DType, Tensor};
use std::f64::consts::TAU;

/// A window with the coefficients `a_j`. The size is known when compiling.
pub(super) fn window(ctx: &mut Context<'_>, call: &Call<'_>, coefficients: &[f64]) -> Applied {
    let size = extent(single_int(ctx, call, 0, "size")?, "size")?;
    let shape = generated_shape(vec![size])?;
    let dtype = call.dtype_attribute("output_datatype")?.unwrap_or(DType::F32);
    let period = if call.flag_or("periodic", true)? { size } else { size.saturating_sub(1).max(1) } as f64;
    let value = |at: usize| -> f64 {
        let term = |(j, a): (usize, &f64)| {
            let sign = if j % 2 == 0 { 1.0 } else { -1.0 };
            sign * a * (TAU * j as f64 * at as f64 / period).cos()
        };
        coefficients.iter().enumerate().map(term).sum()
    };
    let values: Vec<f64> = (0..size).map(value).collect();
    one(ctx.tensor(Tensor::from_f64(dtype, shape, &values)))
}
