//! Operations as NEON intrinsics, where GCC's vector extensions have no operator.

use super::super::types::{CType, unsigned_of};
use super::{CFile, Helper, Op, returns};
use orch_ir::{BinaryFn, DType, UnaryFn};

/// The element part of an intrinsic's name and of its register type.
fn element(dtype: DType) -> (&'static str, &'static str) {
    match dtype {
        DType::Bool | DType::U8 => ("u8", "uint8x16_t"),
        DType::I8 => ("s8", "int8x16_t"),
        DType::U16 | DType::F16 | DType::BF16 => ("u16", "uint16x8_t"),
        DType::I16 => ("s16", "int16x8_t"),
        DType::U32 => ("u32", "uint32x4_t"),
        DType::I32 => ("s32", "int32x4_t"),
        DType::U64 => ("u64", "uint64x2_t"),
        DType::I64 => ("s64", "int64x2_t"),
        DType::F32 => ("f32", "float32x4_t"),
        DType::F64 => ("f64", "float64x2_t"),
    }
}

impl CFile {
    /// The body of a vector function in intrinsics, or `None` if other ways are as good.
    pub(super) fn neon_body(&mut self, helper: Helper) -> Option<String> {
        let Helper { op, dtype, lanes } = helper;
        let name = self.type_name(CType::Num(dtype, lanes));
        let result = |call: String| Some(returns(format!("({name}){call}")));
        match op {
            Op::Cast(DType::F32) if dtype == DType::F16 && lanes == 4 => {
                return result("vcvt_f16_f32((float32x4_t)a)".into());
            }
            Op::Cast(DType::F16) if dtype == DType::F32 && lanes == 4 => {
                return result("vcvt_f32_f16((float16x4_t)a)".into());
            }
            _ if !self.isa.is_register(dtype, lanes) => return None,
            _ => {}
        }
        let (suffix, register) = element(dtype);
        let [a, b, c] = ["a", "b", "c"].map(|operand| format!("({register}){operand}"));
        match op {
            Op::Fma if dtype.is_float() => result(format!("vfmaq_{suffix}({c}, {a}, {b})")),
            Op::Unary(UnaryFn::Sqrt) => result(format!("vsqrtq_{suffix}({a})")),
            Op::Unary(f) => {
                let function = match f {
                    UnaryFn::RoundEven => "vrndnq",
                    UnaryFn::Floor => "vrndmq",
                    UnaryFn::Ceil => "vrndpq",
                    UnaryFn::Trunc => "vrndq",
                    _ => return None,
                };
                result(format!("{function}_{suffix}({a})"))
            }
            // These instructions propagate NaN.
            Op::MaxOfNumber => result(format!("vmaxq_{suffix}({a}, {b})")),
            Op::MinOfNumber => result(format!("vminq_{suffix}({a}, {b})")),
            Op::Binary(f @ (BinaryFn::Max | BinaryFn::Min)) if dtype.is_float() || dtype.size_bytes() < 8 => {
                result(format!("v{}q_{suffix}({a}, {b})", f.name()))
            }
            Op::Select => {
                let (_, flags) = element(unsigned_of(dtype.size_bytes()));
                result(format!("vbslq_{suffix}(({flags})a, {b}, {c})"))
            }
            _ => None,
        }
    }
}
