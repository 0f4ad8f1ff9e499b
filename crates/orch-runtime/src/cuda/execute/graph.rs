//! CUDA graphs, built node by node.

use crate::cuda::driver::device::Context;
use crate::cuda::driver::error::CudaError;
use crate::cuda::driver::module::{Function, LaunchShape};
use crate::cuda::driver::stream::Stream;
use crate::cuda::driver::sys::{
    Address, CAPTURE_RELAXED, CopyEnd, CopyNode, DriverHandle, EdgeData, KernelNode, MEMORY_DEVICE,
};
use std::ffi::c_void;
use std::ptr::null_mut;

/// A graph that is being built.
pub(in crate::cuda) struct GraphBuilder {
    context: Context,
    handle: DriverHandle,
}

/// A node of the graph that made it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Node(DriverHandle);

/// What was put into a stream, as a graph: a part of others.
pub(in crate::cuda) struct Captured {
    context: Context,
    handle: DriverHandle,
}

/// A graph that can be launched. What its nodes point to must live as long.
pub(in crate::cuda) struct Graph {
    context: Context,
    handle: DriverHandle,
    /// What it was made from, whose nodes name those of the graph.
    _template: GraphBuilder,
}

// SAFETY: a graph may be used from any thread, from one at a time.
unsafe impl Send for GraphBuilder {}
// SAFETY: as above.
unsafe impl Send for Node {}
// SAFETY: an executable graph may be used from any thread, from one at a time.
unsafe impl Send for Graph {}
// SAFETY: a graph that is not changed may be used from any thread.
unsafe impl Send for Captured {}

impl GraphBuilder {
    pub(in crate::cuda) fn new(context: &Context) -> Result<Self, CudaError> {
        let driver = context.enter()?;
        // SAFETY: the pointer is to a handle; 0 is the only value that the function takes.
        let make = |made| unsafe { (driver.api.graph_create)(made, 0) };
        Ok(Self { handle: driver.create(|| "making a graph".into(), make)?, context: context.clone() })
    }

    /// True if kernels may start before what they depend on has ended.
    pub(in crate::cuda) fn has_programmatic_edges(&self) -> bool {
        self.context.device().driver().add_edges.is_some()
    }

    /// Adds a launch that waits for `after`, from which it may start early if `is_early`: all these are launches then.
    ///
    /// # Safety
    /// There must be as many pointers as the kernel has parameters, each to an address or a tensor map, as the parameter requires.
    pub(in crate::cuda) unsafe fn add_kernel(
        &self,
        function: &Function,
        shape: &LaunchShape,
        pointers: &[*mut c_void],
        after: &[Node],
        is_early: bool,
    ) -> Result<Node, CudaError> {
        let driver = self.context.enter()?;
        let doing = || format!("adding {} to a graph", function.described(shape));
        let node = kernel_node(function, shape, pointers);
        let (after, early) = if is_early { (&[][..], after) } else { (after, &[][..]) };
        let before: Vec<DriverHandle> = after.iter().map(|node| node.0).collect();
        let make = |made| {
            // SAFETY: the nodes are this graph's, and the driver copies parameters and arguments before it returns.
            unsafe {
                (driver.api.graph_add_kernel)(
                    made,
                    self.handle,
                    before.as_ptr(),
                    before.len(),
                    &raw const node,
                )
            }
        };
        let handle = driver.create(doing, make)?;
        for (id, value) in shape.node_attributes() {
            // SAFETY: the node was just made, and the value is that of this attribute.
            let status = unsafe { (driver.api.graph_set_attribute)(handle, id, &raw const value) };
            driver.check(status, doing)?;
        }
        if let Some(add_edges) = driver.add_edges.filter(|_| !early.is_empty()) {
            let from: Vec<DriverHandle> = early.iter().map(|node| node.0).collect();
            let (to, data) = (vec![handle; from.len()], vec![EdgeData::PROGRAMMATIC; from.len()]);
            // SAFETY: the nodes are this graph's, and the lists are equally long.
            let status =
                unsafe { add_edges(self.handle, from.as_ptr(), to.as_ptr(), data.as_ptr(), from.len()) };
            driver.check(status, doing)?;
        }
        Ok(Node(handle))
    }

    /// Adds a copy within the device's memory, which waits for `after`. The ranges are the caller's responsibility.
    pub(in crate::cuda) fn add_copy(
        &self,
        from: Address,
        to: Address,
        len_bytes: usize,
        after: &[Node],
    ) -> Result<Node, CudaError> {
        let driver = self.context.enter()?;
        let node = copy_node(from, to, len_bytes);
        let before: Vec<DriverHandle> = after.iter().map(|node| node.0).collect();
        let make = |made| {
            // SAFETY: the nodes are this graph's, and the driver copies the parameters before it returns.
            unsafe {
                (driver.api.graph_add_copy)(
                    made,
                    self.handle,
                    before.as_ptr(),
                    before.len(),
                    &raw const node,
                    self.context.handle(),
                )
            }
        };
        Ok(Node(driver.create(|| "adding a copy to a graph".into(), make)?))
    }

    /// Adds what was captured, which waits for `after`.
    pub(in crate::cuda) fn add_captured(
        &self,
        captured: &Captured,
        after: &[Node],
    ) -> Result<Node, CudaError> {
        let driver = self.context.enter()?;
        let before: Vec<DriverHandle> = after.iter().map(|node| node.0).collect();
        let make = |made| {
            // SAFETY: the nodes are this graph's, and the driver copies what was captured before it returns.
            unsafe {
                (driver.api.graph_add_child)(
                    made,
                    self.handle,
                    before.as_ptr(),
                    before.len(),
                    captured.handle,
                )
            }
        };
        Ok(Node(driver.create(|| "adding a call of a library to a graph".into(), make)?))
    }

