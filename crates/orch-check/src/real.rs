//! Values as floating-point numbers.

use crate::eval::Domain;
use crate::field::Key;
use crate::program::{Result, Scalar};
use libm::erf;

/// Computes with floating-point numbers at random inputs: shows that programs differ, never that they agree.
pub struct Floats {
    /// The key of inputs.
    pub key: Key,
    /// The logarithm to base 2 of how many neighbours of a mask are one number.
    pub run: u32,
}

impl Domain for Floats {
    type Value = f64;

    fn input(&self, tensor: usize, is_mask: bool, at: usize) -> f64 {
        let bits = |at: usize| self.key.pair(at as u64, tensor as u64).0;
        if is_mask {
            (bits(at >> self.run) >> 63) as f64
        } else {
            (bits(at) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        }
    }

    fn constant(&self, num: i64, den: i64) -> Result<f64> {
        Ok(num as f64 / den as f64)
    }

    fn apply(&mut self, scalar: Scalar, args: &[f64]) -> Result<f64> {
        Ok(match (scalar, args) {
            (Scalar::Add, _) => args.iter().sum(),
            (Scalar::Mul | Scalar::Scale { .. }, &[a, b]) => a * b,
            (Scalar::Max, _) => args.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            (Scalar::Mask, &[_, 0.0]) => f64::NEG_INFINITY,
            (Scalar::Exp, &[x]) => x.exp(),
            (Scalar::Sqrt, &[x]) => x.sqrt(),
            (Scalar::Erf, &[x]) => erf(x),
            (Scalar::Reciprocal, &[x]) => 1.0 / x,
            (Scalar::GeluFactor, _) => 2.0 * (2.0 / std::f64::consts::PI).sqrt(),
            (Scalar::Guard, &[f64::NEG_INFINITY]) => 0.0,
            _ => args[0],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_is_right() {
        for (x, expected) in
            [(0.0, 0.0), (0.5, 0.520_499_877_813_046_5), (-2.0, -0.995_322_265_018_952_7), (7.0, 1.0)]
        {
            assert!((erf(x) - expected).abs() < 1e-15, "{x}");
        }
    }
}
