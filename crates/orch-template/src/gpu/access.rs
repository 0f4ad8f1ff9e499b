//! What a stage costs a thread: instructions, and bytes of memory by how neighbouring threads and the lanes of each access it
//! (coalesced, strided, broadcast).

use crate::nest::cost::operation_cycles;
use crate::nest::flat::{Nest, NestStage, StageWork};
use crate::nest::point::{IterationPoint, Lanes};
use orch_compute::BufferId;
use orch_compute::block::Axis;
use orch_compute::expr::{Expr, ExprId, Exprs, Type, VarInfo};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of the widest access to memory.
pub(super) const WIDEST: usize = 16;

/// Bytes that reading or writing a run of consecutive elements costs on top of its own.
pub(super) const SHORT_RUN: f64 = 24.0;

/// Bytes of a sector, the smallest transaction of DRAM and L2.
pub(super) const SECTOR: usize = 32;

/// Cost of an access to a cache, relative to DRAM.
const CACHED: f64 = 0.1;

/// What one thread does for one vector of points.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Effort {
    /// Instructions.
    pub instructions: f64,
    /// Bytes that DRAM transfers, the unused parts of sectors included.
    pub bytes: f64,
    /// Bytes of values that are loaded.
    pub loaded: f64,
}

impl Effort {
    /// This effort `count` times.
    pub fn times(self, count: f64) -> Self {
        let Self { instructions, bytes, loaded } = self;
        Self { instructions: instructions * count, bytes: bytes * count, loaded: loaded * count }
    }

    /// Both efforts.
    pub fn plus(self, other: Self) -> Self {
        Self {
            instructions: self.instructions + other.instructions,
            bytes: self.bytes + other.bytes,
            loaded: self.loaded + other.loaded,
        }
    }
}

/// How the lanes of neighbouring threads access memory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Pattern {
    /// All the same element.
    Uniform,
    /// Consecutive elements, from a multiple of the lanes on or not.
    Contiguous { is_aligned: bool },
    /// Elements so many bytes apart.
    Strided { bytes: usize },
}

impl Pattern {
    /// The effort of an access to `lanes` elements of `size` bytes.
    fn effort(self, size: usize, lanes: usize) -> Effort {
        let all = (size * lanes) as f64;
        match self {
            Pattern::Uniform => Effort { instructions: 1.0, bytes: 0.125 * size as f64, loaded: size as f64 },
            Pattern::Contiguous { is_aligned: true } => {
                Effort { instructions: (size * lanes).div_ceil(WIDEST) as f64, bytes: all, loaded: all }
            }
            Pattern::Contiguous { is_aligned: false } => {
                Effort { instructions: lanes as f64, bytes: 1.25 * all, loaded: all }
            }
            Pattern::Strided { bytes } => Effort {
                instructions: 1.5 * lanes as f64,
                bytes: lanes as f64 * bytes.clamp(size, SECTOR) as f64,
                loaded: all,
            },
        }
    }
}

/// The effort of a stage at one vector of points along an axis (one point without an axis). Expressions in `known` are computed
/// already; those of the stage are added to it.
pub(super) fn effort(
    nest: &mut Nest,
    step: &NestStage,
    along: Option<(&Axis, usize)>,
    known: &mut BTreeSet<ExprId>,
) -> Effort {
    let StageEffort { own, by_load } = stage_effort(nest, step, along, known);
    by_load.into_iter().map(|(_, effort)| effort).fold(own, Effort::plus)
}

/// The effort of a stage, by what neighbouring points can share.
pub(super) struct StageEffort {
    /// What each point does for itself.
    pub own: Effort,
    /// Loads, each with its effort and that of what is computed from its element alone: once for all points that read it.
    pub by_load: Vec<(ExprId, Effort)>,
}

/// [`effort`], that of loads apart.
pub(super) fn stage_effort(
    nest: &mut Nest,
    step: &NestStage,
    along: Option<(&Axis, usize)>,
    known: &mut BTreeSet<ExprId>,
) -> StageEffort {
    let mut total =
        StageEffort { own: Effort { instructions: 2.0, ..Effort::default() }, by_load: Vec::new() };
    // The only load below an expression, as a position in `by_load`; `None` below several.
    let mut loads: BTreeMap<ExprId, Option<usize>> = BTreeMap::new();
    let points = nest.points(&step.axes());
    let roots = step.roots();
    let new = nest.program.exprs.reachable_unless(&roots, |id| known.contains(&id));
    let guards = guards(&nest.program.exprs, &new);
    for id in new {
        if !known.insert(id) {
            continue;
        }
        let mut effort = node_effort(nest, id, along, points);
        let node = nest.program.exprs.get(id);
        if let Expr::Load { mask, .. } = node {
            effort.instructions += mask.map_or(0.0, |mask| guard_instructions(&nest.program.exprs, mask));
            loads.insert(id, Some(total.by_load.len()));
            total.by_load.push((id, effort));
            continue;
        }
        if guards.contains(&id) {
            continue;
        }
        let mut below: Vec<Option<usize>> = Vec::new();
        node.for_each_operand(|operand| below.extend(loads.get(&operand).copied()));
        below.dedup();
        match below[..] {
            [] => total.own = total.own.plus(effort),
            [Some(load)] => {
                loads.insert(id, Some(load));
                total.by_load[load].1 = total.by_load[load].1.plus(effort);
            }
            _ => {
                loads.insert(id, None);
                total.own = total.own.plus(effort);
            }
        }
    }
    if let StageWork::Store { buffer, offset, .. } = step.work {
        let size = nest.program.buffer(buffer).dtype.size_bytes();
        let stored = nest.program.exprs.load(buffer, offset, 1, None);
        let store = pattern(nest, stored, along).map(|pattern| pattern.effort(size, lanes_of(along)));
        total.own = total.own.plus(Effort { loaded: 0.0, ..store.unwrap_or_default() });
    }
    total
}

