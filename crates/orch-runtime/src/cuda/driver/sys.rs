//! The driver's C interface, as far as it is used here: names, types and constants of `cuda.h`.
//!
//! Names are those of the shared library, with the version suffix that the header's macros hide.

use crate::symbols::symbol_table;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// `CUresult`.
pub(in crate::cuda) type DriverStatus = c_int;
/// `CUdevice`.
pub(in crate::cuda) type DeviceHandle = c_int;
/// `CUdeviceptr`.
pub(in crate::cuda) type Address = u64;
/// `CUcontext`, `CUstream`, `CUevent`, `CUmodule`, `CUfunction`, `CUgraph`, `CUgraphNode`, `CUgraphExec`.
pub(in crate::cuda) type DriverHandle = *mut c_void;

symbol_table! {
    /// The functions of the driver that every call here may need: all are in CUDA 12.0.
    pub(in crate::cuda) struct DriverApi {
        init = c"cuInit": fn(c_uint) -> DriverStatus;
        error_name = c"cuGetErrorName": fn(DriverStatus, *mut *const c_char) -> DriverStatus;
        error_string = c"cuGetErrorString": fn(DriverStatus, *mut *const c_char) -> DriverStatus;

        device_count = c"cuDeviceGetCount": fn(*mut c_int) -> DriverStatus;
        device_get = c"cuDeviceGet": fn(*mut DeviceHandle, c_int) -> DriverStatus;
        device_name = c"cuDeviceGetName": fn(*mut c_char, c_int, DeviceHandle) -> DriverStatus;
        device_attribute = c"cuDeviceGetAttribute": fn(*mut c_int, c_int, DeviceHandle) -> DriverStatus;
        device_total_mem = c"cuDeviceTotalMem_v2": fn(*mut usize, DeviceHandle) -> DriverStatus;
        context_retain = c"cuDevicePrimaryCtxRetain": fn(*mut DriverHandle, DeviceHandle) -> DriverStatus;
        context_release = c"cuDevicePrimaryCtxRelease_v2": fn(DeviceHandle) -> DriverStatus;
        context_set_current = c"cuCtxSetCurrent": fn(DriverHandle) -> DriverStatus;

        mem_get_info = c"cuMemGetInfo_v2": fn(*mut usize, *mut usize) -> DriverStatus;
        mem_alloc = c"cuMemAlloc_v2": fn(*mut Address, usize) -> DriverStatus;
        mem_free = c"cuMemFree_v2": fn(Address) -> DriverStatus;
        mem_host_alloc = c"cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint) -> DriverStatus;
        mem_free_host = c"cuMemFreeHost": fn(*mut c_void) -> DriverStatus;
        memcpy_to_device = c"cuMemcpyHtoDAsync_v2": fn(Address, *const c_void, usize, DriverHandle) -> DriverStatus;
        memcpy_to_host = c"cuMemcpyDtoHAsync_v2": fn(*mut c_void, Address, usize, DriverHandle) -> DriverStatus;
        memcpy_on_device = c"cuMemcpyDtoDAsync_v2": fn(Address, Address, usize, DriverHandle) -> DriverStatus;
        memset = c"cuMemsetD8Async": fn(Address, u8, usize, DriverHandle) -> DriverStatus;

        stream_create = c"cuStreamCreate": fn(*mut DriverHandle, c_uint) -> DriverStatus;
        stream_destroy = c"cuStreamDestroy_v2": fn(DriverHandle) -> DriverStatus;
        stream_synchronize = c"cuStreamSynchronize": fn(DriverHandle) -> DriverStatus;
        stream_wait_event = c"cuStreamWaitEvent": fn(DriverHandle, DriverHandle, c_uint) -> DriverStatus;
        stream_is_capturing = c"cuStreamIsCapturing": fn(DriverHandle, *mut c_int) -> DriverStatus;
        stream_wait_value = c"cuStreamWaitValue32_v2": fn(DriverHandle, Address, c_uint, c_uint) -> DriverStatus;
        exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode": fn(*mut c_int) -> DriverStatus;
        stream_begin_capture = c"cuStreamBeginCapture_v2": fn(DriverHandle, c_int) -> DriverStatus;
        stream_end_capture = c"cuStreamEndCapture": fn(DriverHandle, *mut DriverHandle) -> DriverStatus;
        event_create = c"cuEventCreate": fn(*mut DriverHandle, c_uint) -> DriverStatus;
        event_destroy = c"cuEventDestroy_v2": fn(DriverHandle) -> DriverStatus;
        event_record = c"cuEventRecord": fn(DriverHandle, DriverHandle) -> DriverStatus;
        event_query = c"cuEventQuery": fn(DriverHandle) -> DriverStatus;
        event_synchronize = c"cuEventSynchronize": fn(DriverHandle) -> DriverStatus;
        event_elapsed = c"cuEventElapsedTime": fn(*mut f32, DriverHandle, DriverHandle) -> DriverStatus;

        module_load = c"cuModuleLoadDataEx":
            fn(*mut DriverHandle, *const c_void, c_uint, *mut c_int, *mut *mut c_void) -> DriverStatus;
        module_unload = c"cuModuleUnload": fn(DriverHandle) -> DriverStatus;
        module_function = c"cuModuleGetFunction": fn(*mut DriverHandle, DriverHandle, *const c_char) -> DriverStatus;
        function_attribute = c"cuFuncGetAttribute": fn(*mut c_int, c_int, DriverHandle) -> DriverStatus;
        function_set_attribute = c"cuFuncSetAttribute": fn(DriverHandle, c_int, c_int) -> DriverStatus;
        encode_tensor_map = c"cuTensorMapEncodeTiled": fn(
            *mut EncodedTensorMap, c_int, c_uint, Address, *const u64, *const u64, *const c_uint, *const c_uint, c_int, c_int, c_int, c_int
        ) -> DriverStatus;
        launch = c"cuLaunchKernelEx":
            fn(*const LaunchConfig, DriverHandle, *const *mut c_void, *const *mut c_void) -> DriverStatus;

        graph_create = c"cuGraphCreate": fn(*mut DriverHandle, c_uint) -> DriverStatus;
        graph_destroy = c"cuGraphDestroy": fn(DriverHandle) -> DriverStatus;
        graph_add_kernel = c"cuGraphAddKernelNode_v2":
            fn(*mut DriverHandle, DriverHandle, *const DriverHandle, usize, *const KernelNode) -> DriverStatus;
        graph_add_copy = c"cuGraphAddMemcpyNode":
            fn(*mut DriverHandle, DriverHandle, *const DriverHandle, usize, *const CopyNode, DriverHandle) -> DriverStatus;
        graph_add_child = c"cuGraphAddChildGraphNode":
            fn(*mut DriverHandle, DriverHandle, *const DriverHandle, usize, DriverHandle) -> DriverStatus;
        graph_set_attribute = c"cuGraphKernelNodeSetAttribute": fn(DriverHandle, c_int, *const AttributeValue) -> DriverStatus;
        graph_instantiate = c"cuGraphInstantiateWithFlags": fn(*mut DriverHandle, DriverHandle, c_ulonglong) -> DriverStatus;
        graph_upload = c"cuGraphUpload": fn(DriverHandle, DriverHandle) -> DriverStatus;
        graph_launch = c"cuGraphLaunch": fn(DriverHandle, DriverHandle) -> DriverStatus;
        graph_set_kernel = c"cuGraphExecKernelNodeSetParams_v2": fn(DriverHandle, DriverHandle, *const KernelNode) -> DriverStatus;
        graph_set_copy = c"cuGraphExecMemcpyNodeSetParams":
            fn(DriverHandle, DriverHandle, *const CopyNode, DriverHandle) -> DriverStatus;
        graph_exec_destroy = c"cuGraphExecDestroy": fn(DriverHandle) -> DriverStatus;
    }
}

