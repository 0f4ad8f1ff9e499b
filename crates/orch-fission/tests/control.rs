//! Control flow: what is known is decided when compiling, the rest stays whole, with the same results.

use orch_fission::{FissionOptions, fission};
use orch_interp::{EvalOptions, evaluate};
use orch_ir::{Attribute, DType, OperatorGraph, OperatorNode, PrimGraph, PrimOp, Tensor, Value, ValueId};
use std::collections::BTreeMap;

/// A graph under construction; values go by name.
#[derive(Default)]
struct Builder(OperatorGraph);

impl Builder {
    fn value(&mut self, name: &str) -> ValueId {
        match self.0.values.iter().position(|value| value.name == name) {
            Some(position) => ValueId::new(position),
            None => self.0.add_value(Value { name: name.to_owned(), ..Value::default() }),
        }
    }

    fn input(mut self, name: &str, dtype: DType, dims: &[usize]) -> Self {
        let id = self.value(name);
        let value = &mut self.0.values[id.index()];
        value.dtype = Some(dtype);
        value.shape = Some(dims.iter().map(|&extent| Some(extent)).collect());
        self.0.inputs.push(id);
        self
    }

    fn constant(mut self, name: &str, value: Tensor) -> Self {
        let id = self.value(name);
        self.0.initializers.insert(id, value);
        self
    }

    fn capture(mut self, name: &str) -> Self {
        let id = self.value(name);
        self.0.captures.push((id, name.to_owned()));
        self
    }

    fn node(
        mut self,
        op_type: &str,
        inputs: &[&str],
        outputs: &[&str],
        attributes: &[(&str, Attribute)],
    ) -> Self {
        let node = OperatorNode {
            name: op_type.to_lowercase(),
            domain: String::new(),
            op_type: op_type.to_owned(),
            opset: 18,
            inputs: inputs.iter().map(|name| (!name.is_empty()).then(|| self.value(name))).collect(),
            outputs: outputs.iter().map(|name| Some(self.value(name))).collect(),
            attributes: attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        };
        self.0.nodes.push(node);
        self
    }

    fn outputs(mut self, names: &[&str]) -> OperatorGraph {
        for name in names {
            let id = self.value(name);
            self.0.outputs.push(id);
        }
        self.0
    }
}

fn body(graph: OperatorGraph) -> Attribute {
    Attribute::Graph(Box::new(graph))
}

fn with_fixed(graph: &OperatorGraph, fixed: &[(&str, Tensor)]) -> PrimGraph {
    let fixed_inputs: BTreeMap<String, Tensor> =
        fixed.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let options = FissionOptions { fixed_inputs, ..FissionOptions::default() };
    fission(graph, &options).unwrap_or_else(|errors| panic!("{errors}"))
}

