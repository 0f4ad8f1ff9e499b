//! What a step of a program does on a CUDA device.

use super::module::{Function, LaunchShape};
use crate::program::{self, BufferRef, KernelLaunch};

/// One kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel. Its parameters are the addresses of the tensors.
    pub function: Function,
    /// Grid, block and what else there is to a launch.
    pub shape: LaunchShape,
    /// Its tensors, in its order.
    pub buffers: Vec<BufferRef>,
}

/// What a step does.
pub type Action = program::Action<Launch>;

/// One step of a program.
pub type Step = program::Step<Launch>;

/// Steps in order, and the memory that they use.
pub type Program = program::Program<Launch>;

impl KernelLaunch for Launch {
    fn buffers(&self) -> &[BufferRef] {
        &self.buffers
    }

    fn violations(&self) -> Vec<String> {
        self.shape.violations()
    }
}
