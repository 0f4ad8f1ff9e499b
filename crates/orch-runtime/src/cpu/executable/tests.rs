//! Tests of executables: a small program of all kinds of steps, at all alignments and thread counts.

use super::*;
use crate::cpu::testing::load;
use crate::cpu::{Chunking, CpuStep, PoolOptions};
use crate::program::TensorRef;
use orch_ir::{DType, Tensor};

/// Adds a constant to each element, through scratch memory, and negates.
const SOURCE: &str = "#include <stdint.h>\n\
    void add(void *const *b, int64_t lo, int64_t hi, void *s, int64_t before) {\n\
    const float *x = b[0], *c = b[1]; float *y = b[2], *t = s;\n\
    for (int64_t i = lo; i < hi; ++i) { t[5] = c[0]; y[i] = x[i] + t[5]; } }\n\
    void neg(void *const *b, int64_t lo, int64_t hi, void *s, int64_t before) {\n\
    const float *x = b[0]; float *y = b[1]; for (int64_t i = lo; i < hi; ++i) y[i] = -x[i]; }\n";

fn launch(name: &str, kernel: super::super::CpuKernel, buffers: Vec<BufferRef>) -> CpuStep {
    CpuStep {
        name: name.into(),
        action: Action::Launch(Launch { kernel, buffers, chunking: Chunking::Dynamic, phases: 1 }),
    }
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// `out0 = -(in0 + constant)` by kernels, `out1 = 2 * out0` by a host routine, `out2` = the constant, copied.
fn program(elems: usize) -> Program {
    let library = load(SOURCE);
    let (size, tasks) = (4 * elems, elems as i64);
    let tensor = |buffer| TensorRef { buffer, dtype: DType::F32, shape: [elems].into() };
    let double = |inputs: &[Tensor]| {
        let values: Vec<f64> = inputs[0].to_f64().iter().map(|value| 2.0 * value).collect();
        Ok(vec![Tensor::from_f64(DType::F32, inputs[0].shape().clone(), &values)])
    };
    // The constant does not start at a multiple of 64.
    let constants = vec![Bytes::from(floats([9.0, 0.5])).slice(4..)];
    let input = BufferRef::read(Base::Input(0), 0, size);
    let constant = BufferRef::read(Base::Constant(0), 0, 4);
    let host = HostStep {
        routine: Box::new(double),
        inputs: vec![tensor(BufferRef::read(Base::Output(0), 0, size))],
        outputs: vec![tensor(BufferRef::write(Base::Output(1), 0, size))],
    };
    let steps = vec![
        launch(
            "add",
            library.kernel("add", tasks, 24).unwrap(),
            vec![input, constant, BufferRef::write(Base::Arena, 64, size)],
        ),
        launch(
            "neg",
            library.kernel("neg", tasks, 0).unwrap(),
            vec![BufferRef::read(Base::Arena, 64, size), BufferRef::write(Base::Output(0), 0, size)],
        ),
        CpuStep { name: "double".into(), action: Action::Host(host) },
        CpuStep {
            name: "copy".into(),
            action: Action::Copy { from: constant, to: BufferRef::write(Base::Output(2), 0, 4) },
        },
    ];
    Program {
        arena_bytes: 64 + size,
        constants,
        input_bytes: vec![size],
        output_bytes: vec![size, size, 4],
        updates: Vec::new(),
        steps,
    }
}

fn prepared(elems: usize, threads: usize) -> CpuProgram {
    let pool = Pool::new(PoolOptions { threads, pin: false });
    CpuProgram::new(program(elems), Arc::new(pool)).unwrap()
}

fn executable(elems: usize, threads: usize) -> CpuExecutable {
    prepared(elems, threads).executable()
}

fn read<'a>(shape: &'a [usize], bytes: &'a [u8]) -> TensorView<'a> {
    TensorView::new(DType::F32, shape, bytes).unwrap()
}

fn write<'a>(shape: &'a [usize], bytes: &'a mut [u8]) -> TensorViewMut<'a> {
    TensorViewMut::new(DType::F32, shape, bytes).unwrap()
}

/// Runs with tensors that start `shift` bytes after an aligned address, and checks the results.
fn check(executable: &mut CpuExecutable, elems: usize, shift: usize) {
    let size = 4 * elems;
    let values = |scale: f32| floats((0..elems).map(|i| scale * (i as f32 + 0.5)));
    let mut block = AlignedBuffer::zeroed(3 * size + 256);
    let (input, rest) = block.as_mut_slice()[shift..].split_at_mut(size);
    input.copy_from_slice(&values(1.0)[..]);
    // Half-integers minus the constant are exact.
    for chunk in input.chunks_exact_mut(4) {
        let value = f32::from_le_bytes(chunk.try_into().unwrap()) - 0.5;
        chunk.copy_from_slice(&value.to_le_bytes());
    }
    let (first, rest) = rest.split_at_mut(size);
    let (second, rest) = rest.split_at_mut(size);
    let shape = [elems];
    let outputs = &mut [write(&shape, first), write(&shape, second), write(&[1], &mut rest[..4])];
    executable.run(&[read(&shape, input)], outputs).unwrap();
    assert_eq!(first, values(-1.0));
    assert_eq!(second, values(-2.0));
    assert_eq!(rest[..4], 0.5f32.to_le_bytes());
}

#[test]
fn programs_run_at_any_alignment_and_thread_count() {
    for threads in [1, 2, 5] {
        for elems in [0, 1, 7, 64, 1001] {
            let mut executable = executable(elems, threads);
            for shift in [0, 4, 1, 0] {
                check(&mut executable, elems, shift);
            }
        }
    }
}

/// Each of 8 work items of a phase adds up what all of the phase before have written.
const PHASES: &str = "#include <stdint.h>\n\
    void sums(void *const *b, int64_t lo, int64_t hi, void *s, int64_t before) {\n\
    int32_t *y = b[0]; int32_t *t = s; t[0] = (int32_t)before;\n\
    for (int64_t i = lo; i < hi; ++i) { y[i] = 1 + (t[0] >= 0);\n\
    if (i >= 8) for (int64_t j = 0; j < 8; ++j) y[i] += y[i / 8 * 8 - 8 + j]; } }\n";

#[test]
fn phases_run_one_after_the_other_on_all_threads() {
    let library = load(PHASES);
    let program = |phases: i64| {
        let kernel = library.kernel("sums", 48, 4).unwrap();
        let buffers = vec![BufferRef::write(Base::Output(0), 0, 4 * 48)];
        let launch = Launch { kernel, buffers, chunking: Chunking::Each, phases };
        let steps = vec![CpuStep { name: "sums".into(), action: Action::Launch(launch) }];
        Program { output_bytes: vec![4 * 48], steps, ..Program::default() }
    };
    for threads in [1, 2, 5] {
        let pool = Arc::new(Pool::new(PoolOptions { threads, pin: false }));
        let mut executable = CpuProgram::new(program(6), pool).unwrap().executable();
        for _ in 0..100 {
            let mut output = vec![0; 4 * 48];
            let view = TensorViewMut::new(DType::I32, &[48], &mut output).unwrap();
            executable.run(&[], &mut [view]).unwrap();
            let sums = [1, 9, 73, 585, 4681, 37449i32];
            let expected = sums.iter().flat_map(|sum| [*sum; 8]).flat_map(i32::to_le_bytes);
            assert_eq!(output, expected.collect::<Vec<_>>(), "{threads} threads");
        }
    }
    let pool = Arc::new(Pool::new(PoolOptions { threads: 1, pin: false }));
    for phases in [0, 5] {
        let refused = CpuProgram::new(program(phases), Arc::clone(&pool)).err().unwrap();
        let violation = format!("step 0 `sums`: has 48 tasks in {phases} phases");
        assert_eq!(refused.violations, [violation]);
    }
}

#[test]
fn strided_tensors_are_read_and_written_in_place() {
    let mut executable = executable(6, 2);
    let input: Vec<u8> = floats((0..12).map(|i| i as f32));
    let mut first = floats([9.0; 12]);
    let (mut second, mut third) = (vec![0; 24], vec![0; 4]);
    // Every second element.
    // SAFETY: six elements in steps of two are eleven elements.
    let (view, target) = unsafe {
        let view = TensorView::from_raw_parts(DType::F32, &[6], &[2], input.as_ptr());
        (view, TensorViewMut::from_raw_parts(DType::F32, &[6], &[2], first.as_mut_ptr()))
    };
    let outputs = &mut [target.unwrap(), write(&[6], &mut second), write(&[1], &mut third)];
    executable.run(&[view.unwrap()], outputs).unwrap();
    let expected = (0..12).map(|i| if i % 2 == 0 { -(i as f32 + 0.5) } else { 9.0 });
    assert_eq!(first, floats(expected));
    assert_eq!(second, floats((0..6).map(|i| -(4.0 * i as f32 + 1.0))));
}

#[test]
fn executables_of_a_program_run_at_the_same_time() {
    let program = prepared(501, 2);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut executable = program.executable();
                (0..50).for_each(|_| check(&mut executable, 501, 0));
            });
        }
    });
}

