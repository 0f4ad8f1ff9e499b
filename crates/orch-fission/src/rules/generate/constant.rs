//! Constant: the value of an attribute. ConstantOfShape: one value repeated.

use super::super::operand_lists::extents;
use crate::build::checked_shape;
use crate::registry::{Applied, one};
use crate::{Call, Context, Operand, RuleError};
use orch_ir::{Attribute, Tensor};

pub(super) fn constant(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let values: Vec<(&String, &Attribute)> =
        call.node.attributes.iter().filter(|(name, _)| name.contains("value")).collect();
    let [(name, attribute)] = values[..] else {
        return Err(RuleError::invalid(format!("{} attributes give a value, one is expected", values.len())));
    };
    let value = match (name.as_str(), attribute) {
        ("value", Attribute::Tensor(value)) => value.clone(),
        ("value", Attribute::Encoded(codes, encoding)) => {
            return Ok(vec![Operand::Encoded { codes: ctx.tensor(codes.clone()), encoding: *encoding }]);
        }
        ("value_float", Attribute::Float(value)) => Tensor::scalar(*value),
        ("value_floats", Attribute::Floats(values)) => Tensor::from_vec([values.len()], values.clone()),
        ("value_int", Attribute::Int(value)) => Tensor::scalar(*value),
        ("value_ints", Attribute::Ints(values)) => Tensor::from_vec([values.len()], values.clone()),
        ("value_string" | "value_strings", _) => return Err(RuleError::unsupported("strings")),
        (_, Attribute::Unsupported(kind)) => {
            return Err(RuleError::unsupported(format!("a constant that is {kind}")));
        }
        _ => {
            return Err(RuleError::invalid(format!(
                "attribute {name} is not of the kind that its name says"
            )));
        }
    };
    one(ctx.tensor(value))
}

pub(super) fn constant_of_shape(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let dims = ctx.int_operand(call, 0, "input")?;
    let shape = checked_shape(extents(&dims, "the shape")?)?;
    let value = match call.tensor_attribute("value")? {
        None => Tensor::scalar(0.0f32),
        Some(value) if value.shape().elems() == 1 => value.reshaped([]),
        Some(value) => {
            return Err(RuleError::invalid(format!(
                "value has shape {}, one element is expected",
                value.shape()
            )));
        }
    };
    let scalar = ctx.tensor(value);
    one(ctx.broadcast_to(scalar, &shape)?)
}
