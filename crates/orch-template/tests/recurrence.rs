//! Recurrences on CPUs and GPUs: every cell under every schedule through the interpreter of thread programs, against the
//! reference interpreter.

mod support;

use orch_compute::{ArgRole, RecurrenceProgram, Storage, layouts};
use orch_ir::*;
use orch_template::gpu::recurrence::{Engine, Exchange, GpuRecurrenceSchedule};
use orch_template::recurrence::RecurrenceSchedule;
use orch_template::{gpu, recurrence};
use orch_thread::kernel::{Binding, Kernel};
use orch_thread::target::{CpuTarget, GPU_TARGETS, GpuTarget};
use orch_thread::{BufferData, ExecOptions, interpret, validate_thread};
use support::{Random, TARGETS, assert_close};

/// A recurrence to test.
#[derive(Clone)]
struct Case {
    spec: Recurrence,
    extents: RecurrenceExtents,
    dtype: DType,
    /// Whether the recurrence weights are constant.
    is_constant: bool,
}

fn activation(function: ActivationFn) -> Activation {
    Activation { function, alpha: 0.5, beta: 0.25 }
}

/// One direction, `[time, batch, hidden]`, default activations, no optional operands.
fn case(cell: RnnCell, [time, batch, hidden]: [usize; 3]) -> Case {
    let functions = [ActivationFn::Sigmoid, ActivationFn::Tanh, ActivationFn::Tanh];
    let functions = match cell {
        RnnCell::Rnn => &functions[1..2],
        RnnCell::Gru { .. } => &functions[..2],
        RnnCell::Lstm { .. } => &functions[..],
    };
    let spec = Recurrence {
        cell,
        directions: vec![RnnDirection::Forward],
        activations: functions.iter().map(|&function| activation(function)).collect(),
        clip: None,
        operands: Vec::new(),
    };
    let extents = RecurrenceExtents { time, batch, directions: 1, hidden };
    Case { spec, extents, dtype: DType::F32, is_constant: true }
}

const LSTM: RnnCell = RnnCell::Lstm { input_forget: false };
const GRU: RnnCell = RnnCell::Gru { linear_before_reset: true };
const RESET_BEFORE: RnnCell = RnnCell::Gru { linear_before_reset: false };

impl Case {
    fn with(mut self, operands: &[RecurrenceOperand]) -> Self {
        self.spec.operands = operands.to_vec();
        self
    }

    fn bidirectional(mut self) -> Self {
        self.spec.directions = vec![RnnDirection::Forward, RnnDirection::Reverse];
        self.spec.activations = self.spec.activations.repeat(2);
        self.extents.directions = 2;
        self
    }

    /// The graph; its inputs are the operands, and the weights if they are not constant.
    fn graph(&self) -> PrimGraph {
        let RecurrenceExtents { time, batch, directions, hidden } = self.extents;
        let rows = self.spec.cell.gates() * hidden;
        let mut graph = PrimGraph::new("recurrence");
        let x = graph.add_input("x", self.dtype, [time, batch, directions, rows]);
        let shape = Shape::from([directions, hidden, rows]);
        let r = match self.is_constant {
            true => graph.add_constant(values(self.dtype, &shape, 3)),
            false => graph.add_input("r", self.dtype, shape),
        };
        let mut inputs = vec![x, r];
        for operand in &self.spec.operands {
            let (dtype, dims) = match operand {
                RecurrenceOperand::InitialHidden | RecurrenceOperand::InitialCell => {
                    (self.dtype, vec![directions, batch, hidden])
                }
                RecurrenceOperand::Peepholes => (self.dtype, vec![directions, 3, hidden]),
                RecurrenceOperand::CandidateBias => (self.dtype, vec![directions, hidden]),
                RecurrenceOperand::Lengths => (DType::I32, vec![batch]),
            };
            inputs.push(graph.add_input(operand.name(), dtype, dims));
        }
        let op = PrimOp::Recurrence(Box::new(self.spec.clone()));
        for (number, result) in graph.add_node(op, inputs).unwrap().into_iter().enumerate() {
            graph.add_output(format!("y{number}"), result);
        }
        graph
    }

