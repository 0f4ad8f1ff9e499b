//! The body of a work item: loops over outer axes, and innermost one stage after the other.

use super::flat::{Nest, NestStage, StageWork};
use super::plan::NestPlan;
use super::point::{IterationPoint, Lanes};
use super::tiling::{Corner, StagedValue, TileLayout};
use orch_compute::block::Axis;
use orch_compute::expr::{BufferId, ExprId, Type, VarId, VarInfo};
use orch_thread::kernel::Kernel;
use orch_thread::program::{LoopKind, Scope, Stmt};
use std::ops::Range;

/// Emission of one nest.
pub(crate) struct NestEmitter<'a> {
    pub nest: Nest,
    pub plan: &'a NestPlan,
    /// Arrays for results that vary over more than the outer axes.
    pub arrays: Vec<ScratchArray>,
    /// Values that stages save for later ones.
    pub saves: Vec<Save>,
    /// Values that are staged in tiles, and the variables for the corner of the current tile.
    pub staged: Option<(Corner, Vec<StagedValue>)>,
}

/// A value that a stage saves.
#[derive(Clone, Debug)]
pub(crate) struct Save {
    /// Stands for the value in the stage that saves it; later stages load it from `array`.
    pub placeholder: VarId,
    /// The value, a scalar expression over axes.
    pub value: ExprId,
    /// The array that it is saved in.
    pub array: ScratchArray,
}

/// Scratch that holds a value for each point of some inner axes, for the current point of the outer axes.
#[derive(Clone, Debug)]
pub(crate) struct ScratchArray {
    /// The placeholder whose values the array holds.
    pub holds: VarId,
    /// The scratch.
    pub buffer: BufferId,
    /// Element offset in terms of the inner axes, outermost first: `[inner axes]`, or `[inner axes, lane]` if the
    /// vector axis is an outer one.
    pub offset: ExprId,
}

/// The bounds of a loop: the first value and the first one after the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopBounds {
    pub start: ExprId,
    pub end: ExprId,
}

/// The values of an axis that a work item loops over.
struct AxisSpan {
    axis: Axis,
    bounds: LoopBounds,
    /// Points that one iteration covers, see [`NestPlan::loops`].
    granularity: usize,
    /// True if the span is a work item's chunk of the axis, false if it is the whole axis.
    is_chunk: bool,
    /// Pieces of the axis, ascending, within which guards do not change.
    pieces: Vec<Range<usize>>,
}

/// Emits the nest as a kernel.
pub(crate) fn emit(nest: Nest, plan: &NestPlan) -> Kernel {
    let mut emitter = NestEmitter::new(nest, plan);
    emitter.declare_arrays();
    let vector = plan.vector.as_ref().map(|axis| axis.var);
    emitter.declare_saves(&mut |emitter, placeholder, axes| {
        let mut axes = axes.to_vec();
        axes.sort_by_key(|&axis| (Some(axis) == vector, axis));
        emitter.declare_array(placeholder, axes)
    });
    if let (Some(tiling), Some(vector)) = (&plan.tiling, &plan.vector) {
        emitter.staged = Some(emitter.stage_values(tiling, vector, Scope::Scratch, TileLayout::RowMajor));
    }
    let body = emitter.work_item();
    let Nest { mut program, bindings, .. } = emitter.nest;
    program.body = body;
    Kernel { program, bindings }
}

impl<'a> NestEmitter<'a> {
    /// An emitter without arrays, saved values and staged loads: their declaration is up to the caller.
    pub fn new(nest: Nest, plan: &'a NestPlan) -> Self {
        Self { nest, plan, arrays: Vec::new(), saves: Vec::new(), staged: None }
    }
}

