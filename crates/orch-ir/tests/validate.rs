//! One broken graph per invariant of the validator.

use orch_ir::generate::Rng;
use orch_ir::text::parse;
use orch_ir::validate::{MAX_DEPTH, MAX_RANK, Violation, validate};
use orch_ir::{
    Cumulative, DType, OpaqueKind, OpaqueOp, PrimGraph, PrimOp, ReduceOp, ScalarFn, Shape, Tensor, TensorId,
    UnaryFn,
};

fn neg() -> PrimOp {
    PrimOp::Map(ScalarFn::Unary(UnaryFn::Neg))
}

/// `y = -x`.
fn small() -> PrimGraph {
    let mut graph = PrimGraph::new("small");
    let x = graph.add_input("x", DType::F32, [2]);
    let y = graph.add(neg(), &[x]).expect("negation is defined for floats");
    graph.add_output("y", y);
    graph
}

/// The violations as (invariant, text).
fn violations(graph: &PrimGraph) -> Vec<(u32, String)> {
    validate(graph).iter().map(|violation| (violation.invariant, violation.to_string())).collect()
}

fn opaque(kind: OpaqueKind, results: Vec<(DType, Shape)>) -> PrimOp {
    PrimOp::Opaque(Box::new(OpaqueOp { kind, results }))
}

#[test]
fn a_valid_graph_has_no_violation() {
    assert_eq!(validate(&small()), Vec::<Violation>::new());
    assert_eq!(validate(&PrimGraph::new("empty")), Vec::<Violation>::new());
}

#[test]
fn tensors_have_one_definition() {
    let mut graph = small();
    graph.inputs.clear();
    let expected = [
        (1, "t0: it is neither an input nor a constant nor a result (invariant 1)".to_owned()),
        (3, "n0: its operand t0 is not defined before it (invariant 3)".to_owned()),
    ];
    assert_eq!(violations(&graph), expected);

    let mut graph = small();
    graph.inputs.push(("again".to_owned(), TensorId(1)));
    assert_eq!(violations(&graph), [(1, "t1: it is defined 2 times (invariant 1)".to_owned())]);
}

#[test]
fn outputs_exist_and_names_are_distinct() {
    let mut graph = small();
    graph.add_output("z", TensorId(9));
    graph.add_output("y", TensorId(0));
    let expected = [
        (2, "output \"z\": there is no tensor t9 (invariant 2)".to_owned()),
        (2, "output \"y\": there is another of this name (invariant 2)".to_owned()),
    ];
    assert_eq!(violations(&graph), expected);
}

#[test]
fn booleans_are_zero_or_one() {
    let mut graph = PrimGraph::new("bools");
    let two = Tensor::from_bytes(DType::Bool, [2].into(), vec![1, 2].into()).expect("two bytes");
    graph.add_constant(two);
    assert_eq!(
        violations(&graph),
        [(5, "t0: a boolean element is neither 0 nor 1 (invariant 5)".to_owned())]
    );
}

#[test]
fn ranks_are_bounded() {
    let mut graph = PrimGraph::new("ranks");
    graph.add_input("fits", DType::F32, vec![1; MAX_RANK]);
    graph.add_input("too many", DType::F32, vec![1; MAX_RANK + 1]);
    assert_eq!(
        violations(&graph),
        [(6, "t1: it has 65 dimensions, 64 are allowed (invariant 6)".to_owned())]
    );
}

#[test]
fn opaque_operands_suit_results() {
    let mut graph = PrimGraph::new("opaque");
    let x = graph.add_input("x", DType::F32, [2, 3]);
    let types = |dims: [usize; 2]| vec![(DType::F32, dims.into()), (DType::I64, dims.into())];
    let top_k = |axis, k| OpaqueKind::TopK { axis, k, largest: true, sorted: true };
    let cumulative =
        |axis, op| OpaqueKind::Cumulative(Cumulative { axis, op, exclusive: false, reverse: false });
    let routine = OpaqueKind::Routine { name: "Nothing", ints: vec![], floats: vec![], texts: vec![] };
    let nodes = [
        opaque(top_k(1, 2), types([2, 2])),
        opaque(top_k(1, 2), types([2, 3])),
        opaque(top_k(1, 4), types([2, 4])),
        opaque(top_k(2, 1), types([2, 3])),
        opaque(cumulative(1, ReduceOp::Sum), vec![(DType::F32, [2, 3].into())]),
        opaque(cumulative(2, ReduceOp::Sum), vec![(DType::F32, [2, 3].into())]),
        opaque(cumulative(1, ReduceOp::Max), vec![(DType::F32, [2, 3].into())]),
        opaque(routine, types([2, 3])),
    ];
    for op in nodes {
        graph.add_node(op, vec![x]).expect("results of opaque operations are as stated");
    }
    let expected = [
        "n1: it states the results (f32[2, 3], i64[2, 3]), they should be (f32[2, 2], i64[2, 2]) (invariant 7)",
        "n2: 4 of axis 1 of [2, 3] (invariant 7)",
        "n3: 1 of axis 2 of [2, 3] (invariant 7)",
        "n5: axis 2 of [2, 3] (invariant 7)",
        "n6: a cumulative max (invariant 7)",
        "n7: there is no routine Nothing (invariant 7)",
    ];
    assert_eq!(violations(&graph), expected.map(|message| (7, message.to_owned())));
}

