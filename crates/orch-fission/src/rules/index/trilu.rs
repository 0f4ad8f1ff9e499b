//! Trilu: the upper (default) or lower triangle of the last two dimensions, zeros elsewhere. Diagonal `k` belongs to
//! both.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{CompareFn, DType};

pub(super) fn trilu(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let [.., rows, columns] = shape[..] else {
        return Err(RuleError::invalid(format!("an operand of shape {shape}, matrices are expected")));
    };
    let upper = call.flag_or("upper", true)?;
    let mut diagonal = ctx.iota(DType::I64, [rows, 1], 0)?;
    if let Some(k) = call.optional_tensor(1)? {
        let k = ctx.reshape(k, [])?;
        let k = ctx.cast(k, DType::I64)?;
        diagonal = ctx.add(diagonal, k)?;
    }
    let column = ctx.iota(DType::I64, [1, columns], 1)?;
    let side = if upper { CompareFn::Ge } else { CompareFn::Le };
    let kept = ctx.compare(side, column, diagonal)?;
    let zero = ctx.scalar_like(x, 0.0);
    one(ctx.select(kept, x, zero)?)
}
