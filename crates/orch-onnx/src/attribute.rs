//! Attributes of nodes.

use crate::external::ExternalFiles;
use crate::graph::Importer;
use crate::problem::{Place, Reason};
use crate::proto::attribute_proto::AttributeType;
use crate::proto::{AttributeProto, NodeProto, TensorProto};
use crate::scope::Written;
use crate::tensor::{self, TensorError};
use crate::types::element;
use orch_ir::Attribute;
use std::collections::BTreeMap;

impl<'m> Importer<'m> {
    /// The attributes of a node in the innermost frame. One that refers to an attribute of the function around,
    /// which the call leaves out, is left out.
    pub(crate) fn attributes(&mut self, node: &'m NodeProto, place: &Place) -> BTreeMap<String, Attribute> {
        let mut attributes = BTreeMap::new();
        for attribute in &node.attribute {
            let name = attribute.name();
            if name.is_empty() {
                self.problems.add(place.clone(), Reason::Nameless { what: "an attribute" });
                continue;
            }
            let Some(written) = self.written(attribute, place) else { continue };
            let is_copied = !attribute.ref_attr_name().is_empty();
            if let Some(graph) = written.attribute.g.as_ref().filter(|_| is_copied)
                && !self.may_copy(graph, place)
            {
                continue;
            }
            let value = match self.attribute_value(name, written) {
                Ok(value) => value,
                Err(reason) => {
                    self.problems.add(place.clone(), reason);
                    continue;
                }
            };
            if attributes.insert(name.to_owned(), value).is_some() {
                let reason = Reason::Duplicate { what: "attribute", name: name.to_owned() };
                self.problems.add(place.clone(), reason);
            }
        }
        attributes
    }

    /// The attribute that gives the value of `attribute`: itself, or the one it refers to in the call around.
    pub(crate) fn written(&mut self, attribute: &'m AttributeProto, place: &Place) -> Option<Written<'m>> {
        let frame = self.scopes.top();
        let reference = attribute.ref_attr_name();
        if reference.is_empty() {
            return Some(Written { attribute, frame });
        }
        let Some(call) = self.scopes.outwards(frame).find_map(|frame| frame.call.as_ref()) else {
            let (attribute, reference) = (attribute.name().to_owned(), reference.to_owned());
            self.problems.add(place.clone(), Reason::AttributeReference { attribute, reference });
            return None;
        };
        call.attributes.get(reference).copied()
    }

    /// The value of an attribute.
    fn attribute_value(&mut self, name: &str, written: Written<'m>) -> Result<Attribute, Reason> {
        let proto = written.attribute;
        let attribute = || name.to_owned();
        let Some(kind) = kind(proto) else {
            return Err(Reason::AttributeKind { attribute: attribute(), code: proto.r#type.unwrap_or(0) });
        };
        let missing = |expected| Reason::AttributeValue { attribute: attribute(), expected };
        Ok(match kind {
            AttributeType::Undefined => return Err(missing("value")),
            AttributeType::Int => Attribute::Int(proto.i()),
            AttributeType::Float => Attribute::Float(proto.f()),
            AttributeType::String => string(proto.s()),
            AttributeType::Tensor => {
                let tensor = proto.t.as_ref().ok_or_else(|| missing("tensor"))?;
                tensor_value(tensor, &mut self.files)
                    .map_err(|error| Reason::AttributeTensor { attribute: attribute(), error })?
            }
            AttributeType::Graph => {
                let graph = proto.g.as_ref().ok_or_else(|| missing("graph"))?;
                Attribute::Graph(Box::new(self.subgraph(graph, written.frame)?))
            }
            AttributeType::Ints => Attribute::Ints(proto.ints.clone()),
            AttributeType::Floats => Attribute::Floats(proto.floats.clone()),
            AttributeType::Strings => strings(&proto.strings),
            AttributeType::Tensors => Attribute::Unsupported("a list of tensors"),
            AttributeType::Graphs => Attribute::Unsupported("a list of graphs"),
            AttributeType::SparseTensor => Attribute::Unsupported("a sparse tensor"),
            AttributeType::SparseTensors => Attribute::Unsupported("a list of sparse tensors"),
            AttributeType::TypeProto => Attribute::Unsupported("a type"),
            AttributeType::TypeProtos => Attribute::Unsupported("a list of types"),
        })
    }
}

/// The kind of an attribute, `None` for a number that is none. The first versions of ONNX did not state it: then it
/// is that of the value given.
fn kind(proto: &AttributeProto) -> Option<AttributeType> {
    let stated = AttributeType::try_from(proto.r#type.unwrap_or(0)).ok()?;
    if stated != AttributeType::Undefined {
        return Some(stated);
    }
    let given = [
        (proto.i.is_some(), AttributeType::Int),
        (proto.f.is_some(), AttributeType::Float),
        (proto.s.is_some(), AttributeType::String),
        (proto.t.is_some(), AttributeType::Tensor),
        (proto.g.is_some(), AttributeType::Graph),
        (!proto.ints.is_empty(), AttributeType::Ints),
        (!proto.floats.is_empty(), AttributeType::Floats),
        (!proto.strings.is_empty(), AttributeType::Strings),
    ];
    let found = given.into_iter().find(|(is_given, _)| *is_given);
    Some(found.map_or(AttributeType::Undefined, |(_, kind)| kind))
}

/// A tensor attribute. An element type that we do not have is the operator's problem.
fn tensor_value(proto: &TensorProto, files: &mut ExternalFiles) -> Result<Attribute, TensorError> {
    let encoding = element(proto.data_type()).ok().and_then(|(_, encoding)| encoding);
    match (tensor::decode(proto, files), encoding) {
        (Err(TensorError::ElementType { .. }), _) => {
            Ok(Attribute::Unsupported("a tensor of an element type that is not supported"))
        }
        (decoded, Some(encoding)) => decoded.map(|codes| Attribute::Encoded(codes, encoding)),
        (decoded, None) => decoded.map(Attribute::Tensor),
    }
}

/// A string attribute; ONNX says UTF-8, and no operator we import takes other bytes.
fn string(bytes: &[u8]) -> Attribute {
    match std::str::from_utf8(bytes) {
        Ok(text) => Attribute::String(text.to_owned()),
        Err(_) => Attribute::Unsupported("a string that is not UTF-8"),
    }
}

/// A list of strings.
fn strings(list: &[Vec<u8>]) -> Attribute {
    let texts: Result<Vec<String>, _> = list.iter().cloned().map(String::from_utf8).collect();
    texts.map_or(Attribute::Unsupported("a string that is not UTF-8"), Attribute::Strings)
}
