//! Expression nodes to C++ text, given the texts of their operands.

use super::emitter::{CppValue, Emitter};
use super::types::{CppType, INT};
use crate::facts;
use orch_compute::{Const, Expr, ExprId, LaneGroup, LaneHalf, Type};
use orch_ir::{BinaryFn, DType, ReduceOp, UnaryFn};

impl Emitter<'_> {
    /// The text of a node whose operands are known.
    pub(super) fn node(&mut self, id: ExprId) -> CppValue {
        let ty = self.program.exprs.ty(id);
        let cpp = CppType::of(ty.dtype, ty.lanes);
        let value = |text: String| CppValue { text, ty: cpp };
        match *self.program.exprs.get(id) {
            Expr::Const(c) => {
                let fits = c.dtype == DType::I64 && i32::try_from(c.bits as i64).is_ok();
                let ty = if fits { CppType { element: INT, lanes: 1 } } else { cpp };
                CppValue { text: literal(c), ty }
            }
            Expr::Var(var) => self.variable(var),
            // Of vectors NVRTC keeps more of them in registers then than there are.
            Expr::Unary(UnaryFn::Exp, a) if ty == Type::scalar(DType::F32) => {
                match *self.program.exprs.get(a) {
                    Expr::Binary(BinaryFn::Sub, a, b) => self.call(id, "o_exp_less", &[a, b]),
                    _ => self.call(id, "o_exp", &[a]),
                }
            }
            Expr::Unary(f, a) => self.call(id, &format!("o_{}", f.name()), &[a]),
            Expr::Binary(f, a, b) => self.binary(id, f, a, b),
            Expr::Compare(f, a, b) => {
                let name = format!("o_{}", f.name());
                let args = self.same_type(&[a, b]);
                value(format!("{name}({})", args.join(", ")))
            }
            Expr::Select(condition, a, b) => {
                let condition = self.operand(facts::condition(&self.program.exprs, condition)).text;
                let ty = self.index_type(id, &[a, b]);
                let (a, b) = (self.operand_as(a, ty), self.operand_as(b, ty));
                CppValue { text: format!("o_select({condition}, {a}, {b})"), ty }
            }
            Expr::Cast(to, a) => {
                let a = self.operand(a);
                if a.ty == cpp {
                    return a;
                }
                value(format!("o_cast<{}>({})", CppType::of(to, 1).element, a.text))
            }
            Expr::IsNan(a) => value(format!("o_is_nan({})", self.operand(a).text)),
            Expr::IsInf(a) => value(format!("o_is_inf({})", self.operand(a).text)),
            Expr::Fma(a, b, c) => self.call(id, "o_fma", &[a, b, c]),
            Expr::Interleave(LaneGroup::One, a, b) => self.call(id, "o_interleave", &[a, b]),
            Expr::Interleave(LaneGroup::Pair, a, b) => self.call(id, "o_interleave<2>", &[a, b]),
            Expr::Half(LaneHalf::Low, a) => self.call(id, "o_low", &[a]),
            Expr::Half(LaneHalf::High, a) => self.call(id, "o_high", &[a]),
            Expr::FloorDiv(a, b) => self.division(id, "o_floor_div", "/", a, b),
            Expr::FloorRem(a, b) => self.division(id, "o_floor_rem", "%", a, b),
            Expr::Load { buffer, offset, lanes, mask } => value(self.load(buffer, offset, lanes, mask)),
            Expr::Splat(a, lanes) => {
                let a = self.operand(a);
                CppValue { text: format!("o_splat<{lanes}>({})", a.text), ty: CppType { lanes, ..a.ty } }
            }
            Expr::Ramp { base, stride, lanes } => {
                let ty = self.index_type(id, &[base]);
                let scalar = CppType { lanes: 1, ..ty };
                let base = self.operand_as(base, scalar);
                CppValue { text: format!("o_ramp<{lanes}>({base}, ({}){stride})", ty.element), ty }
            }
            Expr::ReduceLanes(op, a) => {
                let is_bool = ty.dtype == DType::Bool;
                let name = match op {
                    ReduceOp::Sum if is_bool => "o_lanes_or",
                    ReduceOp::Prod if is_bool => "o_lanes_and",
                    ReduceOp::Sum => "o_lanes_sum",
                    ReduceOp::Prod => "o_lanes_prod",
                    ReduceOp::Max => "o_lanes_max",
                    ReduceOp::Min => "o_lanes_min",
                    ReduceOp::ArgMax { .. } | ReduceOp::ArgMin { .. } => {
                        unreachable!("lanes are not arg-reduced; the validator reports it")
                    }
                };
                let a = self.operand(a);
                CppValue { text: format!("{name}({})", a.text), ty: CppType { lanes: 1, ..a.ty } }
            }
            Expr::DotPairs(..) => panic!("GPUs multiply pairs in matrices only"),
            Expr::Read { .. } | Expr::Stage(_) => {
                unreachable!("block-level expression {id} in a thread program; the validator reports it")
            }
        }
    }

    /// A call of a function of operands of the node's type.
    fn call(&mut self, id: ExprId, name: &str, operands: &[ExprId]) -> CppValue {
        let ty = self.index_type(id, operands);
        let operand_type = CppType { lanes: self.program.exprs.lanes(operands[0]), ..ty };
        let args: Vec<String> =
            operands.iter().map(|&operand| self.operand_as(operand, operand_type)).collect();
        CppValue { text: format!("{name}({})", args.join(", ")), ty }
    }

    fn binary(&mut self, id: ExprId, f: BinaryFn, a: ExprId, b: ExprId) -> CppValue {
        let ty = self.index_type(id, &[a, b]);
        let operator = match f {
            BinaryFn::Add => "+",
            BinaryFn::Sub => "-",
            BinaryFn::Mul => "*",
            _ => return self.call(id, &format!("o_{}", f.name()), &[a, b]),
        };
        let is_index = self.program.exprs.ty(id) == orch_compute::Type::INDEX && !self.facts.is_data(id);
        if !is_index {
            return self.call(id, &format!("o_{}", f.name()), &[a, b]);
        }
        let (a, b) = (self.operand_as(a, ty), self.operand_as(b, ty));
        CppValue { text: format!("({a} {operator} {b})"), ty }
    }

    /// A floor division; one instruction sequence less where nothing is negative.
    fn division(&mut self, id: ExprId, name: &str, operator: &str, a: ExprId, b: ExprId) -> CppValue {
        let ty = self.index_type(id, &[a, b]);
        let is_natural = self.bounds.of(&self.program.exprs, a).low >= 0;
        if is_natural && ty.lanes == 1 && ty.element == INT {
            let (a, b) = (self.operand_as(a, ty), self.operand_as(b, ty));
            return CppValue { text: format!("(int)((unsigned){a} {operator} (unsigned){b})"), ty };
        }
        self.call(id, name, &[a, b])
    }

    /// The type in which a node is computed: that of the program, but `int` for indices if it and its operands fit.
    fn index_type(&mut self, id: ExprId, operands: &[ExprId]) -> CppType {
        let exprs = &self.program.exprs;
        let ty = exprs.ty(id);
        let mut fits = ty.dtype == DType::I64 && !self.facts.is_data(id);
        for &id in operands.iter().chain([&id]) {
            let is_index = exprs.dtype(id) == DType::I64;
            fits = fits && is_index && self.bounds.of(exprs, id).is_within(i32::MIN.into(), i32::MAX.into());
        }
        match fits {
            true => CppType { element: INT, lanes: ty.lanes },
            false => CppType::of(ty.dtype, ty.lanes),
        }
    }

    /// Operands of one type of the program, as texts of one C++ type.
    fn same_type(&mut self, operands: &[ExprId]) -> Vec<String> {
        let values: Vec<CppValue> = operands.iter().map(|&operand| self.operand(operand)).collect();
        let first = values[0].ty;
        match values.iter().all(|value| value.ty.element == first.element) {
            true => values.into_iter().map(|value| value.text).collect(),
            false => {
                let ty = self.program.exprs.ty(operands[0]);
                values.iter().map(|value| self.as_type(value, CppType::of(ty.dtype, ty.lanes))).collect()
            }
        }
    }

    pub(super) fn operand(&mut self, id: ExprId) -> CppValue {
        self.known(id).expect("operands are evaluated before their users")
    }

    pub(super) fn operand_as(&mut self, id: ExprId, ty: CppType) -> String {
        let value = self.operand(id);
        self.as_type(&value, ty)
    }
}

