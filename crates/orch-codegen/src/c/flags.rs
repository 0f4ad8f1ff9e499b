//! Booleans of several lanes: their two representations ([`CType::Mask`] and [`CType::Flags`]) and operations on
//! them.

use super::emitter::{CValue, FunctionEmitter};
use super::helper::{Op, mask_of};
use super::types::{CType, in_memory};
use crate::facts::Prefix;
use orch_ir::{BinaryFn, CompareFn, DType, ReduceOp, UnaryFn};

impl FunctionEmitter<'_> {
    /// A comparison of booleans.
    pub(super) fn compare_flags(&mut self, f: CompareFn, a: CValue, b: CValue) -> CValue {
        match f {
            CompareFn::Ne => self.logic(BinaryFn::Xor, a, b),
            CompareFn::Eq => {
                let differ = self.logic(BinaryFn::Xor, a, b);
                self.not(differ)
            }
            CompareFn::Lt => {
                let a = self.not(a);
                self.logic(BinaryFn::And, a, b)
            }
            CompareFn::Le => {
                let a = self.not(a);
                self.logic(BinaryFn::Or, a, b)
            }
            CompareFn::Gt => self.compare_flags(CompareFn::Lt, b, a),
            CompareFn::Ge => self.compare_flags(CompareFn::Le, b, a),
        }
    }

    /// Whether any flag, or every flag, is true.
    pub(super) fn reduce_flags(&mut self, op: ReduceOp, value: CValue) -> CValue {
        let all = matches!(op, ReduceOp::Min | ReduceOp::Prod);
        let text = match value.ty {
            CType::Mask(lanes) if all => format!("({} == {})", value.text, mask_of(lanes)),
            CType::Mask(_) => format!("({} != 0)", value.text),
            _ => {
                // True is -1: the largest flag is false if any is.
                let (dtype, lanes) = value.ty.as_vector().expect("flags are vectors");
                let op = Op::Reduce(if all { ReduceOp::Max } else { ReduceOp::Min });
                format!("({} != 0)", self.unit.apply(op, dtype, lanes, &[&value.text]))
            }
        };
        CValue { text, ty: CType::Bool }
    }

    /// Flags of the first lanes.
    pub(super) fn prefix(&mut self, prefix: Prefix, lanes: usize) -> CValue {
        let count = self.count(prefix);
        let text = self.unit.apply(Op::Prefix, DType::F32, lanes, &[&count]);
        CValue { text, ty: self.unit.isa().flags(DType::F32, lanes) }
    }

    /// How many lanes are among the first ones: any integer, of which those below 0 count as 0 and more than all as all.
    pub(super) fn count(&mut self, prefix: Prefix) -> String {
        let (base, end) = (self.value_of(prefix.base).text, self.value_of(prefix.end).text);
        let more = if prefix.inclusive { " + 1" } else { "" };
        format!("{end} - {base}{more}")
    }

    /// Flags as an operation on elements of `dtype` takes them.
    pub(super) fn flags_for(&mut self, flags: CValue, dtype: DType) -> String {
        let lanes = flags.ty.lanes();
        match (flags.ty, self.unit.isa().flags(in_memory(dtype), lanes)) {
            (from, to) if from == to => flags.text,
            (from, to) => {
                let ((from, _), (to, _)) =
                    (from.as_vector().expect("flags"), to.as_vector().expect("flags of equal lanes"));
                self.unit.apply(Op::Cast(from), to, lanes, &[&flags.text])
            }
        }
    }

    /// The flags in the representation `ty`.
    pub(super) fn flags_as(&mut self, flags: CValue, ty: CType) -> CValue {
        match (flags.ty.as_vector(), ty.as_vector()) {
            (Some((from, lanes)), Some((to, _))) if from != to => {
                CValue { text: self.unit.apply(Op::Cast(from), to, lanes, &[&flags.text]), ty }
            }
            _ => flags,
        }
    }

    /// The complement.
    pub(super) fn not(&mut self, value: CValue) -> CValue {
        let text = match value.ty {
            CType::Bool => format!("(!{})", value.text),
            CType::Mask(lanes) => {
                format!("(({})({} ^ {}))", value.ty.name(), value.text, mask_of(lanes))
            }
            ty => {
                let (dtype, lanes) = ty.as_vector().expect("flags are vectors");
                self.unit.apply(Op::Unary(UnaryFn::Not), dtype, lanes, &[&value.text])
            }
        };
        CValue { text, ty: value.ty }
    }

    /// A function of two boolean values.
    pub(super) fn logic(&mut self, f: BinaryFn, a: CValue, b: CValue) -> CValue {
        let b = self.flags_as(b, a.ty);
        let f = match f {
            BinaryFn::Max => BinaryFn::Or,
            BinaryFn::Min => BinaryFn::And,
            f => f,
        };
        let operator = match f {
            BinaryFn::And => "&",
            BinaryFn::Or => "|",
            _ => "^",
        };
        let text = match a.ty.as_vector() {
            Some((dtype, lanes)) => self.unit.apply(Op::Binary(f), dtype, lanes, &[&a.text, &b.text]),
            None => format!("({} {operator} {})", a.text, b.text),
        };
        CValue { text, ty: a.ty }
    }
}
