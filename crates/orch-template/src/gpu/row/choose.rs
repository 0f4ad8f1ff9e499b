//! Which schedules of rows to try, in the order of their modelled cycles.

use super::schedule::RowSchedule;
use super::stages::{has_array, has_arrays, inner_axes, kept_values, serves};
use crate::LaneAxis;
use crate::gpu::access::{Effort, SHORT_RUN, effort, lane_choices};
use crate::gpu::estimate::{BASE_REGISTERS, Launch, MAX_REGISTERS};
use crate::gpu::points::nest_of;
use crate::nest::flat::{Nest, StageWork};
use crate::nest::plan::outer_axes;
use crate::nest::shared::SharedValue;
use orch_compute::block::{Axis, BlockProgram};
use orch_compute::expr::{ExprId, VarId};
use orch_thread::cta::{MAX_CLUSTER, MAX_THREADS, WARP};
use orch_thread::target::GpuTarget;
use std::collections::{BTreeMap, BTreeSet};

/// Most schedules.
const MAX_SCHEDULES: usize = 200;

/// Axes along which vectors are tried.
const MAX_VECTOR_AXES: usize = 2;

/// Threads of CTAs with several rows.
const THREADS: [usize; 2] = [128, 256];

/// Fewest threads of a CTA that is worth a cluster, and most CTAs of an SM in one: vectors along reduced axes, and along outer ones.
const CLUSTERS_OF_ROWS: (usize, usize) = (256, 2);
const CLUSTERS_OF_COLUMNS: (usize, usize) = (128, 4);

/// Bytes of the smallest elements that CTAs of a cluster read through DSMEM.
const MIN_PEER_BYTES: usize = 4;

/// Most values that a thread keeps.
const MAX_KEPT: usize = 64;

/// Vectors whose loads are in flight together where values are not kept.
const LOADS_IN_FLIGHT: [usize; 3] = [4, 8, 16];

/// Most bytes that a thread has in flight.
const MAX_BYTES_IN_FLIGHT: f64 = 320.0;

/// Share of the bytes of later stages that come from DRAM where values are not kept; the rest is in L1 or L2.
const CACHED: f64 = 0.4;

/// Cycles of combining one more partial result of a column.
const PART: f64 = 8.0;

/// Cycles of a shuffle and what follows it.
const SHUFFLE: f64 = 30.0;

/// Cycles of a barrier and an access to shared memory.
const BARRIER: f64 = 80.0;

/// Cycles of a barrier of a cluster and loads through DSMEM.
const CLUSTER_BARRIER: f64 = 1500.0;

/// The schedules worth trying, the preferred one first; none if the template does not serve the program.
pub fn schedules(block: &BlockProgram, target: &GpuTarget) -> Vec<RowSchedule> {
    ranked(block, target).into_iter().map(|(_, schedule)| schedule).collect()
}

/// Schedules with their modelled cycles, the preferred one first.
pub(in crate::gpu) fn ranked(block: &BlockProgram, target: &GpuTarget) -> Vec<(f64, RowSchedule)> {
    ranked_of_nest(&mut nest_of(block), target)
}

fn ranked_of_nest(nest: &mut Nest, target: &GpuTarget) -> Vec<(f64, RowSchedule)> {
    if !serves(nest) {
        return Vec::new();
    }
    let outer = outer_axes(nest);
    let shared = kept_values(nest, &outer);
    let mut ranked = Vec::new();
    for (vector, lanes) in vector_choices(nest, &outer) {
        let work = RowWork::of(nest, &outer, &shared, vector, lanes);
        for (row_threads, rows, cluster) in work.arrangements(target) {
            let [loads_in_flight, ..] = LOADS_IN_FLIGHT;
            let mut schedule =
                RowSchedule { vector, lanes, row_threads, rows, cluster, keep: false, loads_in_flight };
            schedule.keep = !work.has_arrays && (1..=MAX_KEPT).contains(&work.kept(&schedule));
            for loads_in_flight in work.loads_in_flight(&schedule) {
                let schedule = RowSchedule { loads_in_flight, ..schedule.clone() };
                let launch = work.launch(&schedule);
                if work.along != Some(LaneAxis::Output) || cluster == 1 || launch.runs_at_once(target) {
                    ranked.push((launch.cycles(target), schedule));
                }
            }
        }
    }
    ranked.retain(|(cycles, _)| cycles.is_finite());
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    ranked.truncate(MAX_SCHEDULES);
    ranked
}