fn results(graph: &PrimGraph, inputs: &[Tensor]) -> Vec<Vec<f64>> {
    let results = evaluate(graph, inputs, &EvalOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    results.iter().map(Tensor::to_f64).collect()
}

fn is_whole(graph: &PrimGraph) -> bool {
    graph.nodes().iter().any(|node| matches!(node.op, PrimOp::Opaque(_)))
}

fn flag(value: bool) -> Tensor {
    Tensor::from_bools([], &[value])
}

/// `y = condition ? -x : x x`.
fn branches() -> OperatorGraph {
    let negated = Builder::default().capture("x").node("Neg", &["x"], &["n"], &[]).outputs(&["n"]);
    let squared = Builder::default().capture("x").node("Mul", &["x", "x"], &["s"], &[]).outputs(&["s"]);
    let attributes = [("then_branch", body(negated)), ("else_branch", body(squared))];
    Builder::default()
        .input("condition", DType::Bool, &[])
        .input("x", DType::F32, &[2])
        .node("If", &["condition"], &["y"], &attributes)
        .outputs(&["y"])
}

#[test]
fn a_known_branch_becomes_part_of_the_graph() {
    let x = Tensor::from_vec([2], vec![3.0f32, -4.0]);
    for (value, expected) in [(true, [-3.0, 4.0]), (false, [9.0, 16.0])] {
        let known = with_fixed(&branches(), &[("condition", flag(value))]);
        assert!(!is_whole(&known));
        assert_eq!(results(&known, std::slice::from_ref(&x)), [expected]);
        let whole = with_fixed(&branches(), &[]);
        assert!(is_whole(&whole));
        assert_eq!(results(&whole, &[flag(value), x.clone()]), [expected]);
    }
}

#[test]
fn branches_of_different_shapes_need_a_known_condition() {
    let one = Builder::default().constant("a", Tensor::zeros(DType::F32, [1])).outputs(&["a"]);
    let two = Builder::default().constant("b", Tensor::zeros(DType::F32, [2])).outputs(&["b"]);
    let attributes = [("then_branch", body(one)), ("else_branch", body(two))];
    let graph = Builder::default()
        .input("condition", DType::Bool, &[])
        .node("If", &["condition"], &["y"], &attributes)
        .outputs(&["y"]);
    let error = fission(&graph, &FissionOptions::default()).expect_err("unknown").to_string();
    assert!(error.contains("must be a constant"), "{error}");
    assert_eq!(results(&with_fixed(&graph, &[("condition", flag(false))]), &[]), [[0.0, 0.0]]);
}

/// `trips` times `s <- s + i x`, collecting `s`; it goes on while `s_0 < limit`.
fn sum_loop(limit: Option<f32>) -> OperatorGraph {
    let mut step = Builder::default()
        .input("i", DType::I64, &[])
        .input("go", DType::Bool, &[])
        .input("s", DType::F32, &[1])
        .capture("x")
        .node("CastLike", &["i", "x"], &["f"], &[])
        .node("Mul", &["f", "x"], &["d"], &[])
        .node("Add", &["s", "d"], &["t"], &[])
        .node("Identity", &["t"], &["c"], &[]);
    step = match limit {
        Some(limit) => step.constant("l", Tensor::scalar(limit)).node("Less", &["t", "l"], &["on"], &[]),
        None => step.node("Identity", &["go"], &["on"], &[]),
    };
    Builder::default()
        .input("trips", DType::I64, &[])
        .input("x", DType::F32, &[1])
        .constant("start", Tensor::zeros(DType::F32, [1]))
        .constant("true", flag(true))
        .node(
            "Loop",
            &["trips", "true", "start"],
            &["last", "all"],
            &[("body", body(step.outputs(&["on", "t", "c"])))],
        )
        .outputs(&["last", "all"])
}

#[test]
fn loops_unroll_when_short_and_stay_whole_when_long() {
    let x = Tensor::from_vec([1], vec![2.0f32]);
    // Of a loop that never runs, the body alone tells what it would collect.
    for (trips, whole) in [(0i64, true), (1, false), (4, false), (500, true)] {
        let graph = sum_loop(None);
        let known = with_fixed(&graph, &[("trips", Tensor::scalar(trips))]);
        assert_eq!(is_whole(&known), whole, "{trips} trips");
        let sums: Vec<f64> = (0..trips)
            .scan(0.0, |sum, i| {
                *sum += 2.0 * i as f64;
                Some(*sum)
            })
            .collect();
        let got = results(&known, std::slice::from_ref(&x));
        assert_eq!(got, [vec![sums.last().copied().unwrap_or(0.0)], sums]);
    }
}

#[test]
fn a_loop_that_collects_needs_its_number_of_iterations() {
    let error = fission(&sum_loop(None), &FissionOptions::default()).expect_err("unknown").to_string();
    assert!(error.contains("operand 0 (trip count)") && error.contains("must be a constant"), "{error}");
}

/// Only a trip count ends it: refused if that is beyond what runs in days, kept whole below.
#[test]
fn loops_that_nothing_ends_are_refused() {
    let counted = |trips: Option<i64>, condition: &str| {
        let step = Builder::default()
            .input("i", DType::I64, &[])
            .input("go", DType::Bool, &[])
            .input("s", DType::F32, &[1])
            .constant("true", flag(true))
            .constant("scalar", Tensor::zeros(DType::I64, [0]))
            .node("Add", &["s", "s"], &["t"], &[])
            .node("IsNaN", &["t"], &["nan"], &[])
            .node("Reshape", &["nan", "scalar"], &["is_nan"], &[]);
        let graph = Builder::default().input("x", DType::F32, &[1]).constant("true", flag(true));
        let (graph, limit) = match trips {
            Some(trips) => (graph.constant("trips", Tensor::scalar(trips)), "trips"),
            None => (graph, ""),
        };
        let body = [("body", body(step.outputs(&[condition, "t"])))];
        let graph = graph.node("Loop", &[limit, "true", "x"], &["y"], &body).outputs(&["y"]);
        fission(&graph, &FissionOptions::default())
    };
    for trips in [Some(1 << 62), Some((1 << 31) + 1), None] {
        for condition in ["go", "true"] {
            let error = counted(trips, condition).expect_err("endless").to_string();
            assert!(error.contains("not supported") && error.contains("2147483648 iterations"), "{error}");
        }
        assert!(counted(trips, "is_nan").is_ok(), "{trips:?}");
    }
    assert!(counted(Some(1 << 31), "go").is_ok());
}

#[test]
fn known_conditions_end_an_unrolled_loop() {
    let x = Tensor::from_vec([1], vec![2.0f32]);
    let fixed = [("trips", Tensor::scalar(100i64)), ("x", x)];
    let graph = with_fixed(&sum_loop(Some(11.0)), &fixed);
    assert_eq!(results(&graph, &[]), [vec![12.0], vec![0.0, 2.0, 6.0, 12.0]]);
}

/// Running sums of a sequence `[length, 2]`, collected backwards.
fn running_sums(length: usize) -> OperatorGraph {
    let step = Builder::default()
        .input("s", DType::F32, &[2])
        .input("v", DType::F32, &[2])
        .node("Add", &["s", "v"], &["t"], &[])
        .node("Identity", &["t"], &["c"], &[])
        .outputs(&["t", "c"]);
    let attributes = [
        ("body", body(step)),
        ("num_scan_inputs", Attribute::Int(1)),
        ("scan_output_directions", Attribute::Ints(vec![1])),
    ];
    Builder::default()
        .input("start", DType::F32, &[2])
        .input("values", DType::F32, &[length, 2])
        .node("Scan", &["start", "values"], &["last", "all"], &attributes)
        .outputs(&["last", "all"])
}

#[test]
fn scans_give_the_same_unrolled_and_whole() {
    for length in [1usize, 3, 200] {
        let graph = with_fixed(&running_sums(length), &[]);
        assert_eq!(is_whole(&graph), length > 100);
        let values: Vec<f32> = (0..2 * length).map(|at| at as f32).collect();
        let inputs = [Tensor::zeros(DType::F32, [2]), Tensor::from_vec([length, 2], values.clone())];
        let mut rows: Vec<[f64; 2]> = Vec::new();
        for row in values.chunks(2) {
            let before = rows.last().copied().unwrap_or_default();
            rows.push([before[0] + f64::from(row[0]), before[1] + f64::from(row[1])]);
        }
        let last = rows[length - 1].to_vec();
        let backwards: Vec<f64> = rows.iter().rev().flatten().copied().collect();
        assert_eq!(results(&graph, &inputs), [last, backwards]);
    }
}
