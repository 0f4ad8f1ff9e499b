//! Simplification against enumeration: every expression here is compared with its simplified form at all values
//! of its variables.

use super::*;
use crate::expr::VarInfo;
use proptest::prelude::*;

/// Calls `visit` with every assignment of the variables of bounded range among `vars`.
fn for_all_values(exprs: &Exprs, vars: &[VarId], mut visit: impl FnMut(&[(VarId, i64)])) {
    let mut values: Vec<(VarId, i64)> = Vec::new();
    let range = |var: VarId| exprs.var_info(var).range.expect("a bounded variable");
    let step = |var: VarId| exprs.var_info(var).multiple_of;
    values.extend(vars.iter().map(|&var| (var, range(var).0)));
    loop {
        visit(&values);
        let mut dim = 0;
        loop {
            if dim == values.len() {
                return;
            }
            let (var, value) = values[dim];
            if value + step(var) <= range(var).1 {
                values[dim].1 += step(var);
                break;
            }
            values[dim].1 = range(var).0;
            dim += 1;
        }
    }
}

/// Simplifies and compares with the original everywhere.
fn checked(exprs: &mut Exprs, root: ExprId) -> ExprId {
    let simple = simplify(exprs, root);
    let vars = exprs.free_vars(root);
    for_all_values(exprs, &vars, |values| {
        let (before, after) = (exprs.evaluate(root, values), exprs.evaluate(simple, values));
        assert_eq!(before, after, "at {values:?}: {root:?} became {simple:?}");
    });
    simple
}

/// Index variables of these extents.
fn axes(exprs: &mut Exprs, extents: &[usize]) -> Vec<ExprId> {
    extents.iter().map(|&extent| exprs.fresh_index("i", extent).1).collect()
}

fn strides(shape: &[usize]) -> Vec<usize> {
    orch_ir::Shape::from(shape).strides()
}

/// The index tuple of `index` of an `[from]` tensor after reshapes to each of `shapes` in turn.
fn reshaped(exprs: &mut Exprs, index: &[ExprId], from: &[usize], shapes: &[&[usize]]) -> Vec<ExprId> {
    let (mut index, mut from) = (index.to_vec(), from);
    for to in shapes {
        let linear = exprs.linear_index(&index, &strides(from));
        index = exprs.unflatten(linear, to);
        from = to;
    }
    index
}

#[test]
fn reshapes_there_and_back_give_the_variables() {
    let cases: &[&[&[usize]]] = &[
        &[&[12, 197, 64], &[2364, 64], &[12, 197, 64]],
        &[&[12, 197, 64], &[12, 12608], &[2364, 4, 16], &[12, 197, 64]],
        &[&[2, 3, 5], &[30], &[5, 6], &[2, 3, 5]],
        &[&[2, 3, 5], &[6, 5], &[3, 2, 5], &[3, 10], &[2, 3, 5]],
        &[&[4, 1, 6], &[24, 1], &[1, 8, 3], &[4, 1, 6]],
        &[&[7, 11], &[11, 7], &[77], &[7, 11]],
    ];
    for shapes in cases {
        let mut exprs = Exprs::new();
        let vars: Vec<ExprId> = axes(&mut exprs, shapes[0]);
        let back = reshaped(&mut exprs, &vars, shapes[0], &shapes[1..]);
        for (dim, (&got, &var)) in back.iter().zip(&vars).enumerate() {
            let got = simplify(&mut exprs, got);
            let expected = if shapes[0][dim] == 1 { exprs.index(0) } else { var };
            assert_eq!(got, expected, "dimension {dim} of {shapes:?}: {:?}", exprs.get(got));
        }
    }
}

#[test]
fn a_partial_reshape_needs_no_division() {
    // [12, 197, 64] -> [2364, 64]: row i * 197 + j, column k.
    let mut exprs = Exprs::new();
    let vars = axes(&mut exprs, &[12, 197, 64]);
    let index = reshaped(&mut exprs, &vars, &[12, 197, 64], &[&[2364, 64]]);
    let row = simplify(&mut exprs, index[0]);
    let expected = exprs.linear_index(&vars[..2], &[197, 1]);
    assert_eq!(row, expected);
    assert_eq!(simplify(&mut exprs, index[1]), vars[2]);
}

