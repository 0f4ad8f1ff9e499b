//! Calls of vendor libraries beside kernels.
//!
//! A call is another implementation of a kernel that the project generates itself: both stand in the executable, and the call
//! is made where the library can be loaded and supports it. Only calls that were measured to be faster are taken: see
//! `tune::timer`.

use super::kernel::{KernelCall, KernelDesign};
use crate::Library;
use crate::manifest::CallInfo;
use orch_compute::BlockProgram;
use orch_compute::expr::BufferId;
use orch_ir::DType;
use orch_runtime::cuda::{
    Computation, Convolution, Element, Matrix, MatrixOrder, MatrixProduct, Pixels, Sliding, Vector,
};
use orch_template::gpu::contraction;
use orch_thread::OperandPrecision;
use orch_thread::kernel::Binding;

/// The first of these kernels, which are of one block program, whose arguments are those of a call of the library, with the
/// call of this release; `None` if the library does not compute it. `precision` is the target's
/// [`library_precision`](super::backend::TargetInfo::library_precision).
pub fn with_call(
    kernels: &[KernelDesign],
    block: &BlockProgram,
    precision: Option<OperandPrecision>,
    (library, release): &(Library, String),
) -> Option<KernelDesign> {
    let (computation, bindings) = computation(*library, block, precision?)?;
    let kernel = kernels.iter().find(|kernel| kernel.design.kernel.bindings == bindings)?;
    let call = Some(KernelCall { release: release.clone(), computation, own_us: None });
    Some(KernelDesign { call, ..kernel.clone() })
}

/// What the manifest says of a call.
pub fn call_info(call: &KernelCall) -> CallInfo {
    let KernelCall { release, computation, own_us } = call.clone();
    CallInfo { release, computation, own_us }
}

/// A kernel as what a library computes from these arguments; `None` if it does not.
fn computation(
    library: Library,
    block: &BlockProgram,
    precision: OperandPrecision,
) -> Option<(Computation, Vec<Binding>)> {
    match library {
        Library::CublasLt => {
            let found = contraction::MatrixProductForm::of(block, precision)?;
            Some((Computation::Product(product(&found)?), found.bindings))
        }
        Library::Cudnn => {
            let found = contraction::ConvolutionForm::of(block, precision)?;
            Some((Computation::Convolution(convolution(&found)?), found.bindings))
        }
    }
}

/// A matrix product in the runtime's terms; `None` if its element types are none of the library.
fn product(product: &contraction::MatrixProductForm) -> Option<MatrixProduct> {
    let matrix = |matrix: &contraction::StridedMatrix| Matrix {
        argument: matrix.buffer.index(),
        offset: matrix.offset,
        order: match matrix.order {
            contraction::StorageOrder::RowMajor => MatrixOrder::Rows,
            contraction::StorageOrder::ColumnMajor => MatrixOrder::Columns,
        },
        lead: matrix.lead,
        batch: matrix.batch,
    };
    let extents = product.extents;
    Some(MatrixProduct {
        batch: extents.batch,
        m: extents.m,
        n: extents.n,
        k: extents.k,
        operands: element(product.operands)?,
        stored: element(product.stored)?,
        is_tf32: product.is_tf32,
        a: matrix(&product.a),
        b: matrix(&product.b),
        result: matrix(&product.result),
        bias: product.bias.map(vector),
        addend: product.addend.as_ref().map(matrix),
    })
}

/// A convolution in the runtime's terms; `None` if its element type is none of the library.
fn convolution(convolution: &contraction::ConvolutionForm) -> Option<Convolution> {
    let sliding = |dim: contraction::SpatialDim| Sliding {
        input: dim.input,
        result: dim.output,
        window: dim.kernel,
        stride: dim.stride,
        dilation: dim.dilation,
        padding: dim.padding,
    };
    let pixels = |image: contraction::StridedImage| Pixels {
        argument: image.buffer.index(),
        offset: image.offset,
        image: image.image,
        row: image.row,
        pixel: image.pixel,
    };
    Some(Convolution {
        element: element(convolution.dtype)?,
        is_tf32: convolution.is_tf32,
        images: convolution.images,
        channels: convolution.in_channels,
        maps: convolution.out_channels,
        vertical: sliding(convolution.height),
        horizontal: sliding(convolution.width),
        input: pixels(convolution.input),
        filter: vector(convolution.filter),
        result: pixels(convolution.result),
        bias: convolution.bias.map(vector),
        addend: convolution.addend.map(pixels),
        is_rectified: convolution.has_relu,
    })
}

fn element(dtype: DType) -> Option<Element> {
    match dtype {
        DType::F32 => Some(Element::F32),
        DType::F16 => Some(Element::F16),
        DType::BF16 => Some(Element::Bf16),
        _ => None,
    }
}

fn vector((buffer, offset): (BufferId, usize)) -> Vector {
    Vector { argument: buffer.index(), offset }
}
