//! Updates that replace: the last one of each slot counts.

use super::tile::Emitter;
use orch_compute::ScatterProgram;
use orch_ir::DType;
use orch_thread::cta::{CtaStmt, Location, RedOp};
use orch_thread::program::Stmt;

impl Emitter<'_> {
    /// ```text
    /// last[slots] = -1                                             barrier
    /// each thread, each of its updates u of the tile:  last[slot of u] = max(.., u)      barrier
    /// y[slot, column] = last[slot] >= 0 ? updates[last[slot], column] : data[slot, column]
    /// ```
    pub fn replace(&mut self) -> Vec<Stmt> {
        let last = self.shared("last", DType::I32, self.slots);
        let none = self.number(-1);
        let clear = self
            .each_slot(|_, slot| vec![Stmt::Store { buffer: last, offset: slot, value: none, mask: None }]);
        let (threads, step) = (self.schedule.threads, self.schedule.step(self.scatter));
        let found = self.scratch("found", DType::I32, step);
        let blocks = self.schedule.updates(self.scatter).div_ceil(threads * step);
        let look = self.serial("block", blocks, 1, |emitter, block| {
            let update = |emitter: &mut Self, number| {
                let exprs = &mut emitter.program.exprs;
                let before = exprs.mul_const(block, step as i64);
                let iteration = exprs.add2(before, number);
                let first = exprs.mul_const(iteration, threads as i64);
                exprs.add2(first, emitter.thread)
            };
            let find = emitter.unrolled("number", step, |emitter, number| {
                let update = update(emitter, number);
                emitter.find_slot(update, found, number)
            });
            let mark = emitter.unrolled("number", step, |emitter, number| {
                let update = update(emitter, number);
                let value = emitter.as_number(update);
                let (offset, is_of_tile) = emitter.found_slot(found, number);
                let to = Location { buffer: last, offset };
                vec![Stmt::Cta(CtaStmt::Red { op: RedOp::Max, to, value, mask: Some(is_of_tile) })]
            });
            vec![find, mark]
        });
        let values = self.in_flight("values");
        let lanes = self.lanes;
        let write = self.each_owned(
            |emitter, owned| {
                let mut body = Vec::new();
                let found = emitter.load_number(last, owned.slot, Some(owned.exists));
                let found = emitter.bind(&mut body, "found", found);
                let none = emitter.number(0);
                let exprs = &mut emitter.program.exprs;
                let is_updated = exprs.ge(found, none);
                let some = exprs.max(found, none);
                let update = exprs.cast(DType::I64, some);
                let count = emitter.schedule.updates(emitter.scatter);
                let update = emitter.bind_index(&mut body, "update", update, count);
                let exprs = &mut emitter.program.exprs;
                let is_kept = exprs.not(is_updated);
                let [is_updated, is_kept] = [is_updated, is_kept].map(|is_it| exprs.and(owned.exists, is_it));
                let from = emitter.update_offset(update, owned.column);
                let new = emitter.elements(ScatterProgram::UPDATES, from, lanes, is_updated);
                let old = emitter.data(owned.slot, owned.column, is_kept);
                let exprs = &mut emitter.program.exprs;
                let is_updated = exprs.splat(is_updated, lanes);
                let value = exprs.select(is_updated, new, old);
                let offset = exprs.mul_const(owned.number, lanes as i64);
                body.push(Stmt::Store { buffer: values, offset, value, mask: None });
                body
            },
            |emitter, owned| {
                let exprs = &mut emitter.program.exprs;
                let at = exprs.mul_const(owned.number, lanes as i64);
                let value = exprs.load(values, at, lanes, None);
                vec![emitter.store(owned, value)]
            },
        );
        vec![clear, Self::barrier(), look, Self::barrier(), write]
    }
}
