//! Runs on tensors that the caller has in the device's memory, in the caller's stream.
//!
//! Kernels get the addresses of these tensors. An address that is not that of the run before is set in the arguments of the kernels that
//! access the tensor, and in their graph nodes: about 0.4 us for each such node; nothing is set for addresses that stay. A launch of a
//! graph takes the arguments that it has then, so that runs may follow one another without waiting.
//!
//! Some tensors are *staged*: copied to or from a buffer of the executable around the run. These are tensors that library calls access,
//! whose addresses are fixed when a call is prepared (then all steps use the buffer, so that none sees another content); those that do not start
//! at a multiple of [`TENSOR_ALIGN_BYTES`]; and outputs that overlap another tensor of the run.

use super::executable::{BoundaryStep, CudaExecutable, ExecutableError, GraphSegment, Segment};
use super::launch::{Action, Launch};
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

/// Tensors in the device's memory, row-major, in the model's order.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTensors<'a> {
    /// The inputs.
    pub inputs: &'a [DeviceAddress],
    /// The outputs.
    pub outputs: &'a [DeviceAddress],
    /// As many bytes as the program's arena has, from a multiple of 256 on, that take the place of the executable's working memory; `None`
    /// to use that. The run is launched kernel by kernel then. Programs with host routines or library calls do not use it.
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
struct Places {
    ports: Ports,
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
    /// If there are not as many tensors as the program has, a host routine fails or is to be captured, or the device fails. Faults of
    /// kernels may be reported by a later call.
    pub fn enqueue_on(
        &mut self,
        stream: &Arc<Stream>,
        tensors: &DeviceTensors<'_>,
    ) -> Result<(), ExecutableError> {
        let program = &self.source.program;
        check_counts("input", program.input_bytes.len(), tensors.inputs.len())?;
        check_counts("output", program.output_bytes.len(), tensors.outputs.len())?;
        let host = self.segments.iter().find_map(|segment| match segment {
            Segment::Host(step) => Some(&program.steps[*step]),
            Segment::Direct(_) | Segment::Graph(_) => None,
        });
        let is_captured = stream.is_capturing()?;
        if let Some(step) = host.filter(|_| is_captured) {
            return Err(RunError::Captured { step: step.name.clone() }.into());
        }
        let scratch = tensors.scratch.filter(|_| host.is_none() && !self.calls.any());
        if !is_captured {
            self.switch_to(stream)?;
        }
        let Places { ports, before, after } = self.places(tensors);
        enqueue_copies(stream, &before)?;
        if is_captured || scratch.is_some() {
            let arena = scratch.map_or_else(|| self.placement.arena(), DeviceAddress::get);
            self.enqueue_once(stream, &ports, arena)?;
        } else {
            self.bind(ports)?;
            self.enqueue()?;
        }
        Ok(enqueue_copies(stream, &after)?)
    }

    /// The executable's own buffer for an input, which a run of it may be given.
    pub fn own_input(&self, idx: usize) -> DeviceAddress {
        DeviceAddress(self.placement.inputs.address(idx))
    }

    /// Writes the executable's own buffer for an input, after all runs so far, and waits.
    ///
    /// # Errors
    /// If the size is another, or the device fails.
    pub fn upload_input(&mut self, idx: usize, bytes: &[u8]) -> Result<(), ExecutableError> {
        let expected = self.source.program.input_bytes[idx];
        check_sizes("input", &[expected], [bytes.len()].into_iter())?;
        // SAFETY: the bytes stay borrowed until the wait below.
        let begun = unsafe { self.placement.inputs.begin_write(&self.current, idx, bytes) };
        let waited = self.wait();
        Ok(begun.and(waited)?)
    }

    /// Makes the executable's own stream and buffers those of the next run.
    pub(in crate::cuda) fn use_own(&mut self) -> Result<(), CudaError> {
        let own = Arc::clone(self.stream());
        self.switch_to(&own)?;
        if self.is_bound && self.placement.ports == self.placement.own {
            return Ok(());
        }
        self.bind(self.placement.own.clone())
    }

