//! Signs of values over the real numbers, and constants that values are multiples of.
//!
//! A candidate must have a value wherever its program has one. Its divisors and radicands are those of the program, or
//! their signs say that they suit: a sum of exponentials is positive, a sum of squares is not negative.

use super::lax::LaxFacts;
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::rational::Rational;

/// What is known of a sign; a later one says more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sign {
    /// Nothing.
    Any,
    /// Zero or positive.
    NonNegative,
    /// Positive.
    Positive,
}

/// The sign of a result, of operands that are all defined. `is_full`: no operand is ever without elements.
pub(super) fn signed(op: &Op, args: &[LaxFacts], may_be_infinite: bool, is_full: bool) -> Sign {
    use Sign::{Any, NonNegative, Positive};
    let sign = |at: usize| args.get(at).map_or(Any, |arg| arg.sign);
    let (least, most) = (sign(0).min(sign(1)), sign(0).max(sign(1)));
    let nonempty = |sign: Sign| if is_full { sign } else { sign.min(NonNegative) };
    if may_be_infinite {
        return Any;
    }
    match op {
        Op::Unary(UnaryFn::Exp) if args[0].may_be_infinite => NonNegative,
        Op::Unary(UnaryFn::Exp | UnaryFn::Sigmoid) => Positive,
        Op::Unary(UnaryFn::Square) => sign(0).max(NonNegative),
        Op::Unary(UnaryFn::Sqrt) => sign(0).max(NonNegative),
        Op::Unary(UnaryFn::Relu) => sign(0).max(NonNegative),
        Op::Unary(UnaryFn::Erf | UnaryFn::Tanh | UnaryFn::Silu | UnaryFn::Gelu) => sign(0),
        Op::Unary(UnaryFn::Guard) => sign(0).min(NonNegative),
        Op::Unary(UnaryFn::Log) => Any,
        Op::Scale(c) if *c > Rational::ZERO => sign(0),
        Op::Scale(_) => Any,
        Op::Offset(c) if *c > Rational::ZERO && sign(0) >= NonNegative => Positive,
        Op::Offset(_) => Any,
        Op::Binary(BinaryFn::Add) if least >= NonNegative => most,
        Op::Binary(BinaryFn::Mul | BinaryFn::Max) if least >= NonNegative => {
            if matches!(op, Op::Binary(BinaryFn::Mul)) { least } else { most }
        }
        Op::Binary(BinaryFn::Max) if most == Positive => Positive,
        Op::Binary(BinaryFn::Div) if least >= NonNegative => sign(0),
        Op::Binary(_) => Any,
        Op::Matmul => nonempty(least),
        Op::Reduce { f: ReduceFn::Sum, .. } => nonempty(sign(0)),
        Op::Reduce { f: ReduceFn::Max, .. } => nonempty(sign(0)),
        Op::Concat { .. } => args.iter().map(|arg| arg.sign).min().unwrap_or(Any),
        Op::Transpose(_) | Op::Reshape(_) | Op::Broadcast(_) => sign(0),
        Op::Slice { .. } | Op::Repeat { .. } => sign(0),
        Op::Causal { .. } | Op::Below { .. } => NonNegative,
        Op::RmsNorm { .. } | Op::Rotate { .. } => Any,
    }
}

/// Whether a result is zero, or not, whatever the exponentials are that it is made of: then it may be compared with another
/// one by its value where all exponentials are one.
pub(super) fn is_support(op: &Op, args: &[LaxFacts], has_q: bool) -> bool {
    if has_q {
        return true;
    }
    let sums = args.iter().all(|arg| arg.sign >= Sign::NonNegative && arg.is_support);
    match op {
        Op::Unary(UnaryFn::Exp | UnaryFn::Sigmoid) => true,
        Op::Unary(UnaryFn::Square | UnaryFn::Sqrt | UnaryFn::Relu) | Op::Matmul => sums,
        Op::Scale(c) | Op::Offset(c) => sums && *c > Rational::ZERO,
        Op::Binary(BinaryFn::Add | BinaryFn::Mul | BinaryFn::Div) => sums,
        Op::Reduce { f: ReduceFn::Sum, .. } | Op::Concat { .. } => sums,
        Op::Transpose(_) | Op::Reshape(_) | Op::Broadcast(_) => sums,
        Op::Slice { .. } | Op::Repeat { .. } => sums,
        Op::Unary(_) | Op::Binary(_) | Op::Reduce { .. } => false,
        Op::RmsNorm { .. } | Op::Rotate { .. } | Op::Causal { .. } | Op::Below { .. } => false,
    }
}

