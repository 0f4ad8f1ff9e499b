//! A GPU with the tools that make kernels for it.

use crate::manifest;
use crate::plan::backend::{SubstituteMargins, TargetInfo};
use crate::{Error, Options, Precision};
use orch_ir::DType;
use orch_runtime::cuda::{Capability, CudaError, Device, DeviceInfo, Driver, Libraries, Nvrtc, NvrtcError};
use orch_thread::OperandPrecision;
use orch_thread::target::{COMPUTE_80, GPU_TARGETS, GpuTarget, SM_80};
use orch_tune::gpu::GpuModel;
use std::sync::{Arc, OnceLock};

/// A GPU, its figures and NVRTC.
pub struct Cuda {
    pub(super) target: GpuTarget,
    /// The instruction set as NVRTC calls it.
    pub(super) arch: String,
    pub(super) info: TargetInfo,
    pub(super) figures: GpuModel,
    /// Whether tensors that the model states as f32 are stored in that precision.
    pub(super) narrows: bool,
    /// Where kernels can be timed.
    pub(super) device: Option<Device>,
    /// Kernels can be planned without it.
    pub(super) nvrtc: Result<Arc<Nvrtc>, String>,
    /// The libraries of the options, whose calls are timed beside kernels.
    pub(super) libraries: Libraries,
    /// Microseconds that a launch alone takes longer than one behind others, once they were measured.
    pub(super) alone_us: OnceLock<f64>,
}

impl Cuda {
    /// A GPU of this machine.
    pub fn of_device(number: usize, options: &Options, half: Option<DType>) -> Result<Self, Error> {
        let driver = Driver::load(&options.cuda).map_err(no_device)?;
        let device = driver.device(number).map_err(no_device)?;
        let info = device.info();
        let target = gpu_target(info)?;
        let memory_gbs = GpuModel::REACHED * info.memory_gbs();
        let machine = format!("{}, {} SMs", info.name, info.sm_count);
        // Of a generation that has no table only PTX is known to serve.
        let is_ptx = target.name == COMPUTE_80.name;
        let arch = if is_ptx { target.arch.to_owned() } else { info.capability.arch() };
        let note =
            is_ptx.then(|| without_table(&format!("compute capability {} ({})", info.capability, info.name)));
        let mut cuda = Self::of_target(&target, options, half);
        if memory_gbs > 0.0 {
            cuda.figures.memory_gbs = memory_gbs;
        }
        let info = target_info(&target, &arch, &cuda.figures, cuda.info.precision);
        cuda.info = TargetInfo { machine, is_measurable: true, note, ..info };
        cuda.libraries = Libraries::load(options.libraries.iter().copied(), &options.cuda);
        Ok(Self { arch, device: Some(device), ..cuda })
    }

    /// A GPU that need not be here, by the name of its table, or by `sm_XY` if it has none; `None` if this is no name of a GPU.
    ///
    /// # Errors
    /// If the GPU is older than all tables.
    pub fn of_name(name: &str, options: &Options, half: Option<DType>) -> Result<Option<Self>, Error> {
        if let Some(target) = GPU_TARGETS.iter().find(|target| target.name == name) {
            return Ok(Some(Self::of_target(target, options, half)));
        }
        const DIGITS: std::ops::RangeInclusive<usize> = 2..=3;
        let digits = name.strip_prefix("sm_").filter(|digits| DIGITS.contains(&digits.len()));
        let Some(number) = digits.and_then(|digits| digits.parse().ok()) else { return Ok(None) };
        let capability = Capability::of_number(number);
        if !capability.runs(COMPUTE_80.name) {
            return Err(Error::Input(format!(
                "target `cuda:{name}`: kernels need compute capability 8.0 or later"
            )));
        }
        let mut cuda = Self::of_target(&COMPUTE_80, options, half);
        cuda.info.note = Some(without_table(name));
        Ok(Some(cuda))
    }

    /// A GPU that need not be here, by its table.
    fn of_target(target: &GpuTarget, options: &Options, half: Option<DType>) -> Self {
        let nvrtc = Nvrtc::load(&options.cuda).map(Arc::new).map_err(|error| error.to_string());
        let (arch, figures) =
            (target.arch.to_owned(), GpuModel::usual(target.name, target.sms, target.l2_bytes));
        let precision = multiplied(options.precision, half);
        let info = target_info(target, &arch, &figures, precision);
        Self {
            target: target.clone(),
            arch,
            figures,
            narrows: precision == options.precision,
            info,
            device: None,
            nvrtc,
            libraries: Libraries::default(),
            alone_us: OnceLock::new(),
        }
    }

