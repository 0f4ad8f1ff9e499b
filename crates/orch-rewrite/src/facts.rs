//! What is known about the elements of a tensor from how it is made.

use crate::site::Site;
use orch_ir::{BinaryFn, DType, PrimOp, ReduceOp, ScalarFn, Shape, Tensor, TensorId, UnaryFn};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Constants beyond this many elements are not looked through.
const MAX_ELEMS: usize = 1 << 16;

/// Nodes on the way to a fact.
const MAX_DEPTH: usize = 8;

/// The distinct places of a known tensor's elements: the constant itself, broadcasts and reshapes looked through.
pub(crate) fn elements(site: &Site<'_>, id: TensorId) -> Option<Vec<f64>> {
    distinct(site, id).map(|value| value.to_f64())
}

/// The number that every element of a tensor is known to be.
pub(crate) fn splat(site: &Site<'_>, id: TensorId) -> Option<f64> {
    let value = distinct(site, id)?;
    // Rules ask this of many tensors: most differ in their first elements.
    let mut elements = value.bytes().chunks_exact(value.dtype().size_bytes());
    let first = elements.next()?;
    if !elements.all(|element| element == first) {
        return None;
    }
    let first = value.bytes().slice(..first.len());
    Tensor::from_bytes(value.dtype(), Shape::scalar(), first).ok()?.to_f64().first().copied()
}

/// A known tensor before broadcasts, reshapes and transpositions, if it is not too large.
fn distinct(site: &Site<'_>, id: TensorId) -> Option<Tensor> {
    let mut source = id;
    while site.constant(source).is_none() {
        let made = site.maker(source)?;
        if !matches!(&*made.op, PrimOp::Broadcast { .. } | PrimOp::Reshape { .. } | PrimOp::Transpose { .. })
        {
            break;
        }
        source = made.inputs[0];
    }
    if site.shape(source).elems() > MAX_ELEMS {
        return None;
    }
    site.known(source)
}

/// The magnitudes of the normal numbers of a floating type.
pub(crate) fn normal_range(dtype: DType) -> Option<RangeInclusive<f64>> {
    Some(match dtype {
        DType::F16 => 2f64.powi(-14)..=65504.0,
        DType::BF16 => f64::from(f32::MIN_POSITIVE)..=3.38e38,
        DType::F32 => f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX),
        DType::F64 => f64::MIN_POSITIVE..=f64::MAX,
        _ => return None,
    })
}

/// True if every element is known to be at least +0, or NaN.
pub(crate) fn is_nonnegative(site: &Site<'_>, id: TensorId) -> bool {
    nonnegative(site, id, MAX_DEPTH, &mut Answers::new())
}

/// What has been found of tensors with so many nodes left to look at: each is asked once, however many read it.
type Answers<T> = BTreeMap<(TensorId, usize), T>;

fn nonnegative(site: &Site<'_>, id: TensorId, depth: usize, answers: &mut Answers<bool>) -> bool {
    if let Some(&answer) = answers.get(&(id, depth)) {
        return answer;
    }
    let answer = depth > 0 && computed_nonnegative(site, id, depth - 1, answers);
    answers.insert((id, depth), answer);
    answer
}

