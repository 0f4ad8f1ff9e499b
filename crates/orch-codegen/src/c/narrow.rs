//! Vectors of indices in 32 bits.
//!
//! Programs index with `i64`, of which a register holds half as many as of the elements that are loaded or
//! compared, and which vector units divide poorly. Where the range of a vector of indices is known to fit, this pass
//! recomputes it in `i32`: as the offset of a gather or scatter, as an operand of a comparison or conversion.
//! Precondition: unrolled loops are expanded. Scalars stay as they are, because addresses are 64 bits wide.

use crate::facts::{self, Address};
use orch_compute::{Bounds, Expr, ExprId};
use orch_ir::{BinaryFn, DType, UnaryFn};
use orch_thread::{Stmt, ThreadProgram};
use rustc_hash::FxHashMap;

/// `program` with vectors of indices narrowed where that is exact.
pub fn narrow(mut program: ThreadProgram) -> ThreadProgram {
    let body = std::mem::take(&mut program.body);
    let mut narrower = Narrower {
        program,
        bounds: Bounds::new(),
        rewritten: FxHashMap::default(),
        narrowed: FxHashMap::default(),
    };
    let body = narrower.list(body);
    ThreadProgram { body, ..narrower.program }
}

struct Narrower {
    program: ThreadProgram,
    bounds: Bounds,
    /// What each expression has become.
    rewritten: FxHashMap<ExprId, ExprId>,
    /// Vectors of `i64` in 32 bits, or `None` if their range is not known to fit.
    narrowed: FxHashMap<ExprId, Option<ExprId>>,
}

impl Narrower {
    fn list(&mut self, stmts: Vec<Stmt>) -> Vec<Stmt> {
        stmts.into_iter().map(|stmt| self.stmt(stmt)).collect()
    }

    fn stmt(&mut self, stmt: Stmt) -> Stmt {
        match stmt {
            Stmt::Comment(_) => stmt,
            Stmt::Let(var, value) => Stmt::Let(var, self.expr(value)),
            Stmt::Register(var, value) => Stmt::Register(var, self.expr(value)),
            Stmt::Assign(var, value) => Stmt::Assign(var, self.expr(value)),
            Stmt::Store { buffer, offset, value, mask } => Stmt::Store {
                buffer,
                offset: self.offset(offset),
                value: self.expr(value),
                mask: mask.map(|mask| self.expr(mask)),
            },
            Stmt::For { var, start, end, step, kind, body } => {
                let (start, end) = (self.expr(start), self.expr(end));
                Stmt::For { var, start, end, step, kind, body: self.list(body) }
            }
            Stmt::If { condition, then, otherwise } => {
                let condition = self.expr(condition);
                Stmt::If { condition, then: self.list(then), otherwise: self.list(otherwise) }
            }
            Stmt::Prefetch { buffer, offset } => Stmt::Prefetch { buffer, offset: self.expr(offset) },
            Stmt::Amx(stmt) => Stmt::Amx(stmt.map_offset(|offset| self.expr(offset))),
            Stmt::Cta(stmt) => Stmt::Cta(stmt.map_operands(|operand| self.expr(operand))),
        }
    }

    /// The offset of an access.
    fn offset(&mut self, offset: ExprId) -> ExprId {
        let rewritten = self.expr(offset);
        match facts::address(&self.program.exprs, offset) {
            Address::Scattered(_) => self.narrowed(offset).unwrap_or(rewritten),
            Address::Contiguous(_) | Address::Strided(..) => rewritten,
        }
    }

    fn expr(&mut self, root: ExprId) -> ExprId {
        for id in self.program.exprs.reachable_unless(&[root], |id| self.rewritten.contains_key(&id)) {
            let new = self.node(id);
            self.rewritten.insert(id, new);
        }
        self.rewritten[&root]
    }

    /// A node whose operands have been rewritten.
    fn node(&mut self, id: ExprId) -> ExprId {
        let node = self.program.exprs.get(id).clone();
        match node {
            Expr::Compare(f, a, b) if facts::prefix(&self.program.exprs, id).is_none() => {
                if let (Some(a), Some(b)) = (self.narrowed(a), self.narrowed(b)) {
                    return self.program.exprs.add(Expr::Compare(f, a, b));
                }
            }
            Expr::Cast(to, a) => {
                if let Some(a) = self.narrowed(a) {
                    return self.program.exprs.cast(to, a);
                }
            }
            Expr::Load { buffer, offset, lanes, mask } if self.program.exprs.lanes(offset) > 1 => {
                let offset = self.offset(offset);
                let mask = mask.map(|mask| self.expr(mask));
                return self.program.exprs.add(Expr::Load { buffer, offset, lanes, mask });
            }
            _ => {}
        }
        let moved = node.map_operands(|operand| self.rewritten[&operand]);
        self.program.exprs.add(moved)
    }

