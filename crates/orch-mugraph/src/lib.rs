//! µGraphs: programs on two levels (kernels, and the blocks of a kernel), and what is needed to trust, to find and to lower
//! them. After Mirage (OSDI'25): the µGraph (section 2), abstract expressions (section 4), and
//! equivalence by polynomial identity testing (section 5), with a bound of our own.
//!
//! This crate compiles nothing, measures nothing and reads no models.

pub mod array;
pub mod band;
pub mod eval;
pub mod extract;
pub mod floats;
pub mod graph;
pub mod lower;
pub mod op;
mod primitives;
pub mod rational;
pub mod search;
pub mod stabilise;
pub mod superoptimize;
pub mod text;
mod threads;
pub mod tiling;
mod validate;
pub mod verify;

pub use band::Band;
pub use extract::{Premise, Region, RegionLimits, View, mask_band, regions};
pub use floats::{Precision, interpret};
pub use graph::{
    Accumulation, BlockGraph, GraphError, InputKind, MuGraph, Node, Store, TensorId, TileId, TileNode,
};
pub use op::{BinaryFn, Op, ReduceFn, UnaryFn};
pub use primitives::{NoPrimitives, primitives};
pub use rational::Rational;
pub use stabilise::{Stable, Unstable, stabilise};
pub use superoptimize::{
    NotLowered, Proved, Rank, SuperoptimizeError, SuperoptimizeOptions, Superoptimized, superoptimize,
};
pub use text::{ParseError, parse, print};
pub use validate::validate;
pub use verify::{Certificate, Rejection, VerifyOptions, verify};
