//! The search for µGraphs that compute a program.
//!
//! The program is saturated once ([`algebra`]). A kernel's *structure* says which indices its grid and loop partition;
//! how often is decided last, by a cost model ([`cost`]), since it does not change what a block computes. For each
//! structure all block programs are enumerated ([`block`]): those that compute the target are candidates, and those that
//! compute parts of it are first kernels, whose second kernel is searched once per set of results. What survives is built
//! at small extents and screened by a random test; the best are then to be proved ([`crate::verify()`]) at full size.
//!
//! A program may have several outputs: the last kernel stores all of them. Dimensions of equal extent that different
//! outputs have in the same place, and no tensor has both of, are taken for the same index ([`labels`]), so that blocks
//! may cut all outputs alike.
//!
//! Rotary position embeddings are single operators (`rope`), whose parts are not searched for. Long programs are searched with their
//! elementwise chains as one value ([`chains`]).
//!
//! In contrast to Mirage (OSDI'25, section 4): tiles carry classes of labelled expressions, so that partitions which mix
//! indices are never built; parameters are instantiated late; there is a cost bound; and results do not depend on the
//! number of threads.

pub mod algebra;
pub mod block;
pub mod build;
pub mod chains;
pub mod cost;
pub mod labels;
pub mod limits;
mod pairs;
mod progress;
pub mod rope;
pub mod tile;

use crate::graph::{MuGraph, TensorId};
use crate::op::{Op, ReduceFn};
use crate::rational::Rational;
use crate::verify::{SCREEN_BITS, resize, screen};
use algebra::{Algebra, Term};
use build::build;
use cost::{Beside, PartCounts, SearchDevice};
use egg::{Id, Language};
use labels::Labels;
use limits::{Allowance, BlockLimits, Counts, InputStorage, Target};
use pairs::Candidates;
pub use progress::Progress;
use rope::{Rope, ropes};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tile::{Dim, Origin, Sketch, Source, Structure, given};

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    /// What a block may hold and do.
    pub limits: BlockLimits,
    /// The machine that costs are modelled for.
    pub machine: SearchDevice,
    /// Kernels of a µGraph: 1 or 2.
    pub kernels: usize,
    /// Threads.
    pub threads: usize,
    /// Candidates that are returned, of each number of kernels.
    pub keep: usize,
    /// Two kernels are searched for unless their least cost exceeds the best kernel's cost by this factor, which is what
    /// the model may be wrong by.
    pub slack: f64,
    /// Modelled microseconds that what is kept costs less than.
    pub below_us: f64,
    /// Other numbers of blocks and iterations that are returned with each µGraph of one kernel.
    pub alternatives: usize,
    /// How the program's inputs are in memory.
    pub inputs: InputStorage,
}

impl Default for SearchOptions {
    fn default() -> Self {
        let (limits, machine) = (BlockLimits::default(), SearchDevice::default());
        let below_us = f64::INFINITY;
        SearchOptions {
            limits,
            machine,
            kernels: 2,
            threads: 1,
            keep: 4,
            slack: 1.5,
            below_us,
            alternatives: 0,
            inputs: InputStorage::default(),
        }
    }
}

/// A µGraph that was found.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// The µGraph.
    pub graph: MuGraph,
    /// Its modelled time in microseconds.
    pub cost_us: f64,
    /// The same kernel with other numbers of blocks and iterations, and its modelled times.
    pub alternatives: Vec<(f64, MuGraph)>,
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

/// What a search that may be interrupted comes to.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It is complete.
    Finished(Vec<Found>, SearchReport),
    /// It met its allowance; what was done is in its progress.
    Paused,
}

/// Searches for µGraphs of a program, whose outputs the last kernel stores.
///
/// # Errors
/// Says what about the program the search does not cover.
pub fn search(program: &MuGraph, options: &SearchOptions) -> Result<(Vec<Found>, SearchReport), String> {
    let mut progress = Progress::default();
    match Search::new(program, options)?.resume(&mut progress, Allowance::ENDLESS)? {
        Outcome::Finished(found, report) => Ok((found, report)),
        Outcome::Paused => Err("the search paused without a limit".into()),
    }
}

/// A search that may pause: its program, saturated.
pub struct Search<'a>(Context<'a>);

impl<'a> Search<'a> {
    /// Prepares the search for µGraphs of a program.
    ///
    /// # Errors
    /// As [`search`].
    pub fn new(program: &'a MuGraph, options: &'a SearchOptions) -> Result<Search<'a>, String> {
        Context::new(program, options).map(Search)
    }

    /// Goes on with the search, as far as the allowance reaches. Progress may be written to a file meanwhile; results are those of an
    /// uninterrupted search.
    ///
    /// # Errors
    /// If the progress is that of another search.
    pub fn resume(&self, progress: &mut Progress, allowance: Allowance<'_>) -> Result<Outcome, String> {
        let Search(context) = self;
        progress.begin(context.program, context.options)?;
        Ok(match context.search(progress, allowance) {
            Some((found, report)) => Outcome::Finished(found, report),
            None => {
                progress.seal();
                Outcome::Paused
            }
        })
    }
}

