//! Checks what thread programs promise:
//!
//! 1. the program's name is a C identifier; global buffers come before scratch, and the arena knows their types;
//! 2. a variable is declared before its use in an enclosing statement list, and again only when that list has ended;
//!    only registers are assigned; ranges are not empty and multiples positive;
//! 3. expressions are at thread level, functions accept the types they are given, lanes are a power of two up to
//!    [`MAX_LANES`];
//! 4. offsets are `i64`, scalar or one per lane; masks are booleans of the lanes of the access; inputs are not stored
//!    to, and what is stored has the buffer's type; what is bound has the variable's type;
//! 5. loop variables are integer scalars with bounds of their type, steps and unroll factors are positive, bounds of
//!    unrolled loops depend on enclosing unrolled loops at most; conditions are boolean scalars;
//! 6. CTAs are whole warps of at most 1024 threads, clusters divide the tasks; only programs with a CTA have shared
//!    buffers and statements of a CTA, whose copies and matrices go to shared memory and scratch of the right types;
//!    shared memory is recycled once at most;
//! 7. the hardware can encode the tensor maps, and TMA loads of them go to shared memory of their type;
//! 8. tiles are as many and as large as the hardware's, hold what their buffer holds, and fit where they are multiplied.
//!
//! Bounds of accesses, races and ranges of values are the interpreter's to check.

mod hardware;

use crate::amx::AmxStmt;
use crate::cta::{CtaStmt, MAX_CLUSTER, MAX_THREADS, MAX_WGMMA_K, MAX_WGMMA_N, SWIZZLE_ROW, WARP};
use crate::program::{LoopKind, Scope, Stmt, ThreadProgram};
use crate::validate::hardware::{check_tensor_maps, check_tile_stmt, check_tiles};
use orch_compute::expr::{BufferId, Expr, ExprId, Type, VarId};
use orch_ir::{DType, ReduceOp};
use std::collections::BTreeSet;

/// The longest vector that programs may use.
pub const MAX_LANES: usize = 64;

/// All violations, as text; empty for a valid program.
pub fn validate_thread(program: &ThreadProgram) -> Vec<String> {
    let vars = program.exprs.vars().len();
    let mut checker = Checker {
        program,
        problems: Vec::new(),
        states: vec![VarState::Undeclared; vars],
        unrolled: BTreeSet::new(),
        checked: BTreeSet::new(),
        is_recycled: false,
        has_awaited: program.awaits().then_some(false),
    };
    checker.header();
    checker.states[program.task.index()] = VarState::Fixed;
    if let Some(cta) = &program.cta {
        checker.states[cta.thread.index()] = VarState::Fixed;
    }
    checker.list("body", &program.body);
    checker.problems
}

/// What has been seen of a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum VarState {
    Undeclared,
    /// In scope, bound once.
    Fixed,
    /// In scope, may be assigned.
    Register,
    /// Its statement list has ended.
    OutOfScope,
}

struct Checker<'a> {
    program: &'a ThreadProgram,
    problems: Vec<String>,
    states: Vec<VarState>,
    /// Variables of enclosing unrolled loops.
    unrolled: BTreeSet<VarId>,
    /// Expressions whose own form has been checked.
    checked: BTreeSet<ExprId>,
    /// Whether shared memory has been recycled.
    is_recycled: bool,
    /// Whether the kernels before have been awaited, if there is a statement for that.
    has_awaited: Option<bool>,
}

/// True for the place of a statement that is in no other one.
fn is_outermost(place: &str) -> bool {
    place.bytes().filter(|&byte| byte == b'.').count() == 1
}

