//! The library calls of a program, tried once before they are counted on.
//!
//! What the library declines, or what no graph takes, is left to the own kernels.

use super::error::CudaError;
use super::graph::Captured;
use super::launch::{Action, Launch, Program};
use super::library::LibraryCall;
use super::memory::DeviceBuffer;
use super::placement::Placement;
use super::stream::Stream;
use super::{cublaslt, cudnn};
use std::sync::Arc;

/// The calls of an executable, and memory that they share one after the other.
pub(super) struct Calls {
    /// One for each step; `None` for those without a call.
    steps: Vec<Option<Result<Call, String>>>,
    workspace: DeviceBuffer,
}

/// A call that works.
pub(super) struct Call {
    prepared: Prepared,
    /// As a part of graphs; `None` if there are none.
    captured: Option<Captured>,
}

/// What a library was told of a call.
enum Prepared {
    Product(cublaslt::Product),
    Convolution(cudnn::Prepared),
}

/// The libraries made ready, each once for all calls of it.
#[derive(Default)]
struct Handles {
    cublaslt: Vec<Arc<cublaslt::Handle>>,
    cudnn: Vec<Arc<cudnn::Handle>>,
}

/// Whether calls are put into graphs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Into a stream only.
    Direct,
    /// Into graphs, and into a stream.
    Captured,
}

impl Calls {
    /// Prepares the calls of a valid program, and makes each once: results are left in its tensors.
    ///
    /// # Errors
    /// If the device lacks memory, or fails.
    pub(super) fn new(
        stream: &Stream,
        program: &Program,
        placement: &Placement,
        form: Form,
    ) -> Result<Self, CudaError> {
        let mut handles = Handles::default();
        let mut all = Vec::with_capacity(program.steps.len());
        for step in &program.steps {
            all.push(match &step.action {
                Action::Launch(Launch { call: Some(call), buffers, .. }) => {
                    let addresses: Vec<u64> =
                        buffers.iter().map(|buffer| placement.address(buffer)).collect();
                    Some(handles.prepared(call, stream, &addresses))
                }
                Action::Launch(_) | Action::Copy { .. } | Action::Host(_) => None,
            });
        }
        let wanted = all.iter().flatten().flatten().map(Prepared::workspace_bytes).max().unwrap_or(0);
        let workspace = DeviceBuffer::new(stream.context(), wanted, "a library's calls")?;
        let mut steps = Vec::with_capacity(all.len());
        for prepared in all {
            steps.push(match prepared {
                None => None,
                Some(Err(reason)) => Some(Err(declined(reason)?)),
                Some(Ok(prepared)) => Some(match tried(stream, prepared, &workspace, form) {
                    Ok(call) => Ok(call),
                    Err(reason) => Err(declined(reason)?),
                }),
            });
        }
        Ok(Self { steps, workspace })
    }

    /// The call of a step, if it is made.
    pub(super) fn of(&self, step: usize) -> Option<&Call> {
        self.steps[step].as_ref()?.as_ref().ok()
    }

    /// The library and its release, or why it is not called; `None` for steps without a call.
    pub(super) fn outcome(&self, step: usize) -> Option<Result<String, &str>> {
        let call = self.steps.get(step)?.as_ref()?.as_ref();
        Some(call.map(Call::release).map_err(String::as_str))
    }

    /// Enqueues a call, after what is in the stream.
    pub(super) fn enqueue(&self, call: &Call, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: it was prepared for the addresses of this executable's tensors. All calls of the workspace are in this
        // stream or in graphs that keep them apart, which run in this stream.
        unsafe { call.prepared.enqueue(stream, self.workspace.address()) }
    }

    /// Bytes of the device that calls share.
    pub(super) fn workspace_bytes(&self) -> usize {
        self.workspace.len_bytes()
    }
}

impl Call {
    /// As a part of graphs.
    pub(super) fn captured(&self) -> Option<&Captured> {
        self.captured.as_ref()
    }

