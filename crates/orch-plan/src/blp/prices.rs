//! Prices of nodes: a lower bound of the weight of every choice, and what it rules out.
//!
//! Give each node that every plan executes a price such that no column is worth more than it weighs. Every choice
//! executes all of them, so it weighs at least the sum of the prices. ([`pricing`](super::pricing) finds good ones.)
//!
//! What a choice weighs beyond the sum of the prices is at least the sum of its columns' *reduced costs* (weight
//! minus worth), and therefore at least the sum along a derivation: from a required class down to a column, through
//! it, and down to what is available. A known choice rules out the columns for which that is too much.

use super::instance::Instance;
use super::structure::Groups;
use std::ops::Range;

/// Valid prices in picoseconds by node.
#[derive(Clone, Debug, Default)]
pub(super) struct Prices {
    of_node: Vec<u64>,
}

impl Prices {
    /// The price of a node; 0 for nodes that not every plan executes.
    pub fn of(&self, node: usize) -> u64 {
        self.of_node.get(node).copied().unwrap_or(0)
    }

    /// The sum over all nodes: no choice weighs less.
    pub fn total(&self) -> u64 {
        self.of_node.iter().sum()
    }

    /// Prices of some nodes (ascending), lowered until they are valid.
    pub fn lowered_from(instance: &Instance, nodes: &[u32], wanted: impl Iterator<Item = u64>) -> Self {
        let mut of_node = vec![0; nodes.last().map_or(0, |&node| node as usize + 1)];
        for (&node, price) in nodes.iter().zip(wanted) {
            of_node[node as usize] = price;
        }
        let mut prices = Prices { of_node };
        for column in 0..instance.columns.len() {
            prices.lower_for(instance, column, |_| true);
        }
        prices
    }

    /// Raises or lowers one price. The caller restores validity with [`Prices::lower_for`].
    pub fn set(&mut self, node: usize, price: u64) {
        self.of_node[node] = price;
    }

    /// Lowers prices of nodes that `may_fall` until a column is not worth more than it weighs.
    pub fn lower_for(&mut self, instance: &Instance, column: usize, may_fall: impl Fn(u32) -> bool) {
        let column = &instance.columns[column];
        let mut excess = self.worth(&column.executes).saturating_sub(column.weight.picoseconds);
        for &node in column.executes.iter().filter(|&&node| may_fall(node)) {
            let cut = excess.min(self.of(node as usize));
            if cut > 0 {
                self.of_node[node as usize] -= cut;
                excess -= cut;
            }
        }
    }

    /// What a column weighs beyond the prices of its nodes.
    pub fn reduced_cost(&self, instance: &Instance, column: usize) -> u64 {
        let column = &instance.columns[column];
        column.weight.picoseconds - self.worth(&column.executes)
    }

    /// The summed prices of nodes.
    pub fn worth(&self, nodes: &[u32]) -> u64 {
        nodes.iter().map(|&node| self.of(node as usize)).sum()
    }
}

/// Sets of priced nodes as rows of words, made for adding up the prices of unions.
pub(super) struct PricedSets {
    /// Prices of the nodes that have one, in order of the nodes; bit `i` stands for the `i`-th.
    prices: Vec<u64>,
    /// Of each word the summed prices of all its bits.
    word_prices: Vec<u64>,
    bits: Vec<u64>,
    /// Of each set the words from the first to the last one that is not empty.
    spans: Vec<Range<u32>>,
}

/// A union of sets.
pub(super) struct Union {
    words: Vec<u64>,
    price: u64,
}

