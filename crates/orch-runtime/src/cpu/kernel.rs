//! Kernels and their calling convention.
//!
//! A kernel is a C function
//!
//! ```c
//! void NAME(void *const *buffers, int64_t task_begin, int64_t task_end, void *scratch, int64_t task_before);
//! ```
//!
//! - `buffers` points to one pointer per tensor, in the order that the launch lists them. Pointers from the arena and
//!   to constants are 64-byte aligned if their offsets are; pointers to the caller's tensors are only 8-byte aligned.
//!   A pointer to an empty tensor may point to nothing.
//! - The call does tasks `task_begin <= task < task_end` out of the kernel's fixed number of tasks. Calls for
//!   different tasks may happen at the same time on different threads, and in any order; together they do all tasks. A launch may have
//!   [phases](super::Launch::phases): then calls for tasks of different ones happen in order.
//! - `scratch` is 64-byte aligned memory of at least the size that the kernel needs, unshared during the call, of
//!   undefined content, unless `task_before` is not negative: then `scratch` is as the call that ended with that task left it, which
//!   was the last one on the same thread and belongs to the same launch.
//! - It must not unwind, block, or keep pointers.

use super::library::Loaded;
use super::pool::LoopCall;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// The C type of a kernel.
pub type KernelEntry = unsafe extern "C" fn(*const *mut c_void, i64, i64, *mut c_void, i64);

/// A kernel function of a loaded library.
#[derive(Clone)]
pub struct CpuKernel {
    entry: KernelEntry,
    tasks: i64,
    scratch_bytes: usize,
    /// Keeps the code in memory.
    _library: Arc<Loaded>,
}

impl CpuKernel {
    pub(super) fn new(entry: KernelEntry, tasks: i64, scratch_bytes: usize, library: Arc<Loaded>) -> Self {
        Self { entry, tasks: tasks.max(0), scratch_bytes, _library: library }
    }

    /// Independent work items.
    pub fn tasks(&self) -> i64 {
        self.tasks
    }

    /// Scratch memory that a call needs.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// Does the tasks of a call.
    ///
    /// # Safety
    /// `buffers` must point to as many pointers as the kernel has tensors, each to memory of the tensor's size. No code but
    /// calls of this kernel for other tasks may write that memory during the call, or read it if the kernel writes it;
    /// `scratch` must point to [`scratch_bytes`](Self::scratch_bytes) bytes that no other code uses during the call,
    /// nor has used since the task before.
    #[inline]
    pub(super) unsafe fn call(&self, buffers: *const *mut c_void, call: &LoopCall, scratch: *mut u8) {
        // SAFETY: the library is loaded while `self` lives; the rest is the caller's promise.
        unsafe { (self.entry)(buffers, call.tasks.start, call.tasks.end, scratch.cast(), call.task_before) }
    }
}

impl fmt::Debug for CpuKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuKernel")
            .field("tasks", &self.tasks)
            .field("scratch_bytes", &self.scratch_bytes)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::testing::{Argument, load, run_serial};

    #[test]
    fn a_serial_run_does_all_tasks() {
        let library = load(
            "#include <stdint.h>\n\
             void twice(void *const *b, int64_t lo, int64_t hi, void *s, int64_t before) {\n\
             int32_t *t = s; const int32_t *x = b[0]; int32_t *y = b[1];\n\
             for (int64_t i = lo; i < hi; ++i) { t[0] = x[i]; y[i] = 2 * t[0]; } }\n",
        );
        let input: Vec<u8> = (0i32..5).flat_map(i32::to_le_bytes).collect();
        let mut output = vec![0; 20];
        let kernel = library.kernel("twice", 5, 4).unwrap();
        run_serial(&kernel, &mut [Argument::Read(&input), Argument::Write(&mut output)]);
        assert_eq!(output, (0i32..5).flat_map(|i| (2 * i).to_le_bytes()).collect::<Vec<_>>());
    }
}