/// What guards loads at the border of an image: it is computed once for all lanes, not in each.
fn guards(exprs: &Exprs, nodes: &[ExprId]) -> BTreeSet<ExprId> {
    let masks = nodes.iter().filter_map(|&id| match *exprs.get(id) {
        Expr::Load { mask, .. } => mask,
        _ => None,
    });
    exprs.reachable(&masks.collect::<Vec<_>>()).into_iter().collect()
}

/// Instructions of a guard: one for each comparison, of which a thread does those of a row or column of elements once.
fn guard_instructions(exprs: &Exprs, mask: ExprId) -> f64 {
    /// How many elements share a comparison.
    const SHARED: f64 = 2.0;
    let comparisons =
        exprs.reachable(&[mask]).into_iter().filter(|&id| matches!(exprs.get(id), Expr::Compare(..)));
    comparisons.count() as f64 / SHARED
}

/// Bytes of sectors that are transferred beside the elements that a kernel reads and writes, where vectors run along an axis, those of
/// `staged` values apart.
pub(super) fn unused_along(nest: &mut Nest, axis: &Axis, staged: &[ExprId]) -> f64 {
    let mut known: BTreeSet<ExprId> = staged.iter().copied().collect();
    let mut total = 0.0;
    for step in nest.stages.clone() {
        let points = nest.points(&step.axes());
        for (access, buffer) in new_accesses(nest, &step, &mut known) {
            if let Some(strided @ Pattern::Strided { .. }) = pattern(nest, access, Some((axis, 1))) {
                let size = nest.program.exprs.dtype(access).size_bytes();
                // What is read again is in L1.
                let elems = nest.program.buffer(buffer).elems.min(points);
                total += elems as f64 * (strided.effort(size, 1).bytes - size as f64);
            }
        }
    }
    total
}

/// Bytes of the elements that stages with reductions, and those after them, access one beside the other along an axis, those of each stage
/// again; and the bytes of the smallest of these elements.
pub(super) fn contiguous_bytes(nest: &mut Nest, axis: &Axis) -> (f64, usize) {
    let (mut total, mut smallest) = (0.0, usize::MAX);
    for step in nest.stages.clone() {
        let points = nest.points(&step.axes());
        for (access, buffer) in new_accesses(nest, &step, &mut BTreeSet::new()) {
            // What is read at many points is small.
            let is_large = nest.program.buffer(buffer).elems >= points;
            let is_contiguous = |pattern| matches!(pattern, Pattern::Contiguous { .. });
            if is_large && pattern(nest, access, Some((axis, 1))).is_some_and(is_contiguous) {
                let size = nest.program.exprs.dtype(access).size_bytes();
                total += (points * size) as f64;
                smallest = smallest.min(size);
            }
        }
    }
    (total, if smallest == usize::MAX { 1 } else { smallest })
}

/// The loads of a stage, and what it stores as one, each with its buffer; those below expressions of `known` apart, to which the others
/// are added.
fn new_accesses(nest: &mut Nest, step: &NestStage, known: &mut BTreeSet<ExprId>) -> Vec<(ExprId, BufferId)> {
    let mut accesses = nest.program.exprs.reachable_unless(&step.roots(), |id| known.contains(&id));
    accesses.retain(|&id| known.insert(id));
    if let StageWork::Store { buffer, offset, .. } = step.work {
        accesses.push(nest.program.exprs.load(buffer, offset, 1, None));
    }
    let load = |access: ExprId| match *nest.program.exprs.get(access) {
        Expr::Load { buffer, .. } => Some((access, buffer)),
        _ => None,
    };
    accesses.into_iter().filter_map(load).collect()
}

fn lanes_of(along: Option<(&Axis, usize)>) -> usize {
    along.map_or(1, |(_, lanes)| lanes)
}

