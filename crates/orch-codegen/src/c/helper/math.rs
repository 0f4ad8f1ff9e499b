//! Mathematical functions of `f32`, for a scalar and for vectors from one text, so that the scalar tail of a loop
//! agrees with its vector body bit for bit.
//!
//! All are free of branches but for sine and cosine, which call the C library for lanes beyond 10^5. Polynomial
//! coefficients are weighted minimax fits (Lawson iteration) of relative error well below half a unit in the last
//! place; argument reductions are Cody and Waite's with fused products. NaN, infinities, overflow and
//! subnormal results are as in the C library, but for exponentials below the smallest normal number, which are 0
//! (decision 48); errors are bounded by the tests in `tests/math.rs`.

use super::super::parens::strip_parens;
use super::super::types::{CType, Family};
use super::{CFile, Helper, Op};
use orch_ir::{BinaryFn, CompareFn, DType, UnaryFn};

/// `e^x = 2^n e^r`, `r = x - n ln 2`, `|r| <= ln 2 / 2`: from `x`, `below` is `e^r - 1`, and the low bits of
/// `shifted` are the integer n.
const EXP_PARTS: &str = "\
    const $F shifted = $fma(x, $k(0x1.715476p+0f), $k(0x1.8p+23f));
    const $F n = shifted - 0x1.8p+23f;
    const $F r = $fma(n, $k(0x1.05c61p-29f), $fma(n, $k(-0x1.62e43p-1f), x));
    $F e = $fma($k(0x1.6a234ep-10f), r, $k(0x1.123a6cp-7f));
    e = $fma(e, r, $k(0x1.5558f4p-5f));
    e = $fma(e, r, $k(0x1.55549p-3f));
    e = $fma(e, r, $k(0x1.fffffcp-2f));
    const $F below = $fma(r * r, e, r);
";

/// Beyond the clamp the result is 0 or infinite. The lower end is the least float whose exponential is a normal number.
const CLAMP_EXP: &str = "    const $F x = $max($k(-0x1.5d589ep+6f), $min($k(89.0f), a));\n";

/// Where a normal result does not reach, 0: processors take 100 cycles and more to make a subnormal number, and again to multiply it.
const EXP: &str = "    return $sel($lt(a, $k(-0x1.5d589ep+6f)), $k(0.0f), $scale(below + 1.0f, shifted));\n";

/// `p 2^n` rounded once: two factors, of which the second may underflow. The low bits of `b` are n.
const SCALE: &str = "\
    const $I n = ($I)(($U)$bits(b) - 0x4b400000u);
    const $I first = n >> 1;
    return a * $float((($U)(first + 127) << 23)) * $float((($U)(n - first + 127) << 23));
";

/// Beyond the clamp the result is -1 or infinite.
const CLAMP_EXPM1: &str = "    const $F x = $max($k(-20.0f), $min($k(89.0f), a));\n";

/// `e^r - 1` is kept apart from the 1 until the end: `2 ((e^r - 1) s + (s - 1/2))`, `s = 2^(n-1)`.
const EXPM1: &str = "\
    const $F s = $float((($U)$bits(shifted) - 0x4b400000u + 126u) << 23);
    const $F result = 2.0f * $fma(below, s, s - 0.5f);
    /* keeps the sign of zero */
    return $sel($eq(a, $k(0.0f)), a, result);
";

