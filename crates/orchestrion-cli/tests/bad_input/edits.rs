//! Files that were edited at random, with all hashes of the file as a whole made right again: the command says what is wrong, or works;
//! it never dies by a signal, reports a bug of its own or takes long. `ORCH_EDITS` says how many of each kind are tried.

use crate::artifacts::with_manifest;
use crate::support::{NORM, Session};
use orch_ir::DType;
use orch_ir::generate::Rng;
use orch_onnx::builder::{GraphBuilder, node};
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How long a call may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Edits of each kind.
fn edits() -> u64 {
    std::env::var("ORCH_EDITS").ok().and_then(|count| count.parse().ok()).unwrap_or(60)
}

/// Calls the command, which ends by itself with one of the documented codes.
fn survives(session: &Session, arguments: &str, what: &str) {
    let mut command = session.command(arguments);
    // A file, not a pipe: a command with much to say does not wait for its reader.
    let messages = session.work().join("messages");
    let mut child = command.stdout(Stdio::null()).stderr(File::create(&messages).unwrap()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{arguments} hangs: {what}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let status = child.wait().unwrap();
    let said = String::from_utf8_lossy(&fs::read(&messages).unwrap()).into_owned();
    assert!(matches!(status.code(), Some(0..=5)), "{what}: {status}\n{said}");
    assert!(said.len() < 8 << 10, "{what}: {} bytes of messages", said.len());
}

/// The number of a random choice among `count`.
fn among(rng: &mut Rng, count: usize) -> usize {
    (rng.bits() % count.max(1) as u64) as usize
}

/// Changes a random place below a value, and says which and how.
fn edit(rng: &mut Rng, value: &mut Value) -> String {
    let descends = among(rng, 8) > 0;
    match value {
        Value::Object(fields) if descends && !fields.is_empty() => {
            let key = fields.keys().nth(among(rng, fields.len())).cloned().unwrap_or_default();
            if among(rng, 12) == 0 {
                fields.remove(&key);
                return format!(".{key} removed");
            }
            format!(".{key}{}", edit(rng, &mut fields[&key]))
        }
        Value::Array(items) if descends && !items.is_empty() => {
            let (at, other) = (among(rng, items.len()), among(rng, items.len()));
            match among(rng, 8) {
                0 => {
                    items.swap(at, other);
                    format!("[{at}] exchanged with {other}")
                }
                1 => {
                    items.remove(at);
                    format!("[{at}] removed")
                }
                2 => {
                    items.push(items[at].clone());
                    format!("[{at}] repeated")
                }
                _ => format!("[{at}]{}", edit(rng, &mut items[at])),
            }
        }
        _ => {
            *value = replacement(rng, value);
            let text = value.to_string();
            format!(" = {}", text.chars().take(100).collect::<String>())
        }
    }
}

fn replacement(rng: &mut Rng, value: &Value) -> Value {
    let number = value.as_f64().unwrap_or(1.0);
    let text = value.as_str().unwrap_or_default();
    let choices = [
        json!(number + 1.0),
        json!((number.abs() as u64).saturating_add(1)),
        json!((number.abs() as u64).saturating_sub(1)),
        json!((number.abs() as u64).saturating_mul(64).saturating_add(64)),
        json!(0),
        json!(-1),
        json!(1),
        json!(u32::MAX),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(1e308),
        json!(-0.5),
        Value::Null,
        json!(""),
        json!(format!("{text}x")),
        json!("x".repeat(100_000)),
        json!("\u{0}../</script>\n"),
        json!([]),
        json!([[0, 1], [2]]),
        Value::Object(Map::new()),
        json!({ "kernel": 1 }),
        json!({ "arena": 1 }),
        json!({ "constant": 0 }),
        json!({ "output": 0 }),
        json!("copy"),
        json!(true),
    ];
    choices[among(rng, choices.len())].clone()
}

/// A model with several kernels, constants and two outputs.
fn session(name: &'static str) -> (Session, Vec<u8>) {
    let session = Session::new(name);
    let weights = orch_ir::Tensor::from_vec([3, 4], (0..12).map(|at| at as f32 * 0.1).collect());
    let model = GraphBuilder::new("g")
        .input("x", DType::F32, [2, 3])
        .initializer("w", &weights)
        .node(node("MatMul", ["x", "w"], ["m"]))
        .node(node("Softmax", ["m"], ["s"]))
        .node(node("Transpose", ["s"], ["t"]))
        .node(node("MatMul", ["t", "s"], ["y"]))
        .output("y")
        .output("m");
    session.write("good.onnx", model.model(17).encode());
    let compiled = session.command("compile good.onnx --no-calibration").output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let bytes = fs::read(session.work().join("good.orc")).unwrap();
    (session, bytes)
}

#[test]
fn manifests() {
    let (session, good) = session("edited-manifests");
    let mut rng = Rng::new(23);
    for _ in 0..edits() {
        let mut what = String::new();
        let changed = with_manifest(&good, |manifest| {
            for _ in 0..1 + among(&mut rng, 2) {
                what += &edit(&mut rng, manifest);
                what += "; ";
            }
        });
        session.write("bad.orc", changed);
        survives(&session, "run bad.orc --threads 2", &what);
        survives(&session, "explain bad.orc --all", &what);
        survives(&session, "explain bad.orc --against bad.orc --html page.html", &what);
    }
}

/// Bytes with some of them changed, removed or repeated.
fn damaged(rng: &mut Rng, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + among(rng, 4) {
        let at = among(rng, bytes.len());
        match among(rng, 5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.bits() as u8),
            2 if at < bytes.len() => bytes[at..].rotate_left(1),
            _ if at < bytes.len() => bytes[at] = rng.bits() as u8,
            _ => {}
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

#[test]
fn tensors_and_models_and_cached_objects() {
    let (session, _) = session("edited-files");
    let work = session.work();
    let run = session.command("run good.orc -o out").output().unwrap();
    assert!(run.status.success());
    let tensor = fs::read(work.join("out/y.npy")).unwrap();
    let encoded = orch_onnx::encode_tensor("x", &orch_ir::Tensor::from_vec([2, 3], vec![1f32; 6]));
    let model = fs::read(work.join("good.onnx")).unwrap();
    let mut rng = Rng::new(29);
    for round in 0..edits() {
        session.write("bad.npy", damaged(&mut rng, &tensor));
        survives(&session, "run good.orc -i x=bad.npy", &format!("array {round}"));
        session.write("bad.pb", damaged(&mut rng, &encoded));
        survives(&session, "run good.orc -i x=bad.pb", &format!("tensor {round}"));
        session.write("bad.onnx", damaged(&mut rng, &model));
        survives(&session, "run bad.onnx --no-calibration", &format!("model {round}"));
        for entry in fs::read_dir(session.cache().join("kernels")).unwrap() {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, damaged(&mut rng, &bytes)).unwrap();
        }
        survives(&session, "run good.onnx --no-calibration", &format!("cache {round}"));
    }
}

#[test]
fn certificates() {
    let session = Session::new("proofs");
    session.write("norm.txt", NORM);
    let found =
        session.command("superoptimize norm.txt --certificates proofs --no-calibration").output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    let proof = fs::read_to_string(session.work().join("proofs/norm_1.json")).unwrap();
    let good: Value = serde_json::from_str(&proof).unwrap();
    let mut rng = Rng::new(31);
    for _ in 0..edits() {
        let mut changed = good.clone();
        let what = edit(&mut rng, &mut changed);
        session.write("bad.json", changed.to_string());
        survives(&session, "verify bad.json", &what);
    }
}
