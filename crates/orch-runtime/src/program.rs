//! What an executable runs: kernel launches, copies and host routines over an arena, constants, inputs and outputs.
//! Devices differ in what a launch is.
//!
//! A valid program keeps these rules, which [`Program::check`] verifies:
//! 1. every range lies inside its base, and names a base that exists;
//! 2. constants and inputs are only read;
//! 3. a range that a launch writes is disjoint from, or exactly equal to, each of its other ranges;
//! 4. a copy's ranges have the same length;
//! 5. a host routine's tensors are as long as their type and shape say;
//! 6. a launch has a form that the device may take;
//! 7. an output that updates an input has its size, and is the only one of it.

use bytes::Bytes;
use orch_ir::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Memory that a [`BufferRef`] points into.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Base {
    /// The executable's own working memory.
    Arena,
    /// A constant of the program.
    Constant(usize),
    /// An input of the program.
    Input(usize),
    /// An output of the program.
    Output(usize),
}

/// What a step does to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Only reads.
    Read,
    /// Writes, and perhaps reads.
    Write,
}

/// A range of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferRef {
    /// Where.
    pub base: Base,
    /// First byte.
    pub offset_bytes: usize,
    /// Number of bytes.
    pub len_bytes: usize,
    /// Read or written.
    pub access: Access,
}

/// A tensor in memory, for host routines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorRef {
    /// Its bytes.
    pub buffer: BufferRef,
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
}

/// A kernel launch of some device.
pub trait KernelLaunch {
    /// The kernel's tensors, in its order.
    fn buffers(&self) -> &[BufferRef];

    /// What no device takes about the launch itself, as clauses that begin with a verb.
    fn violations(&self) -> Vec<String>;
}

/// A routine in Rust, for primitives that have no kernel.
pub trait HostRoutine: Send + Sync {
    /// Computes the outputs of the step.
    ///
    /// # Errors
    /// A sentence that says which operand is wrong.
    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String>;
}

impl<F: Fn(&[Tensor]) -> Result<Vec<Tensor>, String> + Send + Sync> HostRoutine for F {
    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        self(inputs)
    }
}

/// One call of a host routine. Operands are copied to and from tensors.
pub struct HostStep {
    /// The routine.
    pub routine: Box<dyn HostRoutine>,
    /// Its operands.
    pub inputs: Vec<TensorRef>,
    /// Its results.
    pub outputs: Vec<TensorRef>,
}

/// What a step does, where `L` is a launch.
#[derive(Debug)]
pub enum Action<L> {
    /// Launches a kernel.
    Launch(L),
    /// Calls a host routine.
    Host(HostStep),
    /// Copies bytes: for outputs that are an input, a constant or another output.
    Copy {
        /// Source.
        from: BufferRef,
        /// Destination.
        to: BufferRef,
    },
}

/// One step of a program.
#[derive(Debug)]
pub struct Step<L> {
    /// How profiles and messages call it.
    pub name: String,
    /// What it does.
    pub action: Action<L>,
}

/// An output that may have the memory of an input, whose new value it is. The steps first copy the old value, which is nothing to do
/// then, and read the input no more once they have written the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Update {
    /// Number of the output.
    pub output: usize,
    /// Number of the input.
    pub input: usize,
}

/// Steps in order, and the memory that they use.
#[derive(Debug)]
pub struct Program<L> {
    /// Size of the working memory; each run finds it as the last one left it.
    pub arena_bytes: usize,
    /// Constants. They may be slices of a mapped file.
    pub constants: Vec<Bytes>,
    /// Size of each input.
    pub input_bytes: Vec<usize>,
    /// Size of each output.
    pub output_bytes: Vec<usize>,
    /// Outputs that may have the memory of an input.
    pub updates: Vec<Update>,
    /// What to do.
    pub steps: Vec<Step<L>>,
}

impl<L> Default for Program<L> {
    fn default() -> Self {
        let (input_bytes, output_bytes) = (Vec::new(), Vec::new());
        let (updates, steps) = (Vec::new(), Vec::new());
        Self { arena_bytes: 0, constants: Vec::new(), input_bytes, output_bytes, updates, steps }
    }
}

/// A program that breaks the rules of this module: a bug in planning.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("internal error: the program is not valid:\n{}", .violations.join("\n"))]
pub struct ProgramError {
    /// All violations, in step order.
    pub violations: Vec<String>,
}

