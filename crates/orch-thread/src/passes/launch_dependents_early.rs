//! Kernels that stream very much let the next kernel be launched at their start (PTX: `griddepcontrol.launch_dependents`).
//!
//! The CTAs of the next kernel then begin where the first CTAs of this one have ended, while memory still serves the others. In
//! kernels that take less time they would occupy what this kernel's CTAs need, so there the statement stays where the template has
//! put it: when little is left to do.

use crate::cta::CtaStmt;
use crate::program::{Stmt, ThreadProgram};

/// Bytes of streamed arguments from which on a kernel takes so long that the next one may wait beside all of it.
const MIN_STREAMED_BYTES: usize = 64 << 20;

/// Removes [`CtaStmt::LaunchDependents`], without which a kernel launches the next one at its start, from programs whose arguments
/// of the mark [`ThreadProgram::evict_first`] have at least [`MIN_STREAMED_BYTES`].
pub fn launch_dependents_early(program: &mut ThreadProgram) {
    let streamed_bytes: usize = program.evict_first.iter().map(|&id| program.buffer(id).bytes()).sum();
    if streamed_bytes >= MIN_STREAMED_BYTES {
        program.body.retain(|stmt| *stmt != Stmt::Cta(CtaStmt::LaunchDependents));
    }
}
