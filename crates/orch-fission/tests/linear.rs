//! Products and convolutions against their definitions.

mod common;

use common::{assert_close, f32s, numbers, operator};
use orch_ir::Tensor;
use proptest::prelude::*;

/// An einsum by its definition: for every assignment of all labels, the product of the operands, summed.
fn einsum_by_definition(
    terms: &[Vec<usize>],
    out: &[usize],
    extents: &[usize],
    operands: &[Tensor],
) -> Vec<f64> {
    let at = |labels: &[usize], assignment: &[usize]| {
        labels.iter().fold(0, |index, &label| index * extents[label] + assignment[label])
    };
    let values: Vec<Vec<f64>> = operands.iter().map(Tensor::to_f64).collect();
    let mut result = vec![0.0; out.iter().map(|&label| extents[label]).product()];
    let used: Vec<usize> =
        (0..extents.len()).filter(|label| terms.iter().any(|term| term.contains(label))).collect();
    let mut assignment = vec![0; extents.len()];
    loop {
        let product: f64 =
            terms.iter().zip(&values).map(|(term, values)| values[at(term, &assignment)]).product();
        result[at(out, &assignment)] += product;
        let Some(&step) = used.iter().rev().find(|&&label| assignment[label] + 1 < extents[label]) else {
            return result;
        };
        assignment[step] += 1;
        used.iter().filter(|&&label| label > step).for_each(|&label| assignment[label] = 0);
    }
}

proptest! {
    #[test]
    fn einsum_is_its_definition(
        terms in prop::collection::vec(prop::collection::vec(0usize..4, 0..4), 1..4),
        extents in prop::collection::vec(1usize..4, 4),
        picks in prop::collection::vec(0usize..4, 0..4),
    ) {
        let mut out: Vec<usize> = Vec::new();
        for label in picks {
            if !out.contains(&label) && terms.iter().any(|term| term.contains(&label)) {
                out.push(label);
            }
        }
        let letters = |labels: &[usize]| labels.iter().map(|&label| b"ijkl"[label] as char).collect::<String>();
        let left: Vec<String> = terms.iter().map(|term| letters(term)).collect();
        let operands: Vec<Tensor> = terms
            .iter()
            .map(|term| numbers(&term.iter().map(|&label| extents[label]).collect::<Vec<_>>()))
            .collect();
        let mut einsum = operator("Einsum").text("equation", &format!("{}->{}", left.join(","), letters(&out)));
        for operand in &operands {
            einsum = einsum.input(operand.clone());
        }
        assert_close(&einsum.values(), &einsum_by_definition(&terms, &out, &extents, &operands));
    }
}

#[test]
fn an_extent_of_one_broadcasts_in_einsum() {
    let y = operator("Einsum").text("equation", "...i,...i->...");
    let y = y.input(f32s(&[1, 2], &[1.0, 2.0])).input(f32s(&[3, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]));
    assert_eq!(y.values(), [1.0, 2.0, 3.0]);
}

#[test]
fn a_diagonal_of_infinities_stays_clean() {
    let inf = f32::INFINITY;
    let y = operator("Einsum").text("equation", "ii->i").input(f32s(&[2, 2], &[1.0, inf, inf, 2.0]));
    assert_eq!(y.values(), [1.0, 2.0]);
}

#[test]
fn matmul_copies_nothing() {
    for (lhs, rhs) in [(&[2, 3, 4][..], &[4, 5][..]), (&[1, 3, 4], &[7, 4, 5]), (&[2, 1, 3, 4], &[5, 4, 2])] {
        let primitives = operator("MatMul").input(numbers(lhs)).input(numbers(rhs)).primitives();
        let moves = |name: &String| name == "broadcast" || name == "transpose";
        assert!(!primitives.iter().any(moves), "{lhs:?} x {rhs:?}: {primitives:?}");
    }
}

#[test]
fn matmul_broadcasts_leading_dimensions() {
    let (a, b) = (numbers(&[2, 1, 3, 2]), numbers(&[5, 2, 2]));
    let y = operator("MatMul").input(a.clone()).input(b.clone()).run().remove(0);
    assert_eq!(y.shape()[..], [2, 5, 3, 2]);
    let (a, b, y) = (a.to_f64(), b.to_f64(), y.to_f64());
    let mut want = Vec::new();
    for (outer, inner, row, column) in itertools(2, 5, 3, 2) {
        want.push((0..2).map(|k| a[(outer * 3 + row) * 2 + k] * b[(inner * 2 + k) * 2 + column]).sum());
    }
    assert_close(&y, &want);
}

