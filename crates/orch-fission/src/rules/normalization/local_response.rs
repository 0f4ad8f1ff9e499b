//! LRN: `y = x / (bias + alpha / size s)^beta`, `s` the sum of squares over `size` neighbouring channels.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, PrimOp, ReduceOp, Window};

pub(super) fn lrn(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let (dtype, shape) = (ctx.dtype(x), ctx.shape(x));
    let given = call.int("size")?.unwrap_or(0);
    let size = usize::try_from(given).ok().filter(|size| (1..1 << 22).contains(size));
    let size = size.ok_or_else(|| RuleError::invalid(format!("size is {given}")))?;
    if shape.rank() < 2 {
        return Err(RuleError::invalid(format!("{shape} has no channels")));
    }
    if shape.elems() == 0 {
        return one(x);
    }
    let x = ctx.widen(x)?;
    let squares = ctx.mul(x, x)?;
    let inner: usize = shape[2..].iter().product();
    let planes = ctx.reshape(squares, [shape[0], 1, shape[1], inner])?;
    let before = (size - 1) / 2;
    let window = Window {
        kernel: vec![size, 1],
        strides: vec![1, 1],
        dilations: vec![1, 1],
        low: vec![before, 0],
        high: vec![size - 1 - before, 0],
    };
    let sums = ctx.emit(PrimOp::Window { op: ReduceOp::Sum, window }, &[planes])?;
    let sums = ctx.reshape(sums, shape.to_vec())?;
    let scaled = ctx.binary_scalar(BinaryFn::Mul, sums, call.float_or("alpha", 1e-4)? / size as f64)?;
    let base = ctx.binary_scalar(BinaryFn::Add, scaled, call.float_or("bias", 1.0)?)?;
    let divisor = ctx.binary_scalar(BinaryFn::Pow, base, call.float_or("beta", 0.75)?)?;
    let y = ctx.div(x, divisor)?;
    one(ctx.cast(y, dtype)?)
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::Attribute;

    #[test]
    fn nothing_stays_nothing() {
        for dims in [[2, 5, 3, 0], [0, 5, 3, 2], [2, 0, 3, 2]] {
            let call = apply("LRN", 13).floats(&dims, &[]).with("size", Attribute::Int(5));
            assert_eq!(call.first(), (dims.to_vec(), vec![]));
        }
    }
}
