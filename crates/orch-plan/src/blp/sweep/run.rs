//! One sweep: states in buckets by the group of their highest demand, expanded from the highest group down.

use super::{Demands, Provision, State, Sweep, SweepLimits, Sweeper, demanded, entry_rank, is_provided};
use crate::blp::greedy::Selection;
use crate::blp::instance::Weight;
use crate::blp::prices::Union;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How a state was reached.
#[derive(Clone, Copy)]
struct SweepStep {
    parent: u32,
    column: u32,
}

const NO_PARENT: u32 = u32::MAX;

/// The states whose highest demand lies in one group.
#[derive(Default)]
struct Bucket {
    index: FxHashMap<State, u32>,
    states: Vec<Reached>,
    /// States reached, or reached more lightly, since this was last emptied. Only circles need it.
    fresh: Vec<u32>,
}

/// A state and the lightest way to it.
#[derive(Clone)]
pub(super) struct Reached {
    pub state: State,
    pub provisions: Vec<Provision>,
    /// What the columns chosen so far weigh.
    pub weight: Weight,
    /// The least weight of a choice by way of this state.
    promise: Weight,
    step: u32,
}

/// Of each group, so many of the lightest states are compared with the others for dominance.
const MAX_DOMINATORS: usize = 1000;

/// One sweep in progress.
pub(super) struct Run<'a> {
    sweeper: &'a Sweeper<'a>,
    limits: SweepLimits,
    buckets: Vec<Bucket>,
    steps: Vec<SweepStep>,
    /// The weight to beat.
    incumbent: Weight,
    best_step: Option<u32>,
    dropped: Weight,
    expanded: usize,
    tried: usize,
    /// Room for the state of a step.
    found: Demands,
}

impl<'a> Run<'a> {
    pub fn new(sweeper: &'a Sweeper<'a>, limits: SweepLimits, incumbent: Weight) -> Self {
        Run {
            sweeper,
            limits,
            buckets: sweeper.group_sizes.iter().map(|_| Bucket::default()).collect(),
            steps: Vec::new(),
            incumbent,
            best_step: None,
            dropped: Weight::INFINITE,
            expanded: 0,
            tried: 0,
            found: Demands::default(),
        }
    }

    /// Sweeps all groups from a first state.
    pub fn sweep(mut self, start: Vec<u32>) -> Sweep {
        let needed = self.sweeper.needs_without(&start, |_| false);
        let priced = self.sweeper.priced(&needed, std::iter::empty, &[]);
        let start = Demands { state: start, provisions: Vec::new() };
        self.reach(&start, Weight::ZERO, priced, SweepStep { parent: NO_PARENT, column: 0 });
        for group in (0..self.buckets.len()).rev() {
            let is_circle = self.sweeper.group_sizes[group] > 1;
            match self.buckets[group].states.is_empty() {
                true => {}
                false if is_circle => self.sweep_circle(group),
                false => self.sweep_class(group),
            }
        }
        let better = self.best_step.map(|step| self.selection(step));
        Sweep { better, dropped: self.dropped, states: self.expanded, steps: self.tried }
    }

    /// Expands the states whose highest demand is one class.
    fn sweep_class(&mut self, group: usize) {
        let states = std::mem::take(&mut self.buckets[group]).states;
        let left = self.limits.states.saturating_sub(self.expanded).min(self.limits.width);
        let (states, dropped) = most_promising(states, left);
        self.dropped = self.dropped.min(dropped);
        for reached in &states {
            match self.tried < self.limits.steps {
                true => self.expand(reached),
                false => self.dropped = self.dropped.min(reached.promise),
            }
        }
    }

