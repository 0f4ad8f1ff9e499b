//! DLPack: the structures by which libraries of Python describe each other tensors in memory.
//!
//! A tensor comes by one of two ways. Types with `__dlpack_c_exchange_api__` (PyTorch from 2.10 on) fill in a structure, in about
//! 50 ns. Others have a method `__dlpack__`, which gives a capsule.

use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_int, c_void};

/// Where memory is.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Device {
    /// [`CPU`], [`PINNED`] or another kind.
    pub kind: i32,
    /// Which of that kind.
    pub ordinal: i32,
}

/// Memory of the process.
pub const CPU: i32 = 1;
/// GPUs of NVIDIA.
pub const CUDA: i32 = 2;
/// Memory of the process that GPUs may read.
pub const PINNED: i32 = 3;

/// An element type.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ElementType {
    /// 0 signed, 1 unsigned, 2 float, 4 bfloat, 6 bool.
    pub code: u8,
    /// Bits of an element.
    pub bits: u8,
    /// Elements of a vector; 1 for scalars.
    pub lanes: u16,
}

/// A tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Description {
    data: *mut c_void,
    /// Where it lies.
    pub device: Device,
    rank: i32,
    /// Its element type.
    pub element: ElementType,
    shape: *mut i64,
    strides: *mut i64,
    offset_bytes: u64,
}

#[repr(C)]
struct Managed {
    tensor: Description,
    owner: *mut c_void,
    delete: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct ManagedVersioned {
    version: Version,
    owner: *mut c_void,
    delete: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Description,
}

/// The flag of memory that must not be written.
const READ_ONLY: u64 = 1;

/// The functions of a library (DLPack 1.2 and later).
#[repr(C)]
struct ExchangeApi {
    version: Version,
    _older: *const c_void,
    _allocate: *const c_void,
    _managed_from_object: *const c_void,
    _object_from_managed: *const c_void,
    describe: Option<unsafe extern "C" fn(*mut ffi::PyObject, *mut Description) -> c_int>,
    _current_stream: *const c_void,
}

const EXCHANGE_NAME: &CStr = c"dlpack_exchange_api";
const NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";

/// How a tensor lies in memory.
pub struct StridedLayout {
    /// Its element type.
    pub element: ElementType,
    /// Its sizes.
    pub shape: Vec<i64>,
    /// Elements from one index to the next, by dimension.
    pub strides: Vec<i64>,
}

impl StridedLayout {
    /// Whether these strides, one for each dimension, lead to the same elements: those of dimensions of one element say nothing.
    pub fn has_strides(&self, strides: impl Iterator<Item = i64>) -> bool {
        let expected = self.shape.iter().zip(&self.strides);
        expected.zip(strides).all(|((&size, &stride), given)| size == 1 || given == stride)
    }
}

/// A described tensor of a Python object. Its memory stays while the object and, if there is one, the capsule do.
pub struct Described<'py> {
    description: Description,
    is_read_only: bool,
    object: Bound<'py, PyAny>,
    _capsule: Option<Bound<'py, PyAny>>,
    /// Its shape, if it is a part of what is described.
    part_shape: Option<Vec<usize>>,
    /// Elements from one index to the next, if it is a part, or the description leaves them out.
    strides: Option<Vec<isize>>,
}

/// The function by which tensors of a type are described, if its library has one.
#[derive(Clone, Copy)]
pub struct Describe(unsafe extern "C" fn(*mut ffi::PyObject, *mut Description) -> c_int);

impl Describe {
    /// The function of a type of tensors.
    pub fn of(class: &Bound<'_, PyAny>) -> Option<Self> {
        let capsule = class.getattr("__dlpack_c_exchange_api__").ok()?;
        // SAFETY: a capsule of this name holds a pointer to this structure, which libraries never free.
        unsafe {
            let pointer = capsule_pointer(&capsule, EXCHANGE_NAME)?.cast::<ExchangeApi>();
            let api = &*pointer;
            (api.version.major == 1).then_some(api.describe).flatten().map(Self)
        }
    }

