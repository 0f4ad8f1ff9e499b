//! What the smart constructors fold, and what they must not.

use super::*;
use crate::expr::Type;
use proptest::prelude::*;

fn register(exprs: &mut Exprs, dtype: DType, lanes: usize) -> ExprId {
    let var = exprs.declare_register("r", Type { dtype, lanes });
    exprs.var(var)
}

#[test]
fn float_identities_respect_signed_zeros_and_nan() {
    let mut exprs = Exprs::new();
    let x = register(&mut exprs, DType::F32, 1);
    let [zero, minus_zero, one] = [0.0, -0.0, 1.0].map(|v| exprs.constant(DType::F32, v));
    assert_ne!(exprs.add2(x, zero), x, "-0 + 0 is 0");
    assert_eq!(exprs.add2(x, minus_zero), x);
    assert_eq!(exprs.add2(minus_zero, x), x);
    assert_eq!(exprs.sub(x, zero), x);
    assert_ne!(exprs.sub(x, minus_zero), x, "-0 - -0 is 0");
    assert_ne!(exprs.mul(x, zero), zero, "NaN * 0 is NaN");
    assert_eq!(exprs.mul(x, one), x);
    assert_eq!(exprs.mul(one, x), x);
    let difference = exprs.sub(x, x);
    assert_ne!(difference, zero, "inf - inf is NaN");
    let same = exprs.eq(x, x);
    assert_eq!(exprs.as_bool(same), None, "NaN differs from itself");
    let less = exprs.lt(x, one);
    let not_less = exprs.not(less);
    assert_ne!(not_less, exprs.ge(x, one), "neither holds of NaN");
    let equal = exprs.eq(x, one);
    assert_eq!(exprs.not(equal), exprs.ne(x, one));
}

#[test]
fn division_by_a_power_of_two_is_multiplication() {
    let mut exprs = Exprs::new();
    let x = register(&mut exprs, DType::F32, 1);
    let [eight, eighth, three, huge] =
        [8.0, 0.125, 3.0, 2f64.powi(127)].map(|v| exprs.constant(DType::F32, v));
    assert_eq!(exprs.binary(BinaryFn::Div, x, eight), exprs.mul(x, eighth));
    let third = exprs.binary(BinaryFn::Div, x, three);
    assert!(matches!(exprs.get(third), Expr::Binary(BinaryFn::Div, ..)));
    let scaled = exprs.binary(BinaryFn::Div, x, huge);
    assert!(matches!(exprs.get(scaled), Expr::Binary(BinaryFn::Mul, ..)), "2^-127 is an f32");
    let half = register(&mut exprs, DType::F16, 1);
    let largest = exprs.constant(DType::F16, 32768.0);
    let scaled = exprs.binary(BinaryFn::Div, half, largest);
    assert!(matches!(exprs.get(scaled), Expr::Binary(BinaryFn::Mul, ..)), "2^-15 is a subnormal f16");
}

#[test]
fn integer_operands_are_ordered() {
    let mut exprs = Exprs::new();
    let (_, x) = exprs.fresh_index("x", 8);
    let (_, y) = exprs.fresh_index("y", 8);
    assert_eq!(exprs.add2(x, y), exprs.add2(y, x));
    assert_eq!(exprs.mul(x, y), exprs.mul(y, x));
    let two = exprs.index(2);
    let sum = exprs.add2(two, x);
    assert_eq!(*exprs.get(sum), Expr::Binary(BinaryFn::Add, x, two));
    let more = exprs.add_const(sum, 3);
    assert_eq!(more, exprs.add_const(x, 5));
    assert_eq!(exprs.add_const(more, -5), x);
    let (lower, upper) = (exprs.lt(two, x), exprs.gt(x, two));
    assert_eq!(lower, upper);
}

#[test]
fn casts_that_lose_nothing_drop_out() {
    let mut exprs = Exprs::new();
    let cases = [
        (DType::I32, DType::I64, DType::I32, true),
        (DType::F16, DType::F32, DType::F16, true),
        (DType::I8, DType::F32, DType::I64, false),
        (DType::I64, DType::I32, DType::I64, false),
        (DType::F32, DType::F16, DType::F32, false),
        (DType::U8, DType::I8, DType::U8, false),
        (DType::U8, DType::I16, DType::I32, true),
        (DType::I8, DType::F32, DType::U8, false),
        (DType::I32, DType::F32, DType::F64, false),
        (DType::I16, DType::F32, DType::F64, true),
        (DType::F16, DType::BF16, DType::F32, false),
        (DType::Bool, DType::F16, DType::Bool, true),
    ];
    for (from, middle, to, drops) in cases {
        let x = register(&mut exprs, from, 1);
        let through = exprs.cast(middle, x);
        let through = exprs.cast(to, through);
        let direct = exprs.cast(to, x);
        assert_eq!(through == direct, drops, "{from} -> {middle} -> {to}");
    }
}

