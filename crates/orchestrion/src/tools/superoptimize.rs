//! Superoptimizing single programs (Mirage, OSDI'25): for `orchestrion superoptimize`, `orchestrion verify` and Python.

use crate::model::read_program;
use crate::search::finder::{Finder, SearchQuery};
use crate::search::whole::WholeProgram;
use crate::tune::budget::Budget;
use crate::tune::end_to_end;
use crate::{Artifact, Error, Model, Options, build};
use orch_ir::DType;
use orch_mugraph::extract::{RegionLimits, regions};
use orch_mugraph::lower::Stored;
use orch_mugraph::search::limits::InputStorage;
use orch_mugraph::{MuGraph, SuperoptimizeError};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

pub use crate::search::finder::Searched;
pub use orch_mugraph::verify::CertificateError;
pub use orch_mugraph::{Certificate, NotLowered, Proved, Superoptimized, print as text};

/// A program that can be superoptimized alone.
#[derive(Clone, Debug)]
pub struct Program {
    /// Where it comes from.
    pub name: String,
    /// What it computes, kernel by kernel.
    pub graph: MuGraph,
    /// True if its exponentials were relative to maxima before these were taken out for the search.
    pub must_be_stable: bool,
    /// How often the model has it.
    pub count: usize,
}

/// Reads the programs of a file: a µGraph in text form if its name ends in `.txt`, else an ONNX model, all parts of which
/// are taken that are worth a search, each distinct one once.
///
/// # Errors
/// If the file cannot be read, or is not valid.
pub fn programs(path: &Path, options: &Options) -> Result<Vec<Program>, Error> {
    if path.extension().is_some_and(|extension| extension == "txt") {
        return Ok(vec![program_of_text(&read_text(path)?, &path.display().to_string())?]);
    }
    Ok(programs_of_model(&Model::load(path, options)?))
}

/// The program of a µGraph in text form; `place` is where it comes from, for messages.
///
/// # Errors
/// If the text is not a valid µGraph.
pub fn program_of_text(text: &str, place: &str) -> Result<Program, Error> {
    let graph = read_program(text, place)?;
    Ok(Program { name: graph.name.clone(), graph, must_be_stable: false, count: 1 })
}

/// All parts of a model that are worth a search, each distinct one once.
pub fn programs_of_model(model: &Model) -> Vec<Program> {
    let graph = orch_rewrite::rewrite(&model.graph, &orch_rewrite::RewriteOptions::default()).0;
    let mut programs: Vec<Program> = Vec::new();
    for region in regions(&graph, &RegionLimits::default()) {
        let sink = region.nodes.last().map_or("", |&node| graph.origin(node)).to_owned();
        let program = region.program;
        match programs.iter_mut().find(|known| known.graph == program) {
            Some(known) => known.count += 1,
            None => programs.push(Program {
                name: if sink.is_empty() { program.name.clone() } else { sink },
                graph: program,
                must_be_stable: region.subtracts_maxima,
                count: 1,
            }),
        }
    }
    programs
}

impl Program {
    /// The program as a model, which compiles without the superoptimizer's kernels or with them. `path` is the file that holds
    /// [`Program::text`], or will.
    ///
    /// # Errors
    /// If it has kernels that are not predefined operators, or is too large.
    pub fn model(&self, path: &Path) -> Result<Model, Error> {
        Model::from_program(&self.text(), &path.display().to_string())
    }

    /// Its text.
    pub fn text(&self) -> String {
        text(&self.graph)
    }
}

/// What a program costs without the superoptimizer, in microseconds: modelled, or measured on this machine.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Baseline {
    /// Each operator by itself: every primitive a kernel, but for those that cost nothing where they are read.
    pub unfused_us: f64,
    /// By the kernels of templates, fused as a model's are.
    pub templates_us: f64,
}

/// What times of a program's kernels on this machine came to, in microseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Timed {
    /// Without the superoptimizer.
    pub baseline: Baseline,
    /// Of each µGraph, in the order given.
    pub found_us: Vec<f64>,
}

/// What a model is modelled to cost without the superoptimizer.
///
/// # Errors
/// As [`Model::plan`].
pub fn modelled_baseline(model: &Model, options: &Options) -> Result<Baseline, Error> {
    let modelled = |fuse| -> Result<f64, Error> {
        let options = Options { fuse, superoptimize: false, ..options.clone() };
        Ok(model.plan(&options)?.modelled_us())
    };
    Ok(Baseline { unfused_us: modelled(false)?, templates_us: modelled(true)? })
}

