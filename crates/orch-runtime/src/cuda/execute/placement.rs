//! Where the tensors of a program lie on the device, and the arguments that kernels get.

use super::launch::{Action, CudaStep, Program, TensorMapShape};
use crate::cuda::driver::device::Context;
use crate::cuda::driver::error::{CudaError, size};
use crate::cuda::driver::memory::DeviceBuffer;
use crate::cuda::driver::stream::Stream;
use crate::cuda::driver::sys::{Address, EncodedTensorMap, tensor_map};
use crate::program::{Base, BufferRef};
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

/// Alignment of constants, inputs, outputs and the arena, which kernels rely on: that of an allocation.
const ALIGN_BYTES: usize = 256;

/// Tensors one after the other in one device buffer.
pub(in crate::cuda) struct Packed {
    buffer: DeviceBuffer,
    starts: Vec<usize>,
}

/// Device addresses of a model's inputs and outputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cuda) struct Ports {
    pub(in crate::cuda) inputs: Vec<Address>,
    pub(in crate::cuda) outputs: Vec<Address>,
}

/// All device buffers of an executable, and where its inputs and outputs are now: in buffers of its own, which tensors of the host are
/// copied to and from, or in tensors of the caller.
pub(in crate::cuda) struct Placement {
    arena: DeviceBuffer,
    pub(in crate::cuda) constants: Arc<Packed>,
    pub(in crate::cuda) inputs: Packed,
    pub(in crate::cuda) outputs: Packed,
    /// Where its own buffers for inputs and outputs are.
    pub(in crate::cuda) own: Ports,
    /// Where inputs and outputs are now.
    pub(in crate::cuda) ports: Ports,
}

impl Ports {
    /// The address of an input or output; `None` for other memory.
    pub(in crate::cuda) fn address(&self, base: Base) -> Option<Address> {
        match base {
            Base::Input(idx) => Some(self.inputs[idx]),
            Base::Output(idx) => Some(self.outputs[idx]),
            Base::Arena | Base::Constant(_) => None,
        }
    }
}

/// The arguments of a launch, and the pointers to them that are passed to the driver.
pub(in crate::cuda) struct Arguments {
    pointers: Box<[*mut c_void]>,
    /// What the pointers point to.
    _addresses: Box<[u64]>,
    _maps: Box<[EncodedTensorMap]>,
}

// SAFETY: the pointers are to memory that this value owns.
unsafe impl Send for Arguments {}

impl Packed {
    fn new(context: &Context, sizes: &[usize], purpose: &str) -> Result<Self, CudaError> {
        let mut total = 0usize;
        let mut starts = Vec::with_capacity(sizes.len());
        for size in sizes {
            starts.push(total);
            // A total that saturates is more than any device has.
            total = total.saturating_add(padded(*size));
        }
        Ok(Self { buffer: DeviceBuffer::new(context, total, purpose)?, starts })
    }

    /// Enqueues setting all to zero.
    fn clear(&self, stream: &Stream) -> Result<(), CudaError> {
        self.buffer.fill(stream, 0)
    }

    /// Enqueues copying all of `from`, which holds tensors of the same sizes.
    pub(in crate::cuda) fn begin_copy(&self, stream: &Stream, from: &Self) -> Result<(), CudaError> {
        self.buffer.copy_from(stream, 0, &from.buffer, 0, self.buffer.len_bytes())
    }

    pub(in crate::cuda) fn address(&self, idx: usize) -> Address {
        self.buffer.address() + self.starts[idx] as Address
    }

    fn addresses(&self) -> Vec<Address> {
        (0..self.starts.len()).map(|idx| self.address(idx)).collect()
    }

