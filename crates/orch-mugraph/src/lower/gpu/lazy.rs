//! Running maxima that are left as they are while rows grow little.
//!
//! Exponentials may be relative to any value of their row: maxima are only there to keep them finite, and a stable form is
//! proved with maxima as free symbols. So a maximum may stay behind what its row has grown to, as long as exponentials fit into
//! the type in which they are multiplied. Most iterations then neither find the largest element of each row nor multiply sums:
//!
//! ```text
//! if any element of the warp's rows is above its maximum by ln 256 {
//!   maxima, and by how much they have grown: rescale
//!   limits = maxima + ln 256
//! } else {
//!   rescale = 1
//! }
//! ```
//!
//! What other kernels are told of maxima is what exponentials are relative to here.
//!
//! Whether an element is above a limit that is not negative takes half an instruction (of integers); rows with a negative
//! limit find their maximum in every iteration. Attention of 4096 queries by 4096 keys takes 8 % less time so on an H200.

use super::accumulate::Rescale;
use super::layout::{Columns, Fragments, Registers, TILE_COLUMNS};
use super::lowering::Lowering;
use super::reduce::reduction_of;
use super::steps::Step;
use super::value::Place;
use crate::graph::Accumulation;
use crate::op::ReduceFn;
use orch_compute::{BufferId, ExprId, Type};
use orch_ir::DType;
use orch_thread::{CtaStmt, Scope, Stmt};

/// How far an element may be above the maximum of its row: exponentials stay below 256, which all types hold.
const SLACK: f64 = 8.0 * std::f64::consts::LN_2;
/// Registers that are rather multiplied by 1 than passed over.
const FEW_REGISTERS: usize = 4;

/// How a tile is reduced to the maxima of its rows.
type RowMaximum = (ReduceFn, usize, usize);

/// Elements of rows, and the layout of their registers.
pub(super) struct Elements {
    tile: usize,
    at: Fragments,
}

/// A maximum that may stay behind, in the loop.
#[derive(Clone, Debug)]
pub(super) struct Lazy {
    /// The tile of the running maximum, that of the maxima of iterations, and the registers of the former.
    max: usize,
    from: usize,
    now: Registers,
    /// Whether it has changed in this iteration.
    has_moved: ExprId,
}

