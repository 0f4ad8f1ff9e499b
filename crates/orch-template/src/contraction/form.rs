//! What makes a block program a contraction: one dot product and the roles of its axes.

use super::linear::read_offsets;
use crate::design::CannotLower;
use orch_compute::block::{BlockProgram, ReduceKind, Stage};
use orch_compute::expr::{ExprId, Exprs, StageId, VarId};
use orch_compute::simplify::Simplifier;
use orch_ir::ReduceOp;

/// A block program seen as `acc[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`, then stores of
/// expressions of `acc`. Vectors run along `n`.
#[derive(Clone, Debug)]
pub struct ContractionForm {
    /// The name of the sum.
    pub stage: StageId,
    /// The operand that does not vary along `n`.
    pub a: ExprId,
    /// The operand that does not vary along `m`.
    pub b: ExprId,
    /// Axes of both operands.
    pub batch: Vec<VarId>,
    /// Axes of `a` alone (and those of neither).
    pub m: Vec<VarId>,
    /// Axes of `b` alone.
    pub n: Vec<VarId>,
    /// Summed axes, outermost first.
    pub k: Vec<VarId>,
}

impl ContractionForm {
    /// Recognises a contraction.
    ///
    /// # Errors
    /// If the program has another number of reductions than one, or one that is not a dot product.
    pub fn of(block: &BlockProgram) -> Result<ContractionForm, CannotLower> {
        let mut reductions = block.stages.iter().filter(|stage| matches!(stage, Stage::Reduce { .. }));
        let (Some(reduction), None) = (reductions.next(), reductions.next()) else {
            return Err(CannotLower::NotThisTemplate("exactly one reduction is expected"));
        };
        let Stage::Reduce {
            stage,
            op: ReduceOp::Sum,
            domain,
            reduced,
            kind: ReduceKind::Dot { lhs, rhs },
            ..
        } = reduction
        else {
            return Err(CannotLower::NotThisTemplate("the reduction is not a dot product"));
        };
        let in_lhs = block.exprs.free_vars(*lhs);
        let in_rhs = block.exprs.free_vars(*rhs);
        let pick = |left: bool, right: bool| -> Vec<VarId> {
            domain
                .iter()
                .copied()
                .filter(|var| in_lhs.contains(var) == left && in_rhs.contains(var) == right)
                .collect()
        };
        let (lhs_only, rhs_only) = (pick(true, false), pick(false, true));
        let mut form = ContractionForm {
            stage: *stage,
            a: *lhs,
            b: *rhs,
            batch: pick(true, true),
            m: lhs_only,
            n: rhs_only,
            k: reduced.clone(),
        };
        if form.prefers_swap(block) {
            std::mem::swap(&mut form.a, &mut form.b);
            std::mem::swap(&mut form.m, &mut form.n);
        }
        form.m.splice(0..0, pick(false, false));
        let points = |axes: &[VarId]| axes.iter().map(|&axis| block.extent(axis)).product::<usize>();
        if points(&form.batch) > 1 && (points(&form.n) == 1 || points(&form.m) == 1) {
            return Err(CannotLower::NotThisTemplate("each product has a single row or column"));
        }
        form.order_k(block);
        Ok(form)
    }

    /// Puts the summed axis along which the first operand is contiguous innermost, so that rows are read, and copied,
    /// in whole vectors. Products may be added up in any order.
    fn order_k(&mut self, block: &BlockProgram) {
        let mut distances = Distances::of(block, self.a);
        self.k.sort_by_cached_key(|&var| std::cmp::Reverse(distances.along(var)));
    }

    /// Puts the axis of an operand's own along which it is contiguous innermost, if it is contiguous along no summed one: the image of a
    /// gradient of weights, `[n h w, r s c]` with windows `r, s`. Results may then be stored with a stride, which is worth it where K is long:
    /// each result is one strided store, in place of loads of single elements in each step along K.
    pub fn with_contiguous_rows(mut self, block: &BlockProgram) -> Self {
        /// Twice the rows of the smallest tile of tensor cores.
        const LONG_K: usize = 128;
        let points = |axes: &[VarId]| axes.iter().map(|&axis| block.extent(axis)).product::<usize>();
        let k = points(&self.k);
        for (operand, rows) in [(self.a, &mut self.m), (self.b, &mut self.n)] {
            if rows.len() < 2 || k < LONG_K {
                continue;
            }
            let mut distances = Distances::of(block, operand);
            if self.k.iter().all(|&var| distances.along(var) != 1)
                && rows.iter().any(|&var| distances.along(var) == 1)
            {
                rows.sort_by_cached_key(|&var| std::cmp::Reverse(distances.along(var)));
            }
        }
        self
    }

    /// True if the results are contiguous along an axis of `a`, so that the operands should trade places: vectors
    /// then store contiguously.
    fn prefers_swap(&self, block: &BlockProgram) -> bool {
        let innermost = block.stages.iter().find_map(|stage| match stage {
            Stage::Store { arg, index, .. } => {
                let order = block.arg(*arg).layout.order();
                order.iter().rev().find_map(|&dim| {
                    let axes = block.exprs.free_vars(index[dim]);
                    axes.into_iter().filter(|axis| block.extent(*axis) > 1).max()
                })
            }
            Stage::Reduce { .. } => None,
        });
        innermost.is_some_and(|axis| self.m.contains(&axis)) || (self.n.is_empty() && !self.m.is_empty())
    }
}

/// How far apart in memory the elements of an operand lie along its axes.
struct Distances {
    exprs: Exprs,
    simplifier: Simplifier,
    /// The offsets that the operand reads.
    offsets: Vec<ExprId>,
}

impl Distances {
    fn of(block: &BlockProgram, operand: ExprId) -> Self {
        let mut exprs = block.exprs.clone();
        let reads = read_offsets(block, &mut exprs, operand);
        let offsets = reads.into_iter().map(|(_, offset)| offset).collect();
        Self { exprs, simplifier: Simplifier::new(), offsets }
    }

    /// Elements from one value of the axis to the next, the most over all reads; the largest number if they are not evenly apart.
    fn along(&mut self, var: VarId) -> i64 {
        let strides =
            self.offsets.iter().filter_map(|&offset| self.simplifier.stride(&mut self.exprs, offset, var));
        strides.map(i64::abs).max().unwrap_or(i64::MAX)
    }
}

/// Flattened extents of a contraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GemmShape {
    /// Independent products.
    pub batch: usize,
    /// Rows.
    pub m: usize,
    /// Columns, along vectors.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
}

impl GemmShape {
    /// The extents of a recognised contraction.
    pub fn of(block: &BlockProgram, form: &ContractionForm) -> Self {
        let product = |axes: &[_]| axes.iter().map(|&axis| block.extent(axis)).product();
        Self { batch: product(&form.batch), m: product(&form.m), n: product(&form.n), k: product(&form.k) }
    }
}
