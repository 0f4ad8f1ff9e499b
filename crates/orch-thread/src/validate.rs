//! Checks what thread programs promise:
//!
//! 1. the program's name is a C identifier; global buffers come before scratch, and the arena knows their types; groups have
//!    tasks, and only programs without a CTA have groups;
//! 2. a variable is declared before its use in an enclosing statement list, and again only when that list has ended;
//!    only registers are assigned; ranges are not empty and multiples positive;
//! 3. expressions are at thread level, functions accept the types they are given, lanes are a power of two up to
//!    [`MAX_LANES`];
//! 4. offsets are `i64`, scalar or one per lane; masks are booleans of the lanes of the access; inputs are not stored
//!    to, and what is stored has the buffer's type; what is bound has the variable's type;
//! 5. loop variables are integer scalars with bounds of their type, steps and unroll factors are positive, bounds of
//!    unrolled loops depend on enclosing unrolled loops at most; conditions are boolean scalars;
//! 6. CTAs are whole warps of at most 1024 threads, clusters divide the tasks; only programs with a CTA have shared
//!    buffers and statements of a CTA, whose copies and fragments go to shared memory and scratch of the right types;
//!    shared memory is reused once at most;
//! 7. the hardware can encode the tensor maps, and TMA loads of them go to shared memory of their type;
//! 8. AMX tiles are no more and no larger than the hardware's, have the type of the buffer that they are loaded from or stored
//!    to, and fit each other in `amx_dot`.
//!
//! The interpreter checks bounds of accesses, races and ranges of values.

mod cta;
mod expr;
mod hardware;

use crate::amx::AmxStmt;
use crate::cta::{MAX_CLUSTER, MAX_THREADS, WARP};
use crate::program::{LoopKind, Scope, Stmt, ThreadProgram};
use crate::text::type_text;
use crate::validate::hardware::{check_tensor_maps, check_tile_stmt, check_tiles};
use orch_compute::expr::{BufferId, Expr, ExprId, Type, VarId};
use orch_ir::DType;
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
        is_reused: false,
        has_waited: program.has_grid_dependency_wait().then_some(false),
    };
    checker.header();
    checker.states[program.task.index()] = VarState::Fixed;
    if let Some(groups) = program.groups {
        checker.states[groups.first.index()] = VarState::Fixed;
    }
    if let Some(cta) = &program.cta {
        checker.states[cta.thread.index()] = VarState::Fixed;
    }
    checker.list("body", &program.body);
    checker.problems
}

/// What has been seen of a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VarState {
    Undeclared,
    /// In scope, bound once.
    Fixed,
    /// In scope, may be assigned.
    Register,
    /// Its statement list has ended.
    OutOfScope,
}

pub(crate) struct Checker<'a> {
    program: &'a ThreadProgram,
    problems: Vec<String>,
    states: Vec<VarState>,
    /// Variables of enclosing unrolled loops.
    unrolled: BTreeSet<VarId>,
    /// Expressions whose own form has been checked.
    checked: BTreeSet<ExprId>,
    /// Whether shared memory has been reused.
    is_reused: bool,
    /// Whether `grid_dependency_wait` has been seen; `None` if the program has none.
    has_waited: Option<bool>,
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
        let phases = program.phases;
        let are_apart =
            program.tasks.is_multiple_of(phases) && program.cta.is_none() && program.groups.is_none();
        self.expect(phases == 1 || phases > 1 && are_apart, || {
            format!("{} tasks in {phases} phases, or phases of a program with a cta or groups", program.tasks)
        });
        if let Some(groups) = program.groups {
            self.expect(groups.tasks > 0 && program.cta.is_none(), || {
                "groups have no tasks, or stand in a program with a cta".to_owned()
            });
            let (is_flag, name) = (
                program.exprs.var_info(groups.first).ty == Type::scalar(DType::I64),
                self.var_name(groups.first),
            );
            self.expect(is_flag, || format!("{name} is not an i64"));
        }
        for (index, pair) in program.buffers.windows(2).enumerate() {
            let in_order = pair[0].scope.is_global() || !pair[1].scope.is_global();
            self.expect(in_order, || format!("b{} is global, but stands after scratch", index + 1));
        }
        for id in &program.evict_first {
            let is_argument =
                program.buffers.get(id.index()).is_some_and(|buffer| buffer.scope.is_read_only());
            self.expect(is_argument && program.cta.is_some(), || {
                format!("{id} is marked evict_first, but is no read-only argument of a program with a cta")
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
                let group = cta.barrier_group;
                let is_group =
                    group == 1 || group > 1 && cta.cluster == 1 && program.tasks.is_multiple_of(group);
                self.expect(is_group, || {
                    format!(
                        "{} tasks in barrier groups of {group}, clusters of {}",
                        program.tasks, cta.cluster
                    )
                });
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

    /// Checks a statement list, whose end is the end of the scope of its variables.
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
        if is_known && self.has_waited == Some(false) {
            let scope = self.program.buffer(buffer).scope;
            self.expect(!matches!(scope, Scope::Input | Scope::Output | Scope::Updated), || {
                format!("{place}: {buffer} is accessed before grid_dependency_wait")
            });
        }
        is_known
    }
}

#[cfg(test)]
mod tests;
