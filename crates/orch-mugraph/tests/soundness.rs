//! Wrong µGraphs that a prover must not accept, each an attack on one step of `docs/proofs.md`, and right ones beside
//! them that it must.

mod common;

use common::valid;
use orch_mugraph::{Certificate, MuGraph, Rejection, VerifyOptions, verify};

fn graph(body: &str) -> MuGraph {
    valid(&format!("mugraph \"g\" {{\n{body}}}\n"))
}

fn proof(program: &str, candidate: &str) -> Result<Certificate, Rejection> {
    verify(&graph(program), &graph(candidate), &VerifyOptions::default())
}

/// The same under many names: seeds are hashes of both texts.
fn accepted_names(program: &str, candidate: &str) -> usize {
    let program = graph(program);
    let is_accepted = |name: &usize| {
        let mut candidate = graph(candidate);
        candidate.name = format!("g{name}");
        verify(&program, &candidate, &VerifyOptions::default()).is_ok()
    };
    (0..40).filter(is_accepted).count()
}

fn refused(name: &str, program: &str, candidate: &str) {
    let accepted = accepted_names(program, candidate);
    assert_eq!(accepted, 0, "{name}: {accepted} of 40 wrong candidates were accepted");
}

fn proved(name: &str, program: &str, candidate: &str) {
    let proof = proof(program, candidate).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(proof.log2_bound <= -80.0, "{name}: {}", proof.log2_bound);
}

const ATTENTION: &str = " t0 = input \"q\" [32, 32, 16]\n t1 = input \"k\" [32, 16, 64]\n \
    t2 = input \"v\" [32, 64, 32]\n t3 = matmul t0, t1\n t4 = exp t3\n t5 = sum(2) t4\n t6 = div t4, t5\n \
    t7 = matmul t6, t2\n";

#[test]
fn dimensions_of_outputs_are_not_exchanged() {
    let product = " t0 = input \"x\" [64, 128]\n t1 = input \"w\" [128, 64]\n t2 = matmul t0, t1\n";
    let exponential = " t0 = input \"x\" [64, 64]\n t1 = exp t0\n";
    let outer = " t0 = input \"x\" [64, 1, 8]\n t1 = input \"y\" [1, 64, 8]\n t2 = add t0, t1\n";
    for (name, body, result, order) in [
        ("matmul", product, 2, "1, 0"),
        ("exp", exponential, 1, "1, 0"),
        ("outer sum", outer, 2, "1, 0, 2"),
        ("attention", ATTENTION, 7, "1, 0, 2"),
        ("attention, columns", ATTENTION, 7, "0, 2, 1"),
    ] {
        let program = format!("{body} output \"o\" t{result}\n");
        let next = result + 1;
        let wrong = format!("{body} t{next} = transpose({order}) t{result}\n output \"o\" t{next}\n");
        refused(name, &program, &wrong);
        proved(name, &program, &program);
        let back = next + 1;
        let right = format!(
            "{body} t{next} = transpose({order}) t{result}\n t{back} = transpose({order}) t{next}\n output \"o\" t{back}\n"
        );
        proved(name, &program, &right);
    }
}

#[test]
fn operands_of_concatenations_are_joined() {
    let head = " t0 = input \"x\" [64, 64, 8]\n t1 = input \"y\" [64, 64, 8]\n";
    let program = format!("{head} t2 = concat(2) t0, t1\n output \"o\" t2\n");
    let wrong = format!("{head} t2 = transpose(1, 0, 2) t1\n t3 = concat(2) t0, t2\n output \"o\" t3\n");
    refused("concat", &program, &wrong);
    let block = |rest: &str| {
        format!(
            "{head} t2 = block [1] loop 1 {{\n s0 = load t0 [-] -\n s1 = load t1 [-] -\n {rest} }}\n output \"o\" t2\n"
        )
    };
    refused(
        "concat in a block",
        &program,
        &block("s2 = transpose(1, 0, 2) s1\n s3 = concat(2) s0, s2\n store s3 [-]\n"),
    );
    proved("concat in a block", &program, &block("s2 = concat(2) s0, s1\n store s2 [-]\n"));
}

