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

/// Device addresses of a model's inputs and outputs, and of the memory that it works in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cuda) struct Ports {
    pub(in crate::cuda) arena: Address,
    pub(in crate::cuda) inputs: Vec<Address>,
    pub(in crate::cuda) outputs: Vec<Address>,
}

/// All device buffers of an executable, and where its inputs and outputs are now: in buffers of its own, which tensors of the host are
/// copied to and from, or in tensors of the caller.
pub(in crate::cuda) struct Placement {
    /// Its own working memory, if there is some yet.
    arena: Option<DeviceBuffer>,
    constants: Arc<Packed>,
    /// Its own buffers for inputs and outputs. Each is allocated, as zeros, when it is first needed: tensors of the caller need none.
    input_buffers: Vec<Option<DeviceBuffer>>,
    output_buffers: Vec<Option<DeviceBuffer>>,
    /// Where inputs, outputs and working memory are now; 0 until a first run says so.
    pub(in crate::cuda) ports: Ports,
}

impl Ports {
    fn unknown(program: &Program) -> Self {
        let zeros = |sizes: &[usize]| vec![0; sizes.len()];
        Self { arena: 0, inputs: zeros(&program.input_bytes), outputs: zeros(&program.output_bytes) }
    }

    /// The address of an input, an output or working memory; `None` for constants, which stay.
    pub(in crate::cuda) fn address(&self, base: Base) -> Option<Address> {
        match base {
            Base::Input(idx) => Some(self.inputs[idx]),
            Base::Output(idx) => Some(self.outputs[idx]),
            Base::Arena => Some(self.arena),
            Base::Constant(_) => None,
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

    fn address(&self, idx: usize) -> Address {
        self.buffer.address() + self.starts[idx] as Address
    }

    /// Enqueues writing tensor `idx`.
    ///
    /// # Safety
    /// As [`DeviceBuffer::begin_copy_from_host`].
    unsafe fn begin_write(&self, stream: &Stream, idx: usize, bytes: &[u8]) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.buffer.begin_copy_from_host(stream, self.starts[idx], bytes) }
    }
}

impl Placement {
    /// For a valid program, whose constants are on the device.
    pub(in crate::cuda) fn new(program: &Program, constants: &Arc<Packed>) -> Self {
        let none = |sizes: &[usize]| sizes.iter().map(|_| None).collect();
        Self {
            arena: None,
            constants: Arc::clone(constants),
            input_buffers: none(&program.input_bytes),
            output_buffers: none(&program.output_bytes),
            ports: Ports::unknown(program),
        }
    }

    /// Its own working memory: zeros when it is first needed.
    ///
    /// # Errors
    /// If the device lacks memory.
    pub(in crate::cuda) fn own_arena(
        &mut self,
        stream: &Stream,
        program: &Program,
    ) -> Result<Address, CudaError> {
        let arena = own(&mut self.arena, stream, program, program.arena_bytes, "working memory")?;
        Ok(arena.address())
    }

    /// Makes its own working memory that of the next run.
    ///
    /// # Errors
    /// If the device lacks memory.
    pub(in crate::cuda) fn fix_arena(&mut self, stream: &Stream, program: &Program) -> Result<(), CudaError> {
        self.ports.arena = self.own_arena(stream, program)?;
        Ok(())
    }

    /// Its own buffer for input `idx`.
    ///
    /// # Errors
    /// If the device lacks memory.
    pub(in crate::cuda) fn own_input(
        &mut self,
        stream: &Stream,
        program: &Program,
        idx: usize,
    ) -> Result<&DeviceBuffer, CudaError> {
        own(&mut self.input_buffers[idx], stream, program, program.input_bytes[idx], "inputs")
    }

    /// Its own buffer for output `idx`.
    ///
    /// # Errors
    /// If the device lacks memory.
    pub(in crate::cuda) fn own_output(
        &mut self,
        stream: &Stream,
        program: &Program,
        idx: usize,
    ) -> Result<&DeviceBuffer, CudaError> {
        own(&mut self.output_buffers[idx], stream, program, program.output_bytes[idx], "outputs")
    }

