//! Reads the text form of programs, a line at a time. Brackets and commas only separate tokens. Composite functions and kernels are
//! written by fewer operators:
//!
//! - [`COMPOSITES`] says what functions are; `rotate`, and reductions that keep more than one element, are slices of their operand.
//! - In a kernel all blocks and iterations are computed at once. What an iteration takes from the one before, a running maximum and
//!   a rescaled sum, is written out.

use crate::program::{Number, Op, Program, Result, Scalar, ensure, extents};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use std::mem::take;

/// The longest text, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// The largest grid.
const MAX_BLOCKS: usize = 1 << 20;
/// The longest loop.
const MAX_ITERATIONS: usize = 1 << 16;

/// Name, number of operands, and what it is: operators on values, of which the first are operands of the function and each
/// further one is the result of the next operator. `$` is the parameter.
const COMPOSITES: [(&str, usize, &str); 8] = [
    ("square", 1, "mul v0 v0"),
    ("sub", 2, "scale(-1) v1; add v0 v2"),
    ("div", 2, "reciprocal v1; mul v0 v2"),
    ("sigmoid", 1, "scale(-1) v0; exp v1; offset(1) v2; reciprocal v3"),
    ("silu", 1, "sigmoid v0; mul v0 v1"),
    ("tanh", 1, "scale(2) v0; sigmoid v1; scale(2) v2; offset(-1) v3"),
    (
        "gelu",
        1,
        "square v0; mul v0 v1; scale(44715/1000000) v2; add v0 v3; gelu_factor v4; sigmoid v5; mul v0 v6",
    ),
    ("rms_norm", 1, "square v0; mean v1; offset($) v2; sqrt v3; div v0 v4"),
];

/// The programs of a text, one after the other.
///
/// # Errors
/// The line of the first problem, and what it is.
pub fn parse(text: &str) -> Result<Vec<Program>> {
    if text.len() > MAX_BYTES {
        return Err(format!("a text of {} bytes; at most {MAX_BYTES} are read", text.len()));
    }
    let (mut reader, mut number) = (Reader::default(), 0);
    for line in text.lines() {
        number += 1;
        let read = tokens(line).and_then(|tokens| reader.line(&tokens));
        read.map_err(|problem| format!("line {number}: {problem}"))?;
    }
    if reader.is_open { Err(format!("line {number}: the text ends before }}")) } else { Ok(reader.programs) }
}

/// The tokens of a line up to a comment; what stands in quotes is one.
fn tokens(line: &str) -> Result<Vec<&str>> {
    let is_separator = |c: char| c.is_whitespace() || "[](),".contains(c);
    let mut rest = line.split('#').next().unwrap_or("").trim_start_matches(is_separator);
    let mut tokens = Vec::new();
    while !rest.is_empty() {
        let end = match rest.strip_prefix('"') {
            Some(inner) => inner.find('"').ok_or("a quote is not closed")? + 2,
            None => rest.find(|c| is_separator(c) || c == '"').unwrap_or(rest.len()),
        };
        tokens.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_separator);
    }
    Ok(tokens)
}

/// When a tensor is known, as seen in a kernel.
#[derive(Clone, Copy, PartialEq, PartialOrd, Eq, Ord, Debug)]
enum Stage {
    /// It is the same in all iterations.
    Fixed,
    /// In each iteration anew.
    Loop,
    /// After the loop.
    After,
}

/// What was read of a text.
#[derive(Default)]
struct Reader {
    programs: Vec<Program>,
    /// Set if the end of a program was not read: of that one is what follows.
    is_open: bool,
    program: Program,
    tensors: Vec<(usize, Stage)>,
    /// Along each axis of the grid of the kernel whose end was not read; of no axes if there is none. These are the first dimensions of a
    /// tile's tensor, then comes that of the loop.
    blocks: Vec<usize>,
    iterations: usize,
    /// What it defines.
    names: Vec<String>,
    /// Tensors: of all blocks and iterations.
    tiles: Vec<(usize, Stage)>,
    /// Those of them that are running maxima.
    running: Vec<usize>,
    stored: Vec<(usize, Stage)>,
}

impl Reader {
    /// Dimensions that stand before those that the text knows.
    fn prefix(&self) -> usize {
        if self.blocks.is_empty() { 0 } else { self.blocks.len() + 1 }
    }