#[test]
fn sums_are_rescaled_by_maxima_of_their_own_rows() {
    let head =
        " t0 = input \"q\" [2, 16, 16]\n t1 = input \"k\" [2, 16, 256]\n t2 = input \"v\" [2, 256, 16]\n";
    let program = format!(
        "{head} t3 = matmul t0, t1\n t4 = exp t3\n t5 = sum(2) t4\n t6 = div t4, t5\n t7 = matmul t6, t2\n output \"o\" t7\n"
    );
    let block = |factor: &str| {
        format!(
            "{head} t3 = block [2] loop 4 {{\n s0 = load t0 [0] -\n s1 = load t1 [0] 2\n s2 = load t2 [0] 1\n \
             s3 = matmul s0, s1\n s4 = largest(2) s3\n s5 = transpose(0, 2, 1) s4\n s6 = running_max s5\n \
             s7 = transpose(0, 2, 1) s6\n s8 = guard s7\n s9 = sub s3, s8\n s10 = exp s9\n s11 = sum(2) s10\n \
             s12 = transpose(0, 2, 1) s11\n s13 = accumulate rescaled s6 1 s12\n s14 = matmul s10, s2\n {factor}\n \
             store s18 [0]\n }}\n output \"o\" t3\n"
        )
    };
    // The factor of a row is applied to a column.
    let wrong = block(
        "s15 = accumulate rescaled s6 1 s14\n s16 = transpose(0, 2, 1) s13\n s17 = div s15, s16\n s18 = scale(1) s17",
    );
    refused("columns", &program, &wrong);
    let right = block(
        "s15 = transpose(0, 2, 1) s14\n s16 = accumulate rescaled s6 1 s15\n s17 = div s16, s13\n \
         s18 = transpose(0, 2, 1) s17",
    );
    proved("rows", &program, &right);
}

#[test]
fn an_index_that_a_candidate_has_twice_is_not_cut() {
    let head = " t0 = input \"x\" [64, 1]\n t1 = input \"y\" [64, 1]\n";
    let program = format!("{head} t2 = mul t0, t1\n output \"o\" t2\n");
    // The sum of the whole outer product.
    let wrong =
        format!("{head} t2 = transpose(1, 0) t1\n t3 = mul t0, t2\n t4 = sum(1) t3\n output \"o\" t4\n");
    refused("outer product", &program, &wrong);
}

#[test]
fn roots_are_positive() {
    let head = " t0 = input \"x\" [6, 64]\n t1 = input \"w\" [64, 48]\n";
    for constant in [2, 3, 13, 17, 23] {
        let program = format!(
            "{head} t2 = scale({constant}) t0\n t3 = rms_norm(0) t2\n t4 = matmul t3, t1\n output \"o\" t4\n"
        );
        let negated = format!(
            "{head} t2 = rms_norm(0) t0\n t3 = matmul t2, t1\n t4 = scale(-1) t3\n output \"o\" t4\n"
        );
        refused("a constant that is no square", &program, &negated);
        let right = format!("{head} t2 = rms_norm(0) t0\n t3 = matmul t2, t1\n output \"o\" t3\n");
        proved("a constant that does not matter", &program, &right);
        // The same constant as a sum.
        let rest = constant - 1;
        let sum = format!(
            "{head} t2 = scale({rest}) t0\n t3 = add t2, t0\n t4 = rms_norm(0) t3\n t5 = matmul t4, t1\n output \"o\" t5\n"
        );
        refused("a constant as a sum", &sum, &negated);
    }
    let x = " t0 = input \"x\" [64, 64]\n";
    refused(
        "|x|",
        &format!("{x} t1 = square t0\n t2 = sqrt t1\n output \"o\" t2\n"),
        &format!("{x} t1 = scale(1) t0\n output \"o\" t1\n"),
    );
    let column = " t0 = input \"x\" [64, 1]\n";
    refused(
        "a norm of one element",
        &format!("{column} t1 = rms_norm(0) t0\n output \"o\" t1\n"),
        &format!("{column} t1 = div t0, t0\n output \"o\" t1\n"),
    );
    let rows = " t0 = input \"x\" [6, 64]\n t1 = input \"s\" [6, 1]\n";
    refused(
        "the sign of a row",
        &format!("{rows} t2 = mul t0, t1\n t3 = rms_norm(0) t2\n output \"o\" t3\n"),
        &format!("{rows} t2 = rms_norm(0) t0\n t3 = scale(0) t1\n t4 = add t2, t3\n output \"o\" t4\n"),
    );
}

