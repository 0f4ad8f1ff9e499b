//! Imports of well-formed models: operands, order, constants, dimensions, subgraphs.

mod common;

use common::{check, dump, graph, graph_with};
use orch_ir::{Attribute, DType, Tensor};
use orch_onnx::builder::{GraphBuilder, node, tensor_info};
use orch_onnx::{ImportOptions, import};

#[test]
fn a_graph_is_read_as_it_stands() {
    let model = GraphBuilder::new("net")
        .input("x", DType::F32, [1, 3])
        .initializer("w", &Tensor::from_vec([3], vec![1.0f32, 2.0, 3.0]))
        .node(node("Mul", ["x", "w"], ["t"]).name("scale"))
        .node(node("Clip", ["t", "", "w"], ["c", ""]))
        .node(node("Foo", ["c"], ["y"]).domain("my.ops").attr("k", 2).attr("s", "text").attr("f", 0.5))
        .output("y")
        .model(17)
        .opset("my.ops", 3);
    assert_eq!(
        dump(&graph(&model)),
        "graph net(x) -> (y)
  const w = f32[3] [1.0, 2.0, 3.0]
  t = Mul@17(x, w) \"scale\"
  c, _ = Clip@17(t, _, w) \"Clip_1\"
  y = my.ops::Foo@3(c) f=0.5 k=2 s=\"text\" \"Foo_2\"
"
    );
}

#[test]
fn attributes_of_all_kinds_are_read() {
    let tensor = Tensor::scalar(7i64);
    let operator = node("Op", [], ["y"])
        .attr("ints", vec![1i64, -2])
        .attr("floats", vec![0.5f32])
        .attr("strings", vec!["a", "b"])
        .attr("tensor", &tensor);
    let graph = graph(&GraphBuilder::new("g").node(operator).output("y").model(17));
    let attributes = &graph.nodes[0].attributes;
    assert!(matches!(&attributes["ints"], Attribute::Ints(v) if *v == [1, -2]));
    assert!(matches!(&attributes["floats"], Attribute::Floats(v) if *v == [0.5]));
    assert!(matches!(&attributes["strings"], Attribute::Strings(v) if *v == ["a", "b"]));
    assert!(matches!(&attributes["tensor"], Attribute::Tensor(v) if *v == tensor));
}

#[test]
fn attributes_we_do_not_have_pass_through() {
    let mut operator =
        node("Op", [], ["y"]).attr("t", &Tensor::scalar(1.0f32)).attr("s", "x").attr("kind", 0);
    operator.proto.attribute[0].t.as_mut().unwrap().data_type = Some(8);
    operator.proto.attribute[1].s = Some(vec![0xff]);
    operator.proto.attribute[2].r#type = Some(11);
    let graph = graph(&GraphBuilder::new("g").node(operator).output("y").model(17));
    assert!(graph.nodes[0].attributes.values().all(|value| matches!(value, Attribute::Unsupported(_))));
}

#[test]
fn nodes_in_any_order_are_sorted() {
    let model = GraphBuilder::new("g")
        .input("x", DType::F32, [2])
        .node(node("C", ["b", "a"], ["y"]))
        .node(node("B", ["a"], ["b"]))
        .node(node("A", ["x"], ["a"]))
        .output("y")
        .model(17);
    let order: Vec<_> = graph(&model).nodes.into_iter().map(|node| node.op_type).collect();
    assert_eq!(order, ["A", "B", "C"]);
}

#[test]
fn an_initializer_wins_over_the_input_of_its_name() {
    let model = GraphBuilder::new("g")
        .input("x", DType::F32, [2])
        .symbolic_input("w", DType::F32, &["unbound"])
        .initializer("w", &Tensor::from_vec([2], vec![1.0f32, 2.0]))
        .node(node("Add", ["x", "w"], ["y"]))
        .output("y")
        .model(17);
    let graph = graph(&model);
    assert_eq!(graph.inputs.len(), 1);
    assert_eq!(graph.initializers.len(), 1);
}

#[test]
fn constants_that_nothing_reads_are_left_out() {
    let mut model = GraphBuilder::new("g")
        .input("x", DType::F32, [2])
        .initializer("text", &Tensor::scalar(1.0f32))
        .initializer("out", &Tensor::scalar(2.0f32))
        .node(node("Relu", ["x"], ["y"]))
        .output("y")
        .output("out")
        .model(17);
    model.proto.graph.as_mut().unwrap().initializer[0].data_type = Some(8);
    assert_eq!(graph(&model).initializers.len(), 1);
}

#[test]
fn dimensions_are_bound_everywhere() {
    let model = GraphBuilder::new("g")
        .symbolic_input("x", DType::F32, &["n", "?", "4"])
        .node(node("Relu", ["x"], ["t"]))
        .node(node("Relu", ["t"], ["y"]))
        .value_info("t", DType::F16, &["n", "m", "4"])
        .output("y")
        .model(17);
    let graph = graph_with(&model, &ImportOptions::default().dim("n", 2).dim("x.1", 3));
    assert_eq!(graph.values[0].shape, Some(vec![Some(2), Some(3), Some(4)]));
    assert_eq!(graph.values[1].shape, Some(vec![Some(2), None, Some(4)]));
    assert_eq!(graph.values[1].dtype, Some(DType::F16));
    assert_eq!(graph.values[2].shape, None);
}

#[test]
fn symbols_follow_from_input_shapes() {
    let model = GraphBuilder::new("g")
        .symbolic_input("x", DType::F32, &["n", "?"])
        .symbolic_input("z", DType::F32, &["n"])
        .node(node("Op", ["x", "z"], ["y"]))
        .output("y")
        .model(17);
    let mut options = ImportOptions::default();
    options.input_shapes.insert("x".into(), vec![5, 6]);
    let graph = graph_with(&model, &options);
    assert_eq!(graph.values[1].shape, Some(vec![Some(5)]));
}

