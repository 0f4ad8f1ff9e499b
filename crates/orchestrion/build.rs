//! Tells the library which sources decide about plans, so that plans remembered by other sources are not used.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// Crates whose code decides what a plan is.
const DECIDING: [&str; 10] = [
    "orch-ir",
    "orch-fission",
    "orch-rewrite",
    "orch-compute",
    "orch-thread",
    "orch-template",
    "orch-mugraph",
    "orch-plan",
    "orch-tune",
    "orchestrion",
];

fn main() {
    let mut hasher = DefaultHasher::new();
    for name in DECIDING {
        let folder = Path::new("..").join(name).join("src");
        println!("cargo::rerun-if-changed={}", folder.display());
        for file in files(&folder) {
            fs::read(&file).unwrap_or_default().hash(&mut hasher);
        }
    }
    println!("cargo::rustc-env=ORCHESTRION_SOURCES={:016x}", hasher.finish());
}

/// All files below a folder; none if it is not there, as in a published crate, whose version tells as much.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { BTreeSet::from([path]) }).collect()
}