#[test]
fn masks_and_maxima_are_not_guessed() {
    let masked = " t0 = input \"x\" [64, 64]\n t1 = mask \"m\" [64, 64]\n";
    let unmasked = format!("{masked} t2 = scale(0) t1\n t3 = add t0, t2\n output \"o\" t3\n");
    let product = format!("{masked} t2 = mul t0, t1\n output \"o\" t2\n");
    refused("a mask dropped", &product, &unmasked);
    proved("a mask", &product, &format!("{masked} t2 = mul t1, t0\n output \"o\" t2\n"));
    let two = " t0 = input \"x\" [64, 64]\n t1 = input \"y\" [64, 64]\n";
    let larger = format!("{two} t2 = max t0, t1\n output \"o\" t2\n");
    refused(
        "the larger is the first",
        &larger,
        &format!("{two} t2 = scale(0) t1\n t3 = add t0, t2\n output \"o\" t3\n"),
    );
    proved(
        "maxima commute",
        &larger,
        &format!("{two} t2 = max t1, t0\n t3 = max t2, t1\n output \"o\" t3\n"),
    );
    // The larger of two masks is where one is, not where both are, at any extent.
    for extent in [1, 8, 64] {
        let masks = format!(" t0 = mask \"m\" [{extent}, 4]\n t1 = mask \"n\" [{extent}, 4]\n");
        let either = format!("{masks} t2 = max t0, t1\n output \"o\" t2\n");
        refused("both", &either, &format!("{masks} t2 = mul t0, t1\n output \"o\" t2\n"));
        let sum = format!("{masks} t2 = mul t0, t1\n t3 = add t0, t1\n t4 = sub t3, t2\n output \"o\" t4\n");
        proved("either", &either, &sum);
    }
    let rows = " t0 = input \"x\" [8, 64]\n";
    let largest = format!("{rows} t1 = largest(1) t0\n output \"o\" t1\n");
    let but_one = format!("{rows} t1 = slice(1, 0, 63) t0\n t2 = largest(1) t1\n t3 = slice(1, 63, 1) t0\n");
    refused(
        "all but one",
        &largest,
        &format!("{but_one} t4 = scale(0) t3\n t5 = add t2, t4\n output \"o\" t5\n"),
    );
    proved("in parts", &largest, &format!("{but_one} t4 = max t3, t2\n output \"o\" t4\n"));
}

/// Of eight elements nine iterations leave none to the last one, whose largest is minus infinity.
#[test]
fn the_largest_of_no_elements_is_no_number() {
    let x = " t0 = input \"x\" [6, 8]\n";
    let program = format!("{x} t1 = exp t0\n t2 = sum(1) t1\n output \"o\" t2\n");
    let candidate = |loops: usize| {
        format!(
            "{x} t1 = block [3] loop {loops} {{\n s0 = load t0 [0] 1\n s1 = exp s0\n s2 = largest(1) s1\n \
             s3 = accumulate sum s2\n store s3 [0]\n }}\n output \"o\" t1\n"
        )
    };
    refused("a sum with the largest of none", &program, &candidate(9));
    proved("a sum of single elements", &program, &candidate(8));
}

