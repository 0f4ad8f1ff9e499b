//! Graphs that `torch.compile` traced: called with all tensors of the graph, weights among them, and to return tensors of exactly
//! the strides that were traced. The common case stays out of Python: no mutation, no symbolic size.

use crate::device::{self, OnGpu, RunTensor};
use crate::errors;
use crate::executable::PyExecutable;
use crate::tensors::{Given, Library, Order, Port};
use orchestrion::{DType, DeviceRun, Error, Stream, TensorView, TensorViewMut};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};
use std::sync::Arc;

/// As eager says it.
const OUT_OF_RANGE: &str = "index out of range in self";

/// An executable of a graph.
#[pyclass(frozen, name = "Graph", module = "orchestrion._native")]
pub struct PyGraph {
    executable: Py<PyExecutable>,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    copies: Vec<Port>,
    /// The output that says whether all indices were in range.
    index_check: Option<Port>,
}

/// An input of the executable.
struct Input {
    /// Which of the graph's tensors.
    position: usize,
    /// The order of its dimensions in which the executable reads it.
    order: Option<Vec<usize>>,
    port: Port,
}

/// An output of the graph.
enum Output {
    /// Not a tensor.
    None,
    /// In the memory of one of the graph's tensors.
    Alias { input: usize, shape: Py<PyTuple>, strides: Py<PyTuple>, offset: isize, is_whole: bool },
    /// In memory of its own.
    Made { port: Port, order: Option<Vec<usize>> },
}

/// Shape, strides, element type and order of dimensions of an output in memory of its own.
type MadeSpec = (Vec<usize>, Vec<usize>, String, Option<Vec<usize>>);
/// Number of an input, and shape, strides and offset in it.
type AliasSpec = (usize, Vec<usize>, Vec<isize>, isize, bool);

/// What is said of an output: `None`, a [`MadeSpec`] or an [`AliasSpec`].
#[derive(FromPyObject)]
enum OutputSpec {
    Alias(AliasSpec),
    Made(MadeSpec),
}

#[pymethods]
impl PyGraph {
    /// `inputs` has, per input of the executable, the number of the graph's tensor and the order of dimensions in which it is read;
    /// `outputs` says how each of the graph's outputs is made. The executable's outputs are those that are made, in order, then
    /// `copies` tensors that the caller copies into inputs, then the check of indices if `checks_indices`.
    #[new]
    fn new(
        py: Python<'_>,
        executable: Py<PyExecutable>,
        inputs: Vec<(usize, Option<Vec<usize>>)>,
        outputs: Vec<Option<OutputSpec>>,
        copies: usize,
        checks_indices: bool,
    ) -> PyResult<Self> {
        let ports = executable.get().ports();
        let expected = (ports.inputs.len(), ports.outputs.len());
        let made = outputs.iter().filter(|output| matches!(output, Some(OutputSpec::Made(_)))).count();
        let given = (inputs.len(), made + copies + usize::from(checks_indices));
        if given != expected {
            let text = format!("inputs and outputs are {expected:?}, {given:?} are described");
            return Err(errors::exception(py, Error::Internal(text)));
        }
        let inputs = inputs.into_iter().zip(&ports.inputs).map(|((position, order), port)| Input {
            position,
            order,
            port: port.clone_ref(py),
        });
        let outputs = outputs.into_iter().map(|output| {
            Ok(match output {
                None => Output::None,
                Some(OutputSpec::Alias((input, shape, strides, offset, is_whole))) => Output::Alias {
                    input,
                    shape: PyTuple::new(py, shape)?.unbind(),
                    strides: PyTuple::new(py, strides)?.unbind(),
                    offset,
                    is_whole,
                },
                Some(OutputSpec::Made((shape, strides, dtype, order))) => {
                    let unknown = || errors::usage(py, &format!("there is no type `{dtype}`"));
                    let dtype = DType::from_name(&dtype).ok_or_else(unknown)?;
                    let shape = PyTuple::new(py, shape)?.unbind();
                    let strides = PyTuple::new(py, strides)?.unbind();
                    Output::Made { port: Port { name: "output".to_owned(), dtype, shape, strides }, order }
                }
            })
        });
        let copied = ports.outputs[made..made + copies].iter().map(|port| port.clone_ref(py));
        let index_check = ports.outputs[made + copies..].first().map(|port| port.clone_ref(py));
        Ok(Self {
            inputs: inputs.collect(),
            outputs: outputs.collect::<PyResult<_>>()?,
            copies: copied.collect(),
            index_check,
            executable,
        })
    }

    /// Runs on the graph's tensors: its outputs, and the tensors that are to be copied into inputs.
    fn run<'py>(
        &self,
        tensors: &Bound<'py, PyList>,
    ) -> PyResult<(Bound<'py, PyList>, Vec<Bound<'py, PyAny>>)> {
        let py = tensors.py();
        let objects: Vec<Bound<'py, PyAny>> = tensors.iter().collect();
        let executable = self.executable.get().inner();
        let made = match executable.gpu() {
            None => self.run_on_host(py, &objects)?,
            Some(gpu) => self.run_on_gpu(py, OnGpu { executable, gpu }, &objects)?,
        };
        let mut made = made.into_iter();
        let results = PyList::empty(py);
        for output in &self.outputs {
            match output {
                Output::None => results.append(py.None())?,
                Output::Alias { input, is_whole: true, .. } => results.append(&objects[*input])?,
                Output::Alias { input, shape, strides, offset, .. } => {
                    let source = &objects[*input];
                    let start: isize = source.call_method0(intern!(py, "storage_offset"))?.extract()?;
                    let arguments = (shape.bind(py), strides.bind(py), start + offset);
                    results.append(source.call_method1(intern!(py, "as_strided"), arguments)?)?;
                }
                Output::Made { .. } => results.append(made.next())?,
            }
        }
        Ok((results, made.collect()))
    }
}

