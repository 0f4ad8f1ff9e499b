//! Random thread programs: compiled C must agree with the interpreter bit for bit, for every target that this
//! machine runs.

mod support;

use orch_ir::DType;
use orch_thread::random::random_program;
use orch_thread::{BufferData, ExecOptions, ThreadProgram, interpret};
use support::Toolchain;

/// Programs per C file: enough that starting the compiler costs little.
const BATCH: u64 = 6;

/// True if two elements are the same value; all NaN are, and so are the zeros.
fn same(dtype: DType, a: &[u8], b: &[u8]) -> bool {
    if a == b {
        return true;
    }
    let value =
        |bytes: &[u8]| BufferData { dtype, bytes: bytes.to_vec() }.to_tensor([1]).unwrap().to_f64()[0];
    dtype.is_float() && (value(a) == value(b) || (value(a).is_nan() && value(b).is_nan()))
}

fn compare(seed: u64, target: &str, program: &ThreadProgram, got: &[BufferData], want: &[BufferData]) {
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let size = got.dtype.size_bytes();
        for (at, (a, b)) in got.bytes.chunks(size).zip(want.bytes.chunks(size)).enumerate() {
            assert!(
                same(got.dtype, a, b),
                "seed {seed}, {}: {}[{at}] is {a:02x?}, the interpreter says {b:02x?} ({})",
                target,
                program.buffers[index].name,
                got.dtype
            );
        }
    }
}

fn check(toolchain: &Toolchain, seeds: std::ops::Range<u64>) {
    let programs: Vec<_> =
        seeds.clone().map(|seed| (seed, random_program(&format!("p{seed}"), seed))).collect();
    let directory = support::directory(&format!("random_{}_{}", toolchain.target.name, seeds.start));
    let inputs: Vec<(&ThreadProgram, &[BufferData])> =
        programs.iter().map(|(_, (program, data))| (program, &data[..])).collect();
    let outputs = support::run_compiled(&inputs, toolchain, &directory);
    for ((seed, (program, data)), got) in programs.iter().zip(&outputs) {
        let mut want = data.clone();
        interpret(program, &mut want, &ExecOptions::default()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        compare(*seed, toolchain.target.name, program, got, &want);
    }
    std::fs::remove_dir_all(directory).expect("the test made it");
}

#[test]
fn compiled_agrees_with_the_interpreter() {
    let batches = std::env::var("ORCH_RANDOM_BATCHES").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    for toolchain in support::toolchains() {
        for batch in 0..batches {
            check(&toolchain, batch * BATCH..(batch + 1) * BATCH);
        }
    }
}