#[test]
fn uniform_vectors_compute_scalars() {
    let mut exprs = Exprs::new();
    let x = register(&mut exprs, DType::F32, 1);
    let v = register(&mut exprs, DType::F32, 8);
    let wide = exprs.splat(x, 8);
    let square = exprs.mul(wide, x);
    let scalar = exprs.mul(x, x);
    assert_eq!(*exprs.get(square), Expr::Splat(scalar, 8));
    let mixed = exprs.add2(v, x);
    assert_eq!(*exprs.get(mixed), Expr::Binary(BinaryFn::Add, v, wide));
    let less = exprs.lt(x, v);
    assert_eq!(exprs.ty(less), Type::vector(DType::Bool, 8));
    let condition = register(&mut exprs, DType::Bool, 1);
    let chosen = exprs.select(condition, v, x);
    assert_eq!(exprs.lanes(chosen), 8);
    let flags = register(&mut exprs, DType::Bool, 8);
    let chosen = exprs.select(flags, x, x);
    assert_eq!(exprs.uniform(chosen), Some(x));
    let fused = exprs.fma(x, v, x);
    assert_eq!(exprs.lanes(fused), 8);
}

#[test]
fn ramps_stay_ramps() {
    let mut exprs = Exprs::new();
    let (_, x) = exprs.fresh_index("x", 8);
    let ramp = exprs.ramp(x, 1, 4);
    let scaled = exprs.mul_const(ramp, 6);
    let base = exprs.mul_const(x, 6);
    assert_eq!(scaled, exprs.ramp(base, 6, 4));
    let reversed = exprs.neg(ramp);
    let minus = exprs.neg(x);
    assert_eq!(reversed, exprs.ramp(minus, -1, 4));
    let constant = exprs.sub(ramp, ramp);
    let zero = exprs.index(0);
    assert_eq!(exprs.uniform(constant), Some(zero));
    let buffer = exprs.declare_buffer(DType::F32);
    let load = exprs.load(buffer, ramp, 4, None);
    assert_eq!(*exprs.get(load), Expr::Load { buffer, offset: x, lanes: 4, mask: None });
}

#[test]
fn selections_on_booleans_are_their_conditions() {
    let mut exprs = Exprs::new();
    let condition = register(&mut exprs, DType::Bool, 1);
    let (yes, no) = (exprs.bool(true), exprs.bool(false));
    assert_eq!(exprs.select(condition, yes, no), condition);
    assert_eq!(exprs.select(condition, no, yes), exprs.not(condition));
    let negated = exprs.not(condition);
    let x = register(&mut exprs, DType::F32, 1);
    let y = register(&mut exprs, DType::F32, 1);
    assert_eq!(exprs.select(negated, x, y), exprs.select(condition, y, x));
    assert_eq!(exprs.max(condition, negated), exprs.or(condition, negated));
}

#[test]
fn a_guarded_read_is_zero_outside_by_itself() {
    let mut exprs = Exprs::new();
    let (_, x) = exprs.fresh_index("x", 10);
    let arg = exprs.declare_arg(DType::F32);
    let (three, seven) = (exprs.index(3), exprs.index(7));
    let (above, below) = (exprs.ge(x, three), exprs.lt(x, seven));
    let both = exprs.and(above, below);
    let read = exprs.read(arg, vec![x], Some(both));
    let [zero, minus_zero] = [0.0, -0.0].map(|v| exprs.constant(DType::F32, v));
    assert_eq!(exprs.select(both, read, zero), read);
    assert_eq!(exprs.select(below, read, zero), read);
    assert_ne!(exprs.select(both, read, minus_zero), read);
    let narrower = exprs.eq(x, three);
    assert_ne!(exprs.select(narrower, read, zero), read);
    let not_below = exprs.not(below);
    assert_ne!(exprs.select(not_below, zero, zero), read);
    let outside = exprs.select(not_below, read, zero);
    assert_ne!(outside, read);
}

