//! Invariants 7 and 8: opaque operations and the bodies of control flow.

use super::{Checker, MAX_DEPTH, Type, list};
use crate::{
    Cumulative, DType, NodeId, OpaqueKind, OpaqueOp, PrimGraph, ROUTINES, ReduceOp, ScanSpec, Shape,
};

impl Checker {
    /// Checks an opaque operation of node `id` against the types of its operands.
    pub(super) fn opaque(&mut self, id: NodeId, op: &OpaqueOp, operands: &[Type]) {
        let outcome = match &op.kind {
            OpaqueKind::TopK { axis, k, .. } => top_k(operands, *axis, *k),
            OpaqueKind::Cumulative(spec) => cumulative(operands, spec),
            OpaqueKind::Routine { name, .. } => match ROUTINES.contains(name) {
                true => Ok(op.results.clone()),
                false => Err(format!("there is no routine {name}")),
            },
            OpaqueKind::If { then_graph, else_graph } => {
                let signature = branch(operands, &op.results);
                self.body(id, "then", then_graph, &signature);
                self.body(id, "else", else_graph, &signature);
                signature.map(|_| op.results.clone())
            }
            OpaqueKind::Loop { body, carried, trips } => {
                let signature = repeat(body, operands, *carried);
                self.body(id, "body", body, &signature);
                signature.map(|signature| stacked(&signature.outputs[1..], *carried, |_| Some((0, *trips))))
            }
            OpaqueKind::Scan { body, spec } => match scan(body, operands, spec) {
                Ok((signature, length)) => {
                    let outputs = signature.outputs.clone();
                    self.body(id, "body", body, &Ok(signature));
                    let placed = |scan: usize| spec.outputs.get(scan).map(|(axis, _)| (*axis, length));
                    Ok(stacked(&outputs, spec.states, placed))
                }
                Err(message) => Err(message),
            },
        };
        match outcome {
            Err(message) => self.report(7, id, message),
            Ok(expected) if expected != op.results => {
                let (stated, expected) = (list(&op.results), list(&expected));
                self.report(7, id, format!("it states the results {stated}, they should be {expected}"));
            }
            Ok(_) => {}
        }
    }

    /// Checks a body, and that it takes and returns what the operation passes and expects.
    fn body(&mut self, id: NodeId, role: &str, body: &PrimGraph, signature: &Result<Signature, String>) {
        if self.depth >= MAX_DEPTH {
            self.report(8, id, format!("its {role} nests deeper than {MAX_DEPTH} graphs"));
            return;
        }
        let in_range =
            |list: &[(String, crate::TensorId)]| list.iter().all(|(_, t)| t.index() < body.tensors().len());
        if let Ok(signature) = signature
            && in_range(&body.inputs)
            && in_range(&body.outputs)
        {
            for (verb, given, expected) in [
                ("takes", inputs_of(body), &signature.inputs),
                ("returns", outputs_of(body), &signature.outputs),
            ] {
                if given != *expected {
                    let (given, expected) = (list(&given), list(expected));
                    self.report(8, id, format!("its {role} {verb} {given}, {expected} expected"));
                }
            }
        }
        let outer = std::mem::take(&mut self.path);
        self.path = format!("{outer}{id} {role}: ");
        self.depth += 1;
        self.graph(body);
        self.depth -= 1;
        self.path = outer;
    }
}

/// What a body takes and returns.
struct Signature {
    inputs: Vec<Type>,
    outputs: Vec<Type>,
}

fn inputs_of(graph: &PrimGraph) -> Vec<Type> {
    graph.inputs.iter().map(|(_, id)| (graph.dtype(*id), graph.shape(*id).clone())).collect()
}

fn outputs_of(graph: &PrimGraph) -> Vec<Type> {
    graph.outputs.iter().map(|(_, id)| (graph.dtype(*id), graph.shape(*id).clone())).collect()
}

/// An error unless the condition holds.
fn ensure(condition: bool, message: impl Fn() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(message()) }
}

/// True for one element of `dtype`.
fn is_single((given, shape): &Type, dtype: DType) -> bool {
    *given == dtype && shape.elems() == 1
}

fn top_k(operands: &[Type], axis: usize, k: usize) -> Result<Vec<Type>, String> {
    let [(dtype, shape)] = operands else {
        return Err(format!("one operand expected, {} given", operands.len()));
    };
    ensure(shape.get(axis).is_some_and(|&extent| extent >= k), || format!("{k} of axis {axis} of {shape}"))?;
    let mut dims = shape.to_vec();
    dims[axis] = k;
    let shape = Shape::from(dims);
    Ok(vec![(*dtype, shape.clone()), (DType::I64, shape)])
}