#[test]
fn splitting_one_dimension_leaves_the_others() {
    // [4, 6, 8] -> [24, 2, 4] -> [4, 6, 8] with the middle form used: only k is divided.
    let mut exprs = Exprs::new();
    let vars = axes(&mut exprs, &[4, 6, 8]);
    let index = reshaped(&mut exprs, &vars, &[4, 6, 8], &[&[24, 2, 4]]);
    let four = exprs.index(4);
    let (high, low) = (exprs.floor_div(vars[2], four), exprs.floor_rem(vars[2], four));
    let row = exprs.linear_index(&vars[..2], &[6, 1]);
    for (got, expected) in index.into_iter().zip([row, high, low]) {
        assert_eq!(checked(&mut exprs, got), expected);
    }
}

#[test]
fn nested_divisions_merge() {
    let mut exprs = Exprs::new();
    let (_, x) = exprs.fresh_index("x", 1000);
    let [three, four, twelve] = [3, 4, 12].map(|k| exprs.index(k));
    let nested = exprs.floor_div(x, three);
    let nested = exprs.floor_div(nested, four);
    assert_eq!(checked(&mut exprs, nested), exprs.floor_div(x, twelve));
    let rem = exprs.floor_rem(x, twelve);
    let inner = exprs.floor_rem(rem, three);
    assert_eq!(checked(&mut exprs, inner), exprs.floor_rem(x, three));
    let digit = exprs.floor_div(rem, three);
    let quotient = exprs.floor_div(x, three);
    assert_eq!(checked(&mut exprs, digit), exprs.floor_rem(quotient, four));
}

#[test]
fn digits_join() {
    let mut exprs = Exprs::new();
    let (_, x) = exprs.fresh_index("x", 360);
    let digits = exprs.unflatten(x, &[3, 4, 5, 6]);
    let all = exprs.linear_index(&digits, &[120, 30, 6, 1]);
    assert_eq!(checked(&mut exprs, all), x);
    let low = exprs.linear_index(&digits[2..], &[6, 1]);
    let thirty = exprs.index(30);
    assert_eq!(checked(&mut exprs, low), exprs.floor_rem(x, thirty));
    let twice = exprs.linear_index(&digits[2..], &[12, 2]);
    let expected = exprs.floor_rem(x, thirty);
    assert_eq!(checked(&mut exprs, twice), exprs.mul_const(expected, 2));
}

#[test]
fn digits_join_under_any_sign() {
    let mut exprs = Exprs::new();
    let (_, x) = exprs.fresh_index("x", 72);
    let four = exprs.index(4);
    let (high, low) = (exprs.floor_div(x, four), exprs.floor_rem(x, four));
    let three = exprs.index(3);
    let middle = exprs.floor_rem(high, three);
    for factor in [-5, -1, 1, 7] {
        for other in [-4, 4] {
            for upper in [high, middle] {
                let (low, upper) = (exprs.mul_const(low, factor), exprs.mul_const(upper, other * factor));
                let sum = exprs.add2(low, upper);
                let simple = checked(&mut exprs, sum);
                let digits = (exprs.reachable(&[simple]).into_iter())
                    .filter(|&id| matches!(exprs.get(id), Expr::FloorDiv(..) | Expr::FloorRem(..)));
                assert!(other < 0 || digits.count() <= 1, "{factor} {other}");
            }
        }
    }
}

