//! Training updates: Adagrad, Adam and Momentum of `ai.onnx.preview.training`.
//!
//! Operands are the learning rate `r`, the update count `t`, then lists with one entry per optimized tensor: the
//! tensors `x`, their gradients `g`, and one or two lists of state. Results are the new tensors, then the new states.
//! The regularized gradient is `g' = norm_coefficient x + g`.

use crate::registry::{Applied, Rule};
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, CompareFn, TensorId, UnaryFn};

mod adagrad;
mod adam;
mod momentum;

/// A rule for an operator of the training set.
const fn training(op_type: &'static str, apply: fn(&mut Context<'_>, &Call<'_>) -> Applied) -> Rule {
    Rule::onnx(op_type, apply).in_domain("ai.onnx.preview.training")
}

/// The rules of this family.
pub const RULES: &[Rule] = &[
    training("Adagrad", adagrad::adagrad),
    training("Adam", adam::adam),
    training("Momentum", momentum::momentum),
];

/// Applies `update` to each optimized tensor with its gradient and states, and lists the results by kind.
fn update_all<const STATES: usize>(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    mut update: impl FnMut(
        &mut Context<'_>,
        [TensorId; 2],
        [TensorId; STATES],
    ) -> Result<(TensorId, [TensorId; STATES]), RuleError>,
) -> Applied {
    let lists = STATES + 2;
    let listed = call.arity().saturating_sub(2);
    if listed == 0 || !listed.is_multiple_of(lists) {
        return Err(RuleError::invalid(format!(
            "{listed} operands after rate and count, expected {lists} lists"
        )));
    }
    let count = listed / lists;
    let mut results = vec![Vec::new(); STATES + 1];
    for position in 0..count {
        let at = |list: usize| call.tensor(2 + list * count + position);
        let mut states = [at(2)?; STATES];
        for (list, state) in states.iter_mut().enumerate() {
            *state = at(2 + list)?;
        }
        let norm = call.float_or("norm_coefficient", 0.0)?;
        let x = at(0)?;
        let decay = ctx.binary_scalar(BinaryFn::Mul, x, norm)?;
        let gradient = ctx.add(decay, at(1)?)?;
        let (new, new_states) = update(ctx, [x, gradient], states)?;
        for (list, tensor) in [new].into_iter().chain(new_states).enumerate() {
            results[list].push(tensor.into());
        }
    }
    Ok(results.concat())
}

/// `a x + b y`.
fn blend(
    ctx: &mut Context<'_>,
    (a, x): (f64, TensorId),
    (b, y): (f64, TensorId),
) -> Result<TensorId, RuleError> {
    let x = ctx.binary_scalar(BinaryFn::Mul, x, a)?;
    let y = ctx.binary_scalar(BinaryFn::Mul, y, b)?;
    ctx.add(x, y)
}

/// `direction / (sqrt(h) + epsilon)`.
fn adapted(
    ctx: &mut Context<'_>,
    direction: TensorId,
    h: TensorId,
    epsilon: f64,
) -> Result<TensorId, RuleError> {
    let root = ctx.unary(UnaryFn::Sqrt, h)?;
    let divisor = ctx.binary_scalar(BinaryFn::Add, root, epsilon)?;
    ctx.div(direction, divisor)
}

/// `t > 0 ? later : first`.
fn after_first(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    later: TensorId,
    first: TensorId,
) -> Result<TensorId, RuleError> {
    let later_update = ctx.compare_scalar(CompareFn::Gt, call.tensor(1)?, 0.0)?;
    ctx.select(later_update, later, first)
}
