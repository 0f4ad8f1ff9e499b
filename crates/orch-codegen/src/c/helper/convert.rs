//! Conversions between element types.
//!
//! Floats become integers by truncation, saturating, NaN to 0; C leaves all three undefined, so the value is
//! brought into range first. `f16` uses the hardware's conversion. `bf16` is the upper half of an `f32`, rounded to
//! nearest even by integer arithmetic. From `f64` both go through an `f32` whose last digit is made odd if it is
//! inexact, so that the second rounding gives what one rounding would. Other types reach `f16` and `bf16` through
//! `f32` if they embed in it, otherwise through `f64`.

use super::super::parens::strip_parens;
use super::super::types::{CType, scalar_name};
use super::{CFile, Op, returns};
use orch_ir::{CompareFn, DType};

/// The type through which a conversion goes, if it takes more than one step.
fn by_way_of(from: DType, to: DType) -> Option<DType> {
    let embeds_in_f32 = matches!(from, DType::I8 | DType::I16 | DType::U8 | DType::U16 | DType::Bool);
    match (from, to) {
        (DType::F32, _) | (_, DType::F32) => None,
        _ if from.is_half() || (to.is_half() && embeds_in_f32) => Some(DType::F32),
        (DType::F64, _) => None,
        _ if to.is_half() => Some(DType::F64),
        _ => None,
    }
}

/// Bounds of an integer type as C float literals: values not above the first saturate to the lowest integer,
/// values from the second on to the highest.
fn limits(to: DType) -> (String, String) {
    let bits = 8 * to.size_bytes();
    match to.is_signed_int() {
        true => (format!("-0x1p{}", bits - 1), format!("0x1p{}", bits - 1)),
        false => ("0x0p0".to_owned(), format!("0x1p{bits}")),
    }
}

/// The C names of an integer type's lowest and highest value.
fn extremes(to: DType) -> (String, String) {
    let bits = 8 * to.size_bytes();
    match to.is_signed_int() {
        true => (format!("INT{bits}_MIN"), format!("INT{bits}_MAX")),
        false => ("0".to_owned(), format!("UINT{bits}_MAX")),
    }
}

/// An `f64` as the `f32` nearest to it, the last digit made odd if it is inexact.
const NARROW_TO_ODD: &str = "    const float nearest = (float)a;
    const double back = nearest;
    int32_t bits = $bits(nearest);
    if (back != a && a == a && !(bits & 1)) bits += __builtin_fabs(back) < __builtin_fabs(a) ? 1 : -1;
";

/// The upper half of an `f32`, rounded to nearest even; NaN stays NaN.
const ROUND_TO_BF16: &str = "    const $U bits = ($U)$bits(a);
    const $U rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const $U quiet = (bits >> 16) | 0x40;
";

impl CFile {
    /// The body of a scalar conversion that is not a C cast.
    pub(super) fn scalar_cast_body(&mut self, from: DType, to: DType) -> String {
        if let Some(way) = by_way_of(from, to) {
            let middle = self.apply(Op::Cast(from), way, 1, &["a"]);
            return returns(self.apply(Op::Cast(way), to, 1, &[&middle]));
        }
        let ty = scalar_name(to);
        match (from, to) {
            (DType::F32, DType::F16) if self.isa.is_x86() => returns("_cvtss_sh(a, 0)"),
            (DType::F16, DType::F32) if self.isa.is_x86() => returns("_cvtsh_ss(a)"),
            (DType::F32, DType::F16) => "    const __fp16 half = a;\n    uint16_t bits;\n    \
                 __builtin_memcpy(&bits, &half, 2);\n    return bits;\n"
                .into(),
            (DType::F16, DType::F32) => {
                "    __fp16 half;\n    __builtin_memcpy(&half, &a, 2);\n    return half;\n".into()
            }
            (DType::F32, DType::BF16) => {
                self.math_text(ROUND_TO_BF16, 1) + "    return a != a ? quiet : rounded;\n"
            }
            (DType::BF16, DType::F32) => {
                self.math_text("    return $float((int32_t)((uint32_t)a << 16));\n", 1)
            }
            (DType::F64, DType::F16 | DType::BF16) => {
                let narrowed = self.math_text("$float(bits)", 1);
                let result = self.apply(Op::Cast(DType::F32), to, 1, &[&narrowed]);
                self.math_text(NARROW_TO_ODD, 1) + &returns(result)
            }
            _ => {
                let ((low, high), (lowest, highest)) = (limits(to), extremes(to));
                returns(format!("a >= {high} ? {highest} : a > {low} ? ({ty})a : a != a ? 0 : {lowest}"))
            }
        }
    }

