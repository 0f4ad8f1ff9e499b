//! The checks of the prover in one table: what each refuses.
//!
//! All are always made. Tests of this crate leave out one at a time and look at what passes then: a check that nothing depends on
//! is none. `docs/proofs.md` has the table with the reason for each without which no committed µGraph passes.

/// A check of the prover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Check {
    /// Refuses inputs and outputs of other number, name, shape or kind.
    Signature,
    /// Refuses µGraphs that the validator refuses.
    Valid,
    /// Refuses programs that are defined by a block graph, into which no argument about exponents looks.
    ProgramOfOperators,
    /// Refuses minus infinity where it has no meaning, outputs included.
    Infinity,
    /// Leaves indices uncut that outputs of program and candidate do not run over alike.
    OutputIndices,
    /// Leaves indices uncut that meet in an operator and differ.
    OperandIndices,
    /// Leaves an index uncut that a tensor or tile of the candidate has twice.
    IndexTwice,
    /// Leaves indices uncut along which an operator does not treat elements alike.
    SerialIndices,
    /// Leaves indices uncut that loops, grids and stores of blocks do not cut alike.
    BlockIndices,
    /// Takes the same extent for no two indices.
    DistinctExtents,
    /// Compares the uncut programs too, where they are small.
    Uncut,
    /// Refuses exponents that are not shown to be independent and uniform.
    Rank,
    /// Refuses outputs of other residues.
    Outputs,
    /// Refuses exponents of the candidate that the program has not.
    Exponents,
    /// Refuses outputs of the candidate that depend on inputs which those of the program do not depend on.
    Reads,
    /// Refuses radicands that may be negative where the program is defined.
    Radicands,
    /// Refuses divisors that may be zero where the program is defined.
    Divisors,
    /// Refuses divisors that are sums of exponentials under other masks than the program's.
    Supports,
    /// Refuses what so many tests err on with more than the chance that is stated.
    Bound,
    /// Refuses tests of which a later one finds more exponents than the bound counts.
    SameExponents,
}

/// Which checks are made: all of them by default.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checks {
    /// A bit per check that is left out.
    left_out: u32,
}

impl Checks {
    /// All of them.
    pub(crate) const ALL: Checks = Checks { left_out: 0 };

    /// Whether a check is made.
    pub(crate) fn make(self, check: Check) -> bool {
        self.left_out >> check as u32 & 1 == 0
    }

