//! The discrete Fourier transform of real tensors, or of the parts of complex ones.

use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitter, Refusal};
use orch_ir::{Attribute, Shape, Tensor};

/// The rules of this family.
pub(super) const RULES: &[Rule] =
    &[rule("orchestrion.dft.default", "x dim length inverse onesided", transform)];

/// Of `[.., 1]` or `[.., 2]` parts, along a dimension before the last one, which is cut or filled with zeros to a length.
fn transform(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.float_tensor("x")?;
    let (axis, length) = (call.axis("dim", 0, x.rank())?, call.int("length")?);
    let (inverse, onesided) = (call.flag_or("inverse", false)?, call.flag_or("onesided", false)?);
    let refused = || {
        Refusal::Invalid(format!("a transform of length {length} along dimension {axis} of {}", x.describe()))
    };
    let is_before_parts = axis + 1 < x.rank();
    let length =
        usize::try_from(length).ok().filter(|&length| length > 0 && is_before_parts).ok_or_else(refused)?;
    let mut dims = x.shape.to_vec();
    dims[axis] = if onesided && !inverse { length / 2 + 1 } else { length };
    dims[x.rank() - 1] = if onesided && inverse { 1 } else { 2 };
    let shape = Shape::checked(dims).ok_or_else(refused)?;
    let x = emitter.widen(x);
    let scalar = |value: usize| Tensor::scalar(value as i64);
    let [length, axis] = [length, axis].map(|value| emitter.constant(scalar(value)));
    let flag = |name, value: bool| (name, Attribute::Int(value.into()));
    let flags = [flag("inverse", inverse), flag("onesided", onesided)];
    let y = emitter.one("DFT", &[&x, &length, &axis], &flags, (x.dtype, shape));
    one(emitter.cast(&y, call.dtype()?))
}
