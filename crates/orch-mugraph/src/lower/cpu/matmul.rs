//! Matrix products of tiles.
//!
//! Accumulators of `rows x vectors` are kept in registers over the loop along the K dimension: a vector per column vector of the right operand and
//! one broadcast element per row of the left one. The right operand is read where it lies if its columns are neighbours
//! there and the product is skinny; else panels of it, as wide as the registers' columns, are copied first.

use super::CpuBlockEmitter;
use super::element::TileView;
use super::extent::Extent;
use super::rows::{Cut, Fold, Lane};
use crate::op::ReduceFn;
use orch_compute::{BufferId, ExprId, Type, VarId};
use orch_ir::DType;
use orch_thread::{LoopKind, PREFETCH_PANELS, Stmt, Vectorizer, Widening};

/// What happens to the elements that were there before.
#[derive(Clone, Debug)]
pub(super) enum Finish {
    /// They are overwritten.
    Set,
    /// They are added to.
    Add,
    /// They are multiplied by a factor, whose extents of 1 are repeated, and added to.
    Rescale(MatmulOperand),
}

/// By what accumulators are multiplied when the running maximum changes.
#[derive(Clone, Debug)]
pub(super) struct MatmulOperand {
    /// Where it lies.
    pub view: TileView,
    /// The running maximum, which has its shape.
    pub max: usize,
}

/// One product of a batch.
pub(super) struct MatmulStep {
    /// The node.
    pub node: usize,
    /// The left operand, from its first row and `k` on.
    lhs: TileView,
    /// The right operand where it lies, if it is read there.
    rhs: Option<TileView>,
    /// The index of the right operand within the batch.
    pub rhs_batch: Vec<ExprId>,
    /// The index of the result within the batch.
    batch: Vec<ExprId>,
    /// The result.
    into: TileView,
    /// Terms: the first, one more than the last, and how many at most.
    pub terms: (ExprId, ExprId, usize),
    finish: Finish,
}

/// The columns of a panel.
#[derive(Clone, Copy)]
struct Panel {
    lane: Lane,
    /// Where the copy is.
    packed: Option<BufferId>,
}

/// Terms that are added up at a time.
const CHAIN: usize = 512;

/// A longer K dimension than this is added up in several chains.
const LONGEST_CHAIN: usize = 1024;

/// Strips of rows from which on it is worth copying a panel whose lines are far apart.
const COPYING_STRIPS: usize = 3;

/// Elements between lines from which on they count as far apart.
const FAR_APART: usize = 256;