    /// Expands the states of a group with a circle by weight: a step may lead to another state of the group.
    fn sweep_circle(&mut self, group: usize) {
        let mut queue: BinaryHeap<Reverse<(Weight, u32)>> = BinaryHeap::new();
        let last = self.limits.states.min(self.expanded.saturating_add(self.limits.width));
        loop {
            let bucket = &mut self.buckets[group];
            let fresh = std::mem::take(&mut bucket.fresh);
            queue.extend(fresh.into_iter().map(|at| Reverse((bucket.states[at as usize].weight, at))));
            let Some(Reverse((weight, at))) = queue.pop() else { break };
            let reached = &bucket.states[at as usize];
            if weight > reached.weight {
                // Reached again, more lightly: the queue held that too, so it is expanded.
                continue;
            }
            if self.expanded >= last || self.tried >= self.limits.steps {
                self.dropped = self.dropped.min(reached.promise);
                continue;
            }
            let reached = reached.clone();
            self.expand(&reached);
        }
        self.buckets[group] = Bucket::default();
    }

    /// Takes every step from a state.
    fn expand(&mut self, from: &Reached) {
        self.expanded += 1;
        let sweeper = self.sweeper;
        let group = sweeper.group_of[entry_rank(from.state[0])];
        let in_group = |entry: &&u32| sweeper.group_of[entry_rank(**entry)] == group && !is_provided(**entry);
        for (position, &entry) in from.state.iter().filter(in_group).enumerate() {
            let class = entry_rank(entry);
            let others = sweeper.needs_without(&from.state, |rank| rank == class);
            let priced = sweeper.priced(&others, || std::iter::once(class), &from.provisions);
            for &column in &sweeper.producers[class] {
                let outputs = &sweeper.outputs[column as usize];
                let mut earlier = from.state.iter().filter(in_group).take(position);
                let was_taken = earlier.any(|other| outputs.contains(&(other / 2)));
                let least = from.weight.picoseconds + priced + sweeper.excess_by_way_of(column, from);
                if !was_taken && least <= self.incumbent.picoseconds {
                    self.tried += 1;
                    self.step(from, column, class, &others);
                }
            }
        }
    }

    /// Takes one step: a column as the producer of a class. `others`: what the other demanded classes need.
    fn step(&mut self, from: &Reached, column: u32, class: usize, others: &Union) {
        let sweeper = self.sweeper;
        let outputs = &sweeper.outputs[column as usize];
        let is_output = |rank: usize| outputs.contains(&(rank as u32));
        let group = sweeper.group_of[class];
        let weight = from.weight + sweeper.instance.columns[column as usize].weight;
        let mut found = std::mem::take(&mut self.found);
        sweeper.before(from, column, group, &mut found);
        let Demands { state, provisions } = &found;
        let joined = || {
            let inputs = sweeper.inputs[column as usize].iter();
            let is_demanded = |rank: &&u32| state.binary_search_by(|entry| (2 * **rank).cmp(entry)).is_ok();
            inputs.filter(is_demanded).map(|&rank| rank as usize)
        };
        // Demanded classes that the column produces beside this one.
        let produces_others =
            outputs.len() > 1 && demanded(&from.state).any(|rank| rank != class && is_output(rank));
        let priced = match produces_others {
            true => sweeper.priced(&sweeper.needs_without(&from.state, is_output), joined, provisions),
            false => sweeper.priced(others, joined, provisions),
        };
        self.reach(&found, weight, priced, SweepStep { parent: from.step, column });
        self.found = found;
    }

