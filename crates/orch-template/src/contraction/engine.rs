//! What multiplies: vectors in the type of the sum, dot products of pairs of bf16, or matrix tiles of bf16.
//!
//! A contraction of f32 whose factors are known to hold bf16 values - they are widened from bf16 - may read them as
//! bf16 and multiply with the instructions for that. Sums are f32 either way. Terms then lie in pairs: the first
//! factor's neighbouring terms in memory, the second factor's panels as `[pair][column][2]`.

use super::form::Form;
use super::operand::{Flat, PanelsFrom, RowOrder, RowsFrom, linear_in, plain_read};
use super::schedule::{ContractionSchedule, Extents, Staging};
use super::tiles;
use orch_compute::block::BlockProgram;
use orch_compute::expr::{Const, Expr, ExprId, Exprs};
use orch_ir::DType;
use orch_thread::target::CpuTarget;
use std::fmt;

/// What multiplies the factors of a contraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// Multiply-adds of vectors, in the type of the sum.
    Vectors,
    /// Dot products of pairs of bf16, added to f32.
    Pairs,
    /// Matrix tiles of bf16, added to f32.
    Tiles,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Vectors => "vectors",
            Engine::Pairs => "pairs",
            Engine::Tiles => "tiles",
        })
    }
}

/// Least rows, columns and terms for which matrix tiles, mostly filled or not, beat vectors.
const LEAST_TILED: Extents = Extents { batch: 1, m: 4, n: 8, k: 16 };

impl Engine {
    /// The fastest one that the target has for a contraction.
    pub fn of(block: &BlockProgram, form: &Form, target: &CpuTarget) -> Self {
        let Extents { m, n, k, .. } = Extents::of(block, form);
        let is_narrow = holds_bf16(&block.exprs, form.a) && holds_bf16(&block.exprs, form.b);
        let fills_tiles = m >= LEAST_TILED.m && n >= LEAST_TILED.n && k >= LEAST_TILED.k;
        if is_narrow && target.has_amx_bf16 && fills_tiles {
            Engine::Tiles
        } else if is_narrow && target.has_bf16_dot {
            Engine::Pairs
        } else {
            Engine::Vectors
        }
    }

    /// Schedules in order of modelled cost, best first; at most `limit`.
    pub fn schedules(
        self,
        extents: Extents,
        staging: Staging,
        lanes: usize,
        target: &CpuTarget,
        limit: usize,
    ) -> Vec<ContractionSchedule> {
        match self {
            Engine::Vectors => ContractionSchedule::candidates(extents, staging, lanes, target, limit),
            Engine::Pairs => {
                let pairs = Extents { k: extents.k.div_ceil(2), ..extents };
                ContractionSchedule::candidates(pairs, staging, lanes, target, limit)
            }
            Engine::Tiles => vec![tiles::schedule(extents, staging, lanes, target)],
        }
    }

    /// Terms that one instruction takes: the second factor's panels hold a multiple of them.
    pub fn terms(self) -> usize {
        match self {
            Engine::Vectors => 1,
            Engine::Pairs => 2,
            Engine::Tiles => tiles::TERMS,
        }
    }

    /// Terms that lie side by side in a panel.
    pub fn group(self) -> usize {
        if self == Engine::Vectors { 1 } else { 2 }
    }

    /// A factor as it is read: in bf16 for the engines that multiply that.
    pub fn factor(self, exprs: &mut Exprs, factor: ExprId) -> ExprId {
        match self {
            Engine::Vectors => factor,
            Engine::Pairs | Engine::Tiles => {
                narrowed(exprs, factor).expect("the engine is chosen for factors that hold bf16")
            }
        }
    }

    /// The rows as the engine can read them; rows that it cannot read in place are copied.
    pub fn rows(
        self,
        block: &BlockProgram,
        exprs: &mut Exprs,
        flat: &Flat,
        a: ExprId,
        rows: RowsFrom,
    ) -> RowsFrom {
        if self == Engine::Vectors {
            return rows;
        }
        let in_terms = RowsFrom::Scratch(RowOrder::TermsInner);
        let RowsFrom::Argument { stride, .. } = rows else { return in_terms };
        let terms = exprs.var_info(flat.k).range.map_or(0, |(_, last)| last as usize + 1);
        let is_readable = match self {
            Engine::Vectors | Engine::Pairs => stride == 1 && terms.is_multiple_of(2),
            Engine::Tiles => {
                stride == 1
                    && terms.is_multiple_of(tiles::TERMS)
                    && argument_row_distance(block, exprs, flat, a).is_some()
            }
        };
        if is_readable { rows } else { in_terms }
    }

    /// The panels as the engine can read them.
    pub fn panels(self, panels: PanelsFrom) -> PanelsFrom {
        match panels {
            PanelsFrom::Argument { .. } if self != Engine::Vectors => PanelsFrom::Scratch,
            PanelsFrom::Packed(mut packed) => {
                packed.group = self.group();
                packed.terms = packed.k_offsets.len().next_multiple_of(self.terms());
                PanelsFrom::Packed(packed)
            }
            PanelsFrom::Argument { .. } | PanelsFrom::Scratch => panels,
        }
    }
}

/// Elements between neighbouring rows of a factor that is read in place, if they are at equal distances.
pub(super) fn argument_row_distance(
    block: &BlockProgram,
    exprs: &mut Exprs,
    flat: &Flat,
    a: ExprId,
) -> Option<i64> {
    let (_, offset) = plain_read(block, exprs, a)?;
    linear_in(exprs, offset, flat.m)
}

/// True for an f32 expression whose values are all bf16 values.
pub fn holds_bf16(exprs: &Exprs, id: ExprId) -> bool {
    match *exprs.get(id) {
        Expr::Cast(DType::F32, a) => exprs.dtype(a) == DType::BF16,
        Expr::Const(c) => is_bf16(c),
        Expr::Select(_, a, b) => holds_bf16(exprs, a) && holds_bf16(exprs, b),
        _ => false,
    }
}

/// True for an f32 constant whose last 16 digits are zero.
fn is_bf16(constant: Const) -> bool {
    constant.dtype == DType::F32 && constant.bits & 0xffff == 0
}

/// An expression for which [`holds_bf16`] is true as one of type bf16.
fn narrowed(exprs: &mut Exprs, id: ExprId) -> Option<ExprId> {
    match *exprs.get(id) {
        Expr::Cast(DType::F32, a) if exprs.dtype(a) == DType::BF16 => Some(a),
        Expr::Const(c) if is_bf16(c) => {
            Some(exprs.add(Expr::Const(Const { dtype: DType::BF16, bits: c.bits >> 16 })))
        }
        Expr::Select(condition, a, b) => {
            let (a, b) = (narrowed(exprs, a)?, narrowed(exprs, b)?);
            Some(exprs.select(condition, a, b))
        }
        _ => None,
    }
}
