//! Compute definitions: what one kernel computes, as scalar expressions over axes, without a schedule.
//!
//! Expressions and what is known of them ([`expr`], [`affine`], [`bounds`], [`simplify`](mod@simplify), [`invert`]); the memory
//! order and the type in which tensors are stored ([`layout`], [`layouts`], [`storage`]), and what products multiply ([`operands`]); block programs ([`block`]), which
//! are Hidet's compute definitions (ASPLOS'23, section 5.1), and how a set of primitives becomes one of them ([`fuse`]);
//! primitives that are a kernel by themselves ([`alone`]): recurrences over time ([`recurrence`]), selections of the best
//! ([`selection`]), cumulative sums ([`cumulative`]), scattering ([`scatter`]).
//!
//! This crate knows no loops, threads or devices.

pub mod affine;
pub mod alone;
pub mod block;
pub mod bounds;
pub mod cumulative;
pub mod expr;
pub mod fuse;
pub mod invert;
pub mod layout;
pub mod layouts;
pub mod operands;
pub mod recurrence;
pub mod scatter;
pub mod selection;
pub mod simplify;
pub mod storage;

pub use affine::Linear;
pub use block::{Arg, ArgRole, Axis, BlockProgram, ReduceKind, Stage};
pub use bounds::{Bounds, IntRange};
pub use cumulative::CumulativeProgram;
pub use expr::substitute::{Access, Importer, Substitution, substitute};
pub use expr::{
    ArgId, BufferId, Const, Expr, ExprId, Exprs, LaneGroup, LaneHalf, StageId, Type, VarId, VarInfo,
};
pub use invert::invert_index;
pub use layout::Layout;
pub use recurrence::RecurrenceProgram;
pub use scatter::{ScatterData, ScatterIndex, ScatterProgram};
pub use selection::SelectionProgram;
pub use simplify::{Simplifier, prove, simplify};
pub use storage::Storage;
