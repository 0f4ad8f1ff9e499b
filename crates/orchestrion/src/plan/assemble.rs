//! Stage "plan": chosen kernels in order become steps over memory.
//!
//! Tensors that are graph outputs are written in place; every other stored tensor gets a range of the arena for as
//! long as it lives, or that of a tensor which it is a new value of. Tensors live as long as the groups of columns that use them, so that
//! columns of a group share no memory that one of them writes. Outputs that are updated in place are first copies of their inputs, unless the caller gives both one memory.
//! Outputs that no kernel writes (an input, a constant, a second name) are copied at the end. Memory of a kernel alone that it expects to be
//! zeros is filled from a constant before it starts.

use super::explain;
use super::implementation::{ColumnBody, Implementation, PlannedColumn};
use super::kernel::{KernelDesign, KernelWork};
use super::known::constant_step;
use super::updated::{InPlace, UpdatedTensor};
use crate::manifest::{ActionInfo, ClearedSlot, Port, Slot, SlotMemory, StepInfo, Update};
use crate::{Error, Options, parallel};
use bytes::Bytes;
use orch_compute::Storage;
use orch_ir::{DType, PrimGraph, PrimOp, Tensor, TensorId};
use orch_plan::memory::{Buffer, BufferId, MemoryAlias, MemoryError, MemoryPlan, MemoryRequest, plan_memory};
use orch_runtime::cpu::ALIGN_BYTES;
use orch_runtime::held_once;
use orch_thread::kernel::{Binding, PackedConstant};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Steps, memory and constants of an executable.
pub struct Assembly {
    /// What runs, in order.
    pub steps: Vec<StepInfo>,
    /// For each column the number of its step: copies come before and between them.
    pub step_of_column: Vec<usize>,
    /// Working memory.
    pub arena_bytes: usize,
    /// Constants as the kernels read them.
    pub constants: Vec<Bytes>,
    /// Outputs that are updated in place where they have the memory of an input.
    pub updates: Vec<Update>,
}

/// Lays out the columns, which are in executable order.
///
/// # Errors
/// If the columns do not produce what they need, or, with debug assertions, if one depends on constants alone: bugs in choosing.
pub fn assemble(
    graph: &PrimGraph,
    storage: &Storage,
    implementation: &Implementation,
    options: &Options,
) -> Result<Assembly, Error> {
    if cfg!(debug_assertions) {
        let written = implementation.columns.iter().map(|column| &column.outputs[..]);
        constant_step(graph, written).map_or(Ok(()), |step| Err(Error::internal(step)))?;
    }
    let mut assembler = Assembler {
        graph,
        storage,
        inner: &implementation.inner,
        known: &implementation.known,
        memory_of: BTreeMap::new(),
        constants: Vec::new(),
        known_constants: HashMap::new(),
        prepared: prepare(graph, storage, implementation, options)?,
        own: BTreeMap::new(),
        zeros: BTreeMap::new(),
    };
    for UpdatedTensor { ports, output, .. } in &implementation.updates {
        assembler.memory_of.insert(*output, SlotMemory::Output(ports.output));
    }
    let columns = &implementation.columns;
    let plan = assembler.place_tensors(implementation).map_err(|error| Error::Internal(error.to_string()))?;
    let mut steps = Vec::with_capacity(columns.len());
    for update in &implementation.updates {
        steps.push(assembler.old_value(update)?);
    }
    let mut step_of_column = Vec::with_capacity(columns.len());
    for (number, column) in columns.iter().enumerate() {
        step_of_column.push(steps.len());
        steps.push(assembler.step(number, column, &implementation.kernels)?);
    }
    steps.extend(assembler.output_copies()?);
    let updates = implementation.updates.iter().map(|update| update.ports).collect();
    let (arena_bytes, constants) = (plan.arena_bytes as usize, assembler.constants);
    Ok(Assembly { steps, step_of_column, arena_bytes, constants, updates })
}

