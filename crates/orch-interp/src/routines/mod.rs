//! Irregular operators that run whole, by ONNX operator name; one file per routine.
//!
//! Each file documents its operands and the order of its integer, float and text parameters. Operands that the ONNX
//! operator leaves optional are all present. Routines compute in `f64` and round each result to the operand's type.

pub mod deform_conv;
pub mod det;
pub mod dft;
pub mod max_roi_pool;
pub mod max_unpool;
pub mod reverse_sequence;
pub mod roi_align;

use crate::EvalError;
use orch_ir::{DType, Shape, Tensor};

/// What a routine is called with.
pub struct Call<'a> {
    /// The routine's name, for messages.
    pub name: &'a str,
    /// Operands.
    pub inputs: &'a [&'a Tensor],
    /// Integer parameters.
    pub ints: &'a [i64],
    /// Float parameters.
    pub floats: &'a [f64],
    /// Text parameters.
    pub texts: &'a [String],
    /// Type and shape stated for each result.
    pub results: &'a [(DType, Shape)],
}

impl Call<'_> {
    /// The operands, which must be as many as asked for.
    fn operands<const N: usize>(&self) -> Result<[&Tensor; N], EvalError> {
        let given = self.inputs.len();
        self.inputs.try_into().map_err(|_| self.error(format!("{N} operands expected, {given} given")))
    }

    /// The integer parameters, which must be as many as asked for.
    fn ints<const N: usize>(&self) -> Result<[i64; N], EvalError> {
        let given = self.ints.len();
        self.ints
            .try_into()
            .map_err(|_| self.error(format!("{N} integer parameters expected, {given} given")))
    }

    /// The float parameters, which must be as many as asked for.
    fn floats<const N: usize>(&self) -> Result<[f64; N], EvalError> {
        let given = self.floats.len();
        self.floats
            .try_into()
            .map_err(|_| self.error(format!("{N} float parameters expected, {given} given")))
    }

    /// The text parameter at `index`.
    fn text(&self, index: usize) -> Result<&str, EvalError> {
        self.texts
            .get(index)
            .map(String::as_str)
            .ok_or_else(|| self.error(format!("text parameter {index} is missing")))
    }

    /// A parameter that must not be negative.
    fn size(&self, value: i64) -> Result<usize, EvalError> {
        usize::try_from(value).map_err(|_| self.error(format!("parameter {value} is negative")))
    }

    /// The stated shape of the only result.
    fn result_shape(&self) -> Result<&Shape, EvalError> {
        match self.results {
            [(_, shape)] => Ok(shape),
            _ => Err(self.error(format!("one result expected, {} stated", self.results.len()))),
        }
    }

    /// Checks the stated shape of the only result, before anything of that size is allocated.
    fn expect_shape(&self, computed: &[usize]) -> Result<(), EvalError> {
        let stated = self.result_shape()?;
        if stated[..] == *computed {
            return Ok(());
        }
        Err(self.error(format!("the result is {computed:?}, but {stated} is stated")))
    }

    /// The only result, of the first operand's type.
    fn result(&self, shape: &[usize], values: &[f64]) -> Vec<Tensor> {
        let dtype = self.inputs.first().map_or(DType::F64, |x| x.dtype());
        vec![Tensor::from_f64(dtype, shape, values)]
    }

    /// An error that names the routine.
    fn error(&self, problem: impl Into<String>) -> EvalError {
        EvalError::operation(self.name, problem)
    }
}

/// A routine: results from a call.
type Routine = fn(&Call<'_>) -> Result<Vec<Tensor>, EvalError>;

/// All routines by the name of the ONNX operator.
const ROUTINES: &[(&str, Routine)] = &[
    ("DFT", dft::dft),
    ("DeformConv", deform_conv::deform_conv),
    ("Det", det::det),
    ("MaxRoiPool", max_roi_pool::max_roi_pool),
    ("MaxUnpool", max_unpool::max_unpool),
    ("ReverseSequence", reverse_sequence::reverse_sequence),
    ("RoiAlign", roi_align::roi_align),
];

/// Runs the routine `name`.
///
/// # Errors
/// If there is no such routine, or the operands or parameters do not suit it.
pub fn call(call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let routine = ROUTINES.iter().find(|(name, _)| *name == call.name);
    match routine {
        Some((_, run)) => run(call),
        None => Err(EvalError::operation(call.name, "there is no routine of this name")),
    }
}
