//! The activation functions of recurrent cells.

use orch_ir::{Activation, ActivationFn};

/// An activation's value. NaN stays NaN, unless the standard's comparison says otherwise.
pub fn apply(activation: &Activation, x: f64) -> f64 {
    let Activation { function, alpha, beta } = *activation;
    match function {
        ActivationFn::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        ActivationFn::Tanh => x.tanh(),
        ActivationFn::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        ActivationFn::Affine => alpha * x + beta,
        ActivationFn::LeakyRelu => {
            if x >= 0.0 {
                x
            } else {
                alpha * x
            }
        }
        ActivationFn::ThresholdedRelu => {
            if x >= alpha {
                x
            } else {
                0.0
            }
        }
        ActivationFn::ScaledTanh => alpha * (beta * x).tanh(),
        ActivationFn::HardSigmoid => (alpha * x + beta).clamp(0.0, 1.0),
        ActivationFn::Elu => {
            if x >= 0.0 {
                x
            } else {
                alpha * x.exp_m1()
            }
        }
        ActivationFn::Softsign => x / (1.0 + x.abs()),
        ActivationFn::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_stays_nan() {
        for function in ActivationFn::ALL {
            let value = apply(&Activation { function, alpha: 1.0, beta: 1.0 }, f64::NAN);
            assert!(value.is_nan() || function == ActivationFn::ThresholdedRelu, "{function:?}");
        }
        let relu = Activation { function: ActivationFn::Relu, alpha: 0.0, beta: 0.0 };
        assert_eq!([-2.0, 0.0, 3.0].map(|x| apply(&relu, x)), [0.0, 0.0, 3.0]);
    }
}
