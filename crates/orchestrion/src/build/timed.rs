//! Memory of kernels that are timed alone.

use orch_runtime::program::{Access, Base, BufferRef};
use orch_thread::{Scope, ThreadProgram};

/// Alignment of tensors where kernels are timed: no device needs more.
pub const ALIGN: usize = 256;

/// The arguments of a kernel that is timed alone: inputs in constant 0, outputs in the arena.
pub struct TimedArguments {
    /// In the order of the kernel's parameters.
    pub buffers: Vec<BufferRef>,
    /// Bytes of the inputs.
    pub read_bytes: usize,
    /// Bytes of the outputs.
    pub written_bytes: usize,
}

impl TimedArguments {
    /// Lays out the arguments of a program.
    pub fn of(program: &ThreadProgram) -> Self {
        let (mut read_bytes, mut written_bytes) = (0usize, 0usize);
        let arguments = program.buffers.iter().filter(|buffer| buffer.scope.is_global());
        let buffers = arguments.map(|buffer| {
            let len_bytes = buffer.bytes();
            let (base, access, end) = match buffer.scope {
                Scope::Output | Scope::Updated => (Base::Arena, Access::Write, &mut written_bytes),
                _ => (Base::Constant(0), Access::Read, &mut read_bytes),
            };
            let offset_bytes = *end;
            *end += len_bytes.next_multiple_of(ALIGN);
            BufferRef { base, offset_bytes, len_bytes, access }
        });
        let buffers = buffers.collect();
        Self { buffers, read_bytes, written_bytes }
    }
}
