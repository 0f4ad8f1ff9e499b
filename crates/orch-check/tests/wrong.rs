//! Pairs that differ are never proved. Each of these was accepted by a prover once, or attacks one rule.

mod common;

use common::{decide, is_proved, programs, text};
use orch_check::Verdict;

/// Name, program, candidate, whether floating-point numbers are to show the difference.
const WRONG: [(&str, &str, &str, bool); 41] = [
    (
        "the last of uneven parts is left out",
        "t0 = input \"x\" [5, 11]; t1 = input \"w\" [11, 5]; t2 = matmul t0, t1; output \"o\" t2",
        "t0 = input \"x\" [5, 11]; t1 = input \"w\" [11, 5]; t2 = slice(1, 0, 9) t0; t3 = slice(0, 0, 9) t1; t4 = block [2, 2] loop 4 {; s0 = load t2 [0, -] 1; s1 = load t3 [-, 1] 0; s2 = matmul s0, s1; s3 = accumulate sum s2; store s3 [0, 1]; }; output \"o\" t4",
        true,
    ),
    (
        "the largest of no elements",
        "t0 = input \"x\" [6, 8]; t1 = exp t0; t2 = sum(1) t1; output \"o\" t2",
        "t0 = input \"x\" [6, 8]; t1 = block [3] loop 9 {; s0 = load t0 [0] 1; s1 = exp s0; s2 = largest(1) s1; s3 = accumulate sum s2; store s3 [0]; }; output \"o\" t1",
        false,
    ),
    (
        "transposed product",
        "t0 = input \"x\" [64, 128]; t1 = input \"w\" [128, 64]; t2 = matmul t0, t1; output \"o\" t2",
        "t0 = input \"x\" [64, 128]; t1 = input \"w\" [128, 64]; t2 = matmul t0, t1; t3 = transpose(1, 0) t2; output \"o\" t3",
        true,
    ),
    (
        "transposed exponential",
        "t0 = input \"x\" [64, 64]; t1 = exp t0; output \"o\" t1",
        "t0 = input \"x\" [64, 64]; t1 = exp t0; t2 = transpose(1, 0) t1; output \"o\" t2",
        true,
    ),
    (
        "transposed outer sum",
        "t0 = input \"x\" [64, 1, 8]; t1 = input \"y\" [1, 64, 8]; t2 = add t0, t1; output \"o\" t2",
        "t0 = input \"x\" [64, 1, 8]; t1 = input \"y\" [1, 64, 8]; t2 = add t0, t1; t3 = transpose(1, 0, 2) t2; output \"o\" t3",
        true,
    ),
    (
        "heads and rows exchanged",
        "t0 = input \"q\" [32, 32, 8]; t1 = input \"k\" [32, 8, 16]; t2 = input \"v\" [32, 16, 8]; t3 = matmul t0, t1; t4 = exp t3; t5 = sum(2) t4; t6 = div t4, t5; t7 = matmul t6, t2; output \"o\" t7",
        "t0 = input \"q\" [32, 32, 8]; t1 = input \"k\" [32, 8, 16]; t2 = input \"v\" [32, 16, 8]; t3 = matmul t0, t1; t4 = exp t3; t5 = sum(2) t4; t6 = div t4, t5; t7 = matmul t6, t2; t8 = transpose(1, 0, 2) t7; output \"o\" t8",
        true,
    ),
    (
        "concatenation of a transpose",
        "t0 = input \"x\" [64, 64, 8]; t1 = input \"y\" [64, 64, 8]; t2 = concat(2) t0, t1; output \"o\" t2",
        "t0 = input \"x\" [64, 64, 8]; t1 = input \"y\" [64, 64, 8]; t2 = transpose(1, 0, 2) t1; t3 = concat(2) t0, t2; output \"o\" t3",
        true,
    ),
    (
        "concatenation of a transpose in blocks",
        "t0 = input \"x\" [64, 64, 8]; t1 = input \"y\" [64, 64, 8]; t2 = concat(2) t0, t1; output \"o\" t2",
        "t0 = input \"x\" [64, 64, 8]; t1 = input \"y\" [64, 64, 8]; t2 = block [1] loop 1 {; s0 = load t0 [-] -; s1 = load t1 [-] -; s2 = transpose(1, 0, 2) s1; s3 = concat(2) s0, s2; store s3 [-]; }; output \"o\" t2",
        true,
    ),
    (
        "norm of a multiple, negated",
        "t0 = input \"x\" [6, 64]; t1 = input \"w\" [64, 48]; t2 = scale(13) t0; t3 = rms_norm(0) t2; t4 = matmul t3, t1; output \"o\" t4",
        "t0 = input \"x\" [6, 64]; t1 = input \"w\" [64, 48]; t2 = rms_norm(0) t0; t3 = matmul t2, t1; t4 = scale(-1) t3; output \"o\" t4",
        true,
    ),
    (
        "sum for product",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = mul t0, t1; output \"o\" t2",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = add t0, t1; output \"o\" t2",
        true,
    ),
    (
        "powers",
        "t0 = input \"x\" [4, 6]; t1 = square t0; t2 = square t1; t3 = square t2; t4 = square t3; t5 = square t4; output \"o\" t5",
        "t0 = input \"x\" [4, 6]; t1 = square t0; t2 = square t1; t3 = square t2; t4 = square t3; t5 = mul t4, t0; output \"o\" t5",
        true,
    ),
    (
        "a published prime is added",
        "t0 = input \"x\" [4, 6]; t1 = square t0; t2 = offset(2305843009213690799) t1; output \"o\" t2",
        "t0 = input \"x\" [4, 6]; t1 = square t0; output \"o\" t1",
        true,
    ),
    (
        "a mask is left out",
        "t0 = input \"x\" [64, 64]; t1 = mask \"m\" [64, 64]; t2 = mul t0, t1; output \"o\" t2",
        "t0 = input \"x\" [64, 64]; t1 = mask \"m\" [64, 64]; t2 = scale(0) t1; t3 = add t0, t2; output \"o\" t3",
        true,
    ),
    (
        "a maximum is left out",
        "t0 = input \"x\" [64, 64]; t1 = input \"y\" [64, 64]; t2 = max t0, t1; output \"o\" t2",
        "t0 = input \"x\" [64, 64]; t1 = input \"y\" [64, 64]; t2 = scale(0) t1; t3 = add t0, t2; output \"o\" t3",
        true,
    ),
    (
        "the root of a square",
        "t0 = input \"x\" [64, 64]; t1 = square t0; t2 = sqrt t1; output \"o\" t2",
        "t0 = input \"x\" [64, 64]; t1 = scale(1) t0; output \"o\" t1",
        true,
    ),
    (
        "signs of rows are lost",
        "t0 = input \"x\" [6, 64]; t1 = input \"s\" [6, 1]; t2 = mul t0, t1; t3 = rms_norm(0) t2; output \"o\" t3",
        "t0 = input \"x\" [6, 64]; t1 = input \"s\" [6, 1]; t2 = scale(0) t1; t3 = rms_norm(0) t0; t4 = add t3, t2; output \"o\" t4",
        true,
    ),
    (
        "the norm of one element",
        "t0 = input \"x\" [64, 1]; t1 = rms_norm(0) t0; output \"o\" t1",
        "t0 = input \"x\" [64, 1]; t1 = div t0, t0; output \"o\" t1",
        true,
    ),
    (
        "division by a mask",
        "t0 = input \"x\" [64, 64]; t1 = mask \"m\" [64, 64]; t2 = mul t0, t1; output \"o\" t2",
        "t0 = input \"x\" [64, 64]; t1 = mask \"m\" [64, 64]; t2 = div t0, t1; output \"o\" t2",
        false,
    ),
    (
        "the square of a root",
        "t0 = input \"x\" [4, 6]; t1 = scale(1) t0; output \"o\" t1",
        "t0 = input \"x\" [4, 6]; t1 = sqrt t0; t2 = square t1; output \"o\" t2",
        false,
    ),
    (
        "no error function",
        "t0 = input \"x\" [4, 6]; t1 = erf t0; output \"o\" t1",
        "t0 = input \"x\" [4, 6]; t1 = scale(0) t0; output \"o\" t1",
        true,
    ),
    (
        "half of a number for its gelu",
        "t0 = input \"x\" [4, 6]; t1 = gelu t0; output \"o\" t1",
        "t0 = input \"x\" [4, 6]; t1 = scale(1/2) t0; output \"o\" t1",
        true,
    ),
    (
        "gelu is linear",
        "t0 = input \"x\" [4, 6]; t1 = scale(2) t0; t2 = gelu t1; output \"o\" t2",
        "t0 = input \"x\" [4, 6]; t1 = gelu t0; t2 = scale(2) t1; output \"o\" t2",
        true,
    ),
    (
        "zero times the root of a product",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = scale(1) t1; output \"o\" t2",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = mul t0, t1; t3 = sqrt t2; t4 = scale(0) t3; t5 = add t1, t4; output \"o\" t5",
        false,
    ),
    (
        "zero times a root",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = scale(1) t1; output \"o\" t2",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = sqrt t0; t3 = scale(0) t2; t4 = add t1, t3; output \"o\" t4",
        false,
    ),
    (
        "zero times the root of a divisor",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = div t1, t0; output \"o\" t2",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = sqrt t0; t3 = scale(0) t2; t4 = div t1, t0; t5 = add t4, t3; output \"o\" t5",
        false,
    ),
    (
        "divided by what is always zero",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = scale(0) t0; t3 = add t1, t2; output \"o\" t3",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = square t0; t3 = scale(-1) t2; t4 = offset(-1) t3; t5 = relu t4; t6 = mul t1, t5; t7 = div t6, t5; output \"o\" t7",
        false,
    ),
    (
        "divided by an input and multiplied",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = scale(0) t1; t3 = add t0, t2; output \"o\" t3",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = mul t0, t1; t3 = div t2, t1; output \"o\" t3",
        false,
    ),
    (
        "a square for a sum in an exponent",
        "t0 = input \"x\" [4, 6]; t1 = square t0; t2 = exp t1; output \"o\" t2",
        "t0 = input \"x\" [4, 6]; t1 = exp t0; t2 = square t1; output \"o\" t2",
        true,
    ),
    (
        "the exponential of another element",
        "t0 = input \"x\" [4, 6]; t1 = exp t0; output \"o\" t1",
        "t0 = input \"x\" [4, 6]; t1 = slice(0, 1, 3) t0; t2 = slice(0, 0, 1) t0; t3 = concat(0) t1, t2; t4 = exp t3; output \"o\" t4",
        true,
    ),
    (
        "or for and",
        "t0 = mask \"a\" [64, 64]; t1 = mask \"b\" [64, 64]; t2 = mul t0, t1; output \"o\" t2",
        "t0 = mask \"a\" [64, 64]; t1 = mask \"b\" [64, 64]; t2 = max t0, t1; output \"o\" t2",
        true,
    ),
    (
        "the maximum of two is one of them",
        "t0 = mask \"a\" [64, 64]; t1 = mask \"b\" [64, 64]; t2 = max t0, t1; output \"o\" t2",
        "t0 = mask \"a\" [64, 64]; t1 = mask \"b\" [64, 64]; t2 = scale(0) t0; t3 = add t1, t2; output \"o\" t3",
        true,
    ),
    (
        "columns of one input are rows of it",
        "t0 = input \"x\" [8, 8]; t1 = add t0, t0; output \"o\" t1",
        "t0 = input \"x\" [8, 8]; t1 = transpose(1, 0) t0; t2 = add t0, t1; output \"o\" t2",
        true,
    ),
    (
        "the wrong row of a causal mask",
        "t0 = input \"x\" [6, 6]; t1 = causal(0, 6, 6); t2 = mask t0, t1; t3 = exp t2; output \"o\" t3",
        "t0 = input \"x\" [6, 6]; t1 = causal(1, 6, 6); t2 = mask t0, t1; t3 = exp t2; output \"o\" t3",
        true,
    ),
    (
        "blocks store transposed",
        "t0 = input \"x\" [8, 8]; t1 = exp t0; output \"o\" t1",
        "t0 = input \"x\" [8, 8]; t1 = block [8] loop 1 {; s0 = load t0 [0] -; s1 = exp s0; s2 = transpose(1, 0) s1; store s2 [1]; }; output \"o\" t1",
        true,
    ),
    (
        "a row of blocks is one block's",
        "t0 = input \"x\" [8, 6]; t1 = input \"y\" [8, 6]; t2 = add t0, t1; output \"o\" t2",
        "t0 = input \"x\" [8, 6]; t1 = input \"y\" [8, 6]; t2 = block [8] loop 1 {; s0 = load t0 [0] -; s1 = load t1 [-] -; s2 = slice(0, 0, 1) s1; s3 = add s0, s2; store s3 [0]; }; output \"o\" t2",
        true,
    ),
    (
        "three of eight iterations",
        "t0 = input \"x\" [6, 64]; t1 = input \"w\" [64, 6]; t2 = matmul t0, t1; output \"o\" t2",
        "t0 = input \"x\" [6, 64]; t1 = input \"w\" [64, 6]; t2 = slice(1, 0, 24) t0; t3 = slice(0, 0, 24) t1; t4 = block [2] loop 3 {; s0 = load t2 [0] 1; s1 = load t3 [-] 0; s2 = matmul s0, s1; s3 = accumulate sum s2; store s3 [0]; }; output \"o\" t4",
        true,
    ),
    (
        "a maximum is subtracted once only",
        "t0 = input \"x\" [6, 8]; t1 = exp t0; t2 = sum(1) t1; t3 = div t1, t2; output \"o\" t3",
        "t0 = input \"x\" [6, 8]; t1 = largest(1) t0; t2 = sub t0, t1; t3 = exp t2; t4 = exp t0; t5 = sum(1) t4; t6 = div t3, t5; output \"o\" t6",
        true,
    ),
    (
        "of a masked maximum nothing is left",
        "t0 = input \"x\" [6, 8]; t1 = mask \"m\" [6, 8]; t2 = mask t0, t1; t3 = largest(1) t2; t4 = exp t3; output \"o\" t4",
        "t0 = input \"x\" [6, 8]; t1 = mask \"m\" [6, 8]; t2 = mask t0, t1; t3 = largest(1) t2; t4 = guard t3; t5 = exp t4; output \"o\" t5",
        false,
    ),
    (
        "a quotient of sums under another mask",
        "t0 = input \"x\" [6, 8]; t1 = mask \"m\" [6, 8]; t2 = mask \"n\" [6, 8]; t3 = exp t0; t4 = mul t3, t1; t5 = sum(1) t4; t6 = mul t0, t5; t7 = div t6, t5; output \"o\" t7",
        "t0 = input \"x\" [6, 8]; t1 = mask \"m\" [6, 8]; t2 = mask \"n\" [6, 8]; t3 = exp t0; t4 = mul t3, t2; t5 = sum(1) t4; t6 = mul t0, t5; t7 = div t6, t5; output \"o\" t7",
        false,
    ),
    (
        "a quotient of what is as large as a sum where exponentials are one",
        "t0 = input \"x\" [6, 8]; t1 = input \"y\" [6, 1]; t2 = input \"z\" [6, 1]; t3 = exp t0; t4 = sum(1) t3; t5 = mul t0, t4; t6 = div t5, t4; output \"o\" t6",
        "t0 = input \"x\" [6, 8]; t1 = input \"y\" [6, 1]; t2 = input \"z\" [6, 1]; t3 = exp t0; t4 = sum(1) t3; t5 = exp t1; t6 = exp t2; t7 = sub t5, t6; t8 = add t4, t7; t9 = mul t0, t8; t10 = div t9, t8; output \"o\" t10",
        false,
    ),
    (
        "outputs are exchanged",
        "t0 = input \"x\" [6, 8]; t1 = exp t0; t2 = square t0; output \"a\" t1; output \"b\" t2",
        "t0 = input \"x\" [6, 8]; t1 = square t0; t2 = exp t0; output \"a\" t1; output \"b\" t2",
        true,
    ),
];

