//! Regions of primitive graphs, compared with their primitives.

use orch_interp::{EvalOptions, evaluate};
use orch_ir::{PrimGraph, Tensor, TensorId};
use orch_mugraph::array::Array;
use orch_mugraph::floats::relative_error;
use orch_mugraph::op::elems;
use orch_mugraph::{MuGraph, Node, Precision, Region, RegionLimits, View, interpret, print, regions};

/// The operators of a program.
pub fn ops(program: &MuGraph) -> String {
    let text = print(program);
    let lines = text.lines().filter_map(|line| line.split_once(" = ").map(|(_, op)| op));
    let ops = lines.filter(|op| !op.starts_with("input") && !op.starts_with("mask \""));
    let name = |op: &str| match op.find(')') {
        Some(end) if op.find(' ').is_none_or(|space| op.find('(').is_some_and(|open| open < space)) => {
            op[..=end].to_owned()
        }
        _ => op.split(' ').next().unwrap_or_default().to_owned(),
    };
    ops.map(name).collect::<Vec<_>>().join(" ")
}

/// The elements that a view shows.
pub fn seen(view: &View, shape: &[usize], values: &[f64]) -> Array<f64> {
    Array::from_fn(shape, |position| {
        let mut rest = position;
        let mut at = view.offset;
        for (extent, stride) in shape.iter().zip(&view.strides).rev() {
            at += rest % extent * stride;
            rest /= extent;
        }
        values[at]
    })
}

/// Deterministic inputs in -1 to 1; masks keep the first element of every seven, and some others.
pub fn inputs(graph: &PrimGraph) -> Vec<Tensor> {
    let value = |seed: usize, i: usize| ((i * 7919 + seed * 104_729) % 1009) as f64 / 504.5 - 1.0;
    let tensor = |(seed, (_, id)): (usize, &(String, TensorId))| {
        let (dtype, shape) = (graph.dtype(*id), graph.shape(*id).clone());
        let values: Vec<f64> = (0..shape.elems())
            .map(|i| {
                if dtype.is_float() { value(seed, i) } else { f64::from(u8::from(i % 7 == 0 || i % 3 == 1)) }
            })
            .collect();
        Tensor::from_f64(dtype, shape, &values)
    };
    graph.inputs.iter().enumerate().map(tensor).collect()
}

/// Compares a region with its primitives.
pub fn check(graph: &PrimGraph, region: &Region) {
    let mut probe = graph.clone();
    probe.outputs.clear();
    for view in region.inputs.iter().chain([&region.output]) {
        probe.add_output(view.tensor.to_string(), view.tensor);
    }
    let values = evaluate(&probe, &inputs(graph), &EvalOptions::wide()).unwrap_or_else(|e| panic!("{e}"));
    let program = &region.program;
    let shapes = program.inputs().map(|(id, _, _)| program.shape(id));
    let given: Vec<Array<f64>> = region
        .inputs
        .iter()
        .zip(shapes)
        .zip(&values)
        .map(|((view, shape), value)| seen(view, shape, &value.to_f64()))
        .collect();
    let result = interpret(program, &given, Precision::F64).unwrap_or_else(|e| panic!("{e}"));
    let shape = program.shape(program.outputs()[0].1);
    let stored = values.last().expect("the result").to_f64();
    assert_eq!(elems(shape), stored.len(), "the whole result\n{}", print(program));
    let error = relative_error(&seen(&region.output, shape, &stored), &result[0]);
    assert!(error < 1e-6, "{error:e}\n{}", print(program));
    for (_, node) in program.nodes() {
        assert!(!matches!(node, Node::Op { op: orch_mugraph::Op::Transpose(_), .. }));
    }
}

/// A graph from its text, whose tensors have names that start with `$`: they are numbered as they are defined.
pub fn graph(text: &str) -> PrimGraph {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut names: Vec<&str> = Vec::new();
    let mut numbered = String::new();
    for (at, part) in text.split('$').enumerate() {
        if at == 0 {
            numbered += part;
            continue;
        }
        let (name, rest) = part.split_at(part.find(|c| !is_name(c)).unwrap_or(part.len()));
        let number = names.iter().position(|known| *known == name).unwrap_or(names.len());
        if number == names.len() {
            names.push(name);
        }
        numbered += &format!("t{number}{rest}");
    }
    orch_ir::text::parse(&numbered).unwrap_or_else(|e| panic!("{e}\n{numbered}"))
}

/// The regions of a graph, each compared with its primitives.
pub fn checked(text: &str) -> Vec<Region> {
    let graph = graph(text);
    let found = regions(&graph, &RegionLimits::default());
    for region in &found {
        check(&graph, region);
    }
    found
}

/// The operators of each region.
pub fn programs(text: &str) -> Vec<String> {
    checked(text).iter().map(|region| ops(&region.program)).collect()
}

/// Stable softmax of `$scores`, of this shape, along its last dimension: `$p`.
pub fn softmax(shape: &[usize]) -> String {
    let last = shape.len() - 1;
    let dims: Vec<usize> = (0..last).collect();
    let rows = &shape[..last];
    format!(
        "  $max: f32{rows:?} = reduce.max $scores axes=[{last}]
  $wide: f32{shape:?} = broadcast $max dims={dims:?}
  $less: f32{shape:?} = sub $scores, $wide
  $exp: f32{shape:?} = exp $less
  $sum: f32{rows:?} = reduce.sum $exp axes=[{last}]
  $sums: f32{shape:?} = broadcast $sum dims={dims:?}
  $p: f32{shape:?} = div $exp, $sums"
    )
}
