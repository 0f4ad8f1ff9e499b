//! One product, as a call that can be made again and again.
//!
//! The library's matrices are column by column. A result whose rows are contiguous is therefore computed transposed: its
//! `A` is our operand B and its `B` our operand A, and the bias, one element for each of its rows, is that of our columns.

use super::CublasLt;
use super::sys::{self, Algorithm, CublasLtStatus, HeuristicResult};
use super::sys::{compute, data_type, desc_attribute, layout_attribute, operation, preference_attribute};
use crate::cuda::driver::device::Context;
use crate::cuda::driver::error::CudaError;
use crate::cuda::driver::stream::Stream;
use crate::cuda::vendor::object::{Destroy, Object};
use crate::cuda::vendor::product::{Element, Matrix, MatrixOrder, MatrixProduct};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

/// The library made ready for a device.
pub(in crate::cuda) struct CublasLtSession {
    library: Arc<CublasLt>,
    context: Context,
    raw: sys::CublasLtHandle,
}

// SAFETY: a session may be used from any thread, and from several at once.
unsafe impl Send for CublasLtSession {}
// SAFETY: as above.
unsafe impl Sync for CublasLtSession {}

/// A product of matrices at fixed addresses.
pub(in crate::cuda) struct PreparedMatmul {
    session: Arc<CublasLtSession>,
    description: Described,
    a: PlacedMatrix,
    b: PlacedMatrix,
    /// What is added; `None` adds nothing.
    addend: Option<PlacedMatrix>,
    result: PlacedMatrix,
    algorithm: Algorithm,
    workspace_bytes: usize,
}

/// A matrix at an address.
struct PlacedMatrix {
    address: u64,
    layout: Described,
}

/// A description of something.
struct Described {
    object: Object,
    kind: Kind,
}

/// What is made.
#[derive(Clone, Copy)]
enum Kind {
    Description,
    Layout,
    Preference,
}

type Set = unsafe extern "C" fn(sys::CublasLtHandle, c_int, *const c_void, usize) -> CublasLtStatus;

/// Workspace that an algorithm may use beside its matrices: what NVIDIA recommends for compute capability 9.0.
const MAX_WORKSPACE_BYTES: u64 = 32 << 20;

/// The largest alignment that algorithms require, and that of an allocation.
const MAX_ALIGNMENT_BITS: u32 = 8;

impl CublasLtSession {
    /// Makes the library ready.
    ///
    /// # Errors
    /// If it does not work with this device or driver.
    pub fn new(library: &Arc<CublasLt>, context: &Context) -> Result<Self, CudaError> {
        context.enter()?;
        let mut raw: sys::CublasLtHandle = null_mut();
        // SAFETY: the pointer is to a handle, and the context is current.
        let status = unsafe { (library.api.create)(&raw mut raw) };
        library.check(status, || "starting".to_owned())?;
        Ok(Self { library: Arc::clone(library), context: context.clone(), raw })
    }

    /// The library.
    pub fn library(&self) -> &Arc<CublasLt> {
        &self.library
    }
}

impl Drop for CublasLtSession {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not used after this: products keep their session.
        self.context.release(|_| unsafe { (self.library.api.destroy)(self.raw) });
    }
}

impl PreparedMatmul {
    /// Describes a product that has no [violations](MatrixProduct::violations) of tensors at these addresses, and chooses
    /// the algorithm that the library ranks as fastest.
    ///
    /// # Errors
    /// If the library rejects it.
    pub fn new(
        session: &Arc<CublasLtSession>,
        product: &MatrixProduct,
        addresses: &[u64],
    ) -> Result<Self, CudaError> {
        session.context.enter()?;
        let library = &session.library;
        let MatrixProduct { batch, m, n, k, .. } = *product;
        let place = |argument: usize, offset: usize, element: Element| {
            addresses[argument] + (offset * element.size_bytes()) as u64
        };
        let placed = |matrix: &Matrix, extents, element| -> Result<PlacedMatrix, CudaError> {
            let layout = layout(library, matrix, extents, element, batch)?;
            Ok(PlacedMatrix { address: place(matrix.argument, matrix.offset, element), layout })
        };
        let (a, b) =
            (placed(&product.b, (k, n), product.operands)?, placed(&product.a, (m, k), product.operands)?);
        let result = placed(&product.result, (m, n), product.stored)?;
        let addend =
            product.addend.as_ref().map(|addend| placed(addend, (m, n), product.stored)).transpose()?;
        let description = describe(library, product)?;
        if let Some(bias) = product.bias {
            let address = place(bias.argument, bias.offset, product.stored);
            description.set(library, desc_attribute::EPILOGUE, &sys::EPILOGUE_BIAS.to_ne_bytes())?;
            description.set(library, desc_attribute::BIAS_POINTER, &address.to_ne_bytes())?;
        }
        let mut product = Self {
            session: Arc::clone(session),
            description,
            a,
            b,
            addend,
            result,
            algorithm: Algorithm::default(),
            workspace_bytes: 0,
        };
        let chosen = product.choose()?;
        (product.algorithm, product.workspace_bytes) = (chosen.algorithm, chosen.workspace_bytes);
        Ok(product)
    }

