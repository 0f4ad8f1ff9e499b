//! The wait for preceding kernels moves behind what does not depend on them (PTX: `griddepcontrol.wait`).
//!
//! With programmatic dependent launch a kernel starts while those before it still run. What no kernel of the model writes (weights,
//! and inputs of the model) may be loaded meanwhile. [`CtaStmt::GridDependencyWait`] moves behind the leading statements that access
//! only such arguments, and copies of them to shared memory move ahead of copies of other arguments:
//!
//! ```text
//!   grid_dependency_wait              cp_async w_tile[0], w[0], 8
//!   cp_async x_tile[0], x[0], 8       cp_async w_tile[8], w[8], 8
//!   cp_async w_tile[0], w[0], 8       grid_dependency_wait
//!   cp_async_commit              ->   cp_async x_tile[0], x[0], 8
//!   cp_async x_tile[8], x[8], 8       cp_async_commit
//!   cp_async w_tile[8], w[8], 8       cp_async x_tile[8], x[8], 8
//!   cp_async_commit                   cp_async_commit
//! ```
//!
//! A copy then belongs to an earlier group than before, so it has arrived no later.

use crate::cta::CtaStmt;
use crate::program::{Scope, Stmt, ThreadProgram};
use orch_compute::expr::{BufferId, Expr, VarId};
use std::collections::BTreeSet;

/// Makes [`Scope::Constant`] of the inputs among `constants`.
pub fn mark_constant(program: &mut ThreadProgram, constants: &BTreeSet<BufferId>) {
    for (number, buffer) in program.buffers.iter_mut().enumerate() {
        if buffer.scope == Scope::Input && constants.contains(&BufferId::new(number)) {
            buffer.scope = Scope::Constant;
        }
    }
}

/// Moves the wait behind the leading statements that need no preceding kernel, if any of them reads a constant. Statements up to the
/// first barrier or other wait are reordered; each side keeps its order.
pub fn defer_grid_wait(program: &mut ThreadProgram) {
    let (mut before, mut after) = (Vec::new(), AfterWait::default());
    let mut reads_constants = false;
    let mut rest = program.body.iter().filter(|stmt| **stmt != WAIT);
    for stmt in rest.by_ref() {
        let effects = Effects::of(program, stmt);
        if effects.is_last || effects.is_ordering && (after.is_any() || effects.needs_wait) {
            after.add(stmt, effects);
            break;
        }
        if effects.needs_wait || after.precedes(&effects) || effects.ends_group && after.is_any() {
            after.add(stmt, effects);
        } else {
            reads_constants |= effects.reads_constants;
            before.push(stmt.clone());
        }
    }
    after.stmts.extend(rest.cloned());
    if reads_constants {
        before.push(WAIT);
        before.append(&mut after.stmts);
        program.body = before;
    }
}

const WAIT: Stmt = Stmt::Cta(CtaStmt::GridDependencyWait);

/// The statements that follow the wait, and what they use.
#[derive(Default)]
struct AfterWait {
    stmts: Vec<Stmt>,
    /// Variables that they read.
    used: BTreeSet<VarId>,
    /// Variables that they declare or assign.
    set: BTreeSet<VarId>,
    /// Shared and scratch buffers that they access.
    own: BTreeSet<BufferId>,
}

impl AfterWait {
    fn is_any(&self) -> bool {
        !self.stmts.is_empty()
    }

    fn add(&mut self, stmt: &Stmt, effects: Effects) {
        self.stmts.push(stmt.clone());
        self.used.extend(effects.used);
        self.set.extend(effects.set);
        self.own.extend(effects.own);
    }

    /// Whether a later statement with these effects may not move before the statements.
    fn precedes(&self, effects: &Effects) -> bool {
        !self.set.is_disjoint(&effects.used)
            || !self.set.is_disjoint(&effects.set)
            || !self.used.is_disjoint(&effects.set)
            || !self.own.is_disjoint(&effects.own)
    }
}

