//! Reading the text form.

use super::op::parse_op;
use crate::graph::{Accumulation, BlockGraph, InputKind, MuGraph, TensorId, TileId, TileNode};
use crate::op::Op;
use crate::rational::Rational;

/// What is wrong with a text, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// The problem.
    pub problem: String,
}

/// The µGraph of a text.
///
/// # Errors
/// The first problem.
pub fn parse(text: &str) -> Result<MuGraph, ParseError> {
    let mut lines = Lines { lines: text.lines().enumerate().collect(), next: 0 };
    let mut graph = MuGraph::default();
    let (mut line, mut statement) = lines.next()?;
    let mut read = || -> Result<(), String> {
        graph.name = statement
            .strip_prefix("mugraph ")
            .and_then(|rest| rest.strip_suffix('{'))
            .and_then(|name| quoted(name.trim()))
            .ok_or("expected mugraph \"name\" {")?;
        loop {
            (line, statement) = lines.next().map_err(|e| e.problem)?;
            if statement == "}" {
                return Ok(());
            }
            if let Some(rest) = statement.strip_prefix("output ") {
                let (name, id) = rest.rsplit_once(' ').ok_or("expected output \"name\" tensor")?;
                let name = quoted(name.trim()).ok_or("expected a name in quotes")?;
                graph.output(name, tensor(id)?).map_err(|e| e.to_string())?;
                continue;
            }
            let (names, definition) = statement.split_once(" = ").ok_or("expected a definition")?;
            let defined = define(&mut graph, definition, &mut lines, &mut line)?;
            let expected = defined.iter().map(TensorId::to_string).collect::<Vec<_>>().join(", ");
            if names.trim() != expected {
                return Err(format!("defines {names}, expected {expected}"));
            }
        }
    };
    match read() {
        Err(problem) => Err(ParseError { line, problem }),
        Ok(()) => match lines.next() {
            Ok((line, _)) => Err(ParseError { line, problem: "text after the end".into() }),
            Err(_) => Ok(graph),
        },
    }
}

/// The lines of a text that say something.
struct Lines<'a> {
    lines: Vec<(usize, &'a str)>,
    next: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Result<(usize, &'a str), ParseError> {
        while let Some(&(at, line)) = self.lines.get(self.next) {
            self.next += 1;
            let statement = line.split('#').next().unwrap_or("").trim();
            if !statement.is_empty() {
                return Ok((at + 1, statement));
            }
        }
        Err(ParseError { line: self.lines.len(), problem: "ends before }".into() })
    }
}

fn define(
    graph: &mut MuGraph,
    definition: &str,
    lines: &mut Lines<'_>,
    line: &mut usize,
) -> Result<Vec<TensorId>, String> {
    for (word, kind) in [("input \"", InputKind::Real), ("mask \"", InputKind::Mask)] {
        if definition.starts_with(word) {
            let rest = &definition[word.len() - 1..];
            let (name, shape) = rest.rsplit_once('[').ok_or("expected a shape")?;
            let name = quoted(name.trim()).ok_or("expected a name in quotes")?;
            let shape = shape.strip_suffix(']').and_then(numbers).ok_or("expected a shape")?;
            return Ok(vec![graph.input_of(name, kind, &shape)]);
        }
    }
    if let Some(head) = definition.strip_prefix("block ") {
        let block = parse_block(head, lines, line)?;
        return graph.block(block).map_err(|e| e.to_string());
    }
    let (op, args) = operator(definition)?;
    let args: Vec<TensorId> = args.into_iter().map(tensor).collect::<Result<_, _>>()?;
    Ok(vec![graph.op(op, &args).map_err(|e| e.to_string())?])
}

