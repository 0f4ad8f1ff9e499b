//! Random numbers: dropout, and tensors that are uniform, normal or random truths.
//!
//! Calls have two arguments more than in PyTorch's schema: `seed` i64[1], which every run draws from PyTorch's generator, and
//! `stream`, the call's number in its graph. Element `i` of the result, in row-major order, has the bits of Philox at the position
//! `i + 2^40 stream` of the seed's sequence: equal seeds give equal numbers on every device. Which numbers eager would have drawn
//! is another matter.

use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Val, unsupported};
use crate::promote::Number;
use orch_ir::{DType, MAX_ELEMS, Shape};

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.native_dropout.default", "input p train seed stream", dropout),
    rule("aten.rand.default", "size dtype seed stream", rand),
    rule("aten.rand_like.default", "self dtype seed stream", rand_like),
    rule("aten.randn.default", "size dtype seed stream", randn),
    rule("aten.randn_like.default", "self dtype seed stream", randn_like),
    rule("aten.bernoulli.default", "self generator seed stream", bernoulli).when(DEFAULT_GENERATOR),
    rule("aten.bernoulli.p", "self p generator seed stream", bernoulli_of_number).when(DEFAULT_GENERATOR),
];

/// The condition of calls that may name a generator.
const DEFAULT_GENERATOR: &str = "the default generator";

/// 64 random bits for each element, u64.
fn bits(emitter: &mut Emitter, call: &Call, shape: &Shape) -> Emitted {
    const { assert!(MAX_ELEMS <= 1 << 40) };
    if call.has("generator") {
        return unsupported("a generator");
    }
    let stream = call.int("stream")?;
    let seed = emitter.reshape(call.int_tensor("seed")?, [])?;
    let seed = emitter.cast(&seed, DType::U64);
    let key = emitter.expand(&seed, shape)?;
    let mut position = emitter.iota(shape.elems());
    if stream != 0 {
        let start = emitter.scalar_int(DType::I64, stream << 40);
        position = emitter.binary("Add", &position, &start)?;
    }
    let position = emitter.reshape(&position, shape.to_vec())?;
    let position = emitter.cast(&position, DType::U64);
    Ok(emitter.random_bits(&position, &key))
}

/// The upper `digits` bits as a number from 0 to 1, which is left out: each is one of `2^digits`, and exact in the type.
fn uniform(emitter: &mut Emitter, bits: &Val, dtype: DType, digits: u32) -> Emitted {
    let amount = emitter.scalar_int(DType::U64, i64::from(64 - digits));
    let upper = emitter.shift_right(bits, &amount)?;
    let upper = emitter.cast(&upper, dtype);
    emitter.binary_scalar("Mul", &upper, 0.5f64.powi(digits as i32))
}

/// True with a probability, which is a tensor or a scalar of f32 or f64.
fn chance(emitter: &mut Emitter, call: &Call, shape: &Shape, probability: &Val) -> Emitted {
    let bits = bits(emitter, call, shape)?;
    let dtype = probability.dtype;
    let number = uniform(emitter, &bits, dtype, if dtype == DType::F64 { 53 } else { 24 })?;
    emitter.compare("Less", &number, probability)
}

/// `(x mask / (1 - p), mask)`; all is zero if `p` is 1. Without training the mask is true, and `x` is as it was.
fn dropout(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.float_tensor("input")?;
    if !call.flag_or("train", true)? {
        let truth = emitter.scalar(DType::Bool, 1.0);
        let mask = emitter.expand(&truth, &x.shape)?;
        return Ok(vec![Some(x.clone()), Some(mask)]);
    }
    let kept = 1.0 - call.number("p")?.as_f64();
    let probability = emitter.scalar(DType::F32, kept);
    let mask = chance(emitter, call, &x.shape, &probability)?;
    let wide = emitter.widen(x);
    let factor = emitter.cast(&mask, wide.dtype);
    let masked = emitter.binary("Mul", &wide, &factor)?;
    let scaled = emitter.binary_scalar("Mul", &masked, if kept == 0.0 { 0.0 } else { kept.recip() })?;
    Ok(vec![Some(emitter.cast(&scaled, x.dtype)), Some(mask)])
}

fn rand(emitter: &mut Emitter, call: &Call) -> Applied {
    uniform_of(emitter, call, &call.dims("size")?)
}

fn rand_like(emitter: &mut Emitter, call: &Call) -> Applied {
    uniform_of(emitter, call, &call.tensor("self")?.shape)
}

/// Uniform in `[0, 1)`, with as many digits as the type has.
fn uniform_of(emitter: &mut Emitter, call: &Call, shape: &Shape) -> Applied {
    let dtype = call.dtype()?;
    let digits = match dtype {
        DType::F64 => 53,
        DType::F32 => 24,
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => return unsupported(format!("random numbers of type {dtype}")),
    };
    let bits = bits(emitter, call, shape)?;
    let compute = crate::emit::wide(dtype);
    let number = uniform(emitter, &bits, compute, digits)?;
    one(emitter.cast(&number, dtype))
}

fn randn(emitter: &mut Emitter, call: &Call) -> Applied {
    normal_of(emitter, call, &call.dims("size")?)
}

fn randn_like(emitter: &mut Emitter, call: &Call) -> Applied {
    normal_of(emitter, call, &call.tensor("self")?.shape)
}

/// Normal by Box and Muller: `sqrt(-2 ln u) cos(2 pi v)`, with `u` in `(0, 1]` of the lower 32 bits and `v` of the upper.
fn normal_of(emitter: &mut Emitter, call: &Call, shape: &Shape) -> Applied {
    let dtype = call.dtype()?;
    if !dtype.is_float() {
        return unsupported(format!("random numbers of type {dtype}"));
    }
    let compute = crate::emit::wide(dtype);
    let bits = bits(emitter, call, shape)?;
    let lowest = emitter.scalar_int(DType::U64, 0xffff_ffff);
    let lower = emitter.binary("BitwiseAnd", &bits, &lowest)?;
    let lower = emitter.cast(&lower, compute);
    let lower = emitter.binary_scalar("Add", &lower, 1.0)?;
    let u = emitter.binary_scalar("Mul", &lower, 0.5f64.powi(32))?;
    let v = uniform(emitter, &bits, compute, 32)?;
    let log = emitter.unary("Log", &u);
    let square = emitter.binary_scalar("Mul", &log, -2.0)?;
    let radius = emitter.unary("Sqrt", &square);
    let angle = emitter.binary_scalar("Mul", &v, std::f64::consts::TAU)?;
    let cosine = emitter.unary("Cos", &angle);
    let number = emitter.binary("Mul", &radius, &cosine)?;
    one(emitter.cast(&number, dtype))
}

/// True, in the type of the operand, with the probability that the operand is.
fn bernoulli(emitter: &mut Emitter, call: &Call) -> Applied {
    let probability = call.float_tensor("self")?;
    let wide = emitter.widen(probability);
    let truth = chance(emitter, call, &probability.shape, &wide)?;
    one(emitter.cast(&truth, call.dtype()?))
}

fn bernoulli_of_number(emitter: &mut Emitter, call: &Call) -> Applied {
    let probability = call.number_or("p", Number::Float(0.5))?.as_f64();
    let probability = emitter.scalar(DType::F32, probability);
    let truth = chance(emitter, call, &call.tensor("self")?.shape.clone(), &probability)?;
    one(emitter.cast(&truth, call.dtype()?))
}
