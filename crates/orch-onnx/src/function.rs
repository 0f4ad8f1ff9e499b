//! Inlining of model-local functions (`FunctionProto`).
//!
//! A call is replaced by the function's nodes, recursively. Names of the body are prefixed with the call's name;
//! each node keeps the operator set versions of the function it was written in. Local functions go before
//! operators of the same name. Size is bounded, because calls can double it at every step.

use crate::graph::Importer;
use crate::problem::{Place, Problems, Reason};
use crate::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto};
use crate::scope::{Binding, Call, Opsets, Written};
use orch_ir::{OperatorNode, ValueId};
use prost::Message;
use std::collections::BTreeMap;

/// The most that inlined function bodies may add to a model, in bytes of the file's encoding; weights do not count.
const MAX_INLINED_BYTES: usize = 1 << 28;

/// Bytes that stand for a node or value of a body on top of its encoding.
const NODE_BYTES: usize = 256;

/// The local functions of a model.
#[derive(Default)]
pub(crate) struct Functions<'m> {
    by_key: BTreeMap<Key<'m>, usize>,
    functions: Vec<Function<'m>>,
}

/// Domain, name and overload.
type Key<'m> = (&'m str, &'m str, &'m str);

/// A local function.
pub(crate) struct Function<'m> {
    proto: &'m FunctionProto,
    opsets: Opsets,
    /// What a call adds to the model, without the prefixes of names.
    bytes: usize,
    /// The nodes and values of the body.
    names: usize,
}

impl<'m> Functions<'m> {
    /// The functions of a model.
    pub(crate) fn new(protos: &'m [FunctionProto], problems: &mut Problems) -> Self {
        let (mut by_key, mut functions) = (BTreeMap::new(), Vec::new());
        for (position, proto) in protos.iter().enumerate() {
            let place = Place::Function(display_name(proto));
            if proto.name().is_empty() {
                problems.add(place.clone(), Reason::Nameless { what: "a function" });
            }
            for (what, formals) in [("a function input", &proto.input), ("a function output", &proto.output)]
            {
                if formals.iter().any(String::is_empty) {
                    problems.add(place.clone(), Reason::Nameless { what });
                }
            }
            let opsets = crate::import::opsets(&proto.opset_import, &place, problems);
            let names = names(&proto.node);
            let bytes = proto.encoded_len().saturating_sub(raw_bytes(&proto.node)) + NODE_BYTES * (1 + names);
            let key = (domain(proto.domain()), proto.name(), proto.overload());
            functions.push(Function { proto, opsets, bytes, names });
            if by_key.insert(key, position).is_some() {
                let reason = Reason::Duplicate { what: "function", name: display_name(proto) };
                problems.add(place, reason);
            }
        }
        Self { by_key, functions }
    }

    /// The function that a node calls, if it calls one.
    pub(crate) fn called(&self, node: &NodeProto) -> Option<&Function<'m>> {
        let key = (domain(node.domain()), node.op_type(), node.overload());
        self.by_key.get(&key).map(|&position| &self.functions[position])
    }
}

/// A domain in the form that is compared: ONNX's own is `""`.
pub(crate) fn domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// `domain::name`.
fn display_name(proto: &FunctionProto) -> String {
    format!("{}::{}", proto.domain(), proto.name())
}

/// The nodes and values that a list of nodes declares.
fn names(nodes: &[NodeProto]) -> usize {
    nodes.iter().map(|node| 1 + node.output.len()).sum()
}

/// The bytes of weights in these nodes: inlining shares them.
fn raw_bytes(nodes: &[NodeProto]) -> usize {
    let tensor = |attribute: &AttributeProto| {
        attribute.t.as_ref().and_then(|tensor| tensor.raw_data.as_ref()).map_or(0, |raw| raw.len())
    };
    let graph = |graph: &GraphProto| {
        let weights = graph.initializer.iter().filter_map(|tensor| tensor.raw_data.as_ref());
        weights.map(|raw| raw.len()).sum::<usize>() + raw_bytes(&graph.node)
    };
    let attributes = nodes.iter().flat_map(|node| &node.attribute);
    attributes.map(|attribute| tensor(attribute) + attribute.g.as_ref().map_or(0, graph)).sum()
}

impl<'m> Importer<'m> {
    /// Adds the nodes of `function` in place of `node`, which calls it.
    pub(crate) fn inline(
        &mut self,
        node: &'m NodeProto,
        function: &'m Function<'m>,
        name: String,
        place: &Place,
    ) {
        let proto = function.proto;
        let inputs: Vec<Binding> = node.input.iter().map(|input| self.operand(input, place)).collect();
        let outputs: Vec<Binding> = node.output.iter().map(|output| self.result(output)).collect();
        if !self.arity_fits(node, proto, place) || !self.may_inline(function, &name, place) {
            return;
        }
        let attributes = self.call_attributes(node, proto, place);
        let call = Call { function: proto, prefix: format!("{name}/"), attributes };
        let mut names = BTreeMap::new();
        for (position, formal) in proto.input.iter().enumerate() {
            let actual = inputs.get(position).copied().flatten();
            if names.insert(formal.as_str(), actual).is_some() {
                let reason = Reason::Duplicate { what: "function input", name: formal.clone() };
                self.problems.add(Place::Function(display_name(proto)), reason);
            }
        }
        self.scopes.open_call(call, names, &function.opsets);
        let results = formal_outputs(proto, &outputs);
        self.declare_results(&proto.node, &results);
        self.nodes(&proto.node);
        for (formal, actual) in proto.output.iter().zip(outputs) {
            let is_handed_through = proto.input.contains(formal);
            self.connect_output(formal, is_handed_through, actual, place);
        }
        self.scopes.close_call();
    }

