//! Graphs that `torch.compile` traced: called with all tensors of the graph, weights among them, and to return tensors of exactly
//! the strides that were traced. The common case stays out of Python: no mutation, no symbolic size.

use crate::device::{self, OnGpu, RunTensor};
use crate::errors;
use crate::executable::PyExecutable;
use crate::slabs::{RunSlab, Slab, SlabPart};
use crate::tensors::{Allocator, Given, Library, OnGpuFinder, Order, Port, TracedLayout};
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
    /// Those of the graph's tensors that have inputs of the executable as parts.
    given_slabs: Vec<GivenSlab>,
    outputs: Vec<Output>,
    /// Those that outputs are parts of.
    made_slabs: Vec<Slab>,
    changes: Vec<Change>,
    /// The output that says whether all indices were in range.
    index_check: Option<Port>,
}

/// An input of the executable.
struct Input {
    /// Which of the graph's tensors it is, or is a part of.
    position: usize,
    /// The order of its dimensions in which the executable reads it.
    order: Option<Vec<usize>>,
    memory: TensorMemory,
    port: Port,
}

/// One of the graph's tensors that has inputs of the executable as parts.
struct GivenSlab {
    /// Which one.
    position: usize,
    /// The first of its parts.
    port: Port,
}

/// The memory of a tensor.
enum TensorMemory {
    /// In memory of its own, where it lies so; none if it has gaps, so that it is copied.
    Own(Option<TracedLayout>),
    /// In a slab.
    Part(SlabPart),
}

/// An output of the graph.
enum Output {
    /// Not a tensor.
    None,
    /// The output of this number, which stands before it.
    Again(usize),
    /// In the memory of one of the graph's tensors.
    Alias { input: usize, shape: Py<PyTuple>, strides: Py<PyTuple>, offset: isize, is_whole: bool },
    /// In new memory.
    Made(MadeOutput),
    /// A slab, with these parts.
    Slab(Vec<MadeOutput>),
}

/// An output in new memory.
struct MadeOutput {
    port: Port,
    /// The order of its dimensions in which the executable has it.
    order: Option<Vec<usize>>,
    memory: TensorMemory,
}

/// A new value of one of the graph's tensors.
struct Change {
    /// What it is where it is made in memory of its own: the caller copies it then.
    made: MadeOutput,
    /// The executable's input that is updated in place, if it is.
    input: Option<usize>,
}

/// Shape, strides, element type and order of dimensions of an output in memory of its own.
type MadeSpec = (Vec<usize>, Vec<usize>, String, Option<Vec<usize>>);
/// Number of an input, and shape, strides and offset in it.
type AliasSpec = (usize, Vec<usize>, Vec<isize>, isize, bool);
/// Element type and elements of a slab, and its parts, each with the elements before it.
type SlabSpec = (String, usize, Vec<(MadeSpec, usize)>);
/// Number of the graph's tensor, the order of dimensions in which it is read, and the elements before it if it is a part of that tensor.
type InputSpec = (usize, Option<Vec<usize>>, Option<usize>);

/// What is said of an output: `None`, the number of an equal one, a [`MadeSpec`], an [`AliasSpec`] or a [`SlabSpec`].
#[derive(FromPyObject)]
enum OutputSpec {
    Again(usize),
    Alias(AliasSpec),
    Made(MadeSpec),
    Slab(SlabSpec),
}

impl OutputSpec {
    /// How many outputs of the executable it has.
    fn made(&self) -> usize {
        match self {
            Self::Again(_) | Self::Alias(_) => 0,
            Self::Made(_) => 1,
            Self::Slab((_, _, parts)) => parts.len(),
        }
    }
}

/// The outputs of a run, and per change the tensor that is to be copied.
type RunResult<'py> = (Bound<'py, PyList>, Vec<Option<Bound<'py, PyAny>>>);

