//! Executables that are damaged or say impossible things.

use crate::support::{Session, good_model};
use serde_json::{Value, json};
use std::process::Stdio;

const MANIFEST: usize = 56;

/// The good executable, made once.
fn session() -> (Session, Vec<u8>) {
    let session = Session::new("artifacts");
    session.write("good.onnx", good_model().encode());
    let output = session.command("compile good.onnx").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bytes = std::fs::read(session.work().join("good.orc")).unwrap();
    (session, bytes)
}

fn manifest_end(bytes: &[u8]) -> usize {
    MANIFEST + u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize
}

/// The executable with a manifest that is changed, and a right hash of it.
pub fn with_manifest(bytes: &[u8], change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let end = manifest_end(bytes);
    let mut manifest: Value = serde_json::from_slice(&bytes[MANIFEST..end]).unwrap();
    change(&mut manifest);
    with_text(bytes, &serde_json::to_vec(&manifest).unwrap())
}

/// The executable with another text for a manifest, and a right hash of it.
fn with_text(bytes: &[u8], manifest: &[u8]) -> Vec<u8> {
    let rest = &bytes[manifest_end(bytes).next_multiple_of(64)..];
    let mut changed = bytes[..16].to_vec();
    changed.extend((manifest.len() as u64).to_le_bytes());
    changed.extend(blake3::hash(manifest).as_bytes());
    changed.extend(manifest);
    changed.resize(changed.len().next_multiple_of(64), 0);
    changed.extend(rest);
    changed
}