    /// Records a way to a state, if it may lead to a better choice. `priced`: what must still be executed is worth so much.
    fn reach(&mut self, found: &Demands, weight: Weight, priced: u64, step: SweepStep) {
        let Demands { state, provisions } = found;
        let promise = weight + self.sweeper.future(state, provisions, priced);
        if promise >= self.incumbent {
            return;
        }
        let id = self.steps.len() as u32;
        if state.is_empty() {
            self.steps.push(step);
            self.incumbent = weight;
            self.best_step = Some(id);
            return;
        }
        let group = self.sweeper.group_of[entry_rank(state[0])] as usize;
        let bucket = &mut self.buckets[group];
        match bucket.index.get(state.as_slice()) {
            Some(&at) => {
                let known = &mut bucket.states[at as usize];
                if weight < known.weight {
                    self.steps[known.step as usize] = step;
                    known.provisions.clone_from(provisions);
                    (known.weight, known.promise) = (weight, promise);
                    bucket.fresh.push(at);
                }
            }
            None => {
                let state: State = state.as_slice().into();
                let at = bucket.states.len() as u32;
                bucket.index.insert(state.clone(), at);
                bucket.fresh.push(at);
                bucket.states.push(Reached {
                    state,
                    provisions: provisions.clone(),
                    weight,
                    promise,
                    step: id,
                });
                self.steps.push(step);
            }
        }
    }

    fn selection(&self, last: u32) -> Selection {
        let mut columns = Vec::new();
        let mut at = last;
        while self.steps[at as usize].parent != NO_PARENT {
            columns.push(self.steps[at as usize].column);
            at = self.steps[at as usize].parent;
        }
        Selection::new(self.sweeper.instance, columns)
    }
}

/// The most promising states, at most `count`, and the least promise of those left out. A state is left out, too, if one of at most
/// the same weight serves for it: one that demands no more and is provided with no less.
fn most_promising(mut states: Vec<Reached>, count: usize) -> (Vec<Reached>, Weight) {
    states.sort_by_key(|reached| reached.weight);
    let masks: Vec<DemandMask> = states.iter().map(|reached| demand_mask(&reached.state)).collect();
    let mut order: Vec<u32> = (0..states.len() as u32).collect();
    // Where all are expanded the lightest are the first, which is as good.
    if states.len() > count {
        order.sort_by_key(|&at| states[at as usize].promise);
    }
    let serves = |rival: usize, at: usize| {
        is_subset(&masks[rival], &masks[at]) && serves_for(&states[rival].state, &states[at].state)
    };
    // In order of weight, what is left out serves for nothing that its own rival does not serve for.
    let mut kept: Vec<usize> = Vec::new();
    let is_by_weight = states.len() <= count;
    let mut dropped = Weight::INFINITE;
    for at in order.into_iter().map(|at| at as usize) {
        let is_dominated = match is_by_weight {
            true => kept.iter().take(MAX_DOMINATORS).any(|&rival| serves(rival, at)),
            false => (0..at).take(MAX_DOMINATORS).any(|rival| serves(rival, at)),
        };
        if is_dominated {
            continue;
        }
        if kept.len() == count {
            // Promises ascend.
            dropped = states[at].promise;
            break;
        }
        kept.push(at);
    }
    (kept.into_iter().map(|at| states[at].clone()).collect(), dropped)
}

type DemandMask = [u64; 4];

/// A subset's mask is a subset of the mask.
fn demand_mask(state: &[u32]) -> DemandMask {
    let mut mask = DemandMask::default();
    for rank in state.iter().filter(|&&entry| !is_provided(entry)).map(|&entry| entry_rank(entry)) {
        mask[rank / 64 % mask.len()] |= 1 << (rank % 64);
    }
    mask
}

fn is_subset(small: &DemandMask, large: &DemandMask) -> bool {
    small.iter().zip(large).all(|(small, large)| small & !large == 0)
}

/// True if a state demands no more than another, and is provided with no less. Both descend.
fn serves_for(rival: &[u32], state: &[u32]) -> bool {
    let (mut rival, mut state) = (rival.iter().peekable(), state.iter().peekable());
    loop {
        let next = rival.peek().max(state.peek()).map(|&&entry| entry);
        let Some(next) = next else { return true };
        let (has, other_has) = (rival.next_if_eq(&&next).is_some(), state.next_if_eq(&&next).is_some());
        match is_provided(next) {
            true if other_has && !has => return false,
            false if has && !other_has => return false,
            _ => {}
        }
    }
}
