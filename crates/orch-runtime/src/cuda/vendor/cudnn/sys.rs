//! cuDNN's C interface, as far as it is used here: names, types and constants of `cudnn_graph.h`, `cudnn_ops.h` and
//! `cudnn_cnn.h` of cuDNN 9.

use crate::symbols::symbol_table;
use std::ffi::{c_char, c_double, c_int, c_void};

/// `cudnnStatus_t`.
pub(super) type CudnnStatus = c_int;
/// `cudnnHandle_t`, `cudnnTensorDescriptor_t`, `cudnnFilterDescriptor_t`, `cudnnConvolutionDescriptor_t`,
/// `cudnnActivationDescriptor_t`, `cudaStream_t`.
pub(super) type CudnnHandle = *mut c_void;

symbol_table! {
    /// The functions of cuDNN that are used here: all are in cuDNN 9.0.
    pub(super) functions of pub struct CudnnApi {
        error_string = c"cudnnGetErrorString": fn(CudnnStatus) -> *const c_char;
        create = c"cudnnCreate": fn(*mut CudnnHandle) -> CudnnStatus;
        destroy = c"cudnnDestroy": fn(CudnnHandle) -> CudnnStatus;
        set_stream = c"cudnnSetStream": fn(CudnnHandle, CudnnHandle) -> CudnnStatus;
        tensor_create = c"cudnnCreateTensorDescriptor": fn(*mut CudnnHandle) -> CudnnStatus;
        tensor_destroy = c"cudnnDestroyTensorDescriptor": fn(CudnnHandle) -> CudnnStatus;
        // Type; images, channels, rows and pixels; strides of these.
        tensor_set = c"cudnnSetTensor4dDescriptorEx": fn(
            CudnnHandle, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int
        ) -> CudnnStatus;
        filter_create = c"cudnnCreateFilterDescriptor": fn(*mut CudnnHandle) -> CudnnStatus;
        filter_destroy = c"cudnnDestroyFilterDescriptor": fn(CudnnHandle) -> CudnnStatus;
        // Type and format; maps, channels, rows and columns.
        filter_set = c"cudnnSetFilter4dDescriptor": fn(CudnnHandle, c_int, c_int, c_int, c_int, c_int, c_int) -> CudnnStatus;
        window_create = c"cudnnCreateConvolutionDescriptor": fn(*mut CudnnHandle) -> CudnnStatus;
        window_destroy = c"cudnnDestroyConvolutionDescriptor": fn(CudnnHandle) -> CudnnStatus;
        // Padding, strides and dilations, each of rows and of columns; mode and type of sums.
        window_set = c"cudnnSetConvolution2dDescriptor": fn(
            CudnnHandle, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int
        ) -> CudnnStatus;
        window_set_groups = c"cudnnSetConvolutionGroupCount": fn(CudnnHandle, c_int) -> CudnnStatus;
        window_set_math = c"cudnnSetConvolutionMathType": fn(CudnnHandle, c_int) -> CudnnStatus;
        activation_create = c"cudnnCreateActivationDescriptor": fn(*mut CudnnHandle) -> CudnnStatus;
        activation_destroy = c"cudnnDestroyActivationDescriptor": fn(CudnnHandle) -> CudnnStatus;
        activation_set = c"cudnnSetActivationDescriptor": fn(CudnnHandle, c_int, c_int, c_double) -> CudnnStatus;
        // CudnnHandle; input, filter, window and result; how many are wanted, how many they are, and they.
        algorithms = c"cudnnGetConvolutionForwardAlgorithm_v7": fn(
            CudnnHandle, CudnnHandle, CudnnHandle, CudnnHandle, CudnnHandle, c_int, *mut c_int, *mut Proposal
        ) -> CudnnStatus;
        // CudnnHandle; input, filter, window and result; algorithm and bytes.
        workspace = c"cudnnGetConvolutionForwardWorkspaceSize": fn(
            CudnnHandle, CudnnHandle, CudnnHandle, CudnnHandle, CudnnHandle, c_int, *mut usize
        ) -> CudnnStatus;
        // CudnnHandle; alpha, input and filter; window, algorithm, workspace and its size; beta and result.
        convolve = c"cudnnConvolutionForward": fn(
            CudnnHandle, *const c_void, CudnnHandle, *const c_void, CudnnHandle, *const c_void, CudnnHandle, c_int, *mut c_void, usize,
            *const c_void, CudnnHandle, *mut c_void
        ) -> CudnnStatus;
        // The same, with a scale and the addend, the bias, and the activation.
        convolve_and_more = c"cudnnConvolutionBiasActivationForward": fn(
            CudnnHandle, *const c_void, CudnnHandle, *const c_void, CudnnHandle, *const c_void, CudnnHandle, c_int, *mut c_void, usize,
            *const c_void, CudnnHandle, *const c_void, CudnnHandle, *const c_void, CudnnHandle, CudnnHandle, *mut c_void
        ) -> CudnnStatus;
    }
}