    /// Every schedule of every target.
    fn check(&self) {
        self.check_on(&TARGETS, &GPU_TARGETS, few);
    }

    /// Some schedules of these targets.
    fn check_on(
        &self,
        cpus: &[&CpuTarget],
        gpus: &[&GpuTarget],
        chosen: fn(&RecurrenceProgram, &GpuTarget) -> Vec<GpuRecurrenceSchedule>,
    ) {
        let graph = self.graph();
        let storage = Storage::as_stated(&graph, layouts::assign(&graph));
        let inputs: Vec<Tensor> = (graph.inputs.iter().enumerate())
            .map(|(seed, (_, id))| values(graph.dtype(*id), graph.shape(*id), seed as u64 + 10))
            .collect();
        let expected = orch_interp::evaluate(&graph, &inputs, &orch_interp::EvalOptions::default()).unwrap();
        let outputs: Vec<TensorId> = graph.outputs.iter().map(|(_, id)| *id).collect();
        for outputs in [&outputs[..], &outputs[..1], &outputs[1..]] {
            let program = RecurrenceProgram::of(&graph, &[NodeId(0)], outputs, &storage, "test").unwrap();
            let run = |kernel: &Kernel, what: &str| {
                let actual = run(&graph, &program, kernel, &inputs, what);
                let wanted =
                    (graph.outputs.iter().zip(&expected)).filter(|((_, id), _)| outputs.contains(id));
                for ((_, expected), actual) in wanted.zip(&actual) {
                    assert_close(expected, actual, what);
                }
            };
            for target in cpus {
                let design = recurrence::design(&program, target);
                run(&design.kernel, &format!("{} {:?}: {}", target.name, self.spec, design.schedule));
                for schedule in shared(&program, target) {
                    let what = format!("{} {:?} {:?}: {schedule}", target.name, self.extents, self.spec);
                    run(&recurrence::lower(&program, &schedule, target), &what);
                }
            }
            for target in gpus {
                for schedule in chosen(&program, target) {
                    let what = format!("{} {:?} {:?}: {schedule}", target.name, self.extents, self.spec);
                    run(&gpu::recurrence::lower(&program, &schedule), &what);
                }
            }
        }
    }
}

/// Steps that are phases, with one panel and with two an item: all sequences are in one tile.
fn shared(program: &RecurrenceProgram, target: &CpuTarget) -> Vec<RecurrenceSchedule> {
    let schedule = recurrence::schedule(program, target);
    let RecurrenceExtents { time, batch, .. } = program.extents;
    let batch_rows = batch.next_multiple_of(schedule.rows);
    let panels = if time > 0 && batch > 0 { &[1, 2][..] } else { &[] };
    panels
        .iter()
        .map(|&panels| RecurrenceSchedule { batch_rows, vectors: 1, panels: Some(panels), ..schedule })
        .collect()
}

/// The preferred schedule, and some of all others.
fn few(program: &RecurrenceProgram, target: &GpuTarget) -> Vec<GpuRecurrenceSchedule> {
    let all = gpu::recurrence::schedules(program, target);
    assert!(!all.is_empty(), "no schedule for {:?}", program.extents);
    let step = all.len().div_ceil(5).max(1);
    let mut found: Vec<_> = all.iter().copied().step_by(step).collect();
    // Weights that do not fit in shared memory.
    let partly = |schedule: &GpuRecurrenceSchedule| GpuRecurrenceSchedule {
        shared_k: schedule.shared_k / 2,
        ..*schedule
    };
    let shares_weights = |schedule: &&GpuRecurrenceSchedule| schedule.engine == Engine::SharedWeights;
    found.extend(all.iter().find(shares_weights).map(partly));
    found
}

