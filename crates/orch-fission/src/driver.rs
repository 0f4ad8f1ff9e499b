//! The walk over the operators of a model.

use crate::context::Binding;
use crate::prune::prune;
use crate::registry::Rule;
use crate::{Call, Context, FissionError, FissionErrors, Operand, RuleError, registry};
use orch_ir::{
    Attribute, DType, Encoding, OperatorGraph, OperatorNode, PrimGraph, Shape, Tensor, TensorId, Value,
    ValueId,
};
use std::collections::BTreeMap;

/// What the caller decides about fission.
#[derive(Clone, Debug)]
pub struct FissionOptions {
    /// Results of constant folding larger than this stay nodes.
    pub fold_limit_bytes: usize,
    /// Graph inputs, by name, whose value is fixed when compiling: they become constants.
    pub fixed_inputs: BTreeMap<String, Tensor>,
    /// What graph inputs that are sequences or optionals hold, by name.
    pub collections: BTreeMap<String, Collection>,
}

/// What a sequence or optional holds that is given to a graph. Each tensor becomes an input of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Collection {
    /// An optional that holds nothing: no input.
    Absent,
    /// An optional that holds a tensor: an input of the same name.
    Tensor(DType, Shape),
    /// A sequence, or an optional that holds one: an input `NAME[POSITION]` per element.
    Sequence(Vec<(DType, Shape)>),
}

impl Default for FissionOptions {
    fn default() -> Self {
        Self { fold_limit_bytes: 1 << 20, fixed_inputs: BTreeMap::new(), collections: BTreeMap::new() }
    }
}

/// Translates every operator of a model into primitives.
///
/// Postcondition: the graph has the model's inputs (without fixed ones) and outputs in order, and no node that
/// no output needs. Sequences and optionals among them become one input or output per tensor they hold; tensors of
/// an encoded type become their codes.
///
/// # Errors
/// All problems found, each with its operator; consequences of a problem are not reported.
pub fn fission(graph: &OperatorGraph, options: &FissionOptions) -> Result<PrimGraph, FissionErrors> {
    let mut ctx = Context::new(&graph.name, options);
    let mut errors = ctx.bind_inputs(graph);
    errors.extend(ctx.run(graph));
    errors.extend(ctx.bind_outputs(graph));
    if errors.is_empty() { Ok(prune(&ctx.graph)) } else { Err(FissionErrors(errors)) }
}

