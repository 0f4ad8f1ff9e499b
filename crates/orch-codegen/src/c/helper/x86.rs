//! Operations as x86 intrinsics, where GCC's vector extensions have no operator or compile to worse code.

use super::super::types::{CType, Family, signed_of};
use super::{CFile, Helper, Op, mask_of, returns};
use orch_ir::{BinaryFn, CompareFn, DType, UnaryFn};

/// How intrinsics on one vector type are spelled.
#[derive(Clone, Copy)]
struct Spelling {
    /// `_mm`, `_mm256`, `_mm512`.
    prefix: &'static str,
    /// `ps`, `pd`, `epi32`, ...
    suffix: &'static str,
    /// The intrinsics' register type.
    register: &'static str,
}

/// Spelling for a vector of exactly one register.
fn spelling(dtype: DType, lanes: usize) -> Spelling {
    let (prefix, float, double, int) = match dtype.size_bytes() * lanes {
        16 => ("_mm", "__m128", "__m128d", "__m128i"),
        32 => ("_mm256", "__m256", "__m256d", "__m256i"),
        _ => ("_mm512", "__m512", "__m512d", "__m512i"),
    };
    let (suffix, register) = match dtype {
        DType::F32 => ("ps", float),
        DType::F64 => ("pd", double),
        _ => match dtype.size_bytes() {
            1 => ("epi8", int),
            2 => ("epi16", int),
            4 => ("epi32", int),
            _ => ("epi64", int),
        },
    };
    Spelling { prefix, suffix, register }
}

impl Spelling {
    fn cast(&self, operand: &str) -> String {
        format!("({}){operand}", self.register)
    }

    /// The suffix of operations that distinguish unsigned elements.
    fn signed_suffix(&self, dtype: DType) -> String {
        match dtype.is_unsigned_int() {
            true => self.suffix.replace("epi", "epu"),
            false => self.suffix.to_owned(),
        }
    }
}

/// The immediate of the rounding instructions: direction, no exceptions.
fn rounding(f: UnaryFn) -> Option<&'static str> {
    match f {
        UnaryFn::RoundEven => Some("_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC"),
        UnaryFn::Floor => Some("_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC"),
        UnaryFn::Ceil => Some("_MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC"),
        UnaryFn::Trunc => Some("_MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC"),
        _ => None,
    }
}

