//! Searching one program (Mirage, OSDI'25): results are kept in the tuning database, with their proofs, which are made anew when they are
//! read.

use crate::plan::backend::{EmittedFacts, Planner};
use crate::plan::block_kernels::lowered_blocks;
use crate::{Options, parallel};
use orch_mugraph::lower::Stored;
use orch_mugraph::lower::gpu::{self, EmittedKernel, LoopDevice};
use orch_mugraph::search::SearchOptions;
use orch_mugraph::search::limits::InputStorage;
use orch_mugraph::{
    MuGraph, Proved, SuperoptimizeError, SuperoptimizeOptions, Superoptimized, VerifyOptions, print,
    superoptimize,
};
use orch_tune::{Database, Key};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Searched {
    /// µGraphs with proofs, and a report.
    pub found: Superoptimized,
    /// True if the result was in the tuning database.
    pub is_cached: bool,
}

/// µGraphs of each program that are proved; where kernels are timed, more of them, with several grids each.
const PROOFS: usize = 2;
const TIMED_PROOFS: usize = 8;
const TIMED_SCHEDULES: usize = 3;

/// Grids and loop ranges that are tried for each kernel beside the one that the search's model prefers.
const ALTERNATIVES: usize = 24;

/// A program to search, and how its tensors lie in memory.
pub struct SearchQuery<'a> {
    /// What is to be computed.
    pub program: &'a MuGraph,
    /// True if exponentials must be relative to maxima.
    pub must_be_stable: bool,
    /// Modelled microseconds that it has to cost less than.
    pub below_us: f64,
    /// States after which the search ends without a result.
    pub states: u64,
    /// Time for further searches, of [`SuperoptimizeOptions::budget`].
    pub budget: Option<Duration>,
    /// Text that is equal for equal layouts: part of the result's key.
    pub layout: &'a str,
    /// How its inputs are in memory.
    pub inputs: InputStorage,
    /// How the tensors of a µGraph that computes it are stored; `None` if it has no place for them.
    pub stored: &'a dyn Fn(&MuGraph) -> Option<Vec<Stored>>,
}

/// Searches µGraphs for one target; results are kept in the tuning database.
pub struct Finder<'a> {
    planner: &'a dyn Planner,
    options: &'a Options,
    /// `None` if the database cannot be used: then programs are searched anew.
    database: Option<Database>,
}

impl<'a> Finder<'a> {
    /// A finder for a machine.
    pub fn new(planner: &'a dyn Planner, options: &'a Options) -> Self {
        Self { planner, options, database: Database::open(&options.cache_dir).ok() }
    }

    /// The cheapest µGraphs of a program, with proofs.
    ///
    /// # Errors
    /// If the program is outside what is searched, or the work is cancelled.
    pub fn find(&self, query: &SearchQuery<'_>) -> Result<Searched, SuperoptimizeError> {
        let threads = parallel::jobs(self.options);
        let search = SearchOptions {
            threads,
            alternatives: ALTERNATIVES,
            below_us: query.below_us,
            inputs: query.inputs,
            ..self.planner.search_options()
        };
        let (proofs, schedules) = match self.planner.info().is_tuned(self.options) {
            true => (TIMED_PROOFS, TIMED_SCHEDULES),
            false => (PROOFS, 1),
        };
        let options = SuperoptimizeOptions {
            search,
            verify: VerifyOptions { threads, ..VerifyOptions::default() },
            states: query.states,
            budget: query.budget,
            proofs,
            schedules,
            must_be_stable: query.must_be_stable,
        };
        let key = self.key(query, &options);
        if let Some(found) = self.cached(&key, query) {
            return Ok(Searched { found, is_cached: true });
        }
        let goes_on = || !self.options.cancel.load(Ordering::Relaxed);
        let rank = |graph: &MuGraph, modelled_us| self.cost_us(query, graph, modelled_us);
        let found = superoptimize(query.program, &options, &rank, &goes_on)?;
        // What time ended may be found another time.
        let is_final = query.budget.is_none() || !found.proved.is_empty();
        if let Some(database) = self.database.as_ref().filter(|_| is_final) {
            // A result that cannot be stored is searched again.
            let _ = database.put(&key, &found);
        }
        Ok(Searched { found, is_cached: false })
    }

    /// The result in the database, if all of it is proved anew.
    fn cached(&self, key: &Key, query: &SearchQuery<'_>) -> Option<Superoptimized> {
        let found: Superoptimized = self.database.as_ref()?.get(key)?;
        let SearchQuery { program, must_be_stable, .. } = *query;
        let holds = |proved: &Proved| proved.check(program, must_be_stable).is_ok();
        let all = parallel::map(&found.proved, self.options, holds).ok()?;
        all.into_iter().all(|holds| holds).then_some(found)
    }

    /// What a µGraph costs once it is lowered, or why it is not.
    fn cost_us(&self, query: &SearchQuery<'_>, graph: &MuGraph, modelled_us: f64) -> Result<f64, String> {
        let stored = (query.stored)(graph).ok_or("there is no place for its tensors")?;
        let lowered = lowered_blocks(graph, &stored, self.planner, 1);
        let designs = lowered.map_err(|reason| reason.to_string())?;
        let mut least_us = 0.0;
        let mut kernels = Vec::new();
        for lowered in &designs {
            let Some(design) = lowered.designs.first() else { continue };
            let EmittedFacts { least_us: own_us, resident_ctas } =
                self.planner.emitted(&design.kernel.program);
            least_us += own_us;
            let (kernel, ctas) = (lowered.kernel, design.kernel.program.tasks);
            kernels.push(EmittedKernel { kernel, ctas, resident_ctas });
        }
        Ok(self.visible_us(graph, &stored, &kernels, modelled_us).max(least_us))
    }

    /// Modelled time less the part of loops that masks hide.
    fn visible_us(
        &self,
        graph: &MuGraph,
        stored: &[Stored],
        kernels: &[EmittedKernel],
        modelled_us: f64,
    ) -> f64 {
        if !self.planner.info().computes_bands {
            return modelled_us;
        }
        let machine = self.planner.search_options().machine;
        let launches_us = (machine.launch_us * graph.kernels() as f64).min(modelled_us);
        let iteration_time = |tile, ctas| machine.iteration_time(tile, ctas);
        let iteration_time = machine.waiting.is_some().then_some(&iteration_time as _);
        let sm_flops_per_us = machine.flops_per_us / machine.cores as f64;
        let device = LoopDevice { sms: machine.cores, sm_flops_per_us, iteration_time };
        let loops_us = modelled_us - launches_us;
        launches_us + loops_us * gpu::visible_share(graph, stored, kernels, &device, loops_us)
    }

    fn key(&self, query: &SearchQuery<'_>, options: &SuperoptimizeOptions) -> Key {
        let SearchOptions {
            limits,
            machine,
            kernels,
            keep,
            slack,
            below_us,
            alternatives,
            inputs,
            threads: _,
        } = options.search;
        Key {
            program: format!("{} {}", print(query.program), query.layout),
            target: self.planner.info().name.clone(),
            machine: format!("{machine:?}"),
            compiler: concat!("orchestrion ", env!("CARGO_PKG_VERSION"), " ", env!("ORCHESTRION_SOURCES"))
                .to_owned(),
            flags: format!(
                "µGraphs: {limits:?} kernels {kernels} keep {keep} and {alternatives} slack {slack} {inputs:?} below {below_us:.2} states {} in {:?} proofs {} of {} stable {}",
                options.states, options.budget, options.proofs, options.schedules, options.must_be_stable
            ),
        }
    }
}
