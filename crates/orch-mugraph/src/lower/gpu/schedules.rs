//! The ways in which a block may be lowered, the preferred one first.
//!
//! Blocks that multiply few rows by large factors have several: which is the fastest depends on more than is modelled, and is
//! measured where kernels are timed. On an H200, in microseconds: 64 rows by two factors of 4096 x 4096 take 33.7 where threads
//! load them, in 128 blocks, and 29.0 in boxes, by 64 clusters of two tasks; 16 rows by one such factor 21.7 and 22.5, and if
//! the cache has it 19.5 and 17.1. So boxes are preferred where the sums of many rows leave threads few registers to load to,
//! and clusters keep all multiprocessors busy.

use super::cluster::may_share;
use super::few_rows::{FewRows, few_rows};
use super::layout::TILE_ROWS;
use super::steps::Steps;
use super::{check_request, lower_steps, stream};
use crate::graph::BlockGraph;
use crate::lower::{CannotLower, Request};
use orch_tile::GpuTarget;
use orch_tile::templates::gpu::Factors;
use orch_tile::templates::kernel::Kernel;
use std::collections::BTreeMap;
use std::fmt;

/// Tasks of a block, at most: what they exchange grows with their number.
const MOST_TASKS: usize = 2;
/// Rows from which on boxes are preferred where clusters run blocks.
pub const BOX_ROWS: usize = 2 * TILE_ROWS + 1;

/// A way to lower a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// Each block is a task. Threads load large factors of few rows to registers.
    Threads,
    /// Factors of few rows come in boxes, and so many tasks share the iterations of a block.
    Boxes {
        /// The tasks, one cluster.
        tasks: usize,
    },
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Threads => write!(f, "by threads"),
            Schedule::Boxes { tasks: 1 } => write!(f, "few rows in boxes"),
            Schedule::Boxes { tasks } => write!(f, "few rows in boxes, {tasks} tasks a block"),
        }
    }
}

/// The ways to lower a kernel that may succeed, the preferred one first; at least one.
///
/// # Errors
/// If there is no block graph.
pub fn schedules(
    request: &Request<'_>,
    target: &GpuTarget,
    factors: Factors,
) -> Result<Vec<Schedule>, CannotLower> {
    let block = request.block()?;
    let has_boxes = target.has_tile_products && matches!(factors, Factors::F16 | Factors::Bf16);
    let few = few_rows(block, request.graph.shapes()).filter(|_| has_boxes);
    let Some(FewRows { rows, loops }) = few else { return Ok(vec![Schedule::Threads]) };
    let shares =
        |tasks: &usize| loops.iter().any(|block| may_share(block, request.graph.shapes(), (*tasks, target)));
    let shared = (2..=MOST_TASKS).filter(shares).map(|tasks| Schedule::Boxes { tasks });
    let mut all: Vec<Schedule> = shared.collect();
    let first = if rows >= BOX_ROWS && !all.is_empty() { 1 } else { 0 };
    all.insert(first, Schedule::Threads);
    all.push(Schedule::Boxes { tasks: 1 });
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
pub fn lower(request: &Request<'_>, target: &GpuTarget, factors: Factors) -> Result<Kernel, CannotLower> {
    let mut schedules = schedules(request, target, factors)?.into_iter();
    let mut preferred = schedules.by_ref().take_while(|schedule| *schedule != Schedule::Threads);
    let boxed = preferred.find_map(|schedule| lower_as(request, target, factors, schedule).ok());
    boxed.map_or_else(|| lower_as(request, target, factors, Schedule::Threads), Ok)
}

/// Lowers a kernel in one of the ways that [`schedules`] names.
///
/// # Errors
/// Those of [`lower`], and if the copy engine does not take the factors.
pub fn lower_as(
    request: &Request<'_>,
    target: &GpuTarget,
    factors: Factors,
    schedule: Schedule,
) -> Result<Kernel, CannotLower> {
    let block = request.block()?;
    check_request(request, block)?;
    match schedule {
        Schedule::Threads => lower_by_threads(request, block, target, factors),
        Schedule::Boxes { tasks } => {
            let shapes = request.graph.shapes();
            let few = few_rows(block, shapes);
            let few = few.ok_or_else(|| CannotLower("no products of few rows".to_owned()))?;
            let mut reason = CannotLower(format!("no loop that {tasks} tasks share"));
            let loops = few.loops.iter().filter(|block| may_share(block, shapes, (tasks, target)));
            for block in loops {
                let steps = Steps::of(block, shapes)?;
                match lower_steps(request, (block, &steps), target, (factors, Some(tasks))) {
                    Ok(kernel) => return Ok(kernel),
                    Err(other) => reason = other,
                }
            }
            Err(reason)
        }
    }
}

/// Lowers a block whose large factors of few rows threads load to registers, if these suffice.
fn lower_by_threads(
    request: &Request<'_>,
    block: &BlockGraph,
    target: &GpuTarget,
    factors: Factors,
) -> Result<Kernel, CannotLower> {
    let mut steps = Steps::of(block, request.graph.shapes())?;
    (steps.streams, steps.turns) = stream::streams(request, &steps, factors);
    if !steps.streams.is_empty() {
        if let Ok(kernel) = lower_steps(request, (block, &steps), target, (factors, None)) {
            return Ok(kernel);
        }
        (steps.streams, steps.turns) = (BTreeMap::new(), 1);
    }
    lower_steps(request, (block, &steps), target, (factors, None))
}
