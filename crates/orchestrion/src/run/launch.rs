//! How kernels are launched, alike when an executable runs and when a kernel is timed alone.

use crate::manifest::{CtaInfo, Manifest, Slot, SlotMemory, TensorMapInfo};
use crate::{Error, Precision};
use orch_ir::generate::Rng;
use orch_runtime::cuda::{LaunchShape, TensorMapShape};
use orch_runtime::program::{Access, Base, BufferRef};
use orch_thread::target::GPU_TARGETS;

/// A tensor map in the runtime's terms.
pub fn tensor_map_shape(info: &TensorMapInfo) -> TensorMapShape {
    TensorMapShape {
        argument: info.argument,
        offset_bytes: info.offset_bytes,
        extents: info.extents.clone(),
        strides_bytes: info.strides_bytes.clone(),
        rows: info.rows,
    }
}

/// True if kernels are launched before their predecessors have ended (programmatic dependent launch).
pub fn starts_early(manifest: &Manifest) -> bool {
    let target = GPU_TARGETS.iter().find(|target| target.name == manifest.target);
    // Measured on an H200: early launches save up to a tenth of a model's time in half precision, and cost up to a fifth
    // in f32, where kernels are long.
    let is_half = matches!(manifest.precision, Precision::F16 | Precision::Bf16);
    is_half && target.is_some_and(|target| target.has_pdl)
}

/// Grid, CTA and cluster of a launch; `None` if no GPU has as many CTAs or threads.
pub fn launch_shape(tasks: usize, cta: &CtaInfo, is_programmatic: bool) -> Option<LaunchShape> {
    let number = |count: usize| u32::try_from(count).ok();
    Some(LaunchShape {
        cluster: number(cta.cluster)?,
        shared_bytes: number(cta.shared_bytes)?,
        is_programmatic: is_programmatic && !cta.is_cooperative,
        is_cooperative: cta.is_cooperative,
        ..LaunchShape::new(number(tasks)?, number(cta.threads)?)
    })
}

/// Refuses a run that takes more memory than this machine has.
pub fn check_fits(needed_bytes: usize) -> Result<(), Error> {
    match orch_runtime::memory_bytes() {
        Some(available) if needed_bytes as u64 > available => Err(Error::Environment(format!(
            "a run takes {:.1} GiB for inputs, outputs and working memory, which is more than this machine has; compile \
             the model for smaller shapes",
            needed_bytes as f64 / f64::from(1 << 30)
        ))),
        _ => Ok(()),
    }
}

/// The bytes that a step is given.
pub fn buffer_ref(slot: &Slot) -> BufferRef {
    let (base, offset_bytes) = match slot.memory {
        SlotMemory::Arena(offset) => (Base::Arena, offset),
        SlotMemory::Constant(number) => (Base::Constant(number), 0),
        SlotMemory::Input(number) => (Base::Input(number), 0),
        SlotMemory::Output(number) => (Base::Output(number), 0),
    };
    let access = if slot.written { Access::Write } else { Access::Read };
    BufferRef { base, offset_bytes, len_bytes: slot.bytes, access }
}

/// Bytes that are floats of either sign below 1, whatever their type: kernels and executables are timed on them, because a
/// device runs at a higher clock on zeros.
pub fn noise(len_bytes: usize) -> Vec<u8> {
    const BLOCK: usize = 1 << 20;
    let mut rng = Rng::new(0);
    let mut half = || {
        let [low, high, ..] = rng.bits().to_le_bytes();
        [low, (high & 0x80) | (0x30 + high % 12)]
    };
    let block: Vec<u8> = (0..BLOCK.min(len_bytes).div_ceil(2)).flat_map(|_| half()).collect();
    let mut bytes = block.repeat(len_bytes.div_ceil(BLOCK));
    bytes.truncate(len_bytes);
    bytes
}
