//! How evenly the threads of a CPU share the work items of a program, and how often they bring an element to scratch: counted from the
//! statements as they are, work item by work item.
//!
//! Loops are walked one iteration after the other only where their variable decides about control flow or about what is brought to scratch.
//! Of branches on data, the longer side counts.

use crate::count::instructions;
use crate::known::Known;
use crate::program::{LoopKind, Scope, Stmt, ThreadProgram};
use orch_compute::expr::scalar::Number;
use orch_compute::expr::{Expr, ExprId, VarId};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// The work items of each of so many threads: contiguous parts of about as many.
pub fn parts(work_items: usize, threads: usize) -> impl Iterator<Item = Range<usize>> {
    (0..threads).map(move |thread| thread * work_items / threads..(thread + 1) * work_items / threads)
}

/// The groups, of so many work items, that contiguous ones are of.
pub fn groups(work_items: &Range<usize>, of_group: usize) -> Range<usize> {
    if work_items.is_empty() {
        return 0..0;
    }
    work_items.start / of_group..(work_items.end - 1) / of_group + 1
}

/// What each work item of a program does. Those of one number in all phases are one here, as a thread has the same ones in each.
#[derive(Clone, PartialEq, Debug)]
pub struct WorkItemShares {
    /// Instructions of each work item, without those of a group's first one.
    own: Vec<f64>,
    /// Instructions of the first work item of each group that a thread runs, beside its own.
    first: Vec<f64>,
    /// Elements that the first work item of each group brings to scratch.
    packed: Vec<usize>,
    /// Work items of a group.
    of_group: usize,
    /// Elements that all work items bring to scratch, each counted once.
    distinct: usize,
}

impl WorkItemShares {
    /// Counts the work items of a program for a CPU.
    pub fn of(program: &ThreadProgram) -> Self {
        let mut walker = Walker::new(program);
        let of_group = program.groups.map_or(1, |groups| groups.tasks.max(1));
        let items = program.phase_items();
        let counts = items.div_ceil(of_group);
        let mut shares = Self {
            own: vec![0.0; items],
            first: vec![0.0; counts],
            packed: vec![0; counts],
            of_group,
            distinct: 0,
        };
        for task in 0..program.tasks {
            let item = task % items;
            if program.groups.is_none() {
                let work = walker.task(task, true);
                shares.own[item] += work.instructions;
                shares.packed[item] += work.packed;
                continue;
            }
            let own = walker.task(task, false);
            shares.own[item] += own.instructions;
            if item.is_multiple_of(of_group) {
                let all = walker.task(task, true);
                shares.first[item / of_group] += all.instructions - own.instructions;
                shares.packed[item / of_group] += all.packed;
            }
        }
        shares.distinct = walker.seen.len();
        shares
    }

    /// How many times as much as an even share the largest one of so many threads is, of what is done once.
    pub fn largest(&self, threads: usize) -> f64 {
        let all: f64 = self.own.iter().sum();
        let of = |items: Range<usize>| self.own[items].iter().sum::<f64>();
        let largest = parts(self.own.len(), threads).map(of).fold(0.0, f64::max);
        if all > 0.0 { largest * threads as f64 / all } else { 1.0 }
    }

    /// How many times as fast as one so many threads are, if they take as long as their instructions: those that bring elements to scratch
    /// are done by each thread that has work items of a group.
    pub fn speed_up(&self, threads: usize) -> f64 {
        let of = |items: Range<usize>| {
            let first: f64 = self.first[groups(&items, self.of_group)].iter().sum();
            first + self.own[items].iter().sum::<f64>()
        };
        let longest = |threads: usize| parts(self.own.len(), threads).map(of).fold(0.0, f64::max);
        let shared = longest(threads);
        if shared > 0.0 { longest(1) / shared } else { 1.0 }
    }

    /// Elements that so many threads bring to scratch.
    pub fn packed(&self, threads: usize) -> usize {
        let of = |items: Range<usize>| self.packed[groups(&items, self.of_group)].iter().sum::<usize>();
        parts(self.own.len(), threads).map(of).sum()
    }

    /// Elements that are brought to scratch, each counted once: those that are made of the same elements of memory are one.
    pub fn distinct(&self) -> usize {
        self.distinct
    }
}

/// What a list of statements does.
#[derive(Clone, Copy, Default)]
struct Work {
    instructions: f64,
    packed: usize,
}

struct Walker<'a> {
    program: &'a ThreadProgram,
    /// Variables that control flow, and what is brought to scratch, depend on.
    decides: Vec<bool>,
    /// What variables are bound to.
    bound: Vec<Option<ExprId>>,
    /// Values of the variables that decide.
    values: Vec<Option<i64>>,
    /// Stores that bring elements to scratch, by address.
    packing: HashSet<*const Stmt>,
    /// Instructions of single statements, by address.
    instructions: HashMap<*const Stmt, f64>,
    /// The elements that were brought to scratch.
    seen: HashSet<u64>,
}