#[test]
fn candidates_are_defined_where_programs_are() {
    let masked = " t0 = input \"x\" [64, 64]\n t1 = mask \"m\" [64, 64]\n";
    refused(
        "divides by a mask",
        &format!("{masked} t2 = mul t0, t1\n output \"o\" t2\n"),
        &format!("{masked} t2 = div t0, t1\n output \"o\" t2\n"),
    );
    let x = " t0 = input \"x\" [64, 64]\n";
    let same = format!("{x} t1 = scale(1) t0\n output \"o\" t1\n");
    refused("the root of anything", &same, &format!("{x} t1 = sqrt t0\n t2 = square t1\n output \"o\" t2\n"));
    let two = " t0 = input \"x\" [64, 64]\n t1 = input \"y\" [64, 64]\n";
    let second = format!("{two} t2 = scale(0) t0\n t3 = add t1, t2\n output \"o\" t3\n");
    // relu(-x² - 1) is zero.
    let zero = format!("{two} t2 = square t0\n t3 = scale(-1) t2\n t4 = offset(-1) t3\n t5 = relu t4\n");
    let over_zero = format!("{zero} t6 = mul t1, t5\n t7 = div t6, t5\n output \"o\" t7\n");
    refused("zero over zero", &second, &over_zero);
    let factor =
        |factor: &str| format!("{two} {factor}\n t3 = mul t1, t2\n t4 = div t3, t2\n output \"o\" t4\n");
    refused("over a number", &second, &factor("t2 = scale(1) t0"));
    refused("over a square", &second, &factor("t2 = square t0"));
    let one_more = format!(
        "{two} t2 = square t0\n t3 = offset(1) t2\n t4 = mul t1, t3\n t5 = div t4, t3\n output \"o\" t5\n"
    );
    proved("over what is positive", &second, &one_more);
    // What the program divides by, too, and products of that.
    let three = format!("{two} t2 = input \"z\" [64, 64]\n");
    proved(
        "divided twice",
        &format!("{three} t3 = div t2, t0\n t4 = div t3, t1\n output \"o\" t4\n"),
        &format!("{three} t3 = mul t0, t1\n t4 = div t2, t3\n output \"o\" t4\n"),
    );
    refused(
        "a sum of divisors",
        &format!("{three} t3 = div t2, t0\n t4 = div t3, t1\n output \"o\" t4\n"),
        &format!(
            "{three} t3 = mul t0, t1\n t4 = add t0, t1\n t5 = mul t4, t3\n t6 = mul t2, t4\n t7 = div t6, t5\n output \"o\" t7\n"
        ),
    );
    // A sum of exponentials of its own is not zero, one with signs may be.
    let attention = format!("{ATTENTION} output \"o\" t7\n");
    let difference = format!(
        "{ATTENTION} t8 = slice(2, 0, 32) t4\n t9 = slice(2, 32, 32) t4\n t10 = sub t8, t9\n t11 = sum(2) t10\n \
         t12 = mul t7, t11\n t13 = div t12, t11\n output \"o\" t13\n"
    );
    refused("a difference of exponentials", &attention, &difference);
    let sum = difference.replace("sub t8, t9", "add t8, t9");
    proved("a sum of exponentials", &attention, &sum);
}

#[test]
fn constants_cannot_be_chosen_for_the_primes() {
    // A prime that proofs once used, and one more than 2^60 that they may draw: neither is zero.
    let x = " t0 = input \"x\" [4, 64]\n";
    for constant in ["2305843009213690799", "2305843009213693951", "6917529027641081856"] {
        let program = format!("{x} t1 = square t0\n output \"o\" t1\n");
        let wrong = format!("{x} t1 = square t0\n t2 = offset({constant}) t1\n output \"o\" t2\n");
        refused("a constant", &program, &wrong);
    }
}

