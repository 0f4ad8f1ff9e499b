//! Kernels without reductions whose operands are contiguous along another axis than the result: a CTA moves a tile through shared
//! memory, so that loads and stores are coalesced.
//!
//! ```text
//! for u in source tile, v in vector tile:  shared[u - u0][v - v0] = load(u, v)      neighbouring threads along u
//! barrier
//! for u in source tile, v in vector tile:  out(u, v) = body with shared for load    neighbouring threads along v
//! ```
//!
//! The tile is swizzled in shared memory: with vectors of `store_lanes` elements, vector `p` of row `r` is in the place of vector
//! `p xor (r / load_lanes) % vectors of a row`. What one thread reads stays consecutive, and few threads of a warp access the same bank. Numerics: one evaluation per element, as
//! the block program says.

use super::access::{Effort, SHORT_RUN, effort, lane_choices, unused_along, value_effort};
use super::estimate::{BASE_REGISTERS, Launch};
use super::points::{nest_of, unflatten};
use crate::nest::emit::{NestEmitter, for_loop};
use crate::nest::flat::{Nest, StageWork};
use crate::nest::plan::{NestPlan, order_by_output, outer_axes};
use crate::nest::point::{IterationPoint, Lanes};
use crate::nest::tiling::{Corner, StagedValue, TileLayout, Tiling, XorSwizzle};
use crate::{CannotLower, LaneAxis};
use orch_compute::block::{Axis, BlockProgram};
use orch_compute::expr::{ExprId, VarId};
use orch_thread::cta::{CtaStmt, WARP};
use orch_thread::kernel::Kernel;
use orch_thread::program::{LoopKind, Scope, Stmt};
use orch_thread::target::GpuTarget;
use std::fmt;
use std::ops::Range;

/// The tile of a CTA, `[source, vector]`, and the widths of its loads and stores.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TransposeSchedule {
    /// Values of a tile along the axis in which operands are contiguous.
    pub source: usize,
    /// Values of a tile along the axis in which results are contiguous.
    pub vector: usize,
    /// Elements of a load.
    pub load_lanes: usize,
    /// Elements of a store.
    pub store_lanes: usize,
    /// Threads of a CTA.
    pub threads: usize,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for TransposeSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, vector, load_lanes, store_lanes, threads } = self;
        write!(
            f,
            "tile={source}x{vector} load_lanes={load_lanes} store_lanes={store_lanes} threads={threads}"
        )
    }
}

/// Extents of tiles: along the operands' axis, and along the results'.
const TILES: [(usize, usize); 7] = [(32, 32), (64, 32), (32, 64), (64, 64), (128, 64), (64, 128), (128, 128)];

/// Threads of a CTA.
const THREADS: [usize; 3] = [128, 256, 512];

/// Most bytes that a thread moves.
const MOST_BYTES: usize = 64;

/// Bytes of an access that is wide.
const WIDE_BYTES: usize = 8;

/// Banks of shared memory, of four bytes each.
const BANKS: usize = 32;

/// Bytes of a bank.
const BANK_BYTES: usize = 4;

/// Cycles of a barrier.
const BARRIER: f64 = 80.0;

/// The schedules worth trying, the preferred one first; none if the template does not serve the program.
pub fn schedules(block: &BlockProgram, target: &GpuTarget) -> Vec<TransposeSchedule> {
    ranked(block, target).into_iter().map(|(_, schedule)| schedule).collect()
}

/// Schedules with their estimated cycles, the preferred one first.
pub(super) fn ranked(block: &BlockProgram, target: &GpuTarget) -> Vec<(f64, TransposeSchedule)> {
    let mut nest = nest_of(block);
    let Some(across) = Transposition::of(&mut nest) else { return Vec::new() };
    let size = across.size(&nest);
    let mut ranked = Vec::new();
    for store_lanes in wide_choices(&nest, &across.vector, size) {
        let stored = across.store_effort(&mut nest, store_lanes);
        for load_lanes in wide_choices(&nest, &across.tiling.source, size) {
            let loaded = across.load_effort(&mut nest, load_lanes);
            for ((source, vector), threads) in TILES.iter().flat_map(|&tile| THREADS.map(|t| (tile, t))) {
                let schedule = TransposeSchedule { source, vector, load_lanes, store_lanes, threads };
                let bytes = source * vector * size / threads;
                if schedule.is_even() && bytes <= MOST_BYTES {
                    let launch = across.launch(&nest, &schedule, loaded, stored);
                    ranked.push((launch.cycles(target), schedule));
                }
            }
        }
    }
    ranked.retain(|(cycles, _)| cycles.is_finite());
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    ranked
}