impl PricedSets {
    /// Takes of each set the nodes with a price.
    pub fn new<I: Iterator<Item = usize>>(prices: &Prices, sets: impl Iterator<Item = I>) -> Self {
        let priced: Vec<usize> = (0..prices.of_node.len()).filter(|&node| prices.of(node) > 0).collect();
        let words = priced.len().div_ceil(64);
        let mut bits = Vec::new();
        for set in sets {
            let start = bits.len();
            bits.resize(start + words, 0);
            for node in set {
                if let Ok(bit) = priced.binary_search(&node) {
                    bits[start + bit / 64] |= 1 << (bit % 64);
                }
            }
        }
        let spans = bits.chunks(words.max(1)).map(|set| {
            let first = set.iter().position(|&word| word != 0).unwrap_or(0);
            let end = set.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1);
            first as u32..end as u32
        });
        let spans = spans.collect();
        let prices: Vec<u64> = priced.iter().map(|&node| prices.of(node)).collect();
        let word_prices = prices.chunks(64).map(|word| word.iter().sum()).collect();
        PricedSets { prices, word_prices, bits, spans }
    }

    /// The number of words of each set.
    fn words(&self) -> usize {
        self.prices.len().div_ceil(64)
    }

    /// The words of a set that are not empty, and where they begin.
    fn span(&self, set: usize) -> (usize, &[u64]) {
        let Some(span) = self.spans.get(set) else { return (0, &[]) };
        let row = &self.bits[set * self.words()..(set + 1) * self.words()];
        (span.start as usize, &row[span.start as usize..span.end as usize])
    }

    /// The union of some sets.
    pub fn union(&self, sets: impl Iterator<Item = usize>) -> Union {
        let mut words = vec![0; self.words()];
        for set in sets {
            let (start, row) = self.span(set);
            words[start..].iter_mut().zip(row).for_each(|(word, other)| *word |= other);
        }
        let price = (0..).zip(&words).map(|(at, &word)| self.price_of_word(at, word)).sum();
        Union { words, price }
    }

    /// The summed prices of what is in a union or some `more` sets, but not in some of `others`. Those are few, and add and take away
    /// little: in time of the words, but not of the nodes that stay.
    pub fn price_with<I: Iterator<Item = usize>, J: Iterator<Item = usize>>(
        &self,
        union: &Union,
        more: impl Fn() -> I,
        others: &PricedSets,
        without: impl Fn() -> J,
    ) -> u64 {
        let word_of = |(start, row): (usize, &[u64]), at: usize| {
            at.checked_sub(start).and_then(|at| row.get(at)).copied().unwrap_or(0)
        };
        let excluded = |at: usize| without().fold(0, |all, set| all | word_of(others.span(set), at));
        let mut price = union.price;
        for (position, set) in more().enumerate() {
            let (start, row) = self.span(set);
            for (at, &word) in (start..).zip(row) {
                let mut added = word & !union.words[at];
                if added != 0 {
                    // What an earlier set added counts once.
                    let earlier = more().take(position).fold(0, |all, set| all | word_of(self.span(set), at));
                    added &= !earlier & !excluded(at);
                    price += self.price_of_word(at, added);
                }
            }
        }
        for (position, set) in without().enumerate() {
            let (start, row) = others.span(set);
            for (at, &word) in (start..).zip(row) {
                let earlier =
                    without().take(position).fold(0, |all, set| all | word_of(others.span(set), at));
                price -= self.price_of_word(at, word & union.words[at] & !earlier);
            }
        }
        price
    }

    /// The summed prices of the nodes in a word. Sets of what is needed have most bits of most words, so those that are missing are
    /// taken away if they are fewer.
    fn price_of_word(&self, at: usize, word: u64) -> u64 {
        if word.count_ones() <= 32 {
            return self.price_of_bits(at, word);
        }
        let bits_left = (self.prices.len() - 64 * at).min(64);
        let all = u64::MAX >> (64 - bits_left);
        self.word_prices[at] - self.price_of_bits(at, all & !word)
    }

    fn price_of_bits(&self, at: usize, mut word: u64) -> u64 {
        let mut sum = 0;
        while word != 0 {
            sum += self.prices[64 * at + word.trailing_zeros() as usize];
            word &= word - 1;
        }
        sum
    }
}

/// For each class the least sum of reduced costs along a derivation: over the producers, the producer's own and that
/// of the input with the most. Classes that are `free` need nothing.
pub(super) fn least_excess(
    instance: &Instance,
    groups: &Groups,
    prices: &Prices,
    is_free: impl Fn(u32) -> bool,
) -> Vec<u64> {
    let producers = instance.producers();
    let start = |class: u32| if is_free(class) { 0 } else { u64::MAX };
    let mut least: Vec<u64> = (0..instance.classes as u32).map(start).collect();
    for members in &groups.members {
        // Around a circle, a value settles after as many rounds as it has classes.
        for _ in 0..members.len() {
            for &class in members {
                for &column in &producers[class as usize] {
                    let through = excess_through(instance, prices, &least, column as usize);
                    least[class as usize] = least[class as usize].min(through);
                }
            }
        }
    }
    least
}

fn excess_through(instance: &Instance, prices: &Prices, least: &[u64], column: usize) -> u64 {
    let inputs = instance.columns[column].inputs.iter().map(|&input| least[input as usize]);
    inputs.max().unwrap_or(0).saturating_add(prices.reduced_cost(instance, column))
}

/// For each column a lower bound of what a choice in which it is of use weighs beyond the sum of the prices.
pub(super) fn excess_with_column(instance: &Instance, groups: &Groups, prices: &Prices) -> Vec<u64> {
    let below = least_excess(instance, groups, prices, |_| false);
    let readers = instance.readers();
    // The least sum of reduced costs from a required class down to a class, without its producer.
    let mut above = vec![u64::MAX; instance.classes];
    for &class in &instance.required {
        above[class as usize] = 0;
    }
    let at_outputs = |above: &[u64], column: usize| {
        let outputs = instance.columns[column].outputs.iter().map(|&output| above[output as usize]);
        outputs.min().unwrap_or(u64::MAX)
    };
    for members in groups.members.iter().rev() {
        for _ in 0..members.len() {
            for &class in members {
                for &reader in &readers[class as usize] {
                    let reader = reader as usize;
                    let down =
                        at_outputs(&above, reader).saturating_add(prices.reduced_cost(instance, reader));
                    above[class as usize] = above[class as usize].min(down);
                }
            }
        }
    }
    (0..instance.columns.len())
        .map(|column| {
            at_outputs(&above, column).saturating_add(excess_through(instance, prices, &below, column))
        })
        .collect()
}