impl Checker<'_> {
    fn expect(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.problems.push(problem());
        }
    }

    fn var_name(&self, var: VarId) -> String {
        format!("{var} ({})", self.program.exprs.var_info(var).name)
    }

    fn header(&mut self) {
        let program = self.program;
        let name = &program.name;
        let is_identifier = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        self.expect(is_identifier, || format!("the name \"{name}\" is not a C identifier"));
        for (index, pair) in program.buffers.windows(2).enumerate() {
            let in_order = pair[0].scope.is_global() || !pair[1].scope.is_global();
            self.expect(in_order, || format!("b{} is global, but stands after scratch", index + 1));
        }
        for id in &program.evict_first {
            let is_argument =
                program.buffers.get(id.index()).is_some_and(|buffer| buffer.scope.is_read_only());
            self.expect(is_argument && program.cta.is_some(), || {
                format!("{id} is marked evict_first, but is no read-only argument of a cta's program")
            });
        }
        self.problems.extend(check_tiles(program));
        self.problems.extend(check_tensor_maps(program));
        let shares = program.buffers.iter().any(|buffer| buffer.scope.is_shared());
        match &program.cta {
            Some(cta) => {
                let is_cta = (1..=MAX_THREADS).contains(&cta.threads) && cta.threads.is_multiple_of(WARP);
                self.expect(is_cta, || format!("a cta has {} threads", cta.threads));
                let is_cluster =
                    (1..=MAX_CLUSTER).contains(&cta.cluster) && program.tasks.is_multiple_of(cta.cluster);
                self.expect(is_cluster, || format!("{} tasks in clusters of {}", program.tasks, cta.cluster));
            }
            None => self.expect(!shares, || "shared memory without a cta".to_owned()),
        }
        for (index, var) in program.exprs.vars().iter().enumerate() {
            let is_index = !var.ty.dtype.is_float() && var.ty.lanes == 1;
            self.expect(var.multiple_of >= 1, || format!("x{index} is a multiple of {}", var.multiple_of));
            if let Some((low, high)) = var.range {
                self.expect(low <= high, || format!("x{index} has the empty range {low}..={high}"));
                self.expect(is_index, || format!("x{index} has a range, but is no integer scalar"));
            }
        }
    }

    /// A statement list and the scope that it is.
    fn list(&mut self, path: &str, stmts: &[Stmt]) {
        let mut declared = Vec::new();
        for (index, stmt) in stmts.iter().enumerate() {
            let place = format!("{path}.{index}");
            match stmt {
                Stmt::Let(var, _) | Stmt::Register(var, _) => declared.push(*var),
                Stmt::Cta(stmt) => declared.extend(stmt.declares()),
                _ => {}
            }
            self.stmt(&place, stmt);
        }
        for var in declared {
            self.states[var.index()] = VarState::OutOfScope;
        }
    }

    fn stmt(&mut self, place: &str, stmt: &Stmt) {
        match stmt {
            Stmt::Comment(_) => {}
            Stmt::Let(var, value) | Stmt::Register(var, value) => {
                self.bound_value(place, *var, *value);
                let is_register = matches!(stmt, Stmt::Register(..));
                self.declare(place, *var, if is_register { VarState::Register } else { VarState::Fixed });
            }
            Stmt::Assign(var, value) => {
                self.bound_value(place, *var, *value);
                let state = self.states[var.index()];
                let name = self.var_name(*var);
                self.expect(state == VarState::Register, || match state {
                    VarState::Fixed => format!("{place}: {name} is assigned, but is not a register"),
                    _ => format!("{place}: {name} is assigned where it is not in scope"),
                });
            }
            Stmt::Store { buffer, offset, value, mask } => {
                self.expr(place, *value);
                self.access(place, *buffer, *offset, self.program.exprs.lanes(*value), *mask);
                self.stored_type(place, *buffer, *value);
            }
            Stmt::For { var, start, end, step, kind, body } => {
                self.loop_header(place, *var, (*start, *end, *step), *kind);
                self.declare(place, *var, VarState::Fixed);
                let is_new = *kind == LoopKind::Unroll && self.unrolled.insert(*var);
                self.list(place, body);
                if is_new {
                    self.unrolled.remove(var);
                }
                self.states[var.index()] = VarState::OutOfScope;
            }
            Stmt::If { condition, then, otherwise } => {
                self.expr(place, *condition);
                let ty = self.program.exprs.ty(*condition);
                self.expect(ty == Type::scalar(DType::Bool), || {
                    format!("{place}: the condition is {}, not a boolean scalar", type_text(ty))
                });
                self.list(&format!("{place}.then"), then);
                self.list(&format!("{place}.else"), otherwise);
            }
            Stmt::Prefetch { buffer, offset } => {
                self.expr(place, *offset);
                self.known_buffer(place, *buffer);
                let ty = self.program.exprs.ty(*offset);
                self.expect(ty == Type::INDEX, || format!("{place}: the offset is {}", type_text(ty)));
            }
            Stmt::Amx(stmt) => self.tile_stmt(place, stmt),
            Stmt::Cta(stmt) => self.cta_stmt(place, stmt),
        }
    }

    fn tile_stmt(&mut self, place: &str, stmt: &AmxStmt) {
        if let Some(problem) = check_tile_stmt(self.program, stmt) {
            self.problems.push(format!("{place}: {problem}"));
        }
        if let (Some(buffer), Some(offset)) = (stmt.buffer(), stmt.offset()) {
            self.access(place, buffer, offset, 1, None);
            let info = self.program.buffers.get(buffer.index());
            let is_read_only = info.is_some_and(|info| info.scope.is_read_only());
            let is_store = matches!(stmt, AmxStmt::Store { .. });
            self.expect(!is_store || !is_read_only, || format!("{place}: the input {buffer} is stored to"));
        }
    }

    fn cta_stmt(&mut self, place: &str, stmt: &CtaStmt) {
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

    /// An operand is a scalar index.
    fn index(&mut self, place: &str, operand: ExprId) {
        self.expr(place, operand);
        let ty = self.program.exprs.ty(operand);
        self.expect(ty == Type::INDEX, || format!("{place}: an index is {}", type_text(ty)));
    }

    fn declare(&mut self, place: &str, var: VarId, state: VarState) {
        let name = self.var_name(var);
        let is_free = matches!(self.states[var.index()], VarState::Undeclared | VarState::OutOfScope);
        self.expect(is_free, || format!("{place}: {name} is declared where it is in scope already"));
        self.states[var.index()] = state;
    }

    fn bound_value(&mut self, place: &str, var: VarId, value: ExprId) {
        self.expr(place, value);
        let (ty, given) = (self.program.var_type(var), self.program.exprs.ty(value));
        let name = self.var_name(var);
        self.expect(ty == given, || {
            format!("{place}: {name} is {}, its value is {}", type_text(ty), type_text(given))
        });
    }

    fn stored_type(&mut self, place: &str, buffer: BufferId, value: ExprId) {
        let Some(info) = self.program.buffers.get(buffer.index()) else { return };
        let dtype = self.program.exprs.dtype(value);
        self.expect(info.dtype == dtype, || {
            format!("{place}: {dtype} is stored to {buffer} ({}), which holds {}", info.name, info.dtype)
        });
        self.expect(!info.scope.is_read_only(), || format!("{place}: the input {buffer} is stored to"));
    }

    fn loop_header(&mut self, place: &str, var: VarId, range: (ExprId, ExprId, i64), kind: LoopKind) {
        let (start, end, step) = range;
        let ty = self.program.var_type(var);
        let name = self.var_name(var);
        self.expect(ty.lanes == 1 && ty.dtype.is_int(), || {
            format!("{place}: the loop variable {name} is {}, not an integer scalar", type_text(ty))
        });
        self.expect(step > 0, || format!("{place}: the step is {step}"));
        self.expect(kind != LoopKind::UnrollBy(0), || format!("{place}: the unroll factor is 0"));
        for bound in [start, end] {
            self.expr(place, bound);
            let given = self.program.exprs.ty(bound);
            self.expect(given == ty, || {
                format!("{place}: {name} is {}, a bound is {}", type_text(ty), type_text(given))
            });
            if kind == LoopKind::Unroll {
                let is_constant = self.is_constant_when_unrolled(bound);
                self.expect(is_constant, || format!("{place}: a bound of an unrolled loop is not constant"));
            }
        }
    }

    fn is_constant_when_unrolled(&self, bound: ExprId) -> bool {
        let exprs = &self.program.exprs;
        exprs.reachable(&[bound]).into_iter().all(|id| match exprs.get(id) {
            Expr::Var(var) => self.unrolled.contains(var),
            Expr::Load { .. } | Expr::Read { .. } | Expr::Stage(_) => false,
            _ => true,
        })
    }

    fn known_buffer(&mut self, place: &str, buffer: BufferId) -> bool {
        let is_known = buffer.index() < self.program.buffers.len();
        self.expect(is_known, || format!("{place}: there is no buffer {buffer}"));
        if is_known && self.has_awaited == Some(false) {
            let scope = self.program.buffer(buffer).scope;
            self.expect(!matches!(scope, Scope::Input | Scope::Output), || {
                format!("{place}: {buffer} is touched before the kernels that write it are awaited")
            });
        }
        is_known
    }

    /// Types of an access to `lanes` elements.
    fn access(&mut self, place: &str, buffer: BufferId, offset: ExprId, lanes: usize, mask: Option<ExprId>) {
        self.known_buffer(place, buffer);
        self.expr(place, offset);
        let ty = self.program.exprs.ty(offset);
        self.expect(ty.dtype == DType::I64 && (ty.lanes == 1 || ty.lanes == lanes), || {
            format!("{place}: the offset of {lanes} elements of {buffer} is {}", type_text(ty))
        });
        if let Some(mask) = mask {
            self.expr(place, mask);
            let ty = self.program.exprs.ty(mask);
            self.expect(ty == Type::vector(DType::Bool, lanes), || {
                format!("{place}: the mask of {lanes} elements of {buffer} is {}", type_text(ty))
            });
        }
    }

    /// An expression that a statement evaluates: its variables are in scope, and each part is well formed.
    fn expr(&mut self, place: &str, root: ExprId) {
        for id in self.program.exprs.reachable(&[root]) {
            if let Expr::Var(var) = self.program.exprs.get(id) {
                let state = self.states[var.index()];
                let name = self.var_name(*var);
                self.expect(matches!(state, VarState::Fixed | VarState::Register), || match state {
                    VarState::OutOfScope => format!("{place}: {name} is used out of its scope"),
                    _ => format!("{place}: {name} is used before it is declared"),
                });
            }
            if self.checked.insert(id) {
                self.node(place, id);
            }
        }
    }

    fn node(&mut self, place: &str, id: ExprId) {
        let exprs = &self.program.exprs;
        let ty = exprs.ty(id);
        let node = exprs.get(id);
        let problem = match node {
            Expr::Unary(f, a) => (!f.accepts(exprs.dtype(*a))).then_some("is not defined for this type"),
            Expr::Binary(f, a, _) => (!f.accepts(exprs.dtype(*a))).then_some("is not defined for this type"),
            Expr::Select(condition, ..) => {
                (exprs.dtype(*condition) != DType::Bool).then_some("has a condition that is not boolean")
            }
            Expr::IsNan(a) | Expr::IsInf(a) => (!exprs.dtype(*a).is_float()).then_some("is not of a float"),
            Expr::Fma(a, ..) => (exprs.dtype(*a) == DType::Bool).then_some("is of booleans"),
            Expr::DotPairs(.., c) => (exprs.lanes(*c) == 1).then_some("has one sum"),
            Expr::Interleave(a, _) => (exprs.dtype(*a) == DType::Bool).then_some("is of booleans"),
            Expr::FloorDiv(a, b) | Expr::FloorRem(a, b) if exprs.dtype(*a).is_int() => {
                let divisor = exprs.as_const(*b).and_then(|c| c.as_int());
                divisor.is_some_and(|d| d <= 0).then_some("divides by a constant that is not positive")
            }
            Expr::FloorDiv(..) | Expr::FloorRem(..) => Some("is not of integers"),
            Expr::Ramp { base, .. } => (!exprs.dtype(*base).is_int() || exprs.lanes(*base) != 1)
                .then_some("has no integer scalar base"),
            Expr::ReduceLanes(ReduceOp::ArgMax { .. } | ReduceOp::ArgMin { .. }, _) => {
                Some("is an arg-reduction")
            }
            Expr::Read { .. } | Expr::Stage(_) => Some("is an expression of block programs"),
            Expr::Load { buffer, offset, lanes, mask } => {
                self.access(place, *buffer, *offset, *lanes, *mask);
                None
            }
            Expr::Const(_)
            | Expr::Var(_)
            | Expr::Compare(..)
            | Expr::Cast(..)
            | Expr::Splat(..)
            | Expr::ReduceLanes(..) => None,
        };
        if let Some(problem) = problem {
            self.problems.push(format!("{place}: {id} = {node:?} {problem}"));
        }
        let lanes = ty.lanes;
        self.expect(lanes.is_power_of_two() && lanes <= MAX_LANES, || {
            format!("{place}: {id} has {lanes} lanes")
        });
    }
}

