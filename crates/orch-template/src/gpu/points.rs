//! Nests as the templates for GPUs see them: 16-bit floats are summed in f32, and points of axes are computed from flat numbers.

use crate::nest::flat::{Nest, NestReduction, StageWork, flatten};
use crate::nest::merge::merge_axes;
use orch_compute::block::{Axis, BlockProgram};
use orch_compute::expr::{Expr, ExprId, Type, VarInfo};
use orch_ir::DType;
use orch_thread::program::Stmt;

/// The nest of a block program, its axes merged.
pub(super) fn nest_of(block: &BlockProgram) -> Nest {
    let mut nest = flatten(block);
    reduce_in_f32(&mut nest);
    merge_axes(&mut nest);
    nest
}

/// Lets reductions of 16-bit floats accumulate in f32; what reads them gets the rounded results.
fn reduce_in_f32(nest: &mut Nest) {
    for position in 0..nest.stages.len() {
        let StageWork::Reduce(mut reduction) = nest.stages[position].work.clone() else { continue };
        if !nest.program.exprs.dtype(reduction.body).is_half() {
            continue;
        }
        let exprs = &mut nest.program.exprs;
        reduction.body = exprs.cast(DType::F32, reduction.body);
        reduction.operands =
            reduction.operands.map(|operands| operands.map(|value| exprs.cast(DType::F32, value)));
        if !reduction.op.is_arg() {
            round_result(nest, &mut reduction);
        }
        nest.stages[position].work = StageWork::Reduce(reduction);
    }
}

/// Gives a reduction an f32 result, and lets later steps read its rounding to the old type.
fn round_result(nest: &mut Nest, reduction: &mut NestReduction) {
    let exprs = &mut nest.program.exprs;
    let VarInfo { name, ty, .. } = exprs.var_info(reduction.result).clone();
    let wide = exprs.declare_register(name, Type::scalar(DType::F32));
    let value = exprs.var(wide);
    let rounded = exprs.cast(ty.dtype, value);
    nest.substitute(&[(reduction.result, rounded)]);
    reduction.result = wide;
}

/// Binds a value in `range` (both ends included) to a name, unless it is a constant or such a variable already.
pub(super) fn named(
    nest: &mut Nest,
    name: &str,
    value: ExprId,
    range: (usize, usize),
    multiple_of: usize,
    out: &mut Vec<Stmt>,
) -> ExprId {
    let value = nest.simplify(value);
    let exprs = &mut nest.program.exprs;
    if exprs.as_int(value).is_some() {
        return value;
    }
    let range = Some((range.0 as i64, range.1 as i64));
    let info = VarInfo { name: name.into(), ty: Type::INDEX, range, multiple_of: multiple_of as i64 };
    if let Expr::Var(var) = exprs.get(value)
        && *exprs.var_info(*var) == info
    {
        return value;
    }
    let var = exprs.declare(info);
    out.push(Stmt::Let(var, value));
    exprs.var(var)
}

/// The first values of each axis at point number `point` of a grid: each axis in steps of its granularity, the last
/// one fastest.
pub(super) fn unflatten(
    nest: &mut Nest,
    axes: &[(Axis, usize)],
    point: ExprId,
    out: &mut Vec<Stmt>,
) -> Vec<ExprId> {
    let counts: Vec<usize> = axes.iter().map(|(axis, step)| axis.extent.div_ceil(*step)).collect();
    let numbers = nest.program.exprs.unflatten(point, &counts);
    let mut values = Vec::new();
    for (((axis, step), count), number) in axes.iter().zip(counts).zip(numbers) {
        let name = nest.program.exprs.var_info(axis.var).name.clone();
        let first = nest.program.exprs.mul_const(number, *step as i64);
        let last = count.max(1) - 1;
        values.push(named(nest, &name, first, (0, last * step), *step, out));
    }
    values
}