#[test]
fn negative_numerators_floor() {
    let mut exprs = Exprs::new();
    let (_, x) = exprs.fresh_index("x", 20);
    let shifted = exprs.add_const(x, -7);
    for divisor in [1, 2, 3, 7, 20, 40] {
        let divisor = exprs.index(divisor);
        let (quotient, remainder) = (exprs.floor_div(shifted, divisor), exprs.floor_rem(shifted, divisor));
        checked(&mut exprs, quotient);
        checked(&mut exprs, remainder);
        let scaled = exprs.mul(quotient, divisor);
        let sum = exprs.add2(scaled, remainder);
        assert_eq!(checked(&mut exprs, sum), shifted);
        let split = exprs.sub(shifted, scaled);
        assert_eq!(checked(&mut exprs, split), simplify(&mut exprs, remainder));
    }
}

#[test]
fn aligned_variables_split_exactly() {
    let mut exprs = Exprs::new();
    let info = VarInfo { name: "i".into(), ty: Type::INDEX, range: Some((0, 256)), multiple_of: 16 };
    let aligned = exprs.declare(info);
    let aligned = exprs.var(aligned);
    let (_, lane) = exprs.fresh_index("lane", 16);
    let sum = exprs.add2(aligned, lane);
    let [sixteen, sixty_four] = [16, 64].map(|k| exprs.index(k));
    let rem = exprs.floor_rem(sum, sixteen);
    assert_eq!(checked(&mut exprs, rem), lane);
    let quotient = exprs.floor_div(sum, sixty_four);
    assert_eq!(checked(&mut exprs, quotient), exprs.floor_div(aligned, sixty_four));
    // A bound that is aligned does not depend on the lane.
    let bound = exprs.index(208);
    let guard = exprs.lt(sum, bound);
    let (below, got) = (exprs.lt(aligned, bound), checked(&mut exprs, guard));
    assert!(!exprs.free_vars(got).contains(&exprs.free_vars(lane)[0]), "{:?} {below:?}", exprs.get(got));
    let unaligned = exprs.index(209);
    let guard = exprs.lt(sum, unaligned);
    let got = checked(&mut exprs, guard);
    assert!(exprs.free_vars(got).contains(&exprs.free_vars(lane)[0]));
}

#[test]
fn guards_are_decided_or_kept() {
    let mut exprs = Exprs::new();
    let vars = axes(&mut exprs, &[10, 32]);
    let position = exprs.linear_index(&vars, &[32, 1]);
    let mut proved = |low, high| {
        let guard = exprs.in_range(position, low, high);
        checked(&mut exprs, guard);
        prove(&mut exprs, guard)
    };
    assert_eq!(proved(0, 320), Some(true));
    assert_eq!(proved(0, 319), None);
    assert_eq!(proved(1, 320), None);
    assert_eq!(proved(320, 400), Some(false));
    assert_eq!(proved(-5, 0), Some(false));
    assert_eq!(proved(20, 10), Some(false));
}

#[test]
fn tails_keep_the_short_guard() {
    // 32 * i + j < 96 is i < 3.
    let mut exprs = Exprs::new();
    let vars = axes(&mut exprs, &[10, 32]);
    let position = exprs.linear_index(&vars, &[32, 1]);
    let [three, bound] = [3, 96].map(|k| exprs.index(k));
    let guard = exprs.lt(position, bound);
    assert_eq!(checked(&mut exprs, guard), exprs.lt(vars[0], three));
}

#[test]
fn conjunctions_keep_the_tightest_bounds() {
    let mut exprs = Exprs::new();
    let (_, x) = exprs.fresh_index("x", 100);
    let wide = exprs.in_range(x, 3, 50);
    let narrow = exprs.in_range(x, 5, 60);
    let both = exprs.and(wide, narrow);
    let expected = exprs.in_range(x, 5, 50);
    let expected = simplify(&mut exprs, expected);
    assert_eq!(checked(&mut exprs, both), expected);
    let apart = exprs.in_range(x, 50, 70);
    let never = exprs.and(wide, apart);
    assert_eq!(prove(&mut exprs, never), Some(false));
}

