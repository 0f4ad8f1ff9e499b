//! Runs on tensors that the caller has in the device's memory, in the caller's stream.
//!
//! Kernels get the addresses of these tensors. An address that is not that of the run before is set in the arguments of the kernels that
//! access the tensor, and in their graph nodes: about 0.4 us for each such node; nothing is set for addresses that stay. A launch of a
//! graph takes the arguments that it has then, so that runs may follow one another without waiting.
//!
//! Inputs may also be in the host's memory, such as numbers: these are sent when they change (`host_inputs`).
//!
//! Some tensors are *staged*: copied to or from a buffer of the executable around the run. These are tensors that library calls access,
//! whose addresses are fixed when a call is prepared (then all steps use the buffer, so that none sees another content); those that do not start
//! at a multiple of [`TENSOR_ALIGN_BYTES`]; and outputs that overlap another tensor of the run, but for one that has the memory of the input
//! that it updates: then the copy of the old value is left out of the graph, which is built anew when that changes.

use super::executable::{CudaExecutable, ExecutableError};
use super::host_inputs::HostInput;
use super::launch::Action;
use super::placement::{Arguments, Ports};
use crate::cuda::driver::error::CudaError;
use crate::cuda::driver::stream::Stream;
use crate::cuda::driver::sys::Address;
use crate::program::{Base, BufferRef, RunError, check_counts, check_sizes};
use std::ops::Range;
use std::sync::Arc;

/// Alignment that kernels rely on: the widest access, and what TMA asks of a tensor.
const TENSOR_ALIGN_BYTES: Address = 16;

/// An address in the device's memory, of what it is passed for: a tensor, or working memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceAddress(Address);

/// Where an input of a run on the device is, row-major.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputPlace<'a> {
    /// In the device's memory.
    Device(DeviceAddress),
    /// In the host's memory: the bytes are read before the call returns.
    Host(&'a [u8]),
    /// In the executable's own buffer, where [`CudaExecutable::upload_input`] has brought it.
    Uploaded,
}

/// Tensors of a run on the device, row-major, in the model's order.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTensors<'a> {
    /// The inputs.
    pub inputs: &'a [InputPlace<'a>],
    /// The outputs.
    pub outputs: &'a [DeviceAddress],
    /// As many bytes as the program's arena has, from a multiple of 256 on, that take the place of the executable's working memory; `None`
    /// to use that. As of tensors, an address that differs from that of the run before is set in all kernels that access it. Programs with host
    /// routines or library calls do not use it.
    pub scratch: Option<DeviceAddress>,
}

impl DeviceAddress {
    /// An address as kernels receive it.
    ///
    /// # Safety
    /// Where it is passed for a tensor or working memory of some size, so many bytes from there on must be memory of that device, or managed
    /// memory that it accesses. Until the run is done, inputs must keep their content, and outputs and working memory must
    /// not be used otherwise.
    pub unsafe fn new(address: u64) -> Self {
        Self(address)
    }

    /// The address as a number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// Where the tensors of a run are, and the copies around it.
struct Places<'a> {
    ports: Ports,
    sent: Vec<HostInput<'a>>,
    before: Vec<StagingCopy>,
    after: Vec<StagingCopy>,
}

struct StagingCopy {
    from: Address,
    to: Address,
    len_bytes: usize,
}

