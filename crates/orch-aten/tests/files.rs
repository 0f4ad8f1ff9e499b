//! Every file of `tests/files`: small graphs of ATen calls, their inputs, and what eager PyTorch gives for them. The
//! imported graph, interpreted, gives the same. `scripts/aten-cases.py` writes the files.

use orch_aten::import;
use orch_fission::{FissionOptions, fission};
use orch_interp::compare::{Tolerance, compare};
use orch_interp::{EvalOptions, evaluate};
use orch_ir::{DType, PrimGraph, Shape, Tensor};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

fn files() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files");
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

fn cases(path: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("the file is read");
    serde_json::from_str(&text).expect("a list of cases")
}

/// The tensor of these elements.
fn tensor(dtype: DType, shape: Shape, elements: &Value) -> Tensor {
    let elements = elements.as_array().expect("a list");
    if !dtype.is_float() {
        let values: Vec<i64> = elements.iter().map(|value| value.as_i64().expect("an integer")).collect();
        return Tensor::from_i64(dtype, shape, &values);
    }
    let value = |element: &Value| match element.as_str() {
        Some("inf") => f64::INFINITY,
        Some("-inf") => f64::NEG_INFINITY,
        Some(_) => f64::NAN,
        None => element.as_f64().expect("a number"),
    };
    Tensor::from_f64(dtype, shape, &elements.iter().map(value).collect::<Vec<f64>>())
}

/// What separates f32 sums and functions of two implementations.
fn tolerance(dtype: DType) -> Tolerance {
    let Tolerance { relative, absolute } = Tolerance::rounding(dtype);
    Tolerance { relative: 10.0 * relative, absolute: 100.0 * absolute }
}

fn graph(document: &Value) -> Result<PrimGraph, String> {
    let imported = import(document.to_string().as_bytes()).map_err(|errors| errors.to_string())?;
    let graph = fission(&imported.graph, &FissionOptions::default()).map_err(|errors| errors.to_string())?;
    // The importer knew the types that fission finds.
    for (&known, (name, found)) in imported.graph.outputs.iter().zip(&graph.outputs) {
        let known = imported.graph.value(known);
        let dims: Option<Vec<usize>> = known.shape.iter().flatten().copied().collect();
        if known.dtype != Some(graph.dtype(*found)) || dims.as_deref() != Some(&graph.shape(*found)[..]) {
            return Err(format!("{name} is {:?}{dims:?} for the importer", known.dtype));
        }
    }
    Ok(graph)
}

fn run(case: &Value) -> Result<(), String> {
    let document = &case["document"];
    let graph = graph(document)?;
    let inputs: Vec<Tensor> = (graph.inputs.iter().zip(case["inputs"].as_array().expect("a list")))
        .map(|((_, id), elements)| tensor(graph.dtype(*id), graph.shape(*id).clone(), elements))
        .collect();
    let results = evaluate(&graph, &inputs, &EvalOptions::default()).map_err(|error| error.to_string())?;
    let expected = case["outputs"].as_array().expect("a list");
    let checked = usize::from(document.get("index_check").is_some());
    if results.len() != expected.len() + checked {
        return Err(format!("{} outputs, {} expected", results.len(), expected.len()));
    }
    if checked == 1 && results[expected.len()].to_i64() != Some(vec![1]) {
        return Err("an index is out of range".to_owned());
    }
    for (number, (result, elements)) in results.iter().zip(expected).enumerate() {
        let wanted = tensor(result.dtype(), result.shape().clone(), elements);
        compare(&wanted, result, tolerance(wanted.dtype()))
            .map_err(|difference| format!("output {number}: {difference}"))?;
    }
    Ok(())
}

#[test]
fn cases_give_what_eager_gives() {
    let mut failures = Vec::new();
    let mut count = 0;
    for path in files() {
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        for case in cases(&path) {
            count += 1;
            if let Err(error) = run(&case) {
                failures.push(format!("{stem} {}: {error}", case["name"]));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {count} cases fail:\n{}", failures.len(), failures.join("\n"));
    assert!(count > 800, "only {count} cases were found");
}

#[test]
fn every_target_has_a_case() {
    let mut seen = BTreeSet::new();
    for case in files().iter().flat_map(cases) {
        let nodes = case["document"]["nodes"].as_array().expect("a list");
        seen.extend(nodes.iter().map(|node| node["target"].as_str().expect("a text").to_owned()));
    }
    // What `empty` holds is nobody's business.
    let missing: Vec<&str> = (orch_aten::targets().map(|target| target.name))
        .filter(|name| !seen.contains(*name) && *name != "aten.empty.memory_format")
        .collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
}
