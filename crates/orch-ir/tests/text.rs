//! The text form: what it looks like, that it reads back, and what is said about texts that are not graphs.

use orch_ir::text::{parse, parse_tensor, print, print_tensor};
use orch_ir::{DType, PrimGraph, Tensor};

/// Every operation and every attribute once, in the printer's own layout.
const EVERYTHING: &str = include_str!("everything.prim");

#[test]
fn the_printer_writes_what_the_parser_reads() {
    let graph = parse(EVERYTHING).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(print(&graph), EVERYTHING);
}

#[test]
fn inputs_keep_signature_order_and_origins_their_nodes() {
    let mut graph = PrimGraph::new("a \"b\"\\\n\u{7}é");
    let a = graph.add_input("a", DType::F32, [2]);
    let neg = orch_ir::PrimOp::Map(orch_ir::ScalarFn::Unary(orch_ir::UnaryFn::Neg));
    let b = graph.add(neg.clone(), &[a]).unwrap();
    graph.set_origin("/x (Neg)");
    let late = graph.add_input("late", DType::F32, [2]);
    let c = graph.add(neg.clone(), &[late]).unwrap();
    graph.set_origin("");
    graph.add(neg, &[b]).unwrap();
    graph.set_origin("unused");
    graph.add_output("c", c);
    graph.add_output("again", c);
    graph.inputs.reverse();
    let text = print(&graph);
    let expected = r#"graph "a \"b\"\\\n\u{7}é" {
  input "late" t2: f32[2]
  input "a" t0: f32[2]
  t1: f32[2] = neg t0
  t3: f32[2] = neg t2 ; from "/x (Neg)"
  t4: f32[2] = neg t1
  output "c" t3
  output "again" t3
}
"#;
    assert_eq!(text, expected);
    assert_eq!(parse(&text), Ok(graph));
}

#[test]
fn tensors_read_back_bit_by_bit() {
    let f32s = [0.1f32, -0.0, 1e-45, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN];
    let cases = [
        (
            Tensor::from_vec([8], f32s.to_vec()),
            "[0.1, -0, 1e-45, 3.4028235e38, inf, -inf, nan, nan:0xffc00000]",
        ),
        (Tensor::from_vec([2], vec![half::f16::from_f32(0.1), half::f16::MAX]), "[0.099975586, 65504]"),
        (Tensor::from_vec([2], vec![half::bf16::from_f32(0.1), half::bf16::NAN]), "[0.100097656, nan]"),
        (Tensor::from_vec([2], vec![0.1f64, 1e300]), "[0.1, 1e300]"),
        (Tensor::from_vec([2, 1], vec![i64::MIN, i64::MAX]), "[-9223372036854775808, 9223372036854775807]"),
        (Tensor::from_vec([], vec![u64::MAX]), "[18446744073709551615]"),
        (Tensor::from_bools([2], &[true, false]), "[true, false]"),
        (Tensor::zeros(DType::I8, [0, 3]), "[]"),
    ];
    for (tensor, elements) in cases {
        let text = print_tensor(&tensor);
        assert_eq!(text, format!("{}{} = {elements}", tensor.dtype(), tensor.shape()));
        assert_eq!(parse_tensor(&text), Ok(tensor));
    }
    let large = Tensor::from_vec([65], (0..65).collect::<Vec<i16>>());
    let text = print_tensor(&large);
    assert!(text.starts_with("i16[65] = hex \"000001000200"), "{text}");
    assert_eq!(parse_tensor(&text), Ok(large));
}

/// The error for a graph with these lines after an input `t0: f32[2, 3]`.
fn error_of(lines: &str) -> String {
    let text = format!("graph \"g\" {{\n  input \"x\" t0: f32[2, 3]\n{lines}\n}}");
    parse(&text).expect_err(lines).to_string()
}

