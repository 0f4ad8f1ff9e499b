//! Attention: two contractions with statistics of the first one's rows between them, in one kernel.
//!
//! ```text
//! s[row, key]    = sum over d of q[row, d] * k[key, d]
//! m[row]         = max over key of f(s), any number of maxima and sums over keys
//! o[row, column] = sum over key of p(s, m, ..)[row, key] * v[key, column]
//! ```
//!
//! A CTA has 16 to 64 rows of one batch and all keys: scores stay in registers from the first product to the second, and
//! become the operand `a` of the second without passing through memory (the register-resident chain of FlashAttention-2).
//! Statistics are exact, because no key is left out; nothing is rescaled. Functions `f` and `p` may read anything at
//! (row, key): masks, biases. Serves up to [`MAX_KEYS`] keys; operands are f16 or bf16, accumulators f32.

mod emitter;
mod epilogue;
mod form;
mod lower;
mod schedule;
mod score;
mod tile;

pub use form::AttentionForm;
pub use lower::lower;
pub use schedule::{AttentionSchedule, MAX_KEYS, schedules};