/// The constant that a result is seen to be a multiple of; one where nothing is seen.
pub(super) fn factor(op: &Op, args: &[LaxFacts], root: Rational) -> Rational {
    let of = |at: usize| args.get(at).map_or(Rational::ONE, |arg| arg.factor);
    let common = || {
        let all_equal = args.iter().all(|arg| arg.factor == of(0));
        if all_equal { of(0) } else { Rational::ONE }
    };
    let nonzero = |factor: Option<Rational>| factor.filter(|c| *c != Rational::ZERO).unwrap_or(Rational::ONE);
    match op {
        Op::Scale(c) => nonzero(of(0).times(*c)),
        Op::Unary(UnaryFn::Square) => nonzero(of(0).times(of(0))),
        Op::Unary(UnaryFn::Sqrt) => root,
        Op::Matmul | Op::Binary(BinaryFn::Mul) => nonzero(of(0).times(of(1))),
        Op::Binary(BinaryFn::Div) => {
            nonzero(Rational::new(of(1).den(), of(1).num()).and_then(|inverse| of(0).times(inverse)))
        }
        Op::Binary(BinaryFn::Add | BinaryFn::Sub) | Op::Concat { .. } => common(),
        Op::Reduce { f: ReduceFn::Sum, .. } | Op::Rotate { .. } => of(0),
        Op::Transpose(_) | Op::Reshape(_) | Op::Broadcast(_) => of(0),
        Op::Slice { .. } | Op::Repeat { .. } => of(0),
        Op::Unary(_) | Op::Offset(_) | Op::Binary(BinaryFn::Max | BinaryFn::Mask) => Rational::ONE,
        Op::Reduce { f: ReduceFn::Max, .. } | Op::RmsNorm { .. } => Rational::ONE,
        Op::Causal { .. } | Op::Below { .. } => Rational::ONE,
    }
}

/// The positive constant whose square is seen in a radicand: `sqrt(c² x) = c sqrt(x)`.
pub(super) fn root_factor(op: &Op, args: &[LaxFacts]) -> Rational {
    let magnitude = |c: Rational| if c < Rational::ZERO { c.negated() } else { c };
    match op {
        Op::Unary(UnaryFn::Sqrt) => square_part(args[0].factor),
        Op::RmsNorm { eps } if *eps == Rational::ZERO => magnitude(args[0].factor),
        _ => Rational::ONE,
    }
}

/// The root of the square that a positive ratio is a multiple of, and without squares besides.
pub(super) fn square_part(c: Rational) -> Rational {
    Rational::new(square_divisor(c.num()), square_divisor(c.den())).unwrap_or(Rational::ONE)
}

/// Divisors that are tried one by one.
const SMALL_DIVISORS: i64 = 1000;

/// The root of the largest square that divides a number; one for what is not positive. Of squares of large primes only one
/// that is the whole rest is seen.
fn square_divisor(n: i64) -> i64 {
    let (mut rest, mut result) = (n, 1);
    if n <= 0 {
        return 1;
    }
    for divisor in 2..=SMALL_DIVISORS {
        while rest % (divisor * divisor) == 0 {
            rest /= divisor * divisor;
            result *= divisor;
        }
        if rest % divisor == 0 {
            // Once: what is left of it is no square.
            rest /= divisor;
        }
    }
    let root = (rest as f64).sqrt().round() as i64;
    if root.checked_mul(root) == Some(rest) { result * root } else { result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_are_taken_out_of_constants() {
        let cases = [((169, 4096), (13, 64)), ((2, 3584), (1, 16)), ((18, 5), (3, 1)), ((-4, 1), (1, 1))];
        for ((num, den), (root_num, root_den)) in cases {
            let [c, root] = [(num, den), (root_num, root_den)].map(|(a, b)| Rational::new(a, b).unwrap());
            assert_eq!(square_part(c), root, "{c}");
        }
        assert_eq!(square_divisor(1_000_003 * 1_000_003 * 12), 2_000_006);
    }
}
