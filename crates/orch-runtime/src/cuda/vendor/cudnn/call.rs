//! One convolution, as a call that can be made again and again.

use super::Cudnn;
use super::sys::{self, CudnnStatus, Proposal, activation, algorithm, data_type, math};
use crate::cuda::driver::device::Context;
use crate::cuda::driver::error::CudaError;
use crate::cuda::driver::stream::Stream;
use crate::cuda::vendor::convolution::{Convolution, Pixels};
use crate::cuda::vendor::object::{Destroy, Object};
use crate::cuda::vendor::product::Element;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

/// The library made ready for a device.
pub(in crate::cuda) struct CudnnSession {
    library: Arc<Cudnn>,
    context: Context,
    raw: sys::CudnnHandle,
    /// Held while the handle is used, which a single thread may do at a time.
    in_use: Mutex<()>,
}

// SAFETY: a handle may be used from any thread.
unsafe impl Send for CudnnSession {}
// SAFETY: each use of the handle holds the mutex.
unsafe impl Sync for CudnnSession {}

/// A convolution of images at fixed addresses.
pub(in crate::cuda) struct PreparedConvolution {
    handle: Arc<CudnnSession>,
    window: Object,
    input: PlacedTensor,
    filter: PlacedTensor,
    result: PlacedTensor,
    /// What is done beyond the sum.
    epilogue: Option<Epilogue>,
    algorithm: c_int,
    workspace_bytes: usize,
}

/// What is added, and what is done at last.
struct Epilogue {
    bias: PlacedTensor,
    addend: Option<PlacedTensor>,
    activation: Object,
}

/// Something at an address.
struct PlacedTensor {
    address: u64,
    description: Object,
}

/// Workspace that an algorithm may use beside its tensors.
const MAX_WORKSPACE_BYTES: usize = 128 << 20;

/// Most algorithms that are requested from the library: it has 8, some of them with several math types.
const MAX_PROPOSALS: usize = 16;

impl CudnnSession {
    /// Makes the library ready.
    ///
    /// # Errors
    /// If it does not work with this device or driver.
    pub fn new(library: &Arc<Cudnn>, context: &Context) -> Result<Self, CudaError> {
        context.enter()?;
        let mut raw: sys::CudnnHandle = null_mut();
        // SAFETY: the pointer is to a handle, and the context is current.
        let status = unsafe { (library.api.create)(&raw mut raw) };
        library.check(status, || "starting".to_owned())?;
        Ok(Self { library: Arc::clone(library), context: context.clone(), raw, in_use: Mutex::new(()) })
    }

    /// The library.
    pub fn library(&self) -> &Arc<Cudnn> {
        &self.library
    }

    /// Uses the handle while no other thread does, with the context current.
    fn with<T>(&self, work: impl FnOnce(sys::CudnnHandle) -> T) -> Result<T, CudaError> {
        self.context.enter()?;
        let _in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(work(self.raw))
    }
}

impl Drop for CudnnSession {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not used after this: convolutions keep their handle.
        self.context.release(|_| unsafe { (self.library.api.destroy)(self.raw) });
    }
}

impl PreparedConvolution {
    /// Describes a convolution that has no [violations](Convolution::violations) of tensors at these addresses, and chooses
    /// the algorithm that the library ranks as fastest.
    ///
    /// # Errors
    /// If the library rejects it.
    pub fn new(
        handle: &Arc<CudnnSession>,
        convolution: &Convolution,
        addresses: &[u64],
    ) -> Result<Self, CudaError> {
        let library = &*handle.library;
        let Convolution { element, images, channels, maps, vertical, horizontal, .. } = *convolution;
        let address =
            |argument: usize, offset: usize| addresses[argument] + (offset * element.size_bytes()) as u64;
        let placed = |pixels: &Pixels, extents: [usize; 4]| -> Result<PlacedTensor, CudaError> {
            let strides = [pixels.image, 1, pixels.row, pixels.pixel];
            let description = tensor(library, element, extents, strides)?;
            Ok(PlacedTensor { address: address(pixels.argument, pixels.offset), description })
        };
        let source = [images, channels, vertical.input, horizontal.input];
        let target = [images, maps, vertical.result, horizontal.result];
        let filter = convolution.filter;
        let filter = PlacedTensor {
            address: address(filter.argument, filter.offset),
            description: weights(library, convolution)?,
        };
        let epilogue = match convolution.bias {
            None => None,
            Some(bias) => Some(Epilogue {
                bias: PlacedTensor {
                    address: address(bias.argument, bias.offset),
                    description: tensor(library, element, [1, maps, 1, 1], [maps, 1, maps, maps])?,
                },
                addend: convolution.addend.as_ref().map(|addend| placed(addend, target)).transpose()?,
                activation: last(library, convolution.is_rectified)?,
            }),
        };
        let mut prepared = Self {
            handle: Arc::clone(handle),
            window: window(library, convolution)?,
            input: placed(&convolution.input, source)?,
            filter,
            result: placed(&convolution.result, target)?,
            epilogue,
            algorithm: algorithm::IMPLICIT_PRECOMP_GEMM,
            workspace_bytes: 0,
        };
        // Without a rectifier what is added goes with one algorithm only.
        let is_fixed = prepared.epilogue.is_some() && !convolution.is_rectified;
        let candidates =
            if is_fixed { vec![algorithm::IMPLICIT_PRECOMP_GEMM] } else { prepared.proposals()? };
        (prepared.algorithm, prepared.workspace_bytes) = prepared.choose(&candidates)?;
        Ok(prepared)
    }

