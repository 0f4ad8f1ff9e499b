//! Tiles of the factors in shared memory, and how threads fill them.

use super::lower::Lowering;
use super::schedule::{Engine, padding};
use crate::contraction::ContractionForm;
use crate::contraction::operand::{FlatAxes, pack, plain_read};
use crate::gpu::cta::{Lowers, WIDEST_BYTES, copied_from, lanes_below, or_zero};
use orch_compute::block::{ArgRole, BlockProgram};
use orch_compute::expr::substitute::{Substitution, replace};
use orch_compute::expr::{BufferId, Expr, ExprId, Exprs, Type, VarId};
use orch_compute::simplify::{Simplifier, simplify};
use orch_thread::cta::{CtaStmt, Location, swizzled_offset};
use orch_thread::kernel::PackedConstant;
use orch_thread::program::{Scope, Stmt};
use orch_thread::vectorize::{LoadCounts, Widening, vectorize};
use rustc_hash::FxHashMap;

/// Bytes of the narrowest asynchronous copy.
const NARROWEST_COPY: usize = 4;

/// One factor before it is known how it is read.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub name: &'static str,
    /// 0 for the first factor, 1 for the second.
    pub number: usize,
    /// The flat coordinate that it has beside the terms, and its extent.
    pub row: VarId,
    pub rows: usize,
    /// Its rows of a task's tile.
    tile_rows: usize,
    /// The buffer of a constant that is laid out anew, `[batch][row][term]`, and its terms with those that are zero.
    pub packed: Option<(BufferId, usize)>,
}

impl Side {
    /// The first factor.
    pub fn rows(lowering: &Lowering<'_>) -> Self {
        let (row, rows, tile_rows) = (lowering.flat.m, lowering.extents.m, lowering.schedule.block_m);
        Self { name: "a", number: 0, row, rows, tile_rows, packed: None }
    }

    /// The second factor.
    pub fn columns(lowering: &Lowering<'_>) -> Self {
        let (row, rows, tile_rows) = (lowering.flat.n, lowering.extents.n, lowering.schedule.block_n);
        Self { name: "b", number: 1, row, rows, tile_rows, packed: None }
    }

    /// How a constant factor is laid out for this kernel; `None` if it is not constant, or no plain one.
    pub fn packing(&self, lowering: &mut Lowering<'_>) -> Option<PackedConstant> {
        let value = lowering.factors[self.number];
        let (arg, offset) = plain_read(lowering.block, &mut lowering.source, value)?;
        if lowering.block.arg(arg).role != ArgRole::Constant {
            return None;
        }
        let flat = FlatAxes { n: self.row, ..lowering.flat.clone() };
        let mut packed = pack(lowering.block, &mut lowering.source, &lowering.form, &flat, (arg, offset), 1)?;
        packed.terms = packed.terms.next_multiple_of(WIDEST_BYTES / packed.dtype.size_bytes());
        Some(packed)
    }
}

/// The direction in which elements of a tile are neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Along {
    /// `[row][term]`.
    Terms,
    /// `[term][row]`.
    Rows,
}

/// One factor's tiles.
#[derive(Debug)]
pub(super) struct Operand {
    pub side: Side,
    /// Which elements are neighbours.
    pub along: Along,
    /// Elements that a thread moves at once.
    lanes: usize,
    /// Whether they are copied as they are.
    is_copied: bool,
    /// The tiles of all stages.
    pub buffer: BufferId,
    /// Elements between the starts of neighbouring lines of a tile.
    pub stride: usize,
    /// Elements of a tile.
    pub stage_elems: usize,
    chunks: Vec<Chunk>,
}

/// `lanes` neighbouring elements of a tile, which a thread fills.
#[derive(Clone, Debug)]
struct Chunk {
    /// The line, as a variable declared before the loop over steps.
    line: VarId,
    /// The first element in the line, likewise.
    at: VarId,
    /// True for the threads that have such a chunk; `None` is all.
    exists: Option<ExprId>,
}

/// Statements that fill a stage.
pub(super) struct Moved {
    /// Before the products: copies, and the computation of values.
    pub now: Vec<Stmt>,
    /// After the products: stores of computed values.
    pub later: Vec<Stmt>,
}