    /// Describes a tensor.
    ///
    /// # Errors
    /// What the library says.
    pub fn call<'py>(self, object: &Bound<'py, PyAny>) -> PyResult<Described<'py>> {
        Ok(Described::new(self.description(object)?, false, object, None))
    }

    /// The address of a tensor on a GPU; `None` if it is elsewhere, or has another layout.
    ///
    /// # Errors
    /// What the library says.
    pub fn address(
        self,
        object: &Bound<'_, PyAny>,
        gpu: i32,
        layout: &StridedLayout,
    ) -> PyResult<Option<u64>> {
        let description = self.description(object)?;
        let device = Device { kind: CUDA, ordinal: gpu };
        let rank = layout.shape.len();
        let is_same = description.device == device
            && description.element == layout.element
            && usize::try_from(description.rank) == Ok(rank);
        if !is_same || (rank > 0 && (description.shape.is_null() || description.strides.is_null())) {
            return Ok(None);
        }
        if rank > 0 {
            // SAFETY: both have `rank` numbers, which the object keeps.
            let (sizes, strides) = unsafe {
                (
                    std::slice::from_raw_parts(description.shape.cast_const(), rank),
                    std::slice::from_raw_parts(description.strides.cast_const(), rank),
                )
            };
            if sizes != layout.shape || !layout.has_strides(strides.iter().copied()) {
                return Ok(None);
            }
        }
        Ok(Some(description.data.addr() as u64 + description.offset_bytes))
    }

    fn description(self, object: &Bound<'_, PyAny>) -> PyResult<Description> {
        let mut description = Description {
            data: std::ptr::null_mut(),
            device: Device::default(),
            rank: 0,
            element: ElementType::default(),
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            offset_bytes: 0,
        };
        // SAFETY: the object is of the type that the function is for, and lives.
        if unsafe { (self.0)(object.as_ptr(), &raw mut description) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(description)
    }
}

/// Describes a tensor by its capsule; `None` if the capsule is not one of a tensor.
pub fn describe_capsule<'py>(
    object: &Bound<'py, PyAny>,
    capsule: Bound<'py, PyAny>,
) -> Option<Described<'py>> {
    // SAFETY: a capsule of one of these names holds a pointer to such a structure, which lives as long as the capsule keeps its name.
    unsafe {
        if let Some(pointer) = capsule_pointer(&capsule, VERSIONED_NAME) {
            let managed = &*pointer.cast::<ManagedVersioned>();
            if managed.version.major != 1 {
                return None;
            }
            let is_read_only = managed.flags & READ_ONLY != 0;
            return Some(Described::new(managed.tensor, is_read_only, object, Some(capsule)));
        }
        let pointer = capsule_pointer(&capsule, NAME)?;
        let managed = &*pointer.cast::<Managed>();
        Some(Described::new(managed.tensor, false, object, Some(capsule)))
    }
}

/// # Safety
/// Nothing: the name is compared before the pointer is given.
unsafe fn capsule_pointer(capsule: &Bound<'_, PyAny>, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: both calls take any object and a name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 0 {
            return None;
        }
        let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr());
        (!pointer.is_null()).then_some(pointer)
    }
}

impl<'py> Described<'py> {
    fn new(
        description: Description,
        is_read_only: bool,
        object: &Bound<'py, PyAny>,
        capsule: Option<Bound<'py, PyAny>>,
    ) -> Self {
        let mut described = Self {
            description,
            is_read_only,
            object: object.clone(),
            _capsule: capsule,
            part_shape: None,
            strides: None,
        };
        if description.strides.is_null() {
            let mut stride = 1;
            let mut strides = vec![0; described.shape().len()];
            for (own, &size) in strides.iter_mut().zip(described.shape()).rev() {
                *own = stride;
                stride *= size as isize;
            }
            described.strides = Some(strides);
        }
        described
    }

    /// A tensor in the memory of this one, so many bytes behind its start.
    pub fn part(&self, layout: &StridedLayout, start_bytes: usize) -> Self {
        let mut description = self.description;
        description.data = self.start().wrapping_add(start_bytes).cast();
        description.offset_bytes = 0;
        Self {
            description,
            is_read_only: self.is_read_only,
            object: self.object.clone(),
            _capsule: self._capsule.clone(),
            part_shape: Some(layout.shape.iter().map(|&size| size as usize).collect()),
            strides: Some(layout.strides.iter().map(|&stride| stride as isize).collect()),
        }
    }

    /// Proof that the interpreter's lock is held.
    pub fn py(&self) -> Python<'py> {
        self.object.py()
    }

    /// Where the tensor lies.
    pub fn device(&self) -> Device {
        self.description.device
    }

    /// Its element type.
    pub fn element(&self) -> ElementType {
        self.description.element
    }

    /// True for memory that must not be written.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        if let Some(shape) = &self.part_shape {
            return shape;
        }
        let rank = self.description.rank as usize;
        if rank == 0 || self.description.shape.is_null() {
            return &[];
        }
        // SAFETY: the shape has `rank` sizes, which are not negative, so that they read the same as `usize` (64 bits).
        unsafe { std::slice::from_raw_parts(self.description.shape.cast_const().cast(), rank) }
    }

    /// Elements from one index to the next, per dimension.
    pub fn strides(&self) -> &[isize] {
        if let Some(strides) = &self.strides {
            return strides;
        }
        let rank = self.description.rank as usize;
        // SAFETY: there are `rank` strides of 64 bits.
        unsafe { std::slice::from_raw_parts(self.description.strides.cast_const().cast(), rank) }
    }

    /// The address of the element at index 0.
    pub fn start(&self) -> *mut u8 {
        self.description.data.cast::<u8>().wrapping_add(self.description.offset_bytes as usize)
    }
}

#[cfg(not(target_pointer_width = "64"))]
compile_error!("sizes of DLPack are read as usize: 64-bit machines only");
