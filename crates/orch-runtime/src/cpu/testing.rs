//! For this crate's tests: C text to loaded code, and direct calls of it.

use super::compiler::Job;
use super::pool::LoopCall;
use super::{AlignedBuffer, Compiler, CompilerOptions, CpuKernel, Library};
use orch_files::Scratch;
use std::ffi::c_void;
use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

/// The shared object of a C text.
pub(crate) fn compile_object(text: &str) -> Vec<u8> {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    let compiler = COMPILER.get_or_init(|| Compiler::find(&CompilerOptions::default()).unwrap());
    let dir = Scratch::new().unwrap();
    let (source, object) = (dir.path().join("test.c"), dir.path().join("test.so"));
    fs::write(&source, text).unwrap();
    let job = Job { name: "test", header: None, source_file: &source, output: &object };
    compiler.compile(&job, &AtomicBool::new(false)).unwrap();
    fs::read(object).unwrap()
}

/// A C text, compiled and loaded.
pub(crate) fn load(text: &str) -> Library {
    Library::from_bytes("test", &compile_object(text)).unwrap()
}

/// One tensor of a direct call.
pub(crate) enum Argument<'a> {
    /// The kernel only reads it.
    Read(&'a [u8]),
    /// The kernel writes it.
    Write(&'a mut [u8]),
}

/// Does all tasks of a kernel on this thread.
pub(crate) fn run_serial(kernel: &CpuKernel, arguments: &mut [Argument<'_>]) {
    let scratch = AlignedBuffer::zeroed(kernel.scratch_bytes());
    let pointers: Vec<*mut c_void> = (arguments.iter_mut())
        .map(|argument| match argument {
            Argument::Read(bytes) => bytes.as_ptr().cast_mut().cast(),
            Argument::Write(bytes) => bytes.as_mut_ptr().cast(),
        })
        .collect();
    // SAFETY: the pointers are to live slices, of which only the `Write` ones, borrowed exclusively, are written, and the
    // scratch memory has the size that the kernel needs.
    unsafe { kernel.call(pointers.as_ptr(), &LoopCall::whole(kernel.tasks()), scratch.as_ptr()) };
}
