//! Contractions on GPUs: matrix products of every shape, and convolutions as implicit matrix products.
//!
//! `acc[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`, then the stores of the block program with `acc`
//! substituted. A task computes a `block_m x block_n` tile of one batch; its warps share the tile, and walk over terms
//! in steps of `block_k` that are copied to shared memory several stages ahead: by the copy engine, in boxes, where both
//! factors of whole tiles are plain arrays; asynchronously by threads, where a factor lies in memory as it is multiplied;
//! else its elements are computed and stored, so that any producer without a reduction can be fused. With `split > 1` the
//! tasks of a cluster share the terms of one tile and add their sums up through each other's shared memory. Sums pass
//! through shared memory to the epilogue, which runs over rows of the result in 16-byte accesses: any consumer whose index
//! map is invertible can be fused, whatever its layout.
//!
//! Task mappings after Hidet (ASPLOS'23), section 3; the space is independent of shapes, remainders are predicated.
//!
//! Numerics: sums are f32 on matrix units, in chains of 16 or 8 terms of one step after the other, split into
//! `split` parts; on scalar units multiply-adds in the type of the sum.

mod array;
mod boxes;
mod convolution;
mod epilogue;
mod lower;
mod multiply;
mod operand;
mod product;
mod schedule;

pub use convolution::{Convolution, Pixels, Sliding, convolution};
pub use lower::lower;
pub use product::{Matrix, MatrixOrder, MatrixProduct, product};
pub use schedule::{ContractionSchedule, Engine, is_served, is_thin, schedules};
