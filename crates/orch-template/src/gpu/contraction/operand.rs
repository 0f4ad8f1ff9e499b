//! The two operands of a contraction as matrices `[row, k]` over flat coordinates: their elements, one or a vector, wherever
//! they come from (an argument, a packed constant, or a computation that is fused).

use super::emitter::GemmEmitter;
use super::schedule::Major;
use crate::contraction::linear::plain_read;
use crate::contraction::operand::{FlatAxes, pack};
use crate::gpu::cta::{CtaEmitter, ProgramEmitter, WIDEST_BYTES, cp_async_source};
use orch_compute::block::{ArgRole, Stage};
use orch_compute::expr::{ArgId, BufferId, Expr, ExprId, Type, VarId};
use orch_thread::cta::Location;
use orch_thread::kernel::{Binding, PackedConstant};
use orch_thread::program::Scope;
use orch_thread::vectorize::{Widening, vectorize};

/// One operand, before it is chosen how it is loaded. Its rows are those of `a`, or the columns of `b`.
#[derive(Clone, Debug)]
pub(super) struct GemmOperand {
    /// `a` or `b`.
    pub name: &'static str,
    /// 0 for `a`, 1 for `b`.
    pub number: usize,
    /// The flat coordinate beside `k`: m or n.
    pub row: VarId,
    /// Its extent.
    pub rows: usize,
    /// Rows of a CTA's tile.
    pub tile_rows: usize,
    /// The buffer of a constant that is packed for this kernel, `[batch, row, k]`, and its extent along K with padding.
    pub packed: Option<(BufferId, usize)>,
}

/// Adds the buffers of arguments, and of constant operands that are packed; both operands, and what is passed for each buffer.
pub(super) fn declare_arguments(emitter: &mut GemmEmitter<'_>) -> ([GemmOperand; 2], Vec<Binding>) {
    let mut operands = [GemmOperand::a(emitter), GemmOperand::b(emitter)];
    let packed = [operands[0].packing(emitter), operands[1].packing(emitter)];
    let mut roots: Vec<ExprId> = (emitter.operands.iter().zip(&packed))
        .filter(|(_, packed)| packed.is_none())
        .map(|(&operand, _)| operand)
        .collect();
    for stage in &emitter.block.stages {
        if let Stage::Store { index, body, .. } = stage {
            roots.extend(index.iter().chain([body]));
        }
    }
    let mut is_passed: Vec<bool> = emitter.block.args.iter().map(|arg| arg.role.is_stored()).collect();
    for id in emitter.source.reachable(&roots) {
        if let Expr::Read { arg, .. } = emitter.source.get(id) {
            is_passed[arg.index()] = true;
        }
    }
    let mut bindings = Vec::new();
    for (index, arg) in emitter.block.args.iter().enumerate().filter(|(index, _)| is_passed[*index]) {
        let scope = Scope::from(arg.role);
        let buffer = emitter.add_buffer(&format!("arg{index}"), arg.dtype, arg.shape.elems(), scope);
        emitter.arg_buffers[index] = Some(buffer);
        bindings.push(Binding::Arg(ArgId::new(index)));
    }
    for (operand, packed) in operands.iter_mut().zip(packed) {
        if let Some(packed) = packed {
            operand.packed = Some((
                emitter.add_buffer("packed", packed.dtype, packed.elems(), Scope::Constant),
                packed.k_extent,
            ));
            bindings.push(Binding::Packed(packed));
        }
    }
    (operands, bindings)
}

impl GemmOperand {
    /// The operand `a[m, k]`.
    fn a(emitter: &GemmEmitter<'_>) -> Self {
        let (row, rows, tile_rows) = (emitter.flat.m, emitter.extents.m, emitter.schedule.block_m);
        Self { name: "a", number: 0, row, rows, tile_rows, packed: None }
    }

    /// The operand `b[n, k]`, transposed.
    fn b(emitter: &GemmEmitter<'_>) -> Self {
        let (row, rows, tile_rows) = (emitter.flat.n, emitter.extents.n, emitter.schedule.block_n);
        Self { name: "b", number: 1, row, rows, tile_rows, packed: None }
    }

    /// How a constant operand is packed for this kernel; `None` if it is not constant, or more than a read.
    fn packing(&self, emitter: &mut GemmEmitter<'_>) -> Option<PackedConstant> {
        let value = emitter.operands[self.number];
        let (arg, offset) = plain_read(emitter.block, &mut emitter.source, value)?;
        if emitter.block.arg(arg).role != ArgRole::Constant {
            return None;
        }
        let flat = FlatAxes { n: self.row, ..emitter.flat.clone() };
        let mut packed = pack(emitter.block, &mut emitter.source, &emitter.form, &flat, (arg, offset), 1)?;
        packed.k_extent = packed.k_extent.next_multiple_of(WIDEST_BYTES / packed.dtype.size_bytes());
        Some(packed)
    }

