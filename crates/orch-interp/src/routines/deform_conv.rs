//! `DeformConv`: a two-dimensional convolution that reads at learned offsets.
//!
//! Operands, all present: `x [n, c, h, w]`, `w [m, c / groups, kh, kw]`,
//! `offset [n, offset_groups * kh * kw * 2, oh, ow]` (per kernel position: along h, then along w),
//! `mask [n, offset_groups * kh * kw, oh, ow]` (ones where the model gives none). Result `[n, m, oh, ow]`; the bias is
//! left to the caller. Reads between elements are bilinear, outside they are 0.
//!
//! - ints: `[stride_h, stride_w, dilation_h, dilation_w, low_h, low_w, groups, offset_groups]`
//! - floats: `[]`
//! - texts: `[]`

use super::Call;
use crate::EvalError;
use orch_ir::Tensor;

/// Runs the routine.
///
/// # Errors
/// If the operands or parameters are not those of the module documentation.
pub fn deform_conv(call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let operands @ [x, weight, offset, mask] = call.operands::<4>()?;
    let geometry = Geometry::of(call, operands)?;
    let (x_values, weights) = (x.to_f64(), weight.to_f64());
    let (offsets, masks) = (offset.to_f64(), mask.to_f64());
    let [n, c, h, w] = geometry.x;
    let [m, group_channels, kh, kw] = geometry.weight;
    let [oh, ow] = geometry.out;
    let (taps_per_kernel, points) = (kh * kw, oh * ow);
    let mut result = vec![0.0; n * m * points];
    for (batch, point) in (0..n).flat_map(|batch| (0..points).map(move |point| (batch, point))) {
        // The masked value that each channel contributes at each kernel position.
        let mut column = vec![0.0; c * taps_per_kernel];
        for (at, value) in column.iter_mut().enumerate() {
            let (channel, tap) = (at / taps_per_kernel, at % taps_per_kernel);
            let offset_group = channel / (c / geometry.offset_groups);
            let plane = (batch * geometry.offset_groups + offset_group) * taps_per_kernel + tap;
            let shift = |axis: usize| offsets[(plane * 2 + axis) * points + point];
            let [y, x] = geometry.position(point, tap);
            let source = &x_values[(batch * c + channel) * h * w..][..h * w];
            *value = masks[plane * points + point] * bilinear(source, [h, w], [y + shift(0), x + shift(1)]);
        }
        for filter in 0..m {
            let group = filter / (m / geometry.groups);
            let column = &column[group * group_channels * taps_per_kernel..];
            let filter_weights =
                &weights[filter * group_channels * taps_per_kernel..][..group_channels * taps_per_kernel];
            result[(batch * m + filter) * points + point] =
                filter_weights.iter().zip(column).map(|(a, b)| a * b).sum();
        }
    }
    Ok(call.result(&[n, m, oh, ow], &result))
}

/// Checked extents and steps.
struct Geometry {
    x: [usize; 4],
    weight: [usize; 4],
    out: [usize; 2],
    strides: [i64; 2],
    dilations: [i64; 2],
    low: [i64; 2],
    groups: usize,
    offset_groups: usize,
}

impl Geometry {
    fn of(call: &Call<'_>, operands: [&Tensor; 4]) -> Result<Self, EvalError> {
        let ints @ [stride_h, stride_w, dilation_h, dilation_w, low_h, low_w, groups, offset_groups] =
            call.ints::<8>()?;
        let small = ints.iter().all(|&v| (0..1 << 31).contains(&v));
        let [Some(x), Some(weight), Some(offset), Some(mask)] = operands.map(extents4) else {
            return Err(call.error("operands of four dimensions expected"));
        };
        let (groups, offset_groups) = (call.size(groups)?, call.size(offset_groups)?);
        let taps = weight[2] * weight[3];
        let fits = small
            && groups > 0
            && offset_groups > 0
            && x[1] == weight[1] * groups
            && weight[0].is_multiple_of(groups)
            && x[1].is_multiple_of(offset_groups)
            && offset == [x[0], 2 * offset_groups * taps, offset[2], offset[3]]
            && mask == [x[0], offset_groups * taps, offset[2], offset[3]];
        if !fits {
            let shapes = operands.map(|t| t.shape().to_string()).join(", ");
            return Err(call.error(format!("operands {shapes} and parameters {ints:?} do not fit")));
        }
        Ok(Self {
            x,
            weight,
            out: [offset[2], offset[3]],
            strides: [stride_h, stride_w],
            dilations: [dilation_h, dilation_w],
            low: [low_h, low_w],
            groups,
            offset_groups,
        })
    }

    /// Where a plain convolution reads for an output point and a kernel position.
    fn position(&self, point: usize, tap: usize) -> [f64; 2] {
        let point = [point / self.out[1], point % self.out[1]];
        let tap = [tap / self.weight[3], tap % self.weight[3]];
        [0, 1].map(|dim| {
            (point[dim] as i64 * self.strides[dim] + tap[dim] as i64 * self.dilations[dim] - self.low[dim])
                as f64
        })
    }
}

/// The extents of a tensor of four dimensions.
fn extents4(x: &Tensor) -> Option<[usize; 4]> {
    x.shape().dims().try_into().ok()
}

/// The value between the elements of a plane; 0 outside.
fn bilinear(plane: &[f64], [h, w]: [usize; 2], [y, x]: [f64; 2]) -> f64 {
    let mut sum = 0.0;
    for (row, row_weight) in taps(y) {
        for (column, column_weight) in taps(x) {
            if (0..h as i64).contains(&row) && (0..w as i64).contains(&column) {
                sum += row_weight * column_weight * plane[row as usize * w + column as usize];
            }
        }
    }
    sum
}

/// The elements beside a coordinate, and their weights; they may lie outside.
fn taps(coordinate: f64) -> [(i64, f64); 2] {
    let floor = coordinate.floor();
    let (base, fraction) = (floor as i64, coordinate - floor);
    [(base, 1.0 - fraction), (base.saturating_add(1), fraction)]
}
