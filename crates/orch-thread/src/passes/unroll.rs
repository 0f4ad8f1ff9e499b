//! Fully unrolled loops become straight code.
//!
//! Each iteration is a copy of the body in which the loop variable is replaced by its value and which has variables of its own.
//! Constants fold, and so do branches on constants. A variable that several statement lists declare becomes one variable per list:
//! generators of C name expressions across iterations, and find each variable declared once.
//!
//! GPU programs keep such loops: NVRTC unrolls them.

use crate::program::{LoopKind, Stmt, ThreadProgram};
use orch_compute::{Expr, ExprId, Substitution, VarId};
use std::collections::BTreeSet;

/// Expands every loop of kind [`LoopKind::Unroll`].
///
/// # Panics
/// If the bounds of such a loop are not constants, which the validator reports, or the program is for a GPU.
pub fn unroll(program: &mut ThreadProgram) {
    let body = std::mem::take(&mut program.body);
    let mut expander = Expander { program, declared: BTreeSet::new() };
    let body = expander.list(&body, &mut Env::new(Vec::new()));
    program.body = body;
}

/// True if no loop of kind [`LoopKind::Unroll`] is left.
pub fn is_unrolled(stmts: &[Stmt]) -> bool {
    stmts.iter().all(|stmt| {
        !matches!(stmt, Stmt::For { kind: LoopKind::Unroll, .. }) && stmt.bodies().all(is_unrolled)
    })
}

struct Expander<'a> {
    program: &'a mut ThreadProgram,
    /// Variables of the result that are declared already.
    declared: BTreeSet<VarId>,
}

/// What variables of the source stand for at the current place.
struct Env {
    bindings: Vec<(VarId, ExprId)>,
    substitution: Substitution,
}

impl Env {
    fn new(bindings: Vec<(VarId, ExprId)>) -> Self {
        let substitution = Substitution::new(&bindings);
        Self { bindings, substitution }
    }

    /// Makes a variable stand for an expression from here on.
    fn bind(&mut self, var: VarId, value: ExprId) {
        self.bindings.push((var, value));
        self.substitution = Substitution::new(&self.bindings);
    }
}

impl Expander<'_> {
    fn list(&mut self, stmts: &[Stmt], env: &mut Env) -> Vec<Stmt> {
        let mut result = Vec::with_capacity(stmts.len());
        for stmt in stmts {
            self.stmt(stmt, env, &mut result);
        }
        result
    }

    fn stmt(&mut self, stmt: &Stmt, env: &mut Env, result: &mut Vec<Stmt>) {
        match stmt {
            Stmt::For { var, start, end, step, kind: LoopKind::Unroll, body } => {
                let start = self.constant(*start, env);
                let end = self.constant(*end, env);
                let mut value = start;
                while value < end {
                    let mut env = self.iteration(*var, value, body, env);
                    result.extend(self.list(body, &mut env));
                    value += step;
                }
            }
            Stmt::If { condition, then, otherwise } => {
                let condition = self.expr(*condition, env);
                match self.program.exprs.as_bool(condition) {
                    Some(true) => result.extend(self.list(then, env)),
                    Some(false) => result.extend(self.list(otherwise, env)),
                    None => {
                        let then = self.list(then, env);
                        let otherwise = self.list(otherwise, env);
                        result.push(Stmt::If { condition, then, otherwise });
                    }
                }
            }
            Stmt::For { var, start, end, step, kind, body } => {
                let (start, end) = (self.expr(*start, env), self.expr(*end, env));
                let var = self.declare(*var, env);
                let body = self.list(body, env);
                result.push(Stmt::For { var, start, end, step: *step, kind: *kind, body });
            }
            Stmt::Comment(text) => result.push(Stmt::Comment(text.clone())),
            Stmt::Let(var, value) => {
                let value = self.expr(*value, env);
                result.push(Stmt::Let(self.declare(*var, env), value));
            }
            Stmt::Register(var, value) => {
                let value = self.expr(*value, env);
                result.push(Stmt::Register(self.declare(*var, env), value));
            }
            Stmt::Assign(var, value) => {
                result.push(Stmt::Assign(self.target(*var, env), self.expr(*value, env)));
            }
            Stmt::Store { buffer, offset, value, mask } => result.push(Stmt::Store {
                buffer: *buffer,
                offset: self.expr(*offset, env),
                value: self.expr(*value, env),
                mask: mask.map(|mask| self.expr(mask, env)),
            }),
            Stmt::Prefetch { buffer, offset } => {
                result.push(Stmt::Prefetch { buffer: *buffer, offset: self.expr(*offset, env) });
            }
            Stmt::Amx(stmt) => {
                result.push(Stmt::Amx(stmt.map_offset(|offset| self.expr(offset, env))));
            }
            Stmt::Cta(_) => panic!("programs of CTAs are unrolled by the CUDA compiler"),
        }
    }

    fn expr(&mut self, id: ExprId, env: &mut Env) -> ExprId {
        env.substitution.apply(&mut self.program.exprs, id)
    }

    fn constant(&mut self, id: ExprId, env: &mut Env) -> i64 {
        let id = self.expr(id, env);
        self.program.exprs.as_int(id).expect("bounds of an unrolled loop are constants")
    }

    /// The variable that `var` is called in this copy.
    fn target(&mut self, var: VarId, env: &mut Env) -> VarId {
        let source = self.program.exprs.var(var);
        let copy = self.expr(source, env);
        match self.program.exprs.get(copy) {
            Expr::Var(copy) => *copy,
            _ => var,
        }
    }

    /// The variable that a declaration of `var` declares in this copy: a new one, if it has been declared before.
    fn declare(&mut self, var: VarId, env: &mut Env) -> VarId {
        let target = self.target(var, env);
        if self.declared.insert(target) {
            return target;
        }
        let info = self.program.exprs.var_info(var).clone();
        let copy = self.program.exprs.declare(info);
        let copy_expr = self.program.exprs.var(copy);
        env.bind(var, copy_expr);
        self.declared.insert(copy);
        copy
    }

    /// The environment of one iteration: the loop variable is `value`, variables of the body are new.
    fn iteration(&mut self, var: VarId, value: i64, body: &[Stmt], env: &Env) -> Env {
        let mut bindings = env.bindings.clone();
        let exprs = &mut self.program.exprs;
        bindings.push((var, exprs.index(value)));
        let mut declared = Vec::new();
        declarations(body, &mut declared);
        for var in declared {
            let mut info = exprs.var_info(var).clone();
            info.name = format!("{}_{value}", info.name);
            let copy = exprs.declare(info);
            bindings.push((var, exprs.var(copy)));
        }
        Env::new(bindings)
    }
}

/// Variables that statements declare, those of unrolled loops inside excepted: each iteration renames its own.
fn declarations(stmts: &[Stmt], declared: &mut Vec<VarId>) {
    for stmt in stmts {
        match stmt {
            Stmt::Let(var, _) | Stmt::Register(var, _) => declared.push(*var),
            Stmt::For { kind: LoopKind::Unroll, .. } => {}
            Stmt::For { var, body, .. } => {
                declared.push(*var);
                declarations(body, declared);
            }
            Stmt::If { then, otherwise, .. } => {
                declarations(then, declared);
                declarations(otherwise, declared);
            }
            Stmt::Comment(_)
            | Stmt::Assign(..)
            | Stmt::Store { .. }
            | Stmt::Prefetch { .. }
            | Stmt::Amx(_)
            | Stmt::Cta(_) => {}
        }
    }
}