    /// All but some.
    #[cfg(test)]
    fn without(checks: &[Check]) -> Checks {
        Checks { left_out: checks.iter().fold(0, |bits, check| bits | 1 << *check as u32) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Check, Checks};
    use crate::verify::{VerifyOptions, verify_under};
    use crate::{MuGraph, parse};

    const ALL: [Check; 20] = [
        Check::Signature,
        Check::Valid,
        Check::ProgramOfOperators,
        Check::Infinity,
        Check::OutputIndices,
        Check::OperandIndices,
        Check::IndexTwice,
        Check::SerialIndices,
        Check::BlockIndices,
        Check::DistinctExtents,
        Check::Uncut,
        Check::Rank,
        Check::Outputs,
        Check::Exponents,
        Check::Reads,
        Check::Radicands,
        Check::Divisors,
        Check::Supports,
        Check::Bound,
        Check::SameExponents,
    ];

    /// Those without which no wrong µGraph is known to pass: `docs/proofs.md` says why.
    const WITHOUT_WITNESS: [Check; 9] = [
        Check::ProgramOfOperators,
        Check::OutputIndices,
        Check::OperandIndices,
        Check::IndexTwice,
        Check::BlockIndices,
        Check::DistinctExtents,
        Check::Uncut,
        Check::Reads,
        Check::SameExponents,
    ];

    /// A wrong µGraph that passes without a check.
    struct Witness {
        check: Check,
        program: String,
        wrong: String,
        /// Bits of the primes. With few of them what is unlikely happens, and the bound is left out too.
        prime_bits: u32,
    }

    fn graph(body: &str) -> MuGraph {
        parse(&format!("mugraph \"g\" {{\n{body}}}\n")).unwrap_or_else(|error| panic!("{error}\n{body}"))
    }

    fn witness(check: Check, program: String, wrong: String) -> Witness {
        Witness { check, program, wrong, prime_bits: crate::verify::PROOF_BITS }
    }

    /// Primes p = 2 q + 1 of so many bits.
    fn safe_primes(bits: u32) -> Vec<u64> {
        let is_prime = |n: u64| n > 1 && (2..n).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
        (1 << (bits - 1)..1 << bits).filter(|&p| is_prime(p) && is_prime((p - 1) / 2)).collect()
    }

    const BITS: u32 = 8;

    /// More than what exponents are seen to be multiples by.
    const FACTOR: u64 = 1_000_003;

    fn witnesses() -> Vec<Witness> {
        let x = " t0 = input \"x\" [64, 64]\n";
        let two = " t0 = input \"x\" [64, 64]\n t1 = input \"y\" [64, 64]\n";
        let exchanged = " t0 = input \"y\" [64, 64]\n t1 = input \"x\" [64, 64]\n";
        let masked = " t0 = input \"x\" [64, 64]\n t1 = mask \"m\" [64, 64]\n t2 = mask \"n\" [64, 64]\n";
        let second = format!("{two} t2 = scale(1) t1\n output \"o\" t2\n");
        let difference = " t2 = sub t0, t1\n output \"o\" t2\n";
        let softmax = format!("{masked} t3 = mask t0, t1\n t4 = exp t3\n t5 = sum(1) t4\n t6 = div t4, t5\n");
        // Large, so that the uncut programs are not compared.
        let wide = " t0 = input \"x\" [64, 262144]\n t1 = input \"y\" [1, 262144]\n";
        let primes = safe_primes(BITS);
        assert_eq!(primes, [167, 179, 227]);
        // A multiple of all orders: x^(2 k) = 1 and e^(k x) = 1 modulo each prime.
        let k: u64 = primes.iter().map(|p| (p - 1) / 2).product();
        let of_few_bits = |check, program, wrong| Witness { check, program, wrong, prime_bits: BITS };
        let dependent = format!("{x} t1 = scale({FACTOR}) t0\n t2 = exp t0\n t3 = exp t1\n");
        vec![
            witness(Check::Signature, format!("{two}{difference}"), format!("{exchanged}{difference}")),
            witness(
                Check::Valid,
                format!("{two} t2 = exp t0\n t3 = mul t2, t1\n output \"o\" t3\n"),
                format!("{two} t2 = mask t0, t1\n t3 = exp t2\n output \"o\" t3\n"),
            ),
            witness(
                Check::Infinity,
                format!("{masked} t3 = mask t0, t1\n output \"o\" t3\n"),
                format!("{masked} t3 = scale(1) t0\n output \"o\" t3\n"),
            ),
            // 64 y, or 2 y where the index is cut to two elements.
            witness(
                Check::SerialIndices,
                format!(
                    "{wide} t2 = scale(0) t0\n t3 = sum(0) t2\n t4 = scale(2) t1\n t5 = add t4, t3\n output \"o\" t5\n"
                ),
                format!("{wide} t2 = scale(0) t0\n t3 = add t1, t2\n t4 = sum(0) t3\n output \"o\" t4\n"),
            ),
            witness(Check::Outputs, second.clone(), second.replace("scale(1)", "scale(2)")),
            witness(
                Check::Radicands,
                second.clone(),
                format!("{two} t2 = sqrt t0\n t3 = scale(0) t2\n t4 = add t1, t3\n output \"o\" t4\n"),
            ),
            witness(
                Check::Divisors,
                second.clone(),
                format!("{two} t2 = mul t1, t0\n t3 = div t2, t0\n output \"o\" t3\n"),
            ),
            witness(
                Check::Supports,
                format!("{softmax} output \"o\" t6\n"),
                format!(
                    "{softmax} t7 = mask t0, t2\n t8 = exp t7\n t9 = sum(1) t8\n t10 = mul t6, t9\n t11 = div t10, t9\n \
                     output \"o\" t11\n"
                ),
            ),
            of_few_bits(
                Check::Rank,
                format!("{dependent} output \"o\" t3\n output \"p\" t2\n"),
                format!("{x} t1 = exp t0\n{} output \"p\" t1\n", power(1, k + FACTOR)),
            ),
            of_few_bits(
                Check::Exponents,
                second.clone(),
                format!(
                    "{two} t2 = scale({}) t0\n t3 = exp t2\n t4 = exp t0\n t5 = mul t1, t3\n t6 = div t5, t4\n output \"o\" t6\n",
                    k + 1
                ),
            ),
            of_few_bits(
                Check::Bound,
                format!("{x} t1 = scale(1) t0\n output \"o\" t1\n"),
                format!("{x}{}", power(0, 2 * k + 1)),
            ),
        ]
    }

    /// The last tensor to a power, by squares and products, as an output.
    fn power(base: usize, exponent: u64) -> String {
        let (mut text, mut last) = (String::new(), base);
        for bit in (0..exponent.ilog2()).rev() {
            text += &format!(" t{} = square t{last}\n", last + 1);
            last += 1;
            if exponent >> bit & 1 == 1 {
                text += &format!(" t{} = mul t{last}, t{base}\n", last + 1);
                last += 1;
            }
        }
        format!("{text} output \"o\" t{last}\n")
    }

    #[test]
    fn without_a_check_a_wrong_candidate_passes() {
        for Witness { check, program, wrong, prime_bits } in witnesses() {
            let options = VerifyOptions { prime_bits, ..VerifyOptions::default() };
            let (program, wrong) = (graph(&program), graph(&wrong));
            let passes = |left_out: &[Check]| {
                let checks = Checks::without(left_out);
                verify_under(&program, &wrong, &options, checks).map(drop)
            };
            assert!(passes(&[]).is_err(), "{check:?}: all checks are made");
            // Primes of few bits have no good bound.
            let others: &[Check] =
                if prime_bits == BITS && check != Check::Bound { &[Check::Bound] } else { &[] };
            assert!(passes(others).is_err(), "{check:?}: others refuse it");
            assert_eq!(passes(&[others, &[check]].concat()), Ok(()), "{check:?}: it is left out");
        }
    }

    #[test]
    fn each_check_has_a_witness_or_a_reason() {
        let known: Vec<Check> = witnesses().iter().map(|witness| witness.check).collect();
        let page = include_str!("../../../../docs/proofs.md");
        for check in ALL {
            assert_ne!(known.contains(&check), WITHOUT_WITNESS.contains(&check), "{check:?}");
            assert!(page.contains(&format!("| `{check:?}` |")), "docs/proofs.md has no row for {check:?}");
        }
        for (at, check) in ALL.into_iter().enumerate() {
            assert_eq!(check as usize, at, "{check:?} stands at another place in the table");
        }
    }
}
