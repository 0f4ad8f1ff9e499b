//! stub
use super::*;
pub fn lower(
    _r: &Request<'_>,
    _t: &orch_tile::target::GpuTarget,
    _f: orch_tile::templates::gpu::Factors,
) -> Result<orch_tile::templates::kernel::Kernel, CannotLower> {
    Err(CannotLower("stub".into()))
}
