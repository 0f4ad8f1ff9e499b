//! Which code of a float encoding a number gets.
//!
//! The codes of positive values count upwards with them, so that a code is how many *boundaries* between neighbouring
//! values a magnitude reaches. Sums of comparisons with a constant list count them; a table adds sign and NaN.

use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, CompareFn, DType, Encoding, PrimOp, ReduceOp, ScalarFn, Tensor, TensorId, UnaryFn};

/// How numbers that are no value of the encoding are rounded.
#[derive(Clone, Copy)]
pub(crate) struct Rounding {
    /// Numbers beyond the largest value become that value, not infinity or NaN.
    pub saturate: bool,
    /// Which neighbour is taken; powers of two alone have a choice.
    pub direction: Direction,
}

/// Which of its neighbours a number becomes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The nearer one; of two equally near ones that with an even code.
    Nearest,
    /// The larger one.
    Up,
    /// The smaller one.
    Down,
}

impl Rounding {
    /// What the attributes `saturate` and `round_mode` say.
    pub fn read(call: &Call<'_>, encoding: Encoding) -> Result<Self, RuleError> {
        let direction = match call.text_or("round_mode", "up")? {
            _ if encoding != Encoding::F8E8M0 => Direction::Nearest,
            "nearest" => Direction::Nearest,
            "up" => Direction::Up,
            "down" => Direction::Down,
            other => {
                return Err(RuleError::invalid(format!(
                    "round_mode is {other}, expected up, down or nearest"
                )));
            }
        };
        Ok(Self { saturate: call.flag_or("saturate", true)?, direction })
    }

    /// The codes of `x` in a float encoding.
    pub(super) fn codes(
        self,
        ctx: &mut Context<'_>,
        x: TensorId,
        encoding: Encoding,
    ) -> Result<TensorId, RuleError> {
        let codes = Codes::new(encoding, self);
        let x = ctx.cast(x, DType::F32)?;
        let count = codes.boundaries.len();
        let magnitude = ctx.unary(UnaryFn::Abs, x)?;
        let magnitude = ctx.unsqueeze(magnitude, ctx.rank(x))?;
        let boundaries = ctx.tensor(Tensor::from_vec([count], codes.boundaries));
        let reached = ctx.compare(CompareFn::Ge, magnitude, boundaries)?;
        let reached = ctx.cast(reached, DType::I32)?;
        let reached = ctx.reduce(ReduceOp::Sum, reached, &[ctx.rank(x)])?;
        let mirrored = ctx.binary_scalar(BinaryFn::Add, reached, (count + 1) as f64)?;
        let negative = is_negative(ctx, x)?;
        let signed = ctx.select(negative, mirrored, reached)?;
        let mut special = ctx.map(ScalarFn::IsNan, &[x])?;
        if encoding == Encoding::F8E8M0 {
            let infinite = ctx.map(ScalarFn::IsInf, &[x])?;
            special = ctx.binary(BinaryFn::Or, special, infinite)?;
        }
        let last = ctx.scalar(DType::I32, (2 * count + 2) as f64);
        let index = ctx.select(special, last, signed)?;
        let table = ctx.tensor(Tensor::from_vec([codes.table.len()], codes.table));
        ctx.emit(PrimOp::Take { axis: 0 }, &[table, index])
    }
}

/// True for numbers below 0 and for -0.
fn is_negative(ctx: &mut Context<'_>, x: TensorId) -> Result<TensorId, RuleError> {
    let below = ctx.compare_scalar(CompareFn::Lt, x, 0.0)?;
    let reciprocal = ctx.unary(UnaryFn::Recip, x)?;
    let infinity_below = ctx.compare_scalar(CompareFn::Lt, reciprocal, 0.0)?;
    ctx.binary(BinaryFn::Or, below, infinity_below)
}

/// The lists that say which code a magnitude gets.
struct Codes {
    /// Magnitudes from which on the next code is meant, ascending.
    boundaries: Vec<f32>,
    /// The code by the number of boundaries reached; the same again for negative numbers; that of NaN.
    table: Vec<u8>,
}

impl Codes {
    fn new(encoding: Encoding, rounding: Rounding) -> Self {
        let all = encoding.float_values();
        let unsigned = encoding == Encoding::F8E8M0;
        let positive = if unsigned { all.len() } else { all.len() / 2 };
        let mut values: Vec<f64> =
            all[..positive].iter().take_while(|value| value.is_finite()).map(|&value| value.into()).collect();
        let sign = if unsigned { 0 } else { positive as u8 };
        let mut codes: Vec<u8> = (0..values.len()).map(|code| code as u8).collect();
        let (overflow, nan) = specials(encoding);
        if let (false, Some(overflow), [.., before, last]) = (rounding.saturate, overflow, &values[..]) {
            values.push(if unsigned { 2.0 * last } else { 2.0 * last - before });
            codes.push(overflow);
        }
        let boundaries =
            (1..values.len()).map(|code| boundary(values[code - 1], values[code], code, encoding, rounding));
        // There is no negative zero where its code is that of NaN.
        let no_negative_zero = all.get(usize::from(sign)).is_some_and(|value| value.is_nan());
        let negative = |code: &u8| match *code {
            0 if no_negative_zero => 0,
            code => code | sign,
        };
        let mirrored: Vec<u8> = codes.iter().map(negative).collect();
        let boundaries = boundaries.collect();
        Self { boundaries, table: [codes, mirrored, vec![nan]].concat() }
    }
}

