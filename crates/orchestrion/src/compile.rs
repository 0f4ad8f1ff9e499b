//! The pipeline: a flat list of stages. No stage calls another, and nothing depends on this module.

use crate::artifact::Artifact;
use crate::build::{self, kernel_info::kernel_infos, proved_parts::proved_parts, sources, symbols};
use crate::manifest::{Device, Manifest, PlanReport, UpdatableInfo};
use crate::plan::assemble::{self, Assembly};
use crate::plan::backend::Backend;
use crate::plan::cache::{Plan, PlanCache};
use crate::plan::candidates::{CandidateColumn, CandidateColumns, candidates, costs_us, time_us};
use crate::plan::choose::choose;
use crate::plan::considered::{self, CountedCosts};
use crate::plan::context::PlanContext;
use crate::plan::implement::implement;
use crate::plan::implementation::Implementation;
use crate::plan::in_place::write_in_place;
use crate::plan::independent::group_independent;
use crate::plan::kernel::Measured;
use crate::plan::passes;
use crate::plan::planned::{EndToEndTime, Planned};
use crate::plan::prepared::{PreparedGraph, with_storage};
use crate::plan::units::UnitOptions;
use crate::plan::updates::{UpdateRule, update_in_place};
use crate::search::cached;
use crate::search::substitutes::add_substitutes;
use crate::search::whole::WholeProgram;
use crate::stages::StageClock;
use crate::tune::budget::Phase;
use crate::tune::timer::{Timer, TimingTools};
use crate::tune::{alternatives, end_to_end, library, select};
use crate::updatable::UpdatableConstant;
use crate::{Error, Model, Options};
use bytes::Bytes;
use orch_compute::operands::half_operands;
use orch_plan::blp::Choice;
use orch_runtime::cpu::Source;
use std::collections::BTreeMap;
use std::rc::Rc;

impl Model {
    /// Compiles the model.
    ///
    /// # Errors
    /// If the machine lacks a compiler, the target is not known, the work is cancelled, or the model meets a limit.
    pub fn compile(&self, options: &Options) -> Result<Artifact, Error> {
        let mut clock = StageClock::new(options);
        let backend = &*clock.run("find compiler", || self.backend(options))?;
        // Fails now rather than after planning.
        backend.compiler()?;
        let mut planned = self.planned(backend, &mut clock, options)?;
        let plans: Vec<EndToEndTime> =
            planned.iter_mut().filter_map(|planned| planned.end_to_end.take()).collect();
        let budget = Rc::clone(&clock.budget);
        let mut planned = planned.into_iter();
        let first = planned.next().ok_or_else(|| Error::internal("no plan"))?;
        let mut artifacts = vec![budget.uncounted(|| self.built(first, backend, &mut clock, options))?];
        for (number, planned) in planned.enumerate() {
            if budget.is_over(budget.deadline(Phase::Plans)) {
                budget.leave_out(Phase::Plans, number + 1);
            } else {
                artifacts.push(self.built(planned, backend, &mut clock, options)?);
            }
        }
        if artifacts.len() > 1 {
            let times =
                clock.run("select end to end", || end_to_end::times(&artifacts, &plans, &budget, options))?;
            let winner = end_to_end::winner(&times);
            artifacts.swap(0, winner);
            artifacts[0].manifest.report.alternatives_us = end_to_end::ordered(times, winner);
        }
        let mut artifact = artifacts.swap_remove(0);
        artifact.manifest.report.notes.extend(budget.note());
        artifact.manifest.report.stage_seconds = clock.seconds;
        Ok(artifact)
    }

    /// What makes kernels for the model.
    fn backend(&self, options: &Options) -> Result<Box<dyn Backend>, Error> {
        let half = half_operands(&self.graph).map(|operands| operands.half);
        build::find(options, half)
    }

