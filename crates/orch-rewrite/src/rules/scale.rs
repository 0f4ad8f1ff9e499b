//! Constant factors and summands folded into constant weights: batch normalisation, the `1 / sqrt(d)` of attention.
//!
//! [`Factor`] says along which dimensions a constant factor varies; `absorb` walks from a product back through layout,
//! sums and products to the constants that can take it.

use crate::site::{Made, Site};
use crate::{Numerics, Rule};
use orch_ir::{BinaryFn, PrimOp, ScalarFn, Shape, TensorId, UnaryFn};

/// The family.
pub(super) const RULES: &[Rule] = &[Rule {
    name: "absorb-factor",
    equation: "conv(x, W) S = conv(x, W S); (x W + B) S = x (W S) + B S; through layout, sums and products",
    guards: "every tensor on the way has no other use; S varies along output channels or columns only; floats",
    numerics: Numerics::Reassociate,
    source: "linearity; batch-normalisation folding",
    apply: absorb_factor,
}];

/// Nodes between a factor and the constants that take it.
const MAX_DEPTH: usize = 12;

/// A constant factor of a tensor of some shape: `value` broadcast, its dimension `i` along `dims[i]`.
#[derive(Clone)]
struct Factor {
    value: TensorId,
    dims: Vec<usize>,
}

fn absorb_factor(site: &mut Site<'_>) -> Option<TensorId> {
    let (x, c) = site.with_constant(site.result(), BinaryFn::Mul)?;
    if !site.dtype(x).is_float() || !site.single(x) {
        return None;
    }
    let factor = factor_of(site, c)?;
    if !can_absorb(site, x, &factor.dims, MAX_DEPTH) {
        return None;
    }
    absorb(site, x, &factor)
}

/// A known tensor as a factor: the constant that it broadcasts, without dimensions of extent 1.
fn factor_of(site: &mut Site<'_>, id: TensorId) -> Option<Factor> {
    let made = site.maker(id);
    let (value, dims) = match made.as_ref().map(|made| (&*made.op, made.inputs[0])) {
        Some((PrimOp::Broadcast { dims, .. }, source)) => (source, dims.clone()),
        _ => (id, (0..site.shape(id).rank()).collect()),
    };
    let shape = site.shape(value).clone();
    let solid: Vec<usize> = (0..shape.rank()).filter(|&dim| shape[dim] != 1).collect();
    let squeezed: Shape = solid.iter().map(|&dim| shape[dim]).collect::<Vec<_>>().into();
    Some(Factor { value: site.reshape(value, squeezed)?, dims: solid.iter().map(|&dim| dims[dim]).collect() })
}

/// The dimensions of a primitive's operand along which a factor varies that varies along `dims` of its result, if
/// multiplying that operand multiplies the result.
fn dims_in_operand(site: &Site<'_>, made: &Made, operand: usize, dims: &[usize]) -> Option<Vec<usize>> {
    let shape = |index: usize| site.shape(made.inputs[index]);
    match &*made.op {
        PrimOp::Transpose { perm } => Some(dims.iter().map(|&dim| perm[dim]).collect()),
        PrimOp::Reshape { .. } if dims.is_empty() => Some(Vec::new()),
        PrimOp::Broadcast { dims: targets, shape: to } => dims
            .iter()
            .map(|dim| targets.iter().position(|target| target == dim).filter(|&at| shape(0)[at] == to[*dim]))
            .collect(),
        PrimOp::Contract(labels) => {
            let own = if operand == 0 { &labels.lhs } else { &labels.rhs };
            dims.iter().map(|&dim| own.iter().position(|&label| label == labels.out[dim])).collect()
        }
        PrimOp::Conv(_) => match (operand, dims) {
            (_, []) => Some(Vec::new()),
            (1, [1]) => Some(vec![0]),
            _ => None,
        },
        PrimOp::ConvTranspose { spec, .. } => match (operand, dims) {
            (_, []) => Some(Vec::new()),
            (1, [1]) if spec.groups == 1 => Some(vec![1]),
            _ => None,
        },
        PrimOp::Map(ScalarFn::Binary(BinaryFn::Add | BinaryFn::Sub | BinaryFn::Mul))
        | PrimOp::Map(ScalarFn::Unary(UnaryFn::Neg)) => Some(dims.to_vec()),
        PrimOp::Map(ScalarFn::Binary(BinaryFn::Div)) if operand == 0 => Some(dims.to_vec()),
        _ => None,
    }
}

/// True for the primitives of which every operand has to take the factor, not one of them.
fn needs_all(op: &PrimOp) -> bool {
    matches!(op, PrimOp::Map(ScalarFn::Binary(BinaryFn::Add | BinaryFn::Sub)))
}

/// The operand that takes the factor, if one suffices and can.
fn taker(site: &Site<'_>, made: &Made, dims: &[usize], depth: usize) -> Option<(usize, Vec<usize>)> {
    // Weights stand on the right mostly.
    (0..made.inputs.len()).rev().find_map(|operand| {
        let inner = dims_in_operand(site, made, operand, dims)?;
        can_absorb(site, made.inputs[operand], &inner, depth).then_some((operand, inner))
    })
}