impl<L: KernelLaunch> Program<L> {
    /// Checks the rules of this module.
    ///
    /// # Errors
    /// All violations.
    pub fn check(&self) -> Result<(), ProgramError> {
        let mut violations = Vec::new();
        for (number, update) in self.updates.iter().enumerate() {
            let sizes = (self.output_bytes.get(update.output), self.input_bytes.get(update.input));
            let is_taken = self.updates[..number]
                .iter()
                .any(|other| other.output == update.output || other.input == update.input);
            if sizes.0.is_none() || sizes.0 != sizes.1 || is_taken {
                violations.push(format!("output {} cannot update input {}", update.output, update.input));
            }
        }
        for (idx, step) in self.steps.iter().enumerate() {
            let mut report = |text: String| violations.push(format!("step {idx} `{}`: {text}", step.name));
            for buffer in step.buffers() {
                self.check_range(&buffer, &mut report);
            }
            match &step.action {
                Action::Launch(launch) => {
                    launch.violations().into_iter().for_each(&mut report);
                    check_overlaps(launch.buffers(), &mut report);
                }
                Action::Host(host) => check_host_step(host, &mut report),
                Action::Copy { from, to } => {
                    if from.len_bytes != to.len_bytes {
                        report(format!("copies {from} to {to}"));
                    }
                    check_overlaps(&[*from, *to], &mut report);
                }
            }
        }
        if violations.is_empty() { Ok(()) } else { Err(ProgramError { violations }) }
    }

    fn check_range(&self, buffer: &BufferRef, report: &mut impl FnMut(String)) {
        let size = match buffer.base {
            Base::Arena => Some(self.arena_bytes),
            Base::Constant(idx) => self.constants.get(idx).map(Bytes::len),
            Base::Input(idx) => self.input_bytes.get(idx).copied(),
            Base::Output(idx) => self.output_bytes.get(idx).copied(),
        };
        match size {
            None => report(format!("{buffer} does not exist")),
            Some(size) if buffer.end().is_none_or(|end| end > size) => {
                report(format!("{buffer} is outside of its {size} bytes"));
            }
            Some(_) => {}
        }
        if buffer.access == Access::Write && matches!(buffer.base, Base::Constant(_) | Base::Input(_)) {
            report(format!("{buffer} must not be written"));
        }
    }
}

fn check_overlaps(buffers: &[BufferRef], report: &mut impl FnMut(String)) {
    for (idx, first) in buffers.iter().enumerate() {
        for second in &buffers[idx + 1..] {
            let written = first.access == Access::Write || second.access == Access::Write;
            let equal = (first.offset_bytes, first.len_bytes) == (second.offset_bytes, second.len_bytes);
            if written && !equal && first.overlaps(second) {
                report(format!("{first} and {second} overlap in part"));
            }
        }
    }
}

fn check_host_step(host: &HostStep, report: &mut impl FnMut(String)) {
    for tensor in host.inputs.iter().chain(&host.outputs) {
        let expected = tensor.shape.elems() * tensor.dtype.size_bytes();
        if tensor.buffer.len_bytes != expected {
            report(format!(
                "{} is to hold {}{}: {expected} bytes",
                tensor.buffer, tensor.dtype, tensor.shape
            ));
        }
    }
    for tensor in &host.outputs {
        if tensor.buffer.access != Access::Write {
            report(format!("{} is a result, but not marked as written", tensor.buffer));
        }
    }
}

impl<L: KernelLaunch> Step<L> {
    /// All ranges that the step uses.
    pub(crate) fn buffers(&self) -> Vec<BufferRef> {
        match &self.action {
            Action::Launch(launch) => launch.buffers().to_vec(),
            Action::Host(host) => {
                host.inputs.iter().chain(&host.outputs).map(|tensor| tensor.buffer).collect()
            }
            Action::Copy { from, to } => vec![*from, *to],
        }
    }
}

impl BufferRef {
    /// A range that is only read.
    pub fn read(base: Base, offset_bytes: usize, len_bytes: usize) -> Self {
        Self { base, offset_bytes, len_bytes, access: Access::Read }
    }

    /// A range that is written.
    pub fn write(base: Base, offset_bytes: usize, len_bytes: usize) -> Self {
        Self { base, offset_bytes, len_bytes, access: Access::Write }
    }

