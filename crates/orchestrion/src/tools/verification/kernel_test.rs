//! The kernels of a part, as they were compiled, against the µGraph that they were lowered from: on random inputs, in an executable
//! that has nothing else.

use super::binding::Bound;
use crate::artifact::Artifact;
use crate::manifest::{
    ActionInfo, KernelInfo, Manifest, PartArgument, PartKernel, PartTensor, PlanReport, Port, ProvedPart,
    Slot, SlotMemory, StepInfo, typed,
};
use crate::run::compare::ROUNDING_FACTOR;
use crate::{Executable, Precision, RunOptions};
use orch_ir::generate::Rng;
use orch_ir::{DType, Tensor};
use orch_mugraph::array::Array;
use orch_mugraph::{InputKind, floats};
use orch_runtime::cpu::ALIGN_BYTES;
use serde::Serialize;
use std::collections::BTreeMap;

/// How kernels were compared with their µGraph.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KernelTest {
    /// Random inputs that they were run on; 0 if they were not tested.
    pub inputs: usize,
    /// Largest error of an element, relative to the result's largest magnitude.
    pub max_scaled: f64,
    /// What is allowed of it.
    pub tolerance: f64,
    /// Why they were not tested.
    pub reason: Option<String>,
}

impl KernelTest {
    /// No test, and why.
    pub fn none(reason: impl Into<String>) -> Self {
        Self { inputs: 0, max_scaled: 0.0, tolerance: 0.0, reason: Some(reason.into()) }
    }

    /// Whether no error was found.
    pub fn pass(&self) -> bool {
        self.max_scaled <= self.tolerance
    }
}

/// Random inputs that a part is tested on, if all of them take no more than `MOST_WORK`; else one.
const INPUTS: usize = 3;

/// Multiplications of a µGraph up to which it is interpreted: some seconds.
const MOST_WORK: u64 = 1 << 32;

/// Elements that a part's tensors may have.
const MOST_ELEMS: usize = 1 << 28;

/// Of 8 elements of a mask so many are kept.
const KEPT: u64 = 6;

/// Runs the kernels of a part on random inputs.
pub fn test_kernels(
    artifact: &Artifact,
    part: &ProvedPart,
    bound: &Bound<'_>,
    options: &RunOptions,
) -> KernelTest {
    let work = orch_mugraph::eval::work(&bound.graph);
    let elems = bound.graph.shapes().iter().map(|shape| orch_mugraph::op::elems(shape));
    if work > MOST_WORK || elems.fold(0, usize::saturating_add) > MOST_ELEMS {
        return KernelTest::none(format!("{work} multiplications are too many for the interpreter"));
    }
    let inputs = if work.saturating_mul(INPUTS as u64) <= MOST_WORK { INPUTS } else { 1 };
    test(artifact, part, bound, (options, inputs)).unwrap_or_else(KernelTest::none)
}

fn test(
    artifact: &Artifact,
    part: &ProvedPart,
    bound: &Bound<'_>,
    (options, inputs): (&RunOptions, usize),
) -> Result<KernelTest, String> {
    let alone = Alone::new(artifact, part, bound)?;
    let manifest = &alone.artifact.manifest;
    let ports: Vec<Port> = manifest.inputs.clone();
    let precision = manifest.precision;
    let executable = Executable::load(alone.artifact, options.clone()).map_err(|error| error.to_string())?;
    let mut found = KernelTest { inputs, max_scaled: 0.0, tolerance: precision.tolerance(), reason: None };
    for number in 0..inputs {
        let mut rng = Rng::new(number as u64);
        let given: Vec<Tensor> = ports.iter().map(|port| random(&mut rng, port)).collect::<Result<_, _>>()?;
        let read = |input: &PartTensor, shape: &[usize], kind: InputKind| match input.band {
            Some(band) => {
                let [.., columns] = shape else { return Err("a band is no matrix".to_owned()) };
                let rows = shape.len().checked_sub(2).map_or(1, |dim| shape[dim]);
                let kept = |at: usize| band.contains(at / columns % rows, at % columns);
                Ok(Array::from_fn(shape, |at| f64::from(u8::from(kept(at)))))
            }
            None => {
                let values = alone.inputs.get(&input.tensor).and_then(|&at| given.get(at));
                let values = values.ok_or_else(|| format!("no kernel reads input `{}`", input.name))?;
                viewed(&values.to_f64(), input, shape).map(|array| match kind {
                    InputKind::Mask => array.map(|value| f64::from(u8::from(value != 0.0))),
                    InputKind::Real => array,
                })
            }
        };
        let arrays = bound.graph.inputs().zip(&part.inputs);
        let arrays = arrays.map(|((id, _, kind), input)| read(input, bound.graph.shape(id), kind));
        let arrays: Vec<Array<f64>> = arrays.collect::<Result<_, _>>()?;
        let interpreted = |precision| {
            floats::interpret(&bound.graph, &arrays, precision).map_err(|error| error.to_string())
        };
        let expected = interpreted(floats::Precision::F64)?;
        let outputs = executable.run(&given).map_err(|error| error.to_string())?;
        let written = |(output, expected): (&PartTensor, &Array<f64>)| {
            let values = alone.outputs.get(&output.tensor).and_then(|&at| outputs.get(at));
            let values = values.ok_or_else(|| format!("no kernel writes output `{}`", output.name))?;
            viewed(&values.to_f64(), output, &expected.shape)
        };
        let computed: Vec<Array<f64>> =
            part.outputs.iter().zip(&expected).map(written).collect::<Result<_, _>>()?;
        let scaled = scaled_error(&computed, &expected)?;
        if scaled > found.tolerance {
            // What rounding makes of it by itself.
            let (narrow, factor) = rounding(precision);
            let rounded = scaled_error(&interpreted(narrow)?, &expected)?;
            found.tolerance = found.tolerance.max(factor * rounded);
        }
        found.max_scaled = found.max_scaled.max(scaled);
    }
    Ok(found)
}