impl CudaExecutable {
    /// Enqueues a run, and returns without waiting for it, unless a step runs on the host. In a stream that is being captured the run
    /// becomes part of that graph.
    ///
    /// Runs in several streams follow one another, as they share the executable's working memory. A run that was captured without
    /// `scratch` uses that memory whenever its graph is launched, which must not be at the same time as other runs. Such a graph must
    /// not be launched after the executable was dropped.
    ///
    /// # Errors
    /// If there are not as many tensors as the program has, a tensor of the host has another size, a host routine fails, something of the
    /// host is to be captured, or the device fails. Faults of kernels may be reported by a later call.
    pub fn enqueue_on(
        &mut self,
        stream: &Arc<Stream>,
        tensors: &DeviceTensors<'_>,
    ) -> Result<(), ExecutableError> {
        let program = &self.source.program;
        check_counts("input", program.input_bytes.len(), tensors.inputs.len())?;
        check_counts("output", program.output_bytes.len(), tensors.outputs.len())?;
        for (index, (input, &expected)) in tensors.inputs.iter().zip(&program.input_bytes).enumerate() {
            let InputPlace::Host(bytes) = input else { continue };
            if bytes.len() != expected {
                let (what, given) = ("input", bytes.len());
                return Err(RunError::Size { what, index, expected, given }.into());
            }
        }
        let host = program.steps.iter().find(|step| matches!(step.action, Action::Host(_)));
        let is_captured = stream.is_capturing()?;
        if let Some(step) = host.filter(|_| is_captured) {
            return Err(RunError::Captured { step: step.name.clone() }.into());
        }
        let of_host = tensors.inputs.iter().position(|input| matches!(input, InputPlace::Host(_)));
        if let Some(index) = of_host.filter(|_| is_captured) {
            return Err(RunError::CapturedInput { index }.into());
        }
        let scratch = tensors.scratch.filter(|_| host.is_none() && !self.calls.any());
        let _range = self.begin_range();
        if !is_captured {
            self.switch_to(stream)?;
        }
        let arena = match scratch {
            Some(DeviceAddress(address)) => address,
            None => self.placement.own_arena(&self.current, &self.source.program)?,
        };
        let Places { ports, sent, before, after } = self.places(tensors, arena)?;
        // SAFETY: sizes were compared above, and the stream has waited for the run before.
        unsafe { self.host_inputs.send(stream, &sent)? };
        enqueue_copies(stream, &before)?;
        if is_captured {
            self.enqueue_once(stream, &ports)?;
        } else {
            self.timed(|executable| {
                executable.bind(ports)?;
                executable.enqueue()
            })?;
        }
        Ok(enqueue_copies(stream, &after)?)
    }

    /// Writes the executable's own buffer for an input, after all runs so far, and waits.
    ///
    /// # Errors
    /// If the size is another, or the device fails.
    pub fn upload_input(&mut self, idx: usize, bytes: &[u8]) -> Result<(), ExecutableError> {
        let program = &self.source.program;
        check_sizes("input", &[program.input_bytes[idx]], [bytes.len()].into_iter())?;
        self.host_inputs.forget(idx);
        let buffer = self.placement.own_input(&self.current, program, idx)?;
        Ok(buffer.copy_from_host(&self.current, 0, bytes)?)
    }

    /// Makes the executable's own stream and buffers those of the next run.
    pub(in crate::cuda) fn use_own(&mut self) -> Result<(), CudaError> {
        let own = Arc::clone(self.stream());
        self.switch_to(&own)?;
        if self.is_bound() && self.placement.is_own() {
            return Ok(());
        }
        let ports = self.placement.own_ports(&own, &self.source.program)?;
        self.bind(ports)
    }

    /// Makes a stream that of the next run, which waits for the last one.
    fn switch_to(&mut self, stream: &Arc<Stream>) -> Result<(), CudaError> {
        if self.current.handle() != stream.handle() {
            stream.follow(&self.current)?;
        }
        self.current = Arc::clone(stream);
        Ok(())
    }

