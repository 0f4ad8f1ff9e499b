//! Models that are malformed, unsupported or incomplete: each problem is named, all at once.

mod common;

use bytes::Bytes;
use common::{errors, problems};
use orch_ir::{DType, Tensor};
use orch_onnx::builder::{GraphBuilder, ModelBuilder, node, tensor_info};
use orch_onnx::proto::type_proto::{Map, Sequence, Value as TypeValue};
use orch_onnx::proto::{SparseTensorProto, TensorProto, TypeProto};
use orch_onnx::{ImportOptions, ProblemClass, import};

fn relu(input: &str, output: &str) -> orch_onnx::builder::NodeBuilder {
    node("Relu", [input], [output])
}

/// A model that is fine: `y = Relu(x)`.
fn good() -> ModelBuilder {
    GraphBuilder::new("g").input("x", DType::F32, [2]).node(relu("x", "y")).output("y").model(17)
}

/// The only problem of a file, as its code.
fn file_problem(bytes: impl Into<Bytes>) -> String {
    let errors = import(bytes.into(), &ImportOptions::default()).unwrap_err();
    assert_eq!(errors.0.len(), 1, "{errors}");
    errors.to_string()
}

#[test]
fn files_of_other_kinds_are_recognised() {
    assert!(file_problem(&b""[..]).contains("the file is empty"));
    assert!(file_problem(&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..]).contains("looks like a PNG image"));
    assert!(file_problem(&b"hello, this is a readme\n"[..]).contains("looks like text"));
    assert!(file_problem(&b"version https://git-lfs.github.com/spec/v1\noid"[..]).contains("git lfs pull"));
    assert!(file_problem(vec![0; 100]).contains("protobuf data is broken"));
    let tensor = orch_onnx::encode_tensor("t", &Tensor::scalar(1.0f32));
    assert!(import(tensor.into(), &ImportOptions::default()).is_err());
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = good().encode();
    for length in 0..bytes.len() {
        assert!(import(bytes.slice(..length), &ImportOptions::default()).is_err(), "{length} bytes");
    }
    assert!(file_problem(bytes.slice(..bytes.len() - 8)).contains("broken or cut off"));
}

#[test]
fn versions_are_checked() {
    let mut model = good();
    model.proto.ir_version = Some(99);
    model.proto.opset_import[0].version = Some(99);
    assert_eq!(
        problems(&model),
        [
            "model: IR version 99 is given, 3 to 14 are known",
            "model: operator set version 99 is given, 1 to 28 are supported",
        ]
    );
    let mut model = good();
    model.proto.opset_import.clear();
    assert_eq!(
        problems(&model),
        ["node `Relu_0` (Relu): operator set `ai.onnx` has no version; \
          an opset_import entry is expected for each set in use"]
    );
}

#[test]
fn open_dimensions_name_the_flag() {
    let model = GraphBuilder::new("g")
        .symbolic_input("x", DType::F32, &["batch", "3", "?"])
        .symbolic_input("z", DType::F32, &["-1"])
        .node(node("Add", ["x", "z"], ["y"]))
        .output("y")
        .model(17);
    assert_eq!(
        problems(&model),
        [
            "input `x`: dimension 0 is the symbol `batch`; a size is expected: bind it with --dim batch=N",
            "input `x`: dimension 2 has no size; one is expected: bind it with --dim x.2=N",
            "input `z`: dimension 0 is -1; a size of 0 or more is expected",
        ]
    );
}

#[test]
fn bindings_that_meet_nothing_are_reported() {
    let mut options = ImportOptions::default().dim("bach", 2);
    options.input_shapes.insert("w".into(), vec![1]);
    options.input_shapes.insert("x".into(), vec![3]);
    let model = good();
    assert_eq!(
        common::messages(&errors(&model, &options)),
        [
            "input `x`: the shape [3] is given, which does not fit the declared [2]",
            "options: --dim bach binds nothing; the model has no dimension to bind",
            "options: a shape is given for the input `w`; the model has x",
        ]
    );
}

