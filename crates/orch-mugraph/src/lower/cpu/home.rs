//! Which tiles are kept in scratch, and which are computed where they are read.
//!
//! An elementwise tile is computed where it is read, unless that repeats much work: several readers, readers that repeat
//! it, readers in the loop of what does not change there. Loads and operators that only move elements are computed where
//! they are read as well; a matrix product reads its left operand from memory, which may be that of the tensor.

use super::plan::{CpuTilePlan, Map, PlanNode, Work};
use super::{CpuBlockEmitter, inner_dim};
use crate::op::{BinaryFn, ReduceFn, UnaryFn};
use crate::tiling::Stage;
use orch_ir::DType;

/// Where a tile is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Home {
    /// Nowhere: computed, or loaded, where it is read.
    Inline,
    /// In scratch.
    Scratch,
    /// Nowhere: added to an accumulator at once.
    Into(usize),
}

/// How a tile is read.
#[derive(Clone, Copy, Default, Debug)]
struct Use {
    /// How often each element is needed.
    reads: usize,
    /// True if reads repeat along a dimension that is not the vectors'.
    is_repeated: bool,
    /// True if it is read in the loop.
    in_loop: bool,
    /// True if it has to be in memory, as f32.
    in_memory: bool,
    /// Of the left operand of a product, the columns of the right one.
    columns: usize,
}

/// Operations that may be repeated instead of storing and loading their result.
const CHEAP: usize = 3;

/// The homes of all tiles; those that nothing reads have none.
pub(super) fn homes(ctx: &CpuBlockEmitter<'_>) -> Vec<Home> {
    let plan = &ctx.plan;
    let weights = weights(plan);
    let mut uses = vec![Use::default(); plan.nodes.len()];
    for &stored in &plan.stored {
        uses[stored].reads += 1;
    }
    let mut homes = vec![Home::Inline; plan.nodes.len()];
    for at in (0..plan.nodes.len()).rev() {
        if uses[at].reads == 0 {
            continue;
        }
        homes[at] = match &plan.nodes[at].work {
            Work::Load { .. } if uses[at].in_memory && !ctx.suits_in_place(at, uses[at].columns) => {
                Home::Scratch
            }
            Work::Load { .. } | Work::Transpose(_) | Work::Slice { .. } => Home::Inline,
            Work::Repeat { .. } | Work::Rotate { .. } if uses[at].in_memory => Home::Scratch,
            Work::Repeat { .. } | Work::Rotate { .. } => Home::Inline,
            Work::Map(_) if is_worth_repeating(ctx, at, &uses[at], weights[at]) => Home::Inline,
            Work::Matmul => accumulator_of((plan, &homes), at, &uses[at]).map_or(Home::Scratch, Home::Into),
            _ => Home::Scratch,
        };
        for (number, &arg) in plan.nodes[at].args.iter().enumerate() {
            let read = read_by(plan, at, number, homes[at], &uses[at]);
            let all = &mut uses[arg];
            *all = Use {
                reads: all.reads + read.reads,
                is_repeated: all.is_repeated || read.is_repeated,
                in_loop: all.in_loop || read.in_loop,
                in_memory: all.in_memory || read.in_memory,
                columns: all.columns.max(read.columns),
            };
        }
    }
    homes
}

fn is_worth_repeating(ctx: &CpuBlockEmitter<'_>, at: usize, all: &Use, weight: usize) -> bool {
    let is_invariant = ctx.plan.nodes[at].stage == Stage::Invariant && ctx.loop_range > 1;
    !(all.in_memory
        || is_invariant && all.in_loop
        || all.reads.saturating_sub(1) * weight > CHEAP
        || all.is_repeated && weight > CHEAP)
}

/// The accumulator that a product can be added to at once.
fn accumulator_of((plan, homes): (&CpuTilePlan, &[Home]), at: usize, all: &Use) -> Option<usize> {
    let is_sum = |(node, home): (&PlanNode, &Home)| {
        *home == Home::Scratch
            && node.args.first() == Some(&at)
            && matches!(node.work, Work::Accumulate(ReduceFn::Sum) | Work::Rescaled { .. })
    };
    plan.nodes.iter().zip(homes).position(is_sum).filter(|_| all.reads == 1 && !all.in_memory)
}

