//! Widened expressions against the scalar ones, lane by lane, with every access checked.

use super::*;
use orch_compute::expr::fold::{fold_binary, fold_cast, fold_compare, fold_unary};
use orch_compute::expr::{BufferId, Const, Type, VarInfo};
use orch_ir::{BinaryFn, DType};
use proptest::prelude::*;

/// Elements of the only buffer, and the offsets that were accessed.
struct Memory {
    elems: Vec<i64>,
    accessed: Vec<i64>,
}

impl Memory {
    fn new(elems: usize) -> Self {
        Self { elems: (0..elems as i64).map(|at| at * at + 1).collect(), accessed: Vec::new() }
    }

    fn load(&mut self, dtype: DType, offset: i64) -> Const {
        self.accessed.push(offset);
        let value = usize::try_from(offset).ok().and_then(|at| self.elems.get(at));
        Const::int(dtype, (*value.unwrap_or_else(|| panic!("element {offset} is accessed"))).into())
    }
}

/// All lanes of an expression.
fn lanes_of(exprs: &Exprs, root: ExprId, values: &[(VarId, i64)], memory: &mut Memory) -> Vec<Const> {
    let mut known: FxHashMap<ExprId, Vec<Const>> = FxHashMap::default();
    for id in exprs.reachable(&[root]) {
        let Type { dtype, lanes } = exprs.ty(id);
        let int = |id: ExprId, lane: usize| known[&id][lane].as_int().expect("an integer") as i64;
        let is_on = |mask: Option<ExprId>, lane| mask.is_none_or(|mask| int(mask, lane) != 0);
        let lane_value = |lane: usize| match *exprs.get(id) {
            Expr::Const(c) => c,
            Expr::Var(var) => {
                let value = values.iter().find(|(known, _)| *known == var).expect("a known variable").1;
                Const::int(dtype, value.into())
            }
            Expr::Unary(f, a) => fold_unary(f, known[&a][lane]).expect("an integer function"),
            Expr::Binary(f, a, b) => fold_binary(f, known[&a][lane], known[&b][lane]).expect("integers"),
            Expr::Compare(f, a, b) => {
                let truth = fold_compare(f, known[&a][lane], known[&b][lane]);
                Const::int(DType::Bool, truth.into())
            }
            Expr::Select(condition, a, b) => known[if int(condition, lane) != 0 { &a } else { &b }][lane],
            Expr::Cast(to, a) => fold_cast(to, known[&a][lane]).expect("an integer"),
            Expr::FloorDiv(a, b) => Const::int(dtype, int(a, lane).div_euclid(int(b, lane)).into()),
            Expr::FloorRem(a, b) => Const::int(dtype, int(a, lane).rem_euclid(int(b, lane)).into()),
            Expr::Splat(a, _) => known[&a][0],
            Expr::ReduceLanes(ReduceOp::Max, a) => {
                known[&a].iter().copied().max_by_key(|value| value.as_int()).expect("a vector has lanes")
            }
            Expr::Half(half, a) => known[&a][half.lanes(2 * lanes)][lane],
            Expr::Interleave(group, a, b) => {
                let (operand, at) = group.source_of(lane);
                known[&[a, b][operand]][at]
            }
            Expr::Ramp { base, stride, .. } => {
                Const::int(dtype, (int(base, 0) + stride * lane as i64).into())
            }
            ref other => panic!("{other:?} is not expected"),
        };
        let all = match *exprs.get(id) {
            Expr::Load { offset, mask, .. } => {
                let is_gather = exprs.lanes(offset) > 1;
                let mut load_lane = |lane: usize| match (is_on(mask, lane), is_gather) {
                    (false, _) => Const { dtype, bits: 0 },
                    (true, true) => memory.load(dtype, int(offset, lane)),
                    (true, false) => memory.load(dtype, int(offset, 0) + lane as i64),
                };
                (0..lanes).map(&mut load_lane).collect()
            }
            _ => (0..lanes).map(lane_value).collect(),
        };
        known.insert(id, all);
    }
    known.remove(&root).expect("the root was visited")
}

/// One buffer, an outer variable, the scalar variable `x` in `0..extent`, and the base of a vector of it.
struct Fixture {
    exprs: Exprs,
    buffer: BufferId,
    outer: ExprId,
    x: VarId,
    base: VarId,
    extent: usize,
}

const OUTER: usize = 3;