#[test]
fn bounds_count_what_may_happen_by_accident() {
    // Degrees that a field of 61 bits is too small for.
    // Of the second, a test says nothing at all.
    for last in [57, 61] {
        let squares: String = (1..=last).map(|t| format!(" t{t} = square t{}\n", t - 1)).collect();
        let program = format!(" t0 = input \"x\" [4, 4]\n{squares} output \"o\" t{last}\n");
        let message = proof(&program, &program).expect_err("the bound is too weak").to_string();
        assert!(message.contains("too few for 2^-80"), "{last}: {message}");
    }
    // Many arguments are many pairs, and a proof takes more tests.
    let functions = |extent: usize| {
        let body =
            format!(" t0 = input \"x\" [64, {extent}]\n t1 = erf t0\n t2 = sum(1) t1\n output \"o\" t2\n");
        proof(&body, &body).expect("a program is itself").tests.len()
    };
    assert!(functions(65536) > functions(16));
}

#[test]
fn exponents_depend_on_each_other_at_any_extent() {
    // Of full rank at extents below 7: x - (x0 + .. + x6) / 7.
    let x = " t0 = input \"x\" [4, 7]\n t1 = sum(1) t0\n";
    let product = format!(
        "{x} t2 = scale(1/7) t1\n t3 = sub t0, t2\n t4 = exp t3\n t5 = sum(1) t4\n output \"o\" t5\n"
    );
    let message = proof(&product, &product).expect_err("exponents that sum to zero").to_string();
    assert!(message.contains("not independent"), "{message}");
}

/// Exponents that no element of an input enters affinely: those of normed keys, and squares.
#[test]
fn exponents_need_not_be_affine() {
    let keys = " t0 = input \"q\" [2, 8, 16]\n t1 = input \"k\" [2, 16, 32]\n t2 = input \"v\" [2, 32, 8]\n t3 = input \"w\" [1, 16, 1]\n \
                t4 = square t1\n t5 = sum(1) t4\n t6 = scale(1/16) t5\n t7 = offset(1/1000) t6\n t8 = sqrt t7\n t9 = div t1, t8\n \
                t10 = mul t9, t3\n t11 = matmul t0, t10\n";
    let program = format!(
        "{keys} t12 = exp t11\n t13 = sum(2) t12\n t14 = div t12, t13\n t15 = matmul t14, t2\n output \"o\" t15\n"
    );
    let late = format!(
        "{keys} t12 = exp t11\n t13 = sum(2) t12\n t14 = matmul t12, t2\n t15 = div t14, t13\n output \"o\" t15\n"
    );
    let certificate = proof(&program, &late).expect("normed keys");
    assert!(certificate.rank.is_nonlinear && certificate.log2_bound <= -80.0, "{:?}", certificate.rank);
    refused("divided by the weight", &program, &late.replace("t10 = mul t9, t3", "t10 = div t9, t3"));
    refused("a norm over rows", &program, &late.replace("t5 = sum(1) t4", "t5 = sum(2) t4"));
    let one = " t0 = input \"x\" [4, 8]\n t1 = square t0\n t2 = exp t1\n";
    let square = format!("{one} output \"o\" t2\n");
    proved("a square", &square, &square);
    // Two exponentials of one element.
    let both = format!("{one} t3 = exp t0\n t4 = add t2, t3\n output \"o\" t4\n");
    let message = proof(&both, &both).expect_err("exponents of one element").to_string();
    assert!(message.contains("not independent"), "{message}");
    // Two exponentials of two elements, which both depend on both.
    let mixed = " t0 = input \"x\" [4, 8]\n t1 = input \"y\" [4, 8]\n t2 = mul t0, t1\n t3 = square t0\n t4 = add t2, t3\n \
                 t5 = exp t2\n t6 = exp t4\n t7 = add t5, t6\n output \"o\" t7\n";
    let message = proof(mixed, mixed).expect_err("exponents of the same elements").to_string();
    assert!(message.contains("not independent"), "{message}");
}

