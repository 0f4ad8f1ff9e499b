//! What multiplies: vectors in the type of the sum, dot products of pairs of bf16, or matrix tiles of bf16.
//!
//! A contraction of f32 whose operands are known to hold bf16 values - they are widened from bf16 - may read them as
//! bf16 and multiply with the instructions for that. Accumulators are f32 either way. Elements along K then lie in pairs: the first
//! operand's neighbours along K in memory, the second operand's panels as `[pair][column][2]`.

use super::form::{ContractionForm, GemmShape};
use orch_compute::block::BlockProgram;
use orch_compute::expr::{Const, Expr, ExprId, Exprs, LaneGroup};
use orch_ir::DType;
use orch_thread::target::CpuTarget;
use rustc_hash::FxHashMap;
use std::fmt;

/// What multiplies the operands of a contraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuMathUnit {
    /// Fused multiply-adds of vectors, in the type of the sum.
    Fma,
    /// Dot products of pairs of bf16, added to f32 (`vdpbf16ps`).
    Bf16Dot,
    /// Matrix tiles of bf16, added to f32 (AMX, `tdpbf16ps`).
    Amx,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for CpuMathUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CpuMathUnit::Fma => "vectors",
            CpuMathUnit::Bf16Dot => "pairs",
            CpuMathUnit::Amx => "tiles",
        })
    }
}

/// Elements along K of an AMX tile of the first operand: 16 pairs.
pub(super) const AMX_K: usize = 32;
/// Columns of an AMX accumulator tile.
pub(super) const AMX_COLUMNS: usize = 16;
/// Accumulator tiles along rows and along columns: two by two share two tiles of each operand.
pub(super) const AMX_SIDE: usize = 2;

/// Least rows, columns and K for which matrix tiles, mostly filled or not, beat vectors.
const LEAST_TILED: GemmShape = GemmShape { batch: 1, m: 4, n: 8, k: 16 };

impl CpuMathUnit {
    /// The fastest one that the target has for a contraction.
    pub fn of(block: &BlockProgram, form: &ContractionForm, target: &CpuTarget) -> Self {
        let GemmShape { m, n, k, .. } = GemmShape::of(block, form);
        let is_narrow = holds_bf16(&block.exprs, form.a) && holds_bf16(&block.exprs, form.b);
        let fills_tiles = m >= LEAST_TILED.m && n >= LEAST_TILED.n && k >= LEAST_TILED.k;
        if is_narrow && target.has_amx_bf16 && fills_tiles {
            CpuMathUnit::Amx
        } else if is_narrow && target.has_bf16_dot {
            CpuMathUnit::Bf16Dot
        } else {
            CpuMathUnit::Fma
        }
    }

    /// Elements along K that one instruction takes: the second operand's panels hold a multiple of them.
    pub fn k_step(self) -> usize {
        match self {
            CpuMathUnit::Fma => 1,
            CpuMathUnit::Bf16Dot => 2,
            CpuMathUnit::Amx => AMX_K,
        }
    }

    /// The elements of a column, neighbours along K, that lie side by side in a panel.
    pub fn group(self) -> LaneGroup {
        if self == CpuMathUnit::Fma { LaneGroup::One } else { LaneGroup::Pair }
    }

    /// A operand as it is read: in bf16 for the engines that multiply that.
    pub fn factor(self, exprs: &mut Exprs, factor: ExprId) -> ExprId {
        match self {
            CpuMathUnit::Fma => factor,
            CpuMathUnit::Bf16Dot | CpuMathUnit::Amx => {
                narrowed(exprs, factor).expect("the math_unit is chosen for factors that hold bf16")
            }
        }
    }
}

/// True for an f32 expression whose values are all bf16 values.
pub fn holds_bf16(exprs: &Exprs, id: ExprId) -> bool {
    choices(exprs, id).into_iter().all(|id| match *exprs.get(id) {
        Expr::Cast(DType::F32, a) => exprs.dtype(a) == DType::BF16,
        Expr::Const(c) => is_bf16(c),
        Expr::Select(..) => true,
        _ => false,
    })
}

/// True for an f32 constant whose last 16 digits are zero.
fn is_bf16(constant: Const) -> bool {
    constant.dtype == DType::F32 && constant.bits & 0xffff == 0
}

/// An expression for which [`holds_bf16`] is true as one of type bf16.
fn narrowed(exprs: &mut Exprs, id: ExprId) -> Option<ExprId> {
    let mut narrow: FxHashMap<ExprId, ExprId> = FxHashMap::default();
    for id in choices(exprs, id) {
        let new = match *exprs.get(id) {
            Expr::Cast(DType::F32, a) if exprs.dtype(a) == DType::BF16 => a,
            Expr::Const(c) if is_bf16(c) => {
                exprs.add(Expr::Const(Const { dtype: DType::BF16, bits: c.bits >> 16 }))
            }
            Expr::Select(condition, a, b) => exprs.select(condition, narrow[&a], narrow[&b]),
            _ => return None,
        };
        narrow.insert(id, new);
    }
    narrow.get(&id).copied()
}

/// What an expression may be by its selections, they and it included, operands before users.
fn choices(exprs: &Exprs, id: ExprId) -> Vec<ExprId> {
    exprs.reachable_along(id, |node, operands| {
        if let Expr::Select(_, a, b) = *node {
            operands.extend([a, b]);
        }
    })
}