impl NestEmitter<'_> {
    /// Declares an array in scratch for each result that varies over inner axes, and replaces the result in later
    /// stages by loads from the array.
    fn declare_arrays(&mut self) {
        let outer: Vec<VarId> = self.plan.loops().iter().map(|(axis, _)| axis.var).collect();
        let stages = self.nest.stages.clone();
        for stage in &stages {
            let StageWork::Reduce(reduction) = &stage.work else { continue };
            let mut axes: Vec<VarId> =
                stage.domain.iter().copied().filter(|axis| !outer.contains(axis)).collect();
            if axes.is_empty() {
                continue;
            }
            let vector = self.plan.vector.as_ref().map(|axis| axis.var);
            axes.sort_by_key(|&axis| (Some(axis) == vector, axis));
            let array = self.declare_array(reduction.result, axes);
            let dtype = self.nest.program.var_type(reduction.result).dtype;
            debug_assert_eq!(self.nest.program.buffer(array.buffer).dtype, dtype);
            let load = self.nest.program.exprs.load(array.buffer, array.offset, 1, None);
            self.nest.substitute(&[(reduction.result, load)]);
            self.arrays.push(array);
        }
    }

    /// Declares a placeholder and an array (made by `array` from the placeholder and the axes) for each shared value of
    /// the plan. The stage that computes the value refers to the placeholder; later stages load from the array.
    pub fn declare_saves(&mut self, array: &mut dyn FnMut(&mut Self, VarId, &[VarId]) -> ScratchArray) {
        // A saved value may be a subexpression of one that is saved later.
        let mut known: Vec<(ExprId, ExprId)> = Vec::new();
        for shared in &self.plan.shared {
            let value = known.iter().fold(shared.value, |value, &part| self.nest.replace(value, &[part]));
            let ty = self.nest.program.exprs.ty(value);
            let exprs = &mut self.nest.program.exprs;
            let placeholder = exprs.declare_register(format!("saved{}", self.saves.len()), ty);
            let named = exprs.var(placeholder);
            let array = array(self, placeholder, &shared.axes);
            let load = self.nest.program.exprs.load(array.buffer, array.offset, 1, None);
            let mut stages = std::mem::take(&mut self.nest.stages);
            for (position, stage) in stages.iter_mut().enumerate().skip(shared.stage) {
                let instead = if position == shared.stage { named } else { load };
                stage.map_roots(|root| self.nest.replace(root, &[(value, instead)]));
            }
            self.nest.stages = stages;
            known.push((value, load));
            self.saves.push(Save { placeholder, value, array });
        }
    }

    /// Emits the computation and the store of each shared value whose placeholder occurs in `roots`. Returns the point
    /// with these placeholders defined.
    pub fn save_shared(
        &mut self,
        roots: &[ExprId],
        point: &IterationPoint,
        out: &mut Vec<Stmt>,
    ) -> IterationPoint {
        let mut point = point.clone();
        for save in self.saves.clone() {
            let exprs = &self.nest.program.exprs;
            if !roots.iter().any(|&root| exprs.depends_on(root, save.placeholder)) {
                continue;
            }
            let value = self.nest.full_value(&point, save.value);
            let ty = self.nest.program.exprs.ty(value);
            let name = self.nest.program.exprs.var_info(save.placeholder).name.clone();
            let var = self.nest.program.exprs.declare_register(name, ty);
            out.push(Stmt::Let(var, value));
            let value = self.nest.program.exprs.var(var);
            point.define(save.placeholder, value);
            let named = self.nest.program.exprs.var(save.placeholder);
            out.push(self.store(&point, save.array.buffer, save.array.offset, named));
        }
        point
    }

    /// Scratch for the values of `holds` at each point of `axes`, in which the last axis is contiguous.
    fn declare_array(&mut self, holds: VarId, axes: Vec<VarId>) -> ScratchArray {
        let width = if self.plan.vector_is_outer { self.plan.lanes * self.plan.vectors } else { 1 };
        let points = self.nest.points(&axes);
        let (dtype, name) = {
            let info = self.nest.program.exprs.var_info(holds);
            (info.ty.dtype, format!("{}_row", info.name))
        };
        let buffer = self.nest.scratch(&name, dtype, (points * width).max(1));
        let mut offset = self.nest.program.exprs.index(0);
        for &axis in &axes {
            let extent = self.nest.extent(axis) as i64;
            let exprs = &mut self.nest.program.exprs;
            let value = exprs.var(axis);
            let scaled = exprs.mul_const(offset, extent);
            offset = exprs.add2(scaled, value);
        }
        if let (true, Some(vector)) = (self.plan.vector_is_outer, &self.plan.vector) {
            // [inner axes, lane]: the vectors that are computed together start at a multiple of `width`.
            let exprs = &mut self.nest.program.exprs;
            let (value, lanes) = (exprs.var(vector.var), exprs.index(width as i64));
            let lane = exprs.floor_rem(value, lanes);
            let scaled = exprs.mul_const(offset, width as i64);
            offset = exprs.add2(scaled, lane);
        }
        let offset = self.nest.simplify(offset);
        ScratchArray { holds, buffer, offset }
    }

    /// The body of a work item.
    fn work_item(&mut self) -> Vec<Stmt> {
        let loops = self.plan.loops();
        let points = self.plan.work_item_points.clone();
        let counts = self.plan.work_item_extents();
        let item = self.nest.program.set_tasks(counts.iter().product());
        let exprs = &mut self.nest.program.exprs;
        let item = exprs.var(item);
        // [distributed axes]
        let indices = exprs.unflatten(item, &counts);

        let mut body = Vec::new();
        let mut point = IterationPoint::default();
        let mut spans = Vec::new();
        for (position, (axis, granularity)) in loops.iter().enumerate() {
            let of_item = points.get(position).copied();
            if of_item == Some(1) {
                let value = self.nest.simplify(indices[position]);
                if axis.extent == 1 {
                    let zero = self.nest.program.exprs.index(0);
                    point = point.with(axis.var, zero);
                } else {
                    body.push(Stmt::Let(axis.var, value));
                }
                continue;
            }
            let bounds = match of_item {
                Some(chunk) => self.chunk_bounds(&mut body, indices[position], axis, chunk),
                None => {
                    let exprs = &mut self.nest.program.exprs;
                    LoopBounds { start: exprs.index(0), end: exprs.index(axis.extent as i64) }
                }
            };
            let is_chunk = of_item.is_some();
            let pieces = self.pieces(axis, if is_chunk { *granularity } else { 1 });
            spans.push(AxisSpan { axis: axis.clone(), bounds, granularity: *granularity, is_chunk, pieces });
        }
        body.extend(self.outer_loops(&spans, vec![point]));
        body
    }

    /// The bounds of the chunk `number` of an axis, of `chunk` points or fewer at the end. Names the start in `body`.
    fn chunk_bounds(
        &mut self,
        body: &mut Vec<Stmt>,
        number: ExprId,
        axis: &Axis,
        chunk: usize,
    ) -> LoopBounds {
        let number = self.nest.simplify(number);
        let exprs = &mut self.nest.program.exprs;
        if axis.extent <= chunk {
            return LoopBounds { start: exprs.index(0), end: exprs.index(axis.extent as i64) };
        }
        let first = exprs.mul_const(number, chunk as i64);
        let last_chunk = (axis.extent.div_ceil(chunk).max(1) - 1) * chunk;
        let start = exprs.declare(VarInfo {
            name: "start".into(),
            ty: Type::INDEX,
            range: Some((0, last_chunk as i64)),
            multiple_of: chunk as i64,
        });
        body.push(Stmt::Let(start, first));
        let start = exprs.var(start);
        let past = exprs.add_const(start, chunk as i64);
        let extent = exprs.index(axis.extent as i64);
        let end = exprs.min(past, extent);
        LoopBounds { start, end: self.nest.simplify(end) }
    }

    /// Loops over the remaining spans, outermost first, around all stages at `points`.
    fn outer_loops(&mut self, spans: &[AxisSpan], points: Vec<IterationPoint>) -> Vec<Stmt> {
        let Some((span, inner)) = spans.split_first() else { return self.stages_at(points) };
        if self.plan.tiling.as_ref().is_some_and(|tiling| tiling.source == span.axis) {
            let Some(vector) = inner.first() else { return Vec::new() };
            let bounds = (span.bounds, vector.bounds);
            return points.iter().flat_map(|point| self.tile_loops(bounds, point)).collect();
        }
        if span.granularity == span.axis.extent && span.granularity > 1 && !self.is_vector(span) {
            let values =
                (0..span.axis.extent).map(|value| self.nest.program.exprs.index(value as i64)).collect();
            let all = neighbours(&points, span.axis.var, values);
            return self.outer_loops(inner, all);
        }
        let mut out = Vec::new();
        for piece in &span.pieces {
            if self.is_vector(span) {
                out.extend(self.vector_loop(span, piece.clone(), &points));
            } else {
                out.extend(self.piece_loop(span, piece.clone(), inner, &points));
            }
        }
        out
    }

    /// True for the span of an outer vector axis.
    fn is_vector(&self, span: &AxisSpan) -> bool {
        self.plan.vector_is_outer && self.plan.vector.as_ref() == Some(&span.axis)
    }

    /// The loops over a piece of an axis that is not along vectors: blocks of `granularity` points, then single points.
    fn piece_loop(
        &mut self,
        span: &AxisSpan,
        piece: Range<usize>,
        inner: &[AxisSpan],
        points: &[IterationPoint],
    ) -> Vec<Stmt> {
        let (low, high) = (piece.start, piece.end);
        if high - low == 1 {
            let value = self.nest.program.exprs.index(low as i64);
            let bound = points.iter().map(|point| point.with(span.axis.var, value)).collect();
            let body = self.outer_loops(inner, bound);
            return self.if_in_chunk(span, value, body);
        }
        let mut out = Vec::new();
        let together = span.granularity;
        let mut start = self.at_least(span.bounds.start, low, span.is_chunk);
        let end = self.bounded(span.bounds.end, high, span.is_chunk);
        if together > 1 && high - low >= together {
            let base = self.loop_var(&span.axis, low, high - together, 1);
            let first = self.nest.program.exprs.var(base);
            let values =
                (0..together).map(|offset| self.nest.program.exprs.add_const(first, offset as i64)).collect();
            let body = self.outer_loops(inner, neighbours(points, span.axis.var, values));
            let exprs = &mut self.nest.program.exprs;
            let past = exprs.add_const(end, 1 - together as i64);
            let count = exprs.sub(end, start);
            let (step, zero) = (exprs.index(together as i64), exprs.index(0));
            let blocks = exprs.floor_div(count, step);
            let blocks = exprs.max(blocks, zero);
            let done = exprs.mul_const(blocks, together as i64);
            let rest = exprs.add2(start, done);
            let (past, rest) = (self.nest.simplify(past), self.nest.simplify(rest));
            out.push(for_loop(base, start, past, together, LoopKind::Serial, body));
            start = rest;
        }
        if start != end {
            let var = self.loop_var(&span.axis, low, high - 1, 1);
            let value = self.nest.program.exprs.var(var);
            let bound = points.iter().map(|point| point.with(span.axis.var, value)).collect();
            let body = self.outer_loops(inner, bound);
            out.push(for_loop(var, start, end, 1, LoopKind::Serial, body));
        }
        out
    }

    /// `body` under the condition that the work item's chunk of the axis contains `value`.
    fn if_in_chunk(&mut self, span: &AxisSpan, value: ExprId, body: Vec<Stmt>) -> Vec<Stmt> {
        if !span.is_chunk {
            return body;
        }
        let exprs = &mut self.nest.program.exprs;
        let (after, before) = (exprs.le(span.bounds.start, value), exprs.lt(value, span.bounds.end));
        let condition = exprs.and(after, before);
        let condition = self.nest.simplify(condition);
        vec![Stmt::If { condition, then: body, otherwise: Vec::new() }]
    }

    /// `min(end, bound)` for the end of a chunk, `bound` for that of a whole axis.
    pub fn bounded(&mut self, end: ExprId, bound: usize, is_chunk: bool) -> ExprId {
        let bound = self.nest.program.exprs.index(bound as i64);
        if !is_chunk {
            return bound;
        }
        let end = self.nest.program.exprs.min(end, bound);
        self.nest.simplify(end)
    }

    /// `max(start, bound)` for the start of a chunk, `bound` for that of a whole axis.
    pub fn at_least(&mut self, start: ExprId, bound: usize, is_chunk: bool) -> ExprId {
        let bound = self.nest.program.exprs.index(bound as i64);
        if !is_chunk {
            return bound;
        }
        let start = self.nest.program.exprs.max(start, bound);
        self.nest.simplify(start)
    }

    /// A loop variable with values `low..=high` that are multiples of `step`.
    pub fn loop_var(&mut self, axis: &Axis, low: usize, high: usize, step: usize) -> VarId {
        let exprs = &mut self.nest.program.exprs;
        let name = exprs.var_info(axis.var).name.clone();
        exprs.declare(VarInfo {
            name,
            ty: Type::INDEX,
            range: Some((low as i64, high as i64)),
            multiple_of: step as i64,
        })
    }

    /// The loops over a piece of an outer vector axis.
    ///
    /// ```text
    /// low                    full_blocks    full_vectors  high
    ///  | vectors * lanes, ... | lanes, ...   | masked      |
    /// ```
    fn vector_loop(&mut self, span: &AxisSpan, piece: Range<usize>, points: &[IterationPoint]) -> Vec<Stmt> {
        let (low, high) = (piece.start, piece.end);
        let (lanes, together) = (self.plan.lanes, span.granularity);
        let full_blocks = low + (high - low) / together * together;
        let full_vectors = low + (high - low) / lanes * lanes;
        let aligned = |step: usize| if low.is_multiple_of(step) { step } else { 1 };
        let mut out = Vec::new();
        if full_blocks > low {
            let start = self.at_least(span.bounds.start, low, span.is_chunk);
            let end = self.bounded(span.bounds.end, full_blocks, span.is_chunk);
            let base = self.loop_var(&span.axis, low, full_blocks - together, aligned(together));
            let wide = self.vectors(points, &span.axis, base, together / lanes);
            let body = self.stages_at(wide);
            let kind = if self.is_injective() { LoopKind::UnrollBy(2) } else { LoopKind::Serial };
            out.push(for_loop(base, start, end, together, kind, body));
        }
        if full_vectors > full_blocks {
            let start = self.at_least(span.bounds.start, full_blocks, span.is_chunk);
            let end = self.bounded(span.bounds.end, full_vectors, span.is_chunk);
            let base = self.loop_var(&span.axis, full_blocks, full_vectors - lanes, aligned(lanes));
            let wide = self.vectors(points, &span.axis, base, 1);
            let body = self.stages_at(wide);
            out.push(for_loop(base, start, end, lanes, LoopKind::Serial, body));
        }
        if full_vectors < high {
            let base = self.nest.program.exprs.index(full_vectors as i64);
            let partial = self.nest.lanes_below(span.axis.var, base, lanes, high);
            let tail = points.iter().map(|point| point.along(partial)).collect();
            let body = self.stages_at(tail);
            let last = self.nest.program.exprs.index(high as i64 - 1);
            out.extend(self.if_in_chunk(span, last, body));
        }
        out
    }

    /// Each point at `count` neighbouring vectors, the first of which starts at `base`.
    fn vectors(
        &mut self,
        points: &[IterationPoint],
        axis: &Axis,
        base: VarId,
        count: usize,
    ) -> Vec<IterationPoint> {
        let lanes = self.plan.lanes;
        let base = self.nest.program.exprs.var(base);
        let mut wide = Vec::new();
        for point in points {
            for index in 0..count {
                let first = self.nest.program.exprs.add_const(base, (index * lanes) as i64);
                wide.push(point.along(Lanes { axis: axis.var, base: first, count: lanes, mask: None }));
            }
        }
        wide
    }

    /// True if no stage reduces.
    fn is_injective(&self) -> bool {
        self.nest.stages.iter().all(|stage| matches!(stage.work, StageWork::Store { .. }))
    }

    /// All stages at the current point of the outer axes, or at several neighbouring ones.
    pub fn stages_at(&mut self, mut points: Vec<IterationPoint>) -> Vec<Stmt> {
        let stages = self.nest.stages.clone();
        let mut out = Vec::new();
        let mut rest = &stages[..];
        while let Some(stage) = rest.first() {
            match &stage.work {
                StageWork::Reduce(reduction) => {
                    out.extend(self.reduce_stage(stage, reduction, &mut points));
                    rest = &rest[1..];
                }
                StageWork::Store { .. } => {
                    let same = |other: &NestStage| {
                        matches!(other.work, StageWork::Store { .. }) && other.domain == stage.domain
                    };
                    let count = rest.iter().take_while(|other| same(other)).count();
                    let stores = &rest[..count];
                    out.extend(self.store_stages(stores, &points));
                    rest = &rest[count..];
                }
            }
        }
        out
    }

    /// Those of a stage's axes that are not outer axes, the vector axis last.
    pub fn inner_axes(&self, axes: &[VarId]) -> Vec<Axis> {
        let outer: Vec<VarId> = self.plan.loops().iter().map(|(axis, _)| axis.var).collect();
        let vector = self.plan.vector.as_ref().map(|axis| axis.var);
        let mut inner: Vec<Axis> = (axes.iter())
            .filter(|axis| !outer.contains(axis))
            .map(|&var| Axis { var, extent: self.nest.extent(var) })
            .collect();
        inner.sort_by_key(|axis| Some(axis.var) == vector);
        inner
    }
}

/// Each point at each of these values of an axis: the values of the first point come first.
pub(crate) fn neighbours(points: &[IterationPoint], axis: VarId, values: Vec<ExprId>) -> Vec<IterationPoint> {
    points.iter().flat_map(|point| values.iter().map(|&value| point.with(axis, value))).collect()
}

/// A loop with a constant positive step.
pub(crate) fn for_loop(
    var: VarId,
    start: ExprId,
    end: ExprId,
    step: usize,
    kind: LoopKind,
    body: Vec<Stmt>,
) -> Stmt {
    Stmt::For { var, start, end, step: step as i64, kind, body }
}