    /// Bytes that the call needs beside its tensors.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// The library.
    pub fn library(&self) -> &Cudnn {
        &self.handle.library
    }

    /// The descriptions by which algorithms are chosen.
    fn described(&self) -> [sys::CudnnHandle; 4] {
        [&self.input.description, &self.filter.description, &self.window, &self.result.description]
            .map(Object::raw)
    }

    /// Algorithms that add products up in the same order each time, in the order of the library's ranking.
    fn proposals(&self) -> Result<Vec<c_int>, CudaError> {
        let library = &*self.handle.library;
        let (mut found, mut count) = ([Proposal::default(); MAX_PROPOSALS], 0);
        let [input, filter, window, result] = self.described();
        let status = self.handle.with(|handle| {
            let (wanted, found) = (MAX_PROPOSALS as c_int, found.as_mut_ptr());
            // SAFETY: all descriptions are alive, there is room for as many as are requested, and the context is current.
            unsafe {
                (library.api.algorithms)(handle, input, filter, window, result, wanted, &raw mut count, found)
            }
        })?;
        library.check(status, || "choosing an algorithm".to_owned())?;
        let count = usize::try_from(count).unwrap_or(0).min(MAX_PROPOSALS);
        let is_wanted = |proposal: &&Proposal| {
            proposal.status == sys::SUCCESS
                && proposal.determinism == sys::DETERMINISTIC
                && algorithm::SUMS.contains(&proposal.algorithm)
        };
        Ok(found[..count].iter().filter(is_wanted).map(|proposal| proposal.algorithm).collect())
    }

    /// The first of these algorithms that the library has for this, and the bytes that it needs.
    fn choose(&self, candidates: &[c_int]) -> Result<(c_int, usize), CudaError> {
        let library = &*self.handle.library;
        let [input, filter, window, result] = self.described();
        let mut declined = sys::NOT_SUPPORTED;
        for &algorithm in candidates {
            let mut bytes = 0;
            let status = self.handle.with(|handle| {
                let size = &raw mut bytes;
                // SAFETY: all descriptions are alive, and the context is current.
                unsafe { (library.api.workspace)(handle, input, filter, window, result, algorithm, size) }
            })?;
            match status {
                sys::SUCCESS if bytes <= MAX_WORKSPACE_BYTES => return Ok((algorithm, bytes)),
                sys::SUCCESS => {}
                status => declined = status,
            }
        }
        Err(library.error(declined, "choosing an algorithm".to_owned()))
    }

    /// Enqueues the convolution.
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
        let pointer = |address: u64| address as usize as *mut c_void;
        let (one, zero) = ((&raw const ONE).cast(), (&raw const ZERO).cast());
        let workspace = if self.workspace_bytes > 0 { pointer(workspace) } else { null_mut() };
        let library = &*self.handle.library;
        let Self { input, filter, result, .. } = self;
        let status = self.handle.with(|handle| {
            // SAFETY: the stream is of the handle's context.
            let status = unsafe { (library.api.set_stream)(handle, stream.handle()) };
            if status != sys::SUCCESS {
                return status;
            }
            match &self.epilogue {
                // SAFETY: all descriptions are alive; `alpha` and `beta` are in host memory and read before the call returns; the rest is
                // the caller's promise.
                None => unsafe {
                    (library.api.convolve)(
                        handle,
                        one,
                        input.description.raw(),
                        pointer(input.address),
                        filter.description.raw(),
                        pointer(filter.address),
                        self.window.raw(),
                        self.algorithm,
                        workspace,
                        self.workspace_bytes,
                        zero,
                        result.description.raw(),
                        pointer(result.address),
                    )
                },
                Some(Epilogue { bias, addend, activation }) => {
                    // What stands for the addend where there is none: the result, times zero, is not read.
                    let share = if addend.is_some() { one } else { zero };
                    let addend = addend.as_ref().unwrap_or(result);
                    // SAFETY: as above.
                    unsafe {
                        (library.api.convolve_and_more)(
                            handle,
                            one,
                            input.description.raw(),
                            pointer(input.address),
                            filter.description.raw(),
                            pointer(filter.address),
                            self.window.raw(),
                            self.algorithm,
                            workspace,
                            self.workspace_bytes,
                            share,
                            addend.description.raw(),
                            pointer(addend.address),
                            bias.description.raw(),
                            pointer(bias.address),
                            activation.raw(),
                            result.description.raw(),
                            pointer(result.address),
                        )
                    }
                }
            }
        })?;
        library.check(status, || "enqueueing a convolution".to_owned())
    }
}

