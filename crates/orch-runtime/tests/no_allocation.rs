//! A run of kernels and copies allocates nothing, on any thread and on either device: CUDA's is a driver that has none.
//!
//! It has no test harness: the harness allocates on a thread of its own while a test runs.

#![allow(unsafe_code)]

use orch_ir::DType;
use orch_runtime::Machine;
use orch_runtime::cpu::{
    Action, Base, BufferRef, Chunking, CompileCache, Compiler, CompilerOptions, CpuProgram, CpuStep,
    JoinedLaunches, Launch, Piece, Pool, PoolOptions, Program, Source,
};
use orch_runtime::cuda;
use orch_runtime::view::{TensorView, TensorViewMut};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SOURCE: &str = "#include <stdint.h>\n\
    void twice(void *const *b, int64_t lo, int64_t hi, void *s, int64_t before) {\n\
    for (int64_t i = lo; i < hi; ++i) ((float *)b[1])[i] = 2 * ((const float *)b[0])[i]; }\n";

fn program(folder: &std::path::Path) -> Program {
    const ELEMS: usize = 4096;
    const SIZE: usize = 4 * ELEMS;
    let compiler = Compiler::find(&CompilerOptions::default()).unwrap();
    let cache = CompileCache::open(folder, compiler, &Machine::detect()).unwrap();
    let source = Source { name: "twice".into(), text: SOURCE.into(), symbols: vec!["twice".into()] };
    let library = cache.load(&source, &AtomicBool::new(false)).unwrap();
    let launch = |from, to, chunking| {
        let kernel = library.kernel("twice", ELEMS as i64, 64).unwrap();
        let buffers = vec![BufferRef::read(from, 0, SIZE), BufferRef::write(to, 0, SIZE)];
        CpuStep {
            name: "twice".into(),
            action: Action::Launch(Launch { kernel, buffers, chunking, phases: 1 }),
        }
    };
    let copy = Action::Copy {
        from: BufferRef::read(Base::Output(0), 0, SIZE),
        to: BufferRef::write(Base::Output(1), 0, SIZE),
    };
    let own = |offset| CpuStep {
        action: Action::Launch(Launch {
            kernel: library.kernel("twice", ELEMS as i64, 64).unwrap(),
            buffers: vec![
                BufferRef::read(Base::Input(0), 0, SIZE),
                BufferRef::write(Base::Arena, offset, SIZE),
            ],
            chunking: Chunking::Dynamic,
            phases: 1,
        }),
        name: "twice".into(),
    };
    Program {
        arena_bytes: 3 * SIZE,
        input_bytes: vec![SIZE],
        output_bytes: vec![SIZE; 2],
        steps: vec![
            launch(Base::Input(0), Base::Arena, Chunking::Dynamic),
            launch(Base::Arena, Base::Output(0), Chunking::Static),
            CpuStep { name: "copy".into(), action: copy },
            own(SIZE),
            own(2 * SIZE),
        ],
        ..Program::default()
    }
}

/// Negates, and copies that.
fn cuda_executable(folder: &std::path::Path, execution: cuda::Execution) -> cuda::CudaExecutable {
    const SIZE: usize = 32;
    let compiler = Compiler::find(&CompilerOptions::default()).unwrap();
    let cache = CompileCache::open(folder, compiler, &Machine::detect()).unwrap();
    let source = Source {
        name: "driver".into(),
        text: include_str!("fake_cuda/driver.c").into(),
        symbols: Vec::new(),
    };
    let file = folder.join("driver.so");
    // Loaded code is not written over.
    if !file.exists() {
        std::fs::write(&file, cache.compile(&source, &AtomicBool::new(false)).unwrap()).unwrap();
    }
    let driver = cuda::Driver::load(&cuda::SearchPaths { driver: Some(file), ..Default::default() }).unwrap();
    let context = cuda::Context::new(&driver.device(0).unwrap()).unwrap();
    let function = cuda::Module::load(&context, "test", b"fake\nneg\n").unwrap().function("neg").unwrap();
    let write = |idx| BufferRef::write(Base::Output(idx), 0, SIZE);
    let copy = cuda::Action::Copy { from: BufferRef::read(Base::Output(0), 0, SIZE), to: write(1) };
    let launch = cuda::Launch {
        function,
        shape: cuda::LaunchShape { cluster: 2, is_programmatic: true, ..cuda::LaunchShape::new(2, 4) },
        buffers: vec![BufferRef::read(Base::Input(0), 0, SIZE), write(0)],
        tensor_maps: Vec::new(),
        cleared: Vec::new(),
        call: None,
    };
    let program = cuda::Program {
        input_bytes: vec![SIZE],
        output_bytes: vec![SIZE; 2],
        steps: vec![
            cuda::CudaStep { name: "neg".into(), action: cuda::Action::Launch(launch) },
            cuda::CudaStep { name: "copy".into(), action: copy },
        ],
        ..cuda::Program::default()
    };
    let options = cuda::ExecutableOptions { execution, ..Default::default() };
    cuda::CudaExecutable::new(&context, program, options).unwrap()
}

/// Allocations of a hundred runs. The first runs may set up what threads keep for themselves.
fn allocations(mut run: impl FnMut()) -> usize {
    (0..20).for_each(|_| run());
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    (0..100).for_each(|_| run());
    ALLOCATIONS.load(Ordering::SeqCst) - before
}

fn main() {
    let folder = std::env::temp_dir().join(format!("orch-no-allocation-{}", std::process::id()));
    let program = program(&folder);
    for execution in [cuda::Execution::Direct, cuda::Execution::BranchedGraph] {
        let mut executable = cuda_executable(&folder, execution);
        let (mut first, mut second) = ([0; 32], [0; 32]);
        let input = [2.5f32.to_le_bytes(); 8].concat();
        assert_eq!(allocations(|| executable.run(&[&input], &mut [&mut first, &mut second]).unwrap()), 0);
        assert!(first == second && first[..] == [(-2.5f32).to_le_bytes(); 8].concat());
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let pool = Arc::new(Pool::new(PoolOptions { threads: 3, pin: false }));
    let pieces = [3, 4].map(|step| [0..1000, 1000..4096].map(|tasks| Piece { step, tasks })).concat();
    let joined = vec![JoinedLaunches { steps: 3..5, pieces }];
    let mut executable = CpuProgram::new(program, pool).unwrap().with_joined(joined).unwrap().executable();
    let input: Vec<u8> = (0..4096).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let (mut first, mut second) = (vec![0; input.len()], vec![0; input.len()]);
    let run = || {
        let input = TensorView::new(DType::F32, &[4096], &input).unwrap();
        let outputs = [&mut first, &mut second].map(|bytes| TensorViewMut::new(DType::F32, &[4096], bytes));
        executable.run(&[input], &mut outputs.map(Result::unwrap)).unwrap();
    };
    assert_eq!(allocations(run), 0);
    let expected: Vec<u8> = (0..4096).flat_map(|i| (4.0 * i as f32).to_le_bytes()).collect();
    assert!(first == expected && second == expected);
    println!("test runs_do_not_allocate ... ok");
}