impl CFile {
    /// The body of a vector function in intrinsics, or `None` if other ways are as good.
    pub(super) fn x86_body(&mut self, helper: Helper) -> Option<String> {
        let Helper { op, dtype, lanes } = helper;
        if let Op::Cast(from) = op {
            return self.x86_cast(from, dtype, lanes);
        }
        if op == Op::Prefix {
            return self.x86_prefix(lanes);
        }
        if matches!(op, Op::Gather(_) | Op::GatherMasked(_) | Op::Scatter(_) | Op::ScatterMasked(_)) {
            return self.x86_gather(helper);
        }
        if !self.isa.is_register(dtype, lanes) {
            return None;
        }
        let s = spelling(dtype, lanes);
        let name = self.type_name(CType::Num(dtype, lanes));
        let (a, b, c) = (s.cast("a"), s.cast("b"), s.cast("c"));
        let result = |call: String| Some(returns(format!("({name}){call}")));
        let Spelling { prefix, suffix, .. } = s;
        let avx512 = self.isa.family == Family::Avx512;
        match op {
            Op::Fma if dtype.is_float() => result(format!("{prefix}_fmadd_{suffix}({a}, {b}, {c})")),
            Op::Unary(UnaryFn::Sqrt) => result(format!("{prefix}_sqrt_{suffix}({a})")),
            Op::Unary(f) => {
                let immediate = rounding(f)?;
                let function = if avx512 { "roundscale" } else { "round" };
                result(format!("{prefix}_{function}_{suffix}({a}, {immediate})"))
            }
            Op::MaxOfNumber => result(format!("{prefix}_max_{suffix}({a}, {b})")),
            Op::MinOfNumber => result(format!("{prefix}_min_{suffix}({a}, {b})")),
            Op::Binary(f @ (BinaryFn::Max | BinaryFn::Min)) if dtype.is_float() => {
                // The instruction returns its second operand, here `a`, if either is NaN: right but where `b` is
                // NaN. The test is on `b`, because `a` is the running value of reductions.
                let f = f.name();
                result(match avx512 {
                    true => format!(
                        "{prefix}_mask_{f}_{suffix}({b}, {prefix}_cmp_{suffix}_mask({b}, {b}, _CMP_ORD_Q), {b}, {a})"
                    ),
                    false => format!(
                        "{prefix}_blendv_{suffix}({prefix}_{f}_{suffix}({b}, {a}), {b}, {prefix}_cmp_{suffix}({b}, {b}, _CMP_UNORD_Q))"
                    ),
                })
            }
            Op::Binary(f @ (BinaryFn::Max | BinaryFn::Min)) if avx512 || dtype.size_bytes() < 8 => {
                result(format!("{prefix}_{}_{}({a}, {b})", f.name(), s.signed_suffix(dtype)))
            }
            Op::Compare(f) if avx512 => Some(returns(x86_mask_compare(f, dtype, s))),
            Op::Select if avx512 => result(format!("{prefix}_mask_blend_{suffix}(a, {c}, {b})")),
            Op::Select => {
                let suffix = if matches!(dtype, DType::F32 | DType::F64) { suffix } else { "epi8" };
                result(format!("{prefix}_blendv_{suffix}({c}, {b}, {a})"))
            }
            Op::Scale if avx512 => {
                result(format!("{prefix}_scalef_{suffix}({a}, {})", s.cast("(b - 0x1.8p+23f)")))
            }
            Op::LoadMasked if avx512 => result(format!("{prefix}_maskz_loadu_{suffix}(b, a)")),
            Op::StoreMasked if avx512 => Some(format!("    {prefix}_mask_storeu_{suffix}(a, c, {b});\n")),
            Op::LoadMasked | Op::StoreMasked if dtype.size_bytes() >= 4 => Some(self.x86_masked(helper, s)),
            _ => None,
        }
    }

    /// AVX2's masked accesses of 4 and 8 byte elements.
    fn x86_masked(&mut self, helper: Helper, s: Spelling) -> String {
        let Helper { op, dtype, lanes } = helper;
        let name = self.type_name(CType::Num(dtype, lanes));
        let element = match (dtype, dtype.size_bytes()) {
            (DType::F32, _) => "float",
            (DType::F64, _) => "double",
            (_, 4) => "int",
            _ => "long long",
        };
        let integers = spelling(DType::I32, dtype.size_bytes() * lanes / 4);
        let Spelling { prefix, suffix, .. } = s;
        if op == Op::LoadMasked {
            let mask = integers.cast("b");
            return returns(format!("({name}){prefix}_maskload_{suffix}((const {element} *)a, {mask})"));
        }
        let (mask, value) = (integers.cast("c"), s.cast("b"));
        format!("    {prefix}_maskstore_{suffix}(({element} *)a, {mask}, {value});\n")
    }

