//! What a term costs: enough to rank alternatives, no prediction of a run time.

use super::term::TermFacts;
use orch_ir::{PrimOp, Shape};

/// A machine, as coarsely as the choice between alternatives needs it.
///
/// A primitive that is a kernel of its own (contraction, convolution) costs its arithmetic and the bytes that it moves.
/// Others are mostly fused with a neighbour, so that only a fraction of their bytes counts. Constants cost the
/// bytes that are read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CostModel {
    /// Floating-point operations per microsecond of contractions and convolutions.
    pub flops_per_us: f64,
    /// Elementwise functions per microsecond.
    pub maps_per_us: f64,
    /// Bytes per microsecond to and from memory.
    pub bytes_per_us: f64,
    /// The part of the bytes that a fused primitive moves.
    pub fused_fraction: f64,
    /// What a kernel costs besides, in microseconds.
    pub kernel_us: f64,
}

impl CostModel {
    /// A processor with few cores and wide vectors.
    pub const CPU: CostModel = CostModel {
        flops_per_us: 1e5,
        maps_per_us: 1e4,
        bytes_per_us: 2e4,
        fused_fraction: 0.25,
        kernel_us: 2.0,
    };

    /// What a view costs, in microseconds: nothing, but fewer are better.
    const VIEW_US: f64 = 1e-3;

    /// Microseconds for one primitive on operands with these facts.
    pub(crate) fn primitive_us(&self, op: &PrimOp, operands: &[&TermFacts], result: &TermFacts) -> f64 {
        let elems = result.shape.elems() as f64;
        let moved = (result.bytes()
            + operands.iter().filter(|facts| !facts.known).map(|facts| facts.bytes()).sum::<usize>())
            as f64
            / self.bytes_per_us;
        match op {
            PrimOp::Contract(contract) => {
                let summed = summed_elems(&contract.lhs, &operands[0].shape, &contract.out)
                    * summed_elems_beyond(&contract.rhs, &operands[1].shape, &contract.out, &contract.lhs);
                self.kernel_us + moved + 2.0 * elems * summed / self.flops_per_us
            }
            PrimOp::Conv(_) | PrimOp::ConvTranspose { .. } => {
                let per_output = operands[1].shape.elems() as f64 / operands[1].shape[0].max(1) as f64;
                self.kernel_us + moved + 2.0 * elems * per_output / self.flops_per_us
            }
            PrimOp::Map(_) | PrimOp::Slice { .. } | PrimOp::Pad { .. } | PrimOp::Select { .. } => {
                elems / self.maps_per_us + self.fused_fraction * moved
            }
            PrimOp::Reduce { .. } | PrimOp::Window { .. } => {
                let read: usize = operands.iter().map(|facts| facts.shape.elems()).sum();
                read as f64 / self.maps_per_us + self.fused_fraction * moved
            }
            op if is_view(op) => Self::VIEW_US,
            _ => self.kernel_us + moved,
        }
    }

    /// Microseconds for a constant of this size.
    pub(crate) fn constant_us(&self, bytes: usize) -> f64 {
        bytes as f64 / self.bytes_per_us
    }
}

impl Default for CostModel {
    fn default() -> Self {
        Self::CPU
    }
}

/// True for primitives that store nothing where layouts are chosen freely.
fn is_view(op: &PrimOp) -> bool {
    matches!(
        op,
        PrimOp::Broadcast { .. } | PrimOp::Reshape { .. } | PrimOp::Transpose { .. } | PrimOp::Iota { .. }
    )
}

/// The extents of an operand's labels that are not in `out`, multiplied.
fn summed_elems(labels: &[u8], shape: &Shape, out: &[u8]) -> f64 {
    labels
        .iter()
        .zip(shape.iter())
        .filter(|(label, _)| !out.contains(label))
        .map(|(_, &n)| n as f64)
        .product()
}

/// The same without labels of the other operand.
fn summed_elems_beyond(labels: &[u8], shape: &Shape, out: &[u8], other: &[u8]) -> f64 {
    let own =
        labels.iter().zip(shape.iter()).filter(|(label, _)| !out.contains(label) && !other.contains(label));
    own.map(|(_, &n)| n as f64).product()
}
