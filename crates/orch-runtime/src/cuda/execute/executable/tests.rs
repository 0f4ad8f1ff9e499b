//! Tests of executables, with a driver that has no device and runs graphs in an adverse order.

mod failures;

use super::*;
use crate::cuda::testing::{Fake, FakeLibrary, floats, function};
use crate::cuda::{
    ClearedArgument, CudaStep, Launch, LaunchShape, Nvtx, Row, SearchPaths, TensorMapShape, TimeOptions,
};
use crate::program::{HostStep, TensorRef};
use orch_ir::{DType, Tensor};

const ELEMS: usize = 4;
const BYTES: usize = 4 * ELEMS;

fn arena(slot: usize) -> (Base, usize) {
    (Base::Arena, slot * BYTES)
}

fn input(idx: usize) -> (Base, usize) {
    (Base::Input(idx), 0)
}

fn output(idx: usize) -> (Base, usize) {
    (Base::Output(idx), 0)
}

const CONSTANT: (Base, usize) = (Base::Constant(0), 0);

fn read((base, at): (Base, usize)) -> BufferRef {
    BufferRef::read(base, at, BYTES)
}

fn write((base, at): (Base, usize)) -> BufferRef {
    BufferRef::write(base, at, BYTES)
}

/// A launch whose last tensor is written.
fn launch(context: &Context, symbol: &str, tensors: &[(Base, usize)]) -> CudaStep {
    let (last, others) = tensors.split_last().unwrap();
    let buffers = others.iter().map(|&tensor| read(tensor)).chain([write(*last)]).collect();
    let shape = LaunchShape::new(2, 2);
    let action = Action::Launch(Launch {
        function: function(context, symbol),
        shape,
        buffers,
        tensor_maps: Vec::new(),
        cleared: Vec::new(),
        call: None,
    });
    CudaStep { name: format!("{symbol} to {}", write(*last)), action }
}

fn copy(from: (Base, usize), to: (Base, usize)) -> CudaStep {
    CudaStep { name: "copy".into(), action: Action::Copy { from: read(from), to: write(to) } }
}

/// Doubles on the host.
fn double(from: (Base, usize), to: (Base, usize)) -> CudaStep {
    let tensor = |buffer| TensorRef { buffer, dtype: DType::F32, shape: [ELEMS].into() };
    let routine = |inputs: &[Tensor]| {
        let values: Vec<f64> = inputs[0].to_f64().iter().map(|value| 2.0 * value).collect();
        Ok(vec![Tensor::from_f64(DType::F32, inputs[0].shape().clone(), &values)])
    };
    let (inputs, outputs) = (vec![tensor(read(from))], vec![tensor(write(to))]);
    let action = Action::Host(HostStep { routine: Box::new(routine), inputs, outputs });
    CudaStep { name: "double".into(), action }
}

fn program(steps: Vec<CudaStep>, outputs: usize) -> Program {
    Program {
        arena_bytes: 4 * BYTES,
        constants: vec![floats([0.5; ELEMS]).into()],
        input_bytes: vec![BYTES],
        output_bytes: vec![BYTES; outputs],
        updates: Vec::new(),
        steps,
    }
}

/// Two branches that join, reusing memory; a host routine; and a copied constant:
/// `out0 = 2 * (-x + (x + 0.5)) - x`, `out1 = 0.5`.
fn diamond(context: &Context) -> Program {
    let steps = vec![
        launch(context, "neg", &[input(0), arena(0)]),
        launch(context, "add", &[input(0), CONSTANT, arena(1)]),
        launch(context, "add", &[arena(0), arena(1), arena(2)]),
        // Over what the first branch has written and the join has read.
        launch(context, "neg", &[input(0), arena(1)]),
        double(arena(2), arena(3)),
        launch(context, "add", &[arena(3), arena(1), output(0)]),
        copy(CONSTANT, output(1)),
    ];
    program(steps, 2)
}