#[pymethods]
impl PyGraph {
    /// `inputs` says, per input of the executable, where it comes from; `outputs` how each of the graph's outputs is made; `changes` how each
    /// new value of one of its tensors is made where that is not updated in place. The executable's outputs are those that are made, in
    /// order, then the new values, then the check of indices if `checks_indices`.
    #[new]
    fn new(
        py: Python<'_>,
        executable: Py<PyExecutable>,
        inputs: Vec<InputSpec>,
        outputs: Vec<Option<OutputSpec>>,
        changes: Vec<MadeSpec>,
        checks_indices: bool,
    ) -> PyResult<Self> {
        let ports = executable.get().ports();
        let expected = (ports.inputs.len(), ports.outputs.len());
        let made = outputs.iter().flatten().map(OutputSpec::made).sum::<usize>();
        let given = (inputs.len(), made + changes.len() + usize::from(checks_indices));
        if given != expected {
            let text = format!("inputs and outputs are {expected:?}, {given:?} are described");
            return Err(errors::exception(py, Error::Internal(text)));
        }
        let mut given_slabs: Vec<GivenSlab> = Vec::new();
        let inputs = inputs.into_iter().zip(&ports.inputs).map(|((position, order, start), port)| {
            let ordered: Vec<usize> = port.shape.bind(py).extract()?;
            let layout = TracedLayout::of(port.dtype, ordered, order.as_deref());
            let memory = match start {
                None => TensorMemory::Own(layout),
                Some(start) => {
                    let known = given_slabs.iter().position(|given| given.position == position);
                    let slab = known.unwrap_or_else(|| {
                        given_slabs.push(GivenSlab { position, port: port.clone_ref(py) });
                        given_slabs.len() - 1
                    });
                    part_of(py, slab, start, layout)?
                }
            };
            Ok(Input { position, order, memory, port: port.clone_ref(py) })
        });
        let inputs = inputs.collect::<PyResult<_>>()?;
        let mut made_slabs = Vec::new();
        let outputs = outputs.into_iter().enumerate().map(|(number, output)| {
            Ok(match output {
                None => Output::None,
                Some(OutputSpec::Again(of)) if of < number => Output::Again(of),
                Some(OutputSpec::Again(of)) => {
                    let text =
                        format!("output {number} is to be output {of}, which does not stand before it");
                    return Err(errors::exception(py, Error::Internal(text)));
                }
                Some(OutputSpec::Alias((input, shape, strides, offset, is_whole))) => Output::Alias {
                    input,
                    shape: PyTuple::new(py, shape)?.unbind(),
                    strides: PyTuple::new(py, strides)?.unbind(),
                    offset,
                    is_whole,
                },
                Some(OutputSpec::Made(made)) => Output::Made(MadeOutput::apart(py, made)?),
                Some(OutputSpec::Slab((_, _, parts))) if parts.is_empty() => {
                    return Err(errors::exception(py, Error::Internal("a slab without parts".to_owned())));
                }
                Some(OutputSpec::Slab((dtype, len, parts))) => {
                    made_slabs.push(Slab::new(py, dtype_of(py, &dtype)?, len)?);
                    let slab = made_slabs.len() - 1;
                    let parts = parts.into_iter().map(|(made, start)| {
                        MadeOutput::of(py, made, |layout| part_of(py, slab, start, layout))
                    });
                    Output::Slab(parts.collect::<PyResult<_>>()?)
                }
            })
        });
        let outputs = outputs.collect::<PyResult<_>>()?;
        let index_check = ports.outputs[made + changes.len()..].first().map(|port| port.clone_ref(py));
        let updates = &executable.get().inner().manifest().updates;
        let changes = changes.into_iter().enumerate().map(|(number, made_apart)| {
            let update = updates.iter().find(|update| update.output == made + number);
            Ok(Change { made: MadeOutput::apart(py, made_apart)?, input: update.map(|update| update.input) })
        });
        let changes = changes.collect::<PyResult<_>>()?;
        Ok(Self { inputs, given_slabs, outputs, made_slabs, changes, index_check, executable })
    }

    /// How many changes can be made in place.
    #[getter]
    fn in_place(&self) -> usize {
        self.changes.iter().filter(|change| change.input.is_some()).count()
    }

    /// How the steps of a run reach the GPU, and what runs took in each mode; `None` until it was chosen, and on a CPU.
    #[getter]
    fn launches(&self) -> Option<String> {
        let executable = self.executable.get().inner();
        executable.gpu().and(executable.launches()).map(|choice| choice.to_string())
    }

