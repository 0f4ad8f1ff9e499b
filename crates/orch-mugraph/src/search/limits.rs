//! What the search within a kernel may do, what it is for, and counts of what it did.

use super::tile::Dim;
use crate::rational::Rational;
use egg::Id;
use std::collections::BTreeMap;

/// What the search within a kernel may do.
#[derive(Clone, Copy, Debug)]
pub struct BlockLimits {
    /// Operators of a block, loads included, stores not.
    pub ops: usize,
    /// Results of a kernel that is not the last.
    pub outputs: usize,
    /// States per structure and set of sources.
    pub states: usize,
    /// Only terms of the target are followed.
    pub abstract_expressions: bool,
    /// Operators are added in canonical order only.
    pub canonical_order: bool,
    /// A tile that is there already is not made again.
    pub value_numbers: bool,
    /// States that cannot come down to few enough results are left.
    pub closability: bool,
}

impl Default for BlockLimits {
    fn default() -> Self {
        BlockLimits {
            ops: 13,
            outputs: 2,
            states: 100_000,
            abstract_expressions: true,
            canonical_order: true,
            value_numbers: true,
            closability: true,
        }
    }
}

/// A set of inputs of a program.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct InputSet(u64);

impl InputSet {
    /// Those whose number among the inputs is given; beyond the first 64 they count as loaded.
    pub fn of(numbers: impl Iterator<Item = usize>) -> InputSet {
        InputSet(numbers.filter(|&number| number < 64).fold(0, |all, number| all | 1 << number))
    }

    /// Whether an input is among them.
    pub fn contains(self, number: usize) -> bool {
        number < 64 && self.0 >> number & 1 == 1
    }
}

/// How the inputs of a program are in memory, as far as it matters to what kernels cost.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct InputStorage {
    /// Masks that kernels compute from indices.
    pub computed: InputSet,
    /// Those of 4 bytes an element where products take 2: kernels convert what they load.
    pub wide: InputSet,
    /// Those whose neighbours are along the last dimension but one, not along the last one.
    pub transposed: InputSet,
}

/// Counts of what happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// States that were visited.
    pub states: u64,
    /// What was left aside, by rule.
    pub pruned: BTreeMap<String, u64>,
    /// Searches that met their limit of states.
    pub truncated: u64,
}

impl Counts {
    /// Adds another count.
    pub fn add(&mut self, other: &Counts) {
        self.states += other.states;
        self.truncated += other.truncated;
        for (rule, count) in &other.pruned {
            *self.pruned.entry(rule.clone()).or_default() += count;
        }
    }

    pub(super) fn prune(&mut self, rule: &str) {
        match self.pruned.get_mut(rule) {
            Some(count) => *count += 1,
            None => {
                self.pruned.insert(rule.to_owned(), 1);
            }
        }
    }
}

/// A result of the program: class and dimensions.
pub type Target = (Id, Vec<Dim>);

/// States of a search within a kernel between two looks at whether to go on: some milliseconds.
pub const STATES_BETWEEN_LOOKS: u64 = 1024;

/// How far a search goes before it pauses.
#[derive(Clone, Copy)]
pub struct Allowance<'a> {
    /// States, about: the limit is looked at between searches within kernels.
    pub states: u64,
    /// Asked by all threads, each time after [`STATES_BETWEEN_LOOKS`] states at most; the search pauses at the first `false`.
    pub goes_on: &'a (dyn Fn() -> bool + Sync),
}

impl Allowance<'_> {
    /// No limit.
    pub const ENDLESS: Allowance<'static> = Allowance { states: u64::MAX, goes_on: &|| true };
}

/// What a search within a kernel is for.
#[derive(Clone, Copy)]
pub struct Goal<'a> {
    /// The program's results, each once.
    pub targets: &'a [Target],
    /// True if other results are wanted too.
    pub partial: bool,
    /// Norms that the program takes, with their constants.
    pub norms: &'a [Rational],
}
