//! Index expressions bound to readable names in thread programs.

use orch_compute::expr::{ExprId, VarId};
use orch_compute::simplify::simplify;
use orch_thread::program::{Stmt, ThreadProgram};

/// Binds an expression with values `0..extent` to a variable.
pub(crate) fn bind_var(
    program: &mut ThreadProgram,
    body: &mut Vec<Stmt>,
    name: &str,
    value: ExprId,
    extent: usize,
) -> VarId {
    let value = simplify(&mut program.exprs, value);
    let var = program.exprs.declare_index(name, extent);
    body.push(Stmt::Let(var, value));
    var
}

/// The same as an expression; where there is one value only, that constant.
pub(crate) fn bind_index(
    program: &mut ThreadProgram,
    body: &mut Vec<Stmt>,
    name: &str,
    value: ExprId,
    extent: usize,
) -> ExprId {
    if extent <= 1 {
        return program.exprs.index(0);
    }
    let var = bind_var(program, body, name, value, extent);
    program.exprs.var(var)
}

/// Binds an expression of any type to a variable.
pub(crate) fn bind_value(
    program: &mut ThreadProgram,
    body: &mut Vec<Stmt>,
    name: &str,
    value: ExprId,
) -> ExprId {
    let var = program.exprs.declare_register(name, program.exprs.ty(value));
    body.push(Stmt::Let(var, value));
    program.exprs.var(var)
}