    /// Runs on the graph's tensors: its outputs, and per change the tensor that is to be copied, or `None` if the change was made in place.
    fn run<'py>(&self, tensors: &Bound<'py, PyList>) -> PyResult<RunResult<'py>> {
        let py = tensors.py();
        let objects: Vec<Bound<'py, PyAny>> = tensors.iter().collect();
        let executable = self.executable.get().inner();
        let made = match executable.gpu() {
            None => self.run_on_host(py, &objects)?,
            Some(gpu) => self.run_on_gpu(
                py,
                OnGpu { executable, gpu, scratch: self.executable.get().scratch() },
                &objects,
            )?,
        };
        let mut made = made.into_iter();
        let results = PyList::empty(py);
        for output in &self.outputs {
            match output {
                Output::None => results.append(py.None())?,
                Output::Again(of) => results.append(results.get_item(*of)?)?,
                Output::Alias { input, is_whole: true, .. } => results.append(&objects[*input])?,
                Output::Alias { input, shape, strides, offset, .. } => {
                    let source = &objects[*input];
                    let start: isize = source.call_method0(intern!(py, "storage_offset"))?.extract()?;
                    let arguments = (shape.bind(py), strides.bind(py), start + offset);
                    results.append(source.call_method1(intern!(py, "as_strided"), arguments)?)?;
                }
                Output::Made(_) => results.append(made.next().flatten())?,
                // Each part has the slab.
                Output::Slab(parts) => results.append(made.nth(parts.len() - 1).flatten())?,
            }
        }
        Ok((results, made.collect()))
    }
}

impl PyGraph {
    /// The tensors that the executable makes for outputs and changes, in the memory of the process; `None` for changes in place. A tensor
    /// is not changed in place if another one of the call has some of its memory.
    fn run_on_host<'py>(
        &self,
        py: Python<'py>,
        objects: &[Bound<'py, PyAny>],
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let given_slabs = self.given_slabs(py, objects)?;
        let inputs: Vec<Given<'py>> = (self.inputs.iter())
            .map(|input| {
                let given = match &input.memory {
                    TensorMemory::Part(part) => given_slabs[part.slab].part(part)?,
                    TensorMemory::Own(_) => {
                        Given::traced(among(py, objects, input.position)?, &input.port, "input")?
                    }
                };
                given.check_device(&input.port, "input")?;
                Ok(given)
            })
            .collect::<PyResult<_>>()?;
        let orders: Vec<Option<Order>> = (inputs.iter().zip(&self.inputs))
            .map(|(given, input)| Some(Order::of(given, input.order.as_ref()?)))
            .collect();
        let updated: Vec<Option<usize>> = (self.changes.iter())
            .map(|change| change.input.filter(|&input| is_apart(&inputs, &orders, input)))
            .collect();
        let views: Vec<Option<TensorView<'_>>> = (inputs.iter().zip(&orders).enumerate())
            .map(|(number, (given, order))| match updated.contains(&Some(number)) {
                true => Ok(None),
                false => given.view_in(order.as_ref()).map(Some),
            })
            .collect::<PyResult<_>>()?;
        let first = self.made().count() - self.changes.len();
        let input_of = |number: usize| number.checked_sub(first).and_then(|change| updated[change]);
        let mut made: Vec<(Bound<'py, PyAny>, Given<'py>, Option<Order>)> = Vec::new();
        let allocator = Allocator::new(py, None)?;
        let slabs = self.allocate_slabs(&allocator)?;
        for (_, output) in self.made().enumerate().filter(|(number, _)| input_of(*number).is_none()) {
            let (object, given) = match &output.memory {
                TensorMemory::Part(part) => {
                    let slab = &slabs[part.slab];
                    (slab.object.clone(), slab.part(part)?)
                }
                TensorMemory::Own(_) => {
                    let object = allocator.empty(&output.port)?;
                    let given = Given::traced(&object, &output.port, "output")?;
                    (object, given)
                }
            };
            let order = output.order.as_ref().map(|order| Order::of(&given, order));
            made.push((object, given, order));
        }
        let mut in_range = [1];
        let mut new = made.iter();
        let mut targets: Vec<TensorViewMut<'_>> = (0..first + self.changes.len())
            .map(|number| match input_of(number) {
                // SAFETY: no other view reaches the memory, as `is_apart` says; the input itself has none.
                Some(input) => unsafe { inputs[input].view_mut_in(orders[input].as_ref()) },
                None => {
                    let (_, given, order) = new.next().expect("made above");
                    // SAFETY: the memory is new, and each tensor has its own, or its own part of a slab.
                    unsafe { given.view_mut_in(order.as_ref()) }
                }
            })
            .collect::<PyResult<_>>()?;
        if self.index_check.is_some() {
            let target = TensorViewMut::new(DType::Bool, &[], &mut in_range);
            targets.push(target.map_err(|error| errors::input(py, &error.to_string()))?);
        }
        let executable = self.executable.get().inner();
        let run = || match views.iter().copied().collect::<Option<Vec<_>>>() {
            Some(views) => executable.run_views(&views, &mut targets),
            None => executable.run_in_place(&views, &mut targets),
        };
        py.detach(run).map_err(|error| errors::exception(py, error))?;
        drop(targets);
        if in_range == [0] {
            return Err(pyo3::exceptions::PyIndexError::new_err(OUT_OF_RANGE));
        }
        let mut made = made.into_iter().map(|(object, _, _)| object);
        let result = |number| if input_of(number).is_some() { None } else { made.next() };
        Ok((0..first + self.changes.len()).map(result).collect())
    }