/// The codes of numbers that are too large, where there is one, and of NaN.
fn specials(encoding: Encoding) -> (Option<u8>, u8) {
    match encoding {
        Encoding::F8E4M3Fn => (Some(0x7f), 0x7f),
        Encoding::F8E5M2 => (Some(0x7c), 0x7e),
        Encoding::F8E4M3FnUz | Encoding::F8E5M2FnUz => (Some(0x80), 0x80),
        Encoding::F8E8M0 => (Some(0xff), 0xff),
        // There is no NaN; a negative zero takes its place.
        _ => (None, 0x08),
    }
}

/// The magnitude from which on `code`, of value `upper`, is meant rather than the one before.
fn boundary(lower: f64, upper: f64, code: usize, encoding: Encoding, rounding: Rounding) -> f32 {
    let middle = ((lower + upper) / 2.0) as f32;
    match rounding.direction {
        Direction::Down => upper as f32,
        Direction::Up => (lower as f32).next_up(),
        Direction::Nearest if code.is_multiple_of(2) || encoding == Encoding::F8E8M0 => middle,
        Direction::Nearest => middle.next_up(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{decoded, encoded};
    use super::*;
    use crate::{FissionOptions, Operand};

    fn codes_of(encoding: Encoding, saturate: bool, values: &[f32]) -> Vec<u8> {
        let options = FissionOptions::default();
        let mut ctx = Context::new("", &options);
        let x = ctx.tensor(Tensor::from_vec([values.len()], values.to_vec()));
        let rounding = Rounding { saturate, direction: Direction::Nearest };
        let Ok(Operand::Encoded { codes, .. }) = encoded(&mut ctx, x, encoding, rounding) else {
            panic!("codes");
        };
        ctx.constant(codes).and_then(|codes| codes.to_vec()).expect("bytes")
    }

    #[test]
    fn values_get_their_own_code() {
        for encoding in Encoding::ALL.into_iter().filter(|encoding| encoding.is_float()) {
            let values = encoding.float_values();
            for (code, got) in codes_of(encoding, true, &values).into_iter().enumerate() {
                let (value, back) = (values[code], values[got as usize]);
                let same = value == back || (value.is_nan() && back.is_nan());
                let largest = value.is_infinite() && back.abs() == 57344.0;
                assert!(same || largest, "{encoding} {code}: {value} became {back}");
            }
        }
    }

    #[test]
    fn ties_go_to_even_codes_and_large_numbers_as_asked() {
        let encoding = Encoding::F8E4M3Fn;
        // 17 and 19 lie between 16, 18 and 20.
        assert_eq!(codes_of(encoding, true, &[17.0, 19.0, -17.0, -0.0]), [0x58, 0x5a, 0xd8, 0x80]);
        assert_eq!(codes_of(encoding, true, &[500.0, f32::INFINITY, f32::NAN]), [0x7e, 0x7e, 0x7f]);
        assert_eq!(codes_of(encoding, false, &[464.0, 465.0, -1e9]), [0x7e, 0x7f, 0xff]);
        assert_eq!(codes_of(Encoding::F8E5M2, false, &[61439.0, 61440.0]), [0x7b, 0x7c]);
        assert_eq!(codes_of(Encoding::F8E4M3FnUz, false, &[-0.0, -1e9]), [0x00, 0x80]);
        assert_eq!(codes_of(Encoding::F4E2M1, true, &[5.0, 2.5, 100.0, -0.1, -0.0]), [6, 4, 7, 8, 8]);
    }

    #[test]
    fn integers_wrap_and_are_their_codes() {
        let options = FissionOptions::default();
        let mut ctx = Context::new("", &options);
        let x = ctx.tensor(Tensor::from_vec([4], vec![7i64, 8, -9, 17]));
        let rounding = Rounding { saturate: true, direction: Direction::Nearest };
        let wrapped = encoded(&mut ctx, x, Encoding::I4, rounding);
        let Ok(Operand::Encoded { codes, encoding }) = wrapped else { panic!("codes") };
        let back = decoded(&mut ctx, codes, encoding).expect("integers");
        assert_eq!(ctx.constant(back).and_then(|value| value.to_i64()), Some(vec![7, -8, 7, 1]));
    }
}
