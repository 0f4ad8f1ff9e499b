//! Integer lists that older versions of an operator take as attribute and newer ones as operand.

use crate::{Call, Context, RuleError};
use orch_ir::Tensor;

/// The integers of attribute `name`, or where it is missing those of operand `index`; `None` if neither is there.
///
/// # Errors
/// If the operand is not a constant of integers.
pub(super) fn attribute_or_operand(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    name: &str,
    index: usize,
) -> Result<Option<Vec<i64>>, RuleError> {
    match call.ints(name)? {
        Some(values) => Ok(Some(values.to_vec())),
        None => ctx.optional_int_operand(call, index, name),
    }
}

/// The single integer of operand `index`.
///
/// # Errors
/// If the operand is missing, not a constant, or not one integer.
pub(super) fn single_int(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    index: usize,
    what: &str,
) -> Result<i64, RuleError> {
    match ctx.int_operand(call, index, what)?.as_slice() {
        [value] => Ok(*value),
        values => Err(RuleError::invalid(format!("{what} is {values:?}, one integer is expected"))),
    }
}

/// The single value of constant operand `index`, as a float.
///
/// # Errors
/// If the operand is missing, not a constant, or has another number of elements.
pub(super) fn single_float(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    index: usize,
    what: &str,
) -> Result<f64, RuleError> {
    single(&ctx.constant_operand(call, index, what)?, what)
}

/// The value of a tensor of one element.
fn single(value: &Tensor, what: &str) -> Result<f64, RuleError> {
    match value.to_f64().as_slice() {
        [number] => Ok(*number),
        _ => Err(RuleError::invalid(format!("{what} has shape {}, one value is expected", value.shape()))),
    }
}

/// An extent that a model states.
///
/// # Errors
/// If it is negative.
pub(super) fn extent(value: i64, what: &str) -> Result<usize, RuleError> {
    usize::try_from(value).map_err(|_| RuleError::invalid(format!("{what} is {value}, a size is expected")))
}

/// Extents that a model states.
///
/// # Errors
/// If one is negative.
pub(super) fn extents(values: &[i64], what: &str) -> Result<Vec<usize>, RuleError> {
    values.iter().map(|&value| extent(value, what)).collect()
}