/// The interpreter that rounds like kernels of a precision, and how many times its error theirs may be.
fn rounding(precision: Precision) -> (floats::Precision, f64) {
    match precision {
        Precision::F32 => (floats::Precision::F32, ROUNDING_FACTOR),
        // As many bits as f16.
        Precision::Tf32 | Precision::F16 => (floats::Precision::F16, 2.0),
        // Three bits less.
        Precision::Bf16 => (floats::Precision::F16, 16.0),
    }
}

/// The largest error of elements of any output, relative to its largest magnitude.
fn scaled_error(computed: &[Array<f64>], expected: &[Array<f64>]) -> Result<f64, String> {
    computed
        .iter()
        .zip(expected)
        .try_fold(0.0f64, |worst, (own, wanted)| Ok(worst.max(scaled_error_of(own, wanted)?)))
}

/// The largest error of elements that are finite where they are expected to be, relative to the largest magnitude; infinite if one is
/// not.
fn scaled_error_of(computed: &Array<f64>, expected: &Array<f64>) -> Result<f64, String> {
    let (mut worst, mut magnitude) = (0.0f64, 0.0f64);
    for (own, wanted) in computed.data.iter().zip(&expected.data).filter(|(_, wanted)| wanted.is_finite()) {
        let error = (own - wanted).abs();
        worst = if error.is_finite() { worst.max(error) } else { f64::INFINITY };
        magnitude = magnitude.max(wanted.abs());
    }
    if magnitude == 0.0 {
        return Err("its result is zero, or not finite, on random inputs".to_owned());
    }
    Ok(worst / magnitude)
}

/// A tensor of a µGraph from the elements of the tensor that it is a view of.
fn viewed(elements: &[f64], view: &PartTensor, shape: &[usize]) -> Result<Array<f64>, String> {
    let own = orch_mugraph::array::strides(shape);
    let last: Option<usize> = (shape.iter().zip(&view.strides))
        .try_fold(view.offset, |sum, (extent, stride)| {
            sum.checked_add(extent.saturating_sub(1).checked_mul(*stride)?)
        });
    if last.is_none_or(|last| last >= elements.len()) {
        return Err(format!("`{}` reaches beyond its tensor", view.name));
    }
    let place = |at: usize| {
        let index = own.iter().zip(shape).map(|(stride, extent)| at / stride % extent);
        view.offset + index.zip(&view.strides).map(|(index, stride)| index * stride).sum::<usize>()
    };
    Ok(Array::from_fn(shape, |at| elements[place(at)]))
}

/// Numbers from -1 to 1; in masks, most elements are kept.
fn random(rng: &mut Rng, port: &Port) -> Result<Tensor, String> {
    let (dtype, shape) = typed(&port.dtype, &port.shape).map_err(|error| error.to_string())?;
    let mut value = || match dtype {
        DType::Bool => f64::from(u8::from(rng.bits() % 8 < KEPT)),
        _ => rng.uniform(-1.0, 1.0),
    };
    let values: Vec<f64> = (0..shape.elems()).map(|_| value()).collect();
    Ok(Tensor::from_f64(dtype, shape, &values))
}

