//! Texts that are made to harm.

mod common;

use common::{PLENTY, decide, is_proved, text};
use orch_check::{Verdict, check, parse};
use std::time::Instant;

#[test]
fn what_is_no_program_is_refused_with_its_line() {
    let huge = usize::MAX / 2;
    for (statements, problem) in [
        ("t0 = input \"x\" [2]; t2 = exp t0; output \"o\" t2", "defines t2, expected t1"),
        ("t0 = exp t0; output \"o\" t0", "t0 is not defined before"),
        ("t0 = input \"x\" [2]; t1 = sum(1) t0; output \"o\" t1", "does not suit"),
        ("t0 = input \"x\" [2]; t1 = sum(0, 0) t0; output \"o\" t1", "does not suit"),
        ("t0 = input \"x\" [2]; t1 = frob t0; output \"o\" t1", "no operator frob"),
        ("t0 = input \"x\" [2]", "no output"),
        ("t0 = input \"x\" [99999999999999999999]; output \"o\" t0", "expected a number"),
        ("t0 = input \"x\" [2]; t1 = scale(1/0) t0; output \"o\" t1", "no number 1/0"),
        (
            "t0 = input \"x\" [1]; t1 = repeat(0, 99999999999) t0; t2 = repeat(0, 99999999999) t1; output \"o\" t2",
            "does not suit",
        ),
        ("t0 = input \"x\" [2]; t1 = input \"x\" [2]; output \"o\" t1", "a second input x"),
        ("t0 = input \"x\" [2]; output \"o\" t0; output \"o\" t0", "a second output o"),
        (
            "t0 = input \"x\" [2]; t1 = block [0] loop 1 {; s0 = load t0 [0] -; store s0 [0]; }; output \"o\" t1",
            "a grid of [0]",
        ),
        (
            "t0 = input \"x\" [2]; t1 = block [2097152] loop 1 {; s0 = load t0 [0] -; store s0 [0]; }; output \"o\" t1",
            "a grid of",
        ),
        (
            "t0 = input \"x\" [2]; t1 = block [2] loop 0 {; s0 = load t0 [0] -; store s0 [0]; }; output \"o\" t1",
            "a grid of",
        ),
        (
            "t0 = input \"x\" [2]; t1 = block [2] loop 1 {; s0 = load t0 [0] -; s1 = exp s2; store s0 [0]; }; output \"o\" t1",
            "s2 is not defined before",
        ),
        (
            "t0 = input \"x\" [2]; t1 = block [2] loop 2 {; s0 = load t0 [-] 0; store s0 [0]; }; output \"o\" t1",
            "is stored by",
        ),
        (
            "t0 = input \"x\" [2]; t1 = block [2] loop 1 {; s0 = load t0 [0] -; store s0 [-]; }; output \"o\" t1",
            "is stored by",
        ),
        (
            "t0 = input \"x\" [2, 2]; t1 = block [2, 2] loop 1 {; s0 = load t0 [0, 0] -; store s0 [0, 1]; }; output \"o\" t1",
            "may not stand in a block",
        ),
        (
            "t0 = input \"x\" [2]; t1 = block [2] loop 1 {; s0 = load t0 [1] -; store s0 [0]; }; output \"o\" t1",
            "may not stand in a block",
        ),
        (
            "t0 = input \"x\" [2]; t1 = block [2] loop 2 {; s0 = load t0 [-] 0; s1 = accumulate sum s0; s2 = add s0, s1; store s2 [0]; }; output \"o\" t1",
            "mixes values",
        ),
        // A part of 2 and a part of 1 have no common place for what comes behind them.
        (
            "t0 = input \"x\" [3]; t1 = block [2] loop 1 {; s0 = load t0 [0] -; s1 = concat(0) s0, s0; store s1 [0]; }; output \"o\" t1",
            "does not suit",
        ),
        (
            "t0 = input \"x\" [3, 2]; t1 = block [1] loop 2 {; s0 = load t0 [-] 0; s1 = accumulate sum s0; store s1 [-]; }; output \"o\" t1",
            "does not suit",
        ),
        (
            "t0 = input \"x\" [3]; t1 = input \"y\" [2]; t2 = block [2, 2] loop 1 {; s0 = load t0 [0, -] -; s1 = load t1 [-, -] -; s2 = add s0, s1; store s2 [0, -]; }; output \"o\" t2",
            "does not suit",
        ),
        (
            "t0 = input \"x\" [3]; t1 = block [1] loop 2 {; s0 = load t0 [-] 0; s1 = running_max s0; s2 = accumulate max s1; s3 = largest(0) s2; store s3 [-]; }; output \"o\" t1",
            "does not suit",
        ),
        (
            "t0 = input \"x\" [2, 1]; t1 = input \"y\" [5, 3]; t2 = matmul t0, t1; output \"o\" t2",
            "does not suit",
        ),
        (
            "t0 = input \"x\" [2, 1, 2]; t1 = input \"y\" [2, 3]; t2 = matmul t0, t1; output \"o\" t2",
            "does not suit",
        ),
        ("t0 = input \"x\" [2, 1]; t1 = broadcast(4, 1) t0; output \"o\" t1", "does not suit"),
        ("t0 = input \"x\" [2, 1]; t1 = broadcast(4, 3) t0; output \"o\" t1", "does not suit"),
        ("t0 = input \"x\" [0]; output \"o\" t0", "does not suit"),
        // Of so many elements two would have one place modulo 2^64: the first, and the one at [1099511562240, 65536].
        (
            "t0 = input \"x\" [1099511627777, 16777217]; t1 = slice(0, 0, 1) t0; output \"o\" t1",
            "does not suit",
        ),
        (
            "t0 = mask \"m\" [1]; t1 = input \"x\" [1]; t2 = broadcast(2) t0; t3 = mask t1, t2; output \"o\" t3",
            "larger",
        ),
        ("t0 = input \"x [2]; output \"o\" t0", "not closed"),
        ("t0 = input \"x\" [2]; t1 = mean; output \"o\" t1", "no operator mean"),
        ("t0 = input \"x\" [2]; t1 = log t0; output \"o\" t1", "no operator log"),
    ] {
        let error = parse(&text(statements)).unwrap_err();
        assert!(error.contains(problem) && error.starts_with("line "), "{statements}: {error}");
    }
    let long = text(&format!(
        "t0 = input \"x\" [{huge}]; t1 = block [7] loop 1 {{; s0 = load t0 [0] -; s1 = repeat(0, 3) s0; store s1 [0]; }}; output \"o\" t1"
    ));
    assert!(parse(&long).unwrap_err().contains("does not suit"));
    let whole = text(
        "t0 = input \"x\" [2, 3]; t1 = block [2] loop 1 {; s0 = load t0 [0] -; store s0 [0]; }; output \"o\" t1",
    );
    for end in 1..whole.len() - 2 {
        assert!(parse(&whole[..end]).is_err(), "{}", &whole[..end]);
    }
    assert!(parse(&"#".repeat(2 << 20)).is_err());
}