/// Of each engine the schedule in the grid of the fewest threads.
fn small_grids(program: &RecurrenceProgram, target: &GpuTarget) -> Vec<GpuRecurrenceSchedule> {
    let mut found: Vec<GpuRecurrenceSchedule> = Vec::new();
    let mut all = gpu::recurrence::schedules(program, target);
    all.retain(|schedule| schedule.exchange == Exchange::Grid);
    all.sort_by_key(|schedule| schedule.threads() * schedule.grid(program));
    for schedule in all {
        if found.iter().all(|other| other.engine != schedule.engine) {
            found.push(schedule);
        }
    }
    found
}

/// Random values: floats of up to 1, integers from 0 to 4.
fn values(dtype: DType, shape: &Shape, seed: u64) -> Tensor {
    let tensor = Random(0x9e37_79b9_7f4a_7c15 ^ (seed + 1)).tensor(dtype, shape);
    let scale = if dtype.is_float() { 0.25 } else { 1.0 };
    Tensor::from_f64(
        dtype,
        shape.clone(),
        &tensor.to_f64().iter().map(|v| scale * v.abs()).collect::<Vec<_>>(),
    )
}

fn run(
    graph: &PrimGraph,
    program: &RecurrenceProgram,
    kernel: &Kernel,
    inputs: &[Tensor],
    what: &str,
) -> Vec<Tensor> {
    assert_eq!(validate_thread(&kernel.program), Vec::<String>::new(), "{what}");
    let value = |tensor: TensorId| {
        let position = graph.inputs.iter().position(|(_, input)| *input == tensor);
        position
            .map(|position| &inputs[position])
            .or_else(|| graph.constant(tensor))
            .expect("a known operand")
    };
    let mut buffers: Vec<BufferData> = (kernel.bindings.iter())
        .map(|binding| match binding {
            Binding::Arg(id) => {
                let arg = program.arg(*id);
                match arg.role {
                    ArgRole::Output | ArgRole::Updated => BufferData::zeros(arg.dtype, arg.shape.elems()),
                    ArgRole::Input | ArgRole::Constant => BufferData::from_tensor(value(arg.tensor)),
                }
            }
            Binding::Packed(packed) => {
                let source = value(program.arg(packed.arg).tensor);
                BufferData { dtype: packed.dtype, bytes: packed.pack(source) }
            }
            Binding::Own { dtype, elems, is_zeroed: true } => BufferData::zeros(*dtype, *elems),
            // Whatever was there: not a number.
            Binding::Own { dtype, elems, is_zeroed: false } => {
                BufferData { dtype: *dtype, bytes: vec![0xff; elems * dtype.size_bytes()] }
            }
        })
        .collect();
    let report = interpret(&kernel.program, &mut buffers, &ExecOptions::default())
        .unwrap_or_else(|error| panic!("{error}\n{what}\n{}", kernel.program));
    assert!(report.unwritten.iter().all(|&count| count == 0), "elements are not written\n{what}");
    let is_output =
        |binding: &&Binding| matches!(binding, Binding::Arg(id) if program.arg(*id).role == ArgRole::Output);
    let outputs = kernel.bindings.iter().zip(&buffers).filter(|(binding, _)| is_output(binding));
    outputs
        .map(|(binding, buffer)| {
            let Binding::Arg(id) = binding else { unreachable!("outputs are not packed") };
            buffer.to_tensor(program.arg(*id).shape.clone()).expect("as many elements")
        })
        .collect()
}

#[test]
fn cells_of_all_kinds() {
    for cell in [RnnCell::Rnn, GRU, RESET_BEFORE, LSTM, RnnCell::Lstm { input_forget: true }] {
        case(cell, [3, 2, 8]).check();
        case(cell, [2, 3, 5]).bidirectional().check();
    }
}

