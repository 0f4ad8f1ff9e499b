//! Chains of two kernels, and the cheapest of all chains.

use super::block::reaches;
use super::cost::{Beside, PartCounts};
use super::limits::{Allowance, Counts, Goal};
use super::tile::{Origin, Sketch, Source, Structure};
use super::{COST_BOUND, Context, Progress, Signature};
use crate::graph::MuGraph;
use std::collections::{BTreeMap, BTreeSet};

/// Candidates that are kept for screening.
const SCREENED: usize = 64;

/// Blocks of a kernel before, by label.
type Before = Vec<(u8, usize)>;

/// Other numbers of blocks of a first kernel that are built.
const OTHER_BLOCKS: usize = 6;

/// The cheapest chains so far.
pub(super) struct Candidates {
    pub(super) best: Vec<(f64, Vec<(Sketch, PartCounts)>)>,
    /// What a chain must cost less than, whatever else there is.
    most: f64,
}

impl Candidates {
    /// None yet; those that cost less than `most` are kept.
    pub(super) fn new(most: f64) -> Candidates {
        Candidates { best: Vec::new(), most }
    }

    /// The least cost.
    pub(super) fn least(&self) -> f64 {
        self.best.first().map_or(f64::INFINITY, |(cost, _)| *cost)
    }

    pub(super) fn add(&mut self, cost: f64, chain: Vec<(Sketch, PartCounts)>) {
        let at = self.best.partition_point(|(known, other)| {
            known.total_cmp(&cost).then_with(|| other.cmp(&chain)) == std::cmp::Ordering::Less
        });
        if self.best.get(at).is_some_and(|(_, other)| *other == chain) {
            return;
        }
        self.best.insert(at, (cost, chain));
        self.best.truncate(SCREENED);
    }

    /// What a chain must cost less than to be kept.
    pub(super) fn bound(&self) -> f64 {
        let last = self.best.last().filter(|_| self.best.len() >= SCREENED);
        last.map_or(self.most, |(cost, _)| cost.min(self.most))
    }
}

