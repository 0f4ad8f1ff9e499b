//! A `GraphProto` to an [`OperatorGraph`], the main graph and subgraphs alike.
//!
//! All names of a graph are declared before its nodes are read, so that nodes may stand in any order. Constants are
//! decoded last, and only those that something reads.

use crate::dims::Dims;
use crate::external::ExternalFiles;
use crate::function::{Functions, domain};
use crate::problem::{Place, Problems, Reason};
use crate::proto::{GraphProto, NodeProto, TensorProto, ValueInfoProto};
use crate::scope::{Binding, Opsets, Scopes};
use crate::{order, tensor, types};
use orch_ir::{OperatorGraph, OperatorNode, Value, ValueId, message};
use std::collections::{BTreeMap, BTreeSet};

/// How deep subgraphs and function calls may nest. The importer recurses on them.
const MAX_DEPTH: usize = 64;

/// The state of one import.
pub(crate) struct Importer<'m> {
    pub(crate) functions: &'m Functions<'m>,
    pub(crate) dims: Dims<'m>,
    pub(crate) files: ExternalFiles<'m>,
    pub(crate) problems: Problems,
    pub(crate) scopes: Scopes<'m>,
    /// What inlined functions have added so far.
    pub(crate) inlined_bytes: usize,
}

/// Which graph is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The model's: its inputs have to be tensors with all sizes known.
    Main,
    /// A control-flow operator's.
    Body,
}

impl<'m> Importer<'m> {
    /// The main graph of a model. It is complete only if no problem was found.
    pub(crate) fn main_graph(&mut self, proto: &'m GraphProto, opsets: &'m Opsets) -> OperatorGraph {
        self.scopes.open_graph(proto.name(), None, opsets);
        self.graph(proto, Role::Main)
    }

    /// The value `proto` of a graph attribute, whose names see those of the frame `outer`.
    pub(crate) fn subgraph(&mut self, proto: &'m GraphProto, outer: usize) -> Result<OperatorGraph, Reason> {
        self.check_depth()?;
        let opsets = self.scopes.opsets(outer);
        self.scopes.open_graph(proto.name(), Some(outer), opsets);
        Ok(self.graph(proto, Role::Body))
    }

    /// Checks the depth of nesting before a graph or call is opened.
    pub(crate) fn check_depth(&self) -> Result<(), Reason> {
        if self.scopes.depth() < MAX_DEPTH { Ok(()) } else { Err(Reason::TooDeep { limit: MAX_DEPTH }) }
    }

    /// Reads a graph into the level just opened, and closes that.
    fn graph(&mut self, proto: &'m GraphProto, role: Role) -> OperatorGraph {
        let place = Place::Graph(proto.name().to_owned());
        let constants = constant_names(proto);
        self.declare_inputs(proto, &constants, role, &place);
        self.declare_constants(proto, &place);
        self.declare_results(&proto.node, &BTreeMap::new());
        self.annotate(proto.output.iter().chain(&proto.value_info));
        self.nodes(&proto.node);
        self.outputs(proto, role);
        self.load_constants(proto);
        let mut graph = self.scopes.close_graph();
        if let Err(cycles) = order::sort(&mut graph) {
            for cycle in cycles {
                let nodes = cycle.into_iter().map(|position| graph.nodes[position].name.clone()).collect();
                self.problems.add(place.clone(), Reason::Cycle { nodes });
            }
        }
        graph
    }

    /// Declares the inputs that are not constants too.
    fn declare_inputs(
        &mut self,
        proto: &'m GraphProto,
        constants: &BTreeSet<&'m str>,
        role: Role,
        place: &Place,
    ) {
        let inputs: Vec<_> = proto.input.iter().filter(|info| !constants.contains(info.name())).collect();
        for info in inputs {
            let value = match role {
                Role::Main => types::input(info, &mut self.dims, &mut self.problems),
                Role::Body => types::declared(info, &self.dims),
            };
            if let Some(id) = self.declare("graph input", info.name(), value, place) {
                self.scopes.graph().inputs.push(id);
            }
        }
    }

    /// Declares initializers, dense and sparse.
    fn declare_constants(&mut self, proto: &'m GraphProto, place: &Place) {
        for tensor in &proto.initializer {
            self.declare("initializer", tensor.name(), types::constant(tensor), place);
        }
        for name in sparse_names(proto) {
            let value = Value { name: name.to_owned(), ..Value::default() };
            self.declare("initializer", name, value, place);
        }
    }

    /// Declares a name in the innermost frame, if it is a new one.
    fn declare(&mut self, what: &'static str, name: &'m str, value: Value, place: &Place) -> Option<ValueId> {
        if name.is_empty() {
            self.problems.add(place.clone(), Reason::Nameless { what });
            return None;
        }
        if self.scopes.frame().names.contains_key(name) {
            self.problems.add(place.clone(), Reason::Duplicate { what, name: name.to_owned() });
            return None;
        }
        let id = self.scopes.add_value(value);
        self.scopes.frame().names.insert(name, Some(id));
        Some(id)
    }

    /// Declares what `nodes` produce in the innermost frame. Those that `existing` has (outputs of a function) are
    /// values of the graph already.
    pub(crate) fn declare_results(&mut self, nodes: &'m [NodeProto], existing: &BTreeMap<&'m str, ValueId>) {
        for (position, node) in nodes.iter().enumerate() {
            for name in node.output.iter().filter(|name| !name.is_empty()) {
                if self.scopes.frame().names.contains_key(name.as_str()) {
                    let place = self.node_place(node, position);
                    self.problems.add(place, Reason::ProducedTwice { value: name.clone() });
                    continue;
                }
                let id = existing.get(name.as_str()).copied().unwrap_or_else(|| {
                    let name = format!("{}{name}", self.scopes.prefix());
                    self.scopes.add_value(Value { name, ..Value::default() })
                });
                self.scopes.frame().names.insert(name, Some(id));
            }
        }
    }