impl<'a> Walker<'a> {
    fn new(program: &'a ThreadProgram) -> Self {
        let vars = program.exprs.vars().len();
        let mut walker = Self {
            program,
            decides: vec![false; vars],
            bound: vec![None; vars],
            values: vec![None; vars],
            packing: HashSet::new(),
            instructions: HashMap::new(),
            seen: HashSet::new(),
        };
        walker.note_bindings(&program.body);
        let mut roots = Vec::new();
        walker.note_roots(&program.body, &mut roots);
        let mut pending: BTreeSet<VarId> =
            roots.into_iter().flat_map(|root| program.exprs.free_vars(root)).collect();
        while let Some(var) = pending.pop_first() {
            if !std::mem::replace(&mut walker.decides[var.index()], true) {
                pending.extend(
                    walker.bound[var.index()].into_iter().flat_map(|value| program.exprs.free_vars(value)),
                );
            }
        }
        walker
    }

    fn note_bindings(&mut self, body: &[Stmt]) {
        for stmt in body {
            if let Stmt::Let(var, value) = stmt {
                self.bound[var.index()] = Some(*value);
            }
            stmt.bodies().for_each(|body| self.note_bindings(body));
        }
    }

    /// Notes the stores that bring elements to scratch, and the expressions that decide.
    fn note_roots(&mut self, body: &[Stmt], roots: &mut Vec<ExprId>) {
        for stmt in body {
            match stmt {
                Stmt::For { start, end, .. } => roots.extend([*start, *end]),
                Stmt::If { condition, .. } => roots.push(*condition),
                Stmt::Store { .. } if self.packs(stmt) => {
                    self.packing.insert(stmt);
                    roots.extend(stmt.operands());
                }
                _ => {}
            }
            stmt.bodies().for_each(|body| self.note_roots(body, roots));
        }
    }

    /// True if a statement brings to scratch what is read elsewhere: accumulators that stay there for a while are not.
    fn packs(&self, stmt: &Stmt) -> bool {
        let Stmt::Store { buffer, value, .. } = stmt else { return false };
        let is_scratch = |buffer| self.program.buffer(buffer).scope == Scope::Scratch;
        let mut pending = vec![*value];
        let mut is_outside = false;
        while let Some(root) = pending.pop() {
            for id in self.program.exprs.reachable(&[root]) {
                match self.program.exprs.get(id) {
                    Expr::Load { buffer, .. } => is_outside |= !is_scratch(*buffer),
                    Expr::Var(var) => pending.extend(self.bound[var.index()]),
                    _ => {}
                }
            }
        }
        is_scratch(*buffer) && is_outside
    }

    fn task(&mut self, task: usize, is_first: bool) -> Work {
        self.values[self.program.task.index()] = Some(task as i64);
        if let Some(groups) = self.program.groups {
            self.values[groups.first.index()] = Some(is_first.into());
        }
        let program = self.program;
        self.walk(&program.body)
    }

    fn walk(&mut self, body: &'a [Stmt]) -> Work {
        let mut work = Work::default();
        for stmt in body {
            let own = match self.instructions.get(&std::ptr::from_ref(stmt)) {
                Some(&own) => own,
                None => {
                    let own = instructions(&self.program.exprs, stmt);
                    self.instructions.insert(stmt, own);
                    own
                }
            };
            work.instructions += own;
            match stmt {
                Stmt::Let(var, value) if self.decides[var.index()] => {
                    self.values[var.index()] = self.eval(*value, 0).and_then(Number::as_i64);
                }
                Stmt::Store { value, mask, .. } if self.packing.contains(&std::ptr::from_ref(stmt)) => {
                    work.packed += self.pack(*value, *mask);
                }
                Stmt::For { var, start, end, step, kind, body } => {
                    let of_loop = self.iterations((*var, *start, *end, *step), *kind, body);
                    work.instructions += of_loop.instructions;
                    work.packed += of_loop.packed;
                }
                Stmt::If { condition, then, otherwise } => {
                    let taken = match self.eval(*condition, 0) {
                        Some(value) => self.walk(if value.is_true() { then } else { otherwise }),
                        None => {
                            let (then, otherwise) = (self.walk(then), self.walk(otherwise));
                            if then.instructions >= otherwise.instructions { then } else { otherwise }
                        }
                    };
                    work.instructions += taken.instructions;
                    work.packed += taken.packed;
                }
                _ => {}
            }
        }
        work
    }

