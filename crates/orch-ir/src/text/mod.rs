//! The text form of primitive graphs: [`print()`] and [`parse`] are inverse.
//!
//! ```text
//! graph "softmax" {
//!   input "x" t0: f32[2, 5]
//!   const t1: f32[] = [0.5]
//!   t2: f32[2, 5] = broadcast t1 dims=[]
//!   t3: f32[2, 5] = mul t0, t2 ; from "/attn/Mul (Mul)"
//!   t4: f32[2] = reduce.max t3 axes=[1]
//!   (t5: f32[2, 3], t6: i64[2, 3]) = top_k t3 axis=1 k=3 largest=true sorted=true
//!   output "y" t5
//! }
//! ```
//!
//! One statement per line; `#` starts a comment. Inputs come first, in the order of the graph's signature; constants and
//! nodes follow in the order of their tensors; outputs come last. What a type states (the shape of a broadcast, a reshape,
//! a slice, an iota) is not repeated in the attributes, and window attributes that are 1 (steps) or 0 (padding)
//! throughout are left out.
//!
//! Constants are written row-major: element by element up to [`LISTED_ELEMS`], as little-endian hexadecimal bytes
//! (`= hex "0000803f.."`) beyond. The parser accepts valid graphs only (see [`validate`](crate::validate)), reports the
//! line and column of the first problem, and allocates no more than the text is long.

mod attr;
mod build;
mod constant;
mod describe;
mod draft;
mod lex;
mod parse;
mod print;

pub use constant::LISTED_ELEMS;
pub use lex::ParseError;
pub use parse::{parse, parse_tensor};
pub use print::{print, print_tensor};
