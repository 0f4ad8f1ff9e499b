//! Pairs that are equal are proved.

mod common;

use common::{PLENTY, decide, is_proved, programs, text};
use orch_check::{Verdict, check};
use std::path::Path;

/// What the search found for the programs of the paper, for GPUs and CPUs, and rotary attention.
#[test]
fn found_mugraphs_are_proved_at_their_full_extents() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/found");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 40);
    for path in paths {
        let pair = programs(&std::fs::read_to_string(&path).unwrap());
        let verdict = check(&pair[0], &pair[1], 7, PLENTY);
        assert!(is_proved(&verdict), "{}: {verdict:?}", path.display());
    }
}

/// The hand-written µGraphs of `orch-mugraph`, with the programs that they compute.
#[test]
fn hand_written_mugraphs_are_proved() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../orch-mugraph/tests/mugraphs");
    for (candidate, program) in [
        ("gqa_split", "gqa_spec_b1_gpu"),
        ("rmsnorm", "rmsnorm_b1_gpu"),
        ("lora", "lora_gpu"),
        ("ntrans", "ntrans_b1_gpu"),
        ("adapter_split", "adapter_exp_gpu"),
        ("gated_mlp", "gated_mlp_gpu"),
    ] {
        let found = format!("{}/tests/found/{program}.txt", env!("CARGO_MANIFEST_DIR"));
        let program = &programs(&std::fs::read_to_string(found).unwrap())[0];
        let text = std::fs::read_to_string(folder.join(format!("{candidate}.txt"))).unwrap();
        let verdict = check(program, &programs(&text)[0], 3, PLENTY);
        assert!(is_proved(&verdict), "{candidate}: {verdict:?}");
    }
}

