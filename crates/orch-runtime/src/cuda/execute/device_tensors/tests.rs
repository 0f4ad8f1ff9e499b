//! Tests of runs on tensors of the device, with a driver that has no device and runs graphs in an adverse order.

use super::*;
use crate::cuda::driver::device::Context;
use crate::cuda::driver::memory::DeviceBuffer;
use crate::cuda::execute::graph::{Captured, GraphBuilder};
use crate::cuda::testing::{Fake, floats, function};
use crate::cuda::{CudaStep, ExecutableOptions, Execution, Launch, LaunchShape, Program};
use crate::program::{HostStep, TensorRef, Update};
use orch_ir::{DType, Tensor};

const ELEMS: usize = 4;
const BYTES: usize = 4 * ELEMS;

#[test]
fn written_ranges_that_overlap_others_are_found() {
    let (a, b, c, inside, empty) = (0..8, 8..16, 12..20, 13..14, 4..4);
    let of = |written: &[&Range<Address>], read: &[&Range<Address>]| {
        let owned = |ranges: &[&Range<Address>]| ranges.iter().copied().cloned().collect::<Vec<_>>();
        overlapping(&owned(written), &owned(read))
    };
    assert_eq!(of(&[&a, &b], &[]), [false, false]);
    assert_eq!(of(&[&a, &b, &c], &[]), [false, true, true]);
    assert_eq!(of(&[&c, &a], &[&b, &b]), [true, false]);
    assert_eq!(of(&[&a, &b], &[&inside, &empty]), [false, true]);
    assert_eq!(of(&[&empty, &inside], &[&a, &c]), [false, true]);
    assert_eq!(of(&[&b, &b], &[]), [true, true]);
}

fn read(base: Base, slot: usize) -> BufferRef {
    BufferRef::read(base, slot * BYTES, BYTES)
}

fn write(base: Base, slot: usize) -> BufferRef {
    BufferRef::write(base, slot * BYTES, BYTES)
}

/// A launch whose last tensor is written.
fn launch(context: &Context, symbol: &str, buffers: Vec<BufferRef>) -> CudaStep {
    let (function, shape) = (function(context, symbol), LaunchShape::new(2, 2));
    let launch =
        Launch { function, shape, buffers, tensor_maps: Vec::new(), cleared: Vec::new(), call: None };
    CudaStep { name: symbol.into(), action: Action::Launch(launch) }
}

/// `out0 = -(x + y)`, `out1 = x`.
fn program(context: &Context) -> Program {
    let (x, y) = (read(Base::Input(0), 0), read(Base::Input(1), 0));
    let steps = vec![
        launch(context, "add", vec![x, y, write(Base::Arena, 0)]),
        launch(context, "neg", vec![read(Base::Arena, 0), write(Base::Output(0), 0)]),
        CudaStep { name: "copy".into(), action: Action::Copy { from: x, to: write(Base::Output(1), 0) } },
    ];
    Program {
        arena_bytes: BYTES,
        constants: Vec::new(),
        input_bytes: vec![BYTES; 2],
        output_bytes: vec![BYTES; 2],
        updates: Vec::new(),
        steps,
    }
}

fn executable(context: &Context, program: Program, execution: Execution) -> CudaExecutable {
    let options = ExecutableOptions { execution, ..ExecutableOptions::default() };
    CudaExecutable::new(context, program, options).unwrap()
}

/// Device memory of the test, and a stream of somebody else.
struct Caller {
    context: Context,
    stream: Arc<Stream>,
}

impl Caller {
    fn new(context: &Context) -> Self {
        Self { context: context.clone(), stream: Arc::new(Stream::new(context).unwrap()) }
    }

    fn tensor(&self, value: f32) -> DeviceBuffer {
        DeviceBuffer::copy_of(&self.stream, &floats([value; ELEMS]), "a test").unwrap()
    }

    fn value(&self, tensor: &DeviceBuffer) -> Vec<u8> {
        let mut bytes = vec![0; tensor.len_bytes()];
        tensor.copy_to_host(&self.stream, 0, &mut bytes).unwrap();
        bytes
    }

    fn run(
        &self,
        executable: &mut CudaExecutable,
        inputs: &[u64],
        outputs: &[u64],
    ) -> Result<(), ExecutableError> {
        let inputs: Vec<InputPlace<'_>> = addresses(inputs).into_iter().map(InputPlace::Device).collect();
        self.run_at(executable, &inputs, outputs)
    }

