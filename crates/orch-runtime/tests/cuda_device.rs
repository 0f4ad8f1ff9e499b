//! Kernels on a real device: what the driver that has none cannot show. Needs a GPU and NVRTC; where either is missing
//! the tests say so and do nothing, unless the environment variable `ORCHESTRION_TEST_CUDA` is set. NVRTC is taken from
//! `ORCHESTRION_TEST_NVRTC` or from the usual places.

use orch_runtime::cuda::{
    Action, Context, CudaError, CudaExecutable, CudaStep, DeviceBuffer, DeviceCode, Driver, ExecutableError,
    ExecutableOptions, Execution, Launch, LaunchShape, Module, Nvrtc, NvrtcTarget, Program, SearchPaths,
    Source, Stream, TimeOptions, rename_kernel,
};
use orch_runtime::program::{Base, BufferRef};

const THREADS: u32 = 256;
const BLOCKS: u32 = 1024;
const BYTES: usize = 4 * (THREADS * BLOCKS) as usize;

/// `add` and `half` wait for the kernels before them on their own where the device can; `reverse` uses a large shared
/// memory; `neighbour` reads that of the other block of its cluster; `overrun` leaves its memory.
const KERNELS: &str = r#"
#if __CUDA_ARCH__ >= 900
#define WAIT asm volatile("griddepcontrol.wait;" ::: "memory"); asm volatile("griddepcontrol.launch_dependents;");
#else
#define WAIT
#endif
extern "C" __global__ void add(const float *a, const float *b, float *c) {
    WAIT
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    c[i] = a[i] + b[i];
}
extern "C" __global__ void half(const float *a, float *b) {
    WAIT
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    b[i] = 0.5f * a[i];
}
extern "C" __global__ void reverse(const float *a, float *b) {
    extern __shared__ float shared[];
    int i = threadIdx.x, n = blockDim.x;
    shared[64 * i] = a[blockIdx.x * n + i];
    __syncthreads();
    b[blockIdx.x * n + i] = shared[64 * (n - 1 - i)];
}
#if __CUDA_ARCH__ >= 900
extern "C" __global__ void neighbour(const float *a, float *b) {
    __shared__ float shared[256];
    int i = threadIdx.x;
    shared[i] = a[blockIdx.x * 256 + i];
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    unsigned rank, mine = (unsigned)__cvta_generic_to_shared(&shared[i]), other;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(mine), "r"(rank ^ 1));
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(other));
    b[blockIdx.x * 256 + i] = value;
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
#endif
extern "C" __global__ void overrun(const float *a, float *b) { b[(1ll << 40) + threadIdx.x] = a[0]; }
"#;

/// The first device, with the kernels above.
struct Setting {
    context: Context,
    module: Module,
    nvrtc: Nvrtc,
}