impl Fixture {
    fn new(extent: usize, lanes: usize) -> Self {
        let mut exprs = Exprs::new();
        let buffer = exprs.declare_buffer(DType::I64);
        let (_, outer) = exprs.fresh_index("outer", OUTER);
        let x = exprs.declare_index("x", extent);
        let last = (extent.div_ceil(lanes) - 1) * lanes;
        let base = exprs.declare(VarInfo {
            name: "base".into(),
            ty: Type::INDEX,
            range: Some((0, last as i64)),
            multiple_of: lanes as i64,
        });
        Self { exprs, buffer, outer, x, base, extent }
    }

    fn x(&mut self) -> ExprId {
        self.exprs.var(self.x)
    }

    fn load(&mut self, offset: ExprId) -> ExprId {
        self.exprs.load(self.buffer, offset, 1, None)
    }

    fn widening(&mut self, lanes: usize) -> Widening {
        let base = self.exprs.var(self.base);
        if self.extent.is_multiple_of(lanes) {
            return Widening::new(self.x, base, lanes);
        }
        let extent = self.exprs.index(self.extent as i64);
        Widening::below(&mut self.exprs, self.x, base, lanes, extent)
    }

    /// Widens and compares with the scalar at every base; the vector accesses nothing that no active lane does.
    fn checked(&mut self, root: ExprId, lanes: usize) -> Vectorized {
        let over = self.widening(lanes);
        let vectorized = vectorize(&mut self.exprs, root, &over);
        let got_lanes = self.exprs.lanes(vectorized.value);
        assert!([1, lanes].contains(&got_lanes));
        let outer = self.exprs.free_vars(self.outer)[0];
        for outer_value in 0..OUTER as i64 {
            for base in (0..self.extent).step_by(lanes) {
                let mut memory = Memory::new(4096);
                let values = [(outer, outer_value), (self.base, base as i64)];
                let got = lanes_of(&self.exprs, vectorized.value, &values, &mut memory);
                let mut expected_memory = Memory::new(4096);
                for at in base..self.extent.min(base + lanes) {
                    let values = [(outer, outer_value), (self.x, at as i64)];
                    let expected = lanes_of(&self.exprs, root, &values, &mut expected_memory);
                    let lane = if got_lanes == 1 { 0 } else { at - base };
                    assert_eq!(got[lane], expected[0], "x = {at}, outer = {outer_value}");
                }
                let stray = memory.accessed.iter().find(|at| !expected_memory.accessed.contains(at));
                assert_eq!(stray, None, "no lane needs this element");
            }
        }
        vectorized
    }
}

fn counts(contiguous: usize, gathers: usize, scalar: usize) -> LoadCounts {
    LoadCounts { contiguous, gathers, scalar }
}

#[test]
fn rows_load_contiguously_and_broadcasts_stay_scalar() {
    for extent in [1, 15, 16, 17, 64] {
        let mut t = Fixture::new(extent, 16);
        let x = t.x();
        let row = t.exprs.linear_index(&[t.outer, x], &[extent, 1]);
        let (element, bias) = (t.load(row), t.load(t.outer));
        let sum = t.exprs.add2(element, bias);
        let vectorized = t.checked(sum, 16);
        // With one column, both are the same element.
        let expected = if extent == 1 { counts(0, 0, 1) } else { counts(1, 0, 1) };
        assert_eq!(vectorized.loads, expected, "extent {extent}");
    }
}

#[test]
fn what_does_not_vary_stays_scalar() {
    let mut t = Fixture::new(32, 8);
    let load = t.load(t.outer);
    let square = t.exprs.mul(load, load);
    let vectorized = t.checked(square, 8);
    assert_eq!(vectorized.value, square);
}

#[test]
fn strided_loads_gather() {
    let mut t = Fixture::new(20, 8);
    let x = t.x();
    let column = t.exprs.linear_index(&[x, t.outer], &[OUTER, 1]);
    let load = t.load(column);
    assert_eq!(t.checked(load, 8).loads, counts(0, 1, 0));
    let reversed = t.exprs.index(40);
    let reversed = t.exprs.sub(reversed, x);
    let load = t.load(reversed);
    assert_eq!(t.checked(load, 8).loads, counts(0, 1, 0));
}

#[test]
fn aligned_digits_need_no_vector_arithmetic() {
    // x in [4, 32]: the row is uniform over 16 lanes, the column contiguous.
    let mut t = Fixture::new(128, 16);
    let x = t.x();
    let digits = t.exprs.unflatten(x, &[4, 32]);
    let offset = t.exprs.linear_index(&digits, &[100, 1]);
    let (element, row) = (t.load(offset), t.load(digits[0]));
    let product = t.exprs.mul(element, row);
    assert_eq!(t.checked(product, 16).loads, counts(1, 0, 1));
}