#[test]
fn exponentials_of_different_inputs_are_proved() {
    let gate = format!(
        "{} t8 = sigmoid t3\n t9 = mul t7, t8\n output \"o\" t9\n",
        ATTENTION
            .replace(
                " t3 = matmul t0, t1\n t4 = exp t3",
                " t3 = input \"g\" [32, 32, 32]\n t10 = matmul t0, t1\n t4 = exp t10"
            )
            .replace(" t10 = ", " t4 = ")
            .replace(
                "t4 = exp t10\n t5 = sum(2) t4\n t6 = div t4, t5\n t7 = matmul t6, t2\n",
                "t5 = exp t4\n t6 = sum(2) t5\n t7 = div t5, t6\n t8 = matmul t7, t2\n"
            )
            .replace("    ", "")
    );
    let gate = gate.replace(
        "t8 = sigmoid t3\n t9 = mul t7, t8\n output \"o\" t9",
        "t9 = sigmoid t3\n t10 = mul t8, t9\n output \"o\" t10",
    );
    proved("a gate beside attention", &gate, &gate);
    let head = gate.split(" t4 = ").next().unwrap_or_default().to_owned();
    let fused = format!(
        "{head} t4 = block [32] loop 4 {{\n s0 = load t0 [0] -\n s1 = load t1 [0] 2\n s2 = load t2 [0] 1\n s3 = matmul s0, s1\n \
         s4 = largest(2) s3\n s5 = running_max s4\n s6 = guard s5\n s7 = sub s3, s6\n s8 = exp s7\n s9 = sum(2) s8\n \
         s10 = accumulate rescaled s5 1 s9\n s11 = matmul s8, s2\n s12 = accumulate rescaled s5 1 s11\n s13 = div s12, s10\n \
         s14 = load t3 [0] -\n s15 = sigmoid s14\n s16 = mul s13, s15\n store s16 [0]\n }}\n output \"o\" t4\n"
    );
    proved("a gate beside attention, in one kernel", &gate, &fused);
    refused("the gate of something else", &gate, &fused.replace("s15 = sigmoid s14", "s15 = sigmoid s13"));
    let two = " t0 = input \"x\" [8, 64]\n t1 = input \"y\" [8, 64]\n";
    let silus = format!("{two} t2 = silu t0\n t3 = silu t1\n t4 = mul t2, t3\n output \"o\" t4\n");
    let sigmoids = format!(
        "{two} t2 = sigmoid t0\n t3 = sigmoid t1\n t4 = mul t0, t1\n t5 = mul t2, t3\n t6 = mul t4, t5\n output \"o\" t6\n"
    );
    proved("silu times silu", &silus, &sigmoids);
    let linear = " t0 = input \"q\" [2, 16, 8]\n t1 = input \"k\" [2, 8, 16]\n t2 = input \"v\" [2, 16, 8]\n \
                  t3 = sigmoid t0\n t4 = sigmoid t1\n";
    let left = format!("{linear} t5 = matmul t3, t4\n t6 = matmul t5, t2\n output \"o\" t6\n");
    let right = format!("{linear} t5 = matmul t4, t2\n t6 = matmul t3, t5\n output \"o\" t6\n");
    proved("linear attention", &left, &right);
}

