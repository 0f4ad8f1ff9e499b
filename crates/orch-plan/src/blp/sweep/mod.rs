//! Exact choice by dynamic programming, from what is required towards what is available.
//!
//! A state is a set of *demanded* classes: read by columns that are already chosen (they run later), not yet
//! produced. A step takes the highest demanded class and chooses its producer: the demand for its outputs goes, that
//! for its inputs comes. Since everything that could demand the class is above it, and therefore settled, a state's
//! future depends on nothing but the state, and of several ways to it only the lightest matters. Plans need few
//! tensors at a time, so there are few states, however many choices there are.
//!
//! - A column's other outputs, below the current class, become *provided*: later demands for them are met. Its inputs
//!   are below those, so it can run before everything that is decided between.
//! - Classes in a circle (one group) have no order among themselves. There a step takes any producer of any demanded
//!   class, steps being the reversed order of execution: what a column produces serves only what was chosen before.
//!
//! Groups are swept from the highest to the lowest. A sweep of bounded width expands only the most promising states
//! of each group, and so yields a good choice and, from the states it dropped, a bound; without a bound on the width
//! it is exact. States whose weight plus a lower bound of their future reaches that of a known choice are dropped.

mod run;

use super::greedy::Selection;
use super::instance::{Instance, Weight};
use super::prices::{PricedSets, Prices, Union, least_excess};
use super::structure::{Forced, Groups};
use run::{Reached, Run};
use std::cmp::Reverse;
use std::rc::Rc;

/// Bounds of one sweep.
#[derive(Clone, Copy)]
pub(super) struct SweepLimits {
    /// Most states expanded per group.
    pub width: usize,
    /// Most states expanded in all.
    pub states: usize,
    /// Most columns tried in all, but for those of the last state.
    pub steps: usize,
}

/// What a sweep found.
pub(super) struct Sweep {
    /// A choice lighter than the incumbent, if one was met.
    pub better: Option<Selection>,
    /// No choice weighs less than this or the incumbent.
    pub dropped: Weight,
    /// States expanded.
    pub states: usize,
    /// Columns tried.
    pub steps: usize,
}

/// Demanded and provided classes by rank, descending. An entry is `2 * rank`, plus 1 if the class is provided.
type State = Rc<[u32]>;

/// A provided class, by rank, and the chosen column that provides it.
type Provision = (u32, u32);

/// A state that is being made, and its provisions, descending by rank.
#[derive(Default)]
struct Demands {
    state: Vec<u32>,
    provisions: Vec<Provision>,
}

fn entry_rank(entry: u32) -> usize {
    (entry / 2) as usize
}

/// The demanded classes of a state, by rank.
fn demanded(state: &[u32]) -> impl Iterator<Item = usize> {
    state.iter().filter(|&&entry| !is_provided(entry)).map(|&entry| entry_rank(entry))
}

fn is_provided(entry: u32) -> bool {
    entry % 2 == 1
}

/// A part with its classes ranked: the rank of a class is its position in the order of the groups.
pub(super) struct Sweeper<'a> {
    instance: &'a Instance,
    /// The group of each rank.
    group_of: Vec<u32>,
    group_sizes: Vec<usize>,
    producers: Vec<Vec<u32>>,
    /// Ranks of each column's inputs and outputs.
    inputs: Vec<Vec<u32>>,
    outputs: Vec<Vec<u32>>,
    required: Vec<u32>,
    /// By rank the priced nodes that every way to a class executes.
    needs: PricedSets,
    /// For each column the priced nodes it executes.
    executes: PricedSets,
    reduced_costs: Vec<u64>,
    /// By rank the least sum of reduced costs of columns that produce a class.
    excess: Vec<u64>,
    /// The same if every class that could be provided is.
    excess_provided: Vec<u64>,
    /// By rank the lowest output of a column that reads the class: below it, nothing demands the class any more.
    lowest_demand: Vec<u32>,
}

impl<'a> Sweeper<'a> {
    pub fn new(instance: &'a Instance, groups: &Groups, forced: &Forced, prices: &'a Prices) -> Self {
        let order: Vec<u32> = groups.members.iter().flatten().copied().collect();
        let mut rank = vec![0; instance.classes];
        for (position, &class) in order.iter().enumerate() {
            rank[class as usize] = position as u32;
        }
        let ranked = |classes: &[u32]| -> Vec<u32> {
            let mut ranks: Vec<u32> = classes.iter().map(|&class| rank[class as usize]).collect();
            ranks.sort_unstable_by_key(|&rank| Reverse(rank));
            ranks
        };
        let by_class = instance.producers();
        let mut sweeper = Sweeper {
            instance,
            group_of: order.iter().map(|&class| groups.of[class as usize]).collect(),
            group_sizes: groups.members.iter().map(Vec::len).collect(),
            producers: order.iter().map(|&class| by_class[class as usize].clone()).collect(),
            inputs: instance.columns.iter().map(|column| ranked(&column.inputs)).collect(),
            outputs: instance.columns.iter().map(|column| ranked(&column.outputs)).collect(),
            required: ranked(&instance.required),
            reduced_costs: (0..instance.columns.len())
                .map(|column| prices.reduced_cost(instance, column))
                .collect(),
            excess: Vec::new(),
            excess_provided: Vec::new(),
            needs: PricedSets::new(
                prices,
                order.iter().map(|&class| forced.nodes_of_class[class as usize].ones()),
            ),
            executes: PricedSets::new(
                prices,
                instance.columns.iter().map(|column| column.executes.iter().map(|&node| node as usize)),
            ),
            lowest_demand: vec![u32::MAX; order.len()],
        };
        for (inputs, outputs) in sweeper.inputs.iter().zip(&sweeper.outputs) {
            let lowest = *outputs.last().expect("a column has outputs");
            for &input in inputs {
                let known = &mut sweeper.lowest_demand[input as usize];
                *known = lowest.min(*known);
            }
        }
        let by_rank = |excess: Vec<u64>| order.iter().map(|&class| excess[class as usize]).collect();
        sweeper.excess = by_rank(least_excess(instance, groups, prices, |_| false));
        let may_be_provided = |class: u32| {
            by_class[class as usize].iter().any(|&column| instance.columns[column as usize].outputs.len() > 1)
        };
        sweeper.excess_provided = by_rank(least_excess(instance, groups, prices, may_be_provided));
        sweeper
    }

