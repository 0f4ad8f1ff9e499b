//! The data that every stage of the Orchestrion compiler passes on: element types, shapes, tensor values, the
//! *operator graph* (a model as its file states it) and the *primitive graph* (what fission makes of it, after
//! Korch, ASPLOS'24, section 3).
//!
//! This crate does no I/O and knows no device. Semantics of primitives are defined by `orch-interp`.

mod dtype;
mod encoding;
pub mod generate;
mod graph;
mod ids;
pub mod infer;
pub mod message;
mod opaque;
mod operator;
pub mod permutation;
mod primitive;
mod recurrence;
mod scalar;
mod shape;
mod tensor;
pub mod text;
pub mod validate;

pub use dtype::DType;
pub use encoding::Encoding;
pub use graph::{PrimGraph, PrimNode, TensorInfo};
pub use ids::{NodeId, TensorId, ValueId};
pub use infer::InferError;
pub use opaque::{Cumulative, OpaqueKind, OpaqueOp, ROUTINES, ScanSpec};
pub use operator::{Attribute, OperatorGraph, OperatorNode, Value};
pub use primitive::{Contract, ConvSpec, PadMode, PrimOp, ReduceOp, Window};
pub use recurrence::{
    Activation, ActivationFn, Recurrence, RecurrenceExtents, RecurrenceOperand, RnnCell, RnnDirection,
};
pub use scalar::{BinaryFn, CompareFn, ScalarFn, UnaryFn, philox};
pub use shape::{MAX_ELEMS, Shape};
pub use tensor::{Element, Tensor, TensorSizeError};
