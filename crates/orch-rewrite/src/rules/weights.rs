//! Constant factors and summands of the input of a product with constant weights, folded into the weights.

use crate::site::{Made, Site};
use crate::{Numerics, Rule};
use orch_ir::{BinaryFn, Contract, PrimOp, Shape, TensorId};

/// The family.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "product-of-scaled",
        equation: "(x S) W = x (S W), conv(x S, W) = conv(x, S W)",
        guards: "S varies along summed dimensions and input channels only, or is one number; x S has no other use; floats",
        numerics: Numerics::Reassociate,
        source: "linearity",
        apply: product_of_scaled,
    },
    Rule {
        name: "product-of-shifted",
        equation: "(x + B) W = x W + B W, conv(x + B, W) = conv(x, W) + conv(B, W)",
        guards: "B varies along summed dimensions and input channels only, or is one number; x + B has no other use; \
                 convolutions without padding; floats",
        numerics: Numerics::Reassociate,
        source: "linearity",
        apply: product_of_shifted,
    },
];

/// A product of an operand and known weights.
struct WeightProduct {
    made: Made,
    /// Which operand is not known.
    operand: usize,
}

impl WeightProduct {
    fn at_root(site: &Site<'_>) -> Option<Self> {
        let made = site.root();
        let weights_last = matches!(&*made.op, PrimOp::Conv(_));
        if !weights_last && !matches!(&*made.op, PrimOp::Contract(_)) {
            return None;
        }
        let operand = match (site.is_known(made.inputs[0]), site.is_known(made.inputs[1])) {
            (false, true) => 0,
            (true, false) if !weights_last => 1,
            _ => return None,
        };
        site.dtype(made.inputs[0]).is_float().then_some(Self { made, operand })
    }

    fn x(&self) -> TensorId {
        self.made.inputs[self.operand]
    }

    fn weights(&self) -> TensorId {
        self.made.inputs[1 - self.operand]
    }

    /// The dimensions of the weights that go with dimensions `dims` of the operand, if every one has such.
    fn dims_in_weights(&self, dims: &[usize]) -> Option<Vec<usize>> {
        match &*self.made.op {
            PrimOp::Contract(Contract { lhs, rhs, .. }) => {
                let (own, other) = if self.operand == 0 { (lhs, rhs) } else { (rhs, lhs) };
                dims.iter().map(|&dim| other.iter().position(|&label| label == own[dim])).collect()
            }
            PrimOp::Conv(spec) => match dims {
                [] => Some(Vec::new()),
                [1] if spec.groups == 1 => Some(vec![1]),
                _ => None,
            },
            _ => None,
        }
    }

    fn with(&self, site: &mut Site<'_>, x: TensorId, weights: TensorId) -> Option<TensorId> {
        let inputs = if self.operand == 0 { [x, weights] } else { [weights, x] };
        site.emit_for(&self.made, (*self.made.op).clone(), &inputs)
    }
}

/// A known tensor as a constant along some dimensions, which are not of extent 1.
fn compact(site: &mut Site<'_>, id: TensorId) -> Option<(TensorId, Vec<usize>)> {
    let (value, dims) = site.broadcast_of(id).unwrap_or_else(|| (id, (0..site.shape(id).rank()).collect()));
    let shape = site.shape(value).clone();
    let solid: Vec<usize> = (0..shape.rank()).filter(|&dim| shape[dim] != 1).collect();
    let squeezed: Shape = solid.iter().map(|&dim| shape[dim]).collect::<Vec<_>>().into();
    Some((site.reshape(value, squeezed)?, solid.iter().map(|&dim| dims[dim]).collect()))
}

fn product_of_scaled(site: &mut Site<'_>) -> Option<TensorId> {
    let product = WeightProduct::at_root(site)?;
    let scaled = product.x();
    let (x, factor) = site.with_constant(scaled, BinaryFn::Mul).filter(|_| site.single(scaled))?;
    let (factor, dims) = compact(site, factor)?;
    let dims = product.dims_in_weights(&dims)?;
    let shape = site.shape(product.weights()).clone();
    let factor = site.spread(factor, &shape, &dims)?;
    let weights = site.binary(BinaryFn::Mul, product.weights(), factor)?;
    product.with(site, x, weights)
}

fn product_of_shifted(site: &mut Site<'_>) -> Option<TensorId> {
    let product = WeightProduct::at_root(site)?;
    let shifted = product.x();
    let (x, summand) = site.with_constant(shifted, BinaryFn::Add).filter(|_| site.single(shifted))?;
    let (summand, dims) = compact(site, summand)?;
    let shift = match &*product.made.op {
        PrimOp::Contract(contract) => shift_of_contract(site, &product, contract, summand, &dims)?,
        PrimOp::Conv(spec) => {
            let window = &spec.window;
            if window.low.iter().chain(&window.high).any(|&amount| amount > 0) {
                return None;
            }
            shift_of_conv(site, &product, summand, &dims)?
        }
        _ => return None,
    };
    let y = product.with(site, x, product.weights())?;
    site.binary(BinaryFn::Add, y, shift)
}

