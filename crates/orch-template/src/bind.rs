//! Index expressions bound to readable names in thread programs, and tensor arguments to buffers.

use orch_compute::block::Arg;
use orch_compute::expr::{ArgId, ExprId, VarId};
use orch_compute::simplify::simplify;
use orch_thread::kernel::{Binding, Kernel};
use orch_thread::program::{Buffer, Scope, Stmt, ThreadProgram};

/// Adds a buffer for each argument to a program that has none: argument `i` is buffer `i`.
pub(crate) fn add_arguments(program: &mut ThreadProgram, args: &[Arg]) {
    for (number, arg) in args.iter().enumerate() {
        let (name, scope) = (format!("arg{number}"), Scope::from(arg.role));
        program.add_buffer(Buffer { name, dtype: arg.dtype, elems: arg.shape.elems(), scope });
    }
}

/// The kernel of a program whose buffers are those of [`add_arguments`].
pub(crate) fn bound_kernel(program: ThreadProgram, args: &[Arg]) -> Kernel {
    let bindings = (0..args.len()).map(|arg| Binding::Arg(ArgId::new(arg))).collect();
    Kernel { program, bindings }
}

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
