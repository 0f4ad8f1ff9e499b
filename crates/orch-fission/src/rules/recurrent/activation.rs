//! The activations of recurrent cells, parameters filled in. The attributes `activation_alpha` and `activation_beta` hold values
//! only for functions that have such a parameter.

use crate::{Call, RuleError};
use orch_ir::{Activation, ActivationFn, RnnCell};

/// The defaults of a function's parameters; `None` where it has none.
fn defaults(function: ActivationFn) -> [Option<f64>; 2] {
    match function {
        ActivationFn::Relu
        | ActivationFn::Tanh
        | ActivationFn::Sigmoid
        | ActivationFn::Softsign
        | ActivationFn::Softplus => [None, None],
        ActivationFn::Affine => [Some(1.0), Some(0.0)],
        ActivationFn::LeakyRelu => [Some(0.01), None],
        ActivationFn::ThresholdedRelu | ActivationFn::Elu => [Some(1.0), None],
        ActivationFn::ScaledTanh => [Some(1.0), Some(1.0)],
        ActivationFn::HardSigmoid => [Some(0.2), Some(0.5)],
    }
}

/// What the attributes of a layer with this many directions say, per direction and activation of the cell.
pub(super) fn read(call: &Call<'_>, cell: RnnCell, directions: usize) -> Result<Vec<Activation>, RuleError> {
    let of_cell: &[ActivationFn] = match cell {
        RnnCell::Rnn => &[ActivationFn::Tanh],
        RnnCell::Gru { .. } => &[ActivationFn::Sigmoid, ActivationFn::Tanh],
        RnnCell::Lstm { .. } => &[ActivationFn::Sigmoid, ActivationFn::Tanh, ActivationFn::Tanh],
    };
    let functions: Vec<ActivationFn> = match call.texts("activations")? {
        Some(names) => names.iter().map(|name| named(name)).collect::<Result<_, _>>()?,
        None => of_cell.repeat(directions),
    };
    let expected = of_cell.len() * directions;
    if functions.len() != expected {
        return Err(RuleError::invalid(format!("{} activations, expected {expected}", functions.len())));
    }
    let mut given_alphas = call.floats("activation_alpha")?.unwrap_or(&[]).iter();
    let mut given_betas = call.floats("activation_beta")?.unwrap_or(&[]).iter();
    let next = |default: Option<f64>, given: &mut std::slice::Iter<'_, f32>| match default {
        Some(default) => given.next().map_or(default, |&value| f64::from(value)),
        None => 0.0,
    };
    let activation = |function| {
        let [alpha, beta] = defaults(function);
        Activation { function, alpha: next(alpha, &mut given_alphas), beta: next(beta, &mut given_betas) }
    };
    Ok(functions.into_iter().map(activation).collect())
}

fn named(name: &str) -> Result<ActivationFn, RuleError> {
    let lower = name.to_ascii_lowercase();
    let function = ActivationFn::ALL.into_iter().find(|function| function.name() == lower);
    function.ok_or_else(|| RuleError::invalid(format!("there is no activation {lower}")))
}