/// Name, program, candidate.
const IDENTITIES: [(&str, &str, &str); 32] = [
    (
        "a part of all blocks beside one of each",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [1, 6]; t2 = broadcast(4, 6) t1; t3 = concat(1) t0, t2; t4 = exp t3; output \"o\" t4",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [1, 6]; t2 = block [4] loop 1 {; s0 = load t0 [0] -; s1 = load t1 [-] -; s2 = exp s1; s3 = exp s0; s4 = concat(1) s3, s2; store s4 [0]; }; output \"o\" t2",
    ),
    (
        "uneven parts",
        "t0 = input \"x\" [7, 11]; t1 = input \"w\" [11, 5]; t2 = matmul t0, t1; t3 = sum(0) t2; output \"o\" t2; output \"p\" t3",
        "t0 = input \"x\" [7, 11]; t1 = input \"w\" [11, 5]; t2 = block [2, 2] loop 4 {; s0 = load t0 [0, -] 1; s1 = load t1 [-, 1] 0; s2 = matmul s0, s1; s3 = accumulate sum s2; store s3 [0, 1]; }; t3 = block [3] loop 3 {; s0 = load t2 [1] 0; s1 = sum(0) s0; s2 = accumulate sum s1; store s2 [1]; }; output \"o\" t2; output \"p\" t3",
    ),
    (
        "uneven parts of parts",
        "t0 = input \"x\" [10, 3]; t1 = slice(0, 0, 5) t0; t2 = slice(0, 5, 5) t0; t3 = sum(0) t1; t4 = sum(0) t2; t5 = concat(0) t3, t4; output \"o\" t5",
        "t0 = input \"x\" [10, 3]; t1 = block [2] loop 2 {; s0 = load t0 [0] 0; s1 = sum(0) s0; s2 = accumulate sum s1; store s2 [0]; }; output \"o\" t1",
    ),
    (
        "many rows and keys in parts of 64 and 128, and what is left",
        "t0 = input \"x0\" [64, 577, 64]; t1 = input \"x1\" [64, 64, 577]; t2 = matmul t0, t1; t3 = exp t2; t4 = sum(2) t3; t5 = div t3, t4; t6 = input \"x2\" [64, 577, 64]; t7 = matmul t5, t6; output \"o\" t7",
        "t0 = input \"x0\" [64, 577, 64]; t1 = input \"x1\" [64, 64, 577]; t2 = input \"x2\" [64, 577, 64]; t3 = block [64, 10] loop 4 {; s0 = load t0 [0, 1] 2; s1 = load t1 [0, -] 1; s2 = matmul s0, s1; s3 = accumulate sum s2; store s3 [0, 1]; }; t4 = block [64, 10] loop 5 {; s0 = load t3 [0, 1] 2; s1 = load t2 [0, -] 1; s2 = largest(2) s0; s3 = running_max s2; s4 = guard s3; s5 = sub s0, s4; s6 = exp s5; s7 = sum(2) s6; s8 = matmul s6, s1; s9 = accumulate rescaled s3 1 s7; s10 = accumulate rescaled s3 1 s8; s11 = div s10, s9; store s11 [0, 1]; }; output \"o\" t4",
    ),
    (
        "sum of exponents",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = add t0, t1; t3 = exp t2; output \"o\" t3",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = exp t0; t3 = exp t1; t4 = mul t3, t2; output \"o\" t4",
    ),
    (
        "half an exponent",
        "t0 = input \"x\" [4, 6]; t1 = exp t0; output \"o\" t1",
        "t0 = input \"x\" [4, 6]; t1 = scale(1/2) t0; t2 = exp t1; t3 = square t2; output \"o\" t3",
    ),
    (
        "constant exponent",
        "t0 = input \"x\" [4, 6]; t1 = offset(3/2) t0; t2 = exp t1; output \"o\" t2",
        "t0 = input \"x\" [4, 6]; t1 = offset(1) t0; t2 = exp t1; t3 = scale(0) t0; t4 = offset(1/2) t3; t5 = exp t4; t6 = mul t2, t5; output \"o\" t6",
    ),
    (
        "tanh",
        "t0 = input \"x\" [4, 6]; t1 = tanh t0; output \"o\" t1",
        "t0 = input \"x\" [4, 6]; t1 = scale(2) t0; t2 = sigmoid t1; t3 = scale(2) t2; t4 = offset(-1) t3; output \"o\" t4",
    ),
    (
        "sigmoid",
        "t0 = input \"x\" [4, 6]; t1 = sigmoid t0; output \"o\" t1",
        "t0 = input \"x\" [4, 6]; t1 = scale(-1) t0; t2 = sigmoid t1; t3 = scale(-1) t2; t4 = offset(1) t3; output \"o\" t4",
    ),
    (
        "silu",
        "t0 = input \"x\" [4, 6]; t1 = silu t0; output \"o\" t1",
        "t0 = input \"x\" [4, 6]; t1 = sigmoid t0; t2 = mul t1, t0; output \"o\" t2",
    ),
    (
        "silu silu",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = silu t0; t3 = silu t1; t4 = mul t2, t3; output \"o\" t4",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = sigmoid t1; t3 = sigmoid t0; t4 = mul t2, t3; t5 = mul t0, t1; t6 = mul t4, t5; output \"o\" t6",
    ),
    (
        "relu twice",
        "t0 = input \"x\" [4, 6]; t1 = relu t0; output \"o\" t1",
        "t0 = input \"x\" [4, 6]; t1 = relu t0; t2 = relu t1; output \"o\" t2",
    ),
    (
        "maxima",
        "t0 = input \"x\" [4, 6]; t1 = largest(1) t0; t2 = sub t0, t1; t3 = exp t2; output \"o\" t3",
        "t0 = input \"x\" [4, 6]; t1 = largest(1, 3) t0; t2 = largest(1) t1; t3 = sub t0, t2; t4 = exp t3; output \"o\" t4",
    ),
    (
        "safe softmax",
        "t0 = input \"x\" [4, 6]; t1 = largest(1) t0; t2 = sub t0, t1; t3 = exp t2; t4 = sum(1) t3; t5 = div t3, t4; output \"o\" t5",
        "t0 = input \"x\" [4, 6]; t1 = exp t0; t2 = sum(1) t1; t3 = div t1, t2; output \"o\" t3",
    ),
    (
        "softmax by its maximum",
        "t0 = input \"x\" [4, 6]; t1 = exp t0; t2 = sum(1) t1; t3 = div t1, t2; output \"o\" t3",
        "t0 = input \"x\" [4, 6]; t1 = largest(1) t0; t2 = sub t0, t1; t3 = exp t2; t4 = sum(1) t3; t5 = div t3, t4; output \"o\" t5",
    ),
    (
        "attention and gate",
        "t0 = input \"q\" [2, 6, 4]; t1 = input \"k\" [2, 4, 8]; t2 = input \"v\" [2, 8, 4]; t3 = input \"g\" [2, 6, 4]; t4 = matmul t0, t1; t5 = exp t4; t6 = sum(2) t5; t7 = div t5, t6; t8 = matmul t7, t2; t9 = sigmoid t3; t10 = mul t8, t9; output \"o\" t10",
        "t0 = input \"q\" [2, 6, 4]; t1 = input \"k\" [2, 4, 8]; t2 = input \"v\" [2, 8, 4]; t3 = input \"g\" [2, 6, 4]; t4 = matmul t0, t1; t5 = exp t4; t6 = sum(2) t5; t7 = matmul t5, t2; t8 = sigmoid t3; t9 = mul t7, t8; t10 = div t9, t6; output \"o\" t10",
    ),
    (
        "self-attention of one tensor",
        "t0 = input \"x\" [6, 4]; t1 = transpose(1, 0) t0; t2 = matmul t0, t1; t3 = exp t2; t4 = sum(1) t3; t5 = div t3, t4; t6 = matmul t5, t0; output \"o\" t6",
        "t0 = input \"x\" [6, 4]; t1 = transpose(1, 0) t0; t2 = matmul t0, t1; t3 = largest(1) t2; t4 = sub t2, t3; t5 = exp t4; t6 = sum(1) t5; t7 = matmul t5, t0; t8 = div t7, t6; output \"o\" t8",
    ),
    (
        "exponents that are made of each other",
        "t0 = input \"x\" [4, 6]; t1 = square t0; t2 = exp t1; t3 = exp t0; t4 = mul t2, t3; output \"o\" t4",
        "t0 = input \"x\" [4, 6]; t1 = mul t0, t0; t2 = add t1, t0; t3 = exp t2; output \"o\" t3",
    ),
    (
        "an exponential of an exponential",
        "t0 = input \"x\" [4, 6]; t1 = exp t0; t2 = add t1, t0; t3 = exp t2; output \"o\" t3",
        "t0 = input \"x\" [4, 6]; t1 = exp t0; t2 = exp t1; t3 = mul t2, t1; output \"o\" t3",
    ),
    (
        "factors of a divisor",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = input \"z\" [4, 6]; t3 = mul t0, t1; t4 = div t2, t3; output \"o\" t4",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = input \"z\" [4, 6]; t3 = div t2, t0; t4 = div t3, t1; output \"o\" t4",
    ),
    (
        "a product of divisors",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = input \"z\" [4, 6]; t3 = div t2, t0; t4 = div t3, t1; output \"o\" t4",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = input \"z\" [4, 6]; t3 = mul t0, t1; t4 = div t2, t3; output \"o\" t4",
    ),
    (
        "an extended fraction",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = div t1, t0; output \"o\" t2",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = scale(-2) t0; t3 = scale(-2) t1; t4 = div t3, t2; output \"o\" t4",
    ),
    (
        "roots of what is not negative",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = scale(1) t1; output \"o\" t2",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = square t0; t3 = sqrt t2; t4 = scale(0) t3; t5 = add t1, t4; t6 = exp t0; t7 = sqrt t6; t8 = scale(0) t7; t9 = add t5, t8; output \"o\" t9",
    ),
    (
        "linear attention",
        "t0 = input \"q\" [6, 4]; t1 = input \"k\" [4, 8]; t2 = input \"v\" [8, 5]; t3 = sigmoid t0; t4 = sigmoid t1; t5 = matmul t3, t4; t6 = matmul t5, t2; output \"o\" t6",
        "t0 = input \"q\" [6, 4]; t1 = input \"k\" [4, 8]; t2 = input \"v\" [8, 5]; t3 = sigmoid t0; t4 = sigmoid t1; t5 = matmul t4, t2; t6 = matmul t3, t5; output \"o\" t6",
    ),
    (
        "soft capping",
        "t0 = input \"x\" [4, 6]; t1 = tanh t0; t2 = scale(30) t1; t3 = exp t2; t4 = sum(1) t3; t5 = div t3, t4; output \"o\" t5",
        "t0 = input \"x\" [4, 6]; t1 = scale(2) t0; t2 = sigmoid t1; t3 = scale(2) t2; t4 = offset(-1) t3; t5 = scale(30) t4; t6 = exp t5; t7 = sum(1) t6; t8 = div t6, t7; output \"o\" t8",
    ),
    (
        "masks",
        "t0 = input \"x\" [4, 6]; t1 = mask \"m\" [4, 6]; t2 = mask t0, t1; t3 = exp t2; t4 = sum(1) t3; t5 = div t3, t4; output \"o\" t5",
        "t0 = input \"x\" [4, 6]; t1 = mask \"m\" [4, 6]; t2 = exp t0; t3 = mul t2, t1; t4 = sum(1) t3; t5 = div t3, t4; output \"o\" t5",
    ),
    (
        "causal",
        "t0 = input \"x\" [5, 5]; t1 = causal(0, 5, 5); t2 = mask t0, t1; t3 = exp t2; t4 = sum(1) t3; t5 = div t3, t4; output \"o\" t5",
        "t0 = input \"x\" [5, 5]; t1 = causal(0, 5, 5); t2 = mask t0, t1; t3 = largest(1) t2; t4 = guard t3; t5 = sub t2, t4; t6 = exp t5; t7 = sum(1) t6; t8 = div t6, t7; output \"o\" t8",
    ),
    (
        "several outputs",
        "t0 = input \"x\" [4, 6]; t1 = square t0; t2 = exp t0; output \"a\" t1; output \"b\" t2",
        "t0 = input \"x\" [4, 6]; t1 = exp t0; t2 = mul t0, t0; output \"b\" t1; output \"a\" t2",
    ),
    (
        "transposes",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [6, 4]; t2 = matmul t0, t1; output \"o\" t2",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [6, 4]; t2 = transpose(1, 0) t0; t3 = transpose(1, 0) t1; t4 = matmul t3, t2; t5 = transpose(1, 0) t4; output \"o\" t5",
    ),
    (
        "concatenations",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = concat(1) t0, t1; t3 = exp t2; output \"o\" t3",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = exp t0; t3 = exp t1; t4 = concat(1) t2, t3; output \"o\" t4",
    ),
    (
        "norms",
        "t0 = input \"x\" [4, 6]; t1 = input \"w\" [6, 8]; t2 = rms_norm(1/1000) t0; t3 = matmul t2, t1; output \"o\" t3",
        "t0 = input \"x\" [4, 6]; t1 = input \"w\" [6, 8]; t2 = square t0; t3 = sum(1) t2; t4 = scale(1/6) t3; t5 = offset(1/1000) t4; t6 = sqrt t5; t7 = matmul t0, t1; t8 = div t7, t6; output \"o\" t8",
    ),
    (
        "gelu",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = gelu t0; t3 = erf t1; t4 = add t2, t3; output \"o\" t4",
        "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = erf t1; t3 = gelu t0; t4 = add t2, t3; output \"o\" t4",
    ),
];

