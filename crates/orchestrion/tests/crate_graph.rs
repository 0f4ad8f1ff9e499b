//! The crates depend on each other in one direction, and only those at the border to devices and to other languages may hold
//! unsafe code.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Processing order, as in `ARCHITECTURE.md`: a crate may depend on crates before it.
const ORDER: [&str; 21] = [
    "orch-files",
    "orch-ir",
    "orch-interp",
    "orch-onnx",
    "orch-aten",
    "orch-fission",
    "orch-rewrite",
    "orch-compute",
    "orch-thread",
    "orch-template",
    "orch-mugraph",
    "orch-check",
    "orch-codegen",
    "orch-plan",
    "orch-runtime",
    "orch-tune",
    "orchestrion",
    "orchestrion-c",
    "orchestrion-cli",
    "orchestrion-py",
    "tidy",
];

/// The crate that talks to devices, and the ways in whose callers are not Rust.
const UNSAFE_CRATES: [&str; 3] = ["orch-runtime", "orchestrion-c", "orchestrion-py"];

/// The packages of the workspace by name, as `cargo metadata` describes them.
fn packages() -> BTreeMap<String, serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array_mut().map(std::mem::take).unwrap_or_default();
    packages.into_iter().map(|package| (text(&package["name"]).to_owned(), package)).collect()
}

fn text(value: &serde_json::Value) -> &str {
    value.as_str().expect("a text")
}

fn rank(name: &str) -> Option<usize> {
    ORDER.iter().position(|known| *known == name)
}

#[test]
fn crates_depend_on_earlier_ones_only() {
    let packages = packages();
    let mut edges = 0;
    for (name, package) in &packages {
        let row = rank(name).unwrap_or_else(|| panic!("{name} has no place in the order of crates"));
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            // Tests may look at anything; `kind` is null for what the crate itself is built from.
            let Some(other) = rank(text(&dependency["name"])).filter(|_| dependency["kind"].is_null()) else {
                continue;
            };
            assert!(other < row, "{name} depends on {}, which comes later", ORDER[other]);
            edges += 1;
        }
    }
    assert_eq!(packages.len(), ORDER.len());
    assert!(edges >= ORDER.len(), "only {edges} dependencies were found");
}

#[test]
fn unsafe_code_is_denied_everywhere_but_at_the_borders() {
    let mut allowing = Vec::new();
    for (name, package) in packages() {
        let manifest = Path::new(text(&package["manifest_path"]));
        let folder = manifest.parent().expect("a manifest lies in a folder");
        let manifest = std::fs::read_to_string(manifest).expect("cargo read it too");
        assert!(manifest.contains("[lints]\nworkspace = true"), "{name} does not use the workspace's lints");
        if folder_mentions(&folder.join("src"), concat!("allow(", "unsafe_code")) {
            allowing.push(name);
        }
    }
    assert_eq!(allowing, UNSAFE_CRATES);
    let workspace = include_str!("../../../Cargo.toml");
    assert!(workspace.contains("unsafe_code = \"deny\""), "the workspace's lints deny unsafe code");
}

/// True if a Rust file in a folder, at any depth, contains `wanted`.
fn folder_mentions(folder: &Path, wanted: &str) -> bool {
    let entries = std::fs::read_dir(folder).expect("a crate has sources");
    entries.flatten().map(|entry| entry.path()).any(|path| {
        if path.is_dir() {
            return folder_mentions(&path, wanted);
        }
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        is_rust && std::fs::read_to_string(&path).is_ok_and(|text| text.contains(wanted))
    })
}
