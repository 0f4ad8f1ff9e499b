//! Scalar functions: what an elementwise primitive computes for one element.
//!
//! Each function's facts (name, arity, result type) are declared here once. Semantics are those of the
//! interpreter; composite functions (gelu, sigmoid, ...) are expanded by fission and have no entry.

use crate::DType;

/// A function of one to three scalars.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ScalarFn {
    /// One operand; the result has the operand's type.
    Unary(UnaryFn),
    /// Two operands of one type; the result has that type.
    Binary(BinaryFn),
    /// Two operands of one type; the result is `bool`.
    Compare(CompareFn),
    /// `(condition: bool, if_true: T, if_false: T) -> T`.
    Select,
    /// Conversion: float to integer truncates toward zero (saturating), integer to integer wraps, to `bool`
    /// is `!= 0`, to a narrower float rounds to nearest even.
    Cast(DType),
    /// `(x: float) -> bool`: true for NaN.
    IsNan,
    /// `(x: float) -> bool`: true for either infinity.
    IsInf,
}

impl From<UnaryFn> for ScalarFn {
    fn from(f: UnaryFn) -> Self {
        Self::Unary(f)
    }
}

impl From<BinaryFn> for ScalarFn {
    fn from(f: BinaryFn) -> Self {
        Self::Binary(f)
    }
}

impl From<CompareFn> for ScalarFn {
    fn from(f: CompareFn) -> Self {
        Self::Compare(f)
    }
}

macro_rules! scalar_functions {
    ($(#[$doc:meta])* $enum:ident { $($(#[$vdoc:meta])* $variant:ident => $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $enum { $($(#[$vdoc])* $variant,)* }

        impl $enum {
            /// Every function of this kind, in declaration order.
            pub const ALL: &'static [$enum] = &[$($enum::$variant),*];

            /// The name in text forms.
            pub fn name(self) -> &'static str {
                match self { $($enum::$variant => $name,)* }
            }

            /// The function whose [`name`](Self::name) is `text`.
            pub fn from_name(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|f| f.name() == text)
            }
        }
    };
}

scalar_functions! {
    /// Functions of one operand.
    UnaryFn {
        /// `-x`; integers wrap.
        Neg => "neg",
        /// `|x|`; integers wrap.
        Abs => "abs",
        /// -1, 0 or 1; NaN stays NaN.
        Sign => "sign",
        /// Round up.
        Ceil => "ceil",
        /// Round down.
        Floor => "floor",
        /// Round to nearest, ties to even.
        RoundEven => "round_even",
        /// Round toward zero.
        Trunc => "trunc",
        /// Square root.
        Sqrt => "sqrt",
        /// `1 / x`.
        Recip => "recip",
        /// e^x.
        Exp => "exp",
        /// e^x - 1, accurate near 0.
        Expm1 => "expm1",
        /// Natural logarithm.
        Log => "log",
        /// ln(1 + x), accurate near 0.
        Log1p => "log1p",
        /// Sine of radians.
        Sin => "sin",
        /// Cosine of radians.
        Cos => "cos",
        /// Tangent of radians.
        Tan => "tan",
        /// Inverse sine.
        Asin => "asin",
        /// Inverse cosine.
        Acos => "acos",
        /// Inverse tangent.
        Atan => "atan",
        /// Hyperbolic sine.
        Sinh => "sinh",
        /// Hyperbolic cosine.
        Cosh => "cosh",
        /// Hyperbolic tangent.
        Tanh => "tanh",
        /// Inverse hyperbolic sine.
        Asinh => "asinh",
        /// Inverse hyperbolic cosine.
        Acosh => "acosh",
        /// Inverse hyperbolic tangent.
        Atanh => "atanh",
        /// The error function.
        Erf => "erf",
        /// Logical not of a boolean, bitwise not of an integer.
        Not => "not",
    }
}