#[test]
fn flipped_digits_need_no_vector_division() {
    // 127 - x in [4, 32]: the row is uniform, the column falls; in [5, 26] lanes cross one row downwards.
    for row in [32, 26] {
        let mut t = Fixture::new(128, 16);
        let last = t.exprs.index(127);
        let x = t.x();
        let flipped = t.exprs.sub(last, x);
        let digits = t.exprs.unflatten(flipped, &[5, row]);
        let offset = t.exprs.linear_index(&digits, &[100, 1]);
        let load = t.load(offset);
        let vectorized = t.checked(load, 16);
        assert_eq!(vectorized.loads, counts(0, 1, 0));
        for id in t.exprs.reachable(&[vectorized.value]) {
            let is_division = matches!(t.exprs.get(id), Expr::FloorDiv(..) | Expr::FloorRem(..));
            assert!(!is_division || t.exprs.lanes(id) == 1, "a vector division is left");
        }
    }
}

#[test]
fn unaligned_digits_cross_once() {
    // x in [4, 25] by 16 lanes: each vector crosses at most one row, so no vector division is left.
    let mut t = Fixture::new(100, 16);
    let x = t.x();
    let digits = t.exprs.unflatten(x, &[4, 25]);
    let offset = t.exprs.linear_index(&digits, &[100, 1]);
    let load = t.load(offset);
    let vectorized = t.checked(load, 16);
    assert_eq!(vectorized.loads, counts(0, 1, 0));
    for id in t.exprs.reachable(&[vectorized.value]) {
        let is_division = matches!(t.exprs.get(id), Expr::FloorDiv(..) | Expr::FloorRem(..));
        assert!(!is_division || t.exprs.lanes(id) == 1, "a vector division is left");
    }
}

#[test]
fn guards_become_masks() {
    // A row padded by 3 on both sides.
    for extent in [16, 21, 32] {
        let mut t = Fixture::new(extent + 6, 16);
        let x = t.x();
        let inner = t.exprs.add_const(x, -3);
        let guard = t.exprs.in_range(inner, 0, extent as i64);
        let offset = t.exprs.linear_index(&[t.outer, inner], &[extent, 1]);
        let load = t.exprs.load(t.buffer, offset, 1, Some(guard));
        assert_eq!(t.checked(load, 16).loads, counts(1, 0, 0));
    }
}

#[test]
fn an_aligned_guard_stays_scalar() {
    let mut t = Fixture::new(64, 16);
    let x = t.x();
    let bound = t.exprs.index(48);
    let guard = t.exprs.lt(x, bound);
    let vectorized = t.checked(guard, 16);
    assert_eq!(t.exprs.lanes(vectorized.value), 1);
    let bound = t.exprs.index(40);
    let guard = t.exprs.le(x, bound);
    let vectorized = t.checked(guard, 16);
    assert_eq!(t.exprs.lanes(vectorized.value), 16);
    let bound = t.exprs.index(47);
    for guard in [t.exprs.le(x, bound), t.exprs.gt(x, bound), t.exprs.lt(bound, x)] {
        let vectorized = t.checked(guard, 16);
        assert_eq!(t.exprs.lanes(vectorized.value), 1);
    }
}

#[test]
fn one_element_under_a_varying_guard_is_not_touched_in_vain() {
    let mut t = Fixture::new(32, 8);
    let x = t.x();
    let bound = t.exprs.index(5);
    let guard = t.exprs.lt(x, bound);
    let far = t.exprs.mul_const(t.outer, 7);
    let load = t.exprs.load(t.buffer, far, 1, Some(guard));
    t.checked(load, 8);
}

#[test]
fn registers_may_hold_vectors() {
    let mut t = Fixture::new(32, 8);
    let scalar = t.exprs.declare_register("m", Type::scalar(DType::I64));
    let vector = t.exprs.declare_register("m8", Type::vector(DType::I64, 8));
    let (scalar_value, vector_value) = (t.exprs.var(scalar), t.exprs.var(vector));
    let x = t.x();
    let sum = t.exprs.add2(scalar_value, x);
    let mut over = t.widening(8);
    over.registers.push((scalar, vector_value));
    let widened = vectorize(&mut t.exprs, sum, &over).value;
    let positions = t.exprs.ramp(over.base, 1, 8);
    assert_eq!(widened, t.exprs.add2(vector_value, positions));
}

#[test]
fn several_expressions_share_their_vectors() {
    let mut t = Fixture::new(32, 8);
    let x = t.x();
    let load = t.load(x);
    let square = t.exprs.mul(load, load);
    let over = t.widening(8);
    let (mut vectorizer, mut simplifier) = (Vectorizer::new(&mut t.exprs, &over), Simplifier::new());
    let first = vectorizer.widen(&mut t.exprs, &mut simplifier, load);
    let second = vectorizer.widen(&mut t.exprs, &mut simplifier, square);
    assert_eq!(second, t.exprs.mul(first, first));
}

