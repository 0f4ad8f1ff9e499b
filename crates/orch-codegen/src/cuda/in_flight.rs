//! Asynchronous wgmma in flight while threads compute: what the compiler must not move across `wgmma.wait_group`.
//!
//! To the compiler the accumulators are written by the statement that starts the wgmma, and arithmetic that should overlap it may
//! as well move behind the wait. Empty inline assembly with the registers as operands (`o_pin_registers`) keeps both in place.

use super::emitter::{Emitter, InFlightWgmma};
use orch_compute::{BufferId, Expr};
use orch_ir::DType;
use orch_thread::{Scope, Stmt, ThreadProgram};
use std::collections::BTreeSet;

impl Emitter<'_> {
    /// Pins the accumulators of a wgmma that has been waited for, so that no read of them moves before this line; `next` is the one
    /// that may be in flight instead.
    pub(super) fn pin_accumulators(&mut self, next: Option<InFlightWgmma>) {
        let is_same = |in_flight: &InFlightWgmma| {
            next.as_ref().is_some_and(|next| (next.acc, next.count) == (in_flight.acc, in_flight.count))
        };
        if let Some(InFlightWgmma { acc, count, .. }) =
            self.in_flight.take().filter(|in_flight| !is_same(in_flight))
        {
            let accs = self.pointer(&acc);
            self.line(&format!("o_pin_registers<{count}>({accs});"));
        }
        self.in_flight = next;
    }

    /// Notes that scratch is stored to.
    pub(super) fn note_store(&mut self, buffer: BufferId) {
        let info = self.program.buffer(buffer);
        let is_float = info.scope == Scope::Scratch && info.dtype == DType::F32;
        if let Some(in_flight) = self.in_flight.as_mut().filter(|_| is_float) {
            in_flight.stored.insert(buffer);
        }
    }

    /// Pins scratch that was computed while a wgmma was in flight and that `rest` reads, so that it is computed before this line.
    pub(super) fn pin_stored(&mut self, rest: &[Stmt]) {
        let Some(in_flight) = &self.in_flight else { return };
        let read = loaded_by(self.program, rest);
        let pinned: Vec<BufferId> = in_flight.stored.intersection(&read).copied().collect();
        for buffer in pinned {
            let (name, elems) = (self.buffers[buffer.index()].clone(), self.program.buffer(buffer).elems);
            self.line(&format!("o_pin_registers<{elems}>({name});"));
        }
    }
}

/// The buffers that statements load from.
fn loaded_by(program: &ThreadProgram, stmts: &[Stmt]) -> BTreeSet<BufferId> {
    let mut roots = Vec::new();
    let mut lists = vec![stmts];
    while let Some(list) = lists.pop() {
        for stmt in list {
            roots.extend(stmt.operands());
            lists.extend(stmt.bodies());
        }
    }
    let loaded = program.exprs.reachable(&roots).into_iter().filter_map(|id| match program.exprs.get(id) {
        Expr::Load { buffer, .. } => Some(*buffer),
        _ => None,
    });
    loaded.collect()
}

#[cfg(test)]
mod tests {
    use crate::cuda::emit;
    use orch_thread::parse_thread;
    use orch_thread::target::SM_90;

    /// Accumulators are read after the wait, and what overlaps the wgmma is computed before it.
    #[test]
    fn nothing_moves_across_the_end_of_a_product() {
        let text = "program k, 1 tasks task: i64 [0..=0]\n  cta 128 threads thread: i64 [0..=127], clusters of 1\n  \
             input x: f32[128]\n  output y: f32[128]\n  shared s: f16[8192]\n  scratch acc: f32[32]\n  scratch e: f32[4]\n  \
             scratch unread: f32[8]\n  scratch before: f32[16]\n{\n\
             for i: i64 [0..=31] = 0 to 32 step 1 unroll {\nacc[i] = 0.0\n}\nbefore[0] = x[thread]\n\
             wgmma f16, acc[0], s[0], s[4096], 64, 64, async\n\
             e[0] = exp(x[thread])\nunread[0] = x[thread]\nwgmma_wait\ny[thread] = ((acc[0] * e[0]) + before[0])\n}\n";
        let program = parse_thread(text).unwrap_or_else(|error| panic!("{error}"));
        let source = emit(&program, &SM_90);
        let kernel = &source[source.find("extern \"C\"").expect("a kernel")..];
        let place = |text: &str| kernel.find(text).unwrap_or_else(|| panic!("no `{text}` in {kernel}"));
        let order = [
            "e[0] =",
            "o_pin_registers<4>(e);",
            "o_wgmma_wait();",
            "o_pin_registers<32>(acc + 0);",
            "y[thread] =",
        ]
        .map(place);
        assert!(order.is_sorted(), "{kernel}");
        assert_eq!(kernel.matches("o_pin_registers<").count(), 2, "{kernel}");
    }
}
