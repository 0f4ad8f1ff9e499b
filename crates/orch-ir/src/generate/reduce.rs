//! Random reductions.

use super::{Generator, MAX_MAGNITUDE, TensorFacts};
use crate::{BinaryFn, PrimOp, ReduceOp, ScalarFn, TensorId, UnaryFn, Window};

/// A reduction over some axes; arg-reductions of exact operands only.
pub fn reduce(g: &mut Generator<'_>) -> Option<TensorId> {
    let op = *g.rng.choose(&ReduceOp::ALL);
    let x = g.pick(|graph, id, facts| {
        let ranked = graph.shape(id).rank() > 0 || !op.is_arg();
        ranked && facts.magnitude() <= MAX_MAGNITUDE && (facts.exact || !op.is_arg())
    })?;
    let rank = g.graph.shape(x).rank();
    let axes: Vec<usize> =
        if op.is_arg() { vec![g.rng.below(rank)] } else { (0..rank).filter(|_| g.rng.one_in(2)).collect() };
    let dims = g.dims(x);
    let count = axes.iter().map(|&axis| dims[axis]).product();
    let facts = image(op, g.facts(x), count);
    let facts = if g.graph.dtype(x).is_float() { facts } else { TensorFacts { exact: true, ..facts } };
    g.add(PrimOp::Reduce { op, axes }, &[x], facts)
}

/// What a reduction of `count` elements makes of an interval.
fn image(op: ReduceOp, x: TensorFacts, count: usize) -> TensorFacts {
    let n = count as f64;
    let extremum = |nothing: f64| if count == 0 { TensorFacts::exact(nothing, nothing) } else { x };
    match op {
        ReduceOp::Sum => TensorFacts::rounded((n * x.low).min(0.0), (n * x.high).max(0.0)),
        ReduceOp::Prod => {
            // Finite, so that it is refused: only the extremum of nothing is infinite.
            let reach = x.magnitude().max(1.0).powf(n).min(2.0 * MAX_MAGNITUDE);
            TensorFacts::rounded(-reach, reach)
        }
        ReduceOp::Max => extremum(f64::NEG_INFINITY),
        ReduceOp::Min => extremum(f64::INFINITY),
        ReduceOp::ArgMax { .. } | ReduceOp::ArgMin { .. } => TensorFacts::exact(0.0, n),
    }
}

/// A window that fits into the trailing extents of `dims`, which are not empty; `None` if it does not.
pub fn random_window(g: &mut Generator<'_>, dims: &[usize]) -> Option<Window> {
    let rank = dims.len() - 2;
    let mut draw = |options: &[usize]| -> Vec<usize> { (0..rank).map(|_| *g.rng.choose(options)).collect() };
    let window = Window {
        kernel: draw(&[1, 2, 3, 3]),
        strides: draw(&[1, 1, 2, 3]),
        dilations: draw(&[1, 1, 1, 2]),
        low: draw(&[0, 0, 1, 2]),
        high: draw(&[0, 0, 1, 2]),
    };
    let fits = |dim: usize| dims[dim + 2] > 0 && window.positions(dim, dims[dim + 2]).is_some();
    (0..rank).all(fits).then_some(window)
}

/// A windowed reduction.
pub fn window(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.float_of_rank(3..=5);
    let dims = g.dims(x);
    let window = random_window(g, &dims)?;
    let op = *g.rng.choose(&ReduceOp::ALL);
    let padded = window.low.iter().chain(&window.high).any(|&amount| amount > 0);
    // A window that meets nothing but padding holds no position.
    if op.is_arg() && (padded || !g.facts(x).exact) {
        return None;
    }
    let all = window.kernel.iter().product();
    let mut facts = image(op, g.facts(x), all);
    if padded && matches!(op, ReduceOp::Max | ReduceOp::Min) {
        // A window that meets nothing but padding is infinite.
        facts = facts.union(image(op, facts, 0));
    }
    if op.is_arg() {
        facts = TensorFacts::exact(0.0, dims[2..].iter().product::<usize>() as f64);
    }
    g.add(PrimOp::Window { op, window }, &[x], facts)
}

/// Softmax over one axis, stabilised: the composite that fusion cares about most.
pub fn softmax(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.pick(|graph, id, facts| {
        let shape = graph.shape(id);
        graph.dtype(id).is_float() && shape.rank() > 0 && shape.elems() > 0 && facts.magnitude() <= 50.0
    })?;
    let (shape, facts) = (g.graph.shape(x).clone(), g.facts(x));
    let axis = g.rng.below(shape.rank());
    let dims: Vec<usize> = (0..shape.rank()).filter(|&dim| dim != axis).collect();
    let spread = PrimOp::Broadcast { shape: shape.clone(), dims };
    let width = facts.high - facts.low;

    let reduced = |op| PrimOp::Reduce { op, axes: vec![axis] };
    let max = g.add(reduced(ReduceOp::Max), &[x], facts)?;
    let max = g.add(spread.clone(), &[max], facts)?;
    let difference = TensorFacts::rounded(-width, 0.0);
    let shifted = g.add(PrimOp::Map(ScalarFn::Binary(BinaryFn::Sub)), &[x, max], difference)?;
    let unit = TensorFacts::rounded(0.0, 1.0);
    let exp = g.add(PrimOp::Map(ScalarFn::Unary(UnaryFn::Exp)), &[shifted], unit)?;
    let total = TensorFacts::rounded(1.0, shape[axis] as f64);
    let sum = g.add(reduced(ReduceOp::Sum), &[exp], total)?;
    let sum = g.add(spread, &[sum], total)?;
    g.add(PrimOp::Map(ScalarFn::Binary(BinaryFn::Div)), &[exp, sum], unit)
}
