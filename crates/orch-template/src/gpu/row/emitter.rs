//! What all parts of a row kernel's emission share: the nest, the schedule, and the thread's place.

use super::schedule::RowSchedule;
use crate::LaneAxis;
use crate::nest::emit::NestEmitter;
use orch_compute::expr::{BufferId, ExprId, Type, VarId};
use orch_ir::DType;
use orch_thread::cta::CtaStmt;
use orch_thread::program::{Buffer, Scope, Stmt};

/// A row kernel while its thread program is written.
pub(super) struct RowEmitter<'a> {
    /// The nest, and how its scalar expressions become statements.
    pub emitter: NestEmitter<'a>,
    pub schedule: &'a RowSchedule,
    /// What vectors are along.
    pub along: Option<LaneAxis>,
    /// The thread's number in its CTA.
    pub thread: ExprId,
    /// The thread's row among those of its CTA.
    pub row: ExprId,
    /// The thread's number among all threads of its row.
    pub row_thread: ExprId,
    /// Axes as loops nest, the one along vectors last.
    pub order: Vec<VarId>,
    /// The round that a thread is at in a stage: the index of the values that it keeps in registers.
    pub round: VarId,
}

impl RowEmitter<'_> {
    /// Statements under a condition; `None` is true.
    pub fn if_true(&mut self, condition: Option<ExprId>, then: Vec<Stmt>) -> Vec<Stmt> {
        match condition {
            Some(condition) => vec![Stmt::If { condition, then, otherwise: Vec::new() }],
            None => then,
        }
    }

    /// Adds shared memory.
    pub fn shared(&mut self, name: &str, dtype: DType, elems: usize) -> BufferId {
        self.emitter.nest.program.add_buffer(Buffer { name: name.into(), dtype, elems, scope: Scope::Shared })
    }

    /// `value` under a name.
    pub fn bound(&mut self, name: &str, value: ExprId, out: &mut Vec<Stmt>) -> ExprId {
        let exprs = &mut self.emitter.nest.program.exprs;
        let var = exprs.declare_register(name, exprs.ty(value));
        out.push(Stmt::Let(var, value));
        exprs.var(var)
    }

    /// A variable of the type of `like` that a statement of the CTA declares.
    pub fn declared(
        &mut self,
        name: &str,
        like: ExprId,
        stmt: impl FnOnce(VarId) -> CtaStmt,
        out: &mut Vec<Stmt>,
    ) -> ExprId {
        let exprs = &mut self.emitter.nest.program.exprs;
        let ty: Type = exprs.ty(like);
        let var = exprs.declare_register(name, ty);
        out.push(Stmt::Cta(stmt(var)));
        exprs.var(var)
    }
}
