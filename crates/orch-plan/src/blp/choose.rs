//! The stages of a solve, in order.

use super::greedy::{Selection, greedy};
use super::instance::{Instance, Subprogram, Weight};
use super::prices::{Prices, excess_with_column};
use super::pricing::{PricingLimits, prices};
use super::structure::{Forced, Groups, cut_at_forced, forced, groups, parts, renumbered};
use super::sweep::{SweepLimits, Sweeper};
use super::window::{Window, running_order};
use super::{
    BlpError, Choice, ChooseOptions, ChooseReport, ClassId, ColumnId, Problem, Status, milp, reduce, schedule,
};
use crate::solver::{Solver, SolverLimits};
use rustc_hash::FxHashMap;
use std::time::Instant;

/// States expanded per group by the sweeps of growing width: each makes the next cheaper by a lighter choice to beat.
/// The last is exact but for its limit on states.
const SWEEP_WIDTHS: [usize; 3] = [16, 128, usize::MAX];

/// Larger parts get their prices before the first sweep.
const MAX_COLUMNS_UNPRICED: usize = 500;

/// A part is solved again without some columns if they are at least this share of them.
const WORTHWHILE_SHARE: f64 = 0.25;

/// For a better choice to begin with, a part is solved with the columns that would be left if the best known choice
/// were this much closer to the bound: the first of these shares with which there is a choice.
const OPTIMISTIC_SHARES: [u64; 3] = [64, 16, 4];

/// Parts with fewer columns are not worth that.
const MIN_COLUMNS_FOR_OPTIMISM: usize = 300;

/// Columns of a choice that are chosen anew while the others stay, and how far apart such windows begin.
const WINDOW_COLUMNS: usize = 12;
const WINDOW_STRIDE: usize = 6;

/// The widest sweep over a window.
const WINDOW_WIDTH: usize = 64;

/// Most passes of windows over a choice.
const MAX_WINDOW_ROUNDS: usize = 4;

/// Parts of parts of parts are not treated so, because that would multiply.
const MAX_DEPTH_OF_OPTIMISM: usize = 2;

/// Chooses columns of least total cost that produce what is required.
///
/// `solver` is asked for bounds on large parts, and for choices where dynamic programming meets its limit. If it
/// fails, the part counts as unproven.
///
/// # Errors
/// If the problem is malformed.
pub fn choose(problem: &Problem, options: &ChooseOptions, solver: &dyn Solver) -> Result<Choice, BlpError> {
    let start = Instant::now();
    let mut instance = Instance::new(problem)?;
    let mut report = ChooseReport { columns: problem.columns.len(), ..ChooseReport::default() };
    let underivable = reduce::drop_underivable(&mut instance);
    let choice = if underivable.is_empty() {
        let solved = Chooser::new(options, solver, &mut report).whole(instance);
        joined(problem, &solved)
    } else {
        infeasible(problem, underivable)
    };
    report.time = start.elapsed();
    Ok(Choice { report, ..choice })
}

/// Prices as good as they get. Linear programs end by themselves.
const UNLIMITED: PricingLimits =
    PricingLimits { solver: SolverLimits { pivots: u64::MAX }, enough: u64::MAX };

/// A solve in progress.
struct Chooser<'a> {
    options: &'a ChooseOptions,
    solver: &'a dyn Solver,
    report: &'a mut ChooseReport,
    /// How many parts the current part is a part of.
    depth: usize,
    /// Pivots of integer programs times their columns.
    solver_work: usize,
    /// States expanded by sweeps that are not narrow, and columns that these tried.
    wide_states: usize,
    wide_steps: usize,
}

/// A choice for an instance, in ids of the problem.
struct Solved {
    columns: Vec<ColumnId>,
    weight: Weight,
    /// No choice weighs less.
    bound: Weight,
    /// The bound is as close as asked for.
    is_optimal: bool,
}

impl Solved {
    /// No choice is wanted that weighs as much as all of this part do.
    fn none(bound: Weight) -> Self {
        Solved { columns: Vec::new(), weight: Weight::INFINITE, bound, is_optimal: false }
    }

