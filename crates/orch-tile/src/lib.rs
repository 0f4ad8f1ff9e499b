//! Kernels between the primitive graph and source text: block programs (what one kernel computes), schedule
//! templates (how), and thread programs (explicit loops and vectors). After Hidet (ASPLOS'23): task mappings,
//! post-scheduling fusion, hardware-centric schedules.
//!
//! This crate writes no source text, reads no files and knows no device beyond the capability numbers it is given.

pub mod affine;
pub mod block;
pub mod block_interp;
mod block_text;
pub mod block_validate;
pub mod bounds;
mod build;
mod evaluate;
pub mod expr;
pub mod expr_text;
mod fold;
pub mod fuse;
pub mod invert;
pub mod layout;
pub mod layouts;
pub mod mapping;
pub mod simplify;
pub mod storage;
pub mod substitute;
pub mod target;
pub mod templates;
pub mod thread;
pub mod thread_await;
mod thread_box_interp;
pub mod thread_count;
pub mod thread_interp;
mod thread_memory;
pub mod thread_once;
mod thread_parse;
mod thread_product_interp;
pub mod thread_random;
mod thread_scalar;
pub mod thread_team;
mod thread_team_interp;
pub mod thread_text;
pub mod thread_tile;
mod thread_token;
pub mod thread_validate;
pub mod thread_view;
pub mod vectorize;
mod walk;

pub use affine::Linear;
pub use block::{Arg, ArgRole, Axis, BlockProgram, ReduceKind, Stage};
pub use bounds::{Bounds, IntRange};
pub use expr::{ArgId, BufferId, Const, Expr, ExprId, Exprs, StageId, Type, VarId, VarInfo};
pub use invert::invert_index;
pub use layout::Layout;
pub use mapping::{Covering, LoweredMapping, TaskMapping, covering};
pub use simplify::{Simplifier, prove, simplify};
pub use storage::Storage;
pub use substitute::{Access, Importer, Substitution, substitute};
pub use target::{CpuTarget, GpuTarget};
pub use thread::{Buffer, LoopKind, PANELS_AHEAD, Scope, Stmt, ThreadProgram};
pub use thread_interp::{BufferData, ExecError, ExecOptions, Report, interpret};
pub use thread_team::{Product, Spot, Team, TeamStmt};
pub use thread_text::{ThreadTextError, parse_thread, print_thread};
pub use thread_tile::{TileId, TileShape, TileStmt};
pub use thread_validate::validate_thread;
pub use thread_view::{Slots, View, ViewId};
pub use vectorize::{LoadCounts, Vectorized, Vectorizer, Widening, vectorize};
