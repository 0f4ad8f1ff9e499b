//! Scratch of 16-bit elements that is packed in 32-bit registers of two, as mma and wgmma take fragments.

use crate::facts::{self, Address};
use orch_compute::{Bounds, BufferId, Expr, ExprId};
use orch_ir::DType;
use orch_thread::{CtaStmt, Scope, Stmt, ThreadProgram};
use rustc_hash::FxHashSet;

/// The scratch that is packed.
pub fn of(program: &ThreadProgram) -> FxHashSet<BufferId> {
    let mut used = FxHashSet::default();
    let (mut accesses, mut roots) = (Vec::new(), Vec::new());
    visit(program, &program.body, &mut used, (&mut accesses, &mut roots));
    for id in program.exprs.reachable(&roots) {
        if let Expr::Load { buffer, offset, lanes, mask } = *program.exprs.get(id) {
            accesses.push(ScratchAccess {
                buffer,
                offset,
                lanes,
                is_masked: mask.is_some(),
                is_store: false,
            });
        }
    }
    let mut bounds = Bounds::new();
    let mut suits = |access: &ScratchAccess| {
        let is_whole = match facts::address(&program.exprs, access.offset) {
            Address::Contiguous(first) => bounds.of(&program.exprs, first).is_multiple_of(2),
            Address::Strided(..) | Address::Scattered(_) => false,
        };
        let is_half = access.lanes == 1 && !access.is_store;
        !access.is_masked && (is_half || is_whole && access.lanes.is_multiple_of(2))
    };
    let others: FxHashSet<BufferId> =
        accesses.iter().filter(|access| !suits(access)).map(|access| access.buffer).collect();
    let is_half = |id: BufferId| {
        let buffer = program.buffer(id);
        buffer.scope == Scope::Scratch && buffer.dtype.is_half()
    };
    let stored = accesses.iter().filter(|access| access.is_store && is_half(access.buffer));
    used.extend(stored.map(|access| access.buffer).filter(|buffer| !others.contains(buffer)));
    used
}

/// A load or a store.
struct ScratchAccess {
    buffer: BufferId,
    offset: ExprId,
    lanes: usize,
    is_masked: bool,
    is_store: bool,
}

/// Collects what matrix instructions use, what is stored, and the expressions of statements.
fn visit(
    program: &ThreadProgram,
    stmts: &[Stmt],
    used: &mut FxHashSet<BufferId>,
    (accesses, roots): (&mut Vec<ScratchAccess>, &mut Vec<ExprId>),
) {
    for stmt in stmts {
        roots.extend(stmt.operands());
        match stmt {
            Stmt::Cta(CtaStmt::Ldmatrix { to, .. }) => {
                used.insert(to.buffer);
            }
            Stmt::Cta(CtaStmt::Mma { ty: product, a, b, .. }) if product.dtype() != DType::F32 => {
                used.extend([a.buffer, b.buffer]);
            }
            Stmt::Cta(CtaStmt::Wgmma { a, .. }) if program.buffer(a.buffer).scope == Scope::Scratch => {
                used.insert(a.buffer);
            }
            Stmt::Store { buffer, offset, value, mask } => accesses.push(ScratchAccess {
                buffer: *buffer,
                offset: *offset,
                lanes: program.exprs.lanes(*value),
                is_masked: mask.is_some(),
                is_store: true,
            }),
            _ => {}
        }
        for body in stmt.bodies() {
            visit(program, body, used, (accesses, roots));
        }
    }
}