impl Operand {
    /// Chooses how a factor is read, and gives it shared memory.
    pub fn new(lowering: &mut Lowering<'_>, side: Side) -> Self {
        let dtype = lowering.engine.factor_type();
        let widest = WIDEST_BYTES / dtype.size_bytes();
        let narrowest = (NARROWEST_COPY / dtype.size_bytes()).max(1);
        let widths =
            std::iter::successors(Some(widest), |&lanes| (lanes / 2 >= narrowest).then_some(lanes / 2));
        let ways = widths.flat_map(|lanes| [(Along::Terms, lanes), (Along::Rows, lanes)]);
        let asked = lowering.schedule.along(side.number);
        let copied = ways.into_iter().find(|&(along, lanes)| {
            asked.is_none_or(|asked| asked == along) && side.is_copy(lowering, along, lanes)
        });
        let (along, lanes) = copied.unwrap_or_else(|| {
            let gathers = |lowering: &mut Lowering<'_>, along| {
                let value = side.probe(lowering, along, widest);
                LoadCounts::of(&lowering.program.exprs, value).gathers
            };
            let by_rows = gathers(lowering, Along::Rows) < gathers(lowering, Along::Terms);
            (if by_rows { Along::Rows } else { Along::Terms }, widest)
        });
        let is_swizzled = lowering.schedule.wgmma;
        let along = asked.unwrap_or(along);
        let pad = if is_swizzled { 0 } else { padding(lowering.engine, along == Along::Terms) };
        let (lines, line) = match along {
            Along::Terms => (side.tile_rows, lowering.schedule.block_k),
            Along::Rows => (lowering.schedule.block_k, side.tile_rows),
        };
        let stage_elems = lines * (line + pad);
        let elems = lowering.schedule.stages * stage_elems;
        let buffer = lowering.add_buffer(&format!("{}_tiles", side.name), dtype, elems, Scope::Shared);
        let is_copied = copied.is_some();
        let mut operand = Self {
            side,
            along,
            lanes,
            is_copied,
            buffer,
            stride: line + pad,
            stage_elems,
            chunks: Vec::new(),
        };
        operand.chunks = operand.chunks(lowering, lines, line);
        operand
    }

    fn chunks(&self, lowering: &mut Lowering<'_>, lines: usize, line: usize) -> Vec<Chunk> {
        let threads = lowering.schedule.threads();
        let count = lines * (line / self.lanes);
        (0..count.div_ceil(threads))
            .map(|number| {
                let name = self.side.name;
                let exprs = &mut lowering.program.exprs;
                let line_var = exprs.declare_index(format!("{name}_line"), lines);
                let at = exprs.declare_index(format!("{name}_at"), line);
                exprs.set_multiple_of(at, self.lanes as i64);
                let limit = exprs.index(count as i64);
                let chunk = exprs.add_const(lowering.thread, (number * threads) as i64);
                let exists = ((number + 1) * threads > count).then(|| exprs.lt(chunk, limit));
                Chunk { line: line_var, at, exists }
            })
            .collect()
    }

    /// Binds where the thread's chunks are.
    pub fn place_chunks(&self, lowering: &mut Lowering<'_>) -> Vec<Stmt> {
        let threads = lowering.schedule.threads();
        let line = match self.along {
            Along::Terms => lowering.schedule.block_k,
            Along::Rows => self.side.tile_rows,
        };
        let lines = self.lines();
        let mut body = Vec::new();
        for (number, chunk) in self.chunks.iter().enumerate() {
            let exprs = &mut lowering.program.exprs;
            let mut place = exprs.add_const(lowering.thread, (number * threads) as i64);
            if chunk.exists.is_some() {
                // Threads without a chunk need a place within the declared range.
                let last = exprs.index((lines * (line / self.lanes)) as i64 - 1);
                place = exprs.min(place, last);
            }
            let parts = exprs.unflatten(place, &[lines, line / self.lanes]);
            let at = exprs.mul_const(parts[1], self.lanes as i64);
            for (var, value) in [(chunk.line, parts[0]), (chunk.at, at)] {
                let value = lowering.simplifier.simplify(&mut lowering.program.exprs, value);
                body.push(Stmt::Let(var, value));
            }
        }
        body
    }

    /// Lines of a tile.
    pub fn lines(&self) -> usize {
        self.stage_elems / self.stride
    }

    /// Fills a stage with the tile of a step.
    pub fn fetch(&self, lowering: &mut Lowering<'_>, step: ExprId, stage: ExprId) -> Moved {
        let (mut now, mut later) = (Vec::new(), Vec::new());
        let first_term = lowering.let_first_term(&mut now, step);
        let steps = lowering.program.exprs.index(lowering.steps() as i64);
        let is_wanted = lowering.program.exprs.lt(step, steps);
        let is_wanted = lowering.simplifier.simplify(&mut lowering.program.exprs, is_wanted);
        let is_always = lowering.program.exprs.as_bool(is_wanted) == Some(true);
        let mut copies = Vec::new();
        for chunk in &self.chunks {
            let exprs = &mut lowering.program.exprs;
            let (line, at) = (exprs.var(chunk.line), exprs.var(chunk.at));
            let place = match lowering.schedule.wgmma {
                true => swizzled_offset(exprs, self.lines(), line, at),
                false => exprs.linear_index(&[line, at], &[self.stride, 1]),
            };
            let to = exprs.linear_index(&[stage, place], &[self.stage_elems, 1]);
            let to = Location { buffer: self.buffer, offset: to };
            let corner = lowering.corner[self.side.number];
            let (row, term) = match self.along {
                Along::Terms => (exprs.add2(corner, line), exprs.add2(first_term, at)),
                Along::Rows => (exprs.add2(corner, at), exprs.add2(first_term, line)),
            };
            if self.is_copied {
                copies.extend(guarded(chunk.exists, self.copy(lowering, to, row, term)));
            } else {
                let wanted = (!is_always).then_some(is_wanted);
                let value = self.compute(lowering, chunk, (row, term), wanted);
                let (loads, value) = loads_first(&mut lowering.program.exprs, value, self.side.name);
                now.extend(loads);
                let store = Stmt::Store { buffer: to.buffer, offset: to.offset, value, mask: None };
                later.extend(guarded(chunk.exists, store));
            }
        }
        if is_always || copies.is_empty() {
            now.extend(copies);
        } else {
            now.push(Stmt::If { condition: is_wanted, then: copies, otherwise: Vec::new() });
        }
        Moved { now, later }
    }

    fn copy(&self, lowering: &mut Lowering<'_>, to: Location, row: ExprId, term: ExprId) -> Stmt {
        let value = self.side.vector(lowering, self.along, (row, term), self.lanes, None, None);
        let (from, own) =
            lowering.copied_from(value, self.lanes).expect("what is copied can be, as was probed");
        let inside = self.side.inside(lowering, row, term);
        let mask = lowering.program.exprs.and_guard(own, inside);
        let (first, extent) = match self.along {
            Along::Terms => (term, self.side.terms(lowering)),
            Along::Rows => (row, self.side.rows),
        };
        let real = (!extent.is_multiple_of(self.lanes)).then(|| {
            let exprs = &mut lowering.program.exprs;
            let (extent, lanes) = (exprs.index(extent as i64), exprs.index(self.lanes as i64));
            let left = exprs.sub(extent, first);
            exprs.min(left, lanes)
        });
        Stmt::Cta(CtaStmt::CpAsync { to, from, elems: self.lanes, real, mask })
    }

    fn compute(
        &self,
        lowering: &mut Lowering<'_>,
        chunk: &Chunk,
        (row, term): (ExprId, ExprId),
        wanted: Option<ExprId>,
    ) -> ExprId {
        let side = &self.side;
        let (row_inside, term_inside) = (side.row_inside(lowering, row), side.term_inside(lowering, term));
        let (moving, extent, inside, first_inside) = match self.along {
            Along::Terms => (term, side.terms(lowering), row_inside, term_inside),
            Along::Rows => (row, side.rows, term_inside, row_inside),
        };
        let mut guard = lowering.program.exprs.and_guard(inside, wanted);
        let Lowering { program, simplifier, .. } = &mut *lowering;
        let mask = lanes_below(&mut program.exprs, simplifier, (moving, extent), self.lanes);
        let mut value = side.vector(lowering, self.along, (row, term), self.lanes, guard, mask);
        // A mask is not of what all lanes share, which is nowhere if all of them are outside.
        if mask.is_some() && shares_loads(&lowering.program.exprs, value, chunk.at) {
            guard = lowering.program.exprs.and_guard(guard, first_inside);
            value = side.vector(lowering, self.along, (row, term), self.lanes, guard, mask);
        }
        let ty = Type { dtype: lowering.engine.factor_type(), lanes: self.lanes };
        or_zero(&mut lowering.program.exprs, value, ty, guard, mask)
    }
}

