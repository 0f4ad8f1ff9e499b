//! The reference semantics of every primitive: slow, obvious, on the CPU.
//!
//! Everything that compiles is judged against this crate: [`evaluate`] runs a whole primitive graph,
//! [`evaluate_node`] one primitive (constant folding, and the runtime for opaque nodes). It is in two
//! [precisions](Precision): `Native` rounds each result to its type, `Wide` carries every floating tensor in `f64`.
//!
//! It knows no schedule and reorders nothing. Only the matrix kernel behind contractions and convolutions is
//! blocked and threaded, so that real models finish in minutes.

pub mod cases;
pub mod compare;
mod contract;
mod control;
mod conv;
mod cumulative;
mod element;
mod error;
mod eval;
mod gather;
mod index;
mod layout;
mod map;
mod matmul;
mod node;
mod recurrence;
mod reduce;
pub mod routines;
mod scalar;
mod scatter;
mod topk;
mod window;

pub use error::EvalError;
pub use eval::{EvalOptions, Precision, evaluate};
pub use node::evaluate_node;
