//! Calls on tensors in the memory of a GPU: nothing is copied, and nothing is waited for.
//!
//! Outputs, and the working memory of runs that PyTorch captures in a graph, are tensors of PyTorch's allocator, so that it knows who uses
//! which memory in which stream. Other libraries give memory for outputs (`out`), and run in the default stream, for which they
//! make their tensors ready when these are exported.

use crate::errors;
use crate::executable::Ports;
use crate::tensors::{Given, Library, Port, torch_dtype};
use orchestrion::{DType, DeviceAddress, DeviceRun, DeviceTensor, Error, Executable, Gpu, Stream};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;

/// A tensor of a call: the caller's, or one in its place.
struct GpuTensor<'py> {
    given: Given<'py>,
    object: Bound<'py, PyAny>,
}

/// A call that `run` enqueues: `objects` are the inputs in the model's order, of which at least one is on a GPU; `out` is memory for the
/// outputs.
///
/// # Errors
/// If a tensor has another type, shape or device, or the run fails.
pub fn call<'py>(
    (executable, gpu): (&Executable, &Gpu),
    ports: &Ports,
    objects: &[Bound<'py, PyAny>],
    out: Option<(&Bound<'py, PyAny>, Vec<Bound<'py, PyAny>>)>,
    run: impl FnOnce(&Arc<Stream>, &DeviceRun<'_>) -> Result<(), Error> + Send,
    py: Python<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let ordinal = gpu.device().info().ordinal;
    let inputs: Vec<GpuTensor<'py>> = (objects.iter().zip(&ports.inputs))
        .map(|(object, port)| input(object, port, ordinal))
        .collect::<PyResult<_>>()?;
    let is_torch = inputs.iter().any(|input| input.given.library == Library::Torch);
    let targets: Vec<Option<Bound<'py, PyAny>>> = match &out {
        Some((_, objects)) => objects.iter().cloned().map(Some).collect(),
        None => vec![None; ports.outputs.len()],
    };
    let outputs: Vec<GpuTensor<'py>> = (targets.iter().zip(&ports.outputs))
        .map(|(target, port)| output(target.as_ref(), port, is_torch, ordinal, py))
        .collect::<PyResult<_>>()?;
    let handle = if is_torch { current_stream(py, ordinal)? } else { 0 };
    let scratch_bytes = executable.scratch_bytes();
    let scratch = match is_torch && scratch_bytes > 0 && is_capturing(py)? {
        true => Some(empty_on(py, ordinal, DType::U8, PyTuple::new(py, [scratch_bytes])?)?),
        false => None,
    };
    let scratch_address = match &scratch {
        Some(tensor) => Some(tensor.call_method0(intern!(py, "data_ptr"))?.extract::<u64>()?),
        None => None,
    };
    // SAFETY: PyTorch's streams live as long as the process, and so does the default stream.
    let stream = Arc::new(unsafe { Stream::of_handle(gpu, handle as *mut std::ffi::c_void) });
    let (read, written) = (places(&inputs), places(&outputs));
    py.detach(|| {
        // SAFETY: the memory was allocated with this size, and belongs to the graph that is being captured.
        let scratch = scratch_address.map(|address| unsafe { DeviceAddress::new(address) });
        let (read, written): (Vec<_>, Vec<_>) = (
            read.iter().map(TensorPlace::tensor).collect(),
            written.iter().map(TensorPlace::tensor).collect(),
        );
        run(&stream, &DeviceRun { inputs: &read, outputs: &written, scratch })
    })
    .map_err(|error| errors::exception(py, error))?;
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

/// What a run needs of a tensor.
struct TensorPlace {
    dtype: DType,
    shape: Vec<usize>,
    start: DeviceAddress,
}

impl TensorPlace {
    fn tensor(&self) -> DeviceTensor<'_> {
        DeviceTensor { dtype: self.dtype, shape: &self.shape, start: self.start }
    }
}

fn places(placed: &[GpuTensor<'_>]) -> Vec<TensorPlace> {
    let place = |GpuTensor { given, .. }: &GpuTensor<'_>| TensorPlace {
        dtype: given.dtype(),
        shape: given.shape().to_vec(),
        // SAFETY: the tensor is on the GPU of the run. Its memory is kept by the object until the run is enqueued; afterwards the library gives
        // it away only to work that comes later in the stream.
        start: unsafe { DeviceAddress::new(given.address()) },
    };
    placed.iter().map(place).collect()
}

