//! Superoptimizing from Python: kernels that are searched for and proved, with their certificates and times.

use crate::compile::{Settings, Source, Watch};
use crate::errors;
use crate::executable::PyExecutable;
use crate::tensors::owned;
use bytes::Bytes;
use orchestrion::superoptimize as search;
use orchestrion::superoptimize::{Baseline, SEARCH_BUDGET, Superoptimized};
use orchestrion::{Artifact, Error, Model, Options};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::Path;

/// Reads a model.
type LoadModel = Box<dyn FnOnce(&Options) -> Result<Model, Error> + Send>;

/// What is superoptimized.
enum Work {
    /// A program in the text form of µGraphs: its best µGraph is the whole executable.
    Program(String),
    /// A model, parts of which are found kernels for.
    Model(LoadModel),
}

/// Searches kernels for a program as text, an ONNX model or a document of ATen calls, and compiles it to them: `kind` is `text`,
/// `onnx` or `aten`. `options`, `fixed` and `progress` are those of `compile_aten`. Times are measured if `measure` is set. Returns the
/// executable, and a report in JSON: `certificates` (the proofs of its kernels, each as the text of a file), `found` (all that the
/// search of a program came to; null of models), `modelled` and `measured` (`unfused_us`, `templates_us`, `found_us`; null if they were
/// not measured), `unstable` (why exponentials may overflow, of each part of which that is so).
#[pyfunction]
#[pyo3(signature = (kind, source, options, fixed, measure=false, progress=None))]
pub fn superoptimize(
    py: Python<'_>,
    kind: &str,
    source: Source,
    options: &Bound<'_, PyDict>,
    fixed: &Bound<'_, PyDict>,
    measure: bool,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<(PyExecutable, String)> {
    let Settings { mut options, run, base_dir } = Settings::of(options)?;
    for (name, value) in fixed {
        let name: String = name.extract()?;
        let tensor = owned(&value, &name)?;
        options.fixed_inputs.insert(name, tensor);
    }
    let work = match (kind, source) {
        ("text", Source::Bytes(bytes)) => {
            let text = String::from_utf8(bytes);
            Work::Program(text.map_err(|error| errors::usage(py, &format!("not text: {error}")))?)
        }
        ("aten", Source::Bytes(bytes)) => {
            Work::Model(Box::new(move |options| Model::from_aten(&bytes, options)))
        }
        (_, Source::Bytes(bytes)) => Work::Model(Box::new(move |options| {
            Model::parse(Bytes::from(bytes), "", base_dir.as_deref(), options)
        })),
        (_, Source::Path(path)) => Work::Model(Box::new(move |options| Model::load(&path, options))),
    };
    let watch = Watch::default();
    watch.join(&mut options);
    let made = watch.run(py, progress, move || {
        let Made { artifact, model, found } = work.made(&options)?;
        let manifest = &artifact.manifest;
        let modelled = search::modelled_baseline(&model, &options)?;
        let modelled = times(modelled, manifest.report.modelled_us);
        let measured = match measure {
            true => {
                let timed = search::measure(&model, std::slice::from_ref(&artifact), &options)?;
                timed.found_us.first().map(|&found_us| times(timed.baseline, found_us))
            }
            false => None,
        };
        let certificates: Vec<String> = manifest.proofs.iter().map(|proof| proof.to_json()).collect();
        let unstable: Vec<&String> =
            manifest.parts.iter().filter_map(|part| part.unstable.as_ref()).collect();
        let report = serde_json::json!({
            "certificates": certificates, "found": found, "modelled": modelled, "measured": measured,
            "unstable": unstable,
        });
        let report = report.to_string();
        let run_options = run.of(&options);
        Ok((orchestrion::Executable::load(artifact, run_options)?, model, report))
    });
    let (executable, model, report) = made?;
    Ok((PyExecutable::new(py, executable, Some(model))?, report))
}

/// Microseconds of a run.
fn times(Baseline { unfused_us, templates_us }: Baseline, found_us: f64) -> serde_json::Value {
    serde_json::json!({ "unfused_us": unfused_us, "templates_us": templates_us, "found_us": found_us })
}

struct Made {
    artifact: Artifact,
    model: Model,
    found: Option<Superoptimized>,
}

impl Work {
    fn made(self, options: &Options) -> Result<Made, Error> {
        match self {
            Work::Model(load) => {
                let model = load(options)?;
                Ok(Made { artifact: search::compile_parts(&model, options)?, model, found: None })
            }
            Work::Program(text) => {
                let program = search::program_of_text(&text, "the program")?;
                let found = search::find(&program, SEARCH_BUDGET, options)?.found;
                let Some(best) = found.proved.first() else {
                    let reasons = found.not_lowered.iter().map(|one| &one.reason).chain(&found.refused);
                    let reasons: Vec<&str> = reasons.map(String::as_str).collect();
                    let name = &program.name;
                    return Err(Error::Unsupported(match reasons.is_empty() {
                        true => format!("nothing was found for program `{name}`: {}", found.report.stopped),
                        false => format!(
                            "nothing of what was found for program `{name}` is taken: {}",
                            reasons.join("; ")
                        ),
                    }));
                };
                let artifact = search::compile(&program, best, Path::new(""), options)?;
                Ok(Made { artifact, model: program.model(Path::new(""))?, found: Some(found) })
            }
        }
    }
}
