//! Einsum of any number of operands.
//!
//! Per operand, repeated labels become diagonals and labels that nobody else needs are summed at once. Then pairs
//! are contracted, always the pair with the smallest result.

use super::einsum_text::{Equation, parse};
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{ReduceOp, TensorId};

/// A tensor with one distinct label per dimension.
struct Term {
    tensor: TensorId,
    labels: Vec<u8>,
}

pub(super) fn einsum(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let text = call.text("equation")?.ok_or_else(|| RuleError::invalid("attribute equation is missing"))?;
    let tensors = call.tensors()?;
    let ranks: Vec<usize> = tensors.iter().map(|&tensor| ctx.rank(tensor)).collect();
    let Equation { operands, out } = parse(text, &ranks)?;
    let mut terms = Vec::new();
    for (tensor, labels) in tensors.into_iter().zip(operands) {
        terms.push(diagonal(ctx, Term { tensor, labels })?);
    }
    drop_repeated(ctx, &mut terms)?;
    for position in 0..terms.len() {
        sum_private(ctx, &mut terms, position, &out)?;
    }
    while terms.len() > 1 {
        let (first, second) = cheapest_pair(ctx, &terms, &out);
        let rhs = terms.remove(second);
        let lhs = terms.remove(first);
        let kept = kept_labels(&lhs, &rhs, &terms, &out);
        let tensor = ctx.contract(lhs.tensor, rhs.tensor, [&lhs.labels, &rhs.labels, &kept])?;
        terms.push(Term { tensor, labels: kept });
    }
    let last = terms.pop().ok_or(RuleError::MissingOperand(0))?;
    let position = |label: &u8| last.labels.iter().position(|other| other == label);
    let perm: Option<Vec<usize>> = out.iter().map(position).collect();
    let perm = perm.ok_or_else(|| RuleError::invalid("a label of the result is in no operand"))?;
    one(ctx.transpose(last.tensor, &perm)?)
}

/// Takes diagonals until every label occurs once: `x[.., i, .., i, ..]` with the two dimensions moved to the end
/// and folded into one is read with a stride of `n + 1`.
fn diagonal(ctx: &mut Context<'_>, mut term: Term) -> Result<Term, RuleError> {
    while let Some((first, second)) = repeated(&term.labels) {
        let shape = ctx.shape(term.tensor);
        let extent = shape[first];
        if shape[second] != extent {
            return Err(RuleError::invalid(format!("a label stands for two extents of {shape}")));
        }
        let others: Vec<usize> = (0..shape.rank()).filter(|&dim| dim != first && dim != second).collect();
        let moved = ctx.transpose(term.tensor, &[&others[..], &[first, second]].concat())?;
        let mut dims: Vec<usize> = others.iter().map(|&dim| shape[dim]).collect();
        dims.push(extent * extent);
        let folded = ctx.reshape(moved, dims.clone())?;
        let mut steps = vec![1; dims.len()];
        steps[others.len()] = extent as i64 + 1;
        dims[others.len()] = extent;
        term.tensor = ctx.slice(folded, &vec![0; dims.len()], &steps, &dims)?;
        let label = term.labels[first];
        term.labels = others.iter().map(|&dim| term.labels[dim]).chain([label]).collect();
    }
    Ok(term)
}

/// Two positions of one label.
fn repeated(labels: &[u8]) -> Option<(usize, usize)> {
    (0..labels.len()).find_map(|first| {
        let second = labels[first + 1..].iter().position(|label| *label == labels[first])?;
        Some((first, first + 1 + second))
    })
}

/// A dimension of extent 1 whose label stands for more in another operand is dropped: it broadcasts.
fn drop_repeated(ctx: &mut Context<'_>, terms: &mut [Term]) -> Result<(), RuleError> {
    let mut extents = [1usize; 256];
    for term in terms.iter() {
        for (&label, &extent) in term.labels.iter().zip(ctx.shape(term.tensor).iter()) {
            if extent != 1 {
                extents[label as usize] = extent;
            }
        }
    }
    for term in terms.iter_mut() {
        let shape = ctx.shape(term.tensor);
        let kept: Vec<usize> =
            (0..shape.rank()).filter(|&dim| shape[dim] == extents[term.labels[dim] as usize]).collect();
        let dropped_only_units = (0..shape.rank()).all(|dim| kept.contains(&dim) || shape[dim] == 1);
        if !dropped_only_units {
            return Err(RuleError::invalid("a label stands for two extents"));
        }
        term.tensor = ctx.reshape(term.tensor, kept.iter().map(|&dim| shape[dim]).collect::<Vec<_>>())?;
        term.labels = kept.iter().map(|&dim| term.labels[dim]).collect();
    }
    Ok(())
}

/// Sums the labels that neither the result nor another operand has.
fn sum_private(
    ctx: &mut Context<'_>,
    terms: &mut [Term],
    position: usize,
    out: &[u8],
) -> Result<(), RuleError> {
    let needed = |label: &u8| {
        let elsewhere =
            terms.iter().enumerate().any(|(other, term)| other != position && term.labels.contains(label));
        out.contains(label) || elsewhere
    };
    let labels = terms[position].labels.clone();
    let axes: Vec<usize> = (0..labels.len()).filter(|&dim| !needed(&labels[dim])).collect();
    let term = &mut terms[position];
    term.tensor = ctx.reduce(ReduceOp::Sum, term.tensor, &axes)?;
    term.labels = (0..labels.len()).filter(|dim| !axes.contains(dim)).map(|dim| labels[dim]).collect();
    Ok(())
}

/// The labels of the product of two terms: what the result or a remaining term needs, in the order of the result
/// where nothing remains.
fn kept_labels(lhs: &Term, rhs: &Term, remaining: &[Term], out: &[u8]) -> Vec<u8> {
    let mut candidates: Vec<u8> = lhs.labels.clone();
    candidates.extend(rhs.labels.iter().filter(|label| !lhs.labels.contains(label)));
    if remaining.is_empty() {
        return out.iter().copied().filter(|label| candidates.contains(label)).collect();
    }
    let needed = |label: &u8| out.contains(label) || remaining.iter().any(|term| term.labels.contains(label));
    candidates.retain(needed);
    candidates
}

/// The positions of the two terms whose product has the fewest elements.
fn cheapest_pair(ctx: &Context<'_>, terms: &[Term], out: &[u8]) -> (usize, usize) {
    let extent = |label: u8| {
        (terms.iter())
            .find_map(|term| {
                let dim = term.labels.iter().position(|&other| other == label)?;
                Some(ctx.shape(term.tensor)[dim])
            })
            .unwrap_or(1)
    };
    let size = |&(first, second): &(usize, usize)| {
        let others = terms.iter().enumerate().filter(|(at, _)| *at != first && *at != second);
        let needed: Vec<u8> =
            others.flat_map(|(_, term)| term.labels.iter().copied()).chain(out.iter().copied()).collect();
        let mut labels = [&terms[first].labels[..], &terms[second].labels[..]].concat();
        labels.sort_unstable();
        labels.dedup();
        (labels.into_iter().filter(|label| needed.contains(label)))
            .fold(1usize, |size, label| size.saturating_mul(extent(label)))
    };
    let pairs =
        (0..terms.len()).flat_map(|first| (first + 1..terms.len()).map(move |second| (first, second)));
    pairs.min_by_key(size).unwrap_or((0, 1))
}
