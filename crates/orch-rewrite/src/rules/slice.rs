//! Slices of slices, of joins and of everything.

use crate::site::Site;
use crate::{Numerics, Rule};
use orch_ir::{PrimOp, Shape, TensorId};
use std::collections::HashMap;
use std::rc::Rc;

/// The family.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "slice-identity",
        equation: "slice(x) = x",
        guards: "all of x, forwards",
        numerics: Numerics::Exact,
        source: "definition",
        apply: slice_identity,
    },
    Rule {
        name: "slice-of-slice",
        equation: "x[a::s][b::t] = x[a + b s::s t]",
        guards: "",
        numerics: Numerics::Exact,
        source: "composition of affine maps",
        apply: slice_of_slice,
    },
    Rule {
        name: "slice-of-concat",
        equation: "slice(concat(.., x, ..)) = slice(x)",
        guards: "the slice lies in one operand",
        numerics: Numerics::Exact,
        source: "TASO substitution set",
        apply: slice_of_concat,
    },
    Rule {
        name: "concat-of-slices",
        equation: "concat(.., x[a:b], x[b:c], ..) = concat(.., x[a:c], ..)",
        guards: "the slices differ along the axis of the concat only, and step by 1 along it",
        numerics: Numerics::Exact,
        source: "TASO substitution set",
        apply: concat_of_slices,
    },
    Rule {
        name: "concat-of-slices-of-concat",
        equation: "concat(.., slice(concat(x, y, ..)), ..) = concat(.., slice(x), y, ..)",
        guards: "along one axis; nothing else reads the slices, nor the inner concat",
        numerics: Numerics::Exact,
        source: "TASO substitution set; outputs that unrolled loops write a step at a time are such chains",
        apply: concat_of_slices_of_concat,
    },
];

/// The fields of a slice.
#[derive(Clone, PartialEq)]
struct Range {
    starts: Vec<i64>,
    steps: Vec<i64>,
    sizes: Vec<usize>,
}

impl Range {
    fn of(op: &PrimOp) -> Option<Self> {
        let PrimOp::Slice { starts, steps, sizes } = op else { return None };
        Some(Self { starts: starts.clone(), steps: steps.clone(), sizes: sizes.clone() })
    }

    /// All of a tensor of this shape.
    fn whole(shape: &Shape) -> Self {
        Self { starts: vec![0; shape.rank()], steps: vec![1; shape.rank()], sizes: shape.dims().to_vec() }
    }

    fn into_op(self) -> PrimOp {
        PrimOp::Slice { starts: self.starts, steps: self.steps, sizes: self.sizes }
    }

    /// True if it is all of a tensor of this shape.
    fn is_whole(&self, shape: &Shape) -> bool {
        self.sizes == shape.dims()
            && self.starts.iter().zip(&self.sizes).all(|(&start, &size)| start == 0 || size == 0)
            && self.steps.iter().zip(&self.sizes).all(|(&step, &size)| step == 1 || size <= 1)
    }
}

fn slice_identity(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let range = Range::of(&root.op)?;
    range.is_whole(site.shape(root.inputs[0])).then_some(root.inputs[0])
}

fn slice_of_slice(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let outer = Range::of(&root.op)?;
    let made = site.maker(root.inputs[0])?;
    let inner = Range::of(&made.op)?;
    let mut composed = outer.clone();
    for dim in 0..outer.sizes.len() {
        let moved = outer.starts[dim].checked_mul(inner.steps[dim])?;
        composed.starts[dim] = inner.starts[dim].checked_add(moved)?;
        composed.steps[dim] = inner.steps[dim].checked_mul(outer.steps[dim])?;
    }
    site.emit(composed.into_op(), &[made.inputs[0]])
}

fn slice_of_concat(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let mut range = Range::of(&root.op)?;
    let made = site.maker(root.inputs[0])?;
    let PrimOp::Concat { axis } = *made.op else { return None };
    let size = i64::try_from(range.sizes[axis]).ok()?;
    if size == 0 {
        return None;
    }
    let first = range.starts[axis];
    let last = first + (size - 1) * range.steps[axis];
    let mut offset = 0i64;
    for &part in made.inputs.iter() {
        let end = offset + i64::try_from(site.shape(part)[axis]).ok()?;
        if (offset..end).contains(&first) && (offset..end).contains(&last) {
            range.starts[axis] = first - offset;
            return if range.is_whole(site.shape(part)) {
                Some(part)
            } else {
                site.emit(range.into_op(), &[part])
            };
        }
        offset = end;
    }
    None
}

fn concat_of_slices(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Concat { axis } = *root.op else { return None };
    let sliced = |id: TensorId| {
        let made = site.maker(id)?;
        let range = Range::of(&made.op).filter(|range| range.steps[axis] == 1)?;
        Some((made.inputs[0], range))
    };
    for (position, pair) in root.inputs.windows(2).enumerate() {
        let (Some((x, first)), Some((y, second))) = (sliced(pair[0]), sliced(pair[1])) else { continue };
        let mut joined = first.clone();
        joined.sizes[axis] += second.sizes[axis];
        let mut expected = joined.clone();
        expected.starts[axis] += i64::try_from(first.sizes[axis]).ok()?;
        expected.sizes[axis] = second.sizes[axis];
        if x != y || second != expected {
            continue;
        }
        let part = site.emit(joined.into_op(), &[x])?;
        let parts = [&root.inputs[..position], &[part], &root.inputs[position + 2..]].concat();
        return if let [only] = parts[..] { Some(only) } else { site.emit(PrimOp::Concat { axis }, &parts) };
    }
    None
}