    /// What tensor cores multiply.
    pub(super) fn operands(&self) -> OperandPrecision {
        operand_precision(self.info.precision)
    }

    /// The compiler.
    ///
    /// # Errors
    /// If it cannot be used.
    pub(super) fn nvrtc(&self) -> Result<&Arc<Nvrtc>, Error> {
        self.nvrtc.as_ref().map_err(|reason| Error::Environment(reason.clone()))
    }
}

/// What products multiply: the model's half type, unless the options name one.
fn multiplied(asked: Precision, half: Option<DType>) -> Precision {
    match (asked, half) {
        (Precision::F32 | Precision::Tf32, Some(DType::F16)) => Precision::F16,
        (Precision::F32 | Precision::Tf32, Some(DType::BF16)) => Precision::Bf16,
        (asked, _) => asked,
    }
}

/// What tensor cores multiply in this precision.
fn operand_precision(precision: Precision) -> OperandPrecision {
    match precision {
        Precision::F32 => OperandPrecision::F32,
        Precision::Tf32 => OperandPrecision::Tf32,
        Precision::F16 => OperandPrecision::F16,
        Precision::Bf16 => OperandPrecision::Bf16,
    }
}

/// What is said of PTX.
fn ptx_note() -> String {
    format!(
        "kernels have the schedules of {} and are PTX for {}, which the driver of any GPU of compute capability 8.0 or later \
         compiles when the executable is loaded",
        SM_80.name, COMPUTE_80.name
    )
}

/// What is said of PTX for a GPU that has no table.
fn without_table(gpu: &str) -> String {
    format!("there is no table of {gpu}: {}", ptx_note())
}

/// Facts about a GPU that need not be here.
fn target_info(target: &GpuTarget, arch: &str, figures: &GpuModel, precision: Precision) -> TargetInfo {
    TargetInfo {
        device: manifest::Device::Cuda,
        name: arch.trim_end_matches('a').to_owned(),
        machine: format!("any {}", target.name),
        precision,
        figures: format!("{target:?} {figures:?} {precision:?}"),
        chains_contractions: matches!(precision, Precision::F16 | Precision::Bf16),
        widens_f16: true,
        computes_bands: true,
        substitute_margins: SubstituteMargins { computed: 1.1, by_constants: 1.1 },
        reentrant_units: 1,
        overlaps_kernels: target.has_pdl,
        kept_bytes: 0,
        library_precision: Some(operand_precision(precision)),
        extensions: Vec::new(),
        is_measurable: false,
        note: (target.name == COMPUTE_80.name).then(ptx_note),
    }
}

/// The table for a device, with the device's own numbers.
///
/// # Errors
/// If the device is older than all of them.
fn gpu_target(info: &DeviceInfo) -> Result<GpuTarget, Error> {
    let capability = info.capability;
    if !capability.runs(COMPUTE_80.name) {
        return Err(Error::Environment(format!(
            "{} has compute capability {capability}, kernels need 8.0 or later; models compile for the CPU",
            info.name
        )));
    }
    // The table of its generation. What a generation adds is not kept by the one after it.
    let table = GPU_TARGETS.into_iter().find(|target| capability.runs(target.name)).unwrap_or(&COMPUTE_80);
    Ok(GpuTarget {
        sms: info.sm_count as usize,
        least_sms: info.sm_count as usize,
        shared_bytes: info.shared_bytes_per_block as usize,
        sm_shared_bytes: info.shared_bytes_per_sm as usize,
        sm_registers: info.registers_per_sm as usize,
        sm_threads: info.threads_per_sm as usize,
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

/// A compiler's error in the terms of callers.
pub(super) fn nvrtc_error(error: NvrtcError) -> Error {
    match error {
        NvrtcError::Cancelled => Error::Interrupted,
        NvrtcError::Rejected { .. } => Error::internal(error),
        _ => Error::Environment(error.to_string()),
    }
}
