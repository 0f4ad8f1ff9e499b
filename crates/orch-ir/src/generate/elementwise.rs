//! Random elementwise nodes.

use super::{Generator, MAX_MAGNITUDE, TensorFacts};
use crate::{BinaryFn, CompareFn, DType, PrimOp, ScalarFn, TensorId, UnaryFn};

/// A float function of an operand inside its domain.
pub fn unary(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.float()?;
    let function = *g.rng.choose(UnaryFn::ALL);
    if jumps(function) && !g.facts(x).exact || function == UnaryFn::Not {
        return None;
    }
    let (low, high) = domain(function);
    let x = into(g, x, low, high)?;
    let facts = image(function, g.facts(x));
    g.add(PrimOp::Map(ScalarFn::Unary(function)), &[x], facts)
}

/// True if rounding of the operand can change the result by more than rounding.
fn jumps(function: UnaryFn) -> bool {
    matches!(function, UnaryFn::Sign | UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::RoundEven | UnaryFn::Trunc)
}

/// Where a function is defined and well conditioned.
fn domain(function: UnaryFn) -> (f64, f64) {
    match function {
        UnaryFn::Exp | UnaryFn::Expm1 | UnaryFn::Sinh | UnaryFn::Cosh => (-4.0, 4.0),
        UnaryFn::Log | UnaryFn::Sqrt | UnaryFn::Recip => (0.1, MAX_MAGNITUDE),
        UnaryFn::Log1p => (-0.9, MAX_MAGNITUDE),
        UnaryFn::Sin | UnaryFn::Cos => (-20.0, 20.0),
        UnaryFn::Tan => (-1.2, 1.2),
        UnaryFn::Asin | UnaryFn::Acos | UnaryFn::Atanh => (-0.9, 0.9),
        UnaryFn::Acosh => (1.2, 100.0),
        _ => (-MAX_MAGNITUDE, MAX_MAGNITUDE),
    }
}

/// What the function makes of an interval inside its domain.
fn image(function: UnaryFn, x: TensorFacts) -> TensorFacts {
    let rising = |f: fn(f64) -> f64| TensorFacts::rounded(f(x.low) - 0.01, f(x.high) + 0.01);
    let falling = |f: fn(f64) -> f64| TensorFacts::rounded(f(x.high) - 0.01, f(x.low) + 0.01);
    let same = |low: f64, high: f64| TensorFacts { low, high, exact: x.exact };
    match function {
        UnaryFn::Neg => same(-x.high, -x.low),
        UnaryFn::Abs => same(if x.low > 0.0 { x.low } else { 0.0 }, x.magnitude()),
        UnaryFn::Sign => same(-1.0, 1.0),
        UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::RoundEven | UnaryFn::Trunc => {
            same(x.low.floor(), x.high.ceil())
        }
        UnaryFn::Sqrt => rising(f64::sqrt),
        UnaryFn::Recip => falling(f64::recip),
        UnaryFn::Exp => rising(f64::exp),
        UnaryFn::Expm1 => rising(f64::exp_m1),
        UnaryFn::Log => rising(f64::ln),
        UnaryFn::Log1p => rising(f64::ln_1p),
        UnaryFn::Tan => rising(f64::tan),
        UnaryFn::Asin => rising(f64::asin),
        UnaryFn::Acos => falling(f64::acos),
        UnaryFn::Atan => rising(f64::atan),
        UnaryFn::Sinh => rising(f64::sinh),
        UnaryFn::Tanh => rising(f64::tanh),
        UnaryFn::Asinh => rising(f64::asinh),
        UnaryFn::Acosh => rising(f64::acosh),
        UnaryFn::Atanh => rising(f64::atanh),
        UnaryFn::Cosh => TensorFacts::rounded(1.0, x.magnitude().cosh()),
        UnaryFn::Sin | UnaryFn::Cos | UnaryFn::Erf => TensorFacts::rounded(-1.0, 1.0),
        UnaryFn::Not => x,
    }
}

/// The operand, or if it leaves the interval, a squashed copy: the middle plus half the width times tanh.
fn into(g: &mut Generator<'_>, x: TensorId, low: f64, high: f64) -> Option<TensorId> {
    if g.facts(x).is_within(low, high) {
        return Some(x);
    }
    // A narrower target keeps away from the border and, where the domain is large, from large values.
    let (low, high) = (low.max(-4.0), high.min(4.0));
    let (middle, reach) = ((low + high) / 2.0, 0.95 * (high - low) / 2.0);
    let squashed =
        g.add(PrimOp::Map(ScalarFn::Unary(UnaryFn::Tanh)), &[x], TensorFacts::rounded(-1.0, 1.0))?;
    let scale = g.filled(x, reach)?;
    let scaled = g.add(
        PrimOp::Map(ScalarFn::Binary(BinaryFn::Mul)),
        &[squashed, scale],
        TensorFacts::rounded(-reach, reach),
    )?;
    let offset = g.filled(x, middle)?;
    let facts = TensorFacts::rounded(low, high);
    g.add(PrimOp::Map(ScalarFn::Binary(BinaryFn::Add)), &[scaled, offset], facts)
}

