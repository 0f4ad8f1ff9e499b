//! Calls on tensors in the memory of a GPU: nothing is copied, and nothing is waited for.
//!
//! Outputs and working memory are tensors of PyTorch's allocator, so that it knows who uses
//! which memory in which stream. Other libraries give memory for outputs (`out`), and run in the default stream, for which they
//! make their tensors ready when these are exported.

use crate::errors;
use crate::executable::Ports;
use crate::scratch::{RunScratch, StreamKey, UsedScratch};
use crate::tensors::{Allocator, Given, Library, Order, Port, TracedLayout, torch_dtype};
use orchestrion::{
    DType, DeviceAddress, DeviceInput, DeviceRun, DeviceTensor, Error, Executable, Gpu, Stream,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;

/// Where a call runs.
#[derive(Clone, Copy)]
pub struct OnGpu<'a> {
    /// What runs.
    pub executable: &'a Executable,
    /// On which GPU.
    pub gpu: &'a Gpu,
    /// The working memory that it has used.
    pub scratch: &'a UsedScratch,
}

/// A tensor as a run takes it: row-major in the order of dimensions that the executable has it in.
pub struct RunTensor<'a, 'py> {
    /// The caller's tensor, one in its place, or a new one.
    pub object: Bound<'py, PyAny>,
    port: &'a Port,
    place: TensorPlace<'a, 'py>,
}

/// Where a tensor is, and how it lies.
enum TensorPlace<'a, 'py> {
    /// On the GPU of the run, as the executable has it.
    Known { layout: &'a TracedLayout, address: u64 },
    /// As its library describes it.
    Given(Box<OrderedTensor<'py>>),
}

/// A tensor as its library describes it, with its dimensions in an order.
struct OrderedTensor<'py> {
    given: Given<'py>,
    order: Option<Order>,
}

impl OrderedTensor<'_> {
    fn shape(&self) -> &[usize] {
        self.order.as_ref().map_or(self.given.shape(), |order| &order.shape)
    }

    fn is_row_major(&self) -> bool {
        self.order.as_ref().map_or(self.given.is_row_major(), Order::is_row_major)
    }

    fn is_on_host(&self) -> bool {
        self.given.gpu().is_none()
    }
}

impl<'a, 'py> RunTensor<'a, 'py> {
    fn new(object: Bound<'py, PyAny>, port: &'a Port, given: Given<'py>, order: Option<&[usize]>) -> Self {
        let order = order.map(|order| Order::of(&given, order));
        Self { object, port, place: TensorPlace::Given(Box::new(OrderedTensor { given, order })) }
    }

    /// A tensor that is known to be on the GPU of the run at this address, and to lie so.
    pub fn known(object: Bound<'py, PyAny>, port: &'a Port, layout: &'a TracedLayout, address: u64) -> Self {
        Self { object, port, place: TensorPlace::Known { layout, address } }
    }

    /// A tensor that PyTorch made for this call.
    ///
    /// # Errors
    /// If it cannot be described.
    pub fn made(object: Bound<'py, PyAny>, port: &'a Port, order: Option<&[usize]>) -> PyResult<Self> {
        let given = Given::traced(&object, port, "tensor")?;
        Ok(Self::new(object, port, given, order))
    }

    fn dtype(&self) -> DType {
        match &self.place {
            TensorPlace::Known { layout, .. } => layout.dtype,
            TensorPlace::Given(tensor) => tensor.given.dtype(),
        }
    }

    fn shape(&self) -> &[usize] {
        match &self.place {
            TensorPlace::Known { layout, .. } => &layout.ordered,
            TensorPlace::Given(tensor) => tensor.shape(),
        }
    }

    /// Whether its elements lie one after the other.
    pub fn is_row_major(&self) -> bool {
        match &self.place {
            TensorPlace::Known { .. } => true,
            TensorPlace::Given(tensor) => tensor.is_row_major(),
        }
    }

    /// Whether it is in the memory of the process.
    fn is_on_host(&self) -> bool {
        matches!(&self.place, TensorPlace::Given(tensor) if tensor.is_on_host())
    }

    fn library(&self) -> Library {
        match &self.place {
            TensorPlace::Known { .. } => Library::Torch,
            TensorPlace::Given(tensor) => tensor.given.library,
        }
    }

    fn on_device(&self) -> DeviceTensor<'_> {
        let address = match &self.place {
            TensorPlace::Known { address, .. } => *address,
            TensorPlace::Given(tensor) => tensor.given.address(),
        };
        // SAFETY: the tensor is on the GPU of the run. Its memory is kept by the object until the run is enqueued; afterwards the library gives
        // it away only to work that comes later in the stream.
        let start = unsafe { DeviceAddress::new(address) };
        DeviceTensor { dtype: self.dtype(), shape: self.shape(), start }
    }

    fn as_input(&self) -> PyResult<DeviceInput<'_>> {
        match &self.place {
            TensorPlace::Given(tensor) if tensor.is_on_host() => {
                tensor.given.view_in(tensor.order.as_ref()).map(DeviceInput::Host)
            }
            TensorPlace::Known { .. } | TensorPlace::Given(_) => Ok(DeviceInput::Device(self.on_device())),
        }
    }
}

