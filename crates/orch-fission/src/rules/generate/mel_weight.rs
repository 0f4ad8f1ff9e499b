//! MelWeightMatrix: `[spectrogram bins, mel bins]`, one triangular filter per mel bin, of operands that are known when
//! compiling.

use super::super::operand_lists::{extent, single_float, single_int};
use super::generated_shape;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{DType, Tensor};

pub(super) fn mel_weight_matrix(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let mel_bins = extent(single_int(ctx, call, 0, "num_mel_bins")?, "num_mel_bins")?;
    let length = extent(single_int(ctx, call, 1, "dft_length")?, "dft_length")?;
    let sample_rate = single_int(ctx, call, 2, "sample_rate")?;
    let lowest = single_float(ctx, call, 3, "lower_edge_hertz")?;
    let highest = single_float(ctx, call, 4, "upper_edge_hertz")?;
    let dtype = call.dtype_attribute("output_datatype")?.unwrap_or(DType::F32);
    let bins = length / 2 + 1;
    let shape = generated_shape(vec![bins, mel_bins])?;
    let (low, high) = (to_mel(lowest), to_mel(highest));
    let step = (high - low) / (mel_bins as f64 + 2.0);
    let bin = |at: usize| {
        let hertz = to_hertz(low + at as f64 * step);
        ((length as f64 + 1.0) * hertz / sample_rate as f64).floor()
    };
    if sample_rate <= 0
        || !(0.0..bins as f64).contains(&bin(0))
        || !(0.0..=bins as f64).contains(&bin(mel_bins + 1))
    {
        return Err(RuleError::invalid(format!(
            "edges of {lowest} and {highest} Hz at {sample_rate} samples per second"
        )));
    }
    let mut values = vec![0.0; bins * mel_bins];
    for mel in 0..mel_bins {
        let [left, centre, right] = [bin(mel), bin(mel + 1), bin(mel + 2)];
        for row in 0..bins {
            values[row * mel_bins + mel] = triangle(row as f64, [left, centre, right]);
        }
    }
    one(ctx.tensor(Tensor::from_f64(dtype, shape, &values)))
}

/// Rises from `left` to `centre` and falls to `right`; 1 at the centre.
fn triangle(at: f64, [left, centre, right]: [f64; 3]) -> f64 {
    if at == centre {
        1.0
    } else if at > left && at < centre {
        (at - left) / (centre - left)
    } else if at > centre && at < right {
        (right - at) / (right - centre)
    } else {
        0.0
    }
}

fn to_mel(hertz: f64) -> f64 {
    2595.0 * (hertz / 700.0).ln_1p() / std::f64::consts::LN_10
}

fn to_hertz(mel: f64) -> f64 {
    700.0 * (mel / 2595.0 * std::f64::consts::LN_10).exp_m1()
}
