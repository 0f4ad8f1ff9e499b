//! Operators of ONNX's versions 1 to 6, raised to version 7.
//!
//! Version 7 replaced limited broadcasting (attributes `broadcast` and `axis`) by NumPy's, and took the training
//! switch `is_test` away. Later stages know version 7 and up; here old nodes are said in those terms. A node that
//! cannot be, because its form is too old or a rank is not declared, is a problem.

use crate::graph::Importer;
use crate::problem::{Place, Reason};
use orch_ir::{Attribute, OperatorNode, Value};
use std::collections::BTreeMap;

/// The version that old nodes are raised to.
const RAISED_TO: i64 = 7;

/// Operators that took another form before version 7, with the version that brought the present one.
const REWORKED: [(&str, i64); 11] = [
    ("Cast", 6),
    ("Concat", 4),
    ("GRU", 3),
    ("GlobalLpPool", 2),
    ("LpPool", 2),
    ("Pad", 2),
    ("Reshape", 5),
    ("Selu", 6),
    ("Split", 2),
    ("Tile", 6),
    ("Upsample", 7),
];

/// Binary operators that had limited broadcasting.
const BROADCASTING: [&str; 11] =
    ["Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"];

impl Importer<'_> {
    /// Raises a node that is about to join the innermost graph, if it is old and ONNX's own. It may need a node
    /// before it that gives its second operand more dimensions.
    pub(crate) fn raise(&mut self, node: &mut OperatorNode, place: &Place) {
        if !node.domain.is_empty() || node.opset >= RAISED_TO {
            return;
        }
        let graph = self.scopes.graph();
        let rank = |operand: usize| {
            let id = node.inputs.get(operand).copied().flatten()?;
            graph.value(id).shape.as_ref().map(Vec::len)
        };
        let ranks = Ranks { lhs: rank(0), rhs: rank(1) };
        match raised(node, ranks) {
            Ok(0) => {}
            Ok(trailing) => self.add_trailing_dims(node, ranks, trailing),
            Err(what) => {
                self.problems.add(place.clone(), Reason::OldOperator { opset: node.opset, what });
            }
        }
        node.opset = RAISED_TO;
    }

    /// Makes the second operand of `node` one with `trailing` more dimensions of size 1.
    fn add_trailing_dims(&mut self, node: &mut OperatorNode, ranks: Ranks, trailing: usize) {
        let (Some(rank), Some(operand)) = (ranks.rhs, node.inputs.get(1).copied().flatten()) else { return };
        let graph = self.scopes.graph();
        let mut value =
            Value { name: format!("{}_unsqueezed", graph.value(operand).name), ..Value::default() };
        value.dtype = graph.value(operand).dtype;
        let axes = (rank..rank + trailing).map(|axis| axis as i64).collect();
        let unsqueezed = self.scopes.add_value(value);
        node.inputs[1] = Some(unsqueezed);
        self.scopes.graph().nodes.push(OperatorNode {
            name: format!("{}/Unsqueeze", node.name),
            domain: String::new(),
            op_type: "Unsqueeze".to_owned(),
            opset: RAISED_TO,
            inputs: vec![Some(operand)],
            outputs: vec![Some(unsqueezed)],
            attributes: BTreeMap::from([("axes".to_owned(), Attribute::Ints(axes))]),
        });
    }
}

/// The declared ranks of a node's first two operands.
#[derive(Clone, Copy)]
struct Ranks {
    lhs: Option<usize>,
    rhs: Option<usize>,
}