/// An executable of a part's kernels alone.
struct Alone {
    artifact: Artifact,
    /// The number of the input that is a tensor of the model.
    inputs: BTreeMap<String, usize>,
    /// The number of the output that is a tensor of the model.
    outputs: BTreeMap<String, usize>,
}

impl Alone {
    fn new(artifact: &Artifact, part: &ProvedPart, bound: &Bound<'_>) -> Result<Self, String> {
        let mut memory = AloneMemory {
            part,
            inputs: Ports::default(),
            outputs: Ports::default(),
            inner: BTreeMap::new(),
            arena_bytes: 0,
        };
        let (mut steps, mut kernels, mut libraries) = (Vec::new(), Vec::new(), Vec::new());
        for ((step, kernel), PartKernel { arguments, .. }) in bound.kernels.iter().zip(&part.kernels) {
            let slots = step.slots.iter().zip(arguments).map(|(slot, argument)| memory.slot(slot, argument));
            let slots: Vec<Slot> = slots.collect::<Result<_, _>>()?;
            let library = artifact.libraries.get(kernel.library).ok_or("its kernel has no library")?;
            let number = kernels.len();
            steps.push(StepInfo {
                action: ActionInfo::Kernel(number),
                slots,
                proof: None,
                ..(*step).clone()
            });
            kernels.push(KernelInfo { library: number, call: None, ..(*kernel).clone() });
            libraries.push(library.clone());
        }
        let manifest = Manifest {
            inputs: memory.inputs.ports,
            outputs: memory.outputs.ports,
            updates: Vec::new(),
            updatable: Vec::new(),
            arena_bytes: memory.arena_bytes,
            kernels,
            steps,
            constant_bytes: Vec::new(),
            library_bytes: libraries.iter().map(bytes::Bytes::len).collect(),
            proofs: Vec::new(),
            parts: Vec::new(),
            report: PlanReport::default(),
            ..artifact.manifest.clone()
        };
        let artifact = Artifact { manifest, libraries, constants: Vec::new() };
        artifact.check()?;
        Ok(Self { artifact, inputs: memory.inputs.numbers, outputs: memory.outputs.numbers })
    }
}

/// Where an executable of a part's kernels alone has the tensors.
struct AloneMemory<'a> {
    part: &'a ProvedPart,
    inputs: Ports,
    outputs: Ports,
    /// Where tensors between kernels are in working memory.
    inner: BTreeMap<String, usize>,
    arena_bytes: usize,
}

impl AloneMemory<'_> {
    /// The slot of a kernel's argument.
    fn slot(&mut self, slot: &Slot, argument: &PartArgument) -> Result<Slot, String> {
        let among = |tensors: &[PartTensor]| {
            let found = tensors.iter().find(|tensor| tensor.name == argument.name);
            found.map(|found| found.tensor.clone())
        };
        let memory = match (among(&self.part.inputs), among(&self.part.outputs)) {
            (Some(input), _) => SlotMemory::Input(self.inputs.number(&input, slot)),
            (None, Some(output)) => SlotMemory::Output(self.outputs.number(&output, slot)),
            (None, None) => {
                let end = self.arena_bytes.next_multiple_of(ALIGN_BYTES);
                let offset = *self.inner.entry(argument.name.clone()).or_insert(end);
                let bytes = offset.checked_add(slot.bytes).ok_or("its working memory is too large")?;
                self.arena_bytes = self.arena_bytes.max(bytes);
                SlotMemory::Arena(offset)
            }
        };
        Ok(Slot { memory, ..slot.clone() })
    }
}

/// The inputs or outputs of an executable.
#[derive(Default)]
struct Ports {
    ports: Vec<Port>,
    /// By the names of the model's tensors.
    numbers: BTreeMap<String, usize>,
}

impl Ports {
    /// The number of the port of a slot's tensor.
    fn number(&mut self, tensor: &str, slot: &Slot) -> usize {
        *self.numbers.entry(tensor.to_owned()).or_insert_with(|| {
            let (dtype, shape) = (slot.dtype.clone(), slot.shape.clone());
            self.ports.push(Port { name: tensor.to_owned(), dtype, shape });
            self.ports.len() - 1
        })
    }
}
