//! A block program over buffers: reads become loads at element offsets, results of stages become placeholder variables.

use orch_compute::block::{ArgRole, Axis, BlockProgram, ReduceKind, Stage};
use orch_compute::expr::ArgId;
use orch_compute::expr::substitute::{Access, Importer, Substitution};
use orch_compute::expr::{BufferId, Expr, ExprId, Type, VarId};
use orch_compute::simplify::Simplifier;
use orch_ir::ReduceOp;
use orch_thread::kernel::Binding;
use orch_thread::program::{Buffer, Scope, ThreadProgram};

/// A block program in the arena of the thread program that it becomes.
pub(crate) struct Nest {
    /// The program, with buffers and no statements.
    pub program: ThreadProgram,
    /// The simplifier of the program's expressions.
    pub simplifier: Simplifier,
    /// The argument or packed constant of each buffer.
    pub bindings: Vec<Binding>,
    /// Buffers of row-major constants: only these may be [packed](super::pack).
    pub constants: Vec<BufferId>,
    /// Axes, without those of extent 1 that no stage uses; merged axes are one.
    pub axes: Vec<Axis>,
    /// Stages, in order.
    pub stages: Vec<NestStage>,
}

/// A stage.
#[derive(Clone, Debug)]
pub(crate) struct NestStage {
    /// Axes that the result varies over.
    pub domain: Vec<VarId>,
    /// What the stage does at each of their points.
    pub work: StageWork,
}

/// What a stage does at one point of its domain.
#[derive(Clone, Debug)]
pub(crate) enum StageWork {
    /// Reduces the values of a body.
    Reduce(NestReduction),
    /// Writes `body`.
    Store {
        /// The output.
        buffer: BufferId,
        /// Element offset.
        offset: ExprId,
        /// The value that is written.
        body: ExprId,
    },
}

/// A reduction over axes.
#[derive(Clone, Debug)]
pub(crate) struct NestReduction {
    /// How values are combined.
    pub op: ReduceOp,
    /// Axes that are reduced, outermost loop first.
    pub reduced: Vec<VarId>,
    /// A scalar expression over domain and reduced axes.
    pub body: ExprId,
    /// The operands, if `body` is a float product that is summed: each update is then one FMA.
    pub operands: Option<ProductOperands>,
    /// The placeholder of the result in later stages' expressions.
    pub result: VarId,
}

/// The operands of a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProductOperands {
    pub lhs: ExprId,
    pub rhs: ExprId,
}

impl ProductOperands {
    /// `map` of both operands.
    pub fn map(self, mut map: impl FnMut(ExprId) -> ExprId) -> Self {
        Self { lhs: map(self.lhs), rhs: map(self.rhs) }
    }
}

impl NestStage {
    /// The axes that the stage loops over: its domain, then the axes that it reduces.
    pub fn axes(&self) -> Vec<VarId> {
        match &self.work {
            StageWork::Reduce(reduction) => [&self.domain[..], &reduction.reduced].concat(),
            StageWork::Store { .. } => self.domain.clone(),
        }
    }

    /// The axes that are reduced.
    pub fn reduced(&self) -> &[VarId] {
        match &self.work {
            StageWork::Reduce(reduction) => &reduction.reduced,
            StageWork::Store { .. } => &[],
        }
    }

    /// The placeholder of a reduction's result.
    pub fn result(&self) -> Option<VarId> {
        match &self.work {
            StageWork::Reduce(reduction) => Some(reduction.result),
            StageWork::Store { .. } => None,
        }
    }

    /// The expressions that are evaluated at each point.
    pub fn roots(&self) -> Vec<ExprId> {
        match &self.work {
            StageWork::Reduce(reduction) => vec![reduction.body],
            StageWork::Store { offset, body, .. } => vec![*offset, *body],
        }
    }

    /// Replaces each expression by `map` of it.
    pub fn map_roots(&mut self, mut map: impl FnMut(ExprId) -> ExprId) {
        match &mut self.work {
            StageWork::Reduce(reduction) => {
                reduction.body = map(reduction.body);
                reduction.operands = reduction.operands.map(|operands| operands.map(&mut map));
            }
            StageWork::Store { offset, body, .. } => {
                *offset = map(*offset);
                *body = map(*body);
            }
        }
    }
}