#[test]
fn profiles_name_all_steps() {
    let mut executable = executable(8, 1);
    let (mut first, mut second, mut third) = (vec![0; 32], vec![0; 32], vec![0; 4]);
    let mut outputs = [write(&[8], &mut first), write(&[8], &mut second), write(&[1], &mut third)];
    let profile = executable.profile(&[read(&[8], &[0; 32])], &mut outputs, 5).unwrap();
    let names: Vec<_> = profile.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["add", "neg", "double", "copy"]);
    assert!(profile.iter().all(|step| step.median_us > 0.0 && step.median_us < 1e6));
}

#[test]
fn wrong_tensors_are_refused() {
    let mut executable = executable(8, 1);
    let error = executable.run(&[], &mut []).unwrap_err();
    assert_eq!(error.to_string(), "the model has 1 input(s), 0 were given");
    let error = executable.run(&[read(&[7], &[0; 28])], &mut []).unwrap_err();
    assert_eq!(error.to_string(), "input 0 takes 32 bytes, 28 were given");
    let error = executable.run(&[read(&[8], &[0; 32])], &mut [write(&[0], &mut [])]).unwrap_err();
    assert_eq!(error.to_string(), "the model has 3 output(s), 1 were given");
}

#[test]
fn host_failures_name_the_step() {
    let run = |routine: fn(&[Tensor]) -> Result<Vec<Tensor>, String>| {
        let output = BufferRef::write(Base::Output(0), 0, 4);
        let outputs = vec![TensorRef { buffer: output, dtype: DType::F32, shape: [1].into() }];
        let host = HostStep { routine: Box::new(routine), inputs: vec![], outputs };
        let steps = vec![CpuStep { name: "TopK_3".into(), action: Action::Host(host) }];
        let program = Program { output_bytes: vec![4], steps, ..Program::default() };
        let pool = Pool::new(PoolOptions { threads: 1, pin: false });
        let mut executable = CpuProgram::new(program, Arc::new(pool)).unwrap().executable();
        executable.run(&[], &mut [write(&[1], &mut [0; 4])]).unwrap_err().to_string()
    };
    assert_eq!(run(|_| Err("k is negative".into())), "`TopK_3` failed: k is negative");
    assert_eq!(run(|_| Ok(vec![])), "`TopK_3` failed: internal error: 0 results instead of 1");
    assert_eq!(
        run(|_| Ok(vec![Tensor::scalar(1i32)])),
        "`TopK_3` failed: internal error: a result is i32[] instead of f32[1]"
    );
}