/// Bytes of sectors that are transferred beside the elements that are read and written, if a tile of the kernel's operands can be
/// transposed in shared memory: of results that lie across the first one, and of operands in a third layout.
pub(super) fn unused_bytes(nest: &mut Nest) -> Option<f64> {
    let Transposition { vector, tiling } = Transposition::of(nest)?;
    Some(unused_along(nest, &vector, &tiling.values))
}

/// Lanes along an axis; narrow accesses only if there is no other choice.
fn wide_choices(nest: &Nest, axis: &Axis, size: usize) -> Vec<usize> {
    let mut lanes = lane_choices(nest, axis, false);
    let widest = lanes.iter().max().map_or(1, |&lanes| lanes);
    lanes.retain(|&lanes| lanes * size >= WIDE_BYTES.min(widest * size));
    lanes
}

/// The kernel under a schedule.
///
/// # Errors
/// If the program reduces something, nothing lies across, or the schedule is not one for the program.
pub fn lower(block: &BlockProgram, schedule: &TransposeSchedule) -> Result<Kernel, CannotLower> {
    let mut nest = nest_of(block);
    let Some(across) = Transposition::of(&mut nest) else {
        return Err(CannotLower::NotThisTemplate("no operand lies across the results"));
    };
    let Transposition { vector, mut tiling } = across;
    let divides = |axis: &Axis, lanes: usize| axis.extent.is_multiple_of(lanes);
    if !schedule.is_even()
        || !divides(&vector, schedule.store_lanes)
        || !divides(&tiling.source, schedule.load_lanes)
    {
        return Err(CannotLower::NotThisTemplate("vectors past the end of an axis"));
    }
    (tiling.source_tile, tiling.vector_tile) = (schedule.source, schedule.vector);
    let mut outer = outer_axes(&nest);
    outer.retain(|axis| *axis != vector && *axis != tiling.source);
    order_by_output(&mut nest, &mut outer);
    let mut axes: Vec<(Axis, usize)> = outer.iter().map(|axis| (axis.clone(), 1)).collect();
    axes.extend([(tiling.source.clone(), schedule.source), (vector.clone(), schedule.vector)]);
    outer.push(tiling.source.clone());
    let plan = NestPlan::at_points(outer, Some((vector.clone(), LaneAxis::Output)), schedule.store_lanes);
    let mut emitter = NestEmitter::new(nest, &plan);
    let (corner, staged) =
        emitter.stage_values(&tiling, &vector, Scope::Shared, TileLayout::Swizzled(schedule.swizzle()));
    let mut tiles = TransposeEmitter { emitter, schedule, source: tiling.source, vector, corner, staged };
    let body = tiles.cta_body(&axes);
    let Nest { mut program, bindings, .. } = tiles.emitter.nest;
    program.body = body;
    Ok(Kernel { program, bindings })
}

impl TransposeSchedule {
    /// True if all threads have the same number of vectors of a tile, at least one.
    fn is_even(&self) -> bool {
        let vectors = |along: usize, lanes: usize| {
            along.is_multiple_of(lanes)
                && (self.source * self.vector / lanes).is_multiple_of(self.threads)
                && self.source * self.vector / lanes >= self.threads
        };
        vectors(self.source, self.load_lanes) && vectors(self.vector, self.store_lanes)
    }

    /// The swizzle of rows of a tile in shared memory.
    fn swizzle(&self) -> XorSwizzle {
        XorSwizzle {
            part: self.store_lanes,
            parts: self.vector / self.store_lanes,
            rows_per_pattern: self.load_lanes,
        }
    }
}

/// The axes along which a nest's operands and results are contiguous, if these differ.
struct Transposition {
    /// The axis along which results are contiguous.
    vector: Axis,
    /// The axis along which operands are, and those.
    tiling: Tiling,
}

impl Transposition {
    fn of(nest: &mut Nest) -> Option<Self> {
        let outer = outer_axes(nest);
        let first = nest.stages.first()?.clone();
        let StageWork::Store { offset, .. } = first.work else { return None };
        let is_alike = |domain: &[VarId]| domain.len() == first.domain.len();
        if !nest.stages.iter().all(|step| step.result().is_none() && is_alike(&step.domain))
            || outer.len() != nest.axes.len()
        {
            return None;
        }
        let Nest { program, simplifier, .. } = &mut *nest;
        let vector = (outer.iter())
            .find(|axis| {
                axis.extent > 1 && simplifier.stride(&mut program.exprs, offset, axis.var) == Some(1)
            })?
            .clone();
        let tiling = Tiling::of(nest, &outer, &vector, 1)?;
        Some(Self { vector, tiling })
    }

