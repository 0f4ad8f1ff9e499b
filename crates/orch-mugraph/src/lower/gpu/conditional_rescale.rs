//! Conditional rescaling (as FlashAttention-4): a running maximum is only updated when its row has grown by
//! more than a threshold.
//!
//! Exponentials may be relative to any value of their row: maxima only keep them finite, and the stable form
//! is proved with maxima as free symbols. So a maximum may be stale, as long as exponentials fit their 16-bit
//! type. Most iterations then neither reduce row maxima nor rescale accumulators:
//!
//! ```text
//! if any element of the warp's rows > max + ln 256 {       (limit = max + ln 256 in registers)
//!   max_before = max; max = max(max, row maximum); rescale = e^(degree * (max_before - max)); limit = max + ln 256
//! } else {
//!   max_before = max; rescale = 1
//! }
//! ```
//!
//! Maxima that the kernel stores are the stale ones, to which the sums are relative.
//!
//! Comparing with a non-negative limit takes half an instruction per element (as integers); a negative limit
//! counts as exceeded. On an H200 attention of 4096 queries by 4096 keys takes 8 % less time. Scores that
//! keep growing along the keys would take longer than without: the branch is taken in each iteration.

use super::accumulate::Rescale;
use super::emitter::BlockEmitter;
use super::layout::{ColumnLayout, FRAGMENT_COLUMNS, FragmentLayout, RegisterTile};
use super::reduce::reduction_of;
use super::steps::TileStep;
use super::value::TileHome;
use crate::graph::Accumulation;
use crate::op::ReduceFn;
use orch_compute::{BufferId, ExprId, Type};
use orch_ir::DType;
use orch_thread::{CtaStmt, Scope, Stmt};

/// How far an element may exceed the stale maximum: ln 256, so exponentials stay below 256, which f16 and
/// bf16 hold with sums to spare.
const SLACK: f64 = 8.0 * std::f64::consts::LN_2;
/// Registers up to which multiplying by 1 is cheaper than a branch.
const FEW_REGISTERS: usize = 4;

/// The reduction that gives row maxima: function, dimension, group.
type RowMaximum = (ReduceFn, usize, usize);

/// The tile whose rows' maxima are updated (scores), and its register layout.
pub(super) struct RowElements {
    tile: usize,
    at: FragmentLayout,
}

/// A conditionally updated maximum of the loop.
#[derive(Clone, Debug)]
pub(super) struct ConditionalRescale {
    /// The tile of the running maximum; the tile of the iteration's row maxima; the registers of the running
    /// maximum.
    max: usize,
    from: usize,
    now: RegisterTile,
    /// Boolean register: whether the warp's maxima were updated in this iteration.
    has_moved: ExprId,
}

