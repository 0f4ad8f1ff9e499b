//! The memory of an executable, and the pointers into it that kernels get.

use super::aligned::AlignedBuffer;
use super::launch::{Action, Program};
use crate::program::{Base, BufferRef};
use crate::view::{TensorView, TensorViewMut};
use std::ffi::c_void;

/// Alignment that kernels may assume of the caller's tensors: that of the widest element.
const CALLER_ALIGN_BYTES: usize = 8;

/// Where everything that a [`BufferRef`] may name lies.
pub(super) struct Memory {
    arena: AlignedBuffer,
    constants: Vec<*mut u8>,
    pub(super) inputs: Vec<CallerTensor>,
    pub(super) outputs: Vec<CallerTensor>,
}

/// A tensor that the caller passes to each run, or its stand-in: row-major and aligned.
#[derive(Default)]
pub(super) struct CallerTensor {
    address: Option<*mut u8>,
    /// Made at the first run whose tensor is not so itself.
    stand_in: Option<AlignedBuffer>,
}

/// Scratch memory, a part of its own for each thread.
pub(super) struct Scratch {
    memory: AlignedBuffer,
    stride_bytes: usize,
}

/// The pointers that kernels get: those of all launches, one after the other.
pub(super) struct PointerTable {
    pointers: Vec<*mut c_void>,
    /// Where the pointers of each step begin.
    starts: Vec<usize>,
    /// The pointers to the caller's tensors: index in `pointers`, and what it points to.
    patches: Vec<(usize, BufferRef)>,
}

impl Memory {
    /// Memory for a valid program, whose constants stay where they are.
    pub(super) fn new(program: &Program) -> Self {
        Self {
            arena: AlignedBuffer::untouched(program.arena_bytes),
            constants: program.constants.iter().map(|bytes| bytes.as_ptr().cast_mut()).collect(),
            inputs: program.input_bytes.iter().map(|_| CallerTensor::default()).collect(),
            outputs: program.output_bytes.iter().map(|_| CallerTensor::default()).collect(),
        }
    }

    /// The address of a range of a valid program; null for the caller's tensors outside of a run.
    pub(super) fn address(&self, buffer: &BufferRef) -> *mut u8 {
        let start = match buffer.base {
            Base::Arena => Some(self.arena.as_ptr()),
            Base::Constant(idx) => Some(self.constants[idx]),
            Base::Input(idx) => self.inputs[idx].address,
            Base::Output(idx) => self.outputs[idx].address,
        };
        start.map_or(std::ptr::null_mut(), |start| start.wrapping_add(buffer.offset_bytes))
    }
}

impl CallerTensor {
    /// Takes an input for one run: where it lies, or as a row-major copy that is aligned.
    pub(super) fn set_input(&mut self, input: &TensorView<'_>) {
        self.address = Some(match input.bytes().filter(|bytes| is_aligned(bytes.as_ptr())) {
            Some(bytes) => bytes.as_ptr().cast_mut(),
            None => {
                let stand_in = self.stand_in(input.len_bytes());
                input.copy_to(stand_in.as_mut_slice());
                stand_in.as_ptr()
            }
        });
    }

    /// Takes an output for one run, with the value that its memory holds.
    pub(super) fn set_updated(&mut self, output: &mut TensorViewMut<'_>) {
        self.set_output(output);
        if let Some(stand_in) = self.stand_in.as_mut().filter(|it| self.address == Some(it.as_ptr())) {
            output.copy_to(stand_in.as_mut_slice());
        }
    }

    /// Lies where another tensor does, for one run.
    pub(super) fn set_same(&mut self, other: &Self) {
        self.address = other.address;
    }

    /// Takes an output for one run.
    pub(super) fn set_output(&mut self, output: &mut TensorViewMut<'_>) {
        let len = output.len_bytes();
        self.address = Some(match output.bytes_mut().filter(|bytes| is_aligned(bytes.as_ptr())) {
            Some(bytes) => bytes.as_mut_ptr(),
            None => self.stand_in(len).as_ptr(),
        });
    }

    /// Brings an output to the caller if it is not there yet: after the run that it was set for.
    pub(super) fn deliver(&self, output: &mut TensorViewMut<'_>) {
        if let Some(stand_in) = self.stand_in.as_ref().filter(|it| self.address == Some(it.as_ptr())) {
            output.copy_from(stand_in.as_slice());
        }
    }

    /// Forgets the caller's memory.
    pub(super) fn release(&mut self) {
        self.address = None;
    }

    fn stand_in(&mut self, len_bytes: usize) -> &mut AlignedBuffer {
        self.stand_in.get_or_insert_with(|| AlignedBuffer::zeroed(len_bytes))
    }
}

fn is_aligned(start: *const u8) -> bool {
    start.addr().is_multiple_of(CALLER_ALIGN_BYTES)
}

impl Scratch {
    /// `bytes` for each of `threads`.
    pub(super) fn new(bytes: usize, threads: usize) -> Self {
        // Two cache lines: adjacent lines are fetched in pairs.
        const SPACING_BYTES: usize = 128;
        let stride_bytes = bytes.next_multiple_of(SPACING_BYTES);
        Self { memory: AlignedBuffer::untouched(stride_bytes * threads), stride_bytes }
    }

    /// The part of one thread.
    pub(super) fn address(&self, thread: usize) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(thread * self.stride_bytes)
    }
}

impl PointerTable {
    /// The pointers of a valid program's launches; those to the caller's tensors are null until patched.
    pub(super) fn new(program: &Program, memory: &Memory) -> Self {
        let (mut pointers, mut starts, mut patches) = (Vec::new(), Vec::new(), Vec::new());
        for step in &program.steps {
            starts.push(pointers.len());
            let Action::Launch(launch) = &step.action else { continue };
            for buffer in &launch.buffers {
                if matches!(buffer.base, Base::Input(_) | Base::Output(_)) {
                    patches.push((pointers.len(), *buffer));
                }
                pointers.push(memory.address(buffer).cast());
            }
        }
        Self { pointers, starts, patches }
    }

    /// Enters the caller's tensors of this run.
    pub(super) fn patch(&mut self, memory: &Memory) {
        for (idx, buffer) in &self.patches {
            self.pointers[*idx] = memory.address(buffer).cast();
        }
    }

    /// The pointers of a launch.
    pub(super) fn of_step(&self, step: usize) -> *const *mut c_void {
        self.pointers[self.starts[step]..].as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::DType;

    #[test]
    fn scratch_parts_are_apart_and_aligned() {
        for bytes in [0, 1, 127, 128, 129] {
            let scratch = Scratch::new(bytes, 3);
            let starts = [0, 1, 2].map(|thread| scratch.address(thread).addr());
            assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= bytes));
            assert!(starts.iter().all(|start| start % super::super::ALIGN_BYTES == 0));
        }
    }

    #[test]
    fn unaligned_tensors_have_stand_ins() {
        let block = AlignedBuffer::copy_of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        let mut tensor = CallerTensor::default();
        tensor.set_input(&TensorView::new(DType::U8, &[4], &block.as_slice()[..4]).unwrap());
        assert!(tensor.stand_in.is_none());
        tensor.set_input(&TensorView::new(DType::U8, &[4], &block.as_slice()[3..7]).unwrap());
        assert_eq!(tensor.stand_in.as_ref().unwrap().as_slice(), [3, 4, 5, 6]);
        assert!(is_aligned(tensor.address.unwrap()));
    }
}
