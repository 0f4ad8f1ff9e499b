//! Typed access to the attributes of a [`Call`].
//!
//! A missing attribute is `None` (or the given default); one of another kind is an error of the model.

use crate::{Call, RuleError};
use orch_ir::{Attribute, OperatorGraph, Tensor};

/// The name of an attribute's kind, as messages show it.
fn kind(attribute: &Attribute) -> &'static str {
    match attribute {
        Attribute::Int(_) => "an integer",
        Attribute::Float(_) => "a float",
        Attribute::String(_) => "a string",
        Attribute::Tensor(_) => "a tensor",
        Attribute::Encoded(..) => "a tensor of an encoded type",
        Attribute::Graph(_) => "a graph",
        Attribute::Ints(_) => "integers",
        Attribute::Floats(_) => "floats",
        Attribute::Strings(_) => "strings",
        Attribute::Unsupported(kind) => kind,
    }
}

macro_rules! accessor {
    ($(#[$doc:meta])* $name:ident -> $type:ty, $variant:ident($value:ident) => $get:expr, $expected:literal) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// If the attribute is of another kind.
        pub fn $name(&self, name: &str) -> Result<Option<$type>, RuleError> {
            match self.node.attributes.get(name) {
                None => Ok(None),
                Some(Attribute::$variant($value)) => Ok(Some($get)),
                Some(other) => Err(RuleError::invalid(format!(
                    concat!("attribute {} is {}, expected ", $expected), name, kind(other)
                ))),
            }
        }
    };
}

impl<'a> Call<'a> {
    accessor!(
        /// An integer attribute.
        int -> i64, Int(value) => *value, "an integer"
    );
    accessor!(
        /// A float attribute.
        float -> f64, Float(value) => f64::from(*value), "a float"
    );
    accessor!(
        /// A string attribute.
        text -> &'a str, String(value) => value.as_str(), "a string"
    );
    accessor!(
        /// A list of integers.
        ints -> &'a [i64], Ints(value) => value.as_slice(), "integers"
    );
    accessor!(
        /// A list of floats.
        floats -> &'a [f32], Floats(value) => value.as_slice(), "floats"
    );
    accessor!(
        /// A list of strings.
        texts -> &'a [String], Strings(value) => value.as_slice(), "strings"
    );
    accessor!(
        /// A tensor attribute.
        tensor_attribute -> &'a Tensor, Tensor(value) => value, "a tensor"
    );
    accessor!(
        /// A subgraph.
        graph -> &'a OperatorGraph, Graph(value) => value, "a graph"
    );

    /// An integer attribute with a default.
    ///
    /// # Errors
    /// If the attribute is of another kind.
    pub fn int_or(&self, name: &str, default: i64) -> Result<i64, RuleError> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// An integer attribute that means a truth value.
    ///
    /// # Errors
    /// If the attribute is of another kind.
    pub fn flag_or(&self, name: &str, default: bool) -> Result<bool, RuleError> {
        Ok(self.int(name)?.map_or(default, |value| value != 0))
    }

    /// A float attribute with a default.
    ///
    /// # Errors
    /// If the attribute is of another kind.
    pub fn float_or(&self, name: &str, default: f64) -> Result<f64, RuleError> {
        // ONNX's attributes are f32, those that are left out too.
        Ok(self.float(name)?.unwrap_or(f64::from(default as f32)))
    }

    /// A string attribute with a default.
    ///
    /// # Errors
    /// If the attribute is of another kind.
    pub fn text_or<'b>(&self, name: &str, default: &'b str) -> Result<&'b str, RuleError>
    where
        'a: 'b,
    {
        Ok(self.text(name)?.unwrap_or(default))
    }
}