/// Inputs and outputs of a graph as ports.
pub fn ports(graph: &PrimGraph, list: &[(String, TensorId)]) -> Vec<Port> {
    list.iter()
        .map(|(name, tensor)| Port {
            name: name.clone(),
            dtype: graph.dtype(*tensor).name().to_owned(),
            shape: graph.shape(*tensor).to_vec(),
        })
        .collect()
}

/// A constant in one of the forms that steps read: as it is stored, or packed.
type ConstantForm = (TensorId, Option<PackedConstant>);

/// The bytes of a form.
fn bytes_of_form(value: &Tensor, storage: &Storage, (tensor, packed): &ConstantForm) -> Bytes {
    let stored = storage.stored(*tensor, value);
    match packed {
        Some(packed) => Bytes::from(packed.pack(&stored)),
        None => stored.bytes().clone(),
    }
}

/// Stores and packs the constants that kernels read, with all threads: for large models this is the longest part of the stage.
fn prepare(
    graph: &PrimGraph,
    storage: &Storage,
    implementation: &Implementation,
    options: &Options,
) -> Result<HashMap<ConstantForm, Bytes>, Error> {
    let mut wanted: Vec<ConstantForm> = Vec::new();
    let mut known = HashSet::new();
    for column in &implementation.columns {
        let ColumnBody::Kernel { kernel, args } = &column.body else { continue };
        for binding in &implementation.kernels[*kernel].design.kernel.bindings {
            let form = match binding {
                Binding::Arg(arg) => (args[arg.index()], None),
                Binding::Packed(packed) => (args[packed.arg.index()], Some(packed.clone())),
                Binding::Own { .. } => continue,
            };
            let is_constant = form.0.index() < graph.tensors().len() && graph.constant(form.0).is_some();
            if is_constant && known.insert(form.clone()) {
                wanted.push(form);
            }
        }
    }
    let prepared = parallel::map(&wanted, options, |form| {
        graph.constant(form.0).map(|value| held_once(bytes_of_form(value, storage, form)))
    })?;
    Ok(wanted.into_iter().zip(prepared).filter_map(|(form, bytes)| Some((form, bytes?))).collect())
}

struct Assembler<'a> {
    graph: &'a PrimGraph,
    storage: &'a Storage,
    /// Shapes of tensors that the graph does not have.
    inner: &'a [Vec<usize>],
    /// Tensors of the graph that became constants.
    known: &'a BTreeMap<TensorId, Tensor>,
    memory_of: BTreeMap<TensorId, SlotMemory>,
    constants: Vec<Bytes>,
    known_constants: HashMap<ConstantForm, usize>,
    prepared: HashMap<ConstantForm, Bytes>,
    /// Memory of kernels alone: its offset in the arena by column and binding.
    own: BTreeMap<(usize, usize), usize>,
    /// Constants of zeros, by their bytes.
    zeros: BTreeMap<usize, usize>,
}

/// Memory of a kernel alone.
struct OwnMemory {
    /// The number of its binding.
    binding: usize,
    /// The memory, which is nowhere yet.
    slot: Slot,
    is_zeroed: bool,
}

impl OwnMemory {
    /// That of a column's kernel.
    fn of<'a>(column: &PlannedColumn, kernels: &'a [KernelDesign]) -> impl Iterator<Item = Self> + 'a {
        let kernel = match column.body {
            ColumnBody::Kernel { kernel, .. } => Some(&kernels[kernel]),
            ColumnBody::Host => None,
        };
        let bindings = kernel.into_iter().flat_map(|kernel| kernel.design.kernel.bindings.iter().enumerate());
        bindings.filter_map(|(number, binding)| Self::at(number, binding))
    }

    fn at(number: usize, binding: &Binding) -> Option<Self> {
        let &Binding::Own { dtype, elems, is_zeroed } = binding else { return None };
        let slot = Slot {
            memory: SlotMemory::Arena(0),
            bytes: elems * dtype.size_bytes(),
            written: true,
            dtype: dtype.name().to_owned(),
            shape: vec![elems],
        };
        Some(Self { binding: number, slot, is_zeroed })
    }
}