    /// The body of a vector conversion.
    pub(super) fn vector_cast(&mut self, from: DType, to: DType, lanes: usize) -> Option<String> {
        if let Some(way) = by_way_of(from, to) {
            let middle = self.apply(Op::Cast(from), way, lanes, &["a"]);
            return Some(returns(self.apply(Op::Cast(way), to, lanes, &[&middle])));
        }
        let name = self.type_name(CType::Num(to, lanes));
        match (from, to) {
            (DType::F32, DType::F16) | (DType::F16, DType::F32) => None,
            (DType::F32, DType::BF16) => {
                let rounding = self.math_text(ROUND_TO_BF16, lanes);
                let is_nan = self.apply(Op::Compare(CompareFn::Ne), DType::F32, lanes, &["a", "a"]);
                let is_nan = self.convert_flags(DType::F32, DType::U32, lanes, is_nan);
                let chosen = self.apply(Op::Select, DType::U32, lanes, &[&is_nan, "quiet", "rounded"]);
                Some(format!("{rounding}    return __builtin_convertvector({chosen}, {name});\n"))
            }
            (DType::BF16, DType::F32) => {
                let wide = self.type_name(CType::Num(DType::U32, lanes));
                Some(returns(format!("({name})(__builtin_convertvector(a, {wide}) << 16)")))
            }
            (DType::F64, DType::F16 | DType::BF16) => None,
            _ if from.is_float() && !to.is_float() => Some(self.saturating(from, to, lanes)),
            _ => Some(returns(format!("__builtin_convertvector(a, {name})"))),
        }
    }

    /// Float to integer: out-of-range values are replaced before and corrected after the conversion. Narrow types
    /// go through a signed integer that the hardware converts to.
    fn saturating(&mut self, from: DType, to: DType, lanes: usize) -> String {
        let ((low, high), (lowest, highest)) = (limits(to), extremes(to));
        let suffix = if from == DType::F32 { "f" } else { "" };
        let (low, high) =
            (self.literal(from, lanes, &(low + suffix)), self.literal(from, lanes, &(high + suffix)));
        let mut compare = |f, bound: &str| self.apply(Op::Compare(f), from, lanes, &["a", bound]);
        let (above, below) = (compare(CompareFn::Ge, &high), compare(CompareFn::Le, &low));
        let (inside_low, inside_high) = (compare(CompareFn::Gt, &low), compare(CompareFn::Lt, &high));
        let zero = self.literal(from, lanes, "0");
        let inside = format!("({} & {})", strip_parens(&inside_low), strip_parens(&inside_high));
        let safe = self.apply(Op::Select, from, lanes, &[&inside, "a", &zero]);
        let direct = match (from, to) {
            (DType::F64, DType::U32) => DType::I64,
            _ if to.size_bytes() < 4 => DType::I32,
            _ => to,
        };
        let ty = self.type_name(CType::Num(to, lanes));
        let direct_ty = self.type_name(CType::Num(direct, lanes));
        let converted = match direct == to {
            true => format!("__builtin_convertvector({safe}, {ty})"),
            false => format!("__builtin_convertvector(__builtin_convertvector({safe}, {direct_ty}), {ty})"),
        };
        let (lowest, highest) = (self.literal(to, lanes, &lowest), self.literal(to, lanes, &highest));
        let above = self.convert_flags(from, to, lanes, above);
        let below = self.convert_flags(from, to, lanes, below);
        let upper = self.apply(Op::Select, to, lanes, &[&above, &highest, "inner"]);
        let result = self.apply(Op::Select, to, lanes, &[&below, &lowest, &upper]);
        format!("    const {ty} inner = {converted};\n{}", returns(result))
    }

    /// Flags of a comparison on elements of `from` as a selection between elements of `to` takes them.
    pub fn convert_flags(&mut self, from: DType, to: DType, lanes: usize, flags: String) -> String {
        let (from, to) = (self.isa.flags(from, lanes), self.isa.flags(to, lanes));
        match (from.as_vector(), to.as_vector()) {
            (Some((from, _)), Some((to, _))) if from != to => {
                self.apply(Op::Cast(from), to, lanes, &[&flags])
            }
            _ => flags,
        }
    }
}
