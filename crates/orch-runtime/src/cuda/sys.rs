//! The driver's C interface, as far as it is used here: names, types and constants of `cuda.h`.
//!
//! Names are those of the shared library, with the version suffix that the header's macros hide.

use crate::symbols::symbol_table;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// `CUresult`.
pub(super) type Status = c_int;
/// `CUdevice`.
pub(super) type DeviceHandle = c_int;
/// `CUdeviceptr`.
pub(super) type Address = u64;
/// `CUcontext`, `CUstream`, `CUevent`, `CUmodule`, `CUfunction`, `CUgraph`, `CUgraphNode`, `CUgraphExec`.
pub(super) type Handle = *mut c_void;

symbol_table! {
    /// The functions of the driver that every call here may need: all are in CUDA 12.0.
    pub(super) struct Api {
        init = c"cuInit": fn(c_uint) -> Status;
        error_name = c"cuGetErrorName": fn(Status, *mut *const c_char) -> Status;
        error_string = c"cuGetErrorString": fn(Status, *mut *const c_char) -> Status;

        device_count = c"cuDeviceGetCount": fn(*mut c_int) -> Status;
        device_get = c"cuDeviceGet": fn(*mut DeviceHandle, c_int) -> Status;
        device_name = c"cuDeviceGetName": fn(*mut c_char, c_int, DeviceHandle) -> Status;
        device_attribute = c"cuDeviceGetAttribute": fn(*mut c_int, c_int, DeviceHandle) -> Status;
        device_total_mem = c"cuDeviceTotalMem_v2": fn(*mut usize, DeviceHandle) -> Status;
        context_retain = c"cuDevicePrimaryCtxRetain": fn(*mut Handle, DeviceHandle) -> Status;
        context_release = c"cuDevicePrimaryCtxRelease_v2": fn(DeviceHandle) -> Status;
        context_set_current = c"cuCtxSetCurrent": fn(Handle) -> Status;

        mem_get_info = c"cuMemGetInfo_v2": fn(*mut usize, *mut usize) -> Status;
        mem_alloc = c"cuMemAlloc_v2": fn(*mut Address, usize) -> Status;
        mem_free = c"cuMemFree_v2": fn(Address) -> Status;
        mem_host_alloc = c"cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint) -> Status;
        mem_free_host = c"cuMemFreeHost": fn(*mut c_void) -> Status;
        memcpy_to_device = c"cuMemcpyHtoDAsync_v2": fn(Address, *const c_void, usize, Handle) -> Status;
        memcpy_to_host = c"cuMemcpyDtoHAsync_v2": fn(*mut c_void, Address, usize, Handle) -> Status;
        memcpy_on_device = c"cuMemcpyDtoDAsync_v2": fn(Address, Address, usize, Handle) -> Status;
        memset = c"cuMemsetD8Async": fn(Address, u8, usize, Handle) -> Status;

        stream_create = c"cuStreamCreate": fn(*mut Handle, c_uint) -> Status;
        stream_destroy = c"cuStreamDestroy_v2": fn(Handle) -> Status;
        stream_synchronize = c"cuStreamSynchronize": fn(Handle) -> Status;
        stream_wait_value = c"cuStreamWaitValue32_v2": fn(Handle, Address, c_uint, c_uint) -> Status;
        stream_begin_capture = c"cuStreamBeginCapture_v2": fn(Handle, c_int) -> Status;
        stream_end_capture = c"cuStreamEndCapture": fn(Handle, *mut Handle) -> Status;
        event_create = c"cuEventCreate": fn(*mut Handle, c_uint) -> Status;
        event_destroy = c"cuEventDestroy_v2": fn(Handle) -> Status;
        event_record = c"cuEventRecord": fn(Handle, Handle) -> Status;
        event_synchronize = c"cuEventSynchronize": fn(Handle) -> Status;
        event_elapsed = c"cuEventElapsedTime": fn(*mut f32, Handle, Handle) -> Status;

        module_load = c"cuModuleLoadData": fn(*mut Handle, *const c_void) -> Status;
        module_unload = c"cuModuleUnload": fn(Handle) -> Status;
        module_function = c"cuModuleGetFunction": fn(*mut Handle, Handle, *const c_char) -> Status;
        function_attribute = c"cuFuncGetAttribute": fn(*mut c_int, c_int, Handle) -> Status;
        function_set_attribute = c"cuFuncSetAttribute": fn(Handle, c_int, c_int) -> Status;
        occupancy_blocks = c"cuOccupancyMaxActiveBlocksPerMultiprocessor":
            fn(*mut c_int, Handle, c_int, usize) -> Status;
        occupancy_clusters = c"cuOccupancyMaxActiveClusters": fn(*mut c_int, Handle, *const LaunchConfig) -> Status;
        encode_tensor_map = c"cuTensorMapEncodeTiled": fn(
            *mut EncodedTensorMap, c_int, c_uint, Address, *const u64, *const u64, *const c_uint, *const c_uint, c_int, c_int, c_int, c_int
        ) -> Status;
        launch = c"cuLaunchKernelEx":
            fn(*const LaunchConfig, Handle, *const *mut c_void, *const *mut c_void) -> Status;

        graph_create = c"cuGraphCreate": fn(*mut Handle, c_uint) -> Status;
        graph_destroy = c"cuGraphDestroy": fn(Handle) -> Status;
        graph_add_kernel = c"cuGraphAddKernelNode_v2":
            fn(*mut Handle, Handle, *const Handle, usize, *const KernelNode) -> Status;
        graph_add_copy = c"cuGraphAddMemcpyNode":
            fn(*mut Handle, Handle, *const Handle, usize, *const CopyNode, Handle) -> Status;
        graph_add_child = c"cuGraphAddChildGraphNode":
            fn(*mut Handle, Handle, *const Handle, usize, Handle) -> Status;
        graph_set_attribute = c"cuGraphKernelNodeSetAttribute": fn(Handle, c_int, *const AttributeValue) -> Status;
        graph_instantiate = c"cuGraphInstantiateWithFlags": fn(*mut Handle, Handle, c_ulonglong) -> Status;
        graph_upload = c"cuGraphUpload": fn(Handle, Handle) -> Status;
        graph_launch = c"cuGraphLaunch": fn(Handle, Handle) -> Status;
        graph_exec_destroy = c"cuGraphExecDestroy": fn(Handle) -> Status;
    }
}