/// A call of an executable that `run` enqueues: `objects` are the inputs in the model's order, described by `given`, of which at least one is
/// on a GPU; `out` is memory for the outputs.
///
/// # Errors
/// If a tensor has another type, shape or device, or the run fails.
pub fn call<'py>(
    place: OnGpu<'_>,
    ports: &Ports,
    objects: &[Bound<'py, PyAny>],
    given: Vec<Given<'py>>,
    out: Option<(&Bound<'py, PyAny>, Vec<Bound<'py, PyAny>>)>,
    run: impl FnOnce(&Arc<Stream>, &DeviceRun<'_>) -> Result<(), Error> + Send,
    py: Python<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let ordinal = place.gpu.device().info().ordinal;
    let mut inputs: Vec<RunTensor<'_, 'py>> = (objects.iter().zip(given).zip(&ports.inputs))
        .map(|((object, given), port)| input(object, given, port, None, ordinal))
        .collect::<PyResult<_>>()?;
    let is_torch = inputs.iter().any(|input| input.library() == Library::Torch);
    let targets: Vec<Option<Bound<'py, PyAny>>> = match &out {
        Some((_, objects)) => objects.iter().cloned().map(Some).collect(),
        None => vec![None; ports.outputs.len()],
    };
    let outputs: Vec<RunTensor<'_, 'py>> = (targets.iter().zip(&ports.outputs))
        .map(|(target, port)| output(target.as_ref(), port, is_torch, ordinal, py))
        .collect::<PyResult<_>>()?;
    let library = if is_torch { Library::Torch } else { Library::Other };
    enqueue(place, library, &mut inputs, &outputs.iter().collect::<Vec<_>>(), run, py)?;
    for (output, target) in outputs.iter().zip(&targets) {
        if let Some(target) = target.as_ref().filter(|target| !target.is(&output.object)) {
            target.call_method1(intern!(py, "copy_"), (&output.object,))?;
        }
    }
    if let Some((out, _)) = out {
        return Ok(out.clone());
    }
    let mut results = outputs.into_iter().map(|output| output.object);
    match ports.outputs.len() {
        1 => Ok(results.next().unwrap_or_else(|| py.None().into_bound(py))),
        _ => Ok(PyTuple::new(py, results)?.into_any()),
    }
}

/// Enqueues a run: in the current stream for tensors of PyTorch, otherwise in the default stream.
///
/// # Errors
/// If the run fails.
pub fn enqueue<'py>(
    place: OnGpu<'_>,
    library: Library,
    inputs: &mut [RunTensor<'_, 'py>],
    outputs: &[&RunTensor<'_, 'py>],
    run: impl FnOnce(&Arc<Stream>, &DeviceRun<'_>) -> Result<(), Error> + Send,
    py: Python<'py>,
) -> PyResult<()> {
    let ordinal = place.gpu.device().info().ordinal;
    let is_torch = library == Library::Torch;
    let handle = if is_torch { current_stream(py, ordinal)? } else { 0 };
    let scratch_bytes = place.executable.scratch_bytes();
    let has_host_input = inputs.iter().any(RunTensor::is_on_host);
    let is_captured = is_torch && (scratch_bytes > 0 || has_host_input) && is_capturing(py)?;
    if is_captured {
        for input in inputs.iter_mut().filter(|input| input.is_on_host()) {
            *input = captured_input(input, ordinal)?;
        }
    }
    let used =
        (is_torch && scratch_bytes > 0).then(|| place.scratch.of(StreamKey { gpu: ordinal, stream: handle }));
    let scratch = match &used {
        Some(used) => Some(used.of_run(&Allocator::new(py, Some(ordinal))?, scratch_bytes, is_captured)?),
        None => None,
    };
    // SAFETY: PyTorch's streams live as long as the process, and so does the default stream.
    let stream = Arc::new(unsafe { Stream::of_handle(place.gpu, handle as *mut std::ffi::c_void) });
    let read = inputs.iter().map(RunTensor::as_input).collect::<PyResult<Vec<_>>>()?;
    let written: Vec<DeviceTensor<'_>> = outputs.iter().map(|output| output.on_device()).collect();
    let start = scratch.as_ref().and_then(RunScratch::address);
    // SAFETY: the memory has at least this size. It belongs to this run, or to runs in this stream, of which no other one is enqueued
    // meanwhile.
    let start = start.map(|address| unsafe { DeviceAddress::new(address) });
    py.detach(|| run(&stream, &DeviceRun { inputs: &read, outputs: &written, scratch: start }))
        .map_err(|error| errors::exception(py, error))
}

