//! Helpers of several test files.
#![allow(dead_code)]

pub mod gpu;
pub mod kernels;
pub mod programs;
pub mod random;
pub mod regions;
pub mod saved;
pub mod saved_form;
pub mod saved_sets;
pub mod wrong_qknorm;

use orch_mugraph::array::Array;
use orch_mugraph::{MuGraph, parse, validate};
use std::path::Path;

/// A µGraph of `tests/mugraphs`.
pub fn mugraph(name: &str) -> MuGraph {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mugraphs").join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    valid(&text)
}

/// A valid µGraph from its text.
pub fn valid(text: &str) -> MuGraph {
    let graph = parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(validate(&graph), []);
    graph
}

/// A benchmark program of batch size 1.
pub fn program(name: &str) -> MuGraph {
    let programs = programs::programs(1).expect("small shapes");
    programs.into_iter().find(|program| program.name == name).expect("a known program").graph
}

/// A text with other extents: every number in a bracketed list that is a key of the map is replaced by its value.
pub fn resized(graph: &MuGraph, sizes: &[(usize, usize)]) -> MuGraph {
    let mut text = String::new();
    let mut number = String::new();
    let printed = orch_mugraph::print(graph);
    let mut before = ' ';
    for c in printed.chars().chain([' ']) {
        if c.is_ascii_digit() && (!number.is_empty() || !before.is_ascii_alphanumeric()) {
            number.push(c);
        } else {
            if !number.is_empty() {
                let value: usize = number.parse().expect("digits");
                let value = sizes.iter().find(|(from, _)| *from == value).map_or(value, |(_, to)| *to);
                text += &value.to_string();
                number.clear();
            }
            text.push(c);
        }
        before = c;
    }
    valid(text.trim_end_matches(' '))
}

/// Random inputs, of standard deviation about `scale`.
pub fn random_inputs(graph: &MuGraph, seed: u64, scale: f64) -> Vec<Array<f64>> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / 2f64.powi(30) - 1.0
    };
    let inputs = graph.inputs();
    inputs
        .map(|(id, _, kind)| match kind {
            orch_mugraph::InputKind::Real => {
                Array::from_fn(graph.shape(id), |_| scale * (next() + next() + next()))
            }
            orch_mugraph::InputKind::Mask => {
                Array::from_fn(graph.shape(id), |_| f64::from(u8::from(next() > 0.0)))
            }
        })
        .collect()
}