    /// The range by which steps that access the same memory know each other: that of an input for the output that updates it.
    #[must_use]
    pub fn identity(self, updates: &[Update]) -> Self {
        let update = match self.base {
            Base::Output(output) => updates.iter().find(|update| update.output == output),
            Base::Arena | Base::Constant(_) | Base::Input(_) => None,
        };
        Self { base: update.map_or(self.base, |update| Base::Input(update.input)), ..self }
    }

    fn end(&self) -> Option<usize> {
        self.offset_bytes.checked_add(self.len_bytes)
    }

    /// True if the ranges share a byte, or an empty one lies inside the other.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let before = |a: &Self, b: &Self| a.end().is_some_and(|end| end <= b.offset_bytes);
        self.base == other.base && !before(self, other) && !before(other, self)
    }
}

impl fmt::Display for BufferRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base {
            Base::Arena => f.write_str("arena"),
            Base::Constant(idx) => write!(f, "constant {idx}"),
            Base::Input(idx) => write!(f, "input {idx}"),
            Base::Output(idx) => write!(f, "output {idx}"),
        }?;
        write!(f, "[{}, +{}]", self.offset_bytes, self.len_bytes)
    }
}

impl HostStep {
    /// Runs the routine on the contents of its operands; the results have the types and shapes of `outputs`.
    pub(crate) fn call(&self, inputs: impl Iterator<Item = Bytes>) -> Result<Vec<Tensor>, String> {
        let inputs = self.inputs.iter().zip(inputs).map(|(operand, bytes)| {
            Tensor::from_bytes(operand.dtype, operand.shape.clone(), bytes).map_err(|error| error.to_string())
        });
        let results = self.routine.run(&inputs.collect::<Result<Vec<_>, _>>()?)?;
        let (given, expected) = (results.len(), self.outputs.len());
        if given != expected {
            return Err(format!("internal error: {given} results instead of {expected}"));
        }
        for (result, TensorRef { dtype, shape, .. }) in results.iter().zip(&self.outputs) {
            if (result.dtype(), result.shape()) != (*dtype, shape) {
                let (given, given_shape) = (result.dtype(), result.shape());
                return Err(format!(
                    "internal error: a result is {given}{given_shape} instead of {dtype}{shape}"
                ));
            }
        }
        Ok(results)
    }
}

/// Why a run failed that the device is not to blame for. The outputs' contents are undefined then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RunError {
    /// The wrong number of tensors was given.
    #[error("the model has {expected} {what}(s), {given} were given")]
    Count {
        /// "input" or "output".
        what: &'static str,
        /// Tensors that the model has.
        expected: usize,
        /// Tensors given.
        given: usize,
    },
    /// A tensor of the wrong size was given.
    #[error("{what} {index} takes {expected} bytes, {given} were given")]
    Size {
        /// "input" or "output".
        what: &'static str,
        /// Which one.
        index: usize,
        /// Bytes that it takes.
        expected: usize,
        /// Bytes given.
        given: usize,
    },
    /// A run with a host routine was to be captured.
    #[error(
        "the step `{step}` runs on the host, so that a run cannot be captured in a graph; run outside of the capture"
    )]
    Captured {
        /// The step's name.
        step: String,
    },
    /// An input was said to be in the memory of an output that does not update it.
    #[error("input {index} has no value: no output updates it in place")]
    NotUpdated {
        /// Its number.
        index: usize,
    },
    /// An input in the host's memory cannot become part of a graph.
    #[error(
        "input {index} is in the host's memory, which a captured run does not read when it is launched; bring it to the GPU first"
    )]
    CapturedInput {
        /// Its number.
        index: usize,
    },
    /// A host routine failed.
    #[error("`{step}` failed: {reason}")]
    Host {
        /// The step's name.
        step: String,
        /// What the routine said.
        reason: String,
    },
}

/// How long a step took.
#[derive(Clone, PartialEq, Debug)]
pub struct StepProfile {
    /// The step's name.
    pub name: String,
    /// Median over the runs, in microseconds.
    pub median_us: f64,
}

/// Checks how many tensors the caller gives; `what` is "input" or "output".
pub(crate) fn check_counts(what: &'static str, expected: usize, given: usize) -> Result<(), RunError> {
    if expected == given { Ok(()) } else { Err(RunError::Count { what, expected, given }) }
}