    /// Notes the types declared for values of the innermost frame, where not known from their definition.
    fn annotate(&mut self, infos: impl Iterator<Item = &'m ValueInfoProto>) {
        for info in infos {
            let Some(id) = self.scopes.frame().names.get(info.name()).copied().flatten() else { continue };
            let declared = types::declared(info, &self.dims);
            let value = &mut self.scopes.graph().values[id.index()];
            if value.dtype.is_none() {
                (value.dtype, value.encoding) = (declared.dtype, declared.encoding);
            }
            value.shape = value.shape.take().or(declared.shape);
        }
    }

    /// Adds nodes to the innermost graph, with the names of the innermost frame; calls are inlined.
    pub(crate) fn nodes(&mut self, nodes: &'m [NodeProto]) {
        let functions = self.functions;
        for (position, node) in nodes.iter().enumerate() {
            let place = self.node_place(node, position);
            let name = self.node_name(node, position);
            if node.op_type().is_empty() {
                self.problems.add(place, Reason::Nameless { what: "an operator" });
            } else if let Some(function) = functions.called(node) {
                self.inline(node, function, name, &place);
            } else {
                self.operator(node, name, &place);
            }
        }
    }

    /// Adds a node that is no call.
    fn operator(&mut self, node: &'m NodeProto, name: String, place: &Place) {
        let domain = domain(node.domain()).to_owned();
        let Some(opset) = self.scopes.opset(&domain) else {
            self.problems.add(place.clone(), Reason::NoOpset { domain });
            return;
        };
        let inputs = node.input.iter().map(|input| self.operand(input, place)).collect();
        let outputs = node.output.iter().map(|output| self.result(output)).collect();
        let attributes = self.attributes(node, place);
        let op_type = node.op_type().to_owned();
        let mut node = OperatorNode { name, domain, op_type, opset, inputs, outputs, attributes };
        self.raise(&mut node, place);
        self.scopes.graph().nodes.push(node);
    }

    /// The value that a node reads under `name`.
    pub(crate) fn operand(&mut self, name: &'m str, place: &Place) -> Binding {
        if name.is_empty() {
            return None;
        }
        self.scopes.lookup(name).unwrap_or_else(|| {
            self.problems.add(place.clone(), Reason::Dangling { value: name.to_owned() });
            // Declared as absent, so that the next node that reads it does not report it again.
            self.scopes.frame().names.insert(name, None);
            None
        })
    }

    /// The value that a node of the innermost frame produces under `name`.
    pub(crate) fn result(&mut self, name: &str) -> Binding {
        self.scopes.frame().names.get(name).copied().flatten()
    }

    /// Sets the outputs of the innermost graph.
    fn outputs(&mut self, proto: &'m GraphProto, role: Role) {
        for info in &proto.output {
            let place = Place::Output(info.name().to_owned());
            if role == Role::Main {
                types::check_output(info, &mut self.problems);
            }
            if info.name().is_empty() {
                self.problems.add(place, Reason::Nameless { what: "a graph output" });
            } else if let Some(id) = self.operand(info.name(), &place) {
                self.scopes.graph().outputs.push(id);
            }
        }
    }

    /// Decodes the constants of the innermost graph that something reads.
    fn load_constants(&mut self, proto: &'m GraphProto) {
        for tensor in &proto.initializer {
            let Some(id) = self.read_constant(tensor.name()) else { continue };
            match tensor::decode(tensor, &mut self.files) {
                Ok(tensor) => {
                    self.scopes.graph().initializers.insert(id, tensor);
                }
                Err(error) => {
                    self.problems.add(Place::Initializer(tensor.name().to_owned()), Reason::Tensor(error));
                }
            }
        }
        for name in sparse_names(proto) {
            if self.read_constant(name).is_some() {
                self.problems.add(Place::Initializer(name.to_owned()), Reason::SparseInitializer);
            }
        }
    }

    /// The value of a constant of the innermost graph, if something reads it and it is not set yet.
    fn read_constant(&mut self, name: &str) -> Binding {
        let id = self.result(name)?;
        let is_set = self.scopes.graph().initializers.contains_key(&id);
        (!is_set && self.scopes.is_read(id)).then_some(id)
    }

    /// The name of a node of the innermost frame.
    fn node_name(&self, node: &NodeProto, position: usize) -> String {
        let prefix = self.scopes.prefix();
        match node.name() {
            "" => format!("{prefix}{}_{position}", node.op_type()),
            name => format!("{prefix}{name}"),
        }
    }

    /// Where problems of a node are.
    fn node_place(&self, node: &NodeProto, position: usize) -> Place {
        let name = message::name(&self.node_name(node, position));
        let operator = match domain(node.domain()) {
            "" => node.op_type().to_owned(),
            domain => format!("{domain}::{}", node.op_type()),
        };
        Place::Node { name, operator: message::name(&operator) }
    }
}

/// The names of sparse initializers.
fn sparse_names(proto: &GraphProto) -> impl Iterator<Item = &str> {
    proto.sparse_initializer.iter().map(|sparse| sparse.values.as_ref().map_or("", TensorProto::name))
}

/// The names of a graph's initializers: an input of the same name is a default that nobody overrides.
fn constant_names(proto: &GraphProto) -> BTreeSet<&str> {
    proto.initializer.iter().map(TensorProto::name).chain(sparse_names(proto)).collect()
}