#[test]
fn reads_lose_proved_guards() {
    let mut exprs = Exprs::new();
    let arg = exprs.declare_arg(DType::F32);
    let vars = axes(&mut exprs, &[4, 8]);
    let flat = exprs.linear_index(&vars, &[8, 1]);
    let index = exprs.unflatten(flat, &[4, 8]);
    let guard = exprs.in_range(flat, 0, 32);
    let read = exprs.read(arg, index.clone(), Some(guard));
    let value = exprs.unary(UnaryFn::Exp, read);
    let plain = exprs.read(arg, vars.clone(), None);
    let expected = exprs.unary(UnaryFn::Exp, plain);
    assert_eq!(simplify(&mut exprs, value), expected);
    let never = exprs.in_range(flat, 32, 40);
    let read = exprs.read(arg, index, Some(never));
    assert_eq!(simplify(&mut exprs, read), exprs.zero(DType::F32));
}

#[test]
fn wrapping_arithmetic_of_unbounded_values_is_not_compared() {
    let mut exprs = Exprs::new();
    let x = exprs.declare_register("x", Type::INDEX);
    let x = exprs.var(x);
    let next = exprs.add_const(x, 1);
    let grows = exprs.lt(x, next);
    assert_eq!(prove(&mut exprs, grows), None);
    let difference = exprs.sub(next, x);
    assert_eq!(simplify(&mut exprs, difference), exprs.index(1));
}

#[test]
fn huge_constants_are_left_alone() {
    let mut exprs = Exprs::new();
    let (_, x) = exprs.fresh_index("x", 5);
    let big = exprs.mul_const(x, i64::MAX / 4);
    let [two, three] = [2, 3].map(|k| exprs.index(k));
    for divisor in [two, three] {
        let quotient = exprs.floor_div(big, divisor);
        simplify(&mut exprs, quotient);
        let remainder = exprs.floor_rem(big, divisor);
        simplify(&mut exprs, remainder);
    }
    let extreme = exprs.index(i64::MIN);
    let sum = exprs.add2(x, extreme);
    let negated = exprs.neg(sum);
    checked(&mut exprs, negated);
    let compared = exprs.lt(negated, x);
    checked(&mut exprs, compared);
}

#[test]
fn casts_through_types_that_hold_the_index_vanish() {
    let mut exprs = Exprs::new();
    let (_, x) = exprs.fresh_index("x", 100);
    for (middle, vanishes) in [(DType::I32, true), (DType::I8, true), (DType::Bool, false)] {
        let narrow = exprs.cast(middle, x);
        let back = exprs.cast(DType::I64, narrow);
        assert_eq!(checked(&mut exprs, back) == x, vanishes, "{middle}");
        let beyond = exprs.mul_const(x, 2);
        let narrow = exprs.cast(middle, beyond);
        let back = exprs.cast(DType::I64, narrow);
        assert_eq!(checked(&mut exprs, back) == beyond, middle == DType::I32, "{middle}");
    }
}

#[test]
fn strides_of_variables() {
    let mut exprs = Exprs::new();
    let vars = axes(&mut exprs, &[4, 8, 16]);
    let (i, k) = (exprs.free_vars(vars[0])[0], exprs.free_vars(vars[2])[0]);
    let flat = exprs.linear_index(&vars, &[128, 16, 1]);
    let index = exprs.unflatten(flat, &[32, 16]);
    let mut simplifier = Simplifier::new();
    assert_eq!(simplifier.stride(&mut exprs, index[0], i), Some(8));
    assert_eq!(simplifier.stride(&mut exprs, index[0], k), Some(0));
    assert_eq!(simplifier.stride(&mut exprs, index[1], k), Some(1));
    let five = exprs.index(5);
    let digit = exprs.floor_div(vars[2], five);
    assert_eq!(simplifier.stride(&mut exprs, digit, k), None);
    let square = exprs.mul(vars[2], vars[2]);
    let sum = exprs.add2(square, vars[2]);
    assert_eq!(simplifier.stride(&mut exprs, sum, k), None);
}