/// Checks the caller's tensors against those of a program; `what` is "input" or "output".
pub(crate) fn check_sizes(
    what: &'static str,
    expected: &[usize],
    given: impl ExactSizeIterator<Item = usize>,
) -> Result<(), RunError> {
    check_counts(what, expected.len(), given.len())?;
    match expected.iter().zip(given).enumerate().find(|(_, (expected, given))| **expected != *given) {
        Some((index, (&expected, given))) => Err(RunError::Size { what, index, expected, given }),
        None => Ok(()),
    }
}

impl fmt::Debug for HostStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostStep").field("inputs", &self.inputs).field("outputs", &self.outputs).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device whose launches are their tensors.
    impl KernelLaunch for Vec<BufferRef> {
        fn buffers(&self) -> &[BufferRef] {
            self
        }

        fn violations(&self) -> Vec<String> {
            self.is_empty().then(|| "launches nothing".to_owned()).into_iter().collect()
        }
    }

    type Step = super::Step<Vec<BufferRef>>;
    type Program = super::Program<Vec<BufferRef>>;

    fn copy(from: BufferRef, to: BufferRef) -> Step {
        Step { name: "copy".into(), action: Action::Copy { from, to } }
    }

    fn program(steps: Vec<Step>) -> Program {
        Program {
            arena_bytes: 64,
            constants: vec![Bytes::from_static(&[0; 8])],
            input_bytes: vec![16],
            output_bytes: vec![16],
            updates: Vec::new(),
            steps,
        }
    }

    fn violations(steps: Vec<Step>) -> Vec<String> {
        program(steps).check().err().map_or(Vec::new(), |error| error.violations)
    }

    #[test]
    fn valid_copies() {
        let steps = vec![
            copy(BufferRef::read(Base::Input(0), 0, 16), BufferRef::write(Base::Arena, 48, 16)),
            copy(BufferRef::read(Base::Arena, 48, 16), BufferRef::write(Base::Output(0), 0, 16)),
            copy(BufferRef::read(Base::Constant(0), 8, 0), BufferRef::write(Base::Output(0), 16, 0)),
            copy(BufferRef::read(Base::Arena, 0, 16), BufferRef::write(Base::Arena, 16, 16)),
        ];
        assert_eq!(violations(steps), Vec::<String>::new());
    }

    #[test]
    fn all_violations_are_reported() {
        let steps = vec![
            copy(BufferRef::read(Base::Input(1), 0, 16), BufferRef::write(Base::Constant(0), 0, 16)),
            copy(BufferRef::read(Base::Arena, usize::MAX, 2), BufferRef::write(Base::Output(0), 0, 1)),
            copy(BufferRef::read(Base::Arena, 0, 16), BufferRef::write(Base::Arena, 15, 16)),
        ];
        assert_eq!(
            violations(steps).join("\n"),
            "step 0 `copy`: input 1[0, +16] does not exist\n\
             step 0 `copy`: constant 0[0, +16] is outside of its 8 bytes\n\
             step 0 `copy`: constant 0[0, +16] must not be written\n\
             step 1 `copy`: arena[18446744073709551615, +2] is outside of its 64 bytes\n\
             step 1 `copy`: copies arena[18446744073709551615, +2] to output 0[0, +1]\n\
             step 2 `copy`: arena[0, +16] and arena[15, +16] overlap in part"
        );
    }

    #[test]
    fn launches_are_checked() {
        let launch = |buffers| Step { name: "k".into(), action: Action::Launch(buffers) };
        let (read, write) = (BufferRef::read(Base::Arena, 0, 8), BufferRef::write(Base::Arena, 4, 8));
        assert_eq!(
            violations(vec![launch(vec![]), launch(vec![read, write]), launch(vec![read])]).join("\n"),
            "step 0 `k`: launches nothing\n\
             step 1 `k`: arena[0, +8] and arena[4, +8] overlap in part"
        );
    }

    #[test]
    fn host_tensors_must_fit() {
        let tensor = |buffer| TensorRef { buffer, dtype: DType::F32, shape: [3].into() };
        let host = HostStep {
            routine: Box::new(|inputs: &[Tensor]| Ok(inputs.to_vec())),
            inputs: vec![tensor(BufferRef::read(Base::Input(0), 0, 16))],
            outputs: vec![tensor(BufferRef::read(Base::Output(0), 0, 12))],
        };
        assert_eq!(
            violations(vec![Step { name: "host".into(), action: Action::Host(host) }]).join("\n"),
            "step 0 `host`: input 0[0, +16] is to hold f32[3]: 12 bytes\n\
             step 0 `host`: output 0[0, +12] is a result, but not marked as written"
        );
    }
}
