//! Opaque operations: irregular routines that run whole, on the host, between optimized kernels.

use crate::{DType, PrimGraph, ReduceOp, Shape};

/// A routine with any number of results, whose types are stated.
#[derive(Clone, PartialEq, Debug)]
pub struct OpaqueOp {
    /// What it computes.
    pub kind: OpaqueKind,
    /// Type and shape of each result.
    pub results: Vec<(DType, Shape)>,
}

/// The names that [`OpaqueKind::Routine`] may have.
pub const ROUTINES: &[&str] =
    &["DFT", "DeformConv", "Det", "MaxRoiPool", "MaxUnpool", "ReverseSequence", "RoiAlign"];

/// The routines. Semantics are those of the ONNX operator named, on the operands as given after fission has
/// normalised attributes; the interpreter implements each and the runtime calls it.
#[derive(Clone, PartialEq, Debug)]
#[expect(missing_docs, reason = "each variant documents its fields")]
pub enum OpaqueKind {
    /// `(x) -> (values, indices: i64)`: the `k` best along `axis`, ties to the lower index.
    TopK { axis: usize, k: usize, largest: bool, sorted: bool },
    /// `(x) -> y`: sums or products of the elements along an axis up to each position.
    Cumulative(Cumulative),
    /// `(condition: bool scalar, captures..)`: one of two graphs. Both take the captures as inputs.
    If { then_graph: Box<PrimGraph>, else_graph: Box<PrimGraph> },
    /// `(trip_count: i64 scalar, condition: bool scalar, carried.., captures..) -> (carried.., scans..)`.
    /// The body takes `(iteration: i64, condition, carried.., captures..)` and returns
    /// `(condition, carried.., scans..)`. `trips` is the static number of iterations that the shapes of the scans
    /// assume: a loop with scans that runs another number of times is an error.
    Loop { body: Box<PrimGraph>, carried: usize, trips: usize },
    /// `(state.., scanned.., captures..) -> (state.., scans..)`: the body takes
    /// `(state.., one slice of each scanned.., captures..)` and returns `(state.., one slice per scan..)`.
    Scan { body: Box<PrimGraph>, spec: ScanSpec },
    /// Anything else that stays whole, by ONNX operator name (one of [`ROUTINES`]), with its normalised integer,
    /// float and text parameters in the order that the interpreter's routine documents.
    Routine { name: &'static str, ints: Vec<i64>, floats: Vec<f64>, texts: Vec<String> },
}

/// What an [`OpaqueKind::Cumulative`] combines. 16-bit floats are added and multiplied in f32, each result is rounded once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cumulative {
    /// The axis it runs along.
    pub axis: usize,
    /// [`ReduceOp::Sum`] or [`ReduceOp::Prod`].
    pub op: ReduceOp,
    /// True to leave out the element at the position itself.
    pub exclusive: bool,
    /// True to run from the end.
    pub reverse: bool,
}

/// How a [`OpaqueKind::Scan`] slices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanSpec {
    /// Number of state operands.
    pub states: usize,
    /// Axis and direction (true = from the end) of each scanned operand.
    pub inputs: Vec<(usize, bool)>,
    /// Axis and direction of each scan result.
    pub outputs: Vec<(usize, bool)>,
}
