//! Kernels as thread programs for CPUs: a block is a work item of one thread, its tiles are in scratch memory.
//!
//! Stages, in this order: the plan (compound operators expanded, extents of tiles as functions of block and iteration),
//! homes (which tiles lie in scratch, which are computed where they are read), then one pass per tile in scratch: what
//! does not depend on the iteration, the loop, what follows it, and the stores.
//!
//! Tiles are computed in f32. A tile in scratch has lines of whole vectors; what pads them is never read.

mod element;
mod emit;
mod extent;
mod home;
mod matmul;
mod memory;
mod pack;
mod plan;
mod rows;

use super::{CannotLower, Request};
use crate::graph::TensorId;
use element::TileView;
use extent::{Extent, Part};
use home::Home;
use matmul::MatmulOperand;
use orch_compute::{ArgId, BufferId, ExprId, Simplifier};
use orch_ir::DType;
use orch_thread::kernel::{Binding, Kernel};
use orch_thread::{Buffer, CpuTarget, Scope, Stmt, ThreadProgram};
use plan::{CpuTilePlan, Work};

/// Lowers a kernel to a program whose work items are the blocks of its grid.
///
/// # Errors
/// If the kernel is a predefined one, its block graph is not valid, or operands' extents differ in blocks with remainders.
pub fn lower(request: &Request<'_>, target: &CpuTarget) -> Result<Kernel, CannotLower> {
    let block = request.block()?;
    let plan = CpuTilePlan::of(request, block)?;
    let mut ctx = CpuBlockEmitter::new(request, target, plan, (&block.grid, block.loop_range));
    ctx.arguments()?;
    ctx.homes = home::homes(&ctx);
    ctx.ends = memory::ends(&ctx);
    let places = block.stores.iter().map(|store| store.grid.as_slice()).collect::<Vec<_>>();
    ctx.program.body = ctx.task(&block.grid, &places)?;
    let bindings = ctx.bindings();
    Ok(Kernel { program: ctx.program, bindings })
}

/// State of the lowering of one kernel.
struct CpuBlockEmitter<'a> {
    request: &'a Request<'a>,
    target: &'a CpuTarget,
    plan: CpuTilePlan,
    /// Of each tile where it is.
    homes: Vec<Home>,
    program: ThreadProgram,
    simplifier: Simplifier,
    /// Elements of a vector.
    lanes: usize,
    loop_range: usize,
    /// The block's index.
    grid: Vec<ExprId>,
    /// The iteration.
    iteration: ExprId,
    /// Parts of tensors that have names: start and length.
    spans: Vec<(Part, ExprId, ExprId)>,
    /// Memory of tensors that are loaded.
    inputs: Vec<(TensorId, BufferId)>,
    /// Memory of the results.
    outputs: Vec<BufferId>,
    /// Of each tile its scratch, once it has some.
    tiles: Vec<Option<TileView>>,
    /// Factors of running maxima: maximum, degree, where.
    factors: Vec<(usize, f64, MatmulOperand)>,
    /// Reductions that are computed together with what they reduce.
    reduced: Vec<usize>,
    /// Of each tile when it is read for the last time.
    ends: Vec<usize>,
    /// Tiles whose scratch will be put to other uses.
    tenants: Vec<(usize, BufferId)>,
    /// Scratch whose tile is not needed any more.
    free: Vec<BufferId>,
    /// Scratch for panels of right operands.
    panel: Option<BufferId>,
}

/// The last dimension of more than one element.
fn inner_dim(shape: &[Extent]) -> Option<usize> {
    shape.iter().rposition(|extent| extent.full > 1)
}

