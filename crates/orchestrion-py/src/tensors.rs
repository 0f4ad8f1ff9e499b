//! Tensors of Python's libraries: as views for a run, and memory for its outputs.

use crate::dlpack::{self, Describe, Described, ElementType, StridedLayout, describe_capsule};
use crate::errors;
use orchestrion::{DType, Tensor, TensorView, TensorViewMut, extent, is_row_major};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// An input or output of a model, with what Python needs of it.
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Py<PyTuple>,
    /// The strides of new memory for it: row-major unless a graph wants others.
    pub strides: Py<PyTuple>,
}

impl Port {
    /// The same, shared.
    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        let Self { name, dtype, shape, strides } = self;
        Self { name: name.clone(), dtype: *dtype, shape: shape.clone_ref(py), strides: strides.clone_ref(py) }
    }
}

/// The library that a tensor is of: outputs are of the library of the inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Library {
    /// NumPy, and whatever NumPy makes an array of.
    Numpy,
    /// PyTorch.
    Torch,
    /// Another one that exchanges tensors by DLPack.
    Other,
}

/// A tensor that a call was given, or makes.
pub struct Given<'py> {
    described: Described<'py>,
    dtype: DType,
    /// The library.
    pub library: Library,
}

impl<'py> Given<'py> {
    /// Memory of the caller for an output.
    ///
    /// # Errors
    /// As [`Given::anywhere`], and if it is not in the memory of the process, or must not be written.
    pub fn output(object: &Bound<'py, PyAny>, port: &Port) -> PyResult<Self> {
        let py = object.py();
        let given = Self::anywhere(object, port, "output")?;
        given.check_device(port, "output")?;
        if given.described.is_read_only() {
            return Err(errors::input(
                py,
                &format!("the memory given for output `{}` is read-only", port.name),
            ));
        }
        Ok(given)
    }

    /// A tensor of a graph that PyTorch traced, in any memory: never a negated view, which traces apart.
    ///
    /// # Errors
    /// As [`Given::anywhere`].
    pub fn traced(object: &Bound<'py, PyAny>, port: &Port, what: &str) -> PyResult<Self> {
        let Exchange { library, describe } = Exchange::of(&object.get_type())?;
        let Some(describe) = describe.filter(|_| library == Library::Torch) else {
            return Self::anywhere(object, port, what);
        };
        let described =
            describe.call(object).map_err(|error| not_readable(object.py(), port, what, &error))?;
        Self::new(described, None, library, port, what)
    }