fn executable(context: &Context, program: Program, execution: Execution) -> CudaExecutable {
    let options = ExecutableOptions { execution, ..ExecutableOptions::default() };
    CudaExecutable::new(context, program, options).unwrap()
}

/// The same, with graphs for tensors of the host.
fn built(context: &Context, program: Program, execution: Execution) -> CudaExecutable {
    let mut executable = executable(context, program, execution);
    executable.use_own().unwrap();
    executable
}

fn check_diamond(executable: &mut CudaExecutable, x: f32) {
    let (mut first, mut second) = (vec![0; BYTES], vec![0; BYTES]);
    executable.run(&[&floats([x; ELEMS])], &mut [&mut first, &mut second]).unwrap();
    assert_eq!((first, second), (floats([1.0 - x; ELEMS]), floats([0.5; ELEMS])));
}

#[test]
fn programs_run_in_every_way() {
    let fake = Fake::new();
    let context = fake.context();
    for execution in Execution::ALL {
        let mut executable = executable(&context, diamond(&context), execution);
        for x in [1.0, -3.5, 1.0] {
            check_diamond(&mut executable, x);
        }
    }
    assert_eq!(fake.memory_used(), 0, "everything is freed");
}

#[test]
fn graphs_are_built_from_the_bytes_that_steps_share() {
    let fake = Fake::new();
    let context = fake.context();
    let mut executable = built(&context, diamond(&context), Execution::BranchedGraph);
    let made: Vec<String> =
        fake.log().lines().filter(|line| line.starts_with("node")).map(str::to_owned).collect();
    assert_eq!(
        made,
        [
            "node 0: neg 2x2 shared 0 after",
            "node 1: add 2x2 shared 0 after",
            "node 2: add 2x2 shared 0 after 0 1",
            "node 3: neg 2x2 shared 0 after 2",
            "node 0: add 2x2 shared 0 after",
            "node 1: copy 16 after",
        ]
    );
    check_diamond(&mut executable, 2.0);
    assert_eq!(
        fake.log(),
        "upload 16\ngraph of 4: 1 0 2 3\nwait\ndownload 16\nwait\nupload 16\nwait\ngraph of 2: 1 0\ndownload 16\n\
         download 16\nwait\n"
    );
}

/// A launch with a tensor map of its input.
fn with_tensor_map(context: &Context, shape: TensorMapShape) -> Program {
    let mut step = launch(context, "neg", &[input(0), output(0)]);
    let Action::Launch(launch) = &mut step.action else { unreachable!("it is a launch") };
    launch.tensor_maps.push(shape);
    program(vec![step], 1)
}

fn tensor_map() -> TensorMapShape {
    TensorMapShape { argument: 0, offset_bytes: 0, extents: vec![2, 2], strides_bytes: vec![16], rows: 64 }
}

#[test]
fn tensor_maps_are_encoded_once() {
    let fake = Fake::new();
    let context = fake.context();
    for execution in Execution::ALL {
        let mut executable = built(&context, with_tensor_map(&context, tensor_map()), execution);
        assert_eq!(fake.log().matches("tensor map of rank 2, 64 rows").count(), 1);
        let mut result = vec![0; BYTES];
        executable.run(&[&floats([3.0; ELEMS])], &mut [&mut result]).unwrap();
        assert_eq!(result, floats([-3.0; ELEMS]));
        assert!(!fake.log().contains("tensor map"));
    }
}

#[test]
fn invalid_tensor_maps_are_refused() {
    let fake = Fake::new();
    let context = fake.context();
    let error = |shape: TensorMapShape| {
        let program = with_tensor_map(&context, shape);
        match CudaExecutable::new(&context, program, ExecutableOptions::default()) {
            Ok(mut made) => made.use_own().expect_err("it is refused").to_string(),
            Err(error) => error.to_string(),
        }
    };
    for shape in [
        TensorMapShape { argument: 2, ..tensor_map() },
        TensorMapShape { extents: vec![2], strides_bytes: vec![], ..tensor_map() },
        TensorMapShape { strides_bytes: vec![], ..tensor_map() },
    ] {
        let error = error(shape);
        assert!(error.contains("a tensor map that is not of one of its tensors"), "{error}");
    }
    let error = error(TensorMapShape { strides_bytes: vec![8], ..tensor_map() });
    assert!(error.contains("encoding the tensor map") && error.contains("of step `neg to"), "{error}");
}