#[test]
fn inputs_have_to_be_tensors_of_known_types() {
    let map = TypeProto { denotation: None, value: Some(TypeValue::MapType(Map::default().into())) };
    let mut builder = GraphBuilder::new("g")
        .untyped_input("untyped")
        .input("map", DType::F32, [1])
        .input("text", DType::F32, [1])
        .input("shapeless", DType::F32, [1])
        .input("huge", DType::F32, [1 << 31, 1 << 31])
        .node(node("Op", ["untyped", "map", "text", "shapeless", "huge"], ["y"]))
        .output("y");
    builder.proto.input[1].r#type = Some(map);
    let tensor = |builder: &mut GraphBuilder,
                  index: usize,
                  change: &dyn Fn(&mut orch_onnx::proto::type_proto::Tensor)| {
        if let Some(TypeValue::TensorType(tensor)) =
            builder.proto.input[index].r#type.as_mut().and_then(|t| t.value.as_mut())
        {
            change(tensor);
        }
    };
    tensor(&mut builder, 2, &|tensor| tensor.elem_type = Some(8));
    tensor(&mut builder, 3, &|tensor| tensor.shape = None);
    let errors = errors(&builder.model(17), &ImportOptions::default());
    let codes: Vec<_> = errors.0.iter().map(|problem| (problem.code(), problem.class())).collect();
    assert_eq!(
        codes,
        [
            ("no-type", ProblemClass::Malformed),
            ("not-a-tensor", ProblemClass::Unsupported),
            ("element-type", ProblemClass::Unsupported),
            ("no-shape", ProblemClass::Request),
            ("too-large", ProblemClass::Malformed),
        ]
    );
}

#[test]
fn outputs_have_to_be_tensors_of_known_types() {
    let mut builder = GraphBuilder::new("g").input("x", DType::F32, [2]).node(relu("x", "y"));
    let mut info = tensor_info("y", DType::F32, &[]);
    info.r#type.as_mut().unwrap().value = Some(TypeValue::MapType(Map::default().into()));
    builder.proto.output.push(info);
    assert_eq!(problems(&builder.model(17)), ["output `y`: a map is given; tensors are supported"]);
}

#[test]
fn sequences_pass_without_a_type() {
    let mut builder = GraphBuilder::new("g").input("x", DType::F32, [2]).node(node("Identity", ["x"], ["y"]));
    let sequence = || Some(TypeValue::SequenceType(Sequence::default().into()));
    builder.proto.input[0].r#type = Some(TypeProto { denotation: None, value: sequence() });
    let mut info = tensor_info("y", DType::F32, &[]);
    info.r#type = Some(TypeProto { denotation: None, value: sequence() });
    builder.proto.output.push(info);
    let graph = import(builder.model(17).encode(), &ImportOptions::default()).expect("a model").graph;
    let x = graph.value(graph.inputs[0]);
    assert_eq!((x.dtype, &x.shape), (None, &None));
}

#[test]
fn names_are_checked() {
    let model = GraphBuilder::new("g")
        .input("x", DType::F32, [2])
        .input("x", DType::F32, [2])
        .initializer("w", &Tensor::scalar(1.0f32))
        .initializer("w", &Tensor::scalar(1.0f32))
        .node(relu("x", "w"))
        .node(relu("x", "a").name("first"))
        .node(relu("lost", "a").name("second"))
        .node(relu("lost", "b"))
        .node(node("", ["x"], ["c"]))
        .output("gone")
        .output("")
        .model(17);
    assert_eq!(
        problems(&model),
        [
            "graph `g`: the graph input `x` is declared twice; names are to be unique",
            "graph `g`: the initializer `w` is declared twice; names are to be unique",
            "node `Relu_0` (Relu): `w` is an output here, but it already is an input, an initializer or another output",
            "node `second` (Relu): `a` is an output here, but it already is an input, an initializer or another output",
            "node `second` (Relu): `lost` is read, but nothing produces it",
            "node `_4` (): an operator without a name; a name is expected",
            "output `gone`: `gone` is read, but nothing produces it",
            "output ``: a graph output without a name; a name is expected",
        ]
    );
}

