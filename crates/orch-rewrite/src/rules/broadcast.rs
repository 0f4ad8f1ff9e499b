//! Broadcasts: merged with each other, and put after elementwise functions and before reductions, so that nothing is
//! computed twice.

use crate::site::Site;
use crate::{Numerics, Rule};
use orch_ir::{PrimOp, ReduceOp, Shape, TensorId};

/// The family.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "broadcast-identity",
        equation: "broadcast(x) = reshape(x)",
        guards: "nothing repeats",
        numerics: Numerics::Exact,
        source: "definition",
        apply: broadcast_identity,
    },
    Rule {
        name: "broadcast-of-broadcast",
        equation: "broadcast_d(broadcast_e(x)) = broadcast_(d[e])(x)",
        guards: "",
        numerics: Numerics::Exact,
        source: "composition of index maps",
        apply: broadcast_of_broadcast,
    },
    Rule {
        name: "broadcast-of-units",
        equation: "broadcast(reshape(x)) = broadcast(x)",
        guards: "the reshape only inserts or drops dimensions of extent 1",
        numerics: Numerics::Exact,
        source: "composition of index maps",
        apply: broadcast_of_units,
    },
    Rule {
        name: "broadcast-of-known-units",
        equation: "broadcast(X) = broadcast(reshape(X))",
        guards: "X has dimensions of extent 1, which the reshape drops",
        numerics: Numerics::Exact,
        source: "composition of index maps",
        apply: broadcast_of_known_units,
    },
    Rule {
        name: "map-of-broadcasts",
        equation: "f(broadcast_d(x), broadcast_d(y), ..) = broadcast_d(f(x, y, ..))",
        guards: "all operands are broadcasts along the same dimensions, or of scalars; something repeats",
        numerics: Numerics::Exact,
        source: "f acts on each element alone",
        apply: map_of_broadcasts,
    },
    Rule {
        name: "reduce-of-broadcast",
        equation: "max(broadcast(x)) = x",
        guards: "maximum or minimum over repeated, not empty dimensions",
        numerics: Numerics::Exact,
        source: "idempotence",
        apply: reduce_of_broadcast,
    },
];

/// Where the dimensions of `from` go in a broadcast that takes `reshaped`'s dimensions to `dims`, if `reshaped` only has
/// more or fewer dimensions of extent 1 than `from`.
fn through_units(from: &Shape, reshaped: &Shape, dims: &[usize]) -> Option<Vec<usize>> {
    let mut solid = (0..reshaped.rank()).filter(|&dim| reshaped[dim] != 1);
    let mut targets = Vec::with_capacity(from.rank());
    let mut free = 0;
    for &extent in from.iter() {
        // A dimension of extent 1 may go anywhere, as long as the order is kept.
        let target = match extent {
            1 => free,
            _ => solid.next().filter(|&dim| reshaped[dim] == extent).map(|dim| dims[dim])?,
        };
        if target < free {
            return None;
        }
        targets.push(target);
        free = target + 1;
    }
    solid.next().is_none().then_some(targets)
}

fn broadcast_identity(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Broadcast { shape, dims } = &*root.op else { return None };
    let from = site.shape(root.inputs[0]);
    let repeats = (0..shape.rank()).any(|dim| {
        let source = dims.iter().position(|&target| target == dim);
        shape[dim] != source.map_or(1, |source| from[source])
    });
    if repeats { None } else { site.reshape(root.inputs[0], shape.clone()) }
}

fn broadcast_of_broadcast(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Broadcast { shape, dims: outer } = &*root.op else { return None };
    let made = site.maker(root.inputs[0])?;
    let PrimOp::Broadcast { dims: inner, .. } = &*made.op else { return None };
    let dims: Vec<usize> = inner.iter().map(|&dim| outer[dim]).collect();
    site.broadcast(made.inputs[0], shape, &dims)
}

fn broadcast_of_units(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Broadcast { shape, dims } = &*root.op else { return None };
    let made = site.maker(root.inputs[0])?;
    let PrimOp::Reshape { shape: reshaped } = &*made.op else { return None };
    let targets = through_units(site.shape(made.inputs[0]), reshaped, dims)?;
    targets.iter().all(|&target| target < shape.rank()).then_some(())?;
    site.broadcast(made.inputs[0], shape, &targets)
}

