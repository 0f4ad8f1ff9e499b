//! Good node prices, by linear programs.
//!
//! The best prices are a linear program: a variable per node, a row per column (the dual of covering nodes by columns,
//! as tight as the coverage rows of [`milp`](super::milp)). It is solved block by block along the order of the nodes,
//! the prices outside the block being fixed, so that the time grows with the number of blocks; blocks overlap, and are
//! gone through twice. Rows are generated as they are violated. Whatever the solver answers is made valid exactly, in
//! whole picoseconds, before it is used, and only used if it raises the sum.

use super::instance::{Instance, PICOSECONDS_PER_US};
use super::prices::Prices;
use super::structure::Forced;
use crate::solver::{Milp, Row, Solver, SolverLimits, Variable};
use std::collections::BTreeMap;
use std::ops::Range;

/// Nodes of a block, and how far apart blocks begin.
const BLOCK_NODES: usize = 160;
const BLOCK_STRIDE: usize = 80;

/// Times that all blocks are gone through, if there are several.
const PASSES: usize = 2;

/// Rounds of row generation.
const MAX_ROUNDS: usize = 50;

/// Rows of each round per node.
const ROWS_PER_NODE: usize = 2;

/// Violations below this, relative to the capacity, are left to the exact repair.
const TOLERANCE: f64 = 1e-9;

/// Row generation stops when the prices, made valid, are this close to the best ones.
const GOOD_ENOUGH: f64 = 1e-6;

/// How good prices must be.
#[derive(Clone, Copy)]
pub(super) struct PricingLimits {
    /// Of each linear program.
    pub solver: SolverLimits,
    /// A sum in picoseconds beyond which nothing better is looked for.
    pub enough: u64,
}

/// Finds good prices.
pub(super) fn prices(
    instance: &Instance,
    forced: &Forced,
    solver: &dyn Solver,
    limits: PricingLimits,
) -> Prices {
    let nodes: Vec<u32> = forced.nodes.ones().map(|node| node as u32).collect();
    let mut pricing = Pricing::new(instance, nodes);
    let count = pricing.nodes.len();
    let passes = if count > BLOCK_NODES { PASSES } else { 1 };
    for _ in 0..passes {
        let mut start = 0;
        while start < count {
            let end = if start + BLOCK_NODES + BLOCK_STRIDE > count { count } else { start + BLOCK_NODES };
            if pricing.prices.total() >= limits.enough {
                return pricing.prices;
            }
            pricing.improve(start..end, solver, limits.solver);
            start = if end == count { count } else { start + BLOCK_STRIDE };
        }
    }
    pricing.prices
}

/// Prices in progress.
struct Pricing<'a> {
    instance: &'a Instance,
    /// Nodes that have a price, ascending.
    nodes: Vec<u32>,
    /// For each of them the columns that execute it.
    executors: Vec<Vec<u32>>,
    prices: Prices,
}

impl<'a> Pricing<'a> {
    /// Begins with prices that share each column's weight equally among its nodes.
    fn new(instance: &'a Instance, nodes: Vec<u32>) -> Self {
        let mut executors: Vec<Vec<u32>> = vec![Vec::new(); nodes.len()];
        let mut wanted = vec![u64::MAX; nodes.len()];
        for (index, column) in instance.columns.iter().enumerate() {
            let priced = column.executes.iter().filter_map(|node| nodes.binary_search(node).ok());
            let priced: Vec<usize> = priced.collect();
            for &position in &priced {
                executors[position].push(index as u32);
                wanted[position] = wanted[position].min(column.weight.picoseconds / priced.len() as u64);
            }
        }
        let prices = Prices::lowered_from(instance, &nodes, wanted.into_iter());
        Pricing { instance, nodes, executors, prices }
    }

    /// Chooses the prices of a block anew.
    fn improve(&mut self, block: Range<usize>, solver: &dyn Solver, limits: SolverLimits) {
        let columns = self.columns_of(&block);
        let mut rows = BlockRows::new(self, block.clone(), &columns);
        let mut best = self.prices.clone();
        for _ in 0..MAX_ROUNDS {
            let Ok(outcome) = solver.solve(&rows.program, None, limits) else { break };
            if outcome.values.is_empty() {
                break;
            }
            let found = self.with_block(&block, &columns, &outcome.values);
            let nodes = &self.nodes[block.clone()];
            let reached = found.worth(nodes) as f64;
            if found.total() > best.total() {
                best = found;
            }
            // With rows missing, the program's optimum is above what can be reached.
            let reachable = outcome.values.iter().sum::<f64>() * PICOSECONDS_PER_US;
            if reached >= reachable * (1.0 - GOOD_ENOUGH) || !rows.add_violated(&outcome.values) {
                break;
            }
        }
        self.prices = best;
    }

