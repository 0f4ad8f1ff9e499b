//! The two tests of every rule, and its growth: see [`check`].

use crate::draft::Draft;
use crate::egraph::{GraphRule, Space, replay};
use crate::field::{self, Undefined};
use crate::{Numerics, RewriteOptions, RewriteReport, Rule, rewrite_with};
use orch_interp::EvalOptions;
use orch_ir::text::print;
use orch_ir::validate::validate;
use orch_ir::{BinaryFn, Contract, DType, PrimGraph, PrimOp, ReduceOp, ScalarFn, Shape, Tensor, TensorId};

/// Extents that rules are tried with: ones, primes, powers of two and their neighbours, and nothing.
const SIZES: [[usize; 3]; 7] = [[2, 3, 5], [1, 1, 1], [4, 1, 3], [1, 7, 2], [8, 7, 9], [3, 0, 2], [0, 1, 1]];

/// A graph that a rule applies to.
pub(crate) struct Case {
    /// The rule.
    pub(crate) rule: &'static str,
    /// Nodes before and after, for the first of [`SIZES`].
    pub(crate) nodes: (usize, usize),
    /// Adds the pattern to an empty graph and returns the result.
    pub(crate) build: fn(&mut Sketch, [usize; 3]) -> TensorId,
}

impl Case {
    fn rule_of<'r>(&self, rules: &'r [Rule]) -> &'r Rule {
        rules.iter().find(|rule| rule.name == self.rule).expect("a rule of this family")
    }
}

/// Checks a family of rules: for every rule there is a case; in each case the rule applies at the first size, and
/// wherever it applies
/// - the graph stays valid and has as many nodes as the case says;
/// - the results are the same over a finite field, for random inputs, where the pattern has a meaning there;
/// - the results agree in floating point: bit by bit, on special values too, for exact rules.
pub(crate) fn check(rules: &'static [Rule], cases: &[Case]) {
    check_all(rules, cases, |before, after, rule, place| {
        same_over_field(before, after, place);
        same_in_floats(before, after, rule.numerics, place);
    });
}

/// Checks a family of rules that are identities of functions of one argument: as [`check`], but instead of over a field,
/// results agree for arguments of all sizes, each relative to itself.
pub(crate) fn check_functions(rules: &'static [Rule], cases: &[Case]) {
    check_all(rules, cases, |before, after, rule, place| same_in_floats(before, after, rule.numerics, place));
    let steps = (-2000..=2000).map(|step| f64::from(step) / 20.0);
    let powers = (-149..128).flat_map(|power| [2f64.powi(power), -(2f64.powi(power))]);
    let special = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let arguments: Vec<f64> = steps.chain(powers).chain(special).collect();
    for case in cases {
        let rule = case.rule_of(rules);
        let graph = Sketch::build(case.build, [arguments.len(), 1, 1]).expect("a function of one argument");
        let argument = [Tensor::from_f64(DType::F32, [arguments.len(), 1], &arguments)];
        let [expected, given] = [graph.clone(), apply(&graph, rule).0]
            .map(|graph| evaluate(&graph, &argument, &EvalOptions::wide())[0].to_f64());
        for ((x, a), b) in arguments.iter().zip(&expected).zip(&given) {
            let is_close = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-6 * a.abs();
            assert!(is_close, "{} at {x:e}: {a:e} became {b:e}", rule.name);
        }
    }
}

fn check_all(rules: &'static [Rule], cases: &[Case], same: impl Fn(&PrimGraph, &PrimGraph, &Rule, &str)) {
    for rule in rules {
        assert!(cases.iter().any(|case| case.rule == rule.name), "{} has no case", rule.name);
    }
    for case in cases {
        let rule = case.rule_of(rules);
        for sizes in SIZES {
            let Some(graph) = Sketch::build(case.build, sizes) else { continue };
            let place = format!("{} at {sizes:?}", rule.name);
            let (rewritten, report) = apply(&graph, rule);
            assert_eq!(validate(&rewritten), [], "{place}");
            if sizes == SIZES[0] {
                assert!(report.applied.contains_key(rule.name), "{place} does not apply:\n{}", print(&graph));
                let nodes = (report.nodes_before, report.nodes_after);
                assert_eq!(nodes, case.nodes, "{place}:\n{}{}", print(&graph), print(&rewritten));
            }
            same(&graph, &rewritten, rule, &place);
        }
    }
}

