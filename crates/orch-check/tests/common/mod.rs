//! Helpers of several test files.
#![allow(dead_code)]

pub mod mutate;

use orch_check::{Program, Verdict, check, parse};
use std::time::Duration;

/// Time that decides no test.
pub const PLENTY: Duration = Duration::from_secs(300);

/// The programs of a text.
pub fn programs(text: &str) -> Vec<Program> {
    parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// The answer for a program and a candidate.
pub fn decide(program: &str, candidate: &str, seed: u128) -> Verdict {
    check(&programs(program)[0], &programs(candidate)[0], seed, PLENTY)
}

/// A program of some statements: `t0 = input "x" [2, 3]; t1 = exp t0; output "o" t1`.
pub fn text(statements: &str) -> String {
    let lines: String = statements.split(';').map(|line| format!("  {}\n", line.trim())).collect();
    format!("mugraph \"p\" {{\n{lines}}}\n")
}

/// True if it is proved; panics with the reason of another answer if `wanted`.
pub fn is_proved(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Proved(proof) if proof.log2_bound <= -80.0)
}
