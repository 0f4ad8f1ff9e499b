//! Contractions: matrix products of every shape and convolutions as implicit matrix products.
//!
//! `acc[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`, then the stores of the block program with
//! `acc` substituted. Vectors run along `n`. A register tile of `rows x vectors` accumulators walks all of `k`;
//! the second operand is read in panels as wide as the tile - packed at compile time if it is constant, read in
//! place if it lies right, else packed by each work item - and the first operand is read in place if its elements are
//! at affine offsets, as a whole or line by line of an image, else (fused producers, images of few channels) its block is computed
//! into scratch first.
//! Register blocking after Goto and van de Geijn (2008); prologue and epilogue fusion after Hidet (ASPLOS'23),
//! section 4.2.
//!
//! Numerics: each element is a sum of chains, at most about a thousand fused multiply-adds in the order of `k` each,
//! in the type of the sum. Operands that hold bf16 values are read as bf16 where the target multiplies that
//! ([`CpuMathUnit`]); the accumulators stay f32.

mod address;
mod amx;
mod bf16_dot;
mod blocking;
mod emitter;
mod epilogue;
mod form;
mod line_tile;
pub(crate) mod linear;
mod lines;
mod lower;
mod math_unit;
mod micro_kernel;
pub(crate) mod operand;
mod pack;
mod pack_cost;
mod run;
mod schedule;
mod staging;
mod window;

pub use form::{ContractionForm, GemmShape};
pub use lower::lower;
pub(crate) use lower::schedules;
pub use math_unit::{CpuMathUnit, holds_bf16};
pub use pack_cost::{PackingWork, RowOrder, cpu_form};
pub use schedule::{CpuContractionSchedule, TaskGrid};
pub use staging::{ContractionWork, Staging, staging, work};
