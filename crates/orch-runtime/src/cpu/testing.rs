//! For this crate's tests: C text to loaded code.

use super::compiler::Job;
use super::{Compiler, CompilerOptions, Library};
use orch_files::Scratch;
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
