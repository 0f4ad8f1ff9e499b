//! The verifier accepts equal programs and rejects different ones, and with small primes its bound matches the observed
//! rate of false acceptance.

mod common;

use common::{mugraph, program, resized, valid};
use orch_mugraph::verify::single_test;
use orch_mugraph::{MuGraph, Rejection, VerifyOptions, verify};

/// Smaller extents for the programs of the paper, so that many graphs are verified in a test.
const SMALL: [(usize, usize); 4] = [(256, 64), (4096, 128), (64, 16), (1024, 32)];

#[test]
fn good_mugraphs_are_accepted_at_full_size_with_a_bound() {
    for (candidate, name) in [
        ("gqa_split", "osdi_gqa"),
        ("rmsnorm", "osdi_rmsnorm"),
        ("lora", "osdi_lora"),
        ("ntrans", "osdi_ntrans"),
        ("adapter_split", "mlp_adapter"),
    ] {
        let certificate = verify(&program(name), &mugraph(candidate), &VerifyOptions::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(certificate.log2_bound < -80.0, "{name}: {}", certificate.log2_bound);
    }
    let small = [(4096, 256)];
    let (program, fused) =
        (resized(&program("osdi_gated_mlp"), &small), resized(&mugraph("gated_mlp"), &small));
    let certificate = verify(&program, &fused, &VerifyOptions::default()).unwrap();
    assert!(certificate.log2_bound < -80.0 && certificate.rank.exponentials == 1);
}

#[test]
fn the_exponentials_of_an_attention_are_those_of_a_row() {
    let certificate = verify(&program("osdi_gqa"), &mugraph("gqa_split"), &VerifyOptions::default()).unwrap();
    assert_eq!(certificate.rank.exponentials, 4096);
    assert_eq!(certificate.rank.inputs, ["k"]);
}

#[test]
fn certificates_are_checked_alone() {
    let (program, candidate) =
        (resized(&program("osdi_gqa"), &SMALL), resized(&mugraph("gqa_split"), &SMALL));
    let certificate = verify(&program, &candidate, &VerifyOptions::default()).unwrap();
    let text = certificate.to_json();
    let read = orch_mugraph::Certificate::from_json(&text).unwrap();
    assert_eq!(read.check(), Ok(()));
    let message = |text: String| {
        let read = orch_mugraph::Certificate::from_json(&text);
        read.and_then(|read| read.check()).unwrap_err().to_string()
    };
    assert_eq!(message(text.replace("div s3, s2", "mul s3, s2")), "output 0 differs at element 0");
    assert!(message(text.replace("mugraph-certificate-2", "3")).contains("form 3"));
    assert!(message(text.replace("\"prime_bits\": 61", "\"prime_bits\": 7")).contains("primes of 7 bits"));
    for bound in [certificate.log2_bound - 1.0, certificate.log2_bound + 1.0, -1.0, 0.0] {
        let other = orch_mugraph::Certificate { log2_bound: bound, ..certificate.clone() };
        assert_eq!(
            other.check().unwrap_err().to_string(),
            "the certificate states another bound than the check finds"
        );
    }
    for inside in ["\"rank\": {", "\"numerator\": {", "\"tests\": [\n    {", "\"degrees\": [\n    {", "{"] {
        assert!(text.contains(inside), "{inside}");
        let more = message(text.replacen(inside, &format!("{inside} \"extra\": 1, "), 1));
        assert!(more.contains("unknown field `extra`"), "{inside}: {more}");
    }
    let mut seeds = certificate;
    seeds.tests[0].seed += 1;
    assert_eq!(
        seeds.check().unwrap_err().to_string(),
        "the certificate states another test than the check finds"
    );
}

#[test]
fn right_normalised_attention_is_accepted() {
    let small = [(256, 64), (4096, 128), (64, 16)];
    let program = resized(&program("osdi_qknorm"), &small);
    let candidate = valid(
        "mugraph \"qknorm split\" {\n t0 = input \"q\" [2, 64, 16]\n t1 = input \"k\" [2, 16, 128]\n \
         t2 = input \"v\" [2, 128, 16]\n t3, t4 = block [2, 4, 4] loop 2 {\n s0 = load t0 [0, -, 1] -\n \
         s1 = load t1 [0, 2, -] 2\n s2 = load t2 [0, 1, -] 1\n s3 = rms_norm(0) s0\n s4 = rms_norm(0) s2\n \
         s5 = matmul s3, s1\n s6 = exp s5\n s7 = sum(2) s6\n s8 = accumulate sum s7\n s9 = matmul s6, s4\n \
         s10 = accumulate sum s9\n store s8 [0, 2, 1]\n store s10 [0, 2, 1]\n }\n t5 = sum(2) t3\n \
         t6 = sum(2, 16) t4\n t7 = div t6, t5\n output \"o\" t7\n}\n",
    );
    let certificate = verify(&program, &candidate, &VerifyOptions::default()).unwrap();
    assert!(certificate.log2_bound < -80.0, "{}", certificate.log2_bound);
    assert_eq!(certificate.rank.inputs, ["k"]);
}

/// Programs of one-element tensors.
fn scalars(inputs: usize, body: &str) -> MuGraph {
    let names = (0..inputs).map(|i| format!(" t{i} = input \"x{i}\" [1, 1]\n"));
    valid(&format!("mugraph \"s\" {{\n{}{body}}}\n", names.collect::<String>()))
}

/// A name, inputs, two programs, and the chance of an accident for `p` and `q`.
type Accident = (&'static str, usize, &'static str, &'static str, fn(f64, f64) -> f64);

#[test]
fn with_small_primes_accidents_are_not_more_often_than_the_bound_says() {
    // Each pair differs, by a polynomial of known degree whose zeros are counted by hand: the chance of an accident.
    let cases: [Accident; 6] = [
        // x0 + x1 = x0 x1 has p - 1 solutions.
        (
            "sum, product",
            2,
            " t2 = add t0, t1\n output \"o\" t2\n",
            " t2 = mul t0, t1\n output \"o\" t2\n",
            |p, _| (p - 1.0) / (p * p),
        ),
        // x0 x1 = x0 x2.
        (
            "wrong operand",
            3,
            " t3 = mul t0, t1\n t4 = scale(0) t2\n t5 = add t3, t4\n output \"o\" t5\n",
            " t3 = mul t0, t2\n t4 = scale(0) t1\n t5 = add t3, t4\n output \"o\" t5\n",
            |p, _| 1.0 / p + (1.0 - 1.0 / p) / p,
        ),
        // e^x0 + e^x1 = e^x0 where x1 is not, at all.
        (
            "wrong exponent",
            2,
            " t2 = exp t0\n t3 = exp t1\n t4 = add t2, t3\n output \"o\" t4\n",
            " t2 = exp t0\n t3 = exp t1\n t4 = mul t2, t3\n output \"o\" t4\n",
            |_, q| 1.0 / q,
        ),
        // x0 / x1 = x1 where x0 = x1², x1 not zero.
        (
            "ratio",
            2,
            " t2 = div t0, t1\n output \"o\" t2\n",
            " t2 = scale(0) t0\n t3 = add t1, t2\n output \"o\" t3\n",
            |p, _| 1.0 / p,
        ),
        // The hashes of two arguments, or the arguments, are the same.
        (
            "function",
            2,
            " t2 = erf t0\n t3 = scale(0) t1\n t4 = add t2, t3\n output \"o\" t4\n",
            " t2 = erf t1\n t3 = scale(0) t0\n t4 = add t2, t3\n output \"o\" t4\n",
            |p, _| 2.0 / p,
        ),
        // Maxima of other sets.
        (
            "maximum",
            3,
            " t3 = max t0, t1\n t4 = scale(0) t2\n t5 = add t3, t4\n output \"o\" t5\n",
            " t3 = max t0, t2\n t4 = scale(0) t1\n t5 = add t3, t4\n output \"o\" t5\n",
            |p, _| 2.0 / p,
        ),
    ];
    let mut most = 0.0f64;
    for (name, inputs, program, candidate, chance) in cases {
        let (program, candidate) = (scalars(inputs, program), scalars(inputs, candidate));
        for (bits, trials) in [(8, 20_000u64), (10, 20_000), (12, 40_000), (14, 80_000)] {
            let bound = single_test(&program, &program, bits, 0).expect("a program is itself").exp2();
            let accepted =
                (0..trials).filter(|&seed| single_test(&program, &candidate, bits, seed).is_ok()).count();
            let rate = accepted as f64 / trials as f64;
            // One-sided, 99.9 %: with the bound as chance, no more are accepted.
            let deviation = (bound * (1.0 - bound).max(0.0) / trials as f64).sqrt();
            assert!(
                rate <= bound + 3.09 * deviation,
                "{name}, {bits} bits: {rate}, above the bound of {bound}"
            );
            // Primes are between half of 2^bits and 2^bits.
            let p = f64::from(bits).exp2();
            let expected = chance(p / 2.0, p / 4.0);
            assert!(
                rate <= expected + 5.0 * (expected / trials as f64).sqrt(),
                "{name}, {bits} bits: {rate}"
            );
            most = most.max(rate / bound);
            println!("{name}, {bits} bits: {rate:.5}, at most {expected:.5}, stated {bound:.5}");
        }
    }
    assert!(most > 0.01, "the bound is not far from what happens: {most}");
}

#[test]
fn programs_outside_the_fragment_are_refused_with_a_reason() {
    let refused = |body: &str, reason: &str| {
        let program = scalars(1, body);
        let message = verify(&program, &program, &VerifyOptions::default()).unwrap_err().to_string();
        assert!(message.contains(reason), "{message}");
    };
    refused(" t1 = exp t0\n t2 = exp t1\n output \"o\" t2\n", "t2: an exponential of an exponential");
    refused(" t1 = silu t0\n t2 = sigmoid t1\n output \"o\" t2\n", "t2: an exponential of an exponential");
    refused(" t1 = log t0\n output \"o\" t1\n", "t1: a logarithm");
    refused(
        " t1 = causal(-1, 1, 1)\n t2 = mask t0, t1\n output \"o\" t2\n",
        "output o may be minus infinity",
    );
    // Two exponentials with exponents x and x + 1.
    refused(
        " t1 = exp t0\n t2 = offset(1) t0\n t3 = exp t2\n t4 = add t1, t3\n output \"o\" t4\n",
        "not independent",
    );
}

#[test]
fn functions_and_epilogues_of_the_fragment_are_proved() {
    let same = |program: &str, candidate: &str| {
        verify(&valid(program), &valid(candidate), &VerifyOptions::default())
    };
    let head = "mugraph \"e\" {\n t0 = input \"x\" [6, 8]\n t1 = input \"w\" [8, 4]\n t2 = input \"b\" [1, 4]\n \
                t3 = input \"r\" [6, 4]\n";
    for f in ["relu", "erf", "gelu", "tanh", "silu", "sigmoid"] {
        let program = format!(
            "{head} t4 = matmul t0, t1\n t5 = add t4, t2\n t6 = {f} t5\n t7 = add t6, t3\n output \"o\" t7\n}}\n"
        );
        let fused = format!(
            "{head} t4 = block [3, 2] loop 2 {{\n s0 = load t0 [0, -] 1\n s1 = load t1 [-, 1] 0\n s2 = matmul s0, s1\n \
             s3 = accumulate sum s2\n s4 = load t2 [-, 1] -\n s5 = add s3, s4\n s6 = {f} s5\n s7 = load t3 [0, 1] -\n \
             s8 = add s7, s6\n store s8 [0, 1]\n }}\n output \"o\" t4\n}}\n"
        );
        let certificate = same(&program, &fused).unwrap_or_else(|e| panic!("{f}: {e}"));
        assert!(certificate.log2_bound < -80.0, "{f}: {}", certificate.log2_bound);
        let early = fused.replace("s6 = ", "s6 = scale(1) s5\n s7 = ").replace("s7 = load", "s8 = load");
        let early = early.replace("s8 = add s7, s6", "s9 = add s8, s6").replace("store s8", "store s9");
        assert!(same(&program, &early).is_err(), "{f}");
    }
}

#[test]
fn masks_are_proved() {
    let program = |mask: &str| {
        format!(
            "mugraph \"m\" {{\n t0 = input \"q\" [2, 6, 4]\n t1 = input \"k\" [2, 4, 6]\n t2 = input \"v\" [2, 6, 4]\n \
             {mask}\n t4 = matmul t0, t1\n t5 = mask t4, t3\n t6 = exp t5\n t7 = sum(2) t6\n t8 = div t6, t7\n \
             t9 = matmul t8, t2\n output \"o\" t9\n}}\n"
        )
    };
    let fused = |mask: &str| {
        format!(
            "mugraph \"f\" {{\n t0 = input \"q\" [2, 6, 4]\n t1 = input \"k\" [2, 4, 6]\n t2 = input \"v\" [2, 6, 4]\n \
             {mask}\n t4 = block [2, 3] loop 2 {{\n s0 = load t0 [0, 1] -\n s1 = load t1 [0, -] 2\n \
             s2 = load t2 [0, -] 1\n s3 = load t3 [{}, 1] 2\n s4 = matmul s0, s1\n s5 = mask s4, s3\n s6 = exp s5\n \
             s7 = sum(2) s6\n s8 = accumulate sum s7\n s9 = matmul s6, s2\n s10 = accumulate sum s9\n \
             s11 = div s10, s8\n store s11 [0, 1]\n }}\n output \"o\" t4\n}}\n",
            if mask.contains("[2, 6, 6]") { "0" } else { "-" }
        )
    };
    let causal = "t3 = causal(0, 1, 6, 6)";
    let shifted = "t3 = causal(1, 1, 6, 6)";
    let padded = "t3 = below(2, 4, 1, 6, 6)";
    let given = "t3 = mask \"m\" [2, 6, 6]";
    for mask in [causal, padded, given] {
        let result = verify(&valid(&program(mask)), &valid(&fused(mask)), &VerifyOptions::default());
        assert!(result.as_ref().is_ok_and(|c| c.log2_bound < -80.0), "{mask}: {:?}", result.err());
    }
    let result = verify(&valid(&program(causal)), &valid(&fused(shifted)), &VerifyOptions::default());
    assert!(matches!(result, Err(Rejection::Different { .. })));
}
