//! Runs, and contexts to run in.

use crate::executable::orc_executable;
use crate::status::{Failure, at, destroy, give, guarded, orc_status};
use crate::tensor::{Ports, orc_tensor, with_views};
use orchestrion::RunContext;
use std::sync::{Arc, Mutex, TryLockError};

/// Working memory for one run of an executable at a time; contexts of an executable share its code, weights and threads.
pub struct orc_context {
    context: Mutex<RunContext>,
    ports: Arc<Ports>,
}

/// Computes `outputs` from `inputs`, in the model's order, as many as it has. Nobody may write the inputs or use the outputs meanwhile,
/// and outputs must not overlap inputs or each other, from their first to their last byte. After an error the contents of the outputs
/// are undefined. A run takes working memory that no other run uses, which is made if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_run(
    executable: *const orc_executable,
    inputs: *const orc_tensor,
    input_count: usize,
    outputs: *const orc_tensor,
    output_count: usize,
) -> orc_status {
    guarded(|| {
        // SAFETY: the promise of all callers.
        let executable = unsafe { at(executable, "`executable`") }?;
        // SAFETY: the promise of this function's callers.
        unsafe {
            with_views(&executable.ports, (inputs, input_count), (outputs, output_count), |from, to| {
                executable.executable.run_views(from, to).map_err(Failure::from)
            })
        }
    })
}

/// Makes a context. It keeps what it needs of the executable, which may be destroyed before it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_context_create(
    executable: *const orc_executable,
    out: *mut *mut orc_context,
) -> orc_status {
    let make = || {
        // SAFETY: the promise of all callers.
        let executable = unsafe { at(executable, "`executable`") }?;
        let context = Mutex::new(executable.executable.context()?);
        Ok(orc_context { context, ports: Arc::clone(&executable.ports) })
    };
    // SAFETY: the promise of all callers.
    unsafe { give(out, make) }
}

/// Runs as `orc_run` does, in this context's memory. A context runs once at a time: ORC_USAGE if it runs in another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_context_run(
    context: *mut orc_context,
    inputs: *const orc_tensor,
    input_count: usize,
    outputs: *const orc_tensor,
    output_count: usize,
) -> orc_status {
    guarded(|| {
        // SAFETY: the promise of all callers.
        let context = unsafe { at(context, "`context`") }?;
        let mut own = context.context.try_lock().map_err(|error| {
            Failure::usage(match error {
                TryLockError::WouldBlock => "the context runs in another thread",
                TryLockError::Poisoned(_) => "a run of the context ended by a bug: destroy it",
            })
        })?;
        // SAFETY: the promise of this function's callers.
        unsafe {
            with_views(&context.ports, (inputs, input_count), (outputs, output_count), |from, to| {
                own.run_views(from, to).map_err(Failure::from)
            })
        }
    })
}

/// Frees a context, from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_context_destroy(context: *mut orc_context) {
    // SAFETY: the promise of all callers.
    unsafe { destroy(context) };
}
