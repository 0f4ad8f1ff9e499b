//! Sequences are lists of tensors while compiling; as inputs and outputs they are one tensor per element.

use orch_fission::{Collection, FissionOptions, fission};
use orch_interp::{EvalOptions, evaluate};
use orch_ir::{Attribute, DType, OperatorGraph, OperatorNode, Tensor, Value, ValueId};

/// An operator: its name, the names it reads, its attributes.
type Step<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, Attribute)]);

/// A chain of operators: each reads the names given and writes its own name.
fn chain(inputs: &[&str], operators: &[Step<'_>], output: &str) -> OperatorGraph {
    let mut graph = OperatorGraph::default();
    let mut names: Vec<String> = Vec::new();
    let mut value = |graph: &mut OperatorGraph, name: &str| match names.iter().position(|known| known == name)
    {
        Some(position) => ValueId::new(position),
        None => {
            names.push(name.to_owned());
            graph.add_value(Value { name: name.to_owned(), ..Value::default() })
        }
    };
    graph.inputs = inputs.iter().map(|name| value(&mut graph, name)).collect();
    for (op_type, operands, attributes) in operators {
        let node = OperatorNode {
            name: op_type.to_lowercase(),
            domain: String::new(),
            op_type: (*op_type).to_owned(),
            opset: 18,
            inputs: operands.iter().map(|name| Some(value(&mut graph, name))).collect(),
            outputs: vec![Some(value(&mut graph, op_type))],
            attributes: attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        };
        graph.nodes.push(node);
    }
    graph.outputs = vec![value(&mut graph, output)];
    graph
}

fn sequence(lengths: &[usize]) -> FissionOptions {
    let elements = lengths.iter().map(|&length| (DType::F32, [length].into())).collect();
    let collections = [("s".to_owned(), Collection::Sequence(elements))].into();
    FissionOptions { collections, ..FissionOptions::default() }
}

#[test]
fn elements_are_inputs_and_outputs_of_their_own() {
    let position = Attribute::Int(-1);
    let operators: &[Step<'_>] = &[
        ("Constant", &[], &[("value_int", position)]),
        ("SequenceAt", &["s", "Constant"], &[]),
        ("SequenceInsert", &["s", "SequenceAt", "Constant"], &[]),
    ];
    let graph = fission(&chain(&["s"], operators, "SequenceInsert"), &sequence(&[1, 2])).expect("valid");
    let names: Vec<&str> = graph.inputs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["s[0]", "s[1]"]);
    let inputs = [Tensor::from_vec([1], vec![1.0f32]), Tensor::from_vec([2], vec![2.0f32, 3.0])];
    let results = evaluate(&graph, &inputs, &EvalOptions::default()).expect("runs");
    let results: Vec<Vec<f64>> = results.iter().map(Tensor::to_f64).collect();
    assert_eq!(results, [vec![1.0], vec![2.0, 3.0], vec![2.0, 3.0]]);
}

#[test]
fn split_and_join_are_inverse() {
    let operators: &[Step<'_>] = &[
        ("ConcatFromSequence", &["s"], &[("axis", Attribute::Int(0))]),
        ("SplitToSequence", &["ConcatFromSequence"], &[("keepdims", Attribute::Int(0))]),
        ("SequenceLength", &["SplitToSequence"], &[]),
    ];
    let graph = fission(&chain(&["s"], operators, "SequenceLength"), &sequence(&[3, 0, 2])).expect("valid");
    let inputs = [3usize, 0, 2].map(|length| Tensor::zeros(DType::F32, [length]));
    let results = evaluate(&graph, &inputs, &EvalOptions::default()).expect("runs");
    assert_eq!(results[0].to_f64(), [5.0]);
}

#[test]
fn an_input_of_unknown_length_is_refused() {
    let graph = chain(&["s"], &[("SequenceLength", &["s"], &[])], "SequenceLength");
    let error = fission(&graph, &FissionOptions::default()).expect_err("unknown").to_string();
    assert!(error.contains("input s: not supported"), "{error}");
    let operators: &[Step<'_>] = &[("Neg", &["s"], &[])];
    let error =
        fission(&chain(&["s"], operators, "Neg"), &sequence(&[1])).expect_err("no tensor").to_string();
    assert!(error.contains("operand 0 is a sequence"), "{error}");
}

#[test]
fn optionals_hold_something_or_nothing() {
    for (held, expected) in [(Collection::Absent, 0.0), (Collection::Tensor(DType::F32, [2].into()), 1.0)] {
        let options =
            FissionOptions { collections: [("s".to_owned(), held)].into(), ..FissionOptions::default() };
        let graph = chain(&["s"], &[("OptionalHasElement", &["s"], &[])], "OptionalHasElement");
        let graph = fission(&graph, &options).expect("valid");
        let inputs: Vec<Tensor> = graph.inputs.iter().map(|_| Tensor::zeros(DType::F32, [2])).collect();
        let results = evaluate(&graph, &inputs, &EvalOptions::default()).expect("runs");
        assert_eq!(results[0].to_f64(), [expected]);
    }
}