/// A tensor for an input, whose dimensions the executable has in this order: the caller's, or a copy of it where it is not row-major so.
///
/// # Errors
/// If it is on another GPU, or its library cannot copy it.
pub fn input<'a, 'py>(
    object: &Bound<'py, PyAny>,
    given: Given<'py>,
    port: &'a Port,
    order: Option<&[usize]>,
    ordinal: usize,
) -> PyResult<RunTensor<'a, 'py>> {
    let py = object.py();
    let gpu = given.gpu();
    if gpu.is_none() {
        given.check_device(port, "input")?;
    }
    let tensor = RunTensor::new(object.clone(), port, given, order);
    match gpu {
        Some(number) if number as usize != ordinal => Err(elsewhere(py, port, "input", number, ordinal)),
        None => Ok(tensor),
        Some(_) if tensor.is_row_major() => Ok(tensor),
        Some(_) if tensor.library() != Library::Torch => {
            let text = format!("input `{}` is not row-major; make it so first", port.name);
            Err(errors::input(py, &text))
        }
        Some(_) => {
            let ordered = match order {
                None => object.clone(),
                Some(order) => object.call_method1(intern!(py, "permute"), (order,))?,
            };
            let copy = ordered.call_method0(intern!(py, "contiguous"))?;
            RunTensor::made(copy, port, None)
        }
    }
}

/// A tensor of the host as one of the GPU that a captured graph makes: numbers only, since the host's memory is not read when it is launched.
fn captured_input<'a, 'py>(tensor: &RunTensor<'a, 'py>, ordinal: usize) -> PyResult<RunTensor<'a, 'py>> {
    let (py, port) = (tensor.object.py(), tensor.port);
    if tensor.shape().iter().product::<usize>() != 1 {
        let text = format!(
            "input `{}` is in the memory of the process, which a captured graph does not read when it is launched; bring it to \
             the GPU before the capture",
            port.name
        );
        return Err(errors::input(py, &text));
    }
    let number = tensor.object.call_method0(intern!(py, "item"))?;
    let keywords = PyDict::new(py);
    keywords.set_item(intern!(py, "dtype"), torch_dtype(py, tensor.dtype())?)?;
    keywords.set_item(intern!(py, "device"), ordinal)?;
    let shape = PyTuple::new(py, tensor.shape())?;
    let filled = torch(py)?.call_method(intern!(py, "full"), (shape, number), Some(&keywords))?;
    RunTensor::made(filled, port, None)
}

/// Row-major memory on the GPU for an output: the caller's, or new.
fn output<'a, 'py>(
    target: Option<&Bound<'py, PyAny>>,
    port: &'a Port,
    is_torch: bool,
    ordinal: usize,
    py: Python<'py>,
) -> PyResult<RunTensor<'a, 'py>> {
    let new = || RunTensor::made(Allocator::new(py, Some(ordinal))?.empty(port)?, port, None);
    let Some(target) = target else {
        if !is_torch {
            let text = format!(
                "output `{}` has no memory: for tensors of libraries other than PyTorch give it as `out`",
                port.name
            );
            return Err(errors::usage(py, &text));
        }
        return new();
    };
    let given = Given::anywhere(target, port, "output")?;
    let (gpu, is_read_only) = (given.gpu(), given.is_read_only());
    let tensor = RunTensor::new(target.clone(), port, given, None);
    match gpu {
        Some(number) if number as usize != ordinal => Err(elsewhere(py, port, "output", number, ordinal)),
        None => {
            let text = format!(
                "the memory given for output `{}` is not on a GPU, but the inputs are; it must be on cuda:{ordinal}",
                port.name
            );
            Err(errors::input(py, &text))
        }
        Some(_) if is_read_only => {
            let text = format!("the memory given for output `{}` is read-only", port.name);
            Err(errors::input(py, &text))
        }
        Some(_) if tensor.is_row_major() => Ok(tensor),
        Some(_) => new(),
    }
}

fn elsewhere(py: Python<'_>, port: &Port, what: &str, number: i32, ordinal: usize) -> PyErr {
    let text = format!(
        "{what} `{}` is on cuda:{number}, the executable on cuda:{ordinal}; bring the tensor there, or compile or load for the \
         other GPU (`device=`)",
        port.name
    );
    errors::input(py, &text)
}

fn torch<'py>(py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    Ok(py.import(intern!(py, "torch"))?.into_any())
}

/// The handle of PyTorch's current stream.
fn current_stream(py: Python<'_>, ordinal: usize) -> PyResult<usize> {
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CURRENT.import(py, "torch._C", "_cuda_getCurrentRawStream")?.call1((ordinal,))?.extract()
}

/// Whether PyTorch captures what is enqueued in its current stream.
fn is_capturing(py: Python<'_>) -> PyResult<bool> {
    static CAPTURING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CAPTURING.import(py, "torch._C", "_cuda_isCurrentStreamCapturing")?.call0()?.extract()
}
