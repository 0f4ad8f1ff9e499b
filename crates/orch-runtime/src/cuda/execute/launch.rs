//! What a step of a program does on a CUDA device.

use crate::cuda::driver::module::{Function, LaunchShape};
use crate::cuda::vendor::libraries::LibraryCall;
use crate::program::{self, Access, Base, BufferRef, KernelLaunch};

/// One kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel. Its parameters are the addresses of the tensors, then the tensor maps.
    pub function: Function,
    /// Grid, CTA, cluster and dynamic shared memory.
    pub shape: LaunchShape,
    /// The tensors, in the order of the parameters.
    pub buffers: Vec<BufferRef>,
    /// The tensors that it loads with TMA, in the order of the parameters.
    pub tensor_maps: Vec<TensorMapShape>,
    /// The arguments that must hold zeros when the kernel starts.
    pub cleared: Vec<ClearedArgument>,
    /// A call of a vendor library that replaces the launch, where the library supports it.
    pub call: Option<LibraryCall>,
}

/// An argument that must hold zeros when its kernel starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClearedArgument {
    /// Index of the tensor in [`Launch::buffers`].
    pub argument: usize,
    /// A constant of zeros, as long as the tensor.
    pub zeros: BufferRef,
}

impl Launch {
    /// The copies of zeros that come before it, as source and destination.
    pub(super) fn clears(&self) -> impl Iterator<Item = (&BufferRef, &BufferRef)> {
        self.cleared.iter().map(|cleared| (&cleared.zeros, &self.buffers[cleared.argument]))
    }
}

/// A tensor of 16-bit elements that TMA loads in tiles of rows of 128 bytes, which it swizzles.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorMapShape {
    /// Index of the tensor in [`Launch::buffers`].
    pub argument: usize,
    /// First element of the tensor map, in bytes from the start of the tensor.
    pub offset_bytes: usize,
    /// Elements of each dimension, the contiguous one first: 2 to 5 dimensions.
    pub extents: Vec<u64>,
    /// Bytes between neighbours along each dimension but the first.
    pub strides_bytes: Vec<u64>,
    /// Rows of a TMA tile, along the second dimension.
    pub rows: u32,
}

/// What a step does.
pub type Action = program::Action<Launch>;

/// One step of a program.
pub type CudaStep = program::Step<Launch>;

/// Steps in order, and the memory that they use.
pub type Program = program::Program<Launch>;

impl KernelLaunch for Launch {
    fn buffers(&self) -> &[BufferRef] {
        &self.buffers
    }

    fn violations(&self) -> Vec<String> {
        let mut violations = self.shape.violations();
        let is_map = |map: &&TensorMapShape| {
            map.argument < self.buffers.len()
                && (2..=5).contains(&map.extents.len())
                && map.strides_bytes.len() + 1 == map.extents.len()
        };
        if !self.tensor_maps.iter().all(|map| is_map(&map)) {
            violations.push(
                "has a tensor map that is not of one of its tensors, or not of 2 to 5 extents".to_owned(),
            );
        }
        let is_clear = |cleared: &ClearedArgument| {
            let to = self.buffers.get(cleared.argument);
            matches!(cleared.zeros.base, Base::Constant(_))
                && to.is_some_and(|to| {
                    to.access == Access::Write
                        && to.base == Base::Arena
                        && to.len_bytes == cleared.zeros.len_bytes
                })
        };
        if !self.cleared.iter().all(is_clear) {
            violations.push(
                "clears what is no working memory of its own, or not by a constant of its size".to_owned(),
            );
        }
        if let Some(call) = &self.call {
            violations.extend(call.violations(&self.buffers));
        }
        violations
    }
}
