//! The document: what a traced graph of ATen calls looks like as JSON.
//!
//! ```json
//! {
//!   "format": "orchestrion-aten", "version": 1, "name": "model", "producer": "torch 2.15.0",
//!   "inputs": [{"name": "x", "dtype": "f32", "shape": [2, 3], "strides": [3, 1], "kind": "input"}],
//!   "constants": [{"name": "c", "dtype": "i64", "shape": [2], "values": [0, 1]}],
//!   "nodes": [{
//!     "name": "add", "target": "aten.add.Tensor", "args": [{"value": "x"}, 1.5], "kwargs": {"alpha": 2},
//!     "results": [{"dtype": "f32", "shape": [2, 3], "strides": [3, 1]}], "where": "model.py:7: return x + 3"
//!   }],
//!   "outputs": [{"value": "add", "strides": [3, 1]}, null],
//!   "mutations": [{"output": 0, "input": 0}],
//!   "index_check": "indices_in_range"
//! }
//! ```
//!
//! An argument is `null`, a truth value, a number, a text, a list of arguments, or an object: `{"value": name}` is an
//! input, a constant or the result of an earlier node, `{"value": name, "index": i}` one of several results,
//! `{"dtype": name}` an element type, `{"float": "inf"}` (`-inf`, `nan`) a number that JSON lacks. Numbers with a
//! point or an exponent are floats. Element types have the names of [`DType`]. Elements of
//! constants are numbers (or the texts `inf`, `-inf`, `nan`) in row-major order, booleans 0 and 1.
//!
//! A `null` among results is a result that is no tensor; a `null` among outputs is an output that is `None`. Neither
//! is part of the operator graph.

use orch_ir::DType;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The format's name.
pub const FORMAT: &str = "orchestrion-aten";

/// The format's version.
pub const VERSION: u64 = 1;

/// What every version of the format begins with.
#[derive(Deserialize)]
pub(crate) struct Header {
    pub format: Option<String>,
    pub version: Option<u64>,
}

/// A traced graph.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    #[serde(rename = "format")]
    _format: String,
    #[serde(rename = "version")]
    _version: u64,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub producer: String,
    pub inputs: Vec<Input>,
    #[serde(default)]
    pub constants: Vec<Constant>,
    pub nodes: Vec<Node>,
    pub outputs: Vec<Option<Output>>,
    #[serde(default)]
    pub mutations: Vec<Mutation>,
    #[serde(default)]
    pub index_check: Option<String>,
}

/// A tensor that the caller gives.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    pub strides: Vec<i64>,
    pub kind: InputKind,
}

/// What an input is to the module that was traced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InputKind {
    /// An argument of a call.
    Input,
    /// A parameter, which an optimizer may change.
    Parameter,
    /// A buffer.
    Buffer,
}

/// A small tensor by value.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Constant {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    pub values: Vec<serde_json::Value>,
}

/// One ATen call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Node {
    pub name: String,
    pub target: String,
    #[serde(default)]
    pub args: Vec<serde_json::Value>,
    #[serde(default)]
    pub kwargs: BTreeMap<String, serde_json::Value>,
    pub results: Vec<Option<ResultType>>,
    #[serde(default, rename = "where")]
    pub source: String,
}

/// The type of one result, and how eager would lay it out.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResultType {
    pub dtype: String,
    pub shape: Vec<usize>,
    pub strides: Vec<i64>,
}

/// What the caller gets.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Output {
    pub value: String,
    #[serde(default)]
    pub index: Option<usize>,
    pub strides: Vec<i64>,
}

/// An output that is to be copied into an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutation {
    /// Position among the document's outputs.
    pub output: usize,
    /// Position among the inputs.
    pub input: usize,
}

/// An argument, where a tensor is a `T`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Argument<T> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    DType(DType),
    Tensor(T),
    List(Vec<Argument<T>>),
}