impl Nest {
    /// The extent of an axis; 1 if the nest has no such axis.
    pub fn extent(&self, var: VarId) -> usize {
        self.axes.iter().find(|axis| axis.var == var).map_or(1, |axis| axis.extent)
    }

    /// The product of the axes' extents.
    pub fn points(&self, axes: &[VarId]) -> usize {
        axes.iter().map(|&axis| self.extent(axis)).product()
    }

    /// The normal form of an expression.
    pub fn simplify(&mut self, id: ExprId) -> ExprId {
        self.simplifier.simplify(&mut self.program.exprs, id)
    }

    /// Replaces variables by expressions in every stage.
    pub fn substitute(&mut self, bindings: &[(VarId, ExprId)]) {
        let mut substitution = Substitution::new(bindings);
        let (program, simplifier) = (&mut self.program, &mut self.simplifier);
        for stage in &mut self.stages {
            stage.map_roots(|root| {
                let replaced = substitution.apply(&mut program.exprs, root);
                simplifier.simplify(&mut program.exprs, replaced)
            });
        }
    }

    /// Adds a scratch buffer of `elems` elements.
    pub fn scratch(&mut self, name: &str, dtype: orch_ir::DType, elems: usize) -> BufferId {
        self.program.add_buffer(Buffer { name: name.to_owned(), dtype, elems, scope: Scope::Scratch })
    }
}

/// Copies a block program into the arena of a fresh thread program.
pub(crate) fn flatten(block: &BlockProgram) -> Nest {
    let mut program = ThreadProgram::new(&block.name, 1);
    for (number, arg) in block.args.iter().enumerate() {
        let scope = Scope::from(arg.role);
        let name = format!("arg{number}");
        program.add_buffer(Buffer { name, dtype: arg.dtype, elems: arg.shape.elems(), scope });
    }
    let bindings = (0..block.args.len()).map(|number| Binding::Arg(ArgId::new(number))).collect();
    let is_constant = |number: &usize| {
        let arg = &block.args[*number];
        arg.role == ArgRole::Constant && arg.layout.is_row_major()
    };
    let constants = (0..block.args.len()).filter(is_constant).map(BufferId::new).collect();
    let (simplifier, axes, stages) = (Simplifier::new(), Vec::new(), Vec::new());
    let mut nest = Nest { program, simplifier, bindings, constants, axes, stages };
    let mut flattening =
        Flattening { block, importer: Importer::new(), axes: Vec::new(), results: Vec::new() };
    for axis in &block.axes {
        let name = &block.exprs.var_info(axis.var).name;
        let (var, value) = nest.program.exprs.fresh_index(name, axis.extent);
        flattening.importer.bind(axis.var, value);
        flattening.axes.push(AxisCopy { source: axis.var, copy: var });
        nest.axes.push(Axis { var, extent: axis.extent });
    }
    for stage in &block.stages {
        let stage = flattening.stage(&mut nest, stage);
        nest.stages.push(stage);
    }
    nest
}

/// Moves stores that need no reduction to the front, and replaces their values in the stages of later loops by loads of
/// what they stored. Example: a residual sum that is both an output and the operand of a normalisation is computed
/// once. The order of stores stays where one updates an argument, since those before it may read what it overwrites.
pub(crate) fn store_early(nest: &mut Nest) {
    if nest.program.buffers.iter().any(|buffer| buffer.scope == Scope::Updated) {
        return;
    }
    let results: Vec<VarId> = nest.stages.iter().filter_map(NestStage::result).collect();
    let exprs = &nest.program.exprs;
    // The sort is stable, so other stages keep their order.
    let needs_reduction = |stage: &NestStage| match stage.work {
        StageWork::Store { body, .. } => results.iter().any(|&result| exprs.depends_on(body, result)),
        StageWork::Reduce(_) => true,
    };
    nest.stages.sort_by_cached_key(needs_reduction);
    let mut stages = std::mem::take(&mut nest.stages);
    for position in 0..stages.len() {
        let StageWork::Store { buffer, offset, body } = stages[position].work else { continue };
        let exprs = &mut nest.program.exprs;
        if matches!(exprs.get(body), Expr::Load { .. } | Expr::Const(_) | Expr::Var(_) | Expr::Cast(..)) {
            continue;
        }
        let stored = exprs.load(buffer, offset, 1, None);
        let domain = stages[position].domain.clone();
        let mut is_later_loop = false;
        for stage in &mut stages[position + 1..] {
            let axes = stage.axes();
            is_later_loop |= matches!(stage.work, StageWork::Reduce(_)) || stage.domain != domain;
            if is_later_loop && domain.iter().all(|axis| axes.contains(axis)) {
                stage.map_roots(|root| nest.replace(root, &[(body, stored)]));
            }
        }
    }
    nest.stages = stages;
}