/// `x + 0`, where an earlier step has left `-x` in place of the zeros.
fn clearing(context: &Context) -> Program {
    let mut add = launch(context, "add", &[input(0), arena(0), output(0)]);
    if let Action::Launch(launch) = &mut add.action {
        launch.buffers[1] = write(arena(0));
        launch.cleared = vec![ClearedArgument { argument: 1, zeros: read((Base::Constant(1), 0)) }];
        launch.shape.is_cooperative = true;
    }
    let mut program = program(vec![launch(context, "neg", &[input(0), arena(0)]), add], 1);
    program.constants.push(vec![0; BYTES].into());
    program
}

#[test]
fn arguments_are_cleared_before_each_launch() {
    let fake = Fake::new();
    let context = fake.context();
    for execution in Execution::ALL {
        let mut executable = executable(&context, clearing(&context), execution);
        for x in [1.0, -2.5] {
            let mut sum = vec![0; BYTES];
            executable.run(&[&floats([x; ELEMS])], &mut [&mut sum]).unwrap();
            assert_eq!(sum, floats([x; ELEMS]), "{execution:?}");
        }
        let cooperative = fake.log().lines().filter(|line| line.contains("cooperative")).count();
        assert!(cooperative > 0, "{execution:?}: {}", fake.log());
        // Alone, after others have run.
        let times = executable.time_steps(1..2, &TimeOptions { replays: 1, ..TimeOptions::default() });
        assert_eq!(times.unwrap().len(), 1);
    }
}

#[test]
fn only_own_memory_is_cleared() {
    let fake = Fake::new();
    let context = fake.context();
    let refused = |change: fn(&mut Launch)| {
        let mut program = clearing(&context);
        let Action::Launch(launch) = &mut program.steps[1].action else { panic!("a launch") };
        change(launch);
        let error = CudaProgram::new(&context, program, ExecutableOptions::default()).err();
        error.is_some_and(|error| error.to_string().contains("clears"))
    };
    assert!(!refused(|_| {}));
    assert!(refused(|launch| launch.cleared[0].argument = 0));
    assert!(refused(|launch| launch.cleared[0].argument = 3));
    assert!(refused(|launch| launch.cleared[0].zeros = read(arena(1))));
    assert!(refused(|launch| launch.cleared[0].zeros.len_bytes /= 2));
}

#[test]
fn straight_graphs_wait_for_the_last_step() {
    let fake = Fake::new();
    let context = fake.context();
    let _executable = built(&context, diamond(&context), Execution::StraightGraph);
    let log = fake.log();
    let after: Vec<&str> =
        log.lines().filter_map(|line| line.split_once(" after")).map(|(_, after)| after).collect();
    assert_eq!(after, ["", " 0", " 1", " 2", "", " 0"]);
}

/// A chain of four kernels that may start early, the third after two others.
fn early(context: &Context) -> Program {
    let steps = vec![
        launch(context, "neg", &[input(0), arena(0)]),
        launch(context, "neg", &[arena(0), arena(1)]),
        launch(context, "add", &[input(0), CONSTANT, arena(2)]),
        launch(context, "add", &[arena(1), arena(2), arena(3)]),
        copy(arena(3), arena(0)),
        launch(context, "neg", &[arena(0), output(0)]),
    ];
    let mut program = program(steps, 1);
    for step in &mut program.steps {
        if let Action::Launch(launch) = &mut step.action {
            launch.shape.is_programmatic = true;
            launch.shape.cluster = 2;
        }
    }
    program
}