    /// A plan as an executable.
    fn built(
        &self,
        planned: Planned,
        backend: &dyn Backend,
        clock: &mut StageClock<'_>,
        options: &Options,
    ) -> Result<Artifact, Error> {
        let kernels = &planned.implementation.kernels;
        let sources = clock.run("lower", || sources::sources(backend, kernels, options))?;
        let mut objects = clock.run("build", || sources::build(backend, &sources, options))?;
        let info = backend.info();
        let compiled: Vec<Vec<String>> = sources.iter().map(|source| source.symbols.clone()).collect();
        let sources = self.named(sources, info.device);
        symbols::name_objects(&mut objects, &compiled, &sources);

        let Assembly { steps, step_of_column, arena_bytes, mut constants, updates } = planned.assembly;
        let mut inputs = planned.inputs;
        let ports = inputs.split_off(inputs.len() - self.updatable.len());
        let updatable = (ports.into_iter().zip(&self.updatable))
            .map(|(port, UpdatableConstant { value, .. })| {
                constants.push(value.bytes().clone());
                UpdatableInfo { port, constant: constants.len() - 1 }
            })
            .collect();
        let kernels = kernel_infos(kernels, sources, &objects);
        let parts = proved_parts(&planned.implementation, &steps, &step_of_column, &kernels);
        let libraries: Vec<Bytes> = objects.into_iter().map(|object| object.bytes).collect();
        let manifest = Manifest {
            compiler: env!("CARGO_PKG_VERSION").to_owned(),
            model: self.info.clone(),
            device: info.device,
            target: info.name.clone(),
            precision: info.precision,
            machine: info.machine.clone(),
            kernel_compiler: backend.compiler()?,
            inputs,
            outputs: planned.outputs,
            updates,
            updatable,
            arena_bytes,
            kernels,
            constant_bytes: constants.iter().map(Bytes::len).collect(),
            library_bytes: libraries.iter().map(Bytes::len).collect(),
            steps,
            extensions: info.extensions.clone(),
            proofs: planned.implementation.proofs,
            parts,
            report: planned.report,
        };
        let artifact = Artifact { manifest, libraries, constants };
        artifact.check().map_err(Error::internal)?;
        Ok(artifact)
    }

    /// Plans the kernels, without sources: where alternative plans are to be timed, the one of the least cost.
    ///
    /// # Errors
    /// As [`Model::compile`].
    pub fn plan(&self, options: &Options) -> Result<Planned, Error> {
        let mut clock = StageClock::new(options);
        let backend = clock.run("find compiler", || self.backend(options))?;
        Ok(self.planned(&*backend, &mut clock, options)?.swap_remove(0))
    }

    /// Compiles a program to the kernels of a µGraph that is proved to compute it: no other plan is looked for. `self` is the program
    /// in primitives ([`orch_mugraph::primitives`]).
    ///
    /// # Errors
    /// If the µGraph is not lowered, or as [`Model::compile`].
    pub fn compile_found(&self, found: &WholeProgram<'_>, options: &Options) -> Result<Artifact, Error> {
        let mut clock = StageClock::new(options);
        let backend = &*clock.run("find compiler", || self.backend(options))?;
        backend.compiler()?;
        let planned = self.planned_found(found, backend, &mut clock, options)?;
        let mut artifact = self.built(planned, backend, &mut clock, options)?;
        artifact.manifest.report.stage_seconds = clock.seconds;
        Ok(artifact)
    }

    /// Source of the kernels that [`Model::compile_found`] would build.
    ///
    /// # Errors
    /// As [`Model::compile_found`]; no compiler of kernels is needed.
    pub fn sources_found(&self, found: &WholeProgram<'_>, options: &Options) -> Result<Vec<Source>, Error> {
        let mut clock = StageClock::new(options);
        let backend = &*clock.run("find compiler", || self.backend(options))?;
        let planned = self.planned_found(found, backend, &mut clock, options)?;
        let sources = sources::sources(backend, &planned.implementation.kernels, options)?;
        Ok(self.named(sources, backend.info().device))
    }