/// `cuDriverGetVersion`, which drivers of any age have.
pub(in crate::cuda) type DriverGetVersion = unsafe extern "C" fn(*mut c_int) -> DriverStatus;

/// `cuGraphAddDependencies_v2`: since CUDA 12.3.
pub(in crate::cuda) type GraphAddEdges = unsafe extern "C" fn(
    DriverHandle,
    *const DriverHandle,
    *const DriverHandle,
    *const EdgeData,
    usize,
) -> DriverStatus;

/// `CUtensorMap`.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(in crate::cuda) struct EncodedTensorMap(pub(in crate::cuda) [u64; 16]);

/// Values of `CUtensorMapDataType`, `CUtensorMapInterleave`, `CUtensorMapSwizzle`, `CUtensorMapL2promotion` and
/// `CUtensorMapFloatOOBfill`.
pub(in crate::cuda) mod tensor_map {
    pub(crate) const UINT16: i32 = 1;
    pub(crate) const INTERLEAVE_NONE: i32 = 0;
    pub(crate) const SWIZZLE_128B: i32 = 3;
    pub(crate) const PROMOTE_128B: i32 = 2;
    pub(crate) const FILL_ZEROS: i32 = 0;
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(in crate::cuda) struct LaunchConfig {
    pub(in crate::cuda) grid: [c_uint; 3],
    pub(in crate::cuda) block: [c_uint; 3],
    pub(in crate::cuda) shared_bytes: c_uint,
    pub(in crate::cuda) stream: DriverHandle,
    pub(in crate::cuda) attributes: *const Attribute,
    pub(in crate::cuda) attribute_count: c_uint,
}

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::cuda) struct Attribute {
    pub(in crate::cuda) id: c_int,
    pub(in crate::cuda) padding: [u8; 4],
    pub(in crate::cuda) value: AttributeValue,
}

