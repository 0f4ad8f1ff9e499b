//! Elementwise operators and activations where ONNX's own cases do not look: mixed types, extremes, old versions.

mod common;

use common::{assert_close, f32s, i64s, operator};
use orch_ir::{DType, Tensor};

const INF: f32 = f32::INFINITY;

#[test]
fn operands_broadcast_both_ways() {
    let sum = operator("Add").input(f32s(&[2, 1], &[1.0, 2.0])).input(f32s(&[3], &[10.0, 20.0, 30.0]));
    assert_eq!(sum.values(), [11.0, 21.0, 31.0, 12.0, 22.0, 32.0]);
}

#[test]
fn the_smooth_gates_survive_extremes() {
    let extremes = || f32s(&[5], &[-INF, -1e4, 0.0, 1e4, INF]);
    assert_eq!(operator("Sigmoid").input(extremes()).values(), [0.0, 0.0, 0.5, 1.0, 1.0]);
    let softplus = operator("Softplus").input(extremes()).values();
    assert_close(&softplus, &[0.0, 0.0, std::f64::consts::LN_2, 1e4, f64::INFINITY]);
    assert_eq!(operator("Elu").input(extremes()).values(), [-1.0, -1.0, 0.0, 1e4, f64::INFINITY]);
    assert_close(&operator("Mish").input(f32s(&[2], &[-1e4, 1e4])).values(), &[0.0, 1e4]);
}

#[test]
fn small_numbers_keep_their_digits() {
    let x = 1e-6f32;
    assert_close(&operator("Elu").input(f32s(&[1], &[-x])).values(), &[-1e-6]);
    let elu = operator("Elu").input(f32s(&[1], &[-x])).values()[0];
    assert!((elu / -f64::from(x) - 1.0).abs() < 1e-5, "{elu} has lost its digits");
}

#[test]
fn softmax_rows_depend_on_the_version() {
    let x = || f32s(&[2, 2, 2], &[0.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0]);
    let row_sums = |values: Vec<f64>, row: usize| -> Vec<f64> {
        values.chunks(row).map(|row| row.iter().sum()).collect()
    };
    let flattened = operator("Softmax").opset(12).input(x()).values();
    assert_close(&row_sums(flattened, 4), &[1.0, 1.0]);
    let last_axis = operator("Softmax").opset(13).input(x()).values();
    assert_close(&row_sums(last_axis, 2), &[1.0; 4]);
    let scalar = operator("Softmax").input(f32s(&[], &[7.0])).values();
    assert_eq!(scalar, [1.0]);
}

#[test]
fn softmax_does_not_overflow() {
    let y = operator("Softmax").input(f32s(&[3], &[1e4, 1e4, -INF])).values();
    assert_close(&y, &[0.5, 0.5, 0.0]);
    let log = operator("LogSoftmax").input(f32s(&[2], &[1e4, 0.0])).values();
    assert_close(&log, &[0.0, -1e4]);
}

#[test]
fn softmax_is_max_subtract_exp_sum_divide() {
    let primitives = operator("Softmax").input(common::numbers(&[2, 3])).primitives();
    let expected = ["reduce.max", "broadcast", "sub", "exp", "reduce.sum", "broadcast", "div"];
    assert_eq!(primitives, expected);
}

#[test]
fn narrow_floats_round_once() {
    let x = Tensor::from_f64(DType::F16, [3], &[-1.0, 0.3, 2.0]);
    let y = operator("Swish").opset(24).input(x.clone()).run().remove(0);
    assert_eq!(y.dtype(), DType::F16);
    let exact: Vec<f64> = x.to_f64().iter().map(|&x| x / (1.0 + (-x).exp())).collect();
    assert_eq!(y, Tensor::from_f64(DType::F16, [3], &exact));
}

#[test]
fn pow_computes_in_the_type_of_the_base() {
    let integers = || i64s(&[3], &[2, 3, -4]);
    let fractional = operator("Pow").input(integers()).input(f32s(&[], &[1.5]));
    let y = fractional.run().remove(0);
    assert_eq!((y.dtype(), y.to_i64().map(|y| y[..2].to_vec())), (DType::I64, Some(vec![2, 5])));
    let square = operator("Pow").input(integers()).constant(f32s(&[], &[2.0]));
    assert_eq!(square.values(), [4.0, 9.0, 16.0]);
    assert_eq!(square.primitives(), ["mul"]);
    let widened = operator("Pow").input(f32s(&[2], &[4.0, 9.0])).constant(f32s(&[2, 1], &[0.5, 0.5]));
    assert_eq!(widened.values(), [2.0, 3.0, 2.0, 3.0]);
}

#[test]
fn clip_prefers_the_upper_bound_and_keeps_nan() {
    let clip = |low, high| {
        let x = f32s(&[3], &[-5.0, 5.0, f32::NAN]);
        operator("Clip").input(x).input(f32s(&[], &[low])).input(f32s(&[], &[high])).values()
    };
    assert_close(&clip(1.0, -1.0), &[-1.0, -1.0, f64::NAN]);
    let old = operator("Clip").opset(6).float("max", 1.0).input(f32s(&[2], &[-9.0, 9.0]));
    assert_eq!(old.values(), [-9.0, 1.0]);
}

#[test]
fn hardmax_takes_the_first_maximum() {
    let y = operator("Hardmax").input(f32s(&[2, 3], &[1.0, 2.0, 2.0, 0.0, 0.0, 0.0]));
    assert_eq!(y.values(), [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
    let flattened = operator("Hardmax").opset(11).input(f32s(&[1, 2, 2], &[1.0, 2.0, 3.0, 0.0]));
    assert_eq!(flattened.values(), [0.0, 0.0, 1.0, 0.0]);
    let empty = operator("Hardmax").input(f32s(&[0, 3], &[])).run().remove(0);
    assert_eq!(empty.shape()[..], [0, 3]);
}

#[test]
fn shifts_beyond_the_width_leave_the_sign() {
    let shift = |direction, x: i8, by: i8| {
        let operator = operator("BitShift").text("direction", direction);
        operator.input(Tensor::from_vec([1], vec![x])).input(Tensor::from_vec([1], vec![by])).values()[0]
    };
    assert_eq!(shift("RIGHT", -100, 8), -1.0);
    assert_eq!(shift("RIGHT", -100, -1), -1.0);
    assert_eq!(shift("LEFT", 3, 8), 0.0);
    assert_eq!(shift("LEFT", 3, -7), 0.0);
    assert_eq!(shift("LEFT", 3, 7), -128.0);
}

#[test]
fn a_cast_to_a_type_we_lack_is_refused() {
    let error = operator("Cast").int("to", 8).input(f32s(&[1], &[1.0])).error();
    assert_eq!(error, "node (Cast): not supported: strings");
}
