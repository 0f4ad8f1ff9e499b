//! A plan run by the interpreter of thread programs, kernel by kernel: what a device would compute, without one.
//!
//! Every access is checked, and so is that each kernel writes all of its results. Working memory starts as NaN, so that
//! what is read before it is written shows.

use super::host::{InterpretedPart, tensor_of_slot};
use super::options::check_input;
use crate::Error;
use crate::manifest::{ActionInfo, ClearedSlot, Port, Slot, SlotMemory, StepInfo, typed};
use crate::plan::planned::Planned;
use orch_ir::Tensor;
use orch_runtime::program::HostRoutine;
use orch_thread::interp::{BufferData, ExecOptions, interpret};

/// All memory of a run.
struct EmulatedMemory<'a> {
    planned: &'a Planned,
    inputs: &'a [Tensor],
    arena: Vec<u8>,
    outputs: Vec<Vec<u8>>,
}

impl Planned {
    /// Computes the outputs, in the model's order, from the inputs, in the model's order: slowly.
    ///
    /// # Errors
    /// If the inputs are not those of the model, a kernel does what no kernel may, or a host routine fails.
    pub fn emulate(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        if inputs.len() != self.inputs.len() {
            let (given, expected) = (inputs.len(), self.inputs.len());
            return Err(Error::Input(format!("{given} inputs are given, the model takes {expected}")));
        }
        for (port, tensor) in self.inputs.iter().zip(inputs) {
            check_input(port, tensor)?;
        }
        let zeros =
            |port: &Port| typed(&port.dtype, &port.shape).map(|(dtype, shape)| Tensor::zeros(dtype, shape));
        let outputs = self.outputs.iter().map(zeros).collect::<Result<Vec<Tensor>, Error>>()?;
        let mut memory = EmulatedMemory {
            planned: self,
            inputs,
            arena: vec![0xff; self.assembly.arena_bytes],
            outputs: outputs.iter().map(|tensor| tensor.bytes().to_vec()).collect(),
        };
        for step in &self.assembly.steps {
            memory.run(step).map_err(|reason| Error::internal(format!("step `{}`: {reason}", step.name)))?;
        }
        let results = outputs.iter().zip(memory.outputs);
        results
            .map(|(like, bytes)| {
                Tensor::from_bytes(like.dtype(), like.shape().clone(), bytes.into()).map_err(Error::internal)
            })
            .collect()
    }

    /// Names of the steps that run as host routines.
    pub fn host_steps(&self) -> Vec<&str> {
        let steps = self.assembly.steps.iter();
        let hosts = steps.filter(|step| matches!(step.action, ActionInfo::Host { .. }));
        hosts.map(|step| step.name.as_str()).collect()
    }
}

impl EmulatedMemory<'_> {
    fn run(&mut self, step: &StepInfo) -> Result<(), String> {
        match &step.action {
            ActionInfo::Kernel(number) => {
                for ClearedSlot { slot, constant } in &step.cleared {
                    let zeros = self.planned.assembly.constants[*constant].clone();
                    self.write(&step.slots[*slot], &zeros)?;
                }
                self.launch(*number, &step.slots)
            }
            ActionInfo::Copy => {
                let [from, to] = &step.slots[..] else {
                    return Err("it does not copy one tensor".to_owned());
                };
                let bytes = self.read(from)?.to_vec();
                self.write(to, &bytes)
            }
            ActionInfo::Host { graph, layouts } => {
                let part = InterpretedPart::of(graph, layouts, &step.slots)?;
                let (read, written) = step.slots.split_at(part.graph.inputs.len());
                let inputs = read.iter().map(|slot| tensor_of_slot(slot, self.read(slot)?.to_vec()));
                let results = part.run(&inputs.collect::<Result<Vec<Tensor>, String>>()?)?;
                written.iter().zip(results).try_for_each(|(slot, result)| self.write(slot, result.bytes()))
            }
        }
    }

    fn launch(&mut self, number: usize, slots: &[Slot]) -> Result<(), String> {
        let kernel = self.planned.implementation.kernels.get(number).ok_or("there is no such kernel")?;
        let program = &kernel.design.kernel.program;
        let mut buffers = Vec::with_capacity(slots.len());
        for (slot, buffer) in slots.iter().zip(&program.buffers) {
            buffers.push(BufferData { dtype: buffer.dtype, bytes: self.read(slot)?.to_vec() });
        }
        let report =
            interpret(program, &mut buffers, &ExecOptions::default()).map_err(|error| error.to_string())?;
        if let Some(position) = report.unwritten.iter().position(|&count| count > 0) {
            let (count, name) = (report.unwritten[position], &program.buffers[position].name);
            return Err(format!("{count} elements of `{name}` are not written"));
        }
        let written = slots.iter().zip(&buffers).filter(|(slot, _)| slot.written);
        written.into_iter().try_for_each(|(slot, buffer)| self.write(slot, &buffer.bytes))
    }

    fn read(&self, slot: &Slot) -> Result<&[u8], String> {
        let (bytes, start): (&[u8], usize) = match slot.memory {
            SlotMemory::Arena(offset) => (&self.arena, offset),
            SlotMemory::Constant(number) => (&self.planned.assembly.constants[number], 0),
            SlotMemory::Input(number) => (self.inputs[number].bytes(), 0),
            SlotMemory::Output(number) => (&self.outputs[number], 0),
        };
        bytes.get(start..start + slot.bytes).ok_or_else(|| format!("{:?} is too short", slot.memory))
    }

    fn write(&mut self, slot: &Slot, bytes: &[u8]) -> Result<(), String> {
        let (memory, start): (&mut [u8], usize) = match slot.memory {
            SlotMemory::Arena(offset) => (&mut self.arena, offset),
            SlotMemory::Output(number) => (&mut self.outputs[number], 0),
            memory => return Err(format!("{memory:?} is written")),
        };
        let range = memory.get_mut(start..start + bytes.len()).filter(|_| bytes.len() == slot.bytes);
        range
            .ok_or_else(|| format!("{} bytes do not fit {:?}", bytes.len(), slot.memory))?
            .copy_from_slice(bytes);
        Ok(())
    }
}
