//! Reads of an argument, and how their offsets vary with one variable.

use orch_compute::block::BlockProgram;
use orch_compute::expr::substitute::substitute;
use orch_compute::expr::{ArgId, Expr, ExprId, Exprs, VarId};
use orch_compute::simplify::simplify;

/// The constant step of `offset` per unit of `var`, if it is linear in it and nothing else varies with it.
pub(super) fn linear_in(exprs: &mut Exprs, offset: ExprId, var: VarId) -> Option<i64> {
    let extent = block_extent(exprs, var);
    if extent <= 1 {
        return Some(1);
    }
    let zero = exprs.index(0);
    let base = substitute(exprs, offset, &[(var, zero)]);
    let difference = exprs.sub(offset, base);
    let difference = simplify(exprs, difference);
    let at = exprs.var(var);
    let one = exprs.index(1);
    let step = substitute(exprs, difference, &[(var, one)]);
    let stride = simplify(exprs, step);
    let stride = exprs.as_int(stride)?;
    let line = exprs.mul_const(at, stride);
    let line = simplify(exprs, line);
    (line == difference).then_some(stride)
}

/// The reads that an expression is made of, each as argument and element offset.
pub(crate) fn read_offsets(block: &BlockProgram, exprs: &mut Exprs, root: ExprId) -> Vec<(ArgId, ExprId)> {
    let nodes = exprs.reachable(&[root]).into_iter();
    let reads = nodes.filter_map(|id| match exprs.get(id).clone() {
        Expr::Read { arg, index, .. } => Some((arg, index)),
        _ => None,
    });
    let reads: Vec<_> = reads.collect();
    let offset = |(arg, index): (ArgId, Vec<ExprId>)| {
        let meta = block.arg(arg);
        (arg, exprs.linear_index(&index, &meta.layout.strides(&meta.shape)))
    };
    reads.into_iter().map(offset).collect()
}

/// The number of values of a variable.
pub(super) fn block_extent(exprs: &Exprs, var: VarId) -> usize {
    exprs.var_info(var).range.map_or(0, |(_, last)| last as usize + 1)
}

/// An expression that is nothing but an unguarded read, as argument and simplified element offset.
pub(crate) fn plain_read(block: &BlockProgram, exprs: &mut Exprs, id: ExprId) -> Option<(ArgId, ExprId)> {
    let Expr::Read { arg, index, guard: None } = exprs.get(id).clone() else { return None };
    let strides = block.arg(arg).layout.strides(&block.arg(arg).shape);
    let offset = exprs.linear_index(&index, &strides);
    Some((arg, simplify(exprs, offset)))
}