/// Axes for vectors that make accesses cheap, each with all choices of lanes.
fn vector_choices(nest: &mut Nest, outer: &[Axis]) -> Vec<(Option<(usize, LaneAxis)>, usize)> {
    let has_arrays = has_arrays(nest, outer);
    let mut ranked: Vec<(f64, usize, LaneAxis)> = Vec::new();
    for position in 0..nest.axes.len() {
        let axis = nest.axes[position].clone();
        let along = if outer.contains(&axis) { LaneAxis::Output } else { LaneAxis::Reduced };
        if axis.extent < 2 || (has_arrays && along == LaneAxis::Output) {
            continue;
        }
        let mut bytes = 0.0;
        for step in nest.stages.clone() {
            let points = nest.points(&step.axes()) as f64;
            bytes += points * effort(nest, &step, Some((&axis, 1)), &mut BTreeSet::new()).bytes;
        }
        ranked.push((bytes, position, along));
    }
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    ranked.truncate(MAX_VECTOR_AXES);
    if ranked.is_empty() {
        return vec![(None, 1)];
    }
    let lanes = |(_, position, along): (f64, usize, LaneAxis)| {
        let choices = lane_choices(nest, &nest.axes[position], false).into_iter();
        choices.map(move |lanes| (Some((position, along)), lanes)).collect::<Vec<_>>()
    };
    ranked.into_iter().flat_map(lanes).collect()
}

/// Powers of two.
fn powers(from: usize, to: usize) -> impl Iterator<Item = usize> {
    (from.ilog2()..=to.ilog2()).map(|log| 1 << log)
}

/// What there is to do for a row, with vectors along an axis.
struct RowWork {
    along: Option<LaneAxis>,
    lanes: usize,
    /// Bytes of the narrowest elements in memory.
    elem_bytes: usize,
    /// Rows of the whole grid: points of the outer axes, or vectors of them.
    points: usize,
    steps: Vec<RowStageWork>,
    has_arrays: bool,
    /// Whether CTAs can read each other's results through DSMEM: elements have at least [`MIN_PEER_BYTES`].
    may_cluster: bool,
}

/// What there is to do for a row in one stage.
struct RowStageWork {
    /// Vectors of the axes that threads share: of all that the stage loops over, or, where it has a result for each point of some of
    /// them, of those.
    vectors: usize,
    /// Vectors that a thread does one after the other for each of these.
    serial: usize,
    /// For one vector, where values are kept.
    keeping: Effort,
    /// For one vector, where they are not.
    effort: Effort,
    is_reduction: bool,
    /// Values of each vector that are kept for later stages.
    kept: usize,
}

impl RowWork {
    fn of(
        nest: &mut Nest,
        outer: &[Axis],
        shared: &[SharedValue],
        vector: Option<(usize, LaneAxis)>,
        lanes: usize,
    ) -> Self {
        let axis = vector.map(|(position, along)| (nest.axes[position].clone(), along));
        let granularity = |other: &Axis| match &axis {
            Some((axis, LaneAxis::Output)) if axis == other => lanes,
            _ => 1,
        };
        let points = outer.iter().map(|axis| axis.extent.div_ceil(granularity(axis))).product();
        let mut known: BTreeMap<Vec<VarId>, BTreeSet<ExprId>> = BTreeMap::new();
        let mut steps = Vec::new();
        for (position, step) in nest.stages.clone().iter().enumerate() {
            let mut inner = inner_axes(step, outer);
            inner.sort_unstable();
            let has_lanes = match &axis {
                Some((axis, LaneAxis::Reduced)) => inner.contains(&axis.var),
                Some((_, LaneAxis::Output)) => true,
                None => false,
            };
            let lanes = if has_lanes { lanes } else { 1 };
            let is_reduced = axis.as_ref().is_some_and(|(_, along)| *along == LaneAxis::Reduced);
            let has_array = has_array(step, outer);
            let (by_threads, alone): (Vec<VarId>, Vec<VarId>) =
                inner.iter().partition(|axis| !has_array || step.domain.contains(axis));
            let vectors_along = |axes: &[VarId]| {
                let is_along = axis.as_ref().is_some_and(|(axis, _)| is_reduced && axes.contains(&axis.var));
                nest.points(axes) / if is_along { lanes } else { 1 }
            };
            let (vectors, serial) = (vectors_along(&by_threads), vectors_along(&alone));
            let along = axis.as_ref().filter(|_| has_lanes).map(|(axis, _)| (axis, lanes));
            let keeping = effort(nest, step, along, known.entry(inner).or_default());
            let effort = effort(nest, step, along, &mut BTreeSet::new());
            let kept = lanes * shared.iter().filter(|shared| shared.stage == position).count();
            let is_reduction = matches!(step.work, StageWork::Reduce(_));
            steps.push(RowStageWork { vectors, serial, keeping, effort, is_reduction, kept });
        }
        let along = vector.map(|(_, along)| along);
        let has_arrays = has_arrays(nest, outer);
        let results = nest.stages.iter().filter_map(|step| match &step.work {
            StageWork::Reduce(reduction) => Some(nest.program.exprs.dtype(reduction.body).size_bytes()),
            StageWork::Store { .. } => None,
        });
        let may_cluster = !has_arrays && results.min() >= Some(MIN_PEER_BYTES);
        let elem_bytes =
            nest.program.buffers.iter().map(|buffer| buffer.dtype.size_bytes()).min().unwrap_or(1);
        Self { along, lanes, elem_bytes, points, steps, has_arrays, may_cluster }
    }

