//! `MaxRoiPool`: the maximum over each cell of regions of interest.
//!
//! Operands: `x [n, c, h, w]`, `rois [r, 5]` (`batch x1 y1 x2 y2`; the batch is limited to `0..n`). Result
//! `[r, c, pooled_height, pooled_width]`; a cell without elements is 0.
//!
//! - ints: `[pooled_height, pooled_width]`
//! - floats: `[spatial_scale]`
//! - texts: `[]`

use super::Call;
use crate::EvalError;
use orch_ir::Tensor;
use std::ops::Range;

/// Runs the routine.
///
/// # Errors
/// If the operands or parameters are not those of the module documentation.
pub fn max_roi_pool(call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let [x, rois] = call.operands()?;
    let [pooled_height, pooled_width] = call.ints()?;
    let (pooled_height, pooled_width) = (call.size(pooled_height)?, call.size(pooled_width)?);
    let [scale] = call.floats()?;
    let &[n, c, h, w] = x.shape().dims() else {
        return Err(call.error(format!("x is {}, four dimensions expected", x.shape())));
    };
    let &[regions, 5] = rois.shape().dims() else {
        return Err(call.error(format!("rois are {}, [r, 5] expected", rois.shape())));
    };
    if n == 0 && regions > 0 {
        return Err(call.error(format!("regions of the empty batch {}", x.shape())));
    }
    call.expect_shape(&[regions, c, pooled_height, pooled_width])?;
    let values = x.to_f64();
    let mut result = Vec::with_capacity(regions * c * pooled_height * pooled_width);
    for roi in rois.to_f64().chunks(5) {
        let batch = (roi[0].max(0.0) as usize).min(n - 1);
        for channel in 0..c {
            let plane = &values[(batch * c + channel) * h * w..][..h * w];
            for (row, column) in (0..pooled_height).flat_map(|r| (0..pooled_width).map(move |q| (r, q))) {
                let rows = cell([roi[2] * scale, roi[4] * scale], row, pooled_height, h);
                let columns = cell([roi[1] * scale, roi[3] * scale], column, pooled_width, w);
                let inside = rows.flat_map(|r| columns.clone().map(move |q| plane[r * w + q]));
                result.push(inside.reduce(f64::max).unwrap_or(0.0));
            }
        }
    }
    Ok(call.result(&[regions, c, pooled_height, pooled_width], &result))
}

/// The elements along one dimension that cell `index` of `cells` covers.
fn cell([low, high]: [f64; 2], index: usize, cells: usize, extent: usize) -> Range<usize> {
    let (start, end) = (low.round(), high.round());
    let size = (end - start + 1.0).max(1.0) / cells as f64;
    let limit = |position: f64| position.clamp(0.0, extent as f64) as usize;
    limit((index as f64 * size).floor() + start)..limit(((index + 1) as f64 * size).ceil() + start)
}
