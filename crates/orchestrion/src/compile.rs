//! The pipeline: a flat list of stages, each in a crate or module of its own. No stage calls another.

use crate::artifact::Artifact;
use crate::assemble::{self, Assembly};
use crate::backend::{self, Backend, Object};
use crate::candidates::{Candidates, Column, candidates, costs_us};
use crate::implement::{Implementation, KernelDesign, Measured, Place, implement};
use crate::manifest::{Manifest, PlanReport, Port};
use crate::race::{self, Whole};
use crate::remember::{Memory, Plan, StoredStep};
use crate::signature::Signatures;
use crate::tune::{self, Timer};
use crate::units::Units;
use crate::{Error, Model, Options, library, parallel, passes};
use bytes::Bytes;
use orch_plan::blp::{self, Choice, ChooseOptions, Problem, Status};
use orch_runtime::cpu::Source;
use orch_thread::validate::validate_thread;
use std::collections::BTreeMap;
use std::time::Instant;

impl Model {
    /// Compiles the model.
    ///
    /// # Errors
    /// If the machine lacks a compiler, the target is not known, the work is cancelled, or the model meets a limit.
    pub fn compile(&self, options: &Options) -> Result<Artifact, Error> {
        let mut clock = Stages::new(options);
        let backend = &*clock.run("find compiler", || backend::find(options))?;
        // Without one planning would be in vain.
        backend.compiler()?;
        let mut planned = self.planned(backend, &mut clock, options)?;
        let rivals: Vec<Whole> = planned.iter_mut().filter_map(|planned| planned.whole.take()).collect();
        let built = |planned| self.built(planned, backend, &mut clock, options);
        let mut artifacts: Vec<Artifact> = planned.into_iter().map(built).collect::<Result<_, _>>()?;
        if artifacts.len() > 1 {
            let times = clock.run("race", || race::times(&artifacts, &rivals, options))?;
            let winner = race::winner(&times);
            artifacts.swap(0, winner);
            artifacts[0].manifest.report.rivals_us = race::ordered(times, winner);
        }
        let mut artifact = artifacts.swap_remove(0);
        artifact.manifest.report.stage_seconds = clock.seconds;
        Ok(artifact)
    }

    /// A plan as an executable.
    fn built(
        &self,
        planned: Planned,
        backend: &dyn Backend,
        clock: &mut Stages<'_>,
        options: &Options,
    ) -> Result<Artifact, Error> {
        let kernels = &planned.implementation.kernels;
        let sources = clock.run("lower", || sources(backend, kernels, options))?;
        let objects = clock.run("build", || build(backend, &sources, options))?;

        let Assembly { steps, arena_bytes, constants } = planned.assembly;
        let kernels = assemble::kernel_infos(kernels, sources, &objects);
        let libraries: Vec<Bytes> = objects.into_iter().map(|object| object.bytes).collect();
        let manifest = Manifest {
            compiler: env!("CARGO_PKG_VERSION").to_owned(),
            model: self.info.clone(),
            device: backend.device(),
            target: backend.target(),
            precision: options.precision,
            machine: backend.machine(),
            kernel_compiler: backend.compiler()?,
            inputs: planned.inputs,
            outputs: planned.outputs,
            arena_bytes,
            kernels,
            constant_bytes: constants.iter().map(Bytes::len).collect(),
            library_bytes: libraries.iter().map(Bytes::len).collect(),
            steps,
            proofs: planned.implementation.proofs,
            report: planned.report,
        };
        Ok(Artifact { manifest, libraries, constants })
    }

    /// Plans the kernels, without making code of them: where plans are to be timed whole, the one of the least cost.
    ///
    /// # Errors
    /// As [`Model::compile`].
    pub fn plan(&self, options: &Options) -> Result<Planned, Error> {
        let mut clock = Stages::new(options);
        let backend = clock.run("find compiler", || backend::find(options))?;
        Ok(self.planned(&*backend, &mut clock, options)?.swap_remove(0))
    }

    /// The source of each kernel of the plan, in C or CUDA C++: what [`Model::compile`] would build. Needs no compiler of kernels.
    ///
    /// # Errors
    /// As [`Model::compile`].
    pub fn sources(&self, options: &Options) -> Result<Vec<Source>, Error> {
        let mut clock = Stages::new(options);
        let backend = clock.run("find compiler", || backend::find(options))?;
        let planned = self.planned(&*backend, &mut clock, options)?.swap_remove(0);
        clock.run("lower", || sources(&*backend, &planned.implementation.kernels, options))
    }

