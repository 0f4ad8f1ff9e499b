//! The value of an integer or boolean scalar expression at given values of its variables: what checks by
//! enumeration compare.

use crate::expr::fold::{fold_binary, fold_cast, fold_compare, fold_unary};
use crate::expr::{Const, Expr, ExprId, Exprs, VarId};
use orch_ir::DType;
use rustc_hash::FxHashMap;

impl Exprs {
    /// The value of `root` where each variable has the value beside it, or `None` if it is not a scalar over
    /// these variables alone, or divides by zero.
    pub fn evaluate(&self, root: ExprId, values: &[(VarId, i64)]) -> Option<i64> {
        let mut known: FxHashMap<ExprId, Const> = FxHashMap::default();
        for id in self.reachable(&[root]) {
            let value = self.evaluate_node(id, values, &known)?;
            known.insert(id, value);
        }
        known[&root].as_int().map(|value| value as i64)
    }

    fn evaluate_node(
        &self,
        id: ExprId,
        values: &[(VarId, i64)],
        known: &FxHashMap<ExprId, Const>,
    ) -> Option<Const> {
        if self.lanes(id) != 1 {
            return None;
        }
        let int = |id: &ExprId| known[id].as_int();
        match self.get(id) {
            Expr::Const(c) => Some(*c),
            Expr::Var(var) => {
                let (_, value) = values.iter().find(|(known, _)| known == var)?;
                Some(Const::int(self.dtype(id), (*value).into()))
            }
            Expr::Unary(f, a) => fold_unary(*f, known[a]),
            Expr::Binary(f, a, b) => fold_binary(*f, known[a], known[b]),
            Expr::Compare(f, a, b) => {
                Some(Const::int(DType::Bool, fold_compare(*f, known[a], known[b]).into()))
            }
            Expr::Select(condition, a, b) => Some(known[if int(condition)? != 0 { a } else { b }]),
            Expr::Cast(dtype, a) => fold_cast(*dtype, known[a]),
            Expr::FloorDiv(a, b) if int(b)? > 0 => {
                Some(Const::int(self.dtype(id), int(a)?.div_euclid(int(b)?)))
            }
            Expr::FloorRem(a, b) if int(b)? > 0 => {
                Some(Const::int(self.dtype(id), int(a)?.rem_euclid(int(b)?)))
            }
            _ => None,
        }
    }
}