/// `cuDriverGetVersion`, which drivers of any age have.
pub(super) type DriverGetVersion = unsafe extern "C" fn(*mut c_int) -> Status;

/// `cuGraphAddDependencies_v2`: since CUDA 12.3.
pub(super) type GraphAddEdges =
    unsafe extern "C" fn(Handle, *const Handle, *const Handle, *const EdgeData, usize) -> Status;

/// `CUtensorMap`.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct EncodedTensorMap(pub(super) [u64; 16]);

/// Values of `CUtensorMapDataType`, `CUtensorMapInterleave`, `CUtensorMapSwizzle`, `CUtensorMapL2promotion` and
/// `CUtensorMapFloatOOBfill`.
pub(super) mod tensor_map {
    pub(crate) const UINT16: i32 = 1;
    pub(crate) const INTERLEAVE_NONE: i32 = 0;
    pub(crate) const SWIZZLE_128B: i32 = 3;
    pub(crate) const PROMOTE_128B: i32 = 2;
    pub(crate) const FILL_ZEROS: i32 = 0;
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) stream: Handle,
    pub(super) attributes: *const Attribute,
    pub(super) attribute_count: c_uint,
}

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Attribute {
    pub(super) id: c_int,
    pub(super) padding: [u8; 4],
    pub(super) value: AttributeValue,
}

/// `CUlaunchAttributeValue`: a union of 64 bytes, aligned as a pointer; the members used here are of words.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct AttributeValue(pub(super) [c_uint; 16]);

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
pub(super) struct KernelNode {
    pub(super) function: Handle,
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) arguments: *const *mut c_void,
    pub(super) extra: *mut *mut c_void,
    pub(super) kernel: Handle,
    pub(super) context: Handle,
}

/// One end of [`CopyNode`].
#[repr(C)]
pub(super) struct CopyEnd {
    pub(super) x_bytes: usize,
    pub(super) y: usize,
    pub(super) z: usize,
    pub(super) level: usize,
    pub(super) memory_type: c_int,
    pub(super) host: *mut c_void,
    pub(super) device: Address,
    pub(super) array: Handle,
    pub(super) reserved: *mut c_void,
    pub(super) pitch: usize,
    pub(super) height: usize,
}

