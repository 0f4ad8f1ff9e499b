//! Global pools: the whole spatial extent is one window, `[n, c, d_0, ..] -> [n, c, 1, ..]`.

use crate::registry::{Applied, one};
use crate::rules::reduction::norm::{from_power, to_power};
use crate::{Call, Context};
use orch_ir::{ReduceOp, TensorId};

pub(super) fn max_pool(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let axes = spatial(ctx, x);
    one(ctx.reduce_keep(ReduceOp::Max, x, &axes)?)
}

pub(super) fn average_pool(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let axes = spatial(ctx, x);
    let dtype = ctx.dtype(x);
    let x = ctx.widen(x)?;
    let mean = ctx.mean_keep(x, &axes)?;
    one(ctx.cast(mean, dtype)?)
}

pub(super) fn lp_pool(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let p = call.int_or("p", 2)?;
    let axes = spatial(ctx, x);
    let dtype = ctx.dtype(x);
    let x = ctx.widen(x)?;
    let powers = to_power(ctx, x, p)?;
    let sum = ctx.reduce_keep(ReduceOp::Sum, powers, &axes)?;
    let y = from_power(ctx, sum, p)?;
    one(ctx.cast(y, dtype)?)
}

/// The axes after batch and channels.
fn spatial(ctx: &Context<'_>, x: TensorId) -> Vec<usize> {
    (2..ctx.rank(x)).collect()
}