    /// What a thread does for a vector of staged values.
    fn load_effort(&self, nest: &mut Nest, lanes: usize) -> Effort {
        let Tiling { source, values, .. } = &self.tiling;
        let efforts = values.iter().map(|&value| value_effort(nest, value, (source, lanes)));
        efforts.fold(Effort::default(), Effort::plus)
    }

    /// What a thread does for a vector of results, staged values apart.
    fn store_effort(&self, nest: &mut Nest, lanes: usize) -> Effort {
        let mut known = self.tiling.values.iter().copied().collect();
        let steps = nest.stages.clone();
        let efforts = steps.iter().map(|step| effort(nest, step, Some((&self.vector, lanes)), &mut known));
        efforts.fold(Effort::default(), Effort::plus)
    }

    /// Bytes of the largest staged elements.
    fn size(&self, nest: &Nest) -> usize {
        let sizes = self.tiling.values.iter().map(|&value| nest.program.exprs.dtype(value).size_bytes());
        sizes.max().unwrap_or(1)
    }

    /// Tiles of all results.
    fn ctas(&self, nest: &Nest, schedule: &TransposeSchedule) -> usize {
        let tile = |axis: &Axis| match axis {
            axis if *axis == self.vector => schedule.vector,
            axis if *axis == self.tiling.source => schedule.source,
            _ => 1,
        };
        nest.axes.iter().map(|axis| axis.extent.div_ceil(tile(axis))).product()
    }

    fn launch(&self, nest: &Nest, schedule: &TransposeSchedule, loaded: Effort, stored: Effort) -> Launch {
        let TransposeSchedule { source, vector, load_lanes, store_lanes, threads } = *schedule;
        let size = self.size(nest);
        let rounds = |lanes: usize| (source * vector / lanes / threads) as f64;
        let values = self.tiling.values.len();
        let [writes, reads] = bank_accesses(schedule, size).map(|accesses| accesses as f64);
        let exchanged = (writes * rounds(load_lanes) + reads * rounds(store_lanes)) * values as f64;
        let mut effort = loaded.times(rounds(load_lanes)).plus(stored.times(rounds(store_lanes)));
        effort.bytes *= 1.0 + SHORT_RUN * 0.5 * (1.0 / (source * size) as f64 + 1.0 / (vector * size) as f64);
        let in_flight = loaded.loaded * rounds(load_lanes);
        Launch {
            ctas: self.ctas(nest, schedule),
            threads,
            registers: BASE_REGISTERS + in_flight as usize / 4,
            shared_bytes: values * source * vector * size,
            effort: Effort { instructions: effort.instructions + exchanged + 30.0, ..effort },
            in_flight,
            rounds: 1.0,
            iterations: 0.0,
            waits: BARRIER,
        }
    }
}

/// Times that the busiest bank is accessed when a warp writes a vector each, element by element, and when it reads one.
fn bank_accesses(schedule: &TransposeSchedule, size: usize) -> [usize; 2] {
    let TransposeSchedule { source, vector, load_lanes, store_lanes, .. } = *schedule;
    let swizzle = schedule.swizzle();
    let place = |row: usize, column: usize| {
        row % source * vector + swizzle.swizzled_column(row % source, column % vector)
    };
    let written = |thread: usize, lane: usize| {
        let (column, row) = (thread / (source / load_lanes), thread % (source / load_lanes));
        place(row * load_lanes + lane, column)
    };
    let read = |thread: usize| {
        let (row, column) = (thread / (vector / store_lanes), thread % (vector / store_lanes));
        place(row, column * store_lanes)
    };
    let writes = (0..load_lanes).map(|lane| busiest_bank(size, 0..WARP, |thread| written(thread, lane)));
    // A transaction serves as many threads as have vectors in all banks.
    let bytes = store_lanes * size;
    let per_transaction = (BANKS * BANK_BYTES / bytes).min(WARP);
    let reads = (0..WARP).step_by(per_transaction);
    let reads = reads.map(|first| {
        busiest_bank(bytes, first..first + per_transaction, |thread| read(thread) / store_lanes)
    });
    [writes.sum(), reads.sum()]
}

/// Of all banks, the most words that threads access in one, each an element of so many bytes.
fn busiest_bank(bytes: usize, threads: Range<usize>, element: impl Fn(usize) -> usize) -> usize {
    let mut words: Vec<usize> = threads
        .flat_map(|thread| {
            let first = element(thread) * bytes / BANK_BYTES;
            first..first + bytes.div_ceil(BANK_BYTES)
        })
        .collect();
    words.sort_unstable();
    words.dedup();
    let mut counts = [0; BANKS];
    words.iter().for_each(|word| counts[word % BANKS] += 1);
    counts.into_iter().max().unwrap_or(0)
}