    /// Makes a stream that of the next run, which waits for the last one.
    fn switch_to(&mut self, stream: &Arc<Stream>) -> Result<(), CudaError> {
        if self.current.handle() != stream.handle() {
            stream.follow(&self.current)?;
        }
        self.current = Arc::clone(stream);
        Ok(())
    }

    /// Which tensors kernels access where they are, and which are staged.
    fn places(&self, tensors: &DeviceTensors<'_>) -> Places {
        let program = &self.source.program;
        let own = &self.placement.own;
        let mut places = Places { ports: own.clone(), before: Vec::new(), after: Vec::new() };
        let is_direct = |base: Base, address: Address| {
            address.is_multiple_of(TENSOR_ALIGN_BYTES) && !self.ports_of_calls.contains(&base)
        };
        let inputs = tensors.inputs.iter().zip(&program.input_bytes).enumerate();
        for (idx, (&DeviceAddress(address), &len_bytes)) in inputs.filter(|(_, (_, bytes))| **bytes > 0) {
            if is_direct(Base::Input(idx), address) {
                places.ports.inputs[idx] = address;
            } else if address != own.inputs[idx] {
                places.before.push(StagingCopy { from: address, to: own.inputs[idx], len_bytes });
            }
        }
        let range = |(&DeviceAddress(start), &len): (&DeviceAddress, &usize)| {
            start..start.saturating_add(len as Address)
        };
        let read: Vec<Range<Address>> = tensors.inputs.iter().zip(&program.input_bytes).map(range).collect();
        let written: Vec<Range<Address>> =
            tensors.outputs.iter().zip(&program.output_bytes).map(range).collect();
        for (idx, (&DeviceAddress(address), &len_bytes)) in
            tensors.outputs.iter().zip(&program.output_bytes).enumerate()
        {
            if len_bytes == 0 {
                continue;
            }
            let others = read.iter().chain(&written[..idx]).chain(&written[idx + 1..]);
            let is_apart = others.into_iter().all(|other| !overlap(other, &written[idx]));
            if is_apart && is_direct(Base::Output(idx), address) {
                places.ports.outputs[idx] = address;
            } else {
                places.after.push(StagingCopy { from: own.outputs[idx], to: address, len_bytes });
            }
        }
        places
    }

    /// Gives the arguments of kernels and the graphs these addresses.
    fn bind(&mut self, ports: Ports) -> Result<(), CudaError> {
        if self.is_bound && self.placement.ports == ports {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.placement.ports, ports);
        // After an error it is not known what was set, and all is set again.
        let is_known = std::mem::replace(&mut self.is_bound, false);
        let has_moved =
            |port: &Base| !is_known || self.placement.ports.address(*port) != before.address(*port);
        let context = self.current.context();
        for BoundaryStep { step: idx, ports, node } in &self.boundary_steps {
            if !ports.iter().any(has_moved) {
                continue;
            }
            let step = &self.source.program.steps[*idx];
            let address = |range: &BufferRef| self.placement.address(range);
            self.arguments[*idx] = Arguments::of(step, address, context)?;
            let Some((segment, node)) = *node else { continue };
            let Segment::Graph(GraphSegment { graph, .. }) = &self.segments[segment] else { continue };
            match &step.action {
                Action::Launch(Launch { function, shape, .. }) => {
                    let pointers = self.arguments[*idx].pointers();
                    // SAFETY: these are the launch's own arguments, one for each tensor and tensor map.
                    unsafe { graph.set_kernel(node, function, shape, pointers)? };
                }
                Action::Copy { from, to } => {
                    graph.set_copy(node, address(from), address(to), from.len_bytes)?;
                }
                Action::Host(_) => {}
            }
        }
        self.is_bound = true;
        Ok(())
    }

    /// Enqueues a run with these addresses, kernel by kernel. No step is a host routine.
    fn enqueue_once(&mut self, stream: &Stream, ports: &Ports, arena: Address) -> Result<(), CudaError> {
        let address = |range: &BufferRef| self.placement.address_among(range, ports, arena);
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

fn overlap(first: &Range<Address>, second: &Range<Address>) -> bool {
    !first.is_empty() && !second.is_empty() && first.start < second.end && second.start < first.end
}

#[cfg(test)]
mod tests;