    /// Bytes that the call needs beside its matrices.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// The library.
    pub fn library(&self) -> &CublasLt {
        &self.session.library
    }

    /// What stands for the addend where there is none: the result, times zero, is not read.
    fn addend(&self) -> &PlacedMatrix {
        self.addend.as_ref().unwrap_or(&self.result)
    }

    /// The first algorithm that the library proposes.
    fn choose(&self) -> Result<HeuristicResult, CudaError> {
        let library = &*self.session.library;
        let preference = Described::new(library, Kind::Preference, |made| {
            // SAFETY: the pointer is to a handle.
            unsafe { (library.api.preference_create)(made) }
        })?;
        let set = |attribute, value: &[u8]| preference.set(library, attribute, value);
        set(preference_attribute::MAX_WORKSPACE_BYTES, &MAX_WORKSPACE_BYTES.to_ne_bytes())?;
        set(preference_attribute::REDUCTION_SCHEME_MASK, &sys::REDUCTION_IN_COMPUTE_TYPE.to_ne_bytes())?;
        let addend = self.addend();
        let addresses = [self.a.address, self.b.address, addend.address, self.result.address];
        for (attribute, address) in preference_attribute::MIN_ALIGNMENT_BYTES.into_iter().zip(addresses) {
            let alignment = 1u32 << address.trailing_zeros().min(MAX_ALIGNMENT_BITS);
            set(attribute, &alignment.to_ne_bytes())?;
        }
        let (mut chosen, mut count) = (HeuristicResult::default(), 0);
        let layouts = [&self.a, &self.b, addend, &self.result].map(|placed| placed.layout.raw());
        // SAFETY: all objects are alive, there is room for the one result that is requested, and the context is current.
        let status = unsafe {
            (library.api.heuristic)(
                self.session.raw,
                self.description.raw(),
                layouts[0],
                layouts[1],
                layouts[2],
                layouts[3],
                preference.raw(),
                1,
                &raw mut chosen,
                &raw mut count,
            )
        };
        let doing = || "choosing an algorithm".to_owned();
        library.check(status, doing)?;
        let state = if count == 0 { sys::NOT_SUPPORTED } else { chosen.state };
        library.check(state, doing)?;
        Ok(chosen)
    }

    /// Enqueues the product.
    ///
    /// # Errors
    /// If the library rejects it, or the device has failed.
    ///
    /// # Safety
    /// The tensors are at the addresses that this was made for, and there are [`Self::workspace_bytes`] at `workspace`,
    /// aligned to 256 bytes, which no work uses that may run at the same time.
    pub unsafe fn enqueue(&self, stream: &Stream, workspace: u64) -> Result<(), CudaError> {
        static ONE: f32 = 1.0;
        static ZERO: f32 = 0.0;
        self.session.context.enter()?;
        let pointer = |address: u64| address as usize as *mut c_void;
        let (a, b, addend, result) = (&self.a, &self.b, self.addend(), &self.result);
        let share: *const f32 = if self.addend.is_some() { &raw const ONE } else { &raw const ZERO };
        let library = &self.session.library;
        // SAFETY: all objects are alive; `alpha` and `beta` are in host memory and read before the call returns; the rest is the caller's
        // promise.
        let status = unsafe {
            (library.api.matmul)(
                self.session.raw,
                self.description.raw(),
                (&raw const ONE).cast(),
                pointer(a.address),
                a.layout.raw(),
                pointer(b.address),
                b.layout.raw(),
                share.cast(),
                pointer(addend.address),
                addend.layout.raw(),
                pointer(result.address),
                result.layout.raw(),
                &raw const self.algorithm,
                pointer(workspace),
                self.workspace_bytes,
                stream.handle(),
            )
        };
        library.check(status, || "enqueueing a product".to_owned())
    }
}

