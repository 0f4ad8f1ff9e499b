//! Which schedules to try, and in which order.

use super::RowSchedule;
use crate::LaneAxis;
use crate::gpu::access::{Effort, SHORT_RUN, effort, lane_choices};
use crate::gpu::estimate::{BASE_REGISTERS, Launch, MAX_REGISTERS};
use crate::nest::flat::{Nest, NestStage, StageWork};
use crate::nest::plan::outer_axes;
use crate::nest::shared::{SharedValue, costs_more_than_registers, shared_values};
use orch_compute::block::Axis;
use orch_compute::expr::{ExprId, VarId};
use orch_thread::cta::{MAX_CLUSTER, MAX_THREADS, WARP};
use orch_thread::target::GpuTarget;
use std::collections::{BTreeMap, BTreeSet};

/// Most schedules.
const MAX_SCHEDULES: usize = 200;

/// Axes along which vectors are tried.
const MAX_VECTOR_AXES: usize = 2;

/// Threads of tasks that work at several points.
const THREADS: [usize; 2] = [128, 256];

/// Fewest threads of tasks that are worth a cluster, and most tasks of a multiprocessor: of rows, and of columns.
const CLUSTERS_OF_ROWS: (usize, usize) = (256, 2);
const CLUSTERS_OF_COLUMNS: (usize, usize) = (128, 4);

/// Bytes of the smallest elements that tasks of a cluster read from each other.
const MIN_PEER_BYTES: usize = 4;

/// Most values that a thread keeps.
const MAX_KEPT: usize = 64;

/// Vectors whose loads are under way together where values are not kept.
const TOGETHER: [usize; 3] = [4, 8, 16];

/// Most bytes that a thread loads together.
const MAX_TOGETHER_BYTES: f64 = 320.0;

/// Share of the bytes of later stages that come from memory where values are not kept.
const CACHED: f64 = 0.4;

/// Cycles of adding what one more thread found for a column.
const PART: f64 = 8.0;

/// Cycles of a shuffle and what follows it.
const SHUFFLE: f64 = 30.0;

/// Cycles of a barrier and an access to shared memory.
const BARRIER: f64 = 80.0;

/// Cycles of a barrier of a cluster and accesses to other tasks.
const CLUSTER_BARRIER: f64 = 1500.0;