impl BlockEmitter<'_> {
    /// The elements whose row maxima `tile` is, if these are only found when rows have grown: the loop has
    /// softmax overlap, and a tile with one row of fragments per warp.
    pub fn conditional_row_maximum(&self, tile: usize) -> Option<(RowElements, RowMaximum)> {
        self.overlap.as_ref().filter(|overlap| overlap.place.is_some())?;
        let TileStep::Op { op, args } = &self.plan.steps.tiles[tile].step else { return None };
        let (elements, shape) = (args[0], &self.plan.steps.tiles[args[0]].shape);
        let how = reduction_of(op).filter(|how| *how == (ReduceFn::Max, shape.len() - 1, 1))?;
        let mut readers = self.plan.steps.readers(tile);
        let max = readers.next()?;
        let is_told = |step: &TileStep| matches!(step, TileStep::Accumulate { how: Accumulation::Max, .. });
        let is_kept = matches!(self.plan.steps.tiles[max].step, TileStep::RunningMax { .. })
            && readers.all(|reader| is_told(&self.plan.steps.tiles[reader].step));
        // Of each accumulation that this maximum rescales:
        let is_plain = self
            .rescales_of(max)
            .iter()
            // A degree above 1 would take exponentials of 256 to a power beyond f16.
            .all(|rescale| (1..=rescale.degree.den()).contains(&rescale.degree.num()));
        let at = self.register_layout(elements)?;
        let is_of_one_tile = at.rows.column_warps == 1 && at.rows.batch() == 1 && at.rows.row_tiles() == 1;
        let has_whole_columns =
            matches!(at.columns, ColumnLayout::Partitioned(n) if n.is_multiple_of(FRAGMENT_COLUMNS));
        (is_kept && is_plain && is_of_one_tile && has_whole_columns)
            .then_some((RowElements { tile: elements, at }, how))
    }

    /// Emits the update of a running maximum under the condition; false if the maximum does not qualify.
    pub fn emit_conditional_maximum(&mut self, tile: usize, from: usize) -> bool {
        let Some((elements, how)) = self.conditional_row_maximum(from) else { return false };
        let rows = FragmentLayout::per_row(&elements.at.rows);
        let limits = self.add_buffer("limit", DType::F32, rows.registers_per_thread(), Scope::Scratch);
        let lowest = self.float(f64::NEG_INFINITY);
        let start = self.fill_registers(limits, rows.registers_per_thread(), lowest);
        self.code.before_loop.extend(start);
        let var = self.program.exprs.declare_register("has_moved", Type::scalar(DType::Bool));
        let sums = self.registers_holding(&elements);
        let (sums, count) = (self.location(sums, 0), elements.at.registers_per_thread());
        let first_limit = self.location(limits, 0);
        self.emit(vec![Stmt::Cta(CtaStmt::Exceeds { var, accs: sums, count, limits: first_limit })]);

        let outer = std::mem::take(&mut self.code.body);
        self.emit_reduce(from, how, elements.tile);
        let [now, before] = self.running_max_in_registers(&rows, (tile, from));
        let rescales = self.rescales_of(tile);
        for &rescale in &rescales {
            self.prepare_rescale(rescale, &rows);
        }
        let slack = self.float(SLACK);
        let limited =
            self.store_per_register(&now, |this, max| vec![(limits, this.program.exprs.add2(max, slack))]);
        self.emit(limited);
        let then = std::mem::replace(&mut self.code.body, outer);

        let one = self.float(1.0);
        let prepared = self.tiles.rescale_factors.iter().filter(|(known, _)| rescales.contains(known));
        let operands: Vec<BufferId> = prepared.map(|(_, operands)| operands.buffer).collect();
        let otherwise = self.store_per_register(&now, |_, max| {
            let unchanged = operands.iter().map(|&factor| (factor, one));
            std::iter::once((before.buffer, max)).chain(unchanged).collect()
        });
        let has_moved = self.program.exprs.var(var);
        self.code.body.push(Stmt::If { condition: has_moved, then, otherwise });
        self.conditional_rescale = Some(ConditionalRescale { max: tile, from, now, has_moved });
        true
    }

    /// The registers of the running maximum that stands for the maximum of `from` (to which sums are
    /// relative), if it is updated conditionally.
    pub fn conditional_maximum_registers(&self, from: usize) -> Option<RegisterTile> {
        self.conditional_rescale.as_ref().filter(|lazy| lazy.from == from).map(|lazy| lazy.now.clone())
    }

    /// The registers of elements, computed to registers if they are not there yet.
    fn registers_holding(&mut self, elements: &RowElements) -> BufferId {
        let known = self.tiles.homes[elements.tile].iter().find_map(|place| match place {
            TileHome::Registers(registers) if registers.at == elements.at => Some(registers.buffer),
            TileHome::Registers(_) | TileHome::Shared(_) => None,
        });
        known.unwrap_or_else(|| self.materialize_in_registers(elements.tile, &elements.at))
    }

    /// Statements that rescale `registers` registers, skipped if the maximum has not moved.
    pub fn if_maximum_changed(&self, max: usize, registers: usize, stmts: Vec<Stmt>) -> Vec<Stmt> {
        match &self.conditional_rescale {
            Some(lazy) if lazy.max == max && registers > FEW_REGISTERS => {
                vec![Stmt::If { condition: lazy.has_moved, then: stmts, otherwise: Vec::new() }]
            }
            _ => stmts,
        }
    }

    /// The distinct rescalings by a maximum.
    fn rescales_of(&self, tile: usize) -> Vec<Rescale> {
        let mut all = Vec::new();
        for known in &self.plan.steps.tiles {
            let TileStep::Accumulate { how, .. } = known.step else { continue };
            let own = Rescale::of(how).filter(|rescale| rescale.max == tile && !all.contains(rescale));
            all.extend(own);
        }
        all
    }

    /// For every register of a tile, stores to the same register of other buffers.
    fn store_per_register(
        &mut self,
        of: &RegisterTile,
        stores: impl Fn(&mut Self, ExprId) -> Vec<(BufferId, ExprId)>,
    ) -> Vec<Stmt> {
        self.for_each_slot(&of.at, |this, slot| {
            let offset = this.register_offset(&slot, &of.at);
            let value = this.program.exprs.load(of.buffer, offset, 1, None);
            let stores = stores(this, value).into_iter();
            stores.map(|(buffer, value)| Stmt::Store { buffer, offset, value, mask: None }).collect()
        })
    }
}