    fn iterations(
        &mut self,
        (var, start, end, step): (VarId, ExprId, ExprId, i64),
        kind: LoopKind,
        body: &'a [Stmt],
    ) -> Work {
        /// Counting and the branch, in simple instructions.
        const ITERATION: f64 = 0.5;
        let bound = |walker: &Self, id| walker.eval(id, 0).and_then(Number::as_i64);
        let (Some(start), Some(end)) = (bound(self, start), bound(self, end)) else { return Work::default() };
        let step = step.max(1);
        let trips = (end - start + step - 1).max(0) / step;
        let mut work = Work::default();
        if self.decides[var.index()] {
            for trip in 0..trips {
                self.values[var.index()] = Some(start + trip * step);
                let of_trip = self.walk(body);
                work.instructions += of_trip.instructions;
                work.packed += of_trip.packed;
            }
        } else if trips > 0 {
            let of_trip = self.walk(body);
            work.instructions = of_trip.instructions * trips as f64;
            work.packed = of_trip.packed * trips as usize;
        }
        let counts = if kind == LoopKind::Unroll { 0.0 } else { ITERATION };
        Work { instructions: work.instructions + counts * trips as f64, ..work }
    }

    /// Notes the elements that a store brings to scratch; how many they are. What is made of no element, as padding is, does not count.
    fn pack(&mut self, value: ExprId, mask: Option<ExprId>) -> usize {
        let mut packed = 0;
        for lane in 0..self.program.exprs.lanes(value) {
            let is_active = mask.is_none_or(|mask| self.eval(mask, lane).is_none_or(Number::is_true));
            let mut elems = Vec::new();
            self.elems(value, lane, &mut elems);
            if is_active && !elems.is_empty() {
                let mut hasher = DefaultHasher::new();
                elems.hash(&mut hasher);
                self.seen.insert(hasher.finish());
                packed += 1;
            }
        }
        packed
    }

    /// The elements of memory, by buffer and offset, that a lane of a value is made of.
    fn elems(&self, id: ExprId, lane: usize, elems: &mut Vec<(usize, i64)>) {
        match self.program.exprs.get(id) {
            Expr::Load { buffer, offset, mask, .. } => {
                let is_active = mask.is_none_or(|mask| self.eval(mask, lane).is_none_or(Number::is_true));
                if is_active && let Some(at) = self.eval(*offset, lane).and_then(Number::as_i64) {
                    let lane = if self.program.exprs.lanes(*offset) == 1 { lane as i64 } else { 0 };
                    let lane = if self.program.exprs.lanes(id) == 1 { 0 } else { lane };
                    elems.push((buffer.index(), at + lane));
                }
            }
            Expr::Var(var) => {
                if let Some(value) = self.bound[var.index()] {
                    self.elems(value, lane, elems);
                }
            }
            Expr::Select(condition, a, b) => match self.eval(*condition, lane) {
                Some(value) => self.elems(if value.is_true() { *a } else { *b }, lane, elems),
                None => [*a, *b].into_iter().for_each(|side| self.elems(side, lane, elems)),
            },
            other => other.for_each_operand(|operand| self.elems(operand, lane, elems)),
        }
    }

    /// A lane of a value that depends on no memory.
    fn eval(&self, id: ExprId, lane: usize) -> Option<Number> {
        Known { exprs: &self.program.exprs, values: &self.values, bound: Some(&self.bound) }.eval(id, lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_thread;

    /// Six work items in two groups, whose first one brings 16 of 32 elements to scratch.
    const GROUPS: &str = "program k, 6 tasks task: i64 [0..=5] groups of 3 first: i64 [0..=1]
  input x: f32[32]
  output y: f32[6]
  scratch s: f32[16]
{
  if (first >= 1) {
    s[0] = x[((task // 3) * 16); 16]
  }
  let i: i64 [0..=5] = task
  y[i] = s[i]
}
";

    #[test]
    fn threads_that_share_a_group_pack_it_each() {
        let program = parse_thread(GROUPS).unwrap_or_else(|error| panic!("{error}"));
        let shares = WorkItemShares::of(&program);
        assert_eq!(
            (shares.distinct(), shares.packed(1), shares.packed(2), shares.packed(6)),
            (32, 32, 32, 96)
        );
        assert_eq!((shares.largest(2), shares.largest(3), shares.largest(4)), (1.0, 1.0, 4.0 / 3.0));
        assert_eq!(shares.speed_up(2), 2.0);
        assert!(shares.speed_up(6) < 6.0);
    }

    /// Three work items in each of two phases: more threads have nothing to do.
    #[test]
    fn work_items_of_one_phase_run_at_the_same_time() {
        let text = "program k, 6 tasks task: i64 [0..=5] phases 2 output y: i64[6] { y[task] = task }";
        let program = parse_thread(text).unwrap_or_else(|error| panic!("{error}"));
        let shares = WorkItemShares::of(&program);
        assert_eq!((shares.speed_up(3), shares.speed_up(6)), (3.0, 3.0));
        assert_eq!(shares.largest(2), 4.0 / 3.0);
    }
}
