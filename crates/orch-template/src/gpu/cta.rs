//! What the emitters of CTAs that multiply share (contractions and attention): named values, loops, the lanes' parts of fragments,
//! and the way from a block program's expressions to loads and stores.

use orch_compute::block::{BlockProgram, Stage};
use orch_compute::expr::substitute::{Access, Importer, Substitution};
use orch_compute::expr::{ArgId, BufferId, Expr, ExprId, Exprs, StageId, Type, VarId};
use orch_compute::simplify::{Simplifier, simplify};
use orch_ir::DType;
use orch_thread::cta::Location;
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use orch_thread::vectorize::{Vectorizer, Widening};

/// Bytes of the widest access to memory, and of the widest `cp.async`.
pub(super) const WIDEST_BYTES: usize = 16;
/// Vectors of results that a thread computes in one unrolled iteration of an epilogue: their loads are in flight together.
pub(super) const RESULTS_IN_FLIGHT: u32 = 4;

/// A thread program while it is written: buffers, variables and loops.
pub(super) trait ProgramEmitter: Sized {
    /// The program, and the bounds of its expressions.
    fn program_and_simplifier(&mut self) -> (&mut ThreadProgram, &mut Simplifier);

    /// Adds a buffer.
    fn add_buffer(&mut self, name: &str, dtype: DType, elems: usize, scope: Scope) -> BufferId {
        self.program_and_simplifier().0.add_buffer(Buffer { name: name.to_owned(), dtype, elems, scope })
    }

    /// Adds scratch, and stores zeros to it.
    fn zeroed_scratch(&mut self, name: &str, dtype: DType, elems: usize) -> (BufferId, Stmt) {
        let buffer = self.add_buffer(name, dtype, elems, Scope::Scratch);
        let value = self.program_and_simplifier().0.exprs.zero(dtype);
        let store = |offset| vec![Stmt::Store { buffer, offset, value, mask: None }];
        (buffer, self.unrolled("i", elems, |_, offset| store(offset)))
    }

    /// Declares a variable with values `0..extent`.
    fn let_var(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId, extent: usize) -> VarId {
        let (program, simplifier) = self.program_and_simplifier();
        let value = simplifier.simplify(&mut program.exprs, value);
        let var = program.exprs.declare_index(name, extent);
        body.push(Stmt::Let(var, value));
        var
    }

    /// Binds an expression with values `0..extent` to a readable name; a constant stays one.
    fn bind(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId, extent: usize) -> ExprId {
        if extent <= 1 {
            return self.program_and_simplifier().0.exprs.index(0);
        }
        let var = self.let_var(body, name, value, extent);
        self.program_and_simplifier().0.exprs.var(var)
    }

    /// The same for values that are multiples of `multiple`; they are bound even if there is a single one.
    fn bind_multiple(
        &mut self,
        body: &mut Vec<Stmt>,
        name: &str,
        value: ExprId,
        (extent, multiple): (usize, usize),
    ) -> ExprId {
        let var = self.let_var(body, name, value, extent);
        let exprs = &mut self.program_and_simplifier().0.exprs;
        exprs.set_multiple_of(var, multiple as i64);
        exprs.var(var)
    }

    /// A loop that is unrolled.
    fn unrolled(
        &mut self,
        name: &str,
        extent: usize,
        body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>,
    ) -> Stmt {
        let (var, value) = self.program_and_simplifier().0.exprs.fresh_index(name, extent);
        let body = body(self, value);
        let exprs = &mut self.program_and_simplifier().0.exprs;
        let (start, end) = (exprs.index(0), exprs.index(extent as i64));
        Stmt::For { var, start, end, step: 1, kind: LoopKind::Unroll, body }
    }
}

/// The thread program of a CTA while it is written: what depends on the lane, and stores of results.
pub(super) trait CtaEmitter: ProgramEmitter {
    /// The thread's lane in its warp.
    fn lane(&self) -> ExprId;

    /// Copies a scalar expression of the block program into the program. No load is made where `guard` is false.
    fn import(&mut self, root: ExprId, bindings: &[(VarId, ExprId)], guard: Option<ExprId>) -> ExprId;

