//! Tensors in the caller's memory: checked against what the model needs, and against each other, before they are used.

use crate::status::{Failure, list_at};
use orchestrion::manifest::{Manifest, Port};
use orchestrion::{
    DType, DeviceAddress, DeviceInput, DeviceTensor, Overlap, OverlapWith, TensorView, TensorViewMut,
    ViewError, extent, first_overlap, is_row_major,
};
use std::ffi::{CString, c_char, c_void};
use std::ops::Range;

/// Types of elements. 16 bits of ORC_F16 and ORC_BF16 are as the processor has them; an ORC_BOOL is one byte, 0 or 1.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum orc_dtype {
    ORC_BOOL = 1,
    ORC_I8 = 2,
    ORC_I16 = 3,
    ORC_I32 = 4,
    ORC_I64 = 5,
    ORC_U8 = 6,
    ORC_U16 = 7,
    ORC_U32 = 8,
    ORC_U64 = 9,
    ORC_F16 = 10,
    ORC_BF16 = 11,
    ORC_F32 = 12,
    ORC_F64 = 13,
}

impl From<DType> for orc_dtype {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::Bool => Self::ORC_BOOL,
            DType::I8 => Self::ORC_I8,
            DType::I16 => Self::ORC_I16,
            DType::I32 => Self::ORC_I32,
            DType::I64 => Self::ORC_I64,
            DType::U8 => Self::ORC_U8,
            DType::U16 => Self::ORC_U16,
            DType::U32 => Self::ORC_U32,
            DType::U64 => Self::ORC_U64,
            DType::F16 => Self::ORC_F16,
            DType::BF16 => Self::ORC_BF16,
            DType::F32 => Self::ORC_F32,
            DType::F64 => Self::ORC_F64,
        }
    }
}

/// The element type of a number.
fn dtype_of(number: i32) -> Option<DType> {
    DType::ALL.into_iter().find(|&dtype| orc_dtype::from(dtype) as i32 == number)
}

/// An input or output of a model.
#[repr(C)]
pub struct orc_port {
    /// Its name in the model.
    pub name: *const c_char,
    /// The type of its elements, an `orc_dtype`.
    pub dtype: i32,
    /// The number of its dimensions.
    pub rank: usize,
    /// Elements along each dimension.
    pub shape: *const i64,
    /// Bytes of all elements without gaps.
    pub size_bytes: usize,
}

/// A tensor in the caller's memory, of the host. Element `[i, j, ..]` lies `i * strides[0] + j * strides[1] + ..` elements behind
/// `data`. Any address will do; elements that do not lie row-major, or do not start at a multiple of 8 bytes, are copied by a run.
#[repr(C)]
pub struct orc_tensor {
    /// The first element; NULL only if there is none. Of inputs it is only read.
    pub data: *mut c_void,
    /// The type of the elements, an `orc_dtype`.
    pub dtype: i32,
    /// The number of dimensions.
    pub rank: usize,
    /// Elements along each dimension; NULL only if there is none.
    pub shape: *const i64,
    /// Elements from one index to the next along each dimension; NULL: row-major without gaps. Those of inputs may be 0 or negative,
    /// those of outputs negative.
    pub strides: *const i64,
}

// Strides of the interface are those of views as they lie.
const _: () = assert!(size_of::<isize>() == size_of::<i64>(), "addresses have 64 bits");

/// Inputs and outputs of a model, in its order.
#[derive(Debug)]
pub struct Ports {
    pub inputs: Vec<Expected>,
    pub outputs: Vec<Expected>,
}

/// What a run takes or gives at one place.
#[derive(Debug)]
pub struct Expected {
    port: Port,
    dtype: DType,
    /// The name and shape as C has them.
    name: CString,
    shape: Vec<i64>,
}

impl Ports {
    pub fn new(manifest: &Manifest) -> Result<Self, Failure> {
        let all = |ports: &[Port]| ports.iter().map(Expected::new).collect::<Result<_, _>>();
        Ok(Self { inputs: all(&manifest.inputs)?, outputs: all(&manifest.outputs)? })
    }
}

impl Expected {
    fn new(port: &Port) -> Result<Self, Failure> {
        let dtype = DType::from_name(&port.dtype);
        let dtype = dtype.ok_or_else(|| Failure::invalid(format!("there is no type `{}`", port.dtype)))?;
        let name = CString::new(port.name.replace('\0', "\\0")).unwrap_or_default();
        let shape = port.shape.iter().map(|&size| size as i64).collect();
        Ok(Self { port: port.clone(), dtype, name, shape })
    }

    pub fn described(&self) -> orc_port {
        orc_port {
            name: self.name.as_ptr(),
            dtype: orc_dtype::from(self.dtype) as i32,
            rank: self.shape.len(),
            shape: self.shape.as_ptr(),
            size_bytes: self.size_bytes(),
        }
    }

    fn size_bytes(&self) -> usize {
        self.port.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }
}