/// A graph whose result a rule of the e-graph offers an alternative to.
pub(crate) struct GraphCase {
    /// The rule.
    pub(crate) rule: &'static str,
    /// Nodes before, and with each alternative, for the first of [`SIZES`].
    pub(crate) nodes: &'static [(usize, usize)],
    /// Adds the pattern to an empty graph and returns the result.
    pub(crate) build: fn(&mut Sketch, [usize; 3]) -> TensorId,
}

/// Checks a family of rules of the e-graph as [`check`] does: each alternative for the result of the pattern is put
/// in its place, whatever it costs.
pub(crate) fn check_graph_rules(rules: &'static [GraphRule], cases: &[GraphCase]) {
    for rule in rules {
        assert!(cases.iter().any(|case| case.rule == rule.name), "{} has no case", rule.name);
    }
    for case in cases {
        let rule = rules.iter().find(|rule| rule.name == case.rule).expect("a rule of this family");
        for sizes in SIZES {
            let Some(graph) = Sketch::build(case.build, sizes) else { continue };
            let place = format!("{} at {sizes:?}", rule.name);
            let alternatives = alternatives(&graph, rule);
            if sizes == SIZES[0] {
                let nodes: Vec<(usize, usize)> =
                    alternatives.iter().map(|new| (graph.nodes().len(), new.nodes().len())).collect();
                let texts: Vec<String> = alternatives.iter().map(print).collect();
                assert_eq!(nodes, case.nodes, "{place}:\n{}{}", print(&graph), texts.concat());
            }
            for alternative in &alternatives {
                assert_eq!(validate(alternative), [], "{place}");
                same_over_field(&graph, alternative, &place);
                same_in_floats(&graph, alternative, Numerics::Reassociate, &place);
            }
        }
    }
}

/// The graph with each alternative that a rule offers for its last node.
fn alternatives(graph: &PrimGraph, rule: &GraphRule) -> Vec<PrimGraph> {
    let mut draft = Draft::new(graph, &RewriteOptions::default());
    let mut space = Space::new(&draft);
    let Some((term, _)) = space.originals.last().cloned() else { return Vec::new() };
    let classes = (rule.apply)(&mut space, &term);
    let alternatives = classes.into_iter().map(|class| {
        replay::put(&mut draft, &space, class);
        let alternative = draft.finish();
        draft = Draft::new(graph, &RewriteOptions::default());
        alternative
    });
    alternatives.collect()
}

/// Applies one rule.
pub(crate) fn apply(graph: &PrimGraph, rule: &Rule) -> (PrimGraph, RewriteReport) {
    let options = RewriteOptions { numerics: Numerics::Approximate, ..RewriteOptions::default() };
    rewrite_with(graph, &[&[*rule]], &[], &options)
}

/// Checks that two graphs compute the same over the field, for a few random inputs.
pub(crate) fn same_over_field(before: &PrimGraph, after: &PrimGraph, place: &str) {
    let mut compared = 0;
    for seed in 0..20 {
        let inputs: Vec<Tensor> = random_inputs(before, seed, |dtype, random| match dtype {
            DType::Bool => (random % 2) as f64,
            _ if dtype.is_float() => (random % field::PRIME) as f64,
            _ => (random % 5) as f64,
        });
        let inputs: Vec<Tensor> = inputs.iter().map(field::residues).collect();
        match (field::evaluate(before, &inputs), field::evaluate(after, &inputs)) {
            (Ok(expected), Ok(given)) => {
                assert_eq!(expected, given, "{place}, over the field:\n{}{}", print(before), print(after));
                compared += 1;
            }
            (Err(Undefined::Primitive), _) => return,
            (Err(Undefined::ZeroDivisor), _) | (_, Err(Undefined::ZeroDivisor)) => {}
            (Ok(_), Err(Undefined::Primitive)) => panic!("{place}: lost its meaning over the field"),
        }
        if compared == 3 {
            return;
        }
    }
    panic!("{place}: always divides by zero");
}

