//! The ways in which a block may be lowered, the preferred one first.
//!
//! Blocks that multiply few rows by large factors have several: which is the fastest depends on more than is modelled, and is
//! measured where kernels are timed. Boxes are preferred where clusters of two tasks run blocks: of ten kernels of 2 to 128 rows
//! on an H200 these took 0.45 to 0.75 of the time that threads take (8 rows by two factors of 4096 x 4096 24.4 instead of 33.4 us).
//! One task a block took less still in two of them; without clusters, kernels of short loops took up to 20 % longer in boxes.
//!
//! Where blocks are few, tasks of a cluster may also share the iterations of other loops that hand on sums and maxima, as of
//! attention. They are preferred where products are of whole tiles of rows, which keep a multiprocessor busy.

use super::cluster::{can_split_iterations, has_whole_row_tiles};
use super::skinny::skinny_loops;
use super::steps::TileSteps;
use super::{check_request, lower_steps, register_direct};
use crate::graph::BlockGraph;
use crate::lower::{CannotLower, Request};
use orch_thread::GpuTarget;
use orch_thread::OperandPrecision;
use orch_thread::kernel::Kernel;
use std::collections::BTreeMap;
use std::fmt;

/// Tasks of a block, at most: what they exchange grows with their number.
const MOST_TASKS: usize = 8;
/// The same where factors of few rows come in boxes.
const MOST_BOX_TASKS: usize = 2;
/// Least iterations of a task, of few rows and of others.
const LEAST_ITERATIONS: [usize; 2] = [8, 2];

/// A way to lower a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MugraphSchedule {
    /// Whether factors of few rows come in boxes; otherwise threads load large ones to registers.
    pub tma_operands: bool,
    /// Tasks that share the iterations of a block, one cluster.
    pub ctas: usize,
}

impl MugraphSchedule {
    /// Each block is a task, and threads load large factors of few rows.
    pub const PLAIN: MugraphSchedule = MugraphSchedule { tma_operands: false, ctas: 1 };
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for MugraphSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cluster={}{}", self.ctas, if self.tma_operands { " tma_operands" } else { "" })
    }
}

/// The ways to lower a kernel that may succeed, the preferred one first; at least one.
///
/// # Errors
/// If there is no block graph.
pub fn schedules(
    request: &Request<'_>,
    target: &GpuTarget,
    precision: OperandPrecision,
) -> Result<Vec<MugraphSchedule>, CannotLower> {
    let (block, shapes) = (request.block()?, request.graph.shapes());
    let has_boxes = target.has_wgmma && matches!(precision, OperandPrecision::F16 | OperandPrecision::Bf16);
    let few = skinny_loops(block, shapes).filter(|_| has_boxes);
    let boxes = few.is_some();
    let kind = usize::from(!boxes);
    let loops = few.unwrap_or_else(|| vec![block.clone()]);
    let shares = |&tasks: &usize| {
        loops.iter().any(|block| can_split_iterations(block, shapes, (tasks, LEAST_ITERATIONS[kind]), target))
    };
    let most = if boxes { MOST_BOX_TASKS } else { MOST_TASKS };
    let counts = (1..=most.ilog2()).rev().map(|log| 1 << log);
    let mut all: Vec<MugraphSchedule> =
        counts.filter(shares).map(|tasks| MugraphSchedule { tma_operands: boxes, ctas: tasks }).collect();
    let prefers_sharing = boxes || has_boxes && has_whole_row_tiles(block, shapes);
    let first = usize::from(prefers_sharing && !all.is_empty());
    all.insert(first, MugraphSchedule::PLAIN);
    all.extend(boxes.then_some(MugraphSchedule { tma_operands: boxes, ctas: 1 }));
    Ok(all)
}

/// Lowers a kernel that a block graph defines, in the preferred way.
///
/// Products take factors as `factors` says and add in f32, and all else is f32. Remainders are allowed in dimensions of
/// the result that nothing combines.
///
/// # Errors
/// If there is no block graph, a remainder lies along a dimension that is combined or looped over, the request does not
/// fit the graph, or tiles do not fit the target's shared memory.
pub fn lower(
    request: &Request<'_>,
    target: &GpuTarget,
    precision: OperandPrecision,
) -> Result<Kernel, CannotLower> {
    let mut schedules = schedules(request, target, precision)?.into_iter();
    let mut preferred = schedules.by_ref().take_while(|schedule| *schedule != MugraphSchedule::PLAIN);
    let boxed = preferred.find_map(|schedule| lower_as(request, target, precision, schedule).ok());
    boxed.map_or_else(|| lower_as(request, target, precision, MugraphSchedule::PLAIN), Ok)
}

/// Lowers a kernel in one of the ways that [`schedules`] names.
///
/// # Errors
/// Those of [`lower`], and if the copy engine does not take the factors.
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
    let loops = match schedule.tma_operands {
        true => skinny_loops(block, shapes).unwrap_or_default(),
        false => vec![block.clone()],
    };
    let least = LEAST_ITERATIONS[usize::from(!schedule.tma_operands)];
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

/// Lowers a block whose large factors of few rows threads load to registers, if these suffice.
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
