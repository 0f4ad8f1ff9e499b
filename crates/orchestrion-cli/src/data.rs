//! Tensors from files and generators, models from either kind of file.

use crate::print::note_line;
use bytes::Bytes;
use clap::Args;
use orchestrion::manifest::{Manifest, Port};
use orchestrion::{Artifact, DType, Error, Model, Options, Shape, Tensor, npy};
use std::path::{Path, PathBuf};

/// Where the inputs of a run come from; those that are not given are generated.
#[derive(Args, Clone, Debug)]
pub struct InputArguments {
    /// An input from a .npy or ONNX .pb file; inputs that are not given are generated
    #[arg(short, long = "input", value_name = "NAME=FILE", value_parser = parse_input)]
    inputs: Vec<(String, String)>,
    /// Folder with input_0.pb, input_1.pb, .. in the model's order, as ONNX test data sets have them
    #[arg(long, value_name = "DIR")]
    input_dir: Option<PathBuf>,
}

impl InputArguments {
    /// A tensor for each input of a model.
    pub fn tensors(&self, ports: &[Port]) -> Result<Vec<Tensor>, Error> {
        let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
        for (position, (name, _)) in self.inputs.iter().enumerate() {
            if self.inputs[..position].iter().any(|(earlier, _)| earlier == name) {
                return Err(Error::Input(format!("input `{name}` is given twice; give one file for it")));
            }
            if !names.contains(&name.as_str()) {
                let names = names.join(", ");
                return Err(Error::Input(format!("the model has no input `{name}`; it has {names}")));
            }
        }
        ports.iter().enumerate().map(|(number, port)| self.tensor(number, port)).collect()
    }

    /// The files that tensors come from.
    pub fn files(&self, ports: &[Port]) -> Vec<PathBuf> {
        ports.iter().enumerate().filter_map(|(number, port)| self.file(number, port)).collect()
    }

    /// Whether all inputs are generated.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.input_dir.is_none()
    }

    /// Notes which integers are generated, where times depend on them.
    pub fn note_generated_integers(&self, ports: &[Port]) {
        let is_integer = |port: &Port| {
            DType::from_name(&port.dtype).is_some_and(|dtype| !dtype.is_float() && dtype != DType::Bool)
        };
        let generated = ports
            .iter()
            .enumerate()
            .filter(|&(number, port)| is_integer(port) && self.file(number, port).is_none());
        let names: Vec<String> = generated.map(|(_, port)| format!("`{}`", port.name)).collect();
        if !names.is_empty() {
            note_line(format_args!(
                "integers of {} are generated, 0 and 1: what is gathered or scattered by them touches two places, which may take \
                 less time than usual values or more; give them with --input",
                names.join(", ")
            ));
        }
    }

    fn file(&self, number: usize, port: &Port) -> Option<PathBuf> {
        let named = self.inputs.iter().find(|(name, _)| *name == port.name);
        match (named, &self.input_dir) {
            (Some((_, file)), _) => Some(PathBuf::from(file)),
            (None, Some(folder)) => Some(folder.join(format!("input_{number}.pb"))),
            (None, None) => None,
        }
    }

    fn tensor(&self, number: usize, port: &Port) -> Result<Tensor, Error> {
        let tensor = match self.file(number, port) {
            Some(path) => load_tensor(&path)?,
            None => generate(port)?,
        };
        orchestrion::check_input(port, &tensor)?;
        Ok(orchestrion::aligned(&tensor))
    }
}

fn parse_input(text: &str) -> Result<(String, String), String> {
    const EXPECTED: &str = "NAME=FILE is expected, for example image=image.npy";
    let (name, file) = text.split_once('=').ok_or(EXPECTED)?;
    if name.is_empty() || file.is_empty() {
        let what = if name.is_empty() { "the name of an input" } else { "the name of a file" };
        return Err(format!("{what} is empty; {EXPECTED}"));
    }
    Ok((name.to_owned(), file.to_owned()))
}

/// The artifact in an `.orc` file, or compiled from a model.
pub fn artifact(path: &Path, options: &Options) -> Result<Artifact, Error> {
    if is_artifact(path) {
        return Artifact::load(path);
    }
    Model::load(path, options)?.compile(options)
}

/// The plan of a file, of which constants are not read, or of a model that is compiled now.
pub fn manifest(path: &Path, options: &Options) -> Result<Manifest, Error> {
    if is_artifact(path) {
        return Artifact::load_manifest(path);
    }
    Ok(Model::load(path, options)?.compile(options)?.manifest)
}

/// True for files that are named as artifacts.
pub fn is_artifact(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "orc")
}

/// Notes modelled times that are for another number of threads than the measured ones beside them.
pub fn note_modelled_threads(manifest: &Manifest, threads: usize) {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let measured = if threads == 0 { all } else { threads };
    if let Some(modelled) = manifest.planned_threads().filter(|&modelled| modelled != measured) {
        note_line(format_args!("modelled times are for {modelled} threads, measured ones of {measured}"));
    }
}

/// The bytes of a file, mapped.
pub fn read(path: &Path) -> Result<Bytes, Error> {
    orchestrion::map_file(path).map_err(|source| Error::File { path: path.to_owned(), source })
}

/// A tensor from a `.npy` or ONNX `.pb` file.
fn load_tensor(path: &Path) -> Result<Tensor, Error> {
    let bytes = read(path)?;
    let failed = |error: String| Error::Input(format!("{}: {error}", path.display()));
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("pb") => orchestrion::decode_tensor(bytes).map_err(|error| failed(error.to_string())),
        _ => npy::read(&bytes).map_err(|error| failed(error.to_string())),
    }
}

/// Reproducible values: floats between -1 and 1, integers 0 and 1 (valid as indices and masks).
fn generate(port: &Port) -> Result<Tensor, Error> {
    let unknown = || Error::Model(format!("input `{}` has an unknown type", port.name));
    let dtype = DType::from_name(&port.dtype).ok_or_else(unknown)?;
    let shape = Shape::checked(port.shape.clone()).ok_or_else(unknown)?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let values: Vec<f64> = (0..shape.elems())
        .map(|_| if dtype.is_float() { next() * 2.0 - 1.0 } else { f64::from(u8::from(next() < 0.5)) })
        .collect();
    Ok(Tensor::from_f64(dtype, shape, &values))
}