/// A scalar constant.
fn literal(c: Const) -> String {
    let float = |value: f64, text: String, suffix: &str| match value {
        _ if value.is_nan() => "(__uint_as_float(0x7fc00000u))".to_owned(),
        _ if value.is_infinite() && value > 0.0 => "__uint_as_float(0x7f800000u)".to_owned(),
        _ if value.is_infinite() => "__uint_as_float(0xff800000u)".to_owned(),
        _ if text.starts_with('-') => format!("({text}{suffix})"),
        _ => text + suffix,
    };
    match c.dtype {
        DType::Bool => (c.bits != 0).to_string(),
        DType::F16 => format!("f16_bits({:#06x})", c.bits as u16),
        DType::BF16 => format!("bf16_bits({:#06x})", c.bits as u16),
        DType::F32 => {
            let value = f32::from_bits(c.bits as u32);
            float(value.into(), format!("{value:?}"), "f")
        }
        DType::F64 => {
            let value = f64::from_bits(c.bits);
            let text = float(value, format!("{value:?}"), "");
            if value.is_finite() { text } else { format!("(double){text}") }
        }
        DType::U64 => format!("{}ull", c.bits),
        DType::U32 => format!("{}u", c.bits as u32),
        DType::U8 | DType::U16 => format!("({}){}", CppType::of(c.dtype, 1).element, c.bits as u16),
        DType::I8 => format!("(signed char)({})", c.bits as u8 as i8),
        DType::I16 => format!("(short)({})", c.bits as u16 as i16),
        DType::I32 => integer(i64::from(c.bits as u32 as i32)),
        DType::I64 => integer(c.bits as i64),
    }
}

fn integer(value: i64) -> String {
    match value {
        i64::MIN => "(-9223372036854775807ll - 1)".to_owned(),
        _ if i32::try_from(value).is_err() => format!("({value}ll)"),
        -2147483648 => "(-2147483647 - 1)".to_owned(),
        _ if value < 0 => format!("({value})"),
        _ => value.to_string(),
    }
}
