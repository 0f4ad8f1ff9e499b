//! The model zoo, where it is present: `shared/models` beside the repository.
//!
//! Most of its models leave their weights out, so the import is given zeros for them; `vec!` of zeros takes no
//! memory until it is touched.

mod common;

use bytes::Bytes;
use orch_onnx::{FileSource, ImportOptions, import_file};
use std::path::{Path, PathBuf};

/// More than any model's weights take.
const WEIGHT_BYTES: usize = 1 << 30;

/// Nodes of some models, from the zoo's own table.
const NODES: [(&str, usize); 6] = [
    ("candy", 64),
    ("resnet50", 175),
    ("yolov4", 583),
    ("segformer_b0", 434),
    ("gpt2", 527),
    ("minilm", 262),
];

/// The zoo's models, or none where the zoo is not there.
fn models() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/models");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        eprintln!("skipped: no model zoo at {}", folder.display());
        return Vec::new();
    };
    let mut models: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    models.retain(|path| path.extension().is_some_and(|extension| extension == "onnx"));
    models.sort();
    models
}

/// Reads models from disk and makes zeros of anything else.
fn zero_weights() -> FileSource {
    FileSource::new(|path| match path.extension().is_some_and(|extension| extension == "onnx") {
        true => std::fs::read(path).map(Bytes::from),
        false => Ok(vec![0u8; WEIGHT_BYTES].into()),
    })
}

#[test]
fn every_model_is_imported() {
    let options = ImportOptions { files: zero_weights(), ..ImportOptions::default() };
    for path in models() {
        let graph = import_file(&path, &options).unwrap_or_else(|errors| panic!("{path:?}: {errors}")).graph;
        common::check(&graph);
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some((_, nodes)) = NODES.iter().find(|(model, _)| *model == name) {
            assert_eq!(graph.nodes.len(), *nodes, "{name}");
        }
    }
}

#[test]
fn weights_left_out_are_all_reported() {
    for path in models().iter().filter(|path| path.ends_with("mirage_lora.onnx")) {
        let errors = import_file(path, &ImportOptions::default()).unwrap_err();
        assert_eq!(errors.0.len(), 3, "{errors}");
        assert!(errors.0.iter().all(|problem| problem.code() == "external-missing"), "{errors}");
    }
}
