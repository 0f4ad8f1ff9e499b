//! `RoiAlign`: pools regions of interest by bilinear samples.
//!
//! Operands: `x [n, c, h, w]`, `rois [r, 4]` (`x1 y1 x2 y2`), `batch_indices [r]` (integers, limited to `0..n`). Result
//! `[r, c, output_height, output_width]`.
//!
//! Mode `max` takes the largest *weighted corner* of all samples, as ONNX defines it by its test cases.
//!
//! - ints: `[output_height, output_width, sampling_ratio, half_pixel]` (`half_pixel` 0 or 1: the coordinate mode)
//! - floats: `[spatial_scale]`
//! - texts: `[mode]`: `avg` or `max`

use super::Call;
use crate::EvalError;
use crate::element::indices;
use orch_ir::Tensor;

/// Samples of one bin along one dimension, beyond which a region is not a plausible part of an image.
const MAX_PER_BIN: usize = 1 << 12;

/// How the samples of a bin are pooled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Average,
    Max,
}

/// One dimension of a region: where its samples lie.
struct Samples {
    start: f64,
    bin: f64,
    per_bin: usize,
}

/// Runs the routine.
///
/// # Errors
/// If the operands or parameters are not those of the module documentation.
pub fn roi_align(call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let [x, rois, batches] = call.operands()?;
    let [output_height, output_width, ratio, half_pixel] = call.ints()?;
    let (output_height, output_width) = (call.size(output_height)?, call.size(output_width)?);
    let [scale] = call.floats()?;
    let mode = match call.text(0)? {
        "avg" => Mode::Average,
        "max" => Mode::Max,
        other => return Err(call.error(format!("mode \"{other}\": avg or max expected"))),
    };
    let &[n, c, h, w] = x.shape().dims() else {
        return Err(call.error(format!("x is {}, four dimensions expected", x.shape())));
    };
    let regions = rois.shape().first().copied().unwrap_or(0);
    let fits = rois.shape()[..] == [regions, 4]
        && batches.shape()[..] == [regions]
        && batches.dtype().is_int()
        && (n * h * w > 0 || regions == 0);
    if !fits {
        return Err(call.error(format!(
            "x is {}, rois {}, batch indices {}",
            x.shape(),
            rois.shape(),
            batches.shape()
        )));
    }
    call.expect_shape(&[regions, c, output_height, output_width])?;
    let values = x.to_f64();
    let mut result = Vec::with_capacity(regions * c * output_height * output_width);
    for (roi, batch) in rois.to_f64().chunks(4).zip(indices(batches, n)) {
        let along = |low: f64, high: f64, bins: usize| {
            let samples = Samples::of([low, high], bins, ratio, scale, half_pixel != 0);
            let problem =
                || format!("a bin of the region {roi:?} has more than {MAX_PER_BIN} rows of samples");
            if samples.per_bin <= MAX_PER_BIN { Ok(samples) } else { Err(call.error(problem())) }
        };
        let rows = along(roi[1], roi[3], output_height)?;
        let columns = along(roi[0], roi[2], output_width)?;
        for channel in 0..c {
            let plane = &values[(batch * c + channel) * h * w..][..h * w];
            for (row, column) in (0..output_height).flat_map(|r| (0..output_width).map(move |q| (r, q))) {
                result.push(pool(plane, [h, w], rows.in_bin(row), columns.in_bin(column), mode));
            }
        }
    }
    Ok(call.result(&[regions, c, output_height, output_width], &result))
}

impl Samples {
    fn of([low, high]: [f64; 2], bins: usize, ratio: i64, scale: f64, half_pixel: bool) -> Self {
        let offset = if half_pixel { 0.5 } else { 0.0 };
        let extent = (high - low) * scale;
        let extent = if half_pixel { extent } else { extent.max(1.0) };
        let bin = extent / bins as f64;
        let per_bin = if ratio > 0 { ratio as usize } else { bin.ceil().max(0.0) as usize };
        Self { start: low * scale - offset, bin, per_bin }
    }

    /// The coordinates sampled for one bin.
    fn in_bin(&self, index: usize) -> Vec<f64> {
        let at = |sample: usize| {
            self.start + (index as f64 + (sample as f64 + 0.5) / self.per_bin as f64) * self.bin
        };
        (0..self.per_bin).map(at).collect()
    }
}

/// One pooled value.
fn pool(plane: &[f64], [h, w]: [usize; 2], rows: Vec<f64>, columns: Vec<f64>, mode: Mode) -> f64 {
    let count = (rows.len() * columns.len()).max(1) as f64;
    let (mut sum, mut largest) = (0.0, None);
    for &y in &rows {
        for &x in &columns {
            // A sample outside the image has four corners of weight 0.
            let row_taps = clamped_taps(y, h).unwrap_or([(0, 0.0); 2]);
            let column_taps = clamped_taps(x, w).unwrap_or([(0, 0.0); 2]);
            for (row, row_weight) in row_taps {
                for (column, column_weight) in column_taps {
                    let corner = row_weight * column_weight * plane[row * w + column];
                    sum += corner;
                    largest = Some(largest.map_or(corner, |l: f64| l.max(corner)));
                }
            }
        }
    }
    match mode {
        Mode::Average => sum / count,
        Mode::Max => largest.unwrap_or(0.0),
    }
}

/// The two elements that a coordinate lies between, with weights; `None` more than 1 outside.
fn clamped_taps(coordinate: f64, extent: usize) -> Option<[(usize, f64); 2]> {
    if !(-1.0..=extent as f64).contains(&coordinate) {
        return None;
    }
    let inside = coordinate.max(0.0).min(extent as f64 - 1.0);
    let low = inside.floor() as usize;
    let fraction = inside - inside.floor();
    Some([(low, 1.0 - fraction), ((low + 1).min(extent - 1), fraction)])
}