    /// True if it needs the workspace, which another call must not use at the same time.
    pub(super) fn needs_workspace(&self) -> bool {
        self.prepared.workspace_bytes() > 0
    }

    /// The library and its release.
    pub(super) fn release(&self) -> String {
        self.prepared.release()
    }
}

impl Prepared {
    /// Bytes that the call needs beside its tensors.
    fn workspace_bytes(&self) -> usize {
        match self {
            Prepared::Product(product) => product.workspace_bytes(),
            Prepared::Convolution(convolution) => convolution.workspace_bytes(),
        }
    }

    /// The library and its release.
    fn release(&self) -> String {
        match self {
            Prepared::Product(product) => product.library().release(),
            Prepared::Convolution(convolution) => convolution.library().release(),
        }
    }

    /// Enqueues the call.
    ///
    /// # Safety
    /// The tensors are at the addresses that this was prepared for, and there are [`Self::workspace_bytes`] at `workspace`,
    /// aligned to 256 bytes, which no work uses that may run at the same time.
    unsafe fn enqueue(&self, stream: &Stream, workspace: u64) -> Result<(), CudaError> {
        match self {
            // SAFETY: the caller's promise.
            Prepared::Product(product) => unsafe { product.enqueue(stream, workspace) },
            // SAFETY: as above.
            Prepared::Convolution(convolution) => unsafe { convolution.enqueue(stream, workspace) },
        }
    }
}

impl Handles {
    /// Tells a call's library of it.
    fn prepared(
        &mut self,
        call: &LibraryCall,
        stream: &Stream,
        addresses: &[u64],
    ) -> Result<Prepared, CudaError> {
        match call {
            LibraryCall::Product(library, product) => {
                let library = library.as_ref().map_err(CudaError::clone)?;
                let is_of = |handle: &cublaslt::Handle| Arc::ptr_eq(handle.library(), library);
                let make = || cublaslt::Handle::new(library, stream.context());
                let handle = known_or_made(&mut self.cublaslt, is_of, make)?;
                cublaslt::Product::new(&handle, product, addresses).map(Prepared::Product)
            }
            LibraryCall::Convolution(library, convolution) => {
                let library = library.as_ref().map_err(CudaError::clone)?;
                let is_of = |handle: &cudnn::Handle| Arc::ptr_eq(handle.library(), library);
                let make = || cudnn::Handle::new(library, stream.context());
                let handle = known_or_made(&mut self.cudnn, is_of, make)?;
                cudnn::Prepared::new(&handle, convolution, addresses).map(Prepared::Convolution)
            }
        }
    }
}

/// The first of these handles that will do, or one that is made and kept.
fn known_or_made<H>(
    handles: &mut Vec<Arc<H>>,
    will_do: impl Fn(&H) -> bool,
    make: impl FnOnce() -> Result<H, CudaError>,
) -> Result<Arc<H>, CudaError> {
    if let Some(known) = handles.iter().find(|handle| will_do(handle)) {
        return Ok(Arc::clone(known));
    }
    let handle = Arc::new(make()?);
    handles.push(Arc::clone(&handle));
    Ok(handle)
}

/// Makes a call once, which loads its code, and captures it if need be.
fn tried(
    stream: &Stream,
    prepared: Prepared,
    workspace: &DeviceBuffer,
    form: Form,
) -> Result<Call, CudaError> {
    // SAFETY: it was prepared for the addresses of this executable's tensors, and the stream does one call after the other.
    let enqueue = || unsafe { prepared.enqueue(stream, workspace.address()) };
    enqueue()?;
    stream.synchronize()?;
    let captured = match form {
        Form::Direct => None,
        Form::Captured => Some(Captured::of(stream, enqueue)?),
    };
    Ok(Call { prepared, captured })
}

/// Why a library is not called; what has broken the device is an error all the same.
fn declined(reason: CudaError) -> Result<String, CudaError> {
    if reason.is_final() { Err(reason) } else { Ok(reason.to_string()) }
}

#[cfg(test)]
mod tests;
