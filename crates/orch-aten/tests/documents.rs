//! What documents say besides calls: problems, indices out of range, outputs, mutations.

use orch_aten::{Import, Location, Reason, import};
use orch_fission::{FissionOptions, fission};
use orch_interp::{EvalOptions, evaluate};
use orch_ir::Tensor;
use serde_json::{Value, json};

fn input(name: &str, dtype: &str, shape: &[usize]) -> Value {
    let mut strides = vec![1; shape.len()];
    (1..shape.len()).rev().for_each(|dim| strides[dim - 1] = strides[dim] * shape[dim]);
    json!({"name": name, "dtype": dtype, "shape": shape, "strides": strides, "kind": "input"})
}

fn node(name: &str, target: &str, args: Value, dtype: &str, shape: &[usize]) -> Value {
    let known = input(name, dtype, shape);
    let result = json!({"dtype": dtype, "shape": shape, "strides": known["strides"]});
    json!({"name": name, "target": target, "args": args, "results": [result], "where": "model.py:3: y = f(x)"})
}

fn document(inputs: Value, nodes: Value, outputs: Value) -> Value {
    json!({"format": "orchestrion-aten", "version": 1, "inputs": inputs, "nodes": nodes, "outputs": outputs})
}

fn value(name: &str) -> Value {
    json!({ "value": name })
}

fn imported(document: &Value) -> Import {
    import(document.to_string().as_bytes()).unwrap_or_else(|errors| panic!("{errors}"))
}

fn reasons(document: &Value) -> Vec<(Location, Reason)> {
    let errors = import(document.to_string().as_bytes()).expect_err("the document is wrong");
    errors.0.into_iter().map(|problem| (problem.place, problem.reason)).collect()
}

fn run(document: &Value, inputs: &[Tensor]) -> Vec<Vec<f64>> {
    let graph = fission(&imported(document).graph, &FissionOptions::default()).expect("a graph");
    let results = evaluate(&graph, inputs, &EvalOptions::default()).expect("results");
    results.iter().map(Tensor::to_f64).collect()
}

#[test]
fn all_problems_are_told_at_once() {
    let nodes = json!([
        node("a", "aten.foo.default", json!([value("x")]), "f32", &[2]),
        node("b", "aten.relu.default", json!([value("a")]), "f32", &[2]),
        node("c", "aten.add.Tensor", json!([value("x"), value("nothing")]), "f32", &[2]),
        node("d", "aten.relu.default", json!([value("x")]), "f32", &[3]),
        node("e", "aten.sum.dim_IntList", json!([value("x"), [5]]), "f32", &[]),
        node("f", "aten.view.default", json!([value("x"), "two"]), "f32", &[2]),
        node("x", "aten.relu.default", json!([value("x")]), "f32", &[2]),
    ]);
    let problems = reasons(&document(json!([input("x", "f32", &[2])]), nodes, json!([])));
    let reasons: Vec<&Reason> = problems.iter().map(|(_, reason)| reason).collect();
    let [unknown, dangling, result, axis, argument, duplicate] = reasons[..] else { panic!("{problems:?}") };
    assert_eq!(*unknown, Reason::UnknownTarget);
    assert_eq!(*dangling, Reason::Dangling { value: "nothing".into() });
    assert_eq!(*result, Reason::ResultType { index: 0, given: "f32[3]".into(), expected: "f32[2]".into() });
    assert_eq!(*axis, Reason::Invalid("axis 5 of a tensor with 1 dimensions".into()));
    assert!(matches!(argument, Reason::Argument { argument, .. } if argument == "size"));
    assert_eq!(*duplicate, Reason::Duplicate { name: "x".into() });
    let place = &problems[0].0;
    assert_eq!(place.to_string(), "node `a` (aten.foo.default) at model.py:3: y = f(x)");
}

#[test]
fn sizes_of_parts_are_no_shape() {
    // The anchors of a detector on five scales: as a shape they would hold 4.6 * 2^57 elements.
    let sizes = [43_200, 10_800, 2_700, 675, 192];
    let all = sizes.iter().sum();
    let results = sizes.map(|size| json!({"dtype": "f32", "shape": [size], "strides": [1]}));
    let split = json!({
        "name": "parts", "target": "aten.split_with_sizes.default", "args": [value("x"), sizes, 0], "results": results, "where": "",
    });
    let outputs = [1, 4].map(|index| json!({"value": "parts", "index": index, "strides": [1]}));
    let document = document(json!([input("x", "f32", &[all])]), json!([split]), json!(outputs));
    let x: Vec<f32> = (0..all).map(|at| at as f32).collect();
    let results = run(&document, &[Tensor::from_vec([all], x)]);
    assert_eq!((results[0][0], results[0].len()), (43_200.0, 10_800));
    assert_eq!((results[1][0], results[1].len()), (57_375.0, 192));
}

#[test]
fn other_formats_and_versions_are_refused() {
    let reason = |text: &str| import(text.as_bytes()).expect_err("no document").0[0].reason.clone();
    assert_eq!(reason("{}"), Reason::Format { given: String::new() });
    let newer = "{\"format\": \"orchestrion-aten\", \"version\": 2, \"more\": 1}";
    assert_eq!(reason(newer), Reason::Version { given: 2, known: 1 });
    assert!(matches!(reason("onnx"), Reason::NotADocument { .. }));
}

