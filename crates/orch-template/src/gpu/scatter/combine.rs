//! Updates that combine with slots of several elements: each thread applies what is its own, in the order of a list.

use super::tile::{Emitter, Owned};
use orch_compute::ScatterProgram;
use orch_compute::expr::{BufferId, ExprId, Type, VarId};
use orch_ir::DType;
use orch_thread::cta::{CtaStmt, WARP};
use orch_thread::program::{LoopKind, Stmt};

/// Updates of the list whose elements a thread reads together.
const TOGETHER: usize = 4;

/// The updates of the tile, in shared memory: each warp lists those among the ones that it looks at.
struct List {
    slots: BufferId,
    updates: BufferId,
    /// How many each warp has listed.
    counts: BufferId,
    /// Of each update that a thread looks at: its slot or -1.
    found: BufferId,
    /// Updates that a thread looks at, and a warp.
    step: usize,
    segment: usize,
}

/// Some updates that a warp has listed: where its segment starts, the first of them there, and how many the segment has.
#[derive(Clone, Copy)]
struct Segment {
    start: ExprId,
    first: ExprId,
    count: ExprId,
}

impl Emitter<'_> {
    /// ```text
    /// y = data, each slot by the threads that own it
    /// for some updates at a time:
    ///     each warp:  segment of the list = those of its updates that fall into the tile, in order     barrier
    ///     for update of the list:  the threads that own its slot:  y[slot] = combine(y[slot], update)     barrier
    /// ```
    pub fn combine(&mut self) -> Vec<Stmt> {
        let (threads, step) = (self.schedule.threads, self.schedule.step(self.scatter));
        let list = List {
            slots: self.shared("slots", DType::I32, threads * step),
            updates: self.shared("updates", DType::I32, threads * step),
            counts: self.shared("counts", DType::I32, threads / WARP),
            found: self.scratch("found", DType::I32, step),
            step,
            segment: step * WARP,
        };
        let (values, lanes) = (self.in_flight("values"), self.lanes);
        let copy = self.each_owned(
            |emitter, owned| {
                let value = emitter.data(owned.slot, owned.column, owned.exists);
                let offset = emitter.program.exprs.mul_const(owned.number, lanes as i64);
                vec![Stmt::Store { buffer: values, offset, value, mask: None }]
            },
            |emitter, owned| {
                let at = emitter.program.exprs.mul_const(owned.number, lanes as i64);
                let value = emitter.program.exprs.load(values, at, lanes, None);
                vec![emitter.store(owned, value)]
            },
        );
        let blocks = self.schedule.updates(self.scatter).div_ceil(threads * step);
        let apply = self.serial("block", blocks, 1, |emitter, block| {
            let mut body = emitter.list_updates(&list, block);
            body.push(Self::barrier());
            body.push(emitter.apply_list(&list));
            body.push(Self::barrier());
            body
        });
        vec![copy, apply]
    }

    fn list_updates(&mut self, list: &List, block: ExprId) -> Vec<Stmt> {
        let mut body = Vec::new();
        let (segment, width) = (list.segment, self.index(WARP));
        let (warp, lane) = (
            self.program.exprs.floor_div(self.thread, width),
            self.program.exprs.floor_rem(self.thread, width),
        );
        let (warp, lane) = (self.bind(&mut body, "warp", warp), self.bind(&mut body, "lane", lane));
        let start = self.program.exprs.mul_const(warp, segment as i64);
        let in_block = self.schedule.threads * list.step;
        let before = self.program.exprs.mul_const(block, in_block as i64);
        let first = self.program.exprs.add2(before, start);
        let update = |emitter: &mut Self, number: ExprId| {
            let exprs = &mut emitter.program.exprs;
            let within = exprs.mul_const(number, WARP as i64);
            let within = exprs.add2(within, lane);
            exprs.add2(first, within)
        };
        body.push(self.unrolled("number", list.step, |emitter, number| {
            let update = update(emitter, number);
            emitter.find_slot(update, list.found, number)
        }));
        let listed = self.program.exprs.declare_register("listed", Type::scalar(DType::I32));
        let zero = self.number(0);
        body.push(Stmt::Register(listed, zero));
        body.push(self.unrolled("number", list.step, |emitter, number| {
            let mut body = Vec::new();
            let slot = emitter.load_number(list.found, number, None);
            let (zero, one) = (emitter.number(0), emitter.number(1));
            let is_of_tile = emitter.program.exprs.ge(slot, zero);
            let is_of_tile = emitter.bind(&mut body, "is_of_tile", is_of_tile);
            let own = emitter.program.exprs.select(is_of_tile, one, zero);
            let (before, total) = emitter.lanes_before(own, lane, &mut body);
            let exprs = &mut emitter.program.exprs;
            let so_far = exprs.var(listed);
            let place = exprs.add2(so_far, before);
            let place = exprs.cast(DType::I64, place);
            let at = exprs.add2(start, place);
            let update = update(emitter, number);
            let update = emitter.as_number(update);
            let then = [(list.slots, slot), (list.updates, update)]
                .map(|(buffer, value)| Stmt::Store { buffer, offset: at, value, mask: None })
                .to_vec();
            body.push(Stmt::If { condition: is_of_tile, then, otherwise: Vec::new() });
            body.push(Stmt::Assign(listed, emitter.program.exprs.add2(so_far, total)));
            body
        }));
        let zero = self.index(0);
        let is_first = self.program.exprs.eq(lane, zero);
        let value = self.program.exprs.var(listed);
        let store = Stmt::Store { buffer: list.counts, offset: warp, value, mask: None };
        body.push(Stmt::If { condition: is_first, then: vec![store], otherwise: Vec::new() });
        body
    }

    /// The sum of the numbers of the lanes before, and of all lanes, by butterfly shuffles.
    fn lanes_before(&mut self, own: ExprId, lane: ExprId, body: &mut Vec<Stmt>) -> (ExprId, ExprId) {
        let (mut before, mut total) = (self.number(0), own);
        for with in (0..WARP.ilog2()).map(|log| 1usize << log) {
            let var: VarId = self.program.exprs.declare_register("other", Type::scalar(DType::I32));
            body.push(Stmt::Cta(CtaStmt::Shuffle { var, value: total, with }));
            let (width, two, one) = (self.index(with), self.index(2), self.index(1));
            let zero = self.number(0);
            let exprs = &mut self.program.exprs;
            let other = exprs.var(var);
            let half = exprs.floor_div(lane, width);
            let half = exprs.floor_rem(half, two);
            let is_upper = exprs.eq(half, one);
            let below = exprs.select(is_upper, other, zero);
            let (sum_before, sum) = (exprs.add2(before, below), exprs.add2(total, other));
            before = self.bind(body, "before", sum_before);
            total = self.bind(body, "total", sum);
        }
        (before, total)
    }

    /// Each thread applies the updates of the list whose slots are its own.
    fn apply_list(&mut self, list: &List) -> Stmt {
        let warps = self.schedule.threads / WARP;
        self.serial("segment", warps, 1, |emitter, segment| {
            let mut body = Vec::new();
            let count = emitter.load_index(list.counts, segment, None);
            let count = emitter.bind_index(&mut body, "count", count, list.segment + 1);
            let start = emitter.program.exprs.mul_const(segment, list.segment as i64);
            let (var, first) = emitter.program.exprs.fresh_index("first", list.segment);
            let columns = emitter.columns_of_thread();
            let each = emitter.serial("iteration", columns, 1, |emitter, iteration| {
                emitter.apply_some(list, Segment { start, first, count }, iteration)
            });
            let zero = emitter.index(0);
            let step = TOGETHER as i64;
            body.push(Stmt::For {
                var,
                start: zero,
                end: count,
                step,
                kind: LoopKind::Serial,
                body: vec![each],
            });
            body
        })
    }

    /// Applies some updates of the list to a vector of each of their slots.
    fn apply_some(&mut self, list: &List, segment: Segment, iteration: ExprId) -> Vec<Stmt> {
        let Segment { start, first, count } = segment;
        let (lanes, dtype) = (self.lanes, self.scatter.dtype());
        let slots = self.scratch("own", DType::I32, TOGETHER);
        let news = self.scratch("news", dtype, TOGETHER * lanes);
        let mut body = Vec::new();
        let column = self.own_column(&mut body, iteration);
        body.push(self.unrolled("number", TOGETHER, |emitter, number| {
            let mut body = Vec::new();
            let exprs = &mut emitter.program.exprs;
            let position = exprs.add2(first, number);
            let (is_listed, at) = (exprs.lt(position, count), exprs.add2(start, position));
            let is_listed = emitter.bind(&mut body, "is_listed", is_listed);
            let slot = emitter.load_index(list.slots, at, Some(is_listed));
            let slot = emitter.bind_index(&mut body, "slot", slot, emitter.slots);
            let update = emitter.load_index(list.updates, at, Some(is_listed));
            let count = emitter.schedule.updates(emitter.scatter);
            let update = emitter.bind_index(&mut body, "update", update, count);
            let (threads, own) = (emitter.index(emitter.slot_threads()), emitter.own_slot());
            let exists = emitter.exists(slot, column);
            let exprs = &mut emitter.program.exprs;
            let owner = exprs.floor_rem(slot, threads);
            let is_own = exprs.eq(owner, own);
            let is_own = exprs.all([is_listed, is_own, exists]);
            let is_own = emitter.bind(&mut body, "is_own", is_own);
            let from = emitter.update_offset(update, column);
            let new = emitter.elements(ScatterProgram::UPDATES, from, lanes, is_own);
            let (slot, none) = (emitter.as_number(slot), emitter.number(-1));
            let exprs = &mut emitter.program.exprs;
            let slot = exprs.select(is_own, slot, none);
            let offset = exprs.mul_const(number, lanes as i64);
            body.push(Stmt::Store { buffer: slots, offset: number, value: slot, mask: None });
            body.push(Stmt::Store { buffer: news, offset, value: new, mask: None });
            body
        }));
        body.push(self.unrolled("number", TOGETHER, |emitter, number| {
            let mut body = Vec::new();
            let (slot, exists) = emitter.found_slot(slots, number);
            let slot = emitter.bind_index(&mut body, "slot", slot, emitter.slots);
            let op = emitter.scatter.combine.expect("updates combine");
            let to = emitter.offset(slot, column);
            let exprs = &mut emitter.program.exprs;
            let old = exprs.load(BufferId::new(ScatterProgram::RESULT.index()), to, lanes, None);
            let at = exprs.mul_const(number, lanes as i64);
            let new = exprs.load(news, at, lanes, None);
            let value = emitter.combined(op, old, new);
            body.push(emitter.store(Owned { number, slot, column, exists }, value));
            body
        }));
        body
    }
}
