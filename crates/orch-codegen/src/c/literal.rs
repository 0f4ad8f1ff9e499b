//! Constants as C text.

use orch_compute::Const;
use orch_ir::DType;

/// A scalar constant; negative ones are in parentheses.
pub fn literal(value: Const) -> String {
    let text = match value.dtype {
        DType::Bool => return if value.bits != 0 { "true".into() } else { "false".into() },
        DType::F16 | DType::BF16 => format!("{:#06x}", value.bits as u16),
        DType::F32 => float(f32::from_bits(value.bits as u32).into(), "f", |v| format!("{:?}", v as f32)),
        DType::F64 => float(f64::from_bits(value.bits), "", |v| format!("{v:?}")),
        DType::U64 => unsigned(value.bits, "UINT64_C"),
        DType::U8 | DType::U16 | DType::U32 => unsigned(value.bits, "UINT32_C"),
        DType::I8 => signed(i64::from(value.bits as u8 as i8)),
        DType::I16 => signed(i64::from(value.bits as u16 as i16)),
        DType::I32 => signed(i64::from(value.bits as u32 as i32)),
        DType::I64 => signed(value.bits as i64),
    };
    if text.starts_with('-') { format!("({text})") } else { text }
}

fn signed(value: i64) -> String {
    match value {
        i64::MIN => "INT64_MIN".to_owned(),
        _ if i32::try_from(value).is_ok_and(|v| v != i32::MIN) => value.to_string(),
        // The macro's argument is a digit sequence.
        _ if value < 0 => format!("-INT64_C({})", value.unsigned_abs()),
        _ => format!("INT64_C({value})"),
    }
}

fn unsigned(value: u64, wide: &str) -> String {
    if value <= i32::MAX as u64 { value.to_string() } else { format!("{wide}({value})") }
}

/// The shortest decimal text that reads back as the value.
fn float(value: f64, suffix: &str, shortest: impl Fn(f64) -> String) -> String {
    let sign = if value.is_sign_negative() { "-" } else { "" };
    if value.is_nan() {
        format!("__builtin_nan{suffix}(\"\")")
    } else if value.is_infinite() {
        format!("{sign}__builtin_inf{suffix}()")
    } else {
        shortest(value) + suffix
    }
}

/// Integers in a vector's initializer, wrapped to the element type.
pub fn element_list(dtype: DType, values: impl Iterator<Item = i64>) -> String {
    let values: Vec<String> = values
        .map(|value| match dtype {
            DType::I8 => signed((value as i8).into()),
            DType::I16 => signed((value as i16).into()),
            DType::I32 => signed((value as i32).into()),
            DType::U8 => signed((value as u8).into()),
            DType::U16 => signed((value as u16).into()),
            DType::U32 => unsigned((value as u32).into(), "UINT32_C"),
            DType::U64 => unsigned(value as u64, "UINT64_C"),
            _ => signed(value),
        })
        .collect();
    values.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants() {
        let text = |dtype, bits| literal(Const { dtype, bits });
        assert_eq!(text(DType::F32, 0.1f32.to_bits().into()), "0.1f");
        assert_eq!(text(DType::F32, f32::MAX.to_bits().into()), "3.4028235e38f");
        assert_eq!(text(DType::F32, (-0.0f32).to_bits().into()), "(-0.0f)");
        assert_eq!(text(DType::F64, 1e-300f64.to_bits()), "1e-300");
        assert_eq!(text(DType::F64, f64::NEG_INFINITY.to_bits()), "(-__builtin_inf())");
        assert_eq!(text(DType::F32, f32::NAN.to_bits().into()), "__builtin_nanf(\"\")");
        assert_eq!(text(DType::F16, 0x3c00), "0x3c00");
        assert_eq!(text(DType::I64, i64::MIN as u64), "INT64_MIN");
        assert_eq!(text(DType::I32, 0x8000_0000), "(-INT64_C(2147483648))");
        assert_eq!(text(DType::U64, u64::MAX), "UINT64_C(18446744073709551615)");
        assert_eq!(text(DType::Bool, 1), "true");
    }
}