    /// Gathers, and scatters of AVX-512: of four elements or more of 4 or 8 bytes, where elements and offsets fit a
    /// register.
    fn x86_gather(&mut self, helper: Helper) -> Option<String> {
        let Helper { op, dtype, lanes } = helper;
        let (Op::Gather(by) | Op::GatherMasked(by) | Op::Scatter(by) | Op::ScatterMasked(by)) = op else {
            return None;
        };
        let (size, widest) = (dtype.size_bytes(), dtype.size_bytes().max(by.size_bytes()));
        let fits = lanes >= 4 && widest * lanes <= self.isa.register_bytes;
        if !fits || size < 4 || by.size_bytes() < 4 {
            return None;
        }
        let name = self.type_name(CType::Num(dtype, lanes));
        let (s, offsets) = (spelling(dtype, lanes), spelling(by, lanes));
        let prefix = spelling(signed_of(widest), lanes).prefix;
        let (suffix, bits) = (s.suffix, 8 * by.size_bytes());
        let zero = self.apply(Op::Splat, dtype, lanes, &["0"]);
        let (zero, value, index) = (s.cast(&zero), s.cast("b"), offsets.cast("b"));
        let avx512 = self.isa.family == Family::Avx512;
        // The widest intrinsics take the base after the offsets.
        let base_last = prefix == "_mm512";
        let element = match (dtype, size) {
            (DType::F32, _) => "float",
            (DType::F64, _) => "double",
            (_, 4) => "int",
            _ => "long long",
        };
        let base = format!("(const {element} *)a");
        Some(match op {
            Op::Gather(_) if base_last => {
                returns(format!("({name}){prefix}_i{bits}gather_{suffix}({index}, a, {size})"))
            }
            Op::Gather(_) => {
                returns(format!("({name}){prefix}_i{bits}gather_{suffix}({base}, {index}, {size})"))
            }
            Op::GatherMasked(_) if avx512 => {
                let function = if base_last { "mask" } else { "mmask" };
                returns(format!(
                    "({name}){prefix}_{function}_i{bits}gather_{suffix}({zero}, c, {index}, a, {size})"
                ))
            }
            Op::GatherMasked(_) => {
                let mask = s.cast("c");
                returns(format!(
                    "({name}){prefix}_mask_i{bits}gather_{suffix}({zero}, {base}, {index}, {mask}, {size})"
                ))
            }
            Op::Scatter(_) if avx512 => {
                let index = offsets.cast("c");
                format!("    {prefix}_i{bits}scatter_{suffix}(a, {index}, {value}, {size});\n")
            }
            Op::ScatterMasked(_) if avx512 => {
                let index = offsets.cast("c");
                format!("    {prefix}_mask_i{bits}scatter_{suffix}(a, d, {index}, {value}, {size});\n")
            }
            _ => return None,
        })
    }

    fn x86_cast(&mut self, from: DType, to: DType, lanes: usize) -> Option<String> {
        let name = self.type_name(CType::Num(to, lanes));
        if lanes < 8 || !self.isa.is_register(DType::F32, lanes) {
            return None;
        }
        let wide = spelling(DType::F32, lanes);
        let narrow = spelling(DType::U16, lanes);
        match (from, to) {
            (DType::F32, DType::F16) => Some(returns(format!(
                "({name}){}_cvtps_ph({}, _MM_FROUND_TO_NEAREST_INT)",
                wide.prefix,
                wide.cast("a")
            ))),
            (DType::F16, DType::F32) => {
                Some(returns(format!("({name}){}_cvtph_ps({})", wide.prefix, narrow.cast("a"))))
            }
            _ => None,
        }
    }

    fn x86_prefix(&mut self, lanes: usize) -> Option<String> {
        if self.isa.family != Family::Avx512 {
            return None;
        }
        let name = CType::Mask(lanes).name();
        let count = format!("a < 0 ? 0 : a > {lanes} ? {lanes} : a");
        Some(returns(format!("({name})_bzhi_u64({}, {count})", mask_of(lanes))))
    }
}

/// A comparison into a mask register.
fn x86_mask_compare(f: CompareFn, dtype: DType, s: Spelling) -> String {
    let Spelling { prefix, .. } = s;
    let (a, b) = (s.cast("a"), s.cast("b"));
    if dtype.is_float() {
        let predicate = match f {
            CompareFn::Eq => "_CMP_EQ_OQ",
            CompareFn::Ne => "_CMP_NEQ_UQ",
            CompareFn::Lt => "_CMP_LT_OQ",
            CompareFn::Le => "_CMP_LE_OQ",
            CompareFn::Gt => "_CMP_GT_OQ",
            CompareFn::Ge => "_CMP_GE_OQ",
        };
        return format!("{prefix}_cmp_{}_mask({a}, {b}, {predicate})", s.suffix);
    }
    let predicate = match f {
        CompareFn::Eq => "_MM_CMPINT_EQ",
        CompareFn::Ne => "_MM_CMPINT_NE",
        CompareFn::Lt => "_MM_CMPINT_LT",
        CompareFn::Le => "_MM_CMPINT_LE",
        CompareFn::Gt => "_MM_CMPINT_NLE",
        CompareFn::Ge => "_MM_CMPINT_NLT",
    };
    format!("{prefix}_cmp_{}_mask({a}, {b}, {predicate})", s.signed_suffix(dtype))
}