/// `cudnnConvolutionFwdAlgoPerf_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Proposal {
    pub(super) algorithm: c_int,
    pub(super) status: CudnnStatus,
    pub(super) milliseconds: f32,
    pub(super) workspace_bytes: usize,
    pub(super) determinism: c_int,
    pub(super) math: c_int,
    pub(super) reserved: [c_int; 3],
}

/// `CUDNN_STATUS_SUCCESS`.
pub(super) const SUCCESS: CudnnStatus = 0;
/// `CUDNN_STATUS_NOT_SUPPORTED`.
pub(super) const NOT_SUPPORTED: CudnnStatus = 3000;

/// Values of `cudnnDataType_t`.
pub(super) mod data_type {
    pub(crate) const FLOAT: i32 = 0;
    pub(crate) const HALF: i32 = 2;
    pub(crate) const BFLOAT16: i32 = 9;
}

/// `CUDNN_TENSOR_NHWC` of `cudnnTensorFormat_t`.
pub(super) const CHANNELS_LAST: i32 = 1;

/// `CUDNN_CROSS_CORRELATION` of `cudnnConvolutionMode_t`: windows are not turned round.
pub(super) const CROSS_CORRELATION: i32 = 1;

/// Values of `cudnnMathType_t`.
pub(super) mod math {
    pub(crate) const TENSOR_OP: i32 = 1;
    pub(crate) const FMA: i32 = 3;
}

/// Values of `cudnnConvolutionFwdAlgo_t` that add products up, and nothing else: others transform the factors first, and
/// have other errors.
pub(super) mod algorithm {
    pub(crate) const IMPLICIT_GEMM: i32 = 0;
    pub(crate) const IMPLICIT_PRECOMP_GEMM: i32 = 1;
    pub(crate) const GEMM: i32 = 2;
    pub(crate) const DIRECT: i32 = 3;
    pub(crate) const SUMS: [i32; 4] = [IMPLICIT_GEMM, IMPLICIT_PRECOMP_GEMM, GEMM, DIRECT];
}

/// Values of `cudnnActivationMode_t`.
pub(super) mod activation {
    pub(crate) const RELU: i32 = 1;
    pub(crate) const IDENTITY: i32 = 5;
}

/// `CUDNN_NOT_PROPAGATE_NAN` of `cudnnNanPropagation_t`: convolutions support no other.
pub(super) const NOT_PROPAGATE_NAN: i32 = 0;

/// `CUDNN_DETERMINISTIC` of `cudnnDeterminism_t`.
pub(super) const DETERMINISTIC: i32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// Sizes that a C compiler gives for `cudnn.h` of cuDNN 9 on 64-bit Linux.
    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!(size_of::<Proposal>(), 48);
        assert_eq!(offset_of!(Proposal, workspace_bytes), 16);
        assert_eq!(offset_of!(Proposal, determinism), 24);
    }
}