#[test]
fn errors_name_the_place_and_the_problem() {
    let cases = [
        ("  t1: f32[2, 3] = add t0", "line 3, column 19: 2 operands expected, 1 given"),
        ("  t1: f32[2, 2] = neg t0", "line 3, column 3: t1 is f32[2, 3], but f32[2, 2] is stated"),
        ("  t1: f32[2, 3] = negate t0", "line 3, column 19: there is no operation negate"),
        ("  t1: f32[2, 3] = neg t7", "line 3, column 23: t7 is not defined before it is used"),
        ("  t2: f32[2, 3] = neg t0", "line 3, column 3: t2 is defined, but nothing defines t1 before it"),
        ("  t0: f32[2, 3] = neg t0", "line 3, column 3: t0 is defined twice or out of order"),
        (
            "  t1: f32[2] = reduce.sum t0 axes=[x]",
            "line 3, column 30: attribute axes does not have a value of this kind",
        ),
        ("  t1: f32[2] = reduce.sum t0", "line 3, column 16: attribute axes is missing"),
        ("  t1: f32[2] = reduce.sum t0 axes=[1] k=1", "line 3, column 39: this operation has no attribute k"),
        (
            "  t1: f32[2] = reduce.sum t0 axes=[1] axes=[1]",
            "line 3, column 39: attribute axes is given twice",
        ),
        ("  t1: f32[2] = reduce.sum t0 axes=[7]", "line 3, column 16: reduced axes [7] of [2, 3]"),
        ("  t1: f32[3] = const", "line 3, column 16: there is no operation const"),
        ("  const t1: f32[3] = [1, 2]", "line 3, column 22: f32[3] has 3 elements, 2 are given"),
        ("  const t1: i8[1] = [300]", "line 3, column 21: 300 is not an element of type i8"),
        ("  const t1: f16[1] = hex \"00\"", "line 3, column 22: f16[1] takes 2 bytes, 1 were given"),
        ("  const t1: f99[1] = [1]", "line 3, column 13: there is no element type f99"),
        ("  const t1: f32[999999999999999] = [1]", "line 3, column 13: the tensor is too large"),
        ("  output \"y\" t1", "line 3, column 14: t1 is not defined"),
        ("  output \"y\" t0 t0", "line 3, column 17: the end of the line expected, t0 found"),
        (
            "  output \"y\" t0\n  t1: f32[2, 3] = neg t0",
            "line 4, column 3: an output, for they come last, expected, t1 found",
        ),
        (
            "  const t1: bool[] = [true]\n  input \"z\" t2: f32[]",
            "line 4, column 3: inputs come before constants and nodes",
        ),
        ("  output \"y t0", "line 3, column 10: the quoted text does not end on its line"),
        (
            "  output \"y\" t0\n  output \"y\" t0",
            "line 1, column 1: output \"y\": there is another of this name (invariant 2)",
        ),
        ("  @", "line 3, column 3: unexpected character '@'"),
        (
            "  (t1: f32[2], t2: i32[2]) = top_k t0 axis=1 k=1 largest=true sorted=true",
            "line 1, column 1: n0: it states the results (f32[2], i32[2]), they should be (f32[2, 1], i64[2, 1]) (invariant 7)",
        ),
    ];
    for (lines, message) in cases {
        assert_eq!(error_of(lines), message, "for {lines}");
    }
    assert_eq!(
        parse("").unwrap_err().to_string(),
        "line 1, column 1: graph expected, the end of the text found"
    );
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| {
        let mut text = "graph \"g\" {\n}".to_owned();
        for _ in 1..depth {
            text = format!(
                "graph \"g\" {{\n const t0: bool[] = [true]\n () = if t0 then={text} else=graph \"e\" {{ }}\n}}"
            );
        }
        parse(&text)
    };
    assert!(nested(16).is_ok());
    assert!(nested(17).unwrap_err().message.contains("nest deeper than 16"));
    assert!(nested(1000).unwrap_err().message.contains("nest deeper than 16"));
    let lists = format!("  t1: f32[2, 3] = neg t0 a={}", "[".repeat(100_000));
    assert!(error_of(&lists).contains("the value of an attribute expected"));
}
