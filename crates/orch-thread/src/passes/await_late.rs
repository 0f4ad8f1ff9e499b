//! Waiting for the kernels before no sooner than must be.
//!
//! On a device that launches a kernel while those before it still run, what no kernel of the model writes (weights, and inputs
//! of the model) can be on its way meanwhile. Here [`CtaStmt::GridDependencyWait`] moves behind all that touches only such buffers, and
//! copies of them to shared memory move ahead of it where they stand behind copies of others:
//!
//! ```text
//!   await                   copy w_tile[0], w[0], 8
//!   cp_async x_tile[0], x[0]    copy w_tile[8], w[8], 8
//!   cp_async w_tile[0], w[0]    await
//!   commit             ->   copy x_tile[0], x[0], 8
//!   cp_async x_tile[8], x[8]    commit
//!   cp_async w_tile[8], w[8]    copy x_tile[8], x[8], 8
//!   commit                  commit
//! ```
//!
//! A copy then belongs to an earlier group than before, so that it is waited for no later.

use crate::cta::CtaStmt;
use crate::program::{Scope, Stmt, ThreadProgram};
use orch_compute::expr::{BufferId, Expr, VarId};
use std::collections::BTreeSet;

/// Makes constants of inputs that no kernel of the model writes.
pub fn mark_constant(program: &mut ThreadProgram, is_written: impl Fn(usize) -> bool) {
    for (number, buffer) in program.buffers.iter_mut().enumerate() {
        if buffer.scope == Scope::Input && !is_written(number) {
            buffer.scope = Scope::Constant;
        }
    }
}

/// Moves the wait for the kernels before behind what needs none of them, if that reads memory.
pub fn await_late(program: &mut ThreadProgram) {
    let (mut first, mut late) = (Vec::new(), Late::default());
    let mut reads_first = false;
    let mut rest = program.body.iter().filter(|stmt| **stmt != AWAIT);
    for stmt in rest.by_ref() {
        let found = Found::of(program, stmt);
        if found.is_last || found.is_ordering && (late.is_any() || found.awaits) {
            late.add(stmt, found);
            break;
        }
        if found.awaits || late.precedes(&found) || found.ends_group && late.is_any() {
            late.add(stmt, found);
        } else {
            reads_first |= found.reads_constants;
            first.push(stmt.clone());
        }
    }
    late.stmts.extend(rest.cloned());
    if reads_first {
        first.push(AWAIT);
        first.append(&mut late.stmts);
        program.body = first;
    }
}

const AWAIT: Stmt = Stmt::Cta(CtaStmt::GridDependencyWait);

/// The statements that follow the wait.
#[derive(Default)]
struct Late {
    stmts: Vec<Stmt>,
    /// Variables that they read.
    used: BTreeSet<VarId>,
    /// Variables that they declare or assign.
    set: BTreeSet<VarId>,
    /// Buffers of the task or thread that they touch.
    own: BTreeSet<BufferId>,
}

impl Late {
    fn is_any(&self) -> bool {
        !self.stmts.is_empty()
    }

    fn add(&mut self, stmt: &Stmt, found: Found) {
        self.stmts.push(stmt.clone());
        self.used.extend(found.used);
        self.set.extend(found.set);
        self.own.extend(found.own);
    }

    /// Whether a statement that came after some of these may not come before them.
    fn precedes(&self, found: &Found) -> bool {
        !self.set.is_disjoint(&found.used)
            || !self.set.is_disjoint(&found.set)
            || !self.used.is_disjoint(&found.set)
            || !self.own.is_disjoint(&found.own)
    }
}

/// What a statement, with those in it, does.
#[derive(Default)]
struct Found {
    /// Variables that are read.
    used: BTreeSet<VarId>,
    /// Variables that are declared or assigned.
    set: BTreeSet<VarId>,
    /// Buffers of the task or thread that are touched.
    own: BTreeSet<BufferId>,
    /// Whether what kernels write is touched.
    awaits: bool,
    /// Whether constants are read.
    reads_constants: bool,
    /// Whether it ends a group of copies.
    ends_group: bool,
    /// Whether threads, copies or products are waited for.
    is_ordering: bool,
    /// Whether little is left to do behind it.
    is_last: bool,
}

