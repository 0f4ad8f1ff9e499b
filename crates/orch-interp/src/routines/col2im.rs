//! `Col2Im`: adds the columns of blocks back into an image.
//!
//! Operand: `x [n, c * prod(block), l]`, `l` the number of block positions. Result `[n, c, image_0, ..]`.
//!
//! - ints: for rank `r`, six lists of `r`: `image`, `block`, `dilations`, `low` (padding before), `high` (after), `strides`
//! - floats: `[]`
//! - texts: `[]`

use super::Call;
use crate::EvalError;
use crate::conv::taps_of;
use orch_ir::{Shape, Tensor, Window};

/// Runs the routine.
///
/// # Errors
/// If the operand or parameters are not those of the module documentation.
pub fn col2im(call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let [x] = call.operands()?;
    let rank = call.ints.len() / 6;
    let small = |&v: &i64| (0..1 << 31).contains(&v);
    if rank == 0 || call.ints.len() != 6 * rank || !call.ints.iter().all(small) {
        return Err(
            call.error(format!("six lists of non-negative parameters expected, {:?} given", call.ints))
        );
    }
    let lists: Vec<Vec<usize>> =
        call.ints.chunks(rank).map(|list| list.iter().map(|&v| v as usize).collect()).collect();
    let image = &lists[0];
    let window = Window {
        kernel: lists[1].clone(),
        dilations: lists[2].clone(),
        low: lists[3].clone(),
        high: lists[4].clone(),
        strides: lists[5].clone(),
    };
    let sized = |list: &[usize]| Shape::checked(list.to_vec()).is_some();
    if !sized(image) || !sized(&window.kernel) {
        let block = &window.kernel;
        return Err(call.error(format!("images {image:?} or blocks {block:?} are too large")));
    }
    let windows: Option<Vec<usize>> = (0..rank)
        .map(|dim| if window.strides[dim] > 0 { window.positions(dim, image[dim]) } else { None })
        .collect();
    let &[n, columns, positions] = x.shape().dims() else {
        return Err(call.error(format!("x is {}, three dimensions expected", x.shape())));
    };
    let block: usize = window.kernel.iter().product();
    let windows = windows
        .filter(|windows| {
            sized(windows)
                && windows.iter().product::<usize>() == positions
                && columns.is_multiple_of(block.max(1))
        })
        .ok_or_else(|| call.error(format!("x is {}, parameters {:?}", x.shape(), call.ints)))?;

    let shape = call.result_shape()?.clone();
    let planes = n * (columns / block.max(1));
    if shape.elems() != planes * image.iter().product::<usize>() {
        return Err(call.error(format!("the result {shape} does not hold images {image:?}")));
    }
    let (plane, values) = (image.iter().product::<usize>(), x.to_f64());
    let targets = taps_of(&window, image, &windows);
    let mut result = vec![0.0; planes * plane];
    for (row, line) in values.chunks(positions.max(1)).enumerate() {
        let (index, tap) = (row / block, row % block);
        for (value, target) in line.iter().zip(&targets[tap]) {
            if let Some(offset) = target {
                result[index * plane + offset] += value;
            }
        }
    }
    Ok(call.result(&shape, &result))
}
