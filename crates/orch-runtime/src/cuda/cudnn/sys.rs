//! cuDNN's C interface, as far as it is used here: names, types and constants of `cudnn_graph.h`, `cudnn_ops.h` and
//! `cudnn_cnn.h` of cuDNN 9.

use crate::symbols::symbol_table;
use std::ffi::{c_char, c_double, c_int, c_void};

/// `cudnnStatus_t`.
pub(super) type Status = c_int;
/// `cudnnHandle_t`, `cudnnTensorDescriptor_t`, `cudnnFilterDescriptor_t`, `cudnnConvolutionDescriptor_t`,
/// `cudnnActivationDescriptor_t`, `cudaStream_t`.
pub(super) type Handle = *mut c_void;

symbol_table! {
    /// The functions of cuDNN that are used here: all are in cuDNN 9.0.
    pub(super) struct Api {
        error_string = c"cudnnGetErrorString": fn(Status) -> *const c_char;
        create = c"cudnnCreate": fn(*mut Handle) -> Status;
        destroy = c"cudnnDestroy": fn(Handle) -> Status;
        set_stream = c"cudnnSetStream": fn(Handle, Handle) -> Status;
        tensor_create = c"cudnnCreateTensorDescriptor": fn(*mut Handle) -> Status;
        tensor_destroy = c"cudnnDestroyTensorDescriptor": fn(Handle) -> Status;
        // Type; images, channels, rows and pixels; strides of these.
        tensor_set = c"cudnnSetTensor4dDescriptorEx": fn(
            Handle, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int
        ) -> Status;
        filter_create = c"cudnnCreateFilterDescriptor": fn(*mut Handle) -> Status;
        filter_destroy = c"cudnnDestroyFilterDescriptor": fn(Handle) -> Status;
        // Type and format; maps, channels, rows and columns.
        filter_set = c"cudnnSetFilter4dDescriptor": fn(Handle, c_int, c_int, c_int, c_int, c_int, c_int) -> Status;
        window_create = c"cudnnCreateConvolutionDescriptor": fn(*mut Handle) -> Status;
        window_destroy = c"cudnnDestroyConvolutionDescriptor": fn(Handle) -> Status;
        // Padding, strides and dilations, each of rows and of columns; mode and type of sums.
        window_set = c"cudnnSetConvolution2dDescriptor": fn(
            Handle, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int
        ) -> Status;
        window_set_groups = c"cudnnSetConvolutionGroupCount": fn(Handle, c_int) -> Status;
        window_set_math = c"cudnnSetConvolutionMathType": fn(Handle, c_int) -> Status;
        activation_create = c"cudnnCreateActivationDescriptor": fn(*mut Handle) -> Status;
        activation_destroy = c"cudnnDestroyActivationDescriptor": fn(Handle) -> Status;
        activation_set = c"cudnnSetActivationDescriptor": fn(Handle, c_int, c_int, c_double) -> Status;
        // Handle; input, filter, window and result; how many are wanted, how many they are, and they.
        algorithms = c"cudnnGetConvolutionForwardAlgorithm_v7": fn(
            Handle, Handle, Handle, Handle, Handle, c_int, *mut c_int, *mut Proposal
        ) -> Status;
        // Handle; input, filter, window and result; algorithm and bytes.
        workspace = c"cudnnGetConvolutionForwardWorkspaceSize": fn(
            Handle, Handle, Handle, Handle, Handle, c_int, *mut usize
        ) -> Status;
        // Handle; factor, input and filter; window, algorithm, workspace and its size; factor and result.
        convolve = c"cudnnConvolutionForward": fn(
            Handle, *const c_void, Handle, *const c_void, Handle, *const c_void, Handle, c_int, *mut c_void, usize,
            *const c_void, Handle, *mut c_void
        ) -> Status;
        // The same, with a factor and the addend, the bias, and what is done at last.
        convolve_and_more = c"cudnnConvolutionBiasActivationForward": fn(
            Handle, *const c_void, Handle, *const c_void, Handle, *const c_void, Handle, c_int, *mut c_void, usize,
            *const c_void, Handle, *const c_void, Handle, *const c_void, Handle, Handle, *mut c_void
        ) -> Status;
    }
}

/// `cudnnConvolutionFwdAlgoPerf_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Proposal {
    pub(super) algorithm: c_int,
    pub(super) status: Status,
    pub(super) milliseconds: f32,
    pub(super) workspace_bytes: usize,
    pub(super) determinism: c_int,
    pub(super) math: c_int,
    pub(super) reserved: [c_int; 3],
}

/// `CUDNN_STATUS_SUCCESS`.
pub(super) const SUCCESS: Status = 0;
/// `CUDNN_STATUS_NOT_SUPPORTED`.
pub(super) const NOT_SUPPORTED: Status = 3000;

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

/// `CUDNN_NOT_PROPAGATE_NAN` of `cudnnNanPropagation_t`: convolutions take no other.
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
