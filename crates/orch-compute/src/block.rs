//! Block programs: one kernel's computation as *axes* and *stages*, independent of how it is scheduled.
//!
//! This is the form that schedule templates and the superoptimizer share (the block graph of Mirage, OSDI'25,
//! section 2; the compute definition and fused task of Hidet, ASPLOS'23, section 4). A program has tensor
//! arguments, axes (parallel ones span the stored results; reduction ones are bound by a stage) and an ordered
//! list of stages. A stage either reduces a body over axes, yielding one value per point of its domain, or stores
//! a body to an output. Bodies are scalar expressions that read arguments at index tuples and the results of
//! earlier stages at the current point. Nothing decays to a pointer: every access names (argument, index), which
//! is what makes fusion a substitution of expressions.
//!
//! ```text
//! softmax over the last dimension of x[i, j]:
//!   s0 = max over j of a0[i, j]
//!   s1 = sum over j of exp(a0[i, j] - s0)
//!   a1[i, j] = exp(a0[i, j] - s0) / s1
//! ```
//!
//! Invariants (checked by `validate`): an axis is either in a stage's domain or bound by it, never both; a body
//! mentions only axes of its stage, and stages whose domain is a subset of the axes in scope; stores cover every
//! element of an output exactly once, and no element of an updated argument twice; an axis may be bound by several stages (each loops over it anew), which
//! lets bodies of different stages share subexpressions.

pub mod interp;
mod text;
pub mod update;
pub mod validate;

use crate::expr::{ArgId, ExprId, Exprs, StageId, VarId};
use crate::layout::Layout;
use crate::operands::OperandRounding;
use orch_ir::{DType, ReduceOp, Shape, TensorId};

/// One kernel's computation.
#[derive(Clone, Debug)]
pub struct BlockProgram {
    /// A name for people, also the stem of the C function's name.
    pub name: String,
    /// The arena of all expressions, with one variable per axis.
    pub exprs: Exprs,
    /// Tensor arguments; an [`ArgId`] is a position here.
    pub args: Vec<Arg>,
    /// Axes.
    pub axes: Vec<Axis>,
    /// Stages in order; a [`StageId`] names the reducing ones among them, counted in order.
    pub stages: Vec<Stage>,
    /// How far operands of contractions, and what is on the way to their products, may be rounded.
    pub rounding: OperandRounding,
}

/// A tensor argument.
#[derive(Clone, PartialEq, Debug)]
pub struct Arg {
    /// The tensor of the primitive graph that is passed.
    pub tensor: TensorId,
    /// Element type.
    pub dtype: DType,
    /// Logical shape: index tuples have one index per dimension.
    pub shape: Shape,
    /// How the elements lie in memory.
    pub layout: Layout,
    /// What the kernel does with it.
    pub role: ArgRole,
}

/// What a kernel does with an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgRole {
    /// Computed by another kernel or given by the caller.
    Input,
    /// Known at compile time, so it may be laid out anew (packed) for this kernel.
    Constant,
    /// Written, completely.
    Output,
    /// Holds a value, of which some elements are written. Only their store reads it, each element where that is stored.
    Updated,
}

impl ArgRole {
    /// True for arguments that a stage stores.
    pub fn is_stored(self) -> bool {
        matches!(self, ArgRole::Output | ArgRole::Updated)
    }
}

/// A loop dimension.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// The variable that bodies mention.
    pub var: VarId,
    /// Values are `0..extent`.
    pub extent: usize,
}

/// One step of a block program.
#[derive(Clone, PartialEq, Debug)]
pub enum Stage {
    /// `stage[domain] = op over (reduced) of body`.
    Reduce {
        /// The name of the result.
        stage: StageId,
        /// How elements are combined. Arg-reductions reduce one axis and yield its index.
        op: ReduceOp,
        /// Axes the result varies over.
        domain: Vec<VarId>,
        /// Axes bound here, outermost first.
        reduced: Vec<VarId>,
        /// What is reduced.
        body: ExprId,
        /// What the reduction was in the primitive graph, if it has linear structure.
        kind: ReduceKind,
    },
    /// `arg[index] = body` for all values of `domain`.
    Store {
        /// The output.
        arg: ArgId,
        /// Where, one index per dimension: a bijection from the domain onto the output's index space, or into that of an updated
        /// argument.
        index: Vec<ExprId>,
        /// Axes, each appearing in `index`.
        domain: Vec<VarId>,
        /// What is stored.
        body: ExprId,
    },
}

/// The structure of a reduction that templates look for.
#[derive(Clone, PartialEq, Debug)]
pub enum ReduceKind {
    /// Nothing special.
    Plain,
    /// A sum whose body is `lhs * rhs`.
    Dot {
        /// First factor.
        lhs: ExprId,
        /// Second factor.
        rhs: ExprId,
    },
}

impl BlockProgram {
    /// The argument with this id.
    pub fn arg(&self, id: ArgId) -> &Arg {
        &self.args[id.index()]
    }

    /// The extent of an axis.
    pub fn extent(&self, var: VarId) -> usize {
        self.axes.iter().find(|axis| axis.var == var).map_or(0, |axis| axis.extent)
    }
}
