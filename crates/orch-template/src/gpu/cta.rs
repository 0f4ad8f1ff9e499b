//! What lowerings to CTAs share: names, loops, places of lanes, and the way from block programs to loads and stores.

use orch_compute::block::{BlockProgram, Stage};
use orch_compute::expr::substitute::{Access, Importer, Substitution};
use orch_compute::expr::{ArgId, BufferId, Expr, ExprId, Exprs, StageId, Type, VarId};
use orch_compute::simplify::{Simplifier, simplify};
use orch_ir::DType;
use orch_thread::cta::Location;
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use orch_thread::vectorize::{Vectorizer, Widening};

/// Bytes of the widest access.
pub(super) const WIDEST_BYTES: usize = 16;
/// Most vectors of results that a thread has under way at once.
pub(super) const RESULTS_UNDER_WAY: u32 = 4;

/// A kernel of a CTA while it is written.
pub(super) trait Lowers: Sized {
    /// The program, and what is known of its expressions.
    fn writing(&mut self) -> (&mut ThreadProgram, &mut Simplifier);

    /// The thread's place in its warp.
    fn lane(&self) -> ExprId;

    /// Copies a scalar expression of the block program into the program. No load is made where `guard` is false.
    fn import(&mut self, root: ExprId, bindings: &[(VarId, ExprId)], guard: Option<ExprId>) -> ExprId;

    /// Adds a buffer.
    fn add_buffer(&mut self, name: &str, dtype: DType, elems: usize, scope: Scope) -> BufferId {
        self.writing().0.add_buffer(Buffer { name: name.to_owned(), dtype, elems, scope })
    }

    /// Adds scratch of zeros.
    fn cleared(&mut self, name: &str, dtype: DType, elems: usize) -> (BufferId, Stmt) {
        let buffer = self.add_buffer(name, dtype, elems, Scope::Scratch);
        let value = self.writing().0.exprs.zero(dtype);
        let store = |offset| vec![Stmt::Store { buffer, offset, value, mask: None }];
        (buffer, self.unrolled("i", elems, |_, offset| store(offset)))
    }

    /// Declares a variable with values `0..extent`.
    fn let_var(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId, extent: usize) -> VarId {
        let (program, simplifier) = self.writing();
        let value = simplifier.simplify(&mut program.exprs, value);
        let var = program.exprs.declare_index(name, extent);
        body.push(Stmt::Let(var, value));
        var
    }

    /// Binds an expression with values `0..extent` to a readable name; a constant stays one.
    fn bind(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId, extent: usize) -> ExprId {
        if extent <= 1 {
            return self.writing().0.exprs.index(0);
        }
        let var = self.let_var(body, name, value, extent);
        self.writing().0.exprs.var(var)
    }

    /// The same for values that are multiples of `factor`, whatever their number.
    fn bind_multiple(
        &mut self,
        body: &mut Vec<Stmt>,
        name: &str,
        value: ExprId,
        (extent, factor): (usize, usize),
    ) -> ExprId {
        let var = self.let_var(body, name, value, extent);
        let exprs = &mut self.writing().0.exprs;
        exprs.set_multiple_of(var, factor as i64);
        exprs.var(var)
    }

    /// A loop that is unrolled.
    fn unrolled(
        &mut self,
        name: &str,
        extent: usize,
        body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>,
    ) -> Stmt {
        let (var, value) = self.writing().0.exprs.fresh_index(name, extent);
        let body = body(self, value);
        let exprs = &mut self.writing().0.exprs;
        let (start, end) = (exprs.index(0), exprs.index(extent as i64));
        Stmt::For { var, start, end, step: 1, kind: LoopKind::Unroll, body }
    }

