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

/// Folders in which links lie, with secrets beside them.
#[cfg(unix)]
mod links {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// A folder of one test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("links-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path.canonicalize().unwrap())
        }

        fn at(&self, name: &str) -> PathBuf {
            let path = self.0.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        }

        fn write(&self, name: &str, content: impl AsRef<[u8]>) {
            std::fs::write(self.at(name), content).unwrap();
        }

        fn link(&self, name: &str, target: impl AsRef<Path>) {
            symlink(target, self.at(name)).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // What cannot be removed stays in the build folder.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A model with all constants at this location.
    fn located(location: &str) -> Vec<u8> {
        let entries = [("location", location)];
        model(&entries, &entries).encode().to_vec()
    }

    /// The code of the only kind of problem of a model file, `""` if there is none.
    fn code(model: &Path, options: &ImportOptions) -> &'static str {
        let Err(errors) = import_file(model, options) else { return "" };
        let codes: std::collections::BTreeSet<_> = errors.0.iter().map(|problem| problem.code()).collect();
        assert_eq!((codes.len(), errors.0.len()), (1, 2), "{errors}");
        errors.0[0].code()
    }

    #[test]
    fn links_out_of_the_folder_are_refused_unless_allowed() {
        let folder = Folder::new("outside");
        folder.write("secret.bin", [0; 8]);
        folder.write("m/here.bin", [0; 8]);
        folder.link("m/file", folder.at("secret.bin"));
        folder.link("m/up", "..");
        folder.link("m/twice", "up/m/file");
        folder.link("m/inside", "up/m/here.bin");
        let none = ImportOptions::default();
        let allowed = ImportOptions { data_roots: vec![folder.0.clone()], ..ImportOptions::default() };
        for location in ["file", "up/secret.bin", "twice"] {
            folder.write("m/model.onnx", located(location));
            assert_eq!(code(&folder.at("m/model.onnx"), &none), "external-outside", "{location}");
            assert_eq!(code(&folder.at("m/model.onnx"), &allowed), "", "{location}");
        }
        for location in ["here.bin", "inside", "up/m/here.bin"] {
            folder.write("m/model.onnx", located(location));
            assert_eq!(code(&folder.at("m/model.onnx"), &none), "", "{location}");
        }
        // A name that starts like the folder's is another folder.
        folder.write("m2/x.bin", [0; 8]);
        folder.link("m/other", "../m2/x.bin");
        folder.write("m/model.onnx", located("other"));
        assert_eq!(code(&folder.at("m/model.onnx"), &none), "external-outside");
        let errors = import_file(&folder.at("m/model.onnx"), &none).unwrap_err();
        let root = folder.0.display();
        assert_eq!(
            errors.0[0].to_string(),
            format!(
                "initializer `w`: external data is in \"other\", which leads to \"{root}/m2/x.bin\"; a file below {root}/m is \
                 expected; copy the data there, or allow its folder with --external-data-root DIR"
            )
        );
    }

    #[test]
    fn caches_of_links_to_one_folder_of_files_are_read() {
        let folder = Folder::new("cache");
        folder.write("blobs/1111", located("model.onnx_data"));
        folder.write("blobs/2222", [0; 8]);
        folder.link("snapshots/rev/onnx/model.onnx", "../../../blobs/1111");
        folder.link("snapshots/rev/onnx/model.onnx_data", "../../../blobs/2222");
        assert_eq!(code(&folder.at("snapshots/rev/onnx/model.onnx"), &ImportOptions::default()), "");
        folder.write("secret.bin", [0; 8]);
        folder.link("snapshots/evil/model.onnx", "../../blobs/1111");
        folder.link("snapshots/evil/model.onnx_data", "../../secret.bin");
        let evil = folder.at("snapshots/evil/model.onnx");
        assert_eq!(code(&evil, &ImportOptions::default()), "external-outside");
    }

    #[test]
    fn pipes_are_refused_without_waiting() {
        let folder = Folder::new("pipe");
        folder.write("model.onnx", located("pipe"));
        let made = std::process::Command::new("mkfifo").arg(folder.at("pipe")).status().unwrap();
        assert!(made.success());
        assert_eq!(code(&folder.at("model.onnx"), &ImportOptions::default()), "external-missing");
    }
}