#[test]
fn extents_about_those_of_tiles() {
    for (time, batch, hidden) in [(1, 1, 1), (2, 9, 17), (3, 17, 16), (2, 1, 33), (1, 3, 64), (0, 2, 4)] {
        case(LSTM, [time, batch, hidden]).check();
        case(RESET_BEFORE, [time, batch, hidden]).check();
    }
    // No sequences.
    case(LSTM, [2, 0, 4]).check_on(&TARGETS, &[], few);
}

#[test]
fn optional_operands() {
    use RecurrenceOperand::{CandidateBias, InitialCell, InitialHidden, Lengths, Peepholes};
    case(LSTM, [4, 3, 6]).with(&[InitialHidden, InitialCell, Peepholes, Lengths]).bidirectional().check();
    case(LSTM, [2, 1, 20]).with(&[InitialCell]).check();
    case(GRU, [4, 5, 7]).with(&[InitialHidden, CandidateBias, Lengths]).bidirectional().check();
    case(RESET_BEFORE, [3, 5, 8]).with(&[InitialHidden, Lengths]).check();
    case(RnnCell::Rnn, [3, 2, 12]).with(&[InitialHidden, Lengths]).bidirectional().check();
}

#[test]
fn weights_that_are_computed() {
    let computed = |case: Case| Case { is_constant: false, ..case };
    computed(case(LSTM, [2, 3, 20])).bidirectional().check();
    computed(case(RESET_BEFORE, [2, 1, 9])).check();
}

#[test]
fn activations_and_clipping() {
    for functions in ActivationFn::ALL.chunks(2) {
        let mut case = case(GRU, [2, 2, 8]);
        let second = functions[functions.len() - 1];
        case.spec.activations = vec![activation(functions[0]), activation(second)];
        case.spec.clip = Some(0.75);
        case.check();
    }
    let mut differing = case(LSTM, [2, 2, 8]).bidirectional();
    differing.spec.activations[3] = activation(ActivationFn::HardSigmoid);
    differing.spec.directions = vec![RnnDirection::Reverse, RnnDirection::Forward];
    differing.check();
}

/// Whole blocks of 32 hidden units, whose weights may be in registers.
#[test]
fn weights_in_registers() {
    use RecurrenceOperand::{CandidateBias, InitialCell, InitialHidden, Peepholes};
    let ways = |case: &Case| -> Vec<Engine> {
        let graph = case.graph();
        let storage = Storage::as_stated(&graph, layouts::assign(&graph));
        let outputs: Vec<TensorId> = graph.outputs.iter().map(|(_, id)| *id).collect();
        let program = RecurrenceProgram::of(&graph, &[NodeId(0)], &outputs, &storage, "test").unwrap();
        let all = gpu::recurrence::schedules(&program, GPU_TARGETS[0]);
        all.iter().map(|schedule| schedule.engine).collect()
    };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let typed = |case: Case| Case { dtype, ..case };
        for case in [
            typed(case(LSTM, [3, 2, 32])),
            typed(case(LSTM, [3, 9, 96])).bidirectional(),
            typed(case(GRU, [3, 3, 32])).with(&[InitialHidden, CandidateBias]).bidirectional(),
            typed(case(GRU, [2, 17, 64])),
            typed(case(LSTM, [3, 1, 64])).with(&[InitialHidden, InitialCell, Peepholes]),
            typed(case(RnnCell::Rnn, [4, 5, 64])).with(&[InitialHidden]),
        ] {
            let wanted = |engine: &Engine| match dtype {
                DType::F32 => *engine == Engine::RegisterWeights,
                _ => matches!(engine, Engine::Mma(_)),
            };
            assert!(ways(&case).iter().any(wanted), "{dtype}: {:?}", case.extents);
            case.check_on(&[], &GPU_TARGETS[..1], small_grids);
        }
    }
}

#[test]
fn narrow_and_wide_types() {
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        for cell in [LSTM, GRU] {
            Case { dtype, ..case(cell, [3, 2, 12]) }.check();
        }
    }
}