/// `CUDA_MEMCPY3D_v2`.
#[repr(C)]
pub(super) struct CopyNode {
    pub(super) from: CopyEnd,
    pub(super) to: CopyEnd,
    pub(super) width_bytes: usize,
    pub(super) height: usize,
    pub(super) depth: usize,
}

/// `CUgraphEdgeData`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct EdgeData {
    pub(super) from_port: u8,
    pub(super) to_port: u8,
    pub(super) kind: u8,
    pub(super) reserved: [u8; 5],
}

impl EdgeData {
    /// The later node may start when all blocks of the earlier kernel have allowed it
    /// (`CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC`, `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`).
    pub(super) const PROGRAMMATIC: Self = Self { from_port: 1, to_port: 0, kind: 1, reserved: [0; 5] };
}

/// `CU_MEMORYTYPE_DEVICE`.
pub(super) const MEMORY_DEVICE: c_int = 2;
/// `CU_STREAM_NON_BLOCKING`: no implicit order with the default stream.
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_WAIT_VALUE_EQ`.
pub(super) const WAIT_VALUE_EQUAL: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: whoever enqueues may load code meanwhile.
pub(super) const CAPTURE_RELAXED: c_int = 2;
/// `CU_EVENT_DEFAULT`: with time.
pub(super) const EVENT_DEFAULT: c_uint = 0;

/// `CUlaunchAttributeID`.
pub(super) mod launch_attribute {
    pub(crate) const CLUSTER_DIMENSION: i32 = 4;
    pub(crate) const PROGRAMMATIC_STREAM_SERIALIZATION: i32 = 6;
}

/// `CUfunction_attribute`.
pub(super) mod function_attribute {
    pub(crate) const MAX_THREADS_PER_BLOCK: i32 = 0;
    pub(crate) const SHARED_SIZE_BYTES: i32 = 1;
    pub(crate) const LOCAL_SIZE_BYTES: i32 = 3;
    pub(crate) const NUM_REGS: i32 = 4;
    pub(crate) const MAX_DYNAMIC_SHARED_SIZE_BYTES: i32 = 8;
    pub(crate) const NON_PORTABLE_CLUSTER_SIZE_ALLOWED: i32 = 14;
}

/// `CUdevice_attribute`.
pub(super) mod device_attribute {
    pub(crate) const MULTIPROCESSOR_COUNT: i32 = 16;
    pub(crate) const CLOCK_RATE: i32 = 13;
    pub(crate) const MEMORY_CLOCK_RATE: i32 = 36;
    pub(crate) const GLOBAL_MEMORY_BUS_WIDTH: i32 = 37;
    pub(crate) const L2_CACHE_SIZE: i32 = 38;
    pub(crate) const MAX_THREADS_PER_MULTIPROCESSOR: i32 = 39;
    pub(crate) const COMPUTE_CAPABILITY_MAJOR: i32 = 75;
    pub(crate) const COMPUTE_CAPABILITY_MINOR: i32 = 76;
    pub(crate) const MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: i32 = 81;
    pub(crate) const MAX_REGISTERS_PER_MULTIPROCESSOR: i32 = 82;
    pub(crate) const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: i32 = 97;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes that a C compiler gives for `cuda.h` of CUDA 13.0 on 64-bit Linux.
    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!(size_of::<LaunchConfig>(), 56);
        assert_eq!(size_of::<Attribute>(), 72);
        assert_eq!(size_of::<AttributeValue>(), 64);
        assert_eq!(size_of::<KernelNode>(), 72);
        assert_eq!(size_of::<CopyNode>(), 200);
        assert_eq!(size_of::<EdgeData>(), 8);
        assert_eq!((size_of::<EncodedTensorMap>(), align_of::<EncodedTensorMap>()), (128, 64));
        assert_eq!(std::mem::offset_of!(KernelNode, arguments), 40);
        assert_eq!(std::mem::offset_of!(LaunchConfig, stream), 32);
        assert_eq!(std::mem::offset_of!(CopyNode, width_bytes), 176);
    }
}
