//! Shared-memory hazards: which shared buffers have been read and written since the last barrier.
//!
//! Statements are added in groups within which threads touch elements of their own. A barrier separates a
//! group from earlier ones that write what it reads or writes, or read what it writes (RAW, WAW, WAR).
//! cp.async and TMA writes are not counted: they have waits of their own.

use orch_compute::{BufferId, Expr, ExprId};
use orch_thread::{CtaStmt, Stmt, ThreadProgram};
use std::collections::BTreeSet;

/// Shared buffers that statements read and write.
#[derive(Clone, Default, Debug)]
pub(super) struct SharedAccesses {
    read: BTreeSet<BufferId>,
    written: BTreeSet<BufferId>,
}

impl SharedAccesses {
    /// The accesses of a group of statements.
    pub fn of(program: &ThreadProgram, stmts: &[Stmt]) -> SharedAccesses {
        let mut touched = SharedAccesses::default();
        let mut roots = Vec::new();
        touched.add(program, stmts, &mut roots);
        for id in program.exprs.reachable(&roots) {
            if let Expr::Load { buffer, .. } = program.exprs.get(id)
                && program.buffer(*buffer).scope.is_shared()
            {
                touched.read.insert(*buffer);
            }
        }
        touched
    }

    /// Adds accesses of statements; expressions that they evaluate go to `roots`, whose loads the caller
    /// adds.
    fn add(&mut self, program: &ThreadProgram, stmts: &[Stmt], roots: &mut Vec<ExprId>) {
        for stmt in stmts {
            roots.extend(stmt.operands());
            match stmt {
                Stmt::Store { buffer, .. } if program.buffer(*buffer).scope.is_shared() => {
                    self.written.insert(*buffer);
                }
                Stmt::Cta(CtaStmt::Ldmatrix { from, .. }) => {
                    self.read.insert(from.buffer);
                }
                Stmt::Cta(CtaStmt::Wgmma { a, b, .. }) => {
                    let operands = [a, b].map(|spot| spot.buffer);
                    self.read.extend(operands.iter().filter(|&&at| program.buffer(at).scope.is_shared()));
                }
                _ => {}
            }
            stmt.bodies().for_each(|body| self.add(program, body, roots));
        }
    }

    /// Whether `next` conflicts with these earlier accesses.
    pub fn needs_barrier_before(&self, next: &SharedAccesses) -> bool {
        let meets = |a: &BTreeSet<BufferId>, b: &BTreeSet<BufferId>| a.intersection(b).next().is_some();
        meets(&self.written, &next.read)
            || meets(&self.written, &next.written)
            || meets(&self.read, &next.written)
    }

    /// Whether anything is written.
    pub fn writes(&self) -> bool {
        !self.written.is_empty()
    }

    /// Whether no other buffers than these are written.
    pub fn writes_only(&self, buffers: &BTreeSet<BufferId>) -> bool {
        self.written.is_subset(buffers)
    }

    /// Whether a buffer is read.
    pub fn reads(&self, buffer: BufferId) -> bool {
        self.read.contains(&buffer)
    }

    /// Adds the accesses of another group.
    pub fn join(&mut self, other: SharedAccesses) {
        self.read.extend(other.read);
        self.written.extend(other.written);
    }
}
