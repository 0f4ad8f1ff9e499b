//! Gathers at indices that are known when compiling.

use crate::site::Site;
use crate::{Numerics, Rule};
use orch_ir::{PrimOp, Shape, TensorId};

/// Positions beyond this count stay a tensor of indices.
const MAX_POSITIONS: usize = 1 << 16;

/// The family.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "take-known",
        equation: "take(x, I) = reshape(pick_I(x))",
        guards: "",
        numerics: Numerics::Exact,
        source: "definition",
        apply: take_known,
    },
    Rule {
        name: "gather-nd-known",
        equation: "gather_nd(x, I) = reshape(pick_J(reshape(x)))",
        guards: "no batch dimensions; J are the row-major places of I among the addressed dimensions",
        numerics: Numerics::Exact,
        source: "definition",
        apply: gather_nd_known,
    },
    Rule {
        name: "pick-progression",
        equation: "pick_[a, a + s, ..](x) = x[a::s]",
        guards: "all picked dimensions are evenly spaced",
        numerics: Numerics::Exact,
        source: "definition",
        apply: pick_progression,
    },
    Rule {
        name: "pick-of-pick",
        equation: "pick_J(pick_I(x)) = pick_I[J](x)",
        guards: "",
        numerics: Numerics::Exact,
        source: "composition of index maps",
        apply: pick_of_pick,
    },
];

/// The known indices that a tensor holds.
fn known_indices(site: &Site<'_>, id: TensorId) -> Option<Vec<i64>> {
    if !site.is_known(id) || site.shape(id).elems() > MAX_POSITIONS {
        return None;
    }
    site.known(id)?.to_i64()
}

/// `pick` along `axis`, then `shape`.
fn pick(site: &mut Site<'_>, x: TensorId, axis: usize, list: Vec<usize>, shape: Shape) -> Option<TensorId> {
    let mut positions = vec![None; site.shape(x).rank()];
    positions[axis] = Some(list);
    let picked = site.emit(PrimOp::Select { positions }, &[x])?;
    site.reshape(picked, shape)
}

fn take_known(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Take { axis } = *root.op else { return None };
    let indices = known_indices(site, root.inputs[1])?;
    let last = site.shape(root.inputs[0])[axis].checked_sub(1)?;
    let list = indices.into_iter().map(|index| index.clamp(0, last as i64) as usize).collect();
    let shape = site.shape(site.result()).clone();
    pick(site, root.inputs[0], axis, list, shape)
}

fn gather_nd_known(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::GatherNd { batch_dims: 0 } = *root.op else { return None };
    let indices = known_indices(site, root.inputs[1])?;
    let depth = *site.shape(root.inputs[1]).last()?;
    let data = site.shape(root.inputs[0]).clone();
    let (addressed, rest) = data.split_at_checked(depth)?;
    if depth == 0 || addressed.contains(&0) {
        return None;
    }
    let place = |index: &[i64]| {
        index
            .iter()
            .zip(addressed)
            .fold(0, |place, (&at, &extent)| place * extent + at.clamp(0, extent as i64 - 1) as usize)
    };
    let list = indices.chunks(depth).map(place).collect();
    let flat: Shape = [&[addressed.iter().product()], rest].concat().into();
    let flat = site.reshape(root.inputs[0], flat)?;
    let shape = site.shape(site.result()).clone();
    pick(site, flat, 0, list, shape)
}

fn pick_progression(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Select { positions } = &*root.op else { return None };
    let shape = site.shape(root.inputs[0]).clone();
    let (mut starts, mut steps, mut sizes) = (vec![0; shape.rank()], vec![1; shape.rank()], shape.to_vec());
    for (dim, list) in positions.iter().enumerate() {
        let Some(list) = list else { continue };
        let at = |position: usize| list.get(position).map_or(0, |&at| at as i64);
        let step = if list.len() > 1 { at(1) - at(0) } else { 1 };
        if step == 0 || !list.windows(2).all(|pair| pair[1] as i64 - pair[0] as i64 == step) {
            return None;
        }
        (starts[dim], steps[dim], sizes[dim]) = (at(0), step, list.len());
    }
    site.emit(PrimOp::Slice { starts, steps, sizes }, &[root.inputs[0]])
}

fn pick_of_pick(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Select { positions: outer } = &*root.op else { return None };
    let made = site.maker(root.inputs[0])?;
    let PrimOp::Select { positions: inner } = &*made.op else { return None };
    let compose = |(outer, inner): (&Option<Vec<usize>>, &Option<Vec<usize>>)| match (outer, inner) {
        (Some(outer), Some(inner)) => Some(outer.iter().map(|&at| inner[at]).collect()),
        (list, None) | (None, list) => list.clone(),
    };
    let positions = outer.iter().zip(inner).map(compose).collect();
    site.emit(PrimOp::Select { positions }, &[made.inputs[0]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Case, check};
    use orch_ir::DType;

    #[test]
    fn rules_hold() {
        check(
            RULES,
            &[
                Case {
                    rule: "take-known",
                    nodes: (1, 2),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, b, c]);
                        let indices = g.constant_of(DType::I64, [2, 3], |i| (i * i) as f64 - 1.0);
                        g.op(PrimOp::Take { axis: 1 }, &[x, indices])
                    },
                },
                Case {
                    rule: "gather-nd-known",
                    nodes: (1, 3),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, b, c]);
                        let indices = g.constant_of(DType::I64, [2, 2, 2], |i| i as f64 - 2.0);
                        g.op(PrimOp::GatherNd { batch_dims: 0 }, &[x, indices])
                    },
                },
                Case {
                    rule: "pick-progression",
                    nodes: (1, 1),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, b, 2 * c]);
                        let odd = (0..c).map(|at| 2 * at + 1).rev().collect();
                        g.op(PrimOp::Select { positions: vec![None, None, Some(odd)] }, &[x])
                    },
                },
                Case {
                    rule: "pick-of-pick",
                    nodes: (2, 1),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, b, c]);
                        let twice = (0..2 * b).map(|at| at / 2).collect();
                        let x = g.op(PrimOp::Select { positions: vec![None, Some(twice), None] }, &[x]);
                        let some = vec![Some(vec![0, 0]), Some(vec![b, 1, 0]), None];
                        g.op(PrimOp::Select { positions: some }, &[x])
                    },
                },
            ],
        );
    }
}