/// The compute type, and which operands are transposed.
fn describe(library: &CublasLt, product: &MatrixProduct) -> Result<Described, CudaError> {
    let compute = if product.is_tf32 { compute::F32_FAST_TF32 } else { compute::F32 };
    let description = Described::new(library, Kind::Description, |made| {
        // SAFETY: the pointer is to a handle.
        unsafe { (library.api.desc_create)(made, compute, data_type::R_32F) }
    })?;
    // The library's A is our B: `[n, k]`, column-major unless our B `[k, n]` is column-major, which it reads as transposed.
    // Its B is our A: transposed if our A `[m, k]` is column-major.
    let transposed = |is_transposed| if is_transposed { operation::TRANSPOSE } else { operation::NONE };
    let a = transposed(product.b.order == MatrixOrder::Columns);
    let b = transposed(product.a.order == MatrixOrder::Columns);
    description.set(library, desc_attribute::TRANSPOSE_A, &a.to_ne_bytes())?;
    description.set(library, desc_attribute::TRANSPOSE_B, &b.to_ne_bytes())?;
    Ok(description)
}

/// A matrix as it lies in memory, line by line: the library's columns.
fn layout(
    library: &CublasLt,
    matrix: &Matrix,
    extents: (usize, usize),
    element: Element,
    batch: usize,
) -> Result<Described, CudaError> {
    let (lines, line) = matrix.lines(extents);
    let data_type = match element {
        Element::F32 => data_type::R_32F,
        Element::F16 => data_type::R_16F,
        Element::Bf16 => data_type::R_16BF,
    };
    let layout = Described::new(library, Kind::Layout, |made| {
        let create = library.api.layout_create;
        // SAFETY: the pointer is to a handle.
        unsafe { create(made, data_type, line as u64, lines as u64, matrix.lead as i64) }
    })?;
    if batch > 1 {
        let (count, stride) = (batch as i32, matrix.batch as i64);
        layout.set(library, layout_attribute::BATCH_COUNT, &count.to_ne_bytes())?;
        layout.set(library, layout_attribute::STRIDED_BATCH_OFFSET, &stride.to_ne_bytes())?;
    }
    Ok(layout)
}

impl Kind {
    fn destroy(self, library: &CublasLt) -> Destroy {
        match self {
            Kind::Description => library.api.desc_destroy,
            Kind::Layout => library.api.layout_destroy,
            Kind::Preference => library.api.preference_destroy,
        }
    }

    fn set(self, library: &CublasLt) -> Set {
        match self {
            Kind::Description => library.api.desc_set,
            Kind::Layout => library.api.layout_set,
            Kind::Preference => library.api.preference_set,
        }
    }

    fn what(self) -> &'static str {
        match self {
            Kind::Description => "a product",
            Kind::Layout => "a matrix",
            Kind::Preference => "what is preferred",
        }
    }
}

impl Described {
    /// What `create` makes, which is of this kind.
    fn new(
        library: &CublasLt,
        kind: Kind,
        create: impl FnOnce(*mut sys::CublasLtHandle) -> CublasLtStatus,
    ) -> Result<Self, CudaError> {
        let create = |made| library.check(create(made), || format!("describing {}", kind.what()));
        // SAFETY: it is of the kind that the function destroys, which is plain data.
        let object = unsafe { Object::new(kind.destroy(library), create)? };
        Ok(Self { object, kind })
    }

    /// As the library knows it.
    fn raw(&self) -> sys::CublasLtHandle {
        self.object.raw()
    }

    /// Sets an attribute to the bytes of a value of its type.
    fn set(&self, library: &CublasLt, attribute: c_int, value: &[u8]) -> Result<(), CudaError> {
        let set = self.kind.set(library);
        // SAFETY: the object is alive and of the kind that the function takes, and the value is as long as stated.
        let status = unsafe { set(self.raw(), attribute, value.as_ptr().cast(), value.len()) };
        library.check(status, || format!("describing {}", self.kind.what()))
    }
}
