//! Kernels in CUDA C++ for a GPU.

use super::gpu_facts::facts;
use super::{ALIGN, Backend, GIGA_TO_MICRO, Object, Work, buffers, mugraph_schedule, noise};
use crate::assemble::cta_info;
use crate::compile::internal;
use crate::executable::{cuda_error, device_error, launch_shape, tensor_map_shape};
use crate::implement::KernelDesign;
use crate::manifest::{self, Resources};
use crate::{Error, Library, Options, Precision, compile, library, parallel};
use orch_compute::{BlockProgram, Storage, layouts};
use orch_ir::{DType, PrimGraph};
use orch_mugraph::lower::{self, Request};
use orch_mugraph::search::SearchOptions;
use orch_mugraph::search::cost::{LatencyHiding, SearchDevice};
use orch_rewrite::RowAlignment;
use orch_runtime::cuda::{
    Action, Computation, Context, Cubin, CubinCache, CudaError, Device, DeviceInfo, Driver, Executable,
    ExecutableOptions, Execution, Launch, LaunchShape, Libraries, Module, Nvrtc, NvrtcError, NvrtcTarget,
    Program, Source, Step, TimeOptions,
};
use orch_runtime::program::Base;
use orch_template::Design;
use orch_template::gpu;
use orch_thread::OperandPrecision;
use orch_thread::ThreadProgram;
use orch_thread::cta::MAX_CLUSTER;
use orch_thread::kernel::Binding;
use orch_thread::target::{GPU_TARGETS, GpuTarget, SM_80};
use orch_tune::gpu::GpuModel;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Share of the multiply-adds of scalar units that products of µGraphs reach. At the full rate they were modelled 11 us a layer
/// shorter than the templates' kernels for norms and products of `bert_base` in f32, and took 8 us longer on an H200.
const SCALAR_PRODUCTS: f64 = 0.4;

/// Rows of f32 and of half types that products may copy to longer ones. Scalar units keep up with copies of 8 bytes, and a
/// product of 800 cubed takes as long as the copies; products of tiles need rows of whole 16 bytes.
const FULL_ROWS: RowAlignment = RowAlignment { kept: 2, wanted: 4, least_flops: 1e9 };
const HALF_ROWS: RowAlignment = RowAlignment { kept: 8, wanted: 8, least_flops: 1e8 };

/// Of attention on an H200: 64 keys by 64 rows take a group of warps 0.63 us alone, 0.38 us each if there are two on a
/// multiprocessor, and 0.29 us if there are four.
const WAITING: LatencyHiding = LatencyHiding { iteration: 0.87, columns: 1.31, busy: 0.94 };

/// A GPU, its figures and NVRTC.
pub struct Cuda {
    target: GpuTarget,
    /// The instruction set as NVRTC calls it.
    arch: String,
    machine: String,
    figures: GpuModel,
    precision: Precision,
    /// Where kernels can be timed.
    device: Option<Device>,
    /// Kernels can be planned without it.
    nvrtc: Result<Arc<Nvrtc>, String>,
    /// What calls are timed with: libraries that were asked for.
    libraries: Libraries,
    /// Microseconds that a launch alone takes longer than one behind others, once they were measured.
    alone_us: OnceLock<f64>,
}

impl Cuda {
    /// The first GPU of this machine.
    pub fn of_device(options: &Options) -> Result<Self, Error> {
        let driver = Driver::load(&options.cuda).map_err(no_device)?;
        let device = driver.device(0).map_err(no_device)?;
        let info = device.info();
        let target = gpu_target(info)?;
        let memory_gbs = GpuModel::REACHED * info.memory_gbs();
        let machine = format!("{}, {} multiprocessors", info.name, info.multiprocessors);
        let arch = info.capability.arch();
        let mut cuda = Self::of_target(&target, options);
        if memory_gbs > 0.0 {
            cuda.figures.memory_gbs = memory_gbs;
        }
        cuda.libraries = Libraries::load(options.libraries.iter().copied(), &options.cuda);
        Ok(Self { arch, machine, device: Some(device), ..cuda })
    }

    /// A GPU that need not be here, by its table.
    pub fn of_target(target: &GpuTarget, options: &Options) -> Self {
        let nvrtc = Nvrtc::load(&options.cuda).map(Arc::new).map_err(|error| error.to_string());
        Self {
            target: target.clone(),
            arch: target.arch.to_owned(),
            machine: format!("any {}", target.name),
            figures: GpuModel::usual(target.name, target.sms, target.l2_bytes),
            precision: options.precision,
            device: None,
            nvrtc,
            libraries: Libraries::default(),
            alone_us: OnceLock::new(),
        }
    }