    /// The prices with other ones in a block, lowered until they are valid. `columns`: those of the block.
    fn with_block(&self, block: &Range<usize>, columns: &[u32], values: &[f64]) -> Prices {
        let mut prices = self.prices.clone();
        let nodes = &self.nodes[block.clone()];
        for (&node, value) in nodes.iter().zip(values) {
            prices.set(node as usize, (value.max(0.0) * PICOSECONDS_PER_US) as u64);
        }
        for &column in columns {
            prices.lower_for(self.instance, column as usize, |node| nodes.binary_search(&node).is_ok());
        }
        prices
    }

    /// The columns that execute a node of the block, ascending.
    fn columns_of(&self, block: &Range<usize>) -> Vec<u32> {
        let mut columns: Vec<u32> = self.executors[block.clone()].iter().flatten().copied().collect();
        columns.sort_unstable();
        columns.dedup();
        columns
    }
}

/// The linear program of a block's prices with the rows generated so far.
struct BlockRows {
    program: Milp,
    /// Sets of nodes (positions in the block) with the most that they may be worth together, in microseconds.
    sets: Vec<(Vec<u32>, f64)>,
    is_row: Vec<bool>,
    nodes: usize,
}

impl BlockRows {
    fn new(pricing: &Pricing<'_>, block: Range<usize>, columns: &[u32]) -> Self {
        let nodes = &pricing.nodes[block.clone()];
        let mut least: BTreeMap<Vec<u32>, u64> = BTreeMap::new();
        for &index in columns {
            let column = &pricing.instance.columns[index as usize];
            let (inside, outside): (Vec<u32>, Vec<u32>) =
                column.executes.iter().partition(|node| nodes.binary_search(node).is_ok());
            let set = inside.iter().map(|node| nodes.partition_point(|other| other < node) as u32).collect();
            let capacity = column.weight.picoseconds - pricing.prices.worth(&outside);
            let known = least.entry(set).or_insert(capacity);
            *known = capacity.min(*known);
        }
        let sets: Vec<(Vec<u32>, f64)> =
            least.into_iter().map(|(set, capacity)| (set, capacity as f64 / PICOSECONDS_PER_US)).collect();
        let price = Variable { cost: -1.0, lower: 0.0, upper: f64::INFINITY, is_integer: false };
        let program = Milp { variables: vec![price; nodes.len()], rows: Vec::new() };
        let mut rows = BlockRows { program, is_row: vec![false; sets.len()], sets, nodes: nodes.len() };
        // The sets that leave least to each node bound every price.
        let share = |(set, capacity): &(Vec<u32>, f64)| *capacity / set.len() as f64;
        let first: Vec<(f64, usize)> = rows.sets.iter().map(share).zip(0..).collect();
        rows.add_spread(first);
        rows
    }

    /// Adds sets in ascending order of their keys, but only those with a node that few added sets have.
    fn add_spread(&mut self, mut keyed: Vec<(f64, usize)>) {
        keyed.sort_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)));
        let mut taken = vec![0; self.nodes];
        for (_, index) in keyed {
            let (set, capacity) = &self.sets[index];
            if set.iter().all(|&node| taken[node as usize] >= ROWS_PER_NODE) {
                continue;
            }
            set.iter().for_each(|&node| taken[node as usize] += 1);
            let terms = set.iter().map(|&node| (node, 1.0)).collect();
            self.program.rows.push(Row { terms, lower: f64::NEG_INFINITY, upper: *capacity });
            self.is_row[index] = true;
        }
    }

    /// Adds the sets that are worth most beyond what they may be. False if none are.
    fn add_violated(&mut self, values: &[f64]) -> bool {
        let mut violated: Vec<(f64, usize)> = Vec::new();
        for (index, (set, capacity)) in self.sets.iter().enumerate().filter(|&(index, _)| !self.is_row[index])
        {
            let worth: f64 = set.iter().map(|&node| values[node as usize]).sum();
            if worth > capacity * (1.0 + TOLERANCE) + TOLERANCE {
                violated.push((capacity - worth, index));
            }
        }
        let found = !violated.is_empty();
        self.add_spread(violated);
        found
    }
}