/// A tensor of the caller's that is as the model needs it.
struct Placed<'a> {
    /// `input` or `output`.
    side: &'static str,
    expected: &'a Expected,
    data: *mut u8,
    /// `None`: row-major without gaps.
    strides: Option<&'a [isize]>,
    /// The addresses from its first to its last byte; `None` if it is empty.
    extent: Option<Range<usize>>,
}

/// Gives `run` views of the caller's tensors once they are known to be what the model needs.
///
/// # Safety
/// The tensors must be as the header says: inputs readable, outputs writable, neither used by others until this returns.
pub unsafe fn with_views(
    ports: &Ports,
    inputs: (*const orc_tensor, usize),
    outputs: (*const orc_tensor, usize),
    run: impl FnOnce(&[TensorView<'_>], &mut [TensorViewMut<'_>]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let (inputs, outputs) = unsafe {
        (all_placed("input", &ports.inputs, inputs)?, all_placed("output", &ports.outputs, outputs)?)
    };
    check_overlaps(&inputs, &outputs)?;
    // SAFETY: all elements lie where the caller promises; outputs overlap nothing.
    let views: Vec<TensorView<'_>> =
        inputs.iter().map(|placed| unsafe { placed.view() }).collect::<Result<_, _>>()?;
    // SAFETY: as above.
    let mut views_mut: Vec<TensorViewMut<'_>> =
        outputs.iter().map(|placed| unsafe { placed.view_mut() }).collect::<Result<_, _>>()?;
    run(&views, &mut views_mut)
}

/// Gives `run` the caller's tensors in a GPU's memory once they are known to be what the model needs.
///
/// # Safety
/// The tensors must be as the header says of `orc_run_on_device`.
pub unsafe fn with_device_tensors(
    ports: &Ports,
    inputs: (*const orc_tensor, usize),
    outputs: (*const orc_tensor, usize),
    run: impl FnOnce(&[DeviceInput<'_>], &[DeviceTensor<'_>]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let (inputs, outputs) = unsafe {
        (all_placed("input", &ports.inputs, inputs)?, all_placed("output", &ports.outputs, outputs)?)
    };
    // SAFETY: the caller's promise.
    let (inputs, outputs) = unsafe { (all_on_device(&inputs)?, all_on_device(&outputs)?) };
    let inputs: Vec<DeviceInput<'_>> = inputs.into_iter().map(DeviceInput::Device).collect();
    run(&inputs, &outputs)
}

fn check_count(side: &str, ports: &[Expected], given: usize) -> Result<(), Failure> {
    if given == ports.len() {
        return Ok(());
    }
    let names: Vec<&str> = ports.iter().map(|expected| expected.port.name.as_str()).collect();
    let names = names.join(", ");
    Err(Failure::invalid(format!("{given} {side}s are given, the model has {}: {names}", ports.len())))
}

/// Checks the tensors of one side, so many from an address on.
///
/// # Safety
/// As [`with_views`].
unsafe fn all_placed<'a>(
    side: &'static str,
    ports: &'a [Expected],
    (tensors, count): (*const orc_tensor, usize),
) -> Result<Vec<Placed<'a>>, Failure> {
    check_count(side, ports, count)?;
    // SAFETY: the caller's promise; so many are given.
    let tensors = unsafe { list_at(tensors, count, format_args!("`{side}s`"))? };
    // SAFETY: the caller's promise.
    ports.iter().zip(tensors).map(|(port, tensor)| unsafe { Placed::new(side, port, tensor) }).collect()
}

/// # Safety
/// As [`with_device_tensors`].
unsafe fn all_on_device<'a>(tensors: &[Placed<'a>]) -> Result<Vec<DeviceTensor<'a>>, Failure> {
    // SAFETY: the caller's promise.
    tensors.iter().map(|placed| unsafe { placed.on_device() }).collect()
}

impl<'a> Placed<'a> {
    /// Checks one tensor.
    ///
    /// # Safety
    /// As [`with_views`].
    unsafe fn new(
        side: &'static str,
        expected: &'a Expected,
        tensor: &'a orc_tensor,
    ) -> Result<Self, Failure> {
        let name = &expected.port.name;
        let needed = || format!("the model was compiled for {}{:?}", expected.dtype, expected.shape);
        let Some(dtype) = dtype_of(tensor.dtype) else {
            let number = tensor.dtype;
            return Err(Failure::invalid(format!(
                "{side} `{name}` has type {number}, which is no `orc_dtype`; {}",
                needed()
            )));
        };
        let rank = tensor.rank;
        if rank != expected.shape.len() {
            return Err(Failure::invalid(format!("{side} `{name}` has {rank} dimensions; {}", needed())));
        }
        // SAFETY: the caller's promise, for the rank that was checked.
        let shape = unsafe { list_at(tensor.shape, rank, format_args!("`shape` of {side} `{name}`"))? };
        if dtype != expected.dtype || shape != expected.shape {
            return Err(Failure::invalid(format!("{side} `{name}` is {dtype}{shape:?}; {}", needed())));
        }
        let strides = if tensor.strides.is_null() || rank == 0 {
            None
        } else {
            // SAFETY: as above; both types have 64 bits.
            Some(unsafe { std::slice::from_raw_parts(tensor.strides.cast::<isize>(), rank) })
        };
        let mut placed = Self { side, expected, data: tensor.data.cast(), strides, extent: None };
        placed.extent = placed.reached()?;
        Ok(placed)
    }

