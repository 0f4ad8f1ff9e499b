//! Gemm: `y = alpha a' b' + beta c`, `a'` and `b'` transposed by their flags, `c` broadcast to `[m, n]`.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, TensorId};

pub(super) fn gemm(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    const ROW: u8 = 0;
    const COLUMN: u8 = 1;
    const SUMMED: u8 = 2;
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    let a_labels = if call.flag_or("transA", false)? { [SUMMED, ROW] } else { [ROW, SUMMED] };
    let b_labels = if call.flag_or("transB", false)? { [COLUMN, SUMMED] } else { [SUMMED, COLUMN] };
    let product = ctx.contract(a, b, [&a_labels, &b_labels, &[ROW, COLUMN]])?;
    let mut y = scaled(ctx, product, call.float_or("alpha", 1.0)?)?;
    if let Some(c) = call.optional_tensor(2)? {
        let beta = call.float_or("beta", 1.0)?;
        if beta != 0.0 {
            let c = scaled(ctx, c, beta)?;
            let c = ctx.broadcast_to(c, &ctx.shape(y))?;
            y = ctx.add(y, c)?;
        }
    }
    one(y)
}

/// `factor x`; integers are scaled in f64.
fn scaled(ctx: &mut Context<'_>, x: TensorId, factor: f64) -> Result<TensorId, RuleError> {
    let dtype = ctx.dtype(x);
    if factor == 1.0 {
        Ok(x)
    } else if dtype.is_float() || factor.fract() == 0.0 {
        ctx.binary_scalar(BinaryFn::Mul, x, factor)
    } else {
        let x = ctx.cast(x, orch_ir::DType::F64)?;
        let y = ctx.binary_scalar(BinaryFn::Mul, x, factor)?;
        ctx.cast(y, dtype)
    }
}
