//! Contractions: matrix products of every shape and convolutions as implicit matrix products.
//!
//! `acc[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`, then the stores of the block program with
//! `acc` substituted. Vectors run along `n`. A register tile of `rows x vectors` accumulators walks all of `k`;
//! the second factor is read in panels as wide as the tile - packed at compile time if it is constant, read in
//! place if it lies right, else packed by each task - and the first factor is read in place if its elements are
//! at affine offsets, else (padding of convolutions, fused producers) its block is computed into scratch first.
//! Register blocking after Goto and van de Geijn (2008); prologue and epilogue fusion after Hidet (ASPLOS'23),
//! section 4.2.
//!
//! Numerics: each element is a sum of chains, at most about a thousand fused multiply-adds in the order of `k` each,
//! in the type of the sum. OperandPrecision that hold bf16 values are read as bf16 where the target multiplies that
//! ([`Engine`]); their sums stay f32.

mod engine;
mod fill;
mod form;
mod lower;
pub(crate) mod operand;
mod pairs;
mod schedule;
mod stage;
mod tile;
mod tiles;

pub use engine::{Engine, holds_bf16};
pub use fill::{Fill, fill};
pub use form::Form;
pub use lower::{lower, staging};
pub use operand::RowOrder;
pub use schedule::{ContractionSchedule, Extents, Staging};