scalar_functions! {
    /// Functions of two operands of one type.
    BinaryFn {
        /// Sum; integers wrap.
        Add => "add",
        /// Difference; integers wrap.
        Sub => "sub",
        /// Product; integers wrap.
        Mul => "mul",
        /// Quotient; integers truncate toward zero, and division by zero gives 0.
        Div => "div",
        /// `x - floor(x / y) * y`: the sign of the divisor (Python's `%`); integer modulo zero gives 0.
        FloorMod => "floor_mod",
        /// `x - trunc(x / y) * y`: the sign of the dividend (C's `fmod`); integer modulo zero gives 0.
        TruncMod => "trunc_mod",
        /// `x^y`; integer powers wrap, negative integer exponents truncate toward zero.
        Pow => "pow",
        /// The larger; NaN if either is NaN.
        Max => "max",
        /// The smaller; NaN if either is NaN.
        Min => "min",
        /// Logical and of booleans, bitwise and of integers.
        And => "and",
        /// Logical or of booleans, bitwise or of integers.
        Or => "or",
        /// Logical exclusive or of booleans, bitwise of integers.
        Xor => "xor",
        /// Shift left by `y`; 0 when `y` is at least the width.
        Shl => "shl",
        /// Shift right by `y` (arithmetic for signed types); 0 or -1 when `y` is at least the width.
        Shr => "shr",
        /// Angle of the point `(y, x)`: first operand is y.
        Atan2 => "atan2",
        /// 64 random bits at the position `x` of the sequence of `y`, both `u64`: see [`philox`].
        Philox => "philox",
    }
}

scalar_functions! {
    /// Comparisons; any comparison with NaN but `ne` is false.
    CompareFn {
        /// Equal.
        Eq => "eq",
        /// Not equal.
        Ne => "ne",
        /// Less.
        Lt => "lt",
        /// Less or equal.
        Le => "le",
        /// Greater.
        Gt => "gt",
        /// Greater or equal.
        Ge => "ge",
    }
}

impl CompareFn {
    /// The infix operator that text forms and C write for it.
    pub fn symbol(self) -> &'static str {
        match self {
            CompareFn::Eq => "==",
            CompareFn::Ne => "!=",
            CompareFn::Lt => "<",
            CompareFn::Le => "<=",
            CompareFn::Gt => ">",
            CompareFn::Ge => ">=",
        }
    }
}

impl UnaryFn {
    /// True if the function is defined for elements of `dtype`.
    pub fn accepts(self, dtype: DType) -> bool {
        match self {
            UnaryFn::Neg | UnaryFn::Abs | UnaryFn::Sign => dtype != DType::Bool,
            UnaryFn::Not => !dtype.is_float(),
            _ => dtype.is_float(),
        }
    }
}

impl BinaryFn {
    /// True if the function is defined for elements of `dtype`.
    pub fn accepts(self, dtype: DType) -> bool {
        match self {
            BinaryFn::And | BinaryFn::Or | BinaryFn::Xor => !dtype.is_float(),
            BinaryFn::Max | BinaryFn::Min => true,
            BinaryFn::Shl | BinaryFn::Shr => dtype.is_int(),
            BinaryFn::Atan2 => dtype.is_float(),
            BinaryFn::Philox => dtype == DType::U64,
            _ => dtype != DType::Bool,
        }
    }

    /// True if the operands may be swapped.
    pub fn is_commutative(self) -> bool {
        matches!(
            self,
            BinaryFn::Add
                | BinaryFn::Mul
                | BinaryFn::Max
                | BinaryFn::Min
                | BinaryFn::And
                | BinaryFn::Or
                | BinaryFn::Xor
        )
    }
}

