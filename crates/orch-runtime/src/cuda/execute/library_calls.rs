//! The library calls of a program, tried once before they are counted on.
//!
//! Where the library rejects a call, or the call cannot be captured in a graph, the step's own kernel runs.

use super::graph::Captured;
use super::launch::{Action, Launch, Program};
use super::placement::Placement;
use crate::cuda::driver::error::CudaError;
use crate::cuda::driver::memory::DeviceBuffer;
use crate::cuda::driver::stream::Stream;
use crate::cuda::vendor::cublaslt::{CublasLtSession, PreparedMatmul};
use crate::cuda::vendor::cudnn::{CudnnSession, PreparedConvolution};
use crate::cuda::vendor::libraries::LibraryCall;
use std::sync::Arc;

/// The calls of an executable, and memory that they share one after the other.
pub(in crate::cuda) struct Calls {
    /// One for each step; `None` for those without a call.
    steps: Vec<Option<Result<Call, String>>>,
    workspace: DeviceBuffer,
}

/// A call that works.
pub(in crate::cuda) struct Call {
    prepared: PreparedCall,
    /// As a part of graphs; `None` if there are none.
    captured: Option<Captured>,
}

/// A call as it was described to a library.
enum PreparedCall {
    Matmul(PreparedMatmul),
    Convolution(PreparedConvolution),
}

/// The libraries made ready, each once for all calls of it.
#[derive(Default)]
struct Sessions {
    cublaslt: Vec<Arc<CublasLtSession>>,
    cudnn: Vec<Arc<CudnnSession>>,
}

/// Whether calls are put into graphs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) enum CallMode {
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
    pub(in crate::cuda) fn new(
        stream: &Stream,
        program: &Program,
        placement: &Placement,
        form: CallMode,
    ) -> Result<Self, CudaError> {
        let mut sessions = Sessions::default();
        let mut all = Vec::with_capacity(program.steps.len());
        for step in &program.steps {
            all.push(match &step.action {
                Action::Launch(Launch { call: Some(call), buffers, .. }) => {
                    let addresses: Vec<u64> =
                        buffers.iter().map(|buffer| placement.address(buffer)).collect();
                    Some(sessions.prepared(call, stream, &addresses))
                }
                Action::Launch(_) | Action::Copy { .. } | Action::Host(_) => None,
            });
        }
        let wanted = all.iter().flatten().flatten().map(PreparedCall::workspace_bytes).max().unwrap_or(0);
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

    /// True if a call is made.
    pub(in crate::cuda) fn any(&self) -> bool {
        self.steps.iter().flatten().any(Result::is_ok)
    }

    /// The call of a step, if it is made.
    pub(in crate::cuda) fn of(&self, step: usize) -> Option<&Call> {
        self.steps[step].as_ref()?.as_ref().ok()
    }

    /// The library and its release, or why it is not called; `None` for steps without a call.
    pub(in crate::cuda) fn outcome(&self, step: usize) -> Option<Result<String, &str>> {
        let call = self.steps.get(step)?.as_ref()?.as_ref();
        Some(call.map(Call::release).map_err(String::as_str))
    }

    /// Enqueues a call, after what is in the stream.
    pub(in crate::cuda) fn enqueue(&self, call: &Call, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: it was prepared for the addresses of this executable's tensors. All calls of the workspace are in this
        // stream or in graphs that keep them apart, which run in this stream.
        unsafe { call.prepared.enqueue(stream, self.workspace.address()) }
    }
}

impl Call {
    /// As a part of graphs.
    pub(in crate::cuda) fn captured(&self) -> Option<&Captured> {
        self.captured.as_ref()
    }

    /// True if it needs the workspace, which another call must not use at the same time.
    pub(in crate::cuda) fn needs_workspace(&self) -> bool {
        self.prepared.workspace_bytes() > 0
    }

    /// The library and its release.
    pub(in crate::cuda) fn release(&self) -> String {
        self.prepared.release()
    }
}

impl PreparedCall {
    /// Bytes that the call needs beside its tensors.
    fn workspace_bytes(&self) -> usize {
        match self {
            PreparedCall::Matmul(product) => product.workspace_bytes(),
            PreparedCall::Convolution(convolution) => convolution.workspace_bytes(),
        }
    }

    /// The library and its release.
    fn release(&self) -> String {
        match self {
            PreparedCall::Matmul(product) => product.library().release(),
            PreparedCall::Convolution(convolution) => convolution.library().release(),
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
            PreparedCall::Matmul(product) => unsafe { product.enqueue(stream, workspace) },
            // SAFETY: as above.
            PreparedCall::Convolution(convolution) => unsafe { convolution.enqueue(stream, workspace) },
        }
    }
}

impl Sessions {
    /// Describes a call to its library.
    fn prepared(
        &mut self,
        call: &LibraryCall,
        stream: &Stream,
        addresses: &[u64],
    ) -> Result<PreparedCall, CudaError> {
        match call {
            LibraryCall::Product(library, product) => {
                let library = library.as_ref().map_err(CudaError::clone)?;
                let is_of = |session: &CublasLtSession| Arc::ptr_eq(session.library(), library);
                let make = || CublasLtSession::new(library, stream.context());
                let session = known_or_made(&mut self.cublaslt, is_of, make)?;
                PreparedMatmul::new(&session, product, addresses).map(PreparedCall::Matmul)
            }
            LibraryCall::Convolution(library, convolution) => {
                let library = library.as_ref().map_err(CudaError::clone)?;
                let is_of = |session: &CudnnSession| Arc::ptr_eq(session.library(), library);
                let make = || CudnnSession::new(library, stream.context());
                let session = known_or_made(&mut self.cudnn, is_of, make)?;
                PreparedConvolution::new(&session, convolution, addresses).map(PreparedCall::Convolution)
            }
        }
    }
}

/// The first of these sessions that will do, or one that is made and kept.
fn known_or_made<H>(
    sessions: &mut Vec<Arc<H>>,
    will_do: impl Fn(&H) -> bool,
    make: impl FnOnce() -> Result<H, CudaError>,
) -> Result<Arc<H>, CudaError> {
    if let Some(known) = sessions.iter().find(|session| will_do(session)) {
        return Ok(Arc::clone(known));
    }
    let session = Arc::new(make()?);
    sessions.push(Arc::clone(&session));
    Ok(session)
}

/// Makes a call once, which loads its code, and captures it if need be.
fn tried(
    stream: &Stream,
    prepared: PreparedCall,
    workspace: &DeviceBuffer,
    form: CallMode,
) -> Result<Call, CudaError> {
    // SAFETY: it was prepared for the addresses of this executable's tensors, and the stream does one call after the other.
    let enqueue = || unsafe { prepared.enqueue(stream, workspace.address()) };
    enqueue()?;
    stream.synchronize()?;
    let captured = match form {
        CallMode::Direct => None,
        CallMode::Captured => Some(Captured::of(stream, enqueue)?),
    };
    Ok(Call { prepared, captured })
}

/// Why a library is not called; what has broken the device is an error all the same.
fn declined(reason: CudaError) -> Result<String, CudaError> {
    if reason.is_final() { Err(reason) } else { Ok(reason.to_string()) }
}

#[cfg(test)]
mod tests;