    /// A lower bound of the reduced costs from a column on, if it is chosen in a state.
    fn excess_by_way_of(&self, column: u32, state: &Reached) -> u64 {
        let column = column as usize;
        let may_be_met = !state.provisions.is_empty() || self.outputs[column].len() > 1;
        let excess = if may_be_met { &self.excess_provided } else { &self.excess };
        let inputs = self.inputs[column].iter().map(|&input| excess[input as usize]);
        self.reduced_costs[column] + inputs.max().unwrap_or(0)
    }

    /// A lower bound of the weight that a state still needs, if what it must execute is worth so much.
    fn future(&self, state: &[u32], provisions: &[Provision], priced: u64) -> Weight {
        let excess = if provisions.is_empty() { &self.excess } else { &self.excess_provided };
        let costliest = demanded(state).map(|rank| excess[rank]).max().unwrap_or(0);
        Weight { picoseconds: costliest + priced, ..Weight::ZERO }
    }

    /// What the demanded classes of a state need, but for those that are left out.
    fn needs_without(&self, state: &[u32], is_left_out: impl Fn(usize) -> bool) -> Union {
        self.needs.union(demanded(state).filter(|&rank| !is_left_out(rank)))
    }

    /// The prices of the nodes that must still be executed, whatever is chosen: what demanded classes need, given in two portions, but
    /// for what the providing columns execute. (With those, the columns still to come produce every demand.)
    fn priced<I: Iterator<Item = usize>>(
        &self,
        needed: &Union,
        further: impl Fn() -> I,
        provisions: &[Provision],
    ) -> u64 {
        let columns = || provisions.iter().map(|&(_, column)| column as usize);
        self.needs.price_with(needed, further, &self.executes, columns)
    }

    /// The state before a column of a group runs, given the one after it, and what provides for it.
    fn before(&self, after: &Reached, column: u32, group: u32, found: &mut Demands) {
        let (inputs, outputs) = (&self.inputs[column as usize], &self.outputs[column as usize]);
        let Demands { state, provisions } = found;
        provisions.clone_from(&after.provisions);
        for &rank in outputs.iter().filter(|&&rank| self.group_of[rank as usize] < group) {
            let place = provisions.partition_point(|&(provided, _)| provided > rank);
            if provisions.get(place).is_none_or(|&(provided, _)| provided != rank) {
                provisions.insert(place, (rank, column));
            }
        }
        let is_there = |rank: u32| provisions.iter().any(|&(provided, _)| provided == rank);
        state.clear();
        let mut joining = inputs.iter().copied().filter(|&rank| !is_there(rank)).peekable();
        let mut produced = outputs.iter().copied().peekable();
        // All descend. Where neither an input nor an output is left, the rest stays as it is.
        let mut rest = &after.state[..];
        while let Some((&entry, others)) = rest.split_first() {
            if joining.peek().is_none() && produced.peek().is_none() && after.provisions.is_empty() {
                break;
            }
            rest = others;
            if is_provided(entry) {
                continue;
            }
            let rank = entry / 2;
            while let Some(input) = joining.next_if(|&input| input >= rank) {
                if input > rank {
                    state.push(2 * input);
                }
            }
            while produced.next_if(|&output| output > rank).is_some() {}
            if produced.peek() != Some(&rank) {
                state.push(entry);
            }
        }
        state.extend(rest);
        state.extend(joining.map(|input| 2 * input));
        self.drop_spent(state.first().copied(), provisions);
        for &(rank, _) in provisions.iter() {
            let entry = 2 * rank + 1;
            state.insert(state.partition_point(|&other| other > entry), entry);
        }
    }

    /// Takes away provisions that nothing can demand any more: those in groups above the highest demand, and those
    /// whose readers all produce something above it.
    fn drop_spent(&self, highest_demand: Option<u32>, provisions: &mut Vec<Provision>) {
        let Some(highest) = highest_demand.map(|entry| entry / 2) else {
            provisions.clear();
            return;
        };
        let group = |rank: u32| self.group_of[rank as usize];
        provisions.retain(|&(rank, _)| {
            let lowest_demand = self.lowest_demand[rank as usize];
            group(rank) <= group(highest)
                && lowest_demand != u32::MAX
                && group(lowest_demand) <= group(highest)
        });
    }

    /// Sweeps once, for a choice lighter than `incumbent`.
    pub fn sweep(&self, limits: SweepLimits, incumbent: Weight) -> Sweep {
        let start = self.required.iter().map(|&rank| 2 * rank).collect();
        Run::new(self, limits, incumbent).sweep(start)
    }
}