fn cumulative(operands: &[Type], Cumulative { axis, op, .. }: &Cumulative) -> Result<Vec<Type>, String> {
    let [(dtype, shape)] = operands else {
        return Err(format!("one operand expected, {} given", operands.len()));
    };
    ensure(*axis < shape.rank(), || format!("axis {axis} of {shape}"))?;
    ensure(matches!(op, ReduceOp::Sum | ReduceOp::Prod), || format!("a cumulative {}", op.name()))?;
    ensure(*dtype != DType::Bool, || "a cumulative operation on booleans".to_owned())?;
    Ok(operands.to_vec())
}

/// `(condition, captures..)`: both graphs take the captures and return the results.
fn branch(operands: &[Type], results: &[Type]) -> Result<Signature, String> {
    let (condition, captures) = operands.split_first().ok_or("no condition is given")?;
    ensure(is_single(condition, DType::Bool), || format!("the condition is {}{}", condition.0, condition.1))?;
    Ok(Signature { inputs: captures.to_vec(), outputs: results.to_vec() })
}

/// `(trip_count, condition, carried.., captures..)`; what the scans are is the body's to say.
fn repeat(body: &PrimGraph, operands: &[Type], carried: usize) -> Result<Signature, String> {
    ensure(operands.len() >= 2 && operands.len() - 2 >= carried, || {
        format!("{} operands for {carried} carried values", operands.len())
    })?;
    let outputs = outputs_checked(body)?;
    ensure(outputs.len() > carried, || format!("its body returns {} values", outputs.len()))?;
    let head = inputs_checked(body)?;
    let fits = is_single(&operands[0], DType::I64)
        && is_single(&operands[1], DType::Bool)
        && head.len() >= 2
        && is_single(&head[0], DType::I64)
        && is_single(&head[1], DType::Bool)
        && is_single(&outputs[0], DType::Bool);
    ensure(fits, || "trip count and condition are not one i64 and one boolean".to_owned())?;
    let state = &operands[2..2 + carried];
    Ok(Signature {
        inputs: [&head[..2], &operands[2..]].concat(),
        outputs: [&outputs[..1], state, &outputs[1 + carried..]].concat(),
    })
}

/// `(state.., scanned.., captures..)` and the number of slices.
fn scan(body: &PrimGraph, operands: &[Type], spec: &ScanSpec) -> Result<(Signature, usize), String> {
    let outputs = outputs_checked(body)?;
    let (states, sequences) = (spec.states, spec.inputs.len());
    let scans = spec.outputs.len();
    let enough = states.checked_add(sequences).is_some_and(|n| n <= operands.len());
    ensure(enough && sequences > 0, || format!("{} operands for {states} states", operands.len()))?;
    ensure(outputs.len().checked_sub(scans) == Some(states), || {
        format!("its body returns {} values", outputs.len())
    })?;
    let (mut slices, mut length) = (Vec::new(), None);
    for ((dtype, shape), (axis, _)) in operands[states..].iter().zip(&spec.inputs) {
        let extent = shape.get(*axis).copied();
        ensure(extent.is_some() && (length.is_none() || length == extent), || {
            format!("axis {axis} of {shape}")
        })?;
        length = extent;
        let mut dims = shape.to_vec();
        dims.remove(*axis);
        slices.push((*dtype, Shape::from(dims)));
    }
    for ((_, shape), (axis, _)) in outputs[states..].iter().zip(&spec.outputs) {
        ensure(*axis <= shape.rank(), || format!("result axis {axis} for slices {shape}"))?;
    }
    let inputs = [&operands[..states], &slices, &operands[states + sequences..]].concat();
    let outputs = [&operands[..states], &outputs[states..]].concat();
    Ok((Signature { inputs, outputs }, length.unwrap_or(0)))
}

/// The types of a body's outputs, if they name tensors.
fn outputs_checked(body: &PrimGraph) -> Result<Vec<Type>, String> {
    let exist = body.outputs.iter().all(|(_, id)| id.index() < body.tensors().len());
    ensure(exist, || "an output of its body names no tensor".to_owned())?;
    Ok(outputs_of(body))
}

/// The types of a body's inputs, if they name tensors.
fn inputs_checked(body: &PrimGraph) -> Result<Vec<Type>, String> {
    let exist = body.inputs.iter().all(|(_, id)| id.index() < body.tensors().len());
    ensure(exist, || "an input of its body names no tensor".to_owned())?;
    Ok(inputs_of(body))
}

/// Result types from a body's outputs: states as they are, then slices with a new axis (axis, extent) each.
fn stacked(outputs: &[Type], states: usize, placed: impl Fn(usize) -> Option<(usize, usize)>) -> Vec<Type> {
    let mut results = outputs[..states].to_vec();
    for (index, (dtype, shape)) in outputs[states..].iter().enumerate() {
        let mut dims = shape.to_vec();
        if let Some((axis, extent)) = placed(index) {
            dims.insert(axis, extent);
        }
        results.push((*dtype, Shape::checked(dims).unwrap_or_default()));
    }
    results
}
