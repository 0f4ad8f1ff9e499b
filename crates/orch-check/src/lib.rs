//! An independent checker of the statement that a µGraph computes a tensor program.
mod alike;
mod check;
mod degree;
mod eval;
mod exponents;
mod field;
mod independent;
mod op;
mod program;
mod real;
mod residue;
mod text;

pub use check::{MAX_TIME, Proof, Verdict, Witness, check};
pub use program::Program;
pub use text::parse;
