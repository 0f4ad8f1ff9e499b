//! Superoptimizing single programs (Mirage, OSDI'25): what was found is kept in the tuning database, with its proof.

use crate::backend::{self, Backend};
use crate::compile::is_tuned;
use crate::substitute::designs;
use crate::{Error, Model, Options, parallel};
use orch_ir::DType;
use orch_mugraph::extract::{RegionLimits, regions};
use orch_mugraph::lower::Stored;
use orch_mugraph::search::SearchOptions;
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

/// µGraphs of each program that are proved; more where kernels are timed, of several numbers of blocks each.
const PROOFS: usize = 2;
const TIMED_PROOFS: usize = 8;
const TIMED_SCHEDULES: usize = 3;

/// Numbers of blocks and iterations that are tried for each kernel beside the cheapest by the model of the search.
const ALTERNATIVES: usize = 24;

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
    let backend = backend::find(options)?;
    let wanted = Wanted {
        program: &program.graph,
        must_be_stable: program.must_be_stable,
        below_us: f64::INFINITY,
        states: u64::MAX,
        layout: "row-major",
        stored: &|graph| {
            let row_major = |shape: &Vec<usize>| Stored::row_major(DType::F32, shape);
            Some(graph.shapes().iter().map(row_major).collect())
        },
    };
    match Finder::new(&*backend, options).find(&wanted) {
        Ok(searched) => Ok(searched),
        Err(SuperoptimizeError::Outside(reason)) => {
            Err(Error::Unsupported(format!("program `{}`: {reason}", program.name)))
        }
        Err(SuperoptimizeError::Interrupted) => Err(Error::Interrupted),
    }
}

/// A program, and how its tensors lie in memory.
pub struct Wanted<'a> {
    /// What is to be computed.
    pub program: &'a MuGraph,
    /// True if exponentials must be relative to maxima.
    pub must_be_stable: bool,
    /// Modelled microseconds that it has to cost less than.
    pub below_us: f64,
    /// States after which the search is given up.
    pub states: u64,
    /// What tells layouts apart.
    pub layout: &'a str,
    /// How the tensors of a µGraph that computes it are stored; `None` if it has no place for them.
    pub stored: &'a dyn Fn(&MuGraph) -> Option<Vec<Stored>>,
}

/// Finds µGraphs, for one machine.
pub struct Finder<'a> {
    backend: &'a dyn Backend,
    options: &'a Options,
    /// `None` if the database cannot be used: then programs are searched anew.
    database: Option<Database>,
}

impl<'a> Finder<'a> {
    /// A finder for a machine.
    pub fn new(backend: &'a dyn Backend, options: &'a Options) -> Self {
        Self { backend, options, database: Database::open(&options.cache_dir).ok() }
    }

    /// The cheapest µGraphs of a program.
    ///
    /// # Errors
    /// If the program is outside what is searched, or the work is cancelled.
    pub fn find(&self, wanted: &Wanted<'_>) -> Result<Searched, SuperoptimizeError> {
        let search = SearchOptions {
            threads: parallel::jobs(self.options),
            alternatives: ALTERNATIVES,
            below_us: wanted.below_us,
            ..self.backend.search_options()
        };
        let (proofs, schedules) = match is_tuned(self.backend, self.options) {
            true => (TIMED_PROOFS, TIMED_SCHEDULES),
            false => (PROOFS, 1),
        };
        let options = SuperoptimizeOptions {
            search,
            verify: VerifyOptions::default(),
            states: wanted.states,
            proofs,
            schedules,
            must_be_stable: wanted.must_be_stable,
        };
        let key = self.key(wanted, &options);
        if let Some(found) = self.remembered(&key, wanted.program) {
            return Ok(Searched { found, is_remembered: true });
        }
        let goes_on = || !self.options.cancel.load(Ordering::Relaxed);
        let rank = |graph: &MuGraph, modelled_us| self.cost_us(wanted, graph, modelled_us);
        let found = superoptimize(wanted.program, &options, &rank, &goes_on)?;
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

    /// What a µGraph costs once it is lowered; `None` if it is not.
    fn cost_us(&self, wanted: &Wanted<'_>, graph: &MuGraph, modelled_us: f64) -> Option<f64> {
        let designs = designs(graph, &(wanted.stored)(graph)?, self.backend, 1)?;
        let instructions =
            designs.iter().filter_map(|lowered| Some(&lowered.designs.first()?.kernel.program));
        let instructions_us: f64 = instructions.map(|program| self.backend.instructions_us(program)).sum();
        Some(modelled_us.max(instructions_us))
    }

    fn key(&self, wanted: &Wanted<'_>, options: &SuperoptimizeOptions) -> Key {
        let SearchOptions { limits, machine, kernels, keep, slack, below_us, alternatives, threads: _ } =
            options.search;
        Key {
            program: format!("{} {}", text(wanted.program), wanted.layout),
            target: self.backend.target(),
            machine: format!("{machine:?}"),
            compiler: concat!("orchestrion ", env!("CARGO_PKG_VERSION"), " ", env!("ORCHESTRION_SOURCES"))
                .to_owned(),
            flags: format!(
                "µGraphs: {limits:?} kernels {kernels} keep {keep} and {alternatives} slack {slack} below {below_us:.2} states {} proofs {} of {} stable {}",
                options.states, options.proofs, options.schedules, options.must_be_stable
            ),
        }
    }
}
