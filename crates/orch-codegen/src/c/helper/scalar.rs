//! Scalar operations: operators where C's meaning is ours, functions elsewhere.
//!
//! Signed arithmetic goes through unsigned types, because C leaves signed overflow undefined; narrow types compute
//! in 32 bits.

use super::super::types::scalar_name;
use super::{CFile, Helper, Op, returns};
use orch_ir::{BinaryFn, DType, UnaryFn};

/// The unsigned type in which arithmetic on an integer type wraps.
fn wrapping_type(dtype: DType) -> &'static str {
    if dtype.size_bytes() == 8 { "uint64_t" } else { "uint32_t" }
}

impl CFile {
    /// The body of a scalar prelude function.
    pub(super) fn scalar_body(&mut self, helper: Helper) -> String {
        let dtype = helper.dtype;
        match helper.op {
            Op::Cast(from) => self.scalar_cast_body(from, dtype),
            Op::Fma if dtype.is_float() => returns(format!("{}(a, b, c)", libm("__builtin_fma", dtype))),
            Op::Fma => returns(wrap(dtype, "*", "a", "b") + " + c"),
            Op::StorePrefix => "    if (c > 0) *a = b;\n".to_owned(),
            Op::MaxOfNumber => returns("a > b ? a : b"),
            Op::MinOfNumber => returns("a < b ? a : b"),
            Op::FloorDiv if dtype.is_signed_int() => returns("a / b - (a % b < 0)"),
            Op::FloorDiv => returns("a / b"),
            Op::FloorRem if dtype.is_signed_int() => {
                "    const int64_t r = a % b;\n    return r < 0 ? r + b : r;\n".into()
            }
            Op::FloorRem => returns("a % b"),
            Op::Unary(f) if dtype.is_float() => self.float_unary_body(f, dtype),
            Op::Unary(f) => int_unary_body(f, dtype),
            Op::Binary(f) if dtype.is_float() => self.float_binary_body(f, dtype),
            Op::Binary(f) => int_binary_body(f, dtype),
            op => self.math_body(helper).unwrap_or_else(|| unreachable!("{op:?} on scalars is an operator")),
        }
    }

    fn float_unary_body(&mut self, f: UnaryFn, dtype: DType) -> String {
        if let Some(body) = self.math_body(Helper { op: Op::Unary(f), dtype, lanes: 1 }) {
            return body;
        }
        let call = |function: &str| returns(format!("{}(a)", libm(function, dtype)));
        match f {
            UnaryFn::Abs => call("__builtin_fabs"),
            UnaryFn::Sign => returns("a > 0 ? 1 : a < 0 ? -1 : a"),
            UnaryFn::Ceil => call("__builtin_ceil"),
            UnaryFn::Floor => call("__builtin_floor"),
            // The rounding mode is never changed from nearest even.
            UnaryFn::RoundEven => call("__builtin_rint"),
            UnaryFn::Trunc => call("__builtin_trunc"),
            UnaryFn::Sqrt => call("__builtin_sqrt"),
            UnaryFn::Recip => returns("1 / a"),
            _ => call(f.name()),
        }
    }

    fn float_binary_body(&mut self, f: BinaryFn, dtype: DType) -> String {
        if let Some(body) = self.math_body(Helper { op: Op::Binary(f), dtype, lanes: 1 }) {
            return body;
        }
        let remainder = format!("{}(a, b)", libm("fmod", dtype));
        match f {
            BinaryFn::Max => returns("b != b ? b : b > a ? b : a"),
            BinaryFn::Min => returns("b != b ? b : b < a ? b : a"),
            BinaryFn::FloorMod => {
                let ty = scalar_name(dtype);
                format!(
                    "    const {ty} r = {remainder};\n    return r != 0 && (r < 0) != (b < 0) ? r + b : r;\n"
                )
            }
            BinaryFn::TruncMod => returns(remainder),
            BinaryFn::Pow | BinaryFn::Atan2 => returns(format!("{}(a, b)", libm(f.name(), dtype))),
            f => unreachable!("{f:?} of floats is an operator or undefined"),
        }
    }
}

/// The C library's name of a function for this float type.
fn libm(function: &str, dtype: DType) -> String {
    format!("{function}{}", if dtype == DType::F32 { "f" } else { "" })
}