    /// The GPU that it is on; `None` for memory of the process.
    pub fn gpu(&self) -> Option<i32> {
        let device = self.described.device();
        (device.kind == dlpack::CUDA).then_some(device.ordinal)
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The address of its first element.
    pub fn address(&self) -> u64 {
        self.described.start().addr() as u64
    }

    /// Whether its elements are one after the other in the order of the dimensions.
    pub fn is_row_major(&self) -> bool {
        is_row_major(self.described.shape(), self.described.strides())
    }

    /// The memory must not be written.
    pub fn is_read_only(&self) -> bool {
        self.described.is_read_only()
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        self.described.shape()
    }

    /// Elements from one index to the next, per dimension.
    pub fn strides(&self) -> &[isize] {
        self.described.strides()
    }

    /// A tensor in any memory; `what` is "input" or "output".
    ///
    /// # Errors
    /// `InputError` if the object is no tensor of a known type.
    pub fn anywhere(object: &Bound<'py, PyAny>, port: &Port, what: &str) -> PyResult<Self> {
        let py = object.py();
        let class = object.get_type();
        if class.is(numpy_array(py)?) {
            // NumPy refuses arrays that are read-only, of another byte order, or of types that are not its own.
            let capsule = object.call_method0(intern!(py, "__dlpack__")).ok();
            return match capsule.and_then(|capsule| describe_capsule(object, capsule)) {
                Some(described) => Self::new(described, None, Library::Numpy, port, what),
                None => Self::plain(object, port, what),
            };
        }
        let Exchange { library, describe } = Exchange::of(&class)?;
        let object = if library == Library::Torch { without_negation(object)? } else { object.clone() };
        if let Some(describe) = describe {
            let described = describe.call(&object).map_err(|error| not_readable(py, port, what, &error))?;
            return Self::new(described, None, library, port, what);
        }
        if object.hasattr(intern!(py, "__dlpack__"))? {
            let object = match library {
                Library::Torch => object.call_method0(intern!(py, "detach"))?,
                Library::Numpy | Library::Other => object.clone(),
            };
            let capsule = object
                .call_method0(intern!(py, "__dlpack__"))
                .map_err(|error| not_readable(py, port, what, &error))?;
            if let Some(described) = describe_capsule(&object, capsule) {
                return Self::new(described, None, library, port, what);
            }
        }
        Self::plain(&object, port, what)
    }

    /// What NumPy makes of an object: numbers, lists, arrays that it does not export.
    fn plain(object: &Bound<'py, PyAny>, port: &Port, what: &str) -> PyResult<Self> {
        static PLAIN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = object.py();
        let plain = PLAIN.import(py, "orchestrion._tensors", "plain")?;
        let result = plain.call1((object, &port.name, port.dtype.name(), what))?;
        let (array, dtype): (Bound<'py, PyAny>, Option<String>) = result.extract()?;
        let capsule = array.call_method0(intern!(py, "__dlpack__"))?;
        let described = describe_capsule(&array, capsule)
            .ok_or_else(|| errors::input(py, &format!("{what} `{}` is no tensor", port.name)))?;
        Self::new(described, dtype.as_deref().and_then(DType::from_name), Library::Numpy, port, what)
    }

    fn new(
        described: Described<'py>,
        dtype: Option<DType>,
        library: Library,
        port: &Port,
        what: &str,
    ) -> PyResult<Self> {
        let py = described.py();
        let dtype = dtype.or_else(|| dtype_of(described.element())).ok_or_else(|| {
            let ElementType { code, bits, lanes } = described.element();
            errors::input(
                py,
                &format!(
                    "{what} `{}` has elements of an unknown type (DLPack code {code}, {bits} bits, {lanes} lanes); the model was \
                     compiled for {}",
                    port.name, port.dtype
                ),
            )
        })?;
        Ok(Self { described, dtype, library })
    }

    /// # Errors
    /// `InputError` if it is not in memory of the process.
    pub fn check_device(&self, port: &Port, what: &str) -> PyResult<()> {
        let device = self.described.device();
        if device.kind == dlpack::CPU || device.kind == dlpack::PINNED {
            return Ok(());
        }
        let (place, name, number) = match device.kind {
            dlpack::CUDA => ("on the GPU", "cuda", device.ordinal),
            kind => ("on another device", "DLPack device", kind),
        };
        Err(errors::input(
            self.described.py(),
            &format!(
                "{what} `{}` is {place} ({name}:{number}); executables take tensors in the memory of the process: bring it there \
                 first (in PyTorch: `.cpu()`)",
                port.name
            ),
        ))
    }

    /// A tensor in the memory of this one, so many bytes behind its start.
    pub fn part(&self, layout: &TracedLayout, start_bytes: usize) -> Self {
        Self { described: self.described.part(&layout.layout, start_bytes), ..*self }
    }

    /// The addresses that it reaches.
    pub fn extent(&self) -> Option<Range<usize>> {
        extent(self.dtype, self.described.shape(), self.described.strides(), self.described.start().addr())
    }

    /// The tensor for reading.
    ///
    /// # Errors
    /// `InputError` if it is malformed.
    pub fn view(&self) -> PyResult<TensorView<'_>> {
        self.view_in(None)
    }

    /// The tensor for reading, with its dimensions in this order, if one is given.
    ///
    /// # Errors
    /// `InputError` if it is malformed.
    pub fn view_in<'a>(&'a self, order: Option<&'a Order>) -> PyResult<TensorView<'a>> {
        let (shape, strides) = self.arranged(order);
        // SAFETY: the object, and the capsule, are kept by `self`. Who writes to it from another thread meanwhile gets undefined
        // results, as of all libraries that release the interpreter's lock.
        let view = unsafe { TensorView::from_raw_parts(self.dtype, shape, strides, self.described.start()) };
        view.map_err(|error| errors::input(self.described.py(), &error.to_string()))
    }

    /// The tensor for writing.
    ///
    /// # Errors
    /// `InputError` if its elements share memory.
    ///
    /// # Safety
    /// No other view of a run may reach memory that this one does.
    pub unsafe fn view_mut(&mut self) -> PyResult<TensorViewMut<'_>> {
        // SAFETY: the caller's promise.
        unsafe { self.view_mut_in(None) }
    }

    /// The tensor for writing, with its dimensions in this order, if one is given.
    ///
    /// # Errors
    /// As [`Given::view_mut`].
    ///
    /// # Safety
    /// As [`Given::view_mut`].
    pub unsafe fn view_mut_in<'a>(&'a self, order: Option<&'a Order>) -> PyResult<TensorViewMut<'a>> {
        let (shape, strides) = self.arranged(order);
        // SAFETY: as of `view_in`; the rest is the caller's promise.
        let view =
            unsafe { TensorViewMut::from_raw_parts(self.dtype, shape, strides, self.described.start()) };
        view.map_err(|error| errors::input(self.described.py(), &error.to_string()))
    }

