//! What a step of a program does on a CUDA device.

use crate::cuda::driver::module::{Function, LaunchShape};
use crate::cuda::vendor::libraries::LibraryCall;
use crate::program::{self, BufferRef, KernelLaunch};

/// One kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel. Its parameters are the addresses of the tensors, and then its views.
    pub function: Function,
    /// Grid, block and what else there is to a launch.
    pub shape: LaunchShape,
    /// Its tensors, in its order.
    pub buffers: Vec<BufferRef>,
    /// What it reads through TMA: its last parameters, in its order.
    pub tensor_maps: Vec<TensorMapShape>,
    /// A call that is made instead of the launch where the library takes it.
    pub call: Option<LibraryCall>,
}

/// A tensor of 16-bit elements that TMA loads in tiles of rows of 128 bytes, which it swizzles.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorMapShape {
    /// Which of the launch's tensors.
    pub argument: usize,
    /// Where its first element is.
    pub offset_bytes: usize,
    /// Its extents, that of neighbouring elements first.
    pub extents: Vec<u64>,
    /// Bytes from one place of each extent but the first to the next.
    pub strides_bytes: Vec<u64>,
    /// Lines of a box, which are neighbours in the second extent.
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
        if let Some(call) = &self.call {
            violations.extend(call.violations(&self.buffers));
        }
        violations
    }
}