    /// The same, on a GPU: nothing is waited for. As PyTorch's own kernels do, an index out of range stops the GPU's program, which a later
    /// call reports.
    fn run_on_gpu<'py>(
        &self,
        py: Python<'py>,
        place: OnGpu<'_>,
        objects: &[Bound<'py, PyAny>],
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        static ASSERT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let ordinal = place.gpu.device().info().ordinal;
        let mut finder = OnGpuFinder::new(ordinal);
        let given_slabs = self.given_slabs(py, objects)?;
        let mut inputs: Vec<RunTensor<'_, 'py>> = (self.inputs.iter())
            .map(|input| {
                let object = among(py, objects, input.position)?;
                let known = match &input.memory {
                    TensorMemory::Part(part) => {
                        Some((given_slabs[part.slab].address(part, finder.gpu())?, &part.layout))
                    }
                    TensorMemory::Own(Some(layout)) => Some((finder.address(object, layout)?, layout)),
                    TensorMemory::Own(None) => None,
                };
                if let Some((Some(address), layout)) = known {
                    return Ok(RunTensor::known(object.clone(), &input.port, layout, address));
                }
                let given = match &input.memory {
                    TensorMemory::Part(part) => given_slabs[part.slab].part(part)?,
                    TensorMemory::Own(_) => Given::traced(object, &input.port, "input")?,
                };
                device::input(object, given, &input.port, input.order.as_deref(), ordinal)
            })
            .collect::<PyResult<_>>()?;
        let first = self.made().count() - self.changes.len();
        // The caller's tensors that are updated in place: those that are given to the run as they are.
        let updated: Vec<Option<&Bound<'py, PyAny>>> = (self.changes.iter())
            .map(|change| {
                let input = &self.inputs[change.input?];
                let object = objects.get(input.position)?;
                change.input.filter(|&number| inputs[number].object.is(object)).map(|_| object)
            })
            .collect();
        let object_of = |number: usize| number.checked_sub(first).and_then(|change| updated[change]);
        let allocator = Allocator::new(py, Some(ordinal))?;
        let slabs = self.allocate_slabs(&allocator)?;
        let made: Vec<RunTensor<'_, 'py>> = (self.made().enumerate())
            .map(|(number, output)| {
                let (port, order) = (&output.port, output.order.as_deref());
                match object_of(number) {
                    Some(object) => {
                        device::input(object, Given::traced(object, port, "input")?, port, order, ordinal)
                    }
                    None => output.on_gpu(&allocator, &slabs, &mut finder),
                }
            })
            .collect::<PyResult<_>>()?;
        // What the run writes: the tensors that are made, or row-major ones in the place of those with gaps.
        let ports = &self.executable.get().ports().outputs;
        let mut instead: Vec<Option<RunTensor<'_, 'py>>> = Vec::with_capacity(made.len());
        for (made, port) in made.iter().zip(ports) {
            let row_major = || RunTensor::made(allocator.empty(port)?, port, None);
            instead.push(if made.is_row_major() { None } else { Some(row_major()?) });
        }
        let check = self.index_check.as_ref();
        let check = check.map(|port| RunTensor::made(allocator.empty(port)?, port, None)).transpose()?;
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
        let result = |(number, made): (usize, RunTensor<'_, 'py>)| match object_of(number) {
            Some(_) => None,
            None => Some(made.object),
        };
        Ok(made.into_iter().enumerate().map(result).collect())
    }

    /// The slabs among the graph's tensors.
    fn given_slabs<'py>(
        &self,
        py: Python<'py>,
        objects: &[Bound<'py, PyAny>],
    ) -> PyResult<Vec<RunSlab<'py>>> {
        let slabs = self
            .given_slabs
            .iter()
            .map(|GivenSlab { position, port }| RunSlab::of(among(py, objects, *position)?.clone(), port));
        slabs.collect()
    }

    /// The slabs of a run's outputs.
    fn allocate_slabs<'py>(&self, allocator: &Allocator<'py>) -> PyResult<Vec<RunSlab<'py>>> {
        self.made_slabs.iter().map(|slab| slab.allocate(allocator)).collect()
    }

    /// What the executable makes: outputs, then new values of tensors.
    fn made(&self) -> impl Iterator<Item = &MadeOutput> {
        let outputs = self.outputs.iter().flat_map(|output| match output {
            Output::Made(made) => std::slice::from_ref(made),
            Output::Slab(parts) => parts,
            Output::None | Output::Again(_) | Output::Alias { .. } => &[],
        });
        outputs.chain(self.changes.iter().map(|change| &change.made))
    }
}