#[test]
fn extrema_with_an_order_vanish() {
    let mut exprs = Exprs::new();
    let vars = axes(&mut exprs, &[4, 8]);
    let flat = exprs.linear_index(&vars, &[8, 1]);
    let last = exprs.index(31);
    let clamped = exprs.min(flat, last);
    let zero = exprs.index(0);
    let clamped = exprs.max(clamped, zero);
    assert_eq!(checked(&mut exprs, clamped), flat);
    let short = exprs.index(30);
    let clamped = exprs.min(flat, short);
    assert_eq!(checked(&mut exprs, clamped), exprs.min(flat, short));
}

/// A recipe for a random integer expression over three variables.
#[derive(Clone, Debug)]
enum Recipe {
    Var(usize),
    Const(i64),
    Add(Box<Recipe>, Box<Recipe>),
    Sub(Box<Recipe>, Box<Recipe>),
    Scale(Box<Recipe>, i64),
    Product(Box<Recipe>, Box<Recipe>),
    Div(Box<Recipe>, i64),
    Rem(Box<Recipe>, i64),
    ValueDiv(Box<Recipe>, i64),
    Extremum(bool, Box<Recipe>, Box<Recipe>),
    Select(Box<Condition>, Box<Recipe>, Box<Recipe>),
}

/// A recipe for a random boolean expression.
#[derive(Clone, Debug)]
enum Condition {
    Compare(usize, Recipe, Recipe),
    And(Box<Condition>, Box<Condition>),
    Or(Box<Condition>, Box<Condition>),
    Not(Box<Condition>),
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let leaf = prop_oneof![4 => (0usize..3).prop_map(Recipe::Var), 1 => (-9i64..10).prop_map(Recipe::Const)];
    let divisor = prop_oneof![Just(2i64), Just(3), Just(4), Just(6), Just(8), Just(12), 1i64..30];
    leaf.prop_recursive(5, 24, 3, move |inner| {
        let pair = || (inner.clone().prop_map(Box::new), inner.clone().prop_map(Box::new));
        let one = || inner.clone().prop_map(Box::new);
        let compare = (0usize..6, inner.clone(), inner.clone());
        prop_oneof![
            4 => pair().prop_map(|(a, b)| Recipe::Add(a, b)),
            2 => pair().prop_map(|(a, b)| Recipe::Sub(a, b)),
            4 => (one(), prop_oneof![divisor.clone(), -6i64..7]).prop_map(|(a, c)| Recipe::Scale(a, c)),
            1 => pair().prop_map(|(a, b)| Recipe::Product(a, b)),
            4 => (one(), divisor.clone()).prop_map(|(a, d)| Recipe::Div(a, d)),
            4 => (one(), divisor.clone()).prop_map(|(a, d)| Recipe::Rem(a, d)),
            1 => (one(), divisor.clone()).prop_map(|(a, d)| Recipe::ValueDiv(a, d)),
            1 => (any::<bool>(), pair()).prop_map(|(min, (a, b))| Recipe::Extremum(min, a, b)),
            1 => (compare, pair()).prop_map(|((f, x, y), (a, b))| {
                Recipe::Select(Box::new(Condition::Compare(f, x, y)), a, b)
            }),
        ]
    })
}

fn condition() -> impl Strategy<Value = Condition> {
    let leaf = (0usize..6, recipe(), recipe()).prop_map(|(f, a, b)| Condition::Compare(f, a, b));
    leaf.prop_recursive(3, 6, 2, |inner| {
        let pair = || (inner.clone().prop_map(Box::new), inner.clone().prop_map(Box::new));
        prop_oneof![
            3 => pair().prop_map(|(a, b)| Condition::And(a, b)),
            1 => pair().prop_map(|(a, b)| Condition::Or(a, b)),
            1 => inner.clone().prop_map(|a| Condition::Not(Box::new(a))),
        ]
    })
}