#[test]
fn binding_a_symbol_of_an_output_is_no_mistake() {
    let mut builder = GraphBuilder::new("g").input("x", DType::F32, [2]).node(node("Op", ["x"], ["y"]));
    builder.proto.output.push(tensor_info("y", DType::F32, &["k"]));
    let graph = graph_with(&builder.model(17), &ImportOptions::default().dim("k", 9));
    assert_eq!(graph.values[1].shape, Some(vec![Some(9)]));
}

#[test]
fn weights_share_the_memory_of_the_file() {
    let weights = Tensor::from_vec([1000], vec![1.0f32; 1000]);
    let bytes = GraphBuilder::new("g").initializer("w", &weights).output("w").model(17).encode();
    let graph = import(bytes.clone(), &ImportOptions::default()).unwrap().graph;
    let read = graph.initializers.values().next().unwrap();
    assert_eq!(read, &weights);
    assert!(bytes.as_ptr_range().contains(&read.bytes().as_ptr()));
}

#[test]
fn subgraphs_capture_what_they_read_outside() {
    let inner = GraphBuilder::new("inner").node(node("Add", ["a", "s"], ["r"])).output("r");
    let body = GraphBuilder::new("body")
        .untyped_input("i")
        .untyped_input("c")
        .untyped_input("s")
        .node(node("If", ["c"], ["o"]).attr("then_branch", inner.clone()).attr("else_branch", inner))
        .output("c")
        .output("o");
    let model = GraphBuilder::new("g")
        .input("n", DType::I64, [])
        .node(node("Loop", ["n", "", "n"], ["y"]).attr("body", body))
        .node(node("Neg", ["n"], ["a"]))
        .output("y")
        .model(17);
    assert_eq!(
        dump(&graph(&model)),
        "graph g(n) -> (y)
  a = Neg@17(n) \"Neg_1\"
  y = Loop@17(n, _, n) body=graph \"Loop_0\"
    graph body(i, c, s) -> (c, o)
      capture a = a
      o = If@17(c) else_branch=graph then_branch=graph \"If_0\"
        graph inner() -> (r)
          capture a = a
          capture s = s
          r = Add@17(a, s) \"Add_0\"
        graph inner() -> (r)
          capture a = a
          capture s = s
          r = Add@17(a, s) \"Add_0\"
"
    );
}

#[test]
fn a_subgraph_may_hand_out_an_outer_value_and_hide_a_name() {
    let then_branch = GraphBuilder::new("then").output("x");
    let else_branch = GraphBuilder::new("else").initializer("x", &Tensor::scalar(1.0f32)).output("x");
    let model = GraphBuilder::new("g")
        .input("c", DType::Bool, [])
        .input("x", DType::F32, [])
        .node(node("If", ["c"], ["y"]).attr("then_branch", then_branch).attr("else_branch", else_branch))
        .output("y")
        .model(17);
    assert_eq!(
        dump(&graph(&model)),
        "graph g(c, x) -> (y)
  y = If@17(c) else_branch=graph then_branch=graph \"If_0\"
    graph else() -> (x)
      const x = f32[] [1.0]
    graph then() -> (x)
      capture x = x
"
    );
}

#[test]
fn old_broadcasting_becomes_unsqueeze() {
    let model = GraphBuilder::new("g")
        .input("x", DType::F32, [2, 3, 4])
        .initializer("b", &Tensor::from_vec([3], vec![1.0f32; 3]))
        .node(node("Add", ["x", "b"], ["y"]).attr("broadcast", 1).attr("axis", 1))
        .output("y")
        .model(6);
    assert_eq!(
        dump(&graph(&model)),
        "graph g(x) -> (y)
  const b = f32[3] [1.0, 1.0, 1.0]
  b_unsqueezed = Unsqueeze@7(b) axes=Ints([1]) \"Add_0/Unsqueeze\"
  y = Add@7(x, b_unsqueezed) \"Add_0\"
"
    );
}

#[test]
fn a_model_over_two_gibibytes_is_read() {
    const ELEMS: u64 = (1 << 29) + 64;
    let graph = GraphBuilder::new("g").output("w").model(17);
    let mut tensor = field_varint(1, ELEMS);
    tensor.extend(field_varint(2, 1));
    tensor.extend(field_header(8, 1));
    tensor.push(b'w');
    tensor.extend(field_header(9, ELEMS * 4));
    let mut body = prost::Message::encode_to_vec(graph.proto.graph.as_ref().unwrap());
    body.extend(field_header(5, tensor.len() as u64 + ELEMS * 4));
    body.extend(tensor);
    let mut header = graph;
    header.proto.graph = None;
    let mut head = prost::Message::encode_to_vec(&header.proto);
    head.extend(field_header(7, body.len() as u64 + ELEMS * 4));
    head.extend(body);
    // Zeroed memory of this size is not backed by pages until it is touched, and the import does not touch it.
    let mut file = vec![0u8; head.len() + ELEMS as usize * 4];
    file[..head.len()].copy_from_slice(&head);
    let graph = import(file.into(), &ImportOptions::default()).unwrap().graph;
    check(&graph);
    assert_eq!(graph.initializers.values().next().unwrap().shape().elems() as u64, ELEMS);
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A protobuf field with a number.
fn field_varint(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// The start of a protobuf field of so many bytes.
fn field_header(field: u64, bytes: u64) -> Vec<u8> {
    [varint(field << 3 | 2), varint(bytes)].concat()
}