/// The memory of a part of a slab.
fn part_of(
    py: Python<'_>,
    slab: usize,
    start_elems: usize,
    layout: Option<TracedLayout>,
) -> PyResult<TensorMemory> {
    let layout = layout.ok_or_else(|| {
        errors::exception(py, Error::Internal("a part of a slab has gaps between its elements".to_owned()))
    })?;
    SlabPart::new(py, slab, start_elems, layout).map(TensorMemory::Part)
}

/// A type by its name.
fn dtype_of(py: Python<'_>, name: &str) -> PyResult<DType> {
    DType::from_name(name).ok_or_else(|| errors::usage(py, &format!("there is no type `{name}`")))
}

/// One of the graph's tensors.
fn among<'a, 'py>(
    py: Python<'py>,
    objects: &'a [Bound<'py, PyAny>],
    position: usize,
) -> PyResult<&'a Bound<'py, PyAny>> {
    objects.get(position).ok_or_else(|| {
        let given = format!("a graph is called with {} tensors", objects.len());
        errors::usage(py, &given)
    })
}

impl MadeOutput {
    /// A tensor in memory of its own.
    fn apart(py: Python<'_>, made: MadeSpec) -> PyResult<Self> {
        Self::of(py, made, |layout| Ok(TensorMemory::Own(layout)))
    }

    /// A tensor in the memory that is found for its layout.
    fn of(
        py: Python<'_>,
        (shape, strides, dtype, order): MadeSpec,
        memory: impl FnOnce(Option<TracedLayout>) -> PyResult<TensorMemory>,
    ) -> PyResult<Self> {
        let dtype = dtype_of(py, &dtype)?;
        let ordered = match &order {
            None => Some(shape.clone()),
            Some(order) => order.iter().map(|&dim| shape.get(dim).copied()).collect(),
        };
        let layout = ordered.and_then(|ordered| TracedLayout::of(dtype, ordered, order.as_deref()));
        let layout = layout.filter(|layout| layout.has_strides(&strides));
        let (shape, strides) = (PyTuple::new(py, shape)?.unbind(), PyTuple::new(py, strides)?.unbind());
        let port = Port { name: "output".to_owned(), dtype, shape, strides };
        Ok(Self { port, order, memory: memory(layout)? })
    }

    /// The tensor for one run on a GPU.
    fn on_gpu<'a, 'py>(
        &'a self,
        allocator: &Allocator<'py>,
        slabs: &[RunSlab<'py>],
        finder: &mut OnGpuFinder<'py>,
    ) -> PyResult<RunTensor<'a, 'py>> {
        let layout = match &self.memory {
            TensorMemory::Part(part) => {
                let slab = &slabs[part.slab];
                let address = slab.address(part, finder.gpu())?.ok_or_else(|| {
                    let text = "memory for what is saved is not on the GPU of the run".to_owned();
                    errors::exception(allocator.py(), Error::Internal(text))
                })?;
                return Ok(RunTensor::known(slab.object.clone(), &self.port, &part.layout, address));
            }
            TensorMemory::Own(layout) => layout,
        };
        let object = allocator.empty(&self.port)?;
        if let Some(layout) = layout
            && let Some(address) = finder.address(&object, layout)?
        {
            return Ok(RunTensor::known(object, &self.port, layout, address));
        }
        RunTensor::made(object, &self.port, self.order.as_deref())
    }
}

/// True if an input lies without gaps, and no other one has any of its memory.
fn is_apart(inputs: &[Given<'_>], orders: &[Option<Order>], input: usize) -> bool {
    let is_dense = match &orders[input] {
        Some(order) => order.is_row_major(),
        None => inputs[input].is_row_major(),
    };
    let Some(mine) = inputs[input].extent().filter(|_| is_dense) else { return false };
    let others = inputs.iter().enumerate().filter(|(number, _)| *number != input);
    others.into_iter().all(|(_, other)| {
        other.extent().is_some_and(|other| other.end <= mine.start || mine.end <= other.start)
    })
}