    fn line(&mut self, tokens: &[&str]) -> Result<()> {
        match (tokens, self.is_open, self.prefix()) {
            ([], ..) => {}
            (["mugraph", name, "{"], false, _) => {
                quoted(name)?;
                (self.is_open, self.tensors) = (true, Vec::new());
            }
            (_, false, _) => return Err("expected mugraph \"name\" {".into()),
            (["}"], _, 0) => {
                ensure!(!self.program.outputs.is_empty(), "no output");
                self.programs.push(take(&mut self.program));
                self.is_open = false;
            }
            (["}"], ..) => {
                let (names, stored) = (take(&mut self.names), take(&mut self.stored));
                (self.blocks, self.tiles) = Default::default();
                self.define(&names, stored)?;
            }
            (["output", name, tensor], _, 0) => {
                let (name, (tensor, _)) = (quoted(name)?, named(tensor, 't', &self.tensors)?);
                let outputs = &mut self.program.outputs;
                ensure!(outputs.iter().all(|(known, _)| *known != name), "a second output {name}");
                outputs.push((name, tensor));
            }
            (["store", tile, dims @ ..], _, 1..) => {
                let stored = self.store(tile, dims)?;
                self.stored.push((stored, Stage::Fixed));
            }
            _ => {
                let at = tokens.iter().position(|token| *token == "=").ok_or("expected a definition")?;
                let names: Vec<String> = tokens[..at].iter().map(|&name| name.to_owned()).collect();
                if let ["block", blocks @ .., "loop", iterations, "{"] = &tokens[at + 1..] {
                    return self.open(names, numbers(blocks)?, number(iterations)?);
                }
                let value = self.value(&tokens[at + 1..])?;
                self.define(&names, vec![value])?;
            }
        }
        Ok(())
    }

    /// Gives names to values.
    fn define(&mut self, names: &[String], made: Vec<(usize, Stage)>) -> Result<()> {
        let is_kernel = self.prefix() > 0;
        let (known, letter) = if is_kernel { (&mut self.tiles, 's') } else { (&mut self.tensors, 't') };
        let expected: Vec<String> =
            (known.len()..).take(made.len()).map(|at| format!("{letter}{at}")).collect();
        ensure!(names == expected, "defines {}, expected {}", names.join(", "), expected.join(", "));
        known.extend(made);
        Ok(())
    }

    /// Opens a kernel.
    fn open(&mut self, names: Vec<String>, blocks: Vec<usize>, iterations: usize) -> Result<()> {
        let all = blocks.iter().try_fold(1usize, |product, &blocks| product.checked_mul(blocks));
        let is_grid =
            all.is_some_and(|all| (1..=MAX_BLOCKS).contains(&all)) && (1..=3).contains(&blocks.len());
        let is_kernel = self.prefix() == 0 && is_grid && (1..=MAX_ITERATIONS).contains(&iterations);
        ensure!(is_kernel, "a grid of {blocks:?} with a loop of {iterations}");
        (self.names, self.blocks, self.iterations) = (names, blocks, iterations);
        Ok(())
    }

    /// What is defined.
    fn value(&mut self, definition: &[&str]) -> Result<(usize, Stage)> {
        let is_kernel = self.prefix() > 0;
        Ok(match definition {
            [kind @ ("input" | "mask"), name, shape @ ..] if !is_kernel && name.starts_with('"') => {
                let (name, is_mask, shape) = (quoted(name)?, *kind == "mask", extents(&numbers(shape)?));
                ensure!(self.program.inputs().all(|(known, ..)| known != name), "a second input {name}");
                (self.program.push(Op::Input { name, is_mask }, &[], Some(shape))?, Stage::Fixed)
            }
            ["load", tensor, dims @ .., along] if is_kernel => {
                let ((tensor, _), along) = (named(tensor, 't', &self.tensors)?, dim(along)?);
                let rank = self.program.shape(tensor).len();
                let grid = self.grid(rank, dims).filter(|_| along.is_none_or(|dim| dim < rank));
                let grid = grid.ok_or("a load like this may not stand in a block")?;
                let stage = if along.is_some() { Stage::Loop } else { Stage::Fixed };
                (self.program.split(tensor, &grid, along, self.iterations)?, stage)
            }
            ["running_max" | "accumulate", how @ .., name] if is_kernel => {
                let tile = named(name, 's', &self.tiles)?;
                ensure!(tile.1 != Stage::After, "{name} is known after the loop only");
                match definition[0] {
                    "running_max" if how.is_empty() => (self.running_max(tile.0)?, Stage::Loop),
                    _ => (self.accumulated(how, tile)?, Stage::After),
                }
            }
            _ => {
                let (known, letter) = if is_kernel { (&self.tiles, 's') } else { (&self.tensors, 't') };
                let (name, params, args) = split(definition, letter, known)?;
                let (args, stages): (Vec<usize>, Vec<Stage>) = args.into_iter().unzip();
                let stage = stages.iter().copied().max().unwrap_or(Stage::Fixed);
                let is_mixed = stage == Stage::After && stages.contains(&Stage::Loop);
                ensure!(!is_mixed, "it mixes values of the loop with values after it");
                (self.apply(name, params, &args)?, stage)
            }
        })
    }