/// An axis of the block program and its copy in the nest.
struct AxisCopy {
    source: VarId,
    copy: VarId,
}

/// The state of [`flatten`].
struct Flattening<'a> {
    block: &'a BlockProgram,
    importer: Importer,
    axes: Vec<AxisCopy>,
    /// The placeholder of each reducing stage so far, by stage number.
    results: Vec<VarId>,
}

impl Flattening<'_> {
    /// The copy of a stage.
    fn stage(&mut self, nest: &mut Nest, stage: &Stage) -> NestStage {
        match stage {
            Stage::Reduce { stage, op, domain, reduced, body, kind } => {
                let dtype = op.result(self.block.exprs.dtype(*body));
                let body = self.import(nest, *body);
                let operands = match kind {
                    ReduceKind::Dot { lhs, rhs } => {
                        Some(ProductOperands { lhs: self.import(nest, *lhs), rhs: self.import(nest, *rhs) })
                    }
                    ReduceKind::Plain => product_operands(nest, *op, body),
                };
                let result = nest.program.exprs.declare_register(stage.to_string(), Type::scalar(dtype));
                self.results.push(result);
                let reduced = self.axes(reduced);
                let work = StageWork::Reduce(NestReduction { op: *op, reduced, body, operands, result });
                NestStage { domain: self.axes(domain), work }
            }
            Stage::Store { arg, index, domain, body } => {
                let output = self.block.arg(*arg);
                let index: Vec<ExprId> =
                    index.iter().map(|&component| self.import(nest, component)).collect();
                let offset = nest.program.exprs.linear_index(&index, &output.layout.strides(&output.shape));
                let offset = nest.simplify(offset);
                let body = self.import(nest, *body);
                NestStage {
                    domain: self.axes(domain),
                    work: StageWork::Store { buffer: BufferId::new(arg.index()), offset, body },
                }
            }
        }
    }

    /// The copies of axes.
    fn axes(&self, axes: &[VarId]) -> Vec<VarId> {
        let copy = |axis: &VarId| self.axes.iter().find(|copy| copy.source == *axis).map(|copy| copy.copy);
        axes.iter().filter_map(copy).collect()
    }

    /// The copy of an expression: reads become loads, results of stages their placeholders.
    fn import(&mut self, nest: &mut Nest, root: ExprId) -> ExprId {
        let (block, results) = (self.block, &self.results);
        let Nest { program, simplifier, .. } = nest;
        self.importer.import(&block.exprs, &mut program.exprs, root, |exprs, access| match access {
            Access::Read { arg, index, guard } => {
                let source = block.arg(arg);
                let offset = exprs.linear_index(index, &source.layout.strides(&source.shape));
                let offset = simplifier.simplify(exprs, offset);
                exprs.load(BufferId::new(arg.index()), offset, 1, guard)
            }
            Access::Stage(stage) => exprs.var(results[stage.index()]),
        })
    }
}

/// The operands of a summed float product: an FMA adds such a product with a single rounding.
fn product_operands(nest: &Nest, op: ReduceOp, body: ExprId) -> Option<ProductOperands> {
    match *nest.program.exprs.get(body) {
        Expr::Binary(orch_ir::BinaryFn::Mul, lhs, rhs)
            if op == ReduceOp::Sum && nest.program.exprs.dtype(body).is_float() =>
        {
            Some(ProductOperands { lhs, rhs })
        }
        _ => None,
    }
}