    fn factors(&self) -> OperandPrecision {
        match self.precision {
            Precision::F32 => OperandPrecision::F32,
            Precision::Tf32 => OperandPrecision::Tf32,
            Precision::F16 => OperandPrecision::F16,
            Precision::Bf16 => OperandPrecision::Bf16,
        }
    }

    /// How much longer a launch alone takes than one behind another kernel, in microseconds. In a plan kernels follow one
    /// another: if each counted with a launch of its own, two would seem slower than one that takes longer.
    fn alone_us(&self, context: &Context, options: &Options) -> Result<f64, Error> {
        if let Some(&known) = self.alone_us.get() {
            return Ok(known);
        }
        let early = self.target.has_pdl;
        let text = if early { NOTHING_EARLY } else { NOTHING };
        let source = Source { name: "nothing".to_owned(), text: text.to_owned() };
        let object = self.build(&[source], options)?.swap_remove(0);
        let module = Module::load(context, "nothing", &object.bytes).map_err(cuda_error)?;
        let function = module.function("k_nothing").map_err(cuda_error)?;
        let shape = LaunchShape { is_programmatic: early, ..LaunchShape::new(1, 32) };
        let step = || Step {
            name: "nothing".to_owned(),
            action: Action::Launch(Launch {
                function: function.clone(),
                shape,
                buffers: Vec::new(),
                tensor_maps: Vec::new(),
                call: None,
            }),
        };
        let direct = ExecutableOptions { execution: Execution::Direct, ..ExecutableOptions::default() };
        let chain = |launches: usize| {
            let program = Program { steps: (0..launches).map(|_| step()).collect(), ..Program::default() };
            Executable::new(context, program, direct).map_err(device_error)
        };
        // The first launch of a run does not start early.
        let (mut two, mut three) = (chain(2)?, chain(3)?);
        let (mut one_us, mut two_us, mut three_us) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            one_us.extend(two.time_steps(0..1, &TimeOptions::default()).map_err(device_error)?);
            two_us.extend(two.time_runs(&TimeOptions::default()).map_err(device_error)?);
            three_us.extend(three.time_runs(&TimeOptions::default()).map_err(device_error)?);
        }
        let behind_us = median(&mut three_us) - median(&mut two_us);
        let alone_us = (median(&mut one_us) - behind_us).max(0.0);
        Ok(*self.alone_us.get_or_init(|| alone_us))
    }

    fn nvrtc(&self) -> Result<&Arc<Nvrtc>, Error> {
        self.nvrtc.as_ref().map_err(|reason| Error::Environment(reason.clone()))
    }
}

impl Backend for Cuda {
    fn device(&self) -> manifest::Device {
        manifest::Device::Cuda
    }

    fn target(&self) -> String {
        self.arch.trim_end_matches('a').to_owned()
    }

    fn machine(&self) -> String {
        self.machine.clone()
    }

    fn compiler(&self) -> Result<String, Error> {
        Ok(format!("NVRTC {}", self.nvrtc()?.version()))
    }

    fn figures(&self) -> String {
        format!("{:?} {:?} {:?}", self.target, self.figures, self.precision)
    }

    fn prepared(&self, graph: PrimGraph) -> PrimGraph {
        let graph = orch_rewrite::merge_products(&graph);
        let (graph, alignment) = match self.precision {
            Precision::F32 | Precision::Tf32 => (graph, FULL_ROWS),
            Precision::F16 | Precision::Bf16 => (orch_rewrite::stage_inputs(&graph), HALF_ROWS),
        };
        let layouts = layouts::assign_gpu(&graph);
        orch_rewrite::align_rows(&graph, alignment, |tensor| layouts[tensor.index()].order().last().copied())
    }

    fn chains_contractions(&self) -> bool {
        matches!(self.precision, Precision::F16 | Precision::Bf16)
    }

    fn widens_f16(&self) -> bool {
        true
    }

    fn storage(&self, graph: &PrimGraph) -> Storage {
        let layouts = layouts::assign_gpu(graph);
        match self.precision {
            Precision::F32 | Precision::Tf32 => Storage::as_stated(graph, layouts),
            Precision::F16 => Storage::narrowed(graph, layouts, DType::F16),
            Precision::Bf16 => Storage::narrowed(graph, layouts, DType::BF16),
        }
    }

