//! Ranges for profilers (NVTX): which run of which model, and which step, the calls of the driver belong to.

use crate::cuda::driver::search::{self, SearchPaths};
use crate::symbols::symbol_table;
use std::ffi::{CString, c_char, c_int};
use std::marker::PhantomData;

symbol_table! {
    /// The functions of NVTX that are used here. They do nothing where no profiler is attached.
    struct NvtxApi {
        push = c"nvtxRangePushA": fn(*const c_char) -> c_int;
        pop = c"nvtxRangePop": fn() -> c_int;
    }
}

/// The ranges of one program.
pub struct ProfilerRanges {
    api: NvtxApi,
    run: CString,
    steps: Vec<CString>,
}

/// A range of the calling thread, from its making to its end.
pub(super) struct OpenRange {
    pop: unsafe extern "C" fn() -> c_int,
    /// Ranges belong to the thread that began them.
    _of_thread: PhantomData<*const ()>,
}

impl ProfilerRanges {
    /// Ranges named by the model and by its steps; `None` if nothing is to be marked, or NVTX does not load.
    pub fn load<'a>(
        paths: &SearchPaths,
        model: &str,
        steps: impl IntoIterator<Item = &'a str>,
    ) -> Option<Self> {
        let library = search::nvtx(paths)?.ok()?.library;
        // SAFETY: a library with these names is taken to be NVTX, and it is never unloaded.
        let api = unsafe { NvtxApi::new(library) }.ok()?;
        let text = |name: &str| CString::new(name.replace('\0', " ")).unwrap_or_default();
        Some(Self { api, run: text(model), steps: steps.into_iter().map(text).collect() })
    }

    /// Begins the range of a run.
    pub(super) fn run(&self) -> OpenRange {
        self.begin(&self.run)
    }

    /// Begins the range of a step; `None` if there is no such step.
    pub(super) fn step(&self, idx: usize) -> Option<OpenRange> {
        self.steps.get(idx).map(|name| self.begin(name))
    }

    fn begin(&self, name: &CString) -> OpenRange {
        // SAFETY: the name ends with NUL, and NVTX copies it. Its result is the depth, or that there is no profiler.
        let _ = unsafe { (self.api.push)(name.as_ptr()) };
        OpenRange { pop: self.api.pop, _of_thread: PhantomData }
    }
}

impl Drop for OpenRange {
    fn drop(&mut self) {
        // SAFETY: the library is never unloaded, and this thread has begun a range.
        let _ = unsafe { (self.pop)() };
    }
}

impl std::fmt::Debug for ProfilerRanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProfilerRanges({:?})", self.run)
    }
}
