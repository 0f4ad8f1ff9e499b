//! A primitive graph through the whole pipeline, against the reference interpreter; and the smallest part of a graph
//! that still fails.

#![allow(dead_code, reason = "each test binary uses a part")]

use orch_interp::compare::{Tolerance, compare};
use orch_interp::{EvalOptions, cases, evaluate};
use orch_ir::generate::random_inputs;
use orch_ir::validate::validate;
use orch_ir::{NodeId, PrimGraph, Tensor, TensorId};
use orchestrion::compare::ROUNDING_FACTOR;
use orchestrion::{Executable, Model, Options, RunOptions};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Seeds of `ORCH_SEEDS`, written `FIRST..END`, or these.
pub fn seeds(usual: Range<u64>) -> Range<u64> {
    let Some(text) = std::env::var_os("ORCH_SEEDS") else { return usual };
    let text = text.into_string().expect("ORCH_SEEDS is text");
    let (first, end) = text.split_once("..").expect("ORCH_SEEDS is FIRST..END");
    first.parse().expect("FIRST is a number")..end.parse().expect("END is a number")
}

/// The graphs of `tests/files`, each with inputs of its cases, or random ones if it has none.
pub fn files() -> Vec<(String, PrimGraph, Vec<Tensor>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    let entries = std::fs::read_dir(folder).expect("the folder of test files is readable");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry is readable").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "there are test files");
    let mut found = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a test file is readable");
        let blocks = cases::read(&text).unwrap_or_else(|problem| panic!("{}: {problem}", path.display()));
        for block in blocks {
            let name = format!("{}: {}", path.display(), block.graph.name);
            assert_eq!(validate(&block.graph), [], "{name}");
            let mut inputs: Vec<_> = block.cases.iter().map(|case| case.inputs.clone()).collect();
            if inputs.is_empty() {
                inputs.extend((0..2).map(|seed| random_inputs(&block.graph, seed)));
            }
            found.extend(inputs.into_iter().map(|values| (name.clone(), block.graph.clone(), values)));
        }
    }
    found
}

/// Compiles and runs a graph twice and compares with the interpreter; `Err` says what went wrong, panics included.
pub fn check(graph: &PrimGraph, inputs: &[Tensor], options: &Options) -> Result<(), String> {
    let attempt = std::panic::AssertUnwindSafe(|| check_unguarded(graph, inputs, options));
    std::panic::catch_unwind(attempt).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

fn check_unguarded(graph: &PrimGraph, inputs: &[Tensor], options: &Options) -> Result<(), String> {
    let wide =
        evaluate(graph, inputs, &EvalOptions::wide()).map_err(|e| format!("interpreter (wide): {e}"))?;
    let native = evaluate(graph, inputs, &EvalOptions::default()).map_err(|e| format!("interpreter: {e}"))?;
    let artifact = Model::from_graph(graph.clone()).compile(options).map_err(|e| format!("compile: {e}"))?;
    let executable = Executable::load(artifact, RunOptions { threads: 2, ..RunOptions::default() })
        .map_err(|e| format!("load: {e}"))?;
    let first = executable.run(inputs).map_err(|e| format!("run: {e}"))?;
    let second = executable.run(inputs).map_err(|e| format!("second run: {e}"))?;
    for (index, (name, id)) in graph.outputs.iter().enumerate() {
        let wanted = format!("output `{name}` ({id})");
        if first[index].bytes() != second[index].bytes() {
            return Err(format!("{wanted}: two runs differ"));
        }
        if first[index].dtype() != graph.dtype(*id) {
            return Err(format!("{wanted}: type {} instead of {}", first[index].dtype(), graph.dtype(*id)));
        }
        let tolerance = tolerance(&wide[index], &native[index]);
        compare(&wide[index], &first[index], tolerance).map_err(|e| format!("{wanted}: {e}"))?;
    }
    Ok(())
}

/// The table of types, widened by what rounding to these types costs here.
fn tolerance(wide: &Tensor, native: &Tensor) -> Tolerance {
    let table = Tolerance::model(native.dtype());
    if !native.dtype().is_float() {
        return table;
    }
    let differences = wide.to_f64().into_iter().zip(native.to_f64()).map(|(w, n)| (w - n).abs());
    let rounding = differences.filter(|difference| difference.is_finite()).fold(0.0, f64::max);
    Tolerance { absolute: table.absolute + ROUNDING_FACTOR * rounding, ..table }
}

/// The smallest part found of a graph that `fails`, with inputs: nodes are left out one after the other, their results
/// becoming inputs.
pub fn shrink(
    graph: &PrimGraph,
    inputs: &[Tensor],
    fails: impl Fn(&PrimGraph, &[Tensor]) -> bool,
) -> (PrimGraph, Vec<Tensor>) {
    let values = all_values(graph, inputs);
    let mut kept: Vec<NodeId> = graph.node_ids().collect();
    let mut best = (graph.clone(), inputs.to_vec());
    loop {
        let before = kept.len();
        for candidate in kept.clone() {
            let rest: Vec<NodeId> = kept.iter().copied().filter(|&node| node != candidate).collect();
            let part = part(graph, &rest, &values);
            if !rest.is_empty() && fails(&part.0, &part.1) {
                (kept, best) = (rest, part);
            }
        }
        if kept.len() == before {
            return best;
        }
    }
}

/// Every tensor that inputs give, in the graph's own types.
fn all_values(graph: &PrimGraph, inputs: &[Tensor]) -> Vec<Tensor> {
    let mut open = graph.clone();
    open.outputs = (0..graph.tensors().len()).map(|t| (format!("v{t}"), TensorId::new(t))).collect();
    evaluate(&open, inputs, &EvalOptions::default()).expect("the whole graph was evaluated before")
}

/// The part of a graph made of these nodes: what they need becomes an input (constants stay), what they leave an output.
fn part(graph: &PrimGraph, nodes: &[NodeId], values: &[Tensor]) -> (PrimGraph, Vec<Tensor>) {
    let mut part = PrimGraph::new(&graph.name);
    let mut inputs = Vec::new();
    let mut here: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    for &id in nodes {
        for &operand in &graph.node(id).inputs {
            here.entry(operand).or_insert_with(|| match graph.constant(operand) {
                Some(value) => part.add_constant(value.clone()),
                None => {
                    inputs.push(values[operand.index()].clone());
                    let name = format!("x{}", inputs.len() - 1);
                    part.add_input(name, graph.dtype(operand), graph.shape(operand).clone())
                }
            });
        }
        let operands = graph.node(id).inputs.iter().map(|operand| here[operand]).collect();
        let results = part.add_node(graph.node(id).op.clone(), operands).expect("the node was valid before");
        here.extend(graph.node(id).outputs.iter().copied().zip(results));
    }
    let consumers = graph.consumers();
    for &id in nodes {
        for &result in &graph.node(id).outputs {
            let is_read = consumers[result.index()].iter().any(|reader| nodes.contains(reader));
            if !is_read || graph.outputs.iter().any(|(_, output)| *output == result) {
                part.add_output(format!("y{}", part.outputs.len()), here[&result]);
            }
        }
    }
    (part, inputs)
}

/// A graph and its inputs as a test file of the interpreter reads them.
pub fn print_case(graph: &PrimGraph, inputs: &[Tensor]) -> String {
    let mut text = orch_ir::text::print(graph);
    text.push_str("case \"found\"\n");
    for input in inputs {
        text.push_str(&format!("in {}\n", orch_ir::text::print_tensor(input)));
    }
    text
}
