//! Test files: graphs in text with inputs and the outputs expected of them.
//!
//! ```text
//! graph "sum" {
//!   input "x" t0: f32[2]
//!   t1: f32[] = reduce.sum t0 axes=[0]
//!   output "y" t1
//! }
//! case "two numbers"
//! in f32[2] = [1, 2]
//! out f32[] = [3]
//! case "in f64" wide
//! ..
//! ```
//!
//! A file holds any number of graphs, each followed by its cases. A case that must fail has a line `error` with the
//! message instead of outputs. [`check`] runs a file and returns it with the expectations that failed replaced by what
//! was found, so that a test can compare or rewrite it.

use crate::compare::{Tolerance, compare};
use crate::{EvalOptions, Precision, evaluate};
use orch_ir::text::{parse, parse_tensor, print_tensor};
use orch_ir::{PrimGraph, Tensor};
use std::fmt::Write;

/// A graph with the runs expected of it.
#[derive(Clone, Debug)]
pub struct Block {
    /// The graph.
    pub graph: PrimGraph,
    /// Its text with the comments before it.
    text: String,
    /// Its cases.
    pub cases: Vec<Case>,
}

/// Inputs and what they must give.
#[derive(Clone, Debug)]
pub struct Case {
    /// A name for people.
    pub name: String,
    /// The arithmetic.
    pub precision: Precision,
    /// Inputs in the graph's order.
    pub inputs: Vec<Tensor>,
    /// Outputs in the graph's order, or the message of the error.
    pub expected: Result<Vec<Tensor>, String>,
}

/// Reads a test file.
///
/// # Errors
/// If a graph or case cannot be read: the message names the line.
pub fn read(text: &str) -> Result<Vec<Block>, String> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut head = String::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        if line.starts_with("graph ") {
            let start = index;
            let mut graph_text = format!("{line}\n");
            while let Some((_, line)) =
                lines.next_if(|(_, line)| !is_case_line(line) && !line.starts_with("graph "))
            {
                graph_text.push_str(line);
                graph_text.push('\n');
            }
            let graph = parse(&graph_text)
                .map_err(|e| format!("line {}, column {}: {}", start + e.line, e.column, e.message))?;
            blocks.push(Block { graph, text: std::mem::take(&mut head) + &graph_text, cases: Vec::new() });
        } else if is_case_line(line) {
            let block =
                blocks.last_mut().ok_or_else(|| format!("line {}: no graph precedes it", index + 1))?;
            case_line(block, line).map_err(|message| format!("line {}: {message}", index + 1))?;
        } else {
            head.push_str(line);
            head.push('\n');
        }
    }
    Ok(blocks)
}

/// Runs every case and returns the file with the expectations that failed replaced, and what failed.
///
/// # Errors
/// If the file cannot be read.
pub fn check(text: &str) -> Result<(String, Vec<String>), String> {
    let mut blocks = read(text)?;
    let mut failures = Vec::new();
    for block in &mut blocks {
        for case in &mut block.cases {
            let options = EvalOptions { precision: case.precision, ..EvalOptions::default() };
            let actual = evaluate(&block.graph, &case.inputs, &options).map_err(|error| error.to_string());
            if let Err(problem) = agree(&case.expected, &actual) {
                failures.push(format!("graph \"{}\", case \"{}\": {problem}", block.graph.name, case.name));
                case.expected = actual;
            }
        }
    }
    Ok((blocks.iter().map(print_block).collect(), failures))
}

fn is_case_line(line: &str) -> bool {
    matches!(line.split_whitespace().next(), Some("case" | "in" | "out" | "error")) && !line.starts_with(' ')
}

/// Adds one line to the cases of a block.
fn case_line(block: &mut Block, line: &str) -> Result<(), String> {
    let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
    if keyword == "case" {
        let (rest, precision) = match rest.strip_suffix(" wide") {
            Some(rest) => (rest, Precision::Wide),
            None => (rest, Precision::Native),
        };
        let name = rest.trim().trim_matches('"').to_owned();
        block.cases.push(Case { name, precision, inputs: Vec::new(), expected: Ok(Vec::new()) });
        return Ok(());
    }
    let case = block.cases.last_mut().ok_or("a line \"case\" must come first")?;
    let tensor = || parse_tensor(rest).map_err(|error| error.to_string());
    match keyword {
        "in" => case.inputs.push(tensor()?),
        "out" => match &mut case.expected {
            Ok(outputs) => outputs.push(tensor()?),
            Err(_) => return Err("an error and outputs are expected".to_owned()),
        },
        _ => case.expected = Err(rest.to_owned()),
    }
    Ok(())
}

/// Checks that a run did what is expected, floats to within rounding.
fn agree(expected: &Result<Vec<Tensor>, String>, actual: &Result<Vec<Tensor>, String>) -> Result<(), String> {
    match (expected, actual) {
        (Ok(expected), Ok(actual)) => {
            if expected.len() != actual.len() {
                return Err(format!("{} outputs expected, {} found", expected.len(), actual.len()));
            }
            for (index, (expected, actual)) in expected.iter().zip(actual).enumerate() {
                let same_type = expected.dtype() == actual.dtype();
                let outcome = compare(expected, actual, Tolerance::rounding(expected.dtype()));
                outcome.map_err(|difference| format!("output {index}: {difference}"))?;
                let (given, found) = (expected.dtype(), actual.dtype());
                same_type
                    .then_some(())
                    .ok_or_else(|| format!("output {index}: {given} expected, {found} found"))?;
            }
            Ok(())
        }
        (Err(expected), Err(actual)) if expected == actual => Ok(()),
        (_, Err(actual)) => Err(format!("it fails: {actual}")),
        (Err(expected), Ok(_)) => Err(format!("it succeeds, this error was expected: {expected}")),
    }
}

fn print_block(block: &Block) -> String {
    let mut out = block.text.clone();
    for case in &block.cases {
        let suffix = if case.precision == Precision::Wide { " wide" } else { "" };
        let mut line = |text: String| writeln!(out, "{text}").expect("a String takes any text");
        line(format!("case \"{}\"{suffix}", case.name));
        case.inputs.iter().for_each(|input| line(format!("in {}", print_tensor(input))));
        match &case.expected {
            Ok(outputs) => outputs.iter().for_each(|output| line(format!("out {}", print_tensor(output)))),
            Err(message) => line(format!("error {message}")),
        }
    }
    out
}