    /// `(row_threads, rows, cluster)` of the schedules worth trying.
    fn arrangements(&self, target: &GpuTarget) -> Vec<(usize, usize, usize)> {
        let most = self.longest().next_power_of_two();
        let mut found = Vec::new();
        if self.along == Some(LaneAxis::Output) {
            for (rows, row_threads) in powers(4, 32).flat_map(|g| powers(4, 256).map(move |m| (g, m))) {
                let threads = rows * row_threads;
                let is_too_wide = rows > 8 && rows >= 2 * self.points;
                if !(WARP..=MAX_THREADS).contains(&threads) || row_threads > most.max(8) || is_too_wide {
                    continue;
                }
                found.push((row_threads, rows, 1));
                let (min_threads, resident) = CLUSTERS_OF_COLUMNS;
                if threads >= min_threads {
                    let ctas = self.points.div_ceil(rows);
                    let clusters = self.clusters(ctas, row_threads, resident * target.sms, target);
                    found.extend(clusters.map(|cluster| (row_threads, rows, cluster)));
                }
            }
            return found;
        }
        for row_threads in powers(4, MAX_THREADS).filter(|&row_threads| row_threads <= most.max(WARP)) {
            if self.has_arrays {
                found.extend((row_threads >= WARP).then_some((row_threads, 1, 1)));
                continue;
            }
            for threads in THREADS {
                let arrangement = (row_threads, (threads / row_threads).max(1), 1);
                if !found.contains(&arrangement) {
                    found.push(arrangement);
                }
            }
            let (min_threads, resident) = CLUSTERS_OF_ROWS;
            if row_threads >= min_threads {
                let clusters = self.clusters(self.points, row_threads, resident * target.sms, target);
                found.extend(clusters.map(|cluster| (row_threads, 1, cluster)));
            }
        }
        found
    }

    fn longest(&self) -> usize {
        self.steps.iter().map(|step| step.vectors).max().unwrap_or(1)
    }

    /// Sizes of clusters worth trying where rows are few and long: at most `most` CTAs in all.
    fn clusters(
        &self,
        ctas: usize,
        row_threads: usize,
        most: usize,
        target: &GpuTarget,
    ) -> impl Iterator<Item = usize> {
        let may_cluster = target.has_clusters && self.may_cluster;
        let longest = self.longest();
        powers(2, MAX_CLUSTER).filter(move |cluster| {
            may_cluster && ctas * cluster <= most && longest >= 4 * row_threads * cluster
        })
    }

    /// How many vectors' loads are worth having in flight together: at most as many as a thread has, and registers for.
    fn loads_in_flight(&self, schedule: &RowSchedule) -> Vec<usize> {
        let [least, ..] = LOADS_IN_FLIGHT;
        let rounds = |step: &RowStageWork| Self::rounds(step, schedule);
        let most = self.steps.iter().map(rounds).max().unwrap_or(1).max(least);
        let bytes = self.steps.iter().map(|step| step.effort.loaded).fold(0.0, f64::max);
        let fits = |loads_in_flight: usize| loads_in_flight as f64 * bytes <= MAX_BYTES_IN_FLIGHT;
        let is_ahead = schedule.loads_ahead();
        let is_worth = |loads_in_flight: usize| is_ahead && loads_in_flight <= most && fits(loads_in_flight);
        LOADS_IN_FLIGHT
            .into_iter()
            .filter(|&loads_in_flight| loads_in_flight == least || is_worth(loads_in_flight))
            .collect()
    }