    /// The plan; or that of the least cost, and others that are to be timed against it.
    fn planned(
        &self,
        backend: &dyn Backend,
        clock: &mut Stages<'_>,
        options: &Options,
    ) -> Result<Vec<Planned>, Error> {
        let graph = clock.run("rewrite", || {
            Ok(orch_rewrite::rewrite(&self.graph, &orch_rewrite::RewriteOptions::default()).0)
        })?;
        let graph = clock.run("prepare", || Ok(backend.prepared(graph)))?;
        let storage = clock.run("layouts", || Ok(backend.storage(&graph)))?;
        let units = clock.run("identify", || {
            Units::of(&graph, storage.layouts(), backend.widens_f16()).map_err(internal)
        })?;
        let signatures = Signatures::of(&graph, &storage);
        let place =
            Place { graph: &graph, storage: &storage, units: &units, signatures: &signatures, backend };
        let memory = Memory::of(&graph, &signatures, backend, options);
        let is_tuned = is_tuned(backend, options);
        let remembered = if is_tuned { None } else { memory.get(&graph, &units) };
        // A record that was changed may tell of kernels that cannot be made.
        let known = match remembered {
            Some(plan) => {
                let chosen = plan.chosen();
                let made =
                    clock.run("implement", || implement(place, chosen, &Measured::default(), options))?;
                made.ok().map(|implementation| (plan, implementation))
            }
            None => None,
        };
        let is_remembered = known.is_some();
        let mut found = match known {
            Some((plan, implementation)) => vec![Found { plan, implementation, whole: None }],
            None => {
                let found = search(place, clock, options)?;
                if !is_tuned {
                    found.iter().for_each(|found| memory.put(&found.plan));
                }
                found
            }
        };
        let known: Vec<Option<f64>> = found.iter().map(Found::time_us).collect();
        let is_race = backend.measures() && options.records.is_none() && known.contains(&None);
        let mut rivals_us = Vec::new();
        if found.len() > 1 && !is_race {
            let winner = race::winner(&known);
            found = vec![found.swap_remove(winner)];
            rivals_us = race::ordered(known, winner);
        }
        let planned = |Found { plan, mut implementation, whole }| {
            let dumps = clock.run("passes", || passes::run_on_plan(&mut implementation, options))?;
            if let Some(dump) = &options.dump_after {
                dumps.iter().for_each(|(kernel, text)| (dump.receive)(kernel, text));
            }
            let assembly =
                clock.run("plan", || assemble::assemble(&graph, &storage, &implementation, options))?;
            let report = PlanReport {
                operators: self.operators,
                primitives: graph.nodes().len(),
                units: units.members.len(),
                candidates: plan.candidates,
                refused: plan.refused,
                is_complete: plan.is_complete,
                distinct_kernels: plan.distinct,
                solver_status: plan.status,
                solver_gap: plan.gap,
                modelled_us: plan.modelled_us,
                without_superoptimizer_us: plan.without_superoptimizer_us,
                rivals_us: rivals_us.clone(),
                is_remembered,
                notes: library::notes(backend, options),
                stage_seconds: Vec::new(),
            };
            let (inputs, outputs) =
                (assemble::ports(&graph, &graph.inputs), assemble::ports(&graph, &graph.outputs));
            Ok(Planned { implementation, assembly, inputs, outputs, report, whole })
        };
        found.into_iter().map(planned).collect()
    }
}

/// A model as kernels and steps, before code is made of it.
pub struct Planned {
    pub(crate) implementation: Implementation,
    pub(crate) assembly: Assembly,
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    pub(crate) report: PlanReport,
    /// Its time, if it is one of several that are to be timed.
    whole: Option<Whole>,
}

/// A plan and its kernels.
struct Found {
    plan: Plan,
    implementation: Implementation,
    whole: Option<Whole>,
}

impl Found {
    /// What it takes as a whole, if that is known.
    fn time_us(&self) -> Option<f64> {
        self.whole.as_ref()?.time_us
    }
}

