//! Subgraphs of control-flow operators.

use crate::context::Binding;
use crate::prune::prune;
use crate::{Context, FissionError, FissionErrors, Operand, RuleError};
use orch_ir::{DType, OperatorGraph, PrimGraph, Shape, TensorId};
use std::collections::BTreeSet;

/// A subgraph as a primitive graph of its own.
pub struct Body {
    /// The graph. Its inputs are those the rule gave, then one per capture.
    pub graph: PrimGraph,
}

impl Context<'_> {
    /// The tensors of this graph that the subgraphs read, each once. Constants are not listed: a body gets a copy,
    /// so that shape arithmetic folds in there too.
    pub fn captures(&self, subgraphs: &[&OperatorGraph]) -> Vec<TensorId> {
        let names: BTreeSet<String> = subgraphs.iter().flat_map(|graph| captured_names(graph)).collect();
        let mut tensors = BTreeSet::new();
        for name in &names {
            if let Some(Binding::Value(operand)) = self.names.get(name) {
                tensors.extend(operand.tensors().iter().filter(|id| self.graph.constant(**id).is_none()));
            }
        }
        tensors.into_iter().collect()
    }

    /// Translates a subgraph. Its inputs get these types, in order; `captures` are tensors of this graph, as
    /// [`Context::captures`] lists them, which become the last inputs of the body.
    ///
    /// # Errors
    /// All problems inside the subgraph, or if it has another number of inputs.
    pub fn body(
        &self,
        subgraph: &OperatorGraph,
        inputs: &[(DType, Shape)],
        captures: &[TensorId],
    ) -> Result<Body, RuleError> {
        if subgraph.inputs.len() != inputs.len() {
            return Err(RuleError::invalid(format!(
                "subgraph {} takes {} inputs, {} are given",
                subgraph.name,
                subgraph.inputs.len(),
                inputs.len()
            )));
        }
        let mut body = Context::new(&subgraph.name, self.options);
        let mut bound = Vec::new();
        for (&input, (dtype, shape)) in subgraph.inputs.iter().zip(inputs) {
            let name = &subgraph.value(input).name;
            let tensor = body.graph.add_input(name, *dtype, shape.clone());
            bound.push((name.clone(), Binding::Value(tensor.into())));
        }
        let mut errors = self.bind_captures(&mut body, subgraph, captures);
        body.names.extend(bound);
        errors.extend(body.run(subgraph));
        errors.extend(body.refuse_collections(subgraph));
        errors.extend(body.bind_outputs(subgraph));
        if errors.is_empty() {
            Ok(Body { graph: prune(&body.graph) })
        } else {
            Err(RuleError::Subgraph(Box::new(FissionErrors(errors))))
        }
    }

    /// Translates a subgraph in place, as part of this graph: for a branch that is known to run, or a body that
    /// runs a known number of times. Its inputs are bound to `operands`, in order.
    ///
    /// # Errors
    /// All problems inside the subgraph, or if it has another number of inputs.
    pub fn inline(
        &mut self,
        subgraph: &OperatorGraph,
        operands: &[Operand],
    ) -> Result<Vec<Operand>, RuleError> {
        if subgraph.inputs.len() != operands.len() {
            return Err(RuleError::invalid(format!(
                "subgraph {} takes {} inputs, {} are given",
                subgraph.name,
                subgraph.inputs.len(),
                operands.len()
            )));
        }
        let outside = self.names.clone();
        for (inside, name) in &subgraph.captures {
            if let Some(binding) = outside.get(name) {
                self.names.insert(subgraph.value(*inside).name.clone(), binding.clone());
            }
        }
        for (&input, operand) in subgraph.inputs.iter().zip(operands) {
            self.names.insert(subgraph.value(input).name.clone(), Binding::Value(operand.clone()));
        }
        let mut errors = self.run(subgraph);
        let mut results = Vec::new();
        for &output in &subgraph.outputs {
            let name = &subgraph.value(output).name;
            match self.names.get(name) {
                Some(Binding::Value(operand)) => results.push(operand.clone()),
                Some(Binding::Poisoned) => {}
                None => errors.push(FissionError {
                    place: format!("output {name}"),
                    error: RuleError::invalid("it is computed nowhere"),
                }),
            }
        }
        self.names = outside;
        if errors.is_empty() {
            Ok(results)
        } else {
            Err(RuleError::Subgraph(Box::new(FissionErrors(errors))))
        }
    }

    /// The results of a subgraph that stays whole are plain tensors, one each.
    fn refuse_collections(&self, subgraph: &OperatorGraph) -> Vec<FissionError> {
        let names = subgraph.outputs.iter().map(|&output| &subgraph.value(output).name);
        let others = names.filter(|name| {
            !matches!(
                self.names.get(*name),
                Some(Binding::Value(Operand::Tensor(_)) | Binding::Poisoned) | None
            )
        });
        let error = |name: &String| FissionError {
            place: format!("output {name}"),
            error: RuleError::NotConstant(
                "0 of the operator around it, which decides about something else than a plain tensor,"
                    .to_owned(),
            ),
        };
        others.map(error).collect()
    }

    /// Adds one input per capture to the body and binds the names that it reads from outside.
    fn bind_captures(
        &self,
        body: &mut Context<'_>,
        subgraph: &OperatorGraph,
        captures: &[TensorId],
    ) -> Vec<FissionError> {
        let inner: Vec<TensorId> = (captures.iter().enumerate())
            .map(|(position, &outer)| {
                body.graph.add_input(format!("capture_{position}"), self.dtype(outer), self.shape(outer))
            })
            .collect();
        let mut errors = Vec::new();
        for name in captured_names(subgraph) {
            let Some(binding) = self.names.get(&name) else {
                let place = format!("subgraph {}", subgraph.name);
                let error = RuleError::invalid(format!("{name} is computed nowhere before"));
                errors.push(FissionError { place, error });
                continue;
            };
            let binding = match binding {
                Binding::Poisoned => Binding::Poisoned,
                Binding::Value(operand) => Binding::Value(operand.map_tensors(|outer| {
                    match captures.iter().position(|&capture| capture == outer) {
                        Some(position) => inner[position],
                        None => body.tensor(
                            self.graph.constant(outer).expect("captures lists all but constants").clone(),
                        ),
                    }
                })),
            };
            body.names.insert(name, binding);
        }
        for (inside, outside) in &subgraph.captures {
            if let Some(binding) = body.names.get(outside).cloned() {
                body.names.insert(subgraph.value(*inside).name.clone(), binding);
            }
        }
        errors
    }
}