impl Context<'_> {
    /// A lower bound of two kernels, of which the first loads these sources: all inputs are loaded once.
    pub(super) fn pair_floor_us(&self, sources: &[Source]) -> f64 {
        let machine = &self.options.machine;
        let elems = |source: &Source| -> f64 {
            let atoms = source.dims.iter().flat_map(|dim| dim.atoms());
            atoms.map(|atom| self.labels.extents[usize::from(atom.label)] as f64).product()
        };
        let others = self.sources.iter().filter(|source| !sources.contains(source));
        let moved: f64 = sources.iter().chain(others).map(elems).sum();
        2.0 * machine.launch_us + moved * machine.element_bytes as f64 / machine.memory_bytes_per_us
    }

    /// Second kernels for all sets of results of first kernels.
    pub(super) fn add_pairs(
        &self,
        partial: BTreeMap<Signature, Vec<Sketch>>,
        candidates: &mut Candidates,
        progress: &mut Progress,
        (counts, left): (&mut Counts, &mut Allowance<'_>),
    ) -> Option<()> {
        let (machine, extents) = (&self.options.machine, &self.labels.extents);
        for (signature, mut firsts) in partial {
            firsts.retain(|first| machine.floor_us(first, extents) + machine.launch_us < candidates.bound());
            if firsts.is_empty() {
                counts.prune(COST_BOUND);
                continue;
            }
            let seconds = self.seconds(&signature, progress, (counts, left))?;
            if seconds.is_empty() {
                continue;
            }
            // Of one structure, the fewest operators that give these results.
            let mut fewest: BTreeMap<&Structure, usize> = BTreeMap::new();
            for first in &firsts {
                let least = fewest.entry(&first.structure).or_insert(first.steps.len());
                *least = first.steps.len().min(*least);
            }
            let least = |first: &&Sketch| fewest.get(&first.structure) == Some(&first.steps.len());
            let mut known = BTreeMap::new();
            for first in firsts.iter().filter(least) {
                if !(left.goes_on)() {
                    return None;
                }
                self.pair(self.in_order(first), &seconds, &mut known, candidates);
            }
        }
        Some(())
    }

    /// Kernels that compute the targets from results of another.
    fn seconds(
        &self,
        signature: &Signature,
        progress: &mut Progress,
        (counts, left): (&mut Counts, &mut Allowance<'_>),
    ) -> Option<Vec<Sketch>> {
        let stored = signature.iter().enumerate().map(|(at, (class, dims))| Source {
            class: *class,
            dims: dims.clone(),
            origin: Origin::Stored(at),
            is_computed: false,
            is_wide: false,
            is_transposed: false,
        });
        let stored: Vec<Source> = stored.collect();
        // What is out of reach of one block that sees everything is out of reach of many.
        let one = Structure { grid: Vec::new(), looped: None };
        let goal = Goal { targets: &self.targets, partial: false, norms: &self.norms };
        let mut tasks = Vec::new();
        for subset in 0u32..1 << self.sources.len() {
            let chosen = self.sources.iter().enumerate().filter(|(at, _)| subset >> at & 1 == 1);
            let sources: Vec<Source> = stored.iter().cloned().chain(chosen.map(|(_, s)| s.clone())).collect();
            let limits = &self.options.limits;
            if !limits.abstract_expressions || reaches(&self.algebra, (&one, &sources), &goal, limits) {
                tasks.extend(self.tasks(&sources, false));
            } else {
                counts.prune("target out of reach");
            }
        }
        progress.run(self, (&tasks, false), counts, left)
    }

    /// A sketch with its stores in the order of the signature.
    fn in_order(&self, sketch: &Sketch) -> Sketch {
        let results = sketch.results();
        let mut order: Vec<usize> = (0..results.len()).collect();
        order.sort_by(|a, b| results[*a].cmp(&results[*b]));
        Sketch {
            stores: order.iter().map(|at| sketch.stores[*at].clone()).collect(),
            classes: order.iter().map(|at| sketch.classes[*at]).collect(),
            ..sketch.clone()
        }
    }

    /// Adds the cheapest chains of two kernels. `known`: the best counts of second kernels for numbers of partial results.
    fn pair(
        &self,
        first: Sketch,
        seconds: &[Sketch],
        known: &mut BTreeMap<(usize, Before), Option<(f64, PartCounts)>>,
        candidates: &mut Candidates,
    ) {
        let (machine, extents) = (&self.options.machine, &self.labels.extents);
        let is_read = Beside { is_read: true, ..Beside::default() };
        let firsts = machine.best_counts(&first, extents, is_read);
        for (at, second) in seconds.iter().enumerate() {
            let floor = machine.floor_us(second, extents);
            let mut seen: BTreeSet<Before> = BTreeSet::new();
            for (cost, counts) in &firsts {
                if cost + floor >= candidates.bound() {
                    break;
                }
                let before = blocks_before(&first, counts, second);
                // Of equal numbers of partial results, those that cost the first kernel least.
                if !seen.insert(before.clone()) {
                    continue;
                }
                let best = known.entry((at, before)).or_insert_with_key(|(_, before)| {
                    let beside = Beside { before, ..Beside::default() };
                    machine.best_counts(second, extents, beside).into_iter().next()
                });
                if let Some((rest, own)) = best {
                    let chain = vec![(first.clone(), counts.clone()), (second.clone(), own.clone())];
                    candidates.add(cost + *rest, chain);
                }
            }
        }
    }

    /// Two kernels with other numbers of blocks of the first one, the cheapest ones.
    pub(super) fn pairs_of_other_blocks(
        &self,
        [(first, chosen), (second, _)]: [&(Sketch, PartCounts); 2],
        build: impl Fn(&[(&Sketch, &PartCounts)]) -> Option<MuGraph>,
    ) -> Vec<(f64, MuGraph)> {
        let (machine, extents) = (&self.options.machine, &self.labels.extents);
        let firsts = machine.best_counts(first, extents, Beside { is_read: true, ..Beside::default() });
        let mut seen = BTreeSet::from([chosen.grid.clone()]);
        let others = firsts.into_iter().filter(|(_, counts)| seen.insert(counts.grid.clone()));
        let pair = |(cost_us, counts): (f64, PartCounts)| {
            let before = blocks_before(first, &counts, second);
            let beside = Beside { before: &before, ..Beside::default() };
            let (rest_us, own) = machine.best_counts(second, extents, beside).into_iter().next()?;
            Some((cost_us + rest_us, build(&[(first, &counts), (second, &own)])?))
        };
        let mut pairs: Vec<(f64, MuGraph)> =
            others.take(OTHER_BLOCKS.min(self.options.alternatives)).filter_map(pair).collect();
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        pairs
    }
}

/// The blocks of a first kernel along what the second one splits.
fn blocks_before(first: &Sketch, counts: &PartCounts, second: &Sketch) -> Before {
    let blocks = first.structure.grid.iter().copied().zip(counts.grid.iter().copied());
    blocks.filter(|(label, _)| second.splits(*label)).collect()
}
