//! The search for µGraphs that compute a program.
//!
//! The program is saturated once ([`algebra`]). A kernel's *structure* says which indices its grid and loop partition;
//! how often is decided last, by a cost model ([`cost`]), since it does not change what a block computes. For each
//! structure all block programs are enumerated ([`block`]): those that compute the target are candidates, and those that
//! compute parts of it are first kernels, whose second kernel is searched once per set of results. What survives is built
//! at small extents and screened by a random test; the best are then to be proved ([`crate::verify`]) at full size.
//!
//! In contrast to Mirage (OSDI'25, section 4): tiles carry classes of labelled expressions, so that partitions which mix
//! indices are never built; parameters are instantiated late; there is a cost bound; and results do not depend on the
//! number of threads.

pub mod algebra;
pub mod block;
pub mod build;
pub mod cost;
pub mod labels;
pub mod limits;
pub mod tile;

use crate::graph::MuGraph;
use crate::op::{Op, ReduceFn};
use crate::rational::Rational;
use crate::verify::{Primes, resize, screen};
use algebra::Algebra;
use block::{reaches, search_block};
use build::build;
use cost::{Machine, PartCounts};
use egg::Id;
use labels::Labels;
use limits::{BlockLimits, Counts, Goal};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tile::{Dim, Origin, Sketch, Source, Structure, given};

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    /// What a block may hold and do.
    pub limits: BlockLimits,
    /// The machine that costs are modelled for.
    pub machine: Machine,
    /// Kernels of a µGraph: 1 or 2.
    pub kernels: usize,
    /// Threads.
    pub threads: usize,
    /// Candidates that are returned, of each number of kernels.
    pub keep: usize,
    /// Two kernels are searched for unless their least cost exceeds the best kernel's cost by this factor, which is what
    /// the model may be wrong by.
    pub slack: f64,
}

impl Default for SearchOptions {
    fn default() -> Self {
        let (limits, machine) = (BlockLimits::default(), Machine::default());
        SearchOptions { limits, machine, kernels: 2, threads: 1, keep: 4, slack: 1.5 }
    }
}

/// A µGraph that was found.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// The µGraph.
    pub graph: MuGraph,
    /// Its modelled time in microseconds.
    pub cost_us: f64,
}

/// What the search did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchReport {
    /// Terms of the saturated target.
    pub terms: usize,
    /// False if saturation met its limit.
    pub saturated: bool,
    /// Structures with sets of sources that were searched.
    pub structures: usize,
    /// States and what was left aside, by rule.
    pub counts: Counts,
    /// Sets of results of first kernels, each searched on once.
    pub signatures: usize,
    /// Candidates that were screened, and those that failed.
    pub screened: [usize; 2],
    /// Why the search stopped.
    pub stopped: String,
}

/// Searches for µGraphs of a program with one output.
///
/// # Errors
/// Says what about the program the search does not cover.
pub fn search(program: &MuGraph, options: &SearchOptions) -> Result<(Vec<Found>, SearchReport), String> {
    let context = Context::new(program, options)?;
    let mut report = SearchReport {
        terms: context.algebra.size,
        saturated: context.algebra.saturated,
        ..SearchReport::default()
    };
    let mut counts = Counts::default();
    let tasks = context.tasks(&context.sources, false);
    report.structures = tasks.len();
    let mut singles = Candidates { best: Vec::new(), limit: SCREENED, most: f64::INFINITY };
    for sketch in context.run(&tasks, false, &mut counts) {
        context.add_single(sketch, &mut singles);
    }
    let best = singles.best.first().map_or(f64::INFINITY, |(cost, _)| *cost);
    let mut pairs = Candidates { best: Vec::new(), limit: SCREENED, most: best * options.slack };
    if options.kernels > 1 {
        let mut tasks = context.tasks(&context.sources, true);
        let all = tasks.len();
        tasks.retain(|(_, sources)| context.pair_floor_us(sources) < pairs.most);
        *counts.pruned.entry(COST_BOUND.into()).or_default() += (all - tasks.len()) as u64;
        report.structures += tasks.len();
        let mut partial: BTreeMap<Signature, Vec<Sketch>> = BTreeMap::new();
        for sketch in context.run(&tasks, true, &mut counts) {
            if !context.is_target(&sketch) {
                partial.entry(context.signature(&sketch)).or_default().push(sketch);
            }
        }
        report.signatures = partial.len();
        context.add_pairs(partial, &mut pairs, &mut counts);
    }
    report.counts = counts;
    let mut found = context.screen(singles, &mut report)?;
    found.extend(context.screen(pairs, &mut report)?);
    found.sort_by(|a, b| a.cost_us.total_cmp(&b.cost_us));
    report.stopped = match (report.counts.truncated, report.saturated) {
        (0, true) => "all structures were searched".into(),
        (0, false) => "all structures were searched, of a target that was not saturated".into(),
        (truncated, _) => format!("{truncated} structures met the limit of {} states", options.limits.states),
    };
    Ok((found, report))
}

