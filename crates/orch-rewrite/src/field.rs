//! Evaluation over a finite field, to test that rules are identities.
//!
//! Every floating tensor is a `u64` tensor of residues modulo [`PRIME`], which is small enough that sums of products
//! do not overflow. Functions that the field does not have (exp, erf, square root, ...) are fixed pseudo-random
//! functions of the residue, so an identity that holds here uses no property of them. Maximum, minimum and
//! comparisons are those of the residues as integers. Integers and booleans are as in the interpreter.

use orch_interp::{EvalOptions, evaluate_node};
use orch_ir::{BinaryFn, DType, PrimGraph, PrimNode, PrimOp, ReduceOp, ScalarFn, Tensor, TensorId, UnaryFn};
use std::collections::BTreeMap;

/// The modulus: the largest prime below 2^20.
pub(crate) const PRIME: u64 = 1_048_573;

/// Why a graph has no value over the field for these inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Undefined {
    /// A division by zero: other inputs may do.
    ZeroDivisor,
    /// A primitive without meaning over a field.
    Primitive,
}

/// The outputs of `graph` for these inputs; floating ones are residues.
pub(crate) fn evaluate(graph: &PrimGraph, inputs: &[Tensor]) -> Result<Vec<Tensor>, Undefined> {
    let mut values: BTreeMap<TensorId, Tensor> = BTreeMap::new();
    values.extend(graph.inputs.iter().map(|(_, id)| *id).zip(inputs.iter().cloned()));
    values.extend(graph.constants().iter().map(|(&id, value)| (id, residues(value))));
    for node in graph.nodes() {
        let operands: Vec<&Tensor> = node.inputs.iter().map(|id| &values[id]).collect();
        let result = apply(graph, node, &operands)?;
        values.insert(node.outputs[0], result);
    }
    Ok(graph.outputs.iter().map(|(_, id)| values[id].clone()).collect())
}

/// A tensor with its floating elements as residues. Every finite float is `m 2^e`, so this is exact.
pub(crate) fn residues(value: &Tensor) -> Tensor {
    if !value.dtype().is_float() {
        return value.clone();
    }
    let elements: Vec<u64> = value.to_f64().into_iter().map(residue).collect();
    Tensor::from_vec(value.shape().clone(), elements)
}

fn residue(value: f64) -> u64 {
    if !value.is_finite() {
        return scramble(value.to_bits());
    }
    let (mut magnitude, mut halvings) = (value.abs(), 0);
    while magnitude.fract() != 0.0 {
        magnitude *= 2.0;
        halvings += 1;
    }
    let positive = (magnitude % PRIME as f64) as u64 * power(inverse(2), halvings) % PRIME;
    if value < 0.0 { negated(positive) } else { positive }
}

/// A pseudo-random function of 64 bits into the field (SplitMix64's finalizer).
pub(crate) fn scramble(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % PRIME
}

fn negated(value: u64) -> u64 {
    (PRIME - value) % PRIME
}

fn power(base: u64, exponent: u64) -> u64 {
    (0..exponent).fold(1, |product, _| product * base % PRIME)
}

fn inverse(value: u64) -> u64 {
    let (mut result, mut base, mut exponent) = (1, value % PRIME, PRIME - 2);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result * base % PRIME;
        }
        base = base * base % PRIME;
        exponent >>= 1;
    }
    result
}

fn apply(graph: &PrimGraph, node: &PrimNode, operands: &[&Tensor]) -> Result<Tensor, Undefined> {
    let is_float = |id: &TensorId| graph.dtype(*id).is_float();
    let floating = node.inputs.iter().any(is_float);
    match &node.op {
        PrimOp::Map(f) if floating => map(*f, operands),
        PrimOp::Map(ScalarFn::Cast(to)) if to.is_float() => from_integers(operands[0]),
        PrimOp::Reduce { op: ReduceOp::Prod, .. } if floating => Err(Undefined::Primitive),
        PrimOp::Opaque(_) => Err(Undefined::Primitive),
        PrimOp::Iota { dtype, shape, axis } if dtype.is_float() => {
            run(&PrimOp::Iota { dtype: DType::U64, shape: shape.clone(), axis: *axis }, &[])
        }
        op => {
            let result = run(op, operands)?;
            Ok(if is_float(&node.outputs[0]) { reduced(&result) } else { result })
        }
    }
}