impl Lowering<'_> {
    /// The place from which `lanes` neighbouring elements of a factor can be copied as they are, and the condition.
    fn copied_from(&mut self, value: ExprId, lanes: usize) -> Option<(Location, Option<ExprId>)> {
        let ty = Type { dtype: self.engine.factor_type(), lanes };
        copied_from(&mut self.program.exprs, &mut self.simplifier, value, ty)
    }
}

/// True if all lanes of a value load one element from a place that the position of the first one tells.
fn shares_loads(exprs: &Exprs, value: ExprId, first: VarId) -> bool {
    let is_shared = |id: ExprId| matches!(exprs.get(id), Expr::Load { lanes: 1, .. });
    exprs.reachable(&[value]).into_iter().any(|id| is_shared(id) && exprs.free_vars(id).contains(&first))
}

/// The loads of a value as variables, and the value over these: they are under way while products are computed.
fn loads_first(exprs: &mut Exprs, root: ExprId, name: &str) -> (Vec<Stmt>, ExprId) {
    let (mut loads, mut vars) = (Vec::new(), FxHashMap::default());
    for id in exprs.reachable(&[root]) {
        if let Expr::Load { .. } = exprs.get(id) {
            let ty = exprs.ty(id);
            let var = exprs.declare_register(format!("{name}_next"), ty);
            loads.push((var, id));
            vars.insert(id, exprs.var(var));
        }
    }
    let value = replace(exprs, root, &vars);
    // A load at a place that is loaded itself keeps that inside; what is left unused is not loaded twice.
    let used = exprs.free_vars(value);
    loads.retain(|(var, _)| used.contains(var));
    (loads.into_iter().map(|(var, load)| Stmt::Let(var, load)).collect(), value)
}