    /// Its shape and strides in an order of its dimensions.
    fn arranged<'a>(&'a self, order: Option<&'a Order>) -> (&'a [usize], &'a [isize]) {
        match order {
            None => (self.shape(), self.strides()),
            Some(Order { shape, strides }) => (shape, strides),
        }
    }
}

/// A tensor's shape and strides with its dimensions in another order.
pub struct Order {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its strides.
    pub strides: Vec<isize>,
}

impl Order {
    /// Those of a tensor.
    pub fn of(given: &Given<'_>, order: &[usize]) -> Self {
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

    /// Whether the elements are one after the other in this order.
    pub fn is_row_major(&self) -> bool {
        is_row_major(&self.shape, &self.strides)
    }
}

/// A copy of a tensor of Python; `name` is for messages.
///
/// # Errors
/// As [`Given::anywhere`], and if it is not in the memory of the process.
pub fn owned(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Tensor> {
    let py = object.py();
    let none = PyTuple::empty(py).unbind();
    let port = Port { name: name.to_owned(), dtype: DType::F32, shape: none.clone_ref(py), strides: none };
    let given = Given::anywhere(object, &port, "input")?;
    given.check_device(&port, "input")?;
    let view = given.view()?;
    Tensor::from_bytes(view.dtype(), view.shape().to_vec().into(), view.row_major().into_owned().into())
        .map_err(|error| errors::input(py, &error.to_string()))
}

/// How tensors of a class are exchanged.
#[derive(Clone, Copy)]
struct Exchange {
    library: Library,
    describe: Option<Describe>,
}

/// Classes that are remembered.
const KNOWN_CLASSES: usize = 16;

impl Exchange {
    fn of(class: &Bound<'_, PyType>) -> PyResult<Self> {
        static KNOWN: Mutex<Vec<(Py<PyType>, Exchange)>> = Mutex::new(Vec::new());
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, exchange)) = known().iter().find(|(known, _)| class.is(known)) {
            return Ok(*exchange);
        }
        let library = if is_torch(class)? { Library::Torch } else { Library::Other };
        let exchange = Self { library, describe: Describe::of(class) };
        let mut known = known();
        if library == Library::Torch && known.len() < KNOWN_CLASSES {
            known.push((class.clone().unbind(), exchange));
        }
        Ok(exchange)
    }
}

/// New memory for an output, as a tensor of a library.
pub struct NewOutput<'py> {
    /// What the call returns, once it is written.
    pub object: Bound<'py, PyAny>,
    /// The memory.
    pub given: Given<'py>,
}

impl<'py> NewOutput<'py> {
    /// Allocates; tensors of other libraries begin as NumPy's.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(py: Python<'py>, port: &Port, library: Library) -> PyResult<Self> {
        let object = match library {
            Library::Torch => Allocator::new(py, None)?.empty(port)?,
            Library::Numpy | Library::Other => numpy_empty(py, port)?,
        };
        let describe = match library {
            Library::Torch => Exchange::of(&object.get_type())?.describe,
            Library::Numpy | Library::Other => None,
        };
        let described = match describe {
            Some(describe) => Some(describe.call(&object)?),
            None => describe_capsule(&object, object.call_method0(intern!(py, "__dlpack__"))?),
        };
        let described = described
            .ok_or_else(|| errors::input(py, "the library of the inputs gives no memory by DLPack"))?;
        Ok(Self { object, given: Given { described, dtype: port.dtype, library } })
    }

    /// What the call returns.
    ///
    /// # Errors
    /// If another library does not take the tensor.
    pub fn into_object(self, dtype: DType, like: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let py = self.object.py();
        match (self.given.library, dtype) {
            (Library::Torch, _) | (Library::Numpy, DType::F32 | DType::F64 | DType::I64 | DType::I32) => {
                Ok(self.object)
            }
            _ => {
                static FINISHED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
                let finished = FINISHED.import(py, "orchestrion._tensors", "finished")?;
                let like = like.filter(|_| self.given.library == Library::Other);
                finished.call1((self.object, dtype.name(), like))
            }
        }
    }
}

fn not_readable(py: Python<'_>, port: &Port, what: &str, error: &PyErr) -> PyErr {
    errors::input(py, &format!("{what} `{}` cannot be read: {error}", port.name))
}