    fn empty() -> Self {
        Solved { columns: Vec::new(), weight: Weight::ZERO, bound: Weight::ZERO, is_optimal: true }
    }

    /// Joins the choice for an independent part.
    fn add(&mut self, other: Solved) {
        self.columns.extend(other.columns);
        self.weight = self.weight + other.weight;
        self.bound = self.bound + other.bound;
        self.is_optimal &= other.is_optimal;
    }

    /// The same with other names of the columns, given by position.
    fn placed(&self, sources: &[ColumnId]) -> Self {
        let columns = self.columns.iter().map(|column| sources[column.index()]).collect();
        Solved { columns, ..*self }
    }

    fn proven(part: &Instance, best: &Selection, bound: Weight) -> Self {
        Solved { is_optimal: true, ..Solved::unproven(part, best, bound) }
    }

    fn unproven(part: &Instance, best: &Selection, bound: Weight) -> Self {
        Solved { columns: sources(part, best), weight: best.weight, bound, is_optimal: false }
    }

    /// The choice in columns of a part that has them all.
    fn selection(&self, part: &Instance) -> Selection {
        let position = |id: &ColumnId| {
            let found = part.columns.binary_search_by_key(id, |column| column.source);
            found.expect("the part has the column, and columns stay ascending") as u32
        };
        Selection::new(part, self.columns.iter().map(position).collect())
    }
}

/// What was chosen anew for a window, by positions in its problem.
struct Rechosen {
    columns: Vec<ColumnId>,
    weight: Weight,
}

impl<'a> Chooser<'a> {
    fn new(options: &'a ChooseOptions, solver: &'a dyn Solver, report: &'a mut ChooseReport) -> Self {
        Chooser { options, solver, report, depth: 0, solver_work: 0, wide_states: 0, wide_steps: 0 }
    }

    /// Solves the problem as given, recording what the reductions did.
    fn whole(&mut self, instance: Instance) -> Solved {
        let (parts, cuts) = take_apart(instance);
        self.report.cut_classes = cuts;
        self.report.parts = parts.len();
        self.report.columns_reduced = parts.iter().map(|part| part.columns.len()).sum();
        self.report.largest_part_columns = parts.iter().map(|part| part.columns.len()).max().unwrap_or(0);
        self.all(parts, &[], Weight::INFINITE)
    }

    /// Solves independent parts, each of those that are equal but for numbers once, the smallest first, since they share a budget. A
    /// choice (ascending) may be known. Choices that weigh `cutoff` or more are not wanted: once there are no others, that is all that
    /// is found.
    fn all(&mut self, mut parts: Vec<Instance>, known: &[ColumnId], cutoff: Weight) -> Solved {
        parts.sort_by_key(|part| part.columns.len());
        let mut all = Solved::empty();
        let mut known_parts: FxHashMap<Subprogram, Solved> = FxHashMap::default();
        for part in parts {
            let left = cutoff.picoseconds.saturating_sub(all.bound.picoseconds);
            let (subprogram, sources) = Subprogram::new(part, known);
            let solved = known_parts
                .entry(subprogram)
                .or_insert_with_key(|part| self.part(&part.instance, &part.known, left))
                .placed(&sources);
            self.report.parts_unproven += usize::from(self.depth == 0 && !solved.is_optimal);
            all.add(solved);
            if all.bound >= cutoff {
                return Solved::none(all.bound);
            }
        }
        all
    }

