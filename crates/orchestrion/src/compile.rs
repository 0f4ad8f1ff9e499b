//! The pipeline: a flat list of stages, each in a crate or module of its own. No stage calls another.

use crate::artifact::Artifact;
use crate::assemble;
use crate::candidates::{Candidates, Column, candidates};
use crate::implement::{KernelDesign, Measured, Place, implement};
use crate::manifest::{Manifest, PlanReport};
use crate::remember::{Memory, Plan, StoredStep};
use crate::signature::Signatures;
use crate::tune::{self, Timer};
use crate::units::Units;
use crate::{Error, Model, Options, Precision, parallel, speeds};
use bytes::Bytes;
use orch_plan::blp::{self, Choice, ChooseOptions, Problem, Status};
use orch_runtime::Machine;
use orch_runtime::cpu::{CompileCache, CompileError, Compiler, CompilerOptions, Source, Tuning};
use orch_tile::thread_validate::validate_thread;
use orch_tile::{CpuTarget, layouts};
use orch_tune::MachineModel;
use std::time::Instant;

impl Model {
    /// Compiles the model for the CPU.
    ///
    /// # Errors
    /// If the machine has no C compiler, the work is cancelled, or the model meets a limit.
    pub fn compile(&self, options: &Options) -> Result<Artifact, Error> {
        let machine = Machine::detect();
        let target = choose_target(&machine, options)?;
        check_precision(&target, options.precision)?;
        let mut clock = Stages::new(options);

        let compiler = clock.run("find compiler", || find_compiler(&target, options))?;
        let model = clock.run("machine model", || Ok(machine_model(&machine, &compiler, options)))?;
        let graph = clock.run("rewrite", || {
            Ok(orch_rewrite::rewrite(&self.graph, &orch_rewrite::RewriteOptions::default()).0)
        })?;
        let graph = match options.precision {
            Precision::F32 => graph,
            Precision::Bf16 => clock.run("narrow", || Ok(orch_rewrite::narrow_contractions(&graph).0))?,
        };
        let layouts = clock.run("layouts", || Ok(layouts::assign(&graph)))?;
        let units = clock.run("identify", || Units::of(&graph, &layouts).map_err(internal))?;
        let signatures = Signatures::of(&graph, &layouts);
        let place = Place {
            graph: &graph,
            layouts: &layouts,
            units: &units,
            signatures: &signatures,
            target: &target,
            machine: &model,
        };
        let memory = Memory::of(&graph, &signatures, target.name, &model, options);
        let is_tuned = options.tune && options.target.is_none();
        let remembered = (!is_tuned).then(|| memory.get(&graph, &units)).flatten();
        let mut measured = Measured::new();
        let is_remembered = remembered.is_some();
        let plan = match remembered {
            Some(plan) => plan,
            None => {
                let candidates = clock.run("candidates", || candidates(place, options))?;
                let modelled: Vec<f64> = candidates.columns.iter().map(|column| column.cost_us).collect();
                let choice = clock.run("choose", || choose(&units, &candidates.columns, &modelled))?;
                if is_tuned {
                    let (choice, times) = clock.run("tune", || {
                        let signatures = (&candidates.columns[..], &candidates.signatures[..]);
                        let timer = Timer::new(place, signatures, &machine, &compiler, options);
                        let mut solve = |costs: &[f64]| choose(&units, &candidates.columns, costs);
                        tune::tune(&candidates.columns, choice, &mut solve, &mut |wanted| {
                            timer.measure(wanted)
                        })
                    })?;
                    let times = times.into_iter();
                    measured
                        .extend(times.map(|(kernel, time)| (candidates.signatures[kernel].clone(), time)));
                    plan_of(&candidates, &choice)
                } else {
                    let plan = plan_of(&candidates, &choice);
                    memory.put(&plan);
                    plan
                }
            }
        };
        let implementation =
            clock.run("implement", || implement(place, plan.chosen(), &measured, options))?;
        let assembly =
            clock.run("plan", || assemble::assemble(&graph, &layouts, &implementation, options))?;
        let sources = clock.run("lower", || sources(&implementation.kernels, &target, options))?;
        let built = clock.run("build", || build(&sources, compiler, &machine, options))?;

        let libraries: Vec<usize> = (0..sources.len()).collect();
        let report = PlanReport {
            operators: self.operators,
            primitives: graph.nodes().len(),
            units: units.members.len(),
            candidates: plan.candidates,
            refused: plan.refused,
            is_complete: plan.is_complete,
            distinct_kernels: plan.distinct,
            solver_status: plan.status.clone(),
            solver_gap: plan.gap,
            modelled_us: plan.modelled_us,
            is_remembered,
            stage_seconds: clock.seconds,
        };
        let manifest = Manifest {
            compiler: env!("CARGO_PKG_VERSION").to_owned(),
            model: self.info.clone(),
            target: target.name.to_owned(),
            precision: options.precision,
            machine: machine.fingerprint(),
            c_compiler: built.compiler,
            inputs: assemble::ports(&graph, &graph.inputs),
            outputs: assemble::ports(&graph, &graph.outputs),
            arena_bytes: assembly.arena_bytes,
            kernels: assemble::kernel_infos(&implementation.kernels, &sources, &libraries),
            constant_bytes: assembly.constants.iter().map(Bytes::len).collect(),
            library_bytes: built.objects.iter().map(Bytes::len).collect(),
            steps: assembly.steps,
            report,
        };
        Ok(Artifact { manifest, libraries: built.objects, constants: assembly.constants })
    }
}

/// Runs stages, timing each.
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
        self.seconds.push((name.to_owned(), start.elapsed().as_secs_f64()));
        result
    }
}