#[test]
fn laws_of_exponentials_are_proved() {
    let two = " t0 = input \"x\" [8, 64]\n t1 = input \"y\" [8, 64]\n";
    let sum = format!("{two} t2 = add t0, t1\n t3 = exp t2\n output \"o\" t3\n");
    let product = format!("{two} t2 = exp t0\n t3 = exp t1\n t4 = mul t2, t3\n output \"o\" t4\n");
    proved("e^(a+b) = e^a e^b", &sum, &product);
    proved("e^a e^b = e^(a+b)", &product, &sum);
    refused("e^(a+b) = e^a + e^b", &sum, &product.replace("mul t2", "add t2"));
    refused(
        "e^(a+b) = e^a e^-b",
        &sum,
        &product.replace("t3 = exp t1\n t4 = mul t2, t3", "t3 = exp t1\n t4 = div t2, t3"),
    );
    let one = " t0 = input \"x\" [8, 64]\n";
    let half = format!("{one} t1 = scale(1/2) t0\n t2 = exp t1\n t3 = square t2\n output \"o\" t3\n");
    let whole = format!("{one} t1 = exp t0\n output \"o\" t1\n");
    proved("e^(x/2)² = e^x", &whole, &half);
    let tanh = format!("{one} t1 = tanh t0\n output \"o\" t1\n");
    let sigmoid = format!(
        "{one} t1 = scale(2) t0\n t2 = sigmoid t1\n t3 = scale(2) t2\n t4 = offset(-1) t3\n output \"o\" t4\n"
    );
    proved("tanh x = 2 sigmoid(2 x) - 1", &tanh, &sigmoid);
    proved("2 sigmoid(2 x) - 1 = tanh x", &sigmoid, &tanh);
    refused("tanh x = 2 sigmoid(x) - 1", &tanh, &sigmoid.replace("scale(2) t0", "scale(1) t0"));
    let negated = format!(
        "{one} t1 = scale(-1) t0\n t2 = sigmoid t1\n t3 = scale(-1) t2\n t4 = offset(1) t3\n output \"o\" t4\n"
    );
    proved("sigmoid x = 1 - sigmoid(-x)", &format!("{one} t1 = sigmoid t0\n output \"o\" t1\n"), &negated);
    let silu = format!("{one} t1 = silu t0\n output \"o\" t1\n");
    proved(
        "silu x = x sigmoid x",
        &silu,
        &format!("{one} t1 = sigmoid t0\n t2 = mul t0, t1\n output \"o\" t2\n"),
    );
}

#[test]
fn cases_of_relu_and_programs_with_maxima_are_proved() {
    let one = " t0 = input \"x\" [8, 64]\n";
    let relu = format!("{one} t1 = relu t0\n output \"o\" t1\n");
    proved("relu of relu", &relu, &format!("{one} t1 = relu t0\n t2 = relu t1\n output \"o\" t2\n"));
    let negated = format!("{one} t1 = scale(-1) t0\n t2 = relu t1\n t3 = add t0, t2\n output \"o\" t3\n");
    proved("relu x = x + relu(-x)", &relu, &negated);
    refused("relu x = x - relu(-x)", &relu, &negated.replace("add t0, t2", "sub t0, t2"));
    refused("relu x = x", &relu, &format!("{one} t1 = scale(1) t0\n output \"o\" t1\n"));
    let safe = format!(
        "{one} t1 = largest(1) t0\n t2 = sub t0, t1\n t3 = exp t2\n t4 = sum(1) t3\n t5 = div t3, t4\n output \"o\" t5\n"
    );
    proved("softmax", &safe, &safe);
    let plain = format!("{one} t1 = exp t0\n t2 = sum(1) t1\n t3 = div t1, t2\n output \"o\" t3\n");
    proved("softmax without a maximum, with one", &plain, &safe);
    proved("softmax with a maximum, without one", &safe, &plain);
    let outputs = |first: &str, second: &str| {
        format!("{one} t1 = exp t0\n t2 = square t0\n output \"a\" {first}\n output \"b\" {second}\n")
    };
    proved("two outputs", &outputs("t1", "t2"), &outputs("t1", "t2"));
    refused("two outputs exchanged", &outputs("t1", "t2"), &outputs("t2", "t1"));
}