#[test]
fn kernels_start_early_after_one_other_kernel() {
    let fake = Fake::new();
    let context = fake.context();
    let build = |allow_programmatic| {
        let options = ExecutableOptions { allow_programmatic, ..ExecutableOptions::default() };
        let mut executable = CudaExecutable::new(&context, early(&context), options).unwrap();
        executable.use_own().unwrap();
        let log = fake.log();
        let mut result = vec![0; BYTES];
        executable.run(&[&floats([3.0; ELEMS])], &mut [&mut result]).unwrap();
        assert_eq!(result, floats([-6.5; ELEMS]));
        fake.log();
        let is_built = |line: &&str| line.starts_with("node") || line.starts_with(' ');
        log.lines().filter(is_built).map(|line| format!("{line}\n")).collect()
    };
    let with: String = build(true);
    assert_eq!(
        with,
        "node 0: neg 2x2 shared 0 after\n  cluster 2\n\
         node 1: neg 2x2 shared 0 after\n  cluster 2\n  early after 0\n\
         node 2: add 2x2 shared 0 after\n  cluster 2\n\
         node 3: add 2x2 shared 0 after 1 2\n  cluster 2\n\
         node 4: copy 16 after 3\n\
         node 5: neg 2x2 shared 0 after 4\n  cluster 2\n"
    );
    let without: String = build(false);
    assert_eq!(without, with.replace("after\n  cluster 2\n  early after 0\n", "after 0\n  cluster 2\n"));
}

#[test]
fn drivers_without_early_edges_run_the_same() {
    let fake = Fake::without("cuGraphAddDependencies_v2");
    let context = fake.context();
    let mut executable = executable(&context, early(&context), Execution::BranchedGraph);
    assert!(!fake.log().contains("early"));
    let mut result = vec![0; BYTES];
    executable.run(&[&floats([3.0; ELEMS])], &mut [&mut result]).unwrap();
    assert_eq!(result, floats([-6.5; ELEMS]));
}

#[test]
fn direct_launches_start_early_only_where_allowed() {
    let fake = Fake::new();
    let context = fake.context();
    // What came before the run may write what a later kernel reads before it waits: the first one does not start early.
    for (allow_programmatic, early_launches) in [(true, 4), (false, 0)] {
        let options = ExecutableOptions {
            execution: Execution::Direct,
            allow_programmatic,
            ..ExecutableOptions::default()
        };
        let mut executable = CudaExecutable::new(&context, early(&context), options).unwrap();
        executable.run_on_device(1).unwrap();
        assert_eq!(fake.log().matches("early").count(), early_launches);
    }
}

#[test]
fn buffers_for_tensors_of_the_host_are_made_when_they_are_needed() {
    let fake = Fake::new();
    let context = fake.context();
    let mut executable = executable(&context, diamond(&context), Execution::BranchedGraph);
    // Four slots of the arena, and a constant of 256 bytes.
    assert_eq!(fake.memory_used(), 64 + 256);
    check_diamond(&mut executable, 1.0);
    // An input and two outputs.
    assert_eq!(fake.memory_used(), 64 + 256 + 3 * 16);
}

#[test]
fn copies_that_do_nothing_keep_the_order() {
    let fake = Fake::new();
    let context = fake.context();
    let nothing = BufferRef::write(Base::Arena, 0, 0);
    for execution in Execution::ALL {
        let steps = vec![
            launch(&context, "neg", &[input(0), arena(0)]),
            CudaStep {
                name: "to itself".into(),
                action: Action::Copy { from: read(arena(0)), to: write(arena(0)) },
            },
            CudaStep { name: "nothing".into(), action: Action::Copy { from: nothing, to: nothing } },
            launch(&context, "neg", &[arena(0), output(0)]),
        ];
        let mut executable = executable(&context, program(steps, 1), execution);
        let mut result = vec![0; BYTES];
        executable.run(&[&floats([3.0; ELEMS])], &mut [&mut result]).unwrap();
        assert_eq!(result, floats([3.0; ELEMS]));
    }
}