/// Compiles a program to the kernels of a µGraph that was found for it. `path` is the file that holds the program's text, or will.
///
/// # Errors
/// As [`Model::compile_found`].
pub fn compile(
    program: &Program,
    proved: &Proved,
    path: &Path,
    options: &Options,
) -> Result<Artifact, Error> {
    let found = WholeProgram { program: &program.graph, proved, must_be_stable: program.must_be_stable };
    program.model(path)?.compile_found(&found, options)
}

/// Compiles a model with the kernels that are found and proved for its parts, whatever they are modelled to cost.
///
/// # Errors
/// If none is found, or as [`Model::compile`].
pub fn compile_parts(model: &Model, options: &Options) -> Result<Artifact, Error> {
    let options = Options { superoptimize: true, prefer_found: true, fuse: true, ..options.clone() };
    let artifact = model.compile(&options)?;
    if artifact.manifest.proofs.is_empty() {
        let name = &model.info.name;
        return Err(Error::Unsupported(format!(
            "`{name}` has no part for which kernels are found and proved; `orchestrion superoptimize` says why"
        )));
    }
    Ok(artifact)
}

/// Times kernels on this machine, in turns, on noise; on a GPU with a cold L2.
///
/// # Errors
/// If the target is not this machine's, or as [`Model::compile`].
pub fn measure(model: &Model, found: &[Artifact], options: &Options) -> Result<Timed, Error> {
    let mut artifacts = Vec::new();
    for fuse in [false, true] {
        let options = Options { fuse, superoptimize: false, tune: false, ..options.clone() };
        artifacts.push(model.compile(&options)?);
    }
    artifacts.extend(found.iter().cloned());
    let times = end_to_end::times_in_turns(&artifacts, &Budget::new(options), options)?;
    let times: Option<Vec<f64>> = times.into_iter().collect();
    match times.as_deref() {
        Some([unfused_us, templates_us, found_us @ ..]) => Ok(Timed {
            baseline: Baseline { unfused_us: *unfused_us, templates_us: *templates_us },
            found_us: found_us.to_vec(),
        }),
        _ => {
            let target = options.target.as_deref().unwrap_or("cpu");
            Err(Error::Environment(format!("kernels for {target} cannot be timed on this machine")))
        }
    }
}

fn read_text(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let bytes = orch_runtime::read_file(path).map_err(failed)?;
    let not_text = |error| Error::Model(format!("{}: not text: {error}", path.display()));
    Ok(std::str::from_utf8(&bytes).map_err(not_text)?.to_owned())
}

/// Reads a certificate.
///
/// # Errors
/// If the file cannot be read, or is none.
pub fn read_certificate(path: &Path) -> Result<Certificate, Error> {
    let wrong = |error| Error::Input(format!("{}: {error}", path.display()));
    Certificate::from_json(&read_text(path)?).map_err(wrong)
}

/// Time for searches of a program of which nothing is found by the first one.
pub const SEARCH_BUDGET: Duration = Duration::from_secs(15);

/// Finds and proves the cheapest µGraphs of a program for the target of the options, or takes what is known. Elementwise chains are one
/// value, and blocks may have more operators, as far as `budget` goes.
///
/// # Errors
/// If the target is not known, the program is outside what is searched, or the work is cancelled.
pub fn find(program: &Program, budget: Duration, options: &Options) -> Result<Searched, Error> {
    let backend = build::find(options, None)?;
    let query = SearchQuery {
        program: &program.graph,
        must_be_stable: program.must_be_stable,
        below_us: f64::INFINITY,
        states: u64::MAX,
        budget: Some(budget),
        inputs: InputStorage::default(),
        layout: "row-major",
        stored: &|graph| {
            let row_major = |shape: &Vec<usize>| Stored::row_major(DType::F32, shape);
            Some(graph.shapes().iter().map(row_major).collect())
        },
    };
    match Finder::new(&*backend, options).find(&query) {
        Ok(searched) => Ok(searched),
        Err(SuperoptimizeError::Outside(reason)) => {
            Err(Error::Unsupported(format!("program `{}`: {reason}", program.name)))
        }
        Err(SuperoptimizeError::Interrupted) => Err(Error::Interrupted),
    }
}
