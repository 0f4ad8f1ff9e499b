//! Selections as thread programs of a CPU.

use super::emitter::{PLACE, Pairs, SortEmitter};
use super::order::KeyOrder;
use super::schedule::SelectionSchedule;
use crate::bind::{add_arguments, bound_kernel};
use orch_compute::SelectionProgram;
use orch_compute::expr::{ArgId, BufferId, ExprId, VarId};
use orch_compute::simplify::simplify;
use orch_ir::DType;
use orch_thread::kernel::Kernel;
use orch_thread::program::{LoopKind, Stmt, ThreadProgram};
use orch_thread::target::CpuTarget;

/// Vectors of a chunk of a line that is passed over if nothing in it is selected.
const CHUNK_VECTORS: usize = 4;

/// Lowers a selection under a schedule.
pub fn lower(selection: &SelectionProgram, schedule: &SelectionSchedule, target: &CpuTarget) -> Kernel {
    let order = KeyOrder::of(selection);
    let mut program = ThreadProgram::new(&selection.name, schedule.tasks(selection));
    add_arguments(&mut program, &selection.args);
    let lanes = target.lanes(order.key.size_bytes());
    let emitter = SortEmitter { program, order, schedule: *schedule, lanes };
    let mut lowering = Lowering { selection, emitter, base: ExprId(0), result: ExprId(0) };
    let body = lowering.task();
    lowering.emitter.program.body = body;
    bound_kernel(lowering.emitter.program, &selection.args)
}

struct Lowering<'a> {
    selection: &'a SelectionProgram,
    emitter: SortEmitter,
    /// The offset of the line's first element.
    base: ExprId,
    /// The offset of its first result.
    result: ExprId,
}

/// What the selection of a few keeps.
struct Kept {
    best: Pairs,
    fresh: [Pairs; 2],
    merged: Pairs,
    /// Registers: how many fresh ones there are, and the last of the best.
    count: (VarId, ExprId),
    limit: (VarId, ExprId),
}