/// A bug, by what went wrong.
pub fn internal(error: impl std::fmt::Display) -> Error {
    Error::Internal(error.to_string())
}

/// The capability table that fits the machine, or the one asked for.
fn choose_target(machine: &Machine, options: &Options) -> Result<CpuTarget, Error> {
    use orch_runtime::Feature;
    use orch_tile::target::{AARCH64, CPU_TARGETS, X86_64_AMX, X86_64_V3, X86_64_V4, X86_64_V4_BF16};
    if let Some(name) = &options.target {
        let known = CPU_TARGETS.iter().find(|target| target.name == name);
        return known.map(|target| (*target).clone()).ok_or_else(|| {
            let names: Vec<&str> = CPU_TARGETS.iter().map(|target| target.name).collect();
            Error::Input(format!("target `{name}` is not known; there are {}", names.join(", ")))
        });
    }
    Ok(match machine.vector_bytes() {
        64 if machine.has(Feature::AmxBf16) => X86_64_AMX,
        64 if machine.has(Feature::Avx512Bf16) => X86_64_V4_BF16,
        64 => X86_64_V4,
        32 => X86_64_V3,
        _ => AARCH64,
    })
}

/// Refuses a precision for which the target has no instructions: it would cost digits and gain nothing.
fn check_precision(target: &CpuTarget, precision: Precision) -> Result<(), Error> {
    if precision == Precision::F32 || target.has_bf16() {
        return Ok(());
    }
    let able: Vec<&str> = (orch_tile::target::CPU_TARGETS.iter())
        .filter(|target| target.has_bf16())
        .map(|target| target.name)
        .collect();
    Err(Error::Environment(format!(
        "precision bf16 was asked for, but the target `{}` does not multiply bf16 (AVX512-BF16 or AMX); use precision \
         f32, or compile for another machine with the target {}",
        target.name,
        able.join(" or ")
    )))
}

/// The C compiler for the target.
fn find_compiler(target: &CpuTarget, options: &Options) -> Result<Compiler, Error> {
    let tuning = match &options.target {
        None => Tuning::Native,
        Some(_) => Tuning::Arch(target.march.to_owned()),
    };
    let settings = CompilerOptions {
        program: options.c_compiler.clone(),
        tuning,
        memory: Some(options.cache_dir.clone()),
        ..CompilerOptions::default()
    };
    Compiler::find(&settings).map_err(compile_error)
}

/// The figures of this machine, measured the first time; a guess where they cannot be, or for another machine.
fn machine_model(machine: &Machine, compiler: &Compiler, options: &Options) -> MachineModel {
    let is_here = options.target.is_none();
    let measured = (options.calibrate && is_here)
        .then(|| speeds::speeds(options, machine, compiler.clone(), false).ok())
        .flatten();
    measured.unwrap_or_else(|| MachineModel::conservative(machine, parallel::cpus() as u32))
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
    let chosen = choice.columns.iter().map(|column| &candidates.columns[column.index()].candidate);
    Plan {
        candidates: candidates.columns.len(),
        refused: candidates.refused,
        is_complete: candidates.report.is_complete(),
        distinct: candidates.distinct,
        status: status_name(choice.status).to_owned(),
        gap: choice.gap(),
        modelled_us: choice.objective_us,
        steps: chosen.map(StoredStep::of).collect(),
    }
}

fn status_name(status: Status) -> &'static str {
    match status {
        Status::Optimal => "optimal",
        Status::Feasible => "feasible",
        Status::Infeasible => "infeasible",
    }
}

/// Stage "lower": C source of each kernel of the plan, in its order.
pub fn sources(
    kernels: &[KernelDesign],
    target: &CpuTarget,
    options: &Options,
) -> Result<Vec<String>, Error> {
    let source = |kernel: &KernelDesign| {
        let program = &kernel.design.kernel.program;
        let violations = validate_thread(program);
        if violations.is_empty() {
            return Ok(orch_codegen::c::emit(&[program], target));
        }
        Err(Error::Internal(format!("kernel {} is not valid: {}", kernel.name, violations.join("; "))))
    };
    parallel::map(kernels, options, source)?.into_iter().collect()
}

/// What the C compiler made.
pub struct Built {
    /// The shared object of each source.
    pub objects: Vec<Bytes>,
    /// Its version.
    pub compiler: String,
}

/// Stage "build": shared objects of the sources, from the cache where they are known.
pub fn build(
    sources: &[String],
    compiler: Compiler,
    machine: &Machine,
    options: &Options,
) -> Result<Built, Error> {
    let cache = CompileCache::open(&options.cache_dir, compiler, machine).map_err(compile_error)?;
    let units: Vec<Source> = (sources.iter().enumerate())
        .map(|(number, text)| Source { name: format!("kernel {number}"), text: text.clone() })
        .collect();
    let jobs = parallel::jobs(options);
    options.progress.begin("compile kernels", units.len());
    let progress = |at: orch_runtime::cpu::CompileProgress| options.progress.advance(at.done);
    let results = cache.compile_all(&units, jobs, &progress, &options.cancel);
    options.progress.end();
    let mut objects = Vec::with_capacity(results.len());
    for result in results {
        let path = result.map_err(compile_error)?;
        let bytes = std::fs::read(&path).map_err(|source| Error::File { path, source })?;
        objects.push(bytes.into());
    }
    Ok(Built { objects, compiler: cache.compiler().version().to_owned() })
}

fn compile_error(error: CompileError) -> Error {
    match error {
        CompileError::Cancelled => Error::Interrupted,
        CompileError::Rejected { .. } => Error::Internal(error.to_string()),
        _ => Error::Environment(error.to_string()),
    }
}
