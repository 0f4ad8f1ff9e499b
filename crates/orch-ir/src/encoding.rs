//! Element types that models store and nothing computes in: floats of 8 bits and less, integers of 4 and 2.
//!
//! A tensor of such a type holds *codes*, one per element in a type of 8 bits ([`Encoding::carrier`]): the integers
//! themselves, and of floats the bits. Fission translates what models do with them into primitives on codes and on the
//! types of [`DType`]; stages after it meet codes alone.

use crate::DType;
use std::fmt;

/// How the elements of a tensor are encoded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Encoding {
    /// Float of 4 exponent and 3 mantissa bits, bias 7: NaN, no infinity.
    F8E4M3Fn,
    /// The same with bias 8: one NaN, no infinity, no negative zero.
    F8E4M3FnUz,
    /// Float of 5 exponent and 2 mantissa bits, bias 15, as in IEEE 754.
    F8E5M2,
    /// The same with bias 16: one NaN, no infinity, no negative zero.
    F8E5M2FnUz,
    /// Powers of two from 2^-127 to 2^127, and NaN: scales.
    F8E8M0,
    /// Float of 2 exponent bits and 1 mantissa bit, bias 1: finite.
    F4E2M1,
    /// Integers from -8 to 7.
    I4,
    /// Integers from 0 to 15.
    U4,
    /// Integers from -2 to 1.
    I2,
    /// Integers from 0 to 3.
    U2,
}

impl Encoding {
    /// Every encoding, in declaration order.
    pub const ALL: [Encoding; 10] = [
        Encoding::F8E4M3Fn,
        Encoding::F8E4M3FnUz,
        Encoding::F8E5M2,
        Encoding::F8E5M2FnUz,
        Encoding::F8E8M0,
        Encoding::F4E2M1,
        Encoding::I4,
        Encoding::U4,
        Encoding::I2,
        Encoding::U2,
    ];

    /// The type of codes.
    pub fn carrier(self) -> DType {
        match self {
            Encoding::I4 | Encoding::I2 => DType::I8,
            _ => DType::U8,
        }
    }

    /// Bits of a code; the file formats pack several codes into a byte, the first one lowest.
    pub fn bits(self) -> usize {
        match self {
            Encoding::F4E2M1 | Encoding::I4 | Encoding::U4 => 4,
            Encoding::I2 | Encoding::U2 => 2,
            _ => 8,
        }
    }

    /// The smallest and largest integer, for encodings of integers.
    pub fn int_range(self) -> Option<(i8, i8)> {
        match self {
            Encoding::I4 => Some((-8, 7)),
            Encoding::U4 => Some((0, 15)),
            Encoding::I2 => Some((-2, 1)),
            Encoding::U2 => Some((0, 3)),
            _ => None,
        }
    }

    /// True for encodings of floats.
    pub fn is_float(self) -> bool {
        self.int_range().is_none()
    }

    /// The code that a file's bits stand for, as the byte of the carrier: signed integers get their sign.
    pub fn code(self, bits: u8) -> u8 {
        let unused = 8 - self.bits() as u32;
        match self.carrier() {
            DType::I8 => (((bits << unused) as i8) >> unused) as u8,
            _ => (bits << unused) >> unused,
        }
    }

    /// The value of each code of a float, from code 0 on; exact. Empty for integers, whose codes are their values.
    pub fn float_values(self) -> Vec<f32> {
        let codes = 0..if self.is_float() { 1u16 << self.bits() } else { 0 };
        codes.map(|code| self.float_value(code as u8)).collect()
    }

    fn float_value(self, code: u8) -> f32 {
        let signed = |exponent_bits: u32, mantissa_bits: u32, bias: i32| {
            let magnitude = code & ((1u8 << (exponent_bits + mantissa_bits)) - 1);
            let sign = if magnitude == code { 1.0 } else { -1.0 };
            let (exponent, mantissa) = (magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1));
            let fraction = f32::from(mantissa) / f32::from(1u8 << mantissa_bits);
            // Exponent 0 is that of the subnormal numbers.
            let significand = if exponent == 0 { fraction } else { 1.0 + fraction };
            sign * significand * 2f32.powi(i32::from(exponent.max(1)) - bias)
        };
        match self {
            Encoding::F8E4M3Fn if code & 0x7f == 0x7f => f32::NAN,
            Encoding::F8E4M3FnUz | Encoding::F8E5M2FnUz if code == 0x80 => f32::NAN,
            Encoding::F8E5M2 if code & 0x7f == 0x7c => f32::INFINITY * if code == 0x7c { 1.0 } else { -1.0 },
            Encoding::F8E5M2 if code & 0x7f > 0x7c => f32::NAN,
            Encoding::F8E8M0 if code == 0xff => f32::NAN,
            Encoding::F8E4M3Fn => signed(4, 3, 7),
            Encoding::F8E4M3FnUz => signed(4, 3, 8),
            Encoding::F8E5M2 => signed(5, 2, 15),
            Encoding::F8E5M2FnUz => signed(5, 2, 16),
            Encoding::F8E8M0 => 2f64.powi(i32::from(code) - 127) as f32,
            Encoding::F4E2M1 => signed(2, 1, 1),
            Encoding::I4 | Encoding::U4 | Encoding::I2 | Encoding::U2 => f32::from(code),
        }
    }

    /// The name in messages: that of ONNX, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::F8E4M3Fn => "float8e4m3fn",
            Encoding::F8E4M3FnUz => "float8e4m3fnuz",
            Encoding::F8E5M2 => "float8e5m2",
            Encoding::F8E5M2FnUz => "float8e5m2fnuz",
            Encoding::F8E8M0 => "float8e8m0",
            Encoding::F4E2M1 => "float4e2m1",
            Encoding::I4 => "int4",
            Encoding::U4 => "uint4",
            Encoding::I2 => "int2",
            Encoding::U2 => "uint2",
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_reach_the_values_of_their_standards() {
        let facts = |encoding: Encoding| {
            let values = encoding.float_values();
            let finite = || values.iter().copied().filter(|value| value.is_finite());
            let smallest = finite().filter(|&value| value > 0.0).fold(f32::INFINITY, f32::min);
            let nans = values.iter().filter(|value| value.is_nan()).count();
            (finite().fold(0.0, f32::max), smallest, nans)
        };
        assert_eq!(facts(Encoding::F8E4M3Fn), (448.0, 2f32.powi(-9), 2));
        assert_eq!(facts(Encoding::F8E4M3FnUz), (240.0, 2f32.powi(-10), 1));
        assert_eq!(facts(Encoding::F8E5M2), (57344.0, 2f32.powi(-16), 6));
        assert_eq!(facts(Encoding::F8E5M2FnUz), (57344.0, 2f32.powi(-17), 1));
        assert_eq!(facts(Encoding::F8E8M0), (2f32.powi(127), 2f64.powi(-127) as f32, 1));
        let four_bits = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        assert_eq!(Encoding::F4E2M1.float_values()[..8], four_bits);
        assert_eq!(Encoding::F4E2M1.float_values()[15], -6.0);
    }

    #[test]
    fn codes_get_their_sign() {
        assert_eq!(Encoding::I4.code(0b1111_1000) as i8, -8);
        assert_eq!(Encoding::I2.code(0b01) as i8, 1);
        assert_eq!(Encoding::U4.code(0xf5), 5);
        assert_eq!(Encoding::F8E5M2.code(0xfc), 0xfc);
    }
}