/// True if constants alone can take a factor that varies along `dims` of a tensor.
fn can_absorb(site: &Site<'_>, id: TensorId, dims: &[usize], depth: usize) -> bool {
    if site.is_known(id) {
        return true;
    }
    let (Some(made), Some(depth)) = (site.maker(id), depth.checked_sub(1)) else { return false };
    if !site.single(id) {
        return false;
    }
    if needs_all(&made.op) {
        return made.inputs[0] != made.inputs[1]
            && made.inputs.iter().all(|&input| can_absorb(site, input, dims, depth));
    }
    taker(site, &made, dims, depth).is_some()
}

/// The tensor times the factor; [`can_absorb`] has said yes.
fn absorb(site: &mut Site<'_>, id: TensorId, factor: &Factor) -> Option<TensorId> {
    if site.is_known(id) {
        let shape = site.shape(id).clone();
        let order = factor.dims.clone();
        let factor = site.spread(factor.value, &shape, &order)?;
        return site.binary(BinaryFn::Mul, id, factor);
    }
    let made = site.maker(id)?;
    let mut inputs = made.inputs.to_vec();
    if needs_all(&made.op) {
        for input in &mut inputs {
            *input = absorb(site, *input, factor)?;
        }
    } else {
        let (operand, dims) = taker(site, &made, &factor.dims, MAX_DEPTH)?;
        inputs[operand] = absorb(site, inputs[operand], &Factor { value: factor.value, dims })?;
    }
    site.emit_for(&made, (*made.op).clone(), &inputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Case, Sketch, check};
    use orch_ir::{ConvSpec, Window};

    /// `conv(x [2, 2 a, b + 2], w [2 c, 2 a / groups, 3])`.
    fn conv(g: &mut Sketch, [a, b, c]: [usize; 3], groups: usize) -> TensorId {
        let (x, w) = (g.input([2, 2 * a, b + 2]), g.weight([2 * c, 2 * a / groups, 3]));
        let window =
            Window { kernel: vec![3], strides: vec![1], dilations: vec![1], low: vec![1], high: vec![0] };
        g.op(PrimOp::Conv(ConvSpec { window, groups }), &[x, w])
    }

    /// `x` times a weight along `dim`, plus another one.
    fn affine(g: &mut Sketch, x: TensorId, dim: usize) -> TensorId {
        let shape = g.graph.shape(x).clone();
        let (factor, summand) = (g.weight([shape[dim]]), g.weight([shape[dim]]));
        let factor = g.broadcast(factor, shape.clone(), &[dim]);
        let summand = g.broadcast(summand, shape, &[dim]);
        let scaled = g.map(BinaryFn::Mul, &[x, factor]);
        g.map(BinaryFn::Add, &[scaled, summand])
    }

    #[test]
    fn rules_hold() {
        check(
            RULES,
            &[
                Case {
                    rule: "absorb-factor",
                    nodes: (5, 3),
                    build: |g, sizes| {
                        let y = conv(g, sizes, 2);
                        affine(g, y, 1)
                    },
                },
                Case {
                    rule: "absorb-factor",
                    nodes: (11, 8),
                    build: |g, [a, b, c]| {
                        let (x, w, bias) = (g.input([a, b]), g.weight([2 * c, b]), g.weight([2 * c]));
                        let y = g.contract("ac,bc->ab", x, w);
                        let bias = g.broadcast(bias, [a, 2 * c], &[1]);
                        let y = g.map(BinaryFn::Add, &[y, bias]);
                        let heads = g.reshape(y, [a, 2, c]);
                        let heads = g.transpose(heads, &[1, 0, 2]);
                        let scaled = g.with(BinaryFn::Mul, heads, 0.25);
                        affine(g, scaled, 2)
                    },
                },
                Case {
                    rule: "absorb-factor",
                    nodes: (5, 3),
                    build: |g, [a, b, c]| {
                        let (x, w) = (g.input([a, b]), g.weight([b, c]));
                        let y = g.contract("ab,bc->ac", x, w);
                        let y = g.map(UnaryFn::Neg, &[y]);
                        let z = g.input([a, c]);
                        let y = g.map(BinaryFn::Div, &[y, z]);
                        g.with(BinaryFn::Mul, y, 0.5)
                    },
                },
            ],
        );
    }

    #[test]
    fn shared_results_keep_their_factor() {
        let mut g = Sketch { graph: orch_ir::PrimGraph::new("g") };
        let y = conv(&mut g, [1, 2, 3], 1);
        let scaled = g.with(BinaryFn::Mul, y, 0.5);
        g.graph.add_output("y", y);
        g.graph.add_output("scaled", scaled);
        let (_, report) = crate::rewrite(&g.graph, &crate::RewriteOptions::default());
        assert_eq!(report.applied, Default::default());
    }
}
