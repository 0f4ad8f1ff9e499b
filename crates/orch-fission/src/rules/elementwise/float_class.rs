//! IsNaN, and IsInf with its `detect_positive` and `detect_negative`.

use crate::registry::{Applied, one};
use crate::{Call, Context};
use orch_ir::{CompareFn, ScalarFn};

pub(super) fn is_nan(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    one(ctx.map(ScalarFn::IsNan, &[call.tensor(0)?])?)
}

pub(super) fn is_inf(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let positive = call.flag_or("detect_positive", true)?;
    let negative = call.flag_or("detect_negative", true)?;
    one(match (positive, negative) {
        (true, true) => ctx.map(ScalarFn::IsInf, &[x])?,
        (true, false) => ctx.compare_scalar(CompareFn::Eq, x, f64::INFINITY)?,
        (false, true) => ctx.compare_scalar(CompareFn::Eq, x, f64::NEG_INFINITY)?,
        (false, false) => ctx.full(orch_ir::DType::Bool, 0.0, &ctx.shape(x))?,
    })
}
