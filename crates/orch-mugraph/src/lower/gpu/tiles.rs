//! Products of whole tiles of shared memory, by groups of four warps.
//!
//! The first factor is in fragments of registers, so that each warp multiplies rows of its own, wherever they are; the
//! second one is a swizzled tile of shared memory, which all warps of a group read. First factors that the loop does not
//! change are brought to registers before it.

use super::layout::{Columns, Fragments, Rows, Site, TILE_ROWS};
use super::lowering::Lowering;
use super::multiply::{First, Product, Side};
use super::steps::{Step, Tile};
use super::value::View;
use crate::op::Op;
use crate::tiling::Stage;
use orch_compute::{BufferId, ExprId};
use orch_ir::DType;
use orch_thread::cta::{MAX_WGMMA_K, MAX_WGMMA_N, SWIZZLE_ROW, WARP_GROUP, swizzled_offset};
use orch_thread::{CtaStmt, Location, LoopKind, MmaType, Scope, Stmt};

/// Terms of fragments.
const STEP_TERMS: usize = 16;
/// Elements that a thread has of a first factor's fragment.
const STEP_ELEMS: usize = 8;
/// Most registers of a thread for the sums of a product and a first factor's terms.
const MOST_REGISTERS: usize = 192;
/// Most elements of a first factor that a thread keeps while the loop runs, two in a register.
const MOST_HELD: usize = 64;

/// Rows that a group of warps multiplies.
pub(super) const GROUP_ROWS: usize = TILE_ROWS * WARP_GROUP;

/// Whether groups of warps multiply whole tiles where warps share rows so: each of a group has rows of its own.
pub(super) fn are_groups(rows: &Rows) -> bool {
    rows.column_warps == 1 && rows.row_warps.is_multiple_of(WARP_GROUP)
}