/// Left because no counts make it cheap enough.
const COST_BOUND: &str = "cost bound";

/// Candidates that are kept for screening.
const SCREENED: usize = 64;

/// Results of a first kernel: classes and dimensions.
type Signature = Vec<(Id, Vec<Dim>)>;

/// Blocks of a kernel before, by label.
type Before = Vec<(u8, usize)>;

/// The cheapest chains so far.
struct Candidates {
    best: Vec<(f64, Vec<(Sketch, PartCounts)>)>,
    limit: usize,
    /// What a chain must cost less than, whatever else there is.
    most: f64,
}

impl Candidates {
    fn add(&mut self, cost: f64, chain: Vec<(Sketch, PartCounts)>) {
        let at = self.best.partition_point(|(known, other)| {
            known.total_cmp(&cost).then_with(|| other.cmp(&chain)) == std::cmp::Ordering::Less
        });
        if self.best.get(at).is_some_and(|(_, other)| *other == chain) {
            return;
        }
        self.best.insert(at, (cost, chain));
        self.best.truncate(self.limit);
    }

    /// What a chain must cost less than to be kept.
    fn bound(&self) -> f64 {
        if self.best.len() < self.limit {
            f64::INFINITY
        } else {
            self.best.last().map_or(f64::INFINITY, |b| b.0)
        }
    }
}

struct Context<'a> {
    program: &'a MuGraph,
    options: &'a SearchOptions,
    labels: Labels,
    algebra: Algebra,
    sources: Vec<Source>,
    target: (Id, Vec<Dim>),
    norms: Vec<Rational>,
    /// Labels that are summed somewhere.
    summed: BTreeSet<u8>,
}

/// A structure and the sources it loads.
type Task = (Structure, Vec<Source>);

