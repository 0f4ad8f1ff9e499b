//! Attribute values: what primitives' parameters are in text.

use super::lex::{ParseError, Position};
use crate::PrimGraph;
use std::borrow::Cow;
use std::fmt;

/// The value of an attribute.
#[derive(Clone, Debug)]
pub enum Attr<'a> {
    /// Digits as written: integers and floats.
    Number(String),
    /// A bare word: `true`, `inf`, the name of a mode.
    Word(String),
    /// A quoted text.
    Text(String),
    /// `[a, b, ..]`.
    List(Vec<Attr<'a>>),
    /// The body of a control-flow operation.
    Graph(Cow<'a, PrimGraph>),
}

impl<'a> Attr<'a> {
    /// A word.
    pub fn word(word: impl Into<String>) -> Self {
        Attr::Word(word.into())
    }

    /// An integer.
    pub fn int(value: impl fmt::Display) -> Self {
        Attr::Number(value.to_string())
    }

    /// A list of integers.
    pub fn ints<T: fmt::Display>(values: &[T]) -> Self {
        Attr::List(values.iter().map(Attr::int).collect())
    }

    /// A float, in the shortest form that reads back.
    pub fn float(value: f64) -> Self {
        let text = format!("{value:?}");
        if value.is_finite() { Attr::Number(text) } else { Attr::Word(text) }
    }

    /// A list of texts.
    pub fn texts(values: &[String]) -> Self {
        Attr::List(values.iter().cloned().map(Attr::Text).collect())
    }

    /// A body.
    pub fn graph(graph: &'a PrimGraph) -> Self {
        Attr::Graph(Cow::Borrowed(graph))
    }
}

/// Attributes that a node may have.
const MAX_ATTRS: usize = 16;

/// Attributes of one node as parsed, taken out by name while the primitive is built.
#[derive(Debug, Default)]
pub struct Attrs {
    entries: Vec<(String, Position, Attr<'static>)>,
}

/// What is wrong with the attributes, and where, if at one of them.
pub type AttrError = (Option<Position>, String);

impl Attrs {
    /// Adds an attribute.
    ///
    /// # Errors
    /// If there is one of that name, or more than any operation has.
    pub fn insert(
        &mut self,
        name: String,
        position: Position,
        value: Attr<'static>,
    ) -> Result<(), ParseError> {
        if self.entries.len() == MAX_ATTRS {
            return Err(ParseError::new(
                position,
                format!("no operation has more than {MAX_ATTRS} attributes"),
            ));
        }
        if self.entries.iter().any(|(other, ..)| *other == name) {
            return Err(ParseError::new(position, format!("attribute {name} is given twice")));
        }
        self.entries.push((name, position, value));
        Ok(())
    }

    /// Takes an attribute as `read` sees it, or `None` if it is absent.
    pub fn optional<T>(
        &mut self,
        name: &str,
        read: impl Fn(Attr<'static>) -> Option<T>,
    ) -> Result<Option<T>, AttrError> {
        let Some(index) = self.entries.iter().position(|(other, ..)| other == name) else {
            return Ok(None);
        };
        let (_, position, value) = self.entries.remove(index);
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err((Some(position), format!("attribute {name} does not have a value of this kind"))),
        }
    }

    /// Takes an attribute that must be there.
    pub fn required<T>(
        &mut self,
        name: &str,
        read: impl Fn(Attr<'static>) -> Option<T>,
    ) -> Result<T, AttrError> {
        self.optional(name, read)?.ok_or_else(|| (None, format!("attribute {name} is missing")))
    }

    /// Refuses what nothing has taken.
    pub fn finish(self) -> Result<(), AttrError> {
        match self.entries.into_iter().next() {
            Some((name, position, _)) => {
                Err((Some(position), format!("this operation has no attribute {name}")))
            }
            None => Ok(()),
        }
    }
}

/// Reads an integer of any type.
pub fn int<T: std::str::FromStr>(value: Attr<'_>) -> Option<T> {
    match value {
        Attr::Number(text) => text.parse().ok(),
        _ => None,
    }
}

/// Reads a float.
pub fn float(value: Attr<'_>) -> Option<f64> {
    match value {
        Attr::Number(text) => text.parse().ok(),
        Attr::Word(text) if matches!(text.as_str(), "inf" | "NaN") => text.parse().ok(),
        _ => None,
    }
}

/// Reads `true` or `false`.
pub fn flag(value: Attr<'_>) -> Option<bool> {
    match value {
        Attr::Word(text) => text.parse().ok(),
        _ => None,
    }
}

/// Reads a word.
pub fn word(value: Attr<'_>) -> Option<String> {
    match value {
        Attr::Word(text) => Some(text),
        _ => None,
    }
}

/// Reads a quoted text.
pub fn text(value: Attr<'_>) -> Option<String> {
    match value {
        Attr::Text(text) => Some(text),
        _ => None,
    }
}

/// Reads a body.
pub fn graph(value: Attr<'_>) -> Option<Box<PrimGraph>> {
    match value {
        Attr::Graph(graph) => Some(Box::new(graph.into_owned())),
        _ => None,
    }
}

/// Reads a list of what `read` reads.
pub fn list<'a, T>(read: impl Fn(Attr<'a>) -> Option<T>) -> impl Fn(Attr<'a>) -> Option<Vec<T>> {
    move |value| match value {
        Attr::List(values) => values.into_iter().map(&read).collect(),
        _ => None,
    }
}
