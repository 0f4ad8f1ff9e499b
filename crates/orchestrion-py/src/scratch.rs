//! Working memory of runs, from PyTorch's allocator: what PyTorch says of its memory is true, and executables do not each keep their own.
//!
//! Runs in a stream follow one another, and none finds anything there that another one has left. So all executables that run in a stream have
//! the same working memory, as large as the one that needs most. It stays where it is as long as one of them lives: graphs keep its address.
//!
//! Large working memory is PyTorch's again after each run. Otherwise it would come on top of what eager computes between the forward graph and
//! the backward graph, where a training step needs most. PyTorch's allocator gives the same requests the same addresses, step by step, so that
//! graphs seldom have to be told of another one.

use crate::tensors::Allocator;
use orchestrion::DType;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyTuple;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A stream of a GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StreamKey {
    /// The GPU's number.
    pub gpu: usize,
    /// The stream's handle.
    pub stream: usize,
}

/// Working memory of one stream.
#[derive(Default)]
pub struct StreamScratch {
    block: Mutex<Option<ScratchBlock>>,
}

/// A tensor of bytes.
pub struct ScratchBlock {
    _tensor: Py<PyAny>,
    len_bytes: usize,
    address: u64,
}

/// The working memory that an executable has used, by stream.
#[derive(Default)]
pub struct UsedScratch {
    used: Mutex<Vec<(StreamKey, Arc<StreamScratch>)>>,
}

/// Of more bytes, working memory is kept by no executable.
const KEPT_BYTES: usize = 4 << 20;

/// Working memory of one run, on which no other one is enqueued as long as this lives.
pub enum RunScratch<'a> {
    /// The run's own: PyTorch gives it to what is enqueued in the stream later.
    Own(ScratchBlock),
    /// What is kept for the stream.
    Kept(MutexGuard<'a, Option<ScratchBlock>>),
}

impl RunScratch<'_> {
    /// Where it begins.
    pub fn address(&self) -> Option<u64> {
        match self {
            Self::Own(block) => Some(block.address),
            Self::Kept(block) => block.as_ref().map(|block| block.address),
        }
    }
}

impl UsedScratch {
    /// The working memory of a stream, which is kept for it from now on.
    pub fn of(&self, key: StreamKey) -> Arc<StreamScratch> {
        static ALL: Mutex<Vec<(StreamKey, Weak<StreamScratch>)>> = Mutex::new(Vec::new());
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, scratch)) = used.iter().find(|(known, _)| *known == key) {
            return Arc::clone(scratch);
        }
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, scratch)| scratch.strong_count() > 0);
        let shared = all.iter().find(|(known, _)| *known == key).and_then(|(_, scratch)| scratch.upgrade());
        let scratch = shared.unwrap_or_else(|| {
            let scratch = Arc::default();
            all.push((key, Arc::downgrade(&scratch)));
            scratch
        });
        used.push((key, Arc::clone(&scratch)));
        scratch
    }
}

impl ScratchBlock {
    /// So many bytes.
    ///
    /// # Errors
    /// If there is no memory.
    fn new(allocator: &Allocator<'_>, len_bytes: usize) -> PyResult<Self> {
        let py = allocator.py();
        let (shape, strides) = (PyTuple::new(py, [len_bytes])?, PyTuple::new(py, [1])?);
        let tensor = allocator.empty_strided(&shape, &strides, DType::U8)?;
        let address = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
        Ok(Self { _tensor: tensor.unbind(), len_bytes, address })
    }
}

impl StreamScratch {
    /// At least so many bytes for a run in the current stream, which a graph is made of if `is_captured`.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn of_run(
        &self,
        allocator: &Allocator<'_>,
        len_bytes: usize,
        is_captured: bool,
    ) -> PyResult<RunScratch<'_>> {
        if is_captured || len_bytes > KEPT_BYTES {
            return ScratchBlock::new(allocator, len_bytes).map(RunScratch::Own);
        }
        self.lock(allocator, len_bytes)
    }

    /// At least so many bytes, of the current stream.
    ///
    /// # Errors
    /// If there is no memory.
    fn lock(&self, allocator: &Allocator<'_>, len_bytes: usize) -> PyResult<RunScratch<'_>> {
        // Another thread may hold it while it waits for the interpreter's lock.
        let mut block = self.block.lock_py_attached(allocator.py()).unwrap_or_else(PoisonError::into_inner);
        if block.as_ref().is_none_or(|block| block.len_bytes < len_bytes) {
            // What was there may still be used by earlier runs in the stream: PyTorch gives it away to later ones only.
            *block = None;
            *block = Some(ScratchBlock::new(allocator, len_bytes)?);
        }
        Ok(RunScratch::Kept(block))
    }
}
