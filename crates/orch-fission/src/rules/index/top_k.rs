//! TopK: the `k` best elements of an axis and their positions.

use super::super::operand_lists::{extent, single_int};
use crate::registry::Applied;
use crate::{Call, Context, Operand, RuleError, normalize_axis};
use orch_ir::{DType, OpaqueKind, OpaqueOp, Shape};

pub(super) fn top_k(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let axis = normalize_axis(call.int_or("axis", -1)?, shape.rank())?;
    let k = match call.int("k")? {
        Some(k) => k,
        None => single_int(ctx, call, 1, "k")?,
    };
    let k = extent(k, "k")?;
    if k > shape[axis] {
        return Err(RuleError::invalid(format!("the best {k} of dimension {axis} of {shape}")));
    }
    let (largest, sorted) = (call.flag_or("largest", true)?, call.flag_or("sorted", true)?);
    let mut dims = shape.to_vec();
    dims[axis] = k;
    let dims = Shape::from(dims);
    let results = vec![(ctx.dtype(x), dims.clone()), (DType::I64, dims)];
    let kind = OpaqueKind::TopK { axis, k, largest, sorted };
    let outputs = ctx.emit_opaque(OpaqueOp { kind, results }, &[x])?;
    Ok(outputs.into_iter().map(Operand::Tensor).collect())
}