/// Finds plans and their kernels, the one of the least cost first. What no template serves is struck out of the candidates,
/// and chosen again.
fn search(place: Place<'_>, clock: &mut Stages<'_>, options: &Options) -> Result<Vec<Found>, Error> {
    let mut candidates = clock.run("candidates", || candidates(place, options))?;
    if options.superoptimize && options.fuse {
        let columns = &candidates.columns;
        let choice = clock.run("choose", || choose(place.units, columns, &costs_us(columns)))?;
        clock.run("superoptimize", || candidates.superoptimize(place, &choice.columns, options))?;
    }
    'again: loop {
        let columns = &candidates.columns;
        let Best { choice, timer, times } = best(place, columns, &candidates.signatures, clock, options)?;
        let mut measured = Measured::default();
        let rivals = match &timer {
            Some(_) if place.backend.overlaps_kernels() => {
                let costs = tune::mixed(columns, &times);
                let mut solve = |costs: &[f64]| choose(place.units, columns, costs);
                clock.run("choose", || race::rivals(columns, choice, &costs, &mut solve))?
            }
            _ => vec![choice],
        };
        let times = times.into_iter();
        measured.times.extend(times.map(|(kernel, time)| (candidates.signatures[kernel].clone(), time)));
        let mut found = Vec::new();
        for (number, choice) in rivals.iter().enumerate() {
            if let Some(timer) = &timer {
                clock.run("schedules", || timer.schedules(choice, &mut measured))?;
            }
            let plan = plan_of(&candidates, choice);
            let chosen = plan.chosen();
            match clock.run("implement", || implement(place, chosen, &measured, options))? {
                Ok(implementation) => {
                    let timer = timer.as_ref().filter(|_| rivals.len() > 1);
                    let whole = timer.and_then(|timer| timer.whole(choice, &measured));
                    let is_timed = whole.is_some();
                    if number == 0 || is_timed {
                        found.push(Found { plan, implementation, whole });
                    }
                    // Host routines are not timed.
                    if !is_timed {
                        break;
                    }
                }
                Err(unserved) if number == 0 => {
                    candidates.strike(&unserved);
                    continue 'again;
                }
                // Others are not needed.
                Err(_) => {}
            }
        }
        if found.iter().any(|found| found.plan.has_substitutes()) {
            let plain: Vec<Column> = candidates.plain().cloned().collect();
            let without = best(place, &plain, &candidates.signatures, clock, options)?;
            for found in found.iter_mut().filter(|found| found.plan.has_substitutes()) {
                found.plan.without_superoptimizer_us = Some(without.choice.objective_us);
            }
        }
        return Ok(found);
    }
}

/// The cheapest plan of some columns, and what was measured for it.
struct Best<'a> {
    choice: Choice,
    /// What measures, if kernels are measured.
    timer: Option<Timer<'a>>,
    /// Times by kernel.
    times: BTreeMap<usize, f64>,
}

fn best<'a>(
    place: Place<'a>,
    columns: &'a [Column],
    signatures: &'a [String],
    clock: &mut Stages<'_>,
    options: &'a Options,
) -> Result<Best<'a>, Error> {
    let choice = clock.run("choose", || choose(place.units, columns, &costs_us(columns)))?;
    if !is_tuned(place.backend, options) {
        return Ok(Best { choice, timer: None, times: BTreeMap::new() });
    }
    let timer = Timer::new(place, columns, signatures, options)?;
    let (choice, times) = clock.run("tune", || {
        let mut solve = |costs: &[f64]| choose(place.units, columns, costs);
        tune::tune(columns, choice, &mut solve, &mut |wanted| timer.measure(wanted))
    })?;
    Ok(Best { choice, timer: Some(timer), times })
}

/// True if plans are made by measured times.
pub(crate) fn is_tuned(backend: &dyn Backend, options: &Options) -> bool {
    options.records.is_some() || options.tune && backend.measures()
}

/// Runs stages, timing each; those that run again are summed up.
struct Stages<'a> {
    options: &'a Options,
    seconds: Vec<(String, f64)>,
}

impl<'a> Stages<'a> {
    fn new(options: &'a Options) -> Self {
        Self { options, seconds: Vec::new() }
    }

    fn run<T>(&mut self, name: &str, stage: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        if self.options.cancel.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let start = Instant::now();
        self.options.progress.begin(name, 0);
        let result = stage();
        self.options.progress.end();
        let seconds = start.elapsed().as_secs_f64();
        match self.seconds.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += seconds,
            None => self.seconds.push((name.to_owned(), seconds)),
        }
        result
    }
}

/// A bug, by what went wrong.
pub fn internal(error: impl std::fmt::Display) -> Error {
    let text = error.to_string();
    // The runtime says of its own errors which are bugs, and so does `Error`.
    Error::Internal(text.strip_prefix("internal error: ").unwrap_or(&text).to_owned())
}

