//! The library calls of a program, tried once before they are counted on.
//!
//! What the library declines, or what no graph takes, is left to the own kernels.

use super::cublaslt::{Handle, Product};
use super::error::CudaError;
use super::graph::Captured;
use super::launch::{Action, Launch, LibraryCall, Program};
use super::memory::DeviceBuffer;
use super::placement::Placement;
use super::stream::Stream;
use std::sync::Arc;

/// The calls of an executable, and memory that they share one after the other.
pub(super) struct Calls {
    /// One for each step; `None` for those without a call.
    steps: Vec<Option<Result<Call, String>>>,
    workspace: DeviceBuffer,
}

/// A call that works.
pub(super) struct Call {
    product: Product,
    /// As a part of graphs; `None` if there are none.
    captured: Option<Captured>,
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
        let mut handles: Vec<Arc<Handle>> = Vec::new();
        let mut products = Vec::with_capacity(program.steps.len());
        for step in &program.steps {
            products.push(match &step.action {
                Action::Launch(Launch { call: Some(call), buffers, .. }) => {
                    let addresses: Vec<u64> =
                        buffers.iter().map(|buffer| placement.address(buffer)).collect();
                    let handle = handle(&mut handles, call, stream);
                    Some(handle.and_then(|handle| Product::new(&handle, &call.product, &addresses)))
                }
                Action::Launch(_) | Action::Copy { .. } | Action::Host(_) => None,
            });
        }
        let wanted = products.iter().flatten().flatten().map(Product::workspace_bytes).max().unwrap_or(0);
        let workspace = DeviceBuffer::new(stream.context(), wanted, "a library's calls")?;
        let mut steps = Vec::with_capacity(products.len());
        for product in products {
            steps.push(match product {
                None => None,
                Some(Err(reason)) => Some(Err(declined(reason)?)),
                Some(Ok(product)) => Some(match tried(stream, product, &workspace, form) {
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
        // SAFETY: the product was made for the addresses of this executable's tensors. All calls of the workspace are in
        // this stream or in graphs that keep them apart, which run in this stream.
        unsafe { call.product.enqueue(stream, self.workspace.address()) }
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
        self.product.workspace_bytes() > 0
    }

    /// The library and its release.
    pub(super) fn release(&self) -> String {
        self.product.library().release()
    }
}

/// The handle of a call's library, one for all calls of it.
fn handle(
    handles: &mut Vec<Arc<Handle>>,
    call: &LibraryCall,
    stream: &Stream,
) -> Result<Arc<Handle>, CudaError> {
    let library = call.library.as_ref().map_err(CudaError::clone)?;
    if let Some(known) = handles.iter().find(|handle| Arc::ptr_eq(handle.library(), library)) {
        return Ok(Arc::clone(known));
    }
    let handle = Arc::new(Handle::new(library, stream.context())?);
    handles.push(Arc::clone(&handle));
    Ok(handle)
}

/// Makes a call once, which loads its code, and captures it if need be.
fn tried(stream: &Stream, product: Product, workspace: &DeviceBuffer, form: Form) -> Result<Call, CudaError> {
    // SAFETY: the product was made for the addresses of this executable's tensors, and the stream does one call after the
    // other.
    let enqueue = || unsafe { product.enqueue(stream, workspace.address()) };
    enqueue()?;
    stream.synchronize()?;
    let captured = match form {
        Form::Direct => None,
        Form::Captured => Some(Captured::of(stream, enqueue)?),
    };
    Ok(Call { product, captured })
}

/// Why a library is not called; what has broken the device is an error all the same.
fn declined(reason: CudaError) -> Result<String, CudaError> {
    if reason.is_final() { Err(reason) } else { Ok(reason.to_string()) }
}

#[cfg(test)]
mod tests;