    /// Enqueues writing tensor `idx`.
    ///
    /// # Safety
    /// As [`DeviceBuffer::begin_copy_from_host`].
    pub(in crate::cuda) unsafe fn begin_write(
        &self,
        stream: &Stream,
        idx: usize,
        bytes: &[u8],
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.buffer.begin_copy_from_host(stream, self.starts[idx], bytes) }
    }

    /// Enqueues reading tensor `idx`.
    ///
    /// # Safety
    /// As [`DeviceBuffer::begin_copy_to_host`].
    pub(in crate::cuda) unsafe fn begin_read(
        &self,
        stream: &Stream,
        idx: usize,
        bytes: &mut [u8],
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.buffer.begin_copy_to_host(stream, self.starts[idx], bytes) }
    }
}

impl Placement {
    /// Device buffers for a valid program, whose constants are on the device: all else is zero.
    pub(in crate::cuda) fn new(
        stream: &Stream,
        program: &Program,
        constants: &Arc<Packed>,
    ) -> Result<Self, CudaError> {
        Self::allocate(stream, program, constants).map_err(|error| with_total(error, program))
    }

    fn allocate(stream: &Stream, program: &Program, constants: &Arc<Packed>) -> Result<Self, CudaError> {
        let context = stream.context();
        let arena = DeviceBuffer::new(context, program.arena_bytes, "working memory")?;
        let inputs = Packed::new(context, &program.input_bytes, "inputs")?;
        let outputs = Packed::new(context, &program.output_bytes, "outputs")?;
        let own = Ports { inputs: inputs.addresses(), outputs: outputs.addresses() };
        let ports = own.clone();
        let placement = Self { arena, constants: Arc::clone(constants), inputs, outputs, own, ports };
        placement.arena.fill(stream, 0)?;
        placement.inputs.clear(stream)?;
        placement.outputs.clear(stream)?;
        Ok(placement)
    }

    /// The device address of a range of the program.
    pub(in crate::cuda) fn address(&self, range: &BufferRef) -> Address {
        self.address_among(range, &self.ports, self.arena())
    }

    /// The same, with these inputs, outputs and working memory.
    pub(in crate::cuda) fn address_among(&self, range: &BufferRef, ports: &Ports, arena: Address) -> Address {
        let start = match range.base {
            Base::Arena => arena,
            Base::Constant(idx) => self.constants.address(idx),
            Base::Input(idx) => ports.inputs[idx],
            Base::Output(idx) => ports.outputs[idx],
        };
        start + range.offset_bytes as Address
    }

    /// The address of its working memory.
    pub(in crate::cuda) fn arena(&self) -> Address {
        self.arena.address()
    }

    /// The content of a range, when all that is enqueued is done.
    pub(in crate::cuda) fn read(&self, stream: &Stream, range: &BufferRef) -> Result<Vec<u8>, CudaError> {
        let mut bytes = vec![0; range.len_bytes];
        if range.len_bytes > 0 {
            // SAFETY: the program's ranges are inside of their tensors, and the bytes stay until the wait below.
            unsafe { stream.download(self.address(range), &mut bytes)? };
        }
        stream.synchronize()?;
        Ok(bytes)
    }

    /// Writes a range, after all that is enqueued.
    pub(in crate::cuda) fn write(
        &self,
        stream: &Stream,
        range: &BufferRef,
        bytes: &[u8],
    ) -> Result<(), CudaError> {
        if range.len_bytes > 0 {
            // SAFETY: the program's ranges are inside of their tensors, and the bytes stay until the wait below.
            unsafe { stream.upload(bytes, self.address(range))? };
        }
        stream.synchronize()
    }
}