#[test]
fn exponentials_of_other_elements_are_not_taken() {
    // A row that is multiplied and divided by an exponential of another row: their independence is checked by row only.
    let head = " t0 = input \"q\" [6, 4]\n t1 = input \"k\" [4, 6]\n t2 = causal(0, 6, 6)\n t3 = matmul t0, t1\n \
                t4 = mask t3, t2\n t5 = exp t4\n t6 = sum(1) t5\n t7 = div t5, t6\n";
    let program = format!("{head} output \"o\" t7\n");
    proved("causal", &program, &program);
    let other =
        format!("{head} t8 = slice(0, 5, 1) t6\n t9 = mul t7, t8\n t10 = div t9, t8\n output \"o\" t10\n");
    let same = proof(&program, &other);
    assert!(same.is_ok(), "what cancels is not depended on: {same:?}");
    let shifted = format!("{head} t8 = slice(0, 5, 1) t6\n t9 = mul t7, t8\n output \"o\" t9\n");
    refused("other rows", &program, &shifted);
    // Two outputs whose exponentials are powers of each other.
    let two = " t0 = input \"x\" [4, 8]\n t1 = scale(1000003) t0\n t2 = exp t0\n t3 = exp t1\n \
               output \"a\" t2\n output \"b\" t3\n";
    let message = proof(two, two).expect_err("exponents that depend on each other").to_string();
    assert!(message.contains("not independent"), "{message}");
}

/// Rows of a causal mask are not alike, those of a mask that is given are: long attention is proved for all masks.
#[test]
fn long_causal_attention_is_proved_for_all_masks() {
    let (q, k, v) = ("input \"q\" [2048, 64]", "input \"k\" [64, 2048]", "input \"v\" [2048, 64]");
    let program = format!(
        " t0 = {q}\n t1 = {k}\n t2 = matmul t0, t1\n t3 = scale(370881/4194304) t2\n t4 = causal(0, 2048, 2048)\n \
         t5 = mask t3, t4\n t6 = exp t5\n t7 = sum(1) t6\n t8 = div t6, t7\n t9 = {v}\n t10 = matmul t8, t9\n \
         output \"o\" t10\n"
    );
    let candidate = |causal: &str, rescaled: &str| {
        format!(
            " t0 = {q}\n t1 = {k}\n t2 = {causal}\n t3 = {v}\n t4 = block [32] loop 32 {{\n s0 = load t0 [0] -\n \
             s1 = load t1 [-] 1\n s2 = load t2 [0] 1\n s3 = load t3 [-] 0\n s4 = scale(370881/4194304) s0\n \
             s5 = matmul s4, s1\n s6 = mask s5, s2\n s7 = largest(1) s6\n s8 = running_max s7\n s9 = guard s8\n \
             s10 = sub s6, s9\n s11 = exp s10\n s12 = sum(1) s11\n s13 = matmul s11, s3\n \
             s14 = accumulate rescaled s8 1 s12\n s15 = accumulate {rescaled} s13\n s16 = div s15, s14\n \
             store s16 [0]\n }}\n output \"o\" t4\n"
        )
    };
    let causal = "causal(0, 2048, 2048)";
    let proof = proof(&program, &candidate(causal, "rescaled s8 1"));
    let premises = proof.unwrap_or_else(|e| panic!("{e}")).premises;
    assert!(premises.iter().any(|premise| premise.starts_with("Masks that are formulas are any masks")));
    // What fails for all masks is looked at as it is, which only a smaller program is here.
    let short = |text: &str| text.replace("2048", "320");
    let proof = |candidate: &str| self::proof(&short(&program), &short(candidate));
    assert!(proof(&candidate(causal, "rescaled s8 1")).is_ok());
    assert!(proof(&candidate("causal(1, 2048, 2048)", "rescaled s8 1")).is_err());
    assert!(proof(&candidate(causal, "sum")).is_err());
}