impl Recipe {
    /// Builds the nodes as they are, past the smart constructors.
    fn build(&self, exprs: &mut Exprs, vars: &[ExprId]) -> ExprId {
        let node = match self {
            Recipe::Var(at) => return vars[*at],
            Recipe::Const(value) => return exprs.index(*value),
            Recipe::Add(a, b) => Expr::Binary(BinaryFn::Add, a.build(exprs, vars), b.build(exprs, vars)),
            Recipe::Sub(a, b) => Expr::Binary(BinaryFn::Sub, a.build(exprs, vars), b.build(exprs, vars)),
            Recipe::Scale(a, c) => Expr::Binary(BinaryFn::Mul, exprs.index(*c), a.build(exprs, vars)),
            Recipe::Product(a, b) => Expr::Binary(BinaryFn::Mul, a.build(exprs, vars), b.build(exprs, vars)),
            Recipe::Div(a, d) => Expr::FloorDiv(a.build(exprs, vars), exprs.index(*d)),
            Recipe::Rem(a, d) => Expr::FloorRem(a.build(exprs, vars), exprs.index(*d)),
            Recipe::ValueDiv(a, d) => Expr::Binary(BinaryFn::Div, a.build(exprs, vars), exprs.index(*d)),
            Recipe::Extremum(min, a, b) => {
                let f = if *min { BinaryFn::Min } else { BinaryFn::Max };
                Expr::Binary(f, a.build(exprs, vars), b.build(exprs, vars))
            }
            Recipe::Select(condition, a, b) => {
                Expr::Select(condition.build(exprs, vars), a.build(exprs, vars), b.build(exprs, vars))
            }
        };
        exprs.add(node)
    }
}

impl Condition {
    fn build(&self, exprs: &mut Exprs, vars: &[ExprId]) -> ExprId {
        let node = match self {
            Condition::Compare(f, a, b) => {
                let f = orch_ir::CompareFn::ALL[*f];
                Expr::Compare(f, a.build(exprs, vars), b.build(exprs, vars))
            }
            Condition::And(a, b) => Expr::Binary(BinaryFn::And, a.build(exprs, vars), b.build(exprs, vars)),
            Condition::Or(a, b) => Expr::Binary(BinaryFn::Or, a.build(exprs, vars), b.build(exprs, vars)),
            Condition::Not(a) => Expr::Unary(UnaryFn::Not, a.build(exprs, vars)),
        };
        exprs.add(node)
    }
}

/// Three variables with random small ranges, some below zero, some aligned.
fn variables() -> impl Strategy<Value = Vec<(i64, i64, i64)>> {
    let one =
        (prop_oneof![3 => Just(0i64), 1 => -8i64..4], 0i64..12, prop_oneof![Just(1i64), Just(2), Just(4)]);
    proptest::collection::vec(one, 3)
}