/// A step of a random scalar expression: combines what was made before.
#[derive(Clone, Debug)]
enum Step {
    Scale(usize, i64),
    Add(usize, usize),
    Div(usize, i64),
    Rem(usize, i64),
    Load(usize),
    GuardedLoad(usize, usize, i64),
    Select(usize, usize, usize, i64),
    Compare(usize, usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let operand = || 0usize..64;
    let divisor = || prop_oneof![Just(2i64), Just(4), Just(8), Just(16), 1i64..40];
    prop_oneof![
        2 => (operand(), -3i64..9).prop_map(|(a, c)| Step::Scale(a, c)),
        3 => (operand(), operand()).prop_map(|(a, b)| Step::Add(a, b)),
        2 => (operand(), divisor()).prop_map(|(a, d)| Step::Div(a, d)),
        2 => (operand(), divisor()).prop_map(|(a, d)| Step::Rem(a, d)),
        2 => operand().prop_map(Step::Load),
        2 => (operand(), operand(), 0i64..60).prop_map(|(a, g, bound)| Step::GuardedLoad(a, g, bound)),
        1 => (operand(), operand(), operand(), -9i64..50).prop_map(|(c, a, b, k)| Step::Select(c, a, b, k)),
        1 => (0usize..6, operand(), operand()).prop_map(|(f, a, b)| Step::Compare(f, a, b)),
    ]
}

/// The expression that the steps build; loads stay within the memory.
fn build(t: &mut Fixture, steps: &[Step]) -> ExprId {
    let x = t.x();
    let mut made = vec![x, t.outer];
    let limit = t.exprs.index(4096);
    for step in steps {
        let get = |at: &usize| made[at % made.len()];
        let exprs = &mut t.exprs;
        let new = match step {
            Step::Scale(a, c) => exprs.mul_const(get(a), *c),
            Step::Add(a, b) => exprs.add2(get(a), get(b)),
            Step::Div(a, d) => {
                let divisor = exprs.index(*d);
                exprs.floor_div(get(a), divisor)
            }
            Step::Rem(a, d) => {
                let divisor = exprs.index(*d);
                exprs.floor_rem(get(a), divisor)
            }
            Step::Load(a) => {
                let offset = exprs.floor_rem(get(a), limit);
                exprs.load(t.buffer, offset, 1, None)
            }
            Step::GuardedLoad(a, g, bound) => {
                let bound = exprs.index(*bound);
                let (low, high) = (exprs.index(0), exprs.index(4096));
                let guards = [exprs.lt(get(g), bound), exprs.ge(get(a), low), exprs.lt(get(a), high)];
                let guard = exprs.all(guards);
                exprs.load(t.buffer, get(a), 1, Some(guard))
            }
            Step::Select(c, a, b, k) => {
                let bound = exprs.index(*k);
                let condition = exprs.le(get(c), bound);
                exprs.select(condition, get(a), get(b))
            }
            Step::Compare(f, a, b) => {
                let condition = exprs.compare(CompareFn::ALL[*f], get(a), get(b));
                exprs.cast(DType::I64, condition)
            }
        };
        made.push(new);
    }
    let last = *made.last().expect("starts with two");
    t.exprs.binary(BinaryFn::Add, last, x)
}

#[test]
fn repeated_elements_are_loaded_once() {
    for (divisor, lanes) in [(2, 4), (2, 16), (4, 8), (8, 8)] {
        let mut t = Fixture::new(32, lanes);
        let (x, d) = (t.x(), t.exprs.index(divisor));
        let quotient = t.exprs.floor_div(x, d);
        let row = t.exprs.mul_const(t.outer, 40);
        let offset = t.exprs.add2(quotient, row);
        let root = t.load(offset);
        t.checked(root, lanes);
        let over = t.widening(lanes);
        let loads = vectorize(&mut t.exprs, root, &over).loads;
        assert_eq!(loads.gathers, 0, "{divisor} {lanes}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn random_expressions_widen(
        steps in proptest::collection::vec(step(), 1..12),
        extent in prop_oneof![Just(8usize), Just(24), 1usize..50],
        lanes in prop_oneof![Just(2usize), Just(4), Just(8)],
    ) {
        let mut t = Fixture::new(extent, lanes);
        let root = build(&mut t, &steps);
        t.checked(root, lanes);
    }
}