fn run(op: &PrimOp, operands: &[&Tensor]) -> Result<Tensor, Undefined> {
    let results = evaluate_node(op, operands, &EvalOptions::default()).map_err(|_| Undefined::Primitive)?;
    results.into_iter().next().ok_or(Undefined::Primitive)
}

fn elements(tensor: &Tensor) -> Vec<u64> {
    tensor.to_vec::<u64>().expect("floating tensors are held as u64")
}

fn reduced(tensor: &Tensor) -> Tensor {
    let values = elements(tensor).into_iter().map(|value| value % PRIME).collect();
    Tensor::from_vec(tensor.shape().clone(), values)
}

fn from_integers(tensor: &Tensor) -> Result<Tensor, Undefined> {
    let values = tensor.to_i64().ok_or(Undefined::Primitive)?;
    let residues = values.into_iter().map(|v| v.rem_euclid(PRIME as i64) as u64).collect();
    Ok(Tensor::from_vec(tensor.shape().clone(), residues))
}

fn map(f: ScalarFn, operands: &[&Tensor]) -> Result<Tensor, Undefined> {
    let shape = operands[0].shape().clone();
    let unary = |g: &dyn Fn(u64) -> Result<u64, Undefined>| {
        let values: Result<Vec<u64>, _> = elements(operands[0]).into_iter().map(g).collect();
        values.map(|values| Tensor::from_vec(shape.clone(), values))
    };
    let binary = |g: &dyn Fn(u64, u64) -> Result<u64, Undefined>| {
        let pairs = elements(operands[0]).into_iter().zip(elements(operands[1]));
        let values: Result<Vec<u64>, _> = pairs.map(|(x, y)| g(x, y)).collect();
        values.map(|values| Tensor::from_vec(shape.clone(), values))
    };
    match f {
        ScalarFn::Unary(UnaryFn::Neg) => unary(&|x| Ok(negated(x))),
        ScalarFn::Unary(UnaryFn::Recip) => unary(&reciprocal),
        ScalarFn::Unary(g) => unary(&|x| Ok(scramble(x ^ ((g as u64) << 32)))),
        ScalarFn::Binary(BinaryFn::Add) => binary(&|x, y| Ok((x + y) % PRIME)),
        ScalarFn::Binary(BinaryFn::Sub) => binary(&|x, y| Ok((x + negated(y)) % PRIME)),
        ScalarFn::Binary(BinaryFn::Mul) => binary(&|x, y| Ok(x * y % PRIME)),
        ScalarFn::Binary(BinaryFn::Div) => binary(&|x, y| Ok(x * reciprocal(y)? % PRIME)),
        ScalarFn::Binary(BinaryFn::Max) => binary(&|x, y| Ok(x.max(y))),
        ScalarFn::Binary(BinaryFn::Min) => binary(&|x, y| Ok(x.min(y))),
        ScalarFn::Binary(BinaryFn::Pow) => binary(&raised),
        ScalarFn::Binary(g) => binary(&|x, y| Ok(scramble(x ^ (y << 20) ^ ((g as u64) << 40)))),
        ScalarFn::Cast(to) if to.is_float() => Ok(operands[0].clone()),
        ScalarFn::IsNan | ScalarFn::IsInf => Ok(Tensor::zeros(DType::Bool, shape)),
        ScalarFn::Compare(_) | ScalarFn::Select => run(&PrimOp::Map(f), operands),
        ScalarFn::Cast(_) => Err(Undefined::Primitive),
    }
}

fn reciprocal(x: u64) -> Result<u64, Undefined> {
    if x == 0 { Err(Undefined::ZeroDivisor) } else { Ok(inverse(x)) }
}

/// Small integer powers; the power one half is the square root, others are arbitrary functions.
fn raised(x: u64, y: u64) -> Result<u64, Undefined> {
    const SMALL: u64 = 8;
    if y <= SMALL {
        Ok(power(x, y))
    } else if y >= PRIME - SMALL {
        reciprocal(power(x, PRIME - y))
    } else if y == residue(0.5) {
        Ok(scramble(x ^ ((UnaryFn::Sqrt as u64) << 32)))
    } else {
        Ok(scramble(x ^ (y << 20) ^ (1 << 50)))
    }
}