#[test]
fn runs_on_the_device_copy_nothing() {
    let fake = Fake::new();
    let context = fake.context();
    let steps = vec![launch(&context, "add", &[input(0), CONSTANT, output(0)])];
    let mut executable = executable(&context, program(steps, 1), Execution::BranchedGraph);
    executable.upload(&[&floats([1.0; ELEMS])]).unwrap();
    fake.log();
    executable.run_on_device(3).unwrap();
    assert_eq!(fake.log(), "graph of 1: 0\ngraph of 1: 0\ngraph of 1: 0\nwait\n");
    let mut result = vec![0; BYTES];
    executable.download(&mut [&mut result]).unwrap();
    assert_eq!(result, floats([1.5; ELEMS]));
}

#[test]
fn executables_of_a_program_share_constants_only() {
    let fake = Fake::new();
    let context = fake.context();
    let mut first = executable(&context, diamond(&context), Execution::BranchedGraph);
    let before = fake.memory_used();
    let mut second = first.source.executable().unwrap();
    assert_eq!(fake.memory_used() - before, before - 256);
    check_diamond(&mut second, 5.0);
    drop(first);
    check_diamond(&mut second, 6.0);
    first = second.source.executable().unwrap();
    check_diamond(&mut first, 7.0);
}

#[test]
fn times_are_those_of_the_device() {
    let fake = Fake::new();
    let context = fake.context();
    for execution in Execution::ALL {
        let mut executable = executable(&context, early(&context), execution);
        let options = TimeOptions { warmup: 1, replays: 3, flush_l2: true };
        let near = |times: &[f64], expected: f64| times.iter().all(|time| (time - expected).abs() < 1e-2);
        // Five kernels and a copy.
        assert!(near(&executable.time_runs(&options).unwrap(), 27.0));
        assert!(near(&executable.time_steps(3..4, &options).unwrap(), 5.0));
        assert!(near(&executable.time_steps(4..5, &options).unwrap(), 2.0));
        let profile = executable.profile(3).unwrap();
        assert_eq!(profile[0].name, "neg to arena[0, +16]");
        let times: Vec<f64> = profile.iter().map(|step| step.median_us.round()).collect();
        assert_eq!(times, [5.0, 5.0, 5.0, 5.0, 2.0, 5.0]);
    }
}

#[test]
fn runs_in_a_row_are_one_graph_on_tensors_of_their_own() {
    let fake = Fake::new();
    let context = fake.context();
    let early = |symbol, tensors: &[_]| {
        let mut step = launch(&context, symbol, tensors);
        let Action::Launch(launch) = &mut step.action else { panic!() };
        launch.shape.is_programmatic = true;
        step
    };
    let pair = vec![early("neg", &[input(0), arena(0)]), early("add", &[arena(0), CONSTANT, output(0)])];
    let executable = |steps| {
        let mut executable = executable(&context, program(steps, 1), Execution::BranchedGraph);
        executable.upload(&[&floats([2.0; ELEMS])]).unwrap();
        executable
    };
    let mut once = executable(pair);
    fake.log();
    let mut row = Row::new(&once, 3).unwrap().unwrap();
    let log = fake.log();
    // Behind what the three prepare for themselves.
    let built: Vec<&str> = log.lines().filter(|line| line.contains("after")).skip(9).map(str::trim).collect();
    assert_eq!(
        built,
        [
            "node 0: neg 2x2 shared 0 after",
            "node 1: add 2x2 shared 0 after",
            "early after 0",
            "node 2: neg 2x2 shared 0 after",
            "early after 1",
            "node 3: add 2x2 shared 0 after",
            "early after 2",
            "node 4: neg 2x2 shared 0 after",
            "early after 3",
            "node 5: add 2x2 shared 0 after",
            "early after 4",
        ]
    );
    let options = TimeOptions { warmup: 0, replays: 2, flush_l2: false };
    let times = row.time(&options).unwrap();
    // Two kernels of 5 us each.
    assert!(times.len() == 2 && times.iter().all(|time| (time - 10.0).abs() < 1e-2), "{times:?}");
    for run in row.runs_mut() {
        let mut result = vec![0; BYTES];
        run.download(&mut [&mut result]).unwrap();
        assert_eq!(result, floats([-1.5; ELEMS]));
    }
    drop(row);
    // The inputs are its own as before, and it has not run.
    let mut result = vec![0; BYTES];
    once.download(&mut [&mut result]).unwrap();
    assert_eq!(result, floats([0.0; ELEMS]));
    assert!(Row::new(&executable(vec![double(input(0), output(0))]), 3).unwrap().is_none());
}

