//! The activation functions that recurrent cells may name.

use crate::EvalError;
use orch_ir::RnnSpec;

/// A function of one scalar with up to two parameters.
#[derive(Clone, Copy, Debug)]
pub struct Activation {
    function: fn(f64, f64, f64) -> f64,
    alpha: f64,
    beta: f64,
}

impl Activation {
    /// The activations of a layer, in the order of the specification.
    ///
    /// # Errors
    /// If a name is unknown, or there are not as many parameters as names.
    pub fn list(spec: &RnnSpec) -> Result<Vec<Self>, EvalError> {
        let names = spec.activations.len();
        if spec.alphas.len() != names || spec.betas.len() != names {
            let problem = format!(
                "{names} activations with {} first and {} second parameters",
                spec.alphas.len(),
                spec.betas.len()
            );
            return Err(EvalError::operation("RNN", problem));
        }
        let parameters = spec.alphas.iter().zip(&spec.betas);
        let named = spec.activations.iter().zip(parameters);
        named.map(|(name, (&alpha, &beta))| Ok(Self { function: function(name)?, alpha, beta })).collect()
    }

    /// The function's value.
    pub fn apply(&self, x: f64) -> f64 {
        (self.function)(x, self.alpha, self.beta)
    }
}

/// The function of `(x, alpha, beta)` with this lower-case ONNX name. NaN stays NaN, unless the standard's comparison says otherwise.
fn function(name: &str) -> Result<fn(f64, f64, f64) -> f64, EvalError> {
    Ok(match name {
        "relu" => |x, _, _| if x < 0.0 { 0.0 } else { x },
        "tanh" => |x, _, _| x.tanh(),
        "sigmoid" => |x, _, _| 1.0 / (1.0 + (-x).exp()),
        "affine" => |x, alpha, beta| alpha * x + beta,
        "leakyrelu" => |x, alpha, _| if x >= 0.0 { x } else { alpha * x },
        "thresholdedrelu" => |x, alpha, _| if x >= alpha { x } else { 0.0 },
        "scaledtanh" => |x, alpha, beta| alpha * (beta * x).tanh(),
        "hardsigmoid" => |x, alpha, beta| (alpha * x + beta).clamp(0.0, 1.0),
        "elu" => |x, alpha, _| if x >= 0.0 { x } else { alpha * x.exp_m1() },
        "softsign" => |x, _, _| x / (1.0 + x.abs()),
        "softplus" => |x, _, _| x.max(0.0) + (-x.abs()).exp().ln_1p(),
        _ => return Err(EvalError::operation("RNN", format!("there is no activation \"{name}\""))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_stays_nan() {
        let names = [
            "relu",
            "tanh",
            "sigmoid",
            "affine",
            "leakyrelu",
            "scaledtanh",
            "hardsigmoid",
            "elu",
            "softsign",
            "softplus",
        ];
        for name in names {
            let function = function(name).unwrap();
            assert!(function(f64::NAN, 1.0, 1.0).is_nan(), "{name}");
        }
        let relu = function("relu").unwrap();
        assert_eq!([-2.0, 0.0, 3.0].map(|x| relu(x, 0.0, 0.0)), [0.0, 0.0, 3.0]);
    }
}
