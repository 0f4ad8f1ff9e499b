//! Graphs of PyTorch's ATen calls to operator graphs: a JSON document in, an [`orch_ir::OperatorGraph`] of ONNX
//! operators out.
//!
//! [`import`] reads the document of one graph that AOTAutograd traced (`python/orchestrion/torch/_document.py` writes it;
//! [`document`](mod@document) describes the format) and translates each call by the rule of its target. A rule adds ONNX
//! operators whose types it knows, so the results are compared with the types that PyTorch's tracer gave. Sizes are
//! concrete. Strides do not matter to the graph: all its tensors are row-major, and [`Import`] says which strides the
//! outputs are to have.
//!
//! What is computed is what eager PyTorch computes: in the type of the result, f16 and bf16 in f32 where eager does so,
//! with NaN, division and rounding as there. Indices of `index` and `index_put` wrap once. Indices out of range never
//! read or write outside of a tensor: the primitives clamp them. A document with `index_check` has one more output of
//! that name, after the others: false if any index was out of range, upon which the caller has to give up the results
//! and raise the `IndexError` that eager would (or run eager).
//!
//! All problems of a document are reported at once ([`ImportErrors`]). No input makes this crate panic, loop or
//! allocate out of proportion.
//!
//! Where things are: `import.rs` resolves names, `call.rs` gives a rule its arguments, `emit.rs` adds operators,
//! `promote.rs` knows PyTorch's rules of types, `rules` has one list per family of targets.

mod call;
pub mod document;
mod emit;
mod import;
mod problem;
mod promote;
mod rules;

pub use import::{Import, InputFacts, NamedUpdate, OutputFacts, import, is_document};
pub use problem::{ImportErrors, ImportProblem, Location, Reason};
pub use rules::{Target, targets};