    /// A part of the lane's number: `lane / divide % modulus * times`.
    fn of_lane(&mut self, divide: usize, modulus: usize, times: usize) -> ExprId {
        let lane = self.lane();
        let (program, simplifier) = self.program_and_simplifier();
        let exprs = &mut program.exprs;
        let (divide, modulus) = (exprs.index(divide as i64), exprs.index(modulus as i64));
        let quotient = exprs.floor_div(lane, divide);
        let rest = exprs.floor_rem(quotient, modulus);
        let value = exprs.mul_const(rest, times as i64);
        simplifier.simplify(exprs, value)
    }

    /// The `(row, k)` whose address a lane gives to `ldmatrix.x4`, for the fragment of `a[16, 16]` and for two fragments of
    /// `b[8, 16]` (rows of `b` are columns of the product), each K-major or not. Lane `8 i + r` gives line `r` of matrix `i`:
    ///
    /// ```text
    ///              k 0..8  k 8..16                k 0..8  k 8..16
    /// a row 0..8     0       2         b row 0..8     0       1
    ///   row 8..16    1       3           row 8..16    2       3
    /// ```
    fn ldmatrix_rows(&mut self, a_is_k_major: bool, b_is_k_major: bool) -> [(ExprId, ExprId); 2] {
        let within = self.of_lane(1, 8, 1);
        let (low, high) = (self.of_lane(8, 2, 8), self.of_lane(16, 2, 8));
        let exprs = &mut self.program_and_simplifier().0.exprs;
        let (low_within, high_within) = (exprs.add2(low, within), exprs.add2(high, within));
        let of_a = if a_is_k_major { (low_within, high) } else { (low, high_within) };
        let of_b = if b_is_k_major { (high_within, low) } else { (high, low_within) };
        [of_a, of_b]
    }

    /// A location at a constant offset, as fragments in registers have.
    fn constant_location(&mut self, buffer: BufferId, offset: usize) -> Location {
        Location { buffer, offset: self.program_and_simplifier().0.exprs.index(offset as i64) }
    }

    /// The block program's stores (of [`stores_of`]) of a vector of results.
    fn vector_stores(
        &mut self,
        stores: &[(ArgId, ExprId, ExprId)],
        bindings: &[(VarId, ExprId)],
        results: &ResultVector,
        buffers: &[Option<BufferId>],
    ) -> Vec<Stmt> {
        let &ResultVector { each, first, lanes, acc, total } = results;
        let imported: Vec<(ArgId, ExprId, ExprId)> = (stores.iter())
            .map(|&(arg, offset, body)| {
                (arg, self.import(offset, bindings, None), self.import(body, bindings, None))
            })
            .collect();
        let (program, simplifier) = self.program_and_simplifier();
        let exprs = &mut program.exprs;
        let mut one = Substitution::new(&[(acc, total)]);
        let mut several = (lanes > 1).then(|| {
            let over = Widening { registers: vec![(acc, total)], ..Widening::new(each, first, lanes) };
            Vectorizer::new(exprs, &over)
        });
        let mut of_lanes = |exprs: &mut Exprs, id| match &mut several {
            None => one.apply(exprs, id),
            Some(vectorizer) => vectorizer.widen(exprs, simplifier, id),
        };
        let store = |(arg, offset, body): (ArgId, ExprId, ExprId)| {
            let (offset, value) = (of_lanes(exprs, offset), of_lanes(exprs, body));
            let value = exprs.splat(value, lanes);
            let buffer = buffers[arg.index()].expect("outputs are passed");
            Stmt::Store { buffer, offset, value, mask: None }
        };
        imported.into_iter().map(store).collect()
    }
}

/// Consecutive results of a row that a thread computes at once.
pub(super) struct ResultVector {
    /// The variable that stands for the column in scalar expressions.
    pub each: VarId,
    /// The column of the first result.
    pub first: ExprId,
    /// How many results.
    pub lanes: usize,
    /// The variable that stands for the accumulator of one result in scalar expressions.
    pub acc: VarId,
    /// The accumulators of all results.
    pub total: ExprId,
}

/// Results of a vector in an epilogue: as many as the widest store of the widest output holds and `columns` is a multiple of.
pub(super) fn result_lanes(block: &BlockProgram, columns: usize) -> usize {
    let lanes = |stage: &Stage| match stage {
        Stage::Store { arg, .. } => Some(WIDEST_BYTES / block.arg(*arg).dtype.size_bytes()),
        Stage::Reduce { .. } => None,
    };
    let widest = block.stages.iter().filter_map(lanes).min().unwrap_or(1);
    widest.clamp(1, 8).min(1 << columns.max(1).trailing_zeros().min(3))
}

