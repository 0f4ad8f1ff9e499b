//! What is done with bytes from outside, for whoever makes up such bytes: `crates/orchestrion/tests/fuzz.rs` changes the
//! files of `corpus`.
//!
//! A function here panics if what it looks at is wrong: if reading panics, takes what is not valid, or does not read what
//! it has written itself.

use bytes::Bytes;
use orch_fission::{FissionOptions, fission};
use orch_onnx::ImportOptions;
use orchestrion::{Artifact, Executable, RunOptions, npy};

/// A function that looks at bytes, and the folder in `corpus` with examples for it.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 8] = [
    ("onnx", onnx),
    ("tensor", tensor),
    ("prim", prim),
    ("thread", thread),
    ("mugraph", mugraph),
    ("artifact", artifact),
    ("npy", npy_file),
    ("certificate", certificate),
];

/// Longer inputs find nothing that shorter ones do not, slower.
const MAX_BYTES: usize = 1 << 16;

/// A model: import, then fission.
pub fn onnx(data: &[u8]) {
    if data.len() > MAX_BYTES {
        return;
    }
    let Ok(import) = orch_onnx::import(Bytes::copy_from_slice(data), &ImportOptions::default()) else {
        return;
    };
    match fission(&import.graph, &FissionOptions::default()) {
        Ok(graph) => assert_eq!(orch_ir::validate::validate(&graph), []),
        Err(errors) => assert!(!errors.0.is_empty()),
    }
}

/// A tensor file as ONNX's test data has them.
pub fn tensor(data: &[u8]) {
    let Ok(tensor) = orch_onnx::decode_tensor(Bytes::copy_from_slice(data)) else { return };
    let again = orch_onnx::decode_tensor(orch_onnx::encode_tensor("t", &tensor).into());
    assert_eq!(again.as_ref().map(orch_ir::Tensor::bytes), Ok(tensor.bytes()));
}

/// The text of a primitive graph.
pub fn prim(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let Ok(graph) = orch_ir::text::parse(text) else { return };
    assert_eq!(orch_ir::validate::validate(&graph), []);
    let printed = orch_ir::text::print(&graph);
    let again = orch_ir::text::parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(orch_ir::text::print(&again), printed);
}

/// The text of a thread program.
pub fn thread(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let Ok(program) = orch_thread::parse_thread(text) else { return };
    if !orch_thread::validate_thread(&program).is_empty() {
        return;
    }
    let printed = orch_thread::print_thread(&program);
    let again = orch_thread::parse_thread(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(orch_thread::print_thread(&again), printed);
}

/// The text of a µGraph.
pub fn mugraph(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let Ok(graph) = orch_mugraph::parse(text) else { return };
    reads_itself(&graph);
    let _ = orch_mugraph::validate(&graph);
}

fn reads_itself(graph: &orch_mugraph::MuGraph) {
    let printed = orch_mugraph::print(graph);
    let again = orch_mugraph::parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(&again, graph, "{printed}");
}

/// An executable: as a whole file, and as a manifest under a right hash, since changed bytes hardly ever keep theirs.
pub fn artifact(data: &[u8]) {
    // Native code is trusted once its hash is right; a manifest is not, and its memory is what it says.
    const MAX_MEMORY_BYTES: usize = 1 << 24;
    let _ = Artifact::parse(&Bytes::copy_from_slice(data));
    let Ok(artifact) = Artifact::parse(&under_right_hash(data)) else { return };
    let manifest = &artifact.manifest;
    if artifact.libraries.is_empty() && manifest.arena_bytes <= MAX_MEMORY_BYTES {
        let _ = Executable::load(artifact, RunOptions { threads: 1, ..RunOptions::default() });
    }
}

/// A file with this manifest and nothing else.
pub fn under_right_hash(manifest: &[u8]) -> Bytes {
    let mut file = orchestrion::artifact::MAGIC.to_vec();
    file.extend(orchestrion::artifact::FORMAT_VERSION.to_le_bytes());
    file.extend(0u32.to_le_bytes());
    file.extend((manifest.len() as u64).to_le_bytes());
    file.extend(blake3::hash(manifest).as_bytes());
    file.extend(manifest);
    file.resize(file.len().next_multiple_of(64), 0);
    file.into()
}

/// A NumPy file.
pub fn npy_file(data: &[u8]) {
    let Ok(tensor) = npy::read(&Bytes::copy_from_slice(data)) else { return };
    let mut written = Vec::new();
    npy::write(&mut written, &tensor).expect("a Vec takes any bytes");
    let again = npy::read(&written.into()).expect("what was written");
    assert_eq!((again.bytes(), again.shape()), (tensor.bytes(), tensor.shape()));
}

/// A proof: reading it, and checking it if what it proves is small.
pub fn certificate(data: &[u8]) {
    const MAX_CHECKED_BYTES: usize = 1 << 12;
    let Some(text) = text(data) else { return };
    let Ok(certificate) = orch_mugraph::Certificate::from_json(text) else { return };
    assert!(orch_mugraph::Certificate::from_json(&certificate.to_json()).is_ok());
    if text.len() <= MAX_CHECKED_BYTES {
        let _ = certificate.check();
    }
}

fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok().filter(|text| text.len() <= MAX_BYTES)
}