    /// Solves a connected part: a good choice, then prices, then whichever is exact first. Choices of `cutoff` picoseconds or more are
    /// not wanted.
    fn part(&mut self, part: &Instance, known: &[ColumnId], cutoff: u64) -> Solved {
        let order = groups(part);
        let common = forced(part, &order);
        let mut best = first_choice(part, &order, known);
        if part.columns.len() <= MAX_COLUMNS_UNPRICED {
            let unpriced = Prices::default();
            let sweeper = Sweeper::new(part, &order, &common, &unpriced);
            let bound = self.sweep(&sweeper, SWEEP_WIDTHS[0], &mut best);
            if self.proves(bound, best.weight) {
                return Solved::proven(part, &best, bound);
            }
        }
        let prices = prices(part, &common, self.solver, PricingLimits { enough: cutoff, ..UNLIMITED });
        if prices.total() >= cutoff {
            return Solved::none(Weight { picoseconds: prices.total(), ..Weight::ZERO });
        }
        let sweeper = Sweeper::new(part, &order, &common, &prices);
        let steps_before = self.report.steps;
        let bound = self.sweep(&sweeper, SWEEP_WIDTHS[0], &mut best);
        if self.proves(bound, best.weight) {
            return Solved::proven(part, &best, bound);
        }
        // A wide sweep tries at least as much as the narrow one, and would end before it has a choice.
        let is_vast = self.report.steps - steps_before > self.options.max_steps;
        let excess = excess_with_column(part, &order, &prices);
        if part.columns.len() >= MIN_COLUMNS_FOR_OPTIMISM {
            let bound = self.improve(part, &excess, prices.total(), is_vast, &mut best);
            if self.proves(bound, best.weight) {
                return Solved::proven(part, &best, bound);
            }
        }
        let slack = best.weight.picoseconds - prices.total();
        match with_excess_up_to(part, &excess, slack) {
            Some(smaller) if self.states_left() > 0 && self.steps_left() > 0 => {
                self.smaller(part, smaller, &best, prices.total())
            }
            _ if is_vast => self.by_solver(part, &common, best, bound),
            _ => self.exhaustively(part, &sweeper, &common, best),
        }
    }

    /// Looks for a better choice in ways that a large part is worth. Returns a bound.
    fn improve(
        &mut self,
        part: &Instance,
        excess: &[u64],
        priced: u64,
        is_vast: bool,
        best: &mut Selection,
    ) -> Weight {
        let priced_bound = Weight { picoseconds: priced, ..Weight::ZERO };
        if self.depth == 0 {
            self.by_windows(part, best);
        }
        if !is_vast && self.depth < MAX_DEPTH_OF_OPTIMISM && !self.proves(priced_bound, best.weight) {
            return self.optimistically(part, excess, priced, best);
        }
        priced_bound
    }

    /// Improves a choice window by window, in the order in which it runs, until no window gets better: by narrow sweeps, and once these
    /// find nothing by wider ones. Further rounds of narrow sweeps find better choices in less time than wide ones do from the start.
    fn by_windows(&mut self, part: &Instance, best: &mut Selection) {
        let producers = part.producers();
        let mut order = running_order(part, best);
        let mut known: FxHashMap<Subprogram, Rechosen> = FxHashMap::default();
        let mut width = SWEEP_WIDTHS[0];
        for _ in 0..MAX_WINDOW_ROUNDS {
            let before = best.weight;
            let mut start = 0;
            while start < best.columns.len() {
                let (window, stretch) = Window::new(part, &producers, &order, start..start + WINDOW_COLUMNS);
                start += WINDOW_STRIDE;
                let rechosen =
                    known.entry(stretch).or_insert_with_key(|stretch| self.improved(stretch, width));
                if rechosen.weight < window.weight {
                    *best = window.replaced(part, &rechosen.columns);
                    order = running_order(part, best);
                }
            }
            if best.weight == before {
                if width == WINDOW_WIDTH {
                    break;
                }
                width = WINDOW_WIDTH;
                known.clear();
            }
        }
    }

    /// A good choice for a window, by sweeps of at most some width.
    fn improved(&mut self, stretch: &Subprogram, width: usize) -> Rechosen {
        let mut all = Rechosen { columns: Vec::new(), weight: Weight::ZERO };
        for part in take_apart(stretch.instance.clone()).0 {
            let order = groups(&part);
            let common = forced(&part, &order);
            let mut best = first_choice(&part, &order, &stretch.known);
            let prices = prices(&part, &common, self.solver, UNLIMITED);
            let sweeper = Sweeper::new(&part, &order, &common, &prices);
            let bound = self.sweep(&sweeper, SWEEP_WIDTHS[0], &mut best);
            if bound != best.weight && width > SWEEP_WIDTHS[0] {
                self.sweep(&sweeper, width, &mut best);
            }
            all.columns.extend(sources(&part, &best));
            all.weight = all.weight + best.weight;
        }
        all
    }

