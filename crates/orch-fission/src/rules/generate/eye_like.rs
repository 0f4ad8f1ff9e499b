//! EyeLike: ones on diagonal `k` of a matrix of the operand's shape, zeros elsewhere.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, CompareFn, DType};

pub(super) fn eye_like(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let [rows, columns] = shape[..] else {
        return Err(RuleError::invalid(format!("an operand of shape {shape}, a matrix is expected")));
    };
    let dtype = call.dtype_attribute("dtype")?.unwrap_or(ctx.dtype(x));
    let k = ctx.scalar_int(DType::I64, call.int_or("k", 0)?);
    let row = ctx.iota(DType::I64, [rows, 1], 0)?;
    let column = ctx.iota(DType::I64, [1, columns], 1)?;
    let diagonal = ctx.binary(BinaryFn::Add, row, k)?;
    let hit = ctx.compare(CompareFn::Eq, column, diagonal)?;
    one(ctx.cast(hit, dtype)?)
}