/// What the tests need, if it is there.
fn setting() -> Option<Setting> {
    let nvrtc = std::env::var_os("ORCHESTRION_TEST_NVRTC").map(Into::into);
    let paths = SearchPaths { nvrtc, ..SearchPaths::default() };
    let open = || -> Result<Setting, CudaError> {
        let device = Driver::load(&paths)?.device(0)?;
        eprintln!("{:?}, {:.0} GB/s", device.info(), device.info().memory_gbs());
        let (context, nvrtc) = (Context::new(&device)?, Nvrtc::load(&paths)?);
        let source = Source { name: "kernels".into(), text: KERNELS.into(), symbols: Vec::new() };
        let target = NvrtcTarget::new(&device.info().capability.arch());
        let DeviceCode { bytes, kernels, .. } =
            nvrtc.compile(&source, &target, &std::env::temp_dir()).unwrap();
        eprintln!("{kernels:?}");
        Ok(Setting { module: Module::load(&context, "kernels", &bytes)?, context, nvrtc })
    };
    match open() {
        Ok(setting) => Some(setting),
        Err(error) if std::env::var_os("ORCHESTRION_TEST_CUDA").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn floats(value: impl Fn(usize) -> f32) -> Vec<u8> {
    (0..BYTES / 4).flat_map(|idx| value(idx).to_le_bytes()).collect()
}

fn place(base: Base, slot: usize) -> (Base, usize) {
    (base, slot * BYTES)
}

impl Setting {
    /// A launch whose last tensor is written.
    fn launch(&self, symbol: &str, shape: LaunchShape, tensors: &[(Base, usize)]) -> CudaStep {
        let (&(base, at), others) = tensors.split_last().unwrap();
        let reads = others.iter().map(|&(base, at)| BufferRef::read(base, at, BYTES));
        let buffers = reads.chain([BufferRef::write(base, at, BYTES)]).collect();
        let function = self.module.function(symbol).unwrap();
        CudaStep {
            name: symbol.to_owned(),
            action: Action::Launch(Launch {
                function,
                shape,
                buffers,
                tensor_maps: Vec::new(),
                cleared: Vec::new(),
                call: None,
            }),
        }
    }

    fn has_clusters(&self) -> bool {
        self.context.device().info().capability.major >= 9
    }

    fn program(&self, steps: Vec<CudaStep>) -> Program {
        Program {
            arena_bytes: 3 * BYTES,
            constants: vec![floats(|_| 3.0).into()],
            input_bytes: vec![BYTES],
            output_bytes: vec![BYTES],
            updates: Vec::new(),
            steps,
        }
    }

    /// `((x + 3) / 2 + x / 2) + (x + 3) / 2` by two branches, then a copy, and a chain of launches that may start early.
    fn branches(&self) -> Program {
        let shape = LaunchShape { is_programmatic: self.has_clusters(), ..LaunchShape::new(BLOCKS, THREADS) };
        let (x, three, out) =
            (place(Base::Input(0), 0), place(Base::Constant(0), 0), place(Base::Output(0), 0));
        let [a, b, c] = [0, 1, 2].map(|slot| place(Base::Arena, slot));
        let copy =
            Action::Copy { from: BufferRef::read(c.0, c.1, BYTES), to: BufferRef::write(b.0, b.1, BYTES) };
        self.program(vec![
            self.launch("add", shape, &[x, three, a]),
            self.launch("half", shape, &[a, b]),
            self.launch("half", shape, &[x, c]),
            self.launch("add", shape, &[b, c, a]),
            self.launch("add", shape, &[a, b, c]),
            CudaStep { name: "copy".into(), action: copy },
            self.launch("half", shape, &[b, a]),
            self.launch("add", shape, &[a, a, out]),
        ])
    }
}

fn run(
    setting: &Setting,
    program: Program,
    execution: Execution,
    x: &[u8],
) -> Result<Vec<u8>, ExecutableError> {
    let options = ExecutableOptions { execution, ..ExecutableOptions::default() };
    let mut executable = CudaExecutable::new(&setting.context, program, options)?;
    let mut out = vec![0; BYTES];
    // More than once: what runs ahead would meet the run before.
    for _ in 0..20 {
        executable.run(&[x], &mut [&mut out])?;
    }
    Ok(out)
}

#[test]
fn programs_run_in_every_way() {
    let Some(setting) = setting() else { return };
    let x = |idx: usize| (idx % 1000) as f32;
    for execution in Execution::ALL {
        let out = run(&setting, setting.branches(), execution, &floats(x)).unwrap();
        let expected = floats(|idx| (x(idx) + 3.0) / 2.0 + x(idx) / 2.0 + (x(idx) + 3.0) / 2.0);
        assert!(out == expected, "{execution:?}");
    }
}

#[test]
fn large_shared_memory_and_clusters() {
    let Some(setting) = setting() else { return };
    let (x, out) = (place(Base::Input(0), 0), place(Base::Output(0), 0));
    let threads = THREADS as usize;
    let shape = LaunchShape { shared_bytes: 64 * 4 * THREADS, ..LaunchShape::new(BLOCKS, THREADS) };
    for execution in Execution::ALL {
        let program = setting.program(vec![setting.launch("reverse", shape, &[x, out])]);
        let result = run(&setting, program, execution, &floats(|idx| idx as f32)).unwrap();
        let expected = floats(|idx| (idx / threads * threads + threads - 1 - idx % threads) as f32);
        assert!(result == expected, "{execution:?}");
        if setting.has_clusters() {
            let shape = LaunchShape { cluster: 2, ..LaunchShape::new(BLOCKS, THREADS) };
            let program = setting.program(vec![setting.launch("neighbour", shape, &[x, out])]);
            let result = run(&setting, program, execution, &floats(|idx| idx as f32)).unwrap();
            let expected = floats(|idx| (((idx / threads) ^ 1) * threads + idx % threads) as f32);
            assert!(result == expected, "clusters, {execution:?}");
        }
    }
}

#[test]
fn times_are_plausible() {
    let Some(setting) = setting() else { return };
    for execution in Execution::ALL {
        for allow_programmatic in [false, true] {
            let options = ExecutableOptions { execution, allow_programmatic, ..ExecutableOptions::default() };
            let mut executable = CudaExecutable::new(&setting.context, setting.branches(), options).unwrap();
            let mut median = |flush_l2| {
                let options = TimeOptions { warmup: 10, replays: 101, flush_l2 };
                let mut whole = executable.time_runs(&options).unwrap();
                let mut step = executable.time_steps(0..1, &options).unwrap();
                [&mut whole, &mut step].map(|times| {
                    times.sort_by(f64::total_cmp);
                    times[times.len() / 2]
                })
            };
            let (warm, cold) = (median(false), median(true));
            eprintln!(
                "{execution:?}, early {allow_programmatic}: run and first step {warm:.2?} us, cold {cold:.2?} us"
            );
            assert!([warm, cold].as_flattened().iter().all(|&us| us > 0.5 && us < 1e4));
        }
    }
}

/// In a process of its own, because the device stays unusable in it.
#[test]
fn illegal_addresses_are_blamed_on_the_kernel() {
    const CHILD: &str = "ORCHESTRION_TEST_FAULT";
    let Some(setting) = setting() else { return };
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", "illegal_addresses_are_blamed_on_the_kernel"]).env(CHILD, "1");
        assert!(child.status().unwrap().success());
        return;
    }
    let (x, out) = (place(Base::Input(0), 0), place(Base::Output(0), 0));
    let program = setting.program(vec![setting.launch("overrun", LaunchShape::new(1, 32), &[x, out])]);
    let error = run(&setting, program, Execution::BranchedGraph, &floats(|_| 1.0)).unwrap_err();
    eprintln!("{error}");
    let ExecutableError::Cuda(fault) = error else { panic!("{error}") };
    assert!(fault.is_final() && fault.to_string().contains("illegal address"), "{fault}");
    assert!(fault.to_string().contains("running kernel `overrun` of step `overrun`"), "{fault}");
}

/// A kernel whose symbol is longer than its name will be.
const ONE: &str = "extern \"C\" __global__ void k_one_________(const float *a, float *b) { b[threadIdx.x] = a[threadIdx.x] + 1.0f; }";

#[test]
fn binaries_and_ptx_run_under_other_names() {
    let Some(setting) = setting() else { return };
    let stream = Stream::new(&setting.context).unwrap();
    let values: Vec<u8> = (0..32).flat_map(|idx| (idx as f32).to_le_bytes()).collect();
    for arch in [setting.context.device().info().capability.arch(), "compute_80".to_owned()] {
        let source = Source { name: "one".into(), text: ONE.into(), symbols: Vec::new() };
        let code = setting.nvrtc.compile(&source, &NvrtcTarget::new(&arch), &std::env::temp_dir()).unwrap();
        let renamed = rename_kernel(&code.bytes, "k_one_________", "model_k0_one");
        let module = Module::load(&setting.context, "one", &renamed).unwrap();
        let (shape, function) = (LaunchShape::new(1, 32), module.function("model_k0_one").unwrap());
        assert!(module.function("k_one_________").is_err());
        assert!(function.attributes().unwrap().registers > 0);
        let a = DeviceBuffer::copy_of(&stream, &values, "a test").unwrap();
        let b = DeviceBuffer::new(&setting.context, values.len(), "a test").unwrap();
        function.launch(&stream, &shape, &[a.address(), b.address()]).unwrap();
        let mut result = vec![0; values.len()];
        b.copy_to_host(&stream, 0, &mut result).unwrap();
        let expected: Vec<u8> = (0..32).flat_map(|idx| (idx as f32 + 1.0).to_le_bytes()).collect();
        assert_eq!(result, expected, "{arch}");
    }
}
