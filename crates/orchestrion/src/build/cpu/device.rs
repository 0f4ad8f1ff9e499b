//! A CPU with the tools that make kernels for it.

use crate::manifest::Device;
use crate::parallel::MAX_THREADS;
use crate::plan::backend::{SubstituteMargins, TargetInfo};
use crate::tune::calibrate;
use crate::{Error, Options, Precision, parallel};
use orch_runtime::cpu::{CompileError, Compiler, CompilerOptions, Tuning};
use orch_thread::CpuTarget;
use orch_tune::MachineModel;

/// A CPU, its figures and a C compiler.
pub struct Cpu {
    pub(super) target: CpuTarget,
    pub(super) machine: orch_runtime::Machine,
    pub(super) compiler: Compiler,
    pub(super) figures: MachineModel,
    pub(super) info: TargetInfo,
}

impl Cpu {
    /// Looks for a compiler, and for the figures of the machine.
    pub fn new(target: CpuTarget, machine: orch_runtime::Machine, options: &Options) -> Result<Self, Error> {
        check_precision(&target, options.precision)?;
        let is_here = matches!(options.target.as_deref(), None | Some("cpu"));
        let compiler = find_compiler(&target, options, is_here)?;
        let figures = machine_model(&machine, &compiler, options, is_here).on_threads(threads(options)?);
        let info = TargetInfo {
            device: Device::Cpu,
            precision: options.precision,
            name: target.name.to_owned(),
            machine: format!("{}; {} threads", machine.fingerprint(), figures.threads),
            figures: format!("{figures:?}"),
            chains_contractions: false,
            widens_f16: false,
            computes_bands: false,
            substitute_margins: SubstituteMargins { computed: 1.0, by_constants: 1.1 },
            reentrant_units: 0,
            overlaps_kernels: false,
            kept_bytes: machine.caches.l3_bytes,
            library_precision: None,
            extensions: compiler.extensions().to_vec(),
            is_measurable: is_here,
            note: None,
        };
        Ok(Self { target, machine, compiler, figures, info })
    }
}

/// Threads that runs have, at most.
fn threads(options: &Options) -> Result<u32, Error> {
    match options.threads {
        0 => Ok(parallel::cpus() as u32),
        threads if threads <= MAX_THREADS => Ok(threads as u32),
        threads => Err(Error::Input(format!(
            "a plan for {threads} threads was asked for; at most {MAX_THREADS} work on one run"
        ))),
    }
}

/// Refuses a precision for which the target has no instructions: it would cost digits and gain nothing.
fn check_precision(target: &CpuTarget, precision: Precision) -> Result<(), Error> {
    let advice = match precision {
        Precision::F32 => return Ok(()),
        Precision::Bf16 if target.has_bf16() => return Ok(()),
        Precision::Bf16 => {
            let able: Vec<&str> = (orch_thread::target::CPU_TARGETS.iter())
                .filter(|target| target.has_bf16())
                .map(|target| target.name)
                .collect();
            format!(
                "does not multiply bf16 (AVX512-BF16 or AMX); use precision f32, or compile for another machine with \
                 the target {}",
                able.join(" or ")
            )
        }
        Precision::Tf32 | Precision::F16 => {
            "is a CPU, and only GPUs compute in it; use precision f32, or compile for a GPU with the target cuda"
                .to_owned()
        }
    };
    Err(Error::Environment(format!(
        "precision {} was asked for, but the target `{}` {advice}",
        precision.name(),
        target.name
    )))
}

/// The C compiler for the target.
fn find_compiler(target: &CpuTarget, options: &Options, is_here: bool) -> Result<Compiler, Error> {
    let settings = CompilerOptions {
        program: options.c_compiler.clone(),
        tuning: if is_here { Tuning::Native } else { Tuning::Arch(target.march.to_owned()) },
        memory: Some(options.cache_dir.clone()),
        ..CompilerOptions::default()
    };
    Compiler::find(&settings).map_err(compile_error)
}

/// The figures of this machine, measured the first time; a guess where they cannot be, or for another machine.
fn machine_model(
    machine: &orch_runtime::Machine,
    compiler: &Compiler,
    options: &Options,
    is_here: bool,
) -> MachineModel {
    let measured = (options.calibrate && is_here)
        .then(|| calibrate::speeds(options, machine, compiler.clone(), false).ok())
        .flatten();
    measured.unwrap_or_else(|| MachineModel::conservative(machine, parallel::cpus() as u32))
}

/// A compiler's error in the terms of callers.
pub(super) fn compile_error(error: CompileError) -> Error {
    match error {
        CompileError::Cancelled => Error::Interrupted,
        CompileError::Rejected { .. } => Error::internal(error),
        _ => Error::Environment(error.to_string()),
    }
}
