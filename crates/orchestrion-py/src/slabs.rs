//! Memory of tensors that are saved for the backward graph and that nobody else sees: many share one tensor of PyTorch, a slab.
//!
//! An allocation costs several times as much as a tensor that is a part of another one, and the forward graph of BERT-base saves 360.
//! Autograd frees what a graph saved all at once, so that a slab keeps no memory for longer; the largest tensors are apart, so that PyTorch's
//! allocator finds room for them.

use crate::tensors::{Allocator, Port, inductor_function};
use orchestrion::DType;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyTuple};

/// How large slabs are.
#[derive(Clone, Copy)]
pub struct SlabLimits {
    /// Tensors of more bytes have memory of their own.
    part_bytes: usize,
    /// A slab of as many bytes takes no further tensor.
    slab_bytes: usize,
}

impl SlabLimits {
    /// The C library gives the memory of large blocks back to the system, so that each run would find it page by page.
    pub const ON_HOST: Self = Self { part_bytes: 1 << 20, slab_bytes: 8 << 20 };
    /// PyTorch's allocator keeps memory. Forward of BERT-base for 8 sequences of 128 tokens saves most tensors in 1.5 to 6 MiB each: with parts
    /// of up to 1 MiB a call takes 0.8 to 1.2 ms of the host, with these 0.7.
    pub const ON_GPU: Self = Self { part_bytes: 16 << 20, slab_bytes: 64 << 20 };
}

/// Where parts of a slab begin: what kernels and TMA ask for, and a line of any cache.
const ALIGN_BYTES: usize = 256;

/// The slabs of a graph.
pub struct Slabs {
    limits: SlabLimits,
    slabs: Vec<Slab>,
}

struct Slab {
    dtype: DType,
    len_elems: usize,
}

/// Where a tensor is in a slab.
pub struct SlabPart {
    slab: usize,
    /// Elements before it.
    start: Py<PyInt>,
}

impl Slabs {
    /// None yet.
    pub fn new(limits: SlabLimits) -> Self {
        Self { limits, slabs: Vec::new() }
    }

    /// Makes room for a tensor; `None` if it is to have memory of its own.
    ///
    /// # Errors
    /// If the port's shape and strides are no sizes.
    pub fn place(&mut self, py: Python<'_>, port: &Port) -> PyResult<Option<SlabPart>> {
        let shape: Vec<usize> = port.shape.bind(py).extract()?;
        let strides: Vec<usize> = port.strides.bind(py).extract()?;
        let elem_bytes = port.dtype.size_bytes();
        let span =
            shape.iter().zip(&strides).map(|(size, stride)| size.saturating_sub(1) * stride).sum::<usize>()
                + 1;
        let len_elems = if shape.contains(&0) { 0 } else { span };
        let SlabLimits { part_bytes, slab_bytes } = self.limits;
        if reinterpret(py).is_none() || len_elems * elem_bytes > part_bytes {
            return Ok(None);
        }
        let has_room = |slab: &Slab| slab.dtype == port.dtype && slab.len_elems * elem_bytes < slab_bytes;
        let slab = self.slabs.iter().position(has_room).unwrap_or_else(|| {
            self.slabs.push(Slab { dtype: port.dtype, len_elems: 0 });
            self.slabs.len() - 1
        });
        let start = self.slabs[slab].len_elems;
        self.slabs[slab].len_elems = start + len_elems.next_multiple_of(ALIGN_BYTES / elem_bytes);
        Ok(Some(SlabPart { slab, start: start.into_pyobject(py)?.unbind() }))
    }

    /// Memory for one run.
    ///
    /// # Errors
    /// If there is none.
    pub fn allocate<'py>(&self, allocator: &Allocator<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let py = allocator.py();
        let strides = PyTuple::new(py, [1])?;
        let slabs = self
            .slabs
            .iter()
            .map(|slab| allocator.empty_strided(&PyTuple::new(py, [slab.len_elems])?, &strides, slab.dtype));
        slabs.collect()
    }
}

impl SlabPart {
    /// The tensor in these slabs.
    ///
    /// # Errors
    /// If PyTorch refuses it.
    pub fn of<'py>(&self, slabs: &[Bound<'py, PyAny>], port: &Port) -> PyResult<Bound<'py, PyAny>> {
        let slab = &slabs[self.slab];
        let py = slab.py();
        let reinterpret = reinterpret(py).expect("parts were made with it");
        reinterpret.bind(py).call1((slab, port.shape.bind(py), port.strides.bind(py), self.start.bind(py)))
    }
}

/// PyTorch's function that shows memory as another tensor, without autograd.
fn reinterpret(py: Python<'_>) -> Option<&'static Py<PyAny>> {
    static REINTERPRET: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
    inductor_function(py, &REINTERPRET, "_reinterpret_tensor")
}
