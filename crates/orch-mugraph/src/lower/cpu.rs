//! stub
use super::*;
pub fn lower(
    _r: &Request<'_>,
    _t: &orch_tile::CpuTarget,
) -> Result<orch_tile::templates::kernel::Kernel, CannotLower> {
    Err(CannotLower("stub".into()))
}
