//! Template for selections of the best, and sorting, on GPUs: a CTA sorts a line in shared memory by a bitonic network.
//!
//! ```text
//! keys, places in shared memory, filled up to a power of two with keys that are worse than all others
//! for size in 2, 4, .. length:  for stride in size / 2, .. 2, 1:
//!     each thread: pairs (i, i + stride), put in order, best first in even blocks of the size     barrier
//! ```
//!
//! The network is not stable: ties are ordered by their positions. Longer lines than shared memory holds are for the graph to split.

use super::merge;
use crate::Design;
use crate::bind::{add_arguments, bind_index, bind_value, bound_kernel};
use crate::selection::order::KeyOrder;
use orch_compute::SelectionProgram;
use orch_compute::expr::{BufferId, ExprId};
use orch_compute::simplify::simplify;
use orch_ir::{BinaryFn, DType};
use orch_thread::cta::{CtaStmt, MAX_THREADS, WARP};
use orch_thread::kernel::Kernel;
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use orch_thread::target::GpuTarget;

/// The longest line that is sorted: beyond it a CTA has too many pairs for each thread.
pub const MAX_LINE: usize = 16 << 10;

/// The type of positions in shared memory.
const PLACE: DType = DType::I32;

/// How a CTA sorts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuSelectionSchedule {
    /// Elements that are sorted, a power of two.
    pub length: usize,
    /// Threads of the CTA.
    pub threads: usize,
}

impl GpuSelectionSchedule {
    /// The schedule of a selection of lines in any order; `None` if they are too long.
    pub fn of(selection: &SelectionProgram, target: &GpuTarget) -> Option<Self> {
        let length = selection.extent.next_power_of_two().max(2);
        let bytes = length * (selection.key_type().size_bytes() + PLACE.size_bytes());
        let threads = (length / 2).next_multiple_of(WARP).min(MAX_THREADS);
        (length <= MAX_LINE && bytes <= target.shared_bytes).then_some(Self { length, threads })
    }

    /// Steps of the network.
    pub fn steps(&self) -> usize {
        let levels = self.length.ilog2() as usize;
        levels * (levels + 1) / 2
    }

    /// Modelled cycles of an SM for all lines.
    pub fn cycles(&self, selection: &SelectionProgram, target: &GpuTarget) -> f64 {
        /// Of a step: its barrier, and a pair of a thread.
        const BARRIER: f64 = 40.0;
        const PAIR: f64 = 12.0;
        let pairs = self.length.div_ceil(2 * self.threads) as f64;
        // Warps of a CTA that its SM cannot issue at once.
        let turns = (self.threads as f64 / 128.0).max(1.0);
        let cta = self.steps() as f64 * (BARRIER + pairs * PAIR * turns);
        let bytes = self.length * (selection.key_type().size_bytes() + PLACE.size_bytes());
        let resident = (target.sm_threads / self.threads).min(target.sm_shared_bytes / (bytes + 1024)).max(1);
        // Resident CTAs hide each other's barriers only.
        let waves = selection.lines().div_ceil(target.sms * resident) as f64;
        let busy = self.steps() as f64 * pairs * PAIR * turns * (resident - 1) as f64;
        waves * (cta + if selection.lines() > target.sms { busy } else { 0.0 })
    }
}

/// Modelled cycles of an SM for all lines of a selection; `None` if there is no kernel for it.
pub fn cycles(selection: &SelectionProgram, target: &GpuTarget) -> Option<f64> {
    if selection.runs > 1 {
        return Some(merge::cycles(selection, target));
    }
    Some(GpuSelectionSchedule::of(selection, target)?.cycles(selection, target))
}

/// The design of a selection: by merging where lines consist of sorted runs, else if a CTA can sort them.
pub fn design(selection: &SelectionProgram, target: &GpuTarget) -> Option<Design> {
    if selection.runs > 1 {
        return Some(merge::design(selection));
    }
    let schedule = GpuSelectionSchedule::of(selection, target)?;
    let GpuSelectionSchedule { length, threads } = schedule;
    let schedule_name = format!("selection bitonic length={length} threads={threads}");
    Some(Design { kernel: lower(selection, &schedule), schedule: schedule_name })
}

/// Lowers a selection under a schedule.
pub fn lower(selection: &SelectionProgram, schedule: &GpuSelectionSchedule) -> Kernel {
    let mut program = ThreadProgram::new(&selection.name, selection.lines());
    let thread = program.set_cta(schedule.threads, 1);
    add_arguments(&mut program, &selection.args);
    let order = KeyOrder::of(selection);
    let mut shared = |name: &str, dtype: DType| {
        let (name, elems) = (name.to_owned(), schedule.length);
        program.add_buffer(Buffer { name, dtype, elems, scope: Scope::Shared })
    };
    let (keys, places) = (shared("keys", order.key), shared("places", PLACE));
    let thread = program.exprs.var(thread);
    let mut emitter = Emitter { selection, schedule: *schedule, order, program, keys, places, thread };
    let body = emitter.cta();
    emitter.program.body = body;
    bound_kernel(emitter.program, &selection.args)
}

struct Emitter<'a> {
    selection: &'a SelectionProgram,
    schedule: GpuSelectionSchedule,
    order: KeyOrder,
    program: ThreadProgram,
    keys: BufferId,
    places: BufferId,
    thread: ExprId,
}