#[test]
fn cycles_name_their_nodes() {
    let model = GraphBuilder::new("g")
        .input("x", DType::F32, [2])
        .node(node("Add", ["x", "c"], ["a"]).name("one"))
        .node(relu("a", "b").name("two"))
        .node(relu("b", "c").name("three"))
        .node(relu("b", "y").name("after"))
        .output("y")
        .model(17);
    assert_eq!(
        problems(&model),
        ["graph `g`: these nodes wait for each other's outputs: one -> two -> three"]
    );
    let body = GraphBuilder::new("body").node(relu("y", "r")).output("r");
    let through_body = GraphBuilder::new("g")
        .input("c", DType::Bool, [])
        .node(node("If", ["c"], ["y"]).attr("then_branch", body))
        .output("y")
        .model(17);
    assert_eq!(problems(&through_body), ["graph `g`: these nodes wait for each other's outputs: If_0"]);
}

#[test]
fn constants_are_checked_where_they_are_read() {
    let mut builder = GraphBuilder::new("g")
        .initializer("text", &Tensor::scalar(1.0f32))
        .initializer("short", &Tensor::scalar(1.0f32))
        .node(node("Op", ["text", "short", "sparse"], ["y"]))
        .output("y");
    builder.proto.initializer[0].data_type = Some(8);
    builder.proto.initializer[1].dims = vec![3];
    let values = TensorProto { name: Some("sparse".into()), ..TensorProto::default() };
    builder.proto.sparse_initializer.push(SparseTensorProto { values: Some(values), ..Default::default() });
    assert_eq!(
        problems(&builder.model(17)),
        [
            "initializer `text`: elements of type string are not supported; \
             bool and the numeric types up to 64 bits are",
            "initializer `short`: 4 bytes are given, type and shape take 12",
            "initializer `sparse`: a sparse tensor is given; dense ones are supported",
        ]
    );
}

#[test]
fn attributes_are_checked() {
    let mut operator = node("Op", [], ["y"])
        .attr("kind", 1)
        .attr("nothing", 1)
        .attr("tensor", 1)
        .attr("twice", 1)
        .attr("twice", 2)
        .attr("", 1)
        .attr("bad", &Tensor::scalar(1.0f32));
    operator.proto.attribute[0].r#type = Some(77);
    operator.proto.attribute[1].r#type = None;
    operator.proto.attribute[1].i = None;
    operator.proto.attribute[2].r#type = Some(4);
    operator.proto.attribute[6].t.as_mut().unwrap().dims = vec![-5];
    let model = GraphBuilder::new("g").node(operator).output("y").model(17);
    let expected = [
        "attribute `kind` is of kind 77; kinds 1 to 14 are expected",
        "attribute `nothing` has no value, though it claims to hold one",
        "attribute `tensor` has no tensor, though it claims to hold one",
        "the attribute `twice` is declared twice; names are to be unique",
        "an attribute without a name; a name is expected",
        "attribute `bad`: dimension 0 is -5; a size of 0 or more is expected",
    ];
    assert_eq!(problems(&model), expected.map(|text| format!("node `Op_0` (Op): {text}")));
}

#[test]
fn deep_nesting_is_an_error() {
    let mut body = GraphBuilder::new("leaf").input("x", DType::F32, [1]).output("x");
    for _ in 0..60 {
        body = GraphBuilder::new("level").node(node("If", [], ["y"]).attr("then_branch", body)).output("y");
    }
    let text = file_problem(body.model(17).encode());
    assert!(text.contains("recursion limit reached"), "{text}");
}

#[test]
fn nesting_that_protobuf_allows_is_read() {
    let mut body = GraphBuilder::new("leaf").output("x");
    for _ in 0..30 {
        body = GraphBuilder::new("level").node(node("If", [], ["y"]).attr("then_branch", body)).output("y");
    }
    let mut model = body.model(17);
    model.proto.graph.as_mut().unwrap().input.push(tensor_info("x", DType::F32, &["1"]));
    common::graph(&model);
}

#[test]
fn old_forms_are_refused_by_name() {
    let model = GraphBuilder::new("g")
        .input("x", DType::F32, [2])
        .node(node("Reshape", ["x"], ["y"]).attr("shape", vec![2i64]))
        .output("y")
        .model(4);
    assert_eq!(
        problems(&model),
        ["node `Reshape_0` (Reshape): the form of operator set version 4 has no counterpart in version 7"]
    );
}
