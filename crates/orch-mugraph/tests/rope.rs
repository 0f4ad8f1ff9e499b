//! Rotary position embeddings: what a rotation means, what is proved of it and refused, and what the search finds.

mod common;

use common::{program, random_inputs, valid};
use orch_mugraph::array::Array;
use orch_mugraph::search::{Found, SearchOptions, SearchReport, search};
use orch_mugraph::verify::degree::degrees;
use orch_mugraph::{
    MuGraph, Precision, Rejection, Unstable, VerifyOptions, interpret, parse, print, stabilise, verify,
};

fn run(program: &MuGraph) -> (Vec<Found>, SearchReport) {
    let found = search(program, &SearchOptions { threads: 2, ..SearchOptions::default() });
    found.unwrap_or_else(|e| panic!("{e}"))
}

/// `x * cos + rotate(x) * sin` for `x` `[5, 12]`, pairs `group` apart.
fn rope(group: usize) -> MuGraph {
    valid(&format!(
        "mugraph \"rope\" {{\n t0 = input \"x\" [5, 12]\n t1 = input \"cos\" [5, 12]\n t2 = input \"sin\" [5, 12]\n \
         t3 = mul t0, t1\n t4 = rotate(1, {group}) t0\n t5 = mul t4, t2\n t6 = add t3, t5\n output \"y\" t6\n}}\n"
    ))
}

/// The element of a row that a rotation reads, and its sign.
fn partner(column: usize, group: usize) -> (usize, f64) {
    if column % (2 * group) < group { (column + group, -1.0) } else { (column - group, 1.0) }
}

#[test]
fn a_rotation_rotates_pairs() {
    for group in [1, 2, 3, 6] {
        let graph = rope(group);
        let inputs = random_inputs(&graph, 3, 1.0);
        let given = interpret(&graph, &inputs, Precision::F64).unwrap();
        let [x, cos, sin] = [&inputs[0].data, &inputs[1].data, &inputs[2].data];
        let expected = Array::from_fn(&[5, 12], |at| {
            let (column, sign) = partner(at % 12, group);
            x[at] * cos[at] + sign * x[at / 12 * 12 + column] * sin[at]
        });
        assert_eq!(given, [expected], "pairs {group} apart");
    }
}