impl Context<'_> {
    /// Binds the inputs of the main graph.
    fn bind_inputs(&mut self, graph: &OperatorGraph) -> Vec<FissionError> {
        let mut errors = Vec::new();
        for &input in &graph.inputs {
            let name = &graph.value(input).name;
            let binding = match self.bind_input(graph, input) {
                Ok(operand) => Binding::Value(operand),
                Err(error) => {
                    errors.push(FissionError { place: format!("input {name}"), error });
                    Binding::Poisoned
                }
            };
            self.names.insert(name.clone(), binding);
        }
        errors
    }

    fn bind_input(&mut self, graph: &OperatorGraph, input: ValueId) -> Result<Operand, RuleError> {
        let value = graph.value(input);
        match self.options.collections.get(&value.name) {
            Some(Collection::Absent) => return Ok(Operand::Absent),
            Some(Collection::Tensor(dtype, shape)) => {
                return Ok(self.given(&value.name, *dtype, shape.clone()).into());
            }
            Some(Collection::Sequence(elements)) => {
                let element = |(position, (dtype, shape)): (usize, &(DType, Shape))| {
                    self.given(&element_name(&value.name, position), *dtype, shape.clone())
                };
                return Ok(Operand::Sequence(elements.iter().enumerate().map(element).collect()));
            }
            None => {}
        }
        if let Some(fixed) = self.options.fixed_inputs.get(&value.name) {
            let fixed = self.tensor(fixed.clone());
            return Ok(operand_of(value, fixed));
        }
        let dtype = value.dtype.ok_or_else(|| {
            RuleError::unsupported(
                "its element type is not one that this compiler has, or not stated, or it is a sequence or optional \
                 and what it holds is not stated",
            )
        })?;
        let dims: Option<Vec<usize>> = value.shape.as_ref().and_then(|dims| dims.iter().copied().collect());
        let dims = dims.ok_or_else(|| {
            RuleError::unsupported("its shape is not static; give every symbolic dimension a value")
        })?;
        let shape = crate::build::checked_shape(dims)?;
        let given = self.given(&value.name, dtype, shape);
        Ok(operand_of(value, given))
    }

    /// A tensor that the caller gives: now, or as an input of the graph.
    fn given(&mut self, name: &str, dtype: DType, shape: Shape) -> TensorId {
        match self.options.fixed_inputs.get(name) {
            Some(fixed) => self.tensor(fixed.clone()),
            None => self.graph.add_input(name, dtype, shape),
        }
    }

    /// Applies the rules to all nodes of a graph whose inputs are bound.
    pub(crate) fn run(&mut self, graph: &OperatorGraph) -> Vec<FissionError> {
        for (&id, value) in &graph.initializers {
            let tensor = self.tensor(value.clone());
            let value = graph.value(id);
            self.names.insert(value.name.clone(), Binding::Value(operand_of(value, tensor)));
        }
        let mut errors = Vec::new();
        for node in &graph.nodes {
            let results = match self.operands(graph, node) {
                Err(Poisoned) => Err(None),
                Ok(operands) => operands.and_then(|operands| self.apply(node, operands)).map_err(Some),
            };
            let results = results.map_err(|error| errors.extend(problems_of(node, error))).ok();
            self.bind_results(graph, node, results);
        }
        errors
    }

    /// The operands of a node.
    fn operands(
        &self,
        graph: &OperatorGraph,
        node: &OperatorNode,
    ) -> Result<Result<Vec<Option<Operand>>, RuleError>, Poisoned> {
        let mut operands = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            let Some(input) = input else {
                operands.push(None);
                continue;
            };
            let name = &graph.value(*input).name;
            match self.names.get(name) {
                Some(Binding::Value(operand)) => operands.push(Some(operand.clone())),
                Some(Binding::Poisoned) => return Err(Poisoned),
                None => {
                    return Ok(Err(RuleError::invalid(format!("operand {name} is computed nowhere before"))));
                }
            }
        }
        Ok(Ok(operands))
    }

    /// Finds and applies the rule of one node.
    fn apply(
        &mut self,
        node: &OperatorNode,
        operands: Vec<Option<Operand>>,
    ) -> Result<Vec<Operand>, RuleError> {
        let rule = rule_of(node)?;
        self.graph.set_origin(place(node));
        self.operators += 1;
        let results = match rule.moves.then(|| shared_encoding(&operands)).flatten() {
            Some(encoding) => {
                let codes = operands.into_iter().map(|operand| operand.map(as_plain)).collect();
                let results = (rule.apply)(self, &Call::new(node, codes))?;
                results.into_iter().map(|result| self.as_encoded(result, encoding)).collect()
            }
            None => (rule.apply)(self, &Call::new(node, operands))?,
        };
        let missing = (node.outputs.iter().enumerate())
            .find(|(position, output)| output.is_some() && *position >= results.len());
        match missing {
            None => Ok(results),
            Some((position, _)) => Err(RuleError::unsupported(format!("result {position} of this operator"))),
        }
    }

    /// The result of moving codes: codes, unless it is of another type (a shape).
    fn as_encoded(&self, result: Operand, encoding: Encoding) -> Operand {
        match result {
            Operand::Tensor(codes) if self.dtype(codes) == encoding.carrier() => {
                Operand::Encoded { codes, encoding }
            }
            other => other,
        }
    }

    fn bind_results(&mut self, graph: &OperatorGraph, node: &OperatorNode, results: Option<Vec<Operand>>) {
        for (position, output) in node.outputs.iter().enumerate() {
            let Some(output) = output else { continue };
            let binding = match results.as_ref().and_then(|results| results.get(position)) {
                Some(operand) => Binding::Value(operand.clone()),
                None => Binding::Poisoned,
            };
            self.names.insert(graph.value(*output).name.clone(), binding);
        }
    }

    /// Makes the graph's outputs outputs of the primitive graph.
    pub(crate) fn bind_outputs(&mut self, graph: &OperatorGraph) -> Vec<FissionError> {
        let mut errors = Vec::new();
        for &output in &graph.outputs {
            let name = &graph.value(output).name;
            let error = match self.names.get(name) {
                Some(Binding::Value(Operand::Tensor(tensor) | Operand::Encoded { codes: tensor, .. })) => {
                    self.graph.add_output(name, *tensor);
                    continue;
                }
                Some(Binding::Value(Operand::Sequence(tensors))) => {
                    for (position, &tensor) in tensors.iter().enumerate() {
                        self.graph.add_output(element_name(name, position), tensor);
                    }
                    continue;
                }
                Some(Binding::Poisoned | Binding::Value(Operand::Absent)) => continue,
                None => RuleError::invalid("it is computed nowhere"),
            };
            errors.push(FissionError { place: format!("output {name}"), error });
        }
        errors
    }
}

