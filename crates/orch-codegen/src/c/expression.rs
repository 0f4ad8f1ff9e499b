//! Expression nodes to C text, given the texts of their operands.

use super::access::MemoryAccess;
use super::emitter::{CValue, FunctionEmitter};
use super::helper::{Op, mask_of};
use super::literal::{element_list, literal};
use super::types::CType;
use crate::facts;
use orch_compute::{Expr, ExprId, LaneHalf};
use orch_ir::{BinaryFn, CompareFn, DType, ReduceOp, UnaryFn};

/// The type in which arithmetic on elements of `dtype` is done.
fn arithmetic(dtype: DType) -> DType {
    if dtype.is_half() { DType::F32 } else { dtype }
}

impl FunctionEmitter<'_> {
    /// The text of a node whose operands have texts.
    pub(super) fn node(&mut self, id: ExprId) -> CValue {
        let ty = self.program.exprs.ty(id);
        let (dtype, lanes) = (ty.dtype, ty.lanes);
        if let Some(prefix) = facts::prefix(&self.program.exprs, id) {
            return self.prefix(prefix, lanes);
        }
        match *self.program.exprs.get(id) {
            Expr::Const(c) => self.number(c.dtype, 1, literal(c)),
            Expr::Var(var) => self.variable(var),
            Expr::Unary(f, a) if dtype == DType::Bool => {
                debug_assert_eq!(f, UnaryFn::Not, "the only function of one boolean");
                let a = self.value_of(a);
                self.not(a)
            }
            Expr::Unary(f, a) => self.computed(Op::Unary(f), dtype, lanes, &[a]),
            Expr::Binary(f, a, b) => self.binary(id, f, a, b),
            Expr::Compare(f, a, b) => self.compare(f, a, b),
            Expr::Select(condition, a, b) => self.select(condition, a, b),
            Expr::Cast(to, a) => {
                let value = self.value_of(a);
                self.cast(value, to)
            }
            Expr::IsNan(a) => {
                let (a, dtype) = self.widened(a);
                let text = self.unit.apply(Op::Compare(CompareFn::Ne), dtype, lanes, &[&a, &a]);
                CValue { text, ty: self.unit.isa().flags(dtype, lanes) }
            }
            Expr::IsInf(a) => {
                let (a, dtype) = self.widened(a);
                let magnitude = self.unit.apply(Op::Unary(UnaryFn::Abs), dtype, lanes, &[&a]);
                let inf = self.unit.apply(Op::Splat, dtype, lanes, &["__builtin_inff()"]);
                let text = self.unit.apply(Op::Compare(CompareFn::Eq), dtype, lanes, &[&magnitude, &inf]);
                CValue { text, ty: self.unit.isa().flags(dtype, lanes) }
            }
            Expr::Fma(a, b, c) => self.computed(Op::Fma, dtype, lanes, &[a, b, c]),
            Expr::DotPairs(a, b, c) => {
                let lanes_of_a = self.program.exprs.lanes(a);
                let (a, b, c) = (self.value_of(a), self.value_of(b), self.value_of(c));
                let a = match lanes_of_a == 2 && lanes > 1 {
                    true => self.unit.apply(Op::SplatPair, DType::BF16, 2 * lanes, &[&a.text]),
                    false => a.text,
                };
                let text = self.unit.apply(Op::DotPairs, DType::F32, lanes, &[&a, &b.text, &c.text]);
                self.number(DType::F32, lanes, text)
            }
            Expr::Interleave(group, a, b) => {
                let (a, b) = (self.value_of(a), self.value_of(b));
                let text = self.unit.apply(Op::Interleave(group), dtype, lanes, &[&a.text, &b.text]);
                self.number(dtype, lanes, text)
            }
            Expr::Half(half, a) => {
                let a = self.value_of(a);
                let op = match half {
                    LaneHalf::Low => Op::Low,
                    LaneHalf::High => Op::High,
                };
                let text = self.unit.apply(op, dtype, 2 * lanes, &[&a.text]);
                self.number(dtype, lanes, text)
            }
            Expr::FloorDiv(a, b) => self.floor_division(Op::FloorDiv, "/", a, b),
            Expr::FloorRem(a, b) => self.floor_division(Op::FloorRem, "%", a, b),
            Expr::Load { buffer, offset, lanes, mask } => {
                let address = facts::address(&self.program.exprs, offset);
                let mask = facts::mask(&self.program.exprs, mask);
                self.load(&MemoryAccess { buffer, address, mask }, lanes)
            }
            Expr::Splat(a, lanes) => {
                let a = self.value_of(a);
                self.splat(a, lanes)
            }
            Expr::Ramp { base, stride, lanes } => {
                let base = self.value_of(base);
                let steps = self.steps(dtype, lanes, stride);
                let base = self.splat(base, lanes);
                let text = self.unit.apply(Op::Binary(BinaryFn::Add), dtype, lanes, &[&base.text, &steps]);
                self.number(dtype, lanes, text)
            }
            Expr::ReduceLanes(op, a) => self.reduce(op, a),
            Expr::Read { .. } | Expr::Stage(_) => {
                unreachable!("block-level expression {id} in a thread program; the validator reports it")
            }
        }
    }

    /// The text as a value of a scalar or vector type.
    pub(super) fn number(&mut self, dtype: DType, lanes: usize, text: String) -> CValue {
        let ty = if dtype == DType::Bool { CType::Bool } else { CType::Num(dtype, lanes) };
        self.unit.type_name(ty);
        CValue { text, ty }
    }

    /// The operand in the type in which arithmetic on it is done.
    fn widened(&mut self, id: ExprId) -> (String, DType) {
        let ty = self.program.exprs.ty(id);
        let value = self.value_of(id);
        let wide = arithmetic(ty.dtype);
        (self.unit.apply(Op::Cast(ty.dtype), wide, ty.lanes, &[&value.text]), wide)
    }

    /// An elementwise operation; `f16` and `bf16` compute in `f32` and round.
    fn computed(&mut self, op: Op, dtype: DType, lanes: usize, operands: &[ExprId]) -> CValue {
        let wide = arithmetic(dtype);
        let args: Vec<String> = operands.iter().map(|&operand| self.widened(operand).0).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let text = self.unit.apply(op, wide, lanes, &args);
        let text = self.unit.apply(Op::Cast(wide), dtype, lanes, &[&text]);
        self.number(dtype, lanes, text)
    }

    fn binary(&mut self, id: ExprId, f: BinaryFn, a: ExprId, b: ExprId) -> CValue {
        let ty = self.program.exprs.ty(id);
        if ty.dtype == DType::Bool {
            let (a, b) = (self.value_of(a), self.value_of(b));
            return self.logic(f, a, b);
        }
        if ty == orch_compute::Type::INDEX && !self.facts.is_data(id) {
            // Index arithmetic does not overflow, so C's operators do.
            let operator = match f {
                BinaryFn::Add => Some("+"),
                BinaryFn::Sub => Some("-"),
                BinaryFn::Mul => Some("*"),
                _ => None,
            };
            if let Some(operator) = operator {
                let text = format!("({} {operator} {})", self.value_of(a).text, self.value_of(b).text);
                return self.number(ty.dtype, 1, text);
            }
        }
        let of_number = match f {
            BinaryFn::Max if ty.dtype.is_float() => Some(Op::MaxOfNumber),
            BinaryFn::Min if ty.dtype.is_float() => Some(Op::MinOfNumber),
            _ => None,
        };
        match of_number {
            Some(op) if self.is_number(a) => self.computed(op, ty.dtype, ty.lanes, &[a, b]),
            Some(op) if self.is_number(b) => self.computed(op, ty.dtype, ty.lanes, &[b, a]),
            _ => self.computed(Op::Binary(f), ty.dtype, ty.lanes, &[a, b]),
        }
    }

    /// True for a constant other than NaN.
    fn is_number(&self, id: ExprId) -> bool {
        self.program.exprs.as_const(id).and_then(|c| c.as_float()).is_some_and(|v| !v.is_nan())
    }

    fn compare(&mut self, f: CompareFn, a: ExprId, b: ExprId) -> CValue {
        let lanes = self.program.exprs.lanes(a);
        if self.program.exprs.dtype(a) == DType::Bool {
            let (a, b) = (self.value_of(a), self.value_of(b));
            return self.compare_flags(f, a, b);
        }
        let ((a, dtype), (b, _)) = (self.widened(a), self.widened(b));
        let text = self.unit.apply(Op::Compare(f), dtype, lanes, &[&a, &b]);
        CValue { text, ty: self.unit.isa().flags(dtype, lanes) }
    }

    fn select(&mut self, condition: ExprId, a: ExprId, b: ExprId) -> CValue {
        let (dtype, lanes) = (self.program.exprs.dtype(a), self.program.exprs.lanes(a));
        let (a, b) = (self.value_of(a), self.value_of(b));
        if let (Some(condition), 2..) = (self.program.exprs.uniform(condition), lanes) {
            let b = self.flags_as(b, a.ty);
            return self.either(condition, &a, &b.text);
        }
        let condition = self.value_of(condition);
        if dtype == DType::Bool && lanes > 1 {
            let inverse = self.not(condition.clone());
            let (a, b) = (self.logic(BinaryFn::And, a, condition), self.logic(BinaryFn::And, b, inverse));
            return self.logic(BinaryFn::Or, a, b);
        }
        let condition = self.flags_for(condition, dtype);
        let text = self.unit.apply(Op::Select, dtype, lanes, &[&condition, &a.text, &b.text]);
        self.number(dtype, lanes, text)
    }

    /// One of two values of the same type, of which the other one is not computed if it has no name.
    pub(super) fn either(&mut self, condition: ExprId, value: &CValue, otherwise: &str) -> CValue {
        let condition = self.value_of(condition).text;
        let ty = value.ty;
        // A vector in memory has a type of its own.
        let as_ty = match ty.as_vector() {
            Some((dtype, lanes)) if !self.unit.isa().is_pair(dtype, lanes) => {
                format!("({})", self.unit.type_name(ty))
            }
            _ => String::new(),
        };
        CValue { text: format!("({condition} ? {as_ty}{} : {as_ty}{otherwise})", value.text), ty }
    }

    /// A conversion.
    pub(super) fn cast(&mut self, value: CValue, to: DType) -> CValue {
        let lanes = value.ty.lanes();
        match (value.ty, to) {
            (CType::Num(from, _), DType::Bool) => {
                let wide = arithmetic(from);
                let text = self.unit.apply(Op::Cast(from), wide, lanes, &[&value.text]);
                let zero = self.unit.apply(Op::Splat, wide, lanes, &["0"]);
                let text = self.unit.apply(Op::Compare(CompareFn::Ne), wide, lanes, &[&text, &zero]);
                CValue { text, ty: self.unit.isa().flags(wide, lanes) }
            }
            (CType::Num(from, _), _) => {
                let text = self.unit.apply(Op::Cast(from), to, lanes, &[&value.text]);
                self.number(to, lanes, text)
            }
            (_, DType::Bool) => value,
            (CType::Bool, _) => {
                let text = self.unit.apply(Op::Cast(DType::Bool), to, 1, &[&value.text]);
                self.number(to, 1, text)
            }
            _ => {
                let condition = self.flags_for(value, to);
                let one = match to {
                    DType::F16 => "0x3c00",
                    DType::BF16 => "0x3f80",
                    _ => "1",
                };
                let one = self.unit.apply(Op::Splat, to, lanes, &[one]);
                let zero = self.unit.apply(Op::Splat, to, lanes, &["0"]);
                let text = self.unit.apply(Op::Select, to, lanes, &[&condition, &one, &zero]);
                self.number(to, lanes, text)
            }
        }
    }

    fn floor_division(&mut self, op: Op, operator: &str, a: ExprId, b: ExprId) -> CValue {
        let ty = self.program.exprs.ty(a);
        let is_natural = self.bounds.of(&self.program.exprs, a).low >= 0;
        if ty.lanes == 1 && (is_natural || ty.dtype.is_unsigned_int()) {
            let text = format!("({} {operator} {})", self.value_of(a).text, self.value_of(b).text);
            return self.number(ty.dtype, 1, text);
        }
        if ty.lanes > 1
            && let Some(value) = self.division_by_constant(op, a, b)
        {
            return value;
        }
        self.computed(op, ty.dtype, ty.lanes, &[a, b])
    }

    /// Floor division of a vector of 32-bit integers by a constant: shifted by a multiple of the divisor, so that the
    /// dividend is not negative.
    fn division_by_constant(&mut self, op: Op, a: ExprId, b: ExprId) -> Option<CValue> {
        let exprs = &self.program.exprs;
        let (dtype, lanes) = (exprs.dtype(a), exprs.lanes(a));
        let divisor = exprs.as_const(b).and_then(|c| c.as_int()).filter(|&d| d > 0)?;
        let range = self.bounds.of(exprs, a);
        let shift = -i128::from(range.low).min(0).div_euclid(divisor) * divisor;
        if dtype != DType::I32 || i128::from(range.high) + shift > i128::from(i32::MAX) {
            return None;
        }
        let mut text = self.value_of(a).text;
        if shift > 0 {
            let shift = self.unit.apply(Op::Splat, dtype, lanes, &[&shift.to_string()]);
            text = self.unit.apply(Op::Binary(BinaryFn::Add), dtype, lanes, &[&text, &shift]);
        }
        let divisor = u32::try_from(divisor).ok()?;
        if op == Op::FloorRem {
            text = self.unit.apply(Op::RemainderBy(divisor), dtype, lanes, &[&text]);
            return Some(self.number(dtype, lanes, text));
        }
        text = self.unit.apply(Op::QuotientBy(divisor), dtype, lanes, &[&text]);
        if shift > 0 {
            let steps = (shift / i128::from(divisor)).to_string();
            let steps = self.unit.apply(Op::Splat, dtype, lanes, &[&steps]);
            text = self.unit.apply(Op::Binary(BinaryFn::Sub), dtype, lanes, &[&text, &steps]);
        }
        Some(self.number(dtype, lanes, text))
    }

    fn reduce(&mut self, op: ReduceOp, a: ExprId) -> CValue {
        let (dtype, lanes) = (self.program.exprs.dtype(a), self.program.exprs.lanes(a));
        let value = self.value_of(a);
        if lanes == 1 {
            return value;
        }
        if dtype == DType::Bool {
            return self.reduce_flags(op, value);
        }
        let wide = arithmetic(dtype);
        let text = self.unit.apply(Op::Cast(dtype), wide, lanes, &[&value.text]);
        let text = self.unit.apply(Op::Reduce(op), wide, lanes, &[&text]);
        let text = self.unit.apply(Op::Cast(wide), dtype, 1, &[&text]);
        self.number(dtype, 1, text)
    }

    fn splat(&mut self, value: CValue, lanes: usize) -> CValue {
        if lanes == 1 {
            return value;
        }
        match (value.ty, self.unit.isa().flags(DType::F32, lanes)) {
            (CType::Bool, ty @ CType::Mask(_)) => {
                let text = format!("(({})({} ? {} : 0))", ty.name(), value.text, mask_of(lanes));
                CValue { text, ty }
            }
            (CType::Bool, ty) => {
                let negated = format!("-{}", value.text);
                CValue { text: self.unit.apply(Op::Splat, DType::I32, lanes, &[&negated]), ty }
            }
            (ty, _) => {
                let CType::Num(dtype, _) = ty else { unreachable!("a scalar is a number or a boolean") };
                let text = self.unit.apply(Op::Splat, dtype, lanes, &[&value.text]);
                self.number(dtype, lanes, text)
            }
        }
    }

    /// `stride * lane` in each lane.
    pub(super) fn steps(&mut self, dtype: DType, lanes: usize, stride: i64) -> String {
        self.steps_from(dtype, 0..lanes, stride)
    }

    fn steps_from(&mut self, dtype: DType, range: std::ops::Range<usize>, stride: i64) -> String {
        let lanes = range.len();
        let name = self.unit.type_name(CType::Num(dtype, lanes));
        let list = if self.unit.isa().is_pair(dtype, lanes) {
            let middle = range.start + lanes / 2;
            let low = self.steps_from(dtype, range.start..middle, stride);
            let high = self.steps_from(dtype, middle..range.end, stride);
            format!("{low}, {high}")
        } else {
            element_list(dtype, range.map(|lane| stride.wrapping_mul(lane as i64)))
        };
        format!("(({name}){{{list}}})")
    }
}