/// Left because no counts make it cheap enough.
const COST_BOUND: &str = "cost bound";

/// Results of a first kernel.
type Signature = Vec<Target>;

struct Context<'a> {
    program: &'a MuGraph,
    options: &'a SearchOptions,
    labels: Labels,
    algebra: Algebra,
    sources: Vec<Source>,
    /// The program's results, each once.
    targets: Vec<Target>,
    /// The result that each output of the program is.
    outputs: Vec<Target>,
    norms: Vec<Rational>,
    /// Labels that are summed somewhere.
    summed: BTreeSet<u8>,
    ropes: Vec<Rope>,
}

/// A structure and the sources it loads.
type Task = (Structure, Vec<Source>);

impl<'a> Context<'a> {
    fn new(program: &'a MuGraph, options: &'a SearchOptions) -> Result<Context<'a>, String> {
        if program.outputs().is_empty() {
            return Err("it has no output".into());
        }
        let labels = Labels::of(program)?;
        let algebra = Algebra::new(program, &labels)?;
        let sources = given(program, &labels, &algebra.tensors, options);
        let target = |(_, output): &(String, TensorId)| {
            let dims = labels.dims(*output).iter().map(|label| Dim::whole(*label)).collect();
            (algebra.tensors[output.index()], dims)
        };
        let outputs: Vec<Target> = program.outputs().iter().map(target).collect();
        let mut targets = outputs.clone();
        targets.sort();
        targets.dedup();
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
        let ropes = ropes(program);
        Ok(Context { program, options, labels, algebra, sources, targets, outputs, norms, summed, ropes })
    }

    /// Structures with the sources that they load. Grid indices are in order, so that no two differ by names only.
    fn tasks(&self, sources: &[Source], partial: bool) -> Vec<Task> {
        let labels: Vec<u8> = (0..self.labels.extents.len() as u8).collect();
        let in_target = |label: &u8| {
            let dims = self.targets.iter().flat_map(|(_, dims)| dims);
            dims.flat_map(|dim| dim.atoms()).any(|atom| atom.label == *label)
        };
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
            if !partial && loaded.len() < sources.len() || self.has_half_a_rope(&loaded) {
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

    /// True if a source is a part of rotary position embeddings only, none of which the others complete.
    fn has_half_a_rope(&self, loaded: &[Source]) -> bool {
        let is_missing = |class: &Id| {
            let is_it = |source: &&Source| source.class == *class;
            self.sources.iter().any(|source| is_it(&source)) && !loaded.iter().any(|source| is_it(&source))
        };
        let is_part = |term: &Term| matches!(term, Term::Rope(_));
        loaded.iter().any(|source| {
            let parents = self.algebra.parents(source.class);
            !parents.is_empty()
                && parents.iter().all(|(term, _)| is_part(term) && term.children().iter().any(is_missing))
        })
    }

    /// What a block of some sources may hold and do: what a rotary position embedding takes is not counted.
    fn limits(&self, loaded: &[Source]) -> BlockLimits {
        let has = |id: TensorId| loaded.iter().any(|source| source.origin == Origin::Program(id));
        let whole = self.ropes.iter().filter(|rope| rope.angles.iter().all(|id| has(*id)));
        let limits = &self.options.limits;
        let own = whole.map(|rope| rope::OPS + rope.rest.map_or(0, |_| rope::REST_OPS));
        BlockLimits { ops: limits.ops + own.sum::<usize>(), ..*limits }
    }

    /// The whole search; `None` if it pauses.
    fn search(&self, progress: &mut Progress, mut left: Allowance<'_>) -> Option<(Vec<Found>, SearchReport)> {
        let options = self.options;
        let (terms, saturated) = (self.algebra.size, self.algebra.saturated);
        let mut report = SearchReport { terms, saturated, ..SearchReport::default() };
        let mut counts = Counts::default();
        let tasks = self.tasks(&self.sources, false);
        report.structures = tasks.len();
        let mut singles = Candidates::new(options.below_us);
        for sketch in progress.run(self, (&tasks, false), &mut counts, &mut left)? {
            self.add_single(sketch, &mut singles);
        }
        let mut pairs = Candidates::new(options.below_us.min(singles.least() * options.slack));
        if options.kernels > 1 {
            let mut tasks = self.tasks(&self.sources, true);
            let all = tasks.len();
            tasks.retain(|(_, sources)| self.pair_floor_us(sources) < pairs.bound());
            *counts.pruned.entry(COST_BOUND.into()).or_default() += (all - tasks.len()) as u64;
            report.structures += tasks.len();
            let mut partial: BTreeMap<Signature, Vec<Sketch>> = BTreeMap::new();
            for sketch in progress.run(self, (&tasks, true), &mut counts, &mut left)? {
                let signature = signature(&sketch);
                if signature != self.targets {
                    partial.entry(signature).or_default().push(sketch);
                }
            }
            report.signatures = partial.len();
            self.add_pairs(partial, &mut pairs, progress, (&mut counts, &mut left))?;
        }
        report.counts = counts;
        let mut found = self.screen(singles, &mut report);
        found.extend(self.screen(pairs, &mut report));
        found.sort_by(|a, b| a.cost_us.total_cmp(&b.cost_us));
        report.stopped = match (report.counts.truncated, report.saturated) {
            (0, true) => "all structures were searched".into(),
            (0, false) => "all structures were searched, of a target that was not saturated".into(),
            (truncated, _) => {
                format!("{truncated} structures met the limit of {} states", options.limits.states)
            }
        };
        Some((found, report))
    }

    fn add_single(&self, sketch: Sketch, candidates: &mut Candidates) {
        let machine = &self.options.machine;
        if machine.floor_us(&sketch, &self.labels.extents) >= candidates.bound() {
            return;
        }
        if let Some((cost, counts)) =
            machine.best_counts(&sketch, &self.labels.extents, Beside::default()).into_iter().next()
            && cost < candidates.bound()
        {
            candidates.add(cost, vec![(sketch, counts)]);
        }
    }

    /// Builds the best candidates, after a random test of each at small extents.
    fn screen(&self, candidates: Candidates, report: &mut SearchReport) -> Vec<Found> {
        let constants: Vec<Op> = self.algebra.constants.iter().map(|(op, _)| op.clone()).collect();
        let mut found: Vec<Found> = Vec::new();
        for (cost_us, chain) in candidates.best {
            if found.len() >= self.options.keep {
                break;
            }
            report.screened[0] += 1;
            let full: Vec<(&Sketch, &PartCounts)> =
                chain.iter().map(|(sketch, counts)| (sketch, counts)).collect();
            match build(self.program, (&full, &self.outputs), &self.labels.extents, &constants) {
                Ok(graph) if self.passes(&chain) => {
                    let alternatives = self.alternatives(&chain, &constants);
                    found.push(Found { graph, cost_us, alternatives });
                }
                _ => report.screened[1] += 1,
            }
        }
        found
    }

    /// The same kernels with other counts, the cheapest ones.
    fn alternatives(&self, chain: &[(Sketch, PartCounts)], constants: &[Op]) -> Vec<(f64, MuGraph)> {
        let built = |chain: &[(&Sketch, &PartCounts)]| {
            build(self.program, (chain, &self.outputs), &self.labels.extents, constants).ok()
        };
        let (sketch, chosen) = match chain {
            [first, second] => return self.pairs_of_other_blocks([first, second], built),
            [(sketch, chosen)] => (sketch, chosen),
            _ => return Vec::new(),
        };
        let all = self.options.machine.best_counts(sketch, &self.labels.extents, Beside::default());
        let others = all.into_iter().filter(|(_, counts)| counts != chosen).take(self.options.alternatives);
        others.filter_map(|(cost_us, counts)| Some((cost_us, built(&[(sketch, &counts)])?))).collect()
    }

    /// A random test at small extents: partitioned indices have 8 elements, two blocks and two iterations; indices of
    /// pairs have 8 elements, angles of one element of each pair 4, and so has what is joined to pairs.
    fn passes(&self, chain: &[(Sketch, PartCounts)]) -> bool {
        let partitioned = |label: u8| chain.iter().any(|(sketch, _)| sketch.structure.partitions(label));
        let mut extents: Vec<usize> = (0..self.labels.extents.len())
            .map(|label| if partitioned(label as u8) { 8 } else { [3, 5, 2, 7][label % 4] })
            .collect();
        for rope in &self.algebra.ropes {
            let angles = rope.of_angles.into_iter().flatten().map(|label| (label, 4));
            for (label, extent) in rope.label.map(|label| (label, 8)).into_iter().chain(angles) {
                extents[usize::from(label)] = extent;
            }
            let joined = rope.of_rest.into_iter().flat_map(|rest| rest.into_iter().zip([4, 12]));
            for (label, extent) in joined.filter_map(|(label, extent)| Some((label?, extent))) {
                extents[usize::from(label)] = extent;
            }
        }
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
        let candidate = build(&small, (&small_chain, &self.outputs), &extents, &constants);
        candidate.is_ok_and(|candidate| screen(&small, &candidate, SCREEN_BITS, 1).is_ok())
    }
}

/// What a sketch stores, in an order that does not depend on its steps.
fn signature(sketch: &Sketch) -> Signature {
    let mut results = sketch.results();
    results.sort();
    results
}
