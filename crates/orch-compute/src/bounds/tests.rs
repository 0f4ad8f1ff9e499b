//! Ranges against enumeration for every integer operation; sums of random expressions are in `simplify`'s tests.

use super::*;
use crate::expr::{Type, VarId};
use proptest::prelude::*;

fn variable(exprs: &mut Exprs, dtype: DType, range: (i64, i64), multiple_of: i64) -> (VarId, ExprId) {
    let ty = Type::scalar(dtype);
    let var = exprs.declare(VarInfo { name: "v".into(), ty, range: Some(range), multiple_of });
    (var, exprs.var(var))
}

fn contains(range: IntRange, value: i64) -> bool {
    let apart = i128::from(value) - i128::from(range.residue);
    let in_class = if range.modulus == 0 { apart == 0 } else { apart % i128::from(range.modulus) == 0 };
    range.low <= value && value <= range.high && in_class
}

#[test]
fn declared_multiples_tighten_the_ends() {
    let mut exprs = Exprs::new();
    let (_, x) = variable(&mut exprs, DType::I64, (3, 50), 16);
    let range = Bounds::new().of(&exprs, x);
    assert_eq!(range, IntRange { low: 16, high: 48, modulus: 16, residue: 0 });
}

#[test]
fn arithmetic_that_may_wrap_is_unknown() {
    let mut exprs = Exprs::new();
    let (_, x) = variable(&mut exprs, DType::I8, (0, 100), 1);
    let double = exprs.add2(x, x);
    assert_eq!(Bounds::new().of(&exprs, double), IntRange::interval(-128, 127));
    let wide = exprs.cast(DType::I64, x);
    let double = exprs.add2(wide, wide);
    assert_eq!(Bounds::new().of(&exprs, double), IntRange::interval(0, 200));
    let unbounded = exprs.declare_register("r", Type::INDEX);
    let unbounded = exprs.var(unbounded);
    let next = exprs.add_const(unbounded, 1);
    assert_eq!(Bounds::new().of(&exprs, next), IntRange::FULL);
}

#[test]
fn classes_decide_equality() {
    let mut exprs = Exprs::new();
    let (_, x) = variable(&mut exprs, DType::I64, (0, 100), 4);
    let [two, four] = [2, 4].map(|k| exprs.index(k));
    let (never, perhaps) = (exprs.eq(x, two), exprs.eq(x, four));
    let mut bounds = Bounds::new();
    assert_eq!(bounds.of(&exprs, never), IntRange::exactly(0));
    assert_eq!(bounds.of(&exprs, perhaps), IntRange::interval(0, 1));
}

#[test]
fn vectors_cover_all_lanes() {
    let mut exprs = Exprs::new();
    let (_, x) = variable(&mut exprs, DType::I64, (0, 64), 16);
    let ramp = exprs.ramp(x, 2, 8);
    assert_eq!(Bounds::new().of(&exprs, ramp), IntRange { low: 0, high: 78, modulus: 2, residue: 0 });
    let down = exprs.ramp(x, -3, 4);
    assert_eq!(Bounds::new().of(&exprs, down), IntRange::interval(-9, 64));
}

#[test]
fn types_bound_what_is_read() {
    let mut exprs = Exprs::new();
    let (bytes, longs) = (exprs.declare_arg(DType::U8), exprs.declare_arg(DType::U64));
    let zero = exprs.index(0);
    let byte = exprs.read(bytes, vec![zero], None);
    let byte = exprs.cast(DType::I64, byte);
    assert_eq!(Bounds::new().of(&exprs, byte), IntRange::interval(0, 255));
    let long = exprs.read(longs, vec![zero], None);
    let long = exprs.cast(DType::I64, long);
    assert_eq!(Bounds::new().of(&exprs, long), IntRange::FULL);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn results_are_in_range(
        f in proptest::sample::select(BinaryFn::ALL),
        dtype in proptest::sample::select(&[DType::I8, DType::U8, DType::I64][..]),
        ranges in ((-20i64..20, 0i64..20), (-20i64..20, 0i64..20)),
        multiples in (1i64..6, 1i64..6),
    ) {
        prop_assume!(f.accepts(dtype));
        let mut exprs = Exprs::new();
        let mut place = |(low, count): (i64, i64), multiple: i64| {
            let low = if dtype == DType::U8 { low.abs() } else { low } * multiple;
            let range = (low, (low + count * multiple).min(if dtype == DType::I64 { 1000 } else { 120 }));
            let (var, value) = variable(&mut exprs, dtype, range, multiple);
            (var, value, (range.0..=range.1).step_by(multiple as usize).collect::<Vec<_>>())
        };
        let (x, a, x_values) = place(ranges.0, multiples.0);
        let (y, b, y_values) = place(ranges.1, multiples.1);
        let divisors = y_values.iter().all(|&y| y > 0);
        let mut results = vec![exprs.add(Expr::Binary(f, a, b))];
        results.extend([UnaryFn::Neg, UnaryFn::Abs, UnaryFn::Sign].map(|f| exprs.add(Expr::Unary(f, a))));
        results.extend(CompareFn::ALL.iter().map(|&f| exprs.add(Expr::Compare(f, a, b))));
        let condition = exprs.lt(a, b);
        results.push(exprs.add(Expr::Select(condition, b, a)));
        results.extend([DType::I8, DType::U8, DType::I16, DType::Bool].map(|to| exprs.add(Expr::Cast(to, a))));
        if divisors {
            results.extend([exprs.add(Expr::FloorDiv(a, b)), exprs.add(Expr::FloorRem(a, b))]);
        }
        let mut bounds = Bounds::new();
        for result in results {
            let range = bounds.of(&exprs, result);
            for &x_value in &x_values {
                for &y_value in &y_values {
                    if let Some(value) = exprs.evaluate(result, &[(x, x_value), (y, y_value)]) {
                        prop_assert!(
                            contains(range, value),
                            "{:?} at {x_value}, {y_value} is {value}, not in {range:?}", exprs.get(result)
                        );
                    }
                }
            }
        }
    }
}
