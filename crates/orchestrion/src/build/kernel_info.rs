//! What the manifest says of kernels that were built.

use crate::consistency::fingerprint;
use crate::manifest::{ArgumentInfo, CtaInfo, KernelInfo, Resources, TensorMapInfo};
use crate::plan::backend::BuiltKernel;
use crate::plan::kernel::KernelDesign;
use crate::plan::library::call_info;
use orch_runtime::cpu::Source;
use orch_thread::{TensorMap, ThreadProgram};

/// The kernels with their sources; each is alone in its object.
pub fn kernel_infos(
    kernels: &[KernelDesign],
    sources: Vec<Source>,
    objects: &[BuiltKernel],
) -> Vec<KernelInfo> {
    (kernels.iter().zip(sources).zip(objects).enumerate())
        .map(|(library, ((kernel, source), object))| {
            let program = &kernel.design.kernel.program;
            let cta = cta_info(program, object.resources);
            let mut info = KernelInfo {
                name: kernel.name.clone(),
                symbol: source.symbols.first().cloned().unwrap_or_default(),
                library,
                tasks: program.tasks,
                phases: program.phases,
                scratch_bytes: program.scratch_bytes(),
                arguments: arguments(program),
                fingerprint: String::new(),
                cta,
                schedule: kernel.design.schedule.clone(),
                call: kernel.call.as_ref().map(call_info),
                source: source.text,
            };
            info.fingerprint = fingerprint(&info, &object.bytes);
            info
        })
        .collect()
}

/// The tensors that a program takes.
fn arguments(program: &ThreadProgram) -> Vec<ArgumentInfo> {
    let global = program.buffers.iter().filter(|buffer| buffer.scope.is_global());
    global
        .map(|buffer| ArgumentInfo {
            bytes: buffer.elems * buffer.dtype.size_bytes(),
            written: buffer.scope.is_written(),
        })
        .collect()
}

/// A tensor map in bytes, as the runtime makes it.
fn tensor_map_info(program: &ThreadProgram, map: &TensorMap) -> TensorMapInfo {
    let size = program.buffer(map.buffer).dtype.size_bytes();
    TensorMapInfo {
        argument: map.buffer.index(),
        offset_bytes: map.offset * size,
        extents: map.extents.iter().map(|&extent| extent as u64).collect(),
        strides_bytes: map.strides.iter().map(|&stride| (stride * size) as u64).collect(),
        rows: map.rows as u32,
    }
}

/// Threads, cluster and shared memory of a CTA; `None` for programs of CPUs.
pub fn cta_info(program: &ThreadProgram, resources: Option<Resources>) -> Option<CtaInfo> {
    program.cta.as_ref().map(|cta| CtaInfo {
        threads: cta.threads,
        cluster: cta.cluster,
        is_cooperative: cta.barrier_group > 1,
        shared_bytes: program.shared_bytes(),
        tensor_maps: program.tensor_maps.iter().map(|map| tensor_map_info(program, map)).collect(),
        resources,
    })
}
