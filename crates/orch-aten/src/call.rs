//! One ATen call as a rule sees it: its arguments by name, and the types of its results.

use crate::document::Argument;
use crate::emit::{Refusal, Val, checked, invalid, unsupported};
use crate::promote::{Number, Operand};
use orch_ir::{DType, Shape};
use std::collections::BTreeMap;

/// An argument with its tensors resolved.
pub(crate) type Arg = Argument<Source>;

/// A tensor that a call reads, and what the document says of its memory.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Source {
    pub value: Val,
    pub strides: Vec<i64>,
}

/// A call.
pub(crate) struct Call {
    /// Arguments by the names of the target's schema; those left out are missing.
    pub arguments: BTreeMap<&'static str, Arg>,
    /// Types of the results, `None` for those that are no tensors.
    pub results: Vec<Option<(DType, Shape)>>,
    /// Strides of the results.
    pub strides: Vec<Option<Vec<i64>>>,
}

/// The error that an argument is another thing.
fn expected<T>(argument: &str, given: &Arg, expected: &str) -> Result<T, Refusal> {
    let given = match given {
        Arg::None => "none".to_owned(),
        Arg::Bool(value) => value.to_string(),
        Arg::Int(value) => value.to_string(),
        Arg::Float(value) => format!("{value:?}"),
        Arg::Text(text) => format!("`{text}`"),
        Arg::DType(dtype) => format!("the type {dtype}"),
        Arg::Tensor(source) => format!("a tensor {}", source.value.describe()),
        Arg::List(items) => format!("a list of {} items", items.len()),
    };
    let detail = format!("{given} is given, {expected} is expected");
    Err(Refusal::Argument { argument: argument.to_owned(), detail })
}

impl Call {
    fn get(&self, name: &str) -> &Arg {
        self.arguments.get(name).unwrap_or(&Arg::None)
    }

    /// True if the argument is there and not `None`.
    pub fn has(&self, name: &str) -> bool {
        *self.get(name) != Arg::None
    }

    /// A tensor with what the document says of its memory.
    pub fn source(&self, name: &str) -> Result<&Source, Refusal> {
        match self.get(name) {
            Arg::Tensor(source) => Ok(source),
            other => expected(name, other, "a tensor"),
        }
    }

    /// A tensor.
    pub fn tensor(&self, name: &str) -> Result<&Val, Refusal> {
        self.source(name).map(|source| &source.value)
    }

    /// A tensor of a floating type.
    pub fn float_tensor(&self, name: &str) -> Result<&Val, Refusal> {
        let value = self.tensor(name)?;
        if value.dtype.is_float() { Ok(value) } else { expected(name, self.get(name), "a tensor of floats") }
    }

    /// A tensor of integers.
    pub fn int_tensor(&self, name: &str) -> Result<&Val, Refusal> {
        let value = self.tensor(name)?;
        if value.dtype.is_int() { Ok(value) } else { expected(name, self.get(name), "a tensor of integers") }
    }

    /// A tensor that may be left out.
    pub fn optional_tensor(&self, name: &str) -> Result<Option<&Val>, Refusal> {
        if self.has(name) { self.tensor(name).map(Some) } else { Ok(None) }
    }

    /// A list of tensors.
    pub fn tensors(&self, name: &str) -> Result<Vec<Val>, Refusal> {
        let all = self.optional_tensors(name)?.into_iter().collect::<Option<Vec<_>>>();
        all.map_or_else(|| expected(name, self.get(name), "a list of tensors"), Ok)
    }

    /// A list of tensors of which some may be left out.
    pub fn optional_tensors(&self, name: &str) -> Result<Vec<Option<Val>>, Refusal> {
        let Arg::List(items) = self.get(name) else {
            return expected(name, self.get(name), "a list of tensors");
        };
        let tensor = |item: &Arg| match item {
            Arg::None => Ok(None),
            Arg::Tensor(source) => Ok(Some(source.value.clone())),
            other => expected(name, other, "a tensor"),
        };
        items.iter().map(tensor).collect()
    }

    /// A number.
    pub fn number(&self, name: &str) -> Result<Number, Refusal> {
        match self.get(name) {
            Arg::Bool(value) => Ok(Number::Bool(*value)),
            Arg::Int(value) => Ok(Number::Int(*value)),
            Arg::Float(value) => Ok(Number::Float(*value)),
            other => expected(name, other, "a number"),
        }
    }

    /// A number with a default.
    pub fn number_or(&self, name: &str, default: Number) -> Result<Number, Refusal> {
        if self.has(name) { self.number(name) } else { Ok(default) }
    }

    /// A tensor or a number.
    pub fn operand(&self, name: &str) -> Result<Operand, Refusal> {
        match self.get(name) {
            Arg::Tensor(source) => Ok(Operand::Tensor(source.value.clone())),
            Arg::Bool(_) | Arg::Int(_) | Arg::Float(_) => self.number(name).map(Operand::Number),
            other => expected(name, other, "a tensor or a number"),
        }
    }

    /// A tensor or a number that may be left out.
    pub fn optional_operand(&self, name: &str) -> Result<Option<Operand>, Refusal> {
        if self.has(name) { self.operand(name).map(Some) } else { Ok(None) }
    }

    /// An integer.
    pub fn int(&self, name: &str) -> Result<i64, Refusal> {
        match self.get(name) {
            Arg::Int(value) => Ok(*value),
            other => expected(name, other, "an integer"),
        }
    }

    /// An integer with a default.
    pub fn int_or(&self, name: &str, default: i64) -> Result<i64, Refusal> {
        if self.has(name) { self.int(name) } else { Ok(default) }
    }