    /// `lane / divide % modulus * times`.
    fn of_lane(&mut self, divide: usize, modulus: usize, times: usize) -> ExprId {
        let lane = self.lane();
        let (program, simplifier) = self.writing();
        let exprs = &mut program.exprs;
        let (divide, modulus) = (exprs.index(divide as i64), exprs.index(modulus as i64));
        let quotient = exprs.floor_div(lane, divide);
        let rest = exprs.floor_rem(quotient, modulus);
        let value = exprs.mul_const(rest, times as i64);
        simplifier.simplify(exprs, value)
    }

    /// Where a lane's row of four 8 x 8 matrices is: `(row, term)` of the first factor of a product and of the second,
    /// for factors whose terms are neighbours or not. Lane `8 i + r` gives row `r` of matrix `i`.
    fn matrix_lanes(&mut self, first_along_terms: bool, second_along_terms: bool) -> [(ExprId, ExprId); 2] {
        let within = self.of_lane(1, 8, 1);
        let (low, high) = (self.of_lane(8, 2, 8), self.of_lane(16, 2, 8));
        let exprs = &mut self.writing().0.exprs;
        let (low_within, high_within) = (exprs.add2(low, within), exprs.add2(high, within));
        let of_first = if first_along_terms { (low_within, high) } else { (low, high_within) };
        let of_second = if second_along_terms { (high_within, low) } else { (high, low_within) };
        [of_first, of_second]
    }

    /// A place that is known when compiling.
    fn constant_place(&mut self, buffer: BufferId, offset: usize) -> Location {
        Location { buffer, offset: self.writing().0.exprs.index(offset as i64) }
    }

    /// Stores of block level, as of [`stores_of`], where `lanes` neighbouring results have the variable `each` from
    /// `first` on, and `total` are their values of what is `sum` of one.
    fn stores(
        &mut self,
        stores: &[(ArgId, ExprId, ExprId)],
        bindings: &[(VarId, ExprId)],
        results: &Results,
        buffers: &[Option<BufferId>],
    ) -> Vec<Stmt> {
        let &Results { each, first, lanes, sum, total } = results;
        let imported: Vec<(ArgId, ExprId, ExprId)> = (stores.iter())
            .map(|&(arg, offset, body)| {
                (arg, self.import(offset, bindings, None), self.import(body, bindings, None))
            })
            .collect();
        let (program, simplifier) = self.writing();
        let exprs = &mut program.exprs;
        let mut one = Substitution::new(&[(sum, total)]);
        let mut several = (lanes > 1).then(|| {
            let over = Widening { registers: vec![(sum, total)], ..Widening::new(each, first, lanes) };
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

/// Neighbouring results that a thread makes at once.
pub(super) struct Results {
    /// Their coordinate; that of the first one.
    pub each: VarId,
    pub first: ExprId,
    /// How many.
    pub lanes: usize,
    /// What stands for the sum of one in scalar expressions; the sums of all.
    pub sum: VarId,
    pub total: ExprId,
}

/// Results that a thread makes at once: those of the widest access of the widest output, as rows of `columns` have them
/// whole.
pub(super) fn result_lanes(block: &BlockProgram, columns: usize) -> usize {
    let lanes = |stage: &Stage| match stage {
        Stage::Store { arg, .. } => Some(WIDEST_BYTES / block.arg(*arg).dtype.size_bytes()),
        Stage::Reduce { .. } => None,
    };
    let widest = block.stages.iter().filter_map(lanes).min().unwrap_or(1);
    widest.clamp(1, 8).min(1 << columns.max(1).trailing_zeros().min(3))
}

/// The stores of a block program: output, element offset and value, with axes replaced.
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

/// Copies a scalar expression of a block program, with variables and stages as told. No load is made where `guard` is
/// false.
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

/// The place, and the condition, of a value that is nothing but an aligned load of neighbouring elements of a type: it
/// can be copied as it is.
pub(super) fn copied_from(
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

/// The lanes whose position, from `first` on, is below `extent`; `None` if all are.
pub(super) fn lanes_below(
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

/// `lanes` of a value of a type, zero where the guard of all or the mask of each is false.
pub(super) fn or_zero(
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
