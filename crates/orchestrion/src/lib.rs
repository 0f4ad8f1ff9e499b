//! Orchestrion compiles tensor programs to the fastest executables that it can check.
//!
//! ```no_run
//! use orchestrion::{Executable, Model, Options, RunOptions};
//! # fn main() -> Result<(), orchestrion::Error> {
//! let options = Options::default();
//! let model = Model::load("model.onnx".as_ref(), &options)?;
//! let artifact = model.compile(&options)?;
//! artifact.save("model.orc".as_ref())?;
//! let mut executable = Executable::load(artifact, RunOptions::default())?;
//! let image = orchestrion::Tensor::zeros(orchestrion::DType::F32, [1, 3, 224, 224]);
//! let outputs = executable.run(&[image])?;
//! # Ok(())
//! # }
//! ```
//!
//! The pipeline is [`Model::compile`], a flat list of stages; `ARCHITECTURE.md` maps them to crates.

pub mod artifact;
mod assemble;
mod backend;
pub mod cache;
mod candidates;
mod chains;
pub mod compare;
mod compile;
pub mod conformance;
pub mod doctor;
mod emulate;
mod error;
mod executable;
pub mod explain;
mod facts;
mod host;
mod implement;
mod library;
pub mod manifest;
mod model;
pub mod npy;
mod options;
mod parallel;
mod passes;
mod race;
mod remember;
mod signature;
mod speeds;
mod substitute;
pub mod superoptimize;
#[cfg(test)]
mod testing;
mod tune;
mod units;
pub mod whole_file;

pub use artifact::Artifact;
pub use compile::Planned;
pub use error::Error;
pub use executable::{DeviceCache, Executable, RunOptions, RunsInARow, StepTime, aligned, check_input};
pub use model::Model;
pub use options::{DumpAfter, Options, Precision, Progress, Silent};
pub use orch_ir::{DType, Shape, Tensor};
pub use orch_onnx::decode_tensor;
pub use orch_runtime::cuda::{Library, SearchPaths};
pub use orch_runtime::{map_file, read_file};
pub use orch_thread::passes::names as pass_names;