    fn time_us(&self, block: &BlockProgram) -> Option<f64> {
        let is_served = gpu::serves(block, &self.target, self.factors());
        is_served.then(|| facts(block, self.factors()).estimate(&self.figures).time_us)
    }

    fn work(&self, block: &BlockProgram) -> Work {
        let facts = facts(block, self.factors());
        Work { flops: facts.flops(), roofline_us: facts.estimate(&self.figures).bound_us }
    }

    fn search_options(&self) -> SearchOptions {
        let figures = &self.figures;
        let (gflops, element_bytes, mma_m) = match self.precision {
            Precision::F32 => (SCALAR_PRODUCTS * figures.f32_gflops, 4, 1),
            Precision::Tf32 => (figures.tf32_gflops, 4, 16),
            Precision::F16 | Precision::Bf16 => (figures.half_gflops, 2, 16),
        };
        let machine = SearchDevice {
            cores: figures.sms as usize,
            tile_bytes: self.target.shared_bytes * 7 / 10,
            memory_bytes_per_us: GIGA_TO_MICRO * figures.memory_gbs,
            cache_bytes_per_us: GIGA_TO_MICRO * figures.l2_gbs,
            cache_bytes: usize::try_from(figures.l2_bytes).unwrap_or(usize::MAX) * 3 / 4,
            flops_per_us: GIGA_TO_MICRO * gflops,
            launch_us: figures.launch_us + figures.latency_us,
            element_bytes,
            mma_m,
            skinny_rows: if element_bytes == 2 { 64 } else { 0 },
            has_tma: self.target.has_wgmma && element_bytes == 2,
            accumulator_bytes: 96 << 10,
            scalar_flops: 2.0 * gflops / figures.f32_gflops,
            special_flops: gflops / figures.special_gops,
            max_cluster: if self.target.has_clusters && element_bytes == 2 { MAX_CLUSTER } else { 1 },
            cores_in_clusters: self.target.ctas_in_clusters(MAX_CLUSTER),
            waiting: (self.target.has_wgmma && element_bytes == 2).then_some(WAITING),
            ..SearchDevice::default()
        };
        SearchOptions { machine, ..SearchOptions::default() }
    }

    fn designs(&self, block: &BlockProgram, limit: usize) -> Vec<Design> {
        gpu::designs(block, &self.target, self.factors(), limit)
    }

    fn design_mugraph(&self, request: &Request<'_>, limit: usize) -> Vec<Design> {
        let (target, factors) = (&self.target, self.factors());
        let schedules = lower::gpu::schedules(request, target, factors).unwrap_or_default();
        let design = |schedule| {
            let kernel = lower::gpu::lower_as(request, target, factors, schedule).ok()?;
            Some(Design { kernel, schedule: format!("{} {schedule}", mugraph_schedule(request)) })
        };
        schedules.into_iter().filter_map(design).take(limit).collect()
    }

    fn instructions_us(&self, _program: &ThreadProgram) -> f64 {
        0.0
    }

    fn source(&self, program: &ThreadProgram) -> String {
        orch_codegen::cuda::emit(program, &self.target)
    }

    fn build(&self, sources: &[Source], options: &Options) -> Result<Vec<Object>, Error> {
        let flags = orch_codegen::cuda::flags().iter().map(|&flag| flag.to_owned()).collect();
        let target = NvrtcTarget { options: flags, ..NvrtcTarget::new(&self.arch) };
        let cache =
            CubinCache::open(&options.cache_dir, Arc::clone(self.nvrtc()?), target).map_err(nvrtc_error)?;
        let progress = |at: orch_runtime::cuda::CompileProgress| options.progress.advance(at.done);
        let results = cache.compile_all(sources, parallel::jobs(options), &progress, &options.cancel);
        let object = |result: Result<Cubin, NvrtcError>| {
            let cubin = result.map_err(nvrtc_error)?;
            let resources = cubin.kernels.first().map(|kernel| Resources {
                registers: kernel.registers,
                stack_bytes: kernel.stack_bytes,
                spill_bytes: kernel.spill_store_bytes + kernel.spill_load_bytes,
            });
            Ok(Object { bytes: cubin.bytes, resources })
        };
        results.into_iter().map(object).collect()
    }

    fn measures(&self) -> bool {
        self.device.is_some()
    }

    fn overlaps_kernels(&self) -> bool {
        self.target.has_pdl
    }