impl PyGraph {
    /// The tensors that the executable makes for outputs and copies, in the memory of the process.
    fn run_on_host<'py>(
        &self,
        py: Python<'py>,
        objects: &[Bound<'py, PyAny>],
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let inputs: Vec<Given<'py>> = (self.inputs.iter())
            .map(|input| {
                let given = Given::traced(input.among(py, objects)?, &input.port, "input")?;
                given.check_device(&input.port, "input")?;
                Ok(given)
            })
            .collect::<PyResult<_>>()?;
        let orders: Vec<Option<Order>> = (inputs.iter().zip(&self.inputs))
            .map(|(given, input)| Some(Order::of(given, input.order.as_ref()?)))
            .collect();
        let views: Vec<TensorView<'_>> = (inputs.iter().zip(&orders))
            .map(|(given, order)| given.view_in(order.as_ref()))
            .collect::<PyResult<_>>()?;
        let mut made: Vec<(Bound<'py, PyAny>, Given<'py>, Option<Order>)> = Vec::new();
        for (port, order) in self.made() {
            let object = port.empty(py, None)?;
            let given = Given::traced(&object, port, "output")?;
            let order = order.map(|order| Order::of(&given, order));
            made.push((object, given, order));
        }
        let mut in_range = [1];
        let mut targets: Vec<TensorViewMut<'_>> = (made.iter_mut())
            .map(|(_, given, order)| {
                // SAFETY: the memory is new, and each tensor has its own.
                unsafe { given.view_mut_in(order.as_ref()) }
            })
            .collect::<PyResult<_>>()?;
        if self.index_check.is_some() {
            let target = TensorViewMut::new(DType::Bool, &[], &mut in_range);
            targets.push(target.map_err(|error| errors::input(py, &error.to_string()))?);
        }
        let executable = self.executable.get().inner();
        py.detach(|| executable.run_views(&views, &mut targets))
            .map_err(|error| errors::exception(py, error))?;
        drop(targets);
        if in_range == [0] {
            return Err(pyo3::exceptions::PyIndexError::new_err(OUT_OF_RANGE));
        }
        Ok(made.into_iter().map(|(object, _, _)| object).collect())
    }

    /// The same, on a GPU: nothing is waited for. As PyTorch's own kernels do, an index out of range stops the GPU's program, which a later
    /// call reports.
    fn run_on_gpu<'py>(
        &self,
        py: Python<'py>,
        place: OnGpu<'_>,
        objects: &[Bound<'py, PyAny>],
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        static ASSERT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let ordinal = place.gpu.device().info().ordinal;
        let mut inputs: Vec<RunTensor<'_, 'py>> = (self.inputs.iter())
            .map(|input| {
                let object = input.among(py, objects)?;
                let given = Given::traced(object, &input.port, "input")?;
                device::input(object, given, &input.port, input.order.as_deref(), ordinal)
            })
            .collect::<PyResult<_>>()?;
        let made: Vec<RunTensor<'_, 'py>> = (self.made())
            .map(|(port, order)| device::new_output(py, port, order, ordinal))
            .collect::<PyResult<_>>()?;
        // What the run writes: the tensors that are made, or row-major ones in the place of those with gaps.
        let ports = &self.executable.get().ports().outputs;
        let mut instead: Vec<Option<RunTensor<'_, 'py>>> = Vec::with_capacity(made.len());
        for (made, port) in made.iter().zip(ports) {
            let is_written = made.is_row_major();
            instead.push(if is_written { None } else { Some(device::new_output(py, port, None, ordinal)?) });
        }
        let check = self.index_check.as_ref();
        let check = check.map(|port| device::new_output(py, port, None, ordinal)).transpose()?;
        let written = made.iter().zip(&instead).map(|(made, instead)| instead.as_ref().unwrap_or(made));
        let written: Vec<&RunTensor<'_, 'py>> = written.chain(&check).collect();
        let run = |stream: &Arc<Stream>, run: &DeviceRun<'_>| place.executable.run_on_device(stream, run);
        device::enqueue(place, Library::Torch, &mut inputs, &written, run, py)?;
        for (made, instead) in made.iter().zip(&instead) {
            if let Some(instead) = instead {
                made.object.call_method1(intern!(py, "copy_"), (&instead.object,))?;
            }
        }
        if let Some(check) = check {
            ASSERT.import(py, "torch", "_assert_async")?.call1((&check.object, OUT_OF_RANGE))?;
        }
        Ok(made.into_iter().map(|made| made.object).collect())
    }

    /// What the executable makes: outputs, with the order of dimensions in which it has them, then copies.
    fn made(&self) -> impl Iterator<Item = (&Port, Option<&[usize]>)> {
        let outputs = self.outputs.iter().filter_map(|output| match output {
            Output::Made { port, order } => Some((port, order.as_deref())),
            Output::None | Output::Alias { .. } => None,
        });
        outputs.chain(self.copies.iter().map(|port| (port, None)))
    }
}

impl Input {
    /// The tensor for it among those of the graph.
    fn among<'a, 'py>(
        &self,
        py: Python<'py>,
        objects: &'a [Bound<'py, PyAny>],
    ) -> PyResult<&'a Bound<'py, PyAny>> {
        objects.get(self.position).ok_or_else(|| {
            let given = format!("a graph is called with {} tensors", objects.len());
            errors::usage(py, &given)
        })
    }
}