    fn planned_found(
        &self,
        found: &WholeProgram<'_>,
        backend: &dyn Backend,
        clock: &mut StageClock<'_>,
        options: &Options,
    ) -> Result<Planned, Error> {
        let prepared = self.prepared(backend, clock, options)?;
        let ctx = prepared.context(backend);
        let chosen = found.chosen(ctx)?;
        let made = clock.run("implement", || implement(ctx, vec![chosen], &Measured::default(), options))?;
        let implementation = made.map_err(|_| Error::Unsupported("the µGraph is not lowered".to_owned()))?;
        let modelled_us = implementation.columns.iter().map(|column| column.cost_us).sum();
        let plan = Plan { modelled_us, candidates: 1, distinct: 1, is_complete: true, ..Plan::default() };
        self.assembled(ctx, Found { plan, implementation, end_to_end: None }, clock, options)
    }

    /// The source of each kernel of the plan, in C or CUDA C++: what [`Model::compile`] would build. Needs no compiler of kernels.
    ///
    /// # Errors
    /// As [`Model::compile`].
    pub fn sources(&self, options: &Options) -> Result<Vec<Source>, Error> {
        let mut clock = StageClock::new(options);
        let backend = clock.run("find compiler", || self.backend(options))?;
        let planned = self.planned(&*backend, &mut clock, options)?.swap_remove(0);
        let sources =
            clock.run("lower", || sources::sources(&*backend, &planned.implementation.kernels, options))?;
        Ok(self.named(sources, backend.info().device))
    }

    /// The sources with the names that kernels have in profilers, if they are of a GPU.
    fn named(&self, mut sources: Vec<Source>, device: Device) -> Vec<Source> {
        match device {
            Device::Cpu => {}
            Device::Cuda => symbols::name_sources(&mut sources, &self.info),
        }
        sources
    }

    /// The plan; or the one of the least cost, and its alternatives that are to be timed.
    fn planned(
        &self,
        backend: &dyn Backend,
        clock: &mut StageClock<'_>,
        options: &Options,
    ) -> Result<Vec<Planned>, Error> {
        let prepared = self.prepared(backend, clock, options)?;
        let ctx = prepared.context(backend);
        let info = backend.info();
        let cache = PlanCache::of(ctx, options);
        let is_tuned = info.is_tuned(options);
        let cached = if is_tuned { None } else { cache.get(ctx.graph, ctx.units) };
        // A record that was edited may have kernels that cannot be lowered.
        let known = match cached {
            Some(plan) if clock.run("prove again", || cached::all_hold(ctx, &plan.chosen(), options))? => {
                let chosen = plan.chosen();
                let made =
                    clock.run("implement", || implement(ctx, chosen, &Measured::default(), options))?;
                made.ok().map(|implementation| (plan, implementation))
            }
            _ => None,
        };
        let is_cached = known.is_some();
        let mut found = match known {
            Some((plan, implementation)) => vec![Found { plan, implementation, end_to_end: None }],
            None => {
                let found = find_plans(ctx, backend, clock, options)?;
                if !is_tuned {
                    found.iter().for_each(|found| cache.put(&found.plan));
                }
                found
            }
        };
        let known: Vec<Option<f64>> = found.iter().map(Found::time_us).collect();
        let is_timed = info.is_measurable && options.records.is_none() && known.contains(&None);
        let mut alternatives_us = Vec::new();
        if found.len() > 1 && !is_timed {
            let winner = end_to_end::winner(&known);
            found = vec![found.swap_remove(winner)];
            alternatives_us = end_to_end::ordered(known, winner);
        }
        let planned = |found| {
            let mut planned = self.assembled(ctx, found, clock, options)?;
            planned.report.alternatives_us.clone_from(&alternatives_us);
            planned.report.is_cached = is_cached;
            planned.report.notes =
                info.note.iter().cloned().chain(library::notes(info, backend, options)).collect();
            Ok(planned)
        };
        found.into_iter().map(planned).collect()
    }