#[test]
fn wrong_candidates_are_not_proved() {
    for (name, program, candidate, is_refuted) in WRONG {
        for seed in 0..20 {
            let verdict = decide(&text(program), &text(candidate), seed);
            assert!(!is_proved(&verdict), "{name}, seed {seed}: {verdict:?}");
            if is_refuted {
                assert!(matches!(verdict, Verdict::Refuted(_)), "{name}, seed {seed}: {verdict:?}");
            }
        }
    }
}

/// The first six elements of the first two rows are those of both masks.
#[test]
fn masks_of_large_programs_are_not_alike() {
    let masked = |offset: usize| {
        text(&format!(
            "t0 = input \"x\" [800, 800]; t1 = causal({offset}, 800, 800); t2 = mul t0, t1; output \"o\" t2"
        ))
    };
    let verdict = decide(&masked(5), &masked(6), 1);
    assert!(matches!(verdict, Verdict::Refuted(_)), "{verdict:?}");
    assert!(is_proved(&decide(&masked(5), &masked(5), 1)));
}

/// One is added to element [1, 2].
#[test]
fn a_witness_says_where_programs_differ() {
    let program = text("t0 = input \"x\" [2, 3]; t1 = scale(1) t0; output \"o\" t1");
    let candidate = text(
        "t0 = input \"x\" [2, 3]; t1 = below(0, 1, 2, 3); t2 = below(1, 2, 2, 3); t3 = scale(-1) t1; t4 = offset(1) t3; \
         t5 = scale(-1) t2; t6 = offset(1) t5; t7 = mul t4, t6; t8 = add t0, t7; output \"o\" t8",
    );
    let Verdict::Refuted(witness) = decide(&program, &candidate, 1) else { panic!("not refuted") };
    assert_eq!((witness.output.as_str(), &witness.element, &witness.shape), ("o", &vec![1, 2], &vec![2, 3]));
    assert!((witness.given - witness.expected - 1.0).abs() < 1e-12, "{witness:?}");
}