    /// Looks for a better choice among the columns of little excess. Returns a bound.
    fn optimistically(
        &mut self,
        part: &Instance,
        excess: &[u64],
        priced: u64,
        best: &mut Selection,
    ) -> Weight {
        for share in OPTIMISTIC_SHARES {
            let slack = (best.weight.picoseconds - priced) / share;
            let Some(smaller) = with_excess_up_to(part, excess, slack) else { continue };
            self.depth += 1;
            let solved = self.all(take_apart(smaller).0, &sources(part, best), best.weight);
            self.depth -= 1;
            if solved.weight < best.weight {
                *best = solved.selection(part);
            }
            // A choice with another column has more excess than that.
            return solved.bound.min(Weight { picoseconds: priced + slack, ..Weight::ZERO });
        }
        Weight { picoseconds: priced, ..Weight::ZERO }
    }

    /// Solves what a known choice left of a part. Every choice that weighs at most as much is in it.
    fn smaller(&mut self, part: &Instance, smaller: Instance, best: &Selection, priced: u64) -> Solved {
        self.depth += 1;
        let solved = self.all(take_apart(smaller).0, &sources(part, best), Weight::INFINITE);
        self.depth -= 1;
        let bound = solved.bound.max(Weight { picoseconds: priced, ..Weight::ZERO }).min(best.weight);
        if best.weight < solved.weight {
            Solved::unproven(part, best, bound)
        } else {
            Solved { bound, ..solved }
        }
    }

    /// Sweeps wider and wider, then asks the solver.
    fn exhaustively(
        &mut self,
        part: &Instance,
        sweeper: &Sweeper<'_>,
        common: &Forced,
        mut best: Selection,
    ) -> Solved {
        let mut bound = Weight::ZERO;
        for &width in &SWEEP_WIDTHS[1..] {
            bound = bound.max(self.sweep(sweeper, width, &mut best));
            if self.proves(bound, best.weight) {
                return Solved::proven(part, &best, bound);
            }
        }
        self.by_solver(part, common, best, bound)
    }

    /// Asks the solver for a better choice or a proof.
    fn by_solver(
        &mut self,
        part: &Instance,
        common: &Forced,
        mut best: Selection,
        mut bound: Weight,
    ) -> Solved {
        let columns = part.columns.len();
        let limits = self.limits(columns);
        if columns <= self.options.max_solver_columns && limits.pivots > 0 {
            self.report.parts_by_solver += 1;
            if let Ok(result) = milp::solve(part, common, &best, self.solver, limits) {
                self.solver_work += result.pivots as usize * columns;
                self.report.solver_nodes += result.nodes;
                best = result.better.unwrap_or(best);
                bound = bound.max(Weight::from_bound(result.bound_us)).min(best.weight);
            }
        }
        if self.proves(bound, best.weight) {
            Solved::proven(part, &best, bound)
        } else {
            Solved::unproven(part, &best, bound)
        }
    }

    /// Sweeps once, and returns a bound.
    fn sweep(&mut self, sweeper: &Sweeper<'_>, width: usize, best: &mut Selection) -> Weight {
        // Narrow sweeps are for a choice to begin with, which every part needs.
        let limits = match width <= WINDOW_WIDTH {
            true => SweepLimits { width, states: usize::MAX, steps: usize::MAX },
            false => SweepLimits { width, states: self.states_left(), steps: self.steps_left() },
        };
        let sweep = sweeper.sweep(limits, best.weight);
        self.report.states += sweep.states;
        self.report.steps += sweep.steps;
        if width > WINDOW_WIDTH {
            self.wide_states += sweep.states;
            self.wide_steps += sweep.steps;
        }
        if let Some(better) = sweep.better {
            *best = better;
        }
        sweep.dropped.min(best.weight)
    }