impl CpuBlockEmitter<'_> {
    /// A product into a tile.
    pub fn matmul(&mut self, node: usize, into: &TileView, finish: Finish) -> Vec<Stmt> {
        let shape = self.plan.nodes[node].shape.clone();
        let args = self.plan.nodes[node].args.clone();
        let rank = shape.len();
        let lhs = self.view(args[0]).expect("left factors are in memory");
        let rhs = self.view(args[1]).filter(|view| view.dtype == DType::F32);
        if let Some(rhs) = rhs.as_ref().filter(|rhs| self.suits_dots(&shape, (&lhs, rhs))) {
            return self.dots(node, (&lhs, rhs), into, finish);
        }
        let walk = self.walk_along(&shape[..rank - 2], None);
        let batch = walk.index.clone();
        let zero = self.program.exprs.index(0);
        let shift = |ctx: &mut Self, view: &TileView, batch: &[ExprId]| {
            let index = [batch, &[zero, zero]].concat();
            TileView { offset: ctx.place(view, &index), ..view.clone() }
        };
        let [lhs_batch, rhs_batch] = [0, 1].map(|number| {
            self.repeated(args[number], &[&batch[..], &[zero, zero]].concat())[..rank - 2].to_vec()
        });
        let k = &self.plan.nodes[args[0]].shape[rank - 1].clone();
        let in_place = rhs
            .as_ref()
            .is_some_and(|view| view.strides[rank - 1] == 1 && !self.suits_copying(&shape, k, view));
        let rhs = rhs.map(|view| shift(self, &view, &rhs_batch));
        let end = self.len(&k.len);
        let product = MatmulStep {
            node,
            lhs: shift(self, &lhs, &lhs_batch),
            rhs: rhs.filter(|_| in_place),
            rhs_batch,
            into: shift(self, into, &batch),
            batch,
            terms: (zero, end, k.full),
            finish,
        };
        let body = if k.full > LONGEST_CHAIN { self.chains(product) } else { self.columns(&product) };
        self.around(&walk, body)
    }

    /// A product whose K dimension is so long that it is added up in several chains, each added to the result.
    fn chains(&mut self, product: MatmulStep) -> Vec<Stmt> {
        let shape = self.plan.nodes[product.node].shape.clone();
        let rank = shape.len();
        let mut out = Vec::new();
        if !matches!(product.finish, Finish::Add) {
            out.extend(self.before_chains(&product, &shape[rank - 2..]));
        }
        let (start, all, full) = product.terms;
        let (var, first) = self.program.exprs.fresh_index("first_term", full);
        let past = self.program.exprs.add_const(first, CHAIN as i64);
        let end = self.program.exprs.min(past, all);
        let end = self.simplify(end);
        let chain = MatmulStep { terms: (first, end, CHAIN), finish: Finish::Add, ..product };
        let body = self.columns(&chain);
        out.push(Stmt::For { var, start, end: all, step: CHAIN as i64, kind: LoopKind::Serial, body });
        out
    }

    /// The first value of a result that chains are added to. Lines are overwritten with what pads them.
    fn before_chains(&mut self, product: &MatmulStep, shape: &[Extent]) -> Vec<Stmt> {
        let rank = product.into.strides.len();
        let into = TileView { strides: product.into.strides[rank - 2..].to_vec(), ..product.into.clone() };
        let Finish::Rescale(factor) = &product.finish else {
            let columns = Extent::fixed(shape[1].full.next_multiple_of(self.lanes));
            let walk = self.walk(&[shape[0].clone(), columns]);
            let zero = self.constant(0.0);
            let write = self.write(&walk, &into, zero);
            return self.pass(&walk, vec![write], Vec::new());
        };
        let walk = self.walk(shape);
        let index = [&product.batch[..], &walk.index].concat();
        let factor = self.factor(factor, &index);
        let place = self.place(&into, &walk.index);
        let before = self.program.exprs.load(into.buffer, place, 1, None);
        let value = self.program.exprs.mul(before, factor);
        let write = self.write(&walk, &into, value);
        self.pass(&walk, vec![write], Vec::new())
    }

    /// An element of an operand.
    pub fn factor(&mut self, factor: &MatmulOperand, index: &[ExprId]) -> ExprId {
        let index = self.repeated(factor.max, index);
        let place = self.place(&factor.view, &index);
        self.program.exprs.load(factor.view.buffer, place, 1, None)
    }

    /// True if panels of a right operand are copied before they are multiplied by several strips of rows: where its lines are far apart, or
    /// it is larger than half of L1 and panels are narrower than its lines, so that they use a part of L1's sets only.
    fn suits_copying(&self, shape: &[Extent], k: &Extent, rhs: &TileView) -> bool {
        let rank = shape.len();
        let (rows, vectors) = self.register_tile(shape, Some(rhs));
        let line = rhs.strides[rank - 2];
        let is_narrow = vectors * self.lanes < line;
        let exceeds_half = 2 * k.full * line * size_of::<f32>() > self.target.l1_bytes;
        shape[rank - 2].full.div_ceil(rows) >= COPYING_STRIPS
            && (line >= FAR_APART || is_narrow && exceeds_half)
    }

    /// Rows and vectors of the register tile that suits a result, of a right operand that may be read where it lies.
    fn register_tile(&self, shape: &[Extent], rhs: Option<&TileView>) -> (usize, usize) {
        let rank = shape.len();
        let is_far = |view: &TileView| {
            view.strides[rank - 2] >= FAR_APART && self.program.buffer(view.buffer).scope.is_global()
        };
        let load = if rhs.is_some_and(is_far) { LOAD_SLOTS } else { 0.0 };
        let (m, n) = (shape[rank - 2].full.max(1), shape[rank - 1].full.div_ceil(self.lanes).max(1));
        let registers = self.target.vector_registers;
        let mut best = (f64::INFINITY, (1, 1));
        for vectors in 1..=n.min(registers / 2) {
            for rows in 1..=m.min((registers - vectors - 1) / vectors) {
                let strips = m.div_ceil(rows);
                // A step of the loop has overheads besides.
                let panel = |vectors: usize| match vectors {
                    0 => 0.0,
                    _ => (rows * vectors).max(rows + vectors).max(LATENCY_SLOTS) as f64 + 1.0,
                };
                let panels = (n / vectors) as f64 * panel(vectors) + panel(n % vectors);
                let cost = strips as f64 * (panels + load * n as f64);
                if cost < best.0 {
                    best = (cost, (m.div_ceil(strips), vectors));
                }
            }
        }
        best.1
    }

    /// All columns, panel by panel.
    fn columns(&mut self, product: &MatmulStep) -> Vec<Stmt> {
        let shape = self.plan.nodes[product.node].shape.clone();
        let (rows, vectors) = self.register_tile(&shape, product.rhs.as_ref());
        let n = &shape[shape.len() - 1];
        let packed = product.rhs.is_none().then(|| self.panel_buffer(product.terms.2 * vectors * self.lanes));
        let len = self.len(&n.len);
        let counts: &[usize] = if vectors > 1 { &[vectors, 1] } else { &[1] };
        let cut = Cut { name: "column", full: n.full, len, unit: self.lanes, counts, joins_rest: true };
        self.cut(&cut, &mut |ctx, lane| {
            let panel = Panel { lane, packed };
            let mut out = packed.map_or(Vec::new(), |buffer| ctx.pack(product, lane, buffer));
            out.extend(ctx.strips(product, panel, rows));
            out
        })
    }

    /// More than any index along the K dimension.
    pub fn terms_bound(&self, product: &MatmulStep) -> usize {
        let lhs = self.plan.nodes[product.node].args[0];
        self.plan.nodes[lhs].shape.last().map_or(1, |extent| extent.full)
    }

    /// All rows of a panel, strip by strip.
    fn strips(&mut self, product: &MatmulStep, panel: Panel, rows: usize) -> Vec<Stmt> {
        let shape = &self.plan.nodes[product.node].shape;
        let m = shape[shape.len() - 2].clone();
        let len = self.len(&m.len);
        let counts: Vec<usize> = match self.program.exprs.as_int(len) {
            Some(len) => vec![rows, (len as usize % rows).max(1)],
            None => [rows, 4, 1].into_iter().filter(|&count| count == 1 || count <= rows).collect(),
        };
        let cut = Cut { name: "row", full: m.full, len, unit: 1, counts: &counts, joins_rest: false };
        self.cut(&cut, &mut |ctx, strip| ctx.register_tile_sums(product, panel, (strip.base, strip.count)))
    }

    /// One register tile.
    fn register_tile_sums(
        &mut self,
        product: &MatmulStep,
        panel: Panel,
        (row, rows): (ExprId, usize),
    ) -> Vec<Stmt> {
        let mut body = Vec::new();
        let zero = self.constant(0.0);
        let zeros = self.program.exprs.splat(zero, self.lanes);
        let ty = Type::vector(DType::F32, self.lanes);
        let mut sums: Vec<Vec<VarId>> = Vec::new();
        for number in 0..rows {
            let declare = |vector| {
                let name = format!("sum_{number}_{vector}");
                let register = self.program.exprs.declare_register(name, ty);
                body.push(Stmt::Register(register, zeros));
                register
            };
            sums.push((0..panel.lane.count).map(declare).collect());
        }
        body.extend(self.ahead_of_strip(product, panel, (row, rows)));
        body.push(self.terms(product, panel, row, &sums));
        body.extend(self.finished(product, panel, row, &sums));
        body
    }

    /// The loop along the K dimension.
    fn terms(&mut self, product: &MatmulStep, panel: Panel, row: ExprId, sums: &[Vec<VarId>]) -> Stmt {
        let (start, end, _) = product.terms;
        let ty = Type::vector(DType::F32, self.lanes);
        let (var, term) = self.program.exprs.fresh_index("term", self.terms_bound(product));
        let mut body = Vec::new();
        let columns: Vec<ExprId> = (0..panel.lane.count)
            .map(|vector| {
                let load = self.column_vector(product, panel, (start, term), vector);
                let name = self.program.exprs.declare_register("b", ty);
                body.push(Stmt::Let(name, load));
                self.program.exprs.var(name)
            })
            .collect();
        if self.k_per_strip(product, sums.len()).is_none() {
            body.extend(self.ahead(product, panel, term));
        }
        let rank = product.lhs.strides.len();
        let (between, step) = (product.lhs.strides[rank - 2], product.lhs.strides[rank - 1]);
        let exprs = &mut self.program.exprs;
        let line = exprs.mul_const(row, between as i64);
        let first = exprs.add2(product.lhs.offset, line);
        let distance = exprs.mul_const(term, step as i64);
        let first = exprs.add2(first, distance);
        for (number, registers) in sums.iter().enumerate() {
            let exprs = &mut self.program.exprs;
            let place = exprs.add_const(first, (number * between) as i64);
            let load = exprs.load(product.lhs.buffer, place, 1, None);
            let wide = exprs.splat(load, self.lanes);
            let factor = exprs.declare_register("a", ty);
            body.push(Stmt::Let(factor, wide));
            let factor = exprs.var(factor);
            for (&register, &column) in registers.iter().zip(&columns) {
                let sum = exprs.var(register);
                body.push(Stmt::Assign(register, exprs.fma(factor, column, sum)));
            }
        }
        Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body }
    }

    /// All strips of rows read the same panel of the right operand, so that its successor has to be prefetched once. If there are enough
    /// strips, each prefetches this many rows of it (indices along the K dimension) before its loop; `None` if each prefetches all of them, in its loop.
    fn k_per_strip(&self, product: &MatmulStep, rows: usize) -> Option<usize> {
        let shape = &self.plan.nodes[product.node].shape;
        let strips = shape[shape.len() - 2].full.div_ceil(rows);
        let count = product.terms.2.div_ceil(strips);
        (count <= MOST_K_PER_STRIP).then_some(count)
    }

    /// What a strip of rows prefetches before its loop.
    fn ahead_of_strip(
        &mut self,
        product: &MatmulStep,
        panel: Panel,
        (row, rows): (ExprId, usize),
    ) -> Vec<Stmt> {
        let Some(count) = self.k_per_strip(product, rows) else { return Vec::new() };
        let exprs = &mut self.program.exprs;
        let rows = exprs.index(rows as i64);
        let strip = exprs.floor_div(row, rows);
        let before = exprs.mul_const(strip, count as i64);
        let first = exprs.add2(product.terms.0, before);
        let mut out = Vec::new();
        for number in 0..count {
            let k = self.program.exprs.add_const(first, number as i64);
            out.extend(self.ahead(product, panel, k));
        }
        out
    }

    /// Prefetches what is read after row `k` of a panel in memory: row `k` of the next panel but one, or the next
    /// rows where they are short. The hardware prefetcher is late here, unless cache lines are read as a whole.
    fn ahead(&mut self, product: &MatmulStep, panel: Panel, term: ExprId) -> Vec<Stmt> {
        let (None, Some(view)) = (panel.packed, &product.rhs) else { return Vec::new() };
        let between = view.strides[view.strides.len() - 2];
        let elems = panel.lane.count * self.lanes;
        let n = self.plan.nodes[product.node].shape.last().map_or(1, |extent| extent.full);
        if !self.program.buffer(view.buffer).scope.is_global() || n <= elems {
            return Vec::new();
        }
        let distance = if between < FAR_APART { product.terms.2 * between } else { PREFETCH_PANELS * elems };
        let place = self.in_place(view, panel.lane, term);
        let place = self.program.exprs.add_const(place, distance as i64);
        Stmt::prefetches(&mut self.program, view.buffer, place, elems)
    }

    /// The address of `[k, columns]` of a right operand that is read in place.
    fn in_place(&mut self, view: &TileView, lane: Lane, term: ExprId) -> ExprId {
        let exprs = &mut self.program.exprs;
        let line = exprs.mul_const(term, view.strides[view.strides.len() - 2] as i64);
        let first = exprs.add2(view.offset, lane.base);
        exprs.add2(first, line)
    }

    /// A vector of the right operand.
    fn column_vector(
        &mut self,
        product: &MatmulStep,
        panel: Panel,
        (start, term): (ExprId, ExprId),
        vector: usize,
    ) -> ExprId {
        let lanes = self.lanes;
        match (panel.packed, &product.rhs) {
            (None, Some(view)) => {
                let lane = panel.lane.step(&mut self.program.exprs, vector, lanes);
                let place = self.in_place(view, lane, term);
                self.program.exprs.load(view.buffer, place, lanes, lane.mask)
            }
            (packed, _) => {
                let place = self.panel_place(product, (start, term), vector);
                let buffer = packed.expect("copied if not read in place");
                self.program.exprs.load(buffer, place, lanes, None)
            }
        }
    }

    /// Stores the accumulators of a register tile to the result.
    fn finished(
        &mut self,
        product: &MatmulStep,
        panel: Panel,
        row: ExprId,
        sums: &[Vec<VarId>],
    ) -> Vec<Stmt> {
        let mut out = Vec::new();
        let into = &product.into;
        let between = into.strides[into.strides.len() - 2];
        let exprs = &mut self.program.exprs;
        let line = exprs.mul_const(row, between as i64);
        let first = exprs.add2(into.offset, line);
        let first = exprs.add2(first, panel.lane.base);
        for (number, registers) in sums.iter().enumerate() {
            for (vector, &register) in registers.iter().enumerate() {
                let exprs = &mut self.program.exprs;
                let distance = number * between + vector * self.lanes;
                let place = exprs.add_const(first, distance as i64);
                let sum = exprs.var(register);
                let before = exprs.load(into.buffer, place, self.lanes, None);
                let value = match &product.finish {
                    Finish::Set => sum,
                    Finish::Add => exprs.add2(before, sum),
                    Finish::Rescale(factor) => {
                        let row = exprs.add_const(row, number as i64);
                        let factor = self.factor_vector(factor, &product.batch, row, (panel.lane, vector));
                        self.program.exprs.fma(before, factor, sum)
                    }
                };
                out.push(Stmt::Store { buffer: into.buffer, offset: place, value, mask: None });
            }
        }
        out
    }

    /// What a vector of the result is scaled by.
    fn factor_vector(
        &mut self,
        factor: &MatmulOperand,
        batch: &[ExprId],
        row: ExprId,
        (lane, vector): (Lane, usize),
    ) -> ExprId {
        let n = self.plan.nodes[factor.max].shape.last().map_or(1, |extent| extent.full);
        let (var, column) = self.program.exprs.fresh_index("column", n.next_multiple_of(self.lanes));
        let element = self.factor(factor, &[batch, &[row, column]].concat());
        let lane = lane.step(&mut self.program.exprs, vector, self.lanes);
        let widening = Widening { mask: lane.mask, ..Widening::new(var, lane.base, self.lanes) };
        let mut vectorizer = Vectorizer::new(&mut self.program.exprs, &widening);
        let wide = vectorizer.widen(&mut self.program.exprs, &mut self.simplifier, element);
        self.program.exprs.splat(wide, self.lanes)
    }

    /// True if results are better computed one by one, with vectors along the K dimension.
    fn suits_dots(&self, shape: &[Extent], (lhs, rhs): (&TileView, &TileView)) -> bool {
        let rank = shape.len();
        let rhs_terms = (rhs.strides[rank - 2], rhs.strides[rank - 1]);
        let is_across = lhs.strides[rank - 1] == 1 && rhs_terms.0 == 1 && rhs_terms.1 != 1;
        shape[rank - 1].full == 1 || is_across && shape[rank - 2].full <= FEW_ROWS
    }

    /// A product with vectors along the K dimension.
    fn dots(
        &mut self,
        node: usize,
        (lhs, rhs): (&TileView, &TileView),
        into: &TileView,
        finish: Finish,
    ) -> Vec<Stmt> {
        let args = self.plan.nodes[node].args.clone();
        let shape = self.plan.nodes[node].shape.clone();
        let rank = shape.len();
        let terms = self.plan.nodes[args[0]].shape[rank - 1].clone();
        let walk = self.walk_along(&[&shape[..], &[terms]].concat(), Some(rank));
        let (row, column, term) = (walk.index[rank - 2], walk.index[rank - 1], walk.index[rank]);
        let index = walk.index[..rank].to_vec();
        let mut factor = |number: usize, view: &TileView, ends: [ExprId; 2]| {
            let index = [&index[..rank - 2], &ends].concat();
            let index = self.repeated(args[number], &index);
            let place = self.place(view, &index);
            self.program.exprs.load(view.buffer, place, 1, None)
        };
        let (value, times) = (factor(0, lhs, [row, term]), factor(1, rhs, [term, column]));
        let place = self.place(into, &index);
        let before = self.program.exprs.load(into.buffer, place, 1, None);
        let before = match &finish {
            Finish::Set => None,
            Finish::Add => Some(before),
            Finish::Rescale(factor) => {
                let factor = self.factor(factor, &index);
                Some(self.program.exprs.mul(before, factor))
            }
        };
        let fold = Fold { f: ReduceFn::Sum, value, times: Some(times), before, into: (into.buffer, place) };
        self.pass(&walk, Vec::new(), vec![fold])
    }
}

/// Most rows for which products are computed one by one where the right operand is transposed.
const FEW_ROWS: usize = 4;

/// Most rows of the next panel of a right operand that a strip of rows prefetches before its loop.
const MOST_K_PER_STRIP: usize = 4;

/// Multiply-adds in the time of a load of a vector of a right operand in memory whose rows are far apart: each strip of rows loads all of
/// them, and L1 has not kept what the strip before loaded. `8 x 4096` by `4096 x 4096` takes a Zen 5 10.8 ms in strips of four rows,
/// 7.0 in one of eight.
const LOAD_SLOTS: f64 = 4.0;

/// Multiply-adds in flight that keep a unit busy.
const LATENCY_SLOTS: usize = 8;
