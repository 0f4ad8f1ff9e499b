//! Convolutions, transposed ones too, and their gradients.
//!
//! With `x [n, c, ..]` and `w [m, c / g, k ..]`, the gradient of `x` is the transposed convolution of the gradient of the
//! result. That of `w` is a convolution over the batch: of `x` as `[c / g, g n, ..]` with the gradient of the result as
//! `[m, n, ..]` for a weight, stride and dilation exchanged. For a transposed convolution `x` and the gradient of the
//! result change places in both.

use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Refusal, Val, checked, invalid, unsupported};
use orch_ir::Attribute;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule(
        "aten.convolution.default",
        "input weight bias stride padding dilation transposed output_padding groups",
        convolution,
    )
    .when("1 to 3 spatial dimensions"),
    rule(
        "aten.convolution_backward.default",
        "grad_output input weight bias_sizes stride padding dilation transposed output_padding groups output_mask",
        backward,
    )
    .when("1 to 3 spatial dimensions"),
];

/// The window of a convolution; one entry per spatial dimension.
#[derive(Clone)]
struct Sliding {
    strides: Vec<usize>,
    padding: Vec<usize>,
    /// Behind the last elements; `padding` is before the first ones, and of transposed convolutions on both sides.
    end_padding: Vec<usize>,
    dilations: Vec<usize>,
    output_padding: Vec<usize>,
    groups: usize,
    transposed: bool,
}

impl Sliding {
    fn read(call: &Call, x: &Val, w: &Val) -> Result<Self, Refusal> {
        let rank = x.rank().wrapping_sub(2);
        if !(1..=3).contains(&rank) || w.rank() != x.rank() || x.dtype != w.dtype {
            return unsupported(format!("a convolution of {} with {}", x.describe(), w.describe()));
        }
        let padding = call.extents("padding", rank, 0)?;
        let window = Self {
            strides: call.extents("stride", rank, 1)?,
            end_padding: padding.clone(),
            padding,
            dilations: call.extents("dilation", rank, 1)?,
            output_padding: call.extents("output_padding", rank, 0)?,
            groups: usize::try_from(call.int_or("groups", 1)?).unwrap_or(0),
            transposed: call.flag_or("transposed", false)?,
        };
        let channels = if window.transposed { w.shape[0] } else { w.shape[1].saturating_mul(window.groups) };
        let divides = window.groups > 0 && w.shape[0].is_multiple_of(window.groups);
        if window.strides.contains(&0) || window.dilations.contains(&0) || !divides || channels != x.shape[1]
        {
            return invalid(format!(
                "a convolution of {} with {} in {} groups",
                x.describe(),
                w.describe(),
                window.groups
            ));
        }
        Ok(window)
    }

    fn attributes(&self) -> Vec<(&'static str, Attribute)> {
        let ints = |values: &[usize]| Attribute::Ints(values.iter().map(|&value| value as i64).collect());
        let pads = [&self.padding[..], &self.end_padding].concat();
        let mut attributes = vec![
            ("strides", ints(&self.strides)),
            ("pads", ints(&pads)),
            ("dilations", ints(&self.dilations)),
            ("group", Attribute::Int(self.groups as i64)),
        ];
        if self.transposed {
            attributes.push(("output_padding", ints(&self.output_padding)));
            attributes.push(("may_pad", Attribute::Int(1)));
        }
        attributes
    }

    /// The elements that a kernel of so many covers, its dilation included.
    fn reach(&self, dim: usize, kernel: usize) -> Option<usize> {
        kernel.checked_sub(1)?.checked_mul(self.dilations[dim])?.checked_add(1)
    }

    /// Elements at the end of a padded dimension of `extent` elements that are not read for a result of so many elements, from a kernel of so
    /// many; `None` if there are too few elements.
    fn unread(&self, dim: usize, extent: usize, [result, kernel]: [usize; 2]) -> Option<usize> {
        let reach = self.reach(dim, kernel)?;
        let read = result.checked_sub(1)?.checked_mul(self.strides[dim])?.checked_add(reach)?;
        extent.checked_add(self.padding[dim])?.checked_add(self.end_padding[dim])?.checked_sub(read)
    }

    /// The extents of the result.
    fn extents(&self, x: &[usize], kernel: &[usize]) -> Result<Vec<usize>, Refusal> {
        let extent = |dim: usize| {
            let reach = self.reach(dim, kernel[dim])?;
            let (stride, padding) = (self.strides[dim], self.padding[dim] + self.end_padding[dim]);
            if self.transposed {
                let full = x[dim].checked_sub(1)?.checked_mul(stride)?.checked_add(reach)?;
                full.checked_add(self.output_padding[dim])?.checked_sub(padding)
            } else {
                Some(x[dim].checked_add(padding)?.checked_sub(reach)? / stride + 1)
            }
        };
        let extents: Option<Vec<usize>> = (0..x.len()).map(extent).collect();
        extents.map_or_else(|| invalid(format!("no window {kernel:?} fits into {x:?}")), Ok)
    }
}