/// Stage "choose": the binary linear program over candidate kernels (Korch, ASPLOS'24, section 5).
fn choose(units: &Units, columns: &[Column], costs_us: &[f64]) -> Result<Choice, Error> {
    let columns = (columns.iter().zip(costs_us))
        .map(|(column, &cost_us)| blp::Column::of_candidate(&column.candidate, cost_us));
    let problem = Problem { columns: columns.collect(), ..Problem::of_graph(&units.dag) };
    let choice =
        blp::choose(&problem, &ChooseOptions::default(), &orch_plan::solver::MicroLp).map_err(internal)?;
    if choice.status == Status::Infeasible {
        return Err(Error::Internal("no kernels produce some output of the model".to_owned()));
    }
    Ok(choice)
}

fn plan_of(candidates: &Candidates, choice: &Choice) -> Plan {
    let chosen = choice.columns.iter().map(|column| &candidates.columns[column.index()]);
    let step = |column: &Column| StoredStep::of(&column.candidate, column.substitute.clone());
    Plan {
        candidates: candidates.columns.len(),
        refused: candidates.refused,
        is_complete: candidates.report.is_complete(),
        distinct: candidates.distinct,
        status: status_name(choice.status).to_owned(),
        gap: choice.gap(),
        modelled_us: choice.objective_us,
        without_superoptimizer_us: None,
        steps: chosen.map(step).collect(),
    }
}

fn status_name(status: Status) -> &'static str {
    match status {
        Status::Optimal => "optimal",
        Status::Feasible => "feasible",
        Status::Infeasible => "infeasible",
    }
}

/// Stage "lower": source of each kernel of the plan, in its order.
pub fn sources(
    backend: &dyn Backend,
    kernels: &[KernelDesign],
    options: &Options,
) -> Result<Vec<Source>, Error> {
    let source = |kernel: &KernelDesign| {
        let program = &kernel.design.kernel.program;
        let violations = validate_thread(program);
        if violations.is_empty() {
            return Ok(Source { name: kernel.name.clone(), text: backend.source(program) });
        }
        Err(Error::Internal(format!("kernel {} is not valid: {}", kernel.name, violations.join("; "))))
    };
    parallel::map(kernels, options, source)?.into_iter().collect()
}

/// Stage "build": compiled kernels of the sources, from the cache where they are known.
fn build(backend: &dyn Backend, sources: &[Source], options: &Options) -> Result<Vec<Object>, Error> {
    options.progress.begin("compile kernels", sources.len());
    let objects = backend.build(sources, options);
    options.progress.end();
    objects
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Precision;
    use crate::testing::{LORA, graph, with_place};
    use orch_tune::Database;

    #[test]
    fn times_of_whole_plans_decide_between_them() {
        let folder = std::env::temp_dir().join(format!("orchestrion-race-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let records = folder.join("records");
        std::fs::write(&records, "").unwrap();
        let options = Options {
            cache_dir: folder.clone(),
            target: Some("cuda:sm_90".to_owned()),
            precision: Precision::F16,
            superoptimize: false,
            records: Some(records.clone()),
            ..Options::default()
        };
        with_place(LORA, &options, |place| {
            let found = search(place, &mut Stages::new(&options), &options).unwrap();
            let names = |implementation: &Implementation| -> Vec<String> {
                implementation.kernels.iter().map(|kernel| kernel.name.clone()).collect()
            };
            assert!(found.len() > 1 && found.iter().all(|found| found.time_us().is_none()));
            assert_ne!(names(&found[0].implementation), names(&found[1].implementation));

            // Without times the plan of the least cost is taken, and with times the fastest.
            let model = Model::from_graph(graph(LORA));
            let plain = model.plan(&options).unwrap();
            assert_eq!(names(&plain.implementation), names(&found[0].implementation));
            assert_eq!(plain.report.rivals_us, [0.0; 0]);
            let database = Database::open(&folder.join("times")).unwrap();
            for (found, time) in found.iter().zip([20.0, 15.0]) {
                database.put(&found.whole.as_ref().unwrap().key, &time).unwrap();
            }
            database.export(&mut std::fs::File::create(&records).unwrap()).unwrap();
            let raced = model.plan(&options).unwrap();
            assert_eq!(names(&raced.implementation), names(&found[1].implementation));
            assert_eq!(raced.report.rivals_us, [15.0, 20.0]);
        });
        let _ = std::fs::remove_dir_all(&folder);
    }
}