    /// The graph as the stages after "identify" see it.
    fn prepared(
        &self,
        backend: &dyn Backend,
        clock: &mut StageClock<'_>,
        options: &Options,
    ) -> Result<PreparedGraph, Error> {
        let graph = clock.run("rewrite", || {
            Ok(orch_rewrite::rewrite(&self.graph, &orch_rewrite::RewriteOptions::default()).0)
        })?;
        let graph = clock.run("prepare", || {
            let graph = orch_rewrite::unflatten_reductions(&orch_rewrite::split_wide_concats(&graph));
            Ok(backend.prepared(orch_rewrite::index_selections(&graph, orch_compute::fuse::has_formula)))
        })?;
        let (graph, storage) = clock.run("layouts", || Ok(with_storage(graph, &self.updates, backend)))?;
        let unit_options = UnitOptions::of(backend.info(), options);
        clock.run("identify", || {
            PreparedGraph::of(graph, storage, &self.updates, unit_options).map_err(Error::internal)
        })
    }

    /// Steps and memory of a plan.
    fn assembled(
        &self,
        ctx: PlanContext<'_>,
        Found { plan, mut implementation, end_to_end }: Found,
        clock: &mut StageClock<'_>,
        options: &Options,
    ) -> Result<Planned, Error> {
        let PlanContext { graph, storage, units, .. } = ctx;
        update_in_place(&mut implementation, ctx);
        write_in_place(&mut implementation, ctx);
        group_independent(&mut implementation, ctx);
        let dumps = clock.run("passes", || passes::run_on_plan(&mut implementation, options))?;
        if let Some(dump) = &options.dump_after {
            dumps.iter().for_each(|(kernel, text)| (dump.receive)(kernel, text));
        }
        let mut assembly =
            clock.run("plan", || assemble::assemble(graph, storage, &implementation, options))?;
        considered::tell_steps(&mut assembly, &plan.considered(), &implementation);
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
            searches: Some(plan.searches),
            ..PlanReport::default()
        };
        let (inputs, outputs) =
            (assemble::ports(graph, &graph.inputs), assemble::ports(graph, &graph.outputs));
        Ok(Planned { implementation, assembly, inputs, outputs, report, end_to_end })
    }
}

/// A plan and its kernels.
struct Found {
    plan: Plan,
    implementation: Implementation,
    end_to_end: Option<EndToEndTime>,
}

impl Found {
    /// Its end-to-end time, if that is known.
    fn time_us(&self) -> Option<f64> {
        self.end_to_end.as_ref()?.time_us
    }
}

/// Finds plans and their kernels, the one of the least cost first; where plans are timed, before it the one that would be chosen by
/// modelled costs, which stays unless another is clearly faster. Candidates that turn out not to be lowered are rejected, and
/// the rest is chosen from again.
fn find_plans(
    ctx: PlanContext<'_>,
    backend: &dyn Backend,
    clock: &mut StageClock<'_>,
    options: &Options,
) -> Result<Vec<Found>, Error> {
    let mut candidates = clock.run("candidates", || candidates(ctx, options))?;
    let rule = UpdateRule::of(ctx, &candidates.columns);
    rule.keep_allowed(ctx, &mut candidates.columns);
    // The choice by modelled costs among kernels of templates and host routines.
    let mut plain_choice = clock.run("choose", || modelled(ctx, &candidates.columns))?;
    if options.superoptimize && options.fuse {
        let chosen = &plain_choice.columns;
        clock.run("superoptimize", || add_substitutes(&mut candidates, ctx, chosen, options))?;
        rule.keep_allowed(ctx, &mut candidates.columns);
    }
    'again: loop {
        let columns = &candidates.columns;
        let modelled_choice = match candidates.plain().count() == columns.len() {
            true => plain_choice.clone(),
            false => clock.run("choose", || modelled(ctx, columns))?,
        };
        let Best { choice, untuned, timer, times } =
            best(ctx, backend, columns, &candidates.signatures, modelled_choice, clock, options)?;
        let mut measured = Measured::default();
        let costs_us = select::mixed(columns, &times);
        let costs = CountedCosts { costs_us: &costs_us, measured: &times };
        let choices = match &timer {
            Some(_) if backend.info().overlaps_kernels => {
                let mut solve = |costs: &[f64]| choose(ctx.units, columns, costs);
                clock.run("choose", || alternatives::alternatives(columns, choice, &costs_us, &mut solve))?
            }
            _ => vec![choice],
        };
        let by_signature = times.iter().map(|(&kernel, &time)| (candidates.signatures[kernel].clone(), time));
        measured.times.extend(by_signature);
        let of_untuned = Measured { times: measured.times.clone(), ..Measured::default() };
        let mut found = Vec::new();
        for (number, choice) in choices.iter().enumerate() {
            if let Some(timer) = &timer {
                clock.run("schedules", || timer.schedules(choice, &mut measured))?;
            }
            let plan = Plan::of(&candidates, choice, &costs, ctx.units);
            let chosen = plan.chosen();
            match clock.run("implement", || implement(ctx, chosen, &measured, options))? {
                Ok(implementation) => {
                    let end_to_end = timer.as_ref().and_then(|timer| timer.end_to_end(choice, &measured));
                    if number == 0 || end_to_end.is_some() {
                        found.push(Found { plan, implementation, end_to_end });
                    }
                }
                Err(unserved) if number == 0 => {
                    candidates.reject(&unserved, |candidate| ctx.host_us(candidate));
                    let plain: Vec<CandidateColumn> = candidates.plain().cloned().collect();
                    plain_choice = clock.run("choose", || modelled(ctx, &plain))?;
                    continue 'again;
                }
                // An alternative that is not lowered is left out.
                Err(_) => {}
            }
        }
        if let Some(timer) = &timer {
            untuned_first(
                &mut found,
                &untuned,
                Untuned { candidates: &candidates, costs: &costs, measured: &of_untuned, timer, ctx },
                clock,
                options,
            )?;
        }
        if found.iter().any(|found| found.plan.has_substitutes()) {
            let plain: Vec<CandidateColumn> = candidates.plain().cloned().collect();
            let without = best(ctx, backend, &plain, &candidates.signatures, plain_choice, clock, options)?;
            for found in found.iter_mut().filter(|found| found.plan.has_substitutes()) {
                found.plan.without_superoptimizer_us = Some(time_us(&plain, &without.choice));
            }
        }
        return Ok(found);
    }
}