/// Checks that two graphs compute the same floating-point results, as near as the class promises.
pub(crate) fn same_in_floats(before: &PrimGraph, after: &PrimGraph, numerics: Numerics, place: &str) {
    const SPECIAL: [f64; 8] = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-40, -3e38, 65504.0];
    let ordinary = |dtype: DType, random: u64| match dtype {
        DType::Bool => (random % 2) as f64,
        _ if dtype.is_float() => (random % 4001) as f64 / 1000.0 - 2.0,
        _ => (random % 5) as f64,
    };
    let special = |dtype: DType, random: u64| match random % 3 {
        0 if dtype.is_float() => SPECIAL[(random / 3 % 8) as usize],
        _ => ordinary(dtype, random),
    };
    for seed in 0..3 {
        let inputs = random_inputs(before, seed, ordinary);
        let options = if numerics == Numerics::Exact { EvalOptions::default() } else { EvalOptions::wide() };
        let [expected, given] = [before, after].map(|graph| evaluate(graph, &inputs, &options));
        assert_close(&expected, &given, numerics, place);
        if numerics == Numerics::Exact {
            let inputs = random_inputs(before, seed, special);
            let [expected, given] = [before, after].map(|graph| evaluate(graph, &inputs, &options));
            assert_close(&expected, &given, numerics, place);
        }
    }
}

fn evaluate(graph: &PrimGraph, inputs: &[Tensor], options: &EvalOptions) -> Vec<Tensor> {
    orch_interp::evaluate(graph, inputs, options).expect("a valid graph")
}

fn random_inputs(graph: &PrimGraph, seed: u64, value: impl Fn(DType, u64) -> f64) -> Vec<Tensor> {
    let mut state = seed << 32;
    let mut tensor = |id: &TensorId| {
        let (dtype, shape) = (graph.dtype(*id), graph.shape(*id).clone());
        let values: Vec<f64> = (0..shape.elems())
            .map(|_| {
                state += 1;
                value(dtype, field::scramble(state))
            })
            .collect();
        Tensor::from_f64(dtype, shape, &values)
    };
    graph.inputs.iter().map(|(_, id)| tensor(id)).collect()
}

/// Compares results: bits for exact rules (NaNs are equal), else relative to the largest element.
fn assert_close(expected: &[Tensor], given: &[Tensor], numerics: Numerics, place: &str) {
    const TOLERANCE: f64 = 1e-5;
    for (expected, given) in expected.iter().zip(given) {
        assert_eq!((expected.dtype(), expected.shape()), (given.dtype(), given.shape()), "{place}");
        let (expected, given) = (expected.to_f64(), given.to_f64());
        let scale = expected.iter().filter(|v| v.is_finite()).fold(1.0, |max: f64, v| max.max(v.abs()));
        for (position, (a, b)) in expected.iter().zip(&given).enumerate() {
            let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            let close = numerics != Numerics::Exact && (a == b || (a - b).abs() <= TOLERANCE * scale);
            assert!(same || close, "{place}, element {position}: {a:e} became {b:e}");
        }
    }
}

/// A small graph in the making; primitives panic where their operands do not suit, so sizes are chosen to suit.
pub(crate) struct Sketch {
    pub(crate) graph: PrimGraph,
}

impl Sketch {
    /// The graph of a pattern, or `None` for sizes that the pattern cannot have.
    fn build(pattern: fn(&mut Sketch, [usize; 3]) -> TensorId, sizes: [usize; 3]) -> Option<PrimGraph> {
        let mut sketch = Sketch { graph: PrimGraph::new("case") };
        sketch.graph.set_origin("pattern");
        let attempt = std::panic::AssertUnwindSafe(|| {
            let result = pattern(&mut sketch, sizes);
            sketch.graph.add_output("y", result);
            sketch.graph
        });
        match std::panic::catch_unwind(attempt) {
            Ok(graph) => Some(graph),
            Err(_) if sizes != SIZES[0] => None,
            Err(reason) => std::panic::resume_unwind(reason),
        }
    }

    /// An `f32` input.
    pub(crate) fn input(&mut self, shape: impl Into<Shape>) -> TensorId {
        self.input_of(DType::F32, shape)
    }