/// `CUlaunchAttributeValue`: a union of 64 bytes, aligned as a pointer; the members used here are of words.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(in crate::cuda) struct AttributeValue(pub(in crate::cuda) [c_uint; 16]);

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
pub(in crate::cuda) struct KernelNode {
    pub(in crate::cuda) function: DriverHandle,
    pub(in crate::cuda) grid: [c_uint; 3],
    pub(in crate::cuda) block: [c_uint; 3],
    pub(in crate::cuda) shared_bytes: c_uint,
    pub(in crate::cuda) arguments: *const *mut c_void,
    pub(in crate::cuda) extra: *mut *mut c_void,
    pub(in crate::cuda) kernel: DriverHandle,
    pub(in crate::cuda) context: DriverHandle,
}

/// One end of [`CopyNode`].
#[repr(C)]
pub(in crate::cuda) struct CopyEnd {
    pub(in crate::cuda) x_bytes: usize,
    pub(in crate::cuda) y: usize,
    pub(in crate::cuda) z: usize,
    pub(in crate::cuda) level: usize,
    pub(in crate::cuda) memory_type: c_int,
    pub(in crate::cuda) host: *mut c_void,
    pub(in crate::cuda) device: Address,
    pub(in crate::cuda) array: DriverHandle,
    pub(in crate::cuda) reserved: *mut c_void,
    pub(in crate::cuda) pitch: usize,
    pub(in crate::cuda) height: usize,
}

/// `CUDA_MEMCPY3D_v2`.
#[repr(C)]
pub(in crate::cuda) struct CopyNode {
    pub(in crate::cuda) from: CopyEnd,
    pub(in crate::cuda) to: CopyEnd,
    pub(in crate::cuda) width_bytes: usize,
    pub(in crate::cuda) height: usize,
    pub(in crate::cuda) depth: usize,
}

/// `CUgraphEdgeData`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::cuda) struct EdgeData {
    pub(in crate::cuda) from_port: u8,
    pub(in crate::cuda) to_port: u8,
    pub(in crate::cuda) kind: u8,
    pub(in crate::cuda) reserved: [u8; 5],
}

impl EdgeData {
    /// The later node may start when all CTAs of the earlier kernel have allowed it
    /// (`CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC`, `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`).
    pub(in crate::cuda) const PROGRAMMATIC: Self =
        Self { from_port: 1, to_port: 0, kind: 1, reserved: [0; 5] };
}

/// `CU_MEMORYTYPE_DEVICE`.
pub(in crate::cuda) const MEMORY_DEVICE: c_int = 2;
/// `CU_STREAM_NON_BLOCKING`: no implicit order with the default stream.
pub(in crate::cuda) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
pub(in crate::cuda) const CAPTURE_NONE: c_int = 0;
/// `CU_STREAM_WAIT_VALUE_EQ`.
pub(in crate::cuda) const WAIT_VALUE_EQUAL: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: the capturing thread may load modules meanwhile.
pub(in crate::cuda) const CAPTURE_RELAXED: c_int = 2;
/// `CUDA_ERROR_NOT_READY`: what was asked for is not done yet.
pub(in crate::cuda) const NOT_READY: DriverStatus = 600;

/// `CU_EVENT_DEFAULT`: with time.
pub(in crate::cuda) const EVENT_DEFAULT: c_uint = 0;

/// `CUlaunchAttributeID`.
pub(in crate::cuda) mod launch_attribute {
    pub(crate) const COOPERATIVE: i32 = 2;
    pub(crate) const CLUSTER_DIMENSION: i32 = 4;
    pub(crate) const PROGRAMMATIC_STREAM_SERIALIZATION: i32 = 6;
}

/// `CUjit_option`.
pub(in crate::cuda) mod jit_option {
    pub(crate) const ERROR_LOG_BUFFER: i32 = 5;
    pub(crate) const ERROR_LOG_BUFFER_SIZE_BYTES: i32 = 6;
}

/// `CUfunction_attribute`.
pub(in crate::cuda) mod function_attribute {
    pub(crate) const MAX_THREADS_PER_BLOCK: i32 = 0;
    pub(crate) const SHARED_SIZE_BYTES: i32 = 1;
    pub(crate) const LOCAL_SIZE_BYTES: i32 = 3;
    pub(crate) const NUM_REGS: i32 = 4;
    pub(crate) const MAX_DYNAMIC_SHARED_SIZE_BYTES: i32 = 8;
    pub(crate) const NON_PORTABLE_CLUSTER_SIZE_ALLOWED: i32 = 14;
}

/// `CUdevice_attribute`.
pub(in crate::cuda) mod device_attribute {
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