impl<'a> CpuBlockEmitter<'a> {
    fn new(
        request: &'a Request<'a>,
        target: &'a CpuTarget,
        plan: CpuTilePlan,
        (grid, loop_range): (&[usize], usize),
    ) -> CpuBlockEmitter<'a> {
        let mut program = ThreadProgram::new(request.name, crate::op::elems(grid));
        let iteration = program.exprs.index(0);
        CpuBlockEmitter {
            request,
            target,
            homes: Vec::new(),
            simplifier: Simplifier::new(),
            lanes: target.lanes(4),
            loop_range,
            grid: Vec::new(),
            iteration,
            spans: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            tiles: vec![None; plan.nodes.len()],
            factors: Vec::new(),
            reduced: Vec::new(),
            ends: Vec::new(),
            tenants: Vec::new(),
            free: Vec::new(),
            panel: None,
            plan,
            program,
        }
    }

    /// Declares what is passed: each tensor in memory that is loaded, then the results.
    fn arguments(&mut self) -> Result<(), CannotLower> {
        let tensors: Vec<TensorId> = (self.plan.nodes.iter())
            .filter_map(|node| match &node.work {
                Work::Load { tensor, .. } => Some(*tensor),
                _ => None,
            })
            .collect();
        for tensor in tensors {
            let is_known = self.inputs.iter().any(|(known, _)| *known == tensor);
            if !is_known && self.request.graph.computed_mask(tensor).is_none() {
                let buffer = self.argument(tensor, Scope::Input)?;
                self.inputs.push((tensor, buffer));
            }
        }
        for number in 0..self.plan.stored.len() {
            let tensor = TensorId(self.request.kernel.0 + number as u32);
            let buffer = self.argument(tensor, Scope::Output)?;
            let stored = &self.request.stored[tensor.index()];
            let shape = self.request.graph.shape(tensor);
            let repeats = |(extent, stride): (&usize, &usize)| *extent > 1 && *stride == 0;
            if crate::op::elems(shape) > 0 && shape.iter().zip(&stored.strides).any(repeats) {
                return Err(CannotLower(format!("elements of the result {tensor} share memory")));
            }
            self.outputs.push(buffer);
        }
        Ok(())
    }

    fn argument(&mut self, tensor: TensorId, scope: Scope) -> Result<BufferId, CannotLower> {
        let stored = self.request.stored.get(tensor.index());
        let stored = stored.ok_or_else(|| CannotLower(format!("nothing says how {tensor} is stored")))?;
        let shape = self.request.graph.shape(tensor);
        if stored.strides.len() != shape.len() {
            return Err(CannotLower(format!(
                "{} strides of {tensor}, which is {shape:?}",
                stored.strides.len()
            )));
        }
        let last = shape.iter().zip(&stored.strides).try_fold(stored.offset, |at, (&extent, &stride)| {
            at.checked_add(extent.saturating_sub(1).checked_mul(stride)?)
        });
        let is_inside = crate::op::elems(shape) == 0 || last.is_some_and(|last| last < stored.elems);
        let is_float = matches!(stored.dtype, DType::F32 | DType::F16 | DType::BF16);
        let is_mask = scope == Scope::Input && matches!(stored.dtype, DType::Bool | DType::U8);
        if !is_inside || !(is_float || is_mask) {
            return Err(CannotLower(format!("{tensor}, {shape:?}, stored as {stored:?}")));
        }
        let name = tensor.to_string();
        Ok(self.program.add_buffer(Buffer { name, dtype: stored.dtype, elems: stored.elems, scope }))
    }

    fn bindings(&self) -> Vec<Binding> {
        let inputs = self.inputs.iter().map(|(tensor, _)| tensor.0);
        let outputs = (0..self.outputs.len() as u32).map(|number| self.request.kernel.0 + number);
        inputs.chain(outputs).map(|tensor| Binding::Arg(ArgId(tensor))).collect()
    }

    /// An equal index or value that is simpler.
    fn simplify(&mut self, value: ExprId) -> ExprId {
        self.simplifier.simplify(&mut self.program.exprs, value)
    }

    /// Names an index below a limit; constants need no name.
    fn bind(&mut self, name: &str, value: ExprId, limit: usize, body: &mut Vec<Stmt>) -> ExprId {
        let value = self.simplify(value);
        if self.program.exprs.as_int(value).is_some() {
            return value;
        }
        let var = self.program.exprs.declare_index(name, limit);
        body.push(Stmt::Let(var, value));
        self.program.exprs.var(var)
    }

    /// Names a value; constants and variables need no other name.
    fn bind_value(&mut self, name: &str, value: ExprId, body: &mut Vec<Stmt>) -> ExprId {
        let exprs = &mut self.program.exprs;
        if exprs.as_const(value).is_some() || matches!(exprs.get(value), orch_compute::Expr::Var(_)) {
            return value;
        }
        let ty = exprs.ty(value);
        let var = exprs.declare_register(name, ty);
        body.push(Stmt::Let(var, value));
        exprs.var(var)
    }
}
