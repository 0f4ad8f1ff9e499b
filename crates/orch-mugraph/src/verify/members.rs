//! Sets of hashes that share what they have in common with the sets they were made of, and know the sum of their members.
//!
//! A set is a binary trie by the bits of its members, of which the first decides at the root, with up to [`FEW`] sorted members in a
//! leaf. Since members are hashes, a set of `n` is about `log2(n / FEW)` deep. Nodes are kept as long as the sets: most are part of
//! several.

/// The most members of a leaf.
const FEW: usize = 16;

/// All sets of an evaluation.
#[derive(Debug, Default)]
pub(super) struct Sets {
    nodes: Vec<Node>,
    /// Of all leaves.
    members: Vec<u64>,
    /// Nodes that were made or compared, and members that were copied.
    steps: u64,
}

/// A set of hashes, one of [`Sets`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Set(usize);

#[derive(Clone, Copy, Debug)]
struct Node {
    count: usize,
    /// Modulo 2^64.
    sum: u64,
    parts: Parts,
}

#[derive(Clone, Copy, Debug)]
enum Parts {
    /// Where its sorted members begin.
    Few(usize),
    /// By a bit: where it is zero, and one. Bits before it are the same in all.
    Halves([Set; 2]),
}

impl Sets {
    /// The set of some hashes, each of which counts once.
    pub(super) fn of(&mut self, mut hashes: Vec<u64>) -> Set {
        hashes.sort_unstable();
        hashes.dedup();
        self.sorted(&hashes, 0)
    }

    /// The sum of a set's members, modulo 2^64.
    pub(super) fn sum(&self, set: Set) -> u64 {
        self.nodes[set.0].sum
    }

    /// What is in one of two sets; what is in both counts once. `n` members are added to a set of `m >= n` in about `n log2(m / n)`
    /// steps.
    pub(super) fn union(&mut self, a: Set, b: Set) -> Set {
        self.union_below(a, b, 0)
    }

    /// Steps so far.
    #[cfg(test)]
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// The union of sets whose members are the same up to a bit.
    fn union_below(&mut self, a: Set, b: Set, bit: u32) -> Set {
        self.steps += 1;
        match (self.nodes[a.0].parts, self.nodes[b.0].parts) {
            _ if a == b => a,
            (_, Parts::Few(_)) => {
                let few = self.few(b).to_vec();
                self.with(a, &few, bit)
            }
            (Parts::Few(_), Parts::Halves(_)) => self.union_below(b, a, bit),
            (Parts::Halves(own), Parts::Halves(theirs)) => {
                let both = [0, 1].map(|half| self.union_below(own[half], theirs[half], bit + 1));
                if both == own { a } else { self.joined(both) }
            }
        }
    }

    /// A set with sorted, distinct hashes added to it, all of them the same up to a bit.
    fn with(&mut self, set: Set, hashes: &[u64], bit: u32) -> Set {
        self.steps += 1;
        if hashes.is_empty() {
            return set;
        }
        let Node { count, parts, .. } = self.nodes[set.0];
        if let Parts::Halves(own) = parts {
            let parts = split(hashes, bit);
            let both = [0, 1].map(|half| self.with(own[half], parts[half], bit + 1));
            return if both == own { set } else { self.joined(both) };
        }
        let mut all = [self.few(set), hashes].concat();
        all.sort_unstable();
        all.dedup();
        if all.len() == count { set } else { self.sorted(&all, bit) }
    }

    /// The members of a leaf.
    fn few(&self, set: Set) -> &[u64] {
        let Node { count, parts, .. } = self.nodes[set.0];
        match parts {
            Parts::Few(start) => &self.members[start..start + count],
            Parts::Halves(_) => &[],
        }
    }

    /// The set of sorted, distinct hashes that are the same up to a bit.
    fn sorted(&mut self, hashes: &[u64], bit: u32) -> Set {
        if hashes.len() > FEW {
            let halves = split(hashes, bit).map(|half| self.sorted(half, bit + 1));
            return self.joined(halves);
        }
        let sum = hashes.iter().fold(0, |sum: u64, hash| sum.wrapping_add(*hash));
        let parts = Parts::Few(self.members.len());
        self.members.extend_from_slice(hashes);
        self.add(Node { count: hashes.len(), sum, parts })
    }

    fn joined(&mut self, halves: [Set; 2]) -> Set {
        let [a, b] = halves.map(|half| self.nodes[half.0]);
        let parts = Parts::Halves(halves);
        self.add(Node { count: a.count + b.count, sum: a.sum.wrapping_add(b.sum), parts })
    }

    fn add(&mut self, node: Node) -> Set {
        self.steps += 1 + if let Parts::Few(_) = node.parts { node.count as u64 } else { 0 };
        self.nodes.push(node);
        Set(self.nodes.len() - 1)
    }
}

/// Sorted hashes that are the same up to a bit: those where it is zero, and one.
fn split(hashes: &[u64], bit: u32) -> [&[u64]; 2] {
    let (zeros, ones) = hashes.split_at(hashes.partition_point(|hash| hash << bit >> 63 == 0));
    [zeros, ones]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::field::{Stream, scramble};
    use std::collections::BTreeSet;

    fn all(sets: &Sets, set: Set) -> Vec<u64> {
        match sets.nodes[set.0].parts {
            Parts::Few(_) => sets.few(set).to_vec(),
            Parts::Halves(halves) => halves.iter().flat_map(|&half| all(sets, half)).collect(),
        }
    }

    /// Sets are those of the standard library, however they were made, and so are their sums and counts.
    #[test]
    fn unions_are_sets() {
        let mut stream = Stream::new(1);
        for round in 0..300 {
            // Of few different ones most are in both; some differ in their last bits only.
            let kinds = [5, 40, 1000][round % 3];
            let mut draw = || {
                let count = stream.below(120) as usize;
                let one = |_| match stream.below(kinds) {
                    near if near % 4 == 0 => near,
                    other => scramble(other),
                };
                (0..count).map(one).collect::<Vec<u64>>()
            };
            let parts: Vec<Vec<u64>> = (0..5).map(|_| draw()).collect();
            let expected: BTreeSet<u64> = parts.iter().flatten().copied().collect();
            let mut sets = Sets::default();
            let made: Vec<Set> = parts.into_iter().map(|part| sets.of(part)).collect();
            let forwards = made.iter().copied().reduce(|a, b| sets.union(a, b)).expect("five");
            let backwards = made.iter().copied().rev().reduce(|a, b| sets.union(b, a)).expect("five");
            let again = sets.union(forwards, backwards);
            for set in [forwards, backwards, again] {
                assert_eq!(all(&sets, set), expected.iter().copied().collect::<Vec<u64>>());
                assert_eq!(sets.nodes[set.0].count, expected.len());
                assert_eq!(sets.sum(set), expected.iter().fold(0, |sum: u64, x| sum.wrapping_add(*x)));
            }
        }
    }

    /// What is there already makes no new set, and takes no more steps than it has members by the depth.
    #[test]
    fn what_is_there_is_shared() {
        let mut sets = Sets::default();
        let large = sets.of((0..1 << 16).map(scramble).collect());
        let small = sets.of((0..50).map(scramble).collect());
        let before = sets.steps;
        assert_eq!(sets.union(large, small), large);
        let steps = sets.steps - before;
        assert!(steps <= 50 * 4 * 16, "{steps}");
        assert_eq!(sets.union(large, large), large);
        assert_eq!(sets.steps, before + steps + 1);
    }
}