/// A row-major tensor on the GPU for an input: the caller's, or a copy of it.
fn input<'py>(object: &Bound<'py, PyAny>, port: &Port, ordinal: usize) -> PyResult<GpuTensor<'py>> {
    let py = object.py();
    let given = Given::anywhere(object, port, "input")?;
    match given.gpu() {
        Some(number) if number as usize != ordinal => {
            return Err(elsewhere(py, port, "input", number, ordinal));
        }
        Some(_) if given.is_row_major() => return Ok(GpuTensor { given, object: object.clone() }),
        Some(_) if given.library != Library::Torch => {
            let text = format!("input `{}` is not row-major; make it so first", port.name);
            return Err(errors::input(py, &text));
        }
        Some(_) => {
            let object = object.call_method0(intern!(py, "contiguous"))?;
            return Ok(GpuTensor { given: Given::anywhere(&object, port, "input")?, object });
        }
        None => {}
    }
    // In memory of the process: PyTorch copies it in the current stream.
    let keywords = PyDict::new(py);
    keywords.set_item(intern!(py, "device"), format!("cuda:{ordinal}"))?;
    let object = torch(py)?.call_method(intern!(py, "as_tensor"), (object,), Some(&keywords))?;
    let object = object.call_method0(intern!(py, "contiguous"))?;
    Ok(GpuTensor { given: Given::anywhere(&object, port, "input")?, object })
}

/// Row-major memory on the GPU for an output: the caller's, or new.
fn output<'py>(
    target: Option<&Bound<'py, PyAny>>,
    port: &Port,
    is_torch: bool,
    ordinal: usize,
    py: Python<'py>,
) -> PyResult<GpuTensor<'py>> {
    let Some(target) = target else {
        if !is_torch {
            let text = format!(
                "output `{}` has no memory: for tensors of libraries other than PyTorch give it as `out`",
                port.name
            );
            return Err(errors::usage(py, &text));
        }
        let object = empty_on(py, ordinal, port.dtype, port.shape.bind(py).clone())?;
        return Ok(GpuTensor { given: Given::anywhere(&object, port, "output")?, object });
    };
    let given = Given::anywhere(target, port, "output")?;
    match given.gpu() {
        Some(number) if number as usize != ordinal => Err(elsewhere(py, port, "output", number, ordinal)),
        None => {
            let text = format!(
                "the memory given for output `{}` is not on a GPU, but the inputs are; it must be on cuda:{ordinal}",
                port.name
            );
            Err(errors::input(py, &text))
        }
        Some(_) if given.is_read_only() => {
            let text = format!("the memory given for output `{}` is read-only", port.name);
            Err(errors::input(py, &text))
        }
        Some(_) if given.is_row_major() => Ok(GpuTensor { given, object: target.clone() }),
        Some(_) => {
            let object = empty_on(py, ordinal, port.dtype, port.shape.bind(py).clone())?;
            Ok(GpuTensor { given: Given::anywhere(&object, port, "output")?, object })
        }
    }
}

fn elsewhere(py: Python<'_>, port: &Port, what: &str, number: i32, ordinal: usize) -> PyErr {
    let text = format!(
        "{what} `{}` is on cuda:{number}, the executable on cuda:{ordinal}; bring the tensor there, or compile or load for the          other GPU (`device=`)",
        port.name
    );
    errors::input(py, &text)
}

fn torch<'py>(py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    Ok(py.import(intern!(py, "torch"))?.into_any())
}

/// A new row-major tensor of PyTorch on a GPU.
fn empty_on<'py>(
    py: Python<'py>,
    ordinal: usize,
    dtype: DType,
    shape: Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let keywords = PyDict::new(py);
    keywords.set_item(intern!(py, "dtype"), torch_dtype(py, dtype)?)?;
    keywords.set_item(intern!(py, "device"), ordinal)?;
    torch(py)?.call_method(intern!(py, "empty"), (shape,), Some(&keywords))
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