/// The effort of one value by itself: its loads and what is computed from them.
pub(super) fn value_effort(nest: &mut Nest, value: ExprId, along: (&Axis, usize)) -> Effort {
    let nodes = nest.program.exprs.reachable(&[value]);
    let efforts = nodes.into_iter().map(|id| match nest.program.exprs.get(id) {
        Expr::Load { .. } => load_effort(nest, id, Some(along)),
        _ => computation_effort(&nest.program.exprs, id, along.1),
    });
    efforts.fold(Effort::default(), Effort::plus)
}

/// The effort of a load whose elements all come from memory.
fn load_effort(nest: &mut Nest, load: ExprId, along: Option<(&Axis, usize)>) -> Effort {
    let size = nest.program.exprs.dtype(load).size_bytes();
    pattern(nest, load, along).map(|pattern| pattern.effort(size, lanes_of(along))).unwrap_or_default()
}

/// The effort of computing a node that is no load, of so many lanes.
fn computation_effort(exprs: &Exprs, id: ExprId, lanes: usize) -> Effort {
    // Costs are counted for vectors of a CPU, where an addition is half a cycle.
    Effort { instructions: 2.0 * operation_cycles(exprs, id) * lanes as f64, ..Effort::default() }
}

/// The effort of one node of a stage that is done at so many points.
fn node_effort(nest: &mut Nest, id: ExprId, along: Option<(&Axis, usize)>, points: usize) -> Effort {
    if let Expr::Load { buffer, .. } = *nest.program.exprs.get(id) {
        let effort = load_effort(nest, id, along);
        // Elements that are read at several points come from DRAM once.
        let share = nest.program.buffer(buffer).elems as f64 / points.max(1) as f64;
        return Effort { bytes: effort.bytes * share.clamp(CACHED, 1.0), ..effort };
    }
    computation_effort(&nest.program.exprs, id, lanes_of(along))
}

/// The pattern of a load along an axis; `None` if it loads nothing.
fn pattern(nest: &mut Nest, load: ExprId, along: Option<(&Axis, usize)>) -> Option<Pattern> {
    let Expr::Load { buffer, offset, .. } = *nest.program.exprs.get(load) else { return None };
    let size = nest.program.exprs.dtype(load).size_bytes();
    let Some((axis, lanes)) = along else { return Some(Pattern::Uniform) };
    let stride = nest.simplifier.stride(&mut nest.program.exprs, offset, axis.var);
    let strided = Pattern::Strided { bytes: stride.map_or(SECTOR, |s| size * s.unsigned_abs() as usize) };
    if nest.constants.contains(&buffer) && stride.is_some_and(|stride| stride > 1) {
        // Packed for this axis.
        return Some(Pattern::Contiguous { is_aligned: true });
    }
    if lanes == 1 {
        return Some(match stride {
            Some(0) => Pattern::Uniform,
            Some(1) => Pattern::Contiguous { is_aligned: true },
            _ => strided,
        });
    }
    let base = nest.program.exprs.declare(VarInfo {
        name: "base".into(),
        ty: Type::INDEX,
        range: Some((0, axis.extent as i64 - 1)),
        multiple_of: lanes as i64,
    });
    let base = nest.program.exprs.var(base);
    let place = IterationPoint::default().along(Lanes { axis: axis.var, base, count: lanes, mask: None });
    let wide = nest.value(&place, load);
    match *nest.program.exprs.get(wide) {
        Expr::Load { lanes: 1, .. } => Some(Pattern::Uniform),
        Expr::Load { offset, .. } => Some(match contiguous_from(nest, offset) {
            Some(first) => {
                let range = nest.simplifier.range(&mut nest.program.exprs, first);
                Pattern::Contiguous { is_aligned: range.is_multiple_of(lanes as i64) }
            }
            None => strided,
        }),
        _ => None,
    }
}

/// The first of consecutive offsets.
fn contiguous_from(nest: &Nest, offset: ExprId) -> Option<ExprId> {
    match *nest.program.exprs.get(offset) {
        Expr::Ramp { base, stride: 1, .. } => Some(base),
        _ if nest.program.exprs.lanes(offset) == 1 => Some(offset),
        _ => None,
    }
}

/// The lanes worth trying along an axis: powers of two up to the widest access of the narrowest elements, the axis's
/// extent a multiple of each unless `may_be_partial`.
pub(super) fn lane_choices(nest: &Nest, axis: &Axis, may_be_partial: bool) -> Vec<usize> {
    const MOST: usize = 8;
    let sizes = nest.program.buffers.iter().map(|buffer| buffer.dtype.size_bytes());
    let most = (WIDEST / sizes.min().unwrap_or(1)).min(MOST);
    (0..=most.ilog2())
        .map(|log| 1 << log)
        .filter(|lanes| {
            *lanes <= axis.extent.max(1) && (may_be_partial || axis.extent.is_multiple_of(*lanes))
        })
        .collect()
}