    /// The graph as it can be launched, brought to the device.
    pub(in crate::cuda) fn build(self, stream: &Stream) -> Result<Graph, CudaError> {
        let context = self.context.clone();
        let driver = context.enter()?;
        // SAFETY: the graph lives as long as `self`.
        let make = |made| unsafe { (driver.api.graph_instantiate)(made, self.handle, 0) };
        let handle = driver.create(|| "preparing a graph".into(), make)?;
        let graph = Graph { context: self.context.clone(), handle, _template: self };
        // SAFETY: both live as long as their borrows.
        let status = unsafe { (driver.api.graph_upload)(graph.handle, stream.handle()) };
        driver.check(status, || "uploading a graph".into())?;
        Ok(graph)
    }
}

impl Drop for GraphBuilder {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not used after this.
        self.context.release(|driver| unsafe { (driver.api.graph_destroy)(self.handle) });
    }
}

impl Captured {
    /// What `enqueue` puts into the stream, which is not run.
    ///
    /// # Errors
    /// Those of `enqueue`, or if something is enqueued that cannot be captured.
    pub(in crate::cuda) fn of(
        stream: &Stream,
        enqueue: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        let context = stream.context().clone();
        let driver = context.enter()?;
        let doing = || "capturing a call of a library".to_owned();
        // SAFETY: the stream lives as long as its borrow.
        let status = unsafe { (driver.api.stream_begin_capture)(stream.handle(), CAPTURE_RELAXED) };
        driver.check(status, doing)?;
        let enqueued = enqueue();
        let driver = context.enter()?;
        let mut handle: DriverHandle = null_mut();
        // SAFETY: the pointer is to a handle; the capture was begun above, and ends whatever came between.
        let status = unsafe { (driver.api.stream_end_capture)(stream.handle(), &raw mut handle) };
        let ended = driver.check(status, doing);
        let captured = (!handle.is_null()).then(|| Self { context: context.clone(), handle });
        enqueued.and(ended)?;
        captured.ok_or_else(|| CudaError::Driver {
            doing: doing(),
            name: "nothing".to_owned(),
            message: "the capture has no graph".to_owned(),
        })
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: the driver gave it away when the capture ended, and it is not used after this: graphs have copies.
        self.context.release(|driver| unsafe { (driver.api.graph_destroy)(self.handle) });
    }
}

/// A launch, as a graph takes it; the pointers are used until the driver has taken it.
fn kernel_node(function: &Function, shape: &LaunchShape, pointers: &[*mut c_void]) -> KernelNode {
    KernelNode {
        function: function.handle(),
        grid: [shape.grid, 1, 1],
        block: [shape.block, 1, 1],
        shared_bytes: shape.shared_bytes,
        arguments: pointers.as_ptr(),
        extra: null_mut(),
        kernel: null_mut(),
        context: null_mut(),
    }
}

/// A copy within the device's memory, as a graph takes it.
fn copy_node(from: Address, to: Address, len_bytes: usize) -> CopyNode {
    let end = |device| CopyEnd {
        x_bytes: 0,
        y: 0,
        z: 0,
        level: 0,
        memory_type: MEMORY_DEVICE,
        host: null_mut(),
        device,
        array: null_mut(),
        reserved: null_mut(),
        pitch: len_bytes,
        height: 1,
    };
    CopyNode { from: end(from), to: end(to), width_bytes: len_bytes, height: 1, depth: 1 }
}

impl Graph {
    /// Gives the launch of a node other arguments, for launches of the graph from now on.
    ///
    /// # Safety
    /// As [`GraphBuilder::add_kernel`], by which the node was added with the same function and shape.
    pub(in crate::cuda) unsafe fn set_kernel(
        &self,
        node: Node,
        function: &Function,
        shape: &LaunchShape,
        pointers: &[*mut c_void],
    ) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        let launch = kernel_node(function, shape, pointers);
        // SAFETY: the node is the template's, and the driver copies the arguments before it returns.
        let status = unsafe { (driver.api.graph_set_kernel)(self.handle, node.0, &raw const launch) };
        driver.check(status, || format!("giving {} other arguments", function.described(shape)))
    }

    /// Gives the copy of a node other ends, for launches of the graph from now on. The ranges are the caller's responsibility.
    pub(in crate::cuda) fn set_copy(
        &self,
        node: Node,
        from: Address,
        to: Address,
        len_bytes: usize,
    ) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        let copy = copy_node(from, to, len_bytes);
        let context = self.context.handle();
        // SAFETY: the node is the template's, and the driver copies the parameters before it returns.
        let status = unsafe { (driver.api.graph_set_copy)(self.handle, node.0, &raw const copy, context) };
        driver.check(status, || "giving a copy in a graph other ends".into())
    }

    /// Enqueues all of it; `doing` is what an error says was being done.
    pub(in crate::cuda) fn launch(
        &self,
        stream: &Stream,
        doing: impl FnOnce() -> String,
    ) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: both live as long as their borrows.
        let status = unsafe { (driver.api.graph_launch)(self.handle, stream.handle()) };
        driver.check(status, doing)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `build`, and not used after this; the driver lets a launch that is in flight end.
        self.context.release(|driver| unsafe { (driver.api.graph_exec_destroy)(self.handle) });
    }
}