/// A tensor of PyTorch whose elements are in memory as they are: views like `x.conj().imag` are negated when they are read.
fn without_negation<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    if object.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
        return object.call_method0(intern!(py, "resolve_neg"));
    }
    Ok(object.clone())
}

fn numpy_array<'py>(py: Python<'py>) -> PyResult<&'py Bound<'py, PyAny>> {
    static ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    ARRAY.import(py, "numpy", "ndarray")
}

/// True of PyTorch's tensors and classes derived from them.
fn is_torch(class: &Bound<'_, PyType>) -> PyResult<bool> {
    static TENSOR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = class.py();
    let tensor = match TENSOR.get(py) {
        Some(tensor) => tensor.bind(py).clone(),
        None => {
            // A program that has not imported it has no tensors of it.
            let modules = py.import("sys")?.getattr("modules")?;
            let Ok(torch) = modules.get_item("torch") else { return Ok(false) };
            let tensor = torch.getattr("Tensor")?.cast_into::<PyType>()?;
            TENSOR.get_or_init(py, || tensor.clone().unbind());
            tensor
        }
    };
    class.is_subclass(&tensor)
}

fn numpy_empty<'py>(py: Python<'py>, port: &Port) -> PyResult<Bound<'py, PyAny>> {
    static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    // `finished` views these as what they are: not every NumPy exports them.
    let name = match port.dtype {
        DType::Bool => "uint8",
        DType::BF16 => "uint16",
        dtype => numpy_name(dtype),
    };
    EMPTY.import(py, "numpy", "empty")?.call1((port.shape.bind(py), PyString::intern(py, name)))
}

/// PyTorch's element type.
///
/// # Errors
/// If this version does not know it.
pub fn torch_dtype(py: Python<'_>, dtype: DType) -> PyResult<&Py<PyAny>> {
    static DTYPES: PyOnceLock<Vec<(DType, Py<PyAny>)>> = PyOnceLock::new();
    let dtypes = DTYPES.get_or_try_init(py, || {
        let torch = py.import("torch")?;
        // Versions before 2.3 have no unsigned types of more than 8 bits.
        let known = DType::ALL
            .into_iter()
            .filter_map(|dtype| Some((dtype, torch.getattr(numpy_name(dtype)).ok()?.unbind())));
        Ok::<_, PyErr>(known.collect())
    })?;
    let found = dtypes.iter().find(|(known, _)| *known == dtype).map(|(_, dtype)| dtype);
    found.ok_or_else(|| errors::input(py, &format!("this version of PyTorch has no tensors of {dtype}")))
}

/// Makes new tensors of PyTorch, in the memory of the process or on a GPU.
pub struct Allocator<'py> {
    py: Python<'py>,
    gpu: Option<usize>,
    /// What code that PyTorch compiles calls, in half the time of `torch.empty_strided`.
    fast: Option<&'static Py<PyAny>>,
}

impl<'py> Allocator<'py> {
    /// For the memory of the process, or a GPU.
    ///
    /// # Errors
    /// If PyTorch does not say which GPU is the current one.
    pub fn new(py: Python<'py>, gpu: Option<usize>) -> PyResult<Self> {
        static ON_HOST: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
        static ON_GPU: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
        let fast = match gpu {
            None => inductor_function(py, &ON_HOST, "_empty_strided_cpu"),
            // On the current GPU.
            Some(ordinal) if current_gpu(py)? == ordinal => {
                inductor_function(py, &ON_GPU, "_empty_strided_cuda")
            }
            Some(_) => None,
        };
        Ok(Self { py, gpu, fast })
    }

    /// Proof that the interpreter's lock is held.
    pub fn py(&self) -> Python<'py> {
        self.py
    }

    /// A new tensor for an output.
    ///
    /// # Errors
    /// As [`Allocator::empty_strided`].
    pub fn empty(&self, port: &Port) -> PyResult<Bound<'py, PyAny>> {
        self.empty_strided(port.shape.bind(self.py), port.strides.bind(self.py), port.dtype)
    }

    /// A new tensor.
    ///
    /// # Errors
    /// If there is no memory, or PyTorch does not know the type.
    pub fn empty_strided(
        &self,
        shape: &Bound<'py, PyTuple>,
        strides: &Bound<'py, PyTuple>,
        dtype: DType,
    ) -> PyResult<Bound<'py, PyAny>> {
        static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Self { py, gpu, fast } = *self;
        let dtype = torch_dtype(py, dtype)?;
        if let Some(fast) = fast {
            return fast.bind(py).call1((shape, strides, dtype));
        }
        let keywords = PyDict::new(py);
        keywords.set_item(intern!(py, "dtype"), dtype)?;
        if let Some(ordinal) = gpu {
            keywords.set_item(intern!(py, "device"), ordinal)?;
        }
        EMPTY.import(py, "torch", "empty_strided")?.call((shape, strides), Some(&keywords))
    }
}