/// `ln a = n ln 2 + ln(1 + f)`, `a = 2^n (1 + f)`, `2/3 <= 1 + f < 4/3`. Subnormal arguments are scaled first.
const LOG: &str = "\
    const $M small = $lt(a, $k(0x1p-126f));
    const $F x = $sel(small, a * 0x1p+23f, a);
    const $I above = ($I)(($U)$bits(x) - 0x3f2aaaabu);
    const $F n = $tofloat(above >> 23) + $sel(small, $k(-23.0f), $k(0.0f));
    const $F f = $float((above & 0x7fffff) + 0x3f2aaaab) - 1.0f;
    $F p = $fma($k(-0x1.0808b4p-3f), f, $k(0x1.1e6a66p-3f));
    p = $fma(p, f, $k(-0x1.f30feep-4f));
    p = $fma(p, f, $k(0x1.1ed668p-3f));
    p = $fma(p, f, $k(-0x1.559dd6p-3f));
    p = $fma(p, f, $k(0x1.99d032p-3f));
    p = $fma(p, f, $k(-0x1.fffefp-3f));
    p = $fma(p, f, $k(0x1.555506p-2f));
    const $F f2 = f * f;
    $F r = $fma(f2 * f, p, $fma(n, $k(-0x1.05c61p-29f), f2 * -0.5f));
    r = $fma(n, $k(0x1.62e43p-1f), f + r);
    /* infinity and NaN stay, zero gives minus infinity, negative arguments NaN */
    r = $sel($lt(a, $k(__builtin_inff())), r, a);
    r = $sel($lt(a, $k(0.0f)), $k(__builtin_nanf(\"\")), r);
    return $sel($eq(a, $k(0.0f)), $k(-__builtin_inff()), r);
";

/// `ln(1 + a) = ln u + (1 + a - u) / u`, `u` the rounded sum.
const LOG1P: &str = "\
    const $F u = a + 1.0f;
    const $F lost = $sel($lt(a, $k(1.0f)), a - (u - 1.0f), 1.0f - (u - a));
    const $F r = $log(u) + lost / u;
    /* infinity and NaN stay, and so does the sign of zero */
    const $F finite = $sel($lt(a, $k(__builtin_inff())), r, a);
    const $F inside = $sel($eq(u, $k(0.0f)), $k(-__builtin_inff()), finite);
    return $sel($eq(a, $k(0.0f)), a, inside);
";

/// Below 5/8 an odd polynomial, beyond it `1 - 2 / (e^(2|a|) + 1)`, which is 1 from the clamp on.
const TANH_START: &str = "\
    const $F y = $abs(a), t = y * y;
    $F p = $fma($k(-0x1.750ce4p-8f), t, $k(0x1.51f8cep-6f));
    p = $fma(p, t, $k(-0x1.b835a4p-5f));
    p = $fma(p, t, $k(0x1.1106f6p-3f));
    p = $fma(p, t, $k(-0x1.555532p-2f));
    const $F small = $fma(y * t, p, y);
    const $F x = $min($k(19.0f), y * 2.0f);
";

const TANH: &str = "\
    const $F two_n = $float((($U)$bits(shifted) - 0x4b400000u + 127u) << 23);
    const $F sum = $fma(below, two_n, two_n) + 1.0f;
    const $F large = $fma($k(-2.0f), 1.0f / sum, $k(1.0f));
    return $with_sign($sel($lt(y, $k(0.625f)), small, large), a);
";

/// Below 0.85 an odd polynomial, beyond it `1 - e^(|a| Q(|a|))`, which is 1 from the clamp on.
const ERF_START: &str = "\
    const $F y = $min($k(4.0f), $abs(a)), t = y * y;
    $F p = $fma($k(-0x1.4cd86p-11f), t, $k(0x1.4b763p-8f));
    p = $fma(p, t, $k(-0x1.b735eap-6f));
    p = $fma(p, t, $k(0x1.ce256ap-4f));
    p = $fma(p, t, $k(-0x1.812726p-2f));
    p = $fma(p, t, $k(0x1.06eba8p-3f));
    const $F small = $fma(p, y, y);
    $F q = $fma($k(0x1.b3d0a2p-13f), y, $k(-0x1.9fd6ap-9f));
    q = $fma(q, y, $k(0x1.75328p-6f));
    q = $fma(q, y, $k(-0x1.ae927ap-4f));
    q = $fma(q, y, $k(-0x1.458826p-1f));
    q = $fma(q, y, $k(-0x1.20e502p+0f));
    const $F x = q * y;
";

const ERF: &str = "\
    const $F two_n = $float((($U)$bits(shifted) - 0x4b400000u + 127u) << 23);
    const $F large = 1.0f - $fma(below, two_n, two_n);
    return $with_sign($sel($lt(y, $k(0.85f)), small, large), a);
";

/// `r = a - n pi/2`, `|r| <= pi/4`; both functions of r. The low bits of `quarter` are the integer n.
const QUARTER_TURNS: &str = "\
    const $F shifted = $fma(a, $k(0x1.45f306p-1f), $k(0x1.8p+23f));
    const $F n = shifted - 0x1.8p+23f;
    const $I quarter = $bits(shifted);
    $F r = $fma(n, $k(-0x1.921fb6p+0f), a);
    r = $fma(n, $k(0x1.777a5cp-25f), r);
    r = $fma(n, $k(0x1.ee59dap-50f), r);
    const $F t = r * r;
    const $F s = r * $fma(t, $fma(t, $fma(t, $k(-0x1.99422p-13f), $k(0x1.110736p-7f)), $k(-0x1.555546p-3f)), $k(1.0f));
    const $F u = $fma(t, $fma(t, $k(0x1.99ea02p-16f), $k(-0x1.6c0c2ep-10f)), $k(0x1.55554ap-5f));
    const $F c = $fma(t, $fma(t, u, $k(-0.5f)), $k(1.0f));
";

const SIN: &str = "\
    const $F chosen = $sel($ieq(quarter & 1, $ik(0)), s, c);
    const $F result = $float($bits(chosen) ^ (($U)(quarter & 2) << 30));
";

const COS: &str = "\
    const $F chosen = $sel($ieq(quarter & 1, $ik(0)), c, s);
    const $F result = $float($bits(chosen) ^ (($U)((quarter + 1) & 2) << 30));
";

/// Large arguments need more digits of pi than the reduction above has.
const LARGE_ANGLES: &str = "\
    const $M large = $gt($abs(a), $k(1e5f));
    if (__builtin_expect($any(large), 0)) return $slow(a, result);
    return result;
";

/// `|a|^b` in `f64`, then signs and special cases: a negative base takes integer powers only.
const POW: &str = "\
    const $F magnitude = $narrow($pow_core($widen($abs(a)), $widen(b)));
    const $F half = b * 0.5f;
    const $M whole = $eq($rint(b), b), odd = whole & $ne($rint(half), half);
    const $F zero = $k(0.0f), one = $k(1.0f), inf = $k(__builtin_inff());
    const $M negative = $ilt($bits(a), $ik(0));
    $F r = $sel(negative & odd, -magnitude, magnitude);
    const $M undefined = $lt(a, zero) & $lt(-inf, a) & $ne($rint(b), b);
    r = $sel(undefined, $k(__builtin_nanf(\"\")), r);
    r = $sel($ne(a, a) | $ne(b, b), a + b, r);
    return $sel($eq(b, zero) | $eq(a, one) | ($eq(a, -one) & $eq($abs(b), inf)), one, r);
";

/// `a^b = 2^(b log2 a)` for `a >= 0`. The logarithm is that of the mantissa, between 2/3 and 4/3, as a series in
/// `(m - 1) / (m + 1)`, to 40 bits.
const POW_CORE: &str = "\
    const $L above = ($L)$dbits(a) - 0x3fe5555555555555;
    const $D n = $dfromint(above >> 52);
    const $D m = $double((above & 0xfffffffffffff) + 0x3fe5555555555555);
    const $D z = (m - 1.0) / (m + 1.0), t = z * z;
    $D p = $dfma($dk(0x1.89f3b1694cffep-3), t, $dk(0x1.c68f568d3176p-3));
    p = $dfma(p, t, $dk(0x1.0c9a84994022dp-2));
    p = $dfma(p, t, $dk(0x1.484b13d7c02a9p-2));
    p = $dfma(p, t, $dk(0x1.a61762a7aded9p-2));
    p = $dfma(p, t, $dk(0x1.2776c50ef9bfep-1));
    p = $dfma(p, t, $dk(0x1.ec709dc3a03fdp-1));
    p = $dfma(p, t, $dk(0x1.71547652b82fep+1));
    $D log2 = $dfma(p, z, n);
    log2 = $dsel($deq(a, $dk(0.0)), $dk(-__builtin_inf()), log2);
    log2 = $dsel($deq(a, $dk(__builtin_inf())), a, log2);
    const $D x = $dmax($dk(-1000.0), $dmin($dk(1000.0), b * log2));
    const $D shifted = x + 0x1.8p+52;
    const $D f = x - (shifted - 0x1.8p+52);
    $D q = $dfma($dk(0x1.b5253d395e7c4p-24), f, $dk(0x1.62c0223a5c824p-20));
    q = $dfma(q, f, $dk(0x1.ffcbfc588b0c7p-17));
    q = $dfma(q, f, $dk(0x1.430912f86c787p-13));
    q = $dfma(q, f, $dk(0x1.5d87fe78a6731p-10));
    q = $dfma(q, f, $dk(0x1.3b2ab6fba4e77p-7));
    q = $dfma(q, f, $dk(0x1.c6b08d704a0cp-5));
    q = $dfma(q, f, $dk(0x1.ebfbdff82c58fp-3));
    q = $dfma(q, f, $dk(0x1.62e42fefa39efp-1));
    q = $dfma(q, f, $dk(1.0));
    return q * $double((($W)$dbits(shifted) << 52) + 0x3ff0000000000000);
";

impl CFile {
    /// The body of a mathematical function, if this module has it.
    pub(super) fn math_body(&mut self, helper: Helper) -> Option<String> {
        let Helper { op, dtype, lanes } = helper;
        let angles = |last: &str| [QUARTER_TURNS, last, LARGE_ANGLES].concat();
        let template = match (op, dtype) {
            (Op::Unary(f), DType::F32) => match f {
                UnaryFn::Exp => [CLAMP_EXP, EXP_PARTS, EXP].concat(),
                UnaryFn::Expm1 => [CLAMP_EXPM1, EXP_PARTS, EXPM1].concat(),
                UnaryFn::Log => LOG.to_owned(),
                UnaryFn::Log1p => LOG1P.to_owned(),
                UnaryFn::Tanh => [TANH_START, EXP_PARTS, TANH].concat(),
                UnaryFn::Erf => [ERF_START, EXP_PARTS, ERF].concat(),
                UnaryFn::Sin => angles(SIN).replace("$slow", "$slow_sin"),
                UnaryFn::Cos => angles(COS).replace("$slow", "$slow_cos"),
                _ => return None,
            },
            (Op::Binary(BinaryFn::Pow), DType::F32) => POW.to_owned(),
            (Op::PowCore, DType::F64) => POW_CORE.to_owned(),
            (Op::Scale, DType::F32)
                if self.isa.family == Family::Avx512 && self.isa.is_register(dtype, lanes) =>
            {
                return None;
            }
            (Op::Scale, DType::F32) => SCALE.to_owned(),
            (Op::LargeAngle(f), DType::F32) => {
                let function = if f == UnaryFn::Sin { "sinf" } else { "cosf" };
                return Some(match lanes {
                    1 => format!("    (void)b;\n    return {function}(a);\n"),
                    _ => format!(
                        "    for (int l = 0; l < {lanes}; l++) if (!(__builtin_fabsf(a[l]) <= 1e5f)) b[l] = {function}(a[l]);\n    \
                         return b;\n"
                    ),
                });
            }
            _ => return None,
        };
        let lines = template.lines().map(|line| format!("    {}\n", line.trim_start()));
        Some(self.math_text(&lines.collect::<String>(), lanes))
    }

    /// Expands a template. `$F`, `$I` and `$U` are the types of `f32`, `i32` and `u32` values of `lanes` lanes, and
    /// `$name(..)` is an operation on such values.
    pub(super) fn math_text(&mut self, template: &str, lanes: usize) -> String {
        let mut text = String::new();
        let mut rest = template;
        while let Some(at) = rest.find('$') {
            text.push_str(&rest[..at]);
            let tail = &rest[at + 1..];
            let end = tail.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(tail.len());
            let name = &tail[..end];
            rest = &tail[end..];
            if let Some(ty) = self.math_type(name, lanes) {
                text.push_str(&ty);
                continue;
            }
            let (args, after) = arguments(rest);
            let args: Vec<String> = args.iter().map(|arg| self.math_text(arg, lanes)).collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            text.push_str(&self.math_operation(name, lanes, &args));
            rest = after;
        }
        text.push_str(rest);
        text
    }

    fn math_type(&mut self, name: &str, lanes: usize) -> Option<String> {
        let ty = match name {
            "F" => CType::Num(DType::F32, lanes),
            "I" => CType::Num(DType::I32, lanes),
            "U" => CType::Num(DType::U32, lanes),
            "D" => CType::Num(DType::F64, lanes),
            "L" => CType::Num(DType::I64, lanes),
            "W" => CType::Num(DType::U64, lanes),
            "M" => self.isa.flags(DType::F32, lanes),
            _ => return None,
        };
        Some(self.type_name(ty))
    }

    fn math_operation(&mut self, name: &str, lanes: usize, args: &[&str]) -> String {
        let reinterpret = |unit: &mut Self, to: DType| match lanes {
            1 => format!("orc_{name}({})", args[0]),
            _ => format!("(({})({}))", unit.type_name(CType::Num(to, lanes)), args[0]),
        };
        match name {
            "bits" => return reinterpret(self, DType::I32),
            "float" => return reinterpret(self, DType::F32),
            "dbits" => return reinterpret(self, DType::I64),
            "double" => return reinterpret(self, DType::F64),
            "with_sign" => {
                let [magnitude, sign] = [args[0], args[1]].map(|arg| format!("$bits({arg})"));
                let bits = format!("$float({magnitude} | ({sign} & (int32_t)0x80000000))");
                return self.math_text(&bits, lanes);
            }
            "any" => return self.any_flag(lanes, args[0]),
            _ => {}
        }
        let (op, dtype) = operation(name);
        let args: Vec<String> = args.iter().map(|arg| format!("({})", strip_parens(arg))).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.apply(op, dtype, lanes, &args)
    }

    /// True if a flag of a comparison of `f32` is true.
    pub(super) fn any_flag(&mut self, lanes: usize, flags: &str) -> String {
        match self.isa.flags(DType::F32, lanes) {
            CType::Bool => flags.to_owned(),
            CType::Flags { .. } => {
                let least = self.apply(Op::Reduce(orch_ir::ReduceOp::Min), DType::I32, lanes, &[flags]);
                format!("{least} != 0")
            }
            _ => format!("{flags} != 0"),
        }
    }
}

/// What the operations of templates are: names with a `d` in front are those of `f64`.
fn operation(name: &str) -> (Op, DType) {
    let compare = |f| (Op::Compare(f), DType::F32);
    let unary = |f| (Op::Unary(f), DType::F32);
    match name {
        "fma" => (Op::Fma, DType::F32),
        "max" => (Op::MaxOfNumber, DType::F32),
        "min" => (Op::MinOfNumber, DType::F32),
        "k" => (Op::Splat, DType::F32),
        "sel" => (Op::Select, DType::F32),
        "eq" => compare(CompareFn::Eq),
        "ne" => compare(CompareFn::Ne),
        "lt" => compare(CompareFn::Lt),
        "gt" => compare(CompareFn::Gt),
        "abs" => unary(UnaryFn::Abs),
        "rint" => unary(UnaryFn::RoundEven),
        "log" => unary(UnaryFn::Log),
        "scale" => (Op::Scale, DType::F32),
        "slow_sin" => (Op::LargeAngle(UnaryFn::Sin), DType::F32),
        "slow_cos" => (Op::LargeAngle(UnaryFn::Cos), DType::F32),
        "tofloat" => (Op::Cast(DType::I32), DType::F32),
        "ik" => (Op::Splat, DType::I32),
        "ilt" => (Op::Compare(CompareFn::Lt), DType::I32),
        "ieq" => (Op::Compare(CompareFn::Eq), DType::I32),
        "widen" => (Op::Cast(DType::F32), DType::F64),
        "narrow" => (Op::Cast(DType::F64), DType::F32),
        "pow_core" => (Op::PowCore, DType::F64),
        "dk" => (Op::Splat, DType::F64),
        "dfma" => (Op::Fma, DType::F64),
        "dmax" => (Op::MaxOfNumber, DType::F64),
        "dmin" => (Op::MinOfNumber, DType::F64),
        "dsel" => (Op::Select, DType::F64),
        "deq" => (Op::Compare(CompareFn::Eq), DType::F64),
        "dfromint" => (Op::Cast(DType::I64), DType::F64),
        _ => unreachable!("templates name known operations only: ${name}"),
    }
}

/// The arguments of a call whose parenthesis `text` starts with, and what follows the call.
fn arguments(text: &str) -> (Vec<&str>, &str) {
    let (mut depth, mut start, mut args) = (0, 1, Vec::new());
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' if depth == 1 => {
                args.push(text[start..at].trim());
                return (args, &text[at + 1..]);
            }
            b')' => depth -= 1,
            b',' if depth == 1 => {
                args.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    unreachable!("templates balance their parentheses")
}