/// The stores of a block program: output, element offset and value, with axes replaced by expressions.
pub(super) fn stores_of(
    block: &BlockProgram,
    source: &mut Exprs,
    axes: &[(VarId, ExprId)],
) -> Vec<(ArgId, ExprId, ExprId)> {
    let mut replace = Substitution::new(axes);
    let mut found = Vec::new();
    for stage in &block.stages {
        let Stage::Store { arg, index, body, .. } = stage else { continue };
        let meta = block.arg(*arg);
        let index: Vec<ExprId> = index.iter().map(|&id| replace.apply(source, id)).collect();
        let offset = source.linear_index(&index, &meta.layout.strides(&meta.shape));
        found.push((*arg, offset, replace.apply(source, *body)));
    }
    found
}

/// Copies a scalar expression of a block program into a thread program, with variables replaced by `bindings` and stages by
/// `stage`. No load is made where `guard` is false.
pub(super) fn import(
    (block, source): (&BlockProgram, &Exprs),
    (exprs, simplifier): (&mut Exprs, &mut Simplifier),
    root: ExprId,
    (bindings, guard): (impl IntoIterator<Item = (VarId, ExprId)>, Option<ExprId>),
    buffers: &[Option<BufferId>],
    stage: impl Fn(&mut Exprs, StageId) -> ExprId,
) -> ExprId {
    let mut importer = Importer::new();
    bindings.into_iter().for_each(|(var, value)| importer.bind(var, value));
    let copied = importer.import(source, exprs, root, |exprs, access| match access {
        Access::Read { arg, index, guard: own } => {
            let meta = block.arg(arg);
            let offset = exprs.linear_index(index, &meta.layout.strides(&meta.shape));
            let buffer = buffers[arg.index()].expect("arguments that are read are passed");
            let guard = exprs.and_guard(own, guard);
            exprs.load(buffer, offset, 1, guard)
        }
        Access::Stage(id) => stage(exprs, id),
    });
    simplifier.simplify(exprs, copied)
}

/// The source of a `cp.async`, and the condition under which it is read, if a value is nothing but an aligned load of consecutive
/// elements of a type.
pub(super) fn cp_async_source(
    exprs: &mut Exprs,
    simplifier: &mut Simplifier,
    value: ExprId,
    ty: Type,
) -> Option<(Location, Option<ExprId>)> {
    let Expr::Load { buffer, offset, mask, .. } = *exprs.get(value) else { return None };
    let mask = match mask {
        Some(mask) => Some(exprs.uniform(mask)?),
        None => None,
    };
    let is_vector = exprs.ty(value) == ty && exprs.lanes(offset) == 1;
    let is_aligned = is_vector && simplifier.range(exprs, offset).is_multiple_of(ty.lanes as i64);
    is_aligned.then_some((Location { buffer, offset }, mask))
}

/// A mask of the lanes whose position, `first + lane`, is below `extent`; `None` if all are.
pub(super) fn lanes_in_bounds(
    exprs: &mut Exprs,
    simplifier: &mut Simplifier,
    (first, extent): (ExprId, usize),
    lanes: usize,
) -> Option<ExprId> {
    let positions = exprs.ramp(first, 1, lanes);
    let limit = exprs.index(extent as i64);
    let limit = exprs.splat(limit, lanes);
    let below = exprs.lt(positions, limit);
    let below = simplifier.simplify(exprs, below);
    (exprs.as_bool(below) != Some(true)).then_some(below)
}

/// A value of a type, zero where the guard of all lanes or the mask of each is false.
pub(super) fn zero_unless(
    exprs: &mut Exprs,
    value: ExprId,
    ty: Type,
    guard: Option<ExprId>,
    mask: Option<ExprId>,
) -> ExprId {
    let value = exprs.splat(value, ty.lanes);
    let guard = guard.map(|guard| exprs.splat(guard, ty.lanes));
    let Some(inside) = exprs.and_guard(guard, mask) else { return value };
    let zero = exprs.zero(ty.dtype);
    let zero = exprs.splat(zero, ty.lanes);
    let value = exprs.select(inside, value, zero);
    simplify(exprs, value)
}