    fn library(&self, library: Library) -> Result<String, String> {
        match self.libraries.release(library) {
            Some(release) => release.map_err(ToString::to_string),
            None => Err(format!("{} was not asked for", library.label())),
        }
    }

    fn computation(&self, library: Library, block: &BlockProgram) -> Option<(Computation, Vec<Binding>)> {
        match library {
            Library::CublasLt => {
                let product = gpu::contraction::MatrixProductForm::of(block, self.factors())?;
                Some((Computation::Product(library::product(&product)?), product.bindings))
            }
            Library::Cudnn => {
                let convolution = gpu::contraction::ConvolutionForm::of(block, self.factors())?;
                let told = library::convolution(&convolution)?;
                Some((Computation::Convolution(told), convolution.bindings))
            }
        }
    }

    fn times(&self, chains: &[Vec<KernelDesign>], options: &Options) -> Result<Vec<Option<f64>>, Error> {
        let device = self.device.as_ref().ok_or_else(|| internal("kernels are timed on a device"))?;
        let kernels: Vec<KernelDesign> = chains.iter().flatten().cloned().collect();
        let sources = compile::sources(self, &kernels, options)?;
        let objects = self.build(&sources, options)?;
        let context = Context::new(device).map_err(cuda_error)?;
        let mut program = Program::default();
        for (kernel, object) in kernels.iter().zip(&objects) {
            let thread = &kernel.design.kernel.program;
            let module = Module::load(&context, &kernel.name, &object.bytes).map_err(cuda_error)?;
            let function = module.function(&thread.name).map_err(cuda_error)?;
            let cta = cta_info(thread, object.resources);
            let cta = cta.ok_or_else(|| internal(format!("kernel {} has no cta", kernel.name)))?;
            let shape = launch_shape(thread.tasks, &cta, self.target.has_pdl);
            let shape = shape.ok_or_else(|| internal(format!("kernel {} is too large", kernel.name)))?;
            let tensor_maps = cta.tensor_maps.iter().map(tensor_map_shape).collect();
            let call = kernel.call.as_ref().and_then(|call| self.libraries.call(&call.computation));
            let action = Action::Launch(Launch { function, shape, buffers: Vec::new(), tensor_maps, call });
            program.steps.push(Step { name: kernel.name.clone(), action });
        }
        let noise = place_buffers(&mut program, chains);
        let mut executable =
            Executable::new(&context, program, ExecutableOptions::default()).map_err(device_error)?;
        executable.upload(&[&noise]).map_err(device_error)?;
        let mut steps = Vec::with_capacity(chains.len());
        let mut first = 0;
        for chain in chains {
            let range = first..first + chain.len();
            first = range.end;
            let is_declined = |step| executable.call_of(step).is_some_and(|outcome| outcome.is_err());
            steps.push((!range.clone().any(is_declined)).then_some(range));
        }
        // In turns, so that a clock that changes meanwhile is every kernel's.
        let mut times = vec![Vec::new(); chains.len()];
        for round in 0..ROUNDS {
            for ((chain, steps), times) in chains.iter().zip(&steps).zip(&mut times) {
                let Some(steps) = steps else { continue };
                if round >= LONG_ROUNDS && median(times) > LONG_US {
                    continue;
                }
                let is_cold = chain.first().is_some_and(|kernel| kernel.is_cold);
                let options = TimeOptions { flush_l2: is_cold, ..TimeOptions::default() };
                times.extend(executable.time_steps(steps.clone(), &options).map_err(device_error)?);
            }
        }
        let alone_us = self.alone_us(&context, options)?;
        let behind = |alone: f64| (alone - alone_us).max(LEAST_SHARE * alone);
        Ok(times.iter_mut().map(|times| (!times.is_empty()).then(|| behind(median(times)))).collect())
    }
}