    /// How the grid cuts a tensor, if it can.
    fn grid(&self, rank: usize, dims: &[&str]) -> Option<Vec<(usize, Option<usize>)>> {
        let dims: Vec<Option<usize>> = dims.iter().map(|token| dim(token).ok()).collect::<Option<_>>()?;
        let is_first = |(at, dim): (usize, &Option<usize>)| {
            dim.is_none_or(|inner| inner < rank && !dims[..at].contains(dim))
        };
        let is_map = dims.len() == self.blocks.len() && dims.iter().enumerate().all(is_first);
        is_map.then(|| self.blocks.iter().copied().zip(dims.iter().copied()).collect())
    }

    fn store(&mut self, tile: &str, dims: &[&str]) -> Result<usize> {
        let (tensor, stage) = named(tile, 's', &self.tiles)?;
        let grid = self.grid(self.program.shape(tensor).len() - self.prefix(), dims).filter(|grid| {
            stage != Stage::Loop && grid.iter().all(|&(blocks, dim)| dim.is_some() || blocks == 1)
        });
        let grid = grid.ok_or_else(|| format!("{tile} is stored by {}", dims.join(", ")))?;
        let stored = self.program.merge(tensor, &grid);
        stored.map_err(|problem| format!("what is stored is too long, or uneven: {problem}"))
    }

    /// What a tile is in an iteration.
    fn iteration(&mut self, tile: usize, at: usize) -> Result<usize> {
        let dim = self.blocks.len();
        if self.program.shape(tile)[dim].len == 1 { Ok(tile) } else { self.program.slice(tile, dim, (at, 1)) }
    }

    /// The largest over this and earlier iterations.
    fn running_max(&mut self, all: usize) -> Result<usize> {
        let mut maxima = vec![self.iteration(all, 0)?];
        for at in 1..self.iterations {
            let next = self.iteration(all, at)?;
            maxima.push(self.program.each(Scalar::Max, &[maxima[at - 1], next])?);
        }
        let tile = self.program.concat(self.blocks.len(), &maxima)?;
        self.running.push(tile);
        Ok(tile)
    }

    /// A sum or maximum over iterations. A rescaled sum is multiplied by `e^(degree (before - now))` as a running maximum changes.
    fn accumulated(&mut self, how: &[&str], (all, stage): (usize, Stage)) -> Result<usize> {
        let dim = self.blocks.len();
        match how {
            ["sum"] if stage == Stage::Fixed => self.apply("scale", &[&self.iterations.to_string()], &[all]),
            ["sum"] => self.program.reduce(Scalar::Add, dim, &[all]),
            ["max"] => self.program.reduce(Scalar::Max, dim, &[all]),
            ["rescaled", max, degree] => {
                let (maxima, _) = named(max, 's', &self.tiles)?;
                ensure!(self.running.contains(&maxima), "{max} may not stand in a block like this");
                // A tensor of its own, even if all iterations are alike.
                let first = self.iteration(all, 0)?;
                let mut sum = self.apply("scale", &["1"], &[first])?;
                for at in 1..self.iterations {
                    let (before, now) = (self.iteration(maxima, at - 1)?, self.iteration(maxima, at)?);
                    let steps = format!("guard v2; sub v1 v3; scale({degree}) v4; exp v5; mul v0 v6");
                    let rescaled = self.apply_all(&steps, vec![sum, before, now])?;
                    self.is_like(rescaled, sum)?;
                    let next = self.iteration(all, at)?;
                    sum = self.program.each(Scalar::Add, &[rescaled, next])?;
                }
                Ok(sum)
            }
            _ => Err(format!("accumulate {} may not stand in a block like this", how.join(" "))),
        }
    }