impl Found {
    fn of(program: &ThreadProgram, stmt: &Stmt) -> Self {
        let mut found = Self::default();
        let mut pending = vec![stmt];
        while let Some(stmt) = pending.pop() {
            for id in program.exprs.reachable(&stmt.operands()) {
                match program.exprs.get(id) {
                    Expr::Var(var) => drop(found.used.insert(*var)),
                    Expr::Load { buffer, .. } => found.touch(program, *buffer),
                    _ => {}
                }
            }
            match stmt {
                Stmt::Let(var, _) | Stmt::Register(var, _) | Stmt::Assign(var, _) | Stmt::For { var, .. } => {
                    found.set.insert(*var);
                }
                Stmt::Store { buffer, .. } | Stmt::Prefetch { buffer, .. } => found.touch(program, *buffer),
                Stmt::Cta(stmt) => found.cta_stmt(program, stmt),
                // No worker without a CTA waits for other kernels.
                Stmt::Amx(_) => found.is_ordering = true,
                Stmt::Comment(_) | Stmt::If { .. } => {}
            }
            pending.extend(stmt.bodies().flatten());
        }
        found
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
            Scope::Input | Scope::Output => self.awaits = true,
            Scope::Constant => self.reads_constants = true,
            Scope::Shared | Scope::ReusedShared | Scope::Scratch => drop(self.own.insert(buffer)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{await_late, mark_constant};
    use crate::{BufferData, ExecOptions, interpret, parse_thread, validate_thread};
    use orch_ir::{DType, Tensor};

    const HEADER: &str = "program k, 2 tasks task: i64 [0..=1]\n  cta 32 threads thread: i64 [0..=31], clusters of 1\n  \
                          input x: f32[64]\n  constant w: f32[64]\n  output y: f32[64]\n  shared a: f32[64]\n  \
                          shared b: f32[64]\n";

    /// The statements once the wait is late; they compute the same.
    fn late(body: &str) -> String {
        let mut program =
            parse_thread(&format!("{HEADER}{{\n{body}}}\n")).unwrap_or_else(|error| panic!("{error}"));
        let results = [false, true].map(|is_late| {
            if is_late {
                await_late(&mut program);
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
        assert_eq!(text.matches("await").count(), 1, "{text}");
    }

    const END: &str = "cp_async_commit\ncp_async_wait 0\nbarrier\ny[((task * 32) + thread)] = (a[thread] + b[(31 - thread)])\n";

    #[test]
    fn copies_of_constants_come_before_the_wait() {
        let text = late(&format!(
            "let at: i64 = (thread * 1)\ncp_async a[at], x[at], 1\ncp_async b[at], w[at], 1\ncp_async_commit\n\
             cp_async a[(at + 32)], x[(at + 32)], 1\ncp_async b[(at + 32)], w[(at + 32)], 1\n{END}"
        ));
        assert_order(&text, &["w[at]", "w[%0]", "await", "x[at]", "commit", "x[%0]", "cp_async_wait 0"]);
    }

    #[test]
    fn constants_come_by_way_of_registers_too() {
        let text = late(&format!("b[thread] = x[thread]\nlet v: f32 = w[thread]\na[thread] = v\n{END}"));
        assert_order(&text, &["w[thread]", "a[thread]", "await", "x[thread]"]);
    }

    #[test]
    fn a_wait_that_is_there_moves() {
        let text = late(&format!(
            "grid_dependency_wait\ncp_async b[thread], w[thread], 1\ncp_async a[thread], x[thread], 1\n{END}"
        ));
        assert_order(&text, &["w[thread]", "await", "x[thread]"]);
    }

    #[test]
    fn what_reads_constants_only_is_done_before_results_are_written() {
        let text = late(&format!(
            "cp_async a[thread], w[thread], 1\ncp_async b[thread], w[(63 - thread)], 1\n{END}"
        ));
        assert_order(&text, &["(63 - thread)", "cp_async_wait 0", "barrier", "await", "y["]);
    }

    #[test]
    fn what_depends_on_other_kernels_stays_behind_them() {
        let place = "let at: i64 = min(i64(x[thread]), 31)\n";
        for body in [
            // The place is another kernel's.
            format!("{place}copy a[thread], x[thread], 1\ncp_async b[thread], w[at], 1\n{END}"),
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
            let text = late(&body);
            assert!(!text.contains("await"), "{text}");
        }
    }

    #[test]
    fn inputs_that_no_kernel_writes_are_constants() {
        let text = format!("{HEADER}{{\ny[thread] = x[thread]\n}}\n").replace("2 tasks", "1 tasks");
        let mut program = parse_thread(&text.replace("[0..=1]", "[0..=0]")).expect("a program");
        mark_constant(&mut program, |buffer| buffer == 0);
        assert!(program.to_string().contains("input x"));
        mark_constant(&mut program, |_| false);
        assert!(program.to_string().contains("constant x") && program.to_string().contains("output y"));
    }
}