#[test]
fn unknown_arguments_are_refused() {
    let mut call = node("a", "aten.relu.default", json!([value("x")]), "f32", &[2]);
    call["kwargs"] = json!({"device": null, "slope": 2});
    let problems = reasons(&document(json!([input("x", "f32", &[2])]), json!([call]), json!([])));
    assert!(matches!(&problems[0].1, Reason::Argument { argument, .. } if argument == "slope"));
}

/// Rows of a table by indices, of which eager would refuse some.
fn rows(target: &str, indices: &[i64]) -> (Vec<f64>, bool) {
    let args = match target {
        "aten.index.Tensor" => json!([value("table"), [value("at")]]),
        _ => json!([value("table"), value("at")]),
    };
    let count = indices.len();
    let mut whole = document(
        json!([input("table", "f32", &[3, 1]), input("at", "i64", &[count])]),
        json!([node("y", target, args, "f32", &[count, 1])]),
        json!([{"value": "y", "strides": [1, 1]}]),
    );
    whole["index_check"] = json!("ok");
    let table = Tensor::from_vec([3, 1], vec![10.0f32, 20.0, 30.0]);
    let results = run(&whole, &[table, Tensor::from_vec([count], indices.to_vec())]);
    (results[0].clone(), results[1] == [1.0])
}

#[test]
fn indices_out_of_range_are_told_and_read_nothing_outside() {
    assert_eq!(rows("aten.embedding.default", &[0, 2]), (vec![10.0, 30.0], true));
    assert_eq!(rows("aten.index.Tensor", &[-1, -3]), (vec![30.0, 10.0], true));
    for outside in [[0, 3], [-4, 0], [i64::MAX, i64::MIN]] {
        assert!(!rows("aten.index.Tensor", &outside).1, "{outside:?}");
    }
    // Rows of an embedding have no negative numbers in eager.
    assert!(!rows("aten.embedding.default", &[-1]).1);
    let (read, _) = rows("aten.embedding.default", &[i64::MAX, i64::MIN]);
    assert!(read.iter().all(|value| [10.0, 20.0, 30.0].contains(value)), "{read:?}");
}

#[test]
fn outputs_may_be_inputs_repeated_or_none() {
    let whole = document(
        json!([input("x", "f32", &[2])]),
        json!([node("y", "aten.neg.default", json!([value("x")]), "f32", &[2])]),
        json!([
            {"value": "x", "strides": [1]}, null, {"value": "y", "strides": [1]}, {"value": "y", "strides": [1]},
        ]),
    );
    assert_eq!(imported(&whole).outputs.iter().filter(|output| output.is_none()).count(), 1);
    let results = run(&whole, &[Tensor::from_vec([2], vec![1.0f32, -2.0])]);
    assert_eq!(results, [[1.0, -2.0], [-1.0, 2.0], [-1.0, 2.0]]);
}

#[test]
fn mutations_name_outputs_and_inputs_of_one_type() {
    let whole = |mutation: Value| {
        let mut whole = document(
            json!([input("x", "f32", &[2]), input("z", "f32", &[3])]),
            json!([node("y", "aten.neg.default", json!([value("x")]), "f32", &[2])]),
            json!([{"value": "y", "strides": [1]}]),
        );
        whole["mutations"] = json!([mutation]);
        whole
    };
    assert_eq!(imported(&whole(json!({"output": 0, "input": 0}))).mutations.len(), 1);
    let wrong = reasons(&whole(json!({"output": 0, "input": 1})));
    assert!(matches!(wrong[0].1, Reason::MutationType { .. }));
    let missing = reasons(&whole(json!({"output": 4, "input": 0})));
    assert_eq!(missing[0].1, Reason::NoPosition { what: "output", given: 4, count: 1 });
}

#[test]
fn limits_are_told_from_faults() {
    let of = |nodes: Value| {
        let whole = document(
            json!([input("x", "f32", &[2]), input("m", "bool", &[2]), input("i", "i64", &[2])]),
            nodes,
            json!([]),
        );
        import(whole.to_string().as_bytes()).expect_err("the document is wrong").are_limits()
    };
    let (index, truths) = (value("i"), value("m"));
    let sums = [
        ("aten.index_put.default", json!([truths, [index], truths, true])),
        ("aten.scatter_add.default", json!([truths, 0, index, truths])),
    ];
    for (target, arguments) in sums {
        assert!(of(json!([node("a", target, arguments, "bool", &[2])])), "{target}");
    }
    assert!(of(json!([node(
        "a",
        "aten.embedding_bag.default",
        json!([value("x"), 0.5, true]),
        "f32",
        &[2]
    )])));
    assert!(of(json!([node("a", "aten.index.Tensor", json!([value("x"), [value("m")]]), "f32", &[2])])));
    assert!(!of(json!([node("a", "aten.relu.default", json!([]), "f32", &[2])])));
}
