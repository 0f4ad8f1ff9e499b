//! Superoptimizing single programs (Mirage, OSDI'25): for `orchestrion superoptimize` and `orchestrion verify`.

use crate::search::finder::{Finder, SearchQuery};
use crate::{Error, Model, Options, build};
use orch_ir::DType;
use orch_mugraph::extract::{RegionLimits, regions};
use orch_mugraph::lower::Stored;
use orch_mugraph::search::limits::InputSet;
use orch_mugraph::{MuGraph, SuperoptimizeError};
use std::path::Path;

pub use crate::search::finder::Searched;
pub use orch_mugraph::verify::CertificateError;
pub use orch_mugraph::{Certificate, Proved, Superoptimized, print as text};

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
        let graph = read_graph(path)?;
        return Ok(vec![Program { name: graph.name.clone(), graph, must_be_stable: false, count: 1 }]);
    }
    let model = Model::load(path, options)?;
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
    Ok(programs)
}

fn read_graph(path: &Path) -> Result<MuGraph, Error> {
    let wrong = |reason: String| Error::Model(format!("{}: {reason}", path.display()));
    let graph = orch_mugraph::parse(&read_text(path)?).map_err(|error| wrong(error.to_string()))?;
    let problems = orch_mugraph::validate(&graph);
    if problems.is_empty() {
        return Ok(graph);
    }
    let lines: Vec<String> = problems.iter().map(|problem| format!("\n  {problem}")).collect();
    Err(wrong(format!("not a valid µGraph:{}", lines.concat())))
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

/// Finds and proves the cheapest µGraphs of a program for the target of the options, or takes what is known.
///
/// # Errors
/// If the target is not known, the program is outside what is searched, or the work is cancelled.
pub fn find(program: &Program, options: &Options) -> Result<Searched, Error> {
    let backend = build::find(options, None)?;
    let query = SearchQuery {
        program: &program.graph,
        must_be_stable: program.must_be_stable,
        below_us: f64::INFINITY,
        states: u64::MAX,
        computed: InputSet::default(),
        wide: InputSet::default(),
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
