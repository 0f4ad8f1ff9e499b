//! Convolutions of images, as they are described to vendor libraries.

use super::product::{Element, MAX_EXTENT, Vector, is_inside};
use crate::program::{Access, BufferRef};
use serde::{Deserialize, Serialize};

/// `result[image, y, x, map] = sum over r, s, c of input[image, y * stride + r * dilation - padding, .., c] *
/// filter[map, r, s, c]`, where what is outside of the input is zero, plus `bias[map]` and plus `addend[image, y, x, map]`
/// where present, and clamped to at least zero if `is_rectified`. Accumulators are f32, bias and addend are added in f32, and
/// what is stored is rounded once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Convolution {
    /// Type of everything that is read and stored.
    pub element: Element,
    /// Whether operands of f32 may be rounded to tf32 (10 bits of fraction).
    #[serde(default)]
    pub is_tf32: bool,
    /// Images.
    pub images: usize,
    /// Channels of the input.
    pub channels: usize,
    /// Channels of the result.
    pub maps: usize,
    /// From rows of the input to rows of the result.
    pub vertical: Sliding,
    /// The same for the pixels of a row.
    pub horizontal: Sliding,
    /// The input.
    pub input: Pixels,
    /// `[map][window row][window column][channel]`, one after the other.
    pub filter: Vector,
    /// The result.
    pub result: Pixels,
    /// One for each map, one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias: Option<Vector>,
    /// What is added to each element; only where there is a bias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addend: Option<Pixels>,
    /// Whether negative results become zero; only where there is a bias.
    #[serde(default)]
    pub is_rectified: bool,
}

/// How a window moves along one direction of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sliding {
    /// Pixels of the input.
    pub input: usize,
    /// Pixels of the result.
    pub result: usize,
    /// Pixels of the window.
    pub window: usize,
    /// Pixels of the input between places of the window.
    pub stride: usize,
    /// Pixels of the input between pixels of the window.
    pub dilation: usize,
    /// Zeros before the input, and as many after it.
    pub padding: usize,
}

/// Pixels in an argument of a launch, whose channels are neighbours. Places are counted in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pixels {
    /// Index of the tensor in the launch.
    pub argument: usize,
    /// The first element.
    pub offset: usize,
    /// From one image to the next.
    pub image: usize,
    /// From one row to the next.
    pub row: usize,
    /// From one pixel to the next.
    pub pixel: usize,
}

impl Convolution {
    /// Whether it is more than a sum.
    pub(in crate::cuda) fn has_epilogue(&self) -> bool {
        self.bias.is_some() || self.addend.is_some() || self.is_rectified
    }

    /// What is wrong with it for a launch with these tensors, as clauses that begin with a verb.
    pub(in crate::cuda) fn violations(&self, buffers: &[BufferRef]) -> Vec<String> {
        let Self { images, channels, maps, vertical, horizontal, .. } = *self;
        let is_counted = |extent: usize| (1..=MAX_EXTENT).contains(&extent);
        let is_sliding = [vertical, horizontal].iter().all(Sliding::is_right);
        if ![images, channels, maps].into_iter().all(is_counted) || !is_sliding {
            return vec![format!(
                "calls for a convolution of {images} images of {channels} channels to {maps} maps that moves by {vertical:?} \
                 and {horizontal:?}"
            )];
        }
        let mut violations = Vec::new();
        if self.has_epilogue() && self.bias.is_none() {
            violations
                .push("calls for a convolution with an addend or a rectifier but without a bias".to_owned());
        }
        let source = [images, vertical.input, horizontal.input, channels];
        let target = [images, vertical.result, horizontal.result, maps];
        let pixels = [
            ("input", Some(self.input), source, Access::Read),
            ("result", Some(self.result), target, Access::Write),
            ("addend", self.addend, target, Access::Read),
        ];
        let mut check = |what: &str, argument: usize, end: Option<usize>, access: Access| {
            if !end.is_some_and(|end| is_inside(buffers, argument, end, self.element, access)) {
                violations.push(format!("calls for a convolution whose {what} is not in a tensor for it"));
            }
        };
        for (what, pixels, extents, access) in pixels {
            if let Some(pixels) = pixels {
                check(what, pixels.argument, pixels.end(extents), access);
            }
        }
        let weights = [vertical.window, horizontal.window, channels];
        let weights = weights.iter().try_fold(maps, |product, &extent| product.checked_mul(extent));
        let end = weights.and_then(|elems| self.filter.offset.checked_add(elems));
        check("filter", self.filter.argument, end, Access::Read);
        if let Some(bias) = self.bias {
            check("bias", bias.argument, bias.offset.checked_add(maps), Access::Read);
        }
        violations
    }
}

impl Sliding {
    /// True if the result has as many pixels as there are places for the window, and libraries can count all.
    fn is_right(&self) -> bool {
        let Self { input, result, window, stride, dilation, padding } = *self;
        let is_counted = |count: &usize| *count <= MAX_EXTENT;
        let is_some = ![input, result, window, stride, dilation].contains(&0);
        if !is_some || ![input, result, window, stride, dilation, padding].iter().all(is_counted) {
            return false;
        }
        let reach = (window - 1).checked_mul(dilation).and_then(|reach| reach.checked_add(1));
        let last = reach.and_then(|reach| (input + 2 * padding).checked_sub(reach));
        last.is_some_and(|last| last / stride + 1 == result)
    }
}

impl Pixels {
    /// One more than the place of the last element of so many images, rows, pixels and channels; `None` if pixels overlap
    /// or there is no such number that libraries can count.
    fn end(&self, [images, rows, pixels, channels]: [usize; 4]) -> Option<usize> {
        let row = self.pixel.checked_mul(pixels)?;
        let image = self.row.checked_mul(rows)?;
        let is_nested = self.pixel >= channels && self.row >= row && self.image >= image;
        let all = self.image.checked_mul(images)?;
        if !is_nested || all > MAX_EXTENT {
            return None;
        }
        let last = self.image * (images - 1) + self.row * (rows - 1) + self.pixel * (pixels - 1);
        self.offset.checked_add(last + channels)
    }
}
