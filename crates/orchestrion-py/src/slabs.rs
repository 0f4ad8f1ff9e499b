//! Memory of tensors that are saved for the backward graph and that nobody else sees: many are parts of one tensor of PyTorch, a slab.
//!
//! The forward graph of BERT-base saves 360 tensors. A tensor of PyTorch costs some microseconds on its way through autograd: made, kept,
//! shown again, described. So the graphs hand on slabs, and say themselves where each tensor begins (`torch/_saved.py` divides them so).

use crate::errors;
use crate::tensors::{Allocator, Given, Library, Port, TracedLayout};
use orchestrion::{DType, Error};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// A slab that each run makes.
pub struct Slab {
    port: Port,
}

/// Where a tensor is in a slab.
pub struct SlabPart {
    /// Which of the slabs that are given or made.
    pub slab: usize,
    /// How it lies.
    pub layout: TracedLayout,
    /// Bytes before its first element.
    start_bytes: usize,
    /// Bytes before the first element after it.
    end_bytes: usize,
}

/// A slab of one run.
pub struct RunSlab<'py> {
    /// PyTorch's tensor.
    pub object: Bound<'py, PyAny>,
    given: Given<'py>,
}

impl Slab {
    /// Of so many elements.
    ///
    /// # Errors
    /// If there is no memory for the sizes.
    pub fn new(py: Python<'_>, dtype: DType, len_elems: usize) -> PyResult<Self> {
        let (shape, strides) = (PyTuple::new(py, [len_elems])?.unbind(), PyTuple::new(py, [1])?.unbind());
        Ok(Self { port: Port { name: "slab".to_owned(), dtype, shape, strides } })
    }

    /// Memory for one run.
    ///
    /// # Errors
    /// If there is none.
    pub fn allocate<'py>(&self, allocator: &Allocator<'py>) -> PyResult<RunSlab<'py>> {
        RunSlab::of(allocator.empty(&self.port)?, &self.port)
    }
}

impl SlabPart {
    /// A tensor of this layout that begins after so many elements.
    ///
    /// # Errors
    /// If it ends beyond all memory.
    pub fn new(py: Python<'_>, slab: usize, start_elems: usize, layout: TracedLayout) -> PyResult<Self> {
        let elem_bytes = layout.dtype.size_bytes();
        let len = layout.ordered.iter().try_fold(1usize, |len, &size| len.checked_mul(size));
        let end = len.and_then(|len| len.checked_add(start_elems)?.checked_mul(elem_bytes));
        let end_bytes = end.ok_or_else(|| {
            errors::exception(py, Error::Internal("a part of a slab ends beyond all memory".to_owned()))
        })?;
        Ok(Self { slab, layout, start_bytes: start_elems * elem_bytes, end_bytes })
    }
}

impl<'py> RunSlab<'py> {
    /// A tensor that is made or given as a slab; `port` is for messages.
    ///
    /// # Errors
    /// If PyTorch does not describe it.
    pub fn of(object: Bound<'py, PyAny>, port: &Port) -> PyResult<Self> {
        let given = Given::traced(&object, port, "saved tensor")?;
        Ok(Self { object, given })
    }

    /// A part.
    ///
    /// # Errors
    /// If the slab is not what the forward graph saved: hooks of autograd may have changed it.
    pub fn part(&self, part: &SlabPart) -> PyResult<Given<'py>> {
        self.check(part)?;
        Ok(self.given.part(&part.layout, part.start_bytes))
    }

    /// The address of a part, if the slab is on this GPU.
    ///
    /// # Errors
    /// As [`RunSlab::part`].
    pub fn address(&self, part: &SlabPart, gpu: i32) -> PyResult<Option<u64>> {
        self.check(part)?;
        let is_here = self.given.gpu() == Some(gpu);
        Ok(is_here.then(|| self.given.address() + part.start_bytes as u64))
    }

    fn check(&self, part: &SlabPart) -> PyResult<()> {
        let (dtype, given) = (part.layout.dtype, &self.given);
        let is_saved = given.library == Library::Torch && given.dtype() == dtype;
        let is_line = matches!((given.shape(), given.strides()), ([len], [1])
            if len * dtype.size_bytes() >= part.end_bytes);
        if is_saved && is_line {
            return Ok(());
        }
        let text = format!(
            "a tensor that was saved for the backward graph has elements of {} and the shape {:?}; it was saved as one line of {dtype}: \
             hooks of saved tensors must give back what they were given",
            given.dtype(),
            given.shape()
        );
        Err(errors::input(self.object.py(), &text))
    }
}
