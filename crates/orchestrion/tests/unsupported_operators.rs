//! `docs/unsupported-operators.md` lists exactly the ONNX operators that no model may use.
//!
//! `onnx_operators.txt` names the operators of onnx 1.23.2 (domain and name, from `onnx.defs.get_all_schemas()`).

use orch_fission::{FissionOptions, RuleError, fission};
use orch_ir::{OperatorGraph, OperatorNode, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The newest operator set of any domain is older than this.
const NEWEST_OPSET: i64 = 1 << 10;

#[test]
fn list_of_unsupported_operators_is_complete() {
    let operators = include_str!("onnx_operators.txt").lines().filter_map(|line| line.split_once(' '));
    let refused: BTreeSet<String> = operators
        .filter(|(domain, name)| is_refused(domain, name))
        .map(|(domain, name)| format!("{domain} {name}"))
        .collect();
    let document = include_str!("../../../docs/unsupported-operators.md");
    let listed: BTreeSet<String> = document.lines().filter_map(listed_operator).collect();
    assert_eq!(refused, listed, "left: refused by fission, right: in docs/unsupported-operators.md");
}

/// A row of the first table, "| `Name` | domain | why |"; the second one, of operators that are supported in part, has no
/// domains.
fn listed_operator(line: &str) -> Option<String> {
    let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
    let (domain, _) = rest.split_once(" |")?;
    domain.starts_with("ai.onnx").then(|| format!("{domain} {name}"))
}

/// True if fission refuses the operator whatever its operands are. Rules that serve an operator miss the operands that
/// are left out here.
fn is_refused(domain: &str, op_type: &str) -> bool {
    let domain = if domain == "ai.onnx" { "" } else { domain };
    let mut graph = OperatorGraph::default();
    let result = graph.add_value(Value { name: "result".to_owned(), ..Value::default() });
    graph.nodes.push(OperatorNode {
        name: op_type.to_owned(),
        domain: domain.to_owned(),
        op_type: op_type.to_owned(),
        opset: NEWEST_OPSET,
        inputs: Vec::new(),
        outputs: vec![Some(result)],
        attributes: BTreeMap::new(),
    });
    graph.outputs.push(result);
    let errors = match fission(&graph, &FissionOptions::default()) {
        Ok(_) => return false,
        Err(errors) => errors.0,
    };
    errors.iter().any(|problem| matches!(problem.error, RuleError::Unsupported(_)))
}