/// A transpose kernel while its thread program is written.
struct TransposeEmitter<'a> {
    emitter: NestEmitter<'a>,
    schedule: &'a TransposeSchedule,
    source: Axis,
    vector: Axis,
    corner: Corner,
    staged: Vec<StagedValue>,
}

impl TransposeEmitter<'_> {
    /// The body of a CTA; `axes` with what a CTA does of each, the axes of the tile last.
    fn cta_body(&mut self, axes: &[(Axis, usize)]) -> Vec<Stmt> {
        let ctas = axes.iter().map(|(axis, step)| axis.extent.div_ceil(*step)).product();
        let nest = &mut self.emitter.nest;
        let task = nest.program.set_tasks(ctas);
        let thread = nest.program.set_cta(self.schedule.threads, 1);
        let (task, thread) = (nest.program.exprs.var(task), nest.program.exprs.var(thread));
        let mut body = Vec::new();
        let firsts = unflatten(nest, axes, task, &mut body);
        let (others, corner) = firsts.split_at(axes.len() - 2);
        let mut place =
            IterationPoint::default().with(self.corner.source, corner[0]).with(self.corner.vector, corner[1]);
        for ((axis, _), first) in axes.iter().zip(others) {
            place = place.with(axis.var, *first);
        }
        let (source, vector) = (self.source.clone(), self.vector.clone());
        let tile = [(&source, self.schedule.source, corner[0]), (&vector, self.schedule.vector, corner[1])];
        let [across, along] = tile;
        body.extend(self.pass(
            (along, across),
            self.schedule.load_lanes,
            &place,
            thread,
            &mut |tiles, place| {
                let staged = tiles.staged.clone().into_iter();
                staged
                    .map(|staged| tiles.emitter.store(place, staged.buffer, staged.offset, staged.value))
                    .collect()
            },
        ));
        body.push(Stmt::Cta(CtaStmt::Barrier));
        body.extend(self.pass(
            (across, along),
            self.schedule.store_lanes,
            &place,
            thread,
            &mut |tiles, place| tiles.emitter.stages_at(vec![place.clone()]),
        ));
        body
    }

    /// `body` at all points of a tile that exist, the rows along one axis and vectors along the other. Each axis is
    /// given with its values in the tile and the first of them.
    fn pass(
        &mut self,
        (rows, columns): ((&Axis, usize, ExprId), (&Axis, usize, ExprId)),
        lanes: usize,
        place: &IterationPoint,
        thread: ExprId,
        body: &mut dyn FnMut(&mut Self, &IterationPoint) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let threads = self.schedule.threads;
        let rounds = rows.1 * columns.1 / lanes / threads;
        let exprs = &mut self.emitter.nest.program.exprs;
        let (var, round) = exprs.fresh_index("iter", rounds);
        let round = if rounds == 1 { exprs.index(0) } else { round };
        // [round, thread] = [row, vector of the row]
        let before = exprs.mul_const(round, threads as i64);
        let at = exprs.add2(before, thread);
        let vectors = exprs.index((columns.1 / lanes) as i64);
        let (row, column) = (exprs.floor_div(at, vectors), exprs.floor_rem(at, vectors));
        let column = exprs.mul_const(column, lanes as i64);
        let (row, column) = (exprs.add2(rows.2, row), exprs.add2(columns.2, column));
        let (row, column) = (self.emitter.nest.simplify(row), self.emitter.nest.simplify(column));
        let mut place = place.with(rows.0.var, row);
        place = match lanes {
            1 => place.with(columns.0.var, column),
            _ => place.along(Lanes { axis: columns.0.var, base: column, count: lanes, mask: None }),
        };
        let then = body(self, &place);
        let exprs = &mut self.emitter.nest.program.exprs;
        let mut exists = exprs.bool(true);
        for ((axis, tile, _), value) in [(rows, row), (columns, column)] {
            if !axis.extent.is_multiple_of(tile) {
                let end = exprs.index(axis.extent as i64);
                let inside = exprs.lt(value, end);
                exists = exprs.and(exists, inside);
            }
        }
        let exists = self.emitter.nest.simplify(exists);
        let exprs = &mut self.emitter.nest.program.exprs;
        let stmts = match exprs.as_bool(exists) {
            Some(true) => then,
            _ => vec![Stmt::If { condition: exists, then, otherwise: Vec::new() }],
        };
        if rounds == 1 {
            return stmts;
        }
        let (start, end) = (exprs.index(0), exprs.index(rounds as i64));
        vec![for_loop(var, start, end, 1, LoopKind::Unroll, stmts)]
    }
}
