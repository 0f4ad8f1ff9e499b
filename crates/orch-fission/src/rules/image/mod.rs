//! Operators on images and signals: Resize, GridSample, DFT, ...

use crate::registry::{Applied, Rule, one};
use crate::{Context, RuleError};
use orch_ir::{DType, OpaqueKind, OpaqueOp, Shape, TensorId};

mod affine_grid;
mod col2im;
mod deform_conv;
mod dft;
mod grid_sample;
mod resize;
mod roi;
mod stft;

/// The rules of this family.
pub const RULES: &[Rule] = &[
    Rule::onnx("Resize", resize::resize).since(10),
    Rule::onnx("Upsample", resize::upsample).since(7),
    Rule::onnx("GridSample", grid_sample::grid_sample),
    Rule::onnx("AffineGrid", affine_grid::affine_grid),
    Rule::onnx("RoiAlign", roi::roi_align),
    Rule::onnx("MaxRoiPool", roi::max_roi_pool),
    Rule::onnx("DeformConv", deform_conv::deform_conv),
    Rule::onnx("Col2Im", col2im::col2im),
    Rule::onnx("DFT", dft::dft),
    Rule::onnx("STFT", stft::stft),
];

/// A routine of the interpreter and the runtime, with its parameters in the order that the interpreter documents.
#[derive(Default)]
struct Routine<'a> {
    name: &'static str,
    ints: Vec<i64>,
    floats: Vec<f64>,
    texts: &'a [&'a str],
}

impl Routine<'_> {
    /// Adds the routine, whose only result has this type.
    fn emit(
        self,
        ctx: &mut Context<'_>,
        operands: &[TensorId],
        result: (DType, Shape),
    ) -> Result<TensorId, RuleError> {
        let texts = self.texts.iter().map(|&text| text.to_owned()).collect();
        let kind = OpaqueKind::Routine { name: self.name, ints: self.ints, floats: self.floats, texts };
        Ok(ctx.emit_opaque(OpaqueOp { kind, results: vec![result] }, operands)?[0])
    }

    /// The same as the result of a rule.
    fn apply(self, ctx: &mut Context<'_>, operands: &[TensorId], result: (DType, Shape)) -> Applied {
        one(self.emit(ctx, operands, result)?)
    }
}
