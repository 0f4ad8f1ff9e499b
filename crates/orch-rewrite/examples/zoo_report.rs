//! Rewrites ONNX models and prints what happened.
//!
//! `cargo run -p orch-rewrite --example zoo_report -- [--text] [--check] MODEL.onnx..`: `--text` prints the rewritten
//! graphs, `--check` runs both graphs through the interpreter on synthetic inputs and fails if outputs differ.

use orch_fission::{FissionOptions, fission};
use orch_interp::{EvalOptions, evaluate};
use orch_ir::{PrimGraph, Tensor};
use orch_onnx::{ImportOptions, import_file};
use orch_rewrite::{RewriteOptions, rewrite};
use std::path::Path;
use std::time::Instant;

/// The largest difference of two outputs, relative to the largest element.
const TOLERANCE: f64 = 1e-5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (flags, paths): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|arg| arg.starts_with("--"));
    let asked = |flag: &str| flags.iter().any(|given| given == flag);
    for path in &paths {
        let imported = import_file(Path::new(path), &ImportOptions::default())?;
        let graph = fission(&imported.graph, &FissionOptions::default())?;
        let started = Instant::now();
        let (rewritten, report) = rewrite(&graph, &RewriteOptions::default());
        println!("{path}: {:.0} ms, {report}", started.elapsed().as_secs_f64() * 1e3);
        if asked("--text") {
            let text = orch_ir::text::print(&rewritten);
            text.lines()
                .filter(|line| !line.trim_start().starts_with("const"))
                .for_each(|line| println!("{line}"));
        }
        if asked("--check") {
            let difference = difference(&graph, &rewritten)?;
            println!("  largest difference {difference:.1e}");
            if difference > TOLERANCE {
                return Err(format!("{path}: outputs differ by {difference:e}").into());
            }
        }
    }
    Ok(())
}

/// How much the outputs of two graphs differ at most, relative to the largest element of each output.
fn difference(before: &PrimGraph, after: &PrimGraph) -> Result<f64, Box<dyn std::error::Error>> {
    let inputs: Vec<Tensor> = before.inputs.iter().map(|(_, id)| synthetic(before, *id)).collect();
    let expected = evaluate(before, &inputs, &EvalOptions::wide())?;
    let given = evaluate(after, &inputs, &EvalOptions::wide())?;
    let mut worst = 0.0f64;
    for (expected, given) in expected.iter().zip(&given) {
        let (expected, given) = (expected.to_f64(), given.to_f64());
        let scale = expected.iter().fold(f64::MIN_POSITIVE, |max, value| max.max(value.abs()));
        for (a, b) in expected.iter().zip(&given) {
            let same = a == b || (a.is_nan() && b.is_nan());
            let apart = if same { 0.0 } else { (a - b).abs() / scale };
            worst = if apart.is_nan() { f64::INFINITY } else { worst.max(apart) };
        }
    }
    Ok(worst)
}

/// Small numbers of both signs, or small indices.
fn synthetic(graph: &PrimGraph, id: orch_ir::TensorId) -> Tensor {
    let (dtype, shape) = (graph.dtype(id), graph.shape(id).clone());
    let scrambled = |i: usize| (i * 7919 + 104_729) % 1009;
    let value = |i: usize| {
        if dtype.is_float() { scrambled(i) as f64 / 504.5 - 1.0 } else { (scrambled(i) % 29) as f64 }
    };
    let values: Vec<f64> = (0..shape.elems()).map(value).collect();
    Tensor::from_f64(dtype, shape, &values)
}