/// The direction in which each factor is contiguous: terms for constants, which are laid out so.
pub(super) fn natural_along(block: &BlockProgram, form: &ContractionForm, engine: Engine) -> [Along; 2] {
    let mut source = block.exprs.clone();
    let flat = FlatAxes::new(block, &mut source, form);
    [(form.a, flat.m), (form.b, flat.n)].map(|(factor, row)| {
        let flattened = Substitution::new(&flat.bindings).apply(&mut source, factor);
        let typed = source.cast(engine.factor_type(), flattened);
        let typed = simplify(&mut source, typed);
        let plain = plain_read(block, &mut source, typed);
        if plain.is_some_and(|(arg, _)| block.arg(arg).role == ArgRole::Constant) {
            return Along::Terms;
        }
        let mut reads = Vec::new();
        for id in source.reachable(&[typed]) {
            if let Expr::Read { arg, index, .. } = source.get(id).clone() {
                let meta = block.arg(arg);
                reads.push((index, meta.layout.strides(&meta.shape)));
            }
        }
        let mut simplifier = Simplifier::new();
        let contiguous = |source: &mut Exprs, simplifier: &mut Simplifier, var: VarId| {
            (reads.iter().filter(|(index, strides)| {
                let offset = source.linear_index(index, strides);
                let offset = simplifier.simplify(source, offset);
                simplifier.stride(source, offset, var) == Some(1)
            }))
            .count()
        };
        let by_rows = contiguous(&mut source, &mut simplifier, row);
        let by_terms = contiguous(&mut source, &mut simplifier, flat.k);
        if by_rows > by_terms { Along::Rows } else { Along::Terms }
    })
}