fn computed_nonnegative(site: &Site<'_>, id: TensorId, depth: usize, answers: &mut Answers<bool>) -> bool {
    if site.is_known(id) {
        let suits = |value: &f64| value.is_nan() || (*value >= 0.0 && value.is_sign_positive());
        return elements(site, id).is_some_and(|elements| elements.iter().all(suits));
    }
    let Some(made) = site.maker(id) else { return false };
    let mut all = || made.inputs.iter().all(|&input| nonnegative(site, input, depth, answers));
    match &*made.op {
        PrimOp::Map(ScalarFn::Unary(UnaryFn::Exp | UnaryFn::Abs)) => true,
        PrimOp::Map(ScalarFn::Unary(UnaryFn::Sqrt)) => all(),
        PrimOp::Map(ScalarFn::Binary(BinaryFn::Mul)) => made.inputs[0] == made.inputs[1] || all(),
        PrimOp::Map(ScalarFn::Binary(BinaryFn::Add | BinaryFn::Div)) => all(),
        PrimOp::Map(ScalarFn::Binary(BinaryFn::Max)) => {
            made.inputs.iter().any(|&input| splat(site, input).is_some_and(|value| value > 0.0)) || all()
        }
        PrimOp::Map(ScalarFn::Binary(BinaryFn::Min)) => all(),
        PrimOp::Reduce { op: ReduceOp::Sum, .. }
        | PrimOp::Broadcast { .. }
        | PrimOp::Reshape { .. }
        | PrimOp::Transpose { .. }
        | PrimOp::Slice { .. }
        | PrimOp::Concat { .. }
        | PrimOp::Select { .. } => all(),
        _ => false,
    }
}

/// The least and greatest number that an element can be, NaN aside; conservative, and without rounding.
pub(crate) fn range(site: &Site<'_>, id: TensorId) -> Option<(f64, f64)> {
    range_within(site, id, MAX_DEPTH, &mut Answers::new())
}

type Range = Option<(f64, f64)>;

fn range_within(site: &Site<'_>, id: TensorId, depth: usize, answers: &mut Answers<Range>) -> Range {
    if let Some(&answer) = answers.get(&(id, depth)) {
        return answer;
    }
    let answer = depth.checked_sub(1).and_then(|depth| computed_range(site, id, depth, answers));
    answers.insert((id, depth), answer);
    answer
}

fn computed_range(site: &Site<'_>, id: TensorId, depth: usize, answers: &mut Answers<Range>) -> Range {
    const ALL: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);
    if site.is_known(id) {
        let numbers = elements(site, id)?;
        let numbers = numbers.iter().filter(|value| !value.is_nan());
        return Some(
            numbers.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &v| (low.min(v), high.max(v))),
        );
    }
    let made = site.maker(id)?;
    let mut operand = |index: usize| range_within(site, made.inputs[index], depth, answers).unwrap_or(ALL);
    let mut both = |join: fn(f64, f64) -> f64| {
        let (a, b) = (operand(0), operand(1));
        (join(a.0, b.0), join(a.1, b.1))
    };
    let all = |operand: &mut dyn FnMut(usize) -> (f64, f64)| {
        (0..made.inputs.len()).map(operand).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or(ALL)
    };
    let float = site.dtype(id).is_float();
    Some(match &*made.op {
        PrimOp::Map(ScalarFn::Unary(UnaryFn::Exp | UnaryFn::Abs | UnaryFn::Sqrt)) if float => {
            (0.0, f64::INFINITY)
        }
        PrimOp::Map(ScalarFn::Unary(
            UnaryFn::Tanh | UnaryFn::Sin | UnaryFn::Cos | UnaryFn::Erf | UnaryFn::Sign,
        )) => (-1.0, 1.0),
        PrimOp::Map(ScalarFn::Binary(BinaryFn::Mul)) if float && made.inputs[0] == made.inputs[1] => {
            (0.0, f64::INFINITY)
        }
        PrimOp::Map(ScalarFn::Binary(BinaryFn::Max)) => both(f64::max),
        PrimOp::Map(ScalarFn::Binary(BinaryFn::Min)) => both(f64::min),
        PrimOp::Broadcast { .. }
        | PrimOp::Reshape { .. }
        | PrimOp::Transpose { .. }
        | PrimOp::Slice { .. }
        | PrimOp::Select { .. }
        | PrimOp::Concat { .. } => all(&mut operand),
        PrimOp::Reduce { op: ReduceOp::Max | ReduceOp::Min, .. }
        | PrimOp::Window { op: ReduceOp::Max, .. }
            if site.shape(made.inputs[0]).elems() > 0 =>
        {
            all(&mut operand)
        }
        _ => return None,
    })
}
