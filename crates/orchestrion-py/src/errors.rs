//! Errors of the library as the package's exceptions (`orchestrion/_errors.py`).

use orchestrion::Error;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

/// The exception for an error.
pub fn exception(py: Python<'_>, error: Error) -> PyErr {
    let class = match &error {
        Error::Model(_) => "ModelError",
        Error::Input(_) => "InputError",
        Error::File { .. } => "FileError",
        Error::Unsupported(_) => "Unsupported",
        Error::Environment(_) => "MachineError",
        Error::Internal(_) => "InternalError",
        Error::Interrupted => return PyKeyboardInterrupt::new_err(error.to_string()),
    };
    named(py, class, &error.to_string())
}

/// A call that does not fit its function: exit code 2 of the command.
pub fn usage(py: Python<'_>, message: &str) -> PyErr {
    named(py, "UsageError", message)
}

/// A tensor that does not fit its input or output.
pub fn input(py: Python<'_>, message: &str) -> PyErr {
    named(py, "InputError", message)
}

fn named(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let made = py
        .import("orchestrion._errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call1((message,)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}