#[test]
fn batches_are_held_back_until_they_are_enqueued() {
    let fake = Fake::new();
    let context = fake.context();
    let times = TimeOptions { warmup: 1, replays: 33, flush_l2: false };
    let time = |program, checked| {
        let options = ExecutableOptions { check_each_step: checked, ..ExecutableOptions::default() };
        let mut executable = CudaExecutable::new(&context, program, options).unwrap();
        fake.log();
        executable.time_runs(&times).unwrap();
        let runs = fake.log().matches("hold").count();
        executable.time_steps(0..1, &times).unwrap();
        [runs, fake.log().matches("hold").count()]
    };
    let launches =
        |count| program((0..count).map(|_| launch(&context, "neg", &[input(0), arena(0)])).collect(), 1);
    // Two batches; runs of many steps might fill the driver's queue, and those that wait after each step would never end.
    assert_eq!(time(launches(8), false), [2, 2]);
    assert_eq!(time(launches(9), false), [0, 2]);
    assert_eq!(time(launches(2), true), [0, 0]);
}

#[test]
fn runs_and_direct_steps_are_ranges_for_profilers() {
    let (fake, nvtx) = (Fake::new(), FakeLibrary::nvtx());
    let context = fake.context();
    let ranges =
        || ProfilerRanges::load(&nvtx.paths, "diamond", ["a", "b", "c", "d", "host", "e", "f"]).unwrap();
    let executable = |execution| {
        let options = ExecutableOptions { execution, ..ExecutableOptions::default() };
        let program = CudaProgram::new(&context, diamond(&context), options).unwrap();
        program.with_ranges(Some(ranges())).executable().unwrap()
    };
    let steps =
        |names: &[&str]| -> String { names.iter().map(|name| format!("  begin {name}\n  end\n")).collect() };
    check_diamond(&mut executable(Execution::BranchedGraph), 2.0);
    assert_eq!(nvtx.log(), format!("begin diamond\n{}end\n", steps(&["host"])));
    let mut direct = executable(Execution::Direct);
    check_diamond(&mut direct, 2.0);
    let all = format!("begin diamond\n{}end\n", steps(&["a", "b", "c", "d", "host", "e", "f"]));
    assert_eq!(nvtx.log(), all);
    direct.run_on_device(2).unwrap();
    assert_eq!(nvtx.log(), all.repeat(2));
    // A range ends where a run fails, too.
    fake.fail("cuLaunchKernelEx", 1, 0);
    direct.run_on_device(1).unwrap_err();
    assert_eq!(nvtx.log(), format!("begin diamond\n{}end\n", steps(&["a"])));
}

#[test]
fn without_nvtx_nothing_is_marked() {
    let load = |nvtx| ProfilerRanges::load(&SearchPaths { nvtx, ..SearchPaths::default() }, "model", []);
    assert!(load(Nvtx::Off).is_none());
    assert!(load(Nvtx::File("/nonexistent/libnvtx3interop.so.1".into())).is_none());
    let other = FakeLibrary::cublaslt();
    assert!(ProfilerRanges::load(&other.paths, "model", []).is_none(), "another library");
}