    /// True if a bound proves a weight to be the least, within the gap asked for.
    fn proves(&self, bound: Weight, weight: Weight) -> bool {
        let missing = weight.picoseconds.saturating_sub(bound.picoseconds) as f64;
        missing <= self.options.relative_gap * weight.picoseconds as f64
    }

    fn states_left(&self) -> usize {
        self.options.max_states.saturating_sub(self.wide_states)
    }

    fn steps_left(&self) -> usize {
        self.options.max_steps.saturating_sub(self.wide_steps)
    }

    /// The pivots left for a program of so many columns.
    fn limits(&self, columns: usize) -> SolverLimits {
        let work = self.options.max_solver_work.saturating_sub(self.solver_work);
        SolverLimits { pivots: (work / columns.max(1)) as u64 }
    }
}

/// Reduces an instance, cuts it at the classes that every plan produces, and returns the parts and the number of
/// cuts. Every class that is required or read must be derivable.
fn take_apart(mut instance: Instance) -> (Vec<Instance>, usize) {
    reduce::drop_irrelevant(&mut instance);
    reduce::drop_dominated(&mut instance);
    // What follows takes memory and time for each class, whether or not a column has it.
    let mut instance = renumbered(instance);
    let order = groups(&instance);
    let common = forced(&instance, &order);
    let cuts = cut_at_forced(&mut instance, &order, &common);
    reduce::drop_irrelevant(&mut instance);
    reduce::drop_dominated(&mut instance);
    (parts(&instance), cuts)
}

/// The lightest of the known choice, if the part has it, greedy extraction, and one column per node.
fn first_choice(part: &Instance, order: &Groups, known: &[ColumnId]) -> Selection {
    let best = greedy(part, order, |_| true).expect("every class of a part is derivable");
    let single = greedy(part, order, |column| part.columns[column].executes.len() <= 1);
    let known = greedy(part, order, |column| known.binary_search(&part.columns[column].source).is_ok());
    let all = [Some(best), single, known].into_iter().flatten();
    all.min_by_key(|choice| choice.weight).expect("the first is there")
}

/// The columns of a choice, which ascend, in ids of the problem.
fn sources(part: &Instance, choice: &Selection) -> Vec<ColumnId> {
    choice.columns.iter().map(|&column| part.columns[column as usize].source).collect()
}

/// The columns with at most some excess, if they are notably fewer and still suffice.
fn with_excess_up_to(part: &Instance, excess: &[u64], slack: u64) -> Option<Instance> {
    let keep: Vec<bool> = excess.iter().map(|&excess| excess <= slack).collect();
    restricted(part, &keep)
}

/// Some columns, if they are notably fewer and still suffice.
fn restricted(part: &Instance, keep: &[bool]) -> Option<Instance> {
    let kept = keep.iter().filter(|&&keep| keep).count();
    if (kept as f64) > part.columns.len() as f64 * (1.0 - WORTHWHILE_SHARE) {
        return None;
    }
    let mut smaller = part.clone();
    smaller.retain(keep);
    reduce::drop_underivable(&mut smaller).is_empty().then_some(smaller)
}

fn joined(problem: &Problem, solved: &Solved) -> Choice {
    let schedule = schedule(problem, &solved.columns);
    assert!(schedule.is_complete(), "parts are executable together: {:?} is stuck", schedule.stuck);
    let bound_us = solved.bound.microseconds();
    let objective_us = schedule.columns.iter().map(|id| problem.columns[id.index()].cost_us).sum();
    Choice {
        status: if solved.is_optimal { Status::Optimal } else { Status::Feasible },
        objective_us,
        bound_us: if solved.bound >= solved.weight { objective_us } else { bound_us.min(objective_us) },
        columns: schedule.columns,
        producers: schedule.producers,
        underivable: Vec::new(),
        report: ChooseReport::default(),
    }
}

fn infeasible(problem: &Problem, underivable: Vec<u32>) -> Choice {
    Choice {
        status: Status::Infeasible,
        objective_us: f64::INFINITY,
        bound_us: f64::INFINITY,
        columns: Vec::new(),
        producers: vec![None; problem.classes],
        underivable: underivable.into_iter().map(ClassId).collect(),
        report: ChooseReport::default(),
    }
}