    fn run_at(
        &self,
        executable: &mut CudaExecutable,
        inputs: &[InputPlace<'_>],
        outputs: &[u64],
    ) -> Result<(), ExecutableError> {
        let tensors = DeviceTensors { inputs, outputs: &addresses(outputs), scratch: None };
        executable.enqueue_on(&self.stream, &tensors)
    }
}

/// Tensors of the sizes of the program that outlive the run, which is done at once.
fn addresses(of: &[u64]) -> Vec<DeviceAddress> {
    // SAFETY: see above.
    of.iter().map(|&address| unsafe { DeviceAddress::new(address) }).collect()
}

#[test]
fn tensors_are_read_and_written_where_they_are() {
    let fake = Fake::new();
    let context = fake.context();
    for execution in Execution::ALL {
        let mut executable = executable(&context, program(&context), execution);
        let caller = Caller::new(&context);
        // The results of all runs stay.
        let mut results = Vec::new();
        for run in 0..5 {
            let (x, y) = (caller.tensor(run as f32), caller.tensor(10.0));
            let (first, second) = (caller.tensor(0.0), caller.tensor(0.0));
            fake.log();
            caller
                .run(&mut executable, &[x.address(), y.address()], &[first.address(), second.address()])
                .unwrap();
            let log = fake.log();
            assert!(!log.contains("upload") && !log.contains("download") && !log.contains("wait"), "{log}");
            results.push((run as f32, x, y, first, second));
        }
        for (value, _x, _y, first, second) in &results {
            assert_eq!(caller.value(first), floats([-(value + 10.0); ELEMS]));
            assert_eq!(caller.value(second), floats([*value; ELEMS]));
        }
        // Tensors of the host again.
        let (mut first, mut second) = (vec![0; BYTES], vec![0; BYTES]);
        let (x, y) = (floats([2.0; ELEMS]), floats([3.0; ELEMS]));
        executable.run(&[&x, &y], &mut [&mut first, &mut second]).unwrap();
        assert_eq!((first, second), (floats([-5.0; ELEMS]), floats([2.0; ELEMS])));
    }
    assert_eq!(fake.memory_used(), 0, "everything is freed");
}

#[test]
fn only_addresses_that_change_are_set() {
    let fake = Fake::new();
    let context = fake.context();
    let mut executable = executable(&context, program(&context), Execution::StraightGraph);
    let caller = Caller::new(&context);
    let tensors: Vec<DeviceBuffer> = (0..4).map(|value| caller.tensor(value as f32)).collect();
    let [x, y, first, second] = [0, 1, 2, 3].map(|idx: usize| tensors[idx].address());
    fake.log();
    let mut log_of = |inputs: [u64; 2], outputs: [u64; 2]| {
        caller.run(&mut executable, &inputs, &outputs).unwrap();
        fake.log()
    };
    let built = log_of([x, y], [first, second]);
    assert!(built.contains("node 2: copy") && !built.contains("set"), "made for these addresses: {built}");
    assert_eq!(log_of([x, y], [first, second]), "graph of 3: 0 1 2\n");
    assert_eq!(log_of([x, x], [first, second]), "set node 0\ngraph of 3: 0 1 2\n");
    assert_eq!(log_of([x, x], [second, first]), "set node 1\nset node 2\ngraph of 3: 0 1 2\n");
}

#[test]
fn what_was_not_set_is_set_again() {
    let fake = Fake::new();
    let context = fake.context();
    let mut executable = executable(&context, program(&context), Execution::StraightGraph);
    let caller = Caller::new(&context);
    let (x, y, first, second) =
        (caller.tensor(1.0), caller.tensor(2.0), caller.tensor(0.0), caller.tensor(0.0));
    let (inputs, outputs) = ([x.address(), y.address()], [first.address(), second.address()]);
    caller.run(&mut executable, &[y.address(); 2], &[second.address(), first.address()]).unwrap();
    fake.fail("cuGraphExecKernelNodeSetParams_v2", 1, 1);
    let error = caller.run(&mut executable, &inputs, &outputs).unwrap_err().to_string();
    assert!(error.contains("giving kernel `neg`"), "{error}");
    caller.run(&mut executable, &inputs, &outputs).unwrap();
    assert_eq!(caller.value(&first), floats([-3.0; ELEMS]));
}

#[test]
fn ways_of_execution_change_between_runs_of_other_addresses() {
    let fake = Fake::new();
    let context = fake.context();
    let mut executable = executable(&context, program(&context), Execution::Direct);
    let caller = Caller::new(&context);
    let mut kept = Vec::new();
    for run in 0..7 {
        executable.set_timed(Some(run as u64));
        executable.set_execution(Execution::ALL[run % 3]);
        let (x, y) = (caller.tensor(run as f32), caller.tensor(10.0));
        let (first, second) = (caller.tensor(0.0), caller.tensor(0.0));
        // Each graph is used again three runs later, when all has moved.
        let (inputs, outputs) = ([x.address(), y.address()], [first.address(), second.address()]);
        caller.run(&mut executable, &inputs, &outputs).unwrap();
        assert_eq!(caller.value(&first), floats([-(run as f32 + 10.0); ELEMS]), "run {run}");
        kept.extend([x, y, first, second]);
    }
    let timed = executable.timed_runs().unwrap();
    let timed: Vec<_> = timed.iter().map(|run| (run.number, run.execution)).collect();
    // The first run in each way makes its graph.
    assert_eq!(timed, (3..7).map(|run| (run as u64, Execution::ALL[run % 3])).collect::<Vec<_>>());
    assert!(executable.timed_runs().unwrap().is_empty(), "each is told once");
    // What was chosen stays as it is bound; other graphs are gone, and made again when they are used again.
    executable.set_timed(None);
    executable.fix_execution(Execution::StraightGraph);
    fake.log();
    let [x, y, first, second] = [4, 5, 6, 7].map(|idx: usize| kept[idx].address());
    let mut log_of = |execution: Execution| {
        executable.set_execution(execution);
        caller.run(&mut executable, &[x, y], &[first, second]).unwrap();
        fake.log()
    };
    let line = log_of(Execution::StraightGraph);
    assert!(line.contains("set node") && !line.contains("copy"), "{line}");
    assert!(log_of(Execution::BranchedGraph).contains("node 2: copy"), "made again");
    assert!(executable.timed_runs().unwrap().is_empty());
}

#[test]
fn overlapping_and_misaligned_tensors_are_staged() {
    let fake = Fake::new();
    let context = fake.context();
    for execution in Execution::ALL {
        let mut executable = executable(&context, program(&context), execution);
        let caller = Caller::new(&context);
        // The first output takes the place of an input.
        let (x, y, second) = (caller.tensor(1.0), caller.tensor(2.0), caller.tensor(0.0));
        caller.run(&mut executable, &[x.address(), y.address()], &[x.address(), second.address()]).unwrap();
        assert_eq!(caller.value(&x), floats([-3.0; ELEMS]));
        assert_eq!(caller.value(&second), floats([1.0; ELEMS]), "the input as it was");
        // Two outputs in one place: the later one is left.
        let (x, both) = (caller.tensor(4.0), caller.tensor(0.0));
        caller.run(&mut executable, &[x.address(), y.address()], &[both.address(), both.address()]).unwrap();
        assert_eq!(caller.value(&both), floats([4.0; ELEMS]));
        // Within an aligned line.
        let long =
            DeviceBuffer::copy_of(&caller.stream, &floats((0..8).map(|at| at as f32)), "a test").unwrap();
        let (first, second) = (caller.tensor(0.0), caller.tensor(0.0));
        caller
            .run(&mut executable, &[long.address() + 4, y.address()], &[first.address(), second.address()])
            .unwrap();
        assert_eq!(caller.value(&first), floats([-3.0, -4.0, -5.0, -6.0]));
    }
}

#[test]
fn runs_in_several_streams_follow_one_another() {
    let fake = Fake::new();
    let context = fake.context();
    let mut executable = executable(&context, program(&context), Execution::StraightGraph);
    let (one, other) = (Caller::new(&context), Caller::new(&context));
    let (x, first, second) = (one.tensor(1.0), one.tensor(0.0), one.tensor(0.0));
    let (inputs, outputs) = ([x.address(); 2], [first.address(), second.address()]);
    fake.log();
    let mut follows = |caller: &Caller| {
        caller.run(&mut executable, &inputs, &outputs).unwrap();
        fake.log().matches("follow").count()
    };
    assert_eq!([&one, &one, &other, &other, &one].map(&mut follows), [1, 0, 1, 0, 1]);
    // The default stream has no handle.
    // SAFETY: it lives as long as the context.
    let stream = Arc::new(unsafe { Stream::of_handle(&context, std::ptr::null_mut()) });
    let default = Caller { context: context.clone(), stream };
    assert_eq!([&default, &default].map(&mut follows), [1, 0]);
}

/// What was captured in a stream, launched.
fn launch_captured(caller: &Caller, captured: &Captured) {
    let builder = GraphBuilder::new(&caller.context).unwrap();
    builder.add_captured(captured, &[]).unwrap();
    builder.build(&caller.stream).unwrap().launch(&caller.stream, String::new).unwrap();
}

#[test]
fn runs_become_part_of_graphs_of_the_caller() {
    let fake = Fake::new();
    let context = fake.context();
    for execution in Execution::ALL {
        let mut executable = executable(&context, program(&context), execution);
        let caller = Caller::new(&context);
        let (x, y, first, second) =
            (caller.tensor(1.0), caller.tensor(2.0), caller.tensor(0.0), caller.tensor(0.0));
        let scratch = caller.tensor(0.0);
        let [inputs, outputs, memory] = [&[&x, &y][..], &[&first, &second], &[&scratch]]
            .map(|all| addresses(&all.iter().map(|t| t.address()).collect::<Vec<_>>()));
        let inputs: Vec<InputPlace<'_>> = inputs.into_iter().map(InputPlace::Device).collect();
        let tensors = DeviceTensors { inputs: &inputs, outputs: &outputs, scratch: Some(memory[0]) };
        let captured = Captured::of(&caller.stream, || {
            executable.enqueue_on(&caller.stream, &tensors).map_err(|error| match error {
                ExecutableError::Cuda(error) => error,
                other => panic!("{other}"),
            })
        });
        let captured = captured.unwrap();
        assert_eq!(caller.value(&first), floats([0.0; ELEMS]), "nothing has run");
        // Runs of its own in between use other memory.
        let (z, third, fourth) = (caller.tensor(7.0), caller.tensor(0.0), caller.tensor(0.0));
        let others = [third.address(), fourth.address()];
        caller.run(&mut executable, &[z.address(); 2], &others).unwrap();
        launch_captured(&caller, &captured);
        assert_eq!(caller.value(&first), floats([-3.0; ELEMS]));
        assert_eq!(caller.value(&second), floats([1.0; ELEMS]));
        assert_eq!(caller.value(&scratch), floats([3.0; ELEMS]), "the working memory of the graph");
        assert_eq!(caller.value(&third), floats([-14.0; ELEMS]));
    }
}

#[test]
fn runs_in_memory_of_the_caller_take_none_and_follow_it() {
    let fake = Fake::new();
    let context = fake.context();
    for execution in Execution::ALL {
        let options = ExecutableOptions { execution, allocate_late: true, ..ExecutableOptions::default() };
        let mut executable = CudaExecutable::new(&context, program(&context), options).unwrap();
        let caller = Caller::new(&context);
        let [x, y, first, second, near, far] =
            [1.0, 2.0, 0.0, 0.0, 0.0, 0.0].map(|value| caller.tensor(value));
        let [inputs, outputs, memory] = [&[&x, &y][..], &[&first, &second], &[&near, &far]]
            .map(|all| addresses(&all.iter().map(|tensor| tensor.address()).collect::<Vec<_>>()));
        let inputs: Vec<InputPlace<'_>> = inputs.into_iter().map(InputPlace::Device).collect();
        let mut run = |scratch| {
            fake.log();
            let tensors = DeviceTensors { inputs: &inputs, outputs: &outputs, scratch };
            executable.enqueue_on(&caller.stream, &tensors).unwrap();
            fake.log()
        };
        let used = fake.memory_used();
        let is_graph = execution != Execution::Direct;
        run(Some(memory[0]));
        assert_eq!(caller.value(&first), floats([-3.0; ELEMS]));
        assert_eq!(caller.value(&near), floats([3.0; ELEMS]), "it works there");
        assert!(!run(Some(memory[0])).contains("set node"), "nothing has moved");
        assert_eq!(run(Some(memory[1])).contains("set node"), is_graph);
        assert_eq!(caller.value(&far), floats([3.0; ELEMS]));
        assert_eq!(fake.memory_used(), used, "it took no working memory");
        // Memory of its own when none is given.
        let zeros = floats([0.0; ELEMS]);
        for memory in [&near, &far] {
            memory.copy_from_host(&caller.stream, 0, &zeros).unwrap();
        }
        assert_eq!(run(None).contains("set node"), is_graph);
        assert_eq!(fake.memory_used(), used + BYTES as i64);
        assert_eq!(caller.value(&first), floats([-3.0; ELEMS]));
        assert_eq!([caller.value(&near), caller.value(&far)], [zeros.clone(), zeros]);
    }
}

#[test]
fn runs_with_steps_on_the_host_are_not_captured() {
    let fake = Fake::new();
    let context = fake.context();
    let mut host = program(&context);
    let tensor = |buffer| TensorRef { buffer, dtype: DType::F32, shape: [ELEMS].into() };
    let routine = |inputs: &[Tensor]| Ok(vec![inputs[0].clone()]);
    host.steps[2] = CudaStep {
        name: "sampled".into(),
        action: Action::Host(HostStep {
            routine: Box::new(routine),
            inputs: vec![tensor(read(Base::Input(0), 0))],
            outputs: vec![tensor(write(Base::Output(1), 0))],
        }),
    };
    let mut executable = executable(&context, host, Execution::BranchedGraph);
    let caller = Caller::new(&context);
    let (x, first, second) = (caller.tensor(5.0), caller.tensor(0.0), caller.tensor(0.0));
    let (inputs, outputs) = ([x.address(); 2], [first.address(), second.address()]);
    caller.run(&mut executable, &inputs, &outputs).unwrap();
    assert_eq!(caller.value(&second), floats([5.0; ELEMS]), "the host reads and writes the caller's tensors");
    let mut refused = None;
    let captured = Captured::of(&caller.stream, || {
        refused = Some(caller.run(&mut executable, &inputs, &outputs).unwrap_err().to_string());
        Ok(())
    });
    assert!(captured.is_ok());
    let text = refused.unwrap();
    assert!(
        text.starts_with("the step `sampled` runs on the host, so that a run cannot be captured"),
        "{text}"
    );
}

#[test]
fn wrong_numbers_of_tensors_are_refused() {
    let fake = Fake::new();
    let context = fake.context();
    let mut executable = executable(&context, program(&context), Execution::Direct);
    let caller = Caller::new(&context);
    let x = caller.tensor(0.0).address();
    let text = caller.run(&mut executable, &[x], &[x, x]).unwrap_err().to_string();
    assert_eq!(text, "the model has 2 input(s), 1 were given");
    let text = caller.run(&mut executable, &[x, x], &[x]).unwrap_err().to_string();
    assert_eq!(text, "the model has 2 output(s), 1 were given");
}

#[test]
fn what_was_not_built_is_built_again() {
    let fake = Fake::new();
    let context = fake.context();
    let mut executable = executable(&context, program(&context), Execution::StraightGraph);
    let caller = Caller::new(&context);
    let (x, first, second) = (caller.tensor(1.0), caller.tensor(0.0), caller.tensor(0.0));
    let (inputs, outputs) = ([x.address(); 2], [first.address(), second.address()]);
    fake.fail("cuGraphInstantiateWithFlags", 1, 0);
    let error = caller.run(&mut executable, &inputs, &outputs).unwrap_err().to_string();
    assert!(error.contains("preparing a graph"), "{error}");
    caller.run(&mut executable, &inputs, &outputs).unwrap();
    assert_eq!(caller.value(&first), floats([-2.0; ELEMS]));
}

#[test]
fn tensors_of_the_caller_take_no_memory_of_the_executable() {
    let fake = Fake::new();
    let context = fake.context();
    let mut executable = executable(&context, program(&context), Execution::BranchedGraph);
    let caller = Caller::new(&context);
    let tensors: Vec<DeviceBuffer> = (0..4).map(|value| caller.tensor(value as f32)).collect();
    let [x, y, first, second] = [0, 1, 2, 3].map(|idx: usize| tensors[idx].address());
    let before = fake.memory_used();
    caller.run(&mut executable, &[x, y], &[first, second]).unwrap();
    assert_eq!(fake.memory_used(), before);
    // One that is misaligned does.
    caller.run(&mut executable, &[x, y], &[first + 4, second]).unwrap();
    assert_eq!(fake.memory_used(), before + 16);
}

#[test]
fn tensors_of_the_host_are_sent_when_they_change() {
    let fake = Fake::new();
    let context = fake.context();
    let mut executable = executable(&context, program(&context), Execution::StraightGraph);
    let caller = Caller::new(&context);
    let (x, first, second) = (caller.tensor(1.0), caller.tensor(0.0), caller.tensor(0.0));
    let outputs = [first.address(), second.address()];
    let x_at = InputPlace::Device(addresses(&[x.address()])[0]);
    let mut sent = |y: f32| {
        let y_bytes = floats([y; ELEMS]);
        fake.log();
        caller.run_at(&mut executable, &[x_at, InputPlace::Host(&y_bytes)], &outputs).unwrap();
        let log = fake.log();
        assert_eq!(caller.value(&first), floats([-(1.0 + y); ELEMS]));
        assert!(!log.contains("wait"), "{log}");
        log.matches("upload 16").count()
    };
    assert_eq!([2.0, 2.0, 3.0, 3.0, 2.0].map(&mut sent), [1, 0, 1, 0, 1]);
    // More often than there are slots.
    (0..20).for_each(|run| assert_eq!(sent(run as f32 + 10.0), 1));
    // A copy to the same buffer, by which what was sent is gone.
    let long = DeviceBuffer::copy_of(&caller.stream, &floats([7.0; 8]), "a test").unwrap();
    caller.run(&mut executable, &[x.address(), long.address() + 4], &outputs).unwrap();
    assert_eq!(caller.value(&first), floats([-8.0; ELEMS]));
    let y = floats([29.0; ELEMS]);
    caller.run_at(&mut executable, &[x_at, InputPlace::Host(&y)], &outputs).unwrap();
    assert_eq!(caller.value(&first), floats([-30.0; ELEMS]));
    // So is it by a run on tensors of the host.
    let (mut left, mut right) = (vec![0; BYTES], vec![0; BYTES]);
    executable.run(&[&y, &floats([1.0; ELEMS])], &mut [&mut left, &mut right]).unwrap();
    caller.run_at(&mut executable, &[x_at, InputPlace::Host(&y)], &outputs).unwrap();
    assert_eq!(caller.value(&first), floats([-30.0; ELEMS]));
}

#[test]
fn tensors_of_the_host_of_another_size_and_in_captures_are_refused() {
    let fake = Fake::new();
    let context = fake.context();
    let mut executable = executable(&context, program(&context), Execution::BranchedGraph);
    let caller = Caller::new(&context);
    let (x, first, second) = (caller.tensor(1.0), caller.tensor(0.0), caller.tensor(0.0));
    let outputs = [first.address(), second.address()];
    let x_at = InputPlace::Device(addresses(&[x.address()])[0]);
    let error = caller.run_at(&mut executable, &[x_at, InputPlace::Host(&[0; 8])], &outputs).unwrap_err();
    assert_eq!(error.to_string(), "input 1 takes 16 bytes, 8 were given");
    let mut refused = String::new();
    let captured = Captured::of(&caller.stream, || {
        let error = caller.run_at(&mut executable, &[x_at, InputPlace::Host(&[0; BYTES])], &outputs);
        refused = error.unwrap_err().to_string();
        Ok(())
    });
    assert!(captured.is_ok());
    assert!(refused.starts_with("input 1 is in the host's memory"), "{refused}");
}

#[test]
fn large_tensors_of_the_host_are_sent_each_time() {
    let fake = Fake::new();
    let context = fake.context();
    let len_bytes = (64 << 10) + 16;
    let copy = Action::Copy {
        from: BufferRef::read(Base::Input(0), 0, len_bytes),
        to: BufferRef::write(Base::Output(0), 0, len_bytes),
    };
    let program = Program {
        arena_bytes: 0,
        constants: Vec::new(),
        input_bytes: vec![len_bytes],
        output_bytes: vec![len_bytes],
        updates: Vec::new(),
        steps: vec![CudaStep { name: "copy".into(), action: copy }],
    };
    let mut executable = executable(&context, program, Execution::BranchedGraph);
    let caller = Caller::new(&context);
    let to = DeviceBuffer::new(&context, len_bytes, "a test").unwrap();
    for value in [1, 1, 2] {
        let bytes = vec![value; len_bytes];
        fake.log();
        caller.run_at(&mut executable, &[InputPlace::Host(&bytes)], &[to.address()]).unwrap();
        assert_eq!(fake.log().matches(&format!("upload {len_bytes}")).count(), 1);
        assert_eq!(caller.value(&to), bytes);
    }
}

/// `out0 = x + y`, which updates `x`, `out1 = -out0` and `out2 = -x`.
fn updating(context: &Context) -> Program {
    let (x, y, new) = (Base::Input(0), Base::Input(1), Base::Output(0));
    let keep = Action::Copy { from: read(x, 0), to: write(new, 0) };
    let steps = vec![
        CudaStep { name: "keep".into(), action: keep },
        launch(context, "neg", vec![read(x, 0), write(Base::Output(2), 0)]),
        launch(context, "add", vec![read(new, 0), read(y, 0), write(new, 0)]),
        launch(context, "neg", vec![read(new, 0), write(Base::Output(1), 0)]),
    ];
    Program {
        input_bytes: vec![BYTES; 2],
        output_bytes: vec![BYTES; 3],
        updates: vec![Update { output: 0, input: 0 }],
        steps,
        ..Program::default()
    }
}

#[test]
fn updated_inputs_stay_where_they_are() {
    let fake = Fake::new();
    let context = fake.context();
    for execution in Execution::ALL {
        let mut executable = executable(&context, updating(&context), execution);
        let caller = Caller::new(&context);
        let (x, y) = (caller.tensor(2.0), caller.tensor(3.0));
        let [apart, new, old] = [(); 3].map(|()| caller.tensor(0.0));
        let all = |value: f32| floats([value; ELEMS]);
        let mut value = 2.0;
        // In the memory of the input, with memory of its own, and in place again: other kernels see the value that they are to see.
        for is_in_place in [true, true, false, true] {
            let to = if is_in_place { &x } else { &apart };
            fake.log();
            let outputs = [to.address(), new.address(), old.address()];
            caller.run(&mut executable, &[x.address(), y.address()], &outputs).unwrap();
            let copies = fake.log().contains("copy");
            assert_eq!(copies, !is_in_place, "{execution:?}");
            assert_eq!(caller.value(to), all(value + 3.0));
            assert_eq!(caller.value(&new), all(-(value + 3.0)));
            assert_eq!(caller.value(&old), all(-value));
            if is_in_place {
                value += 3.0;
            }
            assert_eq!(caller.value(&x), all(value));
        }
        // Where another input has the same memory, it is read before that is written.
        let outputs = [x.address(), new.address(), old.address()];
        caller.run(&mut executable, &[x.address(), x.address()], &outputs).unwrap();
        assert_eq!(caller.value(&x), all(2.0 * value));
        assert_eq!(caller.value(&old), all(-value));
        // Tensors of the host keep their values.
        let mut results = [(); 3].map(|()| vec![0; BYTES]);
        let [first, second, third] = &mut results;
        executable.run(&[&all(1.0), &all(4.0)], &mut [first, second, third]).unwrap();
        assert_eq!(results, [all(5.0), all(-5.0), all(-1.0)]);
    }
    assert_eq!(fake.memory_used(), 0, "everything is freed");
}

#[test]
fn what_is_updated_waits_for_those_that_read_the_old_value() {
    let fake = Fake::new();
    let context = fake.context();
    let executable = executable(&context, updating(&context), Execution::BranchedGraph);
    let program = executable.program();
    let ranges: Vec<Vec<BufferRef>> = (program.steps.iter())
        .map(|step| step.buffers().into_iter().map(|range| range.identity(&program.updates)).collect())
        .collect();
    assert_eq!(crate::dependencies(&ranges), [vec![], vec![0], vec![1], vec![2]]);
}

#[test]
fn an_input_is_updated_once_and_by_an_output_of_its_size() {
    let fake = Fake::new();
    let context = fake.context();
    let refused = |updates: Vec<Update>, output_bytes: Vec<usize>| {
        let program = Program { updates, output_bytes, ..updating(&context) };
        program.check().unwrap_err().to_string()
    };
    let (first, second) = (Update { output: 0, input: 0 }, Update { output: 1, input: 0 });
    assert!(refused(vec![first, second], vec![BYTES; 3]).contains("output 1 cannot update input 0"));
    assert!(refused(vec![Update { output: 7, input: 0 }], vec![BYTES; 3]).contains("output 7 cannot update"));
    assert!(refused(vec![second], vec![BYTES, 2 * BYTES, BYTES]).contains("output 1 cannot update input 0"));
}