/// Work and memory are counted before anything is done.
#[test]
fn what_is_too_large_is_not_tried() {
    for statements in [
        "t0 = input \"x\" [300000, 300000]; t1 = matmul t0, t0; output \"o\" t1",
        "t0 = input \"x\" [3000000, 3000000]; t1 = transpose(1, 0) t0; t2 = add t0, t1; output \"o\" t2",
        "t0 = input \"x\" [1]; t1 = repeat(0, 4000000000) t0; t2 = repeat(0, 4000000000) t1; output \"o\" t2",
        "t0 = input \"x\" [4000000000]; t1 = reshape(4000000000, 1) t0; t2 = reshape(1, 4000000000) t0; t3 = add t1, t2; output \"o\" t3",
        // Nothing is computed, but all elements are compared.
        "t0 = input \"x\" [3000000, 3000000]; t1 = slice(0, 0, 2999999) t0; t2 = slice(1, 0, 2999999) t1; output \"o\" t2",
        "t0 = input \"x\" [60000, 100000]; t1 = block [1] loop 60000 {; s0 = load t0 [-] 0; s1 = accumulate sum s0; store s1 [-]; }; t2 = sum(1) t1; output \"o\" t2",
    ] {
        let start = Instant::now();
        let verdict = decide(&text(statements), &text(statements), 1);
        assert!(
            matches!(&verdict, Verdict::CannotSay(reason) if reason.contains("at most")),
            "{statements}: {verdict:?}"
        );
        assert!(start.elapsed().as_secs() < 60);
    }
}

/// Sums of itself, whose terms double with each line; products of itself, whose degree does.
#[test]
fn nests_are_not_unfolded() {
    for (op, last) in [("add", "exp"), ("mul", "scale(1)"), ("div", "exp"), ("mul", "sqrt"), ("max", "exp")] {
        let lines: String = (1..1500).map(|at| format!("t{at} = {op} t{}, t{};", at - 1, at - 1)).collect();
        let nest = text(&format!("t0 = input \"x\" [2]; {lines} t1500 = {last} t1499; output \"o\" t1500"));
        let verdict = decide(&nest, &nest, 1);
        // A sum is one value; the maximum of a value and itself is that value; a degree of 2^1500 is too large.
        assert_eq!(is_proved(&verdict), op == "add" || op == "max", "{op}: {verdict:?}");
    }
}