/// What a statement does, with those nested in it.
#[derive(Default)]
struct Effects {
    /// Variables that are read.
    used: BTreeSet<VarId>,
    /// Variables that are declared or assigned.
    set: BTreeSet<VarId>,
    /// Shared and scratch buffers that are accessed.
    own: BTreeSet<BufferId>,
    /// Whether arguments that other kernels write or read are accessed.
    needs_wait: bool,
    /// Whether constants are read.
    reads_constants: bool,
    /// Whether it ends a group of copies (`cp_async_commit`).
    ends_group: bool,
    /// Whether it orders threads, copies or MMAs: nothing moves across it.
    is_ordering: bool,
    /// Whether it is `launch_dependents`, behind which little is left to do.
    is_last: bool,
}

impl Effects {
    fn of(program: &ThreadProgram, stmt: &Stmt) -> Self {
        let mut effects = Self::default();
        let mut pending = vec![stmt];
        while let Some(stmt) = pending.pop() {
            for id in program.exprs.reachable(&stmt.operands()) {
                match program.exprs.get(id) {
                    Expr::Var(var) => drop(effects.used.insert(*var)),
                    Expr::Load { buffer, .. } => effects.touch(program, *buffer),
                    _ => {}
                }
            }
            match stmt {
                Stmt::Let(var, _) | Stmt::Register(var, _) | Stmt::Assign(var, _) | Stmt::For { var, .. } => {
                    effects.set.insert(*var);
                }
                Stmt::Store { buffer, .. } | Stmt::Prefetch { buffer, .. } => effects.touch(program, *buffer),
                Stmt::Cta(stmt) => effects.cta_stmt(program, stmt),
                // Programs of one worker have no wait.
                Stmt::Amx(_) => effects.is_ordering = true,
                Stmt::Comment(_) | Stmt::If { .. } => {}
            }
            pending.extend(stmt.bodies().flatten());
        }
        effects
    }

    fn cta_stmt(&mut self, program: &ThreadProgram, stmt: &CtaStmt) {
        self.set.extend(stmt.declares());
        stmt.locations().iter().for_each(|location| self.touch(program, location.buffer));
        match stmt {
            CtaStmt::TmaLoad { map: tensor_map, .. } => {
                self.touch(program, program.tensor_maps[tensor_map.index()].buffer)
            }
            CtaStmt::CpAsyncCommit => self.ends_group = true,
            CtaStmt::CpAsync { .. } => {}
            CtaStmt::LaunchDependents => self.is_last = true,
            _ => self.is_ordering = true,
        }
    }