fn type_text(ty: Type) -> String {
    if ty.lanes == 1 { ty.dtype.to_string() } else { format!("{}x{}", ty.dtype, ty.lanes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Buffer;
    use crate::random::random_program;
    use orch_ir::{BinaryFn, UnaryFn};

    /// A program with an f32 input, an i32 output and nothing to do.
    fn empty() -> (ThreadProgram, BufferId, BufferId) {
        let mut p = ThreadProgram::new("k", 1);
        let buffer = |name: &str, dtype, scope| Buffer { name: name.into(), dtype, elems: 8, scope };
        let x = p.add_buffer(buffer("x", DType::F32, Scope::Input));
        let y = p.add_buffer(buffer("y", DType::I32, Scope::Output));
        (p, x, y)
    }

    #[track_caller]
    fn violations(program: &ThreadProgram, expected: &[&str]) {
        assert_eq!(validate_thread(program), expected);
    }

    #[test]
    fn random_programs_are_valid() {
        for seed in 0..100 {
            assert_eq!(validate_thread(&random_program("k", seed).0), Vec::<String>::new(), "seed {seed}");
        }
    }

    #[test]
    fn stores_match_their_buffer() {
        let (mut p, x, y) = empty();
        let zero = p.exprs.index(0);
        let value = p.exprs.load(x, zero, 4, None);
        let flag = p.exprs.bool(true);
        p.body = vec![
            Stmt::Store { buffer: y, offset: zero, value, mask: Some(flag) },
            Stmt::Store { buffer: x, offset: zero, value, mask: None },
        ];
        violations(
            &p,
            &[
                "body.0: the mask of 4 elements of b1 is bool",
                "body.0: f32 is stored to b1 (y), which holds i32",
                "body.1: the input b0 is stored to",
            ],
        );
    }

    #[test]
    fn variables_have_scopes() {
        let (mut p, _, _) = empty();
        let a = p.exprs.declare_register("a", Type::INDEX);
        let i = p.exprs.declare_index("i", 4);
        let (zero, four) = (p.exprs.index(0), p.exprs.index(4));
        let (a_value, i_value) = (p.exprs.var(a), p.exprs.var(i));
        p.body = vec![
            Stmt::Let(a, i_value),
            Stmt::Assign(a, zero),
            Stmt::For { var: i, start: zero, end: a_value, step: 0, kind: LoopKind::Unroll, body: vec![] },
            Stmt::For { var: i, start: zero, end: four, step: 1, kind: LoopKind::Serial, body: vec![] },
            Stmt::Let(a, zero),
            Stmt::Prefetch { buffer: BufferId::new(7), offset: i_value },
        ];
        violations(
            &p,
            &[
                "body.0: x2 (i) is used before it is declared",
                "body.1: x1 (a) is assigned, but is not a register",
                "body.2: the step is 0",
                "body.2: a bound of an unrolled loop is not constant",
                "body.4: x1 (a) is declared where it is in scope already",
                "body.5: x2 (i) is used out of its scope",
                "body.5: there is no buffer b7",
            ],
        );
    }

    #[test]
    fn functions_accept_their_operands() {
        let (mut p, _, _) = empty();
        let one = p.exprs.index(1);
        let flag = p.exprs.bool(true);
        let nodes = [
            p.exprs.add(Expr::Unary(UnaryFn::Exp, one)),
            p.exprs.add(Expr::Binary(BinaryFn::Add, flag, flag)),
            p.exprs.add(Expr::Splat(one, 3)),
        ];
        for (number, value) in nodes.into_iter().enumerate() {
            let ty = p.exprs.ty(value);
            let var = p.exprs.declare_register(format!("v{number}"), ty);
            p.body.push(Stmt::Let(var, value));
        }
        violations(
            &p,
            &[
                "body.0: e2 = Unary(Exp, e0) is not defined for this type",
                "body.1: e3 = Binary(Add, e1, e1) is not defined for this type",
                "body.2: e4 has 3 lanes",
            ],
        );
    }

    #[test]
    fn headers_are_checked() {
        let (mut p, _, _) = empty();
        p.name = "no name".into();
        p.add_buffer(Buffer { name: "s".into(), dtype: DType::F32, elems: 1, scope: Scope::Scratch });
        p.add_buffer(Buffer { name: "z".into(), dtype: DType::F32, elems: 1, scope: Scope::Output });
        violations(
            &p,
            &["the name \"no name\" is not a C identifier", "b3 is global, but stands after scratch"],
        );
    }

    #[test]
    fn teams_are_checked() {
        let program = |header: &str, body: &str| {
            let text = format!("program k, 3 tasks task: i64 [0..=2]\n{header}{{\n{body}}}\n");
            crate::parse_thread(&text).unwrap_or_else(|error| panic!("{error}"))
        };
        let cta = "  cta 48 threads thread: i64 [0..=47], clusters of 2\n";
        violations(&program(cta, ""), &["a cta has 48 threads", "3 tasks in clusters of 2"]);
        violations(
            &program("  shared s: f32[8]\n", "barrier\n"),
            &["shared memory without a cta", "body.0: there is no cta"],
        );
        let header = "  cta 128 threads thread: i64 [0..=127], clusters of 1\n  input x: f16[8192]\n  \
                      shared s: f16[8192]\n  shared t: f32[8]\n  scratch f: f16[8]\n  scratch sums: f32[64]\n";
        let body = "cp_async s[0], x[0], 1\ncp_async t[0], x[0], 4\ncp_async s[0], x[0], 4, if thread\n\
                    shuffle v: f16 = x[0], 32\nload_dsmem w: f16 = t[0], 0\nload_dsmem v: f16 = x[0], 0\n\
                    ldmatrix sums[0], t[0], 1\nldmatrix f[0], s[0], 3\n\
                    mma bf16, sums[0], f[0], f[0]\nmma f16, f[0], f[0], f[0]\n\
                    wgmma tf32, sums[0], t[0], t[0], 8, 64\nwgmma f16, f[0], s[0], s[0], 8, 64\n\
                    wgmma f16, sums[0], x[0], s[0], 8, 64\nwgmma f16, sums[0], s[0], f[0], 8, 64\n\
                    wgmma f16, sums[0], s[0], s[4096], 12, 64\n\
                    wgmma f16, sums[0], s[0], s[4096], 264, 64\n\
                    wgmma f16, sums[0], f[0], s[0], 8, 16\n\
                    wgmma f16, sums[0], f[0], s[0], 8, 16, transposed\n\
                    wgmma f16, sums[0], s[0], s[0], 64, 16, transposed\n\
                    wgmma f16, sums[0], f[0], s[0], 64, 16, transposed\ncp_async s[0], x[0], 8\n\
                    store_dsmem s[0], 0 = s[0]\nstore_dsmem t[0], 0 = 1.0_f64\nif (thread < 1) {\ncluster_arrive\n}\n";
        let copies = "4, 8 or 16 bytes are copied from an input to shared memory of its type";
        let matrices = "1, 2 or 4 matrices of 16-bit elements go from shared memory to scratch";
        let fragments = "fragments are scratch, factors of the product's type, sums of f32";
        let tiles = "sums are scratch of f32, tiles shared, of 16-bit elements of the product";
        let sizes = "there are no such products of tiles";
        let given = "elements of 4 bytes or more are given to shared memory of their type";
        let peers = "a register is read from shared memory of its type";
        let expected = [
            (0, copies),
            (1, copies),
            (2, "the mask is i64, not a boolean scalar"),
            (3, "the lane is outside of the warp"),
            (4, peers),
            (5, peers),
            (5, "x2 (v) is declared where it is in scope already"),
            (6, matrices),
            (7, matrices),
            (8, fragments),
            (9, fragments),
            (10, tiles),
            (11, tiles),
            (12, tiles),
            (13, tiles),
            (14, sizes),
            (15, sizes),
            (16, sizes),
            (17, sizes),
            (18, sizes),
            (21, given),
            (22, given),
        ]
        .map(|(at, problem)| format!("body.{at}: {problem}"));
        let joined = "body.23.then.0: the cluster is joined inside of a statement".to_owned();
        assert_eq!(
            validate_thread(&program(header, body)),
            expected.into_iter().chain([joined]).collect::<Vec<_>>()
        );
        let twice = "if (thread < 1) {\nreuse_shared\n}\nreuse_shared\n";
        violations(&program(header, twice), &["body.1: memory is recycled a second time"]);
    }
}
