//! Statements that sort and merge pairs of keys and positions in scratch.

use super::order::KeyOrder;
use super::schedule::SelectionSchedule;
use orch_compute::expr::{BufferId, ExprId, VarId};
use orch_ir::{DType, ReduceOp};
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};

/// Scratch for some keys and their positions in the line.
#[derive(Clone, Copy)]
pub(super) struct Pairs {
    pub keys: BufferId,
    pub places: BufferId,
}

/// The type of positions in scratch.
pub(super) const PLACE: DType = DType::I32;

/// Writes statements of a thread program.
pub(super) struct SortEmitter {
    pub program: ThreadProgram,
    pub order: KeyOrder,
    pub schedule: SelectionSchedule,
    pub lanes: usize,
}

impl SortEmitter {
    /// Declares scratch of so many pairs.
    pub fn pairs(&mut self, name: &str, elems: usize) -> Pairs {
        let mut scratch = |what: &str, dtype: DType| {
            let name = format!("{name}_{what}");
            self.program.add_buffer(Buffer { name, dtype, elems, scope: Scope::Scratch })
        };
        Pairs { keys: scratch("keys", self.order.key), places: scratch("places", PLACE) }
    }

    /// A loop over `start..end` in steps of one, whose body takes the variable, which is below `extent`.
    pub fn for_each(
        &mut self,
        name: &str,
        (start, end, extent): (ExprId, ExprId, usize),
        body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>,
    ) -> Stmt {
        let (var, value) = self.program.exprs.fresh_index(name, extent);
        let body = body(self, value);
        Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body }
    }

    /// A loop over `0..count`.
    pub fn count_to(
        &mut self,
        name: &str,
        count: usize,
        body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>,
    ) -> Stmt {
        let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(count as i64));
        self.for_each(name, (start, end, count), body)
    }

    /// Binds a value.
    pub fn bind(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId) -> ExprId {
        let var = self.program.exprs.declare_register(name, self.program.exprs.ty(value));
        body.push(Stmt::Let(var, value));
        self.program.exprs.var(var)
    }

    /// Declares a register.
    pub fn register(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId) -> (VarId, ExprId) {
        let var = self.program.exprs.declare_register(name, self.program.exprs.ty(value));
        body.push(Stmt::Register(var, value));
        (var, self.program.exprs.var(var))
    }

    pub fn load(&mut self, buffer: BufferId, offset: ExprId) -> ExprId {
        self.program.exprs.load(buffer, offset, 1, None)
    }

    /// Stores a pair.
    pub fn store_pair(&mut self, to: Pairs, offset: ExprId, (key, place): (ExprId, ExprId)) -> [Stmt; 2] {
        [(to.keys, key), (to.places, place)].map(|(buffer, value)| Stmt::Store {
            buffer,
            offset,
            value,
            mask: None,
        })
    }

    /// Copies the pair at an offset to another.
    pub fn copy_pair(&mut self, (from, at): (Pairs, ExprId), (to, offset): (Pairs, ExprId)) -> [Stmt; 2] {
        let (key, place) = (self.load(from.keys, at), self.load(from.places, at));
        self.store_pair(to, offset, (key, place))
    }

    /// Sorts as many pairs as the schedule sorts, which lie in the first of two; returns where they are then.
    pub fn sort(&mut self, body: &mut Vec<Stmt>, [mut from, mut to]: [Pairs; 2]) -> Pairs {
        let SelectionSchedule { runs, run, .. } = self.schedule;
        body.push(self.rank_runs(from, to));
        (from, to) = (to, from);
        let mut length = run;
        while length < runs * run {
            body.push(self.merge_runs((from, to), length));
            (from, to) = (to, from);
            length *= 2;
        }
        from
    }

    /// Sorts runs: an element's rank is how many of its run come before it.
    fn rank_runs(&mut self, from: Pairs, to: Pairs) -> Stmt {
        let SelectionSchedule { runs, run, .. } = self.schedule;
        let lanes = self.lanes;
        self.count_to("run", runs, |emitter, number| {
            let mut body = Vec::new();
            let first = emitter.program.exprs.mul_const(number, run as i64);
            let vectors: Vec<(ExprId, Option<ExprId>, i64)> = (0..run)
                .step_by(lanes)
                .map(|start| {
                    let exprs = &mut emitter.program.exprs;
                    let at = exprs.add_const(first, start as i64);
                    let mask = (start + lanes > run).then(|| {
                        let (zero, valid) = (exprs.index(0), exprs.index((run - start) as i64));
                        let lane = exprs.ramp(zero, 1, lanes);
                        exprs.lt(lane, valid)
                    });
                    (at, mask, start as i64)
                })
                .collect();
            let mut ranked = Vec::new();
            for &(at, mask, start) in &vectors {
                let keys = emitter.program.exprs.load(from.keys, at, lanes, mask);
                let keys = emitter.bind(&mut body, "keys", keys);
                let zero = emitter.program.exprs.zero(PLACE);
                let zeros = emitter.program.exprs.splat(zero, lanes);
                let (rank, value) = emitter.register(&mut body, "rank", zeros);
                ranked.push((keys, rank, value, start));
            }
            let others = emitter.count_to("other", run, |emitter, other| {
                let mut body = Vec::new();
                let at = emitter.program.exprs.add2(first, other);
                let key = emitter.load(from.keys, at);
                let key = emitter.bind(&mut body, "key", key);
                let number = emitter.program.exprs.cast(PLACE, other);
                for &(keys, rank, value, start) in &ranked {
                    let exprs = &mut emitter.program.exprs;
                    let (key, number) = (exprs.splat(key, lanes), exprs.splat(number, lanes));
                    let start = exprs.int(PLACE, start);
                    let positions = exprs.ramp(start, 1, lanes);
                    let is_better = emitter.order.is_before(exprs, key, keys);
                    let is_worse = emitter.order.is_before(exprs, keys, key);
                    // Ties count where they have a lower position.
                    let (is_lower, is_no_worse) = (exprs.lt(number, positions), exprs.not(is_worse));
                    let is_tie = exprs.and(is_lower, is_no_worse);
                    let is_before = exprs.or(is_better, is_tie);
                    let (one, zero) = (exprs.int(PLACE, 1), exprs.int(PLACE, 0));
                    let (one, zero) = (exprs.splat(one, lanes), exprs.splat(zero, lanes));
                    let counted = exprs.select(is_before, one, zero);
                    let sum = exprs.add2(value, counted);
                    body.push(Stmt::Assign(rank, sum));
                }
                body
            });
            body.push(others);
            for (&(at, mask, _), &(keys, _, value, _)) in vectors.iter().zip(&ranked) {
                let exprs = &mut emitter.program.exprs;
                let places = exprs.load(from.places, at, lanes, mask);
                let rank = exprs.cast(DType::I64, value);
                let first = exprs.splat(first, lanes);
                let offset = exprs.add2(rank, first);
                for (buffer, value) in [(to.keys, keys), (to.places, places)] {
                    body.push(Stmt::Store { buffer, offset, value, mask });
                }
            }
            body
        })
    }

    /// Merges neighbouring sorted runs of a length, from both ends: as many steps as a run is long reach the end of neither.
    fn merge_runs(&mut self, (from, to): (Pairs, Pairs), length: usize) -> Stmt {
        let all = self.schedule.sorted();
        self.count_to("pair", all / (2 * length), |emitter, number| {
            let mut body = Vec::new();
            let exprs = &mut emitter.program.exprs;
            let first = exprs.mul_const(number, 2 * length as i64);
            let second = exprs.add_const(first, length as i64);
            let (first_end, second_end) =
                (exprs.add_const(second, -1), exprs.add_const(second, length as i64 - 1));
            let front = MergeEnd::front(emitter, &mut body, (from, first), (from, second));
            let back = MergeEnd::back(emitter, &mut body, (from, first_end), (from, second_end));
            let steps = emitter.count_to("step", length, |emitter, step| {
                let (low, high) = {
                    let exprs = &mut emitter.program.exprs;
                    (exprs.add2(first, step), exprs.sub(second_end, step))
                };
                let mut body = front.step(emitter, (to, low));
                body.extend(back.step(emitter, (to, high)));
                body
            });
            body.push(steps);
            body
        })
    }

    /// The best of two sorted lists of as many pairs, as many as one of them has.
    pub fn merge_best(&mut self, body: &mut Vec<Stmt>, (better, worse): (Pairs, Pairs), to: Pairs) {
        let zero = self.program.exprs.index(0);
        let front = MergeEnd::front(self, body, (better, zero), (worse, zero));
        let steps =
            self.count_to("step", self.schedule.sorted(), |emitter, step| front.step(emitter, (to, step)));
        body.push(steps);
    }

    /// Whether a vector of booleans has one that is true.
    pub fn is_any(&mut self, flags: ExprId) -> ExprId {
        let exprs = &mut self.program.exprs;
        let (one, zero) = (exprs.int(PLACE, 1), exprs.int(PLACE, 0));
        let (ones, zeros) = (exprs.splat(one, self.lanes), exprs.splat(zero, self.lanes));
        let counted = exprs.select(flags, ones, zeros);
        let most = exprs.reduce_lanes(ReduceOp::Max, counted);
        exprs.gt(most, zero)
    }
}

