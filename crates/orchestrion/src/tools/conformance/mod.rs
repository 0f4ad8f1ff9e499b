//! ONNX backend test cases: folders with `model.onnx` and `test_data_set_N/{input,output}_M.pb`.
//!
//! A case passes if every output of every data set is within the tolerance of the ONNX runner (relative 1e-3, absolute
//! 1e-7; at least two units in the last place of f16 and bf16) or the case's own (`data.json`). Inputs that decide
//! shapes are fixed to the data set's values when compiling. A short list names cases whose expectation is at fault.

mod case;
mod cases;
mod data;
mod judge;
mod known;
mod outcome;

pub use cases::{find_cases, run_case, run_cases};
pub use outcome::{Outcome, Summary};