#[test]
fn bodies_suit_their_operation() {
    let mut graph = PrimGraph::new("branch");
    let condition = graph.add_input("condition", DType::Bool, Shape::scalar());
    let x = graph.add_input("x", DType::F32, [3]);
    let mut broken = small();
    broken.outputs.clear();
    broken.add_output("y", TensorId(4));
    let kind = OpaqueKind::If { then_graph: Box::new(small()), else_graph: Box::new(broken) };
    let node = opaque(kind, vec![(DType::F32, [3].into())]);
    graph.add_node(node, vec![condition, x]).expect("results of opaque operations are as stated");
    let expected = [
        (8, "n0: its then takes (f32[2]), (f32[3]) expected (invariant 8)".to_owned()),
        (8, "n0: its then returns (f32[2]), (f32[3]) expected (invariant 8)".to_owned()),
        (2, "n0 else: output \"y\": there is no tensor t4 (invariant 2)".to_owned()),
    ];
    assert_eq!(violations(&graph), expected);
}

#[test]
fn nesting_is_bounded() {
    let mut graph = PrimGraph::new("innermost");
    for _ in 0..MAX_DEPTH {
        let mut outer = PrimGraph::new("outer");
        let condition = outer.add_constant(Tensor::from_bools(Shape::scalar(), &[true]));
        let kind =
            OpaqueKind::If { then_graph: Box::new(graph), else_graph: Box::new(PrimGraph::new("else")) };
        outer.add_node(opaque(kind, vec![]), vec![condition]).expect("results are as stated");
        graph = outer;
    }
    let found = violations(&graph);
    assert_eq!(found.len(), 2);
    assert!(found[0].1.ends_with("n0: its then nests deeper than 16 graphs (invariant 8)"), "{}", found[0].1);
}

#[test]
fn loops_and_scans_check_their_signatures() {
    let body = "graph \"body\" {
        input \"i\" t0: i64[]
        input \"c\" t1: bool[]
        input \"s\" t2: f32[2]
        output \"c\" t1
        output \"s\" t2
        output \"scan\" t2
    }";
    let head =
        "graph \"g\" {\n const t0: i64[] = [3]\n const t1: bool[] = [true]\n const t2: f32[2] = [1, 2]\n";
    let cases = [
        ("(t3: f32[2], t4: f32[3, 2]) = loop t0, t1, t2 carried=1 trips=3", None),
        (
            "(t3: f32[2], t4: f32[4, 2]) = loop t0, t1, t2 carried=1 trips=3",
            Some(
                "n0: it states the results (f32[2], f32[4, 2]), they should be (f32[2], f32[3, 2]) (invariant 7)",
            ),
        ),
        (
            "(t3: f32[2], t4: f32[3, 2]) = loop t1, t1, t2 carried=1 trips=3",
            Some("n0: trip count and condition are not one i64 and one boolean (invariant 7)"),
        ),
        (
            "(t3: f32[2], t4: f32[3, 2]) = loop t0, t1 carried=1 trips=3",
            Some("n0: 2 operands for 1 carried values (invariant 7)"),
        ),
        (
            "(t3: f32[2], t4: f32[3, 2]) = loop t0, t1, t2, t2 carried=1 trips=3",
            Some(
                "n0: its body takes (i64[], bool[], f32[2]), (i64[], bool[], f32[2], f32[2]) expected (invariant 8)",
            ),
        ),
        (
            "(t3: f32[2]) = scan t2, t2 states=1 inputs=[[1, forward]] outputs=[]",
            Some("n0: its body returns 3 values (invariant 7)"),
        ),
    ];
    for (line, expected) in cases {
        let outcome = parse(&format!("{head} {line} body={body}\n}}"));
        let expected = expected.map(|message| format!("line 1, column 1: {message}"));
        assert_eq!(outcome.err().map(|error| error.to_string()), expected, "{line}");
    }
}

#[test]
fn any_inputs_and_outputs_are_checked_without_panic() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut graph = small();
        graph.inputs = (0..rng.below(4)).map(|i| (format!("x{i}"), TensorId(rng.below(5) as u32))).collect();
        graph.outputs = (0..rng.below(4)).map(|i| (format!("y{i}"), TensorId(rng.below(5) as u32))).collect();
        let in_order = graph.inputs.len() == 1 && graph.inputs[0].1 == TensorId(0);
        let known = graph.outputs.iter().all(|(_, id)| id.index() < 2);
        assert_eq!(validate(&graph).is_empty(), in_order && known, "{:?} {:?}", graph.inputs, graph.outputs);
    }
}
