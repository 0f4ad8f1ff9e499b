//! The tiles of an operand in shared memory, one for each pipeline stage, and how threads load them.
//!
//! ```text
//! K-major    [stage, row, k]    lines are rows
//! MN-major   [stage, k, row]    lines are k
//! ```
//!
//! Lines are padded against bank conflicts of `ldmatrix` and of scalar reads, or, for `wgmma`, swizzled by 128 bytes. A *chunk* is
//! a vector of up to 16 bytes of a line. Chunk `number * threads + thread` of a tile is loaded by `thread`:
//!
//! ```text
//! line 0   | t0 | t1 | t2 | t3 |
//! line 1   | t4 | t5 | t6 | t7 |    neighbouring threads load neighbouring chunks
//! ```

use super::emitter::GemmEmitter;
use super::operand::GemmOperand;
use super::schedule::{Major, padding};
use crate::gpu::cta::{ProgramEmitter, WIDEST_BYTES, lanes_in_bounds, zero_unless};
use orch_compute::expr::substitute::replace;
use orch_compute::expr::{BufferId, Expr, ExprId, Exprs, Type, VarId};
use orch_thread::cta::{CtaStmt, Location, swizzled_offset};
use orch_thread::program::{Scope, Stmt};
use orch_thread::vectorize::LoadCounts;
use rustc_hash::FxHashMap;

/// Bytes of the narrowest `cp.async`.
const NARROWEST_CP_ASYNC: usize = 4;

/// One operand's tiles.
#[derive(Debug)]
pub(super) struct OperandTiles {
    pub operand: GemmOperand,
    /// The dimension along which elements of a line are consecutive.
    pub major: Major,
    /// Elements of a chunk.
    lanes: usize,
    /// Whether chunks are copied with `cp.async`, instead of being computed.
    uses_cp_async: bool,
    /// The tiles of all stages.
    pub buffer: BufferId,
    /// Elements between the starts of neighbouring lines of a tile.
    pub stride: usize,
    /// Elements of a tile.
    pub stage_elems: usize,
    chunks: Vec<Chunk>,
}

/// A chunk of the tile that a thread loads in each iteration.
#[derive(Clone, Debug)]
struct Chunk {
    /// Its line, a variable that is bound before the main loop.
    line: VarId,
    /// Its first element in the line, likewise.
    at: VarId,
    /// True for the threads that have such a chunk; `None` is all.
    exists: Option<ExprId>,
}

/// Statements that load a tile to a stage.
pub(super) struct TileLoad {
    /// Before the multiplication: `cp.async`, and the loads and values of computed chunks, which are in flight during it.
    pub before_multiply: Vec<Stmt>,
    /// After the multiplication: stores of computed chunks to shared memory.
    pub after_multiply: Vec<Stmt>,
}

