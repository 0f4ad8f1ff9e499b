//! Calls of vendor libraries beside kernels.
//!
//! A call is another way to run a kernel that the project makes itself: both stand in the executable, and the call is made
//! where the library is there and takes it. What is offered is what is measured: see `tune`.

use crate::Options;
use crate::backend::Backend;
use crate::compile::is_tuned;
use crate::implement::KernelDesign;
use crate::manifest::CallInfo;
use crate::options::Library;
use orch_ir::DType;
use orch_runtime::cuda::{Element, Matrix, MatrixOrder, MatrixProduct, Vector};
use orch_tile::BlockProgram;
use orch_tile::templates::gpu::contraction;

/// A library call that computes what a kernel computes, from the same arguments.
#[derive(Clone, Debug)]
pub struct KernelCall {
    /// The library and its release, as measured.
    pub release: String,
    /// What it computes.
    pub product: MatrixProduct,
    /// Microseconds that the kernel took where the call took less; `None` while it is timed.
    pub own_us: Option<f64>,
}

/// The kernel among these, which are of one block program, that a library call can stand beside, with the call; the first
/// one that is passed what the call needs.
pub fn beside(
    kernels: &[KernelDesign],
    block: &BlockProgram,
    backend: &dyn Backend,
    release: &str,
) -> Option<KernelDesign> {
    let product = backend.product(block)?;
    let kernel = kernels.iter().find(|kernel| kernel.design.kernel.bindings == product.bindings)?;
    let (release, product) = (release.to_owned(), described(&product)?);
    let call = Some(KernelCall { release, product, own_us: None });
    Some(KernelDesign { call, ..kernel.clone() })
}

/// What an executable says of a call.
pub fn call_info(call: &KernelCall) -> CallInfo {
    let KernelCall { release, product, own_us } = call.clone();
    CallInfo { library: Library::CublasLt, release, product, own_us }
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
    let reason = options.records.is_none().then(|| backend.library().err()).flatten();
    reason.into_iter().collect()
}

/// A product as the runtime is told of it.
fn described(product: &contraction::MatrixProduct) -> Option<MatrixProduct> {
    let element = |dtype| match dtype {
        DType::F32 => Some(Element::F32),
        DType::F16 => Some(Element::F16),
        DType::BF16 => Some(Element::Bf16),
        _ => None,
    };
    let matrix = |matrix: &contraction::Matrix| Matrix {
        argument: matrix.buffer.index(),
        offset: matrix.offset,
        order: match matrix.order {
            contraction::MatrixOrder::Rows => MatrixOrder::Rows,
            contraction::MatrixOrder::Columns => MatrixOrder::Columns,
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
        factors: element(product.factors)?,
        stored: element(product.stored)?,
        is_tf32: product.is_tf32,
        a: matrix(&product.a),
        b: matrix(&product.b),
        result: matrix(&product.result),
        bias: product.bias.map(|(buffer, offset)| Vector { argument: buffer.index(), offset }),
        addend: product.addend.as_ref().map(matrix),
    })
}