impl Lowering<'_> {
    /// The elements of whose rows a tile is the maximum, if it is found only when they have grown.
    pub fn lazily_reduced(&self, tile: usize) -> Option<(Elements, RowMaximum)> {
        self.overlap.as_ref().filter(|overlap| overlap.place.is_some())?;
        let Step::Op { op, args } = &self.steps.tiles[tile].step else { return None };
        let (elements, shape) = (args[0], &self.steps.tiles[args[0]].shape);
        let how = reduction_of(op).filter(|how| *how == (ReduceFn::Max, shape.len() - 1, 1))?;
        let mut readers = self.steps.readers(tile);
        let max = readers.next()?;
        let is_told = |step: &Step| matches!(step, Step::Accumulate { how: Accumulation::Max, .. });
        let is_kept = matches!(self.steps.tiles[max].step, Step::RunningMax { .. })
            && readers.all(|reader| is_told(&self.steps.tiles[reader].step));
        // Powers of exponentials would be beyond what types hold.
        let is_plain = self
            .rescales_by(max)
            .iter()
            .all(|rescale| (1..=rescale.degree.den()).contains(&rescale.degree.num()));
        let at = self.home(elements)?;
        let is_of_one_tile = at.rows.column_warps == 1 && at.rows.batch() == 1 && at.rows.row_tiles() == 1;
        let has_whole_columns = matches!(at.columns, Columns::Spread(n) if n.is_multiple_of(TILE_COLUMNS));
        (is_kept && is_plain && is_of_one_tile && has_whole_columns)
            .then_some((Elements { tile: elements, at }, how))
    }

    /// Keeps the largest of `from`, the maxima of rows, so far or somewhat less; false if that is not done.
    pub fn lazy_running_max(&mut self, tile: usize, from: usize) -> bool {
        let Some((elements, how)) = self.lazily_reduced(from) else { return false };
        let rows = Fragments::per_row(&elements.at.rows);
        let limits = self.add_buffer("limit", DType::F32, rows.registers(), Scope::Scratch);
        let lowest = self.float(f64::NEG_INFINITY);
        let start = self.filled(limits, rows.registers(), lowest);
        self.before_loop.extend(start);
        let var = self.program.exprs.declare_register("has_moved", Type::scalar(DType::Bool));
        let sums = self.registers_of(&elements);
        let (sums, count) = (self.place(sums, 0), elements.at.registers());
        let first_limit = self.place(limits, 0);
        self.run(vec![Stmt::Cta(CtaStmt::Exceeds { var, accs: sums, count, limits: first_limit })]);

        let outer = std::mem::take(&mut self.body);
        self.reduce(from, how, elements.tile);
        let [now, before] = self.running_max_at(&rows, (tile, from));
        let rescales = self.rescales_by(tile);
        for &rescale in &rescales {
            self.prepare_rescale(rescale, &rows);
        }
        let slack = self.float(SLACK);
        let limited =
            self.each_register(&now, |this, max| vec![(limits, this.program.exprs.add2(max, slack))]);
        self.run(limited);
        let then = std::mem::replace(&mut self.body, outer);

        let one = self.float(1.0);
        let prepared = self.rescales.iter().filter(|(known, _)| rescales.contains(known));
        let factors: Vec<BufferId> = prepared.map(|(_, factors)| factors.buffer).collect();
        let otherwise = self.each_register(&now, |_, max| {
            let unchanged = factors.iter().map(|&factor| (factor, one));
            std::iter::once((before.buffer, max)).chain(unchanged).collect()
        });
        let has_moved = self.program.exprs.var(var);
        self.body.push(Stmt::If { condition: has_moved, then, otherwise });
        self.lazy = Some(Lazy { max: tile, from, now, has_moved });
        true
    }

    /// The registers of a maximum that may stay behind what it is the maximum of: what is relative to the one is not to the
    /// other.
    pub fn lazy_maximum(&self, from: usize) -> Option<Registers> {
        self.lazy.as_ref().filter(|lazy| lazy.from == from).map(|lazy| lazy.now.clone())
    }

    /// The registers of elements, to which they are computed if they are not there.
    fn registers_of(&mut self, elements: &Elements) -> BufferId {
        let known = self.places[elements.tile].iter().find_map(|place| match place {
            Place::Registers(registers) if registers.at == elements.at => Some(registers.buffer),
            Place::Registers(_) | Place::Shared(_) => None,
        });
        known.unwrap_or_else(|| self.keep_at(elements.tile, &elements.at))
    }

    /// The same statements, which rescale so many registers, where they may be passed over if a maximum has not moved.
    pub fn if_moved(&self, max: usize, registers: usize, stmts: Vec<Stmt>) -> Vec<Stmt> {
        match &self.lazy {
            Some(lazy) if lazy.max == max && registers > FEW_REGISTERS => {
                vec![Stmt::If { condition: lazy.has_moved, then: stmts, otherwise: Vec::new() }]
            }
            _ => stmts,
        }
    }

    /// The factors that go with a maximum.
    fn rescales_by(&self, tile: usize) -> Vec<Rescale> {
        let mut all = Vec::new();
        for known in &self.steps.tiles {
            let Step::Accumulate { how, .. } = known.step else { continue };
            let own = Rescale::of(how).filter(|rescale| rescale.max == tile && !all.contains(rescale));
            all.extend(own);
        }
        all
    }

    /// Stores to the same place of other buffers, for every register of one.
    fn each_register(
        &mut self,
        of: &Registers,
        stores: impl Fn(&mut Self, ExprId) -> Vec<(BufferId, ExprId)>,
    ) -> Vec<Stmt> {
        self.each_site(&of.at, |this, site| {
            let offset = this.register(&site, &of.at);
            let value = this.program.exprs.load(of.buffer, offset, 1, None);
            let stores = stores(this, value).into_iter();
            stores.map(|(buffer, value)| Stmt::Store { buffer, offset, value, mask: None }).collect()
        })
    }
}