/// What there is to say of a node without results: its error, and whether there are rules for it and for the operators of its
/// subgraphs. That does not depend on operands, so it is no consequence of what is wrong with them (`None`).
fn problems_of(node: &OperatorNode, error: Option<RuleError>) -> Vec<FissionError> {
    let error = error.or_else(|| rule_of(node).err());
    let tells_of_inner = matches!(error, Some(RuleError::Subgraph(_)));
    let mut problems: Vec<FissionError> =
        error.into_iter().map(|error| FissionError { place: place(node), error }).collect();
    if !tells_of_inner {
        let inner: Vec<FissionError> = (node.attributes.values())
            .filter_map(|attribute| match attribute {
                Attribute::Graph(subgraph) => Some(subgraph),
                _ => None,
            })
            .flat_map(|subgraph| subgraph.nodes.iter().flat_map(|node| problems_of(node, None)))
            .collect();
        if !inner.is_empty() {
            let error = RuleError::Subgraph(Box::new(FissionErrors(inner)));
            problems.push(FissionError { place: place(node), error });
        }
    }
    problems
}

/// The rule of a node.
fn rule_of(node: &OperatorNode) -> Result<&'static Rule, RuleError> {
    let (op_type, domain) = (&node.op_type, &node.domain);
    let rule = registry::find(domain, op_type).ok_or_else(|| {
        let (domain, advice) = match domain.as_str() {
            "" | "ai.onnx" | "ai.onnx.ml" => {
                let domain = if domain.is_empty() { "ai.onnx" } else { domain };
                (domain, "docs/unsupported-operators.md says why, or what does the same")
            }
            "com.microsoft" => (
                domain.as_str(),
                "only ONNX Runtime has it: take the model as it was before ONNX Runtime's optimizer or quantizer",
            ),
            _ => (domain.as_str(), "give it as a function of the model, or leave it out of the export"),
        };
        RuleError::unsupported(format!("operator {op_type} of {domain}; {advice}"))
    })?;
    if node.opset < rule.since {
        return Err(RuleError::unsupported(format!(
            "{op_type} of operator set {}; convert the model to version {} or later",
            node.opset, rule.since
        )));
    }
    Ok(rule)
}

/// The name of one tensor of a sequence that is an input or output.
fn element_name(sequence: &str, position: usize) -> String {
    format!("{sequence}[{position}]")
}

/// A tensor as the kind of operand that the model declares.
fn operand_of(value: &Value, tensor: TensorId) -> Operand {
    match value.encoding {
        Some(encoding) => Operand::Encoded { codes: tensor, encoding },
        None => Operand::Tensor(tensor),
    }
}

/// The encoding of the first operand that has one.
fn shared_encoding(operands: &[Option<Operand>]) -> Option<Encoding> {
    operands.iter().flatten().find_map(|operand| match operand {
        Operand::Encoded { encoding, .. } => Some(*encoding),
        Operand::Tensor(_) | Operand::Sequence(_) | Operand::Absent => None,
    })
}

/// Codes as a plain tensor.
fn as_plain(operand: Operand) -> Operand {
    match operand {
        Operand::Encoded { codes, .. } => Operand::Tensor(codes),
        other => other,
    }
}

/// An operand whose computation failed before.
struct Poisoned;

/// The operator as errors and reports show it.
fn place(node: &OperatorNode) -> String {
    format!("{} ({})", node.name, node.op_type)
}
