//! Which target is meant, and what makes kernels for it.

use super::cpu::Cpu;
use super::cuda::Cuda;
use crate::plan::backend::Backend;
use crate::{Error, Options};
use orch_ir::DType;
use orch_runtime::{Arch, CacheSizes, Feature, Machine};
use orch_thread::CpuTarget;
use orch_thread::target::{AARCH64, CPU_TARGETS, GPU_TARGETS};
use orch_thread::target::{X86_64_AMX, X86_64_V3, X86_64_V4, X86_64_V4_BF16};
use orch_tune::{Database, DatabaseError};

/// The tools for the target of the options: `cpu` or none for this machine's CPU, the name of another CPU target,
/// `cuda` for this machine's first GPU, `cuda:NUMBER` for another of it, `cuda:NAME` for one that need not be here (see
/// [`Options::target`]). `half` is the type of the operands of the model's products, if that is f16 or bf16
/// ([`orch_compute::operands::half_operands`]).
///
/// # Errors
/// If there is no such target, it does not have the precision, tools are missing, or others may write to the cache.
pub fn find(options: &Options, half: Option<DType>) -> Result<Box<dyn Backend>, Error> {
    check_cache(options)?;
    let name = options.target.as_deref().unwrap_or("cpu");
    if let Some(number) = options.gpu() {
        return Ok(Box::new(Cuda::of_device(number, options, half)?));
    }
    if let Some(gpu) = name.strip_prefix("cuda:") {
        return Ok(Box::new(Cuda::of_name(gpu, options, half)?.ok_or_else(|| unknown(name))?));
    }
    let machine = Machine::detect();
    if name == "cpu" {
        return Ok(Box::new(Cpu::new(of_machine(&machine), machine, options)?));
    }
    let target = CPU_TARGETS.iter().find(|target| target.name == name).ok_or_else(|| unknown(name))?;
    Ok(Box::new(Cpu::new((*target).clone(), usual_machine(target, &machine), options)?))
}

/// Refuses a cache to which others may write, which some stages would just not use.
fn check_cache(options: &Options) -> Result<(), Error> {
    match Database::open(&options.cache_dir) {
        Err(DatabaseError::Folder(error)) if error.is_unsafe() => Err(Error::Environment(error.to_string())),
        _ => Ok(()),
    }
}

fn unknown(name: &str) -> Error {
    let cpus = CPU_TARGETS.iter().map(|target| target.name.to_owned());
    let gpus = GPU_TARGETS.iter().map(|target| format!("cuda:{}", target.name));
    let names: Vec<String> =
        ["cpu".to_owned(), "cuda".to_owned()].into_iter().chain(gpus).chain(cpus).collect();
    Error::Input(format!("target `{name}` is not known; there are {}", names.join(", ")))
}

/// The capability table that fits the machine's CPU, with the machine's caches.
fn of_machine(machine: &Machine) -> CpuTarget {
    let usual = match machine.vector_bytes() {
        64 if machine.has(Feature::AmxBf16) => X86_64_AMX,
        64 if machine.has(Feature::Avx512Bf16) => X86_64_V4_BF16,
        64 => X86_64_V4,
        32 => X86_64_V3,
        _ => AARCH64,
    };
    let CacheSizes { l1d_bytes, l2_bytes, .. } = machine.caches;
    CpuTarget { l1_bytes: l1d_bytes, l2_bytes, ..usual }
}

/// What plans for a target by name suppose of the machine that they will run on: nothing of the one they are made on but its number of
/// threads, so that all machines make the same plan.
fn usual_machine(target: &CpuTarget, here: &Machine) -> Machine {
    use Feature::{AmxBf16, Avx2, Avx512Bf16, Avx512Bw, Avx512Dq, Avx512F, Avx512Vl, F16c, Fma, Neon};
    let (arch, vectors): (Arch, &[Feature]) = match target.vector_bytes {
        64 => (Arch::X86_64, &[Avx2, Fma, F16c, Avx512F, Avx512Bw, Avx512Dq, Avx512Vl]),
        32 => (Arch::X86_64, &[Avx2, Fma, F16c]),
        _ => (Arch::Aarch64, &[Neon]),
    };
    let bf16 = [(target.has_bf16_dot, Avx512Bf16), (target.has_amx_bf16, AmxBf16)];
    let bf16 = bf16.into_iter().filter(|(has, _)| *has).map(|(_, feature)| feature);
    Machine {
        arch,
        model: target.name.to_owned(),
        features: vectors.iter().copied().chain(bf16).collect(),
        caches: CacheSizes { l1d_bytes: target.l1_bytes, l2_bytes: target.l2_bytes, ..CacheSizes::FALLBACK },
        cpus: Vec::new(),
        threads: here.threads,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_for_a_machine_go_by_its_caches() {
        let here = Machine::detect();
        let caches = CacheSizes { l1d_bytes: 48 << 10, l2_bytes: 3 << 20, l3_bytes: 0 };
        for target in CPU_TARGETS {
            let machine = Machine { caches, ..usual_machine(target, &here) };
            let plans_for = of_machine(&machine);
            assert_eq!((plans_for.l1_bytes, plans_for.l2_bytes), (48 << 10, 3 << 20), "{}", target.name);
        }
    }

    #[test]
    fn usual_machines_are_of_their_targets() {
        let here = Machine::detect();
        for target in CPU_TARGETS {
            assert_eq!(of_machine(&usual_machine(target, &here)).name, target.name);
        }
    }
}
