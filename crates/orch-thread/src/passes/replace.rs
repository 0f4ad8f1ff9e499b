//! Statements in which some expressions are replaced by others.

use crate::program::Stmt;
use orch_compute::expr::substitute::replace;
use orch_compute::expr::{ExprId, Exprs};
use rustc_hash::FxHashMap;

/// `stmt` with expressions replaced in the values that it binds or stores, and in the branches of a condition; offsets, masks
/// and conditions stay.
pub(super) fn replace_values(exprs: &mut Exprs, stmt: Stmt, replaced: &FxHashMap<ExprId, ExprId>) -> Stmt {
    let mut new = |id| replace(exprs, id, replaced);
    match stmt {
        Stmt::Let(var, value) => Stmt::Let(var, new(value)),
        Stmt::Store { buffer, offset, value, mask } => {
            Stmt::Store { buffer, offset, value: new(value), mask }
        }
        Stmt::If { condition, then, otherwise } => {
            let then = then.into_iter().map(|stmt| replace_values(exprs, stmt, replaced)).collect();
            Stmt::If { condition, then, otherwise }
        }
        other => other,
    }
}