    /// Whether inputs and outputs are in its own buffers now.
    pub(in crate::cuda) fn is_own(&self) -> bool {
        let is_in = |(buffer, address): (&Option<DeviceBuffer>, &Address)| {
            buffer.as_ref().is_some_and(|buffer| buffer.address() == *address)
        };
        is_in((&self.arena, &self.ports.arena))
            && self.input_buffers.iter().zip(&self.ports.inputs).all(is_in)
            && self.output_buffers.iter().zip(&self.ports.outputs).all(is_in)
    }

    /// Its own working memory, and its own buffers for all inputs and outputs.
    ///
    /// # Errors
    /// If the device lacks memory.
    pub(in crate::cuda) fn own_ports(
        &mut self,
        stream: &Stream,
        program: &Program,
    ) -> Result<Ports, CudaError> {
        let arena = self.own_arena(stream, program)?;
        let inputs = (0..program.input_bytes.len())
            .map(|idx| self.own_input(stream, program, idx).map(DeviceBuffer::address))
            .collect::<Result<_, _>>()?;
        let outputs = (0..program.output_bytes.len())
            .map(|idx| self.own_output(stream, program, idx).map(DeviceBuffer::address))
            .collect::<Result<_, _>>()?;
        Ok(Ports { arena, inputs, outputs })
    }

    /// Gives a port that a library's call accesses its own buffer for good.
    ///
    /// # Errors
    /// If the device lacks memory.
    pub(in crate::cuda) fn fix(
        &mut self,
        stream: &Stream,
        program: &Program,
        port: Base,
    ) -> Result<(), CudaError> {
        match port {
            Base::Input(idx) => {
                self.ports.inputs[idx] = self.own_input(stream, program, idx)?.address();
            }
            Base::Output(idx) => {
                self.ports.outputs[idx] = self.own_output(stream, program, idx)?.address();
            }
            Base::Arena | Base::Constant(_) => {}
        }
        Ok(())
    }

    /// The device address of a range of the program.
    pub(in crate::cuda) fn address(&self, range: &BufferRef) -> Address {
        self.address_among(range, &self.ports)
    }

    /// The same, with these inputs, outputs and working memory.
    pub(in crate::cuda) fn address_among(&self, range: &BufferRef, ports: &Ports) -> Address {
        let start = match range.base {
            Base::Arena => ports.arena,
            Base::Constant(idx) => self.constants.address(idx),
            Base::Input(idx) => ports.inputs[idx],
            Base::Output(idx) => ports.outputs[idx],
        };
        start + range.offset_bytes as Address
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

/// The buffer, which is allocated if there is none yet.
fn own<'a>(
    buffer: &'a mut Option<DeviceBuffer>,
    stream: &Stream,
    program: &Program,
    len_bytes: usize,
    purpose: &str,
) -> Result<&'a DeviceBuffer, CudaError> {
    match buffer {
        Some(buffer) => Ok(buffer),
        none => {
            let made = DeviceBuffer::new(stream.context(), len_bytes, purpose)
                .map_err(|error| with_total(error, program))?;
            made.fill(stream, 0)?;
            Ok(none.insert(made))
        }
    }
}

/// Bytes that a tensor of this size takes in a [`Packed`] buffer.
fn padded(len_bytes: usize) -> usize {
    len_bytes.saturating_add(ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES
}

/// Adds to an out-of-memory error how much the whole program needs: the allocation that fails may be a small part of it.
fn with_total(error: CudaError, program: &Program) -> CudaError {
    let CudaError::OutOfMemory { doing, needed_bytes, free_bytes, total_bytes } = error else { return error };
    let constants = program.constants.iter().map(|bytes| padded(bytes.len()));
    let ports = program.input_bytes.iter().chain(&program.output_bytes).copied();
    let in_all = constants.chain(ports).fold(program.arena_bytes, usize::saturating_add);
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
