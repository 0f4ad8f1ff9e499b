//! Why a set of primitives is not one kernel.

use orch_ir::{NodeId, TensorId};

/// Why a set of primitives is not one kernel. None of these is an error of the user: the set is merely computed
/// by several kernels instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CannotFuse {
    /// A kernel computes something.
    #[error("a kernel without outputs")]
    NoOutputs,
    /// An output is not computed by the kernel's nodes.
    #[error("output {0} is not computed by the kernel's nodes")]
    ForeignOutput(TensorId),
    /// The primitive has no block program.
    #[error("{node} ({op}) has no block program")]
    Unsupported {
        /// The node.
        node: NodeId,
        /// Its primitive.
        op: &'static str,
    },
    /// Only one contraction or convolution fits.
    #[error("{0} and {1} are both contractions or convolutions")]
    SeveralAnchors(NodeId, NodeId),
    /// A value computed from the contraction is needed at another element than the current one.
    #[error("{0} is needed at another index than the contraction computes it at")]
    OtherIndex(TensorId),
    /// The outputs do not share one index space.
    #[error("output {0} has another index space than the first output")]
    DifferentDomains(TensorId),
    /// A reduction would be computed several times.
    #[error("{node} would be computed {times} times per element")]
    Recomputed {
        /// The reduction.
        node: NodeId,
        /// How often.
        times: usize,
    },
    /// A selection of positions that no small formula describes.
    #[error("{0} selects positions without a pattern")]
    IrregularSelection(NodeId),
}
