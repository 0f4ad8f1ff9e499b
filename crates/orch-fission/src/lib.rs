//! Operator fission (Korch, ASPLOS'24, section 3): every operator of a model becomes a few primitives.
//!
//! What it does: one rule per operator (`rules`), listed in one plain list ([`registry`]); numpy broadcasting becomes
//! explicit; composite functions are expanded in their numerically stable form; whatever depends on constants
//! alone is evaluated (`fold.rs`), so that shape arithmetic disappears; nodes nobody reads are dropped.
//!
//! What it does not: optimize, choose kernels, or stop at the first problem: all problems of a model are
//! reported together.

pub mod attribute;
mod axes;
mod body;
mod build;
mod call;
mod context;
mod driver;
mod error;
mod fold;
mod onnx_type;
mod prune;
pub mod registry;
mod rules;

pub use axes::{normalize_axes, normalize_axis};
pub use body::Body;
pub use call::Call;
pub use context::{Context, Operand};
pub use driver::{Collection, FissionOptions, fission};
pub use error::{FissionError, FissionErrors, RuleError};
pub use onnx_type::{ElementType, dtype_from_onnx, element_from_onnx};
