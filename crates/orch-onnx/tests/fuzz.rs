//! No input panics, and whatever is accepted keeps the promises of an operator graph.
//!
//! Two sources of bad models: bytes of good models that are changed, and well-formed messages that are nonsense
//! (names drawn from a small set, so that duplicates, cycles, dangling names, recursion and shadowing are common).

mod common;

use common::check;
use orch_ir::{DType, Tensor};
use orch_onnx::builder::{FunctionBuilder, GraphBuilder, ModelBuilder, node, tensor_info};
use orch_onnx::proto::attribute_proto::AttributeType;
use orch_onnx::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto, ValueInfoProto};
use orch_onnx::{ImportOptions, decode_tensor, import};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Imports bytes and checks the result, if there is one.
fn exercise(bytes: Vec<u8>) -> bool {
    let options = ImportOptions::default();
    match import(bytes.into(), &options) {
        Ok(import) => {
            check(&import.graph);
            true
        }
        Err(errors) => {
            assert!(!errors.0.is_empty());
            assert!(!errors.to_string().is_empty());
            false
        }
    }
}

/// A good model with something of everything.
fn seed() -> ModelBuilder {
    let weights = Tensor::from_vec([2, 3], vec![0.5f32; 6]);
    let then_branch = GraphBuilder::new("then").node(node("Neg", ["t"], ["r"])).output("r");
    let else_branch = GraphBuilder::new("else").initializer("k", &weights).output("k");
    let function = FunctionBuilder::new("local", "f", 17)
        .signature(["a", "b"], ["c"])
        .default_attribute("alpha", 0.5)
        .node(node("Add", ["a", "b"], ["s"]))
        .node(node("LeakyRelu", ["s"], ["c"]).attr_ref("alpha", "alpha", AttributeType::Float));
    GraphBuilder::new("seed")
        .input("x", DType::F32, [2, 3])
        .input("p", DType::Bool, [])
        .initializer("w", &weights)
        .initializer("i", &Tensor::from_vec([3], vec![1i64, -1, 7]))
        .node(node("f", ["x", "w"], ["t"]).domain("local").name("call").attr("alpha", 0.25))
        .node(node("If", ["p"], ["u"]).attr("then_branch", then_branch).attr("else_branch", else_branch))
        .node(node("Op", ["u", "", "i"], ["y"]).attr("axes", vec![0i64, 1]).attr("mode", "linear"))
        .value_info("t", DType::F32, &["2", "n"])
        .output("y")
        .model(17)
        .opset("local", 1)
        .function(function)
}