/// What the untuned plan is made with.
struct Untuned<'a> {
    candidates: &'a CandidateColumns,
    costs: &'a CountedCosts<'a>,
    /// Times of kernels with the schedules that they have without tuning.
    measured: &'a Measured,
    timer: &'a Timer<'a>,
    ctx: PlanContext<'a>,
}

/// Puts the plan that would be chosen without tuning before those that were found, unless it cannot be timed. By times of another machine,
/// which decide only between plans that have some, it is added only if both it and another have.
fn untuned_first(
    found: &mut Vec<Found>,
    untuned: &Choice,
    Untuned { candidates, costs, measured, timer, ctx }: Untuned<'_>,
    clock: &mut StageClock<'_>,
    options: &Options,
) -> Result<(), Error> {
    let Some(end_to_end) = timer.end_to_end(untuned, measured) else { return Ok(()) };
    let is_same = |found: &Found| found.end_to_end.as_ref().is_some_and(|own| own.key == end_to_end.key);
    if let Some(at) = found.iter().position(is_same) {
        if options.records.is_none() {
            found[..=at].rotate_right(1);
        }
        return Ok(());
    }
    let are_timed = end_to_end.time_us.is_some() && found.iter().any(|found| found.time_us().is_some());
    if options.records.is_some() && !are_timed {
        return Ok(());
    }
    let plan = Plan::of(candidates, untuned, costs, ctx.units);
    let made = clock.run("implement", || implement(ctx, plan.chosen(), measured, options))?;
    if let Ok(implementation) = made {
        found.insert(0, Found { plan, implementation, end_to_end: Some(end_to_end) });
    }
    Ok(())
}

/// The cheapest plan of some columns, and what was measured for it.
struct Best<'a> {
    choice: Choice,
    /// The choice by modelled costs alone.
    untuned: Choice,
    /// Times kernels, if plans are made by measured times.
    timer: Option<Timer<'a>>,
    /// Times by kernel.
    times: BTreeMap<usize, f64>,
}

/// The choice by modelled costs.
fn modelled(ctx: PlanContext<'_>, columns: &[CandidateColumn]) -> Result<Choice, Error> {
    choose(ctx.units, columns, &costs_us(columns))
}