    /// A float with a default.
    pub fn float_or(&self, name: &str, default: f64) -> Result<f64, Refusal> {
        self.number_or(name, Number::Float(default)).map(Number::as_f64)
    }

    /// A truth value with a default.
    pub fn flag_or(&self, name: &str, default: bool) -> Result<bool, Refusal> {
        match self.get(name) {
            Arg::None => Ok(default),
            Arg::Bool(value) => Ok(*value),
            other => expected(name, other, "a truth value"),
        }
    }

    /// A text with a default.
    pub fn text_or<'a>(&'a self, name: &str, default: &'a str) -> Result<&'a str, Refusal> {
        match self.get(name) {
            Arg::None => Ok(default),
            Arg::Text(text) => Ok(text),
            other => expected(name, other, "a text"),
        }
    }

    /// A list of integers; one integer is a list of one.
    pub fn ints(&self, name: &str) -> Result<Vec<i64>, Refusal> {
        let int = |item: &Arg| match item {
            Arg::Int(value) => Ok(*value),
            other => expected(name, other, "an integer"),
        };
        match self.get(name) {
            Arg::List(items) => items.iter().map(int).collect(),
            item @ Arg::Int(_) => Ok(vec![int(item)?]),
            other => expected(name, other, "a list of integers"),
        }
    }

    /// A list of integers that may be left out.
    pub fn optional_ints(&self, name: &str) -> Result<Option<Vec<i64>>, Refusal> {
        if self.has(name) { self.ints(name).map(Some) } else { Ok(None) }
    }

    /// A list of truth values.
    pub fn flags(&self, name: &str) -> Result<Vec<bool>, Refusal> {
        let Arg::List(items) = self.get(name) else {
            return expected(name, self.get(name), "a list of truth values");
        };
        let flag = |item: &Arg| match item {
            Arg::Bool(value) => Ok(*value),
            other => expected(name, other, "a truth value"),
        };
        items.iter().map(flag).collect()
    }

    /// A shape.
    pub fn dims(&self, name: &str) -> Result<Shape, Refusal> {
        checked(self.counts(name)?)
    }

    /// A list of integers that are not negative. Only of a shape is their product a number of elements.
    pub fn counts(&self, name: &str) -> Result<Vec<usize>, Refusal> {
        let ints = self.ints(name)?;
        let counts: Option<Vec<usize>> = ints.iter().map(|&count| usize::try_from(count).ok()).collect();
        counts.ok_or_else(|| Refusal::Invalid(format!("{name} is {ints:?}")))
    }

    /// `count` non-negative integers, given as so many or as one for all. The bound keeps sums of extents far from overflow.
    pub fn extents(&self, name: &str, count: usize, default: usize) -> Result<Vec<usize>, Refusal> {
        let given = self.optional_ints(name)?.unwrap_or_default();
        let extent = |&value: &i64| match usize::try_from(value) {
            Ok(value) if value < 1 << 31 => Ok(value),
            Ok(_) => unsupported(format!("{name} = {given:?}")),
            Err(_) => invalid(format!("{name} is {given:?}")),
        };
        let values: Vec<usize> = given.iter().map(extent).collect::<Result<_, _>>()?;
        match values.len() {
            0 => Ok(vec![default; count]),
            1 => Ok(vec![values[0]; count]),
            len if len == count => Ok(values),
            len => invalid(format!("{name} has {len} entries, {count} are expected")),
        }
    }

    /// An element type that may be left out.
    pub fn optional_dtype(&self, name: &str) -> Result<Option<DType>, Refusal> {
        match self.get(name) {
            Arg::None => Ok(None),
            Arg::DType(dtype) => Ok(Some(*dtype)),
            other => expected(name, other, "an element type"),
        }
    }

    /// An axis of a tensor of this rank; a scalar has axis 0.
    pub fn axis(&self, name: &str, default: i64, rank: usize) -> Result<usize, Refusal> {
        axis_of(self.int_or(name, default)?, rank)
    }

    /// Sorted axes of a tensor of this rank; all of them where none is given.
    pub fn axes(&self, name: &str, rank: usize) -> Result<Vec<usize>, Refusal> {
        let given = self.optional_ints(name)?.unwrap_or_default();
        if given.is_empty() {
            return Ok((0..rank).collect());
        }
        let mut axes = given.iter().map(|&axis| axis_of(axis, rank)).collect::<Result<Vec<_>, _>>()?;
        axes.sort_unstable();
        if axes.windows(2).any(|pair| pair[0] == pair[1]) {
            return invalid(format!("{name} = {given:?} names an axis twice"));
        }
        axes.retain(|&axis| axis < rank);
        Ok(axes)
    }

    /// The type of result `index` in the document.
    pub fn result(&self, index: usize) -> Result<(DType, Shape), Refusal> {
        match self.results.get(index) {
            Some(Some(known)) => Ok(known.clone()),
            _ => invalid(format!("result {index} has no type")),
        }
    }

    /// The element type of result 0.
    pub fn dtype(&self) -> Result<DType, Refusal> {
        Ok(self.result(0)?.0)
    }
}

/// The axis counted from 0.
pub(crate) fn axis_of(axis: i64, rank: usize) -> Result<usize, Refusal> {
    let bound = rank.max(1) as i64;
    if (-bound..bound).contains(&axis) {
        Ok(axis.rem_euclid(bound) as usize)
    } else {
        invalid(format!("axis {axis} of a tensor with {rank} dimensions"))
    }
}