    /// Adds what operators compute, each of values before it.
    fn apply_all(&mut self, steps: &str, mut values: Vec<usize>) -> Result<usize> {
        for step in steps.split("; ") {
            let step = tokens(step)?;
            let (name, params, args) = split(&step, 'v', &values)?;
            values.push(self.apply(name, params, &args)?);
        }
        values.pop().ok_or_else(|| "no operators".into())
    }

    /// Adds what an operator computes.
    fn apply(&mut self, name: &str, params: &[&str], args: &[usize]) -> Result<usize> {
        let unknown = || format!("no operator {name}({}) of {} operands", params.join(", "), args.len());
        if let Some((_, count, steps)) = COMPOSITES.iter().find(|(known, ..)| *known == name) {
            ensure!((args.len(), params.len()) == (*count, steps.matches('$').count()), "{}", unknown());
            return self.apply_all(&steps.replace('$', &params.concat()), args.to_vec());
        }
        let (prefix, program) = (self.prefix(), &mut self.program);
        let is_outer = matches!(name, "causal" | "reshape" | "broadcast" | "below");
        ensure!(prefix == 0 || !is_outer, "{name} may not stand in a block");
        let one = || if let [x] = args { Ok(*x) } else { Err(unknown()) };
        let at = |dim: usize| dim.saturating_add(prefix);
        let numbers = numbers(params).ok();
        match (name, numbers.as_deref()) {
            ("matmul", Some([])) => program.matmul(args),
            ("scale" | "offset", _) => {
                let number = ratio(params).ok_or_else(unknown)?;
                let constant = program.constant(number, one()?)?;
                let is_positive = matches!(number, Number::Ratio(1.., _));
                let scalar = if name == "scale" { Scalar::Scale { is_positive } } else { Scalar::Add };
                program.each(scalar, &[one()?, constant])
            }
            ("gelu_factor", Some([])) => {
                let factor = program.constant(Number::GeluFactor, one()?)?;
                program.each(Scalar::Mul, &[one()?, factor])
            }
            ("relu", Some([])) => {
                let zero = program.constant(Number::Ratio(0, 1), one()?)?;
                program.each(Scalar::Max, &[one()?, zero])
            }
            ("mean", Some([])) => {
                let last = program.shape(one()?).len().checked_sub(1).filter(|&last| last >= prefix);
                let last = last.ok_or_else(unknown)?;
                let count = program.extent(one()?, last).ok_or("a mean of parts that are uneven")?;
                let sum = program.reduce(Scalar::Add, last, args)?;
                self.apply("scale", &[&format!("1/{count}")], &[sum])
            }
            ("causal", _) => {
                let (offset, shape) = params.split_first().ok_or_else(unknown)?;
                let (offset, shape) = (offset.parse::<i64>().map_err(|_| unknown())?, self::numbers(shape)?);
                let row = shape.len().checked_sub(2).ok_or_else(unknown)?;
                let op = Op::Compare { dim: row + 1, with: Some(row), offset: offset.into() };
                program.push(op, &[], Some(extents(&shape)).filter(|_| args.is_empty()))
            }
            ("below", Some(&[dim, limit, ref shape @ ..])) => {
                let op = Op::Compare { dim, with: None, offset: limit as i128 - 1 };
                program.push(op, &[], Some(extents(shape)).filter(|_| args.is_empty() && dim < shape.len()))
            }
            ("transpose", Some(order)) if at(order.len()) == program.shape(one()?).len() => {
                let order: Vec<_> = (0..prefix).chain(order.iter().map(|&dim| at(dim))).map(Some).collect();
                program.select(one()?, &order)
            }
            ("reshape", Some(shape)) => program.reshape(one()?, shape),
            ("broadcast", Some(shape)) => program.broadcast(one()?, shape),
            ("sum" | "largest", Some(&[dim, ref keep @ ..])) if keep.len() < 2 => {
                let scalar = if name == "sum" { Scalar::Add } else { Scalar::Max };
                if let [] | [1] = keep {
                    return program.reduce(scalar, at(dim), &[one()?]);
                }
                // Element `j` of the result combines elements `j, j + keep, ..`.
                let parts = parts(program, one()?, at(dim), keep[0])?;
                parts[1..].iter().try_fold(parts[0], |sum, &part| program.each(scalar, &[sum, part]))
            }
            ("rotate", Some(&[dim, len])) => {
                // In each run of two groups the halves (a, b) become (-b, a).
                let mut halves = parts(program, one()?, at(dim), len)?;
                ensure!(halves.len().is_multiple_of(2), "groups of {len} elements do not suit");
                for pair in halves.chunks_mut(2) {
                    pair.swap(0, 1);
                    pair[0] = self.apply("scale", &["-1"], &pair[..1])?;
                }
                self.program.concat(at(dim), &halves)
            }
            ("slice", Some(&[dim, start, len])) => program.slice(one()?, at(dim), (start, len)),
            ("repeat", Some(&[dim, times])) => program.repeat(one()?, at(dim), times),
            ("concat", Some(&[dim])) => {
                let result = program.concat(at(dim), args)?;
                args.iter().try_for_each(|&arg| self.is_like(result, arg)).map(|()| result)
            }
            (_, Some([])) => {
                let name = name.into_deserializer();
                let scalar = Scalar::deserialize(name).map_err(|_: serde::de::value::Error| unknown())?;
                let result = program.each(scalar, args)?;
                if scalar == Scalar::Mask {
                    self.is_like(result, args[0])?;
                }
                Ok(result)
            }
            _ => Err(unknown()),
        }
    }

