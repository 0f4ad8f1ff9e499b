//! What executables say of wrong programs, of want of memory, and of devices and drivers that fail.

use super::*;

#[test]
fn wrong_programs_and_tensors_are_refused() {
    let fake = Fake::new();
    let context = fake.context();
    let mut bad = program(vec![launch(&context, "neg", &[input(0), arena(9)])], 1);
    let Action::Launch(step) = &mut bad.steps[0].action else { panic!() };
    step.shape = LaunchShape { cluster: 2, ..LaunchShape::new(3, 0) };
    let text = CudaExecutable::new(&context, bad, ExecutableOptions::default()).unwrap_err().to_string();
    assert_eq!(
        text,
        "internal error: the program is not valid:\n\
         step 0 `neg to arena[144, +16]`: arena[144, +16] is outside of its 64 bytes\n\
         step 0 `neg to arena[144, +16]`: launches 3 blocks of 0 threads\n\
         step 0 `neg to arena[144, +16]`: launches 3 blocks in clusters of 2"
    );
    let mut executable = executable(&context, diamond(&context), Execution::Direct);
    let text = executable.run(&[&[0; BYTES]], &mut []).unwrap_err().to_string();
    assert_eq!(text, "the model has 2 output(s), 0 were given");
    let text = executable.upload(&[&[0; 3]]).unwrap_err().to_string();
    assert_eq!(text, "input 0 takes 16 bytes, 3 were given");
}

#[test]
fn host_failures_name_the_step() {
    let fake = Fake::new();
    let context = fake.context();
    let mut steps = vec![double(input(0), output(0))];
    let Action::Host(host) = &mut steps[0].action else { panic!() };
    host.routine = Box::new(|_: &[Tensor]| Err("k is negative".to_owned()));
    let mut executable = executable(&context, program(steps, 1), Execution::BranchedGraph);
    let text = executable.run(&[&[0; BYTES]], &mut [&mut [0; BYTES]]).unwrap_err().to_string();
    assert_eq!(text, "`double` failed: k is negative");
}

#[test]
fn want_of_memory_says_for_what() {
    let fake = Fake::new();
    fake.set("memory_total", 1000);
    let context = fake.context();
    let large = Program { arena_bytes: 5 << 30, ..Program::default() };
    let text = CudaExecutable::new(&context, large, ExecutableOptions::default()).unwrap_err().to_string();
    assert!(
        text.contains(
            "for working memory (all tensors together take 5.0 GiB): 5.0 GiB needed, 1000 bytes of 1000 bytes free"
        ),
        "{text}"
    );
    // What does not fit need not be the most of it.
    let large = Program {
        arena_bytes: 700,
        input_bytes: vec![400],
        constants: vec![vec![0; 10].into()],
        ..Program::default()
    };
    let error = |program| {
        let made = CudaExecutable::new(&context, program, ExecutableOptions::default());
        made.unwrap().use_own().unwrap_err().to_string()
    };
    let text = error(large);
    assert!(
        text.contains("for inputs (all tensors together take 1356 bytes): 400 bytes needed, 44 bytes of"),
        "{text}"
    );
    let text = error(Program { input_bytes: vec![usize::MAX; 2], ..Program::default() });
    assert!(text.contains("for inputs (all tensors together take 17179869184.0 GiB): "), "{text}");
}

/// The error of a run in which the second of three kernels fails so.
fn faulty_run(symbol: &str, options: ExecutableOptions) -> (CudaError, CudaError) {
    let fake = Fake::new();
    let context = fake.context();
    let steps = vec![
        launch(&context, "neg", &[input(0), arena(0)]),
        launch(&context, symbol, &[arena(1)]),
        launch(&context, "neg", &[arena(0), output(0)]),
    ];
    let mut executable = CudaExecutable::new(&context, program(steps, 1), options).unwrap();
    let mut run = || match executable.run(&[&[0; BYTES]], &mut [&mut [0; BYTES]]).unwrap_err() {
        ExecutableError::Cuda(error) => error,
        other => panic!("{other}"),
    };
    (run(), run())
}

