//! Updates that combine with slots of one element: a slot's updates apply one in a round, in order.

use super::tile::Emitter;
use orch_compute::ScatterProgram;
use orch_compute::expr::{BufferId, ExprId, Type};
use orch_ir::DType;
use orch_thread::cta::{CtaStmt, Location, RedOp};
use orch_thread::program::{LoopKind, Stmt};

/// Buffers of the rounds.
struct Rounds {
    /// Of each slot in shared memory: its element, the first update that is left, and how many updates are.
    accs: BufferId,
    first: BufferId,
    counts: BufferId,
    /// The most updates of a slot, in shared memory.
    deepest: BufferId,
    /// Of each update of the thread: its slot or -1, its element, and whether it is the first that is left.
    slots: BufferId,
    values: BufferId,
    wins: BufferId,
    /// Updates of a thread.
    step: usize,
}

impl Emitter<'_> {
    /// ```text
    /// accs = data
    /// for some updates at a time:
    ///     counts[slot] = how many fall into it;  rounds = the most                         barriers
    ///     for each round:
    ///         first[slot] = the first one that is left, by red.min                          barrier
    ///         the thread of the first one:  accs[slot] = combine(accs[slot], update)          barrier
    ///         the same thread:  first[slot] = none, and the update is not left           barrier
    /// y = accs
    /// ```
    pub fn rounds(&mut self) -> Vec<Stmt> {
        let (threads, step) = (self.schedule.threads, self.schedule.step(self.scatter));
        let (dtype, slots) = (self.scatter.dtype(), self.slots);
        let state = Rounds {
            accs: self.shared("accs", dtype, slots),
            first: self.shared("first", DType::I32, slots),
            counts: self.shared("counts", DType::I32, slots),
            deepest: self.shared("deepest", DType::I32, 1),
            slots: self.scratch("slots", DType::I32, step),
            values: self.scratch("values", dtype, step),
            wins: self.scratch("wins", DType::I32, step),
            step,
        };
        let start = self.each_slot(|emitter, slot| {
            let zero = emitter.index(0);
            let exists = emitter.exists(slot, zero);
            let value = emitter.data(slot, zero, exists);
            let (none, zero) = (emitter.number(i32::MAX.into()), emitter.number(0));
            [(state.accs, value), (state.first, none), (state.counts, zero)]
                .map(|(buffer, value)| Stmt::Store { buffer, offset: slot, value, mask: None })
                .to_vec()
        });
        let blocks = self.schedule.updates(self.scatter).div_ceil(threads * step);
        let apply = self.serial("block", blocks, 1, |emitter, block| {
            let mut body = vec![emitter.forget_deepest(&state)];
            body.extend(emitter.count_updates(&state, block));
            body.push(Self::barrier());
            body.extend(emitter.find_deepest(&state));
            body.push(Self::barrier());
            let zero = emitter.index(0);
            let rounds = emitter.load_index(state.deepest, zero, None);
            let rounds = emitter.bind_index(&mut body, "rounds", rounds, threads * step + 1);
            let (var, _) = emitter.program.exprs.fresh_index("round", threads * step);
            let (start, round) = (emitter.index(0), emitter.round(&state, block));
            body.push(Stmt::For { var, start, end: rounds, step: 1, kind: LoopKind::Serial, body: round });
            body.push(Self::barrier());
            body
        });
        let write = self.each_owned(
            |_, _| Vec::new(),
            |emitter, owned| {
                let exists = Some(owned.exists);
                let value = emitter.program.exprs.load(state.accs, owned.slot, 1, exists);
                vec![emitter.store(owned, value)]
            },
        );
        vec![start, Self::barrier(), apply, write]
    }

    fn forget_deepest(&mut self, state: &Rounds) -> Stmt {
        let (value, offset) = (self.number(0), self.index(0));
        let condition = self.program.exprs.eq(self.thread, offset);
        let store = Stmt::Store { buffer: state.deepest, offset, value, mask: None };
        Stmt::If { condition, then: vec![store], otherwise: Vec::new() }
    }

    /// The number of an update of the thread.
    fn update_of(&mut self, state: &Rounds, block: ExprId, number: ExprId) -> ExprId {
        let exprs = &mut self.program.exprs;
        let before = exprs.mul_const(block, state.step as i64);
        let iteration = exprs.add2(before, number);
        let first = exprs.mul_const(iteration, self.schedule.threads as i64);
        exprs.add2(first, self.thread)
    }

    fn count_updates(&mut self, state: &Rounds, block: ExprId) -> Vec<Stmt> {
        let find = self.unrolled("number", state.step, |emitter, number| {
            let update = emitter.update_of(state, block, number);
            emitter.find_slot(update, state.slots, number)
        });
        let load = self.unrolled("number", state.step, |emitter, number| {
            let update = emitter.update_of(state, block, number);
            let (_, is_left) = emitter.found_slot(state.slots, number);
            let zero = emitter.index(0);
            let from = emitter.update_offset(update, zero);
            let value = emitter.elements(ScatterProgram::UPDATES, from, 1, is_left);
            vec![Stmt::Store { buffer: state.values, offset: number, value, mask: None }]
        });
        let count = self.unrolled("number", state.step, |emitter, number| {
            let (offset, is_left) = emitter.found_slot(state.slots, number);
            let (to, value) = (Location { buffer: state.counts, offset }, emitter.number(1));
            vec![Stmt::Cta(CtaStmt::Red { op: RedOp::Add, to, value, mask: Some(is_left) })]
        });
        vec![find, load, count]
    }

    fn find_deepest(&mut self, state: &Rounds) -> Vec<Stmt> {
        let most = self.program.exprs.declare_register("most", Type::scalar(DType::I32));
        let zero = self.number(0);
        let each = self.unrolled("number", state.step, |emitter, number| {
            let (slot, is_left) = emitter.found_slot(state.slots, number);
            let count = emitter.load_number(state.counts, slot, Some(is_left));
            let exprs = &mut emitter.program.exprs;
            let most_so_far = exprs.var(most);
            vec![Stmt::Assign(most, exprs.max(most_so_far, count))]
        });
        let (offset, value) = (self.index(0), self.program.exprs.var(most));
        let to = Location { buffer: state.deepest, offset };
        let combine = Stmt::Cta(CtaStmt::Red { op: RedOp::Max, to, value, mask: None });
        vec![Stmt::Register(most, zero), each, combine]
    }

    fn round(&mut self, state: &Rounds, block: ExprId) -> Vec<Stmt> {
        let find = self.unrolled("number", state.step, |emitter, number| {
            let update = emitter.update_of(state, block, number);
            let value = emitter.as_number(update);
            let (offset, is_left) = emitter.found_slot(state.slots, number);
            let to = Location { buffer: state.first, offset };
            vec![Stmt::Cta(CtaStmt::Red { op: RedOp::Min, to, value, mask: Some(is_left) })]
        });
        let apply = self.unrolled("number", state.step, |emitter, number| {
            let mut body = Vec::new();
            let update = emitter.update_of(state, block, number);
            let update = emitter.as_number(update);
            let (slot, is_left) = emitter.found_slot(state.slots, number);
            let slot = emitter.bind_index(&mut body, "slot", slot, emitter.slots);
            let first = emitter.load_number(state.first, slot, Some(is_left));
            let exprs = &mut emitter.program.exprs;
            let is_first = exprs.eq(first, update);
            let wins = exprs.and(is_left, is_first);
            let wins = emitter.bind(&mut body, "wins", wins);
            let value = emitter.as_number(wins);
            body.push(Stmt::Store { buffer: state.wins, offset: number, value, mask: None });
            let op = emitter.scatter.combine.expect("updates combine");
            let exprs = &mut emitter.program.exprs;
            let (old, new) =
                (exprs.load(state.accs, slot, 1, None), exprs.load(state.values, number, 1, None));
            let value = emitter.combined(op, old, new);
            let store = Stmt::Store { buffer: state.accs, offset: slot, value, mask: None };
            body.push(Stmt::If { condition: wins, then: vec![store], otherwise: Vec::new() });
            body
        });
        let remove = self.unrolled("number", state.step, |emitter, number| {
            let (slot, _) = emitter.found_slot(state.slots, number);
            let (none, zero, gone) = (emitter.number(i32::MAX.into()), emitter.number(0), emitter.number(-1));
            let wins = emitter.load_number(state.wins, number, None);
            let condition = emitter.program.exprs.ne(wins, zero);
            let store = |buffer, offset, value| Stmt::Store { buffer, offset, value, mask: None };
            let then = vec![
                store(state.first, slot, none),
                store(state.counts, slot, zero),
                store(state.slots, number, gone),
            ];
            vec![Stmt::If { condition, then, otherwise: Vec::new() }]
        });
        vec![find, Self::barrier(), apply, Self::barrier(), remove, Self::barrier()]
    }
}
