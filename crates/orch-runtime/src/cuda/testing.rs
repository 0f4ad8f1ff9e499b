//! For this module's tests: a driver without a device, and libraries for it (`tests/fake_cuda`).

use super::{Context, CublasLt, Cudnn, Driver, Function, Module, Nvtx, SearchPaths};
use crate::cpu::testing::compile_object;
use libloading::Library;
use orch_files::Scratch;
use std::ffi::{CStr, CString, c_char};
use std::sync::{Arc, OnceLock};

const SOURCE: &str = include_str!("../../tests/fake_cuda/driver.c");

const CUBLASLT: &str = include_str!("../../tests/fake_cuda/cublaslt.c");

const NVTX: &str = include_str!("../../tests/fake_cuda/nvtx.c");

const CUDNN: &str = include_str!("../../tests/fake_cuda/cudnn.c");

/// A fake library of its own, for streams of any fake driver.
pub(super) struct FakeLibrary {
    library: Library,
    pub(super) paths: SearchPaths,
    _dir: Scratch,
}

impl FakeLibrary {
    pub(super) fn cublaslt() -> Self {
        static OBJECT: OnceLock<Vec<u8>> = OnceLock::new();
        Self::of(OBJECT.get_or_init(|| compile_object(CUBLASLT)), "libcublasLt.so.13")
    }

    pub(super) fn cudnn() -> Self {
        static OBJECT: OnceLock<Vec<u8>> = OnceLock::new();
        Self::of(OBJECT.get_or_init(|| compile_object(CUDNN)), "libcudnn.so.9")
    }

    pub(super) fn nvtx() -> Self {
        static OBJECT: OnceLock<Vec<u8>> = OnceLock::new();
        Self::of(OBJECT.get_or_init(|| compile_object(NVTX)), "libnvtx3interop.so.1")
    }

    /// What was called since the last time.
    pub(super) fn log(&self) -> String {
        log_of(&self.library)
    }

    /// A cuBLASLt that lacks a function.
    pub(super) fn cublaslt_without(symbol: &str) -> Self {
        Self::of(&compile_object(&without(CUBLASLT, symbol)), "libcublasLt.so.13")
    }

    /// A cuDNN that lacks a function.
    pub(super) fn cudnn_without(symbol: &str) -> Self {
        Self::of(&compile_object(&without(CUDNN, symbol)), "libcudnn.so.9")
    }

    fn of(object: &[u8], file: &str) -> Self {
        let dir = Scratch::new().unwrap();
        let path = dir.path().join(file);
        std::fs::write(&path, object).unwrap();
        // SAFETY: the library has no initialisers.
        let library = unsafe { Library::new(&path) }.unwrap();
        let (cublaslt, cudnn, nvtx) = (Some(path.clone()), Some(path.clone()), Nvtx::File(path));
        Self { library, paths: SearchPaths { cublaslt, cudnn, nvtx, ..SearchPaths::default() }, _dir: dir }
    }

    /// Sets a property; `function` is whose status it is.
    pub(super) fn set(&self, key: &str, function: &str, value: i64) -> &Self {
        let (key, function) = (CString::new(key).unwrap(), CString::new(function).unwrap());
        type Set = unsafe extern "C" fn(*const c_char, *const c_char, i64);
        // SAFETY: the types are those of the source.
        unsafe { self.library.get::<Set>("fake_set").unwrap()(key.as_ptr(), function.as_ptr(), value) };
        self
    }

    pub(super) fn load_cublaslt(&self) -> Arc<CublasLt> {
        Arc::new(CublasLt::load(&self.paths).unwrap())
    }

    pub(super) fn load_cudnn(&self) -> Arc<Cudnn> {
        Arc::new(Cudnn::load(&self.paths).unwrap())
    }
}

/// What the log of a fake library has, which is empty afterwards.
fn log_of(library: &Library) -> String {
    // SAFETY: the types are those of the sources; the text ends with NUL, and is copied before it changes.
    unsafe {
        let log = library.get::<unsafe extern "C" fn() -> *const c_char>("fake_log").unwrap();
        let text = CStr::from_ptr(log()).to_str().unwrap().to_owned();
        library.get::<unsafe extern "C" fn()>("fake_clear_log").unwrap()();
        text
    }
}

/// A source with another name for a function.
fn without(source: &str, symbol: &str) -> String {
    let text =
        source.replace(&format!(" {symbol}("), " renamed(").replace(&format!("*{symbol}("), "*renamed(");
    assert_ne!(text, source);
    text
}

/// A fake driver of its own.
pub(super) struct Fake {
    library: Library,
    pub(super) paths: SearchPaths,
    _dir: Scratch,
}

impl Fake {
    pub(super) fn new() -> Self {
        static OBJECT: OnceLock<Vec<u8>> = OnceLock::new();
        Self::of(OBJECT.get_or_init(|| compile_object(SOURCE)))
    }

    /// One that lacks a function.
    pub(super) fn without(symbol: &str) -> Self {
        let text = SOURCE.replace(&format!("CUresult {symbol}("), "CUresult renamed(");
        assert_ne!(text, SOURCE);
        Self::of(&compile_object(&text))
    }

    fn of(object: &[u8]) -> Self {
        // The loader takes files apart by their place on disk, so each has state of its own.
        let dir = Scratch::new().unwrap();
        let path = dir.path().join("libcuda.so.1");
        std::fs::write(&path, object).unwrap();
        // SAFETY: the library has no initialisers.
        let library = unsafe { Library::new(&path) }.unwrap();
        Self { library, paths: SearchPaths { driver: Some(path), ..SearchPaths::default() }, _dir: dir }
    }

    /// Sets a property of driver or device.
    pub(super) fn set(&self, key: &str, value: i64) -> &Self {
        let key = CString::new(key).unwrap();
        // SAFETY: the types are those of the source.
        unsafe {
            let set = self.library.get::<unsafe extern "C" fn(*const c_char, i64)>("fake_set").unwrap();
            set(key.as_ptr(), value);
        }
        self
    }

    /// Makes a call of this function fail: the next one after `calls` others.
    pub(super) fn fail(&self, symbol: &str, code: i32, calls: i32) -> &Self {
        let symbol = CString::new(symbol).unwrap();
        // SAFETY: the types are those of the source.
        unsafe {
            let fail =
                self.library.get::<unsafe extern "C" fn(*const c_char, i32, i32)>("fake_fail").unwrap();
            fail(symbol.as_ptr(), code, calls);
        }
        self
    }

    /// What was called since the last time.
    pub(super) fn log(&self) -> String {
        log_of(&self.library)
    }

    /// Bytes of the device that are allocated.
    pub(super) fn memory_used(&self) -> i64 {
        // SAFETY: the type is that of the source.
        unsafe { self.library.get::<unsafe extern "C" fn() -> i64>("fake_memory_used").unwrap()() }
    }

    pub(super) fn driver(&self) -> Arc<Driver> {
        Driver::load(&self.paths).unwrap()
    }

    pub(super) fn context(&self) -> Context {
        Context::new(&self.driver().device(0).unwrap()).unwrap()
    }
}

/// The kernels of the fake driver.
pub(super) fn function(context: &Context, symbol: &str) -> Function {
    let image = b"fake\nadd\nneg\noverrun\ndefect\n";
    Module::load(context, "test", image).unwrap().function(symbol).unwrap()
}

pub(super) fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}