#[test]
fn faults_are_blamed_on_the_kernels_that_ran() {
    for execution in Execution::ALL {
        let options = ExecutableOptions { execution, ..ExecutableOptions::default() };
        let (first, second) = faulty_run("overrun", options);
        let text = first.to_string();
        assert!(
            text.starts_with(
                "internal error: illegal address (CUDA_ERROR_ILLEGAL_ADDRESS) while running one of 3 kernels, from \
                 step `neg to arena[0, +16]` to step `neg to output 0[0, +16]` (`orchestrion run --check-steps` says \
                 which). "
            ) && text.contains("compute-sanitizer"),
            "{text}"
        );
        assert!(first.is_final() && second.is_final(), "{second}");
        assert!(first.is_internal(), "neither the model nor the machine is to blame");
    }
    let options = ExecutableOptions { check_each_step: true, ..ExecutableOptions::default() };
    let text = faulty_run("overrun", options).0.to_string();
    assert!(text.contains("while running kernel `overrun` of step `overrun to arena[16, +16]`. "), "{text}");
}

#[test]
fn lost_devices_are_told_from_faults() {
    let (error, _) = faulty_run("defect", ExecutableOptions::default());
    let text = error.to_string();
    assert!(
        text.starts_with("the device was lost while running one of 3 kernels")
            && text.contains("CUDA_ERROR_ECC_UNCORRECTABLE (as the driver says)"),
        "{text}"
    );
    assert!(error.is_final() && !error.is_internal());
}

#[test]
fn launches_that_fail_name_their_steps() {
    let fake = Fake::new();
    let context = fake.context();
    let mut executable = executable(&context, diamond(&context), Execution::BranchedGraph);
    fake.fail("cuGraphLaunch", 1, 0);
    let text = executable.run_on_device(1).unwrap_err().to_string();
    assert!(text.starts_with("the driver reports CUDA_ERROR_INVALID_VALUE"), "{text}");
    let steps =
        "while launching one of 4 kernels, from step `neg to arena[0, +16]` to step `neg to arena[16, +16]`";
    assert!(text.contains(steps), "{text}");
}

#[test]
fn without_memory_for_graphs_steps_are_launched_one_by_one() {
    for symbol in ["cuGraphInstantiateWithFlags", "cuGraphLaunch"] {
        let fake = Fake::new();
        let context = fake.context();
        let mut executable = executable(&context, diamond(&context), Execution::BranchedGraph);
        fake.fail(symbol, 2, 0);
        let (mut first, mut second) = (vec![0; BYTES], vec![0; BYTES]);
        executable.run(&[&floats([1.0; ELEMS])], &mut [&mut first, &mut second]).unwrap();
        assert_eq!((first, second), (floats([0.0; ELEMS]), floats([0.5; ELEMS])), "{symbol}");
    }
}

/// Whatever call of the driver fails, an error comes out and nothing else happens.
#[test]
fn every_call_may_fail() {
    const CALLS: [&str; 16] = [
        "cuCtxSetCurrent",
        "cuMemAlloc_v2",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemsetD8Async",
        "cuStreamCreate",
        "cuStreamSynchronize",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventElapsedTime",
        "cuFuncGetAttribute",
        "cuGraphCreate",
        "cuGraphAddKernelNode_v2",
        "cuGraphAddMemcpyNode",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
    ];
    for symbol in CALLS {
        let mut failures = 0;
        for code in [1, 719] {
            for calls in 0.. {
                let fake = Fake::new();
                let context = fake.context();
                let program = diamond(&context);
                fake.fail(symbol, code, calls);
                let work = || -> Result<(), ExecutableError> {
                    let mut executable =
                        CudaExecutable::new(&context, program, ExecutableOptions::default())?;
                    let (mut first, mut second) = (vec![0; BYTES], vec![0; BYTES]);
                    executable.run(&[&[0; BYTES]], &mut [&mut first, &mut second])?;
                    executable.profile(1)?;
                    Ok(())
                };
                match work() {
                    Ok(()) => break,
                    Err(ExecutableError::Cuda(error)) => assert_eq!(error.is_final(), code == 719, "{error}"),
                    Err(other) => panic!("{other}"),
                }
                failures += 1;
                assert!(failures < 500, "{symbol}");
                if code == 1 && symbol != "cuCtxSetCurrent" {
                    drop(context);
                    assert_eq!(fake.memory_used(), 0, "{symbol} failing after {calls} calls");
                }
            }
        }
        assert!(failures > 0, "{symbol} is never called");
    }
}
