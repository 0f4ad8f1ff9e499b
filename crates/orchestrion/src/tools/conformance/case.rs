//! One case: import, fission with as few inputs fixed as possible, then the evaluator that is checked.

use super::data::{Datum, Declared, DeclaredPort, as_declared, declared, read_all, sorted_entries};
use super::judge::{CaseTolerance, difference};
use super::known;
use super::outcome::Outcome;
use crate::Error;
use bytes::Bytes;
use orch_fission::{Collection, FissionErrors, FissionOptions, RuleError, fission};
use orch_ir::{OperatorGraph, PrimGraph, Tensor};
use orch_onnx::{ImportOptions, import};
use orch_runtime::map_file;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Computes the outputs of a graph from its inputs.
pub(super) type Evaluator<'a> = &'a dyn Fn(PrimGraph, &[Tensor]) -> Result<Vec<Tensor>, Error>;

/// All data sets of a case.
pub(super) fn run(case: &Path, engine: Evaluator<'_>) -> Outcome {
    let name = case.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = name.as_str();
    let Ok(model) = map_file(&case.join("model.onnx")) else {
        return Outcome::unsupported("model.onnx cannot be read");
    };
    let data = map_file(&case.join("data.json")).unwrap_or_default();
    let stated = CaseTolerance::stated(&String::from_utf8_lossy(&data));
    let tolerance =
        CaseTolerance { absolute: stated.absolute.max(known::absolute_tolerance(name)), ..stated };
    for set in sorted_entries(case).into_iter().filter(|path| path.is_dir()) {
        match run_set(&model, &set, tolerance, engine) {
            Outcome::Pass => {}
            Outcome::Wrong(why) => {
                return match known::mistake(name, &why) {
                    Some(mistake) => Outcome::Mistaken(format!("{why}: {mistake}")),
                    None => Outcome::Wrong(why),
                };
            }
            other => return other,
        }
    }
    Outcome::Pass
}

fn run_set(model: &Bytes, set: &Path, tolerance: CaseTolerance, engine: Evaluator<'_>) -> Outcome {
    let Declared { inputs, outputs, operators } = match declared(model) {
        Ok(declared) => declared,
        Err(why) => return Outcome::unsupported(why),
    };
    let (given, expected) = match (read_all(set, "input", &inputs), read_all(set, "output", &outputs)) {
        (Ok(given), Ok(expected)) => (given, expected),
        (Err(why), _) | (_, Err(why)) => {
            let operators: Vec<String> = operators.into_iter().collect();
            return Outcome::unsupported(format!("data of {}: {why}", operators.join(", ")));
        }
    };
    let imported = match import(model.clone(), &import_options(&inputs, &given)) {
        Ok(imported) => imported.graph,
        Err(errors) => {
            return Outcome::Unsupported(errors.to_string());
        }
    };
    let values = named_values(&imported, &inputs, &given);
    let (graph, fixed) = match fission_with_few_fixed(&imported, &inputs, &given, &values) {
        Ok(found) => found,
        Err(errors) => {
            return Outcome::Unsupported(errors.to_string());
        }
    };
    let free: Vec<Tensor> =
        values.iter().filter(|(name, _)| !fixed.contains(name)).map(|(_, value)| value.clone()).collect();
    let expected: Vec<Tensor> =
        expected.iter().flat_map(|datum| datum.tensors("")).map(|(_, tensor)| tensor).collect();
    match engine(graph, &free) {
        Ok(results) => difference(&results, &expected, tolerance).map_or(Outcome::Pass, Outcome::Wrong),
        Err(Error::Unsupported(reason)) => Outcome::Unsupported(reason),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

/// Symbolic dimensions are those of the data.
fn import_options(inputs: &[DeclaredPort], given: &[Datum]) -> ImportOptions {
    let mut options = ImportOptions::default();
    for (port, datum) in inputs.iter().zip(given) {
        if let Datum::Tensor(tensor) = datum {
            options.input_shapes.insert(port.name.clone(), tensor.shape().to_vec());
        }
    }
    options
}

/// The tensors that are given, in the order of the graph's inputs.
fn named_values(graph: &OperatorGraph, inputs: &[DeclaredPort], given: &[Datum]) -> Vec<(String, Tensor)> {
    let declared: BTreeMap<&str, _> =
        graph.inputs.iter().map(|&id| (graph.value(id).name.as_str(), graph.value(id).dtype)).collect();
    let mut values = Vec::new();
    for (port, datum) in inputs.iter().zip(given) {
        let dtype = declared.get(port.name.as_str()).copied().flatten();
        values.extend(
            datum.tensors(&port.name).into_iter().map(|(name, value)| (name, as_declared(value, dtype))),
        );
    }
    values
}

/// The graph, with no more inputs fixed than its shapes need, and which these are.
fn fission_with_few_fixed(
    graph: &OperatorGraph,
    inputs: &[DeclaredPort],
    given: &[Datum],
    values: &[(String, Tensor)],
) -> Result<(PrimGraph, BTreeSet<String>), FissionErrors> {
    let collections: BTreeMap<String, Collection> = (inputs.iter().zip(given))
        .filter_map(|(port, datum)| Some((port.name.clone(), collection(graph, &port.name, datum)?)))
        .collect();
    let attempt = |fixed: &BTreeSet<String>| {
        let fixed_inputs = values.iter().filter(|(name, _)| fixed.contains(name)).cloned().collect();
        fission(
            graph,
            &FissionOptions { fixed_inputs, collections: collections.clone(), ..Default::default() },
        )
    };
    let mut fixed = BTreeSet::new();
    let mut result = attempt(&fixed);
    // Integers and small tensors are the likeliest to decide about shapes.
    let mut candidates: Vec<&(String, Tensor)> = values.iter().collect();
    candidates.sort_by_key(|(_, value)| (value.dtype().is_float(), value.shape().elems()));
    for (name, _) in &candidates {
        if !result.as_ref().is_err_and(needs_constants) {
            break;
        }
        fixed.insert(name.clone());
        result = attempt(&fixed);
    }
    let mut found = result?;
    for (name, _) in candidates {
        let mut fewer = fixed.clone();
        if fewer.remove(name)
            && let Ok(graph) = attempt(&fewer)
        {
            (found, fixed) = (graph, fewer);
        }
    }
    Ok((found, fixed))
}

/// What an input that is no plain tensor holds.
fn collection(graph: &OperatorGraph, name: &str, datum: &Datum) -> Option<Collection> {
    let kind = |tensor: &Tensor| (tensor.dtype(), tensor.shape().clone());
    let input = graph.inputs.iter().map(|&id| graph.value(id)).find(|value| value.name == name)?;
    match datum {
        Datum::Tensor(_) if input.dtype.is_some() => None,
        Datum::Tensor(tensor) => Some(Collection::Tensor(kind(tensor).0, kind(tensor).1)),
        Datum::Sequence(tensors) => Some(Collection::Sequence(tensors.iter().map(kind).collect())),
        Datum::Absent => Some(Collection::Absent),
    }
}

/// True if an operand must be known when compiling.
fn needs_constants(errors: &FissionErrors) -> bool {
    errors.0.iter().any(|error| match &error.error {
        RuleError::NotConstant(_) => true,
        RuleError::Subgraph(errors) => needs_constants(errors),
        RuleError::Unsupported(_)
        | RuleError::Invalid(_)
        | RuleError::MissingOperand(_)
        | RuleError::Operands(_) => false,
    })
}
