//! No bytes make the importer panic, loop or allocate out of proportion, and what it accepts is an operator graph whose
//! nodes read what stands before them.
//!
//! Documents of `tests/files` are changed: as trees (numbers replaced by extremes, parts removed, exchanged or copied from
//! other documents) and as bytes.

use orch_aten::import;
use orch_fission::{FissionOptions, fission};
use orch_ir::OperatorGraph;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Changed documents.
const ROUNDS: usize = 20_000;

/// A document that is accepted has at most this many operators per node and size of its lists.
const MOST_NODES: usize = 20_000;

/// A xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound.max(1)
    }
}

fn documents() -> Vec<Value> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files");
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let cases = paths.iter().flat_map(|path| {
        let text = std::fs::read_to_string(path).expect("the file is read");
        serde_json::from_str::<Vec<Value>>(&text).expect("a list of cases")
    });
    cases
        .map(|mut case| case["document"].take())
        .filter(|document| document.to_string().len() < 20_000)
        .collect()
}

/// The number of values in a tree.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(fields) => fields.values().map(size).sum(),
        _ => 0,
    }
}

/// The value at a position of the walk through a tree.
fn at(value: &mut Value, position: usize) -> &mut Value {
    let mut rest = position;
    let mut current = value;
    'down: while rest > 0 {
        rest -= 1;
        let children: Vec<&mut Value> = match current {
            Value::Array(items) => items.iter_mut().collect(),
            Value::Object(fields) => fields.values_mut().collect(),
            _ => unreachable!("the position is within the tree"),
        };
        for child in children {
            let count = size(child);
            if rest < count {
                current = child;
                continue 'down;
            }
            rest -= count;
        }
        unreachable!("the position is within the tree");
    }
    current
}

/// What takes the place of a value.
fn extreme(random: &mut Random) -> Value {
    let numbers = [0, 1, -1, 2, 3, 7, -9, 1 << 20, 1 << 31, 1 << 40, i64::MAX, i64::MIN];
    match random.below(10) {
        0 => Value::Null,
        1 => json!(1.5),
        2 => json!([]),
        3 => json!({"float": "nan"}),
        4 => {
            let name = ["f16", "i64", "bool", "u8", "x"][random.below(5)];
            json!({ "dtype": name })
        }
        5 => {
            let name = ["x0", "x1", "", "add"][random.below(4)];
            json!({ "value": name })
        }
        6 => json!(true),
        _ => json!(numbers[random.below(numbers.len())]),
    }
}

fn change(document: &mut Value, others: &[Value], random: &mut Random) {
    let position = random.below(size(document));
    let kind = random.below(8);
    let target = if kind == 0 {
        let mut other = others[random.below(others.len())].clone();
        let position = random.below(size(&other));
        at(&mut other, position).take()
    } else {
        extreme(random)
    };
    let place = at(document, position);
    match place {
        Value::Array(items) if kind > 3 && !items.is_empty() => {
            let index = random.below(items.len());
            match kind {
                4 => drop(items.remove(index)),
                5 => items.push(items[index].clone()),
                _ => items[index] = target,
            }
        }
        Value::Object(fields) if kind > 1 => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            let Some(key) = keys.get(random.below(keys.len())) else { return };
            if key == "target" && kind != 2 {
                let targets: Vec<&str> = orch_aten::targets().map(|target| target.name).collect();
                fields[key] = json!(targets[random.below(targets.len())]);
            } else if kind == 7 {
                fields.remove(key);
            } else {
                fields[key] = target;
            }
        }
        _ => *place = target,
    }
}

/// Every node reads inputs, constants and results of earlier nodes.
fn check(graph: &OperatorGraph) {
    let mut known: BTreeSet<_> = graph.inputs.iter().chain(graph.initializers.keys()).copied().collect();
    for node in &graph.nodes {
        assert!(node.inputs.iter().flatten().all(|input| known.contains(input)));
        assert!(node.outputs.iter().flatten().all(|&output| known.insert(output)), "produced twice");
    }
    assert!(graph.outputs.iter().all(|output| known.contains(output)));
    let names: BTreeSet<&str> = graph.values.iter().map(|value| value.name.as_str()).collect();
    assert_eq!(names.len(), graph.values.len(), "names are unique");
    assert!(graph.nodes.len() < MOST_NODES, "{} nodes", graph.nodes.len());
    let bytes: usize = graph.initializers.values().map(|value| value.bytes().len()).sum();
    assert!(bytes < 1 << 26, "{bytes} bytes of constants");
}

/// Fission finds the types that the importer knew.
fn check_types(graph: &OperatorGraph) {
    const SMALL_ELEMS: usize = 1 << 16;
    let elems = |value: &orch_ir::Value| value.shape.iter().flatten().flatten().product::<usize>();
    if graph.values.iter().any(|value| elems(value) > SMALL_ELEMS) {
        return;
    }
    let Ok(primitives) = fission(graph, &FissionOptions::default()) else { return };
    for (&known, (name, found)) in graph.outputs.iter().zip(&primitives.outputs) {
        let known = graph.value(known);
        let dims: Vec<usize> = known.shape.iter().flatten().flatten().copied().collect();
        assert_eq!(known.dtype, Some(primitives.dtype(*found)), "{name}");
        assert_eq!(dims, primitives.shape(*found)[..], "{name}");
    }
}

/// True if the bytes are accepted.
fn exercise(bytes: &[u8]) -> bool {
    match import(bytes) {
        Ok(imported) => {
            check(&imported.graph);
            check_types(&imported.graph);
            true
        }
        Err(errors) => {
            assert!(!errors.0.is_empty());
            assert!(errors.to_string().len() < 6000);
            false
        }
    }
}

#[test]
fn changed_documents_do_not_panic() {
    let documents = documents();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut accepted = 0;
    for _ in 0..ROUNDS {
        let mut document = documents[random.below(documents.len())].clone();
        for _ in 0..=random.below(3) {
            change(&mut document, &documents, &mut random);
        }
        accepted += usize::from(exercise(document.to_string().as_bytes()));
    }
    assert!(accepted > ROUNDS / 50, "only {accepted} changed documents are accepted");
}

#[test]
fn changed_bytes_do_not_panic() {
    let documents = documents();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for _ in 0..ROUNDS / 4 {
        let mut bytes = documents[random.below(documents.len())].to_string().into_bytes();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = b"09-.eE[]{}\",:n"[random.below(14)],
                2 => bytes.truncate(at),
                _ => drop(bytes.drain(at..(at + random.below(16)).min(bytes.len()))),
            }
            if bytes.is_empty() {
                break;
            }
        }
        exercise(&bytes);
    }
}

#[test]
fn deep_and_empty_bytes_are_refused() {
    assert!(!exercise(b""));
    assert!(!exercise(&b"[".repeat(1 << 20)));
    assert!(!exercise(&b"{\"a\":".repeat(1 << 20)));
    assert!(!exercise(b"\xff\xfe"));
}
