//! What the text form means: each operator of a kernel beside the same without one, and what is refused where it may not stand.

mod common;

use common::{decide, is_proved, text};
use orch_check::{Verdict, parse};

/// Programs of which the first is the same as the second, and not the same as the third.
#[test]
fn texts_mean_what_they_say() {
    let x = "t0 = input \"x\" [4, 3]";
    let block = |axes: &str, tiles: &str| format!("{x}; t1 = block {axes} {{; {tiles}; }}; output \"o\" t1");
    let plain = |statements: &str| format!("{x}; {statements}");
    let same = plain("t1 = scale(1) t0; output \"o\" t1");
    let twice = plain("t1 = scale(2) t0; output \"o\" t1");
    let largest = plain("t1 = largest(0) t0; output \"o\" t1");
    let sum = plain("t1 = sum(0) t0; output \"o\" t1");
    let softmax =
        "t1 = exp t0; t2 = sum(0) t1; t3 = div t1, t2; t4 = mul t3, t0; t5 = sum(0) t4; output \"o\" t5";
    let cases: [(String, String, String); 9] = [
        // A tile that is the same in all iterations is so in each.
        (
            same.clone(),
            block(
                "[1] loop 3",
                "s0 = load t0 [-] -; s1 = running_max s0; s2 = accumulate max s1; store s2 [-]",
            ),
            twice,
        ),
        (
            plain("t1 = scale(3) t0; output \"o\" t1"),
            block("[1] loop 3", "s0 = load t0 [-] -; s1 = accumulate sum s0; store s1 [-]"),
            same.clone(),
        ),
        (
            sum.clone(),
            block("[1] loop 4", "s0 = load t0 [-] 0; s1 = accumulate sum s0; store s1 [-]"),
            largest.clone(),
        ),
        (
            largest,
            block(
                "[1] loop 4",
                "s0 = load t0 [-] 0; s1 = running_max s0; s2 = accumulate max s1; store s2 [-]",
            ),
            sum,
        ),
        // Four iterations, each of which rescales what was there before.
        (
            plain(softmax),
            block(
                "[1] loop 4",
                "s0 = load t0 [-] 0; s1 = running_max s0; s2 = guard s1; s3 = sub s0, s2; s4 = exp s3; s5 = mul s4, s0; \
                 s6 = accumulate rescaled s1 1 s4; s7 = accumulate rescaled s1 1 s5; s8 = div s7, s6; store s8 [-]",
            ),
            plain(&softmax.replace("mul t3, t0", "mul t3, t3")),
        ),
        // The first of each two elements, with the other sign, changes places with the second.
        (
            plain("t1 = rotate(0, 1) t0; output \"o\" t1"),
            plain(
                "t1 = slice(0, 0, 1) t0; t2 = slice(0, 1, 1) t0; t3 = slice(0, 2, 1) t0; t4 = slice(0, 3, 1) t0; \
                 t5 = scale(-1) t2; t6 = scale(-1) t4; t7 = concat(0) t5, t1, t6, t3; output \"o\" t7",
            ),
            plain("t1 = rotate(0, 2) t0; output \"o\" t1"),
        ),
        (
            plain("t1 = below(0, 2, 4, 3); t2 = mask t0, t1; t3 = exp t2; t4 = sum(0) t3; output \"o\" t4"),
            plain("t1 = slice(0, 0, 2) t0; t2 = exp t1; t3 = sum(0) t2; output \"o\" t3"),
            plain("t1 = slice(0, 0, 3) t0; t2 = exp t1; t3 = sum(0) t2; output \"o\" t3"),
        ),
        // An element of a causal mask is one up to the diagonal, which is moved.
        (
            plain(
                "t1 = causal(0, 4, 3); t2 = mask t0, t1; t3 = exp t2; t4 = sum(1) t3; t5 = slice(0, 0, 1) t4; output \"o\" t5",
            ),
            plain("t1 = slice(0, 0, 1) t0; t2 = slice(1, 0, 1) t1; t3 = exp t2; output \"o\" t3"),
            plain(
                "t1 = slice(0, 0, 1) t0; t2 = slice(1, 0, 2) t1; t3 = exp t2; t4 = sum(1) t3; output \"o\" t4",
            ),
        ),
        (
            plain("t1 = mean t0; output \"o\" t1"),
            plain("t1 = sum(1) t0; t2 = scale(1/3) t1; output \"o\" t2"),
            plain("t1 = sum(1) t0; t2 = scale(1/4) t1; output \"o\" t2"),
        ),
    ];
    for (program, candidate, other) in &cases {
        let [program, candidate, other] = [program, candidate, other].map(|statements| text(statements));
        let verdict = decide(&program, &candidate, 1);
        assert!(is_proved(&verdict), "{verdict:?}\n{program}{candidate}");
        let verdict = decide(&program, &other, 1);
        assert!(!is_proved(&verdict), "{verdict:?}\n{program}{other}");
    }
}