    /// The addresses that it covers.
    fn reached(&self) -> Result<Option<Range<usize>>, Failure> {
        let shape = &self.expected.port.shape;
        if shape.contains(&0) {
            return Ok(None);
        }
        let (side, name) = (self.side, &self.expected.port.name);
        if self.data.is_null() {
            return Err(Failure::usage(format!("`data` of {side} `{name}` is NULL")));
        }
        let bytes = self.expected.dtype.size_bytes() as i128;
        let (mut below, mut above) = (0i128, bytes);
        match self.strides {
            None => above = self.expected.size_bytes() as i128,
            Some(strides) => {
                for (&size, &stride) in shape.iter().zip(strides) {
                    let reached = (stride as i128).saturating_mul(size as i128 - 1).saturating_mul(bytes);
                    below = below.saturating_add(reached.min(0));
                    above = above.saturating_add(reached.max(0));
                }
            }
        }
        let start = self.data.addr() as i128;
        if start.saturating_add(below) < 0 || start.saturating_add(above) > isize::MAX as i128 {
            return Err(Failure::invalid(format!(
                "{side} `{name}` reaches beyond all addresses (strides {:?} of shape {shape:?})",
                self.strides.unwrap_or_default()
            )));
        }
        Ok(match self.strides {
            None => Some(self.data.addr()..self.data.addr() + self.expected.size_bytes()),
            Some(strides) => extent(self.expected.dtype, shape, strides, self.data.addr()),
        })
    }

    /// # Safety
    /// As [`TensorView::from_raw_parts`].
    unsafe fn view(&self) -> Result<TensorView<'_>, Failure> {
        let Expected { dtype, port, .. } = self.expected;
        let view = match self.strides {
            // SAFETY: the caller's promise.
            Some(strides) => unsafe { TensorView::from_raw_parts(*dtype, &port.shape, strides, self.data) },
            None if self.extent.is_none() => TensorView::new(*dtype, &port.shape, &[]),
            None => {
                // SAFETY: as above, without gaps.
                let bytes = unsafe { std::slice::from_raw_parts(self.data, self.expected.size_bytes()) };
                TensorView::new(*dtype, &port.shape, bytes)
            }
        };
        view.map_err(|error| self.refused(&error))
    }

    /// # Safety
    /// As [`TensorViewMut::from_raw_parts`].
    unsafe fn view_mut(&self) -> Result<TensorViewMut<'_>, Failure> {
        let Expected { dtype, port, .. } = self.expected;
        let view = match self.strides {
            // SAFETY: the caller's promise.
            Some(strides) => unsafe {
                TensorViewMut::from_raw_parts(*dtype, &port.shape, strides, self.data)
            },
            None if self.extent.is_none() => TensorViewMut::new(*dtype, &port.shape, &mut []),
            None => {
                // SAFETY: as above, without gaps.
                let bytes = unsafe { std::slice::from_raw_parts_mut(self.data, self.expected.size_bytes()) };
                TensorViewMut::new(*dtype, &port.shape, bytes)
            }
        };
        view.map_err(|error| self.refused(&error))
    }

    /// The tensor in a GPU's memory.
    ///
    /// # Safety
    /// As [`DeviceAddress::new`].
    unsafe fn on_device(&self) -> Result<DeviceTensor<'a>, Failure> {
        let shape = &self.expected.port.shape;
        if !self.strides.is_none_or(|strides| is_row_major(shape, strides)) {
            let (side, name, strides) =
                (self.side, &self.expected.port.name, self.strides.unwrap_or_default());
            return Err(Failure::invalid(format!(
                "{side} `{name}` has strides {strides:?} of shape {shape:?}; in the memory of a GPU tensors must be row-major without gaps"
            )));
        }
        // SAFETY: the caller's promise.
        let start = unsafe { DeviceAddress::new(self.data.addr() as u64) };
        Ok(DeviceTensor { dtype: self.expected.dtype, shape, start })
    }

    fn refused(&self, error: &ViewError) -> Failure {
        Failure::invalid(format!("{} `{}`: {error}", self.side, self.expected.port.name))
    }
}

/// Refuses outputs that cover addresses of inputs or of each other: from first to last byte, gaps included.
fn check_overlaps(inputs: &[Placed<'_>], outputs: &[Placed<'_>]) -> Result<(), Failure> {
    let extents = |all: &[Placed<'_>]| all.iter().map(|placed| placed.extent.clone()).collect::<Vec<_>>();
    let Some(Overlap { output, other }) = first_overlap(&extents(inputs), &extents(outputs)) else {
        return Ok(());
    };
    let other = match other {
        OverlapWith::Input(number) => &inputs[number],
        OverlapWith::Output(number) => &outputs[number],
    };
    Err(Failure::usage(format!(
        "output `{}` overlaps {} `{}`",
        outputs[output].expected.port.name, other.side, other.expected.port.name
    )))
}