/// One end of a merge of two sorted lists, the first of which wins ties.
struct MergeEnd {
    first: Pairs,
    second: Pairs,
    /// Registers: the next element of each list.
    first_at: (VarId, ExprId),
    second_at: (VarId, ExprId),
    is_front: bool,
}

impl MergeEnd {
    fn front(
        emitter: &mut SortEmitter,
        body: &mut Vec<Stmt>,
        first: (Pairs, ExprId),
        second: (Pairs, ExprId),
    ) -> Self {
        let first_at = emitter.register(body, "first", first.1);
        let second_at = emitter.register(body, "second", second.1);
        Self { first: first.0, second: second.0, first_at, second_at, is_front: true }
    }

    fn back(
        emitter: &mut SortEmitter,
        body: &mut Vec<Stmt>,
        first: (Pairs, ExprId),
        second: (Pairs, ExprId),
    ) -> Self {
        Self { is_front: false, ..Self::front(emitter, body, first, second) }
    }

    /// Stores the next element, and moves on in the list that it is of: without branches, which would be mispredicted half of the time.
    fn step(&self, emitter: &mut SortEmitter, (to, offset): (Pairs, ExprId)) -> Vec<Stmt> {
        let mut body = Vec::new();
        let load =
            |emitter: &mut SortEmitter, body: &mut Vec<Stmt>, list: Pairs, (_, at): (VarId, ExprId)| {
                let (key, place) = (emitter.load(list.keys, at), emitter.load(list.places, at));
                (emitter.bind(body, "key", key), emitter.bind(body, "place", place))
            };
        let (key, place) = load(emitter, &mut body, self.first, self.first_at);
        let (other_key, other_place) = load(emitter, &mut body, self.second, self.second_at);
        let exprs = &mut emitter.program.exprs;
        let is_second_before = emitter.order.is_before(exprs, other_key, key);
        let takes_second = if self.is_front { is_second_before } else { exprs.not(is_second_before) };
        let takes_second = emitter.bind(&mut body, "takes_second", takes_second);
        let exprs = &mut emitter.program.exprs;
        let key = exprs.select(takes_second, other_key, key);
        let place = exprs.select(takes_second, other_place, place);
        let moved = exprs.cast(DType::I64, takes_second);
        let step = if self.is_front { 1 } else { -1 };
        let second_step = exprs.mul_const(moved, step);
        let second_next = exprs.add2(self.second_at.1, second_step);
        let whole = exprs.add_const(self.first_at.1, step);
        let first_next = exprs.sub(whole, second_step);
        body.extend(emitter.store_pair(to, offset, (key, place)));
        body.push(Stmt::Assign(self.second_at.0, second_next));
        body.push(Stmt::Assign(self.first_at.0, first_next));
        body
    }
}