/// Where an operator may not stand, or has other parameters, it is none.
#[test]
fn operators_stand_where_they_have_a_meaning() {
    let in_kernel = |tile: &str| {
        format!(
            "t0 = input \"x\" [4, 3]; t1 = block [2] loop 1 {{; s0 = load t0 [0] -; s1 = {tile}; store s1 [0]; }}; output \"o\" t1"
        )
    };
    let outside = |value: &str| format!("t0 = input \"x\" [4, 3]; t1 = {value}; output \"o\" t1");
    let refused = |statements: String, problem: &str| {
        let error = parse(&text(&statements)).expect_err(&statements);
        assert!(error.contains(problem), "{statements}: {error}");
    };
    for tile in [
        "input \"y\" [2, 3]",
        "mask \"m\" [2, 3]",
        "causal(0, 2, 3)",
        "below(0, 1, 2, 3)",
        "reshape(3, 2) s0",
        "broadcast(2, 3) s0",
        "load t0 [0, 1] -",
        "load t0 [0]",
        "accumulate rescaled s0",
        "accumulate min s0",
    ] {
        refused(in_kernel(tile), "no operator");
    }
    for value in [
        "load t0",
        "load t0 [0] -",
        "store t0",
        "running_max t0",
        "accumulate sum t0",
        "accumulate max t0",
        "accumulate rescaled t0 1 t0",
        "causal(0, 4)",
        "causal(0)",
        "causal(x, 4, 3)",
        "below(2, 1, 4, 3)",
        "below(3, 1, 4, 3)",
        "below(0)",
        "transpose(0) t0",
        "transpose(0, 0) t0",
        "transpose(0, 2) t0",
        "transpose(0, 1, 2) t0",
        "matmul(1) t0, t0",
    ] {
        refused(outside(value), "no operator");
    }
    for (statements, problem) in [
        (in_kernel("exp s0; output \"o\" s1"), "no operator output"),
        (in_kernel("exp s0; store s1"), "no operator store"),
        (in_kernel("exp s0; s2 = accumulate rescaled s1 1 s0"), "no operator accumulate"),
        (in_kernel("exp s0; s2 = block [1] loop 1 {"), "no operator block"),
        (outside("exp t0; mugraph \"q\" {"), "no operator mugraph"),
        // Of no dimensions there is no last one, also where those of the grid and the loop stand before.
        ("t0 = input \"x\" []; t1 = mean t0; output \"o\" t1".into(), "no operator mean"),
        (
            "t0 = input \"x\" []; t1 = block [2] loop 1 {; s0 = load t0 [-] -; s1 = mean s0; store s1 [-]; }; output \"o\" t1".into(),
            "no operator mean",
        ),
        (outside("sum(0, 3) t0"), "a part of 3 elements does not suit"),
        (outside("sum(0, 0) t0"), "a part of 0 elements does not suit"),
        (outside("rotate(1, 1) t0"), "groups of 1 elements do not suit"),
    ] {
        refused(statements, problem);
    }
}

/// Lines are counted from one, empty ones and comments too; nothing stands outside of a program.
#[test]
fn lines_are_counted() {
    let program =
        "\n# a comment\nmugraph \"p\" {\n\n  t0 = input \"x\" [2] # another\n  output \"o\" t0\n}\n\n";
    assert_eq!(parse(program).map(|programs| programs.len()), Ok(1));
    assert_eq!(parse(&program.repeat(3)).map(|programs| programs.len()), Ok(3));
    for (text, line) in [
        (program.replace("output \"o\" t0", "output \"o\" t1"), "line 6: "),
        (program.replace("\"p\"", "p"), "line 3: expected a name in quotes"),
        (program.replace("mugraph", "program"), "line 3: expected mugraph"),
        (format!("t0 = input \"x\" [2]\n{program}"), "line 1: expected mugraph"),
        (format!("{program}}}"), "line 9: expected mugraph"),
        (program.replace('}', ""), "line 8: the text ends before }"),
    ] {
        let error = parse(&text).expect_err(&text);
        assert!(error.starts_with(line), "{text}: {error}");
    }
}

/// A text is as long as is allowed, or one byte longer.
#[test]
fn the_longest_text_is_read() {
    let program = text("t0 = input \"x\" [2]; output \"o\" t0");
    let longest = format!("{program}#{}", "x".repeat((1 << 20) - program.len() - 1));
    assert_eq!(parse(&longest).map(|programs| programs.len()), Ok(1));
    assert!(parse(&format!("{longest}x")).expect_err("too long").contains("bytes"));
    assert!(matches!(decide(&longest, &longest, 1), Verdict::Proved(_)));
}
