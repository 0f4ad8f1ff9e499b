//! The schedules of a block: cluster sizes, and for skinny GEMMs TMA and wgmma instead of direct loads.
//!
//! Which is the fastest depends on more than is modelled: callers may time all, or take the first. TMA with
//! clusters of 2 comes first for skinny GEMMs: of ten kernels of 2 to 128 rows on an H100 these took 0.45 to
//! 0.75 of the time of direct loads (8 rows by two weights of 4096 x 4096 24.4 instead of 33.4 us). One CTA
//! per block took less still in two of them; without clusters, kernels of short loops took up to 20 % longer
//! with TMA.
//!
//! Persistent CTAs come first for attention of more blocks than SMs ([`PersistentCtas::of`]).
//!
//! Other loops that leave sums and maxima, as attention, may be split over clusters too where blocks are few.
//! That comes first if products have whole rows of 64 (wgmma), which keep an SM busy.

use super::cluster::{can_split_iterations, has_whole_row_tiles};
use super::persistent::PersistentCtas;
use super::skinny::skinny_loops;
use super::steps::TileSteps;
use super::{check_request, lower_steps, products, register_direct};
use crate::graph::BlockGraph;
use crate::lower::{CannotLower, Request};
use crate::tiling::Stage;
use orch_thread::GpuTarget;
use orch_thread::OperandPrecision;
use orch_thread::kernel::Kernel;
use std::collections::BTreeMap;
use std::fmt;

/// Most CTAs of a cluster: what they exchange grows with their number.
const MAX_CLUSTER_CTAS: usize = 8;
/// The same for skinny GEMMs by TMA.
const MAX_SKINNY_CLUSTER: usize = 2;
/// Least iterations per CTA: of skinny GEMMs, and of others.
const MIN_ITERATIONS: [usize; 2] = [8, 2];

/// How a block is lowered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MugraphSchedule {
    /// Whether this is a skinny GEMM with both operands loaded by TMA; if not, large B operands of skinny
    /// products are loaded to registers directly.
    pub tma_operands: bool,
    /// CTAs of the cluster that splits the iterations of a block.
    pub ctas: usize,
    /// Whether CTAs are persistent: one per SM, which run one block after the other.
    pub persistent: bool,
}

impl MugraphSchedule {
    /// One CTA per block, no TMA for skinny GEMMs.
    pub const PLAIN: MugraphSchedule = MugraphSchedule { tma_operands: false, ctas: 1, persistent: false };
    /// Persistent CTAs.
    pub const PERSISTENT: MugraphSchedule = MugraphSchedule { persistent: true, ..MugraphSchedule::PLAIN };
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for MugraphSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tma_operands = if self.tma_operands { " tma_operands" } else { "" };
        let persistent = if self.persistent { " persistent" } else { "" };
        write!(f, "cluster={}{tma_operands}{persistent}", self.ctas)
    }
}

/// The schedules of a kernel that may succeed, the preferred one first; always contains
/// [`MugraphSchedule::PLAIN`].
///
/// # Errors
/// If the kernel is not defined by a block graph.
pub fn schedules(
    request: &Request<'_>,
    target: &GpuTarget,
    precision: OperandPrecision,
) -> Result<Vec<MugraphSchedule>, CannotLower> {
    let (block, shapes) = (request.block()?, request.graph.shapes());
    let has_wgmma = target.has_wgmma && matches!(precision, OperandPrecision::F16 | OperandPrecision::Bf16);
    let skinny = skinny_loops(block, shapes).filter(|_| has_wgmma);
    let by_tma = skinny.is_some();
    let kind = usize::from(!by_tma);
    let loops = skinny.unwrap_or_else(|| vec![block.clone()]);
    let shares = |&ctas: &usize| {
        loops.iter().any(|block| can_split_iterations(block, shapes, (ctas, MIN_ITERATIONS[kind]), target))
    };
    let most = if by_tma { MAX_SKINNY_CLUSTER } else { MAX_CLUSTER_CTAS };
    let counts = (1..=most.ilog2()).rev().map(|log| 1 << log);
    let mut all: Vec<MugraphSchedule> = counts
        .filter(shares)
        .map(|ctas| MugraphSchedule { tma_operands: by_tma, ctas, ..MugraphSchedule::PLAIN })
        .collect();
    let prefers_sharing = by_tma || has_wgmma && has_whole_row_tiles(block, shapes);
    let first = usize::from(prefers_sharing && !all.is_empty());
    all.insert(first, MugraphSchedule::PLAIN);
    all.extend(by_tma.then_some(MugraphSchedule { tma_operands: by_tma, ..MugraphSchedule::PLAIN }));
    if has_wgmma && prefers_persistent(request, block, target) {
        all.insert(0, MugraphSchedule::PERSISTENT);
    }
    Ok(all)
}