impl Operand {
    /// The tensors it consists of.
    fn tensors(&self) -> &[TensorId] {
        match self {
            Operand::Tensor(tensor) | Operand::Encoded { codes: tensor, .. } => std::slice::from_ref(tensor),
            Operand::Sequence(tensors) => tensors,
            Operand::Absent => &[],
        }
    }

    fn map_tensors(&self, mut f: impl FnMut(TensorId) -> TensorId) -> Operand {
        match self {
            Operand::Tensor(tensor) => Operand::Tensor(f(*tensor)),
            Operand::Encoded { codes, encoding } => {
                Operand::Encoded { codes: f(*codes), encoding: *encoding }
            }
            Operand::Sequence(tensors) => {
                Operand::Sequence(tensors.iter().map(|&tensor| f(tensor)).collect())
            }
            Operand::Absent => Operand::Absent,
        }
    }
}

/// The names of enclosing graphs that a subgraph reads, in itself or in its own subgraphs.
fn captured_names(graph: &OperatorGraph) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = graph.captures.iter().map(|(_, outside)| outside.clone()).collect();
    let own: BTreeSet<&str> = graph.values.iter().map(|value| value.name.as_str()).collect();
    for node in &graph.nodes {
        for attribute in node.attributes.values() {
            if let orch_ir::Attribute::Graph(nested) = attribute {
                names.extend(captured_names(nested).into_iter().filter(|name| !own.contains(name.as_str())));
            }
        }
    }
    names
}
