//! ONNX files to operator graphs: protobuf bytes in, an [`orch_ir::OperatorGraph`] out.
//!
//! [`import`] decodes a model, binds its symbolic dimensions, inlines its local functions, decodes its constants
//! (inline or external) and sorts its nodes. It interprets no operator: that is fission's work, and what fission
//! cannot use (a string tensor in an attribute, say) passes through as [`Attribute::Unsupported`].
//!
//! All problems of a model are reported at once, each with its place in the model, what was given, what was
//! expected and what to do ([`ImportErrors`]). No input makes this crate panic, loop or allocate out of proportion.
//!
//! Where things are: [`import`] (`import.rs`) reads the header and calls `graph.rs` for the main graph, which calls
//! itself for subgraphs and `function.rs` for calls of local functions. `scope.rs` resolves names for both,
//! `legacy.rs` raises operators of old versions, `order.rs` sorts. Constants are `tensor.rs` and `external.rs`; declared types `types.rs`; [`builder`] writes small
//! models for tests.
//!
//! [`Attribute::Unsupported`]: orch_ir::Attribute::Unsupported

mod attribute;
pub mod builder;
mod dims;
mod external;
mod function;
mod graph;
mod import;
mod legacy;
mod options;
mod order;
mod packed;
mod problem;
#[rustfmt::skip]
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod proto;
mod scope;
mod sniff;
mod tensor;
mod types;

pub use import::{
    Declaration, DeclaredDim, DeclaredPort, Import, NEWEST_IR_VERSION, NEWEST_OPSET, OLDEST_OPSET,
    declaration, import, import_file,
};
pub use options::{FileSource, ImportOptions};
pub use problem::{ImportErrors, ImportProblem, Place, ProblemClass, Reason};
pub use tensor::{TensorError, decode_tensor, encode_tensor};