/// The best choice that is found from the one by modelled costs.
fn best<'a>(
    ctx: PlanContext<'a>,
    backend: &'a dyn Backend,
    columns: &'a [CandidateColumn],
    signatures: &'a [String],
    choice: Choice,
    clock: &mut StageClock<'_>,
    options: &'a Options,
) -> Result<Best<'a>, Error> {
    if !backend.info().is_tuned(options) {
        return Ok(Best { untuned: choice.clone(), choice, timer: None, times: BTreeMap::new() });
    }
    let tools = TimingTools { toolchain: backend, meter: backend };
    let timer = Timer::new(ctx, tools, columns, signatures, Rc::clone(&clock.budget), options)?;
    let untuned = choice.clone();
    let (choice, times) = clock.run("tune", || {
        options.progress.note(&format!("{:.1} us so far, modelled", time_us(columns, &choice)));
        let mut solve = |costs: &[f64]| {
            let choice = choose(ctx.units, columns, costs)?;
            options.progress.note(&format!("{:.1} us so far", time_us(columns, &choice)));
            Ok(choice)
        };
        select::tune(columns, choice, &mut solve, &mut |wanted| timer.measure(wanted))
    })?;
    Ok(Best { choice, untuned, timer: Some(timer), times })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Precision;
    use crate::testing::{LORA, graph, with_context};
    use orch_tune::Database;

    /// Elementwise primitives, each the only reader of the one before it.
    const CHAIN: &str = "graph \"chain\" {
  input \"x\" t0: f32[4, 8]
  input \"b\" t1: f32[8]
  t2: f32[4, 8] = broadcast t1 dims=[1]
  t3: f32[4, 8] = add t0, t2
  t4: f32[4, 8] = tanh t3
  t5: f32[4, 8] = mul t4, t0
  output \"o\" t5
}
";

    #[test]
    fn without_fusion_each_primitive_is_a_kernel() {
        let folder = orch_files::Scratch::new().unwrap();
        for (fuse, kernels) in [(true, 1), (false, 3)] {
            let cache_dir = folder.path().to_owned();
            let options = Options { cache_dir, calibrate: false, fuse, ..Options::default() };
            let plan = Model::from_graph(graph(CHAIN)).plan(&options).unwrap();
            assert_eq!(plan.implementation.kernels.len(), kernels);
        }
    }

    #[test]
    fn end_to_end_times_decide_between_alternatives() {
        let folder = orch_files::Scratch::new().unwrap();
        let records = folder.path().join("records");
        std::fs::write(&records, "").unwrap();
        let options = Options {
            cache_dir: folder.path().to_owned(),
            target: Some("cuda:sm_90".to_owned()),
            precision: Precision::F16,
            superoptimize: false,
            records: Some(records.clone()),
            ..Options::default()
        };
        with_context(LORA, &options, |ctx, backend| {
            let found = find_plans(ctx, backend, &mut StageClock::new(&options), &options).unwrap();
            let names = |implementation: &Implementation| -> Vec<String> {
                implementation.kernels.iter().map(|kernel| kernel.name.clone()).collect()
            };
            assert!(found.len() > 1 && found.iter().all(|found| found.time_us().is_none()));
            assert_ne!(names(&found[0].implementation), names(&found[1].implementation));

            // Without times the plan of the least cost is taken, and with times the fastest.
            let model = Model::from_graph(graph(LORA));
            let plain = model.plan(&options).unwrap();
            assert_eq!(names(&plain.implementation), names(&found[0].implementation));
            assert_eq!(plain.report.alternatives_us, [0.0; 0]);
            let database = Database::open(&folder.path().join("times")).unwrap();
            for (found, time) in found.iter().zip([20.0, 15.0]) {
                database.put(&found.end_to_end.as_ref().unwrap().key, &time).unwrap();
            }
            database.export(&mut std::fs::File::create(&records).unwrap()).unwrap();
            let tuned = model.plan(&options).unwrap();
            assert_eq!(names(&tuned.implementation), names(&found[1].implementation));
            assert_eq!(tuned.report.alternatives_us, [15.0, 20.0]);
        });
    }
}