/// Bytes that a tensor of this size takes in a [`Packed`] buffer.
fn padded(len_bytes: usize) -> usize {
    len_bytes.saturating_add(ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES
}

/// Adds to an out-of-memory error how much the whole program needs: the allocation that fails may be a small part of it.
fn with_total(error: CudaError, program: &Program) -> CudaError {
    let CudaError::OutOfMemory { doing, needed_bytes, free_bytes, total_bytes } = error else { return error };
    let constants = program.constants.iter().map(|bytes| bytes.len());
    let ports = program.input_bytes.iter().chain(&program.output_bytes).copied();
    let in_all = constants.chain(ports).map(padded).fold(program.arena_bytes, usize::saturating_add);
    let doing = format!("{doing} (all tensors together take {})", size(in_all));
    CudaError::OutOfMemory { doing, needed_bytes, free_bytes, total_bytes }
}

/// Brings the constants of a program to the device, and waits until they are there.
///
/// # Errors
/// If the device lacks memory.
pub(in crate::cuda) fn upload_constants(stream: &Stream, program: &Program) -> Result<Packed, CudaError> {
    let sizes: Vec<usize> = program.constants.iter().map(|bytes| bytes.len()).collect();
    let packed =
        Packed::new(stream.context(), &sizes, "constants").map_err(|error| with_total(error, program))?;
    let begun = program.constants.iter().enumerate().try_for_each(|(idx, bytes)| {
        // SAFETY: the program's constants stay as they are until the wait below.
        unsafe { packed.begin_write(stream, idx, bytes) }
    });
    let waited = stream.synchronize();
    begun.and(waited)?;
    Ok(packed)
}

impl Arguments {
    /// The arguments of a step whose ranges have these addresses: none unless it is a launch.
    ///
    /// # Errors
    /// If the driver rejects a tensor map.
    pub(in crate::cuda) fn of(
        step: &CudaStep,
        address: impl Fn(&BufferRef) -> Address,
        context: &Context,
    ) -> Result<Self, CudaError> {
        let (buffers, shapes) = match &step.action {
            Action::Launch(launch) => (&launch.buffers[..], &launch.tensor_maps[..]),
            Action::Copy { .. } | Action::Host(_) => (&[][..], &[][..]),
        };
        let mut addresses: Box<[u64]> = buffers.iter().map(address).collect();
        let map = |shape: &TensorMapShape| encode(shape, addresses[shape.argument], &step.name, context);
        let mut maps: Box<[EncodedTensorMap]> = shapes.iter().map(map).collect::<Result<_, _>>()?;
        let to_addresses = addresses.iter_mut().map(|address| (&raw mut *address).cast());
        let to_maps = maps.iter_mut().map(|map| (&raw mut *map).cast());
        Ok(Self { pointers: to_addresses.chain(to_maps).collect(), _addresses: addresses, _maps: maps })
    }

    /// The pointers, valid as long as this value.
    pub(in crate::cuda) fn pointers(&self) -> &[*mut c_void] {
        &self.pointers
    }
}

/// Elements of a row of a TMA tile: 128 bytes of 16-bit elements.
const TILE_ROW_ELEMS: c_uint = 64;

/// Encodes the tensor map (TMA descriptor) of a tensor at an address.
///
/// # Errors
/// If the driver rejects it.
fn encode(
    shape: &TensorMapShape,
    address: u64,
    step: &str,
    context: &Context,
) -> Result<EncodedTensorMap, CudaError> {
    let driver = context.enter()?;
    let rank = shape.extents.len();
    let mut tile_extents = vec![1; rank];
    (tile_extents[0], tile_extents[1]) = (TILE_ROW_ELEMS, shape.rows);
    let element_strides: Vec<c_uint> = vec![1; rank];
    let mut map = EncodedTensorMap([0; 16]);
    // SAFETY: the arrays have `rank` elements, the strides one less, and the driver reads them during the call only.
    let status = unsafe {
        (driver.api.encode_tensor_map)(
            &raw mut map,
            tensor_map::UINT16,
            rank as c_uint,
            address + shape.offset_bytes as u64,
            shape.extents.as_ptr(),
            shape.strides_bytes.as_ptr(),
            tile_extents.as_ptr(),
            element_strides.as_ptr(),
            tensor_map::INTERLEAVE_NONE,
            tensor_map::SWIZZLE_128B,
            // With 256 bytes, TMA tiles of 128 bytes of longer rows load up to 10 % slower on an H200, and none faster.
            tensor_map::PROMOTE_128B,
            tensor_map::FILL_ZEROS,
        )
    };
    driver.check(status, || format!("encoding the tensor map {shape:?} of step `{step}`"))?;
    Ok(map)
}