impl Lowering<'_> {
    /// The dimensions of lines and of their elements of a swizzled tile, if every reader of a load multiplies by it.
    pub fn tile_lines(&self, tile: usize, inner: usize, dtype: DType) -> Option<[usize; 2]> {
        if !self.plan.tiles || !self.is_half() || dtype != self.factor_type() {
            return None;
        }
        let products = self.products_by(tile)?;
        let (&([terms, columns], _), shape) = (products.first()?, &self.steps.tiles[tile].shape);
        let is_same = products.iter().all(|(dims, _)| *dims == [terms, columns]);
        let by_groups = products.iter().any(|(_, by_groups)| *by_groups);
        let line = if inner == terms { columns } else { terms };
        let is_whole = shape[inner].is_multiple_of(SWIZZLE_ROW)
            && shape[terms].is_multiple_of(STEP_TERMS)
            && shape[columns].is_multiple_of(8)
            && (!by_groups || shape[terms] <= MAX_WGMMA_K && shape[columns] <= MAX_WGMMA_N);
        (is_same && is_whole && [terms, columns].contains(&inner)).then_some([line, inner])
    }

    /// The dimensions of lines and of their elements of a first factor of few rows, if it is multiplied as a whole tile:
    /// rows beyond those that there are may be anything.
    pub fn first_lines(&self, tile: usize, inner: usize, dtype: DType) -> Option<[usize; 2]> {
        let shape = &self.steps.tiles[tile].shape;
        let rank = shape.len();
        let is_first = |reader: &Tile| match &reader.step {
            Step::Op { op: Op::Matmul, args } => args[0] == tile && args[1] != tile,
            _ => false,
        };
        let suits = self.plan.few_rows
            && self.steps.tiles[tile].stage == Stage::Loop
            && inner + 1 == rank
            && dtype == self.factor_type()
            && shape[inner].is_multiple_of(SWIZZLE_ROW)
            && shape[inner] <= most_terms(self.groups())
            && crate::op::elems(&shape[..inner]) <= self.groups() * GROUP_ROWS
            && crate::op::elems(&shape[..rank - 2]) == 1
            && self.steps.tiles.iter().any(|reader| reader.readers > 0 && is_first(reader));
        suits.then(|| [rank - 2, inner])
    }

    /// The dimensions of terms and of columns in each product by a tile, and whether groups of warps multiply whole tiles by it;
    /// `None` if it has readers other than products that take swizzled tiles.
    fn products_by(&self, tile: usize) -> Option<Vec<([usize; 2], bool)>> {
        let rank = self.steps.tiles[tile].shape.len();
        let mut found = Vec::new();
        let mut readers = 0;
        for (position, reader) in self.steps.tiles.iter().enumerate() {
            if reader.readers == 0 || !reader.step.args().contains(&tile) {
                continue;
            }
            readers += 1;
            let Step::Op { op, args } = &reader.step else { return None };
            match op {
                Op::Matmul if args[0] != tile => {
                    let rows = self.rows(&reader.shape)?;
                    let at = Fragments { rows, columns: Columns::Spread(reader.shape[rank - 1]) };
                    let parts = first_elems(self.steps.tiles[args[0]].shape[rank - 1]) / 2;
                    let by_groups = are_groups(&at.rows);
                    if self.is_large(position) || by_groups && at.registers() + parts > MOST_REGISTERS {
                        return None;
                    }
                    found.push(([rank - 2, rank - 1], by_groups));
                }
                Op::Transpose(perm) => {
                    let dims = self.products_by(position)?;
                    let turned =
                        |(dims, by_groups): ([usize; 2], bool)| (dims.map(|dim| perm[dim]), by_groups);
                    found.extend(dims.into_iter().map(turned));
                }
                _ => return None,
            }
        }
        (readers == self.steps.tiles[tile].readers).then_some(found)
    }

    /// Several swizzled tiles one after the other: the first one, and the elements of each.
    pub fn new_tiles(
        &mut self,
        dtype: DType,
        shape: &[usize],
        [line, inner]: [usize; 2],
        count: usize,
    ) -> (View, usize) {
        let mut strides = vec![1; shape.len()];
        strides[line] = SWIZZLE_ROW;
        let mut elems = shape[line] * shape[inner];
        for dim in (0..shape.len()).rev().filter(|dim| ![line, inner].contains(dim)) {
            strides[dim] = elems;
            elems *= shape[dim];
        }
        let buffer = self.add_buffer("tiles", dtype, elems * count, Scope::Shared);
        let base = self.index(0);
        (View { buffer, base, strides, padded: shape.to_vec(), lines: Some([line, inner]) }, elems)
    }

    /// The place of an element in a swizzled tile.
    pub fn place_in_tile(&mut self, view: &View, [line, inner]: [usize; 2], coords: &[ExprId]) -> ExprId {
        let exprs = &mut self.program.exprs;
        let within = swizzled_offset(exprs, view.padded[line], coords[line], coords[inner]);
        let mut outer = coords.to_vec();
        for dim in [line, inner] {
            outer[dim] = exprs.index(0);
        }
        let start = exprs.linear_index(&outer, &view.strides);
        exprs.add2(start, within)
    }

    /// The first factor of a product of few rows, if it is a tile that a group of warps multiplies from where it is.
    fn first_tile(&mut self, product: &Product) -> Option<Location> {
        let First::Shared(view) = &product.first else { return None };
        let (rank, rows) = (view.padded.len(), self.groups() * GROUP_ROWS);
        let is_tile = view.lines == Some([rank - 2, rank - 1]) && view.padded[rank - 2] == rows;
        if !(self.plan.few_rows && is_tile) {
            return None;
        }
        let mut coords = vec![self.index(0); rank];
        let warps = self.index(WARP_GROUP);
        let group = self.program.exprs.floor_div(self.warp, warps);
        coords[rank - 2] = self.program.exprs.mul_const(group, GROUP_ROWS as i64);
        Some(Location { buffer: view.buffer, offset: self.offset(view, &coords) })
    }

    /// Groups of warps that multiply few rows.
    pub fn groups(&self) -> usize {
        self.plan.warps / WARP_GROUP
    }

    /// Whether a product may be under way when its iteration ends: boxes bring both factors, and leave them so long.
    pub fn may_run_on(&mut self, tile: usize, product: &Product) -> bool {
        let factors = self.steps.tiles[tile].step.args();
        self.plan.stages > 1
            && factors.iter().all(|factor| self.boxed.contains(factor))
            && self.first_tile(product).is_some()
            && self.lines_are_terms(product).is_some()
    }

    /// Whether the terms are the lines of the second factor; `None` if the product is not one of whole tiles.
    pub fn lines_are_terms(&self, product: &Product) -> Option<bool> {
        let at = &product.sum.at;
        let [line, _] = product.second.lines?;
        let is_whole = at.columns == Columns::Spread(at.n()) && are_groups(&at.rows);
        is_whole.then_some(line == product.second.strides.len() - 2)
    }

    /// Brings the first factor of a product in the loop to registers before it, if it does not change.
    pub fn hold_first(&mut self, tile: usize, product: &Product) -> Option<BufferId> {
        let (kind, at) = (self.product_kind()?, &product.sum.at);
        let fragments = at.rows.batch() * at.rows.row_tiles();
        let elems = fragments * first_elems(product.terms);
        let first = self.steps.tiles[tile].step.args()[0];
        let stages = [tile, first].map(|at| self.steps.tiles[at].stage);
        let is_held = self.steps.loop_range > 1
            && stages == [Stage::Loop, Stage::Invariant]
            && matches!(product.first, First::Shared(_))
            && self.lines_are_terms(product).is_some()
            && elems <= MOST_HELD;
        if !is_held {
            return None;
        }
        let buffer = self.add_buffer("a_held", kind.dtype(), elems, Scope::Scratch);
        let loads = self.repeated("fragment", fragments, LoopKind::Unroll, |this, fragment| {
            let rows = product.sum.at.rows.row_tiles();
            let parts = this.program.exprs.unflatten(fragment, &[fragments / rows, rows]);
            let to = this.program.exprs.mul_const(fragment, first_elems(product.terms) as i64);
            this.first_fragments(product, kind, (parts[0], parts[1]), Location { buffer, offset: to })
        });
        self.held_firsts.extend(loads);
        Some(buffer)
    }

    /// Statements that bring all terms of a tile of rows to registers.
    pub fn first_fragments(
        &mut self,
        product: &Product,
        kind: MmaType,
        (lead, row): (ExprId, ExprId),
        to: Location,
    ) -> Vec<Stmt> {
        self.repeated("step", product.terms / STEP_TERMS, LoopKind::Unroll, |this, step| {
            let offset = this.program.exprs.linear_index(&[to.offset, step], &[1, STEP_ELEMS]);
            let to = Location { buffer: to.buffer, offset };
            match &product.first {
                First::Shared(view) => {
                    let term = this.program.exprs.mul_const(step, STEP_TERMS as i64);
                    vec![this.load_matrices(product, (Side::First, view), (lead, row, term), (to, 4))]
                }
                First::Registers(from, tile) => this.pack(from, *tile, (lead, row, step), (kind, to)),
            }
        })
    }

    /// Adds a product of whole tiles.
    pub fn add_tiles(&mut self, product: &Product, kind: MmaType, transposed: bool) -> Vec<Stmt> {
        let at = product.sum.at.clone();
        let (zero, kinds) = (self.index(0), (kind, transposed));
        if let Some(tile) = self.first_tile(product) {
            return vec![self.tile_product(product, kinds, (zero, zero), (tile, product.runs_on))];
        }
        let (rows, elems) = (at.rows.row_tiles(), first_elems(product.terms));
        let part = match product.held {
            Some(_) => None,
            None => Some(self.add_buffer("a_part", kind.dtype(), elems, Scope::Scratch)),
        };
        self.repeated("lead", at.rows.batch(), LoopKind::Unroll, |this, lead| {
            this.repeated("row_tile", rows, LoopKind::Unroll, |this, row| {
                let mut body = Vec::new();
                let a = match (product.held, part) {
                    (Some(buffer), _) => {
                        let fragment = this.program.exprs.linear_index(&[lead, row], &[rows, 1]);
                        Location { buffer, offset: this.program.exprs.mul_const(fragment, elems as i64) }
                    }
                    (None, Some(buffer)) => {
                        let to = Location { buffer, offset: zero };
                        body.extend(this.first_fragments(product, kind, (lead, row), to));
                        to
                    }
                    (None, None) => return body,
                };
                body.push(this.tile_product(product, kinds, (lead, row), (a, product.runs_on)));
                body
            })
        })
    }

    /// Adds the product of a tile of rows, whose fragments are at a place; or lets it run on.
    pub fn tile_product(
        &mut self,
        product: &Product,
        (kind, transposed): (MmaType, bool),
        (lead, row_tile): (ExprId, ExprId),
        (a, runs_on): (Location, bool),
    ) -> Stmt {
        let (at, zero) = (product.sum.at.clone(), self.index(0));
        let (columns, terms) = (at.n(), product.terms);
        let b = self.factor_place(product, (Side::Second, &product.second), lead, (zero, zero));
        let site = Site { at: at.clone(), lead, row_tile, column_tile: zero, half: 0, side: 0 };
        let sum = Location { buffer: product.sum.buffer, offset: self.register(&site, &at) };
        let product = kind;
        Stmt::Cta(CtaStmt::Wgmma {
            ty: product,
            acc: sum,
            a,
            b,
            n: columns,
            k: terms,
            transposed,
            is_async: runs_on,
        })
    }
}

/// Most terms of a first factor that so many groups of warps multiply from where it is: instructions find the parts of a line
/// [`GROUP_ROWS`] lines apart.
pub(super) fn most_terms(groups: usize) -> usize {
    if groups == 1 { MAX_WGMMA_K } else { SWIZZLE_ROW }
}

/// Elements that a thread has of so many terms of 16 rows.
fn first_elems(terms: usize) -> usize {
    terms / STEP_TERMS * STEP_ELEMS
}
