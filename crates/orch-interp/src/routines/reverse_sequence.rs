//! `ReverseSequence`: reverses the leading part of each sequence.
//!
//! Operands: `x` of any type and rank >= 2, `lengths [batch]` (integers, limited to the extent). Result as `x`: elements
//! before a sequence's length are in reverse order, those after it stay.
//!
//! - ints: `[batch_axis, time_axis]` (different)
//! - floats: `[]`
//! - texts: `[]`

use super::Call;
use crate::EvalError;
use crate::element::{elems, indices, tensor, with_element};
use crate::index::{Odometer, dot, strides};
use orch_ir::Tensor;

/// Runs the routine.
///
/// # Errors
/// If the operands or parameters are not those of the module documentation.
pub fn reverse_sequence(call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let [x, lengths] = call.operands()?;
    let [batch_axis, time_axis] = call.ints()?;
    let (batch_axis, time_axis) = (call.size(batch_axis)?, call.size(time_axis)?);
    let rank = x.shape().rank();
    let fits = batch_axis < rank
        && time_axis < rank
        && batch_axis != time_axis
        && lengths.dtype().is_int()
        && lengths.shape()[..] == [x.shape()[batch_axis]];
    if !fits {
        return Err(call.error(format!(
            "x is {}, lengths are {}{}, batch axis {batch_axis}, time axis {time_axis}",
            x.shape(),
            lengths.dtype(),
            lengths.shape()
        )));
    }
    let lengths = indices(lengths, x.shape()[time_axis] + 1);
    let own = strides(x.shape());
    let mut offsets = Vec::with_capacity(x.shape().elems());
    let mut positions = Odometer::new(x.shape());
    while let Some(position) = positions.next() {
        let (time, length) = (position[time_axis], lengths[position[batch_axis]]);
        let source = if time < length { length - 1 - time } else { time };
        offsets.push(dot(position, &own) - time * own[time_axis] + source * own[time_axis]);
    }
    Ok(vec![with_element!(x.dtype(), T => {
        let source = elems::<T>(x);
        tensor(x.shape().clone(), offsets.iter().map(|&at| source[at]).collect())
    })])
}