    fn touch(&mut self, program: &ThreadProgram, buffer: BufferId) {
        match program.buffer(buffer).scope {
            Scope::Input | Scope::Output | Scope::Updated => self.needs_wait = true,
            Scope::Constant => self.reads_constants = true,
            Scope::Shared | Scope::ReusedShared | Scope::Scratch => drop(self.own.insert(buffer)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{defer_grid_wait, mark_constant};
    use crate::{BufferData, ExecOptions, interpret, parse_thread, validate_thread};
    use orch_compute::expr::BufferId;
    use orch_ir::{DType, Tensor};
    use std::collections::BTreeSet;

    const HEADER: &str = "program k, 2 tasks task: i64 [0..=1]\n  cta 32 threads thread: i64 [0..=31], clusters of 1\n  \
                          input x: f32[64]\n  constant w: f32[64]\n  output y: f32[64]\n  shared a: f32[64]\n  \
                          shared b: f32[64]\n";

    /// The statements once the wait is late; they compute the same.
    fn deferred(body: &str) -> String {
        let mut program =
            parse_thread(&format!("{HEADER}{{\n{body}}}\n")).unwrap_or_else(|error| panic!("{error}"));
        let results = [false, true].map(|is_deferred| {
            if is_deferred {
                defer_grid_wait(&mut program);
            }
            assert_eq!(validate_thread(&program), Vec::<String>::new());
            let values: Vec<f64> = (0..64).map(f64::from).collect();
            let x = BufferData::from_tensor(&Tensor::from_f64(DType::F32, [64], &values));
            let mut buffers = [x.clone(), x, BufferData::zeros(DType::F32, 64)];
            interpret(&program, &mut buffers, &ExecOptions::default())
                .unwrap_or_else(|error| panic!("{error}"));
            buffers[2].to_tensor([64]).expect("64 elements").to_f64()
        });
        assert_eq!(results[0], results[1]);
        let text = program.to_string();
        text.split_once("\n{\n").expect("a body").1.to_owned()
    }

    #[track_caller]
    fn assert_order(text: &str, parts: &[&str]) {
        let places: Vec<Option<usize>> = parts.iter().map(|part| text.find(part)).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} {text}");
        assert_eq!(text.matches("grid_dependency_wait").count(), 1, "{text}");
    }

    const END: &str = "cp_async_commit\ncp_async_wait 0\nbarrier\ny[((task * 32) + thread)] = (a[thread] + b[(31 - thread)])\n";

    #[test]
    fn copies_of_constants_come_before_the_wait() {
        let text = deferred(&format!(
            "let at: i64 = (thread * 1)\ncp_async a[at], x[at], 1\ncp_async b[at], w[at], 1\ncp_async_commit\n\
             cp_async a[(at + 32)], x[(at + 32)], 1\ncp_async b[(at + 32)], w[(at + 32)], 1\n{END}"
        ));
        assert_order(
            &text,
            &["w[at]", "w[%0]", "grid_dependency_wait", "x[at]", "commit", "x[%0]", "cp_async_wait 0"],
        );
    }

    #[test]
    fn constants_come_by_way_of_registers_too() {
        let text = deferred(&format!("b[thread] = x[thread]\nlet v: f32 = w[thread]\na[thread] = v\n{END}"));
        assert_order(&text, &["w[thread]", "a[thread]", "grid_dependency_wait", "x[thread]"]);
    }

    #[test]
    fn a_wait_that_is_there_moves() {
        let text = deferred(&format!(
            "grid_dependency_wait\ncp_async b[thread], w[thread], 1\ncp_async a[thread], x[thread], 1\n{END}"
        ));
        assert_order(&text, &["w[thread]", "grid_dependency_wait", "x[thread]"]);
    }

    #[test]
    fn what_reads_constants_only_is_done_before_results_are_written() {
        let text = deferred(&format!(
            "cp_async a[thread], w[thread], 1\ncp_async b[thread], w[(63 - thread)], 1\n{END}"
        ));
        assert_order(&text, &["(63 - thread)", "cp_async_wait 0", "barrier", "grid_dependency_wait", "y["]);
    }

    #[test]
    fn what_depends_on_other_kernels_stays_behind_them() {
        let place = "let at: i64 = min(i64(x[thread]), 31)\n";
        for body in [
            // The place is another kernel's.
            format!("{place}cp_async a[thread], x[thread], 1\ncp_async b[thread], w[at], 1\n{END}"),
            // The copy overwrites what another kernel's was copied to and read from.
            format!(
                "cp_async a[thread], x[thread], 1\ncp_async_commit\ncp_async_wait 0\nlet v: f32 = a[thread]\ncp_async a[thread], w[thread], 1\n\
                     b[thread] = v\n{END}"
            ),
            // Threads are waited for in between.
            format!("b[thread] = x[thread]\nbarrier\ncp_async a[thread], w[thread], 1\n{END}"),
            // Nothing is constant.
            format!("cp_async a[thread], x[thread], 1\ncp_async b[thread], x[thread], 1\n{END}"),
        ] {
            let text = deferred(&body);
            assert!(!text.contains("grid_dependency_wait"), "{text}");
        }
    }

    #[test]
    fn inputs_that_no_kernel_writes_are_constants() {
        let text = format!("{HEADER}{{\ny[thread] = x[thread]\n}}\n").replace("2 tasks", "1 tasks");
        let mut program = parse_thread(&text.replace("[0..=1]", "[0..=0]")).expect("a program");
        mark_constant(&mut program, &BTreeSet::new());
        assert!(program.to_string().contains("input x"));
        mark_constant(&mut program, &BTreeSet::from([BufferId::new(0), BufferId::new(2)]));
        assert!(program.to_string().contains("constant x") && program.to_string().contains("output y"));
    }
}