    /// That a result is not larger than an operand, but for the dimension along which operands are put side by side.
    fn is_like(&self, result: usize, operand: usize) -> Result<()> {
        let [result, operand] = [result, operand].map(|tensor| &self.program.nodes[tensor]);
        let is_same = |at: usize| result.op == Op::Concat(at) || result.shape[at] == operand.shape[at];
        let is_like = (self.prefix()..result.shape.len()).all(is_same);
        ensure!(is_like, "an operand is larger than what it is applied to");
        Ok(())
    }
}

/// The parts of a dimension, one at least.
fn parts(program: &mut Program, x: usize, dim: usize, len: usize) -> Result<Vec<usize>> {
    let extent = program.extent(x, dim).filter(|extent| len > 0 && extent.is_multiple_of(len));
    let starts = (0..extent.ok_or_else(|| format!("a part of {len} elements does not suit"))?).step_by(len);
    starts.map(|start| program.slice(x, dim, (start, len))).collect()
}

/// An operator, its parameters, and the values that it takes, which are called by a letter and a number.
fn split<'a, T: Copy>(
    definition: &'a [&'a str],
    letter: char,
    values: &[T],
) -> Result<(&'a str, &'a [&'a str], Vec<T>)> {
    let (name, rest) = definition.split_first().ok_or("expected a definition")?;
    let params = rest.iter().take_while(|token| !token.starts_with(letter)).count();
    let operands = rest[params..].iter().map(|token| named(token, letter, values));
    Ok((name, &rest[..params], operands.collect::<Result<_>>()?))
}

fn named<T: Copy>(text: &str, letter: char, names: &[T]) -> Result<T> {
    let number = text.strip_prefix(letter).and_then(|number| number.parse::<usize>().ok());
    let found = number.and_then(|number| names.get(number).copied());
    found.ok_or_else(|| format!("{text} is not defined before"))
}

fn dim(text: &str) -> Result<Option<usize>> {
    if text == "-" { Ok(None) } else { number(text).map(Some) }
}

fn number(text: &str) -> Result<usize> {
    text.parse().map_err(|_| format!("expected a number, not {text}"))
}

fn numbers(tokens: &[&str]) -> Result<Vec<usize>> {
    tokens.iter().map(|token| number(token)).collect()
}

/// Reads `3`, `-1/8`.
fn ratio(params: &[&str]) -> Option<Number> {
    let [text] = params else { return None };
    let (num, den) = text.split_once('/').unwrap_or((text, "1"));
    let (num, den) = (num.parse().ok()?, den.parse().ok()?);
    (den > 0 && num != i64::MIN).then_some(Number::Ratio(num, den))
}

/// A name in quotes, without escapes.
fn quoted(token: &str) -> Result<String> {
    let inner = token.strip_prefix('"').and_then(|token| token.strip_suffix('"'));
    let inner = inner.filter(|inner| format!("{inner:?}") == token);
    inner.map(str::to_owned).ok_or_else(|| "expected a name in quotes".into())
}