    /// Checks that a call neither recurses nor makes the model too deep or too large.
    fn may_inline(&mut self, function: &Function<'m>, name: &str, place: &Place) -> bool {
        let checked = self.check_recursion(function.proto).and_then(|()| self.check_depth());
        match checked {
            Ok(()) => {
                let of_names = name.len().saturating_mul(function.names);
                self.charge(function.bytes.saturating_add(of_names), place)
            }
            Err(reason) => {
                self.problems.add(place.clone(), reason);
                false
            }
        }
    }

    /// Checks that the innermost frame is not inside a call of `function`.
    fn check_recursion(&self, function: &FunctionProto) -> Result<(), Reason> {
        let calls = self.scopes.outwards(self.scopes.top()).filter_map(|frame| frame.call.as_ref());
        let mut chain: Vec<&FunctionProto> = calls.map(|call| call.function).collect();
        let Some(position) = chain.iter().position(|&caller| std::ptr::eq(caller, function)) else {
            return Ok(());
        };
        chain.truncate(position + 1);
        chain.insert(0, function);
        Err(Reason::Recursion { chain: chain.into_iter().rev().map(display_name).collect() })
    }

    /// Checks that the graph of an attribute, which the body of a function refers to, does not make the model too
    /// large: graphs that refer to attributes with graphs can double it at every step too.
    pub(crate) fn may_copy(&mut self, graph: &GraphProto, place: &Place) -> bool {
        let bytes = graph.encoded_len().saturating_sub(raw_bytes(&graph.node));
        let names = names(&graph.node).saturating_add(1);
        self.charge(bytes.saturating_add(NODE_BYTES.saturating_mul(names)), place)
    }

    /// Counts what is added to the model, and checks that it still is within the limit. Only the first one beyond it
    /// is reported.
    fn charge(&mut self, added: usize, place: &Place) -> bool {
        let was_within = self.inlined_bytes <= MAX_INLINED_BYTES;
        self.inlined_bytes = self.inlined_bytes.saturating_add(added);
        let is_within = self.inlined_bytes <= MAX_INLINED_BYTES;
        if was_within && !is_within {
            self.problems.add(place.clone(), Reason::TooMuchInlining { limit_bytes: MAX_INLINED_BYTES });
        }
        is_within
    }

    /// Checks that a call has no more operands and results than the function declares.
    fn arity_fits(&mut self, node: &NodeProto, function: &FunctionProto, place: &Place) -> bool {
        let sides = [
            ("inputs", node.input.len(), function.input.len()),
            ("outputs", node.output.len(), function.output.len()),
        ];
        let excess: Vec<_> = sides.into_iter().filter(|(_, given, declared)| given > declared).collect();
        for &(what, given, declared) in &excess {
            self.problems.add(place.clone(), Reason::FunctionArity { what, given, declared });
        }
        excess.is_empty()
    }

    /// The attributes that a body sees: those of the call, and the function's defaults for the rest.
    fn call_attributes(
        &mut self,
        node: &'m NodeProto,
        function: &'m FunctionProto,
        place: &Place,
    ) -> BTreeMap<&'m str, Written<'m>> {
        let frame = self.scopes.top() + 1;
        let defaults = function.attribute_proto.iter();
        let mut attributes: BTreeMap<_, _> =
            defaults.map(|attribute| (attribute.name(), Written { attribute, frame })).collect();
        for attribute in &node.attribute {
            if let Some(written) = self.written(attribute, place) {
                attributes.insert(attribute.name(), written);
            }
        }
        attributes
    }

    /// Makes sure that the value `actual` of the caller gets what the body calls `formal`. It has got it already
    /// if a node of the body produces it; an input that is handed through is copied, even to itself: that is a
    /// cycle of one node.
    fn connect_output(&mut self, formal: &str, is_handed_through: bool, actual: Binding, place: &Place) {
        let Some(actual) = actual else { return };
        match self.scopes.lookup(formal) {
            Some(Some(produced)) if produced == actual && !is_handed_through => {}
            Some(Some(produced)) => self.copy(produced, actual),
            Some(None) => {
                self.problems.add(place.clone(), Reason::AbsentOutput { output: formal.to_owned() });
            }
            None => self.problems.add(place.clone(), Reason::Dangling { value: formal.to_owned() }),
        }
    }

    /// Adds an Identity node.
    fn copy(&mut self, from: ValueId, to: ValueId) {
        let opset = self.scopes.opset("").unwrap_or(crate::NEWEST_OPSET);
        let name = format!("{}Identity_{}", self.scopes.prefix(), to.index());
        self.scopes.graph().nodes.push(OperatorNode {
            name,
            domain: String::new(),
            op_type: "Identity".to_owned(),
            opset,
            inputs: vec![Some(from)],
            outputs: vec![Some(to)],
            attributes: BTreeMap::new(),
        });
    }
}

/// The values of the caller by the names they have in the body, without those that the call leaves out.
fn formal_outputs<'m>(function: &'m FunctionProto, actual: &[Binding]) -> BTreeMap<&'m str, ValueId> {
    let mut results = BTreeMap::new();
    for (formal, actual) in function.output.iter().zip(actual) {
        if let Some(actual) = *actual {
            results.entry(formal.as_str()).or_insert(actual);
        }
    }
    results
}