impl OperandTiles {
    /// Chooses how an operand is loaded, and gives it shared memory: the widest `cp.async` along either dimension, else chunks
    /// of 16 bytes that are computed, along the dimension with fewer gathers.
    pub fn new(emitter: &mut GemmEmitter<'_>, operand: GemmOperand) -> Self {
        let dtype = emitter.unit.operand_type();
        let widest = WIDEST_BYTES / dtype.size_bytes();
        let narrowest = (NARROWEST_CP_ASYNC / dtype.size_bytes()).max(1);
        let widths =
            std::iter::successors(Some(widest), |&lanes| (lanes / 2 >= narrowest).then_some(lanes / 2));
        let ways = widths.flat_map(|lanes| [(Major::K, lanes), (Major::Mn, lanes)]);
        let required = emitter.schedule.required_major(operand.number);
        let cp_async = ways.into_iter().find(|&(major, lanes)| {
            required.is_none_or(|required| required == major)
                && operand.allows_cp_async(emitter, major, lanes)
        });
        let (major, lanes) = cp_async.unwrap_or_else(|| {
            let gathers = |emitter: &mut GemmEmitter<'_>, major| {
                let value = operand.any_vector(emitter, major, widest);
                LoadCounts::of(&emitter.program.exprs, value).gathers
            };
            let is_mn = gathers(emitter, Major::Mn) < gathers(emitter, Major::K);
            (if is_mn { Major::Mn } else { Major::K }, widest)
        });
        let is_swizzled = emitter.schedule.wgmma;
        let major = required.unwrap_or(major);
        let pad = if is_swizzled { 0 } else { padding(emitter.unit, major) };
        let (lines, line_elems) = match major {
            Major::K => (operand.tile_rows, emitter.schedule.block_k),
            Major::Mn => (emitter.schedule.block_k, operand.tile_rows),
        };
        let stage_elems = lines * (line_elems + pad);
        let elems = emitter.schedule.stages * stage_elems;
        let buffer = emitter.add_buffer(&format!("{}_tiles", operand.name), dtype, elems, Scope::Shared);
        let uses_cp_async = cp_async.is_some();
        let mut tiles = Self {
            operand,
            major,
            lanes,
            uses_cp_async,
            buffer,
            stride: line_elems + pad,
            stage_elems,
            chunks: Vec::new(),
        };
        tiles.chunks = tiles.declare_chunks(emitter, lines, line_elems);
        tiles
    }

    /// The chunks of a thread, `ceil(chunks of a tile / threads)`.
    fn declare_chunks(&self, emitter: &mut GemmEmitter<'_>, lines: usize, line_elems: usize) -> Vec<Chunk> {
        let threads = emitter.schedule.threads();
        let count = lines * (line_elems / self.lanes);
        (0..count.div_ceil(threads))
            .map(|number| {
                let name = self.operand.name;
                let exprs = &mut emitter.program.exprs;
                let line = exprs.declare_index(format!("{name}_line"), lines);
                let at = exprs.declare_index(format!("{name}_at"), line_elems);
                exprs.set_multiple_of(at, self.lanes as i64);
                let limit = exprs.index(count as i64);
                let chunk = exprs.add_const(emitter.thread, (number * threads) as i64);
                let exists = ((number + 1) * threads > count).then(|| exprs.lt(chunk, limit));
                Chunk { line, at, exists }
            })
            .collect()
    }

    /// Binds the line and the first element of each of the thread's chunks.
    pub fn place_chunks(&self, emitter: &mut GemmEmitter<'_>) -> Vec<Stmt> {
        let threads = emitter.schedule.threads();
        let line_elems = match self.major {
            Major::K => emitter.schedule.block_k,
            Major::Mn => self.operand.tile_rows,
        };
        let lines = self.lines();
        let mut body = Vec::new();
        for (number, chunk) in self.chunks.iter().enumerate() {
            let exprs = &mut emitter.program.exprs;
            let mut flat = exprs.add_const(emitter.thread, (number * threads) as i64);
            if chunk.exists.is_some() {
                // Threads without a chunk need values within the declared ranges.
                let last = exprs.index((lines * (line_elems / self.lanes)) as i64 - 1);
                flat = exprs.min(flat, last);
            }
            // [line, chunk of the line]
            let parts = exprs.unflatten(flat, &[lines, line_elems / self.lanes]);
            let at = exprs.mul_const(parts[1], self.lanes as i64);
            for (var, value) in [(chunk.line, parts[0]), (chunk.at, at)] {
                let value = emitter.simplifier.simplify(&mut emitter.program.exprs, value);
                body.push(Stmt::Let(var, value));
            }
        }
        body
    }

    /// Lines of a tile.
    pub fn lines(&self) -> usize {
        self.stage_elems / self.stride
    }

    /// Loads the tile of an iteration to a stage; nothing past the last iteration.
    pub fn load(&self, emitter: &mut GemmEmitter<'_>, iteration: ExprId, stage: ExprId) -> TileLoad {
        let (mut before_multiply, mut after_multiply) = (Vec::new(), Vec::new());
        let first_k = emitter.bind_first_k(&mut before_multiply, iteration);
        let iterations = emitter.program.exprs.index(emitter.iterations() as i64);
        let exists = emitter.program.exprs.lt(iteration, iterations);
        let exists = emitter.simplifier.simplify(&mut emitter.program.exprs, exists);
        let always_exists = emitter.program.exprs.as_bool(exists) == Some(true);
        let mut copies = Vec::new();
        for chunk in &self.chunks {
            let exprs = &mut emitter.program.exprs;
            let (line, at) = (exprs.var(chunk.line), exprs.var(chunk.at));
            // [line, at], swizzled or with padded lines
            let offset = match emitter.schedule.wgmma {
                true => swizzled_offset(exprs, self.lines(), line, at),
                false => exprs.linear_index(&[line, at], &[self.stride, 1]),
            };
            let to = exprs.linear_index(&[stage, offset], &[self.stage_elems, 1]);
            let to = Location { buffer: self.buffer, offset: to };
            let first_row = emitter.origin[self.operand.number];
            let (row, k) = match self.major {
                Major::K => (exprs.add2(first_row, line), exprs.add2(first_k, at)),
                Major::Mn => (exprs.add2(first_row, at), exprs.add2(first_k, line)),
            };
            if self.uses_cp_async {
                copies.extend(guarded(chunk.exists, self.cp_async(emitter, to, row, k)));
            } else {
                let condition = (!always_exists).then_some(exists);
                let value = self.computed_chunk(emitter, chunk, (row, k), condition);
                let (loads, value) = loads_first(&mut emitter.program.exprs, value, self.operand.name);
                before_multiply.extend(loads);
                let store = Stmt::Store { buffer: to.buffer, offset: to.offset, value, mask: None };
                after_multiply.extend(guarded(chunk.exists, store));
            }
        }
        if always_exists || copies.is_empty() {
            before_multiply.extend(copies);
        } else {
            before_multiply.push(Stmt::If { condition: exists, then: copies, otherwise: Vec::new() });
        }
        TileLoad { before_multiply, after_multiply }
    }

    /// `cp.async` of the chunk from `[row, k]` on; zeros outside of the operand.
    fn cp_async(&self, emitter: &mut GemmEmitter<'_>, to: Location, row: ExprId, k: ExprId) -> Stmt {
        let value = self.operand.vector(emitter, self.major, (row, k), self.lanes, None, None);
        let (from, own) =
            emitter.cp_async_source(value, self.lanes).expect("every vector allows cp.async, as was tried");
        let inside = self.operand.in_bounds(emitter, row, k);
        let mask = emitter.program.exprs.and_guard(own, inside);
        let (first, extent) = match self.major {
            Major::K => (k, self.operand.k_extent(emitter)),
            Major::Mn => (row, self.operand.rows),
        };
        // Where the extent is no multiple of a chunk, the last chunk has fewer elements.
        let real = (!extent.is_multiple_of(self.lanes)).then(|| {
            let exprs = &mut emitter.program.exprs;
            let (extent, lanes) = (exprs.index(extent as i64), exprs.index(self.lanes as i64));
            let left = exprs.sub(extent, first);
            exprs.min(left, lanes)
        });
        Stmt::Cta(CtaStmt::CpAsync { to, from, elems: self.lanes, real, mask })
    }

    /// The value of the chunk from `[row, k]` on; zeros outside of the operand, and where `condition` is false.
    fn computed_chunk(
        &self,
        emitter: &mut GemmEmitter<'_>,
        chunk: &Chunk,
        (row, k): (ExprId, ExprId),
        condition: Option<ExprId>,
    ) -> ExprId {
        let operand = &self.operand;
        let (row_inside, k_inside) = (operand.row_in_bounds(emitter, row), operand.k_in_bounds(emitter, k));
        let (first, extent, line_inside, first_inside) = match self.major {
            Major::K => (k, operand.k_extent(emitter), row_inside, k_inside),
            Major::Mn => (row, operand.rows, k_inside, row_inside),
        };
        let mut guard = emitter.program.exprs.and_guard(line_inside, condition);
        let GemmEmitter { program, simplifier, .. } = &mut *emitter;
        let mask = lanes_in_bounds(&mut program.exprs, simplifier, (first, extent), self.lanes);
        let mut value = operand.vector(emitter, self.major, (row, k), self.lanes, guard, mask);
        // The mask is of lanes: it does not guard a scalar load that all lanes share, whose place is outside if all lanes are.
        if mask.is_some() && has_shared_load(&emitter.program.exprs, value, chunk.at) {
            guard = emitter.program.exprs.and_guard(guard, first_inside);
            value = operand.vector(emitter, self.major, (row, k), self.lanes, guard, mask);
        }
        let ty = Type { dtype: emitter.unit.operand_type(), lanes: self.lanes };
        zero_unless(&mut emitter.program.exprs, value, ty, guard, mask)
    }
}

/// True if a vector has a scalar load that all its lanes share, from a place that depends on the vector's `first` position.
fn has_shared_load(exprs: &Exprs, value: ExprId, first: VarId) -> bool {
    let is_shared = |id: ExprId| matches!(exprs.get(id), Expr::Load { lanes: 1, .. });
    exprs.reachable(&[value]).into_iter().any(|id| is_shared(id) && exprs.free_vars(id).contains(&first))
}

/// The loads of a value as variables, and the value over these: the loads are in flight during the multiplication.
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
    // A load whose offset is loaded keeps the inner load in its offset; the variable of that is then unused.
    let used = exprs.free_vars(value);
    loads.retain(|(var, _)| used.contains(var));
    (loads.into_iter().map(|(var, load)| Stmt::Let(var, load)).collect(), value)
}

/// A statement for the threads that have a chunk.
fn guarded(exists: Option<ExprId>, stmt: Stmt) -> Option<Stmt> {
    Some(match exists {
        None => stmt,
        Some(condition) => Stmt::If { condition, then: vec![stmt], otherwise: Vec::new() },
    })
}
