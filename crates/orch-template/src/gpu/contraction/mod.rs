//! Contractions on GPUs: matrix products of every shape (GEMM), and convolutions as implicit GEMM.
//!
//! `acc[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`, then the stores of the block program with `acc`
//! substituted. A CTA computes a `block_m x block_n` tile of one batch:
//!
//! ```text
//! main loop over k in steps of block_k, operand tiles `stages - 1` steps ahead in shared memory:
//!   load      A[block_m, block_k], B[block_n, block_k]   TMA | cp.async | computed in registers, st.shared
//!   multiply  acc[block_m, block_n] += A * B^T           wgmma | ldmatrix + mma.sync | fma
//! epilogue:   acc -> shared memory -> [split-K: sum over the CTAs of a cluster] -> fused consumers, 16-byte stores
//! ```
//!
//! - *Loads*: TMA where both operands are strided arrays in memory (16-bit, wgmma); `cp.async` where an operand's elements are in
//!   memory as they are multiplied; else threads compute the elements and store them, so that any producer without a reduction
//!   can be fused (casts, padding and im2col of convolutions).
//! - *Split-K*: with `split_k > 1` the CTAs of a cluster share the K dimension of one tile. Each sends accumulators through
//!   DSMEM to the CTA that adds up their rows.
//! - *Epilogue*: accumulators pass through shared memory, so that results are written row by row in 16-byte accesses: any
//!   consumer whose index map is invertible can be fused, whatever its layout.
//!
//! Task mappings after Hidet (ASPLOS'23), section 3; the schedule space is independent of shapes, remainders are predicated.
//!
//! Numerics: tensor cores add in f32, 16 (f16, bf16) or 8 (tf32) products an instruction, one instruction after the other along
//! K, in `split_k` parts; FMA units add in the type of the accumulator.

mod array;
mod choose;
mod convolution;
mod emitter;
mod epilogue;
mod image;
mod lower;
mod mainloop;
mod model;
mod multiply;
mod operand;
mod product;
mod runs;
mod schedule;
mod space;
mod tiles;
mod tma;
mod unit;

pub use choose::{SHORT, SHORT_ROWS, form_of, is_for_threads, is_served, is_thin, schedules};
pub use convolution::ConvolutionForm;
pub use image::{SpatialDim, StridedImage};
pub use lower::lower;
pub use product::{MatrixProductForm, StorageOrder, StridedMatrix};
pub use runs::{access_bytes, unused_stored_bytes};
pub use schedule::GpuContractionSchedule;
pub use unit::MathUnit;