/// Inputs and outputs are found by name.
#[test]
fn many_inputs_and_outputs_are_read_at_once() {
    let lines = |line: fn(usize) -> String| (0..15_000).map(line).collect::<String>();
    let inputs = lines(|at| format!("t{at} = input \"{at}\" [2];"));
    let outputs = lines(|at| format!("output \"{at}\" t{at};"));
    let many = text(&format!("{inputs}{}", outputs.trim_end_matches(';')));
    assert!(is_proved(&decide(&many, &many, 1)));
}

/// `x / 2^186 + y / 3^117`: a polynomial in powers of exponentials has a degree that no number here holds.
#[test]
fn exponents_have_a_common_denominator() {
    let tiny = |from: usize, part: u64, to: usize| {
        let line = |at: usize| format!("t{} = scale(1/{part}) t{at};", at + 1);
        (from..to).map(line).collect::<String>()
    };
    let (x, y) = (tiny(1, 1 << 62, 4), tiny(5, 3_u64.pow(39), 8));
    let squared = |square: &str| {
        text(&format!(
            "t0 = input \"y\" [2]; t1 = input \"x\" [2]; {x} t5 = scale(1) t0; {y} {square}; \
             t11 = exp t8; t12 = mul t10, t11; output \"o\" t12"
        ))
    };
    let verdict =
        decide(&squared("t9 = exp t4; t10 = square t9"), &squared("t9 = scale(2) t4; t10 = exp t9"), 1);
    assert!(matches!(&verdict, Verdict::CannotSay(reason) if reason.contains("not reached")), "{verdict:?}");
}

#[test]
fn other_inputs_and_outputs_are_told() {
    let program = text("t0 = input \"x\" [2, 3]; t1 = exp t0; output \"o\" t1");
    for (candidate, problem) in [
        ("t0 = input \"y\" [2, 3]; t1 = exp t0; output \"o\" t1", "other inputs"),
        ("t0 = input \"x\" [3, 2]; t1 = exp t0; output \"o\" t1", "other inputs"),
        ("t0 = mask \"x\" [2, 3]; t1 = exp t0; output \"o\" t1", "other inputs"),
        ("t0 = input \"x\" [2, 3]; t1 = exp t0; output \"p\" t1", "no output o"),
        ("t0 = input \"x\" [2, 3]; t1 = transpose(1, 0) t0; output \"o\" t1", "no output o"),
        ("t0 = input \"x\" [2, 3]; t1 = exp t0; output \"o\" t1; output \"p\" t0", "further outputs"),
    ] {
        let verdict = decide(&program, &text(candidate), 1);
        assert!(
            matches!(&verdict, Verdict::CannotSay(reason) if reason.contains(problem)),
            "{candidate}: {verdict:?}"
        );
    }
}

/// A maximum of many numbers, as many times: the set is held once.
#[test]
fn sets_of_maxima_do_not_multiply() {
    let nest = text(
        "t0 = input \"x\" [200000]; t1 = largest(0) t0; t2 = repeat(0, 200000) t1; t3 = largest(0) t2; output \"o\" t3",
    );
    assert!(is_proved(&decide(&nest, &nest, 1)));
}

/// An operator takes as many operands as it has.
#[test]
fn sums_are_of_one_tensor() {
    for sum in [
        "sum(0) t0, t0",
        "largest(0) t0, t0",
        "mean t0, t0",
        "slice(0, 0, 1) t0, t0",
        "exp t0, t0",
        "add t0",
        "mask t0",
    ] {
        let error = parse(&text(&format!("t0 = input \"x\" [2]; t1 = {sum}; output \"o\" t1"))).unwrap_err();
        assert!(error.contains("operands"), "{sum}: {error}");
    }
}

/// Sums, multiples and maxima of numbers are no masks.
#[test]
fn masks_are_made_of_masks() {
    for mask in ["scale(2) t1", "add t1, t1", "max t0, t1", "max t0, t0", "square t0", "guard t0"] {
        let masked = text(&format!(
            "t0 = input \"x\" [2]; t1 = mask \"m\" [2]; t2 = {mask}; t3 = mask t0, t2; t4 = exp t3; output \"o\" t4"
        ));
        let verdict = decide(&masked, &masked, 1);
        assert!(
            matches!(&verdict, Verdict::CannotSay(reason) if reason.contains("no mask")),
            "{mask}: {verdict:?}"
        );
    }
}

#[test]
fn time_is_bounded() {
    let program = text("t0 = input \"x\" [64, 64]; t1 = matmul t0, t0; output \"o\" t1");
    let program = &common::programs(&program)[0];
    let verdict = check(program, program, 1, std::time::Duration::ZERO);
    assert!(matches!(&verdict, Verdict::CannotSay(reason) if reason.contains("time")), "{verdict:?}");
    assert!(is_proved(&check(program, program, 1, PLENTY)));
}