impl<'a> Context<'a> {
    fn new(program: &'a MuGraph, options: &'a SearchOptions) -> Result<Context<'a>, String> {
        let [(_, output)] = program.outputs() else {
            return Err(format!("{} outputs, the search takes one", program.outputs().len()));
        };
        let labels = Labels::of(program)?;
        let algebra = Algebra::new(program, &labels)?;
        let sources = given(program, &labels, &algebra.tensors);
        let dims = labels.dims(*output).iter().map(|label| Dim::whole(*label)).collect();
        let target = (algebra.tensors[output.index()], dims);
        let mut norms = Vec::new();
        let mut summed = BTreeSet::new();
        for (_, node) in program.nodes() {
            let crate::Node::Op { op, args } = node else { continue };
            let last = |at: usize| labels.dims(args[at]).last().copied().flatten();
            match op {
                Op::Matmul => summed.extend(last(0)),
                Op::Reduce { f: ReduceFn::Sum, dim, .. } => summed.extend(labels.dims(args[0])[*dim]),
                Op::RmsNorm { eps } => {
                    summed.extend(last(0));
                    norms.push(*eps);
                }
                _ => {}
            }
        }
        norms.sort();
        norms.dedup();
        Ok(Context { program, options, labels, algebra, sources, target, norms, summed })
    }

    /// Structures with the sources that they load. Grid indices are in order, so that no two differ by names only.
    fn tasks(&self, sources: &[Source], partial: bool) -> Vec<Task> {
        let labels: Vec<u8> = (0..self.labels.extents.len() as u8).collect();
        let in_target =
            |label: &u8| self.target.1.iter().flat_map(|dim| dim.atoms()).any(|atom| atom.label == *label);
        let mut grids: Vec<Vec<u8>> = vec![Vec::new()];
        for label in &labels {
            let more: Vec<Vec<u8>> = grids
                .iter()
                .filter(|grid| grid.len() < 3)
                .map(|grid| [grid.as_slice(), &[*label]].concat())
                .collect();
            grids.extend(more);
        }
        grids.retain(|grid| {
            let foreign = grid.iter().filter(|label| !in_target(label)).count();
            foreign <= usize::from(partial)
                && grid.iter().all(|label| in_target(label) || self.summed.contains(label))
        });
        let loops = std::iter::once(None).chain(self.summed.iter().copied().map(Some));
        let loops: Vec<Option<u8>> = loops.collect();
        let mut tasks = Vec::new();
        for subset in 1u32..1 << sources.len() {
            let chosen = |(at, _): &(usize, &Source)| subset >> at & 1 == 1;
            let loaded: Vec<Source> =
                sources.iter().enumerate().filter(chosen).map(|(_, source)| source.clone()).collect();
            if !partial && loaded.len() < sources.len() {
                continue;
            }
            let has = |label: u8| {
                loaded.iter().flat_map(|s| &s.dims).flat_map(|dim| dim.atoms()).any(|a| a.label == label)
            };
            for grid in &grids {
                for looped in &loops {
                    let structure = Structure { grid: grid.clone(), looped: *looped };
                    let mut used = grid.iter().chain(looped);
                    if used.all(|label| has(*label)) && loaded.iter().all(|s| structure.load(s).is_some()) {
                        tasks.push((structure, loaded.clone()));
                    }
                }
            }
        }
        tasks
    }

    /// The sketches of all tasks, in the order of tasks, whatever the number of threads.
    fn run(&self, tasks: &[Task], partial: bool, counts: &mut Counts) -> Vec<Sketch> {
        let goal = || Goal { target: (self.target.0, &self.target.1), partial, norms: &self.norms };
        let one = |(structure, sources): &Task| {
            search_block(&self.algebra, (structure, sources), &goal(), &self.options.limits)
        };
        let threads = self.options.threads.clamp(1, 64);
        let mut results: Vec<(usize, (Vec<Sketch>, Counts))> = std::thread::scope(|scope| {
            let worker = |number: usize| {
                let mine = tasks.iter().enumerate().skip(number).step_by(threads);
                move || mine.map(|(at, task)| (at, one(task))).collect::<Vec<_>>()
            };
            let workers: Vec<_> = (0..threads).map(|number| scope.spawn(worker(number))).collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect()
        });
        results.sort_by_key(|(at, _)| *at);
        results.iter().for_each(|(_, (_, own))| counts.add(own));
        results.into_iter().flat_map(|(_, (sketches, _))| sketches).collect()
    }

    /// Classes and dimensions of what a sketch stores.
    fn program_result(&self, sketch: &Sketch) -> Vec<(Id, Vec<Dim>)> {
        sketch
            .stores
            .iter()
            .zip(&sketch.classes)
            .map(|((_, dims, _), class)| (*class, dims.clone()))
            .collect()
    }

    fn signature(&self, sketch: &Sketch) -> Signature {
        let mut results = self.program_result(sketch);
        results.sort();
        results
    }

    fn is_target(&self, sketch: &Sketch) -> bool {
        self.program_result(sketch) == [self.target.clone()]
    }

    /// A lower bound of two kernels, of which the first loads these sources: all inputs are loaded once.
    fn pair_floor_us(&self, sources: &[Source]) -> f64 {
        let machine = &self.options.machine;
        let elems = |source: &Source| -> f64 {
            let atoms = source.dims.iter().flat_map(|dim| dim.atoms());
            atoms.map(|atom| self.labels.extents[usize::from(atom.label)] as f64).product()
        };
        let others = self.sources.iter().filter(|source| !sources.contains(source));
        let moved: f64 = sources.iter().chain(others).map(elems).sum();
        2.0 * machine.launch_us + moved * machine.element_bytes as f64 / machine.memory_bytes_per_us
    }

    fn add_single(&self, sketch: Sketch, candidates: &mut Candidates) {
        let machine = &self.options.machine;
        if machine.floor_us(&sketch, &self.labels.extents) >= candidates.bound() {
            return;
        }
        if let Some((cost, counts)) =
            machine.best_counts(&sketch, &self.labels.extents, &[]).into_iter().next()
        {
            candidates.add(cost, vec![(sketch, counts)]);
        }
    }

    /// Second kernels for all sets of results of first kernels.
    fn add_pairs(
        &self,
        partial: BTreeMap<Signature, Vec<Sketch>>,
        candidates: &mut Candidates,
        counts: &mut Counts,
    ) {
        let (machine, extents) = (&self.options.machine, &self.labels.extents);
        for (signature, mut firsts) in partial {
            firsts.retain(|first| machine.floor_us(first, extents) + machine.launch_us < candidates.bound());
            if firsts.is_empty() {
                counts.prune(COST_BOUND);
                continue;
            }
            let seconds = self.seconds(&signature, counts);
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
                self.pair(self.in_order(first), &seconds, &mut known, candidates);
            }
        }
    }

    /// Kernels that compute the target from results of another.
    fn seconds(&self, signature: &Signature, counts: &mut Counts) -> Vec<Sketch> {
        let stored = signature.iter().enumerate().map(|(at, (class, dims))| Source {
            class: *class,
            dims: dims.clone(),
            origin: Origin::Stored(at),
        });
        let stored: Vec<Source> = stored.collect();
        // What is out of reach of one block that sees everything is out of reach of many.
        let one = Structure { grid: Vec::new(), looped: None };
        let goal = Goal { target: (self.target.0, &self.target.1), partial: false, norms: &self.norms };
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
        self.run(&tasks, false, counts)
    }

    /// A sketch with its stores in the order of the signature.
    fn in_order(&self, sketch: &Sketch) -> Sketch {
        let results = self.program_result(sketch);
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
        let firsts = machine.best_counts(&first, extents, &[]);
        for (at, second) in seconds.iter().enumerate() {
            let floor = machine.floor_us(second, extents);
            let mut seen: BTreeSet<Before> = BTreeSet::new();
            for (cost, counts) in &firsts {
                if cost + floor >= candidates.bound() {
                    break;
                }
                let before: Before = first
                    .structure
                    .grid
                    .iter()
                    .copied()
                    .zip(counts.grid.iter().copied())
                    .filter(|(label, _)| second.splits(*label))
                    .collect();
                // Of equal numbers of partial results, those that cost the first kernel least.
                if !seen.insert(before.clone()) {
                    continue;
                }
                let best = known.entry((at, before)).or_insert_with_key(|(_, before)| {
                    machine.best_counts(second, extents, before).into_iter().next()
                });
                if let Some((rest, own)) = best {
                    let chain = vec![(first.clone(), counts.clone()), (second.clone(), own.clone())];
                    candidates.add(cost + *rest, chain);
                }
            }
        }
    }

    /// Builds the best candidates, after a random test of each at small extents.
    fn screen(&self, candidates: Candidates, report: &mut SearchReport) -> Result<Vec<Found>, String> {
        let constants: Vec<Op> = self.algebra.constants.iter().map(|(op, _)| op.clone()).collect();
        let mut found: Vec<Found> = Vec::new();
        for (cost_us, chain) in candidates.best {
            if found.len() >= self.options.keep {
                break;
            }
            report.screened[0] += 1;
            let full: Vec<(&Sketch, &PartCounts)> =
                chain.iter().map(|(sketch, counts)| (sketch, counts)).collect();
            let graph =
                build(self.program, &full, &self.labels.extents, &constants).map_err(|e| e.to_string())?;
            if self.passes(&chain) {
                found.push(Found { graph, cost_us });
            } else {
                report.screened[1] += 1;
            }
        }
        Ok(found)
    }

    /// A random test at small extents: partitioned indices have 8 elements, two blocks and two iterations.
    fn passes(&self, chain: &[(Sketch, PartCounts)]) -> bool {
        let partitioned = |label: u8| chain.iter().any(|(sketch, _)| sketch.structure.partitions(label));
        let extents: Vec<usize> = (0..self.labels.extents.len())
            .map(|label| if partitioned(label as u8) { 8 } else { [3, 5, 2, 7][label % 4] })
            .collect();
        let label = |id, dim: usize| self.labels.dims(id)[dim];
        let Ok(small) =
            resize(self.program, |id, dim| label(id, dim).map_or(1, |label| extents[usize::from(label)]))
        else {
            return false;
        };
        let counts: Vec<PartCounts> = chain
            .iter()
            .map(|(sketch, _)| PartCounts {
                grid: vec![2; sketch.structure.grid.len()],
                looped: if sketch.structure.looped.is_some() { 2 } else { 1 },
            })
            .collect();
        let small_chain: Vec<(&Sketch, &PartCounts)> =
            chain.iter().map(|(sketch, _)| sketch).zip(&counts).collect();
        let Ok(constants) = Algebra::constants(&small, &self.labels) else { return false };
        let candidate = build(&small, &small_chain, &extents, &constants);
        candidate.is_ok_and(|candidate| screen(&small, &candidate, Primes::SCREEN, 1).is_ok())
    }
}
