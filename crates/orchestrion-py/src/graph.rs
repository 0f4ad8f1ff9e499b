//! Graphs that `torch.compile` traced: called with all tensors of the graph, weights among them, and to return tensors of exactly
//! the strides that were traced. The common case stays out of Python: no mutation, no symbolic size.

use crate::errors;
use crate::executable::PyExecutable;
use crate::tensors::{Given, Port, empty_strided};
use orchestrion::{DType, Error, TensorView, TensorViewMut};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// An executable of a graph.
#[pyclass(frozen, name = "Graph", module = "orchestrion._native")]
pub struct PyGraph {
    executable: Py<PyExecutable>,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    copies: Vec<Port>,
    checks_indices: bool,
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
        Ok(Self {
            inputs: inputs.collect(),
            outputs: outputs.collect::<PyResult<_>>()?,
            copies: copied.collect(),
            checks_indices,
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
        let missing = || errors::usage(py, &format!("a graph is called with {} tensors", objects.len()));
        let inputs: Vec<Given<'py>> = (self.inputs.iter())
            .map(|input| Given::traced(objects.get(input.position).ok_or_else(missing)?, &input.port))
            .collect::<PyResult<_>>()?;
        let orders: Vec<Option<Order>> = (inputs.iter().zip(&self.inputs))
            .map(|(given, input)| Some(Order::of(given, input.order.as_ref()?)))
            .collect();
        let views: Vec<TensorView<'_>> = (inputs.iter().zip(&orders))
            .map(|(given, order)| match order {
                None => given.view(),
                Some(Order { shape, strides }) => given.view_as(shape, strides),
            })
            .collect::<PyResult<_>>()?;
        let mut made: Vec<(Bound<'py, PyAny>, Given<'py>, Option<Order>)> = Vec::new();
        for output in &self.outputs {
            if let Output::Made { port, order } = output {
                let object = empty_strided(py, port)?;
                let given = Given::traced(&object, port)?;
                let order = order.as_ref().map(|order| Order::of(&given, order));
                made.push((object, given, order));
            }
        }
        for port in &self.copies {
            let object = empty_strided(py, port)?;
            let given = Given::traced(&object, port)?;
            made.push((object, given, None));
        }
        let mut in_range = [1];
        let mut targets: Vec<TensorViewMut<'_>> = (made.iter_mut())
            .map(|(_, given, order)| {
                // SAFETY: the memory is new, and each tensor has its own.
                unsafe {
                    match order {
                        None => given.view_mut(),
                        Some(Order { shape, strides }) => given.view_mut_as(shape, strides),
                    }
                }
            })
            .collect::<PyResult<_>>()?;
        if self.checks_indices {
            let target = TensorViewMut::new(DType::Bool, &[], &mut in_range);
            targets.push(target.map_err(|error| errors::input(py, &error.to_string()))?);
        }
        let executable = self.executable.get();
        py.detach(|| executable.run_views(&views, &mut targets))
            .map_err(|error| errors::exception(py, error))?;
        drop(targets);
        if in_range == [0] {
            return Err(pyo3::exceptions::PyIndexError::new_err("index out of range in self"));
        }
        let mut made = made.into_iter().map(|(object, _, _)| object);
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

/// A tensor's shape and strides with its dimensions in another order.
struct Order {
    shape: Vec<usize>,
    strides: Vec<isize>,
}

impl Order {
    fn of(given: &Given<'_>, order: &[usize]) -> Self {
        let (shape, strides) = (given.shape(), given.strides());
        if order.len() != shape.len() {
            // What is read then does not fit, and is refused.
            return Self { shape: shape.to_vec(), strides: strides.to_vec() };
        }
        Self {
            shape: order.iter().map(|&dim| shape[dim]).collect(),
            strides: order.iter().map(|&dim| strides[dim]).collect(),
        }
    }
}
