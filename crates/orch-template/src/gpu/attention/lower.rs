//! From attention to a thread program.
//!
//! ```text
//! cp.async q, k -> shared; commit        cp.async v -> shared; commit
//! wait q, k: scores = q * k^T            ldmatrix, mma.sync; scores stay in registers
//! statistics of rows                     shuffles of 4 lanes, shared memory between key warps
//! wait v: acc = p(scores, statistics) * v
//! epilogue: sum over key warps through shared memory, stores
//! ```

use super::emitter::AttentionEmitter;
use super::form::AttentionForm;
use super::schedule::{AttentionSchedule, mma_type};
use super::tile::AttentionTile;
use crate::CannotLower;
use orch_compute::block::BlockProgram;
use orch_thread::OperandPrecision;
use orch_thread::cta::CtaStmt;
use orch_thread::kernel::Kernel;
use orch_thread::program::{Stmt, ThreadProgram};

/// The kernel under a schedule.
///
/// # Errors
/// If the block program is not attention, or no tensor core multiplies it in f16 or bf16.
pub fn lower(
    block: &BlockProgram,
    schedule: &AttentionSchedule,
    precision: OperandPrecision,
) -> Result<Kernel, CannotLower> {
    let form = AttentionForm::of(block)?;
    let mma_type = mma_type(block, &form, precision)
        .ok_or(CannotLower::NotThisTemplate("operands are not f16 or bf16"))?;
    let mut emitter = AttentionEmitter::new(block, form, mma_type, *schedule);
    let bindings = emitter.declare_arguments();
    let mut body = Vec::new();
    emitter.place_cta(&mut body);
    let (q, k, v) = (emitter.form.q, emitter.form.k, emitter.form.v);
    let q = AttentionTile::of_queries(&mut emitter, q);
    let k = AttentionTile::of_keys(&mut emitter, k);
    let v = AttentionTile::of_values(&mut emitter, v);
    body.extend(q.fill(&mut emitter));
    body.extend(k.fill(&mut emitter));
    body.push(Stmt::Cta(CtaStmt::CpAsyncCommit));
    body.extend(v.fill(&mut emitter));
    body.push(Stmt::Cta(CtaStmt::CpAsyncCommit));
    body.push(Stmt::Cta(CtaStmt::CpAsyncWait(1)));
    body.push(Stmt::Cta(CtaStmt::Barrier));
    body.extend(emitter.score(&q, &k));
    body.extend(emitter.statistics());
    body.push(Stmt::Cta(CtaStmt::CpAsyncWait(0)));
    body.push(Stmt::Cta(CtaStmt::Barrier));
    body.extend(emitter.weigh(&v));
    body.push(Stmt::Cta(CtaStmt::LaunchDependents));
    body.push(Stmt::Cta(CtaStmt::ReuseShared));
    body.extend(emitter.epilogue());
    Ok(Kernel { program: ThreadProgram { body, ..emitter.program }, bindings })
}
