//! Superoptimizing single programs (Mirage, OSDI'25): what was found is kept in the tuning database, with its proof.

use crate::{Error, Options, backend, parallel};
use orch_mugraph::search::SearchOptions;
use orch_mugraph::search::cost::Machine;
use orch_mugraph::{MuGraph, SuperoptimizeError, SuperoptimizeOptions, VerifyOptions, superoptimize};
use orch_tune::{Database, Key};
use std::path::Path;
use std::sync::atomic::Ordering;

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

/// What a program came to.
#[derive(Clone, Debug)]
pub struct Searched {
    /// µGraphs with proofs, and a report.
    pub found: Superoptimized,
    /// True if it is of an earlier time.
    pub is_remembered: bool,
}

/// µGraphs of each program that are proved.
const PROOFS: usize = 2;

/// Reads the programs of a file: a µGraph in text form.
///
/// # Errors
/// If the file cannot be read, or is not valid.
pub fn programs(path: &Path, _options: &Options) -> Result<Vec<Program>, Error> {
    let graph = read_graph(path)?;
    Ok(vec![Program { name: graph.name.clone(), graph, must_be_stable: false, count: 1 }])
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
    let backend = backend::find(options)?;
    match Finder::new(backend.search_machine(), options).find(&program.graph, program.must_be_stable) {
        Ok(searched) => Ok(searched),
        Err(SuperoptimizeError::Outside(reason)) => {
            Err(Error::Unsupported(format!("program `{}`: {reason}", program.name)))
        }
        Err(SuperoptimizeError::Interrupted) => Err(Error::Interrupted),
    }
}

/// Finds µGraphs, for one machine.
pub struct Finder<'a> {
    machine: Machine,
    options: &'a Options,
    /// `None` if the database cannot be used: then programs are searched anew.
    database: Option<Database>,
}

impl<'a> Finder<'a> {
    /// A finder for a machine.
    pub fn new(machine: Machine, options: &'a Options) -> Self {
        Self { machine, options, database: Database::open(&options.cache_dir).ok() }
    }

    /// The cheapest µGraphs of a program.
    ///
    /// # Errors
    /// If the program is outside what is searched, or the work is cancelled.
    pub fn find(&self, program: &MuGraph, must_be_stable: bool) -> Result<Searched, SuperoptimizeError> {
        let search = SearchOptions {
            machine: self.machine,
            threads: parallel::jobs(self.options),
            ..SearchOptions::default()
        };
        let wanted =
            SuperoptimizeOptions { search, verify: VerifyOptions::default(), proofs: PROOFS, must_be_stable };
        let key = self.key(program, &wanted);
        if let Some(found) = self.remembered(&key, program) {
            return Ok(Searched { found, is_remembered: true });
        }
        let goes_on = || !self.options.cancel.load(Ordering::Relaxed);
        let found = superoptimize(program, &wanted, &goes_on)?;
        if let Some(database) = &self.database {
            // What cannot be kept is searched again.
            let _ = database.put(&key, &found);
        }
        Ok(Searched { found, is_remembered: false })
    }

    /// What is known of a program, if it is of this program. Its proofs are checked by `verify`, not here.
    fn remembered(&self, key: &Key, program: &MuGraph) -> Option<Superoptimized> {
        let found: Superoptimized = self.database.as_ref()?.get(key)?;
        let known = text(program);
        let is_whole =
            found.proved.iter().all(|proved| proved.certificate.program == known && proved.graph().is_ok());
        is_whole.then_some(found)
    }

    fn key(&self, program: &MuGraph, wanted: &SuperoptimizeOptions) -> Key {
        let SearchOptions { limits, machine, kernels, keep, slack, threads: _ } = wanted.search;
        Key {
            program: text(program),
            target: "any".to_owned(),
            machine: format!("{machine:?}"),
            compiler: concat!("orchestrion ", env!("CARGO_PKG_VERSION"), " ", env!("ORCHESTRION_SOURCES"))
                .to_owned(),
            flags: format!(
                "µGraphs: {limits:?} kernels {kernels} keep {keep} slack {slack} proofs {} stable {}",
                wanted.proofs, wanted.must_be_stable
            ),
        }
    }
}
