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
