//! What makes a primitive graph valid. [`validate`] returns everything that is wrong with one.
//!
//! 1. Every tensor is exactly one of: a graph input, a constant, a result of one node.
//! 2. The names of inputs are distinct, and so are those of outputs; outputs name tensors that exist.
//! 3. A node's operands exist and are inputs, constants or results of earlier nodes.
//! 4. A node's results name it as their producer, and their types are those that inference gives for its operands.
//! 5. A constant has the type of its tensor; the bytes of booleans are 0 or 1.
//! 6. A tensor has at most [`MAX_RANK`] dimensions.
//! 7. Operands and stated results of an opaque operation suit each other, and routines are known.
//! 8. The bodies of control-flow operations are valid, take and return what the operation passes and expects, and nest
//!    no deeper than [`MAX_DEPTH`] graphs.
//!
//! Not checked: that tensors are used, that routines get the operands that the interpreter's documentation asks for.

mod opaque;

use crate::{DType, NodeId, OpaqueOp, PrimGraph, PrimOp, Shape, TensorId, infer::infer};
use std::collections::BTreeSet;
use std::fmt;

/// Dimensions that a tensor may have.
pub const MAX_RANK: usize = 64;

/// Graphs that may nest, the outermost included.
pub const MAX_DEPTH: usize = 16;

/// A tensor type.
type Type = (DType, Shape);

/// One broken invariant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The number of the invariant in this module's documentation.
    pub invariant: u32,
    /// Where: `t3`, `n5`, or `n5 then: n0` inside a body.
    pub place: String,
    /// What is there, and what should be.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (invariant {})", self.place, self.message, self.invariant)
    }
}

/// All that is wrong with a graph, in the order of its tensors and nodes.
pub fn validate(graph: &PrimGraph) -> Vec<Violation> {
    let mut checker = Checker { violations: Vec::new(), path: String::new(), depth: 1 };
    checker.graph(graph);
    checker.violations
}

/// All that is wrong with an opaque operation on operands of these types: what inference does not look at (invariants 7
/// and 8).
pub fn validate_opaque(op: &OpaqueOp, operands: &[(DType, Shape)]) -> Vec<Violation> {
    let mut checker = Checker { violations: Vec::new(), path: String::new(), depth: 1 };
    checker.opaque(NodeId::new(0), op, operands);
    checker.violations
}

/// Collects violations; knows in which body it is.
struct Checker {
    violations: Vec<Violation>,
    /// What to put before places: empty, or `n5 then: `.
    path: String,
    /// Graphs around the one checked, itself included.
    depth: usize,
}

impl Checker {
    fn report(&mut self, invariant: u32, place: impl fmt::Display, message: impl Into<String>) {
        self.violations.push(Violation {
            invariant,
            place: format!("{}{place}", self.path),
            message: message.into(),
        });
    }

    fn graph(&mut self, graph: &PrimGraph) {
        self.names(graph);
        self.tensors(graph);
        let mut defined: BTreeSet<TensorId> = graph.inputs.iter().map(|(_, id)| *id).collect();
        defined.extend(graph.constants().keys());
        for id in graph.node_ids() {
            self.node(graph, id, &defined);
            defined.extend(&graph.node(id).outputs);
        }
    }

    /// Invariant 2.
    fn names(&mut self, graph: &PrimGraph) {
        for (kind, list) in [("input", &graph.inputs), ("output", &graph.outputs)] {
            let mut names = BTreeSet::new();
            for (name, id) in list {
                if !names.insert(name) {
                    self.report(2, format_args!("{kind} {name:?}"), "there is another of this name");
                }
                if id.index() >= graph.tensors().len() {
                    self.report(2, format_args!("{kind} {name:?}"), format!("there is no tensor {id}"));
                }
            }
        }
    }

    /// Invariants 1, 5 and 6.
    fn tensors(&mut self, graph: &PrimGraph) {
        let mut definitions = vec![0usize; graph.tensors().len()];
        let results = graph.nodes().iter().flat_map(|node| &node.outputs);
        let inputs = graph.inputs.iter().map(|(_, id)| id);
        for id in results.chain(inputs).chain(graph.constants().keys()) {
            if let Some(count) = definitions.get_mut(id.index()) {
                *count += 1;
            }
        }
        for (index, info) in graph.tensors().iter().enumerate() {
            let id = TensorId::new(index);
            match definitions[index] {
                1 => {}
                0 => self.report(1, id, "it is neither an input nor a constant nor a result"),
                n => self.report(1, id, format!("it is defined {n} times")),
            }
            if info.shape.rank() > MAX_RANK {
                let rank = info.shape.rank();
                self.report(6, id, format!("it has {rank} dimensions, {MAX_RANK} are allowed"));
            }
            let Some(value) = graph.constant(id) else { continue };
            if (value.dtype(), value.shape()) != (info.dtype, &info.shape) {
                let given = format!("{}{}", value.dtype(), value.shape());
                self.report(5, id, format!("its value is {given}, its type {}{}", info.dtype, info.shape));
            }
            if value.dtype() == DType::Bool && value.bytes().iter().any(|&byte| byte > 1) {
                self.report(5, id, "a boolean element is neither 0 nor 1");
            }
        }
    }

    /// Invariants 3, 4, 7 and 8.
    fn node(&mut self, graph: &PrimGraph, id: NodeId, defined: &BTreeSet<TensorId>) {
        let node = graph.node(id);
        let mut operands = Vec::new();
        for input in &node.inputs {
            if !defined.contains(input) || input.index() >= graph.tensors().len() {
                self.report(3, id, format!("its operand {input} is not defined before it"));
                return;
            }
            operands.push((graph.dtype(*input), graph.shape(*input).clone()));
        }
        let mut results = Vec::new();
        for &output in &node.outputs {
            match graph.tensors().get(output.index()) {
                Some(info) if info.producer == Some(id) => results.push((info.dtype, info.shape.clone())),
                Some(_) => self.report(4, id, format!("its result {output} names another producer")),
                None => self.report(4, id, format!("there is no tensor {output}")),
            }
        }
        let types: Vec<(DType, &Shape)> = operands.iter().map(|(dtype, shape)| (*dtype, shape)).collect();
        match infer(&node.op, &types) {
            Err(error) => self.report(4, id, error.to_string()),
            Ok(expected) if expected != results => {
                let message =
                    format!("its results are {}, they should be {}", list(&results), list(&expected));
                self.report(4, id, message);
            }
            Ok(_) => {}
        }
        if let PrimOp::Opaque(opaque) = &node.op {
            self.opaque(id, opaque, &operands);
        }
    }
}

/// `(f32[2], i64[])`.
fn list(types: &[Type]) -> String {
    let texts: Vec<String> = types.iter().map(|(dtype, shape)| format!("{dtype}{shape}")).collect();
    format!("({})", texts.join(", "))
}