impl Assembler<'_> {
    fn place_tensors(&mut self, implementation: &Implementation) -> Result<MemoryPlan, MemoryError> {
        let columns =
            || implementation.columns.iter().enumerate().map(|(at, it)| (implementation.group(at), it));
        for (number, (_, tensor)) in self.graph.inputs.iter().enumerate() {
            self.memory_of.insert(*tensor, SlotMemory::Input(number));
        }
        let mut last_use: BTreeMap<TensorId, usize> = BTreeMap::new();
        for (group, column) in columns() {
            last_use.extend(column.inputs.iter().map(|&tensor| (tensor, group)));
        }
        let mut output_number: HashMap<TensorId, usize> = HashMap::new();
        for (number, (_, tensor)) in self.graph.outputs.iter().enumerate() {
            output_number.entry(*tensor).or_insert(number);
        }
        let mut stored: Vec<(TensorId, Buffer)> = Vec::new();
        let mut ids: HashMap<TensorId, BufferId> = HashMap::new();
        for (group, column) in columns() {
            for &tensor in &column.outputs {
                if self.memory_of.contains_key(&tensor) || ids.contains_key(&tensor) {
                    continue;
                }
                match output_number.get(&tensor) {
                    Some(&number) => {
                        self.memory_of.insert(tensor, SlotMemory::Output(number));
                    }
                    None => {
                        let last = last_use.get(&tensor).copied().unwrap_or(group);
                        ids.insert(tensor, BufferId(stored.len() as u32));
                        stored.push((tensor, self.buffer(tensor, group, last)));
                    }
                }
            }
        }
        let mut buffers: Vec<Buffer> = stored.iter().map(|(_, buffer)| *buffer).collect();
        let mut own = Vec::new();
        for (number, (group, column)) in columns().enumerate() {
            for OwnMemory { binding, slot, .. } in OwnMemory::of(column, &implementation.kernels) {
                let (bytes, alignment) = (slot.bytes as u64, ALIGN_BYTES as u64);
                buffers.push(Buffer { bytes, alignment, first_use: group as u32, last_use: group as u32 });
                own.push((number, binding));
            }
        }
        let view = |pair: &InPlace| {
            let (view, of) = (*ids.get(&pair.output)?, *ids.get(&pair.input)?);
            Some(MemoryAlias { view, of, offset_bytes: 0 })
        };
        let views = implementation.in_place.iter().filter_map(view).collect();
        let plan = plan_memory(&MemoryRequest { buffers, views, ..MemoryRequest::default() })?;
        for ((tensor, _), &offset) in stored.iter().zip(&plan.offsets) {
            self.memory_of.insert(*tensor, SlotMemory::Arena(offset as usize));
        }
        let offsets = plan.offsets[stored.len()..].iter().map(|&offset| offset as usize);
        self.own = own.into_iter().zip(offsets).collect();
        Ok(plan)
    }

    /// The lifetime of a stored tensor, from the group that writes it to the last one that reads it.
    fn buffer(&self, tensor: TensorId, first: usize, last: usize) -> Buffer {
        Buffer {
            bytes: self.bytes_of(tensor) as u64,
            alignment: ALIGN_BYTES as u64,
            first_use: first as u32,
            last_use: last as u32,
        }
    }

    fn bytes_of(&self, tensor: TensorId) -> usize {
        let (dtype, shape) = self.typed(tensor);
        dtype.size_bytes() * shape.iter().product::<usize>()
    }

    /// Element type and shape of a tensor as it is stored.
    fn typed(&self, tensor: TensorId) -> (DType, &[usize]) {
        match tensor.index().checked_sub(self.graph.tensors().len()) {
            Some(number) => (DType::F32, &self.inner[number]),
            None => (self.storage.dtype(tensor), self.graph.shape(tensor)),
        }
    }

    /// The value of a tensor that is a constant.
    fn value(&self, tensor: TensorId) -> Option<&Tensor> {
        let stated =
            (tensor.index() < self.graph.tensors().len()).then(|| self.graph.constant(tensor)).flatten();
        stated.or_else(|| self.known.get(&tensor))
    }

    /// What a column's kernel expects to be zeros, and the constants that have them.
    fn cleared(&mut self, column: &PlannedColumn, kernels: &[KernelDesign]) -> Vec<ClearedSlot> {
        let mut cleared = Vec::new();
        for OwnMemory { binding, slot, .. } in OwnMemory::of(column, kernels).filter(|own| own.is_zeroed) {
            let constant = *self.zeros.entry(slot.bytes).or_insert_with(|| {
                self.constants.push(Bytes::from(vec![0; slot.bytes]));
                self.constants.len() - 1
            });
            cleared.push(ClearedSlot { slot: binding, constant });
        }
        cleared
    }

    fn step(
        &mut self,
        number: usize,
        column: &PlannedColumn,
        kernels: &[KernelDesign],
    ) -> Result<StepInfo, Error> {
        let (name, action, slots) = match &column.body {
            ColumnBody::Kernel { kernel, args } => {
                let design = &kernels[*kernel];
                let slots = self.kernel_slots(number, design, args, &column.outputs)?;
                (design.name.clone(), ActionInfo::Kernel(*kernel), slots)
            }
            ColumnBody::Host => self.host_step(column)?,
        };
        let mut origins: Vec<String> = Vec::new();
        for &node in &column.nodes {
            let origin = self.graph.origin(node);
            if !origin.is_empty() && !origins.iter().any(|known| known == origin) {
                origins.push(origin.to_owned());
            }
        }
        let traffic_bytes = slots.iter().map(|slot| slot.bytes).sum();
        let KernelWork { flops, roofline_us, alone_us } = match &column.body {
            ColumnBody::Kernel { kernel, .. } => kernels[*kernel].work,
            ColumnBody::Host => KernelWork { flops: 0.0, roofline_us: 0.0, alone_us: 0.0 },
        };
        let computes = column.nodes.iter().map(|&node| explain::describe(self.graph, node)).collect();
        let (cost_us, tuned_us) = (column.cost_us, column.measured_us);
        let cleared = self.cleared(column, kernels);
        Ok(StepInfo {
            name,
            action,
            slots,
            cleared,
            computes,
            origins,
            cost_us,
            tuned_us,
            roofline_us,
            alone_us,
            traffic_bytes,
            flops,
            proof: column.proof,
            considered: None,
        })
    }

    fn kernel_slots(
        &mut self,
        number: usize,
        design: &KernelDesign,
        args: &[TensorId],
        outputs: &[TensorId],
    ) -> Result<Vec<Slot>, Error> {
        let mut slots = Vec::with_capacity(design.design.kernel.bindings.len());
        for (at, binding) in design.design.kernel.bindings.iter().enumerate() {
            slots.push(match binding {
                Binding::Arg(arg) => {
                    let tensor = args[arg.index()];
                    self.slot(tensor, outputs.contains(&tensor))?
                }
                Binding::Packed(packed) => {
                    let tensor = args[packed.arg.index()];
                    let constant = self.constant(tensor, Some(packed))?;
                    Slot {
                        memory: SlotMemory::Constant(constant),
                        bytes: self.constants[constant].len(),
                        written: false,
                        dtype: packed.dtype.name().to_owned(),
                        shape: vec![packed.elems()],
                    }
                }
                Binding::Own { .. } => {
                    let missing = || Error::internal(format!("{} has no memory of its own", design.name));
                    let OwnMemory { slot, .. } = OwnMemory::at(at, binding).ok_or_else(missing)?;
                    let offset = *self.own.get(&(number, at)).ok_or_else(missing)?;
                    Slot { memory: SlotMemory::Arena(offset), ..slot }
                }
            });
        }
        Ok(slots)
    }

    fn host_step(&mut self, column: &PlannedColumn) -> Result<(String, ActionInfo, Vec<Slot>), Error> {
        let part = explain::extract(self.graph, &column.nodes, &column.inputs, &column.outputs)
            .map_err(|error| Error::Internal(error.to_string()))?;
        let mut slots = Vec::new();
        for (list, written) in [(&column.inputs, false), (&column.outputs, true)] {
            for &tensor in list {
                slots.push(self.slot(tensor, written)?);
            }
        }
        let tensors = column.inputs.iter().chain(&column.outputs);
        let layouts = tensors.map(|tensor| self.storage.layout(*tensor).order().to_vec()).collect();
        let name = column.nodes.last().map_or_else(String::new, |&node| match &self.graph.node(node).op {
            PrimOp::Opaque(_) => format!("host_{}", explain::short_name(&self.graph.node(node).op)),
            op => format!("interpreted_{}", explain::short_name(op)),
        });
        Ok((name, ActionInfo::Host { graph: orch_ir::text::print(&part), layouts }, slots))
    }

    fn slot(&mut self, tensor: TensorId, written: bool) -> Result<Slot, Error> {
        let memory = match self.memory_of.get(&tensor) {
            Some(&memory) => memory,
            None if self.bytes_of(tensor) == 0 && self.value(tensor).is_none() => SlotMemory::Arena(0),
            None => SlotMemory::Constant(self.constant(tensor, None)?),
        };
        let (dtype, shape) = self.typed(tensor);
        Ok(Slot {
            memory,
            bytes: self.bytes_of(tensor),
            written,
            dtype: dtype.name().to_owned(),
            shape: shape.to_vec(),
        })
    }

    /// The number of a constant, as it is stored or packed; each form is kept once.
    fn constant(&mut self, tensor: TensorId, packed: Option<&PackedConstant>) -> Result<usize, Error> {
        let form = (tensor, packed.cloned());
        if let Some(&number) = self.known_constants.get(&form) {
            return Ok(number);
        }
        let prepared = self.prepared.remove(&form);
        let value = self
            .value(tensor)
            .ok_or_else(|| Error::Internal(format!("{tensor} is read but no step produces it")))?;
        let bytes = prepared.unwrap_or_else(|| bytes_of_form(value, self.storage, &form));
        self.constants.push(bytes);
        self.known_constants.insert(form, self.constants.len() - 1);
        Ok(self.constants.len() - 1)
    }

    /// The copy of an input to its new value, which nothing is left of where both have one memory.
    fn old_value(&mut self, update: &UpdatedTensor) -> Result<StepInfo, Error> {
        let (name, _) = &self.graph.inputs[update.ports.input];
        let from = self.slot(update.input, false)?;
        let to = self.slot(update.output, true)?;
        Ok(copy_step(format!("keep_{name}"), [from, to]))
    }

    /// Copies to outputs that no step writes.
    fn output_copies(&mut self) -> Result<Vec<StepInfo>, Error> {
        let mut copies = Vec::new();
        let outputs = self.graph.outputs.clone();
        for (number, (name, tensor)) in outputs.iter().enumerate() {
            let from = self.slot(*tensor, false)?;
            if from.memory == SlotMemory::Output(number) || from.bytes == 0 {
                continue;
            }
            let to = Slot { memory: SlotMemory::Output(number), written: true, ..from.clone() };
            copies.push(copy_step(format!("copy_{name}"), [from, to]));
        }
        Ok(copies)
    }
}

fn copy_step(name: String, [from, to]: [Slot; 2]) -> StepInfo {
    StepInfo {
        name,
        action: ActionInfo::Copy,
        traffic_bytes: from.bytes + to.bytes,
        slots: vec![from, to],
        cleared: Vec::new(),
        computes: Vec::new(),
        origins: Vec::new(),
        cost_us: 0.0,
        tuned_us: None,
        roofline_us: 0.0,
        alone_us: 0.0,
        flops: 0.0,
        proof: None,
        considered: None,
    }
}