    /// Which tensors kernels access where they are, and which are in the executable's own buffers.
    fn places<'a>(&mut self, tensors: &DeviceTensors<'a>, arena: Address) -> Result<Places<'a>, CudaError> {
        let Self { source, placement, host_inputs, current, ports_of_calls, .. } = self;
        let program = &source.program;
        let is_direct = |base: Base, address: Address, len_bytes: usize| {
            let is_aligned = address.is_multiple_of(TENSOR_ALIGN_BYTES);
            len_bytes == 0 || (is_aligned && !ports_of_calls.contains(&base))
        };
        let (mut sent, mut before, mut after) = (Vec::new(), Vec::new(), Vec::new());
        let (mut read, mut inputs) = (Vec::new(), Vec::with_capacity(tensors.inputs.len()));
        for (idx, (place, &len_bytes)) in tensors.inputs.iter().zip(&program.input_bytes).enumerate() {
            if let InputPlace::Device(DeviceAddress(address)) = *place {
                read.push((idx, range(address, len_bytes)));
                if is_direct(Base::Input(idx), address, len_bytes) {
                    inputs.push(address);
                    continue;
                }
            }
            let to = placement.own_input(current, program, idx)?.address();
            match *place {
                InputPlace::Device(DeviceAddress(from)) => {
                    host_inputs.forget(idx);
                    before.push(StagingCopy { from, to, len_bytes });
                }
                InputPlace::Host(bytes) => sent.push(HostInput { idx, bytes, to }),
                InputPlace::Uploaded => {}
            }
            inputs.push(to);
        }
        let written: Vec<Range<Address>> = (tensors.outputs.iter().zip(&program.output_bytes))
            .map(|(&DeviceAddress(address), &len_bytes)| range(address, len_bytes))
            .collect();
        // Inputs whose memory the outputs have that update them.
        let has_own = |input: usize| {
            program
                .updates
                .iter()
                .any(|update| update.input == input && tensors.outputs[update.output].get() == inputs[input])
        };
        read.retain(|(input, _)| !has_own(*input));
        let read: Vec<Range<Address>> = read.into_iter().map(|(_, range)| range).collect();
        let overlaps = overlapping(&written, &read);
        let mut outputs = Vec::with_capacity(written.len());
        for (idx, (&DeviceAddress(to), &len_bytes)) in
            tensors.outputs.iter().zip(&program.output_bytes).enumerate()
        {
            if is_direct(Base::Output(idx), to, len_bytes) && !overlaps[idx] {
                outputs.push(to);
                continue;
            }
            let from = placement.own_output(current, program, idx)?.address();
            after.push(StagingCopy { from, to, len_bytes });
            outputs.push(from);
        }
        Ok(Places { ports: Ports { arena, inputs, outputs }, sent, before, after })
    }

    /// Enqueues a run with these addresses, kernel by kernel. No step is a host routine.
    fn enqueue_once(&mut self, stream: &Stream, ports: &Ports) -> Result<(), CudaError> {
        let address = |range: &BufferRef| self.placement.address_among(range, ports);
        for (idx, step) in self.source.program.steps.iter().enumerate() {
            let arguments = Arguments::of(step, address, stream.context())?;
            self.put_step(idx, stream, &arguments, address, idx > 0)?;
        }
        self.is_pending(0..self.source.program.steps.len());
        Ok(())
    }
}

fn enqueue_copies(stream: &Stream, copies: &[StagingCopy]) -> Result<(), CudaError> {
    copies.iter().try_for_each(|copy| stream.copy(copy.from, copy.to, copy.len_bytes))
}

/// The addresses of a tensor.
fn range(start: Address, len_bytes: usize) -> Range<Address> {
    start..start.saturating_add(len_bytes as Address)
}

/// For each range that is written whether it overlaps another one, written or read. Takes `n log n` steps where few overlap.
fn overlapping(written: &[Range<Address>], read: &[Range<Address>]) -> Vec<bool> {
    let mut overlaps = vec![false; written.len()];
    let numbered = written.iter().enumerate().map(|(idx, range)| (Some(idx), range));
    let mut ranges: Vec<_> = numbered.chain(read.iter().map(|range| (None, range))).collect();
    ranges.retain(|(_, range)| !range.is_empty());
    ranges.sort_unstable_by_key(|(_, range)| range.start);
    // Those before that reach beyond the start of the present one.
    let mut open: Vec<(Option<usize>, &Range<Address>)> = Vec::new();
    for (idx, range) in ranges {
        open.retain(|(_, other)| other.end > range.start);
        if !open.is_empty() {
            open.iter().filter_map(|(other, _)| *other).chain(idx).for_each(|idx| overlaps[idx] = true);
        }
        open.push((idx, range));
    }
    overlaps
}

#[cfg(test)]
mod tests;
