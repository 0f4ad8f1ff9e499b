//! Calls of vendor libraries beside kernels.
//!
//! A call is another way to run a kernel that the project makes itself: both stand in the executable, and the call is made
//! where the library is there and takes it. What is offered is what is measured: see `tune`.

use crate::backend::Backend;
use crate::compile::is_tuned;
use crate::implement::KernelDesign;
use crate::manifest::CallInfo;
use crate::{Library, Options};
use orch_compute::BlockProgram;
use orch_compute::expr::BufferId;
use orch_ir::DType;
use orch_runtime::cuda::{
    Computation, Convolution, Element, Matrix, MatrixOrder, MatrixProduct, Pixels, Sliding, Vector,
};
use orch_template::gpu::contraction;

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

/// The kernel among these, which are of one block program, that a call of a library can stand beside, with the call; the
/// first one that is passed what the call needs.
pub fn beside(
    kernels: &[KernelDesign],
    block: &BlockProgram,
    backend: &dyn Backend,
    (library, release): &(Library, String),
) -> Option<KernelDesign> {
    let (computation, bindings) = backend.computation(*library, block)?;
    let kernel = kernels.iter().find(|kernel| kernel.design.kernel.bindings == bindings)?;
    let call = Some(KernelCall { release: release.clone(), computation, own_us: None });
    Some(KernelDesign { call, ..kernel.clone() })
}

/// What an executable says of a call.
pub fn call_info(call: &KernelCall) -> CallInfo {
    let KernelCall { release, computation, own_us } = call.clone();
    CallInfo { release, computation, own_us }
}

/// Why the libraries that were asked for have no effect.
pub fn notes(backend: &dyn Backend, options: &Options) -> Vec<String> {
    if options.libraries.is_empty() {
        return Vec::new();
    }
    if !is_tuned(backend, options) {
        return vec![
            "libraries are called where measuring finds them faster, and nothing was measured: tune for this machine's GPU \
             (--tune --target cuda), or plan by the times of another one (--records)"
                .to_owned(),
        ];
    }
    // Records tell of calls without any library here.
    if options.records.is_some() {
        return Vec::new();
    }
    let mut reasons: Vec<String> =
        options.libraries.iter().filter_map(|&library| backend.library(library).err()).collect();
    reasons.dedup();
    reasons
}

/// A product as the runtime is told of it.
pub fn product(product: &contraction::MatrixProductForm) -> Option<MatrixProduct> {
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
        factors: element(product.operands)?,
        stored: element(product.stored)?,
        is_tf32: product.is_tf32,
        a: matrix(&product.a),
        b: matrix(&product.b),
        result: matrix(&product.result),
        bias: product.bias.map(vector),
        addend: product.addend.as_ref().map(matrix),
    })
}

/// A convolution as the runtime is told of it.
pub fn convolution(convolution: &contraction::ConvolutionForm) -> Option<Convolution> {
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