impl<T> Argument<T> {
    /// The same argument with other tensors.
    pub fn try_map<U, E>(self, tensor: &impl Fn(T) -> Result<U, E>) -> Result<Argument<U>, E> {
        Ok(match self {
            Self::None => Argument::None,
            Self::Bool(value) => Argument::Bool(value),
            Self::Int(value) => Argument::Int(value),
            Self::Float(value) => Argument::Float(value),
            Self::Text(text) => Argument::Text(text),
            Self::DType(dtype) => Argument::DType(dtype),
            Self::Tensor(value) => Argument::Tensor(tensor(value)?),
            Self::List(items) => {
                let items = items.into_iter().map(|item| item.try_map(tensor));
                Argument::List(items.collect::<Result<_, _>>()?)
            }
        })
    }
}

/// The name of a tensor, and which of several results is meant.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Reference {
    pub name: String,
    pub index: Option<usize>,
}

/// An argument as the document has it.
pub(crate) type Given = Argument<Reference>;

impl Given {
    /// The argument that a piece of JSON stands for, or what is wrong with it.
    pub fn read(json: &serde_json::Value) -> Result<Self, String> {
        use serde_json::Value;
        Ok(match json {
            Value::Null => Self::None,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(value), _) => Self::Int(value),
                (None, Some(_)) if number.is_u64() => {
                    return Err(format!("{number} is larger than an i64 holds"));
                }
                (None, Some(value)) => Self::Float(value),
                (None, None) => return Err(format!("{number} is no number of 64 bits")),
            },
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(items) => Self::List(items.iter().map(Self::read).collect::<Result<_, _>>()?),
            Value::Object(fields) => Self::read_object(fields)?,
        })
    }

    fn read_object(fields: &serde_json::Map<String, serde_json::Value>) -> Result<Self, String> {
        let text = |name: &str| fields.get(name).and_then(|value| value.as_str());
        if let (Some(name), 1..=2) = (text("value"), fields.len()) {
            let index = match fields.get("index") {
                None if fields.len() == 1 => None,
                Some(index) => index
                    .as_u64()
                    .and_then(|index| usize::try_from(index).ok())
                    .map(Some)
                    .ok_or_else(|| format!("index is {index}, a position is expected"))?,
                None => {
                    return Err(
                        "an object with `value` may have `index` besides, and nothing else".to_owned()
                    );
                }
            };
            return Ok(Self::Tensor(Reference { name: name.to_owned(), index }));
        }
        if let (Some(name), 1) = (text("dtype"), fields.len()) {
            return DType::from_name(name)
                .map(Self::DType)
                .ok_or_else(|| format!("`{name}` is no element type"));
        }
        if let (Some(value), 1) = (text("float"), fields.len()) {
            return float(value).map(Self::Float).ok_or_else(|| format!("`{value}` is no number"));
        }
        Err("an object has to be {\"value\": ..}, {\"dtype\": ..} or {\"float\": ..}".to_owned())
    }
}

/// The number that JSON has no literal for.
pub(crate) fn float(text: &str) -> Option<f64> {
    match text {
        "inf" => Some(f64::INFINITY),
        "-inf" => Some(f64::NEG_INFINITY),
        "nan" => Some(f64::NAN),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Given, String> {
        Given::read(&serde_json::from_str(text).expect("JSON"))
    }

    #[test]
    fn arguments_have_types() {
        assert_eq!(read("1"), Ok(Given::Int(1)));
        assert_eq!(read("1.0"), Ok(Given::Float(1.0)));
        assert_eq!(read("{\"float\": \"-inf\"}"), Ok(Given::Float(f64::NEG_INFINITY)));
        assert_eq!(read("{\"dtype\": \"bf16\"}"), Ok(Given::DType(DType::BF16)));
        let value = Given::Tensor(Reference { name: "x".to_owned(), index: Some(2) });
        assert_eq!(
            read("[null, {\"value\": \"x\", \"index\": 2}]"),
            Ok(Given::List(vec![Given::None, value]))
        );
    }

    #[test]
    fn other_objects_are_refused() {
        for text in
            ["{}", "{\"value\": \"x\", \"dtype\": \"f32\"}", "{\"dtype\": \"q8\"}", "{\"float\": \"1\"}"]
        {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read("{\"value\": \"x\", \"index\": -1}").is_err());
        assert!(read("18446744073709551615").is_err());
    }
}
