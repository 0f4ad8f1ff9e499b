//! Data-independent layout: Reshape, Transpose, Slice, Pad, ...

use crate::registry::{Applied, Rule};
use crate::{Call, Context, RuleError};

mod center_crop_pad;
mod concat;
mod depth_space;
mod expand;
mod flatten;
mod pad;
mod reshape;
mod shape;
mod slice;
mod split;
mod tile;
mod transpose;
mod unit_axes;

/// The rules of this family.
pub const RULES: &[Rule] = &[
    Rule::onnx("Shape", shape::shape).moves(),
    Rule::onnx("Size", shape::size).moves(),
    Rule::onnx("Identity", identity).moves(),
    Rule::onnx("Reshape", reshape::reshape).since(5).moves(),
    Rule::onnx("Flatten", flatten::flatten).moves(),
    Rule::onnx("Squeeze", unit_axes::squeeze).moves(),
    Rule::onnx("Unsqueeze", unit_axes::unsqueeze).moves(),
    Rule::onnx("Transpose", transpose::transpose).moves(),
    Rule::onnx("Expand", expand::expand).moves(),
    Rule::onnx("Tile", tile::tile).since(6).moves(),
    Rule::onnx("Concat", concat::concat).since(4).moves(),
    Rule::onnx("Split", split::split).since(2).moves(),
    Rule::onnx("Slice", slice::slice).moves(),
    Rule::onnx("Pad", pad::pad).since(2),
    Rule::onnx("CenterCropPad", center_crop_pad::center_crop_pad),
    Rule::onnx("DepthToSpace", depth_space::depth_to_space).moves(),
    Rule::onnx("SpaceToDepth", depth_space::space_to_depth).moves(),
];

/// The operand itself, whatever it is.
fn identity(_: &mut Context<'_>, call: &Call<'_>) -> Applied {
    match call.operand(0) {
        Some(operand) => Ok(vec![operand.clone()]),
        None => Err(RuleError::MissingOperand(0)),
    }
}
