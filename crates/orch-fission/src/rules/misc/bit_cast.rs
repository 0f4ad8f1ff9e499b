//! BitCast: the same bits as another type of the same width. Between integers that is a conversion, which wraps; other
//! types need an operand that is known when compiling.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{DType, Tensor};

pub(super) fn bit_cast(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let from = ctx.dtype(x);
    let to = call.dtype_attribute("to")?.ok_or_else(|| RuleError::invalid("attribute to is missing"))?;
    if from.size_bytes() != to.size_bytes() {
        return Err(RuleError::invalid(format!("bits of {from} as {to}, a type of another width")));
    }
    let number = |dtype: DType| dtype.is_int() || dtype == DType::Bool;
    // A boolean is 0 or 1, so that not every byte is one.
    if from == to || (number(from) && to.is_int()) {
        return one(ctx.cast(x, to)?);
    }
    let value = ctx.constant_operand(call, 0, "input")?;
    if to == DType::Bool && value.bytes().iter().any(|&byte| byte > 1) {
        return Err(RuleError::unsupported("bits other than 0 and 1 as bool"));
    }
    let cast = Tensor::from_bytes(to, value.shape().clone(), value.bytes().clone());
    one(ctx.tensor(cast.map_err(|error| RuleError::invalid(error.to_string()))?))
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::{Attribute, Tensor};

    #[test]
    fn bits_stay() {
        let floats = apply("BitCast", 26).floats(&[2], &[1.0, -0.0]).with("to", Attribute::Int(6));
        assert_eq!(floats.first().1, [f64::from(0x3f80_0000), f64::from(i32::MIN)]);
        let bytes =
            apply("BitCast", 26).on(Tensor::from_vec([2], vec![-1i8, 3])).with("to", Attribute::Int(2));
        assert_eq!(bytes.first().1, [255.0, 3.0]);
        assert!(apply("BitCast", 26).floats(&[1], &[1.0]).with("to", Attribute::Int(7)).run().is_err());
    }
}
