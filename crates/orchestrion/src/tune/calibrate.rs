//! Peak rates of the machine's CPU (multiply-adds, memory, L2), measured once and kept in the tuning database.

use crate::{Options, parallel};
use orch_runtime::Machine;
use orch_runtime::cpu::{CompileCache, Compiler, Pool, PoolOptions, calibrate};
use orch_tune::{Database, MachineModel};
use std::sync::Arc;

/// The machine's figures: those stored, or measured now if there are none or with `measure_anew`.
///
/// # Errors
/// If they cannot be measured or stored, with the reason.
pub fn speeds(
    options: &Options,
    machine: &Machine,
    compiler: Compiler,
    measure_anew: bool,
) -> Result<MachineModel, String> {
    let database = Database::open(&options.cache_dir).map_err(|error| error.to_string())?;
    let threads = parallel::cpus();
    if let Some(known) = MachineModel::load(&database, machine, threads as u32).filter(|_| !measure_anew) {
        return Ok(known);
    }
    let cache =
        CompileCache::open(&options.cache_dir, compiler, machine).map_err(|error| error.to_string())?;
    let pool = Arc::new(Pool::new(PoolOptions { threads, pin: false }));
    let figures = calibrate(&cache, machine, &pool).map_err(|error| error.to_string())?;
    let model = MachineModel::calibrated(machine, &figures);
    model.save(&database, machine).map_err(|error| error.to_string())?;
    // As later compilations will read it: the last digits of a figure may differ, and plans are known by all of them.
    Ok(MachineModel::load(&database, machine, threads as u32).unwrap_or(model))
}
