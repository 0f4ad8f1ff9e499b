//! The operator set `orchestrion.scalar`: scalar functions that ONNX lacks, for importers of other formats.

use super::apply;
use crate::registry::Rule;
use orch_ir::{BinaryFn, ScalarFn, UnaryFn};

/// The operator set's name.
const DOMAIN: &str = "orchestrion.scalar";

/// `e^x - 1`, accurate near zero.
pub(super) const EXPM1: Rule =
    Rule::onnx("Expm1", |ctx, call| apply(ctx, call, ScalarFn::Unary(UnaryFn::Expm1))).in_domain(DOMAIN);

/// `ln(1 + x)`, accurate near zero.
pub(super) const LOG1P: Rule =
    Rule::onnx("Log1p", |ctx, call| apply(ctx, call, ScalarFn::Unary(UnaryFn::Log1p))).in_domain(DOMAIN);

/// The integer next to `x` toward zero.
pub(super) const TRUNC: Rule =
    Rule::onnx("Trunc", |ctx, call| apply(ctx, call, ScalarFn::Unary(UnaryFn::Trunc))).in_domain(DOMAIN);

/// 64 random bits at a position of the sequence of a key.
pub(super) const PHILOX: Rule =
    Rule::onnx("Philox", |ctx, call| apply(ctx, call, ScalarFn::Binary(BinaryFn::Philox))).in_domain(DOMAIN);
