//! The attention template against the reference interpreter, through the interpreter of thread programs, which checks
//! bounds, races and reads of undefined scratch.

mod support;

use orch_ir::*;
use orch_template::gpu::{attention, designs};
use orch_thread::OperandPrecision;
use orch_thread::target::SM_90;
use orch_thread::validate_thread;
use support::{G, run_kernel};

/// An attention: shapes, and which variants of the pattern it has.
#[derive(Clone, Copy, Debug)]
struct Shape {
    heads: usize,
    rows: usize,
    keys: usize,
    head_dim: usize,
    columns: usize,
    /// True if keys are given as `[head_dim, key]`.
    keys_last: bool,
    /// True for an additive mask `[row, key]`.
    masked: bool,
    /// True if rows whose scores are all below a limit are zeros, as rows without keys are.
    guarded: bool,
    dtype: DType,
}

const PLAIN: Shape = Shape {
    heads: 2,
    rows: 16,
    keys: 16,
    head_dim: 16,
    columns: 16,
    keys_last: false,
    masked: false,
    guarded: false,
    dtype: DType::F16,
};

/// Limit of scores of `guarded`.
const GUARD: f32 = 6.0;

/// `softmax(q * k / 2 + mask) * v`, heads merged.
fn attention_of(shape: Shape) -> G {
    let Shape { heads, rows, keys, head_dim, columns, .. } = shape;
    let mut g = G::new();
    let q = g.input(shape.dtype, &[heads, rows, head_dim]);
    let k_dims = if shape.keys_last { [heads, head_dim, keys] } else { [heads, keys, head_dim] };
    let k = g.input(shape.dtype, &k_dims);
    let v = g.input(shape.dtype, &[heads, keys, columns]);
    let wide = |g: &mut G, x| {
        if shape.dtype == DType::F32 { x } else { g.op(PrimOp::Map(ScalarFn::Cast(DType::F32)), &[x]) }
    };
    let (q, k, v) = (wide(&mut g, q), wide(&mut g, k), wide(&mut g, v));
    let k = if shape.keys_last { k } else { g.transpose(k, &[0, 2, 1]) };
    let s = g.op(PrimOp::Contract(Contract::matmul(1)), &[q, k]);
    let half = g.fill(0.5, &[heads, rows, keys]);
    let mut s = g.binary(BinaryFn::Mul, s, half);
    if shape.masked {
        let mask = g.f32(&[rows, keys]);
        let mask = g.op(PrimOp::Broadcast { shape: [heads, rows, keys].into(), dims: vec![1, 2] }, &[mask]);
        s = g.binary(BinaryFn::Add, s, mask);
    }
    let mut p = g.softmax(s, &[2]);
    if shape.guarded {
        // Some rows have a score above the limit, and some have none.
        let limit = g.fill(GUARD, &[heads, rows, keys]);
        let is_above = g.op(PrimOp::Map(ScalarFn::Compare(CompareFn::Gt)), &[s, limit]);
        let any = g.reduce(ReduceOp::Max, is_above, &[2]);
        let any = g.spread(any, s, &[2]);
        let zero = g.fill(0.0, &[heads, rows, keys]);
        p = g.op(PrimOp::Map(ScalarFn::Select), &[any, p, zero]);
    }
    let o = g.op(PrimOp::Contract(Contract::matmul(1)), &[p, v]);
    let o = g.transpose(o, &[1, 0, 2]);
    let o = g.reshape(o, &[rows, heads * columns]);
    g.output(o);
    g
}

fn check(shape: Shape) {
    let g = attention_of(shape);
    let block = g.check();
    let inputs = g.inputs(7);
    let expected = g.expected(&inputs);
    let values = g.arguments(&block, &inputs);
    let schedules = attention::schedules(&block, &SM_90, OperandPrecision::F16);
    assert!(!schedules.is_empty(), "{shape:?}");
    for schedule in &schedules {
        let kernel = attention::lower(&block, schedule, OperandPrecision::F16).unwrap();
        assert_eq!(validate_thread(&kernel.program), Vec::<String>::new(), "{shape:?} {schedule:?}");
        for (expected, given) in expected.iter().zip(run_kernel(&block, &kernel, &values)) {
            for (want, got) in expected.to_f64().iter().zip(given.to_f64()) {
                assert!((want - got).abs() < 4e-3, "{shape:?} {schedule:?}: {got}, expected {want}");
            }
        }
    }
}

#[test]
fn whole_tiles() {
    check(PLAIN);
    check(Shape { rows: 32, keys: 48, head_dim: 32, columns: 16, ..PLAIN });
}

#[test]
fn ragged_tiles() {
    check(Shape { rows: 7, keys: 11, head_dim: 8, columns: 8, ..PLAIN });
    check(Shape { heads: 1, rows: 1, keys: 2, head_dim: 3, columns: 5, ..PLAIN });
    check(Shape { rows: 20, keys: 70, ..PLAIN });
    check(Shape { heads: 1, rows: 18, keys: 128, ..PLAIN });
    check(Shape { heads: 1, rows: 16, keys: 256, head_dim: 32, columns: 32, ..PLAIN });
    check(Shape { rows: 17, keys: 33, head_dim: 24, columns: 40, ..PLAIN });
}

#[test]
fn keys_as_columns_and_masks() {
    check(Shape { keys: 24, keys_last: true, ..PLAIN });
    check(Shape { rows: 18, keys: 19, masked: true, ..PLAIN });
}

#[test]
fn rows_without_keys_are_zeros() {
    for shape in [Shape { guarded: true, ..PLAIN }, Shape { rows: 18, keys: 75, guarded: true, ..PLAIN }] {
        check(shape);
        let g = attention_of(shape);
        let elems = g.expected(&g.inputs(7))[0].to_f64();
        let zeros = elems.iter().filter(|&&elem| elem == 0.0).count();
        assert!(0 < zeros && zeros < elems.len(), "{zeros} of {}", elems.len());
    }
}

#[test]
fn operands_that_are_computed() {
    check(Shape { rows: 5, keys: 13, dtype: DType::F32, ..PLAIN });
    check(Shape { dtype: DType::BF16, ..PLAIN });
}

#[test]
fn what_does_not_fit_is_refused() {
    for shape in [Shape { keys: 257, ..PLAIN }, Shape { head_dim: 144, ..PLAIN }] {
        let block = attention_of(shape).build().unwrap();
        assert!(designs(&block, &SM_90, OperandPrecision::F16, 1).is_empty(), "{shape:?}");
    }
    let block = attention_of(PLAIN).build().unwrap();
    assert!(designs(&block, &SM_90, OperandPrecision::F32, 1).is_empty());
    assert!(designs(&block, &SM_90, OperandPrecision::F16, 1)[0].schedule.starts_with("attention"));
}