/// `x` convolved with `w`, and the bias added along the channels.
fn convolve(emitter: &mut Emitter, x: &Val, w: &Val, bias: Option<&Val>, window: &Sliding) -> Emitted {
    let channels = if window.transposed { w.shape[1].saturating_mul(window.groups) } else { w.shape[0] };
    let spatial = window.extents(&x.shape[2..], &w.shape[2..])?;
    let shape = checked([&[x.shape[0], channels], &spatial[..]].concat())?;
    if let Some(bias) = bias
        && (bias.shape[..] != [channels] || bias.dtype != x.dtype)
    {
        return invalid(format!("the bias {} for {channels} channels", bias.describe()));
    }
    let op_type = if window.transposed { "ConvTranspose" } else { "Conv" };
    let inputs = [Some(x), Some(w), bias];
    let inputs = &inputs[..if bias.is_some() { 3 } else { 2 }];
    Ok(emitter.many(op_type, inputs, &window.attributes(), &[(x.dtype, shape)]).swap_remove(0))
}

fn convolution(emitter: &mut Emitter, call: &Call) -> Applied {
    let (x, w) = (call.tensor("input")?, call.tensor("weight")?);
    let window = Sliding::read(call, x, w)?;
    one(convolve(emitter, x, w, call.optional_tensor("bias")?, &window)?)
}

fn backward(emitter: &mut Emitter, call: &Call) -> Applied {
    let (gradient, x, w) = (call.tensor("grad_output")?, call.tensor("input")?, call.tensor("weight")?);
    let window = Sliding::read(call, x, w)?;
    let channels = if window.transposed { w.shape[1].saturating_mul(window.groups) } else { w.shape[0] };
    let spatial = window.extents(&x.shape[2..], &w.shape[2..])?;
    let expected = [&[x.shape[0], channels], &spatial[..]].concat();
    if gradient.shape[..] != expected[..] || gradient.dtype != x.dtype {
        return invalid(format!("the gradient {} of a result of shape {expected:?}", gradient.describe()));
    }
    let mask = call.flags("output_mask")?;
    let [wants_x, wants_w, wants_bias] = mask[..] else {
        return invalid(format!("a mask {mask:?} of three results"));
    };
    let of_x = wants_x.then(|| gradient_of_operand(emitter, gradient, x, w, &window)).transpose()?;
    let of_w = wants_w.then(|| gradient_of_weight(emitter, gradient, x, w, &window)).transpose()?;
    let of_bias = wants_bias.then(|| {
        let axes: Vec<usize> = (0..gradient.rank()).filter(|&axis| axis != 1).collect();
        emitter.reduce("ReduceSum", gradient, &axes, false)
    });
    Ok(vec![of_x, of_w, of_bias])
}

fn gradient_of_operand(emitter: &mut Emitter, gradient: &Val, x: &Val, w: &Val, window: &Sliding) -> Emitted {
    let mut adjoint = Sliding { transposed: !window.transposed, ..window.clone() };
    adjoint.output_padding.fill(0);
    let reached = adjoint.extents(&gradient.shape[2..], &w.shape[2..])?;
    if !window.transposed {
        // Elements at the end that no window reaches.
        for (dim, padding) in adjoint.output_padding.iter_mut().enumerate() {
            *padding = x.shape[dim + 2].saturating_sub(reached[dim]);
        }
    }
    let result = convolve(emitter, gradient, w, None, &adjoint)?;
    cropped(emitter, &result, &x.shape[2..])
}

fn gradient_of_weight(emitter: &mut Emitter, gradient: &Val, x: &Val, w: &Val, window: &Sliding) -> Emitted {
    // `taps` slid over `data`.
    let (data, taps) = if window.transposed { (gradient, x) } else { (x, gradient) };
    let (groups, rank) = (window.groups, data.rank());
    let (batch, size) = (data.shape[0], data.shape[1] / groups);
    let spatial = &data.shape[2..];
    // [n, g c, ..] -> [n, g, c, ..] -> [c, g, n, ..] -> [c, g n, ..].
    let split = emitter.reshape(data, [&[batch, groups, size], spatial].concat())?;
    let perm: Vec<usize> = [2, 1, 0].into_iter().chain(3..rank + 1).collect();
    let turned = emitter.transpose(&split, &perm)?;
    let mut data = emitter.reshape(&turned, [&[size, groups * batch], spatial].concat())?;
    // [n, m, ..] -> [m, n, ..].
    let perm: Vec<usize> = [1, 0].into_iter().chain(2..rank).collect();
    let taps = emitter.transpose(taps, &perm)?;
    let mut exchanged = Sliding {
        strides: window.dilations.clone(),
        dilations: window.strides.clone(),
        transposed: false,
        ..window.clone()
    };
    for (dim, &kernel) in w.shape[2..].iter().enumerate() {
        let (extent, padding) = (data.shape[dim + 2], exchanged.end_padding[dim]);
        let unread = exchanged.unread(dim, extent, [kernel, taps.shape[dim + 2]]);
        let unread = unread.map_or_else(
            || invalid(format!("a gradient of {} from {}", w.describe(), data.describe())),
            Ok,
        )?;
        exchanged.end_padding[dim] = padding.saturating_sub(unread);
        data = emitter.slice(&data, dim + 2, (0, 1, extent - unread.saturating_sub(padding)))?;
    }
    let result = convolve(emitter, &data, &taps, None, &exchanged)?;
    emitter.transpose(&result, &perm)
}

/// The first elements of each spatial dimension.
fn cropped(emitter: &mut Emitter, x: &Val, spatial: &[usize]) -> Emitted {
    let mut result = x.clone();
    for (dim, &extent) in spatial.iter().enumerate() {
        if extent > x.shape[dim + 2] {
            return invalid(format!("a gradient of extents {spatial:?} from {}", x.describe()));
        }
        result = emitter.slice(&result, dim + 2, (0, 1, extent))?;
    }
    Ok(result)
}
