//! cuBLASLt's C interface, as far as it is used here: names, types and constants of `cublasLt.h`, `cublas_api.h` and
//! `library_types.h` of CUDA 13.

use crate::symbols::symbol_table;
use std::ffi::{c_int, c_void};

/// `cublasStatus_t`.
pub(super) type CublasLtStatus = c_int;
/// `cublasLtHandle_t`, `cublasLtMatmulDesc_t`, `cublasLtMatrixLayout_t`, `cublasLtMatmulPreference_t`, `cudaStream_t`.
pub(super) type CublasLtHandle = *mut c_void;

symbol_table! {
    /// The functions of cuBLASLt that are used here: all are in CUDA 12.0.
    pub(super) functions of pub struct CublasLtApi {
        create = c"cublasLtCreate": fn(*mut CublasLtHandle) -> CublasLtStatus;
        destroy = c"cublasLtDestroy": fn(CublasLtHandle) -> CublasLtStatus;
        desc_create = c"cublasLtMatmulDescCreate": fn(*mut CublasLtHandle, c_int, c_int) -> CublasLtStatus;
        desc_destroy = c"cublasLtMatmulDescDestroy": fn(CublasLtHandle) -> CublasLtStatus;
        desc_set = c"cublasLtMatmulDescSetAttribute": fn(CublasLtHandle, c_int, *const c_void, usize) -> CublasLtStatus;
        // Type, rows, columns, and elements between columns.
        layout_create = c"cublasLtMatrixLayoutCreate": fn(*mut CublasLtHandle, c_int, u64, u64, i64) -> CublasLtStatus;
        layout_destroy = c"cublasLtMatrixLayoutDestroy": fn(CublasLtHandle) -> CublasLtStatus;
        layout_set = c"cublasLtMatrixLayoutSetAttribute": fn(CublasLtHandle, c_int, *const c_void, usize) -> CublasLtStatus;
        preference_create = c"cublasLtMatmulPreferenceCreate": fn(*mut CublasLtHandle) -> CublasLtStatus;
        preference_destroy = c"cublasLtMatmulPreferenceDestroy": fn(CublasLtHandle) -> CublasLtStatus;
        preference_set = c"cublasLtMatmulPreferenceSetAttribute": fn(CublasLtHandle, c_int, *const c_void, usize) -> CublasLtStatus;
        // CublasLtHandle, description, layouts of A, B, C and D, preference; how many are wanted, they, and how many they are.
        heuristic = c"cublasLtMatmulAlgoGetHeuristic": fn(
            CublasLtHandle, CublasLtHandle, CublasLtHandle, CublasLtHandle, CublasLtHandle, CublasLtHandle, CublasLtHandle, c_int, *mut HeuristicResult, *mut c_int
        ) -> CublasLtStatus;
        // CublasLtHandle, description; alpha, A, B, beta, C and D with their layouts; algorithm, workspace and its size, stream.
        matmul = c"cublasLtMatmul": fn(
            CublasLtHandle, CublasLtHandle, *const c_void, *const c_void, CublasLtHandle, *const c_void, CublasLtHandle, *const c_void, *const c_void, CublasLtHandle,
            *mut c_void, CublasLtHandle, *const Algorithm, *mut c_void, usize, CublasLtHandle
        ) -> CublasLtStatus;
    }
}

/// `cublasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Algorithm(pub(super) [u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct HeuristicResult {
    pub(super) algorithm: Algorithm,
    pub(super) workspace_bytes: usize,
    pub(super) state: CublasLtStatus,
    pub(super) waves: f32,
    pub(super) reserved: [c_int; 4],
}

/// Values of `cublasStatus_t`, with their names.
pub(super) const STATUSES: [(CublasLtStatus, &str); 10] = [
    (SUCCESS, "CUBLAS_STATUS_SUCCESS"),
    (1, "CUBLAS_STATUS_NOT_INITIALIZED"),
    (3, "CUBLAS_STATUS_ALLOC_FAILED"),
    (7, "CUBLAS_STATUS_INVALID_VALUE"),
    (8, "CUBLAS_STATUS_ARCH_MISMATCH"),
    (11, "CUBLAS_STATUS_MAPPING_ERROR"),
    (13, "CUBLAS_STATUS_EXECUTION_FAILED"),
    (14, "CUBLAS_STATUS_INTERNAL_ERROR"),
    (NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED"),
    (16, "CUBLAS_STATUS_LICENSE_ERROR"),
];
pub(super) const SUCCESS: CublasLtStatus = 0;
pub(super) const NOT_SUPPORTED: CublasLtStatus = 15;

/// Values of `cudaDataType`.
pub(super) mod data_type {
    pub(crate) const R_32F: i32 = 0;
    pub(crate) const R_16F: i32 = 2;
    pub(crate) const R_16BF: i32 = 14;
}

/// Values of `cublasComputeType_t`.
pub(super) mod compute {
    pub(crate) const F32: i32 = 68;
    pub(crate) const F32_FAST_TF32: i32 = 77;
}

/// Values of `cublasOperation_t`.
pub(super) mod operation {
    pub(crate) const NONE: i32 = 0;
    pub(crate) const TRANSPOSE: i32 = 1;
}

/// Values of `cublasLtMatmulDescAttributes_t`.
pub(super) mod desc_attribute {
    pub(crate) const TRANSPOSE_A: i32 = 3;
    pub(crate) const TRANSPOSE_B: i32 = 4;
    pub(crate) const EPILOGUE: i32 = 7;
    pub(crate) const BIAS_POINTER: i32 = 8;
}

/// `CUBLASLT_EPILOGUE_BIAS`: a vector with an element for each row of D is added.
pub(super) const EPILOGUE_BIAS: u32 = 4;

/// Values of `cublasLtMatrixLayoutAttribute_t`.
pub(super) mod layout_attribute {
    pub(crate) const BATCH_COUNT: i32 = 5;
    pub(crate) const STRIDED_BATCH_OFFSET: i32 = 6;
}

/// Values of `cublasLtMatmulPreferenceAttributes_t`; the alignments are those of A, B, C and D.
pub(super) mod preference_attribute {
    pub(crate) const MAX_WORKSPACE_BYTES: i32 = 1;
    pub(crate) const REDUCTION_SCHEME_MASK: i32 = 3;
    pub(crate) const MIN_ALIGNMENT_BYTES: [i32; 4] = [5, 6, 7, 8];
}

/// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`: sums that are split keep the type in which they are computed. Sums that are
/// not split are allowed by every mask.
pub(super) const REDUCTION_IN_COMPUTE_TYPE: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// Sizes that a C compiler gives for `cublasLt.h` of CUDA 13 on 64-bit Linux.
    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!((size_of::<Algorithm>(), size_of::<HeuristicResult>()), (64, 96));
        assert_eq!(offset_of!(HeuristicResult, workspace_bytes), 64);
        assert_eq!(offset_of!(HeuristicResult, state), 72);
    }
}