fn parse_block(head: &str, lines: &mut Lines<'_>, line: &mut usize) -> Result<BlockGraph, String> {
    let (grid, loop_range) = head
        .strip_suffix('{')
        .and_then(|head| head.split_once(" loop "))
        .ok_or("expected block [grid] loop range {")?;
    let grid = grid.trim().strip_prefix('[').and_then(|grid| grid.strip_suffix(']')).and_then(numbers);
    let loop_range = loop_range.trim().parse().map_err(|_| "expected the range of the loop")?;
    let mut block = BlockGraph::new(&grid.ok_or("expected a grid")?, loop_range);
    loop {
        let (at, statement) = lines.next().map_err(|e| e.problem)?;
        *line = at;
        if statement == "}" {
            return Ok(block);
        }
        if let Some(rest) = statement.strip_prefix("store ") {
            let (id, grid) = rest.split_once(' ').ok_or("expected store tile [grid]")?;
            block.store(tile(id)?, &map(grid)?);
            continue;
        }
        let (name, definition) = statement.split_once(" = ").ok_or("expected a definition")?;
        let node = tile_node(definition)?;
        let expected = TileId(block.nodes.len() as u32).to_string();
        if name.trim() != expected {
            return Err(format!("defines {name}, expected {expected}"));
        }
        block.nodes.push(node);
    }
}

fn tile_node(definition: &str) -> Result<TileNode, String> {
    let words: Vec<&str> = definition.split_whitespace().collect();
    match words[..] {
        ["load", id, ..] => {
            let rest = definition.trim_start_matches("load").trim_start().trim_start_matches(id);
            let (grid, along_loop) =
                rest.trim().rsplit_once(' ').ok_or("expected load tensor [grid] loop")?;
            Ok(TileNode::Load { tensor: tensor(id)?, grid: map(grid)?, along_loop: dim(along_loop)? })
        }
        ["running_max", id] => Ok(TileNode::RunningMax { tile: tile(id)? }),
        ["accumulate", "sum", id] => Ok(TileNode::Accumulate { how: Accumulation::Sum, tile: tile(id)? }),
        ["accumulate", "max", id] => Ok(TileNode::Accumulate { how: Accumulation::Max, tile: tile(id)? }),
        ["accumulate", "rescaled", max, degree, id] => {
            let degree = Rational::parse(degree).ok_or("expected a degree")?;
            let how = Accumulation::RescaledSum { max: tile(max)?, degree };
            Ok(TileNode::Accumulate { how, tile: tile(id)? })
        }
        _ => {
            let (op, args) = operator(definition)?;
            let args = args.into_iter().map(tile).collect::<Result<_, _>>()?;
            Ok(TileNode::Op { op, args })
        }
    }
}

/// An operator and the names of its operands.
fn operator(definition: &str) -> Result<(Op, Vec<&str>), String> {
    let end = definition.find(['(', ' ']).unwrap_or(definition.len());
    let (name, rest) = definition.split_at(end);
    let (params, args) = match rest.strip_prefix('(') {
        Some(rest) => rest.split_once(')').ok_or("expected )")?,
        None => ("", rest),
    };
    Ok((parse_op(name, &items(params))?, items(args)))
}

fn items(text: &str) -> Vec<&str> {
    if text.trim().is_empty() { Vec::new() } else { text.split(',').map(str::trim).collect() }
}

fn tensor(text: &str) -> Result<TensorId, String> {
    let number = text.trim().strip_prefix('t').and_then(|number| number.parse().ok());
    number.map(TensorId).ok_or_else(|| format!("expected a tensor, not {text}"))
}

fn tile(text: &str) -> Result<TileId, String> {
    let number = text.trim().strip_prefix('s').and_then(|number| number.parse().ok());
    number.map(TileId).ok_or_else(|| format!("expected a tile, not {text}"))
}

fn dim(text: &str) -> Result<Option<usize>, String> {
    match text.trim() {
        "-" => Ok(None),
        number => number.parse().map(Some).map_err(|_| format!("expected a dimension or -, not {number}")),
    }
}

fn map(text: &str) -> Result<Vec<Option<usize>>, String> {
    let inner = text.trim().strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    inner.ok_or_else(|| format!("expected [..], not {text}"))?.split(',').map(dim).collect()
}

fn numbers(text: &str) -> Option<Vec<usize>> {
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    text.split(',').map(|number| number.trim().parse().ok()).collect()
}

/// What stands between quotes, if it is printed as it stands: without quotes, backslashes and what cannot be seen.
fn quoted(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    (format!("{inner:?}") == text).then(|| inner.to_owned())
}