/// Whether persistent CTAs come first: a loop of two products, the second of computed weights, as attention, whose blocks they can
/// share.
fn prefers_persistent(request: &Request<'_>, block: &BlockGraph, target: &GpuTarget) -> bool {
    TileSteps::of(block, request.graph.shapes()).is_ok_and(|steps| {
        let weights = products(&steps).map(|product| &steps.tiles[product.step.args()[0]]);
        let are_computed: Vec<bool> = weights.map(|tile| tile.stage == Stage::Loop).collect();
        are_computed == [false, true] && PersistentCtas::of(request, block, &steps, target).is_some()
    })
}

/// Lowers a kernel by the first schedule that succeeds.
///
/// Products round their operands to `precision` and accumulate in f32; all else is f32. Grids may leave
/// remainders in dimensions of the result that nothing reduces, the loop in any along which zeros, or what is
/// masked, change no result.
///
/// # Errors
/// If the kernel is not defined by a block graph, a remainder of the grid lies along a dimension that is reduced or
/// looped over, one of the loop would change a result, the request does not fit the graph, or tiles do not fit the target's shared memory.
pub fn lower(
    request: &Request<'_>,
    target: &GpuTarget,
    precision: OperandPrecision,
) -> Result<Kernel, CannotLower> {
    let mut schedules = schedules(request, target, precision)?.into_iter();
    let mut preferred = schedules.by_ref().take_while(|schedule| *schedule != MugraphSchedule::PLAIN);
    let preferred_kernel = preferred.find_map(|schedule| lower_as(request, target, precision, schedule).ok());
    preferred_kernel.map_or_else(|| lower_as(request, target, precision, MugraphSchedule::PLAIN), Ok)
}

/// Lowers a kernel by one of its [`schedules`].
///
/// # Errors
/// Those of [`lower`], and if TMA cannot load the operands.
pub fn lower_as(
    request: &Request<'_>,
    target: &GpuTarget,
    precision: OperandPrecision,
    schedule: MugraphSchedule,
) -> Result<Kernel, CannotLower> {
    let block = request.block()?;
    check_request(request, block)?;
    let shapes = request.graph.shapes();
    if schedule == MugraphSchedule::PLAIN {
        return lower_by_threads(request, block, target, precision);
    }
    if schedule.persistent {
        let steps = TileSteps::of(block, shapes)?;
        return lower_steps(request, (block, &steps), target, (precision, schedule));
    }
    let loops = match schedule.tma_operands {
        true => skinny_loops(block, shapes).unwrap_or_default(),
        false => vec![block.clone()],
    };
    let least = MIN_ITERATIONS[usize::from(!schedule.tma_operands)];
    let mut reason = CannotLower(format!("no loop for {schedule}"));
    for block in
        loops.iter().filter(|block| can_split_iterations(block, shapes, (schedule.ctas, least), target))
    {
        let steps = TileSteps::of(block, shapes)?;
        match lower_steps(request, (block, &steps), target, (precision, schedule)) {
            Ok(kernel) => return Ok(kernel),
            Err(other) => reason = other,
        }
    }
    Err(reason)
}

/// Lowers a block by the plain schedule: with direct loads of B if they qualify and fit, else without.
fn lower_by_threads(
    request: &Request<'_>,
    block: &BlockGraph,
    target: &GpuTarget,
    precision: OperandPrecision,
) -> Result<Kernel, CannotLower> {
    let mut steps = TileSteps::of(block, request.graph.shapes())?;
    (steps.direct_loads, steps.unroll) = register_direct::direct_loads(request, &steps, precision);
    if !steps.direct_loads.is_empty() {
        if let Ok(kernel) = lower_steps(request, (block, &steps), target, (precision, MugraphSchedule::PLAIN))
        {
            return Ok(kernel);
        }
        (steps.direct_loads, steps.unroll) = (BTreeMap::new(), 1);
    }
    lower_steps(request, (block, &steps), target, (precision, MugraphSchedule::PLAIN))
}