    /// A vector of `i64` in 32 bits, if its range fits; its operands have been rewritten.
    fn narrowed(&mut self, root: ExprId) -> Option<ExprId> {
        let ty = self.program.exprs.ty(root);
        if ty.dtype != DType::I64 || ty.lanes == 1 {
            return None;
        }
        for id in self.program.exprs.reachable_unless(&[root], |id| self.narrowed.contains_key(&id)) {
            let ty = self.program.exprs.ty(id);
            let is_candidate = ty.dtype == DType::I64 && ty.lanes > 1;
            let fits = is_candidate
                && self.bounds.of(&self.program.exprs, id).is_within(i32::MIN.into(), i32::MAX.into());
            let narrow = fits.then(|| self.in_32_bits(id));
            self.narrowed.insert(id, narrow);
        }
        self.narrowed[&root]
    }

    /// A vector whose values fit: computed from narrow operands where they fit too, otherwise converted.
    fn in_32_bits(&mut self, id: ExprId) -> ExprId {
        let node = self.program.exprs.get(id).clone();
        let computed = match node {
            Expr::Splat(a, lanes) => {
                let a = self.program.exprs.cast(DType::I32, self.rewritten[&a]);
                Some(Expr::Splat(a, lanes))
            }
            Expr::Ramp { base, stride, lanes } => {
                let base = self.program.exprs.cast(DType::I32, self.rewritten[&base]);
                Some(Expr::Ramp { base, stride, lanes })
            }
            Expr::Unary(f @ (UnaryFn::Neg | UnaryFn::Abs), a) => self.narrowed[&a].map(|a| Expr::Unary(f, a)),
            Expr::Binary(f, a, b) if is_narrowable(f) => match (self.narrowed[&a], self.narrowed[&b]) {
                (Some(a), Some(b)) => Some(Expr::Binary(f, a, b)),
                _ => None,
            },
            Expr::FloorDiv(a, b) => self.both(a, b).map(|(a, b)| Expr::FloorDiv(a, b)),
            Expr::FloorRem(a, b) => self.both(a, b).map(|(a, b)| Expr::FloorRem(a, b)),
            Expr::Select(condition, a, b) => {
                let condition = self.rewritten[&condition];
                self.both(a, b).map(|(a, b)| Expr::Select(condition, a, b))
            }
            _ => None,
        };
        match computed {
            Some(node) => self.program.exprs.add(node),
            None => self.program.exprs.cast(DType::I32, self.rewritten[&id]),
        }
    }

    fn both(&self, a: ExprId, b: ExprId) -> Option<(ExprId, ExprId)> {
        self.narrowed[&a].zip(self.narrowed[&b])
    }
}

/// True for functions that give the same result in fewer bits if operands and result fit.
fn is_narrowable(f: BinaryFn) -> bool {
    matches!(
        f,
        BinaryFn::Add
            | BinaryFn::Sub
            | BinaryFn::Mul
            | BinaryFn::Max
            | BinaryFn::Min
            | BinaryFn::And
            | BinaryFn::Or
            | BinaryFn::Xor
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_thread::{parse_thread, validate_thread};

    #[track_caller]
    fn narrows(statement: &str, expected: &str) {
        let program = |statement: &str| {
            format!(
                "program k, 1 tasks task: i64 [0..=0]\n  input x: f32[64]\n  output y: f32[64]\n  input ids: i64[64]\n{{\n  \
                 for i: i64 [0..=99] = 0 to 100 step 1 {{\n    {statement}\n  }}\n}}\n"
            )
        };
        let parsed = parse_thread(&program(statement)).unwrap();
        assert_eq!(validate_thread(&parsed), Vec::<String>::new());
        assert_eq!(narrow(parsed).to_string(), program(expected));
    }

    #[test]
    fn offsets_are_narrowed() {
        narrows(
            "let v: f32x8 = x[(ramp((i * 3), 1; 8) // splat(9; 8))]",
            "let v: f32x8 = x[(ramp(i32((i * 3)), 1; 8) // splat(9_i32; 8))]",
        );
    }

    #[test]
    fn comparisons_are_narrowed_but_not_prefixes() {
        narrows(
            "let v: boolx8 = (ramp(i, 2; 8) < splat(50; 8))",
            "let v: boolx8 = (ramp(i32(i), 2; 8) < splat(50_i32; 8))",
        );
        narrows(
            "let v: boolx8 = (ramp(i, 1; 8) < splat(i; 8))",
            "let v: boolx8 = (ramp(i, 1; 8) < splat(i; 8))",
        );
    }

    #[test]
    fn loaded_indices_are_converted_once_they_are_limited() {
        narrows(
            "let v: f32x8 = x[(min(max(ids[i; 8], splat(0; 8)), splat(7; 8)) * splat(8; 8))]",
            "let v: f32x8 = x[(i32(min(max(ids[i; 8], splat(0; 8)), splat(7; 8))) * splat(8_i32; 8))]",
        );
        narrows("let v: f32x8 = x[ids[i; 8]]", "let v: f32x8 = x[ids[i; 8]]");
    }

    #[test]
    fn what_may_not_fit_stays() {
        narrows(
            "let v: boolx8 = ((ramp(i, 2; 8) * splat(1000000000; 8)) == splat(5; 8))",
            "let v: boolx8 = ((ramp(i, 2; 8) * splat(1000000000; 8)) == splat(5; 8))",
        );
    }
}
