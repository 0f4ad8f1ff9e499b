//! `orchestrion._native`: what the Python package calls.
//!
//! | file | holds |
//! |---|---|
//! | `compile.rs` | compiling and loading: options, progress, interruption |
//! | `executable.rs` | executables and contexts, and how a call goes |
//! | `device.rs` | calls on tensors in a GPU's memory |
//! | `graph.rs` | executables of graphs that `torch.compile` traced |
//! | `superoptimize.rs` | kernels that are searched for and proved, with certificates and times |
//! | `tensors.rs` | tensors of NumPy, PyTorch and others as views; memory for outputs |
//! | `dlpack.rs` | the structures by which libraries of Python exchange tensors |
//! | `errors.rs` | the package's exceptions |
//!
//! `unsafe` is needed where memory of Python objects is read and written: in `dlpack.rs`, `tensors.rs` and `device.rs`.

#![allow(unsafe_code)]

mod compile;
mod device;
mod dlpack;
mod errors;
mod executable;
mod graph;
mod scratch;
mod slabs;
mod superoptimize;
mod tensors;

use pyo3::prelude::*;

/// The native part of the package `orchestrion`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::compile::{compile, compile_aten, declaration, load, updated_inputs};
    #[pymodule_export]
    use super::executable::{PyContext, PyExecutable};
    #[pymodule_export]
    use super::graph::PyGraph;
    #[pymodule_export]
    use super::superoptimize::superoptimize;

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