/// All index tuples of four nested loops.
fn itertools(a: usize, b: usize, c: usize, d: usize) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    (0..a * b * c * d).map(move |at| (at / (b * c * d), at / (c * d) % b, at / d % c, at % d))
}

#[test]
fn vectors_are_rows_on_the_left_and_columns_on_the_right() {
    let vector = || f32s(&[2], &[1.0, 2.0]);
    let matrix = || f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(operator("MatMul").input(vector()).input(matrix()).values(), [7.0, 10.0]);
    assert_eq!(operator("MatMul").input(matrix()).input(vector()).values(), [5.0, 11.0]);
    assert_eq!(operator("MatMul").input(vector()).input(vector()).values(), [5.0]);
    assert!(operator("MatMul").input(vector()).input(f32s(&[], &[1.0])).error().contains("scalars"));
}

#[test]
fn gemm_reads_transposed_operands_in_place() {
    let gemm = operator("Gemm").int("transA", 1).int("transB", 1).float("beta", 0.5);
    let gemm = gemm.input(numbers(&[2, 3])).input(numbers(&[4, 2])).input(f32s(&[3, 1], &[2.0, 4.0, 6.0]));
    let (a, b) = (numbers(&[2, 3]).to_f64(), numbers(&[4, 2]).to_f64());
    let want: Vec<f64> = (0..12)
        .map(|at| {
            let (row, column) = (at / 4, at % 4);
            (0..2).map(|k| a[k * 3 + row] * b[column * 2 + k]).sum::<f64>() + (row + 1) as f64
        })
        .collect();
    assert_close(&gemm.values(), &want);
    assert!(!gemm.primitives().contains(&"transpose".to_owned()));
}

#[test]
fn the_padding_of_a_convolution_may_be_left_to_us() {
    let conv = |auto_pad: &str| {
        let x = f32s(&[1, 1, 4], &[1.0, 2.0, 3.0, 4.0]);
        let w = f32s(&[1, 1, 2], &[1.0, 10.0]);
        operator("Conv").text("auto_pad", auto_pad).input(x).input(w).values()
    };
    assert_eq!(conv("VALID"), [21.0, 32.0, 43.0]);
    assert_eq!(conv("SAME_UPPER"), [21.0, 32.0, 43.0, 4.0]);
    assert_eq!(conv("SAME_LOWER"), [10.0, 21.0, 32.0, 43.0]);
}

#[test]
fn a_transposed_convolution_reaches_the_shape_asked_for() {
    let wanted = |extent: i64, auto_pad: &str| {
        let conv = operator("ConvTranspose").ints("output_shape", &[extent]).ints("strides", &[2]);
        let conv = conv.text("auto_pad", auto_pad).input(f32s(&[1, 1, 2], &[1.0, 2.0]));
        conv.input(f32s(&[1, 1, 3], &[1.0, 1.0, 1.0])).values()
    };
    // Unpadded, the result is 1 1 3 2 2.
    assert_eq!(wanted(5, "NOTSET"), [1.0, 1.0, 3.0, 2.0, 2.0]);
    assert_eq!(wanted(4, "NOTSET"), [1.0, 3.0, 2.0, 2.0]);
    assert_eq!(wanted(4, "SAME_UPPER"), [1.0, 1.0, 3.0, 2.0]);
    assert_eq!(wanted(6, "NOTSET"), [1.0, 1.0, 3.0, 2.0, 2.0, 0.0]);
}

#[test]
fn absurd_windows_are_errors() {
    let conv = |name: &str, value: i64| {
        let conv = operator("Conv").ints(name, &[value]).input(numbers(&[1, 1, 4]));
        conv.input(numbers(&[1, 1, 2])).error()
    };
    assert!(conv("strides", 0).contains("stride"));
    assert!(conv("strides", -1).contains("strides = [-1]"));
    assert!(conv("dilations", i64::MAX).contains("dilations"));
    assert!(conv("dilations", 4).contains("does not fit"));
    assert!(
        operator("Conv")
            .int("group", 0)
            .input(numbers(&[1, 1, 4]))
            .input(numbers(&[1, 1, 2]))
            .error()
            .contains("0 groups")
    );
}