#[test]
fn no_conditions_are_true() {
    let mut exprs = Exprs::new();
    let all = exprs.all([]);
    assert_eq!(exprs.as_bool(all), Some(true));
    assert_eq!(exprs.and_guard(None, Some(all)), None);
}

/// Values where integer arithmetic is delicate.
fn delicate(dtype: DType) -> impl Strategy<Value = i64> {
    let (low, high) = crate::expr::fold::int_range(dtype);
    let (low, high) = (low as i64, high as i64);
    prop_oneof![Just(low), Just(low + 1), Just(high), Just(high - 1), -3i64..4, any::<i64>()]
        .prop_map(move |value| Const::int(dtype, value.into()).as_int().expect("an integer") as i64)
}

proptest! {
    /// An operation built on a variable and a constant, evaluated, is the operation on two constants.
    #[test]
    fn integer_identities_hold(
        f in proptest::sample::select(BinaryFn::ALL),
        dtype in proptest::sample::select(&[DType::I8, DType::U8, DType::I32, DType::U32, DType::I64][..]),
        seed in (delicate(DType::I64), delicate(DType::I64), delicate(DType::I64)),
    ) {
        prop_assume!(f.accepts(dtype));
        let mut exprs = Exprs::new();
        let [x, c, d] = [seed.0, seed.1, seed.2].map(|value| exprs.int(dtype, value));
        let var = exprs.declare_register("x", Type::scalar(dtype));
        let value = exprs.as_int(x).expect("a constant");
        let unknown = exprs.var(var);
        for (a, b) in [(unknown, c), (c, unknown), (unknown, unknown)] {
            let built = exprs.binary(f, a, b);
            let again = exprs.binary(f, built, d);
            let place = |id| if id == unknown { x } else { id };
            let expected = exprs.binary(f, place(a), place(b));
            let expected = exprs.binary(f, expected, d);
            if let Some(expected) = exprs.as_const(expected) {
                let expected = expected.as_int().map(|value| value as i64);
                prop_assert_eq!(exprs.evaluate(again, &[(var, value)]), expected, "{:?} of {:?}", f, dtype);
            }
        }
    }

    /// Adding and multiplying by special floats gives bit for bit what the machine gives.
    #[test]
    fn float_identities_hold(
        f in proptest::sample::select(&[BinaryFn::Add, BinaryFn::Sub, BinaryFn::Mul, BinaryFn::Div][..]),
        x in proptest::sample::select(&[0.0f32, -0.0, 1.0, -3.5, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-45][..]),
        c in proptest::sample::select(&[0.0f32, -0.0, 1.0, -1.0, 2.0, 0.25, 3.0, f32::INFINITY][..]),
        on_the_left in any::<bool>(),
    ) {
        let mut exprs = Exprs::new();
        let unknown = register(&mut exprs, DType::F32, 1);
        let constant = exprs.constant(DType::F32, c.into());
        let built =
            if on_the_left { exprs.binary(f, constant, unknown) } else { exprs.binary(f, unknown, constant) };
        let value = float_value(&exprs, built, unknown, x);
        let (a, b) = if on_the_left { (c, x) } else { (x, c) };
        let expected = match f {
            BinaryFn::Add => a + b,
            BinaryFn::Sub => a - b,
            BinaryFn::Mul => a * b,
            _ => a / b,
        };
        prop_assert_eq!(value.is_nan(), expected.is_nan());
        prop_assert!(value.is_nan() || value.to_bits() == expected.to_bits(), "{} for {}", value, expected);
    }
}

/// The value of an arithmetic expression over one unknown.
fn float_value(exprs: &Exprs, id: ExprId, unknown: ExprId, x: f32) -> f32 {
    let at = |id| float_value(exprs, id, unknown, x);
    match *exprs.get(id) {
        _ if id == unknown => x,
        Expr::Const(c) => f32::from_bits(c.bits as u32),
        Expr::Unary(UnaryFn::Neg, a) => -at(a),
        Expr::Binary(BinaryFn::Add, a, b) => at(a) + at(b),
        Expr::Binary(BinaryFn::Sub, a, b) => at(a) - at(b),
        Expr::Binary(BinaryFn::Mul, a, b) => at(a) * at(b),
        Expr::Binary(BinaryFn::Div, a, b) => at(a) / at(b),
        ref other => panic!("{other:?} is not expected"),
    }
}
