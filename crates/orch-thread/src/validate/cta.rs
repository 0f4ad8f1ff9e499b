//! What a statement of a CTA violates.

use crate::cta::{CtaStmt, MAX_WGMMA_K, MAX_WGMMA_N, SWIZZLE_ROW, WARP};
use crate::program::Scope;
use crate::text::type_text;
use crate::validate::{Checker, VarState};
use orch_compute::expr::Type;
use orch_ir::DType;

/// True for the place of a statement of the program's body, which no loop or branch encloses.
fn is_outermost(place: &str) -> bool {
    place.bytes().filter(|&byte| byte == b'.').count() == 1
}

impl Checker<'_> {
    pub(crate) fn cta_stmt(&mut self, place: &str, stmt: &CtaStmt) {
        self.expect(self.program.cta.is_some(), || format!("{place}: there is no cta"));
        for location in stmt.locations() {
            self.access(place, location.buffer, location.offset, 1, None);
            if location.buffer.index() >= self.program.buffers.len() {
                return;
            }
        }
        let scope_of = |location: &crate::cta::Location| self.program.buffer(location.buffer).scope;
        let dtype_of = |location: &crate::cta::Location| self.program.buffer(location.buffer).dtype;
        let problem = match stmt {
            CtaStmt::Barrier
            | CtaStmt::ClusterBarrier
            | CtaStmt::LaunchDependents
            | CtaStmt::WgmmaWait
            | CtaStmt::CpAsyncCommit
            | CtaStmt::CpAsyncWait(_) => None,
            CtaStmt::ClusterArrive | CtaStmt::ClusterWait => {
                (!is_outermost(place)).then_some("the cluster is joined inside of a statement")
            }
            CtaStmt::GridDependencyWait => {
                let is_expected = self.has_awaited == Some(false) && is_outermost(place);
                self.has_awaited = Some(true);
                (!is_expected)
                    .then_some("the kernels before are awaited a second time, or inside of a statement")
            }
            CtaStmt::ReuseShared => {
                std::mem::replace(&mut self.is_recycled, true).then_some("memory is recycled a second time")
            }
            CtaStmt::Shuffle { with, .. } => {
                (!(1..WARP).contains(with)).then_some("the lane is outside of the warp")
            }
            CtaStmt::Exceeds { var, accs: sums, count, limits } => {
                let are_floats = [sums, limits]
                    .into_iter()
                    .all(|location| scope_of(location) == Scope::Scratch && dtype_of(location) == DType::F32);
                let is_right = are_floats
                    && count.is_multiple_of(4)
                    && self.program.var_type(*var) == Type::scalar(DType::Bool);
                (!is_right)
                    .then_some("a boolean says whether sums, in fours, exceed limits, both scratch of f32")
            }
            CtaStmt::LoadDsmem { var, from, .. } => {
                let is_right =
                    scope_of(from).is_shared() && self.program.var_type(*var).dtype == dtype_of(from);
                (!is_right).then_some("a register is read from shared memory of its type")
            }
            CtaStmt::StoreDsmem { to, value, .. } => {
                let given = self.program.exprs.dtype(*value);
                let is_right = scope_of(to).is_shared() && given == dtype_of(to) && given.size_bytes() >= 4;
                (!is_right).then_some("elements of 4 bytes or more are given to shared memory of their type")
            }
            CtaStmt::CpAsync { to, from, elems, .. } => {
                let bytes = elems * dtype_of(to).size_bytes();
                let is_right = scope_of(to).is_shared()
                    && scope_of(from).is_read_only()
                    && dtype_of(to) == dtype_of(from)
                    && [4, 8, 16].contains(&bytes);
                (!is_right)
                    .then_some("4, 8 or 16 bytes are copied from an input to shared memory of its type")
            }
            CtaStmt::TmaLoad { to, map: tensor_map, at, .. } => {
                match self.program.tensor_maps.get(tensor_map.index()) {
                    Some(tensor_map) if self.known_buffer(place, tensor_map.buffer) => {
                        let is_right = scope_of(to) == Scope::Shared
                            && dtype_of(to) == self.program.buffer(tensor_map.buffer).dtype
                            && at.len() == tensor_map.extents.len()
                            && self.program.mbarriers.full > 0;
                        (!is_right).then_some("a box, of as many coordinates as its tensor_map, goes to shared memory of its type and is counted by an mbarrier")
                    }
                    _ => Some("there is no such tensor_map"),
                }
            }
            CtaStmt::MbarrierWaitFull { .. } => {
                (self.program.mbarriers.full == 0).then_some("there are no mbarriers to await")
            }
            CtaStmt::MbarrierArriveEmpty { .. } | CtaStmt::MbarrierWaitEmpty { .. } => {
                (self.program.mbarriers.empty == 0).then_some("there are no empty to pass")
            }
            CtaStmt::Ldmatrix { to, from, matrices, .. } => {
                let is_right = scope_of(to) == Scope::Scratch
                    && scope_of(from).is_shared()
                    && dtype_of(to) == dtype_of(from)
                    && dtype_of(to).size_bytes() == 2
                    && [1, 2, 4].contains(matrices);
                (!is_right)
                    .then_some("1, 2 or 4 matrices of 16-bit elements go from shared memory to scratch")
            }
            CtaStmt::Wgmma { ty: product, acc: sum, a, b, n: columns, k: terms, transposed, .. } => {
                let is_right = scope_of(sum) == Scope::Scratch
                    && dtype_of(sum) == DType::F32
                    && scope_of(b).is_shared()
                    && (scope_of(a).is_shared() || scope_of(a) == Scope::Scratch)
                    && [a, b].into_iter().all(|location| dtype_of(location) == product.dtype())
                    && product.dtype().size_bytes() == 2;
                let terms_in_lines = scope_of(a).is_shared() || !transposed;
                let column_parts = if *transposed { SWIZZLE_ROW } else { 8 };
                let term_parts = if terms_in_lines { SWIZZLE_ROW } else { product.terms() };
                let fits = (1..=MAX_WGMMA_N).contains(columns)
                    && (1..=MAX_WGMMA_K).contains(terms)
                    && columns.is_multiple_of(column_parts)
                    && terms.is_multiple_of(term_parts);
                match (is_right, fits) {
                    (false, _) => {
                        Some("sums are scratch of f32, tiles shared, of 16-bit elements of the product")
                    }
                    (true, false) => Some("there are no such products of tiles"),
                    (true, true) => None,
                }
            }
            CtaStmt::Mma { ty: product, acc: sum, a, b } => {
                let is_right = [sum, a, b].into_iter().all(|location| scope_of(location) == Scope::Scratch)
                    && dtype_of(sum) == DType::F32
                    && [a, b].into_iter().all(|location| dtype_of(location) == product.dtype());
                (!is_right).then_some("fragments are scratch, factors of the product's type, sums of f32")
            }
        };
        if let Some(problem) = problem {
            self.problems.push(format!("{place}: {problem}"));
        }
        match stmt {
            CtaStmt::Shuffle { value, .. } => self.expr(place, *value),
            CtaStmt::LoadDsmem { rank, .. } => self.expr(place, *rank),
            CtaStmt::StoreDsmem { rank, value, .. } => {
                self.expr(place, *rank);
                self.expr(place, *value);
            }
            CtaStmt::TmaLoad { .. }
            | CtaStmt::MbarrierWaitFull { .. }
            | CtaStmt::MbarrierArriveEmpty { .. }
            | CtaStmt::MbarrierWaitEmpty { .. } => {
                stmt.operands().into_iter().for_each(|operand| self.index(place, operand));
            }
            CtaStmt::CpAsync { real, mask, .. } => {
                real.iter().for_each(|&real| self.index(place, real));
                if let Some(mask) = mask {
                    self.expr(place, *mask);
                    let ty = self.program.exprs.ty(*mask);
                    self.expect(ty == Type::scalar(DType::Bool), || {
                        format!("{place}: the mask is {}, not a boolean scalar", type_text(ty))
                    });
                }
            }
            _ => {}
        }
        if let Some(var) = stmt.declares() {
            self.declare(place, var, VarState::Fixed);
        }
    }
}