impl Lowering<'_> {
    fn task(&mut self) -> Vec<Stmt> {
        let (lines, each) = (self.selection.lines(), self.emitter.schedule.lines);
        let sorted = self.emitter.schedule.sorted();
        let scratch = [0, 1].map(|number| self.emitter.pairs(&format!("part{number}"), sorted));
        let kept = (!self.emitter.schedule.sorts_line)
            .then(|| (self.emitter.pairs("best", sorted), self.emitter.pairs("merged", sorted)));
        let exprs = &mut self.emitter.program.exprs;
        let task = exprs.var(self.emitter.program.task);
        let first = exprs.mul_const(task, each as i64);
        let (next, all) = (exprs.add_const(first, each as i64), exprs.index(lines as i64));
        let end = if lines.is_multiple_of(each) { next } else { exprs.min(next, all) };
        let (var, line) = exprs.fresh_index("line", lines);
        let SelectionProgram { outer, extent, inner, k, .. } = *self.selection;
        let parts = exprs.unflatten(line, &[outer, inner]);
        let mut offset = |count: usize| {
            let offset = exprs.linear_index(&parts, &[count * inner, 1]);
            simplify(exprs, offset)
        };
        let (base, result) = (offset(extent), offset(k));
        let mut body = Vec::new();
        self.base = self.emitter.bind(&mut body, "base", base);
        self.result = self.emitter.bind(&mut body, "result", result);
        match kept {
            None => self.sort_line(&mut body, scratch),
            Some((best, merged)) => self.select(&mut body, (best, scratch, merged)),
        }
        vec![Stmt::For { var, start: first, end, step: 1, kind: LoopKind::Serial, body }]
    }

    fn buffer(arg: ArgId) -> BufferId {
        BufferId::new(arg.index())
    }

    /// The keys of `lanes` elements from a position of the line on.
    fn keys(&mut self, position: ExprId, lanes: usize) -> ExprId {
        let inner = self.selection.inner as i64;
        let exprs = &mut self.emitter.program.exprs;
        let scaled = exprs.mul_const(position, inner);
        let at = exprs.add2(self.base, scaled);
        let offset = if lanes > 1 && inner > 1 { exprs.ramp(at, inner, lanes) } else { at };
        let value = exprs.load(Self::buffer(SelectionProgram::X), offset, lanes, None);
        exprs.cast(self.emitter.order.key, value)
    }

    /// Copies the first positions of the line to scratch; those past its end are worse than all others.
    fn copy_first(&mut self, body: &mut Vec<Stmt>, to: Pairs) {
        let (extent, sorted) = (self.selection.extent, self.emitter.schedule.sorted());
        let (zero, held) = (
            self.emitter.program.exprs.index(0),
            self.emitter.program.exprs.index(extent.min(sorted) as i64),
        );
        let all = self.emitter.program.exprs.index(sorted as i64);
        let (var, position) = self.emitter.program.exprs.fresh_index("position", sorted);
        let key = self.keys(position, 1);
        let place = self.emitter.program.exprs.cast(PLACE, position);
        let stores = self.emitter.store_pair(to, position, (key, place)).to_vec();
        body.push(Stmt::For { var, start: zero, end: held, step: 1, kind: LoopKind::Serial, body: stores });
        if extent < sorted {
            body.push(self.fill(to, (held, all)));
        }
    }

    /// Fills scratch with pairs that are worse than all others.
    fn fill(&mut self, to: Pairs, (start, end): (ExprId, ExprId)) -> Stmt {
        let sorted = self.emitter.schedule.sorted();
        self.emitter.for_each("position", (start, end, sorted), |emitter, position| {
            let key = emitter.order.worst(&mut emitter.program.exprs);
            let place = emitter.program.exprs.zero(PLACE);
            emitter.store_pair(to, position, (key, place)).to_vec()
        })
    }

    fn sort_line(&mut self, body: &mut Vec<Stmt>, scratch: [Pairs; 2]) {
        self.copy_first(body, scratch[0]);
        let sorted = self.emitter.sort(body, scratch);
        body.push(self.store_results(sorted));
    }

    fn select(&mut self, body: &mut Vec<Stmt>, scratch: (Pairs, [Pairs; 2], Pairs)) {
        let (best, k) = (scratch.0, self.selection.k);
        match self.emitter.schedule.speculative_rank {
            None => _ = self.look(body, scratch, k),
            Some(rank) => {
                let limit = self.look(body, scratch, rank);
                // What was passed over does not come before the limit: some of it is missing if the last of the best comes after it.
                let last = self.best_of_rank(best, k);
                let order = self.emitter.order;
                let is_incomplete = order.is_before(&mut self.emitter.program.exprs, limit, last);
                let mut again = Vec::new();
                self.look(&mut again, scratch, k);
                body.push(Stmt::If { condition: is_incomplete, then: again, otherwise: Vec::new() });
            }
        }
        body.push(self.store_results(best));
    }

    /// Keeps the best of a line. Until `k` are known that come before the element of a rank, from 1 on, among the first, others are passed over;
    /// gives the key of that element.
    fn look(
        &mut self,
        body: &mut Vec<Stmt>,
        (best, fresh, merged): (Pairs, [Pairs; 2], Pairs),
        rank: usize,
    ) -> ExprId {
        let (extent, sorted) = (self.selection.extent, self.emitter.schedule.sorted());
        self.copy_first(body, fresh[0]);
        let first = self.emitter.sort(body, fresh);
        body.push(self.copy_all(first, best));
        let zero = self.emitter.program.exprs.index(0);
        let count = self.emitter.register(body, "count", zero);
        let of_rank = self.best_of_rank(best, rank);
        let first_limit = self.emitter.bind(body, "first_limit", of_rank);
        let limit = self.emitter.register(body, "limit", first_limit);
        let kept = Kept { best, fresh, merged, count, limit };
        let chunk = CHUNK_VECTORS * self.emitter.lanes;
        let chunks = (extent - sorted) / chunk;
        let passed_over = self.emitter.program.exprs.index((sorted + chunks * chunk) as i64);
        let start = self.emitter.program.exprs.index(sorted as i64);
        if chunks > 0 {
            let (var, first) = self.emitter.program.exprs.fresh_index("chunk", extent);
            let mut look = Vec::new();
            let is_any = self.is_any_before(&mut look, first, kept.limit.1);
            let end = self.emitter.program.exprs.add_const(first, chunk as i64);
            let then = vec![self.collect(&kept, (first, end))];
            look.push(Stmt::If { condition: is_any, then, otherwise: Vec::new() });
            let kind = LoopKind::Serial;
            body.push(Stmt::For { var, start, end: passed_over, step: chunk as i64, kind, body: look });
        }
        let end = self.emitter.program.exprs.index(extent as i64);
        body.push(self.collect(&kept, (passed_over, end)));
        // The rest of the fresh ones is worse than all others.
        let mut rest = vec![];
        let all = self.emitter.program.exprs.index(sorted as i64);
        rest.push(self.fill(fresh[0], (kept.count.1, all)));
        self.merge_fresh(&mut rest, &kept);
        let condition = self.emitter.program.exprs.gt(kept.count.1, zero);
        body.push(Stmt::If { condition, then: rest, otherwise: Vec::new() });
        first_limit
    }

    /// Whether an element of the chunk from a position on comes before the limit.
    fn is_any_before(&mut self, body: &mut Vec<Stmt>, first: ExprId, limit: ExprId) -> ExprId {
        let lanes = self.emitter.lanes;
        let mut any = None;
        for number in 0..CHUNK_VECTORS {
            let at = self.emitter.program.exprs.add_const(first, (number * lanes) as i64);
            let keys = self.keys(at, lanes);
            let exprs = &mut self.emitter.program.exprs;
            let limits = exprs.splat(limit, lanes);
            let is_before = self.emitter.order.is_before(exprs, keys, limits);
            any = Some(any.map_or(is_before, |any| exprs.or(any, is_before)));
        }
        let any = self.emitter.is_any(any.expect("a chunk has vectors"));
        self.emitter.bind(body, "is_any", any)
    }

    /// Collects the elements between two positions that come before the limit.
    fn collect(&mut self, kept: &Kept, (start, end): (ExprId, ExprId)) -> Stmt {
        let (extent, sorted) = (self.selection.extent, self.emitter.schedule.sorted());
        let (var, position) = self.emitter.program.exprs.fresh_index("position", extent);
        let mut body = Vec::new();
        let key = self.keys(position, 1);
        let key = self.emitter.bind(&mut body, "key", key);
        let exprs = &mut self.emitter.program.exprs;
        let is_before = self.emitter.order.is_before(exprs, key, kept.limit.1);
        let place = exprs.cast(PLACE, position);
        // Storing each element without a branch took up to twice as long: few are selected.
        let (next, all) = (exprs.add_const(kept.count.1, 1), exprs.index(sorted as i64));
        let mut then = self.emitter.store_pair(kept.fresh[0], kept.count.1, (key, place)).to_vec();
        then.push(Stmt::Assign(kept.count.0, next));
        let mut merge = Vec::new();
        self.merge_fresh(&mut merge, kept);
        let is_full = self.emitter.program.exprs.ge(kept.count.1, all);
        then.push(Stmt::If { condition: is_full, then: merge, otherwise: Vec::new() });
        body.push(Stmt::If { condition: is_before, then, otherwise: Vec::new() });
        Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body }
    }

    /// Merges the fresh ones, as many as are sorted at a time, with the best.
    fn merge_fresh(&mut self, body: &mut Vec<Stmt>, kept: &Kept) {
        let sorted = self.emitter.sort(body, kept.fresh);
        self.emitter.merge_best(body, (kept.best, sorted), kept.merged);
        body.push(self.copy_all(kept.merged, kept.best));
        let last = self.best_of_rank(kept.best, self.selection.k);
        let last = self.emitter.bind(body, "last", last);
        let (order, exprs) = (self.emitter.order, &mut self.emitter.program.exprs);
        // A speculative limit stays until there are `k` that come before it.
        let is_before = order.is_before(exprs, last, kept.limit.1);
        let (limit, zero) = (exprs.select(is_before, last, kept.limit.1), exprs.index(0));
        body.push(Stmt::Assign(kept.limit.0, limit));
        body.push(Stmt::Assign(kept.count.0, zero));
    }

    /// The key of a rank, from 1 on, among the best.
    fn best_of_rank(&mut self, best: Pairs, rank: usize) -> ExprId {
        let at = self.emitter.program.exprs.index(rank as i64 - 1);
        self.emitter.load(best.keys, at)
    }

    /// Copies all pairs, one by one: vectors would wait for what was just stored one by one.
    fn copy_all(&mut self, from: Pairs, to: Pairs) -> Stmt {
        let sorted = self.emitter.schedule.sorted();
        self.emitter.count_to("pair", sorted, |emitter, at| emitter.copy_pair((from, at), (to, at)).to_vec())
    }

    fn store_results(&mut self, from: Pairs) -> Stmt {
        let SelectionProgram { inner, k, values, places, .. } = *self.selection;
        let results = [(values, from.keys), (places, from.places)];
        let types = results.map(|(arg, _)| arg.map_or(DType::I64, |arg| self.selection.arg(arg).dtype));
        let base = self.result;
        self.emitter.count_to("rank", k, |emitter, rank| {
            let exprs = &mut emitter.program.exprs;
            let scaled = exprs.mul_const(rank, inner as i64);
            let offset = exprs.add2(base, scaled);
            let mut body = Vec::new();
            for ((arg, from), dtype) in results.into_iter().zip(types) {
                let Some(arg) = arg else { continue };
                let value = exprs.load(from, rank, 1, None);
                let value = exprs.cast(dtype, value);
                body.push(Stmt::Store { buffer: Self::buffer(arg), offset, value, mask: None });
            }
            body
        })
    }
}
