//! Which coordinate of the operand a position of the result is.

use super::geometry::AxisSize;
use crate::{Call, RuleError};

/// The attribute `coordinate_transformation_mode`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Coordinates {
    /// Centres of elements correspond.
    HalfPixel,
    /// The same about the middle of an extent that was rounded.
    HalfPixelSymmetric,
    /// The same, but a single position reads the first element.
    PytorchHalfPixel,
    /// The centres of the outermost elements correspond.
    AlignCorners,
    /// The first edges correspond.
    Asymmetric,
    /// The corners of a crop correspond; outside of the operand a constant is read.
    CropAndResize,
    /// Centres of the result's elements over edges of the operand's.
    TfHalfPixelForNearest,
}

impl Coordinates {
    pub fn read(call: &Call<'_>) -> Result<Self, RuleError> {
        Ok(match call.text_or("coordinate_transformation_mode", "half_pixel")? {
            "half_pixel" => Coordinates::HalfPixel,
            "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
            "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
            "align_corners" => Coordinates::AlignCorners,
            "asymmetric" => Coordinates::Asymmetric,
            "tf_crop_and_resize" => Coordinates::CropAndResize,
            "tf_half_pixel_for_nn" => Coordinates::TfHalfPixelForNearest,
            other => {
                return Err(RuleError::invalid(format!("coordinate_transformation_mode is {other}")));
            }
        })
    }

    /// True if only a part of the operand is read.
    pub fn crops(self) -> bool {
        self == Coordinates::CropAndResize
    }

    /// The coordinate that `position` of the result reads.
    pub fn source(self, position: usize, size: &AxisSize) -> f64 {
        let at = position as f64;
        let (from, to) = (size.from as f64, size.scale * size.from as f64);
        let half_pixel = (at + 0.5) / size.scale - 0.5;
        match self {
            Coordinates::HalfPixel => half_pixel,
            Coordinates::HalfPixelSymmetric => from / 2.0 * (1.0 - size.to as f64 / to) + half_pixel,
            Coordinates::PytorchHalfPixel if to <= 1.0 => 0.0,
            Coordinates::PytorchHalfPixel => half_pixel,
            Coordinates::AlignCorners if to == 1.0 => 0.0,
            Coordinates::AlignCorners => at * (from - 1.0) / (to - 1.0),
            Coordinates::Asymmetric => at / size.scale,
            Coordinates::TfHalfPixelForNearest => (at + 0.5) / size.scale,
            Coordinates::CropAndResize => {
                let cropped = (size.crop.end - size.crop.start) * (from - 1.0);
                let inside = if to == 1.0 { cropped / 2.0 } else { at * cropped / (to - 1.0) };
                inside + size.crop.start * (from - 1.0)
            }
        }
    }
}
