//! Matrix products and convolutions.

use crate::registry::Rule;

mod causal_conv;
mod conv;
mod conv_transpose;
mod einsum;
mod einsum_text;
mod gemm;
mod matmul;

pub(super) use conv::{add_bias, conv_of, conv_spec};
pub(super) use matmul::matmul_of;

/// The rules of this family.
pub const RULES: &[Rule] = &[
    Rule::onnx("MatMul", matmul::matmul),
    Rule::onnx("Gemm", gemm::gemm).since(7),
    Rule::onnx("Einsum", einsum::einsum),
    Rule::onnx("Conv", conv::conv),
    Rule::onnx("CausalConvWithState", causal_conv::causal_conv),
    Rule::onnx("ConvTranspose", conv_transpose::conv_transpose),
];