    /// Rounds of a stage: vectors that one thread does.
    fn rounds(step: &RowStageWork, schedule: &RowSchedule) -> usize {
        step.vectors.div_ceil(schedule.threads_of_row()) * step.serial
    }

    /// Values that a thread keeps.
    fn kept(&self, schedule: &RowSchedule) -> usize {
        self.steps.iter().map(|step| step.kept * Self::rounds(step, schedule)).sum()
    }

    fn launch(&self, schedule: &RowSchedule) -> Launch {
        let mut launch = Launch {
            ctas: self.points.div_ceil(schedule.rows) * schedule.cluster,
            threads: schedule.threads(),
            registers: BASE_REGISTERS,
            shared_bytes: 0,
            effort: Effort { instructions: 40.0, ..Effort::default() },
            in_flight: 0.0,
            rounds: 0.0,
            iterations: 0.0,
            waits: 0.0,
        };
        let loads_in_flight = if schedule.keep { MAX_KEPT } else { schedule.loads_in_flight };
        for (position, step) in self.steps.iter().enumerate() {
            let rounds = Self::rounds(step, schedule) as f64;
            let once = if schedule.keep { step.keeping } else { step.effort };
            let is_cached = position > 0 && !schedule.keep;
            let share = if is_cached { CACHED } else { 1.0 };
            launch.effort = launch.effort.plus(Effort { bytes: share * once.bytes, ..once }.times(rounds));
            launch.in_flight = launch.in_flight.max(once.loaded * rounds.min(loads_in_flight as f64));
            if once.loaded > 0.0 {
                let iterations = (rounds / loads_in_flight as f64).ceil();
                if schedule.loads_ahead() {
                    launch.rounds += share;
                    launch.iterations += share * iterations;
                } else {
                    launch.rounds += share * iterations;
                }
            }
            if step.is_reduction {
                launch.waits += self.combination_cycles(schedule);
                launch.shared_bytes += self.combination_bytes(schedule);
            }
        }
        if self.along == Some(LaneAxis::Output) {
            // DRAM transfers runs of a few columns less efficiently than longer ones.
            let run_bytes = (schedule.rows * self.lanes * self.elem_bytes) as f64;
            launch.effort.bytes *= 1.0 + SHORT_RUN / run_bytes;
        }
        let held = (launch.in_flight / 4.0) as usize;
        let kept = if schedule.keep { self.kept(schedule) } else { 0 };
        launch.registers = (BASE_REGISTERS + held.max(kept) + self.lanes).min(MAX_REGISTERS);
        launch
    }

    fn combination_cycles(&self, schedule: &RowSchedule) -> f64 {
        let row_threads = schedule.row_threads;
        let between_ctas = if schedule.cluster > 1 { CLUSTER_BARRIER } else { 0.0 };
        if self.along == Some(LaneAxis::Output) {
            let in_warp = self.in_warp(schedule);
            let shuffles = SHUFFLE * f64::from(in_warp.ilog2());
            return shuffles + 2.0 * BARRIER + PART * (row_threads / in_warp) as f64 + between_ctas;
        }
        let between_warps = if row_threads > WARP { BARRIER } else { 0.0 };
        SHUFFLE * f64::from(row_threads.ilog2()) + between_warps + between_ctas
    }

    /// Threads of a column in a warp.
    fn in_warp(&self, schedule: &RowSchedule) -> usize {
        (WARP / schedule.rows.min(WARP)).min(schedule.row_threads)
    }

    fn combination_bytes(&self, schedule: &RowSchedule) -> usize {
        const VALUE: usize = 8;
        match self.along {
            Some(LaneAxis::Output) => {
                let parts = schedule.threads() / self.in_warp(schedule) + 2 * schedule.rows;
                parts * self.lanes * VALUE
            }
            _ => schedule.threads().div_ceil(WARP) * VALUE,
        }
    }
}