/// A function for code that PyTorch compiles; not all versions have each.
fn inductor_function(
    py: Python<'_>,
    known: &'static PyOnceLock<Option<Py<PyAny>>>,
    name: &str,
) -> Option<&'static Py<PyAny>> {
    let find = || Some(py.import("torch._C._dynamo.guards").ok()?.getattr(name).ok()?.unbind());
    known.get_or_init(py, find).as_ref()
}

/// The GPU that PyTorch allocates on unless it is told otherwise.
fn current_gpu(py: Python<'_>) -> PyResult<usize> {
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CURRENT.import(py, "torch._C", "_cuda_getDevice")?.call0()?.extract()
}

/// The name of a type in NumPy, and in PyTorch.
fn numpy_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::I8 => "int8",
        DType::I16 => "int16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::U8 => "uint8",
        DType::U16 => "uint16",
        DType::U32 => "uint32",
        DType::U64 => "uint64",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::F32 => "float32",
        DType::F64 => "float64",
    }
}

/// How a tensor of a graph lies, if its elements are one after the other in an order of its dimensions.
pub struct TracedLayout {
    /// Its element type.
    pub dtype: DType,
    /// Its shape with the dimensions in that order.
    pub ordered: Vec<usize>,
    layout: StridedLayout,
}

impl TracedLayout {
    /// That of a tensor which has this shape with its dimensions in that order; `None` for sizes that are no tensor's.
    pub fn of(dtype: DType, ordered: Vec<usize>, order: Option<&[usize]>) -> Option<Self> {
        let rank = ordered.len();
        let (mut shape, mut strides, mut stride) = (vec![0; rank], vec![0; rank], 1i64);
        for place in (0..rank).rev() {
            let dim = order.map_or(Some(place), |order| order.get(place).copied())?;
            let size = i64::try_from(ordered[place]).ok()?;
            *shape.get_mut(dim)? = size;
            *strides.get_mut(dim)? = stride;
            stride = stride.checked_mul(size)?;
        }
        Some(Self { dtype, ordered, layout: StridedLayout { element: element_of(dtype), shape, strides } })
    }

    /// Whether a tensor of these strides lies so.
    pub fn has_strides(&self, strides: &[usize]) -> bool {
        let is_of_rank = self.layout.strides.len() == strides.len();
        is_of_rank && self.layout.has_strides(strides.iter().map(|&stride| stride as i64))
    }
}

/// Finds tensors of PyTorch on a GPU: many of the same few classes.
pub struct OnGpuFinder<'py> {
    gpu: i32,
    last: Option<(Bound<'py, PyType>, Option<Describe>)>,
}

impl<'py> OnGpuFinder<'py> {
    /// For the GPU of this number.
    pub fn new(gpu: usize) -> Self {
        Self { gpu: i32::try_from(gpu).unwrap_or(i32::MAX), last: None }
    }

    /// The number of the GPU.
    pub fn gpu(&self) -> i32 {
        self.gpu
    }

    /// The address of a tensor that lies so, on this GPU; `None` for any other.
    ///
    /// # Errors
    /// What PyTorch says.
    pub fn address(&mut self, object: &Bound<'py, PyAny>, layout: &TracedLayout) -> PyResult<Option<u64>> {
        let class = object.get_type();
        let describe = match &self.last {
            Some((last, describe)) if last.is(&class) => *describe,
            _ => {
                let Exchange { library, describe } = Exchange::of(&class)?;
                let describe = describe.filter(|_| library == Library::Torch);
                self.last = Some((class, describe));
                describe
            }
        };
        let Some(describe) = describe else { return Ok(None) };
        describe.address(object, self.gpu, &layout.layout)
    }
}

/// What DLPack calls a type.
fn element_of(dtype: DType) -> ElementType {
    let (code, bits) = match dtype {
        DType::Bool => (6, 8),
        DType::I8 => (0, 8),
        DType::I16 => (0, 16),
        DType::I32 => (0, 32),
        DType::I64 => (0, 64),
        DType::U8 => (1, 8),
        DType::U16 => (1, 16),
        DType::U32 => (1, 32),
        DType::U64 => (1, 64),
        DType::F16 => (2, 16),
        DType::BF16 => (4, 16),
        DType::F32 => (2, 32),
        DType::F64 => (2, 64),
    };
    ElementType { code, bits, lanes: 1 }
}

fn dtype_of(element: ElementType) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| element_of(*dtype) == element)
}
