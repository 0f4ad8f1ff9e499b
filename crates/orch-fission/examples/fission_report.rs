//! Fissions models and counts what comes out: `cargo run -p orch-fission --example fission_report -- FILES`.
//!
//! Prints for each model its problems, or the number of operators, the time, and the number of primitives by kind.

use orch_fission::{FissionOptions, fission};
use orch_ir::PrimOp;
use orch_onnx::{ImportOptions, import_file};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

fn main() {
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        let name = path.display();
        let graph = match import_file(&path, &ImportOptions::default()) {
            Ok(imported) => imported.graph,
            Err(errors) => {
                println!("{name}: {errors}");
                continue;
            }
        };
        let begin = Instant::now();
        let prims = match fission(&graph, &FissionOptions::default()) {
            Ok(prims) => prims,
            Err(errors) => {
                println!("{name}:\n{errors}");
                continue;
            }
        };
        let time_ms = begin.elapsed().as_millis();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for node in prims.nodes() {
            *counts.entry(kind(&node.op)).or_default() += 1;
        }
        let counts: Vec<String> = counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let (operators, nodes) = (graph.nodes.len(), prims.nodes().len());
        println!("{name}: {operators} operators, {nodes} primitives, {time_ms} ms: {}", counts.join(", "));
    }
}

/// The kind of a primitive: the first word of its debug form.
fn kind(op: &PrimOp) -> String {
    let text = format!("{op:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}
