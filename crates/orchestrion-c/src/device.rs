//! Runs on tensors in the memory of a GPU.

use crate::executable::orc_executable;
use crate::status::{Failure, at, guarded, orc_status};
use crate::tensor::{orc_tensor, with_device_tensors};
use orchestrion::{DeviceAddress, DeviceRun, Stream};
use std::ffi::c_void;
use std::sync::Arc;

/// Bytes of working memory that a run on a GPU needs; 0 for an executable of a CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_scratch_bytes(executable: *const orc_executable) -> usize {
    // SAFETY: the promise of all callers.
    unsafe { executable.as_ref() }.map_or(0, |executable| executable.executable.scratch_bytes())
}

/// Enqueues a run on tensors in the memory of the executable's GPU, row-major without gaps, in `stream` (a `cudaStream_t` or `CUstream`;
/// NULL is the default stream), and returns without waiting, unless a step runs on the host. Until the run is done nobody may write
/// the inputs or use the outputs; an output that overlaps another tensor is written last. Tensors that do not start at a multiple of 16
/// bytes are copied. Faults of kernels may be reported by a later call. The stream must live as long as the executable. If the stream
/// is being captured, the run becomes part of that graph, which must not be launched after the executable was destroyed.
/// `scratch`: `orc_scratch_bytes` bytes of the GPU's memory, from a multiple of 256 on, that the run works in; without it (NULL) a
/// graph that captured the run must not be launched at the same time as other runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_run_on_device(
    executable: *const orc_executable,
    stream: *mut c_void,
    inputs: *const orc_tensor,
    input_count: usize,
    outputs: *const orc_tensor,
    output_count: usize,
    scratch: *mut c_void,
) -> orc_status {
    guarded(|| {
        // SAFETY: the promise of all callers.
        let executable = unsafe { at(executable, "`executable`") }?;
        let Some(gpu) = executable.executable.gpu() else {
            return Err(Failure::usage(
                "the executable is for a CPU, which does not reach the memory of a GPU",
            ));
        };
        // SAFETY: the promise of this function's callers.
        let stream = Arc::new(unsafe { Stream::of_handle(gpu, stream) });
        let scratch = (!scratch.is_null()).then(|| {
            // SAFETY: as above.
            unsafe { DeviceAddress::new(scratch.addr() as u64) }
        });
        // SAFETY: as above.
        unsafe {
            with_device_tensors(
                &executable.ports,
                (inputs, input_count),
                (outputs, output_count),
                |from, to| {
                    let run = DeviceRun { inputs: from, outputs: to, scratch };
                    executable.executable.run_on_device(&stream, &run).map_err(Failure::from)
                },
            )
        }
    })
}
