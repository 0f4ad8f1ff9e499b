//! ArgMax and ArgMin: the position of the first (or with `select_last_index` the last) best element of an axis.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::{DType, ReduceOp};

pub(super) fn arg(ctx: &mut Context<'_>, call: &Call<'_>, op: fn(bool) -> ReduceOp) -> Applied {
    let x = call.tensor(0)?;
    let keep = call.flag_or("keepdims", true)?;
    let op = op(call.flag_or("select_last_index", false)?);
    let shape = ctx.shape(x);
    if shape.rank() == 0 {
        return one(ctx.scalar_int(DType::I64, 0));
    }
    let axis = normalize_axis(call.int_or("axis", 0)?, shape.rank())?;
    if shape[axis] == 0 {
        return Err(RuleError::invalid(format!("axis {axis} of {shape} is empty")));
    }
    one(if keep { ctx.reduce_keep(op, x, &[axis])? } else { ctx.reduce(op, x, &[axis])? })
}
