//! LpPool: `(sum |x|^p)^(1/p)` of each window. f16 and bf16 compute in f32.

use super::pool_window;
use crate::registry::{Applied, one};
use crate::rules::reduction::norm::{from_power, to_power};
use crate::{Call, Context};
use orch_ir::{PrimOp, ReduceOp};

pub(super) fn lp_pool(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let p = call.int_or("p", 2)?;
    let (window, _) = pool_window(ctx, call, x)?;
    let dtype = ctx.dtype(x);
    let x = ctx.widen(x)?;
    let powers = to_power(ctx, x, p)?;
    let sum = ctx.emit(PrimOp::Window { op: ReduceOp::Sum, window }, &[powers])?;
    let y = from_power(ctx, sum, p)?;
    one(ctx.cast(y, dtype)?)
}
