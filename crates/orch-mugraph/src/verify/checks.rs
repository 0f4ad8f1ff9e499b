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

/// Which checks are made.
#[derive(Clone, Copy, Debug)]
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