    /// Extent along K that may be read.
    pub fn k_extent(&self, emitter: &GemmEmitter<'_>) -> usize {
        self.packed.map_or(emitter.extents.k, |(_, k_extent)| k_extent)
    }

    /// True where the row exists; `None` if all do.
    pub fn row_in_bounds(&self, emitter: &mut GemmEmitter<'_>, row: ExprId) -> Option<ExprId> {
        let exprs = &mut emitter.program.exprs;
        let limit = exprs.index(self.rows as i64);
        (!self.rows.is_multiple_of(self.tile_rows)).then(|| exprs.lt(row, limit))
    }

    /// True where `k` exists; `None` if all do.
    pub fn k_in_bounds(&self, emitter: &mut GemmEmitter<'_>, k: ExprId) -> Option<ExprId> {
        let k_extent = self.k_extent(emitter);
        let is_exact = k_extent == emitter.padded_k();
        let exprs = &mut emitter.program.exprs;
        let limit = exprs.index(k_extent as i64);
        (!is_exact).then(|| exprs.lt(k, limit))
    }

    /// True where the element exists; `None` if all do.
    pub fn in_bounds(&self, emitter: &mut GemmEmitter<'_>, row: ExprId, k: ExprId) -> Option<ExprId> {
        let (row, k) = (self.row_in_bounds(emitter, row), self.k_in_bounds(emitter, k));
        emitter.program.exprs.and_guard(row, k)
    }

    /// The element `[row, k]`.
    fn element(
        &self,
        emitter: &mut GemmEmitter<'_>,
        row: ExprId,
        k: ExprId,
        guard: Option<ExprId>,
    ) -> ExprId {
        match self.packed {
            Some((buffer, k_extent)) => {
                let exprs = &mut emitter.program.exprs;
                // [batch, row, k]
                let index = [emitter.batch, row, k];
                let offset = exprs.linear_index(&index, &[self.rows * k_extent, k_extent, 1]);
                exprs.load(buffer, offset, 1, guard)
            }
            None => {
                let bindings = [(self.row, row), (emitter.flat.k, k)];
                emitter.import(emitter.operands[self.number], &bindings, guard)
            }
        }
    }

    /// A vector of `lanes` elements from `[row, k]` on along the major dimension; a scalar if they are all the same.
    pub fn vector(
        &self,
        emitter: &mut GemmEmitter<'_>,
        major: Major,
        (row, k): (ExprId, ExprId),
        lanes: usize,
        guard: Option<ExprId>,
        mask: Option<ExprId>,
    ) -> ExprId {
        if lanes == 1 {
            return self.element(emitter, row, k, guard);
        }
        let base = if major == Major::K { k } else { row };
        let base = emitter.simplifier.simplify(&mut emitter.program.exprs, base);
        let limit = self.rows.max(emitter.padded_k()) * 2 + emitter.schedule.block_k * 16;
        let (var, each) = emitter.program.exprs.fresh_index("each", limit);
        let scalar = match major {
            Major::K => self.element(emitter, row, each, guard),
            Major::Mn => self.element(emitter, each, k, guard),
        };
        let widening = Widening { mask, ..Widening::new(var, base, lanes) };
        vectorize(&mut emitter.program.exprs, scalar, &widening).value
    }

    /// A vector at an unknown place that is a multiple of the lanes: what can be said of it holds for all vectors.
    pub fn any_vector(&self, emitter: &mut GemmEmitter<'_>, major: Major, lanes: usize) -> ExprId {
        let exprs = &mut emitter.program.exprs;
        let (row_var, row) = exprs.fresh_index("row", self.rows.next_multiple_of(lanes));
        let (k_var, k) = exprs.fresh_index("k", emitter.extents.k.next_multiple_of(lanes));
        exprs.set_multiple_of(if major == Major::K { k_var } else { row_var }, lanes as i64);
        self.vector(emitter, major, (row, k), lanes, None, None)
    }

    /// True if all vectors of so many lanes can be copied with `cp.async`.
    pub fn allows_cp_async(&self, emitter: &mut GemmEmitter<'_>, major: Major, lanes: usize) -> bool {
        let value = self.any_vector(emitter, major, lanes);
        emitter.cp_async_source(value, lanes).is_some()
    }
}

impl GemmEmitter<'_> {
    /// The place from which `cp.async` can copy a vector of an operand, and the condition under which it is read; `None` if
    /// the vector is more than an aligned load.
    pub fn cp_async_source(&mut self, value: ExprId, lanes: usize) -> Option<(Location, Option<ExprId>)> {
        let ty = Type { dtype: self.unit.operand_type(), lanes };
        cp_async_source(&mut self.program.exprs, &mut self.simplifier, value, ty)
    }
}