#[test]
fn the_saved_form_names_dimension_and_distance() {
    let text = serde_json::to_string(&rope(6)).unwrap();
    assert!(text.contains(r#""Rotate":{"dim":1,"group":6}"#), "{text}");
    assert_eq!(parse(&print(&rope(6))).unwrap(), rope(6));
}

/// A kernel for [`rope`]`(group)`: grid, map of all loads, and the statements after the loads of `x`, `cos`, `sin`.
fn kernel(grid: &str, map: &str, body: &str) -> Result<MuGraph, String> {
    let text = format!(
        "mugraph \"kernel\" {{\n t0 = input \"x\" [5, 12]\n t1 = input \"cos\" [5, 12]\n t2 = input \"sin\" [5, 12]\n \
         t3 = block {grid} loop 1 {{\n s0 = load t0 {map} -\n s1 = load t1 {map} -\n s2 = load t2 {map} -\n {body}\n \
         store s6 {map}\n }}\n output \"y\" t3\n}}\n"
    );
    parse(&text).map_err(|e| e.to_string())
}

fn turned(group: usize) -> String {
    format!("s3 = mul s0, s1\n s4 = rotate(1, {group}) s0\n s5 = mul s4, s2\n s6 = add s3, s5")
}

#[test]
fn right_rotations_are_proved_and_wrong_ones_refused() {
    let check = |candidate: &MuGraph| verify(&rope(6), candidate, &VerifyOptions::default());
    let right = kernel("[5]", "[0]", &turned(6)).unwrap();
    assert!(check(&right).is_ok_and(|proof| proof.log2_bound < -80.0));
    for (what, body) in [
        ("sign", "s3 = mul s0, s1\n s4 = rotate(1, 6) s0\n s5 = mul s4, s2\n s6 = sub s3, s5".to_owned()),
        ("pairs of neighbours", turned(1)),
        ("pairs in runs", turned(3)),
        ("sine", "s3 = mul s0, s1\n s4 = rotate(1, 6) s0\n s5 = mul s4, s1\n s6 = add s3, s5".to_owned()),
        ("no sine", "s3 = mul s0, s1\n s4 = rotate(1, 6) s0\n s5 = scale(1) s4\n s6 = add s3, s5".to_owned()),
        (
            "twice",
            "s3 = mul s0, s1\n s4 = rotate(1, 6) s0\n s5 = rotate(1, 6) s4\n s6 = add s3, s5".to_owned(),
        ),
    ] {
        let wrong = kernel("[5]", "[0]", &body).unwrap();
        assert!(matches!(check(&wrong), Err(Rejection::Different { .. })), "{what}");
    }
}

#[test]
fn four_quarter_turns_are_none() {
    let graph = |body: &str| {
        valid(&format!("mugraph \"turns\" {{\n t0 = input \"x\" [5, 12]\n {body}\n output \"y\" t5\n}}\n"))
    };
    let turns = "t1 = rotate(1, 3) t0\n t2 = rotate(1, 3) t1\n t3 = rotate(1, 3) t2\n t4 = rotate(1, 3) t3\n t5 = scale(1) t4";
    let none = "t1 = scale(1) t0\n t2 = scale(1) t1\n t3 = scale(1) t2\n t4 = scale(1) t3\n t5 = scale(1) t4";
    assert!(verify(&graph(none), &graph(turns), &VerifyOptions::default()).is_ok());
    let three = turns.replace("t4 = rotate(1, 3) t3", "t4 = scale(1) t3");
    assert!(verify(&graph(none), &graph(&three), &VerifyOptions::default()).is_err());
}

#[test]
fn tiles_hold_whole_pairs() {
    // Halves of rows, and runs of four columns: one separates pairs, the other does not.
    let apart = kernel("[2]", "[1]", &turned(6)).unwrap_err();
    assert!(apart.contains("an extent of 6 does not hold whole pairs of 6 elements"), "{apart}");
    let whole = kernel("[3]", "[1]", &turned(2)).unwrap();
    assert!(verify(&rope(2), &whole, &VerifyOptions::default()).is_ok());
    // Four blocks of three columns; and five, of which the last one has no column.
    for grid in ["[4]", "[5]"] {
        assert!(kernel(grid, "[1]", &turned(2)).is_err(), "{grid}");
    }
    // Blocks of eight columns and of four.
    assert!(kernel("[2]", "[1]", &turned(1)).is_ok());
    let remainder = parse(
        "mugraph \"r\" {\n t0 = input \"x\" [10]\n t1 = block [3] loop 1 {\n s0 = load t0 [0] -\n s1 = rotate(0, 2) s0\n \
         store s1 [0]\n }\n output \"y\" t1\n}\n",
    );
    assert!(remainder.is_err_and(|e| e.problem.contains("an extent of 2")));
}

/// The common denominator of the two elements of a pair is the product of both divisors.
#[test]
fn divisors_of_pairs_are_counted_together() {
    let degrees = |body: &str| {
        let text = format!(
            "mugraph \"d\" {{\n t0 = input \"x\" [4]\n t1 = input \"r\" [4]\n t2 = div t0, t1\n {body}\n output \"y\" t4\n}}\n"
        );
        let degrees = degrees(&valid(&text)).unwrap();
        [degrees.numerator.inputs, degrees.denominator.inputs]
    };
    assert_eq!(degrees("t3 = scale(2) t2\n t4 = add t2, t3"), [1, 1]);
    assert_eq!(degrees("t3 = rotate(0, 2) t2\n t4 = add t2, t3"), [2, 2]);
    assert_eq!(degrees("t3 = rotate(0, 2) t0\n t4 = add t2, t3"), [2, 1]);
}

/// Rotated queries, and keys, are attention's own work: in a pair that is split over keys, and in one kernel.
#[test]
fn attention_of_rotated_operands_is_fused() {
    for (name, rotations, terms, signatures) in
        [("rope_gqa", 1, 43, 15), ("rope_gqa_qk", 2, 49, 17), ("rope_gqa_part", 2, 55, 17)]
    {
        let program = program(name);
        let start = std::time::Instant::now();
        let (found, report) = run(&program);
        assert!(start.elapsed().as_secs() < 20, "{name}: {:?}", start.elapsed());
        assert_eq!(
            (report.terms, report.signatures, report.counts.truncated),
            (terms, signatures, 0),
            "{name}"
        );
        assert_eq!(report.screened[1], 0, "{name}: what labels allow is right");
        for kernels in [2, 1] {
            let graph =
                &found.iter().find(|found| found.graph.kernels() == kernels).expect("so many kernels").graph;
            let text = print(graph);
            assert_eq!(
                text.matches("= rotate(").count(),
                rotations,
                "{name}: all in the first kernel\n{text}"
            );
            let stable = stabilise(&program, graph, &VerifyOptions::default());
            let stable = stable.unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
            assert_eq!(stable.groups.len(), 1, "{name}");
            assert!(stable.certificate.log2_bound < -80.0, "{name}");
            assert_eq!(stable.certificate.check(), Ok(()), "{name}");
        }
    }
}

/// The elements that are not rotated are concatenated in the kernel, before or after the rotated ones; the order
/// matters.
#[test]
fn the_rest_of_a_head_is_joined_in_the_kernel() {
    let attention = |joined: &str| {
        valid(&format!(
            "mugraph \"part\" {{\n t0 = input \"q\" [3, 8, 6]\n t1 = input \"cos\" [1, 8, 6]\n t2 = input \"sin\" [1, 8, 6]\n \
             t3 = input \"rest\" [3, 8, 4]\n t4 = input \"k\" [3, 10, 128]\n t5 = input \"v\" [3, 128, 16]\n \
             t6 = mul t0, t1\n t7 = rotate(2, 3) t0\n t8 = mul t7, t2\n t9 = add t6, t8\n t10 = concat(2) {joined}\n \
             t11 = matmul t10, t4\n t12 = exp t11\n t13 = sum(2) t12\n t14 = div t12, t13\n t15 = matmul t14, t5\n \
             output \"o\" t15\n}}\n"
        ))
    };
    let programs = ["t9, t3", "t3, t9"].map(attention);
    for (program, other) in programs.iter().zip(programs.iter().rev()) {
        let (found, report) = run(program);
        assert_eq!((report.counts.truncated, report.screened[1]), (0, 0));
        let one = found.iter().find(|found| found.graph.kernels() == 1).expect("one kernel");
        let text = print(&one.graph);
        assert_eq!(text.matches("concat(2)").count(), 1, "{text}");
        let stable = stabilise(program, &one.graph, &VerifyOptions::default());
        assert!(stable.is_ok_and(|stable| stable.certificate.log2_bound < -80.0), "{text}");
        assert!(verify(other, &one.graph, &VerifyOptions::default()).is_err(), "{text}");
    }
}

/// Attention whose queries `[3, 8, 16]` are rotated by one angle for each pair, which the operator `doubled` repeats.
fn half_angles(doubled: &str, group: usize) -> MuGraph {
    valid(&format!(
        "mugraph \"half\" {{\n t0 = input \"q\" [3, 8, 16]\n t1 = input \"cos\" [1, 8, 8]\n t2 = input \"sin\" [1, 8, 8]\n \
         t3 = input \"k\" [3, 16, 128]\n t4 = input \"v\" [3, 128, 16]\n t5 = {}\n t6 = {}\n t7 = mul t5, t0\n \
         t8 = rotate(2, {group}) t0\n t9 = mul t6, t8\n t10 = add t9, t7\n t11 = matmul t10, t3\n \
         t12 = scale(1/4) t11\n t13 = exp t12\n t14 = sum(2) t13\n t15 = div t13, t14\n t16 = matmul t15, t4\n \
         output \"o\" t16\n}}\n",
        doubled.replace('_', "t1"),
        doubled.replace('_', "t2"),
    ))
}

#[test]
fn angles_of_pairs_are_repeated_in_the_kernel() {
    for (doubled, group) in [("concat(2) _, _", 8), ("repeat(2, 2) _", 1)] {
        let program = half_angles(doubled, group);
        let (found, _) = run(&program);
        let one = found.iter().find(|found| found.graph.kernels() == 1).expect("one kernel");
        let text = print(&one.graph);
        assert_eq!(text.matches(&doubled[..6]).count(), 2, "{text}");
        let stable = stabilise(&program, &one.graph, &VerifyOptions::default());
        assert!(stable.is_ok_and(|stable| stable.certificate.log2_bound < -80.0), "{text}");
    }
    // Angles that are repeated for other pairs than those that are rotated.
    let crossed = half_angles("repeat(2, 2) _", 8);
    let (found, _) = run(&crossed);
    assert!(found.iter().all(|found| print(&found.graph).contains("rotate(2, 8)")));
    assert!(verify(&half_angles("concat(2) _, _", 8), &found[0].graph, &VerifyOptions::default()).is_err());
}

#[test]
fn norms_come_before_rotations_in_one_kernel() {
    let program = valid(
        "mugraph \"qk_norm\" {\n t0 = input \"q\" [3, 8, 16]\n t1 = input \"w\" [1, 1, 16]\n \
         t2 = input \"cos\" [1, 8, 16]\n t3 = input \"sin\" [1, 8, 16]\n t4 = input \"k\" [3, 16, 128]\n \
         t5 = input \"v\" [3, 128, 16]\n t6 = rms_norm(1/1000) t0\n t7 = mul t6, t1\n t8 = mul t7, t2\n \
         t9 = rotate(2, 8) t7\n t10 = mul t9, t3\n t11 = add t8, t10\n t12 = matmul t11, t4\n t13 = exp t12\n \
         t14 = sum(2) t13\n t15 = div t13, t14\n t16 = matmul t15, t5\n output \"o\" t16\n}\n",
    );
    let (found, report) = run(&program);
    assert_eq!(report.counts.truncated, 0);
    let one = found.iter().find(|found| found.graph.kernels() == 1).expect("one kernel");
    let text = print(&one.graph);
    assert!(text.contains("rms_norm") && text.contains("rotate(2, 8)"), "{text}");
    assert!(stabilise(&program, &one.graph, &VerifyOptions::default()).is_ok(), "{text}");
}

#[test]
fn a_rotation_of_another_kind_is_outside() {
    let program = valid(
        "mugraph \"lone\" {\n t0 = input \"x\" [8, 16]\n t1 = input \"w\" [16, 32]\n t2 = rotate(1, 8) t0\n \
         t3 = matmul t2, t1\n output \"o\" t3\n}\n",
    );
    let problem = search(&program, &SearchOptions::default()).unwrap_err();
    assert_eq!(problem, "t2: the search does not know rotate(1, 8)");
}

/// A kernel of `softmax(x) v` whose weights, or denominators, are rotated.
fn weighted(turn: [&str; 2]) -> MuGraph {
    valid(&format!(
        "mugraph \"w\" {{\n t0 = input \"x\" [4, 8]\n t1 = input \"v\" [8, 6]\n t2 = block [2] loop 2 {{\n \
         s0 = load t0 [0] 1\n s1 = load t1 [-] 0\n s2 = exp s0\n s3 = sum(1) s2\n s4 = accumulate sum s3\n \
         s5 = {}\n s6 = matmul s5, s1\n s7 = accumulate sum s6\n s8 = {}\n s9 = div s8, s4\n store s9 [0]\n }}\n \
         output \"o\" t2\n}}\n",
        turn[0], turn[1]
    ))
}

#[test]
fn maxima_are_subtracted_where_rotations_stay_within_rows() {
    let program = valid(
        "mugraph \"p\" {\n t0 = input \"x\" [4, 8]\n t1 = input \"v\" [8, 6]\n t2 = exp t0\n t3 = sum(1) t2\n \
         t4 = matmul t2, t1\n t5 = rotate(1, 3) t4\n t6 = div t5, t3\n output \"o\" t6\n}\n",
    );
    let within = weighted(["scale(1) s2", "rotate(1, 3) s7"]);
    let stable = stabilise(&program, &within, &VerifyOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert!(print(&stable.graph).contains("running_max"));
    for turn in [["rotate(1, 2) s2", "scale(1) s7"], ["rotate(0, 1) s2", "scale(1) s7"]] {
        let refused = stabilise(&program, &weighted(turn), &VerifyOptions::default());
        assert!(matches!(refused, Err(Unstable::Refused(_))), "{turn:?}");
    }
}
