//! Vectors of pairs: interleaving, and dot products of pairs of bf16.
//!
//! Targets without an instruction for the product widen the even and the odd elements, which are the lower and the
//! upper halves of 32-bit lanes, and multiply-add twice in f32.

use super::super::types::CType;
use super::{CFile, Helper, Op, returns};
use orch_compute::LaneGroup;
use orch_ir::DType;

impl CFile {
    /// The body of an operation on pairs, or `None` for other operations and where halves come first.
    pub(super) fn pair_body(&mut self, helper: Helper) -> Option<String> {
        let Helper { op, dtype, lanes } = helper;
        match op {
            Op::Interleave(group) => Some(self.interleave_body(group, dtype, lanes)),
            Op::SplatPair if self.isa.is_pair(dtype, lanes) => {
                let half = self.apply(Op::SplatPair, dtype, lanes / 2, &["a"]);
                Some(returns(self.apply(Op::Join, dtype, lanes, &[&half, &half])))
            }
            Op::SplatPair => {
                let (name, bits) = (self.type_name(CType::Num(dtype, lanes)), lanes / 2);
                let both = self.apply(Op::Splat, DType::I32, bits, &["((int32_t)a)"]);
                Some(returns(format!("({name}){both}")))
            }
            Op::DotPairs if self.isa.is_pair(DType::BF16, 2 * lanes) => None,
            Op::DotPairs => Some(self.dot_body(lanes)),
            _ => None,
        }
    }

    fn dot_body(&mut self, lanes: usize) -> String {
        let name = self.type_name(CType::Num(DType::F32, lanes));
        let register = match 4 * lanes {
            16 => Some(("_mm", "__m128", "__m128bh")),
            32 => Some(("_mm256", "__m256", "__m256bh")),
            64 => Some(("_mm512", "__m512", "__m512bh")),
            _ => None,
        };
        if let Some((prefix, sums, pairs)) = register.filter(|_| self.isa.has_bf16) {
            return returns(format!("({name}){prefix}_dpbf16_ps(({sums})c, ({pairs})b, ({pairs})a)"));
        }
        let bits = self.type_name(CType::Num(DType::U32, lanes));
        let even = |operand: &str| format!("(({name})(({bits}){operand} << 16))");
        let odd = |operand: &str| format!("(({name})(({bits}){operand} & 0xffff0000u))");
        let first = self.apply(Op::Fma, DType::F32, lanes, &[&even("a"), &even("b"), "c"]);
        returns(self.apply(Op::Fma, DType::F32, lanes, &[&odd("a"), &odd("b"), &first]))
    }

    fn interleave_body(&mut self, group: LaneGroup, dtype: DType, lanes: usize) -> String {
        let half = lanes / 2;
        if half == group.lanes() {
            return match group {
                LaneGroup::One => returns(format!("({}){{a, b}}", self.type_name(CType::Num(dtype, lanes)))),
                LaneGroup::Pair => returns(self.apply(Op::Join, dtype, lanes, &["a", "b"])),
            };
        }
        if self.isa.is_pair(dtype, half) {
            // Each quarter of the operands fills a half of the result.
            let interleave = Op::Interleave(group);
            let low = [self.apply(Op::Low, dtype, half, &["a"]), self.apply(Op::Low, dtype, half, &["b"])];
            let high = [self.apply(Op::High, dtype, half, &["a"]), self.apply(Op::High, dtype, half, &["b"])];
            let low = self.apply(interleave, dtype, half, &[&low[0], &low[1]]);
            let high = self.apply(interleave, dtype, half, &[&high[0], &high[1]]);
            return returns(self.apply(Op::Join, dtype, lanes, &[&low, &high]));
        }
        let shuffle = |range: std::ops::Range<usize>| {
            let from = range.map(|lane| {
                let (operand, at) = group.source_of(lane);
                (operand * half + at).to_string()
            });
            format!("__builtin_shufflevector(a, b, {})", from.collect::<Vec<_>>().join(", "))
        };
        if self.isa.is_pair(dtype, lanes) {
            let (low, high) = (shuffle(0..half), shuffle(half..lanes));
            return returns(self.apply(Op::Join, dtype, lanes, &[&low, &high]));
        }
        returns(shuffle(0..lanes))
    }
}