impl Emitter<'_> {
    fn cta(&mut self) -> Vec<Stmt> {
        let SelectionProgram { outer, extent, inner, k, .. } = *self.selection;
        let exprs = &mut self.program.exprs;
        let line = exprs.var(self.program.task);
        let parts = exprs.unflatten(line, &[outer, inner]);
        let mut offset = |count: usize| {
            let offset = exprs.linear_index(&parts, &[count * inner, 1]);
            simplify(exprs, offset)
        };
        let (base, result) = (offset(extent), offset(k));
        let mut body = Vec::new();
        let base = self.let_value(&mut body, "base", base);
        let result = self.let_value(&mut body, "result", result);
        body.push(self.read_line(base));
        body.push(Stmt::Cta(CtaStmt::Barrier));
        let mut size = 2;
        while size <= self.schedule.length {
            let mut stride = size / 2;
            while stride > 0 {
                body.push(self.step(size, stride));
                body.push(Stmt::Cta(CtaStmt::Barrier));
                stride /= 2;
            }
            size *= 2;
        }
        body.push(self.write_results(result));
        body
    }

    fn let_value(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId) -> ExprId {
        bind_value(&mut self.program, body, name, value)
    }

    /// A loop whose iterations the threads of the CTA share.
    fn shared_loop(
        &mut self,
        name: &str,
        count: usize,
        body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>,
    ) -> Stmt {
        let threads = self.schedule.threads as i64;
        let (var, value) = self.program.exprs.fresh_index(name, count);
        let body = body(self, value);
        let end = self.program.exprs.index(count as i64);
        Stmt::For { var, start: self.thread, end, step: threads, kind: LoopKind::Serial, body }
    }

    fn read_line(&mut self, base: ExprId) -> Stmt {
        let SelectionProgram { extent, inner, .. } = *self.selection;
        self.shared_loop("position", self.schedule.length, |emitter, position| {
            let exprs = &mut emitter.program.exprs;
            let scaled = exprs.mul_const(position, inner as i64);
            let at = exprs.add2(base, scaled);
            let end = exprs.index(extent as i64);
            let exists = exprs.lt(position, end);
            let exists = simplify(exprs, exists);
            let x = BufferId::new(SelectionProgram::X.index());
            let value = exprs.load(x, at, 1, Some(exists));
            let key = exprs.cast(emitter.order.key, value);
            let worst = emitter.order.worst(exprs);
            let key = exprs.select(exists, key, worst);
            let place = exprs.cast(PLACE, position);
            [(emitter.keys, key), (emitter.places, place)]
                .map(|(buffer, value)| Stmt::Store { buffer, offset: position, value, mask: None })
                .to_vec()
        })
    }

    /// Puts pairs at a distance of `stride` in order.
    fn step(&mut self, size: usize, stride: usize) -> Stmt {
        let length = self.schedule.length;
        self.shared_loop("pair", length / 2, |emitter, number| {
            let mut body = Vec::new();
            let exprs = &mut emitter.program.exprs;
            let width = exprs.index(stride as i64);
            let (block, within) = (exprs.floor_div(number, width), exprs.floor_rem(number, width));
            let start = exprs.mul_const(block, 2 * stride as i64);
            let low = exprs.add2(start, within);
            let low = bind_index(&mut emitter.program, &mut body, "low", low, length);
            let high = emitter.program.exprs.add_const(low, stride as i64);
            let [key, other_key, place, other_place] = [
                ("key", emitter.keys, low),
                ("other_key", emitter.keys, high),
                ("place", emitter.places, low),
                ("other_place", emitter.places, high),
            ]
            .map(|(name, buffer, at)| {
                let value = emitter.program.exprs.load(buffer, at, 1, None);
                emitter.let_value(&mut body, name, value)
            });
            let exprs = &mut emitter.program.exprs;
            let is_better = emitter.order.is_before(exprs, other_key, key);
            let is_worse = emitter.order.is_before(exprs, key, other_key);
            let (is_no_worse, is_lower) = (exprs.not(is_worse), exprs.lt(other_place, place));
            let is_tie = exprs.and(is_no_worse, is_lower);
            let mut swaps = exprs.or(is_better, is_tie);
            if size < length {
                let (size, two, one) = (exprs.index(size as i64), exprs.index(2), exprs.index(1));
                let block = exprs.floor_div(low, size);
                let parity = exprs.floor_rem(block, two);
                let is_odd = exprs.eq(parity, one);
                let is_odd = simplify(exprs, is_odd);
                swaps = exprs.binary(BinaryFn::Xor, swaps, is_odd);
            }
            let stores = [
                (emitter.keys, low, other_key),
                (emitter.keys, high, key),
                (emitter.places, low, other_place),
                (emitter.places, high, place),
            ];
            let then = stores
                .map(|(buffer, offset, value)| Stmt::Store { buffer, offset, value, mask: None })
                .to_vec();
            body.push(Stmt::If { condition: swaps, then, otherwise: Vec::new() });
            body
        })
    }

    fn write_results(&mut self, base: ExprId) -> Stmt {
        let SelectionProgram { inner, k, values, places, .. } = *self.selection;
        let results = [(values, self.keys), (places, self.places)];
        self.shared_loop("rank", k, |emitter, rank| {
            let mut body = Vec::new();
            for (arg, from) in results {
                let Some(arg) = arg else { continue };
                let exprs = &mut emitter.program.exprs;
                let scaled = exprs.mul_const(rank, inner as i64);
                let offset = exprs.add2(base, scaled);
                let value = exprs.load(from, rank, 1, None);
                let value = exprs.cast(emitter.selection.arg(arg).dtype, value);
                body.push(Stmt::Store { buffer: BufferId::new(arg.index()), offset, value, mask: None });
            }
            body
        })
    }
}