/// A change of bytes; positions are taken modulo the length.
#[derive(Clone, Debug)]
enum Change {
    Flip { at: usize, bit: u8 },
    Set { at: usize, byte: u8 },
    Truncate { at: usize },
    Copy { from: usize, to: usize, length: usize },
    Remove { at: usize, length: usize },
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<usize>;
    prop_oneof![
        8 => (at(), 0..8u8).prop_map(|(at, bit)| Change::Flip { at, bit }),
        8 => (at(), any::<u8>()).prop_map(|(at, byte)| Change::Set { at, byte }),
        1 => at().prop_map(|at| Change::Truncate { at }),
        1 => (at(), at(), 1..64usize).prop_map(|(from, to, length)| Change::Copy { from, to, length }),
        1 => (at(), 1..64usize).prop_map(|(at, length)| Change::Remove { at, length }),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    if bytes.is_empty() {
        return;
    }
    let size = bytes.len();
    match *change {
        Change::Flip { at, bit } => bytes[at % size] ^= 1 << bit,
        Change::Set { at, byte } => bytes[at % size] = byte,
        Change::Truncate { at } => bytes.truncate(at % size),
        Change::Copy { from, to, length } => {
            let (from, to) = (from % size, to % size);
            let part = bytes[from..size.min(from + length)].to_vec();
            bytes.splice(to..to, part);
        }
        Change::Remove { at, length } => {
            bytes.drain(at % size..size.min(at % size + length));
        }
    }
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![1 => Just(""), 20 => select(&["a", "b", "c", "d", "e", "x"][..])].prop_map(str::to_owned)
}

fn nonsense_attribute(depth: u32) -> BoxedStrategy<AttributeProto> {
    let plain = prop_oneof![
        any::<i64>().prop_map(AttributeProto::from),
        vec(any::<i64>(), 0..3).prop_map(AttributeProto::from),
        nonsense_tensor().prop_map(|t| AttributeProto {
            t: Some(t),
            r#type: Some(AttributeType::Tensor as i32),
            ..Default::default()
        }),
        (name(), -1..16).prop_map(|(reference, kind)| AttributeProto {
            ref_attr_name: Some(reference),
            r#type: Some(kind),
            ..Default::default()
        }),
    ];
    let value = if depth == 0 {
        plain.boxed()
    } else {
        let graph = nonsense_graph(depth - 1).prop_map(|g| AttributeProto {
            g: Some(g),
            r#type: Some(AttributeType::Graph as i32),
            ..Default::default()
        });
        prop_oneof![plain, graph].boxed()
    };
    (name(), value).prop_map(|(name, value)| AttributeProto { name: Some(name), ..value }).boxed()
}

fn nonsense_tensor() -> impl Strategy<Value = TensorProto> {
    (
        name(),
        vec(-1..4i64, 0..2),
        prop_oneof![Just(1), -1..30],
        vec(any::<i32>(), 0..4),
        vec(any::<u8>(), 0..9),
        any::<bool>(),
    )
        .prop_map(|(name, dims, data_type, int32_data, raw, external)| TensorProto {
            name: Some(name),
            dims,
            data_type: Some(data_type),
            int32_data,
            raw_data: Some(raw.into()),
            data_location: external.then_some(1),
            ..Default::default()
        })
}

fn nonsense_node(depth: u32) -> impl Strategy<Value = NodeProto> {
    let op_type = prop_oneof![1 => Just(""), 20 => select(&["Op", "If", "f", "h", "Add", "PRelu"][..])];
    (op_type, vec(name(), 0..3), vec(name(), 0..2), vec(nonsense_attribute(depth), 0..2), any::<bool>())
        .prop_map(|(op_type, input, output, attribute, local)| NodeProto {
            op_type: Some(op_type.to_owned()),
            domain: Some(if local { "local" } else { "" }.to_owned()),
            input,
            output,
            attribute,
            ..Default::default()
        })
}

fn nonsense_graph(depth: u32) -> impl Strategy<Value = GraphProto> {
    let info = || {
        (name(), -1..30).prop_map(|(name, size)| match size {
            0 => ValueInfoProto { name: Some(name), ..Default::default() },
            _ => tensor_info(&name, DType::F32, &[&size.to_string()]),
        })
    };
    (vec(nonsense_node(depth), 0..4), vec(info(), 0..2), vec(info(), 0..2), vec(nonsense_tensor(), 0..2))
        .prop_map(|(node, input, output, initializer)| GraphProto {
            node,
            input,
            output,
            initializer,
            ..Default::default()
        })
}

fn nonsense_function(function: &'static str) -> impl Strategy<Value = FunctionProto> {
    (vec(nonsense_node(1), 0..4), vec(name(), 0..3), vec(name(), 0..3), vec(nonsense_attribute(1), 0..2))
        .prop_map(move |(node, input, output, attribute_proto)| {
            let empty = FunctionBuilder::new("local", function, 17).proto;
            FunctionProto { node, input, output, attribute_proto, ..empty }
        })
}

fn nonsense_model() -> impl Strategy<Value = ModelBuilder> {
    let parts = (nonsense_graph(2), nonsense_function("f"), nonsense_function("h"), select(&[6i64, 17][..]));
    parts.prop_map(|(graph, f, h, opset)| {
        let main = GraphBuilder { proto: graph }.input("x", DType::F32, [2]);
        let mut model = main.model(opset).opset("local", 1);
        model.proto.functions = vec![f, h];
        model
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_models_do_not_panic(changes in vec(change(), 1..4)) {
        let mut bytes = seed().encode().to_vec();
        changes.iter().for_each(|change| apply(&mut bytes, change));
        exercise(bytes);
    }

    #[test]
    fn random_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..200)) {
        exercise(bytes.clone());
        let _ = decode_tensor(bytes.into());
    }

    #[test]
    fn changed_tensors_do_not_panic(changes in vec(change(), 1..6), dtype in select(&DType::ALL[..])) {
        let mut bytes = orch_onnx::encode_tensor("t", &Tensor::zeros(dtype, [3, 5]));
        changes.iter().for_each(|change| apply(&mut bytes, change));
        if let Ok(tensor) = decode_tensor(bytes.into()) {
            prop_assert_eq!(tensor.bytes().len(), tensor.shape().elems() * tensor.dtype().size_bytes());
        }
    }

    #[test]
    fn nonsense_does_not_panic(model in nonsense_model()) {
        exercise(model.encode().to_vec());
    }
}

#[test]
fn the_seed_is_a_good_model() {
    assert!(exercise(seed().encode().to_vec()));
}