/// The numerator is rescaled by the maxima of columns, the denominator by those of rows.
#[test]
fn a_sum_is_rescaled_by_the_maxima_of_its_own_rows() {
    let program = text(
        "t0 = input \"q\" [2, 16, 16]; t1 = input \"k\" [2, 16, 256]; t2 = input \"v\" [2, 256, 16]; t3 = matmul t0, t1; t4 = exp t3; t5 = sum(2) t4; t6 = div t4, t5; t7 = matmul t6, t2; output \"o\" t7",
    );
    let candidate = |max: &str| {
        text(&format!(
            "t0 = input \"q\" [2, 16, 16]; t1 = input \"k\" [2, 16, 256]; t2 = input \"v\" [2, 256, 16]; \
        t3 = block [2] loop 4 {{; s0 = load t0 [0] -; s1 = load t1 [0] 2; s2 = load t2 [0] 1; s3 = matmul s0, s1; s4 = largest(2) s3; \
        s5 = transpose(0, 2, 1) s4; s6 = running_max s5; s7 = running_max s4; s8 = guard s7; s9 = sub s3, s8; s10 = exp s9; s11 = sum(2) s10; \
        s12 = accumulate rescaled s7 1 s11; s13 = matmul s10, s2; s14 = accumulate rescaled {max} 1 s13; s15 = div s14, s12; store s15 [0]; }}; output \"o\" t3"
        ))
    };
    assert!(is_proved(&decide(&program, &candidate("s7"), 1)));
    let verdict = decide(&program, &candidate("s6"), 1);
    assert!(matches!(verdict, Verdict::Refuted(_)), "{verdict:?}");
}