fn declare(exprs: &mut Exprs, variables: &[(i64, i64, i64)]) -> Vec<ExprId> {
    let mut declare = |&(low, count, multiple_of): &(i64, i64, i64)| {
        let low = low * multiple_of;
        let range = Some((low, low + count * multiple_of));
        let var = exprs.declare(VarInfo { name: "v".into(), ty: Type::INDEX, range, multiple_of });
        exprs.var(var)
    };
    variables.iter().map(&mut declare).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn random_indices_keep_their_values(recipe in recipe(), variables in variables()) {
        let mut exprs = Exprs::new();
        let vars = declare(&mut exprs, &variables);
        let root = recipe.build(&mut exprs, &vars);
        let simple = checked(&mut exprs, root);
        prop_assert_eq!(simplify(&mut exprs, simple), simple, "simplification is idempotent");
        let mut bounds = Bounds::new();
        for id in [root, simple] {
            let range = bounds.of(&exprs, id);
            let all = exprs.free_vars(id);
            for_all_values(&exprs, &all, |values| {
                let value = exprs.evaluate(id, values).expect("a closed expression");
                assert!(range.is_within(range.low, range.high) && range.low <= value && value <= range.high);
                let apart = value - range.residue;
                assert!(if range.modulus == 0 { apart == 0 } else { apart % range.modulus == 0 }, "{range:?} {value}");
            });
        }
    }

    /// Sums of two digits of one number, divided again: where digits join, merge and nest.
    #[test]
    fn sums_of_digits_keep_their_values(
        digits in proptest::collection::vec((any::<bool>(), any::<bool>(), 0usize..5, -2i64..3, 0usize..6), 2),
        constant in -3i64..8,
        (is_quotient, last) in (any::<bool>(), 0usize..6),
    ) {
        const DIVISORS: [i64; 6] = [1, 2, 3, 4, 6, 12];
        let mut exprs = Exprs::new();
        let (_, x) = exprs.fresh_index("x", 72);
        let divided = |exprs: &mut Exprs, a: ExprId, is_quotient: bool, at: usize| {
            let divisor = exprs.index(DIVISORS[at]);
            if is_quotient { exprs.floor_div(a, divisor) } else { exprs.floor_rem(a, divisor) }
        };
        let mut sum = exprs.index(constant);
        for (is_outer_quotient, is_inner_quotient, at, factor, scale) in digits {
            let inner = divided(&mut exprs, x, is_inner_quotient, at);
            let digit = divided(&mut exprs, inner, is_outer_quotient, at + 1);
            let term = exprs.mul_const(digit, factor * DIVISORS[scale]);
            sum = exprs.add2(sum, term);
        }
        let root = divided(&mut exprs, sum, is_quotient, last);
        checked(&mut exprs, root);
    }

    #[test]
    fn random_conditions_keep_their_values(condition in condition(), variables in variables()) {
        let mut exprs = Exprs::new();
        let vars = declare(&mut exprs, &variables);
        let root = condition.build(&mut exprs, &vars);
        checked(&mut exprs, root);
    }

    #[test]
    fn random_reshapes_round_trip(
        factors in proptest::collection::vec(1usize..7, 1..5),
        cuts in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 5), 1..4),
    ) {
        // Shapes that group the same factors differently, and back.
        let group = |cut: &[bool]| {
            let mut shape = vec![1];
            for (at, &factor) in factors.iter().enumerate() {
                if cut[at] { shape.push(factor) } else { *shape.last_mut().expect("starts with one") *= factor }
            }
            shape
        };
        let mut exprs = Exprs::new();
        let vars = axes(&mut exprs, &factors);
        let shapes: Vec<Vec<usize>> = cuts.iter().map(|cut| group(cut)).chain([factors.clone()]).collect();
        let shapes: Vec<&[usize]> = shapes.iter().map(|shape| &shape[..]).collect();
        let back = reshaped(&mut exprs, &vars, &factors, &shapes);
        for (dim, (&got, &var)) in back.iter().zip(&vars).enumerate() {
            let expected = if factors[dim] == 1 { exprs.index(0) } else { var };
            prop_assert_eq!(simplify(&mut exprs, got), expected);
        }
    }

    #[test]
    fn any_reshapes_there_and_back_are_the_identity(
        shape in proptest::collection::vec(1usize..9, 1..4),
        choices in proptest::collection::vec((0usize..100, 0usize..100), 1..3),
    ) {
        // Through shapes [a, b, c] of the same size that need not share any factor boundary.
        let total: usize = shape.iter().product();
        let divisor = |of: usize, choice: usize| {
            let all: Vec<usize> = (1..=of).filter(|d| of.is_multiple_of(*d)).collect();
            all[choice % all.len()]
        };
        let shapes: Vec<Vec<usize>> = (choices.iter())
            .map(|&(first, second)| {
                let a = divisor(total, first);
                let b = divisor(total / a, second);
                vec![a, b, total / a / b]
            })
            .chain([shape.clone()])
            .collect();
        let shapes: Vec<&[usize]> = shapes.iter().map(|shape| &shape[..]).collect();
        let mut exprs = Exprs::new();
        let vars = axes(&mut exprs, &shape);
        let back = reshaped(&mut exprs, &vars, &shape, &shapes);
        for (dim, (&got, &var)) in back.iter().zip(&vars).enumerate() {
            let expected = if shape[dim] == 1 { exprs.index(0) } else { var };
            prop_assert_eq!(simplify(&mut exprs, got), expected, "through {:?}", shapes);
        }
    }
}
