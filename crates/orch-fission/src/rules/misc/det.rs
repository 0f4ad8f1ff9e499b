//! Det: determinants of `[.., m, m]`.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{OpaqueKind, OpaqueOp, Shape};

pub(super) fn det(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let (batch, rows, columns) = match &shape[..] {
        [batch @ .., rows, columns] => (Shape::from(batch), *rows, *columns),
        _ => (Shape::scalar(), 0, 1),
    };
    if rows != columns {
        return Err(RuleError::invalid(format!("an operand of shape {shape}, square matrices are expected")));
    }
    let kind = OpaqueKind::Routine { name: "Det", ints: Vec::new(), floats: Vec::new(), texts: Vec::new() };
    let results = vec![(ctx.dtype(x), batch)];
    one(ctx.emit_opaque(OpaqueOp { kind, results }, &[x])?[0])
}
