//! Tensors of types that nothing computes in: moved as codes, computed with as numbers.

use orch_fission::{FissionOptions, fission};
use orch_interp::{EvalOptions, evaluate};
use orch_ir::{Attribute, DType, Encoding, OperatorGraph, OperatorNode, Tensor, Value, ValueId};

/// `operators` one after the other on an encoded tensor `[2, 2]`, each with these attributes.
fn chain(encoding: Encoding, operators: &[(&str, &[(&str, i64)])]) -> OperatorGraph {
    let mut graph = OperatorGraph::default();
    let mut last = graph.add_value(Value {
        name: "x".to_owned(),
        dtype: Some(encoding.carrier()),
        encoding: Some(encoding),
        shape: Some(vec![Some(2), Some(2)]),
    });
    graph.inputs = vec![last];
    for (op_type, attributes) in operators {
        let result = graph.add_value(Value { name: format!("y{}", graph.values.len()), ..Value::default() });
        let attributes =
            attributes.iter().map(|&(name, value)| (name.to_owned(), Attribute::Int(value))).collect();
        graph.nodes.push(OperatorNode {
            name: op_type.to_lowercase(),
            domain: String::new(),
            op_type: (*op_type).to_owned(),
            opset: 25,
            inputs: vec![Some(last)],
            outputs: vec![Some(result)],
            attributes,
        });
        last = result;
    }
    graph.outputs = vec![last];
    graph
}

fn run(graph: &OperatorGraph, codes: Tensor) -> Tensor {
    let graph = fission(graph, &FissionOptions::default()).unwrap_or_else(|errors| panic!("{errors}"));
    evaluate(&graph, &[codes], &EvalOptions::default()).unwrap_or_else(|error| panic!("{error}")).remove(0)
}

const F32: i64 = 1;
const F8E5M2: i64 = 19;

#[test]
fn codes_move_and_become_numbers() {
    let codes = Tensor::from_vec([2, 2], vec![0x38u8, 0xb8, 0x7e, 0x01]);
    let numbers =
        run(&chain(Encoding::F8E4M3Fn, &[("Transpose", &[]), ("Cast", &[("to", F32)])]), codes.clone());
    assert_eq!(numbers.to_f64(), [1.0, 448.0, -1.0, 2f64.powi(-9)]);
    let moved = run(&chain(Encoding::F8E4M3Fn, &[("Transpose", &[])]), codes.clone());
    assert_eq!(moved, Tensor::from_vec([2, 2], vec![0x38u8, 0x7e, 0xb8, 0x01]));
    let other = run(&chain(Encoding::F8E4M3Fn, &[("Cast", &[("to", F8E5M2)])]), codes);
    assert_eq!(other, Tensor::from_vec([2, 2], vec![0x3cu8, 0xbc, 0x5f, 0x18]));
}

#[test]
fn integers_are_their_codes() {
    let codes = Tensor::from_vec([2, 2], vec![-8i8, 7, 0, -1]);
    let numbers = run(&chain(Encoding::I4, &[("Cast", &[("to", F32)])]), codes.clone());
    assert_eq!(numbers.to_f64(), [-8.0, 7.0, 0.0, -1.0]);
    let shape = run(&chain(Encoding::I4, &[("Shape", &[])]), codes);
    assert_eq!((shape.dtype(), shape.to_f64()), (DType::I64, vec![2.0, 2.0]));
}

#[test]
fn nothing_computes_on_codes() {
    let graph = chain(Encoding::U4, &[("Neg", &[])]);
    let error = fission(&graph, &FissionOptions::default()).expect_err("refused").to_string();
    assert_eq!(error, "neg (Neg): not supported: operand 0 of type uint4; convert it to another type before");
    assert_eq!(graph.outputs, [ValueId(1)]);
}