/// A float function of two operands.
pub fn binary(g: &mut Generator<'_>) -> Option<TensorId> {
    const FUNCTIONS: [BinaryFn; 8] = [
        BinaryFn::Add,
        BinaryFn::Sub,
        BinaryFn::Mul,
        BinaryFn::Div,
        BinaryFn::Pow,
        BinaryFn::Max,
        BinaryFn::Min,
        BinaryFn::Atan2,
    ];
    let function = *g.rng.choose(&FUNCTIONS);
    let mut x = g.float()?;
    let mut y = g.like(x);
    match function {
        BinaryFn::Div | BinaryFn::Atan2 => y = into(g, y, 0.2, MAX_MAGNITUDE)?,
        BinaryFn::Pow => {
            x = into(g, x, 0.2, 4.0)?;
            y = into(g, y, -3.0, 3.0)?;
        }
        _ => {}
    }
    let (a, b) = (g.facts(x), g.facts(y));
    let corners = |f: fn(f64, f64) -> f64| {
        let values = [f(a.low, b.low), f(a.low, b.high), f(a.high, b.low), f(a.high, b.high)];
        let low = values.into_iter().fold(f64::INFINITY, f64::min);
        let high = values.into_iter().fold(f64::NEG_INFINITY, f64::max);
        TensorFacts::rounded(low - 0.01 * low.abs(), high + 0.01 * high.abs())
    };
    let exact = a.exact && b.exact;
    let facts = match function {
        BinaryFn::Add => corners(|x, y| x + y),
        BinaryFn::Sub => corners(|x, y| x - y),
        BinaryFn::Mul => corners(|x, y| x * y),
        BinaryFn::Div => corners(|x, y| x / y),
        BinaryFn::Pow => corners(f64::powf),
        BinaryFn::Max => TensorFacts { low: a.low.max(b.low), high: a.high.max(b.high), exact },
        BinaryFn::Min => TensorFacts { low: a.low.min(b.low), high: a.high.min(b.high), exact },
        _ => TensorFacts::rounded(-4.0, 4.0),
    };
    g.add(PrimOp::Map(ScalarFn::Binary(function)), &[x, y], facts)
}

/// A comparison of exact operands, or a test for NaN or infinity.
pub fn comparison(g: &mut Generator<'_>) -> Option<TensorId> {
    let truth = TensorFacts::exact(0.0, 1.0);
    if g.rng.one_in(4) {
        let x = g.float()?;
        let function = *g.rng.choose(&[ScalarFn::IsNan, ScalarFn::IsInf]);
        return g.add(PrimOp::Map(function), &[x], truth);
    }
    let x = g.pick(|_, _, facts| facts.exact)?;
    let y = g.like(x);
    let function = *g.rng.choose(CompareFn::ALL);
    let exact = g.facts(y).exact;
    if exact { g.add(PrimOp::Map(ScalarFn::Compare(function)), &[x, y], truth) } else { None }
}

/// A choice between two tensors.
pub fn select(g: &mut Generator<'_>) -> Option<TensorId> {
    let condition = g.pick(|graph, id, _| graph.dtype(id) == DType::Bool)?;
    let dims = g.dims(condition);
    let x =
        g.pick(|graph, id, facts| graph.shape(id)[..] == dims[..] && facts.magnitude() <= MAX_MAGNITUDE)?;
    let y = g.like(x);
    let facts = g.facts(x).union(g.facts(y));
    g.add(PrimOp::Map(ScalarFn::Select), &[condition, x, y], facts)
}

/// A conversion; to integers and booleans from exact operands only.
pub fn cast(g: &mut Generator<'_>) -> Option<TensorId> {
    let to = *g.rng.choose(&DType::ALL);
    if to.is_float() && !g.options.dtypes.contains(&to) {
        return None;
    }
    let x = g.pick(|_, _, facts| facts.magnitude() <= 1000.0 && (to.is_float() || facts.exact))?;
    let (from, facts) = (g.graph.dtype(x), g.facts(x));
    let facts = match (from.is_float(), to.is_float()) {
        (true, true) => TensorFacts { exact: facts.exact && widens(from, to), ..facts },
        // Integers up to 2^8 are exact in every float type.
        (false, true) => TensorFacts { exact: facts.magnitude() <= 256.0, ..facts },
        (_, false) => range(to),
    };
    g.add(PrimOp::Map(ScalarFn::Cast(to)), &[x], facts)
}

/// True if every value of the float type `from` is one of `to`.
fn widens(from: DType, to: DType) -> bool {
    from == to || to == DType::F64 || (to == DType::F32 && from != DType::F64)
}

/// All values of an integer type.
fn range(dtype: DType) -> TensorFacts {
    let bits = 8 * dtype.size_bytes() as i32;
    match dtype {
        DType::Bool => TensorFacts::exact(0.0, 1.0),
        _ if dtype.is_signed_int() => TensorFacts::exact(-(2f64.powi(bits - 1)), 2f64.powi(bits - 1)),
        _ => TensorFacts::exact(0.0, 2f64.powi(bits)),
    }
}

/// A function of integers or booleans.
pub fn integers(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.pick(|graph, id, _| !graph.dtype(id).is_float())?;
    let dtype = g.graph.dtype(x);
    if g.rng.one_in(3) {
        let function = *g.rng.choose(&[UnaryFn::Not, UnaryFn::Neg, UnaryFn::Abs, UnaryFn::Sign]);
        return g.add(PrimOp::Map(ScalarFn::Unary(function)), &[x], range(dtype));
    }
    let y = g.like(x);
    // Few tensors are of the one type that has random bits.
    let function = match dtype {
        DType::U64 if g.rng.one_in(3) => BinaryFn::Philox,
        _ => *g.rng.choose(BinaryFn::ALL),
    };
    g.add(PrimOp::Map(ScalarFn::Binary(function)), &[x, y], range(dtype))
}
