//! Attention and rotary embedding.

use crate::registry::Rule;

mod flex;
mod heads;
mod linear;
mod mask;
mod rotary;
mod scaled_dot_product;

/// The rules of this family.
pub const RULES: &[Rule] = &[
    Rule::onnx("Attention", scaled_dot_product::attention),
    Rule::onnx("RotaryEmbedding", rotary::rotary_embedding),
    Rule::onnx("LinearAttention", linear::linear_attention),
    Rule::onnx("FlexAttention", flex::flex_attention).in_domain("ai.onnx.preview"),
];