/// The product of a summand alone: over the dimensions that the weights share, repeated along the others.
fn shift_of_contract(
    site: &mut Site<'_>,
    product: &WeightProduct,
    contract: &Contract,
    summand: TensorId,
    dims: &[usize],
) -> Option<TensorId> {
    product.dims_in_weights(dims)?;
    let (own, other) =
        if product.operand == 0 { (&contract.lhs, &contract.rhs) } else { (&contract.rhs, &contract.lhs) };
    // Labels summed over the operand alone multiply the summand by their extents: not worth a rule.
    if own.iter().any(|label| !other.contains(label) && !contract.out.contains(label)) {
        return None;
    }
    let labels: Vec<u8> = dims.iter().map(|&dim| own[dim]).collect();
    let kept: Vec<usize> =
        (0..contract.out.len()).filter(|&position| other.contains(&contract.out[position])).collect();
    let out = kept.iter().map(|&position| contract.out[position]).collect();
    let contract = Contract { lhs: labels, rhs: other.clone(), out };
    let shift = site.emit(PrimOp::Contract(contract), &[summand, product.weights()])?;
    let shape = site.shape(site.result()).clone();
    site.broadcast(shift, &shape, &kept)
}

/// The sum over input channels and window of the summand times the weights, per output channel.
fn shift_of_conv(
    site: &mut Site<'_>,
    product: &WeightProduct,
    summand: TensorId,
    dims: &[usize],
) -> Option<TensorId> {
    let dims = product.dims_in_weights(dims)?;
    let shape = site.shape(product.weights()).clone();
    let summand = site.spread(summand, &shape, &dims)?;
    let terms = site.binary(BinaryFn::Mul, product.weights(), summand)?;
    let axes = (1..shape.rank()).collect();
    let shift = site.emit(PrimOp::Reduce { op: orch_ir::ReduceOp::Sum, axes }, &[terms])?;
    let result = site.shape(site.result()).clone();
    site.broadcast(shift, &result, &[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Case, Sketch, check};
    use orch_ir::{ConvSpec, Window};

    fn conv(g: &mut Sketch, x: TensorId, channels: [usize; 2], pad: usize) -> TensorId {
        let w = g.weight([channels[1], channels[0], 3]);
        let window =
            Window { kernel: vec![3], strides: vec![2], dilations: vec![1], low: vec![pad], high: vec![pad] };
        g.op(PrimOp::Conv(ConvSpec { window, groups: 1 }), &[x, w])
    }

    #[test]
    fn rules_hold() {
        check(
            RULES,
            &[
                Case {
                    rule: "product-of-scaled",
                    nodes: (3, 1),
                    build: |g, [a, b, c]| {
                        let (x, w, s) = (g.input([a, b]), g.weight([b, c]), g.weight([b]));
                        let s = g.broadcast(s, [a, b], &[1]);
                        let x = g.map(BinaryFn::Mul, &[s, x]);
                        g.contract("bc,ab->ca", w, x)
                    },
                },
                Case {
                    rule: "product-of-scaled",
                    nodes: (3, 1),
                    build: |g, [a, b, c]| {
                        let (x, s) = (g.input([a, b, c + 2]), g.weight([b, 1]));
                        let s = g.broadcast(s, [a, b, c + 2], &[1, 2]);
                        let x = g.map(BinaryFn::Mul, &[x, s]);
                        conv(g, x, [b, c], 1)
                    },
                },
                Case {
                    rule: "product-of-shifted",
                    nodes: (3, 3),
                    build: |g, [a, b, c]| {
                        let (x, w, s) = (g.input([a, b]), g.weight([b, c]), g.weight([b]));
                        let s = g.broadcast(s, [a, b], &[1]);
                        let x = g.map(BinaryFn::Add, &[s, x]);
                        g.contract("bc,ab->ca", w, x)
                    },
                },
                Case {
                    rule: "product-of-shifted",
                    nodes: (3, 3),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, b, c + 2]);
                        let x = g.with(BinaryFn::Add, x, 0.5);
                        conv(g, x, [b, c], 0)
                    },
                },
            ],
        );
    }

    #[test]
    fn padding_keeps_summands_outside() {
        let mut g = Sketch { graph: orch_ir::PrimGraph::new("g") };
        let x = g.input([1, 2, 5]);
        let x = g.with(BinaryFn::Add, x, 0.5);
        let y = conv(&mut g, x, [2, 3], 1);
        g.graph.add_output("y", y);
        assert_eq!(crate::rewrite(&g.graph, &crate::RewriteOptions::default()).1.applied, Default::default());
    }
}
