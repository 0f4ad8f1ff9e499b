//! The activations of recurrent cells: names in lower case, parameters filled in. The attributes `activation_alpha` and
//! `activation_beta` hold values only for functions that have such a parameter.

use crate::{Call, RuleError};
use orch_ir::RnnCell;

/// Per direction and activation of the cell.
pub(super) struct Activations {
    pub names: Vec<String>,
    pub alphas: Vec<f64>,
    pub betas: Vec<f64>,
}

/// Every function with the defaults of its parameters.
const FUNCTIONS: &[(&str, Option<f64>, Option<f64>)] = &[
    ("relu", None, None),
    ("tanh", None, None),
    ("sigmoid", None, None),
    ("softsign", None, None),
    ("softplus", None, None),
    ("affine", Some(1.0), Some(0.0)),
    ("leakyrelu", Some(0.01), None),
    ("thresholdedrelu", Some(1.0), None),
    ("scaledtanh", Some(1.0), Some(1.0)),
    ("hardsigmoid", Some(0.2), Some(0.5)),
    ("elu", Some(1.0), None),
];

/// What the attributes of a layer with this many directions say.
pub(super) fn read(call: &Call<'_>, cell: RnnCell, directions: usize) -> Result<Activations, RuleError> {
    let defaults: &[&str] = match cell {
        RnnCell::Rnn => &["tanh"],
        RnnCell::Gru { .. } => &["sigmoid", "tanh"],
        RnnCell::Lstm { .. } => &["sigmoid", "tanh", "tanh"],
    };
    let names: Vec<String> = match call.texts("activations")? {
        Some(names) => names.iter().map(|name| name.to_ascii_lowercase()).collect(),
        None => defaults.repeat(directions).into_iter().map(str::to_owned).collect(),
    };
    let expected = defaults.len() * directions;
    if names.len() != expected {
        return Err(RuleError::invalid(format!("{} activations, expected {expected}", names.len())));
    }
    let mut given_alphas = call.floats("activation_alpha")?.unwrap_or(&[]).iter();
    let mut given_betas = call.floats("activation_beta")?.unwrap_or(&[]).iter();
    let (mut alphas, mut betas) = (Vec::new(), Vec::new());
    for name in &names {
        let function = FUNCTIONS.iter().find(|(known, _, _)| known == name);
        let (_, alpha, beta) =
            function.ok_or_else(|| RuleError::invalid(format!("there is no activation {name}")))?;
        let next = |default: &Option<f64>, given: &mut std::slice::Iter<'_, f32>| match default {
            Some(default) => given.next().map_or(*default, |&value| f64::from(value)),
            None => 0.0,
        };
        alphas.push(next(alpha, &mut given_alphas));
        betas.push(next(beta, &mut given_betas));
    }
    Ok(Activations { names, alphas, betas })
}
