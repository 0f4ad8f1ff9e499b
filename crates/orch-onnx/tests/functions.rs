//! Model-local functions are inlined.

mod common;

use common::{dump, graph, problems};
use orch_ir::DType;
use orch_onnx::builder::{FunctionBuilder, GraphBuilder, ModelBuilder, node};
use orch_onnx::proto::attribute_proto::AttributeType;

/// A model that calls `f(x)` of the domain `local`.
fn calling(functions: Vec<FunctionBuilder>) -> ModelBuilder {
    let model = GraphBuilder::new("g")
        .input("x", DType::F32, [2])
        .node(node("f", ["x"], ["y"]).domain("local").name("call"))
        .output("y")
        .model(17)
        .opset("local", 1);
    functions.into_iter().fold(model, ModelBuilder::function)
}

fn function(name: &str) -> FunctionBuilder {
    let mut function = FunctionBuilder::new("local", name, 17).signature(["a"], ["b"]);
    function.proto.opset_import.push(calling(vec![]).proto.opset_import[1].clone());
    function
}

#[test]
fn calls_nest_and_keep_their_operator_sets() {
    let outer = function("f")
        .node(node("f2", ["a"], ["t"]).domain("local"))
        .node(node("Exp", ["t"], ["b"]).name("exp"));
    let inner = FunctionBuilder::new("local", "f2", 13)
        .signature(["a"], ["b"])
        .node(node("Relu", ["a"], ["t"]))
        .node(node("Neg", ["t"], ["b"]));
    assert_eq!(
        dump(&graph(&calling(vec![outer, inner]))),
        "graph g(x) -> (y)
  call/f2_0/t = Relu@13(x) \"call/f2_0/Relu_0\"
  call/t = Neg@13(call/f2_0/t) \"call/f2_0/Neg_1\"
  y = Exp@17(call/t) \"call/exp\"
"
    );
}

#[test]
fn attributes_are_passed_defaulted_and_left_out() {
    let scaled = FunctionBuilder::new("local", "f", 17)
        .signature(["a"], ["b"])
        .attribute("beta")
        .attribute("gamma")
        .default_attribute("alpha", 0.5)
        .node(
            node("Op", ["a"], ["b"])
                .attr_ref("x", "alpha", AttributeType::Float)
                .attr_ref("y", "beta", AttributeType::Float)
                .attr_ref("z", "gamma", AttributeType::Float),
        );
    let wrapper = FunctionBuilder::new("local", "w", 17)
        .signature(["a"], ["b"])
        .attribute("own")
        .node(node("f", ["a"], ["b"]).domain("local").attr_ref("beta", "own", AttributeType::Float));
    let mut wrapper = wrapper;
    wrapper.proto.opset_import.push(calling(vec![]).proto.opset_import[1].clone());
    let model = GraphBuilder::new("g")
        .input("x", DType::F32, [2])
        .node(node("f", ["x"], ["p"]).domain("local").attr("alpha", 2.0))
        .node(node("w", ["x"], ["q"]).domain("local").attr("own", 3.0))
        .output("p")
        .output("q")
        .model(17)
        .opset("local", 1)
        .function(scaled)
        .function(wrapper);
    assert_eq!(
        dump(&graph(&model)),
        "graph g(x) -> (p, q)
  p = Op@17(x) x=2.0 \"f_0/Op_0\"
  q = Op@17(x) x=0.5 y=3.0 \"w_1/f_0/Op_0\"
"
    );
}

#[test]
fn operands_left_out_stay_out() {
    let body = FunctionBuilder::new("local", "f", 17).signature(["a", "bias"], ["b", "extra"]).node(node(
        "Op",
        ["a", "bias"],
        ["b", "extra"],
    ));
    assert_eq!(
        dump(&graph(&calling(vec![body]))),
        "graph g(x) -> (y)
  y, call/extra = Op@17(x, _) \"call/Op_0\"
"
    );
}

#[test]
fn an_input_handed_through_is_copied() {
    let body = FunctionBuilder::new("local", "f", 17).signature(["a"], ["a"]);
    assert_eq!(
        dump(&graph(&calling(vec![body]))),
        "graph g(x) -> (y)
  y = Identity@17(x) \"call/Identity_1\"
"
    );
}

#[test]
fn an_input_handed_through_to_itself_is_a_cycle() {
    let body = FunctionBuilder::new("local", "f", 17).signature(["a"], ["a"]);
    let call = node("f", ["y"], ["y"]).domain("local").name("call");
    let model = GraphBuilder::new("g").node(call).output("y").model(17).opset("local", 1).function(body);
    assert_eq!(problems(&model), ["graph `g`: these nodes wait for each other's outputs: call/Identity_0"]);
}

#[test]
fn subgraphs_in_functions_see_the_function_and_attribute_graphs_their_caller() {
    let own = GraphBuilder::new("own").node(node("Neg", ["t"], ["n"])).output("n");
    let body = FunctionBuilder::new("local", "f", 17)
        .signature(["a"], ["b"])
        .attribute("other")
        .node(node("Exp", ["a"], ["t"]))
        .node(node("If", ["a"], ["b"]).attr("then_branch", own).attr_ref(
            "else_branch",
            "other",
            AttributeType::Graph,
        ));
    let mut model = calling(vec![body]);
    let passed = GraphBuilder::new("passed").node(node("Abs", ["t"], ["n"])).output("n");
    let main = model.proto.graph.as_mut().unwrap();
    main.node[0] = node("f", ["x"], ["y"]).domain("local").name("call").attr("other", passed).proto;
    main.node.push(node("Sin", ["x"], ["t"]).proto);
    assert_eq!(
        dump(&graph(&model)),
        "graph g(x) -> (y)
  call/t = Exp@17(x) \"call/Exp_0\"
  t = Sin@17(x) \"Sin_1\"
  y = If@17(x) else_branch=graph then_branch=graph \"call/If_1\"
    graph passed() -> (n)
      capture t = t
      n = Abs@17(t) \"Abs_0\"
    graph own() -> (call/n)
      capture call/t = call/t
      call/n = Neg@17(call/t) \"call/Neg_0\"
"
    );
}