/// The first graph of a published set. Its rows are not alike, so that it is too large to be refuted.
#[test]
fn the_published_wrong_attention_is_not_proved() {
    let wrong = include_str!("../../orch-mugraph/tests/mugraphs/qknorm_wrong.txt");
    let right = include_str!("found/qknorm_b1_gpu.txt");
    let verdict = orch_check::check(&programs(right)[0], &programs(wrong)[0], 1, common::PLENTY);
    assert!(!is_proved(&verdict), "{verdict:?}");
}

/// Long programs with a mask that is a formula are decided for all masks; what holds for none of them is not proved.
#[test]
fn wrong_causal_attention_of_any_length_is_not_proved() {
    let found = include_str!("found/gqa_causal_b8_gpu.txt");
    for (right, wrong) in [
        ("t2 = causal(0, 1, 1, 1024, 1024)", "t2 = causal(1, 1, 1, 1024, 1024)"),
        ("s15 = accumulate rescaled s8 1 s13", "s15 = accumulate sum s13"),
        ("s6 = mask s5, s2", "s6 = add s5, s2"),
    ] {
        let (last, first) = (found.rfind(right).expect(right), found.find("mugraph").expect("a program"));
        let text = format!("{}{wrong}{}", &found[first..last], &found[last + right.len()..]);
        let both = programs(&text);
        let verdict = orch_check::check(&both[0], &both[1], 1, common::PLENTY);
        assert!(!is_proved(&verdict), "{wrong}: {verdict:?}");
    }
}