/// How a tile reads one of its operands.
fn read_by(plan: &CpuTilePlan, reader: usize, number: usize, home: Home, all: &Use) -> Use {
    let node = &plan.nodes[reader];
    let operand = &plan.nodes[node.args[number]].shape;
    let inner = inner_dim(&node.shape);
    let repeats = |dim: usize| operand[dim].is_one() && node.shape[dim].full > 1 && Some(dim) != inner;
    let in_loop = node.stage == Stage::Loop
        || matches!(node.work, Work::Accumulate(_) | Work::Rescaled { .. } | Work::RunningMax);
    let once = Use { reads: 1, in_loop, ..Use::default() };
    match (&node.work, number) {
        (Work::Matmul, 0) => {
            let columns = node.shape[node.shape.len() - 1].full;
            Use { in_memory: true, columns, in_loop: once.in_loop || home != Home::Scratch, ..once }
        }
        (Work::Matmul, _) => {
            let in_memory = node.shape[node.shape.len() - 1].full == 1;
            let is_repeated = (0..node.shape.len() - 2).any(repeats);
            Use { in_memory, is_repeated, in_loop: once.in_loop || home != Home::Scratch, ..once }
        }
        _ if home != Home::Inline => {
            let is_map = matches!(node.work, Work::Map(_));
            Use { is_repeated: is_map && (0..operand.len()).any(repeats), ..once }
        }
        (Work::Transpose(_) | Work::Slice { .. }, _) => *all,
        (Work::Repeat { times, .. }, _) => {
            Use { is_repeated: all.is_repeated || *times > 1, in_memory: false, ..*all }
        }
        _ => {
            Use { is_repeated: all.is_repeated || (0..operand.len()).any(repeats), in_memory: false, ..*all }
        }
    }
}

/// Roughly how many operations an element of each tile takes, given those that are certainly stored.
fn weights(plan: &CpuTilePlan) -> Vec<usize> {
    let mut weights: Vec<usize> = Vec::with_capacity(plan.nodes.len());
    for node in &plan.nodes {
        let args = || node.args.iter().map(|&arg| weights[arg]).sum::<usize>();
        weights.push(match &node.work {
            Work::Map(map) => args() + weight(map),
            // The partner's place and the sign.
            Work::Rotate { .. } => args() + 2,
            Work::Transpose(_) | Work::Slice { .. } | Work::Repeat { .. } => args(),
            _ => 0,
        });
    }
    weights
}

fn weight(map: &Map) -> usize {
    match map {
        Map::Unary(UnaryFn::Square | UnaryFn::Relu | UnaryFn::Guard) => 1,
        Map::Unary(UnaryFn::Sqrt) | Map::Over(_) | Map::Binary(BinaryFn::Div | BinaryFn::Mask) => 4,
        Map::Unary(_) => 20,
        Map::Scale(_) | Map::Offset(_) | Map::Binary(_) => 1,
    }
}

/// Elements between rows that map to the same lines of L1 are multiples of this.
const ALIASING_ELEMS: usize = 512;

impl CpuBlockEmitter<'_> {
    /// True if a product reads a load well where it lies: f32 in memory, whose rows do not push each other out of the
    /// cache while many columns pass by.
    fn suits_in_place(&self, load: usize, columns: usize) -> bool {
        let node = &self.plan.nodes[load];
        let Work::Load { tensor, .. } = &node.work else { return false };
        let stored = &self.request.stored[tensor.index()];
        if self.request.graph.computed_mask(*tensor).is_some() || stored.dtype != DType::F32 {
            return false;
        }
        let competes = |(extent, &stride): (&super::extent::Extent, &usize)| {
            extent.full > 4 && stride > 0 && stride.is_multiple_of(ALIASING_ELEMS)
        };
        columns < 4 * self.lanes || !node.shape.iter().zip(&stored.strides).any(competes)
    }
}