#[test]
fn overloads_are_told_apart() {
    let mut wide = function("f").node(node("Wide", ["a"], ["b"]));
    wide.proto.overload = Some("wide".into());
    let plain = function("f").node(node("Plain", ["a"], ["b"]));
    let mut model = calling(vec![wide, plain]);
    assert_eq!(graph(&model).nodes[0].op_type, "Plain");
    model.proto.graph.as_mut().unwrap().node[0].overload = Some("wide".into());
    assert_eq!(graph(&model).nodes[0].op_type, "Wide");
}

#[test]
fn recursion_is_reported_with_its_path() {
    let f = function("f").node(node("h", ["a"], ["b"]).domain("local"));
    let h = function("h").node(node("f", ["a"], ["b"]).domain("local"));
    assert_eq!(
        problems(&calling(vec![f, h])),
        ["node `call/h_0/f_0` (local::f): the function calls itself: local::f -> local::h -> local::f"]
    );
}

#[test]
fn bad_calls_are_reported() {
    let narrow = FunctionBuilder::new("local", "f", 17).signature([], []);
    assert_eq!(
        problems(&calling(vec![narrow])),
        [
            "node `call` (local::f): 1 inputs are given, the function declares 0",
            "node `call` (local::f): 1 outputs are given, the function declares 0",
        ]
    );
    let dangling = function("f").node(node("Relu", ["nowhere"], ["t"]));
    assert_eq!(
        problems(&calling(vec![dangling])),
        [
            "node `call/Relu_0` (Relu): `nowhere` is read, but nothing produces it",
            "node `call` (local::f): `b` is read, but nothing produces it",
        ]
    );
    let absent = FunctionBuilder::new("local", "f", 17).signature(["a", "c"], ["c"]);
    assert_eq!(
        problems(&calling(vec![absent])),
        ["node `call` (local::f): output `c` is an input that the call leaves out"]
    );
    let nameless = FunctionBuilder::new("local", "f", 17).signature([""], ["b"]).node(node("Op", [], ["b"]));
    assert_eq!(
        problems(&calling(vec![nameless])),
        ["function `local::f`: a function input without a name; a name is expected"]
    );
    let twice = function("f").node(node("Relu", ["a"], ["b"]));
    assert_eq!(
        problems(&calling(vec![twice.clone(), twice])),
        ["function `local::f`: the function `local::f` is declared twice; names are to be unique"]
    );
}

#[test]
fn references_outside_of_functions_are_reported() {
    let model = GraphBuilder::new("g")
        .node(node("Op", [], ["y"]).attr_ref("k", "alpha", AttributeType::Int))
        .output("y")
        .model(17);
    assert_eq!(
        problems(&model),
        ["node `Op_0` (Op): attribute `k` refers to `alpha`, but stands outside of any function"]
    );
}

/// A chain of functions, each calling the next one `calls` times.
fn chain(length: usize, calls: usize) -> ModelBuilder {
    let name = |index: usize| if index == 0 { "f".to_owned() } else { format!("f{index}") };
    let functions = (0..length).map(|index| {
        let mut link = function(&name(index));
        for call in 0..calls {
            let from = if call == 0 { "a".to_owned() } else { format!("t{}", call - 1) };
            let to = if call == calls - 1 { "b".to_owned() } else { format!("t{call}") };
            let called = if index == length - 1 { "Relu".to_owned() } else { name(index + 1) };
            let domain = if index == length - 1 { "" } else { "local" };
            link = link.node(node(&called, [&from], [&to]).domain(domain));
        }
        link
    });
    calling(functions.collect())
}

#[test]
fn deep_chains_are_inlined_up_to_a_limit() {
    assert_eq!(graph(&chain(60, 1)).nodes.len(), 1);
    let problems = problems(&chain(10_000, 1));
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].ends_with("functions and subgraphs nest more than 64 deep"), "{problems:?}");
}

#[test]
fn exponential_inlining_is_stopped() {
    assert_eq!(graph(&chain(8, 2)).nodes.len(), 256);
    let problems = problems(&chain(60, 2));
    assert_eq!(problems.len(), 1);
    assert!(problems[0].contains("inlining the local functions makes the model larger"), "{problems:?}");
}

#[test]
fn attribute_graphs_that_refer_to_themselves_are_stopped() {
    let body = ["first", "second"].iter().fold(GraphBuilder::new("body"), |body, name| {
        body.node(node("Op", [], [*name]).attr_ref("body", "g", AttributeType::Graph))
    });
    let call = node("Op", ["a"], ["b"]).attr_ref("body", "g", AttributeType::Graph);
    let function = function("f").default_attribute("g", body).node(call);
    let problems = problems(&calling(vec![function]));
    assert!(problems.iter().any(|problem| problem.contains("nest more than 64 deep")), "{problems:?}");
}
