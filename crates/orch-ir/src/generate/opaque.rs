//! Random opaque operations, with small fixed bodies.

use super::{Generator, TensorFacts};
use crate::{
    BinaryFn, Cumulative, DType, OpaqueKind, OpaqueOp, PrimGraph, PrimOp, ReduceOp, ScalarFn, ScanSpec,
    Shape, Tensor, TensorId, UnaryFn,
};

/// A tensor type.
type Type = (DType, Shape);

impl Generator<'_> {
    /// Adds an opaque node and returns its first result.
    fn opaque(
        &mut self,
        kind: OpaqueKind,
        inputs: &[TensorId],
        results: Vec<Type>,
        facts: &[TensorFacts],
    ) -> Option<TensorId> {
        let op = PrimOp::Opaque(Box::new(OpaqueOp { kind, results }));
        self.add_all(op, inputs, facts).map(|results| results[0])
    }

    /// A float tensor of values below 100 with at least one dimension.
    fn small_float(&mut self) -> Option<TensorId> {
        self.pick(|graph, id, facts| {
            graph.dtype(id).is_float() && graph.shape(id).rank() > 0 && facts.magnitude() <= 100.0
        })
    }

    fn type_of(&self, id: TensorId) -> Type {
        (self.graph.dtype(id), self.graph.shape(id).clone())
    }
}

/// The best elements of an exact operand.
pub fn top_k(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.pick(|graph, id, facts| facts.exact && graph.shape(id).rank() > 0)?;
    let (dtype, mut dims) = (g.graph.dtype(x), g.dims(x));
    let axis = g.rng.below(dims.len());
    let extent = dims[axis];
    let k = g.rng.below(extent + 1);
    dims[axis] = k;
    let shape = Shape::checked(dims)?;
    let kind = OpaqueKind::TopK { axis, k, largest: g.rng.one_in(2), sorted: true };
    let facts = [g.facts(x), TensorFacts::exact(0.0, extent as f64)];
    g.opaque(kind, &[x], vec![(dtype, shape.clone()), (DType::I64, shape)], &facts)
}

/// Sums of the elements up to each position.
pub fn cumulative(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.small_float()?;
    let of = g.type_of(x);
    let axis = g.rng.below(of.1.rank());
    let reach = g.facts(x).magnitude() * of.1[axis] as f64;
    let (exclusive, reverse) = (g.rng.one_in(2), g.rng.one_in(2));
    let kind = OpaqueKind::Cumulative(Cumulative { axis, op: ReduceOp::Sum, exclusive, reverse });
    g.opaque(kind, &[x], vec![of], &[TensorFacts::rounded(-reach, reach)])
}

/// A body `output = f(input)` for one tensor.
fn unary_body(name: &str, (dtype, shape): &Type, function: UnaryFn) -> Option<PrimGraph> {
    let mut body = PrimGraph::new(name);
    let x = body.add_input("x", *dtype, shape.clone());
    let y = body.add(PrimOp::Map(ScalarFn::Unary(function)), &[x]).ok()?;
    body.add_output("y", y);
    Some(body)
}

/// A choice between the negative and the absolute value.
pub fn branch(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.small_float()?;
    let single = |graph: &PrimGraph, id: TensorId, _: TensorFacts| {
        graph.dtype(id) == DType::Bool && graph.shape(id).elems() == 1
    };
    let condition = match g.pick(single) {
        Some(id) => id,
        None => {
            let value = g.rng.one_in(2);
            g.constant(Tensor::from_bools(Shape::scalar(), &[value]), TensorFacts::exact(0.0, 1.0))
        }
    };
    let of = g.type_of(x);
    let kind = OpaqueKind::If {
        then_graph: Box::new(unary_body("then", &of, UnaryFn::Neg)?),
        else_graph: Box::new(unary_body("else", &of, UnaryFn::Abs)?),
    };
    let reach = g.facts(x).magnitude();
    let facts = TensorFacts { low: -reach, high: reach, exact: g.facts(x).exact };
    g.opaque(kind, &[condition, x], vec![of], &[facts])
}

/// Adds a captured tensor to a state a few times and collects the states.
pub fn repeat(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.small_float()?;
    let of @ (dtype, shape) = &g.type_of(x);
    let trips = g.rng.below(4);
    let mut body = PrimGraph::new("body");
    body.add_input("iteration", DType::I64, Shape::scalar());
    let go_on = body.add_input("go on", DType::Bool, Shape::scalar());
    let state = body.add_input("state", *dtype, shape.clone());
    let step = body.add_input("step", *dtype, shape.clone());
    let next = body.add(PrimOp::Map(ScalarFn::Binary(BinaryFn::Add)), &[state, step]).ok()?;
    body.add_output("go on", go_on);
    body.add_output("state", next);
    body.add_output("states", next);
    let count = g.integers(DType::I64, &[], trips as i64, trips as i64);
    let start = g.constant(Tensor::from_bools(Shape::scalar(), &[true]), TensorFacts::exact(0.0, 1.0));
    let stacked = Shape::checked([&[trips], &shape[..]].concat())?;
    let kind = OpaqueKind::Loop { body: Box::new(body), carried: 1, trips };
    let reach = g.facts(x).magnitude() * (trips + 1) as f64;
    let facts = [TensorFacts::rounded(-reach, reach); 2];
    g.opaque(kind, &[count, start, x, x], vec![of.clone(), (*dtype, stacked)], &facts)
}

/// Running sums of slices, in any direction.
pub fn scan(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.small_float()?;
    let (dtype, dims) = (g.graph.dtype(x), g.dims(x));
    let axis = g.rng.below(dims.len());
    let mut slice = dims.clone();
    let length = slice.remove(axis);
    let mut body = PrimGraph::new("body");
    let state = body.add_input("state", dtype, &slice[..]);
    let row = body.add_input("slice", dtype, &slice[..]);
    let next = body.add(PrimOp::Map(ScalarFn::Binary(BinaryFn::Add)), &[state, row]).ok()?;
    body.add_output("state", next);
    body.add_output("scan", next);
    let start = g.floats(dtype, &slice, -1.0, 1.0);
    let spec =
        ScanSpec { states: 1, inputs: vec![(axis, g.rng.one_in(2))], outputs: vec![(axis, g.rng.one_in(2))] };
    let reach = 2.0 + g.facts(x).magnitude() * length as f64;
    let results = vec![(dtype, Shape::checked(slice)?), (dtype, Shape::checked(dims)?)];
    let kind = OpaqueKind::Scan { body: Box::new(body), spec };
    g.opaque(kind, &[start, x], results, &[TensorFacts::rounded(-reach, reach); 2])
}

/// Reversed sequences: a routine that takes any type.
pub fn routine(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.pick(|graph, id, _| graph.shape(id).rank() >= 2)?;
    let (of, dims) = (g.type_of(x), g.dims(x));
    let axes = g.rng.permutation(dims.len());
    let lengths = g.integers(DType::I64, &[dims[axes[0]]], 0, dims[axes[1]] as i64);
    let ints = vec![axes[0] as i64, axes[1] as i64];
    let kind = OpaqueKind::Routine { name: "ReverseSequence", ints, floats: Vec::new(), texts: Vec::new() };
    let facts = g.facts(x);
    g.opaque(kind, &[x, lengths], vec![of], &[facts])
}