/// A statement for the threads that have a chunk.
fn guarded(exists: Option<ExprId>, stmt: Stmt) -> Option<Stmt> {
    Some(match exists {
        None => stmt,
        Some(condition) => Stmt::If { condition, then: vec![stmt], otherwise: Vec::new() },
    })
}

impl Side {
    /// Terms that may be read.
    pub fn terms(&self, lowering: &Lowering<'_>) -> usize {
        self.packed.map_or(lowering.extents.k, |(_, terms)| terms)
    }

    /// True where the row exists; `None` if all do.
    fn row_inside(&self, lowering: &mut Lowering<'_>, row: ExprId) -> Option<ExprId> {
        let exprs = &mut lowering.program.exprs;
        let limit = exprs.index(self.rows as i64);
        (!self.rows.is_multiple_of(self.tile_rows)).then(|| exprs.lt(row, limit))
    }

    /// True where the term exists; `None` if all do.
    fn term_inside(&self, lowering: &mut Lowering<'_>, term: ExprId) -> Option<ExprId> {
        let terms = self.terms(lowering);
        let is_exact = terms == lowering.padded_terms();
        let exprs = &mut lowering.program.exprs;
        let limit = exprs.index(terms as i64);
        (!is_exact).then(|| exprs.lt(term, limit))
    }

    fn inside(&self, lowering: &mut Lowering<'_>, row: ExprId, term: ExprId) -> Option<ExprId> {
        let (row, term) = (self.row_inside(lowering, row), self.term_inside(lowering, term));
        lowering.program.exprs.and_guard(row, term)
    }

    /// One element.
    fn element(
        &self,
        lowering: &mut Lowering<'_>,
        row: ExprId,
        term: ExprId,
        guard: Option<ExprId>,
    ) -> ExprId {
        match self.packed {
            Some((buffer, terms)) => {
                let exprs = &mut lowering.program.exprs;
                let place = [lowering.batch, row, term];
                let offset = exprs.linear_index(&place, &[self.rows * terms, terms, 1]);
                exprs.load(buffer, offset, 1, guard)
            }
            None => {
                let bindings = [(self.row, row), (lowering.flat.k, term)];
                lowering.import(lowering.factors[self.number], &bindings, guard)
            }
        }
    }

    /// `lanes` neighbouring elements, the first of which is at a row and term; a scalar if they are all the same.
    fn vector(
        &self,
        lowering: &mut Lowering<'_>,
        along: Along,
        (row, term): (ExprId, ExprId),
        lanes: usize,
        guard: Option<ExprId>,
        mask: Option<ExprId>,
    ) -> ExprId {
        if lanes == 1 {
            return self.element(lowering, row, term, guard);
        }
        let base = if along == Along::Terms { term } else { row };
        let base = lowering.simplifier.simplify(&mut lowering.program.exprs, base);
        let limit = self.rows.max(lowering.padded_terms()) * 2 + lowering.schedule.block_k * 16;
        let (var, each) = lowering.program.exprs.fresh_index("each", limit);
        let scalar = match along {
            Along::Terms => self.element(lowering, row, each, guard),
            Along::Rows => self.element(lowering, each, term, guard),
        };
        let widening = Widening { mask, ..Widening::new(var, base, lanes) };
        vectorize(&mut lowering.program.exprs, scalar, &widening).value
    }

    /// Elements at an unknown place that is a multiple of the lanes.
    fn probe(&self, lowering: &mut Lowering<'_>, along: Along, lanes: usize) -> ExprId {
        let exprs = &mut lowering.program.exprs;
        let (row_var, row) = exprs.fresh_index("row", self.rows.next_multiple_of(lanes));
        let (term_var, term) = exprs.fresh_index("term", lowering.extents.k.next_multiple_of(lanes));
        exprs.set_multiple_of(if along == Along::Terms { term_var } else { row_var }, lanes as i64);
        self.vector(lowering, along, (row, term), lanes, None, None)
    }

    /// True if elements that are neighbours that way can be copied `lanes` at a time.
    fn is_copy(&self, lowering: &mut Lowering<'_>, along: Along, lanes: usize) -> bool {
        let value = self.probe(lowering, along, lanes);
        lowering.copied_from(value, lanes).is_some()
    }
}