/// Schedules with their estimated cycles, the preferred one first.
pub(super) fn ranked(nest: &mut Nest, target: &GpuTarget) -> Vec<(f64, RowSchedule)> {
    if !serves(nest) {
        return Vec::new();
    }
    let outer = outer_axes(nest);
    let shared = kept_values(nest, &outer);
    let mut ranked = Vec::new();
    for (vector, lanes) in vector_choices(nest, &outer) {
        let rows = Rows::of(nest, &outer, &shared, vector, lanes);
        for (members, groups, cluster) in rows.arrangements(target) {
            let [together, ..] = TOGETHER;
            let mut schedule = RowSchedule { vector, lanes, members, groups, cluster, keep: false, together };
            schedule.keep = !rows.has_arrays && (1..=MAX_KEPT).contains(&rows.kept(&schedule));
            for together in rows.together(&schedule) {
                let schedule = RowSchedule { together, ..schedule.clone() };
                let launch = rows.launch(&schedule);
                if rows.along != Some(LaneAxis::Output) || cluster == 1 || launch.runs_at_once(target) {
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

/// True if there is something that threads do together.
pub(in crate::gpu) fn serves(nest: &Nest) -> bool {
    let outer = outer_axes(nest);
    nest.stages.iter().any(|step| !inner_axes(step, &outer).is_empty())
}

/// The values that stages may keep for later ones.
pub(super) fn kept_values(nest: &Nest, outer: &[Axis]) -> Vec<SharedValue> {
    let mut kept = shared_values(nest, outer, costs_more_than_registers);
    kept.retain(|shared| is_read_in_turn(nest, outer, shared));
    kept
}

/// True if every later step that needs the value goes over the same axes, and so comes to it when it is its turn.
fn is_read_in_turn(nest: &Nest, outer: &[Axis], shared: &SharedValue) -> bool {
    nest.stages[shared.stage + 1..].iter().all(|step| {
        let axes = inner_axes(step, outer);
        let is_alike = axes.len() == shared.axes.len() && axes.iter().all(|axis| shared.axes.contains(axis));
        is_alike || !nest.program.exprs.reachable(&step.roots()).contains(&shared.value)
    })
}

/// True if a reduction has a result for each point of axes that are not outer.
pub(super) fn has_arrays(nest: &Nest, outer: &[Axis]) -> bool {
    nest.stages.iter().any(|step| step.result().is_some() && has_inner(&step.domain, outer))
}

/// The axes that a step loops over at a point of the outer axes.
pub(super) fn inner_axes(step: &NestStage, outer: &[Axis]) -> Vec<VarId> {
    step.axes().into_iter().filter(|axis| outer.iter().all(|other| other.var != *axis)).collect()
}

fn has_inner(axes: &[VarId], outer: &[Axis]) -> bool {
    axes.iter().any(|axis| outer.iter().all(|other| other.var != *axis))
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

/// What there is to do with vectors along an axis.
struct Rows {
    along: Option<LaneAxis>,
    lanes: usize,
    /// Bytes of the narrowest elements in memory.
    elem_bytes: usize,
    /// Points of the outer axes, or vectors of them.
    points: usize,
    steps: Vec<RowStep>,
    has_arrays: bool,
    /// Whether tasks can read each other's results: elements have at least [`MIN_PEER_BYTES`].
    may_cluster: bool,
}

/// A step at a point of the outer axes.
struct RowStep {
    /// Vectors of the axes that it loops over.
    vectors: usize,
    /// For one vector, where values are kept.
    keeping: Effort,
    /// For one vector, where they are not.
    effort: Effort,
    is_reduction: bool,
    /// Values of each vector that it keeps for later steps.
    kept: usize,
}

impl Rows {
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
            let terms = axis.as_ref().is_some_and(|(_, along)| *along == LaneAxis::Reduced);
            let vectors = nest.points(&inner) / if terms { lanes } else { 1 };
            let along = axis.as_ref().filter(|_| has_lanes).map(|(axis, _)| (axis, lanes));
            let keeping = effort(nest, step, along, known.entry(inner).or_default());
            let effort = effort(nest, step, along, &mut BTreeSet::new());
            let kept = lanes * shared.iter().filter(|shared| shared.stage == position).count();
            let is_reduction = matches!(step.work, StageWork::Reduce(_));
            steps.push(RowStep { vectors, keeping, effort, is_reduction, kept });
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

    /// Members, groups and cluster of the schedules worth trying.
    fn arrangements(&self, target: &GpuTarget) -> Vec<(usize, usize, usize)> {
        let most = self.longest().next_power_of_two();
        let mut found = Vec::new();
        if self.along == Some(LaneAxis::Output) {
            for (groups, members) in powers(4, 32).flat_map(|g| powers(4, 256).map(move |m| (g, m))) {
                let threads = groups * members;
                let is_too_wide = groups > 8 && groups >= 2 * self.points;
                if !(WARP..=MAX_THREADS).contains(&threads) || members > most.max(8) || is_too_wide {
                    continue;
                }
                found.push((members, groups, 1));
                let (min_threads, resident) = CLUSTERS_OF_COLUMNS;
                if threads >= min_threads {
                    let tasks = self.points.div_ceil(groups);
                    let clusters = self.clusters(tasks, members, resident * target.sms, target);
                    found.extend(clusters.map(|cluster| (members, groups, cluster)));
                }
            }
            return found;
        }
        for members in powers(4, MAX_THREADS).filter(|&members| members <= most.max(WARP)) {
            if self.has_arrays {
                found.extend((members >= WARP).then_some((members, 1, 1)));
                continue;
            }
            for threads in THREADS {
                let arrangement = (members, (threads / members).max(1), 1);
                if !found.contains(&arrangement) {
                    found.push(arrangement);
                }
            }
            let (min_threads, resident) = CLUSTERS_OF_ROWS;
            if members >= min_threads {
                let clusters = self.clusters(self.points, members, resident * target.sms, target);
                found.extend(clusters.map(|cluster| (members, 1, cluster)));
            }
        }
        found
    }

    fn longest(&self) -> usize {
        self.steps.iter().map(|step| step.vectors).max().unwrap_or(1)
    }

    /// Clusters worth trying where tasks are few and long: at most so many tasks of all clusters.
    fn clusters(
        &self,
        tasks: usize,
        members: usize,
        most: usize,
        target: &GpuTarget,
    ) -> impl Iterator<Item = usize> {
        let may_cluster = target.has_clusters && self.may_cluster;
        let longest = self.longest();
        powers(2, MAX_CLUSTER)
            .filter(move |cluster| may_cluster && tasks * cluster <= most && longest >= 4 * members * cluster)
    }

    /// How many vectors it is worth trying to load together: as many as there are, or registers for.
    fn together(&self, schedule: &RowSchedule) -> Vec<usize> {
        let [least, ..] = TOGETHER;
        let turns = |step: &RowStep| Self::turns(step, schedule);
        let most = self.steps.iter().map(turns).max().unwrap_or(1).max(least);
        let bytes = self.steps.iter().map(|step| step.effort.loaded).fold(0.0, f64::max);
        let fits = |together: usize| together as f64 * bytes <= MAX_TOGETHER_BYTES;
        let is_ahead = schedule.loads_ahead();
        let is_worth = |together: usize| is_ahead && together <= most && fits(together);
        TOGETHER.into_iter().filter(|&together| together == least || is_worth(together)).collect()
    }

    /// Vectors of a step that one member does.
    fn turns(step: &RowStep, schedule: &RowSchedule) -> usize {
        step.vectors.div_ceil(schedule.all_members())
    }

    /// Values that a thread keeps.
    fn kept(&self, schedule: &RowSchedule) -> usize {
        self.steps.iter().map(|step| step.kept * Self::turns(step, schedule)).sum()
    }

    fn launch(&self, schedule: &RowSchedule) -> Launch {
        let mut launch = Launch {
            tasks: self.points.div_ceil(schedule.groups) * schedule.cluster,
            threads: schedule.threads(),
            registers: BASE_REGISTERS,
            shared_bytes: 0,
            effort: Effort { instructions: 40.0, ..Effort::default() },
            in_flight: 0.0,
            rounds: 0.0,
            iterations: 0.0,
            waits: 0.0,
        };
        let together = if schedule.keep { MAX_KEPT } else { schedule.together };
        for (position, step) in self.steps.iter().enumerate() {
            let turns = Self::turns(step, schedule) as f64;
            let once = if schedule.keep { step.keeping } else { step.effort };
            let is_cached = position > 0 && !schedule.keep;
            let share = if is_cached { CACHED } else { 1.0 };
            launch.effort = launch.effort.plus(Effort { bytes: share * once.bytes, ..once }.times(turns));
            launch.in_flight = launch.in_flight.max(once.loaded * turns.min(together as f64));
            if once.loaded > 0.0 {
                let iterations = (turns / together as f64).ceil();
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
            // Memory likes longer runs than a few columns.
            let run_bytes = (schedule.groups * self.lanes * self.elem_bytes) as f64;
            launch.effort.bytes *= 1.0 + SHORT_RUN / run_bytes;
        }
        let held = (launch.in_flight / 4.0) as usize;
        let kept = if schedule.keep { self.kept(schedule) } else { 0 };
        launch.registers = (BASE_REGISTERS + held.max(kept) + self.lanes).min(MAX_REGISTERS);
        launch
    }

    fn combination_cycles(&self, schedule: &RowSchedule) -> f64 {
        let members = schedule.members;
        let between_tasks = if schedule.cluster > 1 { CLUSTER_BARRIER } else { 0.0 };
        if self.along == Some(LaneAxis::Output) {
            let in_warp = self.in_warp(schedule);
            let shuffles = SHUFFLE * f64::from(in_warp.ilog2());
            return shuffles + 2.0 * BARRIER + PART * (members / in_warp) as f64 + between_tasks;
        }
        let between_warps = if members > WARP { BARRIER } else { 0.0 };
        SHUFFLE * f64::from(members.ilog2()) + between_warps + between_tasks
    }

    /// Members of a column in a warp.
    fn in_warp(&self, schedule: &RowSchedule) -> usize {
        (WARP / schedule.groups.min(WARP)).min(schedule.members)
    }

    fn combination_bytes(&self, schedule: &RowSchedule) -> usize {
        const VALUE: usize = 8;
        match self.along {
            Some(LaneAxis::Output) => {
                let parts = schedule.threads() / self.in_warp(schedule) + 2 * schedule.groups;
                parts * self.lanes * VALUE
            }
            _ => schedule.threads().div_ceil(WARP) * VALUE,
        }
    }
}
