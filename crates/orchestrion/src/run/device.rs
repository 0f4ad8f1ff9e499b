//! Runs on tensors in the memory of a GPU, in a stream of the caller.

use super::executable::{Executable, Inner, RunContext};
use super::options::{check_count, check_port};
use crate::Error;
use orch_ir::{DType, Tensor};
use orch_runtime::cuda::{Context, CudaExecutable, DeviceAddress, DeviceTensors, InputPlace, Stream};
use orch_runtime::view::TensorView;
use std::borrow::Cow;
use std::sync::Arc;

/// A row-major tensor in the memory of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTensor<'a> {
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: &'a [usize],
    /// Its first element. Tensors whose address is no multiple of 16 are copied.
    pub start: DeviceAddress,
}

/// An input of a run on a GPU.
#[derive(Debug)]
pub enum DeviceInput<'a> {
    /// In the memory of the GPU.
    Device(DeviceTensor<'a>),
    /// In the memory of the host: read before the call returns, and copied to the GPU if it is not what the run before had there. More
    /// than 64 KiB are copied with each run, and waited for.
    Host(TensorView<'a>),
}

/// Tensors of a run on a GPU, in the model's order.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRun<'a> {
    /// The inputs.
    pub inputs: &'a [DeviceInput<'a>],
    /// The outputs. One that has the memory of the input that it updates ([`Manifest::updates`](crate::manifest::Manifest::updates)) is updated in
    /// place; otherwise one that overlaps another tensor is written last, by a copy.
    pub outputs: &'a [DeviceTensor<'a>],
    /// [`Executable::scratch_bytes`] bytes, from a multiple of 256 on, that the run works in instead of the context's memory; what it
    /// has there is of no use afterwards. The same address as of the run before costs least. Give some for runs that a graph of the caller
    /// captures: such a graph may then be launched beside other runs.
    pub scratch: Option<DeviceAddress>,
}

impl Executable {
    /// The GPU that it runs on; `None` for an executable of a CPU.
    pub fn gpu(&self) -> Option<&Context> {
        self.loaded.gpu()
    }

    /// Bytes of working memory of a context on a GPU; 0 for an executable of a CPU.
    pub fn scratch_bytes(&self) -> usize {
        self.gpu().map_or(0, |_| self.manifest().arena_bytes)
    }

    /// Enqueues a run in a context that no other thread uses at this moment: see [`RunContext::run_on_device`]. A stream must live as
    /// long as the executable.
    ///
    /// # Errors
    /// As [`RunContext::run_on_device`].
    pub fn run_on_device(&self, stream: &Arc<Stream>, run: &DeviceRun<'_>) -> Result<(), Error> {
        self.with_context(|context| context.run_on_device(stream, run))
    }
}

impl RunContext {
    /// Enqueues a run in a stream ([`Stream::of_handle`] for one of the caller) and returns without waiting for it, unless a step runs on
    /// the host. Nothing is copied but tensors that are misaligned, that a vendor's library takes or that overlap. In a stream that
    /// is being captured the run becomes part of that graph, which must not be launched after the context was dropped, nor, if the
    /// run has no scratch of its own, at the same time as other runs.
    ///
    /// # Errors
    /// If the executable is for a CPU, the tensors are not those of the model, a step on the host fails or is to be captured, or the GPU
    /// fails. Faults of kernels may be reported by a later call.
    pub fn run_on_device(&mut self, stream: &Arc<Stream>, run: &DeviceRun<'_>) -> Result<(), Error> {
        let manifest = self.manifest();
        check_count("input", &manifest.inputs, run.inputs.len())?;
        check_count("output", &manifest.outputs, run.outputs.len())?;
        for (port, given) in manifest.inputs.iter().zip(run.inputs) {
            match given {
                DeviceInput::Device(given) => check_port("input", port, given.dtype, given.shape)?,
                DeviceInput::Host(given) => check_port("input", port, given.dtype(), given.shape())?,
            }
        }
        for (port, given) in manifest.outputs.iter().zip(run.outputs) {
            check_port("output", port, given.dtype, given.shape)?;
        }
        let updatable = self.updatable();
        let is_uploaded = self.uploaded.as_ref().is_some_and(|uploaded| Arc::ptr_eq(uploaded, &updatable));
        let Inner::Cuda(inner) = &mut self.inner else {
            return Err(Error::Input(
                "the executable is for a CPU, which does not reach tensors in the memory of a GPU".to_owned(),
            ));
        };
        let first = run.inputs.len();
        if !is_uploaded {
            upload(inner, first, &updatable)?;
        }
        // Empty for tensors of the GPU.
        let of_host: Vec<Cow<'_, [u8]>> = (run.inputs.iter())
            .map(|input| match input {
                DeviceInput::Device(_) => Cow::Borrowed(&[][..]),
                DeviceInput::Host(view) => view.row_major(),
            })
            .collect();
        let places = run.inputs.iter().zip(&of_host).map(|(input, bytes)| match input {
            DeviceInput::Device(tensor) => InputPlace::Device(tensor.start),
            DeviceInput::Host(_) => InputPlace::Host(bytes),
        });
        let constants = updatable.iter().map(|_| InputPlace::Uploaded);
        let inputs: Vec<InputPlace<'_>> = places.chain(constants).collect();
        let outputs: Vec<DeviceAddress> = run.outputs.iter().map(|tensor| tensor.start).collect();
        let tensors = DeviceTensors { inputs: &inputs, outputs: &outputs, scratch: run.scratch };
        self.loaded.launches.before(inner, stream)?;
        let enqueued = inner.enqueue_on(stream, &tensors);
        self.uploaded = Some(updatable);
        enqueued.map_err(Error::from)
    }
}

/// Brings updatable constants, which are the program's inputs from `first` on, to the device.
fn upload(executable: &mut CudaExecutable, first: usize, constants: &[Tensor]) -> Result<(), Error> {
    let mut constants = constants.iter().enumerate();
    constants.try_for_each(|(idx, constant)| {
        executable.upload_input(first + idx, constant.bytes()).map_err(Error::from)
    })
}
