//! Orchestrion compiles tensor programs to the fastest executables that it can check.
//!
//! ```no_run
//! use orchestrion::{Executable, Model, Options, RunOptions};
//! # fn main() -> Result<(), orchestrion::Error> {
//! let options = Options::default();
//! let model = Model::load("model.onnx".as_ref(), &options)?;
//! let artifact = model.compile(&options)?;
//! artifact.save("model.orc".as_ref())?;
//! let executable = Executable::load(artifact, RunOptions::default())?;
//! let image = orchestrion::Tensor::zeros(orchestrion::DType::F32, [1, 3, 224, 224]);
//! let outputs = executable.run(&[image])?;
//! # Ok(())
//! # }
//! ```
//!
//! The pipeline is [`Model::compile`] (`compile.rs`), a flat list of stages; `ARCHITECTURE.md` maps them to crates. A folder
//! depends on those before it:
//!
//! | folder | stages |
//! |---|---|
//! | `plan` | identify, candidates, choose, implement, plan |
//! | `search` | superoptimize |
//! | `run` | loading and running executables |
//! | `tune` | tune, select end to end |
//! | `build` | find compiler, lower, build: the targets |
//! | `tools` | what the command line offers beside compiling and running |

pub mod artifact;
mod build;
mod compile;
mod consistency;
mod error;
pub mod manifest;
mod model;
mod options;
mod parallel;
mod plan;
mod run;
mod search;
mod stages;
#[cfg(test)]
mod testing;
mod tools;
mod tune;
mod updatable;

pub use artifact::Artifact;
pub use error::Error;
pub use model::Model;
pub use options::{DumpAfter, Options, Precision, Progress, Silent};
pub use orch_aten::is_document as is_aten_document;
pub use orch_files::{default_cache_folder, remove_unfinished, whole_file};
pub use orch_ir::{DType, Shape, Tensor, message};
pub use orch_onnx::{Declaration, DeclaredDim, DeclaredPort, decode_tensor};
pub use orch_runtime::cpu::AlignedBuffer;
pub use orch_runtime::cuda::{Context as Gpu, DeviceAddress, Execution, Library, Nvtx, SearchPaths, Stream};
pub use orch_runtime::view::{
    Overlap, OverlapWith, TensorView, TensorViewMut, ViewError, extent, first_overlap, is_row_major,
};
pub use orch_runtime::{ExitingAllocator, map_file};
pub use orch_thread::passes::names as pass_names;
pub use plan::explain;
pub use plan::planned::Planned;
pub use plan::work_items::StepShares;
pub use run::device::{DeviceInput, DeviceRun, DeviceTensor};
pub use run::executable::{Executable, OutputBuffers, RunContext, RunsInARow, StepTime, aligned};
pub use run::launches::LaunchChoice;
pub use run::options::{DeviceCache, RunOptions, check_input};
pub use run::trial::{LaunchCosts, ModeCost};
pub use run::{compare, npy};
pub use tools::{cache, conformance, doctor, emit, plan_text, report, superoptimize, verification};
pub use updatable::UpdatableConstant;
