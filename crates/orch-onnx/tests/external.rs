//! Constants in files beside the model.

mod common;

use bytes::Bytes;
use common::{check, errors, messages};
use orch_ir::{DType, Tensor};
use orch_onnx::builder::{GraphBuilder, ModelBuilder, node};
use orch_onnx::proto::StringStringEntryProto;
use orch_onnx::{FileSource, ImportOptions, ProblemClass, import, import_file};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A model `y = w + v` with both constants, two `f32` each, in a file, located by these entries.
fn model(w: &[(&str, &str)], v: &[(&str, &str)]) -> ModelBuilder {
    let zeros = Tensor::zeros(DType::F32, [2]);
    let mut model = GraphBuilder::new("g")
        .initializer("w", &zeros)
        .initializer("v", &zeros)
        .node(node("Add", ["w", "v"], ["y"]))
        .output("y")
        .model(17);
    let graph = model.proto.graph.as_mut().expect("the builder sets the graph");
    for (tensor, entries) in graph.initializer.iter_mut().zip([w, v]) {
        tensor.raw_data = None;
        tensor.data_location = Some(1);
        tensor.external_data = entries.iter().map(|(key, value)| entry(key, value)).collect();
    }
    model
}

fn entry(key: &str, value: &str) -> StringStringEntryProto {
    StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) }
}

/// Options under which `/models/weights.bin` holds the `f32` 0, 1, 2, 3 after one byte, and no other file exists.
fn options() -> ImportOptions {
    let mut content = vec![0xeeu8];
    (0..4).for_each(|value| content.extend((value as f32).to_le_bytes()));
    let content = Bytes::from(content);
    let read = move |path: &Path| match path.to_str() {
        Some("/models/weights.bin") => Ok(content.clone()),
        _ => Err(io::Error::new(io::ErrorKind::NotFound, "no such file")),
    };
    ImportOptions {
        base_dir: Some("/models".into()),
        files: FileSource::new(read),
        ..ImportOptions::default()
    }
}

#[test]
fn offsets_need_no_alignment_and_files_are_read_once() {
    let source = options().files;
    let reads = Arc::new(AtomicUsize::new(0));
    let counter = reads.clone();
    let counting = FileSource::new(move |path| {
        counter.fetch_add(1, Ordering::Relaxed);
        source.read(path)
    });
    let options = ImportOptions { files: counting, ..options() };
    let w = [("location", "weights.bin"), ("offset", "1"), ("length", "8"), ("checksum", "unused")];
    let v = [("location", "weights.bin"), ("offset", "9")];
    let graph = import(model(&w, &v).encode(), &options).unwrap().graph;
    check(&graph);
    let constants: Vec<_> = graph.initializers.values().map(Tensor::to_f64).collect();
    assert_eq!(constants, [[0.0, 1.0], [2.0, 3.0]]);
    assert_eq!(reads.load(Ordering::Relaxed), 1);
}

#[test]
fn every_missing_tensor_is_reported() {
    let missing = [("location", "absent.bin")];
    let errors = errors(&model(&missing, &missing), &options());
    assert_eq!(
        messages(&errors),
        [
            "initializer `w`: cannot read external data from /models/absent.bin: no such file",
            "initializer `v`: cannot read external data from /models/absent.bin: no such file",
        ]
    );
    assert!(errors.0.iter().all(|problem| problem.class() == ProblemClass::Request));
}

#[test]
fn bad_locations_are_reported() {
    let cases = [
        (vec![("location", "../secret")], "external-path"),
        (vec![("location", "/etc/passwd")], "external-path"),
        (vec![], "external-path"),
        (vec![("location", "weights.bin"), ("offset", "-1")], "external-entry"),
        (vec![("location", "weights.bin"), ("length", "0x8")], "external-entry"),
        (vec![("location", "weights.bin"), ("length", "7")], "tensor-byte-count"),
        (vec![("location", "weights.bin"), ("offset", "10")], "external-short"),
        (vec![("location", "weights.bin"), ("offset", "18446744073709551615")], "external-short"),
    ];
    let good = [("location", "weights.bin")];
    for (entries, code) in cases {
        let errors = errors(&model(&entries, &good), &options());
        let codes: Vec<_> = errors.0.iter().map(|problem| problem.code()).collect();
        assert_eq!(codes, [code], "{entries:?}");
    }
}

#[test]
fn bytes_without_a_folder_cannot_have_external_data() {
    let located = [("location", "weights.bin")];
    let errors = errors(&model(&located, &located), &ImportOptions::default());
    assert!(errors.0.iter().all(|problem| problem.code() == "external-no-folder"));
    assert_eq!(errors.0.len(), 2);
}

#[test]
fn data_is_found_beside_a_model_file() {
    let dir = std::env::temp_dir().join(format!("orch-onnx-external-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let located = [("location", "weights.bin")];
    std::fs::write(dir.join("model.onnx"), model(&located, &located).encode()).unwrap();
    std::fs::write(dir.join("weights.bin"), [0u8; 8]).unwrap();
    let import = import_file(&dir.join("model.onnx"), &ImportOptions::default());
    let absent = import_file(&dir.join("absent.onnx"), &ImportOptions::default());
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(import.unwrap().graph.initializers.len(), 2);
    assert_eq!(absent.unwrap_err().0[0].code(), "unreadable-file");
}