/// 64 random bits, the meaning of [`BinaryFn::Philox`]: the first two words, the lower first, of [`philox_words`] at the counter
/// `(position mod 2^32, position / 2^32, 0, 0)`.
pub fn philox(position: u64, key: u64) -> u64 {
    let halves = |x: u64| [x as u32, (x >> 32) as u32];
    let [low, high] = halves(position);
    let [first, second, ..] = philox_words([low, high, 0, 0], halves(key));
    u64::from(first) | u64::from(second) << 32
}

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): four random words from a counter and a key.
fn philox_words(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let product = |a: u32, b: u32| {
        let whole = u64::from(a) * u64::from(b);
        ((whole >> 32) as u32, whole as u32)
    };
    let ([mut a, mut b, mut c, mut d], [mut k, mut l]) = (counter, key);
    for _ in 0..10 {
        let (high_a, low_a) = product(a, 0xd251_1f53);
        let (high_c, low_c) = product(c, 0xcd9e_8d57);
        [a, b, c, d] = [high_c ^ b ^ k, low_c, high_a ^ d ^ l, low_a];
        k = k.wrapping_add(0x9e37_79b9);
        l = l.wrapping_add(0xbb67_ae85);
    }
    [a, b, c, d]
}

impl ScalarFn {
    /// The number of operands.
    pub fn arity(self) -> usize {
        match self {
            ScalarFn::Unary(_) | ScalarFn::Cast(_) | ScalarFn::IsNan | ScalarFn::IsInf => 1,
            ScalarFn::Binary(_) | ScalarFn::Compare(_) => 2,
            ScalarFn::Select => 3,
        }
    }

    /// The result type for operands of these types, or `None` if the function is not defined for them.
    pub fn result(self, operands: &[DType]) -> Option<DType> {
        if operands.len() != self.arity() {
            return None;
        }
        let first = operands[0];
        match self {
            ScalarFn::Unary(f) => f.accepts(first).then_some(first),
            ScalarFn::Binary(f) => (f.accepts(first) && operands[1] == first).then_some(first),
            ScalarFn::Compare(_) => (operands[1] == first).then_some(DType::Bool),
            ScalarFn::Select => (first == DType::Bool && operands[1] == operands[2]).then_some(operands[1]),
            ScalarFn::Cast(to) => Some(to),
            ScalarFn::IsNan | ScalarFn::IsInf => first.is_float().then_some(DType::Bool),
        }
    }

    /// The name in text forms; casts read `cast.f32`.
    pub fn name(self) -> String {
        match self {
            ScalarFn::Unary(f) => f.name().to_owned(),
            ScalarFn::Binary(f) => f.name().to_owned(),
            ScalarFn::Compare(f) => f.name().to_owned(),
            ScalarFn::Select => "select".to_owned(),
            ScalarFn::Cast(to) => format!("cast.{to}"),
            ScalarFn::IsNan => "is_nan".to_owned(),
            ScalarFn::IsInf => "is_inf".to_owned(),
        }
    }

    /// The function whose [`name`](Self::name) is `text`.
    pub fn from_name(text: &str) -> Option<Self> {
        match text {
            "select" => Some(ScalarFn::Select),
            "is_nan" => Some(ScalarFn::IsNan),
            "is_inf" => Some(ScalarFn::IsInf),
            _ => match text.strip_prefix("cast.") {
                Some(to) => DType::from_name(to).map(ScalarFn::Cast),
                None => (UnaryFn::from_name(text).map(ScalarFn::Unary))
                    .or_else(|| BinaryFn::from_name(text).map(ScalarFn::Binary))
                    .or_else(|| CompareFn::from_name(text).map(ScalarFn::Compare)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with their code.
    #[test]
    fn philox_gives_the_known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox_words(counter, key), expected, "{counter:x?} {key:x?}");
        }
        assert_eq!(philox(0, 0), 0xe169_c58d_6627_e8d5);
    }

    #[test]
    fn names_are_unique_and_read_back() {
        let all = (UnaryFn::ALL.iter().map(|&f| ScalarFn::Unary(f)))
            .chain(BinaryFn::ALL.iter().map(|&f| ScalarFn::Binary(f)))
            .chain(CompareFn::ALL.iter().map(|&f| ScalarFn::Compare(f)))
            .chain([ScalarFn::Select, ScalarFn::IsNan, ScalarFn::IsInf])
            .chain(DType::ALL.map(ScalarFn::Cast));
        for f in all {
            assert_eq!(ScalarFn::from_name(&f.name()), Some(f));
        }
    }
}
