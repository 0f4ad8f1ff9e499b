//! What is known of a kernel before it is built: plain types that all stages share.

use crate::Library;
use orch_runtime::cuda::Computation;
use orch_template::Design;
use std::collections::HashMap;

/// The least that a kernel does, whatever its schedule.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KernelWork {
    /// Floating-point operations, a multiply-add as two.
    pub flops: f64,
    /// Lower bound of its time: the larger of arithmetic at peak rate and traffic at full bandwidth.
    pub roofline_us: f64,
    /// Modelled time on one thread of a CPU, without its launch.
    pub alone_us: f64,
}

/// What the performance model says of a kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KernelEstimate {
    /// Modelled time of one launch.
    pub time_us: f64,
    /// The least that it does.
    pub work: KernelWork,
}

/// A kernel that one or more columns of a plan share.
#[derive(Clone)]
pub struct KernelDesign {
    /// A readable name, unique in a plan.
    pub name: String,
    /// The thread program and the schedule.
    pub design: Design,
    /// The least that it does.
    pub work: KernelWork,
    /// Modelled time of one launch.
    pub cost_us: f64,
    /// True if a run touches most of what the kernel reads for the first time: then it is timed with a cold L2.
    pub is_cold: bool,
    /// The arguments that pass between kernels of one substitute: position among the arguments, number of the tensor.
    pub inner: Vec<(usize, usize)>,
    /// A library call that replaces the kernel where the library can be loaded and supports it.
    pub call: Option<KernelCall>,
}

impl KernelDesign {
    /// The label of the implementation: the release of the library that is called, or the schedule. Part of the keys of
    /// stored times.
    pub fn label(&self) -> &str {
        self.call.as_ref().map_or(&self.design.schedule, |call| &call.release)
    }
}

/// A library call that computes what a kernel computes, from the same arguments.
#[derive(Clone, Debug)]
pub struct KernelCall {
    /// The library and its release, as measured.
    pub release: String,
    /// What it computes.
    pub computation: Computation,
    /// Microseconds that the kernel took where the call took less; `None` while it is timed.
    pub own_us: Option<f64>,
}

/// What was measured of kernels, by signature (of substitutes: by [`Substitute::key`](super::substitute::Substitute::key)).
#[derive(Default)]
pub struct Measured {
    /// Microseconds.
    pub times: HashMap<String, f64>,
    /// The fastest schedule of each kernel of a candidate, where several were timed.
    pub schedules: HashMap<String, Vec<String>>,
    /// The library calls that were faster than any schedule.
    pub calls: HashMap<String, MeasuredCall>,
}

/// A library call that was faster than a kernel.
pub struct MeasuredCall {
    /// The library.
    pub library: Library,
    /// Its name and release.
    pub release: String,
    /// Microseconds that the kernel took.
    pub own_us: f64,
}