#[test]
fn artifacts() {
    let (mut session, good) = session();
    let manifest: Value = serde_json::from_slice(&good[MANIFEST..manifest_end(&good)]).unwrap();
    let sizes = |name: &str| -> Vec<usize> {
        manifest[name].as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).collect()
    };
    let (libraries, constants) = (sizes("library_bytes"), sizes("constant_bytes"));
    assert_eq!((libraries.len(), constants.len()), (1, 1), "the cases below count on this");
    let digests = manifest_end(&good).next_multiple_of(64);
    let kernels = digests + 64;
    let constant = kernels + libraries[0].next_multiple_of(64);
    assert_eq!(constant + constants[0].next_multiple_of(64), good.len());
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let with_step =
        |key: &'static str, value: Value| with_manifest(&good, |all| all["steps"][0][key] = value);
    let host = |graph: &str| json!({"host": {"graph": graph, "layouts": [[0, 1], [0, 1], [0, 1]]}});

    session.case("no such file", "run missing.orc");
    std::fs::create_dir(session.work().join("folder.orc")).unwrap();
    session.case("a folder", "run folder.orc");
    let files = [
        ("an empty file", Vec::new()),
        ("a model under this name", good_model().encode().to_vec()),
        ("a file that is cut off in its header", good[..40].to_vec()),
        ("a file that is cut off in its manifest", good[..100].to_vec()),
        ("a file that is cut off before its hashes", good[..digests].to_vec()),
        ("a file that is cut off in its kernels", good[..kernels + 1000].to_vec()),
        ("a file that is cut off in its constants", good[..constant + 1].to_vec()),
        ("another version", flipped(8)),
        ("a damaged length", flipped(18)),
        ("a length beyond all memory", flipped(23)),
        ("a damaged hash of the manifest", flipped(30)),
        ("a damaged manifest", flipped(200)),
        ("a damaged hash of the kernels", flipped(digests + 3)),
        ("damaged kernels", flipped(kernels + libraries[0] / 2)),
        ("kernels damaged in the last byte", flipped(kernels + libraries[0] - 1)),
        ("a damaged constant", flipped(constant + 2)),
        ("a manifest that is no JSON", with_text(&good, b"steps: none")),
        ("a manifest of another kind", with_text(&good, b"{\"steps\": []}")),
        ("a manifest of lists without end", with_text(&good, "[".repeat(100_000).as_bytes())),
        ("sizes that overflow", with_manifest(&good, |all| all["library_bytes"][0] = json!(u64::MAX))),
        (
            "sections that swap",
            with_manifest(&good, |all| {
                all["library_bytes"] = json!([constants[0]]);
                all["constant_bytes"] = json!([libraries[0]]);
            }),
        ),
        (
            "working memory beyond all memory",
            with_manifest(&good, |all| all["arena_bytes"] = json!(1u64 << 60)),
        ),
        (
            "scratch memory beyond all memory",
            with_manifest(&good, |all| {
                all["kernels"][0]["scratch_bytes"] = json!(u64::MAX);
            }),
        ),
        (
            "an input beyond all memory",
            with_manifest(&good, |all| all["inputs"][0]["shape"] = json!([1u64 << 39])),
        ),
        (
            "an input with too many elements",
            with_manifest(&good, |all| {
                all["inputs"][0]["shape"] = json!([u64::MAX, u64::MAX]);
            }),
        ),
        ("an input of an unknown type", with_manifest(&good, |all| all["inputs"][0]["dtype"] = json!("f31"))),
        ("a kernel that is missing", with_step("action", json!({"kernel": 7}))),
        (
            "a kernel in a library that is missing",
            with_manifest(&good, |all| all["kernels"][0]["library"] = json!(7)),
        ),
        ("a copy of one tensor to none", with_step("action", json!("copy"))),
        (
            "more work items than there are",
            with_manifest(&good, |all| all["kernels"][0]["tasks"] = json!(i64::MAX)),
        ),
        (
            "a kernel by another name",
            with_manifest(&good, |all| all["kernels"][0]["symbol"] = json!("other")),
        ),
        (
            "a kernel that takes less than it uses",
            with_manifest(&good, |all| {
                all["kernels"][0]["arguments"][0]["bytes"] = json!(4);
                all["steps"][0]["slots"][0]["bytes"] = json!(4);
                all["steps"][0]["slots"][0]["shape"] = json!([1]);
            }),
        ),
        (
            "tensors in another order",
            with_manifest(&good, |all| all["steps"][0]["slots"].as_array_mut().unwrap().reverse()),
        ),
        (
            "a tensor that is missing",
            with_manifest(&good, |all| drop(all["steps"][0]["slots"].as_array_mut().unwrap().pop())),
        ),
        (
            "memory that is not aligned",
            with_manifest(&good, |all| {
                all["arena_bytes"] = json!(4096);
                all["steps"][0]["slots"][0]["place"] = json!({ "arena": 4 });
            }),
        ),
        (
            "memory that nothing has written",
            with_manifest(&good, |all| {
                all["arena_bytes"] = json!(4096);
                all["steps"][0]["slots"][0]["place"] = json!({ "arena": 0 });
            }),
        ),
        ("an output that nothing writes", with_manifest(&good, |all| all["steps"] = json!([]))),
        ("impossible figures", with_step("cost_us", json!(-1.0))),
        ("an unknown target", with_manifest(&good, |all| all["target"] = json!("x86-64-v5"))),
        (
            "instructions that this machine does not have",
            with_manifest(&good, |all| {
                all["target"] = json!("x86-64-v3");
                all["extensions"] = json!(["sse3", "avx1024"]);
            }),
        ),
        ("a routine that does not parse", with_step("action", host("graph oops"))),
        ("a routine of other tensors", with_step("action", host("graph \"g\" {\n}\n"))),
    ];
    for (title, content) in files {
        session.write("bad.orc", content);
        session.case(title, "run bad.orc");
    }
    session.write("bad.orc", with_step("action", json!({"kernel": 7})));
    let mut command = session.command("explain bad.orc");
    command.stdout(Stdio::null());
    session.observe("an explanation of a kernel that is missing", "explain bad.orc", command);
    let on_gpu = with_manifest(&good, |all| {
        all["device"] = json!("cuda");
        all["target"] = json!("sm_90");
    });
    session.write("bad.orc", on_gpu);
    session.case("kernels of another kind of device", "run bad.orc");
    let devices = crate::devices::session("artifacts-gpu");
    session.write("gpu.orc", std::fs::read(devices.work().join("good.orc")).unwrap());
    let no_driver = "--cuda-driver /nonexistent/libcuda.so.1";
    session.case("an executable for a GPU where none is", &format!("run gpu.orc {no_driver}"));
    let arguments = format!("explain gpu.orc --all --measure {no_driver}");
    let plan = session.command(&arguments).output().unwrap();
    let plan = String::from_utf8(plan.stdout).unwrap();
    assert!(plan.contains("k0_mul_max_add  modelled ") && !plan.contains("measured"), "{plan}");
    let mut command = session.command(&arguments);
    command.stdout(Stdio::null());
    session.observe("an explanation of an executable that cannot run here", &arguments, command);
    let mut other = good_model();
    other.proto.producer_name = Some("another".to_owned());
    session.write("other.onnx", other.encode());
    session.case("the model of another executable", "verify good.orc --onnx other.onnx");
    std::fs::remove_file(session.work().join("good.onnx")).unwrap();
    session.case("the model of an executable that is gone", "verify good.orc");
    session.finish();
}