fn broadcast_of_known_units(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Broadcast { shape, dims } = &*root.op else { return None };
    let from = site.constant(root.inputs[0])?.shape().clone();
    let kept: Vec<usize> = (0..from.rank()).filter(|&dim| from[dim] != 1).collect();
    if kept.len() == from.rank() {
        return None;
    }
    let squeezed: Shape = kept.iter().map(|&dim| from[dim]).collect::<Vec<_>>().into();
    let squeezed = site.reshape(root.inputs[0], squeezed)?;
    site.broadcast(squeezed, shape, &kept.iter().map(|&dim| dims[dim]).collect::<Vec<_>>())
}

fn map_of_broadcasts(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Map(f) = *root.op else { return None };
    site.map_under_broadcast(f, &root.inputs)
}

fn reduce_of_broadcast(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Reduce { op: ReduceOp::Max | ReduceOp::Min, axes } = &*root.op else { return None };
    let (source, dims) = site.broadcast_of(root.inputs[0])?;
    let from = site.shape(source).clone();
    let whole = site.shape(root.inputs[0]).clone();
    let repeated = |axis: &usize| {
        whole[*axis] > 0 && dims.iter().position(|dim| dim == axis).is_none_or(|source| from[source] == 1)
    };
    if !axes.iter().all(repeated) {
        return None;
    }
    let kept: Vec<usize> = (0..dims.len()).filter(|&source| !axes.contains(&dims[source])).collect();
    let squeezed =
        site.reshape(source, kept.iter().map(|&source| from[source]).collect::<Vec<_>>().into())?;
    let before = |dim: usize| axes.iter().filter(|&&axis| axis < dim).count();
    let targets: Vec<usize> = kept.iter().map(|&source| dims[source] - before(dims[source])).collect();
    let shape = site.shape(site.result()).clone();
    site.broadcast(squeezed, &shape, &targets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Case, check};
    use orch_ir::BinaryFn;

    #[test]
    fn rules_hold() {
        check(
            RULES,
            &[
                Case {
                    rule: "broadcast-identity",
                    nodes: (1, 1),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        g.broadcast(x, [1, a, b, 1], &[1, 2])
                    },
                },
                Case {
                    rule: "broadcast-of-broadcast",
                    nodes: (2, 1),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, 1]);
                        let y = g.broadcast(x, [2, a, b], &[1, 2]);
                        g.broadcast(y, [2, a, c, b], &[0, 1, 3])
                    },
                },
                Case {
                    rule: "broadcast-of-units",
                    nodes: (2, 1),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, 1, b]);
                        let y = g.reshape(x, [a, 1, b, 1]);
                        g.broadcast(y, [a, 4, b, c], &[0, 1, 2, 3])
                    },
                },
                Case {
                    rule: "broadcast-of-units",
                    nodes: (2, 1),
                    build: |g, [a, b, c]| {
                        let x = g.input([1, a, 1]);
                        let y = g.reshape(x, [a]);
                        g.broadcast(y, [c, a, b], &[1])
                    },
                },
                Case {
                    rule: "broadcast-of-known-units",
                    nodes: (2, 2),
                    build: |g, [a, b, c]| {
                        let (x, w) = (g.input([a, b, c]), g.weight([b, 1]));
                        let w = g.broadcast(w, [a, b, c], &[1, 2]);
                        g.map(BinaryFn::Mul, &[x, w])
                    },
                },
                Case {
                    rule: "map-of-broadcasts",
                    nodes: (4, 3),
                    build: |g, [a, b, c]| {
                        let (x, y) = (g.input([a, b]), g.input([a, b]));
                        let (wide_x, wide_y) =
                            (g.broadcast(x, [a, c, b], &[0, 2]), g.broadcast(y, [a, c, b], &[0, 2]));
                        let product = g.map(BinaryFn::Mul, &[wide_x, wide_y]);
                        g.map(orch_ir::UnaryFn::Exp, &[product])
                    },
                },
                Case {
                    rule: "map-of-broadcasts",
                    nodes: (3, 3),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, b]);
                        let x = g.broadcast(x, [a, c, b], &[0, 2]);
                        g.with(BinaryFn::Max, x, 0.25)
                    },
                },
                Case {
                    rule: "reduce-of-broadcast",
                    nodes: (2, 1),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, b, 1]);
                        let x = g.broadcast(x, [a, c, b, c], &[0, 2, 3]);
                        g.reduce(ReduceOp::Max, x, &[1])
                    },
                },
            ],
        );
    }
}
