//! `MaxUnpool`: puts pooled maxima back where they came from.
//!
//! Operands: `x [n, c, d..]`, `positions [n, c, d..]` (integers: row-major positions in a tensor
//! `[n, c, unpooled_0, ..]`, as `MaxPool` returns them). The result has the stated shape `[n, c, e..]`; elements keep their
//! coordinates, those that fall outside are dropped, and the rest is 0.
//!
//! - ints: `[unpooled_0, ..]`: the spatial extents that `positions` refer to
//! - floats: `[]`
//! - texts: `[]`

use super::Call;
use crate::EvalError;
use crate::index::strides;
use orch_ir::{Shape, Tensor};

/// Runs the routine.
///
/// # Errors
/// If the operands or parameters are not those of the module documentation.
pub fn max_unpool(call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let [x, positions] = call.operands()?;
    let shape = call.result_shape()?;
    let unpooled: Vec<usize> = call.ints.iter().map(|&extent| call.size(extent)).collect::<Result<_, _>>()?;
    let rank = x.shape().rank();
    let fits = rank >= 2
        && positions.shape() == x.shape()
        && shape.rank() == rank
        && shape[..2] == x.shape()[..2]
        && unpooled.len() == rank - 2
        && Shape::checked([&x.shape()[..2], &unpooled].concat()).is_some();
    if !fits {
        return Err(call.error(format!(
            "x is {}, positions {}, result {shape}",
            x.shape(),
            positions.shape()
        )));
    }
    let places = positions.to_i64().ok_or_else(|| call.error("the positions are not integers"))?;
    let source_dims = [&x.shape()[..2], &unpooled].concat();
    let (source_strides, own) = (strides(&source_dims), strides(shape));
    let mut result = vec![0.0; shape.elems()];
    for (value, place) in x.to_f64().into_iter().zip(places) {
        let Ok(place) = usize::try_from(place) else { continue };
        let coordinates: Vec<usize> = (0..rank)
            .map(|dim| {
                if dim == 0 {
                    place / source_strides[0].max(1)
                } else {
                    place / source_strides[dim].max(1) % source_dims[dim].max(1)
                }
            })
            .collect();
        if coordinates.iter().zip(shape.iter()).all(|(at, extent)| at < extent) {
            result[coordinates.iter().zip(&own).map(|(at, stride)| at * stride).sum::<usize>()] = value;
        }
    }
    Ok(call.result(shape, &result))
}
