//! What launch modes were chosen by earlier processes: records of the tuning database in the cache folder, of one plan on one kind of GPU with
//! one driver each.

use super::trial::LaunchCosts;
use crate::manifest::{ActionInfo, Manifest, Slot, StepInfo};
use orch_runtime::cuda::{DeviceInfo, Execution};
use orch_tune::{Database, Key};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::Path;

/// Records of other versions are not found.
const VERSION: u32 = 4;

/// Where the choice for a plan is remembered.
pub struct LaunchMemory {
    database: Database,
    key: Key,
}

/// A choice as it is remembered.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Remembered {
    /// The mode.
    pub mode: Execution,
    /// What it was chosen by.
    pub costs: LaunchCosts,
    /// Whether another mode has clearly beaten it since, once.
    pub was_beaten: bool,
}

/// A record.
#[derive(Serialize, Deserialize)]
struct ChoiceRecord {
    mode: String,
    costs: LaunchCosts,
    was_beaten: bool,
}

impl LaunchMemory {
    /// The place of a plan in the cache in `folder`, of a GPU, and of the releases of the libraries that its steps call; `None` if the
    /// folder cannot be used: then nothing is remembered.
    pub fn open(folder: &Path, manifest: &Manifest, gpu: &DeviceInfo, libraries: &[String]) -> Option<Self> {
        let database = Database::open(folder).ok()?;
        let DeviceInfo { name, sm_count, capability, driver, .. } = gpu;
        let key = Key {
            program: launches_text(manifest),
            target: manifest.target.clone(),
            machine: format!("{name}; {sm_count} SMs; compute capability {capability}"),
            compiler: format!("driver for CUDA {driver}"),
            flags: format!("launches {VERSION}; libraries {libraries:?}"),
        };
        Some(Self { database, key })
    }

    /// What was chosen; `None` if nothing was, or the record is damaged.
    pub fn read(&self) -> Option<Remembered> {
        let ChoiceRecord { mode, costs, was_beaten } = self.database.get(&self.key)?;
        Some(Remembered { mode: Execution::of_name(&mode)?, costs, was_beaten })
    }

    /// Remembers a choice in place of what was; one that cannot be written is made anew by the next process.
    pub fn write(&self, choice: &Remembered) {
        let Remembered { mode, costs, was_beaten } = *choice;
        let _ =
            self.database.put(&self.key, &ChoiceRecord { mode: mode.name().to_owned(), costs, was_beaten });
    }
}

/// All of a plan that what launches cost depends on: the code of its kernels, their grids, and the memory of each step. The content of
/// constants is not part of it.
fn launches_text(manifest: &Manifest) -> String {
    let mut text = format!("{:?} {:?}\n", manifest.precision, manifest.updates);
    for StepInfo { action, slots, .. } in &manifest.steps {
        let what = match action {
            ActionInfo::Kernel(kernel) => {
                manifest.kernels.get(*kernel).map_or("none", |kernel| kernel.fingerprint.as_str())
            }
            ActionInfo::Copy => "copy",
            ActionInfo::Host { graph, .. } => graph.as_str(),
        };
        let memory: Vec<_> =
            slots.iter().map(|Slot { memory, bytes, written, .. }| (memory, bytes, written)).collect();
        let _ = writeln!(text, "{what} {memory:?}");
    }
    text
}