/// Takes the attributes that version 7 does not have from `node`; returns how many dimensions of size 1 its second
/// operand has to get at the end for the same meaning, or what cannot be said in terms of version 7.
fn raised(node: &mut OperatorNode, ranks: Ranks) -> Result<usize, &'static str> {
    let op_type = node.op_type.as_str();
    if REWORKED.iter().any(|(name, version)| *name == op_type && node.opset < *version) {
        return Err("form");
    }
    node.attributes.remove("consumed_inputs");
    match op_type {
        "BatchNormalization" | "Dropout" => match take_int(node, "is_test") {
            Some(0) | None => Err("training mode (is_test = 0)"),
            Some(_) => Ok(0),
        },
        "RNN" | "GRU" | "LSTM" => {
            node.attributes.remove("output_sequence");
            Ok(0)
        }
        "Gemm" => {
            node.attributes.remove("broadcast");
            Ok(0)
        }
        // Slopes of lower rank than the operand belong to its axis 1, the channels.
        "PRelu" if ranks.lhs.zip(ranks.rhs).is_some_and(|(lhs, rhs)| rhs >= lhs) => Ok(0),
        "PRelu" => trailing_dims(Some(1), ranks),
        _ if BROADCASTING.contains(&op_type) => {
            let axis = take_int(node, "axis");
            match take_int(node, "broadcast") {
                None | Some(0) => Ok(0),
                Some(_) => trailing_dims(axis, ranks),
            }
        }
        _ => Ok(0),
    }
}

/// The dimensions to add at the end of the second operand, so that its first one meets `axis` of the first operand.
/// Without an axis the last dimensions meet, as in NumPy.
fn trailing_dims(axis: Option<i64>, ranks: Ranks) -> Result<usize, &'static str> {
    const NO_RANK: &str = "broadcasting of operands whose rank is not declared";
    let Some(axis) = axis else { return Ok(0) };
    let rhs = ranks.rhs.ok_or(NO_RANK)?;
    if rhs == 0 {
        return Ok(0);
    }
    let lhs = ranks.lhs.ok_or(NO_RANK)?;
    let axis = if axis < 0 { axis + lhs as i64 } else { axis };
    let end = usize::try_from(axis).ok().and_then(|start| start.checked_add(rhs));
    end.and_then(|end| lhs.checked_sub(end)).ok_or("broadcasting along an axis that is out of range")
}

fn take_int(node: &mut OperatorNode, name: &str) -> Option<i64> {
    match node.attributes.remove(name) {
        Some(Attribute::Int(value)) => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raise(
        op_type: &str,
        opset: i64,
        ints: &[(&str, i64)],
        lhs: usize,
        rhs: usize,
    ) -> Result<usize, &'static str> {
        let attributes = ints.iter().map(|(name, value)| (name.to_string(), Attribute::Int(*value)));
        let mut node = OperatorNode {
            name: "n".into(),
            domain: String::new(),
            op_type: op_type.into(),
            opset,
            inputs: vec![],
            outputs: vec![],
            attributes: attributes.collect(),
        };
        let result = raised(&mut node, Ranks { lhs: Some(lhs), rhs: Some(rhs) });
        assert!(result.is_err() || node.attributes.is_empty(), "{:?}", node.attributes);
        result
    }

    #[test]
    fn axes_of_broadcasting_become_dimensions() {
        assert_eq!(raise("Add", 6, &[("broadcast", 1), ("axis", 1)], 4, 1), Ok(2));
        assert_eq!(raise("Add", 6, &[("broadcast", 1), ("axis", 0)], 4, 2), Ok(2));
        assert_eq!(raise("Add", 6, &[("broadcast", 1), ("axis", -1)], 4, 1), Ok(0));
        assert_eq!(raise("Add", 6, &[("broadcast", 1)], 4, 1), Ok(0));
        assert_eq!(raise("Add", 6, &[], 4, 4), Ok(0));
        assert_eq!(raise("PRelu", 6, &[], 3, 1), Ok(1));
        assert_eq!(raise("PRelu", 6, &[], 1, 1), Ok(0));
        for axis in [i64::MIN, -5, 4, i64::MAX] {
            assert!(raise("Add", 6, &[("broadcast", 1), ("axis", axis)], 4, 1).is_err());
        }
    }

    #[test]
    fn training_and_old_forms_are_refused() {
        assert_eq!(raise("Dropout", 6, &[("is_test", 1)], 2, 0), Ok(0));
        assert!(raise("Dropout", 6, &[], 2, 0).is_err());
        assert!(raise("Reshape", 4, &[], 2, 0).is_err());
        assert_eq!(raise("Reshape", 5, &[], 2, 1), Ok(0));
    }
}
