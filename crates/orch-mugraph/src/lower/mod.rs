//! The way down: kernels of a µGraph as thread programs, for CPUs and for GPUs.
//!
//! A block of the grid is a CTA on a GPU and a work item on a CPU. Its tiles live in scratch memory (CPUs), or in shared memory and the registers of a
//! CTA (GPUs). What a kernel computes has been proved before; how its tiles are computed is decided here, under limits
//! that the target states.

pub mod cpu;
pub mod gpu;

use crate::band::Band;
use crate::graph::{BlockGraph, MuGraph, Node, TensorId};
use crate::op::Op;
use orch_compute::{ExprId, Exprs};
use orch_ir::DType;

/// How a tensor of a µGraph lies in memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Stored {
    /// Element type. Tiles are computed in f32 whatever it is.
    pub dtype: DType,
    /// Elements from one index to the next one, for each dimension; 0 where elements are repeated.
    pub strides: Vec<usize>,
    /// The first element's place.
    pub offset: usize,
    /// Elements that the memory has.
    pub elems: usize,
    /// The band that the last two dimensions of a mask are, if that is known: GPUs compute it and do not read the memory.
    pub band: Option<Band>,
}

impl Stored {
    /// A tensor in row-major order.
    pub fn row_major(dtype: DType, shape: &[usize]) -> Stored {
        let mut strides = vec![1; shape.len()];
        for dim in (1..shape.len()).rev() {
            strides[dim - 1] = strides[dim] * shape[dim];
        }
        Stored { dtype, strides, offset: 0, elems: crate::op::elems(shape), band: None }
    }
}

/// A kernel that is to be lowered. In the result, [`Binding::Arg`](orch_thread::kernel::Binding) has the number
/// of the tensor in the µGraph.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The µGraph.
    pub graph: &'a MuGraph,
    /// The first tensor that the kernel defines.
    pub kernel: TensorId,
    /// How each tensor of the µGraph lies in memory, by number. Masks that are computed have no memory.
    pub stored: &'a [Stored],
    /// The C function's name.
    pub name: &'a str,
}

/// Where a rotation reads: the index of the element's partner, and true where that is negated. Pairs are `group` elements
/// apart.
fn partner(exprs: &mut Exprs, index: ExprId, group: usize) -> (ExprId, ExprId) {
    let (distance, two, zero) = (exprs.index(group as i64), exprs.index(2), exprs.index(0));
    let number = exprs.floor_div(index, distance);
    let half = exprs.floor_rem(number, two);
    let back = exprs.mul_const(half, -2 * group as i64);
    let ahead = exprs.add_const(index, group as i64);
    (exprs.add2(ahead, back), exprs.eq(half, zero))
}

/// Why a kernel is not lowered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct CannotLower(pub String);

impl<'a> Request<'a> {
    /// The block graph of the kernel.
    ///
    /// # Errors
    /// If the kernel is a predefined one, or none.
    pub fn block(&self) -> Result<&'a BlockGraph, CannotLower> {
        match self.graph.definition(self.kernel) {
            Some(Node::Block(block)) => Ok(block),
            _ => Err(CannotLower(format!("{} is not defined by a block graph", self.kernel))),
        }
    }

    /// Whether a tensor is read from memory; masks that are computed from indices are not.
    pub fn is_in_memory(&self, tensor: TensorId) -> bool {
        self.graph.computed_mask(tensor).is_none() && self.band(tensor).is_none()
    }

    /// The band that the last two dimensions of a tensor are, if it is a mask that is known to be one.
    pub fn band(&self, tensor: TensorId) -> Option<Band> {
        match self.graph.computed_mask(tensor) {
            Some(Op::Causal { offset, .. }) => Some(Band::causal(*offset)),
            Some(_) => None,
            None => self.stored.get(tensor.index())?.band,
        }
    }
}