/// Places the arguments of kernels that are timed; gives what is read in an input. Chains share the memory, but the kernels of
/// one read tensors of their own, so that none finds in the cache what another has left there, and hand on others.
fn place_buffers(program: &mut Program, chains: &[Vec<KernelDesign>]) -> Vec<u8> {
    let mut placed = Vec::with_capacity(program.steps.len());
    let (mut read_bytes, mut written_bytes) = (0, 0);
    for chain in chains {
        let mut first = 0;
        for kernel in chain {
            let (buffers, read, written) = buffers(&kernel.design.kernel.program);
            placed.push((kernel, buffers, first));
            first += read;
            written_bytes = written_bytes.max(written);
        }
        read_bytes = read_bytes.max(first);
    }
    // What is read lies behind what is written, as zeros, or in an input, as noise: a device runs at a higher clock on
    // zeros. Of indices only zeros are known to be some, and the host's memory may be smaller than the device's.
    let (is_noise, mut has_zeros) = (read_bytes <= MOST_NOISE, false);
    let mut end = written_bytes + read_bytes;
    let mut handed_on: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (step, (kernel, mut buffers, first)) in program.steps.iter_mut().zip(placed) {
        for (at, buffer) in buffers.iter_mut().enumerate() {
            let is_float = kernel.design.kernel.program.buffers[at].dtype.is_float();
            if let Some((_, number)) = kernel.inner.iter().find(|(inner, _)| *inner == at) {
                let place = handed_on.entry((*number, buffer.len_bytes)).or_insert_with(|| {
                    let place = end;
                    end += buffer.len_bytes.next_multiple_of(ALIGN);
                    place
                });
                (buffer.base, buffer.offset_bytes) = (Base::Arena, *place);
            } else if buffer.base == Base::Constant(0) && is_noise && is_float {
                (buffer.base, buffer.offset_bytes) = (Base::Input(0), first + buffer.offset_bytes);
            } else if buffer.base == Base::Constant(0) {
                (buffer.base, buffer.offset_bytes) =
                    (Base::Arena, written_bytes + first + buffer.offset_bytes);
                has_zeros = true;
            }
        }
        if let Action::Launch(launch) = &mut step.action {
            launch.buffers = buffers;
        }
    }
    let is_used = has_zeros || !handed_on.is_empty();
    program.arena_bytes = if is_used { end } else { written_bytes };
    program.input_bytes = vec![if is_noise { read_bytes } else { 0 }];
    noise(program.input_bytes[0])
}

/// A kernel that does nothing, and one that may start before the kernels before it have ended.
const NOTHING: &str = "extern \"C\" __global__ void __launch_bounds__(32) k_nothing() {}\n";
const NOTHING_EARLY: &str = "extern \"C\" __global__ void __launch_bounds__(32) k_nothing() {\n    \
    asm volatile(\"griddepcontrol.launch_dependents;\\ngriddepcontrol.wait;\" ::: \"memory\");\n}\n";

/// Least share of a kernel's time alone that it takes behind another one.
const LEAST_SHARE: f64 = 0.1;

/// Rounds in which each kernel is timed, in turns with the others; of long ones, that take that many microseconds, which differ
/// by more than what disturbs them.
const ROUNDS: usize = 9;
const LONG_ROUNDS: usize = 3;
const LONG_US: f64 = 50.0;

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Bytes up to which kernels are timed on noise.
const MOST_NOISE: usize = 1 << 30;

/// The table for a device, with the device's own numbers.
///
/// # Errors
/// If the device is older than all of them.
pub fn gpu_target(info: &DeviceInfo) -> Result<GpuTarget, Error> {
    let name = format!("sm_{}{}", info.capability.major, info.capability.minor);
    // What a later generation adds is not kept by the one after it.
    let table = GPU_TARGETS.into_iter().find(|target| target.name == name);
    let table = table.or((info.capability.major >= 8).then_some(&SM_80)).ok_or_else(|| {
        Error::Environment(format!(
            "{} has compute capability {}, kernels need 8.0 or later; models compile for the CPU",
            info.name, info.capability
        ))
    })?;
    Ok(GpuTarget {
        sms: info.multiprocessors as usize,
        shared_bytes: info.shared_bytes_per_block as usize,
        sm_shared_bytes: info.shared_bytes_per_multiprocessor as usize,
        sm_registers: info.registers_per_multiprocessor as usize,
        sm_threads: info.threads_per_multiprocessor as usize,
        l2_bytes: info.l2_bytes as usize,
        ..table.clone()
    })
}

fn no_device(error: CudaError) -> Error {
    Error::Environment(format!(
        "{error}\nTo compile for a GPU that is not here, name it: --target {}",
        GPU_TARGETS.map(|target| format!("cuda:{}", target.name)).join(" or ")
    ))
}

fn nvrtc_error(error: NvrtcError) -> Error {
    match error {
        NvrtcError::Cancelled => Error::Interrupted,
        NvrtcError::Rejected { .. } => internal(error),
        _ => Error::Environment(error.to_string()),
    }
}