/// Wrapping arithmetic: the result is converted back by the return type.
fn wrap(dtype: DType, operator: &str, a: &str, b: &str) -> String {
    let wide = wrapping_type(dtype);
    format!("({wide}){a} {operator} ({wide}){b}")
}

fn int_unary_body(f: UnaryFn, dtype: DType) -> String {
    match f {
        UnaryFn::Neg => returns(format!("0 - ({})a", wrapping_type(dtype))),
        UnaryFn::Abs if dtype.is_signed_int() => {
            returns(format!("a < 0 ? ({ty})(0 - ({})a) : a", wrapping_type(dtype), ty = scalar_name(dtype)))
        }
        UnaryFn::Abs => returns("a"),
        UnaryFn::Sign => returns("(a > 0) - (a < 0)"),
        f => unreachable!("{f:?} of integers is an operator or undefined"),
    }
}

fn int_binary_body(f: BinaryFn, dtype: DType) -> String {
    let (ty, wide, bits) = (scalar_name(dtype), wrapping_type(dtype), 8 * dtype.size_bytes());
    let signed = dtype.is_signed_int();
    match f {
        BinaryFn::Add => returns(wrap(dtype, "+", "a", "b")),
        BinaryFn::Sub => returns(wrap(dtype, "-", "a", "b")),
        BinaryFn::Mul => returns(wrap(dtype, "*", "a", "b")),
        BinaryFn::Div if signed => returns(format!("b == 0 ? 0 : b == -1 ? ({ty})(0 - ({wide})a) : a / b")),
        BinaryFn::Div => returns("b == 0 ? 0 : a / b"),
        BinaryFn::TruncMod if signed => returns("b == 0 || b == -1 ? 0 : a % b"),
        BinaryFn::FloorMod if signed => format!(
            "    const {ty} r = b == 0 || b == -1 ? 0 : a % b;\n    return r != 0 && (r < 0) != (b < 0) ? r + b : r;\n"
        ),
        BinaryFn::TruncMod | BinaryFn::FloorMod => returns("b == 0 ? 0 : a % b"),
        BinaryFn::Max => returns("a > b ? a : b"),
        BinaryFn::Min => returns("a < b ? a : b"),
        BinaryFn::Shl => returns(format!("({wide})b >= {bits} ? 0 : ({wide})a << ({wide})b")),
        BinaryFn::Shr if signed => returns(format!("a >> (({wide})b >= {bits} ? {} : b)", bits - 1)),
        BinaryFn::Shr => returns(format!("({wide})b >= {bits} ? 0 : a >> b")),
        BinaryFn::Pow => int_pow_body(dtype),
        BinaryFn::Philox => philox_body(ty),
        f => unreachable!("{f:?} of integers is an operator or undefined"),
    }
}

/// Powers by squaring, modulo the width; a negative power is 0 but for 1 and -1.
fn int_pow_body(dtype: DType) -> String {
    let wide = wrapping_type(dtype);
    let negative = match dtype.is_signed_int() {
        true => "    if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;\n",
        false => "",
    };
    format!(
        "{negative}    {wide} base = ({wide})a, result = 1;\n    for ({wide} n = ({wide})b; n != 0; n >>= 1) {{\n        \
         if (n & 1) result *= base;\n        base *= base;\n    }}\n    return result;\n"
    )
}

/// [`orch_ir::philox`] on 64-bit integers, or vectors of them, whose lower halves are the words.
pub(super) fn philox_body(ty: &str) -> String {
    format!(
        "    {ty} c0 = a & 0xffffffffu, c1 = a >> 32, c2 = a ^ a, c3 = c2, k0 = b & 0xffffffffu, k1 = b >> 32;\n    \
         _Pragma(\"GCC unroll 10\") for (int round = 0; round < 10; round++) {{\n        \
         const {ty} p0 = c0 * 0xd2511f53u, p2 = c2 * 0xcd9e8d57u;\n        \
         c0 = p2 >> 32 ^ c1 ^ k0;\n        c1 = p2 & 0xffffffffu;\n        \
         c2 = p0 >> 32 ^ c3 ^ k1;\n        c3 = p0 & 0xffffffffu;\n        \
         k0 = k0 + 0x9e3779b9u & 0xffffffffu;\n        k1 = k1 + 0xbb67ae85u & 0xffffffffu;\n    }}\n    \
         return c0 | c1 << 32;\n"
    )
}