/// An extent or a stride in the type of the library: larger ones are violations.
fn int(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

fn type_of(element: Element) -> c_int {
    match element {
        Element::F32 => data_type::FLOAT,
        Element::F16 => data_type::HALF,
        Element::Bf16 => data_type::BFLOAT16,
    }
}

/// What `create` makes and `set` describes.
fn described(
    library: &Cudnn,
    what: &str,
    (create, destroy): (unsafe extern "C" fn(*mut sys::CudnnHandle) -> CudnnStatus, Destroy),
    set: impl FnOnce(sys::CudnnHandle) -> CudnnStatus,
) -> Result<Object, CudaError> {
    let doing = || format!("describing {what}");
    // SAFETY: the pointer is to a handle, and both functions are of one kind of description, which is plain data.
    let object = unsafe { Object::new(destroy, |made| library.check(create(made), doing))? };
    library.check(set(object.raw()), doing)?;
    Ok(object)
}

/// Images, channels, rows and pixels with their strides.
fn tensor(
    library: &Cudnn,
    element: Element,
    extents: [usize; 4],
    strides: [usize; 4],
) -> Result<Object, CudaError> {
    let api = &library.api;
    let ([n, c, h, w], [n_stride, c_stride, h_stride, w_stride]) = (extents.map(int), strides.map(int));
    described(library, "a tensor", (api.tensor_create, api.tensor_destroy), |tensor| {
        let element = type_of(element);
        // SAFETY: the description is alive.
        unsafe { (api.tensor_set)(tensor, element, n, c, h, w, n_stride, c_stride, h_stride, w_stride) }
    })
}

/// The filter, channels last.
fn weights(library: &Cudnn, convolution: &Convolution) -> Result<Object, CudaError> {
    let api = &library.api;
    let Convolution { maps, channels, vertical, horizontal, .. } = *convolution;
    let [k, c, r, s] = [maps, channels, vertical.window, horizontal.window].map(int);
    described(library, "a filter", (api.filter_create, api.filter_destroy), |filter| {
        let element = type_of(convolution.element);
        // SAFETY: the description is alive.
        unsafe { (api.filter_set)(filter, element, sys::CHANNELS_LAST, k, c, r, s) }
    })
}

/// How the filter moves, and how it is multiplied.
fn window(library: &Cudnn, convolution: &Convolution) -> Result<Object, CudaError> {
    let api = &library.api;
    let (v, h) = (convolution.vertical, convolution.horizontal);
    let math = match convolution.element {
        Element::F32 if !convolution.is_tf32 => math::FMA,
        Element::F32 | Element::F16 | Element::Bf16 => math::TENSOR_OP,
    };
    described(library, "a convolution", (api.window_create, api.window_destroy), |window| {
        let [pad_h, pad_w] = [v.padding, h.padding].map(int);
        let [step_h, step_w] = [v.stride, h.stride].map(int);
        let [apart_h, apart_w] = [v.dilation, h.dilation].map(int);
        let (mode, sums) = (sys::CROSS_CORRELATION, data_type::FLOAT);
        // SAFETY: the description is alive.
        let status =
            unsafe { (api.window_set)(window, pad_h, pad_w, step_h, step_w, apart_h, apart_w, mode, sums) };
        if status != sys::SUCCESS {
            return status;
        }
        // SAFETY: as above.
        let status = unsafe { (api.window_set_groups)(window, 1) };
        if status != sys::SUCCESS {
            return status;
        }
        // SAFETY: as above.
        unsafe { (api.window_set_math)(window, math) }
    })
}

/// What is done at last.
fn last(library: &Cudnn, is_rectified: bool) -> Result<Object, CudaError> {
    let api = &library.api;
    let mode = if is_rectified { activation::RELU } else { activation::IDENTITY };
    described(library, "an activation", (api.activation_create, api.activation_destroy), |activation| {
        // SAFETY: the description is alive.
        unsafe { (api.activation_set)(activation, mode, sys::NOT_PROPAGATE_NAN, 0.0) }
    })
}