    /// An input.
    pub(crate) fn input_of(&mut self, dtype: DType, shape: impl Into<Shape>) -> TensorId {
        let name = format!("x{}", self.graph.inputs.len());
        self.graph.add_input(name, dtype, shape)
    }

    /// An `f32` constant of small multiples of 1/4 other than 0, so that products are exact.
    pub(crate) fn weight(&mut self, shape: impl Into<Shape>) -> TensorId {
        self.constant(shape, |i| {
            let value = ((i * 7 + 3) % 11) as f64 / 4.0 - 1.25;
            if value == 0.0 { 0.5 } else { value }
        })
    }

    /// An `f32` constant with these elements.
    pub(crate) fn constant(&mut self, shape: impl Into<Shape>, element: impl Fn(usize) -> f64) -> TensorId {
        self.constant_of(DType::F32, shape, element)
    }

    /// A constant with these elements.
    pub(crate) fn constant_of(
        &mut self,
        dtype: DType,
        shape: impl Into<Shape>,
        element: impl Fn(usize) -> f64,
    ) -> TensorId {
        let shape = shape.into();
        let values: Vec<f64> = (0..shape.elems()).map(element).collect();
        self.graph.add_constant(Tensor::from_f64(dtype, shape, &values))
    }

    /// `value`, repeated to the shape and type of `like`.
    pub(crate) fn full_like(&mut self, like: TensorId, value: f64) -> TensorId {
        let scalar = self.constant_of(self.graph.dtype(like), Shape::scalar(), |_| value);
        let shape = self.graph.shape(like).clone();
        self.broadcast(scalar, shape, &[])
    }

    /// A primitive.
    pub(crate) fn op(&mut self, op: PrimOp, inputs: &[TensorId]) -> TensorId {
        self.graph.add(op, inputs).expect("operands that suit")
    }

    /// An elementwise function.
    pub(crate) fn map(&mut self, f: impl Into<ScalarFn>, inputs: &[TensorId]) -> TensorId {
        self.op(PrimOp::Map(f.into()), inputs)
    }

    /// An elementwise function of a tensor and a number.
    pub(crate) fn with(&mut self, f: BinaryFn, x: TensorId, value: f64) -> TensorId {
        let value = self.full_like(x, value);
        self.map(f, &[x, value])
    }

    /// A broadcast.
    pub(crate) fn broadcast(&mut self, x: TensorId, shape: impl Into<Shape>, dims: &[usize]) -> TensorId {
        self.op(PrimOp::Broadcast { shape: shape.into(), dims: dims.to_vec() }, &[x])
    }

    /// A reshape.
    pub(crate) fn reshape(&mut self, x: TensorId, shape: impl Into<Shape>) -> TensorId {
        self.op(PrimOp::Reshape { shape: shape.into() }, &[x])
    }

    /// A transpose.
    pub(crate) fn transpose(&mut self, x: TensorId, perm: &[usize]) -> TensorId {
        self.op(PrimOp::Transpose { perm: perm.to_vec() }, &[x])
    }

    /// A slice along one axis, step 1.
    pub(crate) fn slice(&mut self, x: TensorId, axis: usize, start: usize, size: usize) -> TensorId {
        let mut sizes = self.graph.shape(x).to_vec();
        let (mut starts, steps) = (vec![0; sizes.len()], vec![1; sizes.len()]);
        starts[axis] = start as i64;
        sizes[axis] = size;
        self.op(PrimOp::Slice { starts, steps, sizes }, &[x])
    }

    /// A reduction.
    pub(crate) fn reduce(&mut self, op: ReduceOp, x: TensorId, axes: &[usize]) -> TensorId {
        self.op(PrimOp::Reduce { op, axes: axes.to_vec() }, &[x])
    }

    /// A contraction with labels as in `ab,bc->ac`.
    pub(crate) fn contract(&mut self, labels: &str, lhs: TensorId, rhs: TensorId) -> TensorId {
        let labels: Vec<Vec<u8>> = labels
            .split([',', '>'])
            .map(|part| part.bytes().filter(|&c| c != b'-').map(|c| c - b'a').collect())
            .collect();
        let [l, r, out] = labels.try_into().expect("three lists of labels");
        self.op(PrimOp::Contract(Contract { lhs: l, rhs: r, out }), &[lhs, rhs])
    }
}
