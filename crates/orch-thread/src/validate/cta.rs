//! Violations by statements of a CTA.

use crate::cta::{CtaStmt, MAX_WGMMA_K, MAX_WGMMA_N, SWIZZLE_ROW, WARP};
use crate::program::Scope;
use crate::text::type_text;
use crate::validate::{Checker, VarState};
use orch_compute::expr::{ExprId, Type};
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
            | CtaStmt::WarpBarrier
            | CtaStmt::ClusterBarrier
            | CtaStmt::LaunchDependents
            | CtaStmt::WgmmaWait
            | CtaStmt::CpAsyncCommit
            | CtaStmt::CpAsyncWait(_) => None,
            CtaStmt::ClusterArrive | CtaStmt::ClusterWait => {
                (!is_outermost(place)).then_some("the cluster barrier is split inside of a loop or branch")
            }
            CtaStmt::GridDependencyWait => {
                let is_expected = self.has_waited == Some(false) && is_outermost(place);
                self.has_waited = Some(true);
                (!is_expected)
                    .then_some("grid_dependency_wait occurs a second time, or inside of a loop or branch")
            }
            CtaStmt::ReuseShared => std::mem::replace(&mut self.is_reused, true)
                .then_some("shared memory is reused a second time"),
            CtaStmt::ComputeFirst(value) => (self.program.exprs.ty(*value) != Type::scalar(DType::F32))
                .then_some("a number of f32 is expected"),
            CtaStmt::Shuffle { with, .. } => {
                (!(1..WARP).contains(with)).then_some("the lane is outside of the warp")
            }
            CtaStmt::Exceeds { var, accs, count, limits } => {
                let are_floats = [accs, limits]
                    .into_iter()
                    .all(|location| scope_of(location) == Scope::Scratch && dtype_of(location) == DType::F32);
                let is_right = are_floats
                    && count.is_multiple_of(4)
                    && self.program.var_type(*var) == Type::scalar(DType::Bool);
                (!is_right)
                    .then_some("accumulators, a multiple of 4, and limits in scratch of f32, and a boolean variable are expected")
            }
            CtaStmt::LoadDsmem { var, from, .. } => {
                let is_right =
                    scope_of(from).is_shared() && self.program.var_type(*var).dtype == dtype_of(from);
                (!is_right).then_some("the variable is loaded from shared memory of another type")
            }
            CtaStmt::GridBarrier { arrived } => {
                let is_right = self.has_barrier_groups()
                    && scope_of(arrived) == Scope::Updated
                    && dtype_of(arrived) == DType::I32;
                (!is_right)
                    .then_some("barrier groups, and a counter in an updated buffer of i32, are expected")
            }
            CtaStmt::LoadRelaxed { var, from } => {
                let is_right = self.has_barrier_groups()
                    && scope_of(from) == Scope::Updated
                    && dtype_of(from).size_bytes() >= 2
                    && self.program.var_type(*var).dtype == dtype_of(from);
                (!is_right)
                    .then_some("barrier groups, and an updated buffer of the variable's type, of 2 bytes or more, are expected")
            }
            CtaStmt::StoreDsmem { to, value, .. } => {
                let given = self.program.exprs.dtype(*value);
                let is_right = scope_of(to).is_shared() && given == dtype_of(to) && given.size_bytes() >= 4;
                (!is_right)
                    .then_some("elements of 4 bytes or more, in shared memory of their type, are expected")
            }
            CtaStmt::Red { to, value, .. } => {
                let is_right = scope_of(to).is_shared()
                    && dtype_of(to) == DType::I32
                    && self.program.exprs.ty(*value) == Type::scalar(DType::I32);
                (!is_right).then_some("a number of i32, and shared memory of that type, are expected")
            }
            CtaStmt::CpAsync { to, from, elems, .. } => {
                let bytes = elems * dtype_of(to).size_bytes();
                let is_right = scope_of(to).is_shared()
                    && scope_of(from).is_read_only()
                    && dtype_of(to) == dtype_of(from)
                    && [4, 8, 16].contains(&bytes);
                (!is_right).then_some(
                    "a copy of 4, 8 or 16 bytes from an input to shared memory of its type is expected",
                )
            }
            CtaStmt::TmaLoad { to, map, at, .. } => match self.program.tensor_maps.get(map.index()) {
                Some(tensor_map) if self.known_buffer(place, tensor_map.buffer) => {
                    let is_right = scope_of(to) == Scope::Shared
                        && dtype_of(to) == self.program.buffer(tensor_map.buffer).dtype
                        && at.len() == tensor_map.extents.len()
                        && self.program.mbarriers.full > 0;
                    (!is_right).then_some("a TMA load with as many coordinates as its tensor_map, to shared memory of its type, counted by an mbarrier, is expected")
                }
                _ => Some("there is no such tensor_map"),
            },
            CtaStmt::MbarrierWaitFull { .. } => {
                (self.program.mbarriers.full == 0).then_some("there are no full mbarriers")
            }
            CtaStmt::MbarrierArriveEmpty { .. } | CtaStmt::MbarrierWaitEmpty { .. } => {
                (self.program.mbarriers.empty == 0).then_some("there are no empty mbarriers")
            }
            CtaStmt::Ldmatrix { to, from, matrices, .. } => {
                let is_right = scope_of(to) == Scope::Scratch
                    && scope_of(from).is_shared()
                    && dtype_of(to) == dtype_of(from)
                    && dtype_of(to).size_bytes() == 2
                    && [1, 2, 4].contains(matrices);
                (!is_right).then_some(
                    "1, 2 or 4 matrices of 16-bit elements, from shared memory to scratch, are expected",
                )
            }
            CtaStmt::Wgmma { ty, acc, a, b, n, k, a_transposed, b_transposed, .. } => {
                let is_right = scope_of(acc) == Scope::Scratch
                    && dtype_of(acc) == DType::F32
                    && scope_of(b).is_shared()
                    && (scope_of(a).is_shared() || scope_of(a) == Scope::Scratch && !a_transposed)
                    && [a, b].into_iter().all(|location| dtype_of(location) == ty.dtype())
                    && ty.dtype().size_bytes() == 2;
                // A contiguous dimension of a tile in shared memory is in whole rows of swizzled panels. a: [64, k], or [k, 64] if
                // transposed; b: [n, k], or [k, n].
                let is_k_contiguous = scope_of(a).is_shared() && !a_transposed || !b_transposed;
                let n_step = if *b_transposed { SWIZZLE_ROW } else { 8 };
                let k_step = if is_k_contiguous { SWIZZLE_ROW } else { ty.instruction_k() };
                let fits = (1..=MAX_WGMMA_N).contains(n)
                    && (1..=MAX_WGMMA_K).contains(k)
                    && n.is_multiple_of(n_step)
                    && k.is_multiple_of(k_step);
                match (is_right, fits) {
                    (false, _) => Some(
                        "wgmma accumulates in scratch of f32; its operands are tiles of 16-bit elements of its type",
                    ),
                    (true, false) => Some("there is no wgmma of this shape"),
                    (true, true) => None,
                }
            }
            CtaStmt::Mma { ty, acc, a, b } => {
                let is_right = [acc, a, b].into_iter().all(|location| scope_of(location) == Scope::Scratch)
                    && dtype_of(acc) == DType::F32
                    && [a, b].into_iter().all(|location| dtype_of(location) == ty.dtype());
                (!is_right).then_some(
                    "fragments are in scratch: operands of the type of the mma, accumulators of f32",
                )
            }
        };
        if let Some(problem) = problem {
            self.problems.push(format!("{place}: {problem}"));
        }
        match stmt {
            CtaStmt::ComputeFirst(value) | CtaStmt::Shuffle { value, .. } => self.expr(place, *value),
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
            CtaStmt::Red { value, mask, .. } => {
                self.expr(place, *value);
                self.cta_mask(place, *mask);
            }
            CtaStmt::CpAsync { real, mask, .. } => {
                real.iter().for_each(|&real| self.index(place, real));
                self.cta_mask(place, *mask);
            }
            _ => {}
        }
        if let Some(var) = stmt.declares() {
            self.declare(place, var, VarState::Fixed);
        }
    }

    /// Whether CTAs wait for each other at grid barriers.
    fn has_barrier_groups(&self) -> bool {
        self.program.cta.as_ref().is_some_and(|cta| cta.barrier_group > 1)
    }

    fn cta_mask(&mut self, place: &str, mask: Option<ExprId>) {
        let Some(mask) = mask else { return };
        self.expr(place, mask);
        let ty = self.program.exprs.ty(mask);
        self.expect(ty == Type::scalar(DType::Bool), || {
            format!("{place}: the mask is {}, not a boolean scalar", type_text(ty))
        });
    }
}