#[test]
fn identities_are_proved() {
    let failed: Vec<String> = IDENTITIES
        .iter()
        .map(|(name, program, candidate)| (name, decide(&text(program), &text(candidate), 5)))
        .filter(|(_, verdict)| !is_proved(verdict))
        .map(|(name, verdict)| format!("{name}: {verdict:?}"))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_program_is_proved_to_be_itself() {
    for (name, program, _) in IDENTITIES {
        let verdict = decide(&text(program), &text(program), 6);
        assert!(is_proved(&verdict), "{name}: {verdict:?}");
    }
}

#[test]
fn the_seed_decides_the_answer() {
    let (_, program, candidate) = IDENTITIES[0];
    let run = |seed| decide(&text(program), &text(candidate), seed);
    assert_eq!(run(1), run(1));
    let rounds =
        |verdict: Verdict| if let Verdict::Proved(proof) = verdict { proof.rounds } else { Vec::new() };
    assert_ne!(rounds(run(1)), rounds(run(2)));
    assert_ne!(rounds(run(1)), rounds(run(1 + (1 << 64))));
}

/// Extents that no memory holds, of indices that are treated alike.
#[test]
fn extents_of_parallel_indices_cost_nothing() {
    let large = text("t0 = input \"x\" [3000000, 3000000]; t1 = exp t0; output \"o\" t1");
    let Verdict::Proved(proof) = decide(&large, &large, 1) else { panic!("not proved") };
    assert_eq!(proof.cut, [(3_000_000, 2); 2]);
}

/// All rows of a causal mask have the first column: so it is not for any mask, in whose place the formula is decided too.
#[test]
fn large_programs_with_formulas_are_decided_as_they_are() {
    let masked = text(
        "t0 = input \"x\" [800, 800]; t1 = causal(0, 800, 800); t2 = slice(1, 0, 1) t1; t3 = mul t0, t2; output \"o\" t3",
    );
    let plain = text("t0 = input \"x\" [800, 800]; t1 = scale(1) t0; output \"o\" t1");
    let verdict = decide(&masked, &plain, 1);
    assert!(is_proved(&verdict), "{verdict:?}");
}

/// An exponential of `x / n` has a power of `n` where one of `x` stands beside it: the bound has its degree.
#[test]
fn denominators_of_exponents_take_rounds() {
    let rounds = |n: u64| {
        let program = format!(
            "t0 = input \"x\" [4, 6]; t1 = scale(1/{n}) t0; t2 = exp t1; t3 = exp t0; t4 = mul t2, t3; output \"o\" t4"
        );
        let candidate =
            format!("t0 = input \"x\" [4, 6]; t1 = scale({}/{n}) t0; t2 = exp t1; output \"o\" t2", n + 1);
        match decide(&text(&program), &text(&candidate), 8) {
            Verdict::Proved(proof) => proof.rounds.len(),
            verdict => panic!("{n}: {verdict:?}"),
        }
    };
    assert_eq!(rounds(2), 2);
    assert!(rounds(1 << 30) > 2);
}

/// Exponents with a factor, and rescaled sums of them, are sums of values with signs: the scale before the product, the maxima after it.
#[test]
fn scales_may_be_before_a_product_that_maxima_are_of() {
    let exponents = |before: &str, after: &str| {
        format!("t0 = input \"q\" [16, 8]; t1 = input \"k\" [8, 16]; {before}{after}")
    };
    let program =
        exponents("t2 = matmul t0, t1; t3 = scale(1/2) t2; ", "t4 = exp t3; t5 = sum(1) t4; output \"o\" t5");
    let candidate = exponents(
        "t2, t3 = block [2] loop 4 {; s0 = load t0 [0] -; s1 = load t1 [-] 1; s2 = scale(1/2) s0; s3 = matmul s2, s1; ",
        "s4 = largest(1) s3; s5 = running_max s4; s6 = sub s3, s5; s7 = exp s6; s8 = sum(1) s7; \
         s9 = accumulate rescaled s5 1 s8; s10 = accumulate max s4; store s9 [0]; store s10 [0]; }; \
         t4 = exp t3; t5 = mul t2, t4; output \"o\" t5",
    );
    let verdict = decide(&text(&program), &text(&candidate), 1);
    assert!(is_proved(&verdict), "{verdict:?}");
}