/// A slice of a concat along its axis that has one reader.
struct SliceOfConcat {
    whole: TensorId,
    operands: Rc<[TensorId]>,
    /// Where it begins along the axis, and ends.
    start: usize,
    end: usize,
}

impl SliceOfConcat {
    fn of(site: &Site<'_>, id: TensorId, concat: &PrimOp, axis: usize) -> Option<Self> {
        let made = site.maker(id).filter(|_| site.single(id))?;
        let (range, whole) = (Range::of(&made.op)?, made.inputs[0]);
        let inner = site.maker(whole).filter(|inner| *inner.op == *concat)?;
        let start = usize::try_from(range.starts[axis]).ok()?;
        let end = start + range.sizes[axis];
        let mut across = range;
        (across.starts[axis], across.sizes[axis]) = (0, site.shape(whole)[axis]);
        let is_along = across.steps[axis] == 1 && across.is_whole(site.shape(whole));
        is_along.then_some(Self { whole, operands: inner.inputs, start, end })
    }
}

fn concat_of_slices_of_concat(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Concat { axis } = *root.op else { return None };
    let sliced = root.inputs.iter().map(|&part| SliceOfConcat::of(site, part, &root.op, axis));
    let mut sliced: Vec<Option<SliceOfConcat>> = sliced.collect();
    let mut readers: HashMap<TensorId, usize> = HashMap::new();
    sliced.iter().flatten().for_each(|slice| *readers.entry(slice.whole).or_default() += 1);
    for slice in &mut sliced {
        slice.take_if(|slice| site.uses(slice.whole) != readers[&slice.whole]);
    }
    if sliced.iter().all(Option::is_none) {
        return None;
    }
    let mut parts = Vec::new();
    for (&part, slice) in root.inputs.iter().zip(&sliced) {
        let Some(slice) = slice else {
            parts.push(part);
            continue;
        };
        let mut offset = 0;
        for &piece in slice.operands.iter() {
            let shape = site.shape(piece).clone();
            let (start, end) = (slice.start.max(offset), slice.end.min(offset + shape[axis]));
            if start < end {
                let mut range = Range::whole(&shape);
                range.starts[axis] = i64::try_from(start - offset).ok()?;
                range.sizes[axis] = end - start;
                let is_whole = range.is_whole(&shape);
                parts.push(if is_whole { piece } else { site.emit(range.into_op(), &[piece])? });
            }
            offset += shape[axis];
        }
    }
    site.emit((*root.op).clone(), &parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Case, check};

    #[test]
    fn rules_hold() {
        check(
            RULES,
            &[
                Case {
                    rule: "slice-identity",
                    nodes: (1, 0),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        g.slice(x, 1, 0, b)
                    },
                },
                Case {
                    rule: "slice-of-slice",
                    nodes: (2, 1),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, 3 * b, c + 1]);
                        let every_third = PrimOp::Slice {
                            starts: vec![0, 2, 0],
                            steps: vec![1, 3, 1],
                            sizes: vec![a, b, c],
                        };
                        let y = g.op(every_third, &[x]);
                        let reversed = PrimOp::Slice {
                            starts: vec![0, b as i64 - 1, 0],
                            steps: vec![1, -1, 1],
                            sizes: vec![a, b, c - 1],
                        };
                        g.op(reversed, &[y])
                    },
                },
                Case {
                    rule: "slice-of-concat",
                    nodes: (2, 1),
                    build: |g, [a, b, c]| {
                        let (x, y) = (g.input([a, b]), g.input([a, c + 1]));
                        let joined = g.op(PrimOp::Concat { axis: 1 }, &[x, y]);
                        g.slice(joined, 1, b + 1, c)
                    },
                },
                Case {
                    rule: "concat-of-slices",
                    nodes: (3, 1),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, b + c + 1]);
                        let (first, second) = (g.slice(x, 1, 1, b), g.slice(x, 1, 1 + b, c));
                        g.op(PrimOp::Concat { axis: 1 }, &[first, second])
                    },
                },
                Case {
                    rule: "concat-of-slices-of-concat",
                    nodes: (4, 3),
                    build: |g, [a, b, c]| {
                        let (x, y) = (g.input([a, b + 1]), g.input([a, c + 1]));
                        let (z, joined) = (g.input([a, 1]), g.op(PrimOp::Concat { axis: 1 }, &[x, y]));
                        let (before, after) = (g.slice(joined, 1, 0, b), g.slice(joined, 1, b + 1, c));
                        g.op(PrimOp::Concat { axis: 1 }, &[before, z, after])
                    },
                },
            ],
        );
    }
}
